"""Seed 002, requirement by requirement, in one process and in a cluster, with subscribers away from the owner."""

import asyncio
import threading

import pytest

import sulina
from sulina import PartitionBehavior, PublishOptions, PublishStatus, RejectReason
from sulina.client import Message
from sulina.client.batching_rules import BatchingRules
from sulina.client.producer import Rest
from sulina.errors import DuplicateSubscriber, NotStarted, ProducerStopped, SubscriberNotFound, TopicNotFound
from tests.pubsub.forms import WAIT_SECONDS_MAX, Form, Inbox

pytestmark = pytest.mark.asyncio(loop_scope="session")

KINDS = ["reliable", "non_reliable"]
NEVER = 3600.0


# 1: subscribing, unsubscribing, who is delivered to


@pytest.mark.parametrize("delivery", KINDS)
async def test_who_subscribes_gets_what_is_published_wherever_it_is(form: Form, delivery: str) -> None:
    """1.1, 1.3."""
    topic = await form.topic(delivery=delivery)
    near, far = await form.others(topic)
    inboxes = [Inbox(), Inbox(), Inbox()]
    for node, inbox in zip((await form.owner(topic), near, far), inboxes, strict=True):
        await (await form.at(node)).subscribe(topic, inbox)
    for number in range(20):
        ack = await (await form.at(near)).publish(topic, {"number": number})
        assert ack.is_accepted
    for inbox in inboxes:
        assert await inbox.wait(20) == [{"number": number} for number in range(20)]


@pytest.mark.parametrize("delivery", KINDS)
async def test_who_unsubscribes_gets_nothing_more(form: Form, delivery: str) -> None:
    """1.2."""
    topic = await form.topic(delivery=delivery)
    client = await form.at((await form.others(topic))[0])
    staying, by_name, by_itself = Inbox(), Inbox(), Inbox()
    await client.subscribe(topic, staying)
    await client.subscribe(topic, by_name, name="one")
    subscriber = await client.subscribe(topic, by_itself)
    await client.publish(topic, 1)
    for inbox in (staying, by_name, by_itself):
        assert await inbox.wait(1) == [1]
    await client.unsubscribe(topic, "one")
    await subscriber.unsubscribe()
    await form.wait_metrics(topic, "one is left", lambda found: found.active == 1)
    await client.publish(topic, 2)
    assert await staying.wait(2) == [1, 2]  # the node hands a batch to all of them in one go
    assert by_name.payloads == by_itself.payloads == [1]
    again = Inbox()
    await client.subscribe(topic, again, name="one")
    await client.publish(topic, 3)
    assert await again.wait(1) == [3]


async def test_subscribing_twice_and_leaving_without_being_there_are_errors(form: Form) -> None:
    """1.4, P2: DuplicateSubscriber, SubscriberNotFound."""
    topic = await form.topic()
    client, inbox = await form.at((await form.others(topic))[0]), Inbox()
    subscriber = await client.subscribe(topic, inbox, name="one")
    with pytest.raises(DuplicateSubscriber):
        await client.subscribe(topic, Inbox(), name="one")
    with pytest.raises(DuplicateSubscriber):
        await client.subscribe(topic, inbox)
    with pytest.raises(SubscriberNotFound):
        await client.unsubscribe(topic, "two")
    await client.unsubscribe(topic, subscriber)
    with pytest.raises(SubscriberNotFound):
        await client.unsubscribe(topic, subscriber)
    await client.subscribe(topic, inbox, name="one")


@pytest.mark.parametrize("delivery", KINDS)
async def test_nothing_comes_to_who_is_not_subscribed(form: Form, delivery: str) -> None:
    """1.5, P3: other topics' subscribers and those who have left get nothing of it."""
    topic, other = await form.topic(delivery=delivery), await form.topic(delivery=delivery)
    client = await form.at((await form.others(topic))[0])
    inbox, stranger = Inbox(), Inbox()
    await client.subscribe(topic, inbox)
    await client.subscribe(other, stranger)
    await client.publish(topic, "for one")
    await client.publish(other, "for the other")
    assert await inbox.wait(1) == ["for one"]
    assert await stranger.wait(1) == ["for the other"]


# 2: batches, and single messages


async def test_a_batch_leaves_when_it_is_full(form: Form) -> None:
    """2.1, P5."""
    topic = await form.topic()
    client, inbox = await form.at((await form.others(topic))[0]), Inbox()
    await client.subscribe(topic, inbox)
    producer = client.producer(topic, rules=BatchingRules(records_max=5, wait_seconds_max=NEVER))
    receipts = [producer.produce(number) for number in range(12)]
    assert await inbox.wait(10) == list(range(10))
    assert producer.waiting == 2
    report = await producer.stop(Rest.SEND)
    assert (report.accepted, report.discarded) == (12, 0)
    assert [(await receipt).status for receipt in receipts] == [PublishStatus.ACCEPTED] * 12
    assert await inbox.wait(12) == list(range(12))


