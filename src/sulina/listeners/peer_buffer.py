"""Bytes that wait to be sent to another broker.

Small frames lie together, so that many leave as one buffer; a large one stays as it is, and is not copied again.
"""

from collections import deque

SMALL_BYTES = 16 << 10  # up to here a frame is put together with others
TOGETHER_BYTES_MAX = 64 << 10


class FrameBuffer:
    """Bytes in, buffers out, in order."""

    __slots__ = ("_buffers", "_is_open", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self._buffers: deque[bytearray] = deque()
        self._is_open = False  # whether the last buffer takes more

    def put(self, frame: bytearray) -> None:
        """Add a frame at the end; it belongs to the buffer now."""
        is_small = len(frame) <= SMALL_BYTES
        if is_small and self._is_open:
            last = self._buffers[-1]
            last += frame
            self._is_open = len(last) < TOGETHER_BYTES_MAX
        else:
            self._buffers.append(frame)
            self._is_open = is_small
        self.size_bytes += len(frame)

    def take(self, bytes_max: int) -> list[bytearray]:
        """Remove and return the first buffers, of about this many bytes; at least one if there is any."""
        taken: list[bytearray] = []
        size_bytes = 0
        while self._buffers and (not taken or size_bytes + len(self._buffers[0]) <= bytes_max):
            taken.append(self._buffers.popleft())
            size_bytes += len(taken[-1])
        self._is_open = self._is_open and bool(self._buffers)
        self.size_bytes -= size_bytes
        return taken
