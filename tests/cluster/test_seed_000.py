"""Seed 000, its test plan: unload a reliable topic, in five steps with three brokers, and what must be refused."""

from typing import Any

import pytest

from sulina.client import Client
from sulina.core.cluster import keys
from sulina.core.topic import Schema, SchemaKind
from sulina.errors import InvalidRecord, SchemaConflict, SubscriptionBusy
from sulina.ports import Change
from sulina.types import PartitionName, TopicName
from tests.support.cluster_record import Record, recording, value_of
from tests.support.cluster_world import BrokerProcess, World, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOPIC = "/default/seed-000"
PARTITION = PartitionName(TopicName.parse(TOPIC), 0)
SCHEMA = Schema(kind=SchemaKind.JSON, definition={"type": "object", "required": ["n"]})
OTHER_SCHEMA = Schema(kind=SchemaKind.JSON, definition={"type": "array"})
PRODUCED, CONSUMED = 30, 12


async def take(client: Client, topic: str, count: int) -> list[int]:
    """Take and ack so many; their offsets."""
    offsets: list[int] = []
    async with client.consumer(topic, "reader", start="earliest") as messages:
        while len(offsets) < count:
            message = await anext(messages)
            assert message.json() == {"n": message.offset}
            assert await messages.ack(message)
            offsets.append(message.offset)
    return offsets


async def test_integration_move_of_a_reliable_topic_with_three_brokers(world: World) -> None:
    """U2, U4, U5, U10, U11, U12, F7: the five steps, and the order of what they leave in etcd."""
    async with world.client() as client, recording(world) as record:
        # 1) Produce N messages, consume some, leave an unconsumed tail, verify cursors.
        await client.admin.create_topic(TOPIC, schema=SCHEMA)
        await world.wait_served(TOPIC)
        source = await world.owner_of(TOPIC)
        await client.publish_batch(TOPIC, [{"n": number} for number in range(PRODUCED)])
        assert await take(client, TOPIC, CONSUMED) == list(range(CONSUMED))
        subscription = await client.admin.subscription(TOPIC, "reader")
        assert (subscription.cursors[0].offset, subscription.lag) == (CONSUMED, PRODUCED - CONSUMED)
        before = len(await record.settle())

        # 2) Unload it on its current broker.
        await world.unload(TOPIC, force=False)
        target = (await world.wait_served(TOPIC, not_by=source)).partitions[0].broker_id
        assert target is not None

        # 3) etcd shows it unassigned, then assigned to another broker.
        verify_order((await record.settle())[before:], source, target)
        await verify_load_reports(world, record, source, target)

        # 4) Producer and consumer on the new broker: the schema must match, the consumer resumes at its cursor.
        assert (await client.publish(TOPIC, {"n": PRODUCED}, schema=SCHEMA)).offset == PRODUCED
        assert await take(client, TOPIC, PRODUCED + 1 - CONSUMED) == list(range(CONSUMED, PRODUCED + 1))

    # 5) The objects exist, and the old broker has nothing left to upload when it says that it is done.
    verify_objects(world)
    (event,) = await until(f"{source} has said that it is done", lambda: unloaded(world.brokers[source]))
    assert list(world.brokers[source].data.rglob("topic=default.seed-000-part=0*")) == []
    assert (event["from_broker"], event["last_committed_offset"]) == (source, PRODUCED - 1)


async def unloaded(broker: BrokerProcess) -> list[dict[str, Any]]:
    return [line for line in broker.events("topic_unloaded") if line["topic"] == TOPIC]


def verify_order(changes: list[Change], source: str, target: str) -> None:
    """Seal, then unassign in one revision, then assign in one; and of the topic nothing but what clients do."""
    old, new = keys.assignment(source, PARTITION), keys.assignment(target, PARTITION)
    waiting, epoch = keys.unassigned(PARTITION), keys.epoch(PARTITION)
    revisions: dict[tuple[str, bool], int] = {}
    for change in changes:
        revisions.setdefault((change.key, change.value is not None), change.revision)
    sealed = revisions[keys.sealed_state(PARTITION), True]
    unassigned = revisions[old, False]
    assigned = revisions[new, True]
    assert sealed < unassigned < assigned
    assert revisions[waiting, True] == unassigned
    assert revisions[waiting, False] == assigned
    assert any((change.key, change.revision) == (epoch, assigned) for change in changes)
    touched = {change.key for change in changes if change.key.startswith((keys.TOPICS, keys.NAMESPACES))}
    producers = {key for key in touched if key.startswith(keys.producers(PARTITION.topic))}
    assert touched - producers <= {keys.cursor(PARTITION.topic, "reader", 0)}


