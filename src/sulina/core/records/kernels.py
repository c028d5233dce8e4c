"""Walks over the records of batches, compiled by Numba: `batch.walk` in bulk.

- Only bytes of the records of a batch are read, even if the batch is malformed: each number and each length is
  checked before it is used.
- The kernels accept and refuse the same bytes as `batch.walk`; a test compares the two.
- Inside, a position is an address: passing arrays around would count references for each record, at a fifth
  of the speed.
- A kernel never raises: it returns a fault, which `raise_fault` turns into InvalidBatch.
- A bulk kernel releases the interpreter lock: the buffer must not change meanwhile. Kernels for small batches keep the
  lock, because releasing and acquiring it takes longer than their work.

Importing this module takes a second, and the first use compiles (the result is cached on disk).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from sulina.core.records.batch import _BASE_OFFSET_MAX as BASE_OFFSET_MAX
from sulina.core.records.batch import HEADER_BYTES, RECORD_BYTES_MIN, BatchHeader
from sulina.core.records.compression import Bytes
from sulina.errors import InvalidBatch

Function = TypeVar("Function", bound=Callable[..., Any])
U8 = NDArray[np.uint8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

# A fault is negative, so that it can be returned in place of a position.
BAD_LENGTH, BAD_TIMESTAMP, BAD_OFFSET, BAD_KEY, BAD_VALUE, BAD_HEADERS, BAD_END, TRAILING, BAD_INPUT = range(-9, 0)
_FAULTS = {
    BAD_LENGTH: "its length is wrong",
    BAD_TIMESTAMP: "its timestamp is wrong",
    BAD_OFFSET: "its offset delta is not its place",
    BAD_KEY: "its key has a wrong length",
    BAD_VALUE: "its value has a wrong length",
    BAD_HEADERS: "its headers have a wrong count or length, or a key that is not UTF-8",
    BAD_END: "it has bytes too many",
    TRAILING: "bytes follow the last record",
    BAD_INPUT: "its columns do not fit each other, or its timestamp is too far from the first",
}

# Rows of the table that is an argument of `decode_batches`: one column for each batch.
START, END, COUNT, BASE_OFFSET, BASE_TIMESTAMP, APPEND_TIMESTAMP, IS_APPEND_TIME = range(7)
BATCH_FIELDS = 7

# Progress of `decode_batches`, which continues from there when called again for another buffer.
ROWS, KEY_BYTES, VALUE_BYTES, HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES, KEY_NULLS, VALUE_NULLS = range(8)
STATE_FIELDS = 8

_INT64_MIN = -(2**63)
_SHORT_BYTES_MAX = 256 << 10


def raise_fault(fault: int, row: int) -> None:
    """Raise the error for the fault that a kernel returned, if it returned one.

    Raises:
        InvalidBatch: `fault` is a fault.
    """
    if fault < 0:
        raise InvalidBatch(f"record {row} of the batch is not valid: {_FAULTS[fault]}")


def as_array(buffer: Bytes) -> U8:
    """Return the same bytes as a read-only array: kernels are compiled for one type of array."""
    array = np.frombuffer(buffer, np.uint8)
    array.flags.writeable = False
    return array


def check(body: Bytes, header: BatchHeader) -> int:
    """Check every record of a batch, and return the newest timestamp.

    Raises:
        InvalidBatch: a record is malformed.
    """
    # Releasing the interpreter lock for microseconds can mean waiting milliseconds to acquire it again.
    checked = _check_short if len(body) < _SHORT_BYTES_MAX else _check
    fault, row, newest = checked(as_array(body), header.record_count, header.base_timestamp)
    raise_fault(fault, row)
    return newest


def kernel(function: Function, **options: bool) -> Function:
    """Compile a function, once for all processes if a directory for the cache can be written."""
    compile_options: dict[str, Any] = {"nogil": True, "error_model": "numpy", **options}
    try:
        return cast(Function, njit(cache=True, **compile_options)(function))
    except RuntimeError:  # no directory for the cache can be written, as on some Spark workers
        return cast(Function, njit(**compile_options)(function))


_inlined = partial(kernel, forceinline=True)  # a call that returns many numbers costs more than the work in it
_short_kernel = partial(kernel, nogil=False)
_intrinsic: Callable[[Callable[..., Any]], Any] = intrinsic


@_intrinsic
def _byte(_context: Any, _address: Any) -> Any:
    """Read the byte at an address."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], cgutils.voidptr_t))

    return types.uint8(types.int64), generate


