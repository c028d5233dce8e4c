"""The rules of a node's side, one by one. Together with the fan-out they are in test_fan_out_model."""

from typing import Any

import pytest

from sulina.core.delivery.attempts import REMEMBERED_MAX, DeliverTo, NodeAttempts, SendReport
from sulina.core.delivery.pubsub import DeliveryReport, DeliveryStatus, PubSubConfig, SubscriberFailure


def attempts_of(*handles: int, is_reliable: bool = False, offset: int = 0, **config: Any) -> NodeAttempts:
    attempts = NodeAttempts(PubSubConfig(**config), is_reliable=is_reliable, epoch=1)
    for handle in handles:
        attempts.add(handle, offset if is_reliable else None)
    return attempts


def deliver(
    attempts: NodeAttempts, attempt: int, *handles: int, start: int | None = None, size: int = 10, now: float = 0.0
) -> list[DeliverTo | SendReport]:
    """Batches of ten records, one for each attempt."""
    start = 10 * (attempt - 1) if start is None else start
    return attempts.deliver(attempt, start, 10 * attempt, size, handles, now)


def handed(steps: list[DeliverTo | SendReport]) -> list[int]:
    return [step.handle for step in steps if isinstance(step, DeliverTo)]


def failures(
    steps: list[DeliverTo | SendReport] | list[SendReport],
) -> list[tuple[int, list[tuple[int, DeliveryStatus]]]]:
    """By attempt, who failed how; without those that only name who is slow."""
    reports = [step.report for step in steps if isinstance(step, SendReport)]
    return [(one.attempt, [(f.handle, f.status) for f in one.failed]) for one in reports if one.attempt]


def slow(steps: list[DeliverTo | SendReport] | list[SendReport]) -> list[tuple[int, ...]]:
    return [step.report.slow for step in steps if isinstance(step, SendReport) and step.report.attempt == 0]


def test_an_attempt_is_reported_once_when_everybody_has_acked_it_p6_p7() -> None:
    attempts = attempts_of(1, 2)
    assert deliver(attempts, 1, 1, 2) == [DeliverTo(1, 1, [(0, 10)]), DeliverTo(2, 1, [(0, 10)])]
    assert attempts.acked(1, 1, 0.0) == []
    assert attempts.acked(2, 1, 0.0) == [SendReport(DeliveryReport(1))]
    assert attempts.next_tick() is None


def test_a_slow_subscriber_does_not_keep_others_from_the_next_batch_p3() -> None:
    attempts = attempts_of(1, 2)
    deliver(attempts, 1, 1, 2)
    attempts.acked(1, 1, 0.0)
    assert handed(deliver(attempts, 2, 1, 2)) == [1, 2]
    attempts.acked(1, 2, 0.0)
    assert failures(attempts.acked(2, 2, 0.0)) == [(2, [])], "although it has not acked the first"


def test_who_does_not_ack_in_time_fails_with_all_it_has_and_gets_nothing_until_it_is_resumed_p7() -> None:
    attempts = attempts_of(1, 2)
    deliver(attempts, 1, 1, 2, now=0.0)
    deliver(attempts, 2, 1, 2, now=3.0)
    for attempt in (1, 2):
        attempts.acked(1, attempt, 4.0)
    assert attempts.next_tick() == 5.0
    assert attempts.tick(4.9) == []
    reports = attempts.tick(5.0)
    assert failures(reports) == [(1, [(2, DeliveryStatus.TIMEOUT)]), (2, [(2, DeliveryStatus.TIMEOUT)])]
    steps = deliver(attempts, 3, 1, 2)
    assert handed(steps) == [1]
    assert failures(attempts.acked(1, 3, 6.0)) == [(3, [(2, DeliveryStatus.TIMEOUT)])]
    attempts.resume([2])
    assert handed(deliver(attempts, 4, 1, 2)) == [1, 2]


