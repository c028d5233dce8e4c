"""Calling a handler: an `async` function on the event loop, a plain one in a thread of its subscriber's own."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any

# Called with a message, or with a list of them. If what it returns can be awaited, it is.
Handler = Callable[[Any], object]

calling: ContextVar[object | None] = ContextVar("sulina_subscriber", default=None)  # the subscriber whose handler runs


class HandlerCalls:
    """Calls of one handler, one after the other, until one raises or there is no more need for them."""

    def __init__(self, handler: Handler, arguments: Sequence[object], is_over: Callable[[], bool]) -> None:
        self.done = 0
        self._handler = handler
        self._arguments = arguments
        self._is_over = is_over

    async def run(self, threads: ThreadPoolExecutor | None) -> None:
        """Call the handler with each argument; without threads, it is a coroutine function."""
        while self.done < len(self._arguments) and not self._is_over():
            if threads is None:
                result = self._handler(self._arguments[self.done])
            else:
                loop = asyncio.get_running_loop()
                result = await loop.run_in_executor(threads, copy_context().run, self._run_plain)
                if result is None:
                    return
            assert inspect.isawaitable(result)
            await result
            self.done += 1

    def _run_plain(self) -> object:
        """Call the handler in a thread, up to the first call whose result is to be awaited."""
        try:
            while self.done < len(self._arguments) and not self._is_over():
                result = self._handler(self._arguments[self.done])
                if inspect.isawaitable(result):
                    return result
                self.done += 1
        except StopIteration as error:  # no future can carry it
            raise RuntimeError("the handler raised StopIteration") from error
        return None


def threads_for(handler: Handler, name: str) -> ThreadPoolExecutor | None:
    """Return the thread that a plain function runs in; None for a coroutine function."""
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
    return None if is_async else ThreadPoolExecutor(1, f"sulina-{name}")


def reason_of(error: BaseException) -> str:
    """Return why a call failed, in one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
