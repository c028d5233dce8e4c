"""Record batches to and from Arrow columns, in bulk.

- `decode_columns(encode_columns(…))` gives the same columns back; `record` encodes and decodes the same bytes.
- One kernel call decodes a whole run of uncompressed batches. Outputs come from Arrow's pool, which reuses
  pages: touching fresh memory costs more than all of the decoding.
- Bytes are checked while they are decoded; the output is valid Arrow, and header keys are UTF-8.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sulina.core.records import kernels
from sulina.core.records.batch import (
    DEFAULT_LIMITS,
    HEADER_BYTES,
    NO_PRODUCER,
    BatchHeader,
    BatchLimits,
    records_of,
    split,
    write_header,
)
from sulina.core.records.compression import Bytes, Codec, compress
from sulina.core.records.record_columns import HEADERS_TYPE, ORIGIN_TYPE, SCHEMA
from sulina.errors import BatchTooLarge, InvalidBatch, InvalidInput, UnknownCodec

_ARROW_BYTES_MAX = 2**31 - 1  # a binary column has offsets of 32 bits
_RECORD_OVERHEAD_BYTES = 36  # the longest varints and one byte of attributes
_HEADER_OVERHEAD_BYTES = 10


def decode_columns(
    buffer: Bytes,
    *,
    columns: Sequence[str] | None = None,
    limits: BatchLimits = DEFAULT_LIMITS,
    check_crc: bool = False,
    headers: list[BatchHeader] | None = None,
) -> pa.RecordBatch:
    """Decode the records of the batches that lie end to end in `buffer`, without those of control batches.

    `columns` are names of SCHEMA; other columns are not copied. CRCs are checked only with `check_crc`. A caller that
    has split the buffer already passes its `headers`.

    Raises:
        InvalidInput: a name in `columns` is not in SCHEMA.
        InvalidBatch: a batch or record is malformed.
        CorruptBatch: a checksum does not hold.
        UnknownCodec: a compression is not known.
        BatchTooLarge: the buffer is larger than an Arrow column can be.
        DecompressedTooLarge: a batch is over the limit once decompressed.
    """
    names = SCHEMA.names if columns is None else list(columns)
    unknown = set(names) - set(SCHEMA.names)
    if unknown:
        raise InvalidInput(f"there is no column {min(unknown)!r}: use some of {', '.join(SCHEMA.names)}")
    if len(buffer) > _ARROW_BYTES_MAX:
        raise BatchTooLarge(size_bytes=len(buffer), limit_bytes=_ARROW_BYTES_MAX)
    if headers is None:
        headers = split(buffer, limits, check_crc=check_crc)
    runs = list(_runs(buffer, headers, limits))
    target = _OutputColumns(names, sum(run.rows for run in runs), sum(run.body_bytes for run in runs))
    for run in runs:
        table = np.array(run.batches, np.int64).T.copy()
        first_row = int(target.state[kernels.ROWS])
        fault, index = kernels.decode_batches(run.array, table, target.state, *target.arrays())
        kernels.raise_fault(fault, index)
        run.row_range = np.array([first_row, target.state[kernels.ROWS]])
    arrays = {name: target.column(name, runs) for name in names}
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=pa.schema([SCHEMA.field(name) for name in names]))


def origins(headers: Sequence[BatchHeader]) -> pa.StructArray:
    """Return the producer id, epoch and sequence of each record of these batches; null without a producer."""
    kept = [header for header in headers if not header.is_control]
    counts = np.array([header.record_count for header in kept], np.int64)
    rows = int(counts.sum())
    if all(header.producer_id == NO_PRODUCER for header in kept):
        return pa.nulls(rows, ORIGIN_TYPE)
    ids = np.repeat(np.array([header.producer_id for header in kept], np.int64), counts)
    epochs = np.repeat(np.array([header.producer_epoch for header in kept], np.int32), counts)
    firsts = np.cumsum(counts) - counts
    # A sequence starts again at 0 after the largest that 31 bits hold.
    base = np.repeat(np.array([header.base_sequence for header in kept], np.int64) - firsts, counts)
    sequences = (base + np.arange(rows)) & 0x7FFFFFFF
    children = [pa.array(ids), pa.array(epochs), pa.array(sequences)]
    return pa.StructArray.from_arrays(children, fields=list(ORIGIN_TYPE), mask=pa.array(ids == NO_PRODUCER))


def encode_columns(
    *,
    value: pa.Array | pa.ChunkedArray,
    timestamp_ms: pa.Array | pa.ChunkedArray | int,
    key: pa.Array | pa.ChunkedArray | None = None,
    headers: pa.Array | pa.ChunkedArray | None = None,
    codec: int = Codec.NONE,
    base_offset: int = 0,
    epoch: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> memoryview:
    """Encode the rows of some columns as one batch, which the caller may change.

    `value` and `key` are binary or can be cast to it, `headers` is HEADERS_TYPE or similar; nulls stay null, except
    that null headers become no headers. `timestamp_ms` is integers or Arrow timestamps, or one number for all.

    Raises:
        InvalidInput: the columns do not fit together, or have another type.
        InvalidBatch: there are no rows, or a number does not fit.
        UnknownCodec: `codec` is not known.
        BatchTooLarge: the rows are larger than an Arrow column can be.
    """
    if not 0 <= codec <= Codec.ZSTD:
        raise UnknownCodec(codec=codec)
    rows = len(value)
    if rows == 0:
        raise InvalidBatch("a record batch needs at least one record")
    source = _InputColumns.of(rows, value, timestamp_ms, key, headers)
    if HEADER_BYTES + source.bytes_max > _ARROW_BYTES_MAX:
        raise BatchTooLarge(size_bytes=HEADER_BYTES + source.bytes_max, limit_bytes=_ARROW_BYTES_MAX)
    out = np.frombuffer(pa.allocate_buffer(HEADER_BYTES + source.bytes_max), np.uint8)
    size, row = kernels.encode_records(out[HEADER_BYTES:], *source.arrays())
    kernels.raise_fault(size, row)
    batch = out.data[: HEADER_BYTES + size]
    if codec != Codec.NONE:
        packed = bytearray(HEADER_BYTES)
        packed += compress(codec, batch[HEADER_BYTES:])
        batch = memoryview(packed)
    write_header(
        batch,
        codec=codec,
        record_count=rows,
        base_timestamp=int(source.timestamps[0]),
        max_timestamp=int(source.timestamps.max()),
        base_offset=base_offset,
        epoch=epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )
    return batch


@dataclass(slots=True)
class _BufferRun:
    """Batches whose records lie in one buffer: any number of uncompressed ones, or one decompressed."""

    array: kernels.U8
    batches: list[tuple[int, ...]] = field(default_factory=list)  # the table of `decode_batches`, transposed
    rows: int = 0
    body_bytes: int = 0
    row_range: kernels.I64 = field(default_factory=lambda: np.zeros(2, np.int64))

    def add(self, header: BatchHeader, start: int, body_bytes: int) -> None:
        self.batches.append(
            (
                start,
                start + body_bytes,
                header.record_count,
                header.base_offset,
                header.base_timestamp,
                header.max_timestamp,
                header.is_log_append_time,
            )
        )
        self.rows += header.record_count
        self.body_bytes += body_bytes


def _runs(buffer: Bytes, headers: list[BatchHeader], limits: BatchLimits) -> Iterator[_BufferRun]:
    whole = kernels.as_array(buffer)
    run = _BufferRun(whole)
    position = total_bytes = 0
    for header in headers:
        start, position = position, position + header.size_bytes
        if header.is_control:
            continue
        body = records_of(buffer, header, start, limits)
        total_bytes += len(body)
        if total_bytes > _ARROW_BYTES_MAX:
            raise BatchTooLarge(size_bytes=total_bytes, limit_bytes=_ARROW_BYTES_MAX)
        if header.codec == Codec.NONE:
            run.add(header, start + HEADER_BYTES, len(body))
            continue
        if run.batches:
            yield run
            run = _BufferRun(whole)
        alone = _BufferRun(kernels.as_array(body))
        alone.add(header, 0, len(body))
        yield alone
    if run.batches:
        yield run


class _Binary:
    """A binary column that is being filled."""

    def __init__(self, rows: int, data_bytes_max: int) -> None:
        self._ends = pa.allocate_buffer(4 * (rows + 1))
        self._data = pa.allocate_buffer(data_bytes_max, resizable=True)
        self._valid = pa.allocate_buffer((rows + 7) // 8)
        self.ends = np.frombuffer(self._ends, np.int32)
        self.data = np.frombuffer(self._data, np.uint8)
        self.valid = np.frombuffer(self._valid, np.uint8)
        self.ends[0] = 0
        self.valid.fill(0xFF)

    def finish(self, kind: pa.DataType, nulls: int) -> pa.Array:
        rows, data_bytes = len(self.ends) - 1, int(self.ends[-1])
        del self.data  # its memory may move
        self._data.resize(data_bytes, shrink_to_fit=True)
        valid = self._valid if nulls else None
        return pa.Array.from_buffers(kind, rows, [valid, self._ends, self._data], nulls)


class _OutputColumns:
    """The columns that were asked for, while they are filled."""

    def __init__(self, names: list[str], rows: int, body_bytes: int) -> None:
        self.state = np.zeros(kernels.STATE_FIELDS, np.int64)
        self._rows = rows
        self._longs: dict[str, pa.Buffer] = {
            name: pa.allocate_buffer(8 * rows) for name in ("offset", "timestamp") if name in names
        }
        self._binaries: dict[str, _Binary] = {
            name: _Binary(rows, body_bytes) for name in ("key", "value") if name in names
        }
        self._with_headers = "headers" in names
        self._header_ends = pa.allocate_buffer(4 * (rows + 1) if self._with_headers else 0)
        self._header_starts = np.empty(rows if self._with_headers else 0, np.int32)
        if self._with_headers:
            np.frombuffer(self._header_ends, np.int32)[0] = 0

    def arrays(self) -> Iterator[NDArray[Any]]:
        """Yield the arguments of `decode_batches` after its state."""
        for name in ("offset", "timestamp"):
            yield np.frombuffer(self._longs.get(name, bytearray()), np.int64)
        for name in ("key", "value"):
            column = self._binaries.get(name)
            yield column.ends if column else np.empty(0, np.int32)
            yield column.data if column else np.empty(0, np.uint8)
            yield column.valid if column else np.empty(0, np.uint8)
        yield np.frombuffer(self._header_ends, np.int32)
        yield self._header_starts

    def column(self, name: str, runs: list[_BufferRun]) -> pa.Array:
        if name in self._longs:
            return pa.Array.from_buffers(SCHEMA.field(name).type, self._rows, [None, self._longs[name]], 0)
        if name == "headers":
            return self._headers(runs)
        nulls = self.state[kernels.KEY_NULLS if name == "key" else kernels.VALUE_NULLS]
        return self._binaries[name].finish(pa.binary(), int(nulls))

    def _headers(self, runs: list[_BufferRun]) -> pa.Array:
        count, key_bytes, value_bytes = map(
            int, self.state[[kernels.HEADERS, kernels.HEADER_KEY_BYTES, kernels.HEADER_VALUE_BYTES]]
        )
        keys, values = _Binary(count, key_bytes), _Binary(count, value_bytes)
        ends = np.frombuffer(self._header_ends, np.int32)
        state = np.zeros(kernels.STATE_FIELDS, np.int64)
        for run in runs if count else ():
            fault = kernels.decode_headers(
                run.array, run.row_range, state, ends, self._header_starts,
                keys.ends, keys.data, values.ends, values.data, values.valid,
            )  # fmt: skip
            kernels.raise_fault(fault, 0)
        children = [
            keys.finish(pa.string(), 0),
            values.finish(pa.binary(), int(state[kernels.VALUE_NULLS])),
        ]
        pairs = pa.Array.from_buffers(HEADERS_TYPE.value_type, count, [None], 0, children=children)
        return pa.Array.from_buffers(HEADERS_TYPE, self._rows, [None, self._header_ends], 0, children=[pairs])


@dataclass(slots=True, frozen=True)
class _InputColumns:
    """Columns in the form that the kernel needs. A binary one is its offsets, its data and its nulls."""

    timestamps: kernels.I64
    key: tuple[kernels.I32, kernels.U8, kernels.U8]
    value: tuple[kernels.I32, kernels.U8, kernels.U8]
    header_counts: kernels.I32
    header_key: tuple[kernels.I32, kernels.U8, kernels.U8]
    header_value: tuple[kernels.I32, kernels.U8, kernels.U8]

    @classmethod
    def of(cls, rows: int, value: Any, timestamp_ms: Any, key: Any, headers: Any) -> "_InputColumns":
        for name, column in (("timestamp_ms", timestamp_ms), ("key", key), ("headers", headers)):
            if column is not None and not isinstance(column, int) and len(column) != rows:
                raise InvalidInput(f"column {name} has {len(column)} rows, value has {rows}")
        try:
            timestamps = _integers(timestamp_ms, rows)
            pairs, counts = _flat_headers(headers)
            return cls(timestamps, _binary(key), _binary(value), counts, _binary(pairs[0]), _binary(pairs[1]))
        except (pa.ArrowException, OverflowError) as error:
            raise InvalidInput(f"the columns cannot be encoded as a batch: {error}") from None

    @property
    def bytes_max(self) -> int:
        binaries = (self.key, self.value, self.header_key, self.header_value)
        data_bytes = sum(max(int(ends[-1]) - int(ends[0]), 0) for ends, _, _ in binaries if len(ends))
        header_bytes = _HEADER_OVERHEAD_BYTES * max(len(self.header_key[0]) - 1, 0)
        return _RECORD_OVERHEAD_BYTES * len(self.timestamps) + header_bytes + data_bytes

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return the arguments of `encode_records` after its output."""
        return (
            self.timestamps, *self.key, *self.value,
            self.header_counts, *self.header_key[:2], *self.header_value,
        )  # fmt: skip


