"""Frames in pieces, on both ways: nothing is lost, mixed up, or shared between two of them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sulina.errors import ProtocolError
from sulina.listeners.peer_buffer import SMALL_BYTES, TOGETHER_BYTES_MAX, FrameBuffer
from sulina.listeners.peer_reader import BUFFER_BYTES, LARGE_BYTES, FrameReader
from sulina.wire.peer import LENGTH

EDGES = (0, 1, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, BUFFER_BYTES - 4, BUFFER_BYTES, BUFFER_BYTES + 1)
sizes = st.integers(0, 300) | st.sampled_from(EDGES) | st.integers(0, 2 * BUFFER_BYTES)


def framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def fed(reader: FrameReader, data: bytes, pieces: random.Random) -> list[bytes | memoryview]:
    """What it gives when the bytes come in pieces as a socket makes them."""
    frames: list[bytes | memoryview] = []
    rest = memoryview(data)
    while rest:
        space = reader.space()
        assert len(space) > 0
        count = min(len(space), len(rest), int(2 ** pieces.uniform(0, 19)))
        space[:count] = rest[:count]
        rest = rest[count:]
        frames.extend(reader.received(count))
    return frames


@given(st.lists(sizes, max_size=12), st.integers(0, 2**32))
def test_frames_are_whole_however_they_come(lengths: list[int], seed: int) -> None:
    rng = random.Random(seed)
    bodies = [rng.randbytes(length) for length in lengths]
    frames = fed(FrameReader(3 * BUFFER_BYTES), b"".join(map(framed, bodies)), rng)
    assert [bytes(frame) for frame in frames] == bodies  # compared at the end: none was written over
    assert all(memoryview(frame).readonly for frame in frames)


def test_many_small_frames_come_out_of_one_piece() -> None:
    bodies = [b"%d" % number for number in range(10_000)]
    reader = FrameReader(100)
    assert fed(reader, b"".join(map(framed, bodies)), random.Random(1)) == bodies


@pytest.mark.parametrize("before", [0, 3])
def test_a_length_past_the_limit_is_refused_before_anything_of_it_comes(before: int) -> None:
    reader = FrameReader(1000)
    data = framed(b"fine") * before + LENGTH.pack(1001)
    reader.space()[: len(data)] = data
    frames = reader.received(len(data))
    assert [next(frames) for _ in range(before)] == [b"fine"] * before
    with pytest.raises(ProtocolError, match="1001 bytes"):
        next(frames)


@given(st.lists(st.integers(1, 300) | st.sampled_from([SMALL_BYTES, SMALL_BYTES + 1, TOGETHER_BYTES_MAX]), max_size=50))
def test_what_waits_leaves_in_order(lengths: list[int]) -> None:
    outbox = FrameBuffer()
    rng = random.Random(len(lengths))
    put = taken = b""
    for length in lengths:
        frame = rng.randbytes(length)
        put += frame
        outbox.put(bytearray(frame))
        if rng.random() < 0.2:
            taken += b"".join(outbox.take(100_000))
        assert outbox.size_bytes == len(put) - len(taken)
    while outbox.size_bytes:
        some = outbox.take(100_000)
        assert some
        assert len(some) == 1 or sum(map(len, some)) <= 100_000
        taken += b"".join(some)
    assert taken == put
    assert outbox.take(1) == []


def test_small_frames_leave_together_and_large_ones_as_they_are() -> None:
    outbox = FrameBuffer()
    large = bytearray(SMALL_BYTES + 1)
    for _ in range(100):
        outbox.put(bytearray(100))
    outbox.put(large)
    outbox.put(bytearray(5))
    first, second, third = outbox.take(1 << 20)
    assert (len(first), len(third)) == (10_000, 5)
    assert second is large
    outbox.put(bytearray(7))  # not into what is being sent
    assert (len(third), outbox.size_bytes) == (5, 7)
