"""Decides between the Numba kernels and Python: kernels are fast once imported, but the import takes a second.

Few records never need the kernels. A process that will need them warms up in a thread, and uses Python until that is
done: no request waits for an import.
"""

import sys
from collections.abc import Callable
from contextvars import ContextVar

_MODULE = "sulina.core.records.kernels"

_warming = 0  # number of threads that are warming up
_is_warming_here: ContextVar[bool] = ContextVar("is_warming_here", default=False)


def are_loaded() -> bool:
    """Tell whether the kernels can be used at once."""
    return _MODULE in sys.modules and (not _warming or _is_warming_here.get())


def are_worth_it(count: int, *, loaded: int, unloaded: int) -> bool:
    """Tell whether to use the kernels for `count` items: at least `loaded` if imported, at least `unloaded` if not."""
    if _warming and not _is_warming_here.get():
        return False
    return count >= (loaded if _MODULE in sys.modules else unloaded)


def warm_up(use: Callable[[], object]) -> None:
    """Import the kernels and call `use`, because the first use compiles or reads the cache."""
    global _warming
    token = _is_warming_here.set(True)
    _warming += 1
    try:
        use()
    finally:
        _warming -= 1
        _is_warming_here.reset(token)