def _readonly(buffer: Any, dtype: type[np.generic]) -> NDArray[Any]:
    array = np.frombuffer(b"" if buffer is None else buffer, dtype)
    array.flags.writeable = False  # kernels are compiled for one type of array
    return array


def _whole(column: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if column.type == kind else column.cast(kind)


def _binary(column: Any) -> tuple[kernels.I32, kernels.U8, kernels.U8]:
    if column is None:
        return _readonly(None, np.int32), _readonly(None, np.uint8), _readonly(None, np.uint8)
    array = _whole(column, pa.binary())
    _, ends, data = array.buffers()
    nulls = array.is_null().cast(pa.uint8()).buffers()[1] if array.null_count else None
    ends = _readonly(ends, np.int32)[array.offset : array.offset + len(array) + 1]
    return ends, _readonly(data, np.uint8), _readonly(nulls, np.uint8)[: len(array)]


def _integers(timestamp_ms: Any, rows: int) -> kernels.I64:
    if isinstance(timestamp_ms, int):
        timestamps = np.full(rows, timestamp_ms, np.int64)
    else:
        if pa.types.is_timestamp(timestamp_ms.type):
            timestamp_ms = timestamp_ms.cast(pa.timestamp("ms", timestamp_ms.type.tz), safe=False)
        array = _whole(timestamp_ms, pa.int64())
        if array.null_count:
            raise InvalidInput(f"column timestamp_ms has {array.null_count} nulls")
        timestamps = array.to_numpy()
    timestamps.flags.writeable = False
    return timestamps


def _flat_headers(headers: Any) -> tuple[tuple[pa.Array | None, pa.Array | None], kernels.I32]:
    """Return keys and values of all headers end to end, and the number of headers of each row."""
    if headers is None:
        return (None, None), _readonly(None, np.int32)
    array = _whole(headers, HEADERS_TYPE)
    counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    counts.flags.writeable = False
    keys, values = array.flatten().flatten()  # skips items under nulls and outside slices
    if keys.null_count:
        raise InvalidInput("a header has no key")
    return (keys, values), counts
