"""Frames that wait to be sent to one client."""

import asyncio
from collections import deque
from collections.abc import Callable

from sulina.byte_budget import FillLevel
from sulina.wire.frames import FromNode

FRAME_BYTES = 100  # of a frame, without its records


class Outbox:
    """Frames in, frames out, in order. It tells when it is full, and when there is room again."""

    def __init__(self, bytes_max: int, on_full: Callable[[bool], None]) -> None:
        self._frames: deque[tuple[FromNode, int]] = deque()
        self._size_bytes = 0
        self._level = FillLevel(bytes_max)
        self._on_full = on_full
        self._some = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._is_closed = False

    def put(self, frame: FromNode, data_bytes: int = 0) -> None:
        """Add a frame with this many bytes of records; never waits."""
        if self._is_closed:
            return
        size_bytes = FRAME_BYTES + data_bytes
        self._frames.append((frame, size_bytes))
        self._size_bytes += size_bytes
        self._some.set()
        if self._level.grown(self._size_bytes):
            self._room.clear()
            self._on_full(True)

    async def take(self) -> FromNode | None:
        """Wait for a frame, remove the oldest and return it; None when no more will come."""
        while not self._frames:
            if self._is_closed:
                return None
            self._some.clear()
            await self._some.wait()
        frame, size_bytes = self._frames.popleft()
        self._size_bytes -= size_bytes
        if self._level.shrunk(self._size_bytes) and not self._is_closed:
            self._room.set()
            self._on_full(False)
        return frame

    @property
    def is_full(self) -> bool:
        """Return whether nothing more should be put."""
        return self._level.is_full and not self._is_closed

    async def wait_room(self) -> None:
        """Return when it is not full."""
        await self._room.wait()

    def close(self) -> None:
        """Take no more frames; those that wait can still be taken."""
        self._is_closed = True
        self._some.set()
        self._room.set()
