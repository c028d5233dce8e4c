"""What a task of Spark publishes, and what it does not publish again: S2. On a real node, without a session."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

from sulina.client import SyncClient
from sulina.spark import sink
from sulina.spark.errors import SinkDiverged
from sulina.spark.sink import SulinaStreamWriter, WriteOptions
from tests.support.serving import Serving

Topic = Callable[..., str]


@contextmanager
def a_task(query: str, batch: int, number: int) -> Iterator[None]:
    """As Spark's worker says it to the writer."""
    context = TaskContext._getOrCreate()
    context._partitionId = number
    context._localProperties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    try:
        yield
    finally:
        TaskContext._taskContext = None


def write(node: Serving, topic: str, values: list[str], *, query: str = "q", batch: int = 0, task: int = 0) -> None:
    options = WriteOptions.of({"url": node.url, "topic": topic}, StructType().add("value", "string"), overwrite=False)
    halves = (values[: len(values) // 2], values[len(values) // 2 :])  # rows come in several batches of Arrow
    with a_task(query, batch, task):
        rows = iter([pa.RecordBatch.from_pydict({"value": pa.array(half, pa.string())}) for half in halves])
        assert SulinaStreamWriter(options).write(rows).rows == len(values)


def values(client: SyncClient, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in client.consume(topic, follow=False)]


def test_s2_a_task_that_is_run_again_adds_nothing(client: SyncClient, node: Serving, topic: Topic) -> None:
    name = topic(3)
    for _ in range(3):
        write(node, name, ["a", "b", "c"])
    assert sorted(values(client, name)) == ["a", "b", "c"]


def test_s2_another_task_batch_or_query_is_not_taken_for_one_that_was_there(
    client: SyncClient, node: Serving, topic: Topic
) -> None:
    name = topic()
    write(node, name, ["a", "b"])
    write(node, name, ["c", "d"], task=1)
    write(node, name, ["e", "f"], batch=1)
    write(node, name, ["g", "h"], query="other")
    assert values(client, name) == list("abcdefgh")


def test_s2_what_is_too_much_for_one_publish_is_several_each_once(
    client: SyncClient, node: Serving, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "PUBLISH_BYTES", 1)
    name = topic()
    for _ in range(2):
        write(node, name, ["a", "b", "c"])
        write(node, name, ["d", "e"], batch=1)
    assert values(client, name) == list("abcde")
    assert client.partition(name).version == 4, "four publishes, each a commit"


def test_s2_a_task_that_gives_other_rows_when_it_is_run_again_fails(
    client: SyncClient, node: Serving, topic: Topic
) -> None:
    name = topic()
    write(node, name, ["a", "b", "c"])
    with pytest.raises(SinkDiverged, match="has published 3 records"):
        write(node, name, ["a", "b"])
    assert values(client, name) == ["a", "b", "c"]