@_intrinsic
def _copy(_context: Any, _to: Any, _start: Any, _size: Any) -> Any:
    """Copy `size` bytes from address `start` to address `to`: four times as fast as a slice or a loop."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        to, start = (builder.inttoptr(arg, cgutils.voidptr_t) for arg in args[:2])
        cgutils.raw_memcpy(builder, to, start, args[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@_inlined
def _address(array: U8) -> int:
    return int(np.int64(array.ctypes.data))  # signed: Numba adds signed and unsigned integers as floats


@kernel
def _long_varint(position: int, end: int, bits: int) -> tuple[int, int]:
    value = np.uint64(0)
    shift = 0
    while position < end and shift < bits:
        byte = _byte(position)
        position += 1
        value |= np.uint64(byte & 0x7F) << np.uint64(shift)
        if byte < 0x80:
            if shift + 7 > bits and (byte >> (bits - shift)) != 0:
                break
            return int(np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))), position
        shift += 7
    return 0, -1


@_inlined
def _varint(position: int, end: int, bits: int) -> tuple[int, int]:
    """Read a zigzag varint. Return it with the position after it, or -1."""
    if position < end:
        byte = _byte(position)
        if byte < 0x80:
            return int(np.int64(byte >> 1) ^ -np.int64(byte & 1)), position + 1
        return _long_varint(position, end, bits)
    return 0, -1


@kernel
def _is_utf8(position: int, end: int) -> bool:
    while position < end:
        byte = _byte(position)
        position += 1
        if byte < 0x80:
            continue
        if byte < 0xC2 or byte > 0xF4:
            return False
        more = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        if more > end - position:
            return False
        # The range of the second byte excludes overlong forms, surrogates and numbers past the last code point.
        low = 0xA0 if byte == 0xE0 else 0x90 if byte == 0xF0 else 0x80
        high = 0x9F if byte == 0xED else 0x8F if byte == 0xF4 else 0xBF
        if _byte(position) < low or _byte(position) > high:
            return False
        for index in range(position + 1, position + more):
            if _byte(index) & 0xC0 != 0x80:
                return False
        position += more
    return True


@kernel
def _headers(position: int, end: int, count: int) -> tuple[int, int, int]:
    """Walk over headers. Return their end or a fault, and the size of all their keys and of all their values."""
    key_bytes = value_bytes = 0
    if count < 0 or 2 * count > end - position:
        return BAD_HEADERS, 0, 0
    for _ in range(count):
        size, position = _varint(position, end, 32)
        if position < 0 or size < 0 or size > end - position:
            return BAD_HEADERS, 0, 0
        if not _is_utf8(position, position + size):
            return BAD_HEADERS, 0, 0
        position += size
        key_bytes += size
        size, position = _varint(position, end, 32)
        if position < 0 or size < -1 or size > end - position:
            return BAD_HEADERS, 0, 0
        if size > 0:
            position += size
            value_bytes += size
    return position, key_bytes, value_bytes


Spot = tuple[int, int, int, int, int, int, int, int, int, int]


@_inlined
def _record(position: int, limit: int, index: int, base_timestamp: int) -> Spot:
    """Read record `index` at `position`.

    Return its end, or a fault; timestamp; start and size of key and of value; start, count, key bytes and
    value bytes of its headers. The size of null is -1.
    """
    length, position = _varint(position, limit, 32)
    if position < 0 or length < RECORD_BYTES_MIN - 1 or length > limit - position:
        return BAD_LENGTH, 0, 0, 0, 0, 0, 0, 0, 0, 0
    end = position + length
    delta, position = _varint(position + 1, end, 64)
    timestamp = base_timestamp + delta
    if position < 0 or ((base_timestamp ^ timestamp) & (delta ^ timestamp)) < 0:  # a sign bit means overflow
        return BAD_TIMESTAMP, 0, 0, 0, 0, 0, 0, 0, 0, 0
    offset_delta, position = _varint(position, end, 32)
    if position < 0 or offset_delta != index:
        return BAD_OFFSET, 0, 0, 0, 0, 0, 0, 0, 0, 0
    key_size, key = _varint(position, end, 32)
    if key < 0 or key_size < -1 or key_size > end - key:
        return BAD_KEY, 0, 0, 0, 0, 0, 0, 0, 0, 0
    value_size, value = _varint(key + max(key_size, 0), end, 32)
    if value < 0 or value_size < -1 or value_size > end - value:
        return BAD_VALUE, 0, 0, 0, 0, 0, 0, 0, 0, 0
    header_count, headers = _varint(value + max(value_size, 0), end, 32)
    if headers < 0:
        return BAD_HEADERS, 0, 0, 0, 0, 0, 0, 0, 0, 0
    header_end, header_keys, header_values = headers, 0, 0
    if header_count != 0:
        header_end, header_keys, header_values = _headers(headers, end, header_count)
        if header_end < 0:
            return header_end, 0, 0, 0, 0, 0, 0, 0, 0, 0
    if header_end != end:
        return BAD_END, 0, 0, 0, 0, 0, 0, 0, 0, 0
    return end, timestamp, key, key_size, value, value_size, headers, header_count, header_keys, header_values


@_inlined
def _check_all(buffer: U8, count: int, base_timestamp: int) -> tuple[int, int, int]:
    position = _address(buffer)
    limit = position + len(buffer)
    newest = _INT64_MIN
    for index in range(count):
        record = _record(position, limit, index, base_timestamp)
        position = record[0]
        if position < 0:
            return position, index, 0
        newest = max(newest, record[1])
    if position != limit:
        return TRAILING, count, 0
    return 0, 0, newest


@kernel
def _check(buffer: U8, count: int, base_timestamp: int) -> tuple[int, int, int]:
    return _check_all(buffer, count, base_timestamp)


@_short_kernel
def _check_short(buffer: U8, count: int, base_timestamp: int) -> tuple[int, int, int]:
    return _check_all(buffer, count, base_timestamp)


@kernel
def decode_batches(
    buffer: U8, batches: I64, state: I64,
    offsets: I64, timestamps: I64,
    key_ends: I32, keys: U8, key_valid: U8,
    value_ends: I32, values: U8, value_valid: U8,
    header_ends: I32, header_starts: I32,
) -> tuple[int, int]:  # fmt: skip
    """Decode a run of batches that lie in one buffer. Return a fault and its record.

    A column that was not asked for has an empty array. `*_ends` are Arrow offsets. All bits of `*_valid` are set
    before the call. Keys and values have room for all the bytes of the records.
    """
    memory, key_memory, value_memory = _address(buffer), _address(keys), _address(values)
    row, key_at, value_at = state[ROWS], state[KEY_BYTES], state[VALUE_BYTES]
    for batch in range(batches.shape[1]):
        position, limit = memory + batches[START, batch], memory + batches[END, batch]
        for index in range(batches[COUNT, batch]):
            spot = _record(position, limit, index, batches[BASE_TIMESTAMP, batch])
            position, timestamp, key, key_size, value, value_size, headers, header_count, _, _ = spot
            if position < 0:
                return position, index
            if len(offsets):
                offsets[row] = batches[BASE_OFFSET, batch] + index
            if len(timestamps):
                timestamps[row] = batches[APPEND_TIMESTAMP, batch] if batches[IS_APPEND_TIME, batch] else timestamp
            if len(key_ends):
                if key_size < 0:
                    key_valid[row >> 3] &= ~np.uint8(1 << (row & 7))
                    state[KEY_NULLS] += 1
                else:
                    _copy(key_memory + key_at, key, key_size)
                    key_at += key_size
                key_ends[row + 1] = key_at
            if len(value_ends):
                if value_size < 0:
                    value_valid[row >> 3] &= ~np.uint8(1 << (row & 7))
                    state[VALUE_NULLS] += 1
                else:
                    _copy(value_memory + value_at, value, value_size)
                    value_at += value_size
                value_ends[row + 1] = value_at
            if len(header_ends):
                state[HEADERS] += header_count
                state[HEADER_KEY_BYTES] += spot[8]
                state[HEADER_VALUE_BYTES] += spot[9]
                header_ends[row + 1] = state[HEADERS]
                header_starts[row] = headers - memory
            row += 1
        if position != limit:
            return TRAILING, batches[COUNT, batch]
    state[ROWS], state[KEY_BYTES], state[VALUE_BYTES] = row, key_at, value_at
    return 0, 0


@kernel
def decode_headers(
    buffer: U8, rows: I64, state: I64,
    header_ends: I32, header_starts: I32,
    key_ends: I32, keys: U8,
    value_ends: I32, values: U8, value_valid: U8,
) -> int:  # fmt: skip
    """Decode the headers of rows `rows[0]` to `rows[1]`, which `decode_batches` found in this buffer.

    `state` counts as above, from zero. Sizes are checked again, so that even a buffer that changed meanwhile
    cannot cause writes outside the arrays.
    """
    memory, key_memory, value_memory = _address(buffer), _address(keys), _address(values)
    end = memory + len(buffer)
    at, key_at, value_at = state[HEADERS], state[HEADER_KEY_BYTES], state[HEADER_VALUE_BYTES]
    for row in range(rows[0], rows[1]):
        position = memory + header_starts[row]
        for _ in range(header_ends[row + 1] - header_ends[row]):
            size, position = _varint(position, end, 32)
            if position < 0 or size < 0 or size > end - position or size > len(keys) - key_at:
                return BAD_HEADERS
            _copy(key_memory + key_at, position, size)
            position += size
            key_at += size
            key_ends[at + 1] = key_at
            size, position = _varint(position, end, 32)
            if position < 0 or size < -1 or size > end - position or size > len(values) - value_at:
                return BAD_HEADERS
            if size < 0:
                value_valid[at >> 3] &= ~np.uint8(1 << (at & 7))
                state[VALUE_NULLS] += 1
            else:
                _copy(value_memory + value_at, position, size)
                position += size
                value_at += size
            value_ends[at + 1] = value_at
            at += 1
    state[HEADERS], state[HEADER_KEY_BYTES], state[HEADER_VALUE_BYTES] = at, key_at, value_at
    return 0


@_intrinsic
def _store(_context: Any, _address: Any, _value: Any) -> Any:
    """Write one byte to an address."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], cgutils.voidptr_t))
        return context.get_dummy_value()

    return types.void(types.int64, types.uint8), generate


