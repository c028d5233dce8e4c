"""From messages to acks: what is sent where, what is rejected, what is raised."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from sulina.client import (
    Client,
    ClientOptions,
    PublishAck,
    PublishPart,
    PublishStatus,
    Record,
    RejectReason,
    SplitFailed,
)
from sulina.core.records.record import decode
from sulina.core.records.routing import partition_of
from sulina.core.topic import Ack, Policy, Schema, SchemaKind, TopicSettings
from sulina.errors import (
    BatchTooLarge,
    DecompressedTooLarge,
    Disconnected,
    InvalidBatch,
    InvalidInput,
    InvalidName,
    InvalidRecord,
    InvalidSettings,
    KeysSpanPartitions,
    LogStopped,
    NoSubscribers,
    NotReliable,
    NotSerializable,
    PartitionNotFound,
    QueueFull,
    SchemaConflict,
    SulinaError,
    TopicNotFound,
    VersionConflict,
)
from sulina.wire.frames import Call, Publish
from tests.client.fake_node import TOPIC, FakeConnection, FakeNode, origin_of, passing, published, topic_info, values


class Order(msgspec.Struct):
    id: int
    items: list[str]


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        ("grüße", "grüße".encode()),
        ("", b""),
        (None, None),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        ([1, 2], b"[1,2]"),
        (7, b"7"),
        (True, b"true"),
        (Order(1, ["x"]), b'{"id":1,"items":["x"]}'),
        (Point(2), b'{"x":2}'),
    ],
    ids=range(12),
)
async def test_values_are_bytes_text_or_json(client: Client, node: FakeNode, value: object, stored: bytes) -> None:
    node.append_publishes()
    ack = await client.publish(TOPIC, value)
    assert ack.status == PublishStatus.ACCEPTED
    assert (ack.partition, ack.offset, ack.version, ack.count) == (0, 0, 0, 1)
    assert ack.raise_for_status() is ack
    assert node.log[0][0].value == stored


async def test_a_record_keeps_its_key_headers_and_time(client: Client, node: FakeNode) -> None:
    node.append_publishes()
    await client.publish(TOPIC, b"v", key="k", headers={"a": "1", "b": b"\x02", "c": None}, timestamp_ms=5)
    await client.publish(TOPIC, b"v", key=b"\xff", headers=[("a", "1"), ("a", "2")])
    first, second = node.log[0]
    assert (first.key, first.timestamp_ms) == (b"k", 5)
    assert first.headers == (("a", b"1"), ("b", b"\x02"), ("c", None))
    assert second.key == b"\xff"
    assert second.headers == (("a", b"1"), ("a", b"2"))
    assert abs(second.timestamp_ms - time.time() * 1000) < 60_000


class Strange:
    pass


@pytest.mark.parametrize(
    "message",
    [
        Strange(),
        {"a": Strange()},
        {1: {Strange(): 2}},
        float,
        "\ud800",
        Record(b"", key=5),  # type: ignore[arg-type]
        Record(b"", key="\ud800"),
        Record(b"", headers={5: b""}),  # type: ignore[arg-type]
        Record(b"", headers={"\ud800": b""}),
        Record(b"", headers={"a": 5}),  # type: ignore[arg-type]
        Record(b"", headers=5),  # type: ignore[arg-type]
        Record(b"", headers=["abc"]),  # type: ignore[list-item]
        Record(b"", timestamp_ms=1.5),  # type: ignore[arg-type]
    ],
    ids=range(13),
)
async def test_what_has_no_bytes_is_not_serializable_p2_p11(client: Client, node: FakeNode, message: object) -> None:
    ack = await client.publish_batch(TOPIC, [b"fine", message])
    assert (ack.status, ack.reason) == (PublishStatus.REJECTED, RejectReason.NOT_SERIALIZABLE)
    assert ack.message.startswith("record 1: ")
    assert not node.sent(Publish), "one bad record and nothing is sent"
    with pytest.raises(NotSerializable):
        ack.raise_for_status()
    with pytest.raises(NotSerializable):
        _ = ack.offset


@pytest.mark.parametrize("topic", ["", "/orders", "/a", "/a/b/c", "/a.b/c", "/default/../x", "/default/" + "x" * 201])
async def test_a_wrong_name_is_an_invalid_topic_p2(client: Client, node: FakeNode, topic: str) -> None:
    ack = await client.publish(topic, b"")
    assert ack.reason == RejectReason.INVALID_TOPIC
    assert not node.frames
    with pytest.raises(InvalidName):
        ack.raise_for_status()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InvalidRecord(index=0, reason="not a number"), RejectReason.INVALID_PAYLOAD),
        (InvalidBatch("wrong"), RejectReason.INVALID_PAYLOAD),
        (BatchTooLarge(size_bytes=2, limit_bytes=1), RejectReason.INVALID_PAYLOAD),
        (DecompressedTooLarge(limit_bytes=1), RejectReason.INVALID_PAYLOAD),
        (KeysSpanPartitions(topic=TOPIC, partitions="0, 1"), RejectReason.INVALID_PAYLOAD),
        (SchemaConflict(topic=TOPIC, ours="a", current="b"), RejectReason.INVALID_PAYLOAD),
        (InvalidInput("wrong"), RejectReason.INVALID_PAYLOAD),
        (QueueFull(waiting_bytes=2, limit_bytes=1), RejectReason.QUEUE_FULL),
        (NoSubscribers(topic=TOPIC), RejectReason.NO_SUBSCRIBERS),
    ],
    ids=lambda value: getattr(value, "code", ""),
)
async def test_faults_of_the_message_are_rejects_p2(
    client: Client, node: FakeNode, error: SulinaError, reason: RejectReason
) -> None:
    node.scripts[Publish] = lambda connection, frame: connection.refuse(frame, error)
    ack = await client.publish(TOPIC, b"")
    assert (ack.status, ack.reason, ack.message) == (PublishStatus.REJECTED, reason, str(error))
    assert [(part.reason, part.is_accepted) for part in ack.parts] == [(reason, False)]
    with pytest.raises(type(error)):
        ack.raise_for_status()


@pytest.mark.parametrize(
    "error",
    [
        VersionConflict(expected=1, current=2),
        LogStopped(path="/x", cause=OSError("disk")),
        InvalidSettings("wrong"),
        NotReliable(topic=TOPIC),
        TopicNotFound(topic=TOPIC),
        SulinaError("what"),
    ],
    ids=lambda error: error.code,
)
async def test_faults_of_the_system_are_raised_p2(client: Client, node: FakeNode, error: SulinaError) -> None:
    node.scripts[Publish] = lambda connection, frame: connection.refuse(frame, error)
    with pytest.raises(type(error)):
        await client.publish(TOPIC, b"", expected_version=1)
    assert len(node.sent(Publish)) <= 2


@pytest.mark.parametrize(
    "wrong", [{"partition": "0"}, {"partition": 2**70}, {"txn_id": 5}, {"txn_id": "x" * 501}, {"expected_version": "1"}]
)
async def test_what_would_cost_everybody_the_connection_is_not_sent(
    client: Client, node: FakeNode, wrong: dict[str, Any]
) -> None:
    with pytest.raises(InvalidSettings):
        await client.publish(TOPIC, b"", **wrong)
    assert not node.frames


async def test_a_message_may_be_published_as_it_is(client: Client, node: FakeNode) -> None:
    node.append_publishes()
    await client.publish(TOPIC, Record("v", key="k"))
    assert (node.log[0][0].value, node.log[0][0].key) == (b"v", b"k")


async def test_no_room_in_flight_is_a_full_queue_p2(node: FakeNode) -> None:
    async with node.client(ClientOptions(requests_in_flight_max=1, bytes_in_flight_max=1)) as client:
        first = asyncio.create_task(client.publish(TOPIC, b"first"))
        request = await node.asked(Publish)
        ack = await client.publish(TOPIC, b"second", timeout_seconds=1)
        assert ack.reason == RejectReason.QUEUE_FULL
        node.answer(request, published())
        assert (await first).is_accepted


@pytest.mark.parametrize("batch", [[], [Record(b"", timestamp_ms=2**63)], [Record(b"", timestamp_ms=-(2**70))]])
async def test_bytes_that_are_not_a_batch_are_an_invalid_payload_p2(client: Client, node: FakeNode, batch: Any) -> None:
    assert (await client.publish_batch(TOPIC, batch)).reason == RejectReason.INVALID_PAYLOAD


async def test_a_batch_that_fits_no_frame_is_not_sent_p2(
    client: Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sulina.client.batches.DATA_BYTES_MAX", 1000)
    ack = await client.publish(TOPIC, bytes(1000))
    assert ack.reason == RejectReason.INVALID_PAYLOAD
    assert not node.sent(Publish)


async def test_a_publish_that_is_cut_off_is_written_once_l13(client: Client, node: FakeNode) -> None:
    publishing = asyncio.create_task(client.publish(TOPIC, b"once"))
    lost = await node.asked(Publish)
    node.append_publishes()
    node.scripts[Publish](FakeConnection(node), lost)  # it was written, but the answer is lost
    node.connection.cut()
    ack = await publishing
    assert ack.offset == 0
    assert values(node.log[0]) == ["once"]
    assert len(node.sent(Publish)) == 2


async def test_every_publish_has_its_own_number_unless_it_was_given_a_txn_id_l13(
    client: Client, node: FakeNode
) -> None:
    node.append_publishes()
    acks = [await client.publish(TOPIC, b"x") for _ in range(3)]
    again = [await client.publish(TOPIC, b"y", txn_id="order-7") for _ in range(2)]
    assert [ack.offset for ack in acks] == [0, 1, 2]
    assert [ack.offset for ack in again] == [3, 3]
    await client.publish(TOPIC, b"x", idempotent=False)
    ids = [frame.txn_id for frame in node.sent(Publish)]
    assert ids == [None, None, None, "order-7", "order-7", None]
    producers, sequences = zip(*map(origin_of, node.sent(Publish)), strict=True)
    assert sequences == (0, 1, 2, -1, -1, -1)
    assert len(set(producers[:3])) == 1
    assert producers[0] >= 1 << 62
    assert producers[3:] == (-1, -1, -1)


async def test_without_a_number_a_publish_that_is_cut_off_is_not_repeated(node: FakeNode) -> None:
    async with node.client(ClientOptions(idempotent=False)) as client:
        publishing = asyncio.create_task(client.publish(TOPIC, b"perhaps"))
        await node.asked(Publish)
        node.connection.cut()
        with pytest.raises(Disconnected):
            await publishing
        assert len(node.sent(Publish)) == 1


async def test_an_expected_version_is_retried_under_the_same_number_l3(client: Client, node: FakeNode) -> None:
    publishing = asyncio.create_task(client.publish(TOPIC, b"x", expected_version=4))
    await node.asked(Publish)
    node.connection.cut()
    node.answer(await node.asked(Publish), published(version=5))
    assert (await publishing).version == 5
    first, second = node.sent(Publish)
    assert (origin_of(first), first.expected_version) == (origin_of(second), second.expected_version)


@pytest.mark.parametrize("settings", [passing(), TopicSettings(policy=Policy(ack=Ack.MEMORY))])
async def test_a_topic_that_remembers_nothing_is_published_to_once(
    client: Client, node: FakeNode, settings: TopicSettings
) -> None:
    node.topics[TOPIC] = settings
    publishing = asyncio.create_task(client.publish(TOPIC, b"x"))
    assert origin_of(await node.asked(Publish)) == (-1, -1)
    node.connection.cut()
    with pytest.raises(Disconnected):
        await publishing


async def test_keys_decide_the_partition_as_in_kafka(client: Client, node: FakeNode) -> None:
    node.topics[TOPIC] = TopicSettings(partitions=5)
    node.append_publishes()
    for number in range(20):
        key = f"key-{number}".encode()
        ack = await client.publish(TOPIC, b"", key=key)
        assert ack.partition == partition_of(key, 5)
    assert node.called() == {"topic": 1, "placement": 1}, "what and where it is is asked for once"


async def test_a_batch_whose_keys_span_partitions_is_refused_and_nothing_is_sent_l16(
    client: Client, node: FakeNode
) -> None:
    node.topics[TOPIC] = TopicSettings(partitions=3)
    node.append_publishes()
    ack = await client.publish_batch(TOPIC, [Record(str(n), key=f"key-{n}") for n in range(20)])
    assert (ack.reason, ack.parts, ack.count) == (RejectReason.INVALID_PAYLOAD, (), 0)
    assert "partitions 0, 1, 2" in ack.message
    with pytest.raises(KeysSpanPartitions):
        ack.raise_for_status()
    assert not node.sent(Publish)


@pytest.mark.parametrize("split", [False, True])
async def test_l16_records_without_a_key_go_along_also_where_a_batch_may_be_split(
    client: Client, node: FakeNode, split: bool
) -> None:
    node.topics[TOPIC] = TopicSettings(partitions=3)
    node.append_publishes()
    same = [Record("a", key="key-1"), Record("b"), Record("c", key="key-1")]
    for _ in range(3):
        together = await client.publish_batch(TOPIC, same, split=split)
        assert [(part.partition, part.count) for part in together.parts] == [(partition_of(b"key-1", 3), 3)]


async def test_a_batch_is_split_by_partition_where_the_caller_says_so_each_part_in_order_l16(
    client: Client, node: FakeNode
) -> None:
    node.topics[TOPIC] = TopicSettings(partitions=3)
    node.append_publishes()
    messages = [Record(str(n), key=f"key-{n % 10}", timestamp_ms=n) for n in range(100)]
    ack = await client.publish_batch(TOPIC, messages, split=True)
    assert ack.is_accepted
    assert sorted(part.partition for part in ack.parts) == [0, 1, 2]
    assert ack.count == 100
    assert len(node.sent(Publish)) == 3
    assert sorted(number for part in ack.parts for number in part.records) == list(range(100))
    for partition, log in node.log.items():
        expected = [m for m in messages if partition_of(str(m.key).encode(), 3) == partition]
        assert values(log) == [m.value for m in expected]
        assert [record.timestamp_ms for record in log] == [m.timestamp_ms for m in expected]


async def test_records_without_a_key_go_to_one_partition_a_batch_in_turn(client: Client, node: FakeNode) -> None:
    node.topics[TOPIC] = TopicSettings(partitions=3)
    node.append_publishes()
    acks = [await client.publish_batch(TOPIC, [b"a", b"b"]) for _ in range(6)]
    assert all(len(ack.parts) == 1 for ack in acks)
    assert sorted(ack.partition for ack in acks) == [0, 0, 1, 1, 2, 2]


async def test_a_txn_id_leads_to_the_same_partition_again_l13(client: Client, node: FakeNode) -> None:
    node.topics[TOPIC] = TopicSettings(partitions=7)
    node.append_publishes()
    acks = [await client.publish(TOPIC, b"x", txn_id="order-7") for _ in range(3)]
    assert len({(ack.partition, ack.offset) for ack in acks}) == 1
    assert sum(map(len, node.log.values())) == 1


async def test_an_expected_version_needs_one_partition(client: Client, node: FakeNode) -> None:
    node.topics[TOPIC] = TopicSettings(partitions=3)
    node.append_publishes()
    many = [Record(b"", key=str(n)) for n in range(20)]
    for split in (False, True):
        ack = await client.publish_batch(TOPIC, many, expected_version=1, split=split)
        assert (ack.reason, ack.parts) == (RejectReason.INVALID_PAYLOAD, ())
    with pytest.raises(InvalidSettings, match="name it, or give a key"):
        await client.publish(TOPIC, b"", expected_version=1)
    assert (await client.publish(TOPIC, b"", expected_version=1, partition=2)).partition == 2
    assert (await client.publish(TOPIC, b"", expected_version=1, key="a")).is_accepted


async def test_a_split_batch_says_what_was_taken_and_what_was_not_l16(client: Client, node: FakeNode) -> None:
    node.topics[TOPIC] = TopicSettings(partitions=2)
    node.append_publishes()
    append = node.scripts[Publish]

    def publish(error: SulinaError, connection: FakeConnection, frame: Publish) -> None:
        connection.refuse(frame, error) if frame.partition == 1 else append(connection, frame)

    many = [Record(b"", key=str(n)) for n in range(20)]
    error: SulinaError = InvalidRecord(index=0, reason="bad")
    node.scripts[Publish] = lambda connection, frame: publish(error, connection, frame)
    ack = await client.publish_batch(TOPIC, many, split=True)
    assert (ack.status, ack.reason) == (PublishStatus.REJECTED, RejectReason.INVALID_PAYLOAD)
    told = {part.partition: (part.reason, part.base_offset, part.version) for part in ack.parts}
    assert told == {0: (None, 0, 0), 1: (RejectReason.INVALID_PAYLOAD, None, None)}
    assert ack.count == len(node.log[0]), "what was not taken does not count"
    assert (ack.partition, ack.offset) == (0, 0)
    with pytest.raises(SplitFailed, match=r"1 of 2 parts .* partitions that accepted theirs: 0. partition 1: .*bad"):
        ack.raise_for_status()
    error = LogStopped(path="/x", cause=OSError("disk"))
    with pytest.raises(SplitFailed) as caught:
        await client.publish_batch(TOPIC, many, split=True)
    outcomes = {part.partition: (part.is_accepted, type(part.error)) for part in caught.value.parts}
    assert outcomes == {0: (True, type(None)), 1: (False, LogStopped)}
    assert not caught.value.retryable


async def test_a_topic_that_was_created_again_with_fewer_partitions_is_routed_again(
    client: Client, node: FakeNode
) -> None:
    node.topics[TOPIC] = TopicSettings(partitions=8)
    node.append_publishes()
    append = node.scripts[Publish]

    def publish(connection: FakeConnection, frame: Publish) -> None:
        assert frame.partition is not None
        if frame.partition >= 2:
            connection.refuse(frame, PartitionNotFound(topic=TOPIC, partition=frame.partition, partitions=2))
        else:
            append(connection, frame)

    await client.publish(TOPIC, b"", partition=0)
    node.topics[TOPIC] = TopicSettings(partitions=2)
    node.scripts[Publish] = publish
    key = next(str(n).encode() for n in range(100) if partition_of(str(n).encode(), 8) > 2)
    ack = await client.publish(TOPIC, b"", key=key)
    assert ack.partition == partition_of(key, 2)
    with pytest.raises(PartitionNotFound):
        await client.publish(TOPIC, b"", partition=5)


async def test_a_topic_that_is_gone_is_forgotten(client: Client, node: FakeNode) -> None:
    node.append_publishes()
    await client.publish(TOPIC, b"")
    del node.topics[TOPIC]
    node.scripts[Publish] = lambda connection, frame: connection.refuse(frame, TopicNotFound(topic=TOPIC))
    with pytest.raises(TopicNotFound):
        await client.publish(TOPIC, b"")
    sent = len(node.sent(Publish))
    with pytest.raises(TopicNotFound):
        await client.publish(TOPIC, b"")
    assert len(node.sent(Publish)) == sent, "it is not even tried"


async def test_what_is_known_of_a_topic_grows_old(client: Client, node: FakeNode) -> None:
    node.append_publishes()
    for _ in range(3):
        await asyncio.gather(*(client.publish(TOPIC, b"") for _ in range(10)))
        await asyncio.sleep(61)
    assert node.called() == {"topic": 3, "placement": 3}


async def test_a_schema_goes_along_as_its_fingerprint_u11(client: Client, node: FakeNode) -> None:
    node.append_publishes()
    schema = Schema(kind=SchemaKind.JSON, definition={"type": "object"})
    await client.publish(TOPIC, b"{}", schema=schema)
    await client.publish(TOPIC, b"{}", schema="abc")
    await client.publish(TOPIC, b"{}")
    assert [frame.schema_id for frame in node.sent(Publish)] == [schema.fingerprint, "abc", None]


@pytest.mark.parametrize("count", [1, 31, 32, 64, 1000])
async def test_batches_of_any_size_are_what_was_published(client: Client, node: FakeNode, count: int) -> None:
    node.scripts[Publish] = lambda connection, frame: connection.answer(frame, published(count=count))
    messages: list[object] = [
        Record(f"value-{n}", key=None if n % 3 else f"{n}", headers={"n": str(n)} if n % 5 == 0 else None)
        for n in range(count)
    ]
    await client.publish_batch(TOPIC, messages)
    await client.publish_batch(TOPIC, [f"value-{n}" for n in range(count)])
    with_keys, plain = (decode(frame.data) for frame in node.sent(Publish))
    assert values(with_keys) == values(plain) == [f"value-{n}" for n in range(count)]
    assert [record.key for record in with_keys] == [None if n % 3 else f"{n}".encode() for n in range(count)]
    assert [len(record.headers) for record in with_keys] == [
        1 + int(n % 5 == 0) for n in range(count)
    ]  # with the serializer's


def test_an_ack_is_compared_and_shown_by_what_it_says() -> None:
    one, two = (PublishAck.rejected(QueueFull(waiting_bytes=2, limit_bytes=1)) for _ in range(2))
    assert one == two
    assert "QueueFull" in repr(one)
    assert PublishAck((PublishPart(partition=3, count=1, base_offset=7),)).offset == 7


async def test_what_may_have_been_written_is_not_called_refused_p2(client: Client, node: FakeNode) -> None:
    publishing = asyncio.create_task(client.publish(TOPIC, b"", timeout_seconds=10))
    await node.asked(Publish)
    full = QueueFull(waiting_bytes=2, limit_bytes=1)
    node.scripts[Publish] = lambda connection, frame: connection.refuse(frame, full)
    node.connection.cut()
    with pytest.raises(Disconnected, match="lost before the answer"):
        await publishing
    assert len(node.sent(Publish)) > 2


@pytest.mark.parametrize("partition", [None, 0])
async def test_a_topic_created_again_is_another_topic(client: Client, node: FakeNode, partition: int | None) -> None:
    node.append_publishes()
    append = node.scripts[Publish]
    node.topics[TOPIC] = TopicSettings(partitions=2)
    await client.publish(TOPIC, b"", key=b"k", partition=partition)
    node.topics[TOPIC] = anew = TopicSettings(partitions=8)

    def publish(connection: FakeConnection, frame: Publish) -> None:
        if frame.topic_id == topic_info(TOPIC, anew).topic_id:
            append(connection, frame)
        else:
            connection.refuse(frame, TopicNotFound(topic=TOPIC))

    node.scripts[Publish] = publish
    acks = await asyncio.gather(*(client.publish(TOPIC, b"", key=b"k", partition=partition) for _ in range(10)))
    assert {ack.partition for ack in acks} == {partition_of(b"k", 8) if partition is None else 0}
    assert node.called() == {"topic": 2, "placement": 2}, "one asks for all"


async def test_those_who_wait_for_a_topic_each_wait_their_own_time(client: Client, node: FakeNode) -> None:
    node.scripts[Call] = lambda *_: None
    time = asyncio.get_running_loop().time

    async def publish(seconds: float) -> float:
        with pytest.raises(Disconnected):
            await client.publish(TOPIC, b"", timeout_seconds=seconds)
        return time()

    assert await asyncio.gather(*(publish(n) for n in (3, 1, 2, 1))) == pytest.approx([3, 1, 2, 1])
    assert node.called() == {"topic": 1, "placement": 1}
    await asyncio.sleep(100)
    node.scripts[Call] = node.answer_call
    node.append_publishes()
    assert (await client.publish(TOPIC, b"")).is_accepted, "an old failure is nobody's any more"


async def test_a_txn_id_is_text(client: Client, node: FakeNode) -> None:
    with pytest.raises(InvalidSettings, match="txn_id is not text"):
        await client.publish(TOPIC, b"", txn_id="\ud800")
    assert not node.frames