def test_a_late_ack_credits_nothing_but_its_own_attempt_p7() -> None:
    attempts = attempts_of(1)
    deliver(attempts, 1, 1)
    attempts.tick(5.0)
    attempts.resume([1])
    deliver(attempts, 2, 1, now=5.0)
    assert attempts.acked(1, 1, 6.0) == []
    assert attempts.acked(9, 2, 6.0) == []
    assert attempts.late_acks == 2
    assert attempts.holds(1, 2)
    assert failures(attempts.acked(1, 2, 6.0)) == [(2, [])]


def test_who_acks_steadily_has_the_whole_time_for_each_batch_p7() -> None:
    attempts = attempts_of(1)
    for attempt in (1, 2, 3):
        deliver(attempts, attempt, 1, now=0.0)
    assert failures(attempts.acked(1, 1, 4.0)) == [(1, [])]
    assert attempts.next_tick() == 9.0
    attempts.acked(1, 3, 8.0)
    assert attempts.next_tick() == 9.0, "not by acking what comes later"


def test_the_first_that_is_late_fails_first_p7() -> None:
    attempts = attempts_of(1, 2)
    for attempt in (1, 2):
        deliver(attempts, attempt, 1, 2, now=0.0)
    attempts.acked(1, 1, 3.0)
    assert attempts.next_tick() == 5.0
    attempts.tick(5.0)
    assert attempts.holds(1, 2)
    assert not attempts.holds(2, 2)
    assert attempts.next_tick() == 8.0


def test_all_who_are_late_fail_together_and_say_after_how_long_p7() -> None:
    attempts = attempts_of(1, 2)
    deliver(attempts, 1, 1)
    deliver(attempts, 2, 2)
    late = [SubscriberFailure(handle, DeliveryStatus.TIMEOUT, "no ack within 5 s") for handle in (1, 2)]
    assert attempts.tick(5.0) == [SendReport(DeliveryReport(handle, (late[handle - 1],))) for handle in (1, 2)]


def test_who_cannot_take_a_batch_keeps_nobody_behind_it_from_it_p3() -> None:
    attempts = attempts_of(1, 2, 3, unacked_batches_max=1)
    deliver(attempts, 1, 1)
    attempts.failed(1, 1, "it raised", 0.0)
    deliver(attempts, 2, 2)
    steps = deliver(attempts, 3, 9, 1, 2, 3)
    assert handed(steps) == [3], "after one that is unknown, one that has failed and one that has too much"
    assert failures(steps) == [(2, [(2, DeliveryStatus.OTHER_ERROR)])]
    reliable = attempts_of(1, 2, is_reliable=True)
    deliver(reliable, 1, 1)
    reliable.acked(1, 1, 0.0)
    assert handed(deliver(reliable, 2, 1, 2, start=0)) == [1, 2]
    reliable.acked(1, 2, 0.0)
    assert handed(reliable.deliver(3, 0, 30, 10, [1, 2], 0.0)) == [1, 2]


def test_who_was_never_here_may_leave() -> None:
    assert attempts_of().remove(1, 0.0) == []


def test_who_raises_or_is_gone_fails_in_its_own_way_p7() -> None:
    attempts = attempts_of(1, 2, 3)
    deliver(attempts, 1, 1, 2, 3, 4)
    attempts.failed(1, 1, "division by zero", 0.0)
    attempts.disconnected(2, 0.0)
    found = attempts.acked(3, 1, 0.0)[0].report.failed
    assert [(failure.handle, failure.status) for failure in found] == [
        (4, DeliveryStatus.SUBSCRIBER_UNREACHABLE),
        (1, DeliveryStatus.OTHER_ERROR),
        (2, DeliveryStatus.SUBSCRIBER_UNREACHABLE),
    ]
    assert found[1].reason == "division by zero"
    assert found[2].reason == "its connection was lost"
    assert attempts.failed(3, 1, "too late", 0.0) == []


