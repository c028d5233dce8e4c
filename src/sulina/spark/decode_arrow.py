"""Values that are IPC streams of Arrow: each has batches of rows, and becomes as many rows as they have.

- A stream may lie: batches are checked in full before anything is done with them, and what they say that they
  decompress to is added up before they are.
- The columns must be those of the topic's schema, as the broker's own check has it; notes on them may differ.
"""

import struct

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sulina.core.topic import Schema
from sulina.spark.misfits import Misfit
from sulina.spark.value_schemas import plain_schema, timed_schema, written_schema

VALUE_ROWS_MAX = 1 << 20
DECOMPRESSED_BYTES_MAX = 64 << 20  # limit for one value

_UNREADABLE = (pa.ArrowException, OSError, ValueError, LookupError, TypeError, MemoryError, struct.error)


class ArrowRows:
    """Decodes values that have any number of rows each."""

    def __init__(self, schema: Schema) -> None:
        self._written = written_schema(schema.definition)
        self._timed, self._plain = timed_schema(self._written), plain_schema(self._written)
        self.type: pa.StructType = pa.struct(list(self._plain))

    def decode(self, values: pa.BinaryArray, first: int) -> tuple[pa.StructArray, pa.StringArray, pa.Int64Array]:
        """Return the rows, their errors, and the index of each row's value; `first` is the index of the first value."""
        reasons: list[str | None] = [None] * len(values)
        tables: dict[int, pa.Table] = {}
        for index, value in enumerate(values.to_pylist()):
            if value is not None:
                try:
                    tables[index] = self._table(value)
                except Misfit as misfit:
                    reasons[index] = str(misfit)
        rows = self._rows(tables, reasons)
        counts = np.array([len(tables.get(index, ())) for index in range(len(values))], np.int64)
        # A value without rows is one row without data.
        ends = np.cumsum(counts)
        shown = np.maximum(counts, 1)
        value_rows = np.repeat(np.arange(len(values)), shown)
        within = np.arange(len(value_rows)) - np.repeat(np.cumsum(shown) - shown, shown)
        is_null = np.repeat(counts == 0, shown)
        indices = np.where(is_null, 0, np.repeat(ends - counts, shown) + within)
        data = rows.take(pa.array(indices, mask=is_null))
        error = pa.array(reasons, pa.string()).take(pa.array(value_rows))
        return data, error, pa.array(value_rows + first, pa.int64())

    def _table(self, value: bytes) -> pa.Table:
        """Return the rows of one value, in the types that it was written with.

        Raises:
            Misfit: it is not a stream of the topic's schema.
        """
        try:
            _check_size(value)
            with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
                if not reader.schema.equals(self._written):
                    raise Misfit(f"its columns are {reader.schema.names}, with other types or names than the topic's")
                batches = []
                for batch in reader:
                    batch.validate(full=True)
                    batches.append(batch)
            if sum(len(batch) for batch in batches) > VALUE_ROWS_MAX:
                raise Misfit(f"has more than {VALUE_ROWS_MAX} rows")
        except _UNREADABLE as error:
            raise Misfit(f"not an IPC stream: {error}") from None
        return pa.Table.from_batches(batches, self._written)

    def _rows(self, tables: dict[int, pa.Table], reasons: list[str | None]) -> pa.StructArray:
        """Return all rows in Spark's types. A table that cannot be cast is dropped, and its reason noted."""
        try:
            whole = [self._cast(pa.concat_tables(tables.values()).combine_chunks())] if tables else []
        except (*_UNREADABLE, Misfit):
            whole = []
            for index, table in list(tables.items()):
                try:
                    whole.append(self._cast(table))
                except Misfit as misfit:
                    reasons[index] = str(misfit)
                    del tables[index]
        return pa.concat_arrays([pa.array([], self.type), *(part for each in whole for part in _structs(each))])

    def _cast(self, table: pa.Table) -> pa.Table:
        """Cast to Spark's types. Nanoseconds are cut off.

        Raises:
            Misfit: a value does not fit.
        """
        columns = []
        for timed, plain, column in zip(self._timed, self._plain, table.columns, strict=True):
            try:
                options = pc.CastOptions(timed.type, allow_time_truncate=True)
                columns.append(column.cast(options=options).cast(plain.type))
            except _UNREADABLE as error:
                raise Misfit(f"does not become {plain.type}: {error}", plain.name) from None
        return pa.Table.from_arrays(columns, schema=self._plain)


def _structs(table: pa.Table) -> list[pa.StructArray]:
    return table.to_struct_array().chunks if len(table) else []


def _check_size(value: bytes) -> None:
    """Check how large batches say that they are once decompressed.

    Raises:
        Misfit: it is too much.
    """
    total = 0
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(value))
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type in ("record batch", "dictionary"):
            total += _decompressed_bytes(message.metadata.to_pybytes(), message.body)
        if total > DECOMPRESSED_BYTES_MAX:
            raise Misfit(f"decompresses to more than {DECOMPRESSED_BYTES_MAX} bytes")


def _decompressed_bytes(metadata: bytes, body: pa.Buffer) -> int:
    """Return what the buffers of a batch declare, each in its first eight bytes; 0 if they are not compressed."""
    message = struct.unpack_from("<I", metadata)[0]
    batch = _inner(metadata, message, 2)
    if metadata[_field(metadata, message, 1)] == _DICTIONARY:
        batch = _inner(metadata, batch, 1)
    if not _field(metadata, batch, 3):
        return 0
    buffers = _inner(metadata, batch, 2)
    (count,) = struct.unpack_from("<I", metadata, buffers)
    extents: NDArray[np.int64] = np.frombuffer(metadata, "<i8", 2 * count, buffers + 4).reshape(-1, 2)
    sizes = (struct.unpack_from("<q", body, offset)[0] for offset, length in extents.tolist() if length >= 8)
    return sum(size for size in sizes if size > 0)


_DICTIONARY = 2  # the other kind of message that has buffers is a batch


def _field(metadata: bytes, table: int, number: int) -> int:
    """Return where a field of a Flatbuffers table is; 0: it is absent."""
    names = table - struct.unpack_from("<i", metadata, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", metadata, names)[0]:
        return 0
    offset = struct.unpack_from("<H", metadata, names + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _inner(metadata: bytes, table: int, number: int) -> int:
    """Return where the table or vector begins that a field refers to."""
    position = _field(metadata, table, number)
    if not position:
        raise ValueError("a message has no batch")
    return position + int(struct.unpack_from("<I", metadata, position)[0])
