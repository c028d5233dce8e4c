"""Records as Python objects, to and from record batches: for JSON, for small batches, and as the reference.

- `decode(encode(records))` gives the same records back, with their offsets.
- The bytes are those that Kafka's own clients write; `columns` does the same in bulk.
"""

from collections.abc import Sequence

import msgspec

from sulina.core.records.batch import (
    DEFAULT_LIMITS,
    HEADER_BYTES,
    NO_PRODUCER,
    BatchHeader,
    BatchLimits,
    encode_headers,
    parse_header,
    records_of,
    varint,
    walk,
    write_header,
)
from sulina.core.records.compression import Bytes, Codec, compress
from sulina.errors import InvalidBatch, UnknownCodec

Headers = tuple[tuple[str, bytes | None], ...]


class StoredRecord(msgspec.Struct, frozen=True, gc=False):  # its fields cannot refer back to it
    """One stored item. The log assigns `offset`: `encode` ignores it, and uses the order of the records."""

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = -1  # -1: not given
    headers: Headers = ()
    offset: int = 0


def encode(
    records: Sequence[StoredRecord],
    *,
    codec: int = Codec.NONE,
    base_offset: int = 0,
    epoch: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytearray:
    """Encode `records` as one batch, in their order.

    Raises:
        InvalidBatch: there are no records, or a number does not fit.
        UnknownCodec: `codec` is not known.
    """
    if not records:
        raise InvalidBatch("a record batch needs at least one record")
    if not 0 <= codec <= Codec.ZSTD:
        raise UnknownCodec(codec=codec)
    batch = bytearray(HEADER_BYTES)
    base_timestamp = max_timestamp = records[0].timestamp_ms
    known: Headers = ()  # mostly the same for all
    known_bytes = b"\x00"
    for index, record in enumerate(records):
        timestamp = record.timestamp_ms
        max_timestamp = max(max_timestamp, timestamp)
        key, value, headers = record.key, record.value, record.headers
        if headers is not known:
            known, known_bytes = headers, encode_headers(headers) if headers else b"\x00"
        body = b"".join(
            (
                b"\x00",
                varint(timestamp - base_timestamp),
                varint(index),
                b"\x01" if key is None else varint(len(key)),
                key or b"",
                b"\x01" if value is None else varint(len(value)),
                value or b"",
                known_bytes,
            )
        )
        batch += varint(len(body))
        batch += body
    if codec != Codec.NONE:
        with memoryview(batch) as view:
            packed = compress(codec, view[HEADER_BYTES:])
        batch[HEADER_BYTES:] = packed
    write_header(
        batch,
        codec=codec,
        record_count=len(records),
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        base_offset=base_offset,
        epoch=epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )
    return batch


def decode(
    buffer: Bytes,
    header: BatchHeader | None = None,
    position: int = 0,
    limits: BatchLimits = DEFAULT_LIMITS,
) -> list[StoredRecord]:
    """Decode the records of the batch at `position`; a control batch has none. The CRC is not checked.

    Raises:
        InvalidBatch: the batch or a record is malformed.
        UnknownCodec: the compression is not known.
        DecompressedTooLarge: the records are over the limit once decompressed.
    """
    header = header or parse_header(buffer, position)
    if header.size_bytes > len(buffer) - position:
        raise InvalidBatch(
            f"record batch has {header.size_bytes} bytes by its header, but {len(buffer) - position} are there"
        )
    if header.is_control:
        return []
    body = bytes(records_of(buffer, header, position, limits))  # a slice of bytes is a copy of its own
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    return [
        StoredRecord(
            None if value_start < 0 else body[value_start:value_end],
            None if key_start < 0 else body[key_start:key_end],
            base_timestamp + timestamp_delta if append_time is None else append_time,
            tuple((key, None if start < 0 else body[start:end]) for key, start, end in headers) if headers else (),
            base_offset + index,
        )
        for index, (timestamp_delta, key_start, key_end, value_start, value_end, headers) in enumerate(
            walk(body, header)
        )
    ]
