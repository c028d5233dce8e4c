"""The broker: what exists survives restarts, what is deleted is gone, what is bounded stays so."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sulina.broker.broker import Broker
from sulina.broker.options import BrokerLimits, BrokerOptions
from sulina.core.log.position import Position
from sulina.core.log.publish_request import PublishRequest
from sulina.core.records.record import StoredRecord, decode, encode
from sulina.core.topic import Ack, DeliveryGuarantee, Policy, Schema, SchemaKind, TopicSettings
from sulina.errors import (
    AlreadyExists,
    InvalidInput,
    InvalidName,
    InvalidRecord,
    InvalidSettings,
    KeysSpanPartitions,
    LimitReached,
    NamespaceNotEmpty,
    NamespaceNotFound,
    NotReliable,
    NotServing,
    NotYet,
    OffsetOutOfRange,
    PartitionNotFound,
    QueueFull,
    SchemaConflict,
    SubscriptionNotFound,
    TopicNotFound,
    VersionConflict,
    VersionNotRetained,
)
from sulina.metadata.sqlite import SqliteMetadata
from sulina.storage.partition_log import LogThreads
from sulina.types import TopicName
from sulina.wire.messages import SubscriptionSettings

ORDERS = TopicName.parse("/default/orders")
JSON = Schema(kind=SchemaKind.JSON, definition={"type": "object"})

Start = Callable[..., object]


@asynccontextmanager
async def a_broker(path: Path, **options: object) -> AsyncIterator[Broker]:
    """A broker on its directory; the same one again when it is entered again."""
    metadata = await SqliteMetadata.open(str(path / "metadata.sqlite"))
    threads = LogThreads.of(writers=2, readers=2)
    broker = Broker(metadata, BrokerOptions(data=str(path), **options), threads=threads)  # type: ignore[arg-type]
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
        await metadata.close()
        threads.shutdown()


async def values(broker: Broker, topic: TopicName = ORDERS, partition: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = (await broker.partition(topic, partition)).start_offset
    while True:
        part = await broker.fetch(topic, partition, offset)
        if part.next_offset == offset:
            return found
        position = 0
        while position < len(part.data):
            records = decode(part.data, position=position)
            found += [record.value for record in records]
            position += 12 + int.from_bytes(part.data[position + 8 : position + 12], "big")
        offset = part.next_offset


async def test_what_was_made_is_there_after_a_restart(tmp_path: Path) -> None:
    settings = TopicSettings(partitions=3, policy=Policy(deliveries_max=4), value_schema=JSON)
    async with a_broker(tmp_path) as broker:
        await broker.put_namespace("shop", Policy(ack_timeout_seconds=7))
        name = TopicName.parse("/shop/orders")
        info, is_new = await broker.put_topic(name, settings)
        assert is_new
        await broker.put_subscription(name, "billing", SubscriptionSettings(start="earliest"))
        await broker.publish_records(name, [StoredRecord(value=b"{}")], partition=1)
    async with a_broker(tmp_path) as broker:
        again = await broker.topic(name)
        assert again.settings == settings
        assert again.policy.ack_timeout_seconds == 7
        assert again.schema_id == info.schema_id
        assert again.subscriptions == ["billing"]
        assert await values(broker, name, 1) == [b"{}"]
        assert (await broker.subscription(name, "billing")).lag == 1


async def test_putting_a_topic_twice_changes_nothing_and_says_so(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        assert (await broker.put_topic(ORDERS, TopicSettings()))[1]
        assert not (await broker.put_topic(ORDERS, TopicSettings()))[1]
        with pytest.raises(AlreadyExists, match="partitions is 1, not 2"):
            await broker.put_topic(ORDERS, TopicSettings(partitions=2))
        with pytest.raises(AlreadyExists, match="delivery"):
            await broker.put_topic(ORDERS, TopicSettings(delivery=DeliveryGuarantee.BEST_EFFORT))


async def test_a_schema_changes_only_while_there_is_no_data_u11(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        info, _ = await broker.put_topic(ORDERS, TopicSettings(value_schema=JSON))
        assert info.schema_id == JSON.fingerprint
        await broker.publish_records(ORDERS, [StoredRecord(value=b"{}")], schema_id=JSON.fingerprint)
        with pytest.raises(SchemaConflict):
            await broker.put_topic(ORDERS, TopicSettings())
        with pytest.raises(SchemaConflict):
            await broker.publish_records(ORDERS, [StoredRecord(value=b"{}")], schema_id="another")
    async with a_broker(tmp_path) as broker:  # also by whoever comes later
        with pytest.raises(SchemaConflict):
            await broker.put_topic(ORDERS, TopicSettings())
        assert await values(broker) == [b"{}"]


async def test_a_topic_with_a_schema_checks_every_value_unless_it_is_told_not_to_u11(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(value_schema=JSON))
        await broker.publish_records(ORDERS, [StoredRecord(value=b"{}"), StoredRecord(value=None)])
        for size in (1, 10_000):  # checked at once, and in a thread
            with pytest.raises(InvalidRecord, match="record 1 does not fit the topic's schema"):
                await broker.publish_records(ORDERS, [StoredRecord(value=b"{}"), StoredRecord(value=b"[" * size)])
        with pytest.raises(InvalidRecord):  # also where the publish names the schema
            await broker.publish_records(ORDERS, [StoredRecord(value=b"[]")], schema_id=JSON.fingerprint)
        assert await values(broker) == [b"{}", None]
    async with a_broker(tmp_path) as broker:  # also after a restart
        with pytest.raises(InvalidRecord):
            await broker.publish_records(ORDERS, [StoredRecord(value=b"not json")])
        await broker.put_topic(ORDERS, TopicSettings(policy=Policy(validate=False), value_schema=JSON))
        await broker.publish_records(ORDERS, [StoredRecord(value=b"not json")])
        with pytest.raises(SchemaConflict):  # the schema that a publish names is compared still
            await broker.publish_records(ORDERS, [StoredRecord(value=b"{}")], schema_id="another")
        assert await values(broker) == [b"{}", None, b"not json"]


async def test_a_dead_letter_needs_to_fit_no_schema(tmp_path: Path) -> None:
    dead = TopicName.parse("/default/dead")
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(dead, TopicSettings(value_schema=JSON))
        await broker.put_topic(ORDERS, TopicSettings(policy=Policy(deliveries_max=1, dead_letter=str(dead))))
        await broker.registry.bury(
            broker.registry.topics[ORDERS], "s", 0, [StoredRecord(value=b"not json", offset=0)], 1
        )
        assert await values(broker, dead) == [b"not json"]


async def test_a_batch_with_a_value_that_does_not_fit_is_refused_whole_p2(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(value_schema=JSON))
        with pytest.raises(InvalidRecord, match="record 1"):
            await broker.publish_records(ORDERS, [StoredRecord(value=b"{}"), StoredRecord(value=b"[]")])
        assert await values(broker) == [], "a batch is all or nothing"
        await broker.publish_records(ORDERS, [StoredRecord(value=b"{}"), StoredRecord(value=None)])
        assert await values(broker) == [b"{}", None]


async def test_keys_choose_the_partition_and_a_batch_has_one_l16(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(partitions=4))
        first = await broker.publish_records(
            ORDERS, [StoredRecord(value=b"1", key=b"k"), StoredRecord(value=b"2", key=b"k")]
        )
        again = await broker.publish_records(ORDERS, [StoredRecord(value=b"3", key=b"k")])
        assert again.partition == first.partition
        assert (again.base_offset, again.count) == (2, 1)
        with pytest.raises(KeysSpanPartitions):
            await broker.publish_records(ORDERS, [StoredRecord(value=b"x", key=b"%d" % n) for n in range(20)])
        turns = [(await broker.publish_records(ORDERS, [StoredRecord(value=b"x")])).partition for _ in range(8)]
        assert sorted(turns) == [0, 0, 1, 1, 2, 2, 3, 3]
        with pytest.raises(PartitionNotFound, match="0 to 3"):
            await broker.publish_records(ORDERS, [StoredRecord(value=b"x")], partition=4)


async def test_a_version_has_one_winner_l3(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        version = (await broker.partition(ORDERS, 0)).version
        tries = [
            broker.publish_records(ORDERS, [StoredRecord(value=b"%d" % n)], partition=0, expected_version=version)
            for n in range(8)
        ]
        answers = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(answer, VersionConflict) for answer in answers) == 7
        assert len(await values(broker)) == 1


async def test_a_txn_id_is_answered_once_also_after_a_restart_l13(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        first = await broker.publish_records(ORDERS, [StoredRecord(value=b"1")], txn_id="a")
    async with a_broker(tmp_path) as broker:
        assert await broker.publish_records(ORDERS, [StoredRecord(value=b"1")], txn_id="a") == first
        assert await values(broker) == [b"1"]


async def test_a_txn_id_comes_to_the_same_partition_when_nothing_else_names_one_l13(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(partitions=7))
        firsts = [await broker.publish_records(ORDERS, [StoredRecord(value=b"1")], txn_id=f"a{n}") for n in range(20)]
        again = [await broker.publish_records(ORDERS, [StoredRecord(value=b"1")], txn_id=f"a{n}") for n in range(20)]
        assert again == firsts
        assert len({answer.partition for answer in firsts}) > 3


async def test_reads_at_a_version_and_waits_for_one_l14(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        first = await broker.publish_records(ORDERS, [StoredRecord(value=b"1")])
        await broker.publish_records(ORDERS, [StoredRecord(value=b"2")])
        assert first.version is not None
        then = await broker.fetch(ORDERS, 0, 0, version=first.version)
        assert (then.next_offset, then.end_offset) == (1, 1)
        with pytest.raises(NotYet):
            await broker.fetch(ORDERS, 0, 0, min_version=first.version + 5, wait_seconds=0.01)
        waiting = asyncio.create_task(broker.fetch(ORDERS, 0, 2, wait_seconds=30))
        await broker.publish_records(ORDERS, [StoredRecord(value=b"3")])
        assert (await waiting).next_offset == 3
        assert (await broker.fetch(ORDERS, 0, 3, wait_seconds=0.01)).next_offset == 3, "nothing came"
        with pytest.raises(OffsetOutOfRange):
            await broker.fetch(ORDERS, 0, 9)


async def test_a_deleted_topic_is_gone_and_its_name_starts_again(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(partitions=2))
        await broker.put_subscription(ORDERS, "s", SubscriptionSettings())
        await broker.publish_records(ORDERS, [StoredRecord(value=b"1")], partition=0)
        await broker.delete_topic(ORDERS)
        assert not [name for name in os.listdir(tmp_path) if name.startswith("topic=")]
        with pytest.raises(TopicNotFound):
            await broker.publish_records(ORDERS, [StoredRecord(value=b"1")])
        await broker.put_topic(ORDERS, TopicSettings())
        assert await values(broker) == []
        with pytest.raises(SubscriptionNotFound):
            await broker.subscription(ORDERS, "s")


async def test_a_deletion_that_was_cut_short_is_finished_at_the_next_start(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        await broker.publish_records(ORDERS, [StoredRecord(value=b"1")])
        await broker.registry.catalogue.mark_deleting(
            ORDERS, broker.registry.topics[ORDERS].stored
        )  # and then the power fails
    async with a_broker(tmp_path) as broker:
        with pytest.raises(TopicNotFound):
            await broker.topic(ORDERS)
        assert not [name for name in os.listdir(tmp_path) if name.startswith("topic=")]
        assert (await broker.put_topic(ORDERS, TopicSettings()))[1]
        assert await values(broker) == []


async def test_namespaces_give_their_topics_a_policy(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        name = TopicName.parse("/shop/orders")
        with pytest.raises(NamespaceNotFound):
            await broker.put_topic(name, TopicSettings())
        await broker.put_namespace("shop", Policy(deliveries_max=3))
        await broker.put_topic(name, TopicSettings())
        await broker.put_namespace("shop", Policy(deliveries_max=5))
        assert (await broker.topic(name)).policy.deliveries_max == 5
        with pytest.raises(NamespaceNotEmpty):
            await broker.delete_namespace("shop")
        await broker.delete_topic(name)
        await broker.delete_namespace("shop")
        assert [info.namespace for info in await broker.namespaces()] == ["default"]
        with pytest.raises(InvalidInput, match="always there"):
            await broker.delete_namespace("default")


async def test_topics_are_listed_page_by_page(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        for number in range(5):
            await broker.put_topic(TopicName("default", f"t{number}"), TopicSettings())
        page = await broker.topics(limit=2)
        assert [topic.topic for topic in page.topics] == ["/default/t0", "/default/t1"]
        page = await broker.topics(limit=10, after=page.next)
        assert [topic.topic for topic in page.topics] == ["/default/t2", "/default/t3", "/default/t4"]
        assert page.next is None


async def test_limits_are_named_when_they_are_reached(tmp_path: Path) -> None:
    limits = BrokerLimits(topics_max=1, partitions_max=2, subscriptions_max=1, namespaces_max=1)
    async with a_broker(tmp_path, limits=limits) as broker:
        with pytest.raises(LimitReached, match="2 partitions"):
            await broker.put_topic(ORDERS, TopicSettings(partitions=3))
        await broker.put_topic(ORDERS, TopicSettings())
        with pytest.raises(LimitReached, match="1 topics"):
            await broker.put_topic(TopicName("default", "more"), TopicSettings())
        with pytest.raises(LimitReached, match="1 namespaces"):
            await broker.put_namespace("more", Policy())
        await broker.put_subscription(ORDERS, "a", SubscriptionSettings())
        with pytest.raises(LimitReached, match="1 subscriptions"):
            await broker.put_subscription(ORDERS, "b", SubscriptionSettings())


async def test_too_much_that_waits_is_refused_p2(tmp_path: Path) -> None:
    async with a_broker(tmp_path, limits=BrokerLimits(waiting_bytes_max=1000)) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        tries = [broker.publish_records(ORDERS, [StoredRecord(value=b"x" * 400)]) for _ in range(10)]
        answers = await asyncio.gather(*tries, return_exceptions=True)
        refused = sum(isinstance(answer, QueueFull) for answer in answers)
        assert 0 < refused < 10
        assert len(await values(broker)) == 10 - refused
        await broker.publish_records(ORDERS, [StoredRecord(value=b"x" * 900)])  # all of the room is there again


async def test_a_memory_ack_comes_first_and_the_record_follows(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(policy=Policy(ack=Ack.MEMORY)))
        ack = await broker.publish_records(ORDERS, [StoredRecord(value=b"1"), StoredRecord(value=b"2")])
        assert (ack.ack, ack.base_offset, ack.version, ack.count) == (Ack.MEMORY, None, None, 2)
    async with a_broker(tmp_path) as broker:  # a graceful stop finishes what was taken
        assert await values(broker) == [b"1", b"2"]


async def test_retention_removes_by_policy_l15(tmp_path: Path) -> None:
    policy = Policy(segment_bytes=1 << 16, batch_bytes_max=1 << 16, retention_bytes=1 << 17)
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(policy=policy))
        for _ in range(20):
            await broker.publish_records(ORDERS, [StoredRecord(value=b"x" * 30_000)])
        assert await broker.retain() > 0
        info = await broker.partition(ORDERS, 0)
        assert info.start_offset > 0
        assert info.end_offset == 20


async def test_a_policy_that_changes_holds_for_the_next_batch(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        await broker.publish_records(ORDERS, [StoredRecord(value=b"x" * 5000)])
        await broker.put_topic(ORDERS, TopicSettings(policy=Policy(batch_bytes_max=2000)))
        with pytest.raises(InvalidInput, match="over the limit of 2000"):
            await broker.publish_records(ORDERS, [StoredRecord(value=b"x" * 5000)])


async def test_positions_are_found_p12(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        acks = [
            await broker.publish_records(ORDERS, [StoredRecord(value=b"x", timestamp_ms=1000 * n)] * 2)
            for n in range(4)
        ]

        async def at(text: str) -> int:
            return await broker.locate(ORDERS, 0, Position.parse(text))

        assert [await at("earliest"), await at("latest"), await at("offset:3"), await at("offset:99")] == [0, 8, 3, 8]
        assert [await at("timestamp:0"), await at("timestamp:1500"), await at("timestamp:9999")] == [0, 4, 8]
        assert [await at(f"version:{ack.version}") for ack in acks] == [0, 2, 4, 6]
        with pytest.raises(VersionNotRetained):
            await at("version:999")


async def test_the_oldest_version_that_is_kept_can_be_read_from_p12(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        acks = [await broker.publish_records(ORDERS, [StoredRecord(value=b"x")] * 2) for _ in range(3)]
        oldest = acks[1].version
        assert oldest is not None
        (cleaned_up,) = tmp_path.rglob(f"{oldest - 1:020d}.json")
        cleaned_up.unlink()
        assert await broker.locate(ORDERS, 0, Position.parse(f"version:{oldest}")) == 2


async def test_a_best_effort_topic_has_nothing_to_read(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(delivery=DeliveryGuarantee.BEST_EFFORT))
        with pytest.raises(NotReliable):
            await broker.fetch(ORDERS, 0, 0)
        with pytest.raises(NotReliable):
            await broker.put_subscription(ORDERS, "s", SubscriptionSettings())


async def test_a_stopped_broker_says_so_u1(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        broker.drain()
        for refused in (
            broker.publish(ORDERS, PublishRequest(encode([StoredRecord(value=b"x")]))),
            broker.fetch(ORDERS, 0, 0),
            broker.put_topic(ORDERS, TopicSettings()),
        ):
            with pytest.raises(NotServing):
                await refused


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\0b", "x" * 300, "-" * 201, "naïve"])
async def test_names_are_checked_before_anything_is_made(tmp_path: Path, name: str) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        with pytest.raises(InvalidName):
            await broker.put_namespace(name, Policy())
        with pytest.raises(InvalidName):
            await broker.put_subscription(ORDERS, name, SubscriptionSettings())
        with pytest.raises(InvalidSettings):
            await broker.put_subscription(ORDERS, "s", SubscriptionSettings(start="nowhere"))
        with pytest.raises(InvalidName):
            await broker.put_topic(ORDERS, TopicSettings(policy=Policy(dead_letter=f"/x/{name}/y")))


async def test_events_and_metrics_tell_what_happened(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        with broker.events.listen() as events:
            await broker.put_topic(ORDERS, TopicSettings())
            await broker.publish_records(ORDERS, [StoredRecord(value=b"x")] * 3)
            await broker.put_subscription(ORDERS, "s", SubscriptionSettings(start="earliest"))
            told = [(await anext(events)).type for _ in range(3)]
            assert told == ["topic_created", "publish_accepted", "subscription_added"]
        text = broker.metrics.render().decode()
        assert 'sulina_published_records_total{topic="/default/orders"} 3.0' in text
        assert 'sulina_subscription_lag_records{subscription="s",topic="/default/orders"} 3.0' in text
        await broker.delete_topic(ORDERS)
        assert "/default/orders" not in broker.metrics.render().decode()


async def test_a_slow_listener_misses_events_and_is_told_how_many(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        with broker.events.listen() as events:
            for number in range(1500):
                broker.events.emit("something", number=number)
            seen = [await anext(events) for _ in range(1001)]
            assert seen[-1].type == "events_missed"
            assert seen[-1].fields == {"count": 500}
