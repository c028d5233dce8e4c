"""Whether the kernels are worth it: quick once they are there, but Numba takes a second to come.

Few records never need them. A process that will need them warms up in a thread, and goes on in Python until that is
done: nobody waits for an import.
"""

import sys
from collections.abc import Callable
from contextvars import ContextVar

_MODULE = "sulina.core.records._kernels"

_warming = 0  # how many threads are at it
_is_warming_here: ContextVar[bool] = ContextVar("is_warming_here", default=False)


def are_loaded() -> bool:
    """Whether they can be used at once."""
    return _MODULE in sys.modules and (not _warming or _is_warming_here.get())


def are_worth_it(count: int, *, loaded: int, unloaded: int) -> bool:
    """Whether to use them for so many: at least `loaded` if they are there, at least `unloaded` if not."""
    if _warming and not _is_warming_here.get():
        return False
    return count >= (loaded if _MODULE in sys.modules else unloaded)


def warm_up(use: Callable[[], object]) -> None:
    """Import them, and use each once, because the first use compiles or reads what was compiled before."""
    global _warming
    token = _is_warming_here.set(True)
    _warming += 1
    try:
        use()
    finally:
        _warming -= 1
        _is_warming_here.reset(token)
