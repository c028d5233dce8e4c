"""S7, S10: a stream with a name says how far it is, and retention waits for it. The source itself, no session."""

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from sulina.client import SyncClient
from sulina.config import Settings
from sulina.core.records.record import StoredRecord
from sulina.core.topic import Policy, TopicSettings
from sulina.errors import InvalidName, InvalidSettings, OffsetOutOfRange, ReaderNotFound
from sulina.node.node import Node
from sulina.spark.data_source import SulinaDataSource, SulinaStreamReader
from sulina.spark.options import ReadOptions
from sulina.spark.stream_positions import REPEAT_SECONDS, StreamPositions
from sulina.types import Offset, PartitionName, TopicName
from tests.support.serving import Serving

Topic = Callable[..., str]
At = dict[str, dict[str, int]]
READER = "copy-1"


def stream(url: str, topic: str, **more: str) -> SulinaStreamReader:
    given = {"url": url, "topic": topic, "start": "earliest", "reader": READER} | more
    return SulinaStreamReader(ReadOptions.of(given, is_stream=True))


def next_batch(reader: SulinaStreamReader, start: At) -> At:
    """As Spark does it: ask where the batch ends, then what it has. That it is done Spark says later."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    reader.partitions(start, end)
    return end


def positions(client: SyncClient, topic: str, name: str = READER) -> dict[int, int]:
    return {one.partition: one.offset for one in client.admin.reader(name, topic).positions}


def test_s10_a_position_follows_the_batches_that_are_done_and_is_never_ahead(
    client: SyncClient, node: Serving, topic: Topic
) -> None:
    name = topic(2)
    for partition, count in ((0, 5), (1, 3)):
        client.publish_batch(name, ["x"] * count, partition=partition)
    reader = stream(node.url, name)
    first = next_batch(reader, reader.initialOffset())
    assert positions(client, name) == {0: 0, 1: 0}, "what is being read is not done"
    reader.commit(first)
    assert positions(client, name) == {0: 5, 1: 3}
    client.publish_batch(name, ["x"] * 4, partition=1)
    second = next_batch(reader, first)
    assert positions(client, name) == {0: 5, 1: 3}
    assert client.admin.reader(READER, name).lag == 4
    assert client.admin.reader(READER, name).kind == "spark"
    reader.commit(second)
    assert positions(client, name) == {0: 5, 1: 7}


def test_s10_a_stream_that_begins_again_is_where_its_checkpoint_says(
    client: SyncClient, node: Serving, topic: Topic
) -> None:
    """A commit may never come; and whoever removes a checkpoint needs everything again."""
    name = topic()
    client.publish_batch(name, ["x"] * 9)
    reader = stream(node.url, name)
    end = next_batch(reader, reader.initialOffset())
    again = pickle.loads(pickle.dumps(reader))
    next_batch(again, end)
    assert positions(client, name) == {0: 9}, "the batch before was done, or this one would not begin"
    replayed = stream(node.url, name)
    replayed.partitions({name: {"0": 4}}, end)
    assert positions(client, name) == {0: 4}
    from_first = stream(node.url, name)
    next_batch(from_first, from_first.initialOffset())
    assert positions(client, name) == {0: 0}


def test_s10_topics_that_come_later_are_kept_from_their_first_record(
    client: SyncClient, node: Serving, topic: Topic
) -> None:
    first = topic()
    reader = stream(node.url, f"{first}*", reader="copy-2")
    end = next_batch(reader, reader.initialOffset())
    later = f"{first}-later"
    client.admin.create_topic(later)
    client.publish_batch(later, ["x"] * 3)
    after = next_batch(reader, end)
    assert positions(client, later, "copy-2") == {0: 0}
    reader.commit(after)
    assert positions(client, later, "copy-2") == {0: 3}
    client.admin.delete_topic(later)
    client.publish_batch(first, ["x"])
    reader.commit(next_batch(reader, after))
    assert positions(client, first, "copy-2") == {0: 1}


def test_s10_two_streams_with_one_name_are_told_apart(client: SyncClient, node: Serving, topic: Topic) -> None:
    name = topic()
    client.publish_batch(name, ["x"] * 9)
    ahead, behind = stream(node.url, name), stream(node.url, name, maxRowsPerTrigger="2")
    starts = [reader.initialOffset() for reader in (ahead, behind)]
    ends = [next_batch(reader, start) for reader, start in zip((ahead, behind), starts, strict=True)]
    ahead.commit(ends[0])
    with pytest.raises(InvalidSettings, match=r"from 2 to offset 9 .* give each stream a name of its own"):
        behind.commit(ends[1])


def test_s10_a_stream_without_news_says_that_it_is_still_there(client: SyncClient, node: Serving, topic: Topic) -> None:
    name, now = topic(), [0.0]
    partition = PartitionName(TopicName.parse(name), 0)
    said = StreamPositions(node.url, READER, clock=lambda: now[0])
    said.enter({partition: Offset(0)})
    said.advance({partition: Offset(2)})
    client.admin.delete_reader(READER, name)
    now[0] = REPEAT_SECONDS
    said.enter({partition: Offset(2)})
    with pytest.raises(ReaderNotFound):
        client.admin.reader(READER, name)
    now[0] += 1
    said.enter({partition: Offset(2)})
    assert positions(client, name) == {0: 2}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"reader": "a/b"}, InvalidName, "reader"),
        ({"url": "", "path": "/data"}, InvalidSettings, "option reader needs url"),
    ],
)
def test_s10_a_name_that_cannot_be_registered_is_refused(
    options: dict[str, str], error: type[Exception], message: str
) -> None:
    given = {"url": "http://127.0.0.1:1", "topic": "/default/t", "reader": READER} | options
    with pytest.raises(error, match=message):
        ReadOptions.of({name: value for name, value in given.items() if value}, is_stream=True)
    with pytest.raises(InvalidSettings, match=r"option reader is for spark\.readStream"):
        SulinaDataSource({"url": "http://127.0.0.1:1", "topic": "/default/t", "reader": READER}).reader(StructType())


async def test_s10_retention_waits_for_a_stream_with_a_name(tmp_path: Path) -> None:
    """What was read in a batch that is not done is still there, so that it can be read again."""
    node = await Node.start(Settings(data=str(tmp_path), http="127.0.0.1:0"))
    try:
        orders, name = TopicName.parse("/default/orders"), "/default/orders"
        policy = Policy(segment_bytes=1 << 16, batch_bytes_max=1 << 16, retention_bytes=1 << 16)
        await node.broker.put_topic(orders, TopicSettings(policy=policy))
        for _ in range(10):
            await node.broker.publish_records(orders, [StoredRecord(value=b"x" * 40_000)])
        reader = stream(node.url, name, maxRowsPerTrigger="4")
        start = await asyncio.to_thread(reader.initialOffset)
        first = await asyncio.to_thread(next_batch, reader, start)
        await node.broker.retain()
        assert (await node.broker.partition(orders, 0)).start_offset == 0
        assert await asyncio.to_thread(reader.partitions, start, first), "read again, as after a crash"
        second = await asyncio.to_thread(next_batch, reader, first)
        await asyncio.to_thread(reader.commit, first)
        await node.broker.retain()
        assert 0 < (await node.broker.partition(orders, 0)).start_offset <= 4
        assert await asyncio.to_thread(reader.partitions, first, second)
        with pytest.raises(OffsetOutOfRange):
            await asyncio.to_thread(reader.partitions, start, first)
        await asyncio.to_thread(reader.commit, second)
        await node.broker.retain()
        assert 4 < (await node.broker.partition(orders, 0)).start_offset <= 8
    finally:
        await node.stop()