async def test_a_batch_leaves_when_its_first_message_has_waited(form: Form) -> None:
    """2.2, P5."""
    topic = await form.topic()
    client, inbox = await form.at((await form.others(topic))[0]), Inbox()
    await client.subscribe(topic, inbox, batches=True)
    async with client.producer(topic, rules=BatchingRules(records_max=1000, wait_seconds_max=0.05)) as to:
        for number in range(3):
            to.produce(number)
        assert await inbox.wait(3) == [0, 1, 2]
        assert inbox.calls == 1


async def test_without_batches_messages_come_one_by_one(form: Form) -> None:
    """2.3: each publish is a delivery of its own; a batch is one, and a handler may have it whole."""
    topic = await form.topic(delivery="non_reliable")
    client, single, whole = await form.at((await form.others(topic))[0]), Inbox(), Inbox()
    await client.subscribe(topic, single)
    await client.subscribe(topic, whole, batches=True)
    await client.publish(topic, 1)
    await client.publish(topic, 2)
    await client.publish_batch(topic, [3, 4, 5])
    assert await single.wait(5) == await whole.wait(5) == [1, 2, 3, 4, 5]
    assert (single.calls, whole.calls) == (5, 3)


@pytest.mark.parametrize("delivery", KINDS)
async def test_the_order_within_batches_and_between_them_is_kept(form: Form, delivery: str) -> None:
    """2.4, P6."""
    topic = await form.topic(delivery=delivery)
    near, far = await form.others(topic)
    first, second = Inbox(), Inbox()
    await (await form.at(near)).subscribe(topic, first)
    await (await form.at(far)).subscribe(topic, second, batches=True)
    publisher = await form.at(far)
    for start in range(0, 2000, 100):
        await publisher.publish_batch(topic, list(range(start, start + 100)))
    assert await first.wait(2000) == await second.wait(2000) == list(range(2000))


async def test_a_full_producer_rejects_and_a_stopped_one_says_what_became_of_the_rest(form: Form) -> None:
    """2.4, 3.3, P5: QueueFull; Rest.DISCARD; ProducerStopped; one bad message never spoils its batch."""
    topic = await form.topic()
    client = await form.at((await form.others(topic))[0])
    rules = BatchingRules(records_max=10, wait_seconds_max=NEVER, queue_records_max=3)
    producer = client.producer(topic, rules=rules)
    receipts = [producer.produce(payload) for payload in (1, object(), 2, 3, 4)]
    assert receipts[1].result().reason == RejectReason.NOT_SERIALIZABLE
    assert receipts[4].result().reason == RejectReason.QUEUE_FULL
    await producer.flush()
    assert [receipts[number].result().is_accepted for number in (0, 2, 3)] == [True] * 3
    left = producer.produce(5)
    report = await producer.stop(Rest.DISCARD)
    assert (report.accepted, report.rejected, report.discarded) == (3, 2, 1)
    with pytest.raises(ProducerStopped):
        await left
    with pytest.raises(ProducerStopped):
        producer.produce(6)


# 3: acceptance, rejects, options


@pytest.mark.parametrize("delivery", KINDS)
async def test_an_accepted_publish_says_so_and_is_delivered(form: Form, delivery: str) -> None:
    """3.1, P2."""
    topic = await form.topic(delivery=delivery)
    client, inbox = await form.at((await form.others(topic))[0]), Inbox()
    await client.subscribe(topic, inbox)
    ack = await client.publish(topic, b"bytes", key="k", headers={"h": "v"})
    assert (ack.status, ack.reason, ack.is_accepted, ack.count) == (PublishStatus.ACCEPTED, None, True, 1)
    await inbox.wait(1)
    [message] = inbox.messages
    assert (message.payload, message.key, message.headers) == (b"bytes", b"k", (("h", b"v"),))
    assert (message.topic, message.partition) == (topic, ack.partition)


