"""The rules of the fan-out, one by one. Together with the nodes' side they are in test_fan_out_model."""

from typing import Any

import pytest

from sulina.core.delivery.fan_out import Effect, EmitEvent, FanOut, Payload, RemoveSubscriber, ResumeAt, Send
from sulina.core.delivery.pubsub import (
    DeliveryPolicy,
    DeliveryReport,
    DeliveryStatus,
    PartitionBehavior,
    PubSubConfig,
    SubscriberFailure,
    SubscriberId,
    SubscriberStatus,
    TopicOptions,
)
from sulina.core.delivery.pubsub import PubSubEventType as Event
from sulina.errors import DelayQueueFull, LimitReached, NoSubscribers, PartitionDropped

WAITS = TopicOptions()
DROPS = TopicOptions(partition_behavior=PartitionBehavior.DROP)
ONCE = TopicOptions(delivery_policy=DeliveryPolicy.AT_MOST_ONCE)


def fan_out_of(*members: tuple[str, int], is_reliable: bool = False, offset: int = 0, **config: Any) -> FanOut:
    """With these members, whose nodes are up."""
    fan_out = FanOut(PubSubConfig(**config), is_reliable=is_reliable, local="a", topic="/default/news")
    for node in sorted({node for node, _ in members} - {"a"}):
        fan_out.node_up(node, 0.0, has_restarted=True)
    for node, handle in members:
        fan_out.add(SubscriberId(node, handle), f"{node}{handle}", offset if is_reliable else None, 0.0)
    return fan_out


def batch(start: int, end: int, size: int = 10) -> Payload:
    return Payload(start, end, memoryview(bytes(size)))


def sends(effects: list[Effect]) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """Node, attempt, first offset, handles."""
    return [(e.node, e.attempt, e.payload.start, e.handles) for e in effects if isinstance(e, Send)]


def resumed(effects: list[Effect]) -> list[tuple[str, tuple[int, ...]]]:
    return [(e.node, e.handles) for e in effects if isinstance(e, ResumeAt)]


def told(effects: list[Effect]) -> list[Event]:
    return [e.type for e in effects if isinstance(e, EmitEvent)]


def failing(attempt: int, *handles: int, status: DeliveryStatus = DeliveryStatus.TIMEOUT) -> DeliveryReport:
    return DeliveryReport(attempt, tuple(SubscriberFailure(handle, status, "no ack") for handle in handles))


def statuses(fan_out: FanOut) -> dict[int, SubscriberStatus]:
    return {info.handle: info.status for info in fan_out.info()}


def read_all(
    fan_out: FanOut, end: int, now: float = 0.0, size: int = 10
) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """Batches of one record each, as long as somebody wants one."""
    found = []
    while (wanted := fan_out.wanted(end)) is not None:
        found += sends(fan_out.read(batch(wanted, wanted + 1, size), now))
    return found


# A topic that keeps nothing


def test_a_batch_goes_to_a_node_once_however_many_subscribe_there_p6() -> None:
    fan_out = fan_out_of(("a", 1), ("b", 1), ("b", 2), ("b", 3), ("c", 1))
    effects = fan_out.publish(batch(0, 2), WAITS, 0.0)
    assert sends(effects) == [("a", 1, 0, (1,)), ("b", 1, 0, (1, 2, 3)), ("c", 1, 0, (1,))]
    assert sends(fan_out.publish(batch(2, 3), WAITS, 0.0))[1] == ("b", 2, 2, (1, 2, 3)), "without waiting for a report"


def test_a_report_counts_everybody_who_took_the_batch_p10() -> None:
    fan_out = fan_out_of(("b", 1), ("b", 2))
    fan_out.publish(batch(0, 3), WAITS, 1.0)
    effects = fan_out.reported("b", DeliveryReport(1), 1.5)
    facts = {"node": "b", "attempt": 1, "subscribers": 2, "count": 3, "seconds": 0.5}
    assert effects == [EmitEvent(Event.DELIVERY_SUCCEEDED, facts)]
    assert fan_out.counts.delivered_records == 6
    assert fan_out.reported("b", DeliveryReport(1), 1.5) == [], "once"
    assert fan_out.reported("x", DeliveryReport(1), 1.5) == [], "nobody knows x"


def test_who_fails_is_suspended_and_the_others_go_on_p3_p8() -> None:
    fan_out = fan_out_of(("b", 1), ("b", 2))
    fan_out.publish(batch(0, 1), WAITS, 0.0)
    fan_out.publish(batch(1, 2), WAITS, 0.0)
    effects = fan_out.reported("b", failing(1, 2), 1.0)
    assert told(effects) == [Event.DELIVERY_FAILED, Event.SUBSCRIBER_SUSPENDED, Event.DELIVERY_SUCCEEDED]
    assert statuses(fan_out) == {1: SubscriberStatus.ACTIVE, 2: SubscriberStatus.SUSPENDED}
    assert fan_out.info()[1].reason == "Timeout: no ack"
    assert fan_out.counts.failed_records[DeliveryStatus.TIMEOUT] == 1
    assert sends(fan_out.publish(batch(2, 5), WAITS, 1.0)) == [("b", 3, 2, (1,))]
    fan_out.publish(batch(5, 6), WAITS, 1.0)
    assert fan_out.counts.missed_records == 4
    fan_out.reported("b", failing(2, 2), 1.0)
    assert fan_out.counts.failed_records[DeliveryStatus.TIMEOUT] == 1, "what was sent before it failed is void for it"


