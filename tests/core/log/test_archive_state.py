"""The log of an archive: which slices may follow which, and what must never be lost."""

from typing import Any

import pytest
from msgspec.structs import replace

from sulina.core.log.archive import expired_slices, object_name, state_name
from sulina.core.log.commit import (
    NO_ORIGIN,
    Add,
    AnyOperation,
    Checkpoint,
    Claim,
    Merge,
    Remove,
    SegmentRef,
    decode,
    encode,
)
from sulina.core.log.log_state import LogState, MemoryLimits
from sulina.core.log.plan import next_commit
from sulina.core.log.retention import Retention
from sulina.core.log.segment import segment_name
from sulina.errors import CorruptCommit
from sulina.types import Epoch, Offset, Version


def a_slice(start: int, end: int, versions: tuple[int, int], *, state: bool = False, **changes: Any) -> Add:
    name = object_name(start, f"v{versions[0]}")
    add = Add(
        origin_id=NO_ORIGIN,
        origin_seq=NO_ORIGIN,
        offset_start=Offset(start),
        offset_end=Offset(end),
        segment=segment_name(start),
        position=0,
        size=10 * (end - start),
        timestamp_max=100 + end,
        object=name,
        version_start=Version(versions[0]),
        version_end=Version(versions[1]),
        epoch=Epoch(1),
        data_crc=7,
        commits_size=50 * (versions[1] - versions[0]),
        state=state_name(name) if state else None,
    )
    return replace(add, **changes)


class Log:
    """An archive's log in memory."""

    def __init__(self, *operations: AnyOperation) -> None:
        self.state = LogState()
        self.commit(Claim(epoch=Epoch(1), broker_id="a", holder="h1"))
        for operation in operations:
            self.commit(operation)

    def commit(self, *operations: AnyOperation, epoch: int | None = None) -> None:
        claimed = next((operation.epoch for operation in operations if isinstance(operation, Claim)), None)
        with_epoch = Epoch(epoch) if epoch is not None else claimed or self.state.epoch
        commit = next_commit(self.state, operations, txn_id="t", now=1.0, epoch=with_epoch)
        self.state.check(commit)
        self.state.apply(commit)


def test_slices_follow_each_other_by_offset_and_by_version() -> None:
    log = Log(a_slice(0, 5, (0, 3)), a_slice(5, 5, (3, 4)), a_slice(5, 9, (4, 5), state=True))
    state = log.state
    assert (state.start_offset, state.next_offset, state.log_version, state.holder) == (0, 9, 4, "h1")
    assert [(s.base, s.next_offset, s.version_start, s.version_end, s.sealed) for s in state.segments] == [
        (0, 5, 0, 3, True),
        (5, 5, 3, 4, True),
        (5, 9, 4, 5, True),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        a_slice(6, 9, (3, 4)),  # a gap in offsets
        a_slice(4, 9, (3, 4)),  # an offset twice
        a_slice(5, 9, (4, 5)),  # a gap in versions
        a_slice(5, 9, (2, 4)),  # a version twice
        a_slice(5, 9, (4, 5), state=True),  # a state does not make up for a gap
        a_slice(5, 9, (3, 4), size=0),  # records without bytes
        a_slice(5, 5, (3, 4), size=10),  # bytes without records
        a_slice(5, 5, (3, 3)),  # nothing at all
        a_slice(5, 9, (3, 4), epoch=Epoch(2)),  # batches of an epoch that nobody has claimed
        a_slice(5, 9, (3, 4), epoch=Epoch(0)),  # or of one that was over
        a_slice(5, 9, (3, 4), segment=segment_name(0)),
        a_slice(5, 9, (3, 4), position=10),
    ],
    ids=str,
)
def test_l2_a_slice_that_does_not_come_next_is_refused_before_it_is_stored(bad: Add) -> None:
    log = Log(a_slice(0, 5, (0, 3)))
    with pytest.raises(CorruptCommit):
        log.commit(bad)