@_inlined
def _put_varint(position: int, number: int) -> int:
    """Write a zigzag varint. Return the position after it."""
    rest = np.uint64((number << 1) ^ (number >> 63))
    while rest > np.uint64(0x7F):
        _store(position, np.uint8(rest) | np.uint8(0x80))
        rest >>= np.uint64(7)
        position += 1
    _store(position, np.uint8(rest))
    return position + 1


@_inlined
def _varint_size(number: int) -> int:
    rest = np.uint64((number << 1) ^ (number >> 63))
    size = 1
    while rest > np.uint64(0x7F):
        rest >>= np.uint64(7)
        size += 1
    return size


@_inlined
def _size_at(ends: I32, nulls: U8, data_size: int, row: int) -> int:
    """Return the size of one item of a binary column: -1 for null, -2 when its offsets are wrong."""
    if len(nulls) and nulls[row]:
        return -1
    start, end = int(ends[row]), int(ends[row + 1])
    return end - start if 0 <= start <= end <= data_size else -2


@_inlined
def _put_bytes(position: int, memory: int, size: int) -> int:
    position = _put_varint(position, size)
    if size > 0:
        _copy(position, memory, size)
        position += size
    return position


@kernel
def _headers_size(
    first: int, count: int,
    key_ends: I32, keys: U8,
    value_ends: I32, values: U8, value_nulls: U8,
) -> int:  # fmt: skip
    total = _varint_size(count)
    for at in range(first, first + count):
        key_size = _size_at(key_ends, value_nulls[:0], len(keys), at)
        value_size = _size_at(value_ends, value_nulls, len(values), at)
        if key_size < 0 or value_size < -1:
            return BAD_INPUT
        total += _varint_size(key_size) + key_size + _varint_size(value_size) + max(value_size, 0)
    return total


