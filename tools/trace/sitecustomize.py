"""Records which functions of Sulina a process enters. Python imports it at start because its folder is on PYTHONPATH.

The first byte of `$HOUSE_TRACE/phase` is the number of the phase; in phase 0 nothing counts. Each function that is
entered or resumed in another phase becomes one line of `$HOUSE_TRACE/seen`: phase, role, file, line, name, and whether
it was entered from another module. Lines are written at once, so that a process that is killed has told everything.
"""

import mmap
import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any


def start(folder: str, package: str, role: str) -> None:
    """Trace this thread, every later one, and every process that is forked."""
    with open(os.path.join(folder, "phase"), "rb") as file:
        phases = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
    sink = os.open(os.path.join(folder, "seen"), os.O_WRONLY | os.O_APPEND)
    known: dict[tuple[int, int, bool], CodeType] = {}  # keeps the code alive: an id is of one code only

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call" or not (phase := phases[0]):
            return
        code = frame.f_code
        if (phase, id(code), True) in known:
            return
        is_ours = code.co_filename.startswith(package) and not code.co_name.startswith("<")
        is_crossing = not is_ours or _caller(frame, package) != code.co_filename
        if (phase, id(code), is_crossing) in known:
            return
        known[phase, id(code), is_crossing] = code
        if is_ours:
            words = (phase, role, code.co_filename, code.co_firstlineno, code.co_qualname, int(is_crossing))
            os.write(sink, ("\t".join(map(str, words)) + "\n").encode())

    threading.setprofile(profile)
    sys.setprofile(profile)


def _caller(frame: FrameType, package: str) -> str:
    """Return the file of the nearest caller that is Sulina's."""
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith(package):
        caller = caller.f_back
    return "" if caller is None else caller.f_code.co_filename


if "HOUSE_TRACE" in os.environ:
    start(os.environ["HOUSE_TRACE"], os.environ["HOUSE_PACKAGE"], os.environ["HOUSE_ROLE"])
