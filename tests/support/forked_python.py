"""Any module as a fork of the server that Spark's Python processes are forks of: it only has its imports already."""

import sys
from collections.abc import Sequence

from sulina.spark.python_forks import CLIENT, PythonForks

ASKS = (
    "import os, sys; sys.path.insert(0, sys.argv[1]); from python_fork_client import ask; "
    "os._exit(ask(sys.argv[2], sys.argv[3:]))"
)


def forks() -> PythonForks:
    """Return the server of this process."""
    found = PythonForks.shared()
    assert found is not None
    found.start()
    return found


def asking(address: str) -> Sequence[str]:
    """Return a command; with `-m module arguments` after it, it stands for a fork that runs them."""
    return [sys.executable, "-IS", "-c", ASKS, str(CLIENT.parent), address]