async def test_a_reject_says_why_and_nothing_of_it_is_delivered(form: Form) -> None:
    """3.2, 3.4, P2, P3: InvalidTopic, InvalidPayload, NotSerializable, NoSubscribers; the rest are in test_lines."""
    topic = await form.topic(delivery="non_reliable", policy={"batch_bytes_max": 4096})
    checked = await form.topic(schema={"kind": "json", "definition": {"type": "object"}})
    kept = await form.topic()
    client, inbox, strict = await form.at((await form.others(topic))[0]), Inbox(), Inbox()
    assert (await client.publish(topic, 1)).reason == RejectReason.NO_SUBSCRIBERS
    assert (await client.publish(kept, 1)).is_accepted  # a reliable topic needs nobody
    await client.subscribe(topic, inbox)
    await client.subscribe(checked, strict)
    for given, payload, reason in (
        ("no topic", 1, RejectReason.INVALID_TOPIC),
        (topic, b"x" * 5000, RejectReason.INVALID_PAYLOAD),
        (checked, 7, RejectReason.INVALID_PAYLOAD),
        (topic, object(), RejectReason.NOT_SERIALIZABLE),
    ):
        ack = await client.publish(given, payload)
        assert (ack.status, ack.reason) == (PublishStatus.REJECTED, reason), ack
        assert ack.message
    ack = await client.publish_batch(topic, [1, object(), 2])
    assert (ack.reason, ack.parts) == (RejectReason.NOT_SERIALIZABLE, ())
    assert (await client.publish(topic, "good")).is_accepted
    assert (await client.publish(checked, {"good": True})).is_accepted
    assert await inbox.wait(1) == ["good"]
    assert await strict.wait(1) == [{"good": True}]
    found = await form.metrics(topic)
    assert (found.rejected["NoSubscribers"], found.rejected["InvalidPayload"]) == (1, 1)
    assert found.accepted == 1


async def test_options_of_a_publish_hold_for_it_alone(form: Form) -> None:
    """3.3, P4: any of them is taken, and the topic's own stay; what they do is in test_lines."""
    topic = await form.topic(delivery="non_reliable")
    client, inbox = await form.at((await form.others(topic))[0]), Inbox()
    await client.subscribe(topic, inbox)
    for behavior in PartitionBehavior:
        ack = await client.publish(topic, str(behavior), options=PublishOptions(partition_behavior=behavior))
        assert ack.is_accepted
    assert await inbox.wait(2) == [str(behavior) for behavior in PartitionBehavior]
    info = await client.admin.topic(topic)
    assert info.settings.policy.partition_behavior is None


async def test_faults_of_the_system_raise(form: Form) -> None:
    """3.4, P2: NotStarted, TopicNotFound."""
    client = await form.open(form.nodes[-1])
    nothing = "/default/there-is-none"
    with pytest.raises(TopicNotFound):
        await client.publish(nothing, 1)
    with pytest.raises(TopicNotFound):
        await client.subscribe(nothing, Inbox())
    topic = await form.topic()
    await client.close()
    for call in (client.publish(topic, 1), client.subscribe(topic, Inbox()), client.unsubscribe(topic, "x")):
        with pytest.raises(NotStarted):
            await call
    with pytest.raises(NotStarted):
        client.producer(topic)


# 4: topology


async def test_subscribers_of_a_node_that_joins_later_are_delivered_to(there: Form) -> None:
    """4.1."""
    assert there.world is not None
    topic = await there.topic()
    await there.world.start("d")
    try:
        inbox = Inbox()
        client = await there.open("d")
        await client.subscribe(topic, inbox)
        await (await there.at("a")).publish(topic, 1)
        assert await inbox.wait(1) == [1]
        await client.close()
    finally:
        await there.world.remove("d")


@pytest.mark.parametrize("delivery", KINDS)
async def test_an_unreachable_node_is_sent_nothing_others_go_on_and_it_catches_up(there: Form, delivery: str) -> None:
    """4.2, 4.3, 4.4, P8, P9: suspended with its node, resumed with it, everything in order."""
    assert there.world is not None
    topic = await there.topic(delivery=delivery)
    owner, (near, far) = await there.owner(topic), await there.others(topic)
    local, reached, away = Inbox(), Inbox(), Inbox()
    for node, inbox in ((owner, local), (near, reached), (far, away)):
        await (await there.at(node)).subscribe(topic, inbox, name=node)
    publisher = await there.at(owner)
    await publisher.publish(topic, 0)
    for inbox in (local, reached, away):
        await inbox.wait(1)
    async with there.hearing(topic) as heard:
        there.world.cut_peers(far)
        await there.wait_suspended(topic, 1)
        assert (await there.statuses(topic))[far] == "suspended"
        sent = await there.batches_sent(owner)
        for number in range(1, 50):
            assert (await publisher.publish(topic, number)).is_accepted
        assert await local.wait(50) == await reached.wait(50) == list(range(50))
        assert (await there.batches_sent(owner))[far] == sent[far]
        assert away.payloads == [0]
        there.world.heal_peers(far)
        assert await away.wait(50) == list(range(50))
        await heard.wait("subscriber_suspended", subscriber=far)
        await heard.wait("subscriber_resumed", subscriber=far)
        assert not heard.of("subscriber_suspended", subscriber=near)
    await publisher.publish(topic, 50)
    for inbox in (local, reached, away):
        assert await inbox.wait(51) == list(range(51))
    assert (await there.metrics(topic)).suspended == 0


