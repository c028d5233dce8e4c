"""Publishing: what is accepted, where it went, and why something was not."""

import asyncio

import pytest

from sulina.client import Client, Message, PublishStatus, Record, RejectReason
from sulina.core.records.routing import partition_of
from sulina.core.records.serializer import SERIALIZER_HEADER
from sulina.core.topic import Ack, Schema, SchemaKind
from sulina.errors import (
    BatchTooLarge,
    InvalidRecord,
    NoSubscribers,
    NotReliable,
    PartitionNotFound,
    QueueFull,
    SchemaConflict,
    TopicNotFound,
    VersionConflict,
)
from tests.api.conftest import OpenClient

NUMBER = Schema(kind=SchemaKind.JSON, definition={"type": "object", "properties": {"n": {"type": "integer"}}})
TEXT = Schema(kind=SchemaKind.JSON, definition={"type": "string"})


async def contents(client: Client, topic: str) -> list[Message]:
    return [record async for record in client.read(topic, follow=False)]


async def test_a_record_is_read_as_it_was_published_p1(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    ack = await client.publish(
        topic, {"n": 1}, key="k", headers={"a": b"\x00", "b": None}, timestamp_ms=1_700_000_000_000
    )
    assert (ack.status, ack.reason, ack.partition, ack.offset) == (PublishStatus.ACCEPTED, None, 0, 0)
    assert ack.parts[0].ack == Ack.LOCAL
    assert await contents(client, topic) == [
        Message(
            value=b'{"n":1}',
            key=b"k",
            timestamp_ms=1_700_000_000_000,
            headers=((SERIALIZER_HEADER, b"2"), ("a", b"\x00"), ("b", None)),
            offset=0,
            partition=0,
            topic=topic,
        )
    ]


async def test_tombstones_and_empty_values_differ(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    await client.publish(topic, None, key=b"gone")
    await client.publish(topic, b"", key=b"")
    first, second = await contents(client, topic)
    assert (first.value, first.text, first.json()) == (None, None, None)
    assert (second.value, second.key) == (b"", b"")


async def test_a_batch_is_one_commit_l16(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    ack = await client.publish_batch(topic, [b"a", "b", {"c": 1}, Record("d", key="k")])
    assert (ack.offset, ack.count, len(ack.parts)) == (0, 4, 1)
    assert (await client.admin.partition(topic)).version == ack.version
    assert ack.version is not None
    assert [record.value for record in await contents(client, topic)] == [b"a", b"b", b'{"c":1}', b"d"]


@pytest.mark.parametrize("count", [63, 1000, 20_000])
async def test_large_batches_pass_whole(client: Client, topic: str, count: int) -> None:
    await client.admin.create_topic(topic)
    ack = await client.publish_batch(topic, [f"value-{n}" for n in range(count)])
    assert ack.count == count
    records = await contents(client, topic)
    assert [record.offset for record in records] == list(range(count))
    assert records[-1].text == f"value-{count - 1}"


async def test_keys_decide_the_partition_and_batches_are_split_by_it(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=4)
    ack = await client.publish_batch(topic, [Record(str(n), key=f"key-{n % 20}") for n in range(200)], split=True)
    assert ack.count == 200
    assert len(ack.parts) == 4
    records = await contents(client, topic)
    assert len(records) == 200
    for record in records:
        assert record.key is not None
        assert record.partition == partition_of(record.key, 4)
    for partition in range(4):
        numbers = [int(record.text or "") for record in records if record.partition == partition]
        assert numbers == sorted(numbers)


async def test_records_without_a_key_take_turns(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=3)
    acks = [await client.publish(topic, b"") for _ in range(6)]
    assert sorted(ack.partition for ack in acks) == [0, 0, 1, 1, 2, 2]


async def test_pipelined_publishes_are_appended_in_their_order(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    await client.publish(topic, b"-1")
    acks = await asyncio.gather(*(client.publish(topic, str(n)) for n in range(200)))
    assert [ack.offset for ack in acks] == list(range(1, 201))
    assert [record.text for record in await contents(client, topic)] == [str(n) for n in range(-1, 200)]


async def test_a_txn_id_is_answered_once_l13(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=3)
    first = await client.publish_batch(topic, [b"a", b"b"], txn_id="order-7")
    again = await client.publish_batch(topic, [b"a", b"b"], txn_id="order-7")
    other = await client.publish(topic, b"c", txn_id="order-8")
    assert first == again
    assert other != first
    assert sorted(record.value or b"" for record in await contents(client, topic)) == [b"a", b"b", b"c"]


async def test_of_two_writers_at_one_version_one_wins_l3(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    ack = await client.publish(topic, b"first")
    outcomes = await asyncio.gather(
        *(client.publish(topic, str(n), expected_version=ack.version) for n in range(5)), return_exceptions=True
    )
    conflicts = [outcome for outcome in outcomes if isinstance(outcome, VersionConflict)]
    assert len(conflicts) == 4
    current = (await client.admin.partition(topic)).version
    assert {conflict.current for conflict in conflicts} <= {ack.version, current}
    retried = await client.publish(topic, b"again", expected_version=current)
    assert retried.offset == 2


async def test_an_invalid_topic_is_rejected_p2(client: Client) -> None:
    for name in ("/orders", "/default/../etc", "/default/a b", ""):
        ack = await client.publish(name, b"")
        assert (ack.status, ack.reason) == (PublishStatus.REJECTED, RejectReason.INVALID_TOPIC)


async def test_an_invalid_payload_is_rejected_and_nothing_of_it_is_written_p2(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, schema=NUMBER, policy={"batch_bytes_max": 2048})
    wrong = await client.publish_batch(topic, [{"n": 1}, {"n": "one"}])
    assert (wrong.status, wrong.reason) == (PublishStatus.REJECTED, RejectReason.INVALID_PAYLOAD)
    with pytest.raises(InvalidRecord):
        wrong.raise_for_status()
    large = await client.publish(topic, {"n": 1, "text": "x" * 4096})
    assert large.reason == RejectReason.INVALID_PAYLOAD
    with pytest.raises(BatchTooLarge):
        large.raise_for_status()
    empty = await client.publish_batch(topic, [])
    assert empty.reason == RejectReason.INVALID_PAYLOAD
    assert await contents(client, topic) == []
    assert (await client.publish(topic, {"n": 2})).is_accepted


async def test_what_has_no_bytes_is_rejected_p2_p11(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    ack = await client.publish_batch(topic, [b"fine", object()])
    assert ack.reason == RejectReason.NOT_SERIALIZABLE
    assert await contents(client, topic) == []


async def test_a_full_queue_is_rejected_p2(open_client: OpenClient, topic: str) -> None:
    client = await open_client(requests_in_flight_max=1)
    await client.admin.create_topic(topic)
    await client.publish(topic, b"the topic is known from here on")
    first, second = await asyncio.gather(client.publish(topic, b"1"), client.publish(topic, b"2", timeout_seconds=0))
    assert first.is_accepted
    assert (second.status, second.reason) == (PublishStatus.REJECTED, RejectReason.QUEUE_FULL)
    with pytest.raises(QueueFull):
        second.raise_for_status()


async def test_nobody_to_hear_it_is_rejected_by_topics_that_keep_nothing_p2(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, delivery="non_reliable")
    ack = await client.publish(topic, b"anybody?")
    assert (ack.status, ack.reason) == (PublishStatus.REJECTED, RejectReason.NO_SUBSCRIBERS)
    with pytest.raises(NoSubscribers):
        ack.raise_for_status()
    reliable = topic + "-kept"
    await client.admin.create_topic(reliable)
    assert (await client.publish(reliable, b"later")).is_accepted


async def test_a_best_effort_topic_delivers_to_the_consumers_that_are_attached_p3(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, delivery="non_reliable")
    async with client.consumer(topic, "a") as first, client.consumer(topic, "b", mode="shared") as second:
        ack = await client.publish_batch(topic, [b"1", b"2"])
        assert ack.is_accepted
        assert ack.parts[0].ack == Ack.MEMORY
        for messages in (first, second):
            received = [await messages.get(10), await messages.get(10)]
            assert [message.value for message in received if message] == [b"1", b"2"]
            for message in received:
                assert message is not None
                assert await messages.ack(message)
    assert (await client.publish(topic, b"3")).reason == RejectReason.NO_SUBSCRIBERS
    with pytest.raises(NotReliable):
        await anext(client.read(topic))


async def test_a_memory_ack_knows_no_offset(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, policy={"ack": "memory"})
    async with client.read(topic) as records:
        ack = await client.publish(topic, b"soon")
        assert (ack.parts[0].ack, ack.offset, ack.version) == (Ack.MEMORY, None, None)
        assert (await anext(records)).value == b"soon"


async def test_system_faults_raise_p2(client: Client, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        await client.publish(topic, b"")
    await client.admin.create_topic(topic)
    with pytest.raises(PartitionNotFound):
        await client.publish(topic, b"", partition=1)


async def test_a_topic_that_is_created_again_is_routed_again(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=4)
    acks = [await client.publish(topic, b"", key=f"{n}") for n in range(20)]
    assert {ack.partition for ack in acks} == {0, 1, 2, 3}
    await client.admin.delete_topic(topic)
    await client.admin.create_topic(topic, partitions=1)
    acks = [await client.publish(topic, b"", key=f"{n}") for n in range(20)]
    assert [(ack.partition, ack.offset) for ack in acks] == [(0, n) for n in range(20)]


async def test_another_schema_is_refused_once_there_is_data_u11(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, schema=NUMBER)
    await client.admin.create_topic(topic, schema=TEXT)  # nothing is there yet
    assert (await client.publish(topic, '"hello"', schema=TEXT)).is_accepted
    refused = await client.publish(topic, {"n": 1}, schema=NUMBER)
    assert refused.reason == RejectReason.INVALID_PAYLOAD
    with pytest.raises(SchemaConflict):
        refused.raise_for_status()
    with pytest.raises(SchemaConflict):
        await client.admin.create_topic(topic, schema=NUMBER)
    same = Schema(kind=SchemaKind.JSON, definition={"type": "string"})
    assert (await client.admin.create_topic(topic, schema=same)).schema_id == TEXT.fingerprint


async def test_p1_a_topic_without_a_namespace_is_in_default(client: Client, topic: str) -> None:
    """Every method takes the short name that the command line takes."""
    short = topic.removeprefix("/default/")
    assert "/" not in short
    assert (await client.admin.create_topic(short)).topic == topic
    assert (await client.admin.topic(short)).topic == topic
    (await client.publish(short, b"1")).raise_for_status()
    async with client.producer(short) as producer:
        producer.produce(b"2")
    assert [message.payload for message in await contents(client, short)] == [b"1", b"2"]
    async with client.consumer(short, "billing", start="earliest") as messages:
        taken = [await anext(messages), await anext(messages)]
        assert [message.topic for message in taken] == [topic, topic]
        await messages.ack(*taken)
    assert (await client.admin.subscription(short, "billing")).topic == topic
    heard: asyncio.Queue[object] = asyncio.Queue()
    subscriber = await client.subscribe(short, lambda message: heard.put_nowait(message.payload))
    (await client.publish(short, b"3")).raise_for_status()
    async with asyncio.timeout(30):
        assert await heard.get() == b"3"
    await client.unsubscribe(short, subscriber)
    assert (await client.admin.partition(short)).end_offset == 3
    await client.admin.delete_topic(short)
    with pytest.raises(TopicNotFound):
        await client.admin.topic(topic)
