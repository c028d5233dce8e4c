"""Where the rows of a silver table go: good ones to it, others to its quarantine table, in one pass.

- A task writes files for both tables, and counts what it leaves out. The driver commits both under the pipeline's name
  for the query and the number of the batch: a batch that is run again adds nothing to either, wherever the first
  attempt ended.
- Where a row must not be there at all, neither table gets anything of the batch.
- A commit says in its own words what became of the rows of its batch (`userMetadata`). So the counts are those of what
  is in the tables, for every reader and in every process; nothing is counted twice.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, StringType, StructType

from sulina.errors import InvalidSettings
from sulina.failpoints import Failpoint, reach
from sulina.json_values import decode_json
from sulina.spark.delta_files import FileWriter, NewFile, discard
from sulina.spark.delta_sink import SinkOptions
from sulina.spark.delta_table import commit
from sulina.spark.errors import ExpectationFailed
from sulina.spark.options import Options
from sulina.spark.pipeline.silver import ASIDE
from sulina.spark.table_location import LOG_FOLDER, TableLocation

FORMAT = "sulina-silver"
OPTIONS = ("path", "quarantine", "table", "partitionColumns", "app")
QUARANTINE = (
    StructType()
    .add("namespace", "string")
    .add("topic", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("timestamp", "timestamp")
    .add("version", "long")
    .add("key", "binary")
    .add("value", "binary")
    .add("reasons", ArrayType(StringType()))
    .add("quarantined_at", "timestamp")
)
REASONS_MAX = 100  # reasons that are counted by name; the others are counted together
OTHER = "other reasons"

WHERE = ("topic", "partition", "offset")
Where = tuple[str, int, int]


class RowCounts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How many rows were good, dropped and quarantined."""

    good: int = 0
    dropped: dict[str, int] = msgspec.field(default_factory=dict)  # by the expectation that they missed
    quarantined: dict[str, int] = msgspec.field(default_factory=dict)  # by the kind of reason

    def add(self, other: "RowCounts") -> None:
        self.good += other.good
        for ours, theirs in ((self.dropped, other.dropped), (self.quarantined, other.quarantined)):
            for reason, rows in theirs.items():
                name = reason if reason in ours or len(ours) < REASONS_MAX else OTHER
                ours[name] = ours.get(name, 0) + rows


class _Note(msgspec.Struct):
    """The user metadata of a commit."""

    counts: RowCounts


def counts_at(location: TableLocation, version: int) -> RowCounts | None:
    """Return what a version of a silver or quarantine table says about its batch. None: it is not a batch's commit."""
    data = location.objects().get(f"{LOG_FOLDER}/{version:020d}.json")
    for line in bytes(data).splitlines() if data is not None else ():
        if b'"commitInfo"' in line:
            note = msgspec.json.decode(line)["commitInfo"].get("userMetadata")
            try:
                return decode_json(note, _Note).counts
            except (msgspec.DecodeError, TypeError):
                return None
    return None


@dataclass(slots=True)
class Parts(WriterCommitMessage):
    """The files and counts of a task, or of all tasks together."""

    good: list[NewFile] = field(default_factory=list)
    aside: list[NewFile] = field(default_factory=list)
    counts: RowCounts = field(default_factory=RowCounts)
    failed: dict[str, tuple[int, Where]] = field(default_factory=dict)  # rows that must not be there, and the first

    def add(self, other: "Parts") -> None:
        self.good += other.good
        self.aside += other.aside
        self.counts.add(other.counts)
        for name, (rows, first) in other.failed.items():
            ours, earlier = self.failed.get(name, (0, first))
            self.failed[name] = ours + rows, min(earlier, first)


