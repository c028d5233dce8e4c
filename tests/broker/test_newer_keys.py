"""Keys of the metadata store that a newer version has written: nobody acts on what it has not read (L18)."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sulina.core.cluster import keys
from sulina.core.cluster.entries import BrokerMode
from sulina.core.formats import METADATA
from sulina.core.topic import Policy, TopicSettings
from sulina.errors import NewerFormat
from sulina.ports import Put
from sulina.types import PartitionName, TopicName
from tests.support.brokers import Brokers, brokers, cluster_of, until

ORDERS, MAIL = TopicName("default", "orders"), TopicName("default", "mail")
CARTS = TopicName("shop", "carts")
FIRST = PartitionName(ORDERS, 0)


async def made_newer(world: Brokers, key: str) -> bytes:
    """Write a key again, as a newer version would."""
    assert await world.metadata.get(key) is not None
    value = b'{"format":2,"all":"is different"}'
    await world.metadata.txn(puts=[Put(key, value)])
    return value


@pytest.mark.parametrize("key", [keys.epoch(FIRST), keys.IDENTITY, keys.assignment("a", FIRST)])
async def test_l18_a_broker_does_not_join_by_a_newer_key(tmp_path: Path, key: str) -> None:
    async with brokers(tmp_path, "a") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings())
        await world.publish(ORDERS, b"1")
        newer = await made_newer(world, key)
        with pytest.raises(NewerFormat) as refused:
            await world.start("b")
        assert refused.value.name == key
        assert await world.keys(keys.register("b")) == []
        entry = await world.metadata.get(key)
        assert entry is not None
        assert entry.value == newer


async def test_l18_a_topic_with_a_newer_policy_is_not_served_and_others_are(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a") as world:
        broker = world.running["a"]
        for topic in (ORDERS, MAIL):
            await broker.put_topic(topic, TopicSettings())
            await world.publish(topic, b"1")
        newer = await made_newer(world, keys.policy(ORDERS))
        await until(lambda: ORDERS in broker.registry.damaged)
        with pytest.raises(NewerFormat):
            await broker.fetch(ORDERS, 0, 0)
        assert await world.values(MAIL) == [b"1"]
        entry = await world.metadata.get(keys.policy(ORDERS))
        assert entry is not None
        assert entry.value == newer


async def test_l18_topics_of_a_namespace_with_a_newer_policy_are_not_served_and_others_are(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a") as world:
        broker = world.running["a"]
        await broker.put_namespace("shop", Policy())
        for topic in (CARTS, MAIL):
            await broker.put_topic(topic, TopicSettings())
            await world.publish(topic, b"1")
        key = keys.namespace_policy("shop")
        with capture_logs() as logs:
            newer = await made_newer(world, key)
            await until(lambda: CARTS in broker.registry.damaged)
            with pytest.raises(NewerFormat) as refused:
                await broker.fetch(CARTS, 0, 0)
            assert refused.value.name == key
            with pytest.raises(NewerFormat):
                await broker.put_namespace("shop", Policy())
            with pytest.raises(NewerFormat):
                await broker.put_topic(TopicName("shop", "bills"), TopicSettings())
            await broker.put_namespace("after", Policy())
            await world.publish(MAIL, b"2")
        assert await world.values(MAIL) == [b"1", b"2"]
        assert [line for line in logs if line["event"] == "watch_failed"] == []
        entry = await world.metadata.get(key)
        assert entry is not None
        assert entry.value == newer
        await world.metadata.txn(puts=[Put(key, METADATA.encode(Policy()))])
        await until(lambda: CARTS in broker.registry.topics)
        assert await world.values(CARTS) == [b"1"]


async def test_l18_a_broker_starts_beside_a_newer_policy_of_the_default_namespace(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings())
        newer = await made_newer(world, keys.namespace_policy("default"))
        await world.start("b")
        assert ORDERS in world.running["b"].registry.damaged
        entry = await world.metadata.get(keys.namespace_policy("default"))
        assert entry is not None
        assert entry.value == newer


async def test_l18_a_mode_that_a_newer_version_has_set_is_not_written_over(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a") as world:
        cluster = cluster_of(world.running["a"])
        await cluster.set_mode("a", BrokerMode.DRAINING)
        await cluster.set_mode("a", BrokerMode.ACTIVE)
        newer = await made_newer(world, keys.broker_state("a"))
        with pytest.raises(NewerFormat):
            await cluster.set_mode("a", BrokerMode.DRAINING)
        entry = await world.metadata.get(keys.broker_state("a"))
        assert entry is not None
        assert entry.value == newer


async def test_l18_a_running_broker_assigns_nothing_by_a_newer_key(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a") as world:
        broker = world.running["a"]
        await broker.put_topic(ORDERS, TopicSettings())
        await world.publish(ORDERS, b"1")
        seen = cluster_of(broker).view.epochs[FIRST]
        with capture_logs() as logs:
            newer = await made_newer(world, keys.epoch(FIRST))
            await until(lambda: any("/epochs/default/orders/0 has metadata format 2" in repr(line) for line in logs))
        assert cluster_of(broker).view.epochs[FIRST] == seen
        entry = await world.metadata.get(keys.epoch(FIRST))
        assert entry is not None
        assert entry.value == newer
