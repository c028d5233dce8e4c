"""Who gets into a commit, and where."""

from collections.abc import Sequence

import pytest

from sulina.core.log.commit import Add, Claim, Commit, Remove, timestamp_text
from sulina.core.log.log_state import RUNS_KEPT_MAX, Appended, LogState
from sulina.core.log.plan import EPOCHS, Append, BatchPlacement, Plan, checkpoint_due, next_commit
from sulina.core.log.publish_request import PublishRequest
from sulina.core.log.segment import SegmentLimits, segment_name
from sulina.core.records.batch import SEQUENCES, BatchHeader, split
from sulina.core.records.record import StoredRecord, encode
from sulina.errors import DuplicateSequence, InvalidInput, SequenceGap, SequenceSkipped, StaleEpoch, VersionConflict
from sulina.types import Epoch, Offset, Version

LIMITS = SegmentLimits(segment_bytes_max=1000, segment_age_seconds_max=60)


def log() -> LogState:
    state = LogState()
    state.apply(next_commit(state, [Claim(epoch=Epoch(0), broker_id="a")], txn_id="t", now=0.0, epoch=Epoch(0)))
    return state


def header(count: int = 1, *, value: bytes = b"v") -> BatchHeader:
    return split(encode([StoredRecord(value=value, timestamp_ms=7)] * count))[0]


def produced(sequence: int, count: int = 1, *, producer: int = 5, epoch: int = 0) -> BatchHeader:
    records = [StoredRecord(value=b"v", timestamp_ms=7)] * count
    return split(encode(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence))[0]


def append(
    batches: Sequence[BatchHeader],
    txn_id: str | None = None,
    *,
    expected_version: Version | None = None,
    may_skip: bool = False,
) -> Append:
    return Append(PublishRequest(b"", txn_id=txn_id, expected_version=expected_version, may_skip=may_skip), batches)


def plan_of(state: LogState, *appends: Append, now: float = 1.0) -> Plan:
    plan = Plan(state, LIMITS, now)
    for each in appends:
        plan.admit(each)
    return plan


def commit(state: LogState, plan: Plan) -> None:
    state.apply(next_commit(state, plan.operations, txn_id="t", now=plan.now, epoch=state.epoch))


def test_requests_are_placed_in_the_order_of_their_arrival_l2() -> None:
    plan = plan_of(log(), append([header(3)]), append([header(2), header(1)]))
    assert plan.answers == [Appended(Offset(0), Offset(3), Version(1)), Appended(Offset(3), Offset(6), Version(1))]
    sizes = [header(count).size_bytes for count in (3, 2, 1)]
    assert plan.placements == [
        BatchPlacement(0, 0, Offset(0), 0, Offset(0)),
        BatchPlacement(1, 0, Offset(0), sizes[0], Offset(3)),
        BatchPlacement(1, 1, Offset(0), sizes[0] + sizes[1], Offset(5)),
    ]


def test_one_clock_that_was_ahead_keeps_no_segment_from_rolling_by_age_l15() -> None:
    """L15: retention removes whole segments, so one that takes records for ever would keep them all."""
    state, ahead = log(), 10 * 24 * 3600.0
    # The clock is ahead, then right: a little later, and when the segment that was begun then is too old.
    for now in (ahead, ahead - 1, 100.0, 159.0, 160.0):
        commit(state, plan_of(state, append([header()]), now=now))
    assert [(each.base, each.next_offset) for each in state.segments] == [(0, 2), (2, 4), (4, 5)]


def test_many_small_batches_are_one_add_l17() -> None:
    plan = plan_of(log(), *[append([header(2)]) for _ in range(10)])
    assert [(o.offset_start, o.offset_end) for o in plan.operations if isinstance(o, Add)] == [(0, 20)]


def test_batches_of_one_producer_are_one_add_while_its_sequences_follow() -> None:
    requests = [append([produced(0, 2)]), append([produced(2)]), append([produced(0, producer=6)])]
    state = log()
    plan = plan_of(state, *requests)
    assert len(plan.operations) == 2
    commit(state, plan)
    again = plan_of(state, *requests)
    assert again.answers == plan.answers
    assert not again.placements


def test_what_follows_in_the_middle_of_a_log_is_one_add_too_l17() -> None:
    state = log()
    commit(state, plan_of(state, append([header(3)])))
    plan = plan_of(state, append([produced(4, 2)]), append([produced(6)]))
    assert [(add.origin_seq, add.offset_start, add.offset_end) for add in plan.operations] == [(4, 3, 6)]


