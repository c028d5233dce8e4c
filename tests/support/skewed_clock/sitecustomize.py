"""Moves the wall clock of a Python process where no C compiler can make shim.c: Python imports this at its start."""

import os
import time
from pathlib import Path

_real, _path = time.time, Path(os.environ.get("SKEWED_CLOCK_FILE", os.devnull))


def _skewed() -> float:
    return _real() + int(_path.read_text() or 0)


time.time = _skewed
