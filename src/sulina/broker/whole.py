"""Changes that are made whole: whoever asked may give up waiting, the change is finished all the same."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Changes(Protocol):
    """Who makes such changes keeps those that are under way."""

    changes: set[asyncio.Task[Any]]


Owner = TypeVar("Owner", bound=Changes)


def whole(
    method: Callable[Concatenate[Owner, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Owner, Parameters], Coroutine[Any, Any, Result]]:
    """Run a method as a task of its own, which nobody cancels."""

    @wraps(method)
    async def run(owner: Owner, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        task = asyncio.create_task(method(owner, *arguments, **named), name=method.__name__)
        owner.changes.add(task)
        task.add_done_callback(owner.changes.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_ignore)
            raise

    return run


def _ignore(task: asyncio.Task[Any]) -> None:
    """Nobody is left to hear of it; asyncio need not complain."""
    if not task.cancelled():
        task.exception()