def test_a_new_instance_of_a_producer_is_an_add_of_its_own_even_where_sequences_start_again_l13() -> None:
    state = log()
    commit(state, plan_of(state, append([produced(SEQUENCES - 1)]), append([produced(0, epoch=1)])))
    assert state.origins[5].epoch == 1
    assert len(state.origins[5].runs) == 1


def test_a_full_segment_is_rolled_between_batches() -> None:
    state = log()
    plan = plan_of(state, *[append([header(value=b"v" * 400)]) for _ in range(4)])
    assert [placement.segment for placement in plan.placements] == [0, 0, 2, 2]
    commit(state, plan)
    assert [segment.sealed for segment in state.segments] == [True, False]


def test_a_segment_may_be_filled_to_its_last_byte() -> None:
    size = header().size_bytes
    plan = Plan(log(), SegmentLimits(segment_bytes_max=2 * size), 1.0)
    for _ in range(3):
        plan.admit(append([header()]))
    assert [(placement.segment, placement.position) for placement in plan.placements] == [(0, 0), (0, size), (2, 0)]


def test_a_batch_larger_than_a_segment_has_one_for_itself() -> None:
    plan = plan_of(log(), append([header(value=b"v" * 5000)]), append([header()]))
    assert [(placement.segment, placement.position) for placement in plan.placements] == [(0, 0), (1, 0)]


def test_an_old_segment_is_rolled() -> None:
    state = log()
    commit(state, plan_of(state, append([header()])))
    assert plan_of(state, append([header()]), now=61.0).placements[0].segment == 1
    assert plan_of(state, append([header()]), now=60.999).placements[0].segment == 0


def test_a_txn_id_gets_its_first_answer_within_a_commit_and_after_l13() -> None:
    state = log()
    twice = [append([header(2), header(1)], "a"), append([header()]), append([header(2)], "a")]
    plan = plan_of(state, *twice)
    assert plan.answers[0] == plan.answers[2] == Appended(Offset(0), Offset(3), Version(1))
    commit(state, plan)
    assert plan_of(state, append([header()], "a")).answers == [plan.answers[0]]


def test_a_txn_id_is_remembered_although_it_follows_requests_without_one_l13() -> None:
    state = log()
    plan = plan_of(state, append([header()]), append([header(2)], "a"), append([header()]))
    commit(state, plan)
    assert plan_of(state, append([header(2)], "a")).answers == [Appended(Offset(1), Offset(3), Version(1))]


def test_of_two_that_expect_one_version_the_first_wins_l3() -> None:
    state = log()
    first, second = append([header()], expected_version=Version(0)), append([header()], expected_version=Version(0))
    plan = plan_of(state, first, second)
    assert isinstance(plan.answers[0], Appended)
    refused = plan.answers[1]
    assert isinstance(refused, VersionConflict)
    assert (refused.expected, refused.current) == (0, 1)
    commit(state, plan)
    [late] = plan_of(state, append([header()], expected_version=Version(0))).answers
    assert isinstance(late, VersionConflict)
    assert (late.expected, late.current) == (0, 1)
    retry = plan_of(state, append([header()], expected_version=state.version))
    assert retry.answers == [Appended(Offset(1), Offset(2), Version(2))]


def test_an_earlier_writer_is_a_conflict_too_l3() -> None:
    plan = plan_of(log(), append([header()]), append([header()], expected_version=Version(0)))
    assert isinstance(plan.answers[1], VersionConflict)


def test_a_refused_request_leaves_no_trace_l6() -> None:
    state = log()
    plan = plan_of(state, append([produced(3), produced(9)]), append([produced(0)]))
    assert isinstance(plan.answers[0], SequenceGap)
    assert plan.answers[1] == Appended(Offset(0), Offset(1), Version(1))


def test_sequences_are_checked_against_the_commit_in_the_making_l13() -> None:
    plan = plan_of(
        log(), append([produced(0, 2)]), append([produced(0, 2)]), append([produced(2)]), append([produced(7)])
    )
    assert plan.answers[1] == plan.answers[0]
    assert plan.answers[2] == Appended(Offset(2), Offset(3), Version(1))
    assert isinstance(plan.answers[3], SequenceGap)