def test_a_slice_of_state_alone_is_one() -> None:
    log = Log(a_slice(0, 5, (0, 3)), a_slice(5, 5, (3, 3), state=True), a_slice(5, 6, (3, 4)))
    assert log.state.log_version == 3


def test_l8_a_slice_is_known_with_all_that_its_add_said() -> None:
    add = a_slice(0, 5, (0, 3), state=True)
    [found] = Log(add).state.segments
    assert found == SegmentRef(
        name=segment_name(0),
        base=Offset(0),
        next_offset=Offset(5),
        size=50,
        epoch=Epoch(1),
        created_ms=1000,
        written_ms=1000,
        timestamp_max=105,
        sealed=True,
        object=add.object,
        version_start=Version(0),
        version_end=Version(3),
        data_crc=7,
        commits_size=150,
        state=add.state,
    )


def test_l2_an_archive_begins_once() -> None:
    log = Log(a_slice(0, 0, (0, 0), state=True))
    with pytest.raises(CorruptCommit):
        log.commit(a_slice(40, 50, (0, 0)))


def test_a_claim_names_who_goes_on_and_batches_of_the_epoch_before_may_still_come() -> None:
    log = Log(a_slice(0, 5, (0, 3)))
    log.commit(Claim(epoch=Epoch(4), broker_id="b", holder="h2"))
    assert (log.state.epoch, log.state.holder) == (4, "h2")
    log.commit(a_slice(5, 6, (3, 4)))
    log.commit(a_slice(6, 7, (4, 5), epoch=Epoch(4)))
    with pytest.raises(CorruptCommit):
        log.commit(a_slice(7, 8, (5, 6)))


def test_an_archive_may_begin_where_its_log_did_if_it_has_the_state() -> None:
    log = Log(a_slice(40, 50, (0, 0), state=False), a_slice(50, 60, (0, 0)))
    assert (log.state.start_offset, log.state.next_offset, log.state.log_version) == (40, 60, -1)
    with pytest.raises(CorruptCommit):
        log.commit(a_slice(60, 61, (17, 18)))
    log = Log(a_slice(40, 50, (0, 0)), a_slice(50, 60, (17, 18), state=True))
    assert (log.state.start_offset, log.state.log_version) == (40, 17)


# Removing


def removals(log: Log, retention: Retention) -> list[Remove]:
    return expired_slices(log.state.segments, retention, now=10.0)


def test_l15_slices_go_from_the_oldest_on_and_the_newest_state_never() -> None:
    log = Log(a_slice(0, 5, (0, 1)), a_slice(5, 5, (1, 2)), a_slice(5, 9, (2, 3), state=True))
    log.commit(*removals(log, Retention(bytes_max=0)))
    assert (log.state.start_offset, [s.base for s in log.state.segments]) == (5, [5])
    only = log.state.segments[0]
    last = Remove(
        segment=only.name,
        offset_start=only.base,
        offset_end=only.next_offset,
        size=only.size,
        object=only.object,
    )
    with pytest.raises(CorruptCommit, match="the last state"):
        log.commit(last)


def test_a_removal_names_the_object_of_the_slice() -> None:
    log = Log(a_slice(0, 5, (0, 1)), a_slice(5, 9, (1, 2), state=True))
    [removal] = removals(log, Retention(bytes_max=0))
    with pytest.raises(CorruptCommit):
        log.commit(replace(removal, object="00000000000000000000-other.log"))


# Merging


def merge_of(log: Log, first: int, count: int) -> Merge:
    parts = log.state.segments[first : first + count]
    return Merge(
        first=parts[0].object or "",
        count=count,
        object=object_name(parts[0].base, "merged"),
        data_crc=9,
        size=sum(part.size for part in parts),
        commits_size=sum(part.commits_size for part in parts),
    )


