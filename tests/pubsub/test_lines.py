"""What the system must do, P1 to P12, where the requirements of the seed do not show it already."""

import asyncio
from dataclasses import dataclass

import pytest

from sulina import DeliveryPolicy, PartitionBehavior, PublishOptions, RejectReason, SerializationRegistry
from sulina.client import Client, Consumer, Message, Record, Subscriber
from sulina.core.delivery.pubsub import PubSubConfig
from sulina.errors import SubscriberRemoved, SubscriptionBusy, SulinaError, TopicNotFound
from tests.pubsub.forms import WAIT_SECONDS_MAX, Form, Inbox
from tests.support.cluster_world import World, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

KINDS = ["reliable", "non_reliable"]
DROP = PublishOptions(partition_behavior=PartitionBehavior.DROP)
DELAY = PublishOptions(partition_behavior=PartitionBehavior.DELAY_QUEUE)
AT_MOST_ONCE = PublishOptions(delivery_policy=DeliveryPolicy.AT_MOST_ONCE)


async def test_one_program_runs_in_a_process_and_in_a_cluster(form: Form) -> None:
    """P1: everything of the API, asynchronous; for threads it is in test_requirements."""
    topic = await form.topic(partitions=3)
    near, far = await form.others(topic)
    client, inbox = await form.at(near), Inbox()
    subscriber = await client.subscribe(topic, inbox, start="earliest", name="all")
    assert (subscriber.name, subscriber.topic, subscriber.is_attached) == ("all", topic, True)
    publisher = await form.at(far)
    assert (await publisher.publish(topic, 0, key="k")).is_accepted
    records = [Record(number, key=f"key-{number}") for number in range(1, 30)]
    ack = await publisher.publish_batch(topic, records, split=True)
    assert (ack.count, len(ack.parts)) == (29, 3)
    async with (await form.at(far)).producer(topic) as producer:
        for number in range(30, 40):
            producer.produce(number, key="k")
    assert sorted(await inbox.wait(40)) == list(range(40))
    assert [message.payload for message in inbox.messages if message.key == b"k"] == [0, *range(30, 40)]
    assert subscriber.delivered == 40
    assert isinstance(subscriber, Subscriber)
    assert subscriber.positions() == {part: await _end(client, topic, part) for part in range(3)}
    assert {info.name for info in await client.admin.subscribers(topic)} == {"all"}
    await client.unsubscribe(topic, subscriber)
    assert not subscriber.is_attached


async def _end(client: Client, topic: str, partition: int) -> int:
    return (await client.admin.partition(topic, partition)).end_offset


async def test_a_subscriber_begins_where_it_is_told(form: Form) -> None:
    """P1: what the topic keeps comes first, then what is published."""
    topic = await form.topic()
    client = await form.at((await form.others(topic))[0])
    await client.publish_batch(topic, list(range(10)))
    inboxes = {start: Inbox() for start in ("earliest", "offset:7", "latest")}
    for start, inbox in inboxes.items():
        await client.subscribe(topic, inbox, start=start)
    await client.publish(topic, 10)
    assert await inboxes["earliest"].wait(11) == list(range(11))
    assert await inboxes["offset:7"].wait(4) == [7, 8, 9, 10]
    assert await inboxes["latest"].wait(1) == [10]


async def test_subscribers_of_a_deleted_topic_are_told_and_one_created_again_is_another(form: Form) -> None:
    """P2, P8: they are removed, with the reason; who subscribes to the new one gets all of it."""
    for delivery in ("reliable", "non_reliable"):
        topic = await form.topic(delivery=delivery)
        _, far = await form.others(topic)
        home, publisher = await form.at(far), await form.at(await form.owner(topic))
        former, later = Inbox(), Inbox()
        subscriber = await home.subscribe(topic, former)
        for number in range(3):
            assert (await publisher.publish(topic, number)).is_accepted
        assert await former.wait(3) == [0, 1, 2]
        await publisher.admin.delete_topic(topic, force=True)
        assert isinstance(await subscriber.wait_removed(), TopicNotFound)
        await publisher.admin.create_topic(topic, 1, delivery=delivery)
        if form.world is not None:
            await form.world.wait_served(topic)
        await home.subscribe(topic, later)
        for number in range(2):
            assert (await publisher.publish(topic, f"new {number}")).is_accepted
        assert await later.wait(2) == ["new 0", "new 1"]
        assert former.payloads == [0, 1, 2]