async def verify_load_reports(world: World, record: Record, source: str, target: str) -> None:
    """Both brokers have told their new load. That they do so at once is shown in tests/broker/test_unloading.py."""
    moved_at = next(c.revision for c in await record.settle() if c.key == keys.assignment(target, PARTITION))

    async def are_told() -> bool:
        told = {change.key for change in await record.of(keys.LOAD) if change.revision > moved_at}
        return {keys.load(source), keys.load(target)} <= told

    await until("both have told their load", are_told)
    reports = {change.key: value_of(change) for change in await record.of(keys.LOAD)}
    assert reports[keys.load(target)]["partitions"] >= 1


def verify_objects(world: World) -> None:
    """The archive has every record up to the seal, and its index says so."""
    prefix = keys.storage_prefix(PARTITION.topic)
    found = world.keys(prefix)
    objects = {key: value for key, value in found.items() if "/objects/" in key}
    assert objects
    assert min(int(key.rsplit("/", 1)[1]) for key in objects) == 0
    assert max(value["offset_end"] for value in objects.values()) >= PRODUCED
    assert found[keys.archive_current(PARTITION)]["archived_offset"] >= PRODUCED
    stored = {path.rsplit("/", 1)[-1] for path in world.stored("topic=default.seed-000-part=0")}
    assert {value["object"].rsplit("/", 1)[-1] for value in objects.values()} <= stored


async def test_negative_a_schema_mismatch_after_the_move_is_rejected(world: World) -> None:
    """U11: the schema of a topic with data holds on its new owner."""
    topic = "/default/seed-000-schema"
    async with world.client() as client:
        await client.admin.create_topic(topic, schema=SCHEMA)
        await world.wait_served(topic)
        (await client.publish(topic, {"n": 0}, schema=SCHEMA)).raise_for_status()
        await world.move(topic, world.other(await world.owner_of(topic)))
        refused = await client.publish(topic, [1], schema=OTHER_SCHEMA)
        assert isinstance(refused.error, SchemaConflict)
        unnamed = await client.publish(topic, [1])
        assert isinstance(unnamed.error, InvalidRecord), "a publish that names no schema is checked by its values"
        with pytest.raises(SchemaConflict):
            await client.admin.create_topic(topic, schema=OTHER_SCHEMA)
        assert (await client.publish(topic, {"n": 1}, schema=SCHEMA)).offset == 1


async def test_negative_a_move_with_active_consumers_needs_force(world: World) -> None:
    """U3: without force it fails with a clear error and nothing is done; with force the consumer goes on elsewhere."""
    topic = "/default/seed-000-busy"
    async with world.client() as client:
        await world.create_topic(topic)
        source = await world.owner_of(topic)
        await client.publish_batch(topic, [{"n": number} for number in range(4)])
        async with client.consumer(topic, "reader", start="earliest") as messages:
            for offset in range(2):
                message = await anext(messages)
                assert message.offset == offset
                assert await messages.ack(message)
            response = await world.http.post(f"{world.brokers[source].url}/v1/topics{topic}/moves", json={})
            assert response.status_code == 409
            assert response.json()["code"] == SubscriptionBusy.code
            assert "force" in response.json()["detail"]
            assert await world.owner_of(topic) == source
            assert world.keys(keys.UNLOADS) == {}
            await world.unload(topic, force=True)
            await world.wait_served(topic, not_by=source)
            rest: list[int] = []
            while not rest or rest[-1] != 3:
                message = await anext(messages)
                rest.append(message.offset)
                assert await messages.ack(message) or message.offset not in rest
    assert rest[-2:] == [2, 3]