def test_a_backoff_doubles_until_there_is_a_success_p8() -> None:
    fan_out = fan_out_of(("a", 1), backoff_seconds=1, backoff_seconds_max=3)
    now, waits = 0.0, []
    for attempt in range(1, 5):
        fan_out.publish(batch(attempt, attempt + 1), WAITS, now)
        fan_out.reported("a", failing(attempt, 1), now)
        due = fan_out.next_tick()
        assert due is not None
        waits.append(due - now)
        assert fan_out.tick(due - 0.1) == []
        effects = fan_out.tick(due)
        assert resumed(effects) == [("a", (1,))]
        assert told(effects) == [Event.SUBSCRIBER_RESUMED]
        now = due
    assert waits == [1, 2, 3, 3]
    fan_out.publish(batch(5, 6), WAITS, now)
    fan_out.reported("a", DeliveryReport(5), now)
    fan_out.publish(batch(6, 7), WAITS, now)
    fan_out.reported("a", failing(6, 1), now)
    assert fan_out.next_tick() == now + 1


def test_without_a_success_it_is_removed_and_told_so_without_any_change_of_nodes_p8() -> None:
    fan_out = fan_out_of(("b", 1), suspended_ttl_seconds=10, backoff_seconds=8, backoff_seconds_max=8)
    fan_out.publish(batch(0, 1), WAITS, 0.0)
    fan_out.reported("b", failing(1, 1), 0.0)
    assert resumed(fan_out.tick(8.0)) == [("b", (1,))]
    fan_out.publish(batch(1, 2), WAITS, 8.0)
    fan_out.reported("b", failing(2, 1), 9.0)
    assert fan_out.next_tick() == 10.0, "counted from its first failure"
    effects = fan_out.tick(10.0)
    assert isinstance(effects[0], RemoveSubscriber)
    assert effects[0].member == SubscriberId("b", 1)
    assert effects[0].reason == "suspended for more than 10 s (Timeout: no ack)"
    gone: dict[str, object] = {"node": "b", "subscriber": "b1", "reason": effects[0].reason}
    assert effects[1] == EmitEvent(Event.SUBSCRIBER_REMOVED, gone)
    assert told(effects) == [Event.SUBSCRIBER_REMOVED]
    assert fan_out.info() == []


def test_who_fails_after_its_time_is_up_is_removed_at_once_p8() -> None:
    fan_out = fan_out_of(("a", 1), suspended_ttl_seconds=10)
    fan_out.publish(batch(0, 1), WAITS, 0.0)
    fan_out.reported("a", failing(1, 1), 0.0)
    fan_out.tick(1.0)
    fan_out.publish(batch(1, 2), WAITS, 8.0)
    effects = fan_out.reported("a", failing(2, 1), 13.0)
    assert told(effects) == [Event.DELIVERY_FAILED, Event.SUBSCRIBER_SUSPENDED, Event.SUBSCRIBER_REMOVED]
    assert fan_out.next_tick() is None


def test_nobody_who_could_ever_get_it_means_no_subscribers_p2() -> None:
    fan_out = fan_out_of(("a", 1))
    fan_out.publish(batch(0, 1), WAITS, 0.0)
    fan_out.reported("a", failing(1, 1), 0.0)
    with pytest.raises(NoSubscribers, match="/default/news"):
        fan_out.publish(batch(1, 2), WAITS, 0.0)
    fan_out.remove(SubscriberId("a", 1), 0.0)
    with pytest.raises(NoSubscribers):
        fan_out.publish(batch(1, 2), WAITS, 0.0)
    assert fan_out.counts.missed_records == 0, "what is refused nobody misses"


def test_what_is_for_a_lost_node_waits_and_is_sent_in_order_before_anything_newer_p9() -> None:
    fan_out = fan_out_of(("a", 1), ("b", 1))
    fan_out.node_down("b", 1.0, "no answer")
    assert statuses(fan_out) == {1: SubscriberStatus.SUSPENDED}
    for start in range(3):
        effects = fan_out.publish(batch(start, start + 1), WAITS, 1.0)
        assert sends(effects) == [("a", start + 1, start, (1,))], "local delivery goes on"
        assert told(effects) == [Event.BATCH_QUEUED]
    effects = fan_out.node_up("b", 2.0, has_restarted=False)
    assert resumed(effects) == [("b", (1,))]
    assert isinstance(effects[0], ResumeAt), "before anything is sent to it"
    assert sends(effects) == [("b", 1, 0, (1,)), ("b", 2, 1, (1,)), ("b", 3, 2, (1,))]
    assert told(effects) == [Event.SUBSCRIBER_RESUMED, Event.QUEUE_FLUSHED]
    assert fan_out.waiting_batches == 0