# P2, P4, P9: what happens for a node that cannot be reached


async def test_where_nobody_can_be_reached_a_publish_is_dropped_and_says_so(there: Form) -> None:
    """P2, P9: PartitionDrop, by Drop and by at most once; nothing of it comes after healing."""
    assert there.world is not None
    topic = await there.topic(delivery="non_reliable")
    owner, (_, far) = await there.owner(topic), await there.others(topic)
    inbox, publisher = Inbox(), await there.at(owner)
    await (await there.at(far)).subscribe(topic, inbox)
    there.world.cut_peers(far)
    await there.wait_suspended(topic, 1)
    for options in (DROP, AT_MOST_ONCE):
        ack = await publisher.publish(topic, "lost", options=options)
        assert (ack.reason, ack.is_accepted) == (RejectReason.PARTITION_DROP, False)
    there.world.heal_peers(far)
    await there.wait_suspended(topic, 0)
    assert (await publisher.publish(topic, "found", options=DROP)).is_accepted
    assert await inbox.wait(1) == ["found"]
    assert (await there.metrics(topic)).rejected == {"PartitionDrop": 2}


async def test_a_publish_goes_before_its_topic_and_that_before_the_system(there: Form) -> None:
    """P4: system DelayQueue, topic Drop, publish DelayQueue; what a publish says changes nothing for the next."""
    assert there.world is not None
    by_system = await there.topic(delivery="non_reliable")
    by_topic = await there.topic(delivery="non_reliable", policy={"partition_behavior": "drop"})
    inboxes = {by_system: Inbox(), by_topic: Inbox()}
    owner = await there.owner(by_system)
    if await there.owner(by_topic) != owner:
        await there.world.move(by_topic, owner)
    _, far = await there.others(by_system)
    for topic, inbox in inboxes.items():
        await (await there.at(far)).subscribe(topic, inbox)
    there.world.cut_peers(far)
    for topic in inboxes:
        await there.wait_suspended(topic, 1)
    publisher = await there.at(owner)
    assert (await publisher.publish(by_system, "system")).is_accepted
    assert (await publisher.publish(by_topic, "topic")).reason == RejectReason.PARTITION_DROP
    assert (await publisher.publish(by_topic, "publish", options=DELAY)).is_accepted
    assert (await publisher.publish(by_topic, "topic")).reason == RejectReason.PARTITION_DROP
    assert (await publisher.publish(by_system, "publish", options=DROP)).reason == RejectReason.PARTITION_DROP
    assert (await publisher.publish(by_system, "system again")).is_accepted
    there.world.heal_peers(far)
    assert await inboxes[by_system].wait(2) == ["system", "system again"]
    assert await inboxes[by_topic].wait(1) == ["publish"]