@pytest.mark.parametrize(("limits", "size"), [({"unacked_batches_max": 2}, 1), ({"unacked_bytes_max": 25}, 10)])
def test_who_has_more_unacked_than_it_may_fails_and_says_why_p3(limits: dict[str, Any], size: int) -> None:
    attempts = attempts_of(1, **limits)
    deliver(attempts, 1, 1, size=size)
    deliver(attempts, 2, 1, size=size)
    steps = deliver(attempts, 3, 1, size=size)
    assert failures(steps) == [(number, [(1, DeliveryStatus.OTHER_ERROR)]) for number in (1, 2, 3)]
    assert isinstance(steps[0], SendReport)
    assert "unacked" in steps[0].report.failed[0].reason
    attempts.resume([1])
    assert handed(deliver(attempts, 4, 1, size=10_000)) == [1], "one alone may be as large as it likes"


def test_who_leaves_on_purpose_has_not_failed() -> None:
    attempts = attempts_of(1, 2)
    deliver(attempts, 1, 1, 2)
    attempts.acked(1, 1, 0.0)
    assert failures(attempts.remove(2, 0.0)) == [(1, [])]
    assert not attempts.has(2)
    assert attempts.next_tick() is None


def test_who_is_gone_and_back_before_anybody_notices_goes_on() -> None:
    attempts = attempts_of(1)
    assert attempts.disconnected(1, 0.0) == []
    attempts.add(1, None)
    assert handed(deliver(attempts, 1, 1)) == [1]


def test_who_has_been_reported_is_not_back_before_the_owner_says_so() -> None:
    attempts = attempts_of(1)
    deliver(attempts, 1, 1)
    attempts.disconnected(1, 0.0)
    attempts.add(1, None)
    assert failures(deliver(attempts, 2, 1)) == [(2, [(1, DeliveryStatus.SUBSCRIBER_UNREACHABLE)])]
    deliver(attempts, 3, 9)
    attempts.add(9, None)
    assert failures(deliver(attempts, 4, 9)) == [(4, [(9, DeliveryStatus.SUBSCRIBER_UNREACHABLE)])], (
        "nor who was unknown"
    )
    attempts.resume([1, 9])
    assert handed(deliver(attempts, 5, 1, 9)) == [1, 9]


def test_who_was_unknown_and_is_resumed_before_it_comes_is_given_what_follows() -> None:
    attempts = attempts_of()
    deliver(attempts, 1, 9)
    attempts.resume([9])
    attempts.add(9, None)
    assert handed(deliver(attempts, 2, 9)) == [9]


def test_who_is_resumed_may_be_gone_and_back_before_anybody_notices() -> None:
    attempts = attempts_of(1)
    deliver(attempts, 1, 1)
    attempts.failed(1, 1, "it raised", 0.0)
    attempts.resume([1])
    attempts.disconnected(1, 0.0)
    attempts.add(1, None)
    assert handed(deliver(attempts, 2, 1)) == [1]


def test_what_may_be_unacked_counts_the_bytes_that_are() -> None:
    attempts = attempts_of(1, unacked_bytes_max=35)
    for attempt in (1, 2, 3):
        deliver(attempts, attempt, 1)
    attempts.acked(1, 1, 0.0)
    assert handed(deliver(attempts, 4, 1)) == [1]
    assert handed(deliver(attempts, 5, 1)) == []
    attempts.resume([1])
    assert [handed(deliver(attempts, attempt, 1, size=size)) for attempt, size in ((6, 10), (7, 25))] == [[1], [1]]


# A topic that keeps nothing


def test_what_comes_again_after_a_break_is_reported_and_given_to_nobody_p9() -> None:
    attempts = attempts_of(1, 2)
    deliver(attempts, 1, 1, 2)
    attempts.acked(1, 1, 0.0)
    attempts.failed(2, 1, "it raised", 0.0)
    deliver(attempts, 2, 1)
    attempts.resume([1, 2])
    steps = deliver(attempts, 1, 1, 2)
    assert handed(steps) == []
    assert failures(steps) == [(1, [(2, DeliveryStatus.OTHER_ERROR)])]
    assert failures(deliver(attempts, 3, 2)) == [(3, [(2, DeliveryStatus.OTHER_ERROR)])], "it is to be resumed"
    assert deliver(attempts, 2, 1) == [], "who has it may still ack it"
    assert failures(attempts.acked(1, 2, 0.0)) == [(2, [])]
    assert failures(deliver(attempts, 2, 1)) == [(2, [])]