@kernel
def encode_records(
    out: U8, timestamps: I64,
    key_ends: I32, keys: U8, key_nulls: U8,
    value_ends: I32, values: U8, value_nulls: U8,
    header_counts: I32,
    header_key_ends: I32, header_keys: U8,
    header_value_ends: I32, header_values: U8, header_value_nulls: U8,
) -> tuple[int, int]:  # fmt: skip
    """Write the records of one batch to `out`. Return their bytes, or a fault and its record.

    `*_ends` are Arrow offsets; `*_nulls` is empty, or has 1 for null; without keys or headers their first
    array is empty. `out` has room enough if the columns are consistent, which is checked.
    """
    key_memory, value_memory = _address(keys), _address(values)
    header_key_memory, header_value_memory = _address(header_keys), _address(header_values)
    start = position = _address(out)
    limit = start + len(out)
    header = header_count = 0
    for row in range(len(timestamps)):
        delta = timestamps[row] - timestamps[0]
        if ((timestamps[row] ^ timestamps[0]) & (timestamps[row] ^ delta)) < 0:  # a sign bit means overflow
            return BAD_INPUT, row
        key_size = _size_at(key_ends, key_nulls, len(keys), row) if len(key_ends) else -1
        value_size = _size_at(value_ends, value_nulls, len(values), row)
        headers_size = 1
        if len(header_counts):
            header_count = header_counts[row]
            headers_size = _headers_size(
                header, header_count, header_key_ends, header_keys,
                header_value_ends, header_values, header_value_nulls,
            )  # fmt: skip
        if key_size < -1 or value_size < -1 or headers_size < 0:
            return BAD_INPUT, row
        size = 1 + _varint_size(delta) + _varint_size(row) + headers_size
        size += _varint_size(key_size) + max(key_size, 0) + _varint_size(value_size) + max(value_size, 0)
        if _varint_size(size) + size > limit - position:
            return BAD_INPUT, row
        position = _put_varint(position, size)
        _store(position, np.uint8(0))
        position = _put_varint(position + 1, delta)
        position = _put_varint(position, row)
        position = _put_bytes(position, key_memory + (key_ends[row] if key_size > 0 else 0), key_size)
        position = _put_bytes(position, value_memory + value_ends[row], value_size)
        position = _put_varint(position, header_count)
        for at in range(header, header + header_count):
            key_size = int(header_key_ends[at + 1]) - int(header_key_ends[at])
            position = _put_bytes(position, header_key_memory + header_key_ends[at], key_size)
            value_size = _size_at(header_value_ends, header_value_nulls, len(header_values), at)
            position = _put_bytes(position, header_value_memory + header_value_ends[at], value_size)
        header += header_count
    return position - start, 0


