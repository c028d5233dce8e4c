"""Sink of topics, `df.write.format("sulina")` and `df.writeStream.format("sulina")`: rows become records, once each.

- A task is a producer for each partition of a topic, its batch is the producer's epoch, and records are numbered from 0
  in each batch (`task_origin`). The log takes every number once: a task that is retried, speculated, or run again
  because its batch is replayed, also long after, adds nothing.
- What a task has for a partition is one publish, all or nothing; what is too large for one is several, cut by the size
  of the rows as Spark gives them. Then a task must give the same rows in the same order when it is run again: what the
  log has of it is passed over, the rest follows.
- A task that gives another number of rows than it has published is an error, as far as the log can still tell. So is a
  batch from before the newest that the topic has, if its records are no longer there to be counted: nothing is left out
  in silence.
- What was sent and not answered is sent again: the log knows it by its numbers.
- A string is text to every reader, by a header that is put in front of the row's own; bytes are bytes.
- Rows with a key go where every Kafka client would send them; rows without one go to one partition for each task.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
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
from sulina.client.sync import publish_encoded
from sulina.core.log.commit import Add, Commit
from sulina.core.records.batch import split
from sulina.core.records.compression import Codec
from sulina.core.topic import DeliveryGuarantee
from sulina.errors import DuplicateSequence, InvalidSettings, OffsetOutOfRange, StaleOrigin, SulinaError
from sulina.failpoints import Failpoint, reach
from sulina.spark.clients import TIMEOUT_SECONDS, client_of
from sulina.spark.commit_feed import pages_back
from sulina.spark.errors import SinkBehind, SinkDiverged
from sulina.spark.header_columns import serializer_headers
from sulina.spark.options import Options
from sulina.spark.task_origin import SEQUENCES, TaskOrigin, task_origin
from sulina.types import TopicName, Version
from sulina.wire.messages import Published, TopicInfo

WRITE_OPTIONS = ("url", "topic", "txn", "txnVersion", "codec")
BATCH_BYTES = 8 << 20  # size of one record batch before it is compressed
PUBLISH_BYTES = 48 << 20  # size of one publish, likewise: where rows are cut must not depend on codecs or clocks
RETRY_SECONDS = 0.2
PAGES_MAX = 100  # pages of commits that are searched for a batch that was published long ago
ROW_BYTES = 40  # what a record takes beside its key, value and headers
COLUMNS = {"value", "key", "headers", "timestamp", "topic", "partition"}
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class PublishedRows(WriterCommitMessage):
    """The number of rows and publishes of one task."""

    rows: int
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write to topics."""

    url: str
    topic: str | None  # None: the column says it
    txn: str
    txn_version: int
    codec: Codec

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> "WriteOptions":
        """Read and check the options and columns.

        Raises:
            InvalidSettings: an option or a column is unknown or wrong.
        """
        options = Options(given, WRITE_OPTIONS)
        url, topic = options.text("url"), options.text("topic")
        names = {name.lower() for name in schema.names}
        if overwrite:
            raise InvalidSettings("a topic is a log, it cannot be overwritten: write with mode append")
        if url is None:
            raise InvalidSettings("option url is missing: set it to the URL of a broker")
        if "value" not in names or names - COLUMNS:
            raise InvalidSettings(
                f"rows for a topic have the column value, and may have {', '.join(sorted(COLUMNS - {'value'}))}; "
                f"these have {', '.join(schema.names)}"
            )
        if (topic is None) == ("topic" not in names):
            raise InvalidSettings(
                "the topic is given by option topic or by a column named topic, and exactly one of them is needed"
            )
        if topic is not None:
            topic = str(TopicName.of(topic))
        codec = options.choice("codec", tuple(each.name.lower() for each in Codec))
        txn, version = options.text("txn"), options.text("txnVersion")
        if version is not None and (txn is None or not version.strip().isdecimal()):
            raise InvalidSettings("option txnVersion is a number, 0 or more, of what is written under the name txn")
        return cls(
            url=url,
            topic=topic,
            txn=txn or uuid4().hex,
            txn_version=int(version or 0),
            codec=Codec[codec.upper()],
        )


class SulinaWriter(DataSourceArrowWriter):
    """One `df.write`. With the option `txn`, writing the same rows again adds nothing.

    Many writes share a name if each has a `txnVersion` of its own, higher than those before.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedRows:
        return _Publishing(self._options, f"txn {self._options.txn}", self._options.txn_version).write(iterator)


class SulinaStreamWriter(DataSourceStreamArrowWriter):
    """One `df.writeStream`, batch after batch. What was published is there: a batch needs no commit."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedRows:
        """Publish the rows of one task of a batch.

        Raises:
            InvalidSettings: Spark did not name the query and the batch.
        """
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if not query or not batch:
            raise InvalidSettings("Spark did not name the query and the batch: use df.writeStream")
        return _Publishing(self._options, f"query {query}", int(batch)).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        reach(Failpoint.PUBLISH_ALL_DONE, self._options.topic or "")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass


