"""An event loop in a thread of its own, for callers that have none."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, TypeVar

from sulina.errors import NotStarted

T = TypeVar("T")


class Run(Protocol):
    """Runs work in a loop, and waits for it."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class LoopThread:
    """An event loop in a thread. `run` is for all other threads."""

    def __init__(self) -> None:
        self._is_running = threading.Event()
        self._is_stopped = False  # no more work is taken
        self._is_over = False  # nor done
        self._waiting: set[Future[Any]] = set()
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="sulina-client", daemon=True)
        self._thread.start()
        self._is_running.wait()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._is_running.set()
        await self._stopping.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the work to be done; interrupting the wait cancels the work.

        Raises:
            NotStarted: the loop has ended.
        """
        assert threading.current_thread() is not self._thread, "the thread of the loop cannot wait for itself"
        future: Future[T] | None = None
        try:
            if self._is_stopped:
                raise CancelledError
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._waiting.add(future)
            if self._is_over:  # nobody will do it, nor say so
                future.cancel()
            return future.result()
        except (CancelledError, RuntimeError):
            if not self._is_stopped:
                raise
            work.close()
            raise NotStarted("the client was closed: connect again") from None
        finally:
            if future is not None:
                future.cancel()
                self._waiting.discard(future)

    def stop(self) -> None:
        """Stop the loop and the thread."""
        self._is_stopped = True
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._is_over = True
        for future in list(self._waiting):  # that came too late for the loop to see it
            future.cancel()