def test_batches_of_one_request_follow_one_another_l13() -> None:
    state = log()
    request = append([produced(0, 2), produced(2, 3), produced(5)])
    plan = plan_of(state, request)
    assert plan.answers == [Appended(Offset(0), Offset(6), Version(1))]
    commit(state, plan)
    assert plan_of(state, request).answers == plan.answers


def test_a_repeat_gets_its_answer_although_others_of_the_producer_came_between_l13() -> None:
    state = log()
    commit(state, plan_of(state, append([produced(0)])))
    between = append([header()])
    plan = plan_of(
        state, append([produced(1)]), between, append([produced(2)]), append([produced(1)]), append([produced(0)])
    )
    assert plan.answers[3] == plan.answers[0] == Appended(Offset(1), Offset(2), Version(2))
    assert plan.answers[4] == Appended(Offset(0), Offset(1), Version(1))


def test_producer_0_is_one_and_batches_without_sequence_have_none_l13() -> None:
    zero = append([produced(0, producer=0)])
    plan = plan_of(log(), zero, zero)
    assert plan.answers[1] == plan.answers[0]
    unnumbered = append([produced(-1, producer=5)])
    plan = plan_of(log(), unnumbered, unnumbered)
    assert plan.answers == [Appended(Offset(0), Offset(1), Version(1)), Appended(Offset(1), Offset(2), Version(1))]
    assert [add.origin_id for add in plan.operations] == [-1]


@pytest.mark.parametrize(
    "batches",
    [
        [header(), produced(0)],
        [produced(0), header(), produced(1)],
        [produced(0), produced(1), produced(2)],
        [produced(1), produced(1), produced(2)],
    ],
)
def test_a_request_that_was_partly_here_before_is_refused_whole_l16(batches: list[BatchHeader]) -> None:
    state = log()
    commit(state, plan_of(state, append([produced(0)])))
    plan = plan_of(state, append(batches))
    [refused] = plan.answers
    assert isinstance(refused, DuplicateSequence)
    assert (refused.origin_id, refused.sequence) == (5, batches[-1].base_sequence)
    assert (plan.placements, plan.operations) == ([], [])


def test_half_a_repeat_is_refused_l16() -> None:
    state = log()
    commit(state, plan_of(state, append([produced(0)])))
    plan = plan_of(state, append([produced(0), produced(1)]))
    assert isinstance(plan.answers[0], DuplicateSequence)
    assert not plan.placements


def test_a_fenced_owner_commits_nothing() -> None:
    state = log()
    state.apply(next_commit(state, [Claim(epoch=Epoch(4), broker_id="b")], txn_id="t", now=0.0, epoch=Epoch(4)))
    with pytest.raises(StaleEpoch, match="epoch 3 is fenced by epoch 4"):
        next_commit(state, [], txn_id="t", now=0.0, epoch=Epoch(3))
    with pytest.raises(StaleEpoch, match="epoch 2 is fenced by epoch 4"):
        next_commit(state, [Claim(epoch=Epoch(2), broker_id="b")], txn_id="t", now=0.0, epoch=Epoch(4))
    with pytest.raises(StaleEpoch, match="epoch 4 is fenced by epoch 4"):
        next_commit(state, [Claim(epoch=Epoch(4), broker_id="b")], txn_id="t", now=0.0, epoch=Epoch(4))


def test_an_epoch_that_no_batch_can_carry_is_refused() -> None:
    claim = Claim(epoch=Epoch(EPOCHS - 1), broker_id="a")
    assert next_commit(LogState(), [claim], txn_id="t", now=0.0, epoch=Epoch(EPOCHS - 1)).epoch == EPOCHS - 1
    for epoch in (-1, EPOCHS):
        with pytest.raises(InvalidInput, match=rf"epoch {epoch} .*0\.\.{EPOCHS - 1}$"):
            next_commit(LogState(), [claim], txn_id="t", now=0.0, epoch=Epoch(epoch))


def test_a_commit_says_what_it_does_and_where_the_log_is_after_it() -> None:
    state = LogState(version=Version(9), epoch=Epoch(2), start_offset=Offset(5), next_offset=Offset(8))
    add = plan_of(state, append([header(2)])).operations[0]
    remove = Remove(segment=segment_name(5), offset_start=Offset(5), offset_end=Offset(7), size=1)
    assert next_commit(state, [add, remove], txn_id="w", now=3.0, epoch=Epoch(2)) == Commit(
        version=Version(10),
        timestamp=timestamp_text(3.0),
        txn_id="w",
        operations=(add, remove),
        checkpoint_hint=True,
        epoch=Epoch(2),
        start_offset=Offset(7),
        next_offset=Offset(10),
    )


