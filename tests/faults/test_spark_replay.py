"""A micro-batch that Spark replays long after adds nothing, however much others have published since (finding 11).

A log remembers some thousands of publishes one by one. It remembers a producer by one entry, so a task of Spark is one.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

import sulina
from sulina.spark.sink import SulinaStreamWriter, WriteOptions
from tests.support.serving import Serving, serving

TOPIC = "/default/copy"
ROWS = [f"row {number}" for number in range(50)]
OTHERS = 10_500  # publishes; more than a log remembers one by one
AT_ONCE = 500


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "data") as node:
        yield node


def run_task(url: str, batch: int) -> None:
    """One task of a micro-batch, as Spark's worker runs it."""
    options = WriteOptions.of({"url": url, "topic": TOPIC}, StructType().add("value", "string"), overwrite=False)
    properties = {"sql.streaming.queryId": "copying", "streaming.sql.batchId": str(batch)}
    context = SimpleNamespace(partitionId=lambda: 0, getLocalProperty=properties.get)
    with patch.object(TaskContext, "get", return_value=context):
        SulinaStreamWriter(options).write(iter([pa.RecordBatch.from_pydict({"value": pa.array(ROWS)})]))


async def publish_others(url: str) -> None:
    async with sulina.connect(url) as client:
        for _ in range(OTHERS // AT_ONCE):
            acks = await asyncio.gather(*(client.publish(TOPIC, b"other") for _ in range(AT_ONCE)))
            for ack in acks:
                ack.raise_for_status()


def test_s2_a_batch_that_is_replayed_after_ten_thousand_other_publishes_adds_nothing(node: Serving) -> None:
    with sulina.connect_sync(node.url) as client:
        client.admin.create_topic(TOPIC)
        run_task(node.url, batch=7)
        asyncio.run(publish_others(node.url))
        run_task(node.url, batch=7)
        stored = [(record.value or b"").decode() for record in client.read(TOPIC, follow=False)]
    assert len(stored) == len(ROWS) + OTHERS
    assert [value for value in stored if value != "other"] == ROWS