async def test_what_waits_for_a_node_is_bounded(there: Form) -> None:
    """P2, P9, P10: QueueFull past the bound; what was accepted comes in order; it is told and counted."""
    assert there.world is not None
    topic = await there.topic(delivery="non_reliable")
    owner, (_, far) = await there.owner(topic), await there.others(topic)
    inbox, publisher = Inbox(), await there.at(owner)
    await (await there.at(far)).subscribe(topic, inbox, batches=True)
    large = 8 << 20
    room = PubSubConfig().delay_queue_bytes_max // large
    async with there.hearing(topic, "batch_queued", "queue_flushed", "publish_rejected") as heard:
        there.world.cut_peers(far)
        await there.wait_suspended(topic, 1)
        acks = [await publisher.publish(topic, number.to_bytes(1) * (large - 200)) for number in range(room + 2)]
        assert [ack.reason for ack in acks] == [None] * room + [RejectReason.QUEUE_FULL] * 2
        await heard.wait("batch_queued", room, node=far)
        await heard.wait("publish_rejected", 2, reason="QueueFull")
        assert (await there.metrics(topic)).queued == room
        there.world.heal_peers(far)
        await inbox.wait_messages(room)
        assert [message.value[0] for message in inbox.messages if message.value] == list(range(room))
        await heard.wait("queue_flushed", node=far)
    await there.wait_metrics(topic, "nothing waits", lambda found: found.queued == 0 and found.delivered == room)


# P3, P6: one batch for a node, and nobody waits for another


@pytest.mark.parametrize("delivery", KINDS)
async def test_a_slow_a_failing_and_a_dead_subscriber_hold_up_nobody(form: Form, delivery: str) -> None:
    """P3."""
    topic = await form.topic(delivery=delivery)
    near, _ = await form.others(topic)
    client, (leaving, wire) = await form.at(near), await form.open_wire(near)
    good, slow, failing, dead = Inbox(), Inbox(), Inbox(), Inbox()
    slow.gate.clear()
    dead.gate.clear()
    failing.failing = ValueError("never")
    for inbox in (good, slow, failing):
        await client.subscribe(topic, inbox)
    await leaving.subscribe(topic, dead)
    await client.publish(topic, 0)
    await dead.wait_called()
    await wire.cut()  # it is gone without a word
    for number in range(1, 100):
        assert (await client.publish(topic, number)).is_accepted
    assert await good.wait(100) == list(range(100))
    assert (slow.payloads, failing.payloads, dead.payloads) == ([], [], [])
    slow.gate.set()
    dead.gate.set()


async def test_a_node_is_sent_a_batch_once_whatever_number_of_subscribers_it_has(form: Form) -> None:
    """P6."""
    topic = await form.topic(delivery="non_reliable")
    owner, (near, far) = await form.owner(topic), await form.others(topic)
    inboxes = [Inbox() for _ in range(9)]
    for number, inbox in enumerate(inboxes):
        await (await form.at((owner, near, far)[number % 3])).subscribe(topic, inbox)
    before = await form.batches_sent(owner)
    for number in range(10):
        await (await form.at(near)).publish_batch(topic, [number] * 5)
    for inbox in inboxes:
        assert await inbox.wait(50) == [number for number in range(10) for _ in range(5)]
    after = await form.batches_sent(owner)
    assert {node: after[node] - before.get(node, 0) for node in {owner, near, far}} == dict.fromkeys(
        {owner, near, far}, 10
    )


# P7, P8: failures, suspension, resumption, removal


async def test_a_late_ack_credits_nothing(form: Form) -> None:
    """P7, P8: Timeout, suspended, resumed after a backoff; what was late counts as failed."""
    topic = await form.topic(delivery="non_reliable")
    client, inbox, other = await form.at((await form.others(topic))[0]), Inbox(), Inbox()
    await client.subscribe(topic, inbox, name="slow")
    await client.subscribe(topic, other)
    inbox.gate.clear()
    async with form.hearing(topic) as heard:
        await client.publish(topic, "late")
        [failed] = await heard.wait("delivery_failed")
        assert (failed.fields["subscriber"], failed.fields["status"]) == ("slow", "Timeout")
        [suspended] = await heard.wait("subscriber_suspended", subscriber="slow")
        inbox.gate.set()
        assert await inbox.wait(1) == ["late"]  # and is acked now
        [resumed] = await heard.wait("subscriber_resumed", subscriber="slow")
        # An event is stamped a little after what it tells of: on a busy machine one of the two later than the other.
        assert resumed.at - suspended.at >= 0.8 * PubSubConfig().backoff_seconds
        await client.publish(topic, "in time")
        assert await inbox.wait(2) == ["late", "in time"]
    found = await form.wait_metrics(topic, "three are delivered", lambda metrics: metrics.delivered >= 3)
    assert (found.delivered, found.failed) == (3, {"Timeout": 1})
    assert other.payloads == ["late", "in time"]


