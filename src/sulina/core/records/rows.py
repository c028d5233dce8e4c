"""Record batches to and from lists of Python values, for JSON and small publishes, at the speed of a kernel.

- `encode_rows` writes the same bytes as `record.encode`, and refuses the same input.
- `decode_rows` returns the same records as `record.decode`, for many batches at once and from some offset on.
- Numba is not imported for a few records; once it is imported, it is used for all but the smallest inputs.
"""

import sys
from collections.abc import Sequence

from sulina.core.records.batch import (
    DEFAULT_LIMITS,
    HEADER_BYTES,
    BatchLimits,
    encode_headers,
    parse_header,
    parse_headers,
    split,
    varint,
    write_header,
)
from sulina.core.records.compression import Bytes, Codec
from sulina.core.records.kernel_choice import are_worth_it
from sulina.core.records.record import Headers, StoredRecord, decode, encode
from sulina.errors import InvalidBatch

_ROWS_MIN_FOR_KERNELS = 64  # below this Python is fast enough not to import Numba
_ROWS_MIN_TO_ENCODE = 10  # once it is imported
_BYTES_MIN_FOR_KERNELS = 8192  # to decode
_ROW_OVERHEAD_BYTES = 32  # the longest varints and one byte of attributes
_NO_HEADERS = b"\x00"


def encode_rows(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps_ms: Sequence[int] | int,
    headers: Sequence[Headers] | None = None,
) -> bytearray:
    """Encode records, in their order, as one uncompressed batch. `timestamps_ms` may be one number for all.

    Raises:
        InvalidBatch: there are no records, a number does not fit, or the lists have different lengths.
    """
    count = len(values)
    if not count:
        raise InvalidBatch("a record batch needs at least one record")
    stamps = None if isinstance(timestamps_ms, int) else timestamps_ms
    for column in (keys, stamps, headers):
        if column is not None and len(column) != count:
            raise InvalidBatch(f"{count} values, but {len(column)} keys, timestamps or headers")
    suffix = _NO_HEADERS
    if headers is not None and any(headers):
        if headers.count(headers[0]) < count:
            return _encode_with_headers(values, keys, timestamps_ms, headers)
        suffix = encode_headers(headers[0])
    if keys is not None and keys[0] is None and keys.count(None) == count:
        keys = None
    is_much = count >= _ROWS_MIN_TO_ENCODE and are_worth_it(
        count, loaded=_ROWS_MIN_TO_ENCODE, unloaded=_ROWS_MIN_FOR_KERNELS
    )
    batch = (_encode_many if is_much else _encode_few)(values, keys, stamps, suffix)
    write_header(
        batch,
        codec=Codec.NONE,
        record_count=count,
        base_timestamp=timestamps_ms if stamps is None else stamps[0],  # type: ignore[arg-type]
        max_timestamp=timestamps_ms if stamps is None else max(stamps),  # type: ignore[arg-type]
    )
    return batch


def decode_rows(
    data: Bytes, start_offset: int = 0, max_records: int | None = None, limits: BatchLimits = DEFAULT_LIMITS
) -> list[StoredRecord]:
    """Decode the records from `start_offset` on of the batches that lie end to end in `data`, up to `max_records`.

    Control batches have no records. CRCs are not checked; bytes after the last record needed are not read.

    Raises:
        InvalidBatch: a batch or record is malformed.
        UnknownCodec: a compression is not known.
        BatchTooLarge: a batch is over the limit.
        DecompressedTooLarge: the records are over the limit once decompressed.
    """
    wanted = sys.maxsize if max_records is None else max_records
    body = bytes(data)  # a slice of bytes is a copy of its own
    records: list[StoredRecord] = []
    position = 0
    while position < len(body) and len(records) < wanted:
        if are_worth_it(len(body), loaded=0, unloaded=_BYTES_MIN_FOR_KERNELS):
            found, position = _decode_plain(body, position, start_offset, wanted - len(records), limits)
            records += found
            if position == len(body) or len(records) == wanted:
                break
        # Batches that are not plain are decoded, or refused, by the reference.
        size = parse_header(body, position).size_bytes
        [header] = split(body[position : position + size], limits, check_crc=False)
        records += decode(body, header, position, limits)[max(start_offset - header.base_offset, 0) :]
        position += size
    return records[:wanted]


