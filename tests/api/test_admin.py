"""Namespaces, topics, subscriptions: created, shown, changed, deleted."""

import asyncio
import uuid

import pytest

from sulina.client import Client
from sulina.core.topic import Ack, DeliveryGuarantee, Policy, SchemaKind
from sulina.errors import (
    AlreadyExists,
    InvalidName,
    InvalidSettings,
    NamespaceNotEmpty,
    NamespaceNotFound,
    PartitionNotFound,
    SubscriptionNotFound,
    TopicNotFound,
)
from tests.api.conftest import OpenClient

WAIT_SECONDS = 20.0


@pytest.fixture
def namespace() -> str:
    return f"ns-{uuid.uuid4().hex[:8]}"


async def test_a_namespace_lives_and_its_topics_inherit_p1(client: Client, namespace: str) -> None:
    made = await client.admin.create_namespace(namespace, {"retention_seconds": 3600, "deliveries_max": 3})
    assert (made.namespace, made.topics) == (namespace, 0)
    topic = f"/{namespace}/orders"
    await client.admin.create_topic(topic, policy=Policy(deliveries_max=5))
    info = await client.admin.topic(topic)
    assert (info.policy.retention_seconds, info.policy.deliveries_max) == (3600, 5)
    assert info.settings.policy.retention_seconds is None
    assert (await client.admin.namespace(namespace)).topics == 1
    assert {"default", namespace} <= {each.namespace for each in await client.admin.namespaces()}
    with pytest.raises(NamespaceNotEmpty):
        await client.admin.delete_namespace(namespace)
    await client.admin.delete_topic(topic)
    await client.admin.delete_namespace(namespace)
    with pytest.raises(NamespaceNotFound):
        await client.admin.namespace(namespace)
    with pytest.raises(NamespaceNotFound):
        await client.admin.create_topic(topic)


async def test_producers_are_listed_by_name_f5(open_client: OpenClient, topic: str) -> None:
    client, other = await open_client(name="shop-1"), await open_client()
    await client.admin.create_topic(topic, 3)
    assert await other.admin.producers(topic) == []
    with pytest.raises(TopicNotFound):
        await other.admin.producers("/default/nothing-there")
    for key in "abcdef":
        await client.publish(topic, b"v", key=key)
    async with other.producer(topic, name="till") as producer:
        producer.produce(b"v")
        await producer.flush()

        async def names() -> list[str]:
            return [info.producer for info in await client.admin.producers(topic) if info.is_connected]

        async with asyncio.timeout(WAIT_SECONDS):
            while await names() != ["shop-1", "till"]:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    with pytest.raises(InvalidName):
        await open_client(name="../x")


async def test_a_topic_is_what_it_was_made_as_p1(client: Client, topic: str) -> None:
    made = await client.admin.create_topic(
        topic,
        partitions=3,
        delivery="reliable",
        policy={"ack": "memory", "retention_bytes": 1 << 20},
        schema={"kind": "json", "definition": {"type": "object"}},
    )
    assert made == await client.admin.topic(topic)
    assert (made.settings.partitions, made.settings.delivery) == (3, DeliveryGuarantee.RELIABLE)
    assert (made.policy.ack, made.policy.batch_bytes_max) == (Ack.MEMORY, 16 << 20)
    assert made.settings.value_schema.kind == SchemaKind.JSON
    assert (await client.admin.create_topic(
        topic, 3, policy=made.settings.policy, schema=made.settings.value_schema
    )) == made  # fmt: skip
    with pytest.raises(AlreadyExists):
        await client.admin.create_topic(topic, partitions=4)
    changed = await client.admin.create_topic(
        topic, 3, policy=Policy(deliveries_max=9), schema=made.settings.value_schema
    )
    assert (changed.policy.deliveries_max, changed.policy.ack) == (9, Ack.LOCAL)
    await client.admin.delete_topic(topic)
    with pytest.raises(TopicNotFound):
        await client.admin.topic(topic)
    with pytest.raises(TopicNotFound):
        await client.admin.delete_topic(topic)


async def test_topics_are_listed_by_name(client: Client, namespace: str) -> None:
    await client.admin.create_namespace(namespace)
    for name in ("c", "a", "b"):
        await client.admin.create_topic(f"/{namespace}/{name}")
    assert [info.topic for info in await client.admin.topics(namespace=namespace)] == [
        f"/{namespace}/{n}" for n in "abc"
    ]
    assert len(await client.admin.topics()) >= 3


async def test_a_partition_shows_its_offsets_and_commits_l14(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=2)
    ack = await client.publish_batch(topic, ["a", "b"], partition=1, txn_id="t")
    shown = await client.admin.partition(topic, 1)
    assert (shown.topic, shown.partition, shown.start_offset, shown.end_offset) == (topic, 1, 0, 2)
    assert shown.version == ack.version
    assert shown.segments[0].end_offset == 2
    assert ack.version is not None
    [commit] = await client.admin.commits(topic, 1, start=ack.version, end=ack.version + 1)
    assert commit.version == ack.version
    assert commit.next_offset == 2
    assert (await client.admin.partition(topic, 0)).end_offset == 0
    assert await client.admin.locate(topic, "latest", 1) == 2
    assert await client.admin.locate(topic, "earliest", 1) == 0
    with pytest.raises(PartitionNotFound):
        await client.admin.partition(topic, 2)


async def test_subscriptions_live_without_consumers_p12(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    await client.publish_batch(topic, ["a", "b", "c"])
    made = await client.admin.create_subscription(topic, "s", mode="shared", start="offset:1")
    assert (made.mode, made.cursors[0].offset, made.lag, made.consumers) == ("shared", 1, 2, [])
    await client.admin.create_subscription(topic, "r", start="earliest")
    assert [each.subscription for each in await client.admin.subscriptions(topic)] == ["r", "s"]
    assert (await client.admin.topic(topic)).subscriptions == ["r", "s"]
    with pytest.raises(AlreadyExists):
        await client.admin.create_subscription(topic, "s", mode="failover")
    moved = await client.admin.seek(topic, "s", "latest")
    assert (moved.cursors[0].offset, moved.lag) == (3, 0)
    await client.admin.delete_subscription(topic, "s")
    with pytest.raises(SubscriptionNotFound):
        await client.admin.subscription(topic, "s")
    with pytest.raises(SubscriptionNotFound):
        await client.admin.seek(topic, "s", "latest")


async def test_settings_outside_the_rules_are_refused(client: Client, topic: str) -> None:
    for settings in (
        {"partitions": 0},
        {"partitions": 100_000},
        {"delivery": "sometimes"},
        {"policy": {"retention_bytes": -1}},
        {"policy": {"unknown": 1}},
        {"policy": {"ack": "archived"}},
        {"schema": {"kind": "json", "definition": {"type": "nonsense"}}},
    ):
        with pytest.raises(InvalidSettings):
            await client.admin.create_topic(topic, **settings)
    for name in ("or ders", "/default/..", "/a.b/c"):
        with pytest.raises(InvalidName):
            await client.admin.create_topic(name)
    with pytest.raises(InvalidName):
        await client.admin.create_namespace("../etc")


async def test_a_node_says_who_it_is(client: Client) -> None:
    info = await client.admin.info()
    assert info.broker_id == "local"
    assert info.is_ready
    assert info.connections >= 1
