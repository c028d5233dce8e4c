"""A wall clock that a test can move, for a process that it starts; the monotonic clocks stay as they are.

Where there is a C compiler the process gets a small library preloaded (shim.c), else a module that Python imports first
(sitecustomize.py). Such a process must not be forked from another one: it is changed when it starts.
"""

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

_HERE = Path(__file__).parent


class SkewedClock:
    """The clock of one process. `environment` is what to start it with."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = folder / f"{name}.clock"
        self.move(0)

    @property
    def environment(self) -> dict[str, str]:
        shim = _shim()
        preload = {"PYTHONPATH": str(_HERE)} if shim is None else {"LD_PRELOAD": shim}
        return {"SKEWED_CLOCK_FILE": str(self._file), **preload}

    def move(self, seconds: int) -> None:
        """The clock is so far ahead from now on; behind, if negative."""
        aside = self._file.with_suffix(".aside")
        aside.write_text(str(seconds))
        aside.replace(self._file)


@functools.cache
def _shim() -> str | None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    target = Path(tempfile.mkdtemp(prefix="skewed-clock-")) / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(target), str(_HERE / "shim.c")]
    return str(target) if subprocess.run(command, capture_output=True, check=False).returncode == 0 else None