def test_what_is_new_never_passes_what_still_waits_p6_p9() -> None:
    fan_out = fan_out_of(("b", 1), unacked_batches_max=4)
    fan_out.node_down("b", 1.0, "no answer")
    for start in range(4):
        fan_out.publish(batch(start, start + 1), WAITS, 1.0)
    effects = fan_out.node_up("b", 2.0, has_restarted=False)
    assert [send[1:3] for send in sends(effects)] == [(1, 0), (2, 1)], "the rest follows the reports"
    effects = fan_out.publish(batch(4, 5), WAITS, 2.0)
    assert (sends(effects), told(effects)) == ([], [Event.BATCH_QUEUED])
    fan_out.node_down("b", 3.0, "no answer")
    effects = fan_out.node_up("b", 4.0, has_restarted=False)
    assert [send[1:3] for send in sends(effects)] == [(1, 0), (2, 1)], "what was on its way comes before what waits"
    found = []
    for attempt in range(1, 6):
        found += sends(fan_out.reported("b", DeliveryReport(attempt), 5.0))
    assert [send[1:3] for send in found] == [(3, 2), (4, 3), (5, 4)]


def test_only_the_members_of_the_node_that_is_back_are_tried_again_p8() -> None:
    fan_out = fan_out_of(("b", 1), ("c", 2))
    fan_out.node_down("b", 1.0, "no answer")
    fan_out.node_down("c", 1.0, "no answer")
    fan_out.node_up("c", 2.0, has_restarted=False)
    assert statuses(fan_out) == {1: SubscriberStatus.SUSPENDED, 2: SubscriberStatus.ACTIVE}


def test_what_was_on_its_way_is_sent_again_under_its_number_or_counts_as_failed_p9() -> None:
    fan_out = fan_out_of(("b", 1))
    fan_out.publish(batch(0, 1), WAITS, 0.0)
    fan_out.publish(batch(1, 3), ONCE, 0.0)
    fan_out.publish(batch(3, 4), DROPS, 0.0)
    effects = fan_out.node_down("b", 1.0, "no answer")
    assert told(effects) == [Event.DELIVERY_FAILED, Event.SUBSCRIBER_SUSPENDED]
    assert fan_out.counts.failed_records[DeliveryStatus.SUBSCRIBER_UNREACHABLE] == 2
    fan_out.publish(batch(4, 5), WAITS, 1.0)
    effects = fan_out.node_up("b", 2.0, has_restarted=False)
    assert [send[1:3] for send in sends(effects)] == [(1, 0), (3, 3), (4, 4)]
    assert fan_out.counts.redelivered_batches == 2


@pytest.mark.parametrize("options", [DROPS, ONCE])
def test_without_a_queue_it_is_dropped_and_refused_if_nobody_else_is_reached_p2_p9(options: TopicOptions) -> None:
    fan_out = fan_out_of(("a", 1), ("b", 1))
    fan_out.node_down("b", 0.0, "no answer")
    assert told(fan_out.publish(batch(0, 4), options, 0.0)) == [Event.BATCH_DROPPED]
    assert fan_out.counts.dropped_records == 4
    fan_out.remove(SubscriberId("a", 1), 0.0)
    fan_out.add(SubscriberId("c", 1), "c1", None, 0.0)
    with pytest.raises(PartitionDropped, match="only on b, c, which"):
        fan_out.publish(batch(4, 5), options, 0.0)
    assert fan_out.counts.dropped_records == 4


def test_a_full_queue_refuses_before_anybody_is_sent_anything_p2_p9() -> None:
    fan_out = fan_out_of(("a", 1), ("b", 1), delay_queue_bytes_max=25)
    fan_out.node_down("b", 0.0, "no answer")
    fan_out.publish(batch(0, 1), WAITS, 0.0)
    fan_out.publish(batch(1, 2), WAITS, 0.0)
    with pytest.raises(DelayQueueFull, match="20 bytes wait for node b, the limit is 25"):
        fan_out.publish(batch(2, 3), WAITS, 0.0)
    assert [send[1] for send in sends(fan_out.publish(batch(2, 3), DROPS, 0.0))] == [3], "no number was used up"
    assert fan_out.waiting_bytes == 20, "what the own node was sent cannot be lost on the way, and is not kept"


def test_what_may_have_to_be_sent_again_is_bounded_with_what_waits() -> None:
    fan_out = fan_out_of(("b", 1), delay_queue_batches_max=2)
    for start in range(4):
        fan_out.publish(batch(start, start + 1), WAITS, 0.0)
    fan_out.node_down("b", 1.0, "no answer")
    assert fan_out.waiting_batches == 2
    assert fan_out.counts.failed_records[DeliveryStatus.SUBSCRIBER_UNREACHABLE] == 2


def test_who_left_meanwhile_is_left_out_and_who_came_later_too_p3() -> None:
    fan_out = fan_out_of(("b", 1), ("b", 2))
    fan_out.node_down("b", 0.0, "no answer")
    fan_out.publish(batch(0, 1), WAITS, 0.0)
    fan_out.remove(SubscriberId("b", 1), 0.0)
    fan_out.add(SubscriberId("b", 3), "b3", None, 0.0)
    fan_out.remove(SubscriberId("b", 2), 0.0)
    fan_out.add(SubscriberId("b", 2), "b2", None, 0.0)
    fan_out.publish(batch(1, 2), WAITS, 0.0)
    effects = fan_out.node_up("b", 1.0, has_restarted=False)
    assert sends(effects) == [("b", 2, 1, (3, 2))]
    assert Event.BATCH_DROPPED in told(effects)


