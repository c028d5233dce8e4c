"""Messages one by one, batches on the wire: P5, against a node in this process and in another."""

import asyncio

import pytest

from sulina.client import BatchingRules, Client, Record, RejectReason, Rest, SyncClient
from sulina.core.topic import Schema, SchemaKind
from sulina.errors import ProducerStopped, TopicNotFound

RULES = BatchingRules(records_max=50, wait_seconds_max=0.05)


async def test_p5_every_message_gets_its_own_offset(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=3)
    async with client.producer(topic, rules=RULES) as producer:
        receipts = [producer.produce(Record(str(n), key=str(n % 7))) for n in range(200)]
        acks = await asyncio.gather(*receipts)
    assert all(ack.is_accepted and ack.count == 1 for ack in acks)
    places = {(ack.partition, ack.offset): str(n).encode() for n, ack in enumerate(acks)}
    stored = [record async for record in client.read(topic, follow=False)]
    assert {(record.partition, record.offset): record.value for record in stored} == places
    for partition in range(3):
        own = [int(record.value or b"") for record in stored if record.partition == partition]
        assert own == sorted(own), "in the order in which they were produced"
    infos = [await client.admin.partition(topic, partition) for partition in range(3)]
    assert sum(info.version for info in infos) <= 20, "they were committed in batches"


async def test_p5_what_the_topic_refuses_is_refused_alone(client: Client, topic: str) -> None:
    number = Schema(kind=SchemaKind.JSON, definition={"type": "integer"})
    await client.admin.create_topic(topic, schema=number)
    async with client.producer(topic, rules=RULES) as producer:
        values = [1, "two", 3, 4, "five", 6]
        acks = await asyncio.gather(*(producer.produce(value) for value in values))
    assert [ack.reason for ack in acks] == [
        RejectReason.INVALID_PAYLOAD if isinstance(value, str) else None for value in values
    ]
    assert [record.json() async for record in client.read(topic, follow=False)] == [1, 3, 4, 6]


async def test_p5_a_fault_of_the_system_is_raised_for_each_message(client: Client, topic: str) -> None:
    async with client.producer(topic) as producer:
        receipt = producer.produce(b"nowhere")
        with pytest.raises(TopicNotFound):
            await receipt
    assert producer.report().failed == 1


async def test_p2_nobody_listens_to_a_best_effort_topic(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, delivery="non_reliable")
    async with client.producer(topic) as producer:
        assert (await producer.produce(b"unheard")).reason == RejectReason.NO_SUBSCRIBERS
        async with client.consumer(topic, "s") as messages:
            assert (await producer.produce(b"heard")).is_accepted
            found = await messages.get(10)
            assert found is not None
            assert found.value == b"heard"


def test_p5_the_same_for_threads(sync_client: SyncClient, topic: str) -> None:
    sync_client.admin.create_topic(topic)
    with sync_client.producer(topic, rules=RULES) as producer:
        receipts = [producer.produce(str(n)) for n in range(60)]
        assert [receipt.ack().offset for receipt in receipts[:3]] == [0, 1, 2]
        producer.flush()
        assert all(receipt.is_done for receipt in receipts)
        assert producer.produce(b"").record.value == b""
        late = sync_client.producer(topic, rules=BatchingRules(wait_seconds_max=60))
        assert late.produce(b"gone").cancel()
        late.produce(b"dropped")
        assert late.waiting == 1
        assert late.stop(Rest.DISCARD).discarded == 1
        with pytest.raises(ProducerStopped):
            late.produce(b"late")
    assert producer.report().accepted == 61
    assert [record.value for record in sync_client.read(topic, follow=False)][-1] == b""