@_short_kernel
def encode_rows(out: U8, data: U8, sizes: I64, timestamps: I64, headers: U8, count: int) -> tuple[int, int]:
    """Write `count` records to `out`. Return their bytes, or a fault and its record.

    `sizes` are those of the values, then those of the keys if there are any, -1 for null; `data` is their bytes in
    the same order. Without `timestamps` all records have that of the first. `headers` are encoded, the same for all.
    """
    start = position = _address(out)
    limit = start + len(out)
    value_memory = key_memory = _address(data)
    data_end = value_memory + len(data)
    for row in range(count):
        key_memory += max(sizes[row], 0)
    value_end, delta, key_size = key_memory, 0, -1
    for row in range(count):
        if len(timestamps):
            delta = timestamps[row] - timestamps[0]
            if ((timestamps[row] ^ timestamps[0]) & (timestamps[row] ^ delta)) < 0:  # a sign bit means overflow
                return BAD_TIMESTAMP, row
        if len(sizes) > count:
            key_size = sizes[count + row]
        value_size = sizes[row]
        if max(key_size, 0) > data_end - key_memory or max(value_size, 0) > value_end - value_memory:
            return BAD_INPUT, row
        size = 1 + len(headers) + _varint_size(delta) + _varint_size(row)
        size += _varint_size(key_size) + max(key_size, 0) + _varint_size(value_size) + max(value_size, 0)
        if _varint_size(size) + size > limit - position:
            return BAD_INPUT, row
        position = _put_varint(position, size)
        _store(position, np.uint8(0))
        position = _put_varint(position + 1, delta)
        position = _put_varint(position, row)
        position = _put_bytes(position, key_memory, key_size)
        position = _put_bytes(position, value_memory, value_size)
        _copy(position, _address(headers), len(headers))
        position += len(headers)
        key_memory += max(key_size, 0)
        value_memory += max(value_size, 0)
    return position - start, 0


