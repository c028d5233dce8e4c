"""Finding 9: an exclusive or failover subscription has one consumer in the cluster, whichever brokers own its topic."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sulina.client import Consumer, Message
from sulina.client.connection import Connection
from sulina.client.websocket import WebSocketConnector
from sulina.core.delivery.members import SubscriptionKind
from sulina.errors import NotServing, SubscriptionBusy, SulinaError
from sulina.wire.frames import AckRecords, Answer, Deliver, Detached, Failed, FromNode, Subscribe
from tests.support.cluster_world import World, cluster, until
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd"]  # a fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

_numbers = itertools.count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory, etcd: EtcdServer) -> AsyncIterator[World]:
    folder: Path = tmp_path_factory.mktemp("holder")
    async with cluster(folder, etcd, "a", "b", lease_seconds=30) as world:
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def topic(world: World) -> str:
    """Partition 0 at a, partition 1 at b."""
    name = f"/default/held-{next(_numbers)}"
    await world.create_topic(name, 2)
    for number, to in enumerate("ab"):
        await move(world, name, number, to)
    return name


async def move(world: World, topic: str, number: int, to: str) -> None:
    async def moved() -> bool:
        await world.wait_served(topic)
        return await world.owner_of(topic, number) == to

    await world.tell(f"/v1/topics{topic}/moves", {"force": True, "to": to, "partition": number})
    await until(f"{to} has {number}", moved)


class RawConsumer:
    """One at one broker only, as a client is in the middle of a move."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def attach(self, topic: str, kind: SubscriptionKind, name: str, consumer_id: str = "") -> FromNode:
        frame = Subscribe(1, 1, topic, "s", kind, "earliest", 100, name)
        if consumer_id:
            with contextlib.suppress(TypeError):  # a version that does not know of it
                frame = Subscribe(1, 1, topic, "s", kind, "earliest", 100, name, consumer_id)
        await self.connection.send(frame)
        return await self.next()

    async def next(self) -> FromNode:
        async with asyncio.timeout(15):
            return await self.connection.receive()


@contextlib.asynccontextmanager
async def at(world: World, broker_id: str) -> AsyncIterator[RawConsumer]:
    connection = await WebSocketConnector(world.brokers[broker_id].url)()
    try:
        yield RawConsumer(connection)
    finally:
        await connection.close()


async def test_p12_a_second_consumer_is_refused_also_by_an_owner_that_has_none(world: World, topic: str) -> None:
    async with at(world, "a") as one, at(world, "b") as two, at(world, "b") as three:
        assert isinstance(await one.attach(topic, SubscriptionKind.EXCLUSIVE, "one"), Answer)
        refused = await two.attach(topic, SubscriptionKind.EXCLUSIVE, "two")
        assert isinstance(refused, Failed), "two consumers share an exclusive subscription"
        assert refused.code == "subscription_busy"
        same = await three.attach(topic, SubscriptionKind.EXCLUSIVE, "one")
        assert isinstance(same, Answer), "the same consumer is attached wherever it likes"


async def test_p12_who_comes_back_under_its_name_is_alone_everywhere(world: World, topic: str) -> None:
    async with at(world, "b") as former, at(world, "a") as later, world.client() as client:
        assert isinstance(await former.attach(topic, SubscriptionKind.EXCLUSIVE, "me", "first"), Answer)
        await client.publish(topic, b"x", partition=1)
        delivered = await former.next()
        assert isinstance(delivered, Deliver)
        assert isinstance(await later.attach(topic, SubscriptionKind.EXCLUSIVE, "me", "second"), Answer)
        gone = await former.next()
        assert isinstance(gone, Detached), gone
        assert gone.code == "subscription_busy"
        await former.connection.send(AckRecords(2, 1, 1, delivered.ranges))
        assert isinstance(await former.next(), Failed), "it acks what is another's by now"


async def test_p12_a_failover_subscription_has_one_active_consumer_in_all_partitions(world: World, topic: str) -> None:
    async with at(world, "b") as second, world.client() as client:
        async with at(world, "a") as first:
            assert isinstance(await first.attach(topic, SubscriptionKind.FAILOVER, "first"), Answer)
            await client.publish(topic, b"0", partition=0)
            assert isinstance(await first.next(), Deliver)
            assert isinstance(await second.attach(topic, SubscriptionKind.FAILOVER, "second"), Answer)
            await client.publish(topic, b"1", partition=1)
            waiting = asyncio.create_task(second.next())
            # The active one attaches at b too, and gets what the other, which came first there, must not have.
            async with at(world, "b") as also:
                assert isinstance(await also.attach(topic, SubscriptionKind.FAILOVER, "first"), Answer)
                assert isinstance(await also.next(), Deliver)
                assert not waiting.done(), "two are active"
        assert isinstance(await waiting, Deliver), "the next takes its place when it has gone"


async def test_p12_through_moves_two_that_compete_never_have_the_subscription_together(
    world: World, topic: str
) -> None:
    got: list[tuple[str, str]] = []
    holders: set[str] = set()

    async def compete(name: str) -> None:
        async with world.client(name=name) as client:
            while True:
                try:
                    async with client.consumer(topic, "s", start="earliest", name=name) as messages:
                        async for message in messages:
                            await acked_by(name, messages, message, got)
                except (SubscriptionBusy, NotServing):
                    await asyncio.sleep(0.02)
                except SulinaError as error:
                    got.append((name, f"error {error}"))
                    raise

    tasks = [asyncio.create_task(compete(name)) for name in ("one", "two")]
    async with world.client() as client:
        try:
            for number in range(6):
                await move(world, topic, number % 2, "ab"[number // 2 % 2])
                for partition in (0, 1):
                    await client.publish(topic, f"{number}/{partition}".encode(), partition=partition)
                placed = [await client.admin.consumers(topic, partition) for partition in (0, 1)]
                holders = {consumer for each in placed for consumer in each.get("s", ())}
                assert len(holders) <= 1, f"round {number}: {holders}"
            await until("all was acked", lambda: acked(got), 20)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    values = [value for _, value in got]
    assert sorted(set(values)) == sorted(values), "acked twice"


async def acked_by(name: str, messages: Consumer, message: Message, got: list[tuple[str, str]]) -> None:
    if await messages.ack(message):
        got.append((name, (message.value or b"").decode()))


async def acked(got: list[tuple[str, str]]) -> bool:
    return len({value for _, value in got}) >= 12
