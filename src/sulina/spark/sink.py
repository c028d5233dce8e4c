"""`df.write.format("sulina")` and `df.writeStream.format("sulina")`: rows become records, exactly once.

- What a task has for a partition of a topic is one publish, all or nothing, under a txn_id made of query, batch and
  task. A task that is retried, speculated, or run again because its batch is replayed finds the first answer, and adds
  nothing.
- What is too large for one publish is several, each under a txn_id of its own. Then the task must give the same rows in
  the same order when it is run again; where it gives another number of them, the write fails.
- Rows with a key go where every Kafka client would send them; rows without one go to one partition for each task.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from uuid import uuid4
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from sulina.client import SyncClient
from sulina.core.compression import Codec
from sulina.errors import InvalidSettings
from sulina.spark.clients import client_of
from sulina.spark.errors import SinkDiverged
from sulina.spark.options import Options
from sulina.spark.steps import Step, step
from sulina.types import TopicName

WRITE_OPTIONS = ("url", "topic", "txn", "codec")
BATCH_BYTES = 8 << 20  # of one record batch, before it is compressed
PUBLISH_BYTES = 48 << 20  # of one publish
ROW_BYTES = 40  # that a record costs beside its key, value and headers
COLUMNS = {"value", "key", "headers", "timestamp", "topic", "partition"}
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task has published."""

    rows: int
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where rows go."""

    url: str
    topic: str | None  # None: the column says it
    txn: str
    codec: Codec

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> "WriteOptions":
        """InvalidSettings: also for columns that no record has."""
        options = Options(given, WRITE_OPTIONS)
        url, topic = options.text("url"), options.text("topic")
        names = {name.lower() for name in schema.names}
        if overwrite:
            raise InvalidSettings("a topic is a log, it cannot be overwritten: write with mode append")
        if url is None:
            raise InvalidSettings("say where: option url, of a broker")
        if "value" not in names or names - COLUMNS:
            raise InvalidSettings(
                f"rows for a topic have the column value, and may have {', '.join(sorted(COLUMNS - {'value'}))}; "
                f"these have {', '.join(schema.names)}"
            )
        if (topic is None) == ("topic" not in names):
            raise InvalidSettings("say the topic once: by option topic, or in a column topic")
        if topic is not None:
            TopicName.parse(topic)
        codec = options.choice("codec", tuple(each.name.lower() for each in Codec))
        return cls(url=url, topic=topic, txn=options.text("txn") or uuid4().hex, codec=Codec[codec.upper()])


class SulinaWriter(DataSourceArrowWriter):
    """One `df.write`. With the option `txn`, writing the same rows again adds nothing."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _Publishing(self._options, self._options.txn).write(iterator)


