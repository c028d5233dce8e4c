"""Changes that are finished once they are begun, also when the client that asked for them stops waiting."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class HasChanges(Protocol):
    """Keeps the changes that are under way, so that a stop can wait for them."""

    changes: set[asyncio.Task[Any]]


Changer = TypeVar("Changer", bound=HasChanges)


def run_to_completion(
    method: Callable[Concatenate[Changer, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Changer, Parameters], Coroutine[Any, Any, Result]]:
    """Run a method as a task of its own, which nobody cancels."""

    @wraps(method)
    async def run(changer: Changer, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        task = asyncio.create_task(method(changer, *arguments, **named), name=method.__name__)
        changer.changes.add(task)
        task.add_done_callback(changer.changes.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_ignore)
            raise

    return run


def _ignore(task: asyncio.Task[Any]) -> None:
    """Look at the outcome that nobody waits for, so that asyncio does not complain."""
    if not task.cancelled():
        task.exception()
