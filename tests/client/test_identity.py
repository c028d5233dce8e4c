"""Subscribers by identity over a node by script, in virtual time (P1, P8; seed 002, ClusterIdentity)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from sulina.client import Client, ClientOptions, Message
from sulina.client.identity import PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN, IdentitySubscriber
from sulina.core.delivery.members import SubscriptionKind
from sulina.errors import AlreadyExists, DuplicateSubscriber, NotServing, SulinaError, TopicNotFound
from sulina.wire.frames import AckRecords, Detach, Subscribe
from tests.client.fake_node import TOPIC, FakeNode, passing
from tests.client.inbox import Inbox


@pytest.fixture
def node(node: FakeNode) -> FakeNode:
    node.attach_consumers()
    node.settle_records()
    return node


@pytest.fixture
async def pubsub(node: FakeNode) -> AsyncIterator[Client]:
    async with node.client(ClientOptions()) as client:
        yield client


def deliver(node: FakeNode, start: int, end: int) -> None:
    node.connection.deliver(node.sent(Subscribe)[-1].consumer, start, end)


def acked(node: FakeNode) -> list[int]:
    return [offset for frame in node.sent(AckRecords) for start, end in frame.ranges for offset in range(start, end)]


async def test_an_identity_is_a_failover_subscription_of_its_name(client: Client, node: FakeNode) -> None:
    inbox = Inbox()
    subscriber = await client.subscribe(TOPIC, inbox, identity="billing", name="one", start="earliest")
    assert isinstance(subscriber, IdentitySubscriber)
    [asked] = node.sent(Subscribe)
    assert (asked.subscription, asked.kind, asked.name) == ("billing", SubscriptionKind.FAILOVER, "one")
    assert asked.start == "earliest"
    assert (subscriber.identity, subscriber.name, subscriber.topic) == ("billing", "one", TOPIC)
    assert subscriber.is_attached
    deliver(node, 0, 3)
    await node.wait_sent(AckRecords, 1)
    assert inbox.offsets == acked(node) == [0, 1, 2]
    assert subscriber.delivered == 3


async def test_batches_are_handled_and_acked_whole(client: Client, node: FakeNode) -> None:
    found: list[list[int]] = []

    async def handler(messages: list[Message]) -> None:
        found.append([message.offset for message in messages])

    await client.subscribe(TOPIC, handler, identity="billing", batches=True)
    deliver(node, 0, 3)
    await node.wait_sent(AckRecords, 1)
    assert found == [[0, 1, 2]]
    assert acked(node) == [0, 1, 2]


async def test_p8_one_that_fails_leaves_to_others_what_it_has_not_acked_and_comes_back(
    client: Client, node: FakeNode
) -> None:
    inbox = Inbox()
    inbox.failing = {1}
    subscriber = await client.subscribe(TOPIC, inbox, identity="billing")
    loop = asyncio.get_running_loop()
    failed_at = loop.time()
    deliver(node, 0, 3)
    async with asyncio.timeout(60):
        await node.wait_sent(Subscribe, 2)
    assert PAUSE_SECONDS_MIN / 2 <= loop.time() - failed_at <= PAUSE_SECONDS_MIN + 0.1
    assert [type(frame) for frame in node.frames if isinstance(frame, AckRecords | Detach | Subscribe)] == [
        Subscribe,
        AckRecords,  # durable before it leaves
        Detach,
        Subscribe,
    ]
    assert inbox.offsets == acked(node) == [0]  # 2 was not handled before 1
    assert node.sent(Subscribe)[0].name == node.sent(Subscribe)[1].name == subscriber.name
    inbox.failing = set()
    deliver(node, 1, 3)
    await node.wait_sent(AckRecords, 2)
    assert inbox.offsets == acked(node) == [0, 1, 2]


async def test_p8_the_pauses_double_and_a_success_ends_that(client: Client, node: FakeNode) -> None:
    inbox = Inbox()
    inbox.failing = {0}
    await client.subscribe(TOPIC, inbox, identity="billing")
    loop, pauses = asyncio.get_running_loop(), []
    for number in range(2, 10):
        began = loop.time()
        deliver(node, 0, 1)
        await node.wait_sent(Subscribe, number)
        pauses.append(loop.time() - began)
    for number, pause in enumerate(pauses):
        longest = min(PAUSE_SECONDS_MIN * 2**number, PAUSE_SECONDS_MAX)
        assert longest / 2 <= pause <= longest + 0.1
    inbox.failing = {1}
    began = loop.time()
    deliver(node, 0, 2)
    await node.wait_sent(Subscribe, 10)
    assert loop.time() - began <= PAUSE_SECONDS_MIN + 0.1


async def test_what_was_delivered_over_a_lost_connection_is_not_handled(client: Client, node: FakeNode) -> None:
    """Another may serve it by now."""
    inbox = Inbox()
    inbox.gate.clear()
    await client.subscribe(TOPIC, inbox, identity="billing")
    deliver(node, 0, 3)
    assert await inbox.started.get() == 0
    node.connection.cut()
    await node.wait_sent(Subscribe, 2)
    inbox.gate.set()
    deliver(node, 5, 6)
    await node.wait_sent(AckRecords, 1)
    assert inbox.offsets == [0, 5]
    assert acked(node) == [5]


async def test_p8_what_timed_out_while_it_waited_is_handled_once(client: Client, node: FakeNode) -> None:
    """P8: a later delivery of it has come meanwhile."""
    inbox = Inbox()
    inbox.gate.clear()
    await client.subscribe(TOPIC, inbox, identity="billing")
    deliver(node, 0, 3)
    assert await inbox.started.get() == 0
    consumer = node.sent(Subscribe)[-1].consumer
    node.connection.deliver(consumer, 1, 3, attempt=2)
    node.connection.deliver(consumer, 3, 4)
    await asyncio.sleep(1)  # both have come
    inbox.gate.set()
    await asyncio.sleep(1)  # of virtual time: all are handled
    assert inbox.offsets == [0, 1, 2, 3]


async def test_leaving_waits_for_the_call_under_way_and_its_ack(client: Client, node: FakeNode) -> None:
    inbox = Inbox()
    inbox.gate.clear()
    subscriber = await client.subscribe(TOPIC, inbox, identity="billing")
    deliver(node, 0, 3)
    await inbox.started.get()
    leaving = asyncio.create_task(client.unsubscribe(TOPIC, subscriber))
    await asyncio.sleep(1)
    assert not leaving.done()
    inbox.gate.set()
    await leaving
    assert inbox.offsets == acked(node) == [0]
    assert [type(frame) for frame in node.frames[-2:]] == [AckRecords, Detach]
    assert await subscriber.wait_removed() is None
    assert not subscriber.is_attached
    assert client.subscribers == []


async def test_an_idle_one_leaves_at_once_and_so_does_one_that_pauses(client: Client, node: FakeNode) -> None:
    inbox = Inbox()
    inbox.failing = {0}
    for _ in range(2):
        subscriber = await client.subscribe(TOPIC, inbox, identity="billing")
        await subscriber.unsubscribe()
        subscriber = await client.subscribe(TOPIC, inbox, identity="billing")
        detached = len(node.sent(Detach))
        deliver(node, 0, 1)
        await node.wait_sent(Detach, detached + 1)  # it has failed, and pauses
        began = asyncio.get_running_loop().time()
        await subscriber.unsubscribe()
        assert asyncio.get_running_loop().time() - began < 0.1
    assert len(node.sent(Subscribe)) == 4


async def test_a_handler_may_unsubscribe_itself_and_its_message_is_acked(client: Client, node: FakeNode) -> None:
    handled: list[int] = []

    async def handler(message: Message) -> None:
        await subscriber.unsubscribe()
        handled.append(message.offset)

    subscriber = await client.subscribe(TOPIC, handler, identity="billing")
    deliver(node, 0, 3)
    assert await subscriber.wait_removed() is None
    assert handled == acked(node) == [0]


async def test_stopping_does_not_wait_for_ever_for_a_handler(node: FakeNode) -> None:
    inbox = Inbox()
    inbox.gate.clear()
    async with node.client(ClientOptions()) as client:
        subscriber = await client.subscribe(TOPIC, inbox, identity="billing")
        deliver(node, 0, 1)
        await inbox.started.get()
    assert await subscriber.wait_removed() is None
    assert acked(node) == []


async def test_why_it_can_serve_no_more_is_told(client: Client, node: FakeNode) -> None:
    told: list[SulinaError] = []
    subscriber = await client.subscribe(TOPIC, Inbox(), identity="billing", on_removed=told.append)
    node.connection.detach(node.sent(Subscribe)[-1].consumer, TopicNotFound(topic=TOPIC))
    error = await subscriber.wait_removed()
    assert isinstance(error, TopicNotFound)
    await asyncio.sleep(0)
    assert told == [error]
    assert client.subscribers == []


async def test_a_passing_refusal_is_outlived(client: Client, node: FakeNode) -> None:
    inbox = Inbox()
    await client.subscribe(TOPIC, inbox, identity="billing")
    node.connection.detach(node.sent(Subscribe)[-1].consumer, NotServing(reason="the partition moves"))
    await node.wait_sent(Subscribe, 2)
    deliver(node, 0, 1)
    await node.wait_sent(AckRecords, 1)
    assert inbox.offsets == [0]


async def test_a_subscription_of_another_kind_is_refused_and_nothing_is_left(client: Client, node: FakeNode) -> None:
    error = AlreadyExists(kind="subscription", name="billing", difference="it is shared, not failover")
    node.scripts[Subscribe] = lambda connection, frame: connection.refuse(frame, error)
    with pytest.raises(AlreadyExists):
        await client.subscribe(TOPIC, Inbox(), identity="billing")
    assert client.subscribers == []


async def test_one_name_and_one_handler_once_also_by_identity(client: Client, node: FakeNode) -> None:
    inbox = Inbox()
    await client.subscribe(TOPIC, inbox, identity="billing", name="one")
    with pytest.raises(DuplicateSubscriber):
        await client.subscribe(TOPIC, Inbox(), identity="billing", name="one")
    with pytest.raises(DuplicateSubscriber):
        await client.subscribe(TOPIC, inbox, identity="other")
    await client.unsubscribe(TOPIC, "one")
    await client.subscribe(TOPIC, inbox, identity="billing", name="one")
    assert len(node.sent(Subscribe)) == 2


async def test_a_best_effort_topic_has_nothing_to_ack(client: Client, node: FakeNode) -> None:
    node.topics[TOPIC] = passing()
    inbox = Inbox()
    await client.subscribe(TOPIC, inbox, identity="billing")
    deliver(node, 0, 2)
    assert [await inbox.started.get(), await inbox.started.get()] == [0, 1]
    assert node.sent(AckRecords) == []