def test_what_is_reported_of_who_has_left_counts_for_nobody_p3() -> None:
    fan_out = fan_out_of(("b", 1), ("b", 2))
    fan_out.publish(batch(0, 1), WAITS, 0.0)
    fan_out.remove(SubscriberId("b", 1), 0.0)
    assert told(fan_out.reported("b", failing(1, 1), 1.0)) == [Event.DELIVERY_SUCCEEDED]
    assert fan_out.counts.delivered_records == 1
    assert fan_out.counts.failed_records[DeliveryStatus.TIMEOUT] == 0


def test_when_the_last_one_is_removed_nothing_waits_any_more() -> None:
    fan_out = fan_out_of(("b", 1), suspended_ttl_seconds=10)
    fan_out.node_down("b", 0.0, "no answer")
    fan_out.publish(batch(0, 1), WAITS, 0.0)
    assert told(fan_out.tick(10.0)) == [Event.SUBSCRIBER_REMOVED, Event.BATCH_DROPPED]
    assert fan_out.waiting_bytes == 0


def test_what_waits_and_what_is_dropped_is_told_and_counted_by_its_records_p10() -> None:
    fan_out = fan_out_of(("a", 1), ("b", 1))
    fan_out.node_down("b", 0.0, "no answer")
    assert fan_out.publish(batch(3, 5), WAITS, 0.0)[1:] == [EmitEvent(Event.BATCH_QUEUED, {"node": "b", "count": 2})]
    assert fan_out.publish(batch(5, 6), WAITS, 0.0)[1:] == [EmitEvent(Event.BATCH_QUEUED, {"node": "b", "count": 1})]
    assert (fan_out.counts.queued_batches, fan_out.counts.queued_records) == (2, 3)
    assert fan_out.publish(batch(6, 10), DROPS, 0.0)[1:] == [EmitEvent(Event.BATCH_DROPPED, {"node": "b", "count": 4})]
    assert fan_out.remove(SubscriberId("b", 1), 0.0)[1:] == [
        EmitEvent(Event.BATCH_DROPPED, {"node": "b", "count": 2}),
        EmitEvent(Event.BATCH_DROPPED, {"node": "b", "count": 1}),
    ]
    assert (fan_out.counts.dropped_batches, fan_out.counts.dropped_records) == (3, 7)


@pytest.mark.parametrize("bound", [{"unacked_batches_max": 8}, {"unacked_bytes_max": 80}])
def test_of_what_waits_half_of_what_a_subscriber_may_have_is_sent_at_once(bound: dict[str, Any]) -> None:
    fan_out = fan_out_of(("b", 1), **bound)
    fan_out.node_down("b", 0.0, "no answer")
    for start in range(10):
        fan_out.publish(batch(start, start + 1), WAITS, 0.0)
    assert [send[2] for send in sends(fan_out.node_up("b", 1.0, has_restarted=False))] == [0, 1, 2, 3]
    assert [send[2] for send in sends(fan_out.reported("b", DeliveryReport(1), 1.0))] == [4], "the rest by and by"


def test_a_node_that_nobody_knows_or_that_was_not_full_is_sent_nothing_when_it_is_ready() -> None:
    fan_out = fan_out_of(("b", 1))
    assert fan_out.node_ready("b", 0.0) == []
    assert fan_out.node_ready("x", 0.0) == []


def test_all_whose_time_has_come_are_tried_again_or_removed_at_once_p8() -> None:
    fan_out = fan_out_of(("a", 1), ("b", 1), backoff_seconds=1, backoff_seconds_max=20, suspended_ttl_seconds=10)
    for attempt, now in ((1, 0.0), (2, 1.0), (3, 3.0), (4, 7.0)):
        assert len(resumed(fan_out.tick(now))) == (2 if now else 0)
        fan_out.publish(batch(attempt, attempt + 1), WAITS, now)
        for node in ("a", "b"):
            fan_out.reported(node, failing(attempt, 1), now)
    effects = fan_out.tick(10.0)
    assert [effect.member for effect in effects if isinstance(effect, RemoveSubscriber)] == [
        SubscriberId("a", 1),
        SubscriberId("b", 1),
    ]
    assert told(effects) == [Event.SUBSCRIBER_REMOVED] * 2


def test_a_node_that_is_lost_says_why_to_everybody_p10() -> None:
    fan_out = fan_out_of(("b", 1), ("b", 2))
    fan_out.publish(batch(0, 1), ONCE, 0.0)
    effects = fan_out.node_down("b", 1.0, "no answer")
    assert [effect.fields["reason"] for effect in effects if isinstance(effect, EmitEvent)] == ["no answer"] * 3
    assert [(info.name, info.reason, info.offset) for info in fan_out.info()] == [
        ("b1", "no answer", None),
        ("b2", "no answer", None),
    ]


