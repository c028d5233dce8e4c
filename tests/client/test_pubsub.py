"""Publish/subscribe over a node by script: payloads, acks, start and stop, events (P1, P2, P4, P10, P11)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sulina.client import Client, ClientOptions, Message, RejectReason
from sulina.client.events import EVENTS_MAX
from sulina.client.serialization import SerializationRegistry
from sulina.core.delivery.pubsub import DeliveryPolicy, PartitionBehavior, PublishOptions
from sulina.core.records.record import encode
from sulina.core.records.serializer import SERIALIZER_HEADER
from sulina.errors import (
    DelayQueueFull,
    InvalidSettings,
    NoSubscribers,
    NotStarted,
    PartitionDropped,
    ProducerStopped,
    SulinaError,
    TopicNotFound,
)
from sulina.wire.frames import (
    Call,
    Deliver,
    Detach,
    Happened,
    Join,
    Listen,
    Publish,
    Unlisten,
)
from sulina.wire.messages import JoinedTopic, PartitionPlacement, Placement, PubSubMetrics, TopicState
from tests.client.fake_node import TOPIC, FakeNode, passing
from tests.client.inbox import Inbox, handle


@pytest.fixture
def node(node: FakeNode) -> FakeNode:
    node.append_publishes()
    node.join_subscribers()
    return node


@pytest.fixture
async def pubsub(node: FakeNode) -> AsyncIterator[Client]:
    async with node.client(ClientOptions()) as client:
        yield client


# Publishing


async def test_p11_payloads_are_written_by_the_registry(client: Client, node: FakeNode) -> None:
    for payload in (b"x", "text", {"a": 1}, None):
        ack = await client.publish(TOPIC, payload, key="k", headers={"mine": "1", SERIALIZER_HEADER: "7"})
        assert ack.is_accepted
    assert [(record.value, record.headers) for record in node.log[0]] == [
        (b"x", (("mine", b"1"), (SERIALIZER_HEADER, b"7"))),  # bytes are passed on as they are
        (b"text", ((SERIALIZER_HEADER, b"1"), ("mine", b"1"))),
        (b'{"a":1}', ((SERIALIZER_HEADER, b"2"), ("mine", b"1"))),
        (None, (("mine", b"1"),)),
    ]
    assert {record.key for record in node.log[0]} == {b"k"}


async def test_p4_options_of_a_publish_go_with_it(client: Client, node: FakeNode) -> None:
    options = PublishOptions(delivery_policy=DeliveryPolicy.AT_MOST_ONCE, partition_behavior=PartitionBehavior.DROP)
    await client.publish(TOPIC, b"x", options=options)
    await client.publish_batch(TOPIC, [b"x", b"y"], options=options)
    await client.publish(TOPIC, b"x")
    told = [(frame.delivery_policy, frame.partition_behavior) for frame in node.sent(Publish)]
    assert told == [("at_most_once", "drop"), ("at_most_once", "drop"), (None, None)]
    with pytest.raises(InvalidSettings):
        await client.publish(TOPIC, b"x", options=PublishOptions(delivery_policy="twice"))  # type: ignore[arg-type]


async def test_p2_rejects_are_acks(client: Client, node: FakeNode) -> None:
    async def reason(topic: Any, payloads: list[object]) -> tuple[RejectReason | None, str]:
        ack = await client.publish_batch(topic, payloads)
        return ack.reason, ack.message

    assert (await reason("/orders", [b"x"]))[0] == RejectReason.INVALID_TOPIC
    assert (await reason(7, [b"x"]))[0] == RejectReason.INVALID_TOPIC
    assert (await reason(TOPIC, []))[0] == RejectReason.INVALID_PAYLOAD
    found, message = await reason(TOPIC, [b"x", b"y", object(), b"z"])
    assert (found, message.startswith("record 2: ")) == (RejectReason.NOT_SERIALIZABLE, True)
    assert (await client.publish(TOPIC, object())).reason == RejectReason.NOT_SERIALIZABLE
    assert (await client.publish(TOPIC, b"x", key=7)).reason == RejectReason.NOT_SERIALIZABLE  # type: ignore[arg-type]
    assert not node.sent(Publish)  # all or nothing


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NoSubscribers(topic=TOPIC), RejectReason.NO_SUBSCRIBERS),
        (PartitionDropped("no node can be reached"), RejectReason.PARTITION_DROP),
        (DelayQueueFull(node="b", waiting_bytes=9, limit_bytes=8), RejectReason.QUEUE_FULL),
    ],
    ids=str,
)
async def test_p2_rejects_of_the_node_are_acks(
    client: Client, node: FakeNode, error: SulinaError, reason: RejectReason
) -> None:
    node.topics[TOPIC] = passing()
    node.scripts[Publish] = lambda connection, frame: connection.refuse(frame, error)
    ack = await client.publish(TOPIC, b"x", timeout_seconds=3)
    assert (ack.is_accepted, ack.reason, ack.message) == (False, reason, str(error))


async def test_faults_of_the_system_raise(client: Client, node: FakeNode) -> None:
    with pytest.raises(TopicNotFound):
        await client.publish("/default/nothing", b"x")


async def test_a_producer_writes_by_the_registry_and_a_bad_payload_fails_alone(client: Client, node: FakeNode) -> None:
    async with client.producer(TOPIC, options=PublishOptions(partition_behavior=PartitionBehavior.DROP)) as to:
        receipts = [to.produce(payload) for payload in ({"a": 1}, object(), "text")]
    reasons = [(await receipt).reason for receipt in receipts]
    assert reasons == [None, RejectReason.NOT_SERIALIZABLE, None]
    assert [record.headers for record in node.log[0]] == [((SERIALIZER_HEADER, b"2"),), ((SERIALIZER_HEADER, b"1"),)]
    assert node.sent(Publish)[0].partition_behavior == PartitionBehavior.DROP


async def test_what_one_registry_writes_another_reads(client: Client, node: FakeNode) -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    def registered(registry: SerializationRegistry) -> SerializationRegistry:
        registry.register(
            Point, serializer_id=100, type_name="point", dumps=lambda p: b"%d" % p.x, loads=lambda d: Point(int(d))
        )
        return registry

    registered(client.registry)
    assert (await client.publish(TOPIC, Point(5))).is_accepted
    found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def handler(message: Message) -> None:
        found.set_result(message.payload)

    async with Client(node.connect, registry=registered(SerializationRegistry())) as other:
        await other.subscribe(TOPIC, handler)
        node.connection.push(Deliver(handle(node), 0, 1, memoryview(encode(node.log[0])), [(0, 1)]))
        assert (await found).x == 5


# From start to stop


async def test_p2_nothing_works_before_a_client_is_connected_and_after_it_was_closed(node: FakeNode) -> None:
    client = node.client(ClientOptions())

    async def nothing_works() -> None:
        for call in (
            lambda: client.publish(TOPIC, b"x"),
            lambda: client.publish_batch(TOPIC, [b"x"]),
            lambda: client.subscribe(TOPIC, Inbox()),
            lambda: client.unsubscribe(TOPIC, "me"),
            lambda: client.metrics(),
        ):
            with pytest.raises(NotStarted):
                await call()
        for make in (client.producer, client.read, lambda topic: client.consumer(topic, "s")):
            with pytest.raises(NotStarted):
                make(TOPIC)
        for get in (client.events, lambda: client.admin):
            with pytest.raises(NotStarted):
                get()

    await nothing_works()
    await client
    await client
    producer = client.producer(TOPIC)
    subscriber = await client.subscribe(TOPIC, Inbox())
    assert (await client.publish(TOPIC, b"x")).is_accepted
    await client.close()
    await client.close()
    await nothing_works()
    with pytest.raises(ProducerStopped):
        producer.produce(b"x")
    assert await subscriber.wait_removed() is None
    with pytest.raises(NotStarted, match="connect again"):
        await client


async def test_stop_gives_handlers_a_moment_and_then_cancels_them(client: Client, node: FakeNode) -> None:
    inbox, cancelled = Inbox(), asyncio.Event()

    async def handler(message: Message) -> None:
        inbox.started.put_nowait(message.offset)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    await client.subscribe(TOPIC, handler)
    node.connection.deliver(handle(node), 0, 1)
    await inbox.started.get()
    began_at = asyncio.get_running_loop().time()
    await client.close()
    assert cancelled.is_set()
    assert asyncio.get_running_loop().time() - began_at == pytest.approx(5)


async def test_stop_while_a_subscriber_joins(client: Client, node: FakeNode) -> None:
    del node.scripts[Join]
    joining = asyncio.create_task(client.subscribe(TOPIC, Inbox()))
    asked = await node.asked(Join)
    stopping = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    node.answer(asked, JoinedTopic(is_reliable=True, positions={}))
    with pytest.raises(NotStarted):
        await joining
    await stopping
    assert [frame.consumer for frame in node.sent(Detach)] == [asked.consumer]


# Watching


async def test_p10_events_come_as_they_happen_and_what_was_missed_is_told(client: Client, node: FakeNode) -> None:
    async with client.events(["publish_accepted"]) as events:
        [asked] = node.sent(Listen)
        assert asked.types == ["publish_accepted"]
        node.connection.push(Happened(asked.id, 1.5, "publish_accepted", TOPIC, {"count": 3}))
        event = await anext(events)
        assert (event.at, event.type, event.topic, event.fields) == (1.5, "publish_accepted", TOPIC, {"count": 3})
        for number in range(EVENTS_MAX + 7):
            node.connection.push(Happened(asked.id, number, "x"))
        await asyncio.sleep(1)
        kept = [await anext(events) for _ in range(EVENTS_MAX + 1)]
        assert [event.at for event in kept[:-1]] == list(range(EVENTS_MAX))
        assert (kept[-1].type, kept[-1].fields) == ("events_missed", {"count": 7})
        node.connection.cut()
        await node.wait_sent(Listen, 2)
        assert (await anext(events)).type == "events_missed"
        node.connection.push(Happened(node.sent(Listen)[1].id, 2, "y"))
        assert (await anext(events)).type == "y"
    assert [frame.listener for frame in node.sent(Unlisten)] == [node.sent(Listen)[1].id]
    assert [event async for event in events] == []


async def test_p10_what_never_leaves_this_process_is_told_too(client: Client) -> None:
    async with client.events(["publish_rejected"]) as events, client.events(["publish_accepted"]) as others:
        ack = await client.publish(TOPIC, object())
        assert ack.reason == RejectReason.NOT_SERIALIZABLE
        async with asyncio.timeout(60):
            event = await anext(events)
        assert (event.type, event.topic, event.fields["reason"]) == ("publish_rejected", TOPIC, "NotSerializable")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await anext(others)


async def test_events_end_when_it_is_stopped(client: Client, node: FakeNode) -> None:
    events = client.events()
    waiting = asyncio.create_task(anext(events, None))
    await node.wait_sent(Listen, 1)
    await asyncio.sleep(0.1)
    await client.close()
    assert await waiting is None


async def test_p10_metrics_are_asked_of_the_owner_and_count_what_was_never_sent(client: Client, node: FakeNode) -> None:
    assert (await client.publish(TOPIC, object())).reason == RejectReason.NOT_SERIALIZABLE
    asking = asyncio.create_task(client.metrics(TOPIC))
    while True:
        asked = await node.asked(Call)
        if asked.method == "pubsub_metrics":
            break
        placed = [PartitionPlacement(partition=0, state=TopicState.ACTIVE, broker_id="b")]
        node.answer(asked, Placement(topic=TOPIC, topic_id="x", partitions=placed, brokers=[]))
    assert asked.arguments == {"topic": TOPIC}
    node.answer(asked, PubSubMetrics(topic=TOPIC, accepted=5, rejected={"QueueFull": 1}))
    metrics = await asking
    assert (metrics.topic, metrics.accepted, metrics.delivered) == (TOPIC, 5, 0)
    assert metrics.rejected == {"QueueFull": 1, "NotSerializable": 1}
