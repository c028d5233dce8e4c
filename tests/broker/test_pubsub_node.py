"""Subscribers of a node that is alone: what they leave behind, and what others do not suffer from."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from sulina.broker.pubsub.node_subscribers import LocalSubscriber, SubscriberDelivery
from sulina.client import Client
from sulina.config import Settings
from sulina.core.delivery.fan_out import Payload
from sulina.errors import SulinaError, TopicNotFound
from sulina.node import Node
from sulina.types import PartitionName, TopicName
from tests.support.cluster_world import until

TOPIC = TopicName("default", "t")


@dataclass(eq=False)
class Taker:
    """A subscriber in this process that acks what it is given."""

    node: Node
    given: "asyncio.Queue[SubscriberDelivery]" = field(default_factory=asyncio.Queue)
    removed: list[SulinaError] = field(default_factory=list)
    is_broken: bool = False  # once
    handle: LocalSubscriber | None = None

    async def join(self) -> dict[int, int]:
        pubsub = self.node.broker.pubsub
        self.handle = await pubsub.attach(
            TOPIC, "taker", start="latest", deliver=self._deliver, removed=self.removed.append
        )
        return {number: begin.value for number, begin in (await pubsub.join(self.handle, {})).items()}

    def leave(self) -> None:
        assert self.handle is not None
        self.node.broker.pubsub.detach(self.handle)

    def _deliver(self, delivery: SubscriberDelivery) -> None:
        if self.is_broken:
            self.is_broken = False
            raise RuntimeError("a bug of ours")
        assert self.handle is not None
        self.node.broker.pubsub.local_subscribers.acked(self.handle, delivery.number)
        self.given.put_nowait(delivery)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = await Node.start(Settings(), listen=False, volatile=True)
    yield made
    await made.stop()


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with Client(node.connector) as made:
        yield made


async def test_a_log_that_no_subscriber_reads_may_rest_and_is_read_again(node: Node, client: Client) -> None:
    await client.admin.create_topic(str(TOPIC))
    taker = Taker(node)
    await taker.join()
    await client.publish(str(TOPIC), b"one")
    assert (await taker.given.get()).ranges == [(0, 1)]
    partition = node.broker.topic_named(str(TOPIC)).partitions[0]
    taker.leave()

    async def is_idle() -> bool:
        return partition.is_idle

    await until("nobody reads the log", is_idle, 10)
    await partition.rest()
    again = Taker(node)
    assert await again.join() == {0: 1}
    await client.publish(str(TOPIC), b"two")
    assert (await again.given.get()).ranges == [(1, 2)]


async def test_a_frame_that_fails_does_not_hold_up_those_behind_it(node: Node, client: Client) -> None:
    await client.admin.create_topic(str(TOPIC), delivery="non_reliable")
    taker = Taker(node)
    await taker.join()
    taker.is_broken = True
    topic = node.broker.topic_named(str(TOPIC))
    for start in (0, 1):  # both wait to be handled
        topic.feeds[0].publish(Payload(start, start + 1, memoryview(b"x")), topic.options)
    async with asyncio.timeout(10):
        assert (await taker.given.get()).ranges == [(1, 2)]


async def test_nothing_is_left_of_who_has_left(node: Node, client: Client) -> None:
    await client.admin.create_topic(str(TOPIC), partitions=3)
    takers = [Taker(node) for _ in range(5)]
    for taker in takers:
        await taker.join()
    pubsub = node.broker.pubsub
    for taker in takers:
        taker.leave()

    async def is_empty() -> bool:
        return not pubsub.subscribers(node.broker.topic_named(str(TOPIC)))

    await until("all have left", is_empty, 10)
    assert not pubsub.local_subscribers.subscribers
    assert pubsub.local_subscribers.position(PartitionName(TOPIC, 0), takers[0].handle) is None  # type: ignore[arg-type]


async def test_who_is_subscribed_to_a_topic_that_goes_is_told_and_counts_for_nothing(
    node: Node, client: Client
) -> None:
    await client.admin.create_topic(str(TOPIC))
    taker = Taker(node)
    await taker.join()
    await client.publish(str(TOPIC), b"one")
    await taker.given.get()
    await client.admin.delete_topic(str(TOPIC), force=True)

    async def is_told() -> bool:
        return bool(taker.removed)

    await until("it is told", is_told, 10)
    assert isinstance(taker.removed[0], TopicNotFound)
    metrics = await client.admin.pubsub_metrics()
    assert (metrics.accepted, metrics.delivered, metrics.active, metrics.suspended) == (1, 1, 0, 0)
    assert not node.broker.pubsub.feeds