def test_merged_slices_hold_the_same_log() -> None:
    log = Log(a_slice(0, 5, (0, 1)), a_slice(5, 5, (1, 2)), a_slice(5, 9, (2, 4), state=True), a_slice(9, 11, (4, 5)))
    before = (log.state.start_offset, log.state.next_offset, log.state.log_version)
    log.commit(merge_of(log, 0, 3))
    assert (log.state.start_offset, log.state.next_offset, log.state.log_version) == before
    first, second = log.state.segments
    assert (first.base, first.next_offset, first.version_start, first.version_end) == (0, 9, 0, 4)
    assert (first.size, first.commits_size, first.timestamp_max) == (90, 200, 109)
    assert first.state == state_name(object_name(5, "v2")), "the state at its end stays"
    assert second.base == 9


def test_l8_a_merged_slice_is_that_of_its_parts_with_the_object_and_checksum_of_the_merge() -> None:
    log = Log(a_slice(40, 50, (0, 0), timestamp_max=900), a_slice(50, 60, (17, 18), state=True))
    first, last = log.state.segments
    log.state.segments[0] = replace(first, created_ms=300)
    merge = merge_of(log, 0, 2)
    log.commit(merge)
    assert log.state.segments == [
        replace(
            last,
            name=first.name,
            base=Offset(40),
            size=200,
            created_ms=300,
            timestamp_max=900,
            object=merge.object,
            version_start=Version(17),  # the first slice has no commit
            data_crc=9,
            commits_size=50,
        )
    ]


def test_slices_without_commits_can_be_merged() -> None:
    log = Log(a_slice(40, 50, (0, 0)), a_slice(50, 60, (0, 0)))
    log.commit(merge_of(log, 0, 2))
    [merged] = log.state.segments
    assert (merged.base, merged.next_offset, merged.version_start, merged.version_end) == (40, 60, 0, 0)


def test_a_merge_of_one_slice_or_of_more_than_there_are_is_refused() -> None:
    log = Log(a_slice(0, 5, (0, 1)), a_slice(5, 9, (1, 2)))
    with pytest.raises(CorruptCommit):
        log.commit(merge_of(log, 1, 1))
    with pytest.raises(CorruptCommit):
        log.commit(replace(merge_of(log, 0, 2), count=3))


def test_a_merge_keeps_the_epoch_of_the_records() -> None:
    log = Log(a_slice(0, 5, (0, 1)))
    log.commit(Claim(epoch=Epoch(4), broker_id="b", holder="h2"))
    log.commit(a_slice(5, 5, (1, 2), epoch=Epoch(4)))
    log.commit(merge_of(log, 0, 2))
    assert log.state.segments[0].epoch == 1
    log.commit(a_slice(5, 6, (2, 3), epoch=Epoch(4)))
    with pytest.raises(CorruptCommit):
        log.commit(merge_of(log, 0, 2))


@pytest.mark.parametrize("changes", [{"first": "other"}, {"count": 1}, {"count": 4}, {"size": 1}, {"commits_size": 1}])
def test_a_merge_that_is_not_what_it_says_is_refused(changes: dict[str, Any]) -> None:
    log = Log(a_slice(0, 5, (0, 1)), a_slice(5, 9, (1, 2)), a_slice(9, 11, (2, 3)))
    with pytest.raises(CorruptCommit):
        log.commit(replace(merge_of(log, 0, 2), **changes))


def test_a_merge_that_swallows_the_only_state_is_refused() -> None:
    log = Log(a_slice(0, 5, (0, 1), state=True), a_slice(5, 9, (1, 2)), a_slice(9, 10, (2, 3)))
    with pytest.raises(CorruptCommit, match="the last state"):
        log.commit(merge_of(log, 0, 2))


# Storing


def test_a_checkpoint_of_an_archive_has_all_of_it_and_one_of_a_log_has_nothing_new() -> None:
    log = Log(a_slice(0, 5, (0, 1)), a_slice(5, 9, (1, 3), state=True))
    stored = encode(log.state.checkpoint("2026-01-01T00:00:00.000Z"))
    again = LogState.from_checkpoint(decode("c", stored, Checkpoint), MemoryLimits())
    assert again == log.state
    plain = encode(LogState().checkpoint("2026-01-01T00:00:00.000Z"))
    assert b"log_version" not in plain
    assert b"holder" not in plain