def test_who_leaves_is_told_of_once_and_who_was_not_there_not_at_all() -> None:
    fan_out = fan_out_of(("b", 1))
    gone: dict[str, object] = {"node": "b", "subscriber": "b1", "reason": "it has unsubscribed"}
    assert fan_out.remove(SubscriberId("b", 1), 0.0) == [EmitEvent(Event.SUBSCRIBER_REMOVED, gone)]
    assert fan_out.remove(SubscriberId("b", 1), 0.0) == []
    assert fan_out.remove(SubscriberId("x", 1), 0.0) == []


def test_what_was_dropped_gives_its_room_back_p9() -> None:
    fan_out = fan_out_of(("b", 1), delay_queue_batches_max=2)
    fan_out.node_down("b", 0.0, "no answer")
    for start in (0, 2):
        for number in (start, start + 1):
            fan_out.publish(batch(number, number + 1), WAITS, 0.0)
        with pytest.raises(DelayQueueFull):
            fan_out.publish(batch(9, 10), WAITS, 0.0)
        fan_out.remove(SubscriberId("b", 1), 0.0)
        assert fan_out.waiting_bytes == 0
        fan_out.add(SubscriberId("b", 1), "b1", None, 0.0)


def test_a_partition_that_leaves_its_owner_gives_up_what_waits_and_says_so_p10() -> None:
    fan_out = fan_out_of(("a", 1), ("b", 1), ("b", 2), ("c", 1))
    fan_out.publish(batch(0, 2), WAITS, 0.0)  # to all three, of whom b and c may have to be sent it again
    fan_out.reported("c", DeliveryReport(1), 0.0)
    fan_out.node_blocked("c")
    fan_out.publish(batch(2, 5), WAITS, 0.0)  # waits for c
    effects = fan_out.close("moved")
    lost = {"node": "b", "status": DeliveryStatus.SUBSCRIBER_UNREACHABLE, "reason": "moved", "subscribers": 2}
    removed = [("a", "a1"), ("b", "b1"), ("b", "b2"), ("c", "c1")]
    assert [e.fields for e in effects if isinstance(e, EmitEvent) and e.type == Event.DELIVERY_FAILED] == [
        {**lost, "attempt": 1, "count": 2},
        {**lost, "attempt": 2, "count": 3},
    ]
    assert [e.fields for e in effects if isinstance(e, EmitEvent) and e.type == Event.BATCH_DROPPED] == [
        {"node": "c", "count": 3}
    ]
    assert [e.fields for e in effects if isinstance(e, EmitEvent) and e.type == Event.SUBSCRIBER_REMOVED] == [
        {"node": node, "subscriber": name, "reason": "moved"} for node, name in removed
    ]
    assert fan_out.is_empty
    assert fan_out.waiting_batches == 0
    assert fan_out.counts.reported_batches[DeliveryStatus.SUBSCRIBER_UNREACHABLE] == 2
    assert fan_out.counts.failed_records[DeliveryStatus.SUBSCRIBER_UNREACHABLE] == 2 * 2 + 2 * 3


def test_while_its_node_is_away_a_subscriber_has_all_the_time_there_is_p8() -> None:
    fan_out = fan_out_of(("b", 1), suspended_ttl_seconds=10)
    fan_out.publish(batch(0, 1), WAITS, 0.0)
    fan_out.reported("b", failing(1, 1), 0.0)
    fan_out.tick(1.0)
    fan_out.node_down("b", 100.0, "no answer")
    assert fan_out.next_tick() == 110.0


def test_in_a_new_life_nobody_is_left_of_the_old_one_p9() -> None:
    fan_out = fan_out_of(("b", 1))
    fan_out.publish(batch(0, 1), WAITS, 0.0)
    effects = fan_out.node_up("b", 1.0, has_restarted=True)
    assert sends(effects) == []
    assert Event.SUBSCRIBER_REMOVED in told(effects)
    assert fan_out.info() == []


def test_a_full_connection_is_sent_nothing_and_what_waits_goes_first_p3() -> None:
    fan_out = fan_out_of(("a", 1), ("b", 1))
    fan_out.node_blocked("b")
    fan_out.node_blocked("a")
    assert sends(fan_out.publish(batch(0, 1), WAITS, 0.0)) == [("a", 1, 0, (1,))], "the own node is always ready"
    assert sends(fan_out.node_ready("b", 1.0)) == [("b", 1, 0, (1,))]
    assert fan_out.node_ready("b", 1.0) == []


def test_who_fails_while_the_connection_is_full_still_gets_what_waits_for_it() -> None:
    fan_out = fan_out_of(("b", 1), ("b", 2))
    fan_out.publish(batch(0, 1), WAITS, 0.0)
    fan_out.node_blocked("b")
    fan_out.publish(batch(1, 2), WAITS, 0.0)
    fan_out.reported("b", failing(1, 2), 0.0)
    assert resumed(fan_out.tick(1.0)) == [("b", (2,))]
    assert sends(fan_out.node_ready("b", 1.0)) == [("b", 2, 1, (1, 2))]


