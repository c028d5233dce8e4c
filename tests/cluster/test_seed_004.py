"""Seed 004, its integration flow and acceptance criteria: a broker dies, another takes its topics, no metadata goes."""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from sulina.core.cluster import keys
from sulina.ports import Change
from sulina.types import TopicName
from tests.support.cluster_record import recording, value_of
from tests.support.cluster_world import World, cluster, until
from tests.support.etcd import EtcdServer
from tests.support.fork_server import ForkServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOPIC, PASSING = "/default/failover-test", "/events/passing"
COMMAND_SECONDS_MAX = 90.0


def sulina(world: World, *words: str) -> Any:
    """Run a command of the CLI against the cluster, which must succeed; return what it prints as JSON."""
    urls = ",".join(broker.url for broker in world.running)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SULINA_")}
    variables = kept | {"SULINA_URL": urls, "NO_COLOR": "1"}
    with tempfile.TemporaryFile() as told:
        server = ForkServer.shared()
        process = server.start([*words, "--json"], environment=variables, cwd=str(world.folder), stderr=told.fileno())
        with process.stdout:
            out = process.stdout.read()
        code = process.wait(COMMAND_SECONDS_MAX)
        told.seek(0)
        assert code == 0, (words, out, told.read())
    return json.loads(out) if out.strip() else None


async def pub_sub(world: World, *topics: str) -> None:
    """A simple publish and subscribe, also where nothing is kept: the subscriber is there first."""
    async with world.client() as client:
        for topic in topics:
            async with client.consumer(topic, "basic", start="latest") as messages:
                (await client.publish(topic, b"hello")).raise_for_status()
                message = await anext(messages)
                assert message.value == b"hello"
                await messages.ack(message)


async def test_integration_broker_failover(tmp_path: Path, etcd: EtcdServer) -> None:
    """F1, F2, F4, F5, F6: only broker A; then B; then A is killed, and B serves what A did."""
    async with cluster(tmp_path, etcd, "a") as world, contextlib.AsyncExitStack() as exits:
        # Create namespace and topic by the command line, and look up the owner.
        sulina(world, "namespace", "create", "events")
        sulina(world, "topic", "create", TOPIC, "--ack", "archived")
        sulina(world, "topic", "create", PASSING, "--delivery", "non_reliable")
        for topic in (TOPIC, PASSING):
            await world.wait_served(topic, by="a")
            assert owners(sulina(world, "topic", "lookup", topic)) == ["a"]
        # Baseline: publish and subscribe on A.
        await pub_sub(world, TOPIC, PASSING)
        # Introduce B, then kill A, to which a producer is connected.
        await world.start("b")
        shop = await exits.enter_async_context(world.client(name="shop"))
        (await shop.publish(TOPIC, b"hello")).raise_for_status()
        await producers_are(world, [("shop", "a")])
        async with recording(world) as record:
            await world.brokers["a"].kill()
            for topic in (TOPIC, PASSING):
                await world.wait_served(topic, by="b")
                assert owners(sulina(world, "topic", "lookup", topic)) == ["b"]
            # Publish and subscribe again: without state the topic goes on from now, with state it has lost nothing.
            changes = await record.settle()
            assert keys.producer(TopicName.parse(TOPIC), "shop", "a") in world.keys(keys.TOPICS), "it stays"
            await pub_sub(world, TOPIC, PASSING)
        accept_reallocation(changes)
        (await shop.publish(TOPIC, b"hello")).raise_for_status()
        await producers_are(world, [("shop", "b")])
        async with world.client() as client:
            assert [record.value async for record in client.read(TOPIC, follow=False)] == [b"hello"] * 4


async def producers_are(world: World, expected: list[tuple[str, str]]) -> None:
    """Return when the command line says that these publish to the topic, and at which broker."""

    async def are_so() -> bool:
        found = sulina(world, "topic", "producers", TOPIC)
        return [(info["producer"], info["broker_id"]) for info in found if info["producer"] == "shop"] == expected

    await until("the producers are listed", are_so)


def owners(lookup: dict[str, Any]) -> list[str]:
    return [partition["broker_id"] for partition in lookup["partitions"]]


def accept_reallocation(changes: list[Change]) -> None:
    """Only assignment keys of the dead broker go, unassigned entries come, no durable metadata is touched."""
    dead = keys.broker_prefix("a")
    removed = {change.key for change in changes if change.value is None}
    created = {change.key for change in changes if change.value is not None}
    paths = ["default/failover-test/0", "events/passing/0"]
    assert {key for key in removed if key.startswith(keys.BROKERS)} == {dead + path for path in paths}
    assert {keys.UNASSIGNED + path for path in paths} <= created
    assert {keys.broker_prefix("b") + path for path in paths} <= created
    assert [change for change in changes if change.key.startswith((keys.TOPICS, keys.NAMESPACES))] == []
    for path in paths:
        gone = next(c.revision for c in changes if c.key == dead + path)
        assert next(c.revision for c in changes if c.key == keys.UNASSIGNED + path) == gone
        waiting = next(value_of(c) for c in changes if c.key == keys.UNASSIGNED + path and c.value)
        assert (waiting["reason"], waiting["from_broker"]) == ("dead", "a")


async def test_f7_a_drained_broker_gives_everything_away_and_rebalancing_brings_some_back(world: World) -> None:
    """F5, F7: no data is deleted, and the counts of partitions come close to each other."""
    topics = [f"/default/drain-{number}" for number in range(9)]
    async with world.client() as client:
        for topic in topics:
            await world.create_topic(topic)
            (await client.publish(topic, topic)).raise_for_status()
        sulina(world, "broker", "drain", "a")

        async def is_empty() -> bool:
            found = await world.cluster()
            return found is not None and {b.broker_id: b.partitions for b in found.brokers}["a"] == 0

        await until("a is empty", is_empty)
        for topic in topics:
            await world.wait_served(topic, not_by="a")
        sulina(world, "broker", "activate", "a")
        sulina(world, "cluster", "rebalance")

        async def is_balanced() -> bool:
            found = await world.cluster()
            counts = [broker.partitions for broker in found.brokers] if found else [0]
            return min(counts) > 0 and max(counts) - min(counts) <= 2 and found is not None and not found.unloads

        await until("the brokers have about as much each", is_balanced)
        for topic in topics:
            await world.wait_served(topic)
            assert [record.text async for record in client.read(topic, follow=False)] == [topic]
    listed = sulina(world, "broker", "list")
    assert {broker["broker_id"] for broker in listed} == {"a", "b", "c"}


async def test_a_failure_keeps_the_logs_of_brokers_and_the_keys_of_etcd(
    tmp_path: Path, etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SULINA_KEEP", str(tmp_path / "kept"))
    with pytest.raises(AssertionError, match="a failure"):
        async with cluster(tmp_path, etcd, "a"):
            raise AssertionError("a failure")
    [kept] = (tmp_path / "kept").iterdir()
    assert "broker_id" in (kept / "a.log").read_text()
    assert keys.REGISTER + "a" in json.loads((kept / "etcd-keys.json").read_text())
