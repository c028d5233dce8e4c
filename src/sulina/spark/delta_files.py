"""From Arrow batches to the Parquet files of a Delta table. Runs in executors.

- A file is whole and durable under a name that nobody else has before anybody hears of it, and it is no part of the
  table until the driver commits it. What a task that failed leaves behind is what a vacuum takes.
- A task has one file open for each combination of partition values. How many, and how much they hold, is bounded: past
  that the largest is finished, whatever its size.
"""

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sulina.errors import SulinaError
from sulina.failpoints import Failpoint, reach
from sulina.spark.delta_partitions import Values, folder_of, split
from sulina.spark.delta_stats import StatsColumn, leaves, stats_json, with_nan
from sulina.spark.errors import TableSchemaConflict
from sulina.spark.table_location import TableLocation

TARGET_BYTES = 128 << 20
ROW_GROUP_BYTES = 32 << 20  # in Arrow's form
OPEN_FILES_MAX = 64
OPEN_BYTES_MAX = 256 << 20  # size of all open files of a task, with the rows that wait
SAMPLE_ROWS = 10_000
DISTINCT_MAX = 0.5  # with more distinct values than this among the sample, a dictionary costs more than it saves


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that is written, and that no commit refers to yet."""

    path: str  # below the table's root, as the store has it; in the log it is percent-encoded, by delta-rs
    size_bytes: int
    partition_values: tuple[tuple[str, str | None], ...]
    modified_ms: int
    rows: int
    stats: str


@dataclass(frozen=True, slots=True)
class WritePlan:
    """How rows become files. Pickled with every task."""

    location: TableLocation
    schema: pa.Schema  # of the rows, with the table's names and types, in the order of the rows
    partition_columns: tuple[str, ...] = ()
    target_bytes: int = TARGET_BYTES
    open_files_max: int = OPEN_FILES_MAX
    open_bytes_max: int = OPEN_BYTES_MAX

    @property
    def file_schema(self) -> pa.Schema:
        """Return the columns of the files: partition columns are in the log alone."""
        return pa.schema([field for field in self.schema if field.name not in self.partition_columns])


def write_files(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> list[NewFile]:
    """Write all rows to files. On failure they are deleted, as far as possible."""
    writer = FileWriter(plan)
    try:
        for batch in batches:
            writer.add(batch)
        files = writer.finish()
    except BaseException:
        discard(plan.location, writer.done)
        raise
    if files:
        reach(Failpoint.FILES_WRITTEN, plan.location.path_or_uri)
    return files


def discard(location: TableLocation, files: Sequence[NewFile]) -> None:
    """Remove files that no table refers to. What cannot be removed now is left to a vacuum."""
    if files:
        with contextlib.suppress(SulinaError):
            location.objects().delete([file.path for file in files])


class FileWriter:
    """The files of one task."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan, self._objects = plan, plan.location.objects()
        self._leaves = leaves(plan.file_schema)
        self._open: dict[Values, _OpenFile] = {}
        self.done: list[NewFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows, whose columns are in the order of the plan's.

        Raises:
            TableSchemaConflict: a value does not fit its column.
            ArchiveFailed: a file could not be written.
        """
        plan, rows = self._plan, self._aligned(batch)
        parts = split(rows, plan.partition_columns) if plan.partition_columns else [((), rows)]
        for values, some in parts:
            for name, value in zip(plan.partition_columns, values, strict=True):
                if value is None and not plan.schema.field(name).nullable:
                    self._refuse(name, "an empty string is null to Delta Lake, and the table says NOT NULL")
            if not some.num_rows:
                continue
            if values not in self._open and len(self._open) >= plan.open_files_max:
                self._finish_largest()
            file = self._open.get(values)
            if file is None:
                file = self._open[values] = _OpenFile(plan, self._leaves)
            file.add(some.select(plan.file_schema.names) if plan.partition_columns else some)
            if file.encoded_bytes >= plan.target_bytes:
                self._finish(values)
            elif sum(each.size_bytes for each in self._open.values()) > plan.open_bytes_max:
                self._finish_largest()

    def finish(self) -> list[NewFile]:
        """Write the rows that wait, and return all files of this task."""
        for values in list(self._open):
            self._finish(values)
        return self.done

    def _finish_largest(self) -> None:
        self._finish(max(self._open, key=lambda values: self._open[values].size_bytes))

    def _finish(self, values: Values) -> None:
        data, rows, stats = self._open.pop(values).close()
        names = self._plan.partition_columns
        path = f"{folder_of(names, values)}part-{uuid4()}.parquet"
        self._objects.put(path, data)
        size = sum(len(part) for part in data)
        partition_values = tuple(zip(names, values, strict=True))
        self.done.append(NewFile(path, size, partition_values, int(time.time() * 1000), rows, stats))

    def _aligned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the table's names and types."""
        columns = []
        for field, column in zip(self._plan.schema, batch.columns, strict=True):
            if not field.nullable and column.null_count:
                self._refuse(field.name, f"{column.null_count} rows are null, and the table says NOT NULL")
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except pa.ArrowException as error:
                self._refuse(field.name, f"{column.type} cannot be stored as {field.type}: {error}")
        return pa.RecordBatch.from_arrays(columns, schema=self._plan.schema)

    def _refuse(self, column: str, reason: str) -> None:
        raise TableSchemaConflict(table=self._plan.location.path_or_uri, columns=f"column {column}", reason=reason)


class _OpenFile:
    """Rows that wait until they are a row group, and the row groups before them."""

    def __init__(self, plan: WritePlan, columns: list[StatsColumn]) -> None:
        self._schema, self._leaves = plan.file_schema, columns
        self._group_bytes = min(ROW_GROUP_BYTES, plan.target_bytes)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._sink = _Buffers()
        self._writer: pq.ParquetWriter | None = None
        self._footers: list[pq.FileMetaData] = []  # the writer puts its own here when it is closed
        self._nan: set[tuple[str, ...]] = set()

    @property
    def encoded_bytes(self) -> int:
        return self._sink.size

    @property
    def size_bytes(self) -> int:
        return self._sink.size + self._waiting_bytes

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= self._group_bytes:
            self._flush()

    def close(self) -> tuple[list[memoryview], int, str]:
        """Return the file's bytes, its number of rows and its statistics."""
        self._flush()
        assert self._writer is not None
        self._writer.close()
        (footer,) = self._footers
        return self._sink.parts, footer.num_rows, stats_json(footer, self._leaves, self._nan)

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._waiting, self._waiting_bytes = [], 0
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._sink, mode="w"),
                self._schema,
                compression="snappy",
                use_dictionary=_repetitive(table, self._leaves),
                write_statistics=[leaf.parquet_path for leaf in self._leaves if leaf.has_stats],
                coerce_timestamps="us",
                store_schema=False,
                metadata_collector=self._footers,
            )
        self._nan |= with_nan(table, self._leaves)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))


def _repetitive(table: pa.Table, columns: Sequence[StatsColumn]) -> list[str]:
    """Return the columns that are worth a dictionary, judged by the first rows."""
    sample = table.slice(0, SAMPLE_ROWS)
    found = []
    for leaf in columns:
        if len(leaf.path) == 1:
            distinct = pc.count_distinct(sample.column(leaf.path[0]), mode="only_valid").as_py()
            if distinct > max(1, sample.num_rows * DISTINCT_MAX):
                continue
        found.append(leaf.parquet_path)
    return found


class _Buffers:
    """A file in memory, in as many parts as it was written in: it never has to be moved while it grows."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[memoryview] = []
        self.size = 0

    def write(self, data: pa.Buffer | bytes) -> int:
        part = memoryview(bytes(data))  # Arrow uses its buffer again
        self.parts.append(part)
        self.size += len(part)
        return len(part)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Do nothing: no bytes are held back."""

    def close(self) -> None:
        self.closed = True