def test_a_member_of_a_node_that_is_not_up_waits_for_it_p8() -> None:
    fan_out = fan_out_of()
    assert told(fan_out.add(SubscriberId("b", 1), "b1", None, 0.0)) == [
        Event.SUBSCRIBER_ADDED,
        Event.SUBSCRIBER_SUSPENDED,
    ]
    fan_out.publish(batch(0, 1), WAITS, 0.0)
    assert sends(fan_out.node_up("b", 1.0, has_restarted=False)) == [("b", 1, 0, (1,))]


def test_subscribers_have_a_limit_and_one_that_comes_back_is_no_other() -> None:
    fan_out = fan_out_of(("a", 1), subscribers_max=1)
    with pytest.raises(LimitReached):
        fan_out.add(SubscriberId("a", 2), "a2", None, 0.0)
    assert fan_out.add(SubscriberId("a", 1), "a1", None, 0.0) == []
    fan_out.publish(batch(0, 1), WAITS, 0.0)
    fan_out.reported("a", failing(1, 1), 0.0)
    assert resumed(fan_out.add(SubscriberId("a", 1), "a1", None, 0.1)) == [("a", (1,))], "before its backoff"


def test_timers_do_not_pile_up() -> None:
    fan_out = fan_out_of(("a", 1))
    for attempt in range(1, 1000):
        fan_out.publish(batch(0, 1), WAITS, 0.0)
        fan_out.reported("a", failing(attempt, 1), attempt / 1e6)
        fan_out.add(SubscriberId("a", 1), "a1", None, 0.0)
    assert fan_out.timers < 200


# A reliable topic


def test_subscribers_at_one_position_are_sent_to_together_p6() -> None:
    fan_out = fan_out_of(("a", 1), ("b", 1), ("b", 2), is_reliable=True)
    assert fan_out.wanted(0) is None
    assert fan_out.wanted(3) == 0
    assert sends(fan_out.read(batch(0, 3), 0.0)) == [("a", 1, 0, (1,)), ("b", 1, 0, (1, 2))]
    assert fan_out.wanted(3) is None
    assert [info.offset for info in fan_out.info()] == [3, 3, 3]


def test_who_catches_up_and_who_is_at_the_end_take_turns_p3() -> None:
    fan_out = fan_out_of(("a", 1), is_reliable=True, offset=10)
    fan_out.add(SubscriberId("a", 2), "a2", 0, 0.0)
    turns = []
    for end in range(11, 16):
        for _ in range(2):
            wanted = fan_out.wanted(end)
            assert wanted is not None
            turns.append(wanted)
            fan_out.read(batch(wanted, wanted + 1), 0.0)
    assert sorted(turns) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


def test_who_has_caught_up_goes_on_with_the_others_p6() -> None:
    fan_out = fan_out_of(("a", 1), is_reliable=True, offset=2)
    fan_out.add(SubscriberId("a", 2), "a2", 0, 0.0)
    assert read_all(fan_out, 2) == [("a", 1, 0, (2,)), ("a", 2, 1, (2,))]
    assert [send[2:] for send in read_all(fan_out, 3)] == [(2, (1, 2))]


def test_an_offset_in_the_middle_of_a_batch_is_served_by_the_whole_batch() -> None:
    fan_out = fan_out_of(("a", 1), is_reliable=True, offset=5)
    assert fan_out.wanted(8) == 5
    assert sends(fan_out.read(batch(3, 8), 0.0)) == [("a", 1, 3, (1,))]
    fan_out.reported("a", failing(1, 1), 0.0)
    assert fan_out.info()[0].offset == 5, "it goes back to where it was, not to where the batch begins"


def test_a_failure_sets_back_to_the_first_that_is_not_reported_delivered_p8() -> None:
    fan_out = fan_out_of(("b", 1), ("b", 2), is_reliable=True)
    read_all(fan_out, 4)
    fan_out.reported("b", DeliveryReport(1), 0.0)
    fan_out.reported("b", DeliveryReport(3), 0.0)
    fan_out.reported("b", failing(4, 2), 0.0)
    assert [info.offset for info in fan_out.info()] == [4, 1]
    assert fan_out.counts.redelivered_records == 3
    assert resumed(fan_out.tick(1.0)) == [("b", (2,))]
    assert [send[2:] for send in read_all(fan_out, 5)] == [(4, (1,)), (1, (2,)), (2, (2,)), (3, (2,)), (4, (2,))]
    fan_out.reported("b", failing(2, 2), 1.0)
    assert statuses(fan_out)[2] == SubscriberStatus.ACTIVE, "that was before"


def test_a_lost_node_goes_back_to_what_it_has_not_reported_p9() -> None:
    fan_out = fan_out_of(("a", 1), ("b", 1), is_reliable=True)
    read_all(fan_out, 3)
    fan_out.reported("b", DeliveryReport(1), 0.0)
    fan_out.node_down("b", 1.0, "no answer")
    assert [send[0] for send in read_all(fan_out, 4)] == ["a"]
    effects = fan_out.node_up("b", 2.0, has_restarted=False)
    assert resumed(effects) == [("b", (1,))]
    assert [send[:3] for send in read_all(fan_out, 4)] == [("b", 4, 1), ("b", 5, 2), ("b", 6, 3)]