class SulinaStreamWriter(DataSourceStreamArrowWriter):
    """One `df.writeStream`, batch after batch. What was published is there: a batch needs no commit."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if not query or not batch:
            raise InvalidSettings("Spark did not say which batch of which query this is")
        return _Publishing(self._options, f"{query}/{batch}").write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        step(Step.PUBLISH_ALL_DONE, self._options.topic or "")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass


class _Publishing:
    """The rows of one task."""

    def __init__(self, options: WriteOptions, txn: str) -> None:
        context = TaskContext.get()
        assert context is not None
        self._options = options
        self._txn, self._task = txn, context.partitionId()
        self._now_ms = int(time.time() * 1000)
        self._waiting: dict[tuple[str, int], _Part] = {}
        self._partitions: dict[str, int] = {}
        self._rows = self._parts = 0

    @cached_property
    def _client(self) -> SyncClient:
        return client_of(self._options.url)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        for batch in batches:
            self._rows += batch.num_rows
            columns = {name.lower(): column for name, column in zip(batch.schema.names, batch.columns, strict=True)}
            for topic, rows in self._by_topic(columns, batch.num_rows):
                self._take(topic, rows)
        for topic, partition in sorted(self._waiting):
            self._publish(topic, partition, is_last=True)
        return Written(self._rows, self._parts)

    def _by_topic(self, columns: dict[str, pa.Array], count: int) -> Iterator[tuple[str, dict[str, pa.Array]]]:
        topics = columns.pop("topic", None)
        if topics is None:
            assert self._options.topic is not None
            yield self._options.topic, columns
            return
        if topics.null_count:
            raise InvalidSettings(f"{topics.null_count} of {count} rows have no topic")
        for topic in topics.unique().to_pylist():
            mask = pc.equal(topics, topic)
            yield topic, {name: column.filter(mask) for name, column in columns.items()}

    def _take(self, topic: str, columns: dict[str, pa.Array]) -> None:
        places = self._places(topic, columns)
        for partition in np.unique(places):
            mask = places == partition
            some = columns if mask.all() else {name: column.filter(pa.array(mask)) for name, column in columns.items()}
            part = self._waiting.setdefault((topic, int(partition)), _Part(self._options.codec, self._now_ms))
            part.add({name: column for name, column in some.items() if name != "partition"})
            if part.size_bytes >= PUBLISH_BYTES:
                self._publish(topic, int(partition), is_last=False)

    def _places(self, topic: str, columns: dict[str, pa.Array]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        from sulina.core.key_columns import column_partitions  # for executors: it takes a second to import

        if topic not in self._partitions:
            self._partitions[topic] = self._client.topic(topic).settings.partitions
        count = self._partitions[topic]
        keyless = crc32(f"{self._txn}/{self._task}".encode()) % count
        rows = len(columns["value"])
        key, named = columns.get("key"), columns.get("partition")
        places = np.full(rows, keyless, np.int32) if key is None else column_partitions(key, count, keyless)
        if named is not None:
            is_named = named.is_valid().to_numpy(zero_copy_only=False)
            places = np.where(is_named, named.fill_null(0).to_numpy(zero_copy_only=False), places).astype(np.int32)
        if rows and not 0 <= places.min() <= places.max() < count:
            raise InvalidSettings(f"{topic} has {count} partitions; a row says {int(places.max())}")
        return places

    def _publish(self, topic: str, partition: int, *, is_last: bool) -> None:
        part = self._waiting[topic, partition]
        data, rows = part.take()
        if not rows:
            return
        # The only publish of a task has no number: whatever order its rows come in, it is the same.
        number = "" if is_last and part.taken == 1 else f"/{part.taken}"
        txn_id = f"spark/{self._txn}/{self._task}{number}"
        published = self._client.publish_encoded(topic, partition, data, txn_id=txn_id)
        if published.count != rows:
            raise SinkDiverged(topic=topic, partition=partition, txn_id=txn_id, ours=rows, theirs=published.count)
        self._parts += 1
        step(Step.PUBLISH_DONE, topic)


class _Part:
    """Rows for one partition, encoded as they come."""

    def __init__(self, codec: Codec, now_ms: int) -> None:
        self._codec, self._now_ms = codec, now_ms
        self._encoded: list[memoryview] = []
        self.size_bytes = self._count = 0
        self.taken = 0  # publishes

    def add(self, columns: dict[str, pa.Array]) -> None:
        from sulina.core.columns import encode_columns  # as above

        rows = len(columns["value"])
        size = sum(column.nbytes for column in columns.values()) + ROW_BYTES * rows
        step = max(1, rows * BATCH_BYTES // max(size, 1))
        for first in range(0, rows, step):
            some = {name: column.slice(first, step) for name, column in columns.items()}
            encoded = encode_columns(
                value=some["value"],
                timestamp_ms=self._times(some.get("timestamp")),
                key=some.get("key"),
                headers=some.get("headers"),
                codec=self._codec,
            )
            self._encoded.append(encoded)
            self.size_bytes += len(encoded)
        self._count += rows

    def _times(self, column: pa.Array | None) -> pa.Array | int:
        if column is None:
            return self._now_ms
        times = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
        return times.fill_null(self._now_ms)

    def take(self) -> tuple[memoryview, int]:
        """What there is, and how many rows that are."""
        data, rows = memoryview(b"".join(self._encoded)), self._count
        self._encoded, self.size_bytes, self._count = [], 0, 0
        self.taken += bool(rows)
        return data, rows
