"""Producers in the metadata store: written once, deleted when they leave, kept when their broker dies."""

import asyncio
from pathlib import Path

from sulina.broker.broker import Broker
from sulina.core.cluster import keys
from sulina.core.cluster.producers import PRODUCERS_OF_A_TOPIC_MAX
from sulina.core.records.record import StoredRecord, encode
from sulina.core.topic import Schema, SchemaKind, TopicSettings
from sulina.listeners.local import LocalConnection
from sulina.ports import Put
from sulina.wire.frames import Answer, Failed, FromNode, Publish
from tests.broker.test_broker import ORDERS, a_broker
from tests.broker.test_sessions import connected
from tests.support.brokers import brokers, until

SOON_SECONDS = 5.0  # a defect is seen by then
BATCH = memoryview(bytes(encode([StoredRecord(value=b"v", timestamp_ms=1)])))


async def publish(connection: LocalConnection, producer: str | None) -> FromNode:
    await connection.send(Publish(1, str(ORDERS), BATCH, 0, producer=producer))
    return await connection.receive()


async def stored(broker: Broker) -> dict[str, int]:
    """The keys below the topic's producers, with their revisions."""
    prefix = keys.producers(ORDERS)
    return {e.key.removeprefix(prefix): e.revision for e in (await broker.metadata.list(prefix)).entries}


async def listed(broker: Broker) -> list[tuple[str, str, bool]]:
    return [(info.producer, info.broker_id, info.is_connected) for info in await broker.producers_of(ORDERS)]


async def test_f5_a_producer_is_written_once_and_goes_when_it_leaves(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())

        async def names(*expected: str) -> None:
            async with asyncio.timeout(SOON_SECONDS):
                while list(await stored(broker)) != [f"{name}/local" for name in expected]:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)

        async with connected(broker) as one, connected(broker) as two:
            await publish(one, None)
            await publish(one, "shop")
            await names("shop")
            revision = (await stored(broker))["shop/local"]
            for connection in (one, two):
                for _ in range(5):
                    assert isinstance(await publish(connection, "shop"), Answer)
            await publish(two, "till")
            await names("shop", "till")
            assert (await stored(broker))["shop/local"] == revision, "a publish writes nothing more"
            assert await listed(broker) == [("shop", "local", True), ("till", "local", True)]
            await one.close()
            await publish(two, "last")  # the task has written since
            await names("last", "shop", "till")
        await names()


async def test_f5_a_name_of_a_producer_is_no_path(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker, connected(broker) as connection:
        await broker.put_topic(ORDERS, TopicSettings())
        for name in ("../x", "a/b", "", "x" * 201):
            refused = await publish(connection, name)
            assert isinstance(refused, Failed)
            assert refused.code == "invalid_name"
        assert await stored(broker) == {}


async def test_a_topic_has_a_limit_of_producers_and_takes_them_along(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        for number in range(PRODUCERS_OF_A_TOPIC_MAX + 5):
            broker.producers.attach(ORDERS, f"p{number}")

        async def are_all() -> bool:
            return len(await stored(broker)) >= PRODUCERS_OF_A_TOPIC_MAX

        await until(are_all)
        assert len(await stored(broker)) == PRODUCERS_OF_A_TOPIC_MAX
        await broker.delete_topic(ORDERS)
        assert await stored(broker) == {}


async def test_a_broker_that_starts_again_deletes_what_it_has_left(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        left = [Put(keys.producer(ORDERS, "shop", name), b'{"since_ms": 1}') for name in ("local", "other")]
        await broker.metadata.txn(puts=left[:1])
        await broker.metadata.txn(puts=[Put(left[1].key, b'{"since_ms": 9999999999999}')])
    async with a_broker(tmp_path) as broker:

        async def is_gone() -> bool:
            return list(await stored(broker)) == ["shop/other"]

        await until(is_gone)


async def test_f1_producers_of_a_dead_broker_stay_until_they_are_connected_elsewhere(tmp_path: Path) -> None:
    """F1: `/topics/**` stays as it is, through failover and moves."""
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings())
        owner = await world.owner(ORDERS)
        dead = [Put(keys.producer(ORDERS, name, "z"), b'{"since_ms": 9999999999999}') for name in ("shop", "till")]
        await world.metadata.txn(puts=dead)
        target = next(name for name in world.running if name != owner.options.broker_id)
        await owner.unload(ORDERS, to=target)
        owner = await world.moved(ORDERS, target)
        assert await listed(owner) == [("shop", "z", False), ("till", "z", False)]
        async with connected(owner) as connection:
            await publish(connection, "shop")

            async def has_come() -> bool:
                return list(await stored(owner)) == [f"shop/{target}", "till/z"]

            await until(has_come)
            for broker in world.running.values():  # any of them knows
                assert await listed(broker) == [("shop", target, True), ("till", "z", False)]


async def test_a_topic_that_is_deleted_and_created_again_lists_its_producers(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker, connected(broker) as connection:

        async def is_listed() -> bool:
            return await listed(broker) == [("shop", "local", True)]

        for _ in range(2):
            made, _ = await broker.put_topic(ORDERS, TopicSettings())
            await connection.send(Publish(1, str(ORDERS), BATCH, 0, topic_id=made.topic_id, producer="shop"))
            await until(is_listed)
            await broker.delete_topic(ORDERS)


async def test_a_publish_that_ends_after_its_connection_leaves_no_producer(tmp_path: Path) -> None:
    schema = Schema(kind=SchemaKind.JSON, definition={"type": "string"})
    large = memoryview(bytes(encode([StoredRecord(value=b'"' + b"v" * 100_000 + b'"', timestamp_ms=1)])))
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(value_schema=schema))
        async with connected(broker) as connection, asyncio.TaskGroup() as tasks:
            tasks.create_task(connection.send(Publish(1, str(ORDERS), large, 0, producer="ghost")))
            await asyncio.sleep(0)  # its value is being checked, in a thread
            tasks.create_task(connection.close())
        assert not broker.producers.has_attached
