"""Positions with an epoch at a node: fetches, cursors and subscribers of offsets that were given up (U10)."""

from collections.abc import AsyncIterator

import pytest

from sulina.broker.pubsub.node_subscribers import SubscriberDelivery
from sulina.client import Client
from sulina.config import Settings
from sulina.core.delivery.cursor import Cursor
from sulina.core.log.position import Position
from sulina.errors import OffsetOutOfRange, PositionDiverged, ReaderAhead, SulinaError
from sulina.node.node import Node
from sulina.storage.partition_log import PartitionLog
from sulina.types import Epoch, TopicName

TOPIC = TopicName.parse("/default/orders")


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """Epoch 0 wrote offsets 0 to 3, epoch 7 goes on from there to 9."""
    made = await Node.start(Settings(), listen=False, volatile=True)
    async with Client(made.connector) as client:
        await client.admin.create_topic(str(TOPIC))
        await client.publish_batch(str(TOPIC), [str(number) for number in range(4)])
        log = made.broker.topic_named(str(TOPIC)).partitions[0].log_if_open
        assert isinstance(log, PartitionLog)
        await log.claim(Epoch(7))
        await client.publish_batch(str(TOPIC), [str(number) for number in range(4, 10)])
    yield made
    await made.stop()


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with Client(node.connector) as made:
        yield made


async def test_u10_a_fetch_from_what_was_given_up_says_where_the_log_goes_on(client: Client) -> None:
    first = await client.admin.fetch(TOPIC, 0, 0, max_bytes=1)
    assert (first.next_offset, first.epoch) == (4, 7)
    for offset in (0, 4):
        assert (await client.admin.fetch(TOPIC, 0, offset, epoch=0)).data
    for offset in (5, 10, 99):
        with pytest.raises(PositionDiverged) as caught:
            await client.admin.fetch(TOPIC, 0, offset, epoch=0, wait_seconds=30)
        told = caught.value
        assert told.details() == {
            "topic": str(TOPIC), "partition": 0, "offset": offset, "epoch": 0, "continues_at": 4,
        }  # fmt: skip
        assert not told.retryable
    assert (await client.admin.fetch(TOPIC, 0, 10, epoch=7)).end_offset == 10
    with pytest.raises(OffsetOutOfRange):
        await client.admin.fetch(TOPIC, 0, 99, epoch=8)


async def test_u10_a_position_with_an_epoch_is_found_where_the_log_goes_on(client: Client) -> None:
    found = [
        await client.admin.locate(TOPIC, f"offset:{text}") for text in ("3@0", "4@0", "8@0", "99@0", "8@7", "8", "99")
    ]
    assert found == [3, 4, 4, 4, 8, 8, 10]


async def test_u10_a_consumer_is_sent_what_has_offsets_that_were_acked_and_given_up(node: Node, client: Client) -> None:
    await client.admin.create_subscription(TOPIC, "s", start="earliest")
    subscription = node.broker.topic_named(str(TOPIC)).subscriptions["s"]
    cursor = subscription.cursors[0]
    assert (cursor.offset, cursor.epoch) == (0, 7)
    stored = Cursor(2, epoch=0)
    stored.ack(3, 8)
    await subscription.acquire(0, Cursor.load("key", stored.stored()), is_moved=True)
    async with client.consumer(TOPIC, "s") as messages:
        assert [(await anext(messages)).offset for _ in range(7)] == [2, *range(4, 10)]
    await client.admin.seek(TOPIC, "s", "offset:8@0")
    cursor = subscription.cursors[0]
    assert (cursor.offset, cursor.epoch) == (4, 7)


async def test_u10_a_registered_reader_goes_back_to_where_the_log_goes_on(client: Client) -> None:
    await client.admin.register_reader("nightly", TOPIC, {0: 8}, epochs={0: 0})
    with pytest.raises(ReaderAhead):
        await client.admin.register_reader("nightly", TOPIC, {0: 4})
    info = await client.admin.register_reader("nightly", TOPIC, {0: 4}, epochs={0: 7})
    assert info.positions[0].offset == 4


async def test_u10_a_subscriber_is_joined_where_the_log_goes_on(node: Node) -> None:
    pubsub = node.broker.pubsub
    given: list[SubscriberDelivery] = []
    removed: list[SulinaError] = []
    subscriber = await pubsub.attach(TOPIC, "me", start="latest", deliver=given.append, removed=removed.append)
    assert await pubsub.join(subscriber, {0: Position.at_offset(8, 0)}) == {0: Position.at_offset(4, 7)}
    assert not removed