async def test_a_late_ack_of_a_reliable_topic_brings_nothing_twice_and_nothing_is_lost(form: Form) -> None:
    """P7: what it was late with it is sent again, which its client passes over; what came meanwhile comes."""
    topic = await form.topic()
    client, inbox = await form.at((await form.others(topic))[0]), Inbox()
    await client.subscribe(topic, inbox)
    inbox.gate.clear()
    async with form.hearing(topic, "delivery_failed", "subscriber_resumed") as heard:
        await client.publish(topic, 0)
        await heard.wait("delivery_failed", status="Timeout")
        await client.publish_batch(topic, [1, 2, 3])
        inbox.gate.set()
        assert await inbox.wait(4) == [0, 1, 2, 3]
        await heard.wait("subscriber_resumed")
    found = await form.wait_metrics(topic, "four are delivered", lambda metrics: metrics.delivered == 4)
    assert found.failed == {"Timeout": 1}
    assert inbox.payloads == [0, 1, 2, 3]


@pytest.mark.parametrize("delivery", KINDS)
async def test_who_is_gone_is_unreachable(form: Form, delivery: str) -> None:
    """P7: SubscriberUnreachable."""
    topic = await form.topic(delivery=delivery)
    near, far = await form.others(topic)
    (leaving, wire), inbox = await form.open_wire(near), Inbox()
    inbox.gate.clear()
    subscriber = await leaving.subscribe(topic, inbox, name="gone")
    async with form.hearing(topic) as heard:
        await (await form.at(far)).publish(topic, 1)
        await inbox.wait_called()
        await wire.cut()
        [failed] = await heard.wait("delivery_failed")
        assert (failed.fields["subscriber"], failed.fields["status"]) == ("gone", "SubscriberUnreachable")
        await heard.wait("subscriber_removed", subscriber="gone")
    assert not subscriber.is_attached
    assert (await form.metrics(topic)).failed == {"SubscriberUnreachable": 1}
    inbox.gate.set()


async def test_who_raises_is_suspended_tried_again_and_goes_on_where_it_was(form: Form) -> None:
    """P7, P8: OtherError; the pauses double; a reliable topic loses nothing."""
    topic = await form.topic()
    client, inbox = await form.at((await form.others(topic))[0]), Inbox()
    await client.subscribe(topic, inbox, name="bad")
    inbox.failing = ValueError("no")
    async with form.hearing(topic) as heard:
        await client.publish_batch(topic, [1, 2, 3])
        await heard.wait("delivery_failed", 2, status="OtherError")
        suspended = (await heard.wait("subscriber_suspended", 2))[:2]
        assert suspended[1].at - suspended[0].at >= PubSubConfig().backoff_seconds
        assert "ValueError: no" in suspended[0].fields["reason"]
        inbox.failing = None
        assert await inbox.wait(3) == [1, 2, 3]
        resumed = await heard.wait("subscriber_resumed", 2)
        assert resumed[1].at - suspended[1].at >= 2 * PubSubConfig().backoff_seconds
    await form.wait_metrics(topic, "it is well again", lambda found: found.active == 1 and found.delivered == 3)


