"""What commits add up to, and what they may not be."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from sulina.core.log.commit import Add, Claim, Commit, OriginRef, Remove, Seal, SequenceRun
from sulina.core.log.log_state import (
    RUNS_KEPT_MAX,
    UNMEASURED_MS_MAX,
    Appended,
    LogState,
    MemoryLimits,
    View,
    advanced,
    next_log_ms,
    repeat_of,
)
from sulina.core.log.plan import next_commit
from sulina.core.log.segment import segment_name
from sulina.core.log.txn_memory import TxnLimits
from sulina.core.log.txn_run import TxnRef
from sulina.core.records.batch import SEQUENCES
from sulina.errors import CorruptCommit, DuplicateSequence, SequenceGap, StaleOrigin
from sulina.types import Epoch, Offset, Version

Operations = Sequence[Add | Remove | Claim | Seal]
DAY_MS = 24 * 3600 * 1000


def claimed(limits: MemoryLimits | None = None) -> LogState:
    """A log at version 0."""
    state = LogState(limits=limits or MemoryLimits())
    state.apply(commit_of(state, [Claim(epoch=Epoch(0), broker_id="a")]))
    return state


def commit_of(state: LogState, operations: Operations, *, now: float = 1.0) -> Commit:
    epoch = max([state.epoch, *(o.epoch for o in operations if isinstance(o, Claim))])
    return next_commit(state, operations, txn_id="t", now=now, epoch=Epoch(epoch))


def add_of(state: LogState, count: int = 1, *, size: int = 100, **fields: object) -> Add:
    newest = state.segments[-1] if state.segments and not state.segments[-1].sealed else None
    given: dict[str, object] = {
        "origin_id": -1,
        "origin_seq": -1,
        "offset_start": state.next_offset,
        "offset_end": state.next_offset + count,
        "segment": newest.name if newest else segment_name(state.next_offset),
        "position": newest.size if newest else 0,
        "size": size,
        "timestamp_max": 5,
    }
    return Add(**{**given, **fields})  # type: ignore[arg-type]


def test_adds_follow_one_another_without_gap_l2() -> None:
    state = claimed()
    state.apply(commit_of(state, [add_of(state, 3)]))
    state.apply(commit_of(state, [add_of(state, 2)]))
    assert (state.version, state.start_offset, state.next_offset) == (2, 0, 5)
    assert [(s.name, s.size, s.sealed) for s in state.segments] == [(segment_name(0), 200, False)]


@pytest.mark.parametrize(
    "change",
    [
        {"offset_start": Offset(1)},
        {"offset_end": Offset(0)},
        {"position": 7},
        {"segment": segment_name(9)},
        {"size": 0},
    ],
)
def test_an_add_that_does_not_continue_the_log_is_damage_l2(change: dict[str, int]) -> None:
    state = claimed()
    operation = replace(add_of(state), **change)
    with pytest.raises(CorruptCommit):
        state.apply(commit_of(state, [operation]))


@pytest.mark.parametrize("offset_start", [2, 4], ids=["again", "skipped"])
def test_offsets_that_are_used_again_or_skipped_are_damage_l2(offset_start: int) -> None:
    state = claimed()
    state.apply(commit_of(state, [add_of(state, 3)]))
    wrong = replace(add_of(state), offset_start=Offset(offset_start), offset_end=Offset(offset_start + 2))
    with pytest.raises(CorruptCommit, match=f"adds .{offset_start}, {offset_start + 2}. at 3"):
        state.apply(commit_of(state, [wrong]))


@pytest.mark.parametrize("change", [{"offset_end": Offset(3)}, {"position": 99}, {"position": 101}], ids=str)
def test_an_add_that_does_not_continue_a_segment_is_damage_l2(change: dict[str, int]) -> None:
    state = claimed()
    state.apply(commit_of(state, [add_of(state, 3)]))
    with pytest.raises(CorruptCommit):
        state.apply(commit_of(state, [replace(add_of(state, 1), **change)]))


def test_a_segment_knows_its_epoch_when_it_was_begun_and_written_and_its_newest_time_l15() -> None:
    state = claimed()
    for now, newest in [(2.0, 50), (4.0, 90), (7.5, 60)]:
        state.apply(commit_of(state, [add_of(state, 1, timestamp_max=newest)], now=now))
    [segment] = state.segments
    assert (segment.created_ms, segment.written_ms, segment.timestamp_max) == (2000, 7500, 90)
    assert (segment.base, segment.next_offset, segment.size, segment.epoch) == (0, 3, 300, 0)


def test_a_writer_whose_clock_is_behind_does_not_make_records_older_than_what_came_before_l15() -> None:
    state = LogState(limits=MemoryLimits())
    state.apply(commit_of(state, [Claim(epoch=Epoch(0), broker_id="a")], now=1000.0))
    state.apply(commit_of(state, [Claim(epoch=Epoch(1), broker_id="b")], now=10.0))
    restored = LogState.from_checkpoint(state.checkpoint("2026-01-01T00:00:00Z"), MemoryLimits())
    for each in (state, restored):
        each.apply(commit_of(each, [add_of(each)], now=11.0))
        assert (each.segments[-1].created_ms, each.segments[-1].written_ms) == (11_000, 1_000_000)
        each.apply(commit_of(each, [add_of(each)], now=1001.0))
        assert each.segments[-1].written_ms == 1_001_000


def test_what_readers_of_a_version_see_never_changes_l1_l14() -> None:
    state = claimed()
    state.apply(commit_of(state, [add_of(state, 3)]))
    view = state.view()
    before = (view.version, view.next_offset, list(view.segments))
    state.apply(commit_of(state, [add_of(state, 2)]))
    state.apply(commit_of(state, [Claim(epoch=Epoch(2), broker_id="b")]))
    assert (view.version, view.next_offset, list(view.segments)) == before
    assert state.view().next_offset == 5


def test_a_commit_must_be_the_next_version_l3() -> None:
    state = claimed()
    with pytest.raises(CorruptCommit, match="version 5"):
        state.apply(replace(commit_of(state, []), version=Version(5)))


def test_a_commit_that_lies_about_its_offsets_is_damage() -> None:
    state = claimed()
    with pytest.raises(CorruptCommit, match="operations lead to"):
        state.apply(replace(commit_of(state, [add_of(state)]), next_offset=Offset(7)))


def test_a_commit_with_an_epoch_that_nobody_claimed_is_damage() -> None:
    state = claimed()
    with pytest.raises(CorruptCommit, match="never claimed"):
        state.apply(replace(commit_of(state, []), epoch=Epoch(4)))


def test_a_commit_of_an_epoch_that_is_over_is_damage() -> None:
    state = claimed()
    state.apply(commit_of(state, [Claim(epoch=Epoch(4), broker_id="b")]))
    with pytest.raises(CorruptCommit, match=r"0002\.json .*epoch 3 is lower than 4"):
        state.apply(replace(commit_of(state, []), epoch=Epoch(3)))
    for epoch in (3, 4):
        claim = Claim(epoch=Epoch(epoch), broker_id="c")
        with pytest.raises(CorruptCommit, match=rf"0002\.json .*claims epoch {epoch} after 4"):
            state.apply(replace(commit_of(state, []), operations=(claim,)))


def test_a_claim_ends_the_segment_so_that_a_segment_has_one_epoch() -> None:
    state = claimed()
    state.apply(commit_of(state, [add_of(state, 3)]))
    state.apply(commit_of(state, [Claim(epoch=Epoch(2), broker_id="b")]))
    assert state.segments[-1].sealed
    state.apply(commit_of(state, [add_of(state, 1)]))
    assert [(s.base, s.epoch) for s in state.segments] == [(0, 0), (3, 2)]


def test_nothing_goes_into_a_sealed_segment() -> None:
    state = claimed()
    state.apply(commit_of(state, [add_of(state, 3)]))
    late = replace(add_of(state), offset_start=Offset(3), offset_end=Offset(4))
    state.apply(commit_of(state, [Seal(segment=segment_name(0), offset_end=Offset(3), size=100)]))
    with pytest.raises(CorruptCommit):
        state.apply(commit_of(state, [late]))


@pytest.mark.parametrize("change", [{"segment": segment_name(9)}, {"size": 99}], ids=str)
def test_a_seal_that_does_not_name_the_newest_segment_as_it_is_is_damage(change: dict[str, object]) -> None:
    state = claimed()
    seal = Seal(segment=segment_name(0), offset_end=Offset(3), size=100)
    with pytest.raises(CorruptCommit, match=r"0001\.json .*the newest is None"):
        state.apply(commit_of(state, [seal]))
    state.apply(commit_of(state, [add_of(state, 3)]))
    with pytest.raises(CorruptCommit, match=r"0002\.json .*it seals"):
        state.apply(commit_of(state, [replace(seal, **change)]))


def test_a_log_without_segments_has_none_to_remove() -> None:
    state = claimed()
    remove = Remove(segment=segment_name(0), offset_start=Offset(0), offset_end=Offset(0), size=0)
    with pytest.raises(CorruptCommit, match="the oldest is None"):
        state.apply(commit_of(state, [remove]))


def test_remove_takes_the_oldest_segment_and_only_when_sealed_l15() -> None:
    state = claimed()
    state.apply(commit_of(state, [add_of(state, 3)]))
    remove = Remove(segment=segment_name(0), offset_start=Offset(0), offset_end=Offset(3), size=100)
    with pytest.raises(CorruptCommit):
        LogState.from_checkpoint(state.checkpoint(""), state.limits).apply(commit_of(state, [remove]))
    state.apply(commit_of(state, [Seal(segment=segment_name(0), offset_end=Offset(3), size=100)]))
    state.apply(commit_of(state, [remove]))
    assert (state.start_offset, state.next_offset, state.segments) == (3, 3, [])


def test_a_checkpoint_holds_all_of_the_state_l11() -> None:
    state = claimed(MemoryLimits(txns=TxnLimits(run_txn_ids_max=8)))
    for number in range(12):
        operation = add_of(
            state, 2, origin_id=number % 3, origin_seq=number // 3 * 2, origin_epoch=0, txn_id=f"t{number}"
        )
        commit = next_commit(state, [operation], txn_id="t", now=1.0, epoch=state.epoch, log_ms=1000 + number)
        state.apply(commit)
    assert state.txns.sealed, "some txn_ids are in a run of their own"
    assert {one.log_ms for one in state.txns.newest} <= set(range(1000, 1012)), "each has the time of its commit"
    again = LogState.from_checkpoint(state.checkpoint(state.timestamp), state.limits)
    assert again == state
    assert (again.log_ms, again.timestamp) == (1011, state.timestamp)
    assert state.checkpoint("now").last_offset == 23
    assert LogState().checkpoint("now").last_offset == -1


def test_a_log_goes_on_from_a_checkpoint_with_its_first_offset_and_its_limits_l11() -> None:
    state = claimed(MemoryLimits(origins_max=3, txns=TxnLimits(txn_ids_max=4)))
    state.apply(commit_of(state, [add_of(state, 3)]))
    seal = Seal(segment=segment_name(0), offset_end=Offset(3), size=100)
    remove = Remove(segment=segment_name(0), offset_start=Offset(0), offset_end=Offset(3), size=100)
    state.apply(commit_of(state, [seal, remove]))
    again = LogState.from_checkpoint(state.checkpoint("now"), state.limits)
    assert (again.start_offset, again.limits) == (3, MemoryLimits(origins_max=3, txns=TxnLimits(txn_ids_max=4)))
    assert again == state


def test_what_readers_see_is_all_of_a_version_l14() -> None:
    state = claimed()
    state.apply(commit_of(state, [add_of(state, 3), Claim(epoch=Epoch(2), broker_id="b")]))
    assert state.view() == View(Version(1), Epoch(2), Offset(0), Offset(3), tuple(state.segments))


# Following a log whose segments are elsewhere


def test_a_follower_of_commits_has_offsets_epoch_origins_and_transactions_l13() -> None:
    state, follower = claimed(), LogState()
    follower.follow(commit_of(LogState(), [Claim(epoch=Epoch(0), broker_id="a")]))
    steps: list[Operations] = [
        [add_of(state, 3, origin_id=7, origin_seq=0, origin_epoch=1, txn_id="a")],
        [Claim(epoch=Epoch(2), broker_id="b")],
    ]
    for operations in steps:
        commit = commit_of(state, operations)
        state.apply(commit)
        follower.follow(commit)
    assert (follower.version, follower.epoch, follower.start_offset, follower.next_offset) == (2, 2, 3, 3)
    assert (follower.origins, follower.txns, follower.segments) == (state.origins, state.txns, [])


@pytest.mark.parametrize(
    "change",
    [
        {"version": Version(1)},
        {"version": Version(3)},
        {"epoch": Epoch(1)},
        {"next_offset": Offset(5)},
        {"add": {"offset_start": Offset(4)}},
        {"add": {"offset_start": Offset(2)}},
        {"add": {"offset_end": Offset(3)}, "next_offset": Offset(3)},
    ],
    ids=str,
)
def test_a_commit_that_does_not_follow_is_damage_l2(change: dict[str, Any]) -> None:
    follower = LogState(version=Version(1), epoch=Epoch(2), next_offset=Offset(3))
    change = dict(change)
    add = replace(add_of(follower, 1), **change.pop("add", {}))
    good = commit_of(follower, [add_of(follower, 1)])
    with pytest.raises(CorruptCommit, match=r"000\d\.json .*it (has version|ends|adds)"):
        follower.follow(replace(good, operations=(add,), **change))
    again = LogState(version=Version(1), epoch=Epoch(2), next_offset=Offset(3))
    again.follow(good)
    assert (again.version, again.next_offset) == (2, 4)


# Repeats


def test_the_longest_silent_origins_are_forgotten_first_l13() -> None:
    state = claimed(MemoryLimits(origins_max=2))
    for origin, txn in [(1, "a"), (2, "b"), (1, "c"), (3, "d")]:
        known = state.origins.get(origin)
        sequence = known.last_seq + 1 if known else 0
        operation = add_of(state, 1, origin_id=origin, origin_seq=sequence, origin_epoch=0, txn_id=txn)
        state.apply(commit_of(state, [operation]))
    assert list(state.origins) == [1, 3]
    assert state.txns.count == 4


def origin(last_seq: int, *runs: SequenceRun, epoch: int = 0) -> OriginRef:
    return OriginRef(origin_id=9, epoch=epoch, last_seq=last_seq, runs=runs)


def asked(known: OriginRef | None, sequence: int, *, count: int = 1, epoch: int = 0) -> Appended | None:
    return repeat_of(known, origin_id=9, epoch=epoch, sequence=sequence, count=count)


def test_a_batch_that_is_next_in_turn_is_new_l13() -> None:
    assert asked(None, 0) is None
    assert asked(None, 77) is None  # its history was forgotten, or is elsewhere
    assert asked(origin(4), 5) is None
    assert asked(origin(SEQUENCES - 1), 0) is None


def test_a_repeated_batch_gets_its_first_offsets_l13() -> None:
    known = origin(
        9, SequenceRun(0, Offset(100), Offset(105), Version(3)), SequenceRun(5, Offset(110), Offset(115), Version(4))
    )
    assert asked(known, 0, count=5) == Appended(Offset(100), Offset(105), Version(3))
    assert asked(known, 7, count=2) == Appended(Offset(112), Offset(114), Version(4))


def test_a_repeat_is_found_where_sequences_start_again() -> None:
    known = origin(1, SequenceRun(SEQUENCES - 2, Offset(10), Offset(14), Version(3)))
    assert asked(known, 0, count=2) == Appended(Offset(12), Offset(14), Version(3))


def test_a_repeat_from_long_ago_is_known_as_one() -> None:
    with pytest.raises(DuplicateSequence):
        asked(origin(99, SequenceRun(90, Offset(0), Offset(10), Version(1))), 3)


def test_a_batch_that_is_only_partly_a_repeat_is_not_answered_as_one_l13() -> None:
    known = origin(9, SequenceRun(5, Offset(110), Offset(115), Version(4)))
    with pytest.raises(DuplicateSequence) as refused:
        asked(known, 7, count=4)
    assert (refused.value.origin_id, refused.value.sequence, refused.value.last) == (9, 7, 9)


def test_less_than_half_the_circle_behind_is_old_and_the_rest_is_ahead_l13() -> None:
    half = SEQUENCES // 2
    with pytest.raises(DuplicateSequence):
        asked(origin(half + 99), half + 100 - (half - 1))
    with pytest.raises(SequenceGap):
        asked(origin(half + 99), half + 100 - half)


def test_a_gap_is_refused() -> None:
    with pytest.raises(SequenceGap, match="producer 9 sent sequence 6, expected 5"):
        asked(origin(4), 6)
    with pytest.raises(SequenceGap, match="producer 9 sent sequence 3, expected 0"):
        asked(origin(4), 3, epoch=1)


def test_a_new_instance_of_a_producer_starts_at_0_and_fences_the_old_one() -> None:
    assert asked(origin(4), 0, epoch=1) is None
    with pytest.raises(StaleOrigin, match="producer 9 with epoch 1 is fenced by epoch 2"):
        asked(origin(4, epoch=2), 5, epoch=1)


def test_an_origin_keeps_its_newest_runs_of_one_epoch_l13() -> None:
    runs = [SequenceRun(n, Offset(10 * n), Offset(10 * n + 1), Version(n)) for n in range(RUNS_KEPT_MAX + 2)]
    known = None
    for run in runs:
        known = advanced(known, origin_id=9, epoch=0, run=run)
    assert known == origin(RUNS_KEPT_MAX + 1, *runs[2:])
    fresh = SequenceRun(0, Offset(90), Offset(94), Version(9))
    assert advanced(known, origin_id=9, epoch=1, run=fresh) == origin(3, fresh, epoch=1)
    last = SequenceRun(SEQUENCES - 1, Offset(0), Offset(3), Version(1))
    assert advanced(None, origin_id=9, epoch=0, run=last).last_seq == 1


def test_a_log_remembers_the_runs_of_an_origin_across_commits_l13() -> None:
    state = claimed()
    for sequence in (0, 2):
        state.apply(commit_of(state, [add_of(state, 2, origin_id=9, origin_seq=sequence, origin_epoch=0)]))
    assert asked(state.origins[9], 0, count=2) == Appended(Offset(0), Offset(2), Version(1))
    assert asked(state.origins[9], 2, count=2) == Appended(Offset(2), Offset(4), Version(2))


def test_batches_of_one_commit_are_one_run_of_their_origin_l13() -> None:
    apart = SequenceRun(0, Offset(0), Offset(2), Version(1)), SequenceRun(2, Offset(5), Offset(7), Version(2))
    known = origin(3, *apart)
    joined = advanced(known, origin_id=9, epoch=0, run=SequenceRun(4, Offset(7), Offset(9), Version(2)))
    assert joined == origin(5, apart[0], SequenceRun(2, Offset(5), Offset(9), Version(2)))
    assert asked(joined, 3, count=2) == Appended(Offset(6), Offset(8), Version(2))
    later = SequenceRun(4, Offset(7), Offset(9), Version(3))
    assert advanced(known, origin_id=9, epoch=0, run=later) == origin(5, *apart, later)


def test_a_transaction_is_all_of_its_adds_in_one_commit_l13() -> None:
    state = claimed()
    first = add_of(state, 2, txn_id="a", origin_id=1, origin_seq=0, origin_epoch=0)
    second = replace(first, origin_id=2, offset_start=Offset(2), offset_end=Offset(5), position=100)
    state.apply(commit_of(state, [first, second]))
    assert state.txns.newest == (TxnRef("a", Offset(0), Offset(5), Version(1)),)


def add_later(state: LogState, origin_id: int, sequence: int, log_ms: int) -> None:
    operation = add_of(state, 1, origin_id=origin_id, origin_seq=sequence, origin_epoch=0)
    epoch = state.epoch
    state.apply(next_commit(state, [operation], txn_id="t", now=1.0, epoch=epoch, log_ms=log_ms))


def test_an_origin_is_forgotten_30_days_after_its_newest_record_l13() -> None:
    state = claimed()
    days_ms = 30 * 24 * 3600 * 1000
    add_later(state, 1, 0, 0)
    add_later(state, 2, 0, 10)
    add_later(state, 3, 0, days_ms)
    assert list(state.origins) == [1, 2, 3]
    add_later(state, 3, 1, days_ms + 1)
    assert list(state.origins) == [2, 3]


def test_the_runs_of_origins_are_bounded_and_the_longest_silent_have_the_fewest_l13() -> None:
    state = claimed(MemoryLimits(runs_max=20))
    for origin_id in (1, 2, 3):
        for sequence in range(12):
            add_later(state, origin_id, sequence, 0)
    assert [len(known.runs) for known in state.origins.values()] == [5, 5, 12], "half of the room, when it was full"
    assert state.runs == 7
    assert LogState.from_checkpoint(state.checkpoint("now"), state.limits) == state
    assert asked(state.origins[1], 7) == Appended(Offset(7), Offset(8), Version(8))
    with pytest.raises(DuplicateSequence):
        asked(state.origins[1], 6)


def test_the_runs_of_forgotten_origins_are_counted_no_more_l13() -> None:
    state = claimed(MemoryLimits(origins_max=2))
    for origin_id in (1, 2, 3):
        for sequence in range(8 + origin_id):
            add_later(state, origin_id, sequence, 0)
    assert {each: len(known.runs) for each, known in state.origins.items()} == {2: 10, 3: 11}
    assert state.runs == 5 + 6
    assert LogState.from_checkpoint(state.checkpoint("now"), state.limits) == state


def test_the_time_of_a_log_never_goes_back_l13() -> None:
    state = claimed()
    add_later(state, 1, 0, 500)
    add_later(state, 1, 1, 0)
    assert state.log_ms == 500


# The time of a log: what was measured counts, what wall clocks say counts for little


def test_what_a_running_owner_measured_counts_in_full() -> None:
    assert next_log_ms(5, measured_ms=DAY_MS, last_ms=0, now_ms=0) == 5 + DAY_MS


def test_between_two_processes_a_clock_that_is_days_ahead_counts_for_a_minute_l13() -> None:
    assert next_log_ms(5, measured_ms=None, last_ms=1000, now_ms=1000 + 2 * DAY_MS) == 5 + UNMEASURED_MS_MAX
    assert next_log_ms(5, measured_ms=None, last_ms=1000, now_ms=3000) == 2005


def test_it_never_goes_back() -> None:
    assert next_log_ms(5, measured_ms=None, last_ms=DAY_MS, now_ms=0) == 5
    assert next_log_ms(5, measured_ms=-1, last_ms=0, now_ms=0) == 5