def test_who_joins_again_after_a_break_goes_on_where_its_node_says() -> None:
    fan_out = fan_out_of(("b", 1), is_reliable=True)
    read_all(fan_out, 3)
    fan_out.node_down("b", 1.0, "no answer")
    assert fan_out.add(SubscriberId("b", 1), "b1", 2, 1.5) == [], "it still waits for its node"
    fan_out.node_up("b", 2.0, has_restarted=False)
    assert [send[2] for send in read_all(fan_out, 4)] == [2, 3]
    assert fan_out.add(SubscriberId("b", 1), "b1", 3, 2.0) == [], "it is being sent that already"
    assert read_all(fan_out, 4) == []


def test_who_joins_again_further_back_is_sent_it_again_and_what_was_on_its_way_is_void() -> None:
    fan_out = fan_out_of(("b", 1), is_reliable=True)
    read_all(fan_out, 3)
    for attempt in (1, 2):
        fan_out.reported("b", DeliveryReport(attempt), 0.0)
    assert resumed(fan_out.add(SubscriberId("b", 1), "b1", 1, 0.0)) == [("b", (1,))]
    delivered = fan_out.counts.delivered_records
    fan_out.reported("b", failing(3, 1), 0.0)
    assert statuses(fan_out) == {1: SubscriberStatus.ACTIVE}
    assert fan_out.counts.delivered_records == delivered
    assert [send[2] for send in read_all(fan_out, 3)] == [1, 2]


def test_retention_moves_everybody_up_and_counts_what_they_lost() -> None:
    fan_out = fan_out_of(("a", 1), ("a", 2), ("b", 2), is_reliable=True)
    fan_out.add(SubscriberId("a", 3), "a3", 5, 0.0)
    fan_out.node_down("b", 0.0, "no answer")
    assert fan_out.skip_to(4) == 12
    assert [info.offset for info in fan_out.info()] == [4, 4, 5, 4]
    assert fan_out.skip_to(7) == 3 + 3 + 2 + 3
    assert [info.offset for info in fan_out.info()] == [7, 7, 7, 7]
    assert fan_out.counts.skipped_records == 23


def test_who_does_not_report_is_not_flooded() -> None:
    fan_out = fan_out_of(("a", 1), is_reliable=True, unacked_batches_max=9)
    assert len(read_all(fan_out, 100)) == 3
    fan_out.reported("a", DeliveryReport(1), 0.0)
    assert [send[2] for send in read_all(fan_out, 100)] == [3]
    fan_out = fan_out_of(("a", 1), is_reliable=True, unacked_bytes_max=90)
    assert len(read_all(fan_out, 100, size=10)) == 3


def test_what_does_not_fit_beside_what_is_unreported_waits_for_a_report() -> None:
    fan_out = fan_out_of(("a", 1), is_reliable=True, unacked_bytes_max=90)
    read_all(fan_out, 1, size=10)
    assert fan_out.wanted(2) == 1
    assert fan_out.read(batch(1, 2, 85), 0.0) == []
    assert fan_out.wanted(2) is None
    fan_out.reported("a", DeliveryReport(1), 0.0)
    assert fan_out.wanted(2) == 1
    assert sends(fan_out.read(batch(1, 2, 850), 0.0)) == [("a", 2, 1, (1,))], "alone it may be as large as it likes"


def test_a_slow_one_holds_up_nobody_p3() -> None:
    fan_out = fan_out_of(("b", 1), ("b", 2), ("b", 3), is_reliable=True, unacked_batches_max=9)
    assert len(read_all(fan_out, 100)) == 3
    assert fan_out.reported("b", DeliveryReport(0, slow=(2,)), 0.0) == []
    assert [send[2:] for send in read_all(fan_out, 100)] == [(offset, (1, 3)) for offset in (3, 4, 5)]
    assert statuses(fan_out)[2] == SubscriberStatus.ACTIVE
    for attempt in (4, 5, 6):
        fan_out.reported("b", DeliveryReport(attempt), 0.0)
    assert [send[3] for send in read_all(fan_out, 7)] == [(1, 3)], "and goes on holding up nobody"
    fan_out.reported("b", DeliveryReport(7), 0.0)
    for attempt in (1, 2, 3):
        fan_out.reported("b", DeliveryReport(attempt), 0.0)
    caught_up = read_all(fan_out, 6)
    assert [send[2:] for send in caught_up] == [(3, (2,)), (4, (2,)), (5, (2,))]
    for _, attempt, _, _ in caught_up:
        fan_out.reported("b", DeliveryReport(attempt), 0.0)
    read_all(fan_out, 7)
    assert [send[2] for send in read_all(fan_out, 8)] == [7]
    assert len(fan_out.info()) == 3


def test_who_is_known_to_be_slow_is_left_behind_when_the_others_would_wait_p3() -> None:
    fan_out = fan_out_of(("b", 1), ("b", 2), is_reliable=True, unacked_batches_max=9)
    fan_out.reported("b", DeliveryReport(0, slow=(2,)), 0.0)
    assert [send[3] for send in read_all(fan_out, 100)] == [(1, 2)] * 3 + [(1,)] * 3