async def test_who_never_succeeds_is_removed_and_told(form: Form) -> None:
    """P8: past the TTL, without a change of topology; it may subscribe anew, and others never noticed."""
    topic = await form.topic()
    client, inbox, good = await form.at((await form.others(topic))[0]), Inbox(), Inbox()
    told: list[SulinaError] = []
    inbox.failing = ValueError("never")
    subscriber = await client.subscribe(topic, inbox, name="bad", on_removed=told.append)
    await client.subscribe(topic, good)
    async with form.hearing(topic) as heard:
        await client.publish(topic, 1)
        [suspended, *_] = await heard.wait("subscriber_suspended", subscriber="bad")
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            error = await subscriber.wait_removed()
        assert isinstance(error, SubscriberRemoved)
        [removed] = await heard.wait("subscriber_removed", subscriber="bad")
        assert form.times.suspended_ttl <= removed.at - suspended.at < form.times.suspended_ttl + 5
    assert told == [error]
    assert await form.statuses(topic) == {good_name(client): "active"}
    inbox.failing = None
    await client.subscribe(topic, inbox, name="bad")
    await client.publish(topic, 2)
    assert await inbox.wait(1) == [2]
    assert await good.wait(2) == [1, 2]


def good_name(client: Client) -> str:
    [subscriber] = client.subscribers
    return subscriber.name


async def test_only_the_subscribers_of_a_node_that_rejoins_are_tried_at_once(there: Form) -> None:
    """P8: one that has failed elsewhere waits for its own time."""
    assert there.world is not None
    topic = await there.topic()
    owner, (near, far) = await there.owner(topic), await there.others(topic)
    away, failing = Inbox(), Inbox()
    failing.failing = ValueError("no")
    await (await there.at(near)).subscribe(topic, failing, name="failing")
    await (await there.at(far)).subscribe(topic, away, name="away")
    async with there.hearing(topic) as heard:
        await (await there.at(owner)).publish(topic, 1)
        await away.wait(1)
        await heard.wait("subscriber_suspended", 2, subscriber="failing")
        there.world.cut_peers(far)
        await heard.wait("subscriber_suspended", subscriber="away")
        there.world.heal_peers(far)
        await heard.wait("subscriber_resumed", subscriber="away", node=far)
        await heard.wait("subscriber_resumed", 2, subscriber="failing")
        failures = heard.of("subscriber_suspended", subscriber="failing")
        for number, resumed in enumerate(heard.of("subscriber_resumed", subscriber="failing")):
            assert resumed.at - failures[number].at >= PubSubConfig().backoff_seconds * 2**number
        failing.failing = None
        assert await failing.wait(1) == [1]


async def test_a_node_that_stays_away_loses_its_subscribers_and_takes_them_back(there: Form) -> None:
    """P8, P9: past the TTL they are removed; when the node is back they join again, and miss nothing that is kept."""
    assert there.world is not None
    topic = await there.topic()
    owner, (_, far) = await there.owner(topic), await there.others(topic)
    inbox, publisher = Inbox(), await there.at(owner)
    await (await there.at(far)).subscribe(topic, inbox, name="away")
    await publisher.publish(topic, 0)
    await inbox.wait(1)
    async with there.hearing(topic) as heard:
        there.world.cut_peers(far)
        await heard.wait("subscriber_suspended", subscriber="away")
        await publisher.publish_batch(topic, [1, 2])
        [removed] = await heard.wait("subscriber_removed", subscriber="away")
        assert "suspended" in removed.fields["reason"]
        await publisher.publish(topic, 3)
        there.world.heal_peers(far)
        await heard.wait("subscriber_added", subscriber="away")
        assert await inbox.wait(4) == [0, 1, 2, 3]


# P11: serialization


@dataclass
class Order:
    number: int
    total: float


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


def registry() -> SerializationRegistry:
    made = SerializationRegistry()
    made.register_json(Order, type_name="order")
    made.register(
        Point, serializer_id=100, type_name="point", dumps=lambda point: b"%d" % point.x, loads=lambda x: Point(int(x))
    )
    return made


