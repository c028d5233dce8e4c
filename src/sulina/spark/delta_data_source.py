"""Spark's data source of Delta tables without a jar, `format("sulina-delta")`: read, write, and stream from and to.

A stream's offset is the newest version whose files it has read. `files` counts those of the version after it, where a
batch ended in the midst of one. `snapshot` says that the stream is still at its beginning: it first reads all files of
that version, as if they had come with one commit.

A stream with a name (option `reader`) says at the table how far it is, and a vacuum keeps what it has not read.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from sulina.core.formats import SPARK_OFFSETS
from sulina.core.log.position import At, Position
from sulina.errors import InvalidSettings, VersionNotRetained
from sulina.spark.delta_log import (
    LogEntry,
    TableFile,
    check_readable,
    files_of,
    oldest_version,
    open_table,
    read_commit,
    schema_of,
    snapshot,
)
from sulina.spark.delta_pruning import pruned
from sulina.spark.delta_readers import ReaderFile, check_reader
from sulina.spark.delta_scan import FilePiece, ScanPlan, divided, read_pieces
from sulina.spark.delta_schema import arrow_schema
from sulina.spark.delta_sink import DeltaStreamWriter, DeltaWriter, SinkOptions
from sulina.spark.errors import TableRewritten
from sulina.spark.options import Options
from sulina.spark.push_filters import PushFilters
from sulina.spark.table_location import TableLocation

READ_OPTIONS = (
    "path", "objectsEndpoint", "version", "timestamp", "columns", "minPartitions", "start",
    "maxFilesPerTrigger", "ignoreChanges", "reader",
)  # fmt: skip
ENTRIES_MAX = 256  # commits that a stream remembers


@dataclass(frozen=True, slots=True)
class DeltaTask(InputPartition):
    """The pieces of files that one executor core reads."""

    pieces: tuple[FilePiece, ...]
    plan: ScanPlan


def _read(task: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(task, DeltaTask)
    return read_pieces(task.plan, task.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaReadOptions:
    """The options of a scan or a stream of a table."""

    location: TableLocation
    version: int | None
    timestamp: str | None
    columns: tuple[str, ...] | None
    tasks_min: int | None
    start: Position
    files_max: int | None
    ignore_changes: bool
    reader: str | None = None  # the name under which a stream says how far it is

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "DeltaReadOptions":
        """Read and check the options.

        Raises:
            InvalidSettings: an option is unknown or wrong.
            InvalidName: the reader's name cannot be one.
        """
        options = Options(given, READ_OPTIONS)
        version, timestamp = options.text("version"), options.text("timestamp")
        start, reader = Position.parse((options.text("start") or "earliest").strip()), options.text("reader")
        if reader is not None:
            check_reader(reader)
        if version is not None and timestamp is not None:
            raise InvalidSettings("set either option version or option timestamp, not both")
        if version is not None and not version.strip().isdecimal():
            raise InvalidSettings(f"option version: {version!r} is not a version of a table: use 0, 1, 2, …")
        if start.at not in (At.EARLIEST, At.LATEST, At.VERSION):
            raise InvalidSettings(f"option start: a table is read from earliest, latest or version:N on, not {start}")
        return cls(
            location=TableLocation.parse(options.text("path"), options.text("objectsEndpoint")),
            version=None if version is None else int(version),
            timestamp=timestamp,
            columns=options.names("columns"),
            tasks_min=options.count("minPartitions"),
            start=start,
            files_max=options.count("maxFilesPerTrigger"),
            ignore_changes=options.flag("ignoreChanges", otherwise=False),
            reader=reader,
        )

    def schema(self, of_table: StructType) -> StructType:
        """Return the columns that are read.

        Raises:
            InvalidSettings: the table does not have one.
        """
        if self.columns is None:
            return of_table
        known = {field.name.lower(): field for field in of_table}
        unknown = [name for name in self.columns if name.lower() not in known]
        if unknown or not self.columns:
            raise InvalidSettings(
                f"option columns: {min(unknown, default='')!r} is unknown; the columns are {', '.join(of_table.names)}"
            )
        return StructType([known[name.lower()] for name in self.columns])


class DeltaDataSource(DataSource):
    """Delta tables, by their paths."""

    @classmethod
    def name(cls) -> str:
        return "sulina-delta"

    def schema(self) -> StructType:
        options = DeltaReadOptions.of(self.options)
        return _nullable(options.schema(schema_of(_opened(options))))

    def reader(self, schema: StructType) -> "DeltaReader":
        return DeltaReader(DeltaReadOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DeltaWriter:
        return DeltaWriter(SinkOptions.of(self.options, schema, overwrite=overwrite, is_stream=False))

    def streamReader(self, schema: StructType) -> "DeltaStreamReader":
        return DeltaStreamReader(DeltaReadOptions.of(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DeltaStreamWriter:
        return DeltaStreamWriter(SinkOptions.of(self.options, schema, overwrite=overwrite, is_stream=True))


def _opened(options: DeltaReadOptions) -> Any:
    return open_table(options.location, version=options.version, timestamp=options.timestamp)


def _nullable(schema: StructType) -> StructType:
    """Make all columns nullable: files from before a column came have nulls in it."""
    return StructType([type(field)(field.name, field.dataType, True, field.metadata) for field in schema])


class DeltaReader(DataSourceReader):
    """One scan of one version."""

    def __init__(self, options: DeltaReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._filters: list[Filter] = []
        self.pushFilters = PushFilters(self._filters.extend)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        table = _opened(self._options)
        columns = tuple(table.metadata().partition_columns)
        plan = ScanPlan(self._options.location, arrow_schema(self._schema), columns)
        found = pruned(snapshot(table), self._filters, columns)
        tasks = divided(files_of(self._options.location, found, columns), self._options.tasks_min)
        # Without any task, Spark would make one of its own, that says nothing.
        return [DeltaTask(pieces, plan) for pieces in tasks or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """All files up to `version` have been read, and `files` of what comes after it."""

    version: int
    files: int = 0
    snapshot: int | None = None  # all files of this version come next

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> "StreamOffset":
        SPARK_OFFSETS.check(offset.get("format", 1), "the checkpoint of this query")
        return cls(int(offset["version"]), int(offset.get("files", 0)), offset.get("snapshot"))

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"format": SPARK_OFFSETS.number, "version": self.version}
        if self.files:
            found["files"] = self.files
        if self.snapshot is not None:
            found["snapshot"] = self.snapshot
        return found


class DeltaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream of what is added to a table, for as long as its query runs."""

    def __init__(self, options: DeltaReadOptions, schema: StructType) -> None:
        if options.version is not None or options.timestamp is not None:
            raise InvalidSettings("options version and timestamp are for spark.read: set option start for a stream")
        self._options, self._schema = options, schema
        self._forget()

    def _forget(self) -> None:
        self._table: Any = None
        self._target: int | None = None  # where a query ends that reads what is there now
        self._entries: OrderedDict[int, tuple[TableFile, ...]] = OrderedDict()
        self._first: tuple[int, list[TableFile]] | None = None
        name = self._options.reader
        self._reader = None if name is None else ReaderFile(self._options.location, name)

    def __getstate__(self) -> Mapping[str, Any]:
        return {"_options": self._options, "_schema": self._schema}  # executors need no more

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    # Where it is

    def initialOffset(self) -> dict[str, Any]:
        start, newest = self._options.start, self._newest().version()
        if start.at == At.LATEST:
            return StreamOffset(newest).to_json()
        if start.at == At.VERSION:
            return StreamOffset(start.value - 1).to_json()
        return StreamOffset(-1, snapshot=newest).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._options.files_max is None else ReadMaxFiles(self._options.files_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._enter(StreamOffset.of(start))
        newest = self._newest().version() if self._target is None else self._target
        files_max = self._options.files_max if not isinstance(limit, ReadAllAvailable) else None
        return self._next(StreamOffset.of(start), newest, files_max).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return StreamOffset(self._newest().version()).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._newest().version()

    def commit(self, end: dict[str, Any]) -> None:
        """Note that a batch is done. Spark calls this when it plans the batch after it."""
        if self._reader is not None:
            at = StreamOffset.of(end)
            self._reader.write(at.version, at.snapshot)

    def _enter(self, at: StreamOffset) -> None:
        if self._reader is not None:
            self._reader.enter(at.version, at.snapshot)

    def _next(self, at: StreamOffset, newest: int, files_max: int | None) -> StreamOffset:
        if files_max is None:
            return StreamOffset(max(at.version, newest, at.snapshot or -1))
        left = files_max
        while left and (at.snapshot is not None or at.version < newest):
            there = len(self._following(at)) - at.files
            if there > left:
                return StreamOffset(at.version, at.files + left, at.snapshot)
            left -= there
            at = self._after(at)
        return at

    # What it reads

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        at, last = StreamOffset.of(start), StreamOffset.of(end)
        self._enter(at)
        if at.snapshot is not None and last.snapshot is None and at.snapshot > last.version:
            # The first batch again, after a restart: Spark asks again where it begins, and the table has grown.
            at = StreamOffset(at.version, snapshot=last.version)
        files: list[TableFile] = []
        while at.version < last.version:
            files += self._following(at)[at.files :]
            at = self._after(at)
        if at.files < last.files:
            files += self._following(last)[at.files : last.files]
        columns = tuple(self._newest().metadata().partition_columns)
        plan = ScanPlan(self._options.location, arrow_schema(self._schema), columns)
        return [DeltaTask(pieces, plan) for pieces in divided(files, self._options.tasks_min)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def _after(self, at: StreamOffset) -> StreamOffset:
        return StreamOffset(at.version + 1 if at.snapshot is None else at.snapshot)

    def _following(self, at: StreamOffset) -> Sequence[TableFile]:
        """Yield the files that come after an offset.

        Raises:
            TableRewritten: a commit removed rows.
            VersionNotRetained: a commit is gone.
        """
        if at.snapshot is not None:
            if self._first is None or self._first[0] != at.snapshot:
                table = open_table(self._options.location, version=at.snapshot)
                columns = table.metadata().partition_columns
                self._first = at.snapshot, files_of(self._options.location, snapshot(table), columns)
            return self._first[1]
        version = at.version + 1
        if version not in self._entries:
            self._entries[version] = self._added(version)
            if len(self._entries) > ENTRIES_MAX:
                self._entries.popitem(last=False)
        return self._entries[version]

    def _added(self, version: int) -> tuple[TableFile, ...]:
        location = self._options.location
        entry: LogEntry | None = read_commit(location, version, self._newest().metadata().partition_columns)
        if entry is None:
            raise VersionNotRetained(version=version, oldest=oldest_version(location), current=self._newest().version())
        if entry.has_removed and not self._options.ignore_changes:
            raise TableRewritten(table=location.path_or_uri, version=version, operation=entry.operation)
        return entry.added

    def _newest(self) -> Any:
        if self._table is None:
            self._table = open_table(self._options.location)
        else:
            self._table.update_incremental()
            check_readable(self._options.location, self._table)
        return self._table