def test_every_tenth_version_has_a_checkpoint_l11() -> None:
    assert [version for version in range(31) if checkpoint_due(Version(version))] == [10, 20, 30]


def test_the_first_segment_is_named_after_the_next_offset() -> None:
    state = log()
    plan = plan_of(state, append([header()]))
    assert isinstance(plan.operations[0], Add)
    assert plan.operations[0].segment == segment_name(0)


def test_the_newest_stored_batch_is_a_repeat_although_the_next_one_is_in_the_making_l13() -> None:
    state = log()
    stored = plan_of(state, append([produced(0, 3)]), append([header()]), append([produced(3)]))
    commit(state, stored)
    plan = plan_of(state, append([produced(4)]), append([produced(3)]))
    assert plan.answers[1] == stored.answers[2]
    assert len(plan.placements) == 1


# Producers that leave out what was refused


def skipping(sequence: int, count: int = 1, *, epoch: int = 0) -> Append:
    return append([produced(sequence, count, epoch=epoch)], may_skip=True)


def test_a_new_instance_of_a_producer_repeats_nothing_of_the_one_before_l13() -> None:
    """Its numbers begin again: what the former instance wrote under one of them is another record."""
    state = log()
    commit(state, plan_of(state, *(skipping(sequence) for sequence in range(6))))
    plan = plan_of(state, skipping(0, epoch=1), skipping(5, epoch=1))
    assert [answer.offset_start for answer in plan.answers if isinstance(answer, Appended)] == [6, 7]
    assert len(plan.placements) == 2


def test_what_a_producer_left_out_does_not_keep_it_from_going_on_l13() -> None:
    state = log()
    plan = plan_of(state, skipping(0), skipping(7), skipping(9))
    assert [answer.offset_start for answer in plan.answers if isinstance(answer, Appended)] == [0, 1, 2]
    commit(state, plan)
    assert plan_of(state, skipping(20)).placements
    strict = plan_of(state, append([produced(20)]))
    assert isinstance(strict.answers[0], SequenceGap), "others must not"


def test_what_comes_again_gets_its_first_answer_whatever_was_left_out_l13() -> None:
    state = log()
    requests = [skipping(0, 2), skipping(5), skipping(6), skipping(9, 3)]
    first = plan_of(state, *requests)
    commit(state, first)
    again = plan_of(state, *requests)
    assert again.answers == first.answers
    assert not again.placements


def test_what_the_log_has_passed_was_not_written_and_is_told_so_l13() -> None:
    state = log()
    within = plan_of(state, skipping(0), skipping(5), skipping(3))
    assert isinstance(within.answers[2], SequenceSkipped)
    commit(state, within)
    plan = plan_of(state, skipping(3), skipping(6))
    assert isinstance(plan.answers[0], SequenceSkipped)
    assert len(plan.placements) == 1


def test_where_it_is_no_longer_known_what_was_left_out_nothing_is_written_l13() -> None:
    state = log()
    for number in range(RUNS_KEPT_MAX + 1):
        commit(state, plan_of(state, skipping(2 * number)))
    plan = plan_of(state, skipping(0), skipping(1), skipping(3))
    assert [type(answer) for answer in plan.answers] == [DuplicateSequence, DuplicateSequence, SequenceSkipped]
    assert not plan.placements


def test_a_repeat_that_expected_a_version_gets_its_first_answer_l3_l13() -> None:
    state = log()
    request = append([produced(0)], expected_version=Version(0), may_skip=True)
    first = plan_of(state, request)
    commit(state, first)
    assert plan_of(state, request).answers == first.answers
    late = plan_of(state, append([produced(1)], expected_version=Version(0), may_skip=True))
    assert isinstance(late.answers[0], VersionConflict)


def test_a_txn_id_is_over_when_its_time_is_l13() -> None:
    state = log()
    commit(state, plan_of(state, append([header()], "a")))
    for log_ms, is_known in ((900_000, True), (900_001, False)):
        plan = Plan(state, LIMITS, 1.0, log_ms)
        plan.admit(append([header()], "a"))
        assert bool(plan.placements) != is_known