@_inlined
def _big_endian(position: int, size: int) -> int:
    number = 0
    for at in range(position, position + size):
        number = number << 8 | int(_byte(at))
    return number


@_short_kernel
def plain_run(buffer: U8, start: int, start_offset: int, wanted: int, limits: tuple[int, int]) -> tuple[int, int]:
    """Find the plain batches from `start` on. Return their end, and the number of their records from an offset on.

    A plain batch is one that `batch.split` accepts, uncompressed and not a control batch. The run ends after the batch
    that has enough records. `limits` are the bytes and the records of a batch.
    """
    memory, position, rows = _address(buffer), start, 0
    while rows < wanted and len(buffer) - position >= HEADER_BYTES:
        header = memory + position
        offset, size, count = _big_endian(header, 8), 12 + _big_endian(header + 8, 4), _big_endian(header + 57, 4)
        if size < HEADER_BYTES or size > len(buffer) - position or size > limits[0] or _byte(header + 16) != 2:
            break
        if count < 1 or count > limits[1] or count * RECORD_BYTES_MIN > size - HEADER_BYTES:
            break
        if _big_endian(header + 23, 4) != count - 1 or _big_endian(header + 21, 2) & 0x2F:  # codec, log's time, control
            break
        if offset < 0 or offset > BASE_OFFSET_MAX:
            break
        rows += min(max(offset + count - start_offset, 0), count)
        position += size
    return position, rows


# One row of the table that `find_rows` fills. Null starts at -1.
OFFSET, TIMESTAMP, KEY_START, KEY_END, VALUE_START, VALUE_END, HEADERS_START, HEADERS_COUNT = range(8)
ROW_FIELDS = 8


@_short_kernel
def find_rows(buffer: U8, start: int, end: int, start_offset: int, rows: I64) -> tuple[int, int]:
    """Find the records of a plain run from an offset on, until `rows` is full. Return a fault and its record."""
    memory, found = _address(buffer), 0
    position = memory + start
    while position < memory + end and found < len(rows):
        base_offset, limit = _big_endian(position, 8), position + 12 + _big_endian(position + 8, 4)
        base_timestamp, count = _big_endian(position + 27, 8), _big_endian(position + 57, 4)
        position += HEADER_BYTES
        for index in range(count):
            spot = _record(position, limit, index, base_timestamp)
            position, timestamp, key, key_size, value, value_size, headers, header_count, _, _ = spot
            if position < 0:
                return position, index
            if base_offset + index < start_offset:
                continue
            if found == len(rows):
                return 0, 0
            row = rows[found]
            row[OFFSET], row[TIMESTAMP] = base_offset + index, timestamp
            row[KEY_START], row[KEY_END] = key - memory if key_size >= 0 else -1, key - memory + key_size
            row[VALUE_START], row[VALUE_END] = value - memory if value_size >= 0 else -1, value - memory + value_size
            row[HEADERS_START], row[HEADERS_COUNT] = headers - memory, header_count
            found += 1
        if position != limit:
            return TRAILING, count
    return 0, 0