def test_who_had_failed_what_comes_again_fails_again_with_all_it_has_p9() -> None:
    attempts = attempts_of(1, 2)
    deliver(attempts, 1, 1, 2)
    for handle in (1, 2):
        attempts.failed(handle, 1, "it raised", 0.0)
    attempts.resume([1, 2])
    deliver(attempts, 2, 1)
    deliver(attempts, 3, 2)
    error = DeliveryStatus.OTHER_ERROR
    steps = deliver(attempts, 1, 1, 2)
    assert failures(steps) == [(2, [(1, error)]), (3, [(2, error)]), (1, [(1, error), (2, error)])]


def test_who_had_failed_what_comes_again_is_not_back_by_itself_p9() -> None:
    attempts = attempts_of(1)
    deliver(attempts, 1, 1)
    attempts.failed(1, 1, "it raised", 0.0)
    attempts.resume([1])
    deliver(attempts, 1, 1)
    attempts.add(1, None)  # the owner has heard that it failed, and will say when it is sent to again
    failure = SubscriberFailure(1, DeliveryStatus.OTHER_ERROR, "it raised")
    assert deliver(attempts, 2, 1) == [SendReport(DeliveryReport(2, (failure,)))]


def test_what_is_remembered_of_failures_is_bounded() -> None:
    attempts = attempts_of()
    for attempt in range(1, REMEMBERED_MAX + 100):
        deliver(attempts, attempt, attempt)
    assert len(attempts.remembered_failures) == len(attempts.unknown_handles) == REMEMBERED_MAX
    assert attempts.remembered_failures[0] == attempts.unknown_handles[0] == 100, "the oldest go"


# A reliable topic


def test_the_position_is_where_everything_before_is_acked() -> None:
    attempts = attempts_of(1, is_reliable=True)
    assert attempts.position(1) == 0
    for attempt in (1, 2, 3):
        deliver(attempts, attempt, 1)
    attempts.acked(1, 2, 0.0)
    assert attempts.position(1) == 0
    attempts.acked(1, 1, 0.0)
    assert attempts.position(1) == 20
    assert attempts.acked_out_of_order(1) == [], "what lies before the position is not remembered"
    attempts.acked(1, 3, 0.0)
    assert attempts.position(1) == 30
    assert attempts.position(9) is None
    assert attempts_of(1).position(1) is None


def test_what_was_acked_does_not_come_again_whatever_the_owner_sends_p7() -> None:
    attempts = attempts_of(1, is_reliable=True)
    for attempt in (1, 2, 3, 4):
        deliver(attempts, attempt, 1)
    for attempt in (1, 3):
        attempts.acked(1, attempt, 0.0)
    attempts.disconnected(1, 0.0)
    assert attempts.position(1) == 10
    attempts.resume([1])
    assert failures(attempts.deliver(5, 0, 10, 10, [1], 0.0)) == [(5, [])], "it has acked all of it"
    assert attempts.deliver(6, 0, 40, 10, [1], 0.0) == [DeliverTo(1, 6, [(10, 20), (30, 40)])]
    assert failures(attempts.acked(1, 6, 0.0)) == [(6, [])]
    assert attempts.position(1) == 40


def test_a_batch_that_is_acked_but_for_its_end_is_given_from_there_on() -> None:
    attempts = attempts_of(1, is_reliable=True, offset=15)
    assert attempts.deliver(1, 10, 20, 10, [1], 0.0) == [DeliverTo(1, 1, [(15, 20)])]
    for attempt in (2, 3):
        deliver(attempts, attempt, 1, start=10 * attempt, size=1)
    attempts.acked(1, 2, 0.0)
    attempts.disconnected(1, 0.0)
    attempts.resume([1])
    assert attempts.deliver(4, 15, 20, 10, [1], 0.0) == [DeliverTo(1, 4, [(15, 20)])]
    assert attempts.position(1) == 15


