"""What a broker tells readers while its lease does not hold: nothing, unless they take what may be old."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sulina.broker.broker import Broker
from sulina.core.log.position import EARLIEST
from sulina.core.topic import TopicSettings
from sulina.errors import LeaseExpired, NotServing
from sulina.types import TopicName
from sulina.wire.frames import Answer, Detached, Failed, Subscribe
from sulina.wire.messages import SubscriptionSettings
from tests.broker.test_sessions import connected
from tests.support.brokers import Brokers, brokers, cluster_of

ORDERS = TopicName.parse("/default/orders")


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[Brokers]:
    async with brokers(tmp_path, "a") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings())
        await world.publish(ORDERS, b"0")
        await world.running["a"].put_subscription(ORDERS, "billing", SubscriptionSettings())
        yield world


def cut_off(broker: Broker) -> None:
    """Its lease has ended, and it has not heard what became of its partitions."""
    cluster_of(broker).membership.valid_until = 0.0


async def test_u14_without_a_lease_nothing_is_read_that_may_be_old(world: Brokers) -> None:
    a = world.running["a"]
    assert a.info().is_ready
    cut_off(a)
    for read in (
        a.fetch(ORDERS, 0, 0),
        a.commits(ORDERS, 0, 0, 1),
        a.partition(ORDERS, 0),
        a.locate(ORDERS, 0, EARLIEST),
        a.subscription(ORDERS, "billing"),
        a.put_subscription(ORDERS, "other", SubscriptionSettings()),
    ):
        with pytest.raises(LeaseExpired):
            await read
    assert a.unready is not None
    assert not a.info().is_ready
    assert (await a.cluster()).is_stale


async def test_u14_a_partition_that_was_lost_is_not_read_while_its_log_is_being_closed(world: Brokers) -> None:
    """U14: the lease may hold again by then, after the broker was cut off, and another broker have more."""
    a = world.running["a"]
    a.registry.topics[ORDERS].ownerships[0].release()
    assert a.registry.topics[ORDERS].partitions[0].log_if_open is not None
    for read in (a.fetch(ORDERS, 0, 0), a.partition(ORDERS, 0), a.locate(ORDERS, 0, EARLIEST)):
        with pytest.raises(NotServing):
            await read
    assert (await a.fetch(ORDERS, 0, 0, stale=True)).is_stale


async def test_u14_what_is_asked_for_as_stale_is_marked_so(world: Brokers) -> None:
    a = world.running["a"]
    assert not (await a.fetch(ORDERS, 0, 0, stale=True)).is_stale
    cut_off(a)
    assert (await a.fetch(ORDERS, 0, 0, stale=True)).is_stale
    assert (await a.partition(ORDERS, 0, stale=True)).is_stale


async def test_u14_a_lease_that_ends_while_a_reader_waits_is_noticed_at_the_end(world: Brokers) -> None:
    a = world.running["a"]
    waiting = asyncio.create_task(a.fetch(ORDERS, 0, 1, wait_seconds=0.2))
    await asyncio.sleep(0)
    cut_off(a)
    with pytest.raises(LeaseExpired):
        await waiting


async def test_u14_consumers_of_a_broker_without_a_lease_are_detached_and_cannot_come_back(world: Brokers) -> None:
    a = world.running["a"]
    async with connected(a) as connection:
        await connection.send(Subscribe(1, 1, str(ORDERS), "billing"))
        assert isinstance(await connection.receive(), Answer)
        cut_off(a)
        gone = await asyncio.wait_for(connection.receive(), 10)
        assert isinstance(gone, Detached)
        assert gone.code == LeaseExpired.code
        await connection.send(Subscribe(2, 1, str(ORDERS), "billing"))
        refused = await connection.receive()
        assert isinstance(refused, Failed)
        assert refused.code == LeaseExpired.code