def test_groups_that_meet_wait_together_only_if_neither_holds_up_the_other() -> None:
    fan_out = fan_out_of(("b", 1), is_reliable=True, offset=4, unacked_batches_max=12)
    read_all(fan_out, 6)  # two of its batches are not reported
    fan_out.add(SubscriberId("b", 2), "b2", 4, 0.0)
    read_all(fan_out, 6)  # nor are two of the other one's, at the same place: together they would have to wait
    assert [send[3] for send in read_all(fan_out, 7)] == [(1,)]


def test_groups_that_have_met_share_what_may_be_unreported() -> None:
    fan_out = fan_out_of(("b", 1), is_reliable=True, offset=4, unacked_batches_max=12)
    read_all(fan_out, 5)
    fan_out.add(SubscriberId("b", 2), "b2", 4, 0.0)
    read_all(fan_out, 5)
    assert [set(send[3]) for send in read_all(fan_out, 100)] == [{1, 2}] * 2
    assert sum(len(node.pending) for node in fan_out.nodes.values()) == 4, "a third of twelve"


def test_a_blocked_node_is_read_for_again_when_it_is_ready_p3() -> None:
    fan_out = fan_out_of(("a", 1), ("b", 1), is_reliable=True)
    fan_out.node_blocked("b")
    assert [send[0] for send in read_all(fan_out, 2)] == ["a", "a"]
    fan_out.node_ready("b", 0.0)
    assert [send[::2] for send in read_all(fan_out, 2)] == [("b", 0), ("b", 1)]


def test_a_thousand_subscribers_share_one_tuple_of_handles() -> None:
    members = [("b", handle) for handle in range(1000)]
    for is_reliable in (False, True):
        fan_out = fan_out_of(*members, is_reliable=is_reliable)
        found = []
        for start in range(3):
            effects = (
                fan_out.read(batch(start, start + 1), 0.0)
                if is_reliable
                else fan_out.publish(batch(start, start + 1), WAITS, 0.0)
            )
            found += [effect.handles for effect in effects if isinstance(effect, Send)]
        assert len(found) == 3
        assert found[0] is found[1] is found[2]


# What a report says of its batch


def report(*statuses: DeliveryStatus) -> DeliveryReport:
    return DeliveryReport(1, tuple(SubscriberFailure(number, status) for number, status in enumerate(statuses)))


@pytest.mark.parametrize("status", list(DeliveryStatus))
def test_p7_a_report_has_the_status_that_its_failures_have_in_common(status: DeliveryStatus) -> None:
    assert report().status == DeliveryStatus.DELIVERED
    assert report(status, status).status == status


def test_p7_a_report_of_different_failures_is_an_other_error() -> None:
    mixed = report(DeliveryStatus.TIMEOUT, DeliveryStatus.SUBSCRIBER_UNREACHABLE)
    assert mixed.status == DeliveryStatus.OTHER_ERROR
    assert [failure.status for failure in mixed.failed] == [
        DeliveryStatus.TIMEOUT,
        DeliveryStatus.SUBSCRIBER_UNREACHABLE,
    ]


def test_p7_batches_are_counted_by_the_status_of_their_reports() -> None:
    fan_out = fan_out_of(("a", 1), ("a", 2), ("b", 3))
    fan_out.publish(batch(0, 1), ONCE, 0.0)
    fan_out.reported("a", failing(1, 2), 1.0)
    fan_out.node_down("b", 1.0, "cut")
    fan_out.publish(batch(1, 2), ONCE, 2.0)
    fan_out.reported("a", DeliveryReport(2), 3.0)
    assert fan_out.counts.reported_batches == {
        DeliveryStatus.DELIVERED: 1,
        DeliveryStatus.TIMEOUT: 1,
        DeliveryStatus.SUBSCRIBER_UNREACHABLE: 1,
        DeliveryStatus.OTHER_ERROR: 0,
    }


@pytest.mark.parametrize("status", [DeliveryStatus.TIMEOUT, DeliveryStatus.OTHER_ERROR])
def test_p2_who_is_removed_is_told_what_its_last_delivery_came_to(status: DeliveryStatus) -> None:
    fan_out = fan_out_of(("a", 1), suspended_ttl_seconds=10)
    fan_out.publish(batch(0, 1), WAITS, 0.0)
    fan_out.reported("a", failing(1, 1, status=status), 1.0)
    fan_out.tick(2.0)
    fan_out.publish(batch(1, 2), WAITS, 3.0)
    [removed] = [
        e for e in fan_out.reported("a", failing(2, 1, status=status), 20.0) if isinstance(e, RemoveSubscriber)
    ]
    assert removed.status == status


def test_p2_who_is_removed_because_its_node_is_away_was_unreachable() -> None:
    fan_out = fan_out_of(("b", 1), suspended_ttl_seconds=10)
    fan_out.node_down("b", 0.0, "cut")
    [removed] = [e for e in fan_out.tick(20.0) if isinstance(e, RemoveSubscriber)]
    assert removed.status == DeliveryStatus.SUBSCRIBER_UNREACHABLE