# 5: events and metrics


async def test_everything_that_happens_is_told(form: Form) -> None:
    """5.1, 5.2, 5.3, 5.4, P10."""
    topic = await form.topic(delivery="non_reliable")
    near, far = await form.others(topic)
    client = await form.at(near)
    good, bad = Inbox(), Inbox()
    bad.failing = ValueError("not today")
    async with form.hearing(topic) as heard:
        assert (await client.publish(topic, 0)).reason == "NoSubscribers"
        [rejected] = await heard.wait("publish_rejected")
        assert rejected.fields["reason"] == "NoSubscribers"
        await client.subscribe(topic, good, name="good")
        await (await form.at(far)).subscribe(topic, bad, name="bad")
        for name, node in (("good", near), ("bad", far)):
            [added] = await heard.wait("subscriber_added", subscriber=name)
            assert added.fields["node"] == node
        await client.publish_batch(topic, [1, 2])
        [accepted] = await heard.wait("publish_accepted")
        assert accepted.fields["count"] == 2
        [delivered] = await heard.wait("delivery_succeeded", node=near)
        assert (delivered.fields["subscribers"], delivered.fields["count"]) == (1, 2)
        [failed] = await heard.wait("delivery_failed")
        assert (failed.fields["subscriber"], failed.fields["status"]) == ("bad", "OtherError")
        assert "not today" in failed.fields["reason"]
        await heard.wait("subscriber_suspended", subscriber="bad")
        await heard.wait("subscriber_resumed", subscriber="bad")
        await client.unsubscribe(topic, "good")
        [removed] = await heard.wait("subscriber_removed")
        assert (removed.fields["subscriber"], removed.topic) == ("good", topic)
        assert all(earlier.at <= later.at for earlier, later in zip(heard.events, heard.events[1:], strict=False))


async def test_metrics_are_there_at_any_time_by_topic_and_for_all(form: Form) -> None:
    """5.4, 5.5, P10."""
    topic = await form.topic()
    owner, (near, far) = await form.owner(topic), await form.others(topic)
    before, nothing = await form.metrics(None, owner), await form.metrics(topic)
    assert (nothing.topic, nothing.accepted, nothing.delivered, nothing.active) == (topic, 0, 0, 0)
    inboxes = [Inbox(), Inbox()]
    await (await form.at(near)).subscribe(topic, inboxes[0])
    await (await form.at(far)).subscribe(topic, inboxes[1])
    await (await form.at(near)).publish_batch(topic, list(range(10)))
    found = await form.wait_metrics(topic, "all is delivered", lambda metrics: metrics.delivered == 20)
    assert (found.accepted, found.active, found.suspended, found.failed, found.dropped) == (10, 2, 0, {}, 0)
    after = await form.metrics(None, owner)
    assert after.topic is None
    assert (after.accepted - before.accepted, after.delivered - before.delivered) == (10, 20)


# 6: one API


async def test_the_api_for_threads_is_the_same(form: Form) -> None:
    """6.1, 6.2, P1: subscribe, publish, publish_batch, batching producer, events, metrics, unsubscribe."""
    topic = await form.topic()
    url = form.url((await form.others(topic))[0])
    await asyncio.to_thread(_use_for_threads, url, topic)


def _use_for_threads(url: str, topic: str) -> None:
    found: list[object] = []
    done = threading.Event()

    def handle(message: Message) -> None:
        found.append(message.payload)
        if len(found) == 6:
            done.set()

    with sulina.connect_sync(url) as client:
        if url == "memory:":  # a node of its own
            client.admin.create_topic(topic)
        subscriber = client.subscribe(topic, handle)
        assert client.publish(topic, 0).is_accepted
        assert client.publish_batch(topic, [1, 2]).is_accepted
        with client.producer(topic) as producer:
            for number in (3, 4, 5):
                producer.produce(number)
        assert done.wait(WAIT_SECONDS_MAX)
        assert found == list(range(6))
        assert client.metrics().topic is None
        assert client.publish("no topic", 1).reason == RejectReason.INVALID_TOPIC
        with pytest.raises(DuplicateSubscriber):
            client.subscribe(topic, handle)
        with client.events(["subscriber_removed", "publish_rejected"]):
            client.unsubscribe(topic, subscriber)
        with pytest.raises(SubscriberNotFound):
            client.unsubscribe(topic, subscriber)
    with pytest.raises(NotStarted):
        client.publish(topic, 1)
