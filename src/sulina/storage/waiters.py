"""Waits until a log has an offset or a version. For one event loop."""

import asyncio
import heapq
import itertools
from collections.abc import Callable

from sulina.core.log.log_state import View
from sulina.errors import LogClosed, NotYet
from sulina.types import Offset, Version

_Heap = list[tuple[int, int, asyncio.Future[None]]]


class ViewWaiters:
    """The calls that wait for a log to grow. `wake` must be called after every change of its view."""

    def __init__(self) -> None:
        self._offsets: _Heap = []
        self._versions: _Heap = []
        self._numbers = itertools.count()
        self._closed: str | None = None

    def __len__(self) -> int:
        """Return the number of waits, with those that timed out and are not removed yet."""
        return len(self._offsets) + len(self._versions)

    async def wait(
        self, view_of: Callable[[], View], offset: Offset | None, version: Version | None, timeout_seconds: float
    ) -> View:
        """Return when a record with `offset`, and `version`, can be read.

        Raises:
            NotYet: the timeout has passed.
            LogClosed: the log was closed.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                if offset is not None and offset >= view_of().next_offset:
                    await self._waiter(self._offsets, offset)
                if version is not None and version > view_of().version:
                    await self._waiter(self._versions, version)
        except TimeoutError:
            wanted = f"version {version}" if offset is None or offset < view_of().next_offset else f"offset {offset}"
            at = f"the log ends at offset {view_of().next_offset}, version {view_of().version}"
            raise NotYet(f"{wanted} is not there after {timeout_seconds} s: {at}") from None
        return view_of()

    def _waiter(self, waiters: _Heap, target: int) -> asyncio.Future[None]:
        if self._closed is not None:
            raise LogClosed(path=self._closed)
        # Waits that timed out are still in the heap: remove them when they are the majority.
        if len(waiters) > 64 and sum(waiter.done() for _, _, waiter in waiters) > len(waiters) // 2:
            waiters[:] = [entry for entry in waiters if not entry[2].done()]
            heapq.heapify(waiters)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(waiters, (target, next(self._numbers), future))
        return future

    def wake(self, view: View) -> None:
        """Wake the calls whose offset or version has been reached."""
        for waiters, reached in ((self._offsets, view.next_offset - 1), (self._versions, view.version)):
            while waiters and waiters[0][0] <= reached:
                _, _, waiter = heapq.heappop(waiters)
                if not waiter.done():
                    waiter.set_result(None)

    def close(self, path: str) -> None:
        """Fail all waiting calls with LogClosed."""
        self._closed = path
        for _, _, waiter in self._offsets + self._versions:
            if not waiter.done():
                waiter.set_exception(LogClosed(path=path))