@dataclass(frozen=True, slots=True)
class Tables:
    """A silver table and its quarantine table. Pickled with every task."""

    name: str
    app: str
    good: SinkOptions
    aside: SinkOptions

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> "Tables":
        """Read and check the options before any row is read.

        Raises:
            InvalidSettings: an option is unknown or wrong.
            TableSchemaConflict: the columns do not fit a table.
            TableUnsupported: a table has a feature that this writer lacks.
        """
        options = Options(given, OPTIONS)
        name, app = options.text("table"), options.text("app")
        if overwrite or not name or not app or ASIDE not in schema.names:
            raise InvalidSettings(f"format {FORMAT} is what a pipeline writes silver tables with: use sulina-delta")
        paths = {"path": options.text("path") or "", "mergeSchema": "true"}
        columns = options.text("partitionColumns")
        rows = StructType([one for one in schema if one.name != ASIDE])
        return cls(
            name,
            app,
            SinkOptions.of(
                paths | ({"partitionColumns": columns} if columns else {}), rows, overwrite=False, is_stream=False
            ),
            SinkOptions.of(
                paths | {"path": options.text("quarantine") or ""}, QUARANTINE, overwrite=False, is_stream=False
            ),
        )

    def write(self, batches: Iterator[pa.RecordBatch]) -> Parts:
        """Write the rows of a task. On failure its files are deleted, as far as possible."""
        good, aside, parts = FileWriter(self.good.plan), FileWriter(self.aside.plan), Parts()
        try:
            for batch in batches:
                verdict = batch.column(ASIDE)
                rows = batch.drop_columns(ASIDE)
                if verdict.null_count < len(verdict):
                    rows = rows.filter(verdict.is_null())
                    aside.add(sort(verdict.drop_null(), parts))
                parts.counts.good += rows.num_rows
                good.add(rows)
            parts.good, parts.aside = good.finish(), aside.finish()
        except BaseException:
            discard(self.good.to.location, good.done)
            discard(self.aside.to.location, aside.done)
            raise
        for location, files in ((self.good.to.location, parts.good), (self.aside.to.location, parts.aside)):
            if files:
                reach(Failpoint.FILES_WRITTEN, location.path_or_uri)
        return parts

    def commit(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        """Commit both tables.

        Raises:
            ExpectationFailed: nothing was committed, and the files are deleted.
            TableFailed: as of `delta_table.commit`.
        """
        parts = self._sum(messages)
        if parts.failed:
            self._discard(parts)
            name, (rows, (topic, partition, offset)) = min(parts.failed.items(), key=lambda item: item[1][1])
            where = f"{topic}/{partition} at offset {offset}"
            raise ExpectationFailed(table=self.name, expectation=name, rows=rows, first=where)
        if parts.aside:
            counts = RowCounts(quarantined=parts.counts.quarantined)
            commit(replace(self.aside.to, user_metadata=_text(counts)), parts.aside, app=self.app, version=batch)
        if parts.good or parts.counts.dropped:
            counts = RowCounts(good=parts.counts.good, dropped=parts.counts.dropped)
            commit(replace(self.good.to, user_metadata=_text(counts)), parts.good, app=self.app, version=batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the files of tasks if no commit was tried; if one was, it may yet appear, and they stay."""
        if any(message is None for message in messages):
            self._discard(self._sum(messages))

    def _sum(self, messages: list[WriterCommitMessage | None]) -> Parts:
        parts = Parts()
        for message in messages:
            if isinstance(message, Parts):
                parts.add(message)
        return parts

    def _discard(self, parts: Parts) -> None:
        discard(self.good.to.location, parts.good)
        discard(self.aside.to.location, parts.aside)


def sort(rows: pa.StructArray, parts: Parts) -> pa.RecordBatch:
    """Count rows that are not good; those of the quarantine table, as it has them."""
    columns = dict(zip(rows.type.names, rows.flatten(), strict=True))
    failed, dropped = columns.pop("failed"), columns.pop("dropped")
    for name, *where in zip(failed.to_pylist(), *(columns[name].to_pylist() for name in WHERE), strict=True):
        if name is not None:
            parts.add(Parts(failed={name: (1, tuple(where))}))
    parts.counts.add(RowCounts(dropped=_counted(dropped.drop_null())))
    aside = pa.RecordBatch.from_pydict(columns).filter(pc.and_(failed.is_null(), dropped.is_null()))
    reasons = pc.list_element(aside.column("reasons"), 0)
    # Reasons that tell of a single value are counted together by how they begin.
    kinds = pc.list_element(pc.split_pattern(reasons, ":", max_splits=1), 0)
    parts.counts.add(RowCounts(quarantined=_counted(kinds)))
    now = pa.repeat(pa.scalar(int(time.time() * 1e6), pa.timestamp("us", "UTC")), aside.num_rows)
    return aside.append_column("quarantined_at", now).select(QUARANTINE.names)


def _counted(names: pa.StringArray) -> dict[str, int]:
    found = names.value_counts()
    return dict(zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True))


def _text(counts: RowCounts) -> str:
    return msgspec.json.encode(_Note(counts)).decode()


class SilverSink(DataSource):
    """The sink of silver tables. A pipeline registers it; it is not for others."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> "SilverWriter":
        return SilverWriter(Tables.of(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "SilverStreamWriter":
        return SilverStreamWriter(Tables.of(self.options, schema, overwrite=overwrite))


def register(spark: SparkSession) -> None:
    """Let a session know the format."""
    spark.dataSource.register(SilverSink)


class SilverWriter(DataSourceArrowWriter):
    """All rows at once, as batch 0."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Parts:
        return self._tables.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._tables.commit(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._tables.abort(messages)


class SilverStreamWriter(DataSourceStreamArrowWriter):
    """One query, batch after batch."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Parts:
        return self._tables.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._tables.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._tables.abort(messages)
