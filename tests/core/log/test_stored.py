"""What a reader checks before it believes a stored byte."""

import struct

import pytest
from crc32c import crc32c

from sulina.core.log.stored import (
    StoredRun,
    bounds,
    checked_run,
    first_after_epoch,
    max_timestamp_at,
    size_at,
    stored_batches,
)
from sulina.core.records.batch import HEADER_BYTES, STAMP_BYTES, stamp
from sulina.core.records.record import StoredRecord, encode
from sulina.errors import CorruptSegment
from sulina.types import Epoch, Offset

END = 1 << 62
POSITION = 1000  # of the bytes in their segment


def stored(offset: int, count: int = 1, *, epoch: int = 3, value: bytes = b"v", timestamp: int = 7) -> bytes:
    data = encode([StoredRecord(value=value, timestamp_ms=timestamp)] * count)
    return stamp(Offset(offset), len(data), Epoch(epoch)) + bytes(data[STAMP_BYTES:])


# Offsets [10, 13), [13, 14) and [14, 16), each with a size of its own.
PARTS = [stored(10, 3), stored(13, value=b"vv" * 9, timestamp=9), stored(14, 2, timestamp=8)]
SIZES = [len(part) for part in PARTS]
STARTS = [0, SIZES[0], SIZES[0] + SIZES[1]]
DATA = b"".join(PARTS)


def run(
    wanted: int = 10, *, data: bytes = DATA, until: int = END, bytes_max: int = END, offset: int = 10
) -> tuple[int, int, int, int]:
    return checked_run(
        memoryview(data),
        path="some.log",
        position=POSITION,
        offset=Offset(offset),
        epoch=Epoch(3),
        wanted=Offset(wanted),
        until=Offset(until),
        bytes_max=bytes_max,
    )


def changed(number: int, at: int, form: str, value: int) -> bytes:
    """DATA with another value in one batch, `at` bytes into it."""
    data = bytearray(DATA)
    struct.pack_into(form, data, STARTS[number] + at, value)
    return bytes(data)


def test_the_log_changes_only_the_offset_the_length_and_the_epoch_of_a_batch() -> None:
    data = bytes(encode([StoredRecord(value=b"v", timestamp_ms=7)], base_offset=99))
    mine = stamp(Offset(5), len(data), Epoch(3))
    assert mine == struct.pack(">qii", 5, len(data) - 12, 3)
    assert data[8:12] == mine[8:12], "a batch counts its length as we do"


def test_sizes_and_times_are_those_of_the_batch_at_a_place() -> None:
    assert [size_at(memoryview(DATA), start) for start in STARTS] == SIZES
    assert [max_timestamp_at(memoryview(DATA), start) for start in STARTS] == [7, 9, 8]


def test_bounds_follow_one_another_to_the_end() -> None:
    assert bounds(memoryview(DATA)) == [
        (0, STARTS[1], 10, 13),
        (STARTS[1], STARTS[2], 13, 14),
        (STARTS[2], len(DATA), 14, 16),
    ]
    assert bounds(memoryview(b"")) == []


@pytest.mark.parametrize(("wanted", "first"), [(10, 0), (12, 0), (13, 1), (14, 2), (15, 2)])
def test_a_run_begins_with_the_batch_that_holds_the_wanted_offset_l2(wanted: int, first: int) -> None:
    assert run(wanted) == (STARTS[first], len(DATA), [10, 13, 14][first], 16)


def test_a_run_that_does_not_reach_what_is_wanted_says_how_far_it_came() -> None:
    assert run(16) == (len(DATA), len(DATA), 16, 16)
    assert run(15, data=DATA[:-1]) == (STARTS[2], STARTS[2], 14, 14)


@pytest.mark.parametrize(("until", "count"), [(0, 1), (10, 1), (13, 1), (14, 2), (15, 3), (16, 3)])
def test_a_run_ends_before_a_batch_that_nobody_asked_for_but_has_one(until: int, count: int) -> None:
    assert run(until=until)[1] == sum(SIZES[:count])


def test_a_run_has_as_many_bytes_as_may_be_but_at_least_one_batch() -> None:
    two = SIZES[0] + SIZES[1]
    assert [run(bytes_max=size)[1] for size in (0, two - 1, two, two + 1)] == [SIZES[0], SIZES[0], two, two]
    assert run(13, bytes_max=SIZES[1] + SIZES[2])[1] == len(DATA), "what was skipped does not count"
    assert run(13, bytes_max=SIZES[1] + SIZES[2] - 1)[1] == STARTS[2]


