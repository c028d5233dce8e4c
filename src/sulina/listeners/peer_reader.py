"""Frames out of the pieces in which a socket gives them.

- A frame has bytes of its own: a part of it that is kept keeps only that frame in memory.
- A byte is copied once, or twice where a small frame lies across two pieces. A large one is read into its own place.
"""

from collections.abc import Iterator

from sulina.errors import ProtocolError
from sulina.wire.peer import LENGTH

BUFFER_BYTES = 256 << 10  # what is read at once
LARGE_BYTES = 32 << 10  # from here on a frame that is not there whole gets its own place


class FrameReader:
    """Read into `space`, then say how much that was."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._end = 0  # of what is in the buffer; it begins with a frame
        self._large: memoryview | None = None
        self._filled = 0  # of the large one

    def space(self) -> memoryview:
        """Return where the next bytes belong; never empty."""
        return self._buffer[self._end :] if self._large is None else self._large[self._filled :]

    def received(self, size_bytes: int) -> Iterator[bytes | memoryview]:
        """Yield the frames that are whole now, without their lengths.

        Raises:
            ProtocolError: a frame is too long.
        """
        if self._large is not None:
            self._filled += size_bytes
            if self._filled == len(self._large):
                large, self._large = self._large, None
                yield large.toreadonly()
            return
        end = self._end + size_bytes
        start = 0
        while end - start >= LENGTH.size:
            body = start + LENGTH.size
            (length,) = LENGTH.unpack_from(self._buffer, start)
            if length > self.frame_bytes_max:
                raise ProtocolError(f"a frame of {length} bytes, and {self.frame_bytes_max} are allowed")
            if end - body >= length:
                start = body + length
                yield bytes(self._buffer[body:start])
            elif length > LARGE_BYTES:
                self._filled = end - body
                self._large = memoryview(bytearray(length))
                self._large[: self._filled] = self._buffer[body:end]
                start = end
            else:
                break
        self._end = end - start
        if start and self._end:
            self._buffer[: self._end] = self._buffer[start:end]