def _decode_plain(
    body: bytes, start: int, start_offset: int, wanted: int, limits: BatchLimits
) -> tuple[list[StoredRecord], int]:
    """Decode the plain batches at `start`. Return their records, and where they end."""
    import numpy as np

    from sulina.core.records import kernels

    buffer = np.frombuffer(body, np.uint8)
    bounds = (limits.batch_bytes_max, limits.records_max)
    end, count = kernels.plain_run(buffer, start, start_offset, wanted, bounds)
    rows = np.empty((min(count, wanted), kernels.ROW_FIELDS), np.int64)
    headers = _HeaderReader(body)
    kernels.raise_fault(*kernels.find_rows(buffer, start, end, start_offset, rows))
    records = [
        StoredRecord(
            None if value_start < 0 else body[value_start:value_end],
            None if key_start < 0 else body[key_start:key_end],
            timestamp_ms,
            headers.read(headers_start, headers_count) if headers_count else (),
            offset,
        )
        for offset, timestamp_ms, key_start, key_end, value_start, value_end, headers_start, headers_count in (
            rows.tolist()
        )
    ]
    return records, end


class _HeaderReader:
    """Reads headers of records. Those of one record are mostly those of the one before: then they are not parsed."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._count, self._bytes = 0, b""  # of the record before
        self._headers: Headers = ()

    def read(self, start: int, count: int) -> Headers:
        body = self._body
        if count != self._count or not body.startswith(self._bytes, start):
            spans, end = parse_headers(body, start, len(body), count)
            self._count, self._bytes = count, body[start:end]
            self._headers = tuple((key, None if at < 0 else body[at:stop]) for key, at, stop in spans)
        return self._headers


def _encode_few(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, stamps: Sequence[int] | None, suffix: bytes
) -> bytearray:
    batch = bytearray(HEADER_BYTES)
    for index, value in enumerate(values):
        key = None if keys is None else keys[index]
        body = b"".join(
            (
                b"\x00\x00" if stamps is None else b"\x00" + varint(stamps[index] - stamps[0]),
                varint(index),
                b"\x01" if key is None else varint(len(key)),
                key or b"",
                b"\x01" if value is None else varint(len(value)),
                value or b"",
                suffix,
            )
        )
        batch += varint(len(body))
        batch += body
    return batch


def _encode_many(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, stamps: Sequence[int] | None, suffix: bytes
) -> bytearray:
    items = values if keys is None else [*values, *keys]
    try:
        data = b"".join(items)  # type: ignore[arg-type]
    except TypeError:  # some items are null
        data = b"".join(filter(None, items))
    import numpy as np

    from sulina.core.records import kernels

    count = len(values)
    try:
        sizes = np.fromiter(map(len, items), np.int64, len(items))  # type: ignore[arg-type]
    except TypeError:
        sizes = np.fromiter((-1 if item is None else len(item) for item in items), np.int64, len(items))
    try:
        timestamps = np.fromiter(stamps or (), np.int64)
    except OverflowError as error:
        raise InvalidBatch(f"a timestamp of the batch does not fit 64 bits: {error}") from None
    batch = bytearray(HEADER_BYTES + (_ROW_OVERHEAD_BYTES + len(suffix)) * count + len(data))
    out = np.frombuffer(batch, np.uint8, offset=HEADER_BYTES)
    headers = np.frombuffer(suffix, np.uint8)
    size, row = kernels.encode_rows(out, np.frombuffer(data, np.uint8), sizes, timestamps, headers, count)
    kernels.raise_fault(size, row)
    del out  # the array must not use the bytes while they are cut
    del batch[HEADER_BYTES + size :]
    return batch


def _encode_with_headers(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps_ms: Sequence[int] | int,
    headers: Sequence[Headers],
) -> bytearray:
    count = len(values)
    stamps = [timestamps_ms] * count if isinstance(timestamps_ms, int) else timestamps_ms
    return encode(list(map(StoredRecord, values, keys or [None] * count, stamps, headers)))
