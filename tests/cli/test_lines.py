"""Lines of a stream: as they come, whole, and never too many ahead."""

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Iterator
from io import FileIO

import pytest

from sulina.cli.terminal import lines
from sulina.cli.terminal.lines import InputLines
from sulina.errors import InvalidInput


@pytest.fixture
def pipe() -> Iterator[tuple[FileIO, int]]:
    reading, writing = os.pipe()
    with FileIO(reading) as stream:
        yield stream, writing


async def test_a_line_comes_when_it_is_whole(pipe: tuple[FileIO, int]) -> None:
    stream, writing = pipe
    coming = InputLines(stream)
    os.write(writing, b"one\r\ntwo\nthr")
    assert await coming.take(1) == [b"one"]
    assert await coming.take(5) == [b"two"]
    os.write(writing, b"ee\n\nlast")
    assert await coming.take(1) == [b"three"]
    os.close(writing)
    rest = []
    while got := await coming.take(10):
        rest += got
    assert rest == [b"", b"last"]


async def test_the_reader_waits_when_it_is_far_ahead(pipe: tuple[FileIO, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "READ_AHEAD_BYTES", 100)
    monkeypatch.setattr(lines, "CHUNK_BYTES", 50)
    stream, writing = pipe
    coming = InputLines(stream)
    await asyncio.to_thread(os.write, writing, b"123456789\n" * 1000)
    os.close(writing)
    taken = 0
    while got := await coming.take(3):
        taken += len(got)
        [unread] = struct.unpack("i", fcntl.ioctl(stream, termios.FIONREAD, b"\0" * 4))
        assert 10_000 - unread - 10 * taken <= 200
    assert taken == 1000


async def test_a_line_without_end_is_refused(pipe: tuple[FileIO, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 10)
    stream, writing = pipe
    coming = InputLines(stream)
    os.write(writing, b"x" * 11)
    with pytest.raises(InvalidInput, match="longer than 10 bytes"):
        await coming.take(1)
    os.close(writing)


async def test_nobody_waits_for_lines_that_are_not_wanted(pipe: tuple[FileIO, int]) -> None:
    stream, writing = pipe
    coming = InputLines(stream)
    coming.stop()
    assert await coming.take(1) == []
    os.close(writing)