class _Publishing:
    """The rows of one task."""

    def __init__(self, options: WriteOptions, writer: str, batch: int) -> None:
        context = TaskContext.get()
        assert context is not None
        self._options = options
        self._writer, self._batch, self._task = writer, batch, context.partitionId()
        self._now_ms = int(time.time() * 1000)
        self._parts: dict[tuple[str, int], _Part] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._rows = self._publishes = 0

    @cached_property
    def _client(self) -> SyncClient:
        return client_of(self._options.url)

    def write(self, batches: Iterator[pa.RecordBatch]) -> PublishedRows:
        for batch in batches:
            self._rows += batch.num_rows
            columns = {name.lower(): column for name, column in zip(batch.schema.names, batch.columns, strict=True)}
            for topic, rows in self._by_topic(columns, batch.num_rows):
                self._take(topic, rows)
        for _, part in sorted(self._parts.items()):
            self._publish(part)
            self._check_complete(part)
        return PublishedRows(self._rows, self._publishes)

    def _by_topic(self, columns: dict[str, pa.Array], count: int) -> Iterator[tuple[str, dict[str, pa.Array]]]:
        topics = columns.pop("topic", None)
        if topics is None:
            assert self._options.topic is not None
            yield self._options.topic, columns
            return
        if topics.null_count:
            raise InvalidSettings(f"{topics.null_count} of {count} rows have no topic")
        for topic in topics.unique().to_pylist():
            TopicName.parse(topic)  # rows of a topic have its name without its namespace: nothing is guessed here
            mask = pc.equal(topics, topic)
            yield topic, {name: column.filter(mask) for name, column in columns.items()}

    def _take(self, topic: str, columns: dict[str, pa.Array]) -> None:
        partitions = self._partitions(topic, columns)
        for partition in np.unique(partitions):
            mask = partitions == partition
            some = columns if mask.all() else {name: column.filter(pa.array(mask)) for name, column in columns.items()}
            part = self._part(topic, int(partition))
            for _ in part.add({name: column for name, column in some.items() if name != "partition"}):
                if part.size_bytes >= PUBLISH_BYTES:
                    self._publish(part)

    def _part(self, topic: str, partition: int) -> "_Part":
        part = self._parts.get((topic, partition))
        if part is None:
            origin = task_origin(self._writer, self._batch, self._task, topic, partition)
            part = _Part(topic, partition, origin, self._options.codec, self._now_ms)
            if self._topics[topic].settings.delivery == DeliveryGuarantee.RELIABLE:  # it has a log
                part.version_before = self._client.admin.partition(topic, partition).version
            self._parts[topic, partition] = part
        return part

    def _partitions(self, topic: str, columns: dict[str, pa.Array]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        from sulina.spark.key_columns import column_partitions  # for executors: it takes a second to import

        if topic not in self._topics:
            self._topics[topic] = self._client.admin.topic(topic)
        count = self._topics[topic].settings.partitions
        keyless = crc32(f"{self._writer}/{self._batch}/{self._task}".encode()) % count
        rows = len(columns["value"])
        key, named = columns.get("key"), columns.get("partition")
        partitions = np.full(rows, keyless, np.int32) if key is None else column_partitions(key, count, keyless)
        if named is not None:
            is_named = named.is_valid().to_numpy(zero_copy_only=False)
            partitions = np.where(is_named, named.fill_null(0).to_numpy(zero_copy_only=False), partitions).astype(
                np.int32
            )
        if rows and not 0 <= partitions.min() <= partitions.max() < count:
            wrong = int(partitions.min() if partitions.min() < 0 else partitions.max())
            raise InvalidSettings(f"a row names partition {wrong}, and {topic} has partitions 0 to {count - 1}")
        return partitions

    def _publish(self, part: "_Part") -> None:
        """Publish the records that wait, unless the log has them.

        Raises:
            SinkDiverged: the log has a part of it.
        """
        data, first, rows = part.take()
        if not rows or part.is_superseded:
            return
        try:
            part.answer = self._sent(part, data)
        except StaleOrigin:  # a later batch has published here
            part.is_superseded = True
            return
        except DuplicateSequence as known:
            # Of a producer's older publishes, the log only knows how far they came. Where one of our batches was there
            # and another was not, it names the other, as both numbers: then the first ends within ours.
            has = known.last + 1 if known.sequence < known.last else first
            if has < first + rows:
                raise self._diverged(part, theirs=has) from known
            part.answer, part.stored = None, has
        self._publishes += 1
        reach(Failpoint.PUBLISH_DONE, part.topic)

    def _sent(self, part: "_Part", data: memoryview) -> Published:
        """Publish, again if the outcome is not known: the log has it once."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                return publish_encoded(
                    self._client, part.topic, part.partition, data, topic_id=self._topics[part.topic].topic_id
                )
            except SulinaError as error:
                if not error.retryable or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_SECONDS)

    # What the log had before

    def _check_complete(self, part: "_Part") -> None:
        """Check that the log has as many records of this task as it gave now.

        Raises:
            SinkDiverged: it has another number.
            SinkBehind: a later batch is there, and this one cannot be counted.
        """
        if part.is_superseded:
            has = self._count_stored(part)
            if not has:
                raise SinkBehind(topic=part.topic, partition=part.partition, writer=self._name, records=part.records)
        elif part.answer is None:
            has = part.stored
        else:
            has = part.records
            version, base = part.answer.version, part.answer.base_offset
            if version is not None and base is not None and version <= part.version_before:
                has = max(has, self._last_stored(part, base + part.answer.count))
        if has != part.records:
            raise self._diverged(part, theirs=has)

    def _last_stored(self, part: "_Part", offset: int) -> int:
        """Return how many records there were when the one at an offset was written; 0 if that is not of this task."""
        try:
            data = self._client.admin.fetch(part.topic, part.partition, offset, max_bytes=1).data
        except OffsetOutOfRange:
            return 0
        numbers = [
            header.base_sequence + header.record_count
            for header in split(data, check_crc=False)
            if (header.producer_id, header.producer_epoch) == (part.origin.producer_id, part.origin.epoch)
        ]
        return max(numbers, default=0)

    def _count_stored(self, part: "_Part") -> int:
        """Return how many records of this task and batch the commits tell of; 0 if they are gone."""
        ask = partial(_commits, self._client, part)
        newest = Version(self._client.admin.partition(part.topic, part.partition).version)
        count = 0
        for page, _ in zip(pages_back(ask, Version(-1), newest), range(PAGES_MAX), strict=False):
            adds = [one for commit in page for one in commit.operations if isinstance(one, Add)]
            ours = [one for one in adds if one.origin_id == part.origin.producer_id]
            count += sum(one.offset_end - one.offset_start for one in ours if one.origin_epoch == part.origin.epoch)
            if any(one.origin_epoch < part.origin.epoch for one in ours):
                break
        return count

    @property
    def _name(self) -> str:
        return f"{self._writer}, batch {self._batch}, task {self._task}"

    def _diverged(self, part: "_Part", theirs: int) -> SinkDiverged:
        return SinkDiverged(
            topic=part.topic, partition=part.partition, writer=self._name, ours=part.records, theirs=theirs
        )


def _commits(client: SyncClient, part: "_Part", start: Version, end: Version) -> list[Commit]:
    return client.admin.commits(part.topic, part.partition, start=start, end=end)


class _Part:
    """Rows for one partition, encoded as they come, and what became of those that were published."""

    def __init__(self, topic: str, partition: int, origin: TaskOrigin, codec: Codec, now_ms: int) -> None:
        self.topic, self.partition, self.origin = topic, partition, origin
        self._codec, self._now_ms = codec, now_ms
        self._encoded: list[memoryview] = []
        self.size_bytes = 0  # size of the rows that wait, before they are encoded
        self.records = 0  # how many this task has for this batch so far
        self._published = 0  # how many of them
        self.version_before = -1  # version of the log when the task began to write to it
        self.answer: Published | None = None  # to the last publish
        self.stored = 0  # where the log gave none: how many records of this task and batch it has
        self.is_superseded = False  # the log has a later batch

    def add(self, columns: dict[str, pa.Array]) -> Iterator[None]:
        """Encode rows, one record batch after the other; yield after each, so that the caller can publish."""
        from sulina.core.records.columns import encode_columns  # for executors: it takes a second to import

        rows = len(columns["value"])
        size = sum(column.nbytes for column in columns.values()) + ROW_BYTES * rows
        batch_rows = max(1, rows * BATCH_BYTES // max(size, 1))
        for first in range(0, rows, batch_rows):
            some = {name: column.slice(first, batch_rows) for name, column in columns.items()}
            self._encoded.append(
                encode_columns(
                    value=some["value"],
                    timestamp_ms=self._times(some.get("timestamp")),
                    key=some.get("key"),
                    headers=serializer_headers(some["value"], some.get("headers")),
                    codec=self._codec,
                    producer_id=self.origin.producer_id,
                    producer_epoch=self.origin.epoch,
                    base_sequence=self.records % SEQUENCES,
                )
            )
            count = len(some["value"])
            self.records += count
            self.size_bytes += size * count // rows
            yield

    def _times(self, column: pa.Array | None) -> pa.Array | int:
        if column is None:
            return self._now_ms
        times = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
        return times.fill_null(self._now_ms)

    def take(self) -> tuple[memoryview, int, int]:
        """Return the batches that wait, the number of their first record, and how many records they hold."""
        data, first, rows = memoryview(b"".join(self._encoded)), self._published, self.records - self._published
        self._encoded, self.size_bytes, self._published = [], 0, self.records
        return data, first, rows
