"""The index of a segment, and what may go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sulina.core.log.commit import Remove, SegmentRef
from sulina.core.log.retention import Retention, disposable_before, expired
from sulina.core.log.segment import INDEX_ENTRY_BYTES, SparseIndex, decode_index, encode_entry, segment_name
from sulina.types import Epoch, Offset, Version


def segment(
    base: int, end: int, *, size: int = 100, written: int = 0, newest: int = 0, sealed: bool = True
) -> SegmentRef:
    return SegmentRef(
        name=segment_name(base),
        base=Offset(base),
        next_offset=Offset(end),
        size=size,
        epoch=Epoch(0),
        created_ms=0,
        written_ms=written,
        timestamp_max=newest,
        sealed=sealed,
    )


def noted(count: int) -> tuple[SparseIndex, bytes]:
    """An index of batches of 10 records in 64 bytes, and its file."""
    index = SparseIndex(interval_bytes=100)
    data = b"".join(index.note(10 * n, 64 * n, n) for n in range(count))
    return index, data


def test_an_index_is_sparse_and_finds_the_batch_before_an_offset() -> None:
    index, data = noted(10)
    assert index.positions == [0, 128, 256, 384, 512]
    assert len(data) == 5 * INDEX_ENTRY_BYTES
    assert index.floor(Offset(0)) == (0, 0)
    assert index.floor(Offset(45)) == (256, 40)
    assert index.floor(Offset(99)) == (512, 80)
    exact = SparseIndex(interval_bytes=64)
    assert [bool(exact.note(n, position, 0)) for n, position in enumerate([0, 63, 64])] == [True, False, True]


def test_before_the_first_entry_a_search_begins_at_the_front_of_the_segment() -> None:
    index = SparseIndex(interval_bytes=1)
    assert index.floor(Offset(7)) == index.before_timestamp(7) == (0, -1)
    index.note(10, 0, 3)
    index.note(20, 50, 5)
    assert index.floor(Offset(9)) == index.before_timestamp(3) == (0, -1)


def test_an_entry_that_is_being_noted_is_not_believed_yet() -> None:
    index, _ = noted(4)
    index.timestamps.append(5)
    assert index.before_timestamp(9) == (128, 20)
    index.positions.append(256)
    assert index.before_timestamp(9) == (128, 20)
    assert index.floor(Offset(99)) == (128, 20)


def test_an_index_finds_where_a_time_can_first_be() -> None:
    index = SparseIndex(interval_bytes=1)
    for number, newest in enumerate([-1, 5, 5, 9]):
        index.note(number, number * 10, newest)
    assert index.before_timestamp(5) == (0, 0)
    assert index.before_timestamp(6) == (20, 2)
    assert index.before_timestamp(-1) == (0, -1)


def test_an_index_comes_back_as_it_was_l8() -> None:
    index, data = noted(10)
    assert decode_index(data, segment(0, 100, size=640), 100) == index


def test_an_index_that_is_cut_off_anywhere_has_the_entries_before_l8() -> None:
    index, data = noted(10)
    for length in range(len(data)):
        found = decode_index(data[:length], segment(0, 100, size=640), 100)
        assert found.offsets == index.offsets[: length // INDEX_ENTRY_BYTES]


@pytest.mark.parametrize(
    ("entries", "believed"),
    [
        ([(10, 0, 1), (20, 50, 1)], 2),
        ([(10, 0, 1), (20, 99, 1)], 2),
        ([(10, 0, 1), (29, 50, 1)], 2),
        ([(9, 0, 1)], 0),  # not the segment's first offset
        ([(10, 1, 1)], 0),  # not its first byte
        ([(10, 0, 1), (10, 50, 1)], 1),  # an offset twice
        ([(10, 0, 1), (20, 0, 1)], 1),  # a place twice
        ([(10, 0, 5), (20, 50, 4)], 1),  # a time that falls
        ([(10, 0, 1), (20, 100, 1)], 1),  # past the committed bytes, with an offset before their end
        ([(10, 0, 1), (30, 50, 1)], 1),  # past the committed offsets, with a place before their end
        ([(10, 0, 1), (20, 50, 9), (15, 60, 9), (25, 70, 9)], 2),  # nothing after a senseless one
    ],
)
def test_an_entry_that_makes_no_sense_ends_what_is_believed_l8(
    entries: list[tuple[int, int, int]], believed: int
) -> None:
    data = b"".join(encode_entry(*entry) for entry in entries)
    found = decode_index(data, segment(10, 30, size=100), 100)
    assert list(zip(found.offsets, found.positions, found.timestamps, strict=True)) == entries[:believed]


@given(st.integers(0, 200), st.integers(0, 5 * INDEX_ENTRY_BYTES * 8))
def test_a_damaged_or_torn_index_is_believed_up_to_the_damage_l8(length: int, bit: int) -> None:
    index, data = noted(10)
    torn = bytearray(data[:length])
    if bit // 8 < len(torn):
        torn[bit // 8] ^= 1 << (bit % 8)
    found = decode_index(bytes(torn), segment(0, 100, size=640), 100)
    whole = min(len(torn), min(len(torn), bit // 8)) // INDEX_ENTRY_BYTES
    assert (found.offsets, found.positions) == (index.offsets[:whole], index.positions[:whole])


@given(st.binary(max_size=300))
def test_garbage_is_an_empty_index_l8(data: bytes) -> None:
    assert not decode_index(data, segment(0, 100), 100).offsets


def test_entries_past_the_end_of_the_log_are_dropped_l7() -> None:
    _, data = noted(10)
    assert decode_index(data, segment(0, 40, size=256), 100).offsets == [0, 20]


SEGMENTS = [segment(0, 10, written=1000), segment(10, 20, written=2000), segment(20, 30, written=3000, sealed=False)]


def names(retention: Retention, now: float = 10.0) -> list[int]:
    return [removal.offset_start for removal in expired(SEGMENTS, retention, now)]


def test_retention_by_size_age_and_offset_removes_whole_segments_l15() -> None:
    assert names(Retention()) == []
    assert names(Retention(bytes_max=250)) == [0]
    assert names(Retention(bytes_max=100)) == [0, 10]
    assert names(Retention(age_seconds_max=8.5)) == [0]
    assert names(Retention(before_offset=Offset(19))) == [0]
    assert names(Retention(before_offset=Offset(20))) == [0, 10]


def test_what_is_exactly_as_old_as_it_may_be_stays_l15() -> None:
    day = 1_700_000_000
    old = [segment(0, 10, size=77, written=day * 1000), segment(10, 11, written=day * 1000)]
    assert expired(old, Retention(age_seconds_max=10), day + 10.0) == []
    assert expired(old, Retention(age_seconds_max=10), day + 10.001)[0] == Remove(
        segment=segment_name(0), offset_start=Offset(0), offset_end=Offset(10), size=77
    )


def test_retention_never_takes_the_segment_that_is_written_l15() -> None:
    assert names(Retention(bytes_max=0)) == [0, 10]


def test_retention_never_takes_what_somebody_needs() -> None:
    assert names(Retention(bytes_max=0, keep_from=Offset(20))) == [0, 10]
    assert names(Retention(bytes_max=0, keep_from=Offset(19))) == [0]
    assert names(Retention(bytes_max=0, keep_from=Offset(15))) == [0]
    assert names(Retention(bytes_max=0, keep_from=Offset(5))) == []


def test_what_producers_say_of_the_time_keeps_and_removes_nothing() -> None:
    fresh = [segment(0, 10, written=9_000, newest=-1), segment(10, 11)]
    assert expired(fresh, Retention(age_seconds_max=5), 10.0) == []
    old = [segment(0, 10, written=1_000, newest=2**63 - 1), segment(10, 11)]
    assert len(expired(old, Retention(age_seconds_max=5), 10.0)) == 2


def test_commits_go_only_behind_two_checkpoints_l12() -> None:
    assert disposable_before([], Version(100)) == 0
    assert disposable_before([Version(50)], Version(100)) == 0
    assert disposable_before([Version(50), Version(60)], Version(100)) == 50
    assert disposable_before([Version(40), Version(50), Version(60)], Version(100)) == 50
    assert disposable_before([Version(50), Version(60)], Version(30)) == 30
    assert disposable_before([Version(50), Version(60)], Version(-900)) == 0
