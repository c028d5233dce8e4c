"""Limits the bytes that are held at once: by one queue, by a node, by all uploads. For one event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from sulina.errors import QueueFull


class ByteBudget:
    """Counts bytes that are held. Bytes acquired here count in the parent too, if there is one."""

    __slots__ = ("_parent", "_waiting", "bytes_max", "used_bytes")

    def __init__(self, bytes_max: int, parent: "ByteBudget | None" = None) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._parent = parent
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_acquire(self, size_bytes: int) -> bool:
        """Acquire bytes here and in the parent if both have room, else nothing; return whether they were acquired."""
        if self._waiting or self.used_bytes + size_bytes > self.bytes_max:
            return False
        if self._parent is not None and not self._parent.try_acquire(size_bytes):
            return False
        self.used_bytes += size_bytes
        return True

    def refusal(self, size_bytes: int) -> QueueFull:
        """Return the error for bytes that were not acquired: it names the budget that has no room for them."""
        if self._parent is not None and self.used_bytes + size_bytes <= self.bytes_max:
            return self._parent.refusal(size_bytes)
        return QueueFull(waiting_bytes=self.used_bytes, limit_bytes=self.bytes_max)

    def release(self, size_bytes: int) -> None:
        """Release bytes that were acquired; calls that wait for room get it in the order of arrival."""
        self.used_bytes -= size_bytes
        if self._parent is not None:
            self._parent.release(size_bytes)
        if self._waiting:
            self._admit()

    @asynccontextmanager
    async def holding(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait for room, in the order of arrival, and hold bytes until the block ends, at most the whole budget."""
        assert self._parent is None, "a budget that is waited for has no parent"
        size_bytes = min(size_bytes, self.bytes_max)
        if not self.try_acquire(size_bytes):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size_bytes, future))
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self.release(size_bytes)  # its turn had come
                else:
                    self._admit()  # those after it may fit where it did not
                raise
        try:
            yield
        finally:
            self.release(size_bytes)

    def _admit(self) -> None:
        while self._waiting:
            size_bytes, future = self._waiting[0]
            if not future.done():
                if self.used_bytes + size_bytes > self.bytes_max:
                    return
                self.used_bytes += size_bytes
                future.set_result(None)
            self._waiting.popleft()


class ByteReservation:
    """Bytes of a budget that may grow, and are released at the end of a `with`."""

    __slots__ = ("budget", "size_bytes")

    def __init__(self, budget: ByteBudget) -> None:
        self.budget = budget
        self.size_bytes = 0

    def try_grow_to(self, size_bytes: int) -> bool:
        """Hold this many bytes in all; return False, and leave it as it was, if there is no room for them."""
        if not self.budget.try_acquire(size_bytes - self.size_bytes):
            return False
        self.size_bytes = size_bytes
        return True

    def release(self) -> None:
        """Release all of them."""
        self.budget.release(self.size_bytes)
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class FillLevel:
    """Says when a queue is full: from past its bound until half of it is free again, so that it does not flicker."""

    __slots__ = ("bytes_max", "is_full")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.is_full = False

    def grown(self, size_bytes: int) -> bool:
        """Note how much waits after something was added; return whether the queue became full by it."""
        becomes_full = not self.is_full and size_bytes > self.bytes_max
        self.is_full = self.is_full or becomes_full
        return becomes_full

    def shrunk(self, size_bytes: int) -> bool:
        """Note how much waits after something was removed; return whether the queue has room again."""
        has_room_again = self.is_full and size_bytes <= self.bytes_max // 2
        self.is_full = self.is_full and not has_room_again
        return has_room_again
