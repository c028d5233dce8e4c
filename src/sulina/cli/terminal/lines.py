"""Lines of standard input or a file, read ahead by a thread so that the event loop never blocks."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from io import FileIO

from sulina.errors import InvalidInput

LINE_BYTES_MAX = 16 << 20
BATCH_BYTES = 1 << 20  # taken at once; a longer line is taken by itself
READ_AHEAD_BYTES = 4 << 20
CHUNK_BYTES = 1 << 16


class InputLines:
    """Lines of a blocking stream. Bounded: the reader waits while it is `READ_AHEAD_BYTES` ahead."""

    def __init__(self, stream: FileIO) -> None:
        self._stream = stream
        self._lines: deque[bytes] = deque()
        self._ahead_bytes = 0
        self._error: InvalidInput | None = None
        self._is_over = False
        self._changed = threading.Condition()  # guards all of the above
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        # A daemon: a terminal without further input must not keep the process alive.
        threading.Thread(target=self._read, name="produce-input", daemon=True).start()

    async def take(self, most: int) -> list[bytes]:
        """Return the lines that have been read: at least one, about `BATCH_BYTES` at most, none at the end.

        Raises:
            InvalidInput: the input cannot be read, or has a line that is too long.
        """
        while True:
            self._news.clear()
            with self._changed:
                got = self._take_nowait(most)
                if got or self._is_over:
                    break
            await self._news.wait()
        if not got and self._error:
            raise self._error
        return got

    def stop(self) -> None:
        """Stop reading."""
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def _take_nowait(self, most: int) -> list[bytes]:
        got: list[bytes] = []
        taken_bytes = 0
        while self._lines and len(got) < most and taken_bytes < BATCH_BYTES:
            got.append(self._lines.popleft())
            taken_bytes += len(got[-1])
        self._ahead_bytes -= taken_bytes
        self._changed.notify()
        return got

    def _read(self) -> None:
        try:
            for line in split(self._stream):
                if not self._put(line.removesuffix(b"\r")):
                    return
        except (OSError, ValueError) as error:
            self._error = InvalidInput(f"cannot read the input: {error}")
        with self._changed:
            self._is_over = True
        self._tell()

    def _put(self, line: bytes) -> bool:
        """Add a line, and return whether more are wanted."""
        with self._changed:
            while self._ahead_bytes > READ_AHEAD_BYTES and not self._is_over:
                self._changed.wait()
            was_empty = not self._lines
            self._lines.append(line)
            self._ahead_bytes += len(line)
        if was_empty:
            self._tell()
        return not self._is_over

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._news.set)


def split(stream: FileIO) -> Iterator[bytes]:
    """Yield the lines of a stream without their line ends.

    Raises:
        ValueError: a line is longer than `LINE_BYTES_MAX`.
    """
    pieces: list[bytes] = []
    size_bytes = 0
    while chunk := stream.read(CHUNK_BYTES):
        first, *others = chunk.split(b"\n")
        pieces.append(first)
        size_bytes += len(first)
        if size_bytes > LINE_BYTES_MAX:
            raise ValueError(f"a line is longer than {LINE_BYTES_MAX} bytes; use --whole to publish it as one record")
        if others:
            yield b"".join(pieces)
            yield from others[:-1]
            pieces, size_bytes = [others[-1]], len(others[-1])
    if size_bytes:
        yield b"".join(pieces)