async def test_types_come_back_where_they_are_registered(form: Form) -> None:
    """P11: the envelope says who can read it; what nobody can write is rejected, what nobody can read fails."""
    topic = await form.topic()
    near, far = await form.others(topic)
    sender, receiver, plain = await form.open(far, registry()), await form.open(near, registry()), await form.at(near)
    inbox, reader = Inbox(), Inbox()
    await receiver.subscribe(topic, inbox)
    await plain.subscribe(topic, reader)
    for payload in (Order(7, 1.5), b"bytes", "text", {"any": ["json"]}, None, Point(5)):
        assert (await sender.publish(topic, payload)).is_accepted
    await inbox.wait(6)
    assert inbox.payloads[:5] == [Order(7, 1.5), b"bytes", "text", {"any": ["json"]}, None]
    assert inbox.payloads[5].x == 5
    await reader.wait_messages(6)
    assert reader.messages[0].payload == {"number": 7, "total": 1.5}  # JSON of an unknown type is plain
    with pytest.raises(SulinaError, match="register"):
        _ = reader.messages[5].payload
    assert (await plain.publish(topic, Point(5))).reason == RejectReason.NOT_SERIALIZABLE


# P12: subscriptions, beside subscribers


async def received(messages: Consumer, count: int) -> list[Message]:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        return [await anext(messages) for _ in range(count)]


def texts(messages: list[Message]) -> list[str | None]:
    return [message.text for message in messages]


async def test_subscriptions_share_what_subscribers_all_get(world: World, there: Form) -> None:
    """P12: exclusive, shared, failover, key-shared, on one topic, in the cluster; a cursor is kept while away (P8)."""
    topic = await there.topic(policy={"redelivery_delay_seconds": 0.05, "deliveries_max": 2})
    near, far = await there.others(topic)
    inbox = Inbox()
    await (await there.at(near)).subscribe(topic, inbox)
    one, two = await there.at(near), await there.at(far)
    acks = [
        await one.publish(topic, str(number), key=str(number % 3), timestamp_ms=1000 + number) for number in range(9)
    ]
    every = [str(number) for number in range(9)]
    await _check_starts(one, topic, acks[4].version or 0)
    async with one.consumer(topic, "exclusive", start="earliest") as messages:
        found = await received(messages, 9)
        assert texts(found) == every
        with pytest.raises(SubscriptionBusy):
            await anext(two.consumer(topic, "exclusive"))
        assert await messages.ack(*found[:5])
    async with two.consumer(topic, "exclusive") as messages:  # the cursor has stayed where it was
        assert texts(await received(messages, 4)) == every[5:]
    for kind in ("shared", "failover", "key_shared"):
        async with one.consumer(topic, kind, mode=kind, start="earliest", credit=100) as messages:
            assert texts(await received(messages, 9)) == every
    await _check_dead_letter(one, topic)
    assert len(await inbox.wait(9)) == 9


async def _check_starts(client: Client, topic: str, version: int) -> None:
    for start, first in (("earliest", 0), ("offset:6", 6), ("timestamp:1003", 3), (f"version:{version}", 4)):
        async with client.consumer(topic, start.replace(":", "-"), start=start) as messages:
            assert texts(await received(messages, 1)) == [str(first)]


async def _check_dead_letter(client: Client, topic: str) -> None:
    """Nacked as often as it may be, a message goes to the dead-letter topic, and the others go on."""
    async with client.consumer(topic, "nacks", mode="shared", start="earliest") as messages:
        found = await received(messages, 9)
        assert await messages.ack(*found[1:])
        await messages.nack(found[0], delay_seconds=0.05)
        [again] = await received(messages, 1)
        assert (again.offset, again.attempt) == (0, 2)
        await messages.nack(again)
        dead = f"{topic}.dead-letter"

        async def there() -> bool:
            return dead in {info.topic for info in await client.admin.topics()}

        await until(f"there is {dead}", there)
        async with client.consumer(dead, "dead", start="earliest") as letters:
            assert texts(await received(letters, 1)) == ["0"]
