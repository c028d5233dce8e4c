"""The index of a segment, and what may go."""

from hypothesis import given
from hypothesis import strategies as st

from sulina.core.commit import SegmentRef
from sulina.core.retention import Retention, disposable_before, expired
from sulina.core.segment import INDEX_ENTRY_BYTES, SparseIndex, decode_index, segment_name
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


def test_an_index_finds_where_a_time_can_first_be() -> None:
    index = SparseIndex(interval_bytes=1)
    for number, newest in enumerate([-1, 5, 5, 9]):
        index.note(number, number * 10, newest)
    assert index.before_timestamp(5) == (0, 0)
    assert index.before_timestamp(6) == (20, 2)
    assert index.before_timestamp(-1)[0] == 0


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
    assert len(decode_index(data, segment(0, 100), 100)) == 0


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


def test_retention_never_takes_the_segment_that_is_written_l15() -> None:
    assert names(Retention(bytes_max=0)) == [0, 10]


def test_retention_never_takes_what_somebody_needs() -> None:
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
