"""From the files of a Delta table to Arrow batches: divided into tasks by the driver, read by executors.

A task reads those row groups of a file whose middle lies in its bytes, as Spark's own reader does it; so a large file
is read by several tasks, and each row by one.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sulina.spark.delta_log import TableFile
from sulina.spark.delta_partitions import to_scalar
from sulina.spark.errors import TableFileGone, TableSchemaConflict
from sulina.spark.table_location import TableLocation
from sulina.storage.objects import Objects

SPLIT_BYTES = 32 << 20
PIECE_BYTES_MIN = 1 << 20  # a smaller file is left whole: it has one row group
FILES_MAX = 1000  # in one task
BATCH_BYTES = 4 << 20  # in Arrow's form, about
BATCH_ROWS_MAX = 1 << 17


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes [start, end) of a file."""

    file: TableFile
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """What a scan makes of files. Pickled with every task."""

    location: TableLocation
    schema: pa.Schema  # of the rows, in their order
    partition_columns: tuple[str, ...]


# In the driver


def divided(files: Sequence[TableFile], tasks_min: int | None = None) -> list[tuple[FilePiece, ...]]:
    """Divide files into tasks of about `SPLIT_BYTES`, small ones together, and into `tasks_min` of them if possible."""
    total = sum(file.size_bytes for file in files)
    size_max = SPLIT_BYTES if tasks_min is None else max(1, min(SPLIT_BYTES, -(-total // tasks_min)))
    groups: list[list[FilePiece]] = []
    size = 0
    for piece in _pieces(files, size_max):
        length = piece.end - piece.start
        if not groups or size + length > size_max or len(groups[-1]) == FILES_MAX:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += length
    return [tuple(group) for group in groups]


def _pieces(files: Iterable[TableFile], size_max: int) -> Iterator[FilePiece]:
    for file in files:
        count = max(1, -(-file.size_bytes // max(size_max, PIECE_BYTES_MIN)))
        for n in range(count):
            yield FilePiece(file, file.size_bytes * n // count, file.size_bytes * (n + 1) // count)


# In executors


def read_pieces(plan: ScanPlan, pieces: Iterable[FilePiece]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of pieces.

    Raises:
        TableFileGone: a vacuum has removed a file.
        TableSchemaConflict: a file has other columns than the table.
        ArchiveFailed: the store does not answer.
    """
    for piece in pieces:
        yield from _read(plan, piece)


def _read(plan: ScanPlan, piece: FilePiece) -> Iterator[pa.RecordBatch]:
    values = dict(zip(plan.partition_columns, piece.file.partition_values, strict=True))
    with _opened(plan.location, piece.file) as parquet:
        stored = set(parquet.schema_arrow.names)
        columns = [name for name in plan.schema.names if name in stored and name not in values]
        for number in range(parquet.metadata.num_row_groups):
            group = parquet.metadata.row_group(number)
            if not piece.start <= _middle(group) < piece.end:
                continue
            size = max(1, group.total_byte_size // max(1, group.num_rows))
            rows_max = max(1, min(BATCH_ROWS_MAX, BATCH_BYTES // size))
            if columns:
                for batch in parquet.iter_batches(rows_max, row_groups=[number], columns=columns, use_threads=False):
                    yield _completed(plan, piece.file, batch, batch.num_rows, values)
            else:
                for first in range(0, group.num_rows, BATCH_ROWS_MAX):
                    yield _completed(plan, piece.file, None, min(BATCH_ROWS_MAX, group.num_rows - first), values)


def _middle(group: Any) -> int:
    first = group.column(0)
    start = first.data_page_offset
    if first.dictionary_page_offset is not None:
        start = min(start, first.dictionary_page_offset)
    size = sum(group.column(n).total_compressed_size for n in range(group.num_columns))
    return int(start + size // 2)


def _completed(
    plan: ScanPlan, file: TableFile, batch: pa.RecordBatch | None, rows: int, values: dict[str, str | None]
) -> pa.RecordBatch:
    """Add partition values, and nulls for columns that came to the table later."""
    arrays = []
    for field in plan.schema:
        if field.name in values:
            arrays.append(pa.repeat(to_scalar(values[field.name], field.type), rows))
        elif batch is None or field.name not in batch.schema.names:
            arrays.append(pa.nulls(rows, field.type))
        else:
            arrays.append(_cast(plan, file, batch.column(field.name), field))
    return pa.RecordBatch.from_arrays(arrays, schema=plan.schema)


def _cast(plan: ScanPlan, file: TableFile, column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        reason = f"{file.path} has {column.type}, not {field.type}"
        raise TableSchemaConflict(
            table=plan.location.path_or_uri, columns=f"column {field.name}", reason=reason
        ) from error


def _opened(location: TableLocation, file: TableFile) -> pq.ParquetFile:
    if location.directory is not None:
        try:
            return pq.ParquetFile(f"{location.directory}/{file.path}")
        except FileNotFoundError as error:
            raise TableFileGone(table=location.path_or_uri, path=file.path) from error
    source = pa.PythonFile(_Ranges(location, file), mode="r")
    return pq.ParquetFile(source, pre_buffer=True)


class _Ranges(io.RawIOBase):
    """A file in a bucket, read by ranges. Arrow joins those that lie together."""

    def __init__(self, location: TableLocation, file: TableFile) -> None:
        self._location, self._file, self._at = location, file, 0
        self._objects: Objects = location.objects()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size_bytes}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._file.size_bytes - self._at)
        size = left if size is None or size < 0 else min(size, left)
        if not size:
            return b""
        data = self._objects.get_range(self._file.path, self._at, size)
        if data is None:
            raise TableFileGone(table=self._location.path_or_uri, path=self._file.path)
        self._at += size
        return bytes(data)