def test_a_resume_takes_back_what_is_not_acked_and_reports_for_the_others() -> None:
    attempts = attempts_of(1, 2, is_reliable=True)
    deliver(attempts, 1, 1, 2)
    attempts.acked(2, 1, 0.0)
    assert failures(attempts.resume([1])) == [(1, [])]
    assert attempts.acked(1, 1, 0.0) == []
    assert attempts.late_acks == 1
    assert attempts.deliver(2, 0, 10, 10, [1], 0.0) == [DeliverTo(1, 2, [(0, 10)])]


def test_a_resume_reports_for_all_whom_it_names_and_passes_over_who_is_not_here() -> None:
    attempts = attempts_of(1, 2, is_reliable=True)
    deliver(attempts, 1, 1)
    deliver(attempts, 2, 2)
    assert failures(attempts.resume([9, 1, 2])) == [(1, []), (2, [])]


def test_who_has_less_than_a_quarter_of_what_it_may_have_is_not_behind_p3() -> None:
    attempts = attempts_of(1, 2, is_reliable=True, unacked_batches_max=10)
    named = []
    for attempt in (1, 2, 3):
        named.append(slow(deliver(attempts, attempt, 1, 2)))
        attempts.acked(1, attempt, 0.0)
    assert named == [[], [], [(2,)]]


def test_what_retention_took_is_passed_over() -> None:
    attempts = attempts_of(1, is_reliable=True)
    assert attempts.deliver(1, 50, 60, 10, [1], 0.0) == [DeliverTo(1, 1, [(50, 60)])]
    attempts.acked(1, 1, 0.0)
    assert attempts.position(1) == 60


def test_a_number_that_comes_twice_is_never_taken_for_delivered() -> None:
    attempts = attempts_of(1, is_reliable=True)
    deliver(attempts, 1, 1)
    attempts.acked(1, 1, 0.0)
    steps = attempts.deliver(1, 10, 20, 10, [1], 0.0)
    failure = SubscriberFailure(1, DeliveryStatus.OTHER_ERROR, "attempt 1 comes after 1")
    assert steps == [SendReport(DeliveryReport(1, (failure,)))]


def test_who_falls_behind_the_others_is_named_before_it_has_to_fail_p3() -> None:
    attempts = attempts_of(1, 2, is_reliable=True, unacked_batches_max=8)
    named = []
    for attempt in (1, 2, 3):
        named += slow(deliver(attempts, attempt, 1, 2))
        attempts.acked(1, attempt, 0.0)
    assert named == [(2,)], "once"
    for attempt in (1, 2):
        assert slow(attempts.acked(2, attempt, 0.0)) == []
    assert slow(attempts.acked(2, 3, 0.0)) == [()], "it has nothing left: nobody is behind"


def test_where_all_are_behind_nobody_is_named_until_one_has_nothing_left_p3() -> None:
    attempts = attempts_of(1, 2, is_reliable=True, unacked_batches_max=8)
    assert slow(deliver(attempts, 1, 1, 2)) + slow(deliver(attempts, 2, 1, 2)) == []
    attempts.acked(1, 1, 0.0)
    assert slow(attempts.acked(1, 2, 0.0)) == [(2,)]


def test_who_keeps_only_its_oldest_is_behind_too_p3() -> None:
    attempts = attempts_of(1, 2, is_reliable=True, unacked_bytes_max=80)
    deliver(attempts, 1, 1, 2)
    attempts.acked(1, 1, 0.0)
    steps = deliver(attempts, 2, 1, 2)
    assert slow(steps) == [(2,)]
    attempts.acked(2, 2, 0.0)
    attempts.acked(1, 2, 0.0)
    assert slow(deliver(attempts, 3, 1, 2)) == []
    assert slow(attempts.tick(5.0)) == []
    assert slow(deliver(attempts, 4, 1)) == [()], "it has failed, and is not only slow"
