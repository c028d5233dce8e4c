"""How many bytes may be on their way at once, over all logs of a broker. For one event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteGate:
    """Whoever holds bytes in memory that are not its own passes through here first; in the order of arrival."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._free = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def holding(self, size: int) -> AsyncIterator[None]:
        """Wait until there is room for `size` bytes; what is larger than the gate has it alone."""
        size = min(size, self.bytes_max)
        if self._waiting or self._free < size:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, future))
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self._release(size)  # its turn had come
                else:
                    self._admit()  # those behind it may fit where it did not
                raise
        else:
            self._free -= size
        try:
            yield
        finally:
            self._release(size)

    def _release(self, size: int) -> None:
        self._free += size
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            size, future = self._waiting[0]
            if not future.done():
                if size > self._free:
                    return
                self._free -= size
                future.set_result(None)
            self._waiting.popleft()