@pytest.mark.parametrize("length", [0, HEADER_BYTES - 1, HEADER_BYTES, SIZES[0] - 1])
def test_half_a_batch_is_not_a_batch_l8(length: int) -> None:
    assert run(data=DATA[:length]) == (0, 0, 10, 10)
    assert run(data=DATA[: STARTS[1]] + PARTS[1][:length]) == (0, STARTS[1], 10, 13)


def test_a_batch_that_is_only_a_header_is_one() -> None:
    rest = struct.pack(">hi", 0, 4) + bytes(HEADER_BYTES - 27)
    header = struct.pack(">qiibI", 10, HEADER_BYTES - 12, 3, 2, crc32c(rest)) + rest
    assert len(header) == HEADER_BYTES
    assert run(data=header) == (0, HEADER_BYTES, 10, 15)


WRONG = [
    (0, ">q", {0: 9, 1: 12}),  # an offset again
    (0, ">q", {0: 11, 1: 14}),  # an offset left out
    (8, ">i", {0: HEADER_BYTES - 13, 1: HEADER_BYTES - 13}),  # too short for a batch
    (12, ">i", {0: 2, 1: 2}),  # an older epoch
    (12, ">i", {0: 4, 1: 4}),  # a newer one
    (16, ">b", {0: 1, 1: 1}),  # another format
    (23, ">i", {0: -1, 1: -1}),  # fewer than no records
]


@pytest.mark.parametrize(("at", "form", "values"), WRONG)
def test_a_batch_that_is_not_what_the_commits_say_is_never_given_l8(at: int, form: str, values: dict[int, int]) -> None:
    with pytest.raises(
        CorruptSegment, match=r"some.log .*byte 1000 .offset 10.: it has .*; expected offset 10, epoch 3"
    ):
        run(data=changed(0, at, form, values[0]))
    later = changed(1, at, form, values[1])
    assert run(data=later) == (0, STARTS[1], 10, 13), "what comes before it is sound"
    with pytest.raises(CorruptSegment) as refused:
        run(14, data=later)
    assert (refused.value.position, refused.value.offset) == (POSITION + STARTS[1], 13)


@pytest.mark.parametrize("number", [0, 1])
def test_the_error_says_what_was_found(number: int) -> None:
    wanted = [10, 13][number]
    with pytest.raises(CorruptSegment, match=f"it has offset 99, epoch 3, format 2, {SIZES[number] - 12} bytes"):
        run(wanted, data=changed(number, 0, ">q", 99))
    crc = struct.unpack_from(">I", DATA, STARTS[number] + 17)[0]
    with pytest.raises(CorruptSegment, match=f"its CRC32C is {crc:#010x}, its header says {crc ^ 1:#010x}"):
        run(wanted, data=changed(number, 17, ">I", crc ^ 1))


@pytest.mark.parametrize("place", [17, 20, 21, 22, HEADER_BYTES, SIZES[1] - 1])
def test_any_changed_byte_under_the_checksum_is_noticed_l8(place: int) -> None:
    later = changed(1, place, ">B", DATA[STARTS[1] + place] ^ 0x10)
    assert run(data=later) == (0, STARTS[1], 10, 13)
    with pytest.raises(CorruptSegment) as refused:
        run(13, data=later)
    assert (refused.value.path, refused.value.position, refused.value.offset) == ("some.log", 1000 + STARTS[1], 13)


def test_a_walk_gives_every_batch_and_ends_with_half_a_one_l8() -> None:
    def walk(data: bytes) -> list[StoredRun]:
        found = stored_batches(memoryview(data), path="some.log", position=POSITION, offset=Offset(10), epoch=Epoch(3))
        return list(found)

    runs = [(start, end, low, high) for start, end, low, high in bounds(memoryview(DATA))]
    assert walk(DATA) == runs
    assert walk(DATA[:-1]) == runs[:2]
    assert walk(b"") == []
    for damaged in (changed(1, 0, ">q", 12), changed(1, 70, ">B", 0xFF), changed(1, 12, ">i", 4)):
        with pytest.raises(CorruptSegment) as refused:
            walk(damaged)
        assert (refused.value.path, refused.value.position) == ("some.log", POSITION + STARTS[1])
        assert refused.value.offset == 13


def test_the_first_batch_of_a_later_epoch_is_found_s1() -> None:
    data = memoryview(stored(10, 3, epoch=1) + stored(13, epoch=2, value=b"vv" * 9) + stored(14, 2, epoch=4))
    assert [first_after_epoch(data, epoch) for epoch in (0, 1, 2, 3, 4)] == [10, 13, 14, 14, None]
    assert first_after_epoch(memoryview(b""), 0) is None
