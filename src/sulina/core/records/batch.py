"""The record batch: Kafka's format, version 2, in which records are sent and stored.

```
bytes 0..60   header, see BatchHeader       bytes 61..   records, compressed together if the codec says so
```
- A batch states its size, its record count and its CRC32C; `split` and `validate` check all of them.
- Base offset and partition epoch lie outside the CRC: the log writes them in place; nothing else changes.
- A batch has at least one record, and its offsets have no holes: record i has offset base_offset + i.
- Bytes from outside are never trusted: any input gives either a header or a SulinaError.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from crc32c import crc32c

from sulina.core.records.compression import Bytes, Codec, decompress
from sulina.core.records.kernel_choice import are_loaded, are_worth_it
from sulina.errors import BatchTooLarge, CorruptBatch, InvalidBatch, UnknownCodec
from sulina.types import Epoch, Offset

MAGIC = 2
RECORD_BYTES_MIN = 7  # length, attributes, timestamp, offset, key, value, header count: one byte each
NO_PRODUCER = -1
SEQUENCES = 1 << 31  # a producer's sequence starts again at 0 after 2^31 - 1

_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = _HEADER.size
_LENGTH_END = 12  # batch_length counts from here
_CRC_START = 21  # the CRC covers from the attributes to the end
_CRC_POSITION = 17
_U32 = struct.Struct(">I")
_ORIGIN = struct.Struct(">qhi")  # producer id, epoch, sequence of the first record
_ORIGIN_POSITION = 43
_STAMP = struct.Struct(">qii")  # base offset, length, epoch: the only bytes of a batch that the log may change
STAMP_BYTES = _STAMP.size
_COUNT_POSITION = 57

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_BASE_OFFSET_MAX = 2**63 - 2**32  # so that every record's offset fits 64 bits
_RECORDS_MIN_FOR_KERNELS = 64  # below this the walk in Python is fast enough not to import Numba
_RECORDS_MIN_WITH_KERNELS = 4  # once it is imported


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits of one batch."""

    batch_bytes_max: int = 16 * 1024 * 1024  # as sent
    decompressed_bytes_max: int = 64 * 1024 * 1024
    records_max: int = 1024 * 1024
    batches_max: int = 1024  # appended together


DEFAULT_LIMITS = BatchLimits()


class BatchHeader(NamedTuple):
    """The first 61 bytes of a batch, in their order."""

    base_offset: Offset
    batch_length: int  # bytes after this field
    epoch: Epoch  # of the partition's owner
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int  # milliseconds, as all timestamps here
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, this header included."""
        return _LENGTH_END + self.batch_length

    @property
    def end_offset(self) -> Offset:
        """One past the offset of the last record."""
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def has_origin(self) -> bool:
        """Whether its producer numbers what it sends, so that a repeat can be told."""
        return self.producer_id >= 0 and self.base_sequence >= 0

    @property
    def codec(self) -> int:
        """Number of the compression; `split` accepts only known ones."""
        return self.attributes & _CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether `max_timestamp` is the timestamp of every record."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds transaction markers, which readers do not get as records."""
        return bool(self.attributes & _CONTROL)


# The place of one record in the records of its batch: timestamp delta; start and end of the key; of the value;
# for each header its key, and start and end of its value. Null starts at -1.
RecordSpan = tuple[int, int, int, int, int, tuple[tuple[str, int, int], ...]]


def parse_header(buffer: Bytes, position: int = 0) -> BatchHeader:
    """Parse the header at `position`, and check its fields.

    Raises:
        InvalidBatch: it is not the header of a record batch.
    """
    if len(buffer) - position < HEADER_BYTES or position < 0:
        raise InvalidBatch(
            f"record batch needs a header of {HEADER_BYTES} bytes, but only {len(buffer) - position} are there"
        )
    header = BatchHeader._make(_HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC:
        raise InvalidBatch(f"record batch has format version {header.magic}: use version {MAGIC}")
    if header.batch_length < HEADER_BYTES - _LENGTH_END:
        raise InvalidBatch(f"record batch has length {header.batch_length}, which is less than a header")
    if not 0 <= header.base_offset <= _BASE_OFFSET_MAX:
        raise InvalidBatch(f"record batch has base offset {header.base_offset}, which is negative or too large")
    if header.record_count < 0 or header.last_offset_delta < 0:
        raise InvalidBatch(
            f"record batch has {header.record_count} records and last offset delta {header.last_offset_delta}"
        )
    return header


def stamp(offset: Offset, size_bytes: int, epoch: Epoch) -> bytes:
    """Return the first bytes of a batch as they are stored; the other bytes stay as they were sent."""
    return _STAMP.pack(offset, size_bytes - _LENGTH_END, epoch)


def split(buffer: Bytes, limits: BatchLimits = DEFAULT_LIMITS, *, check_crc: bool = True) -> list[BatchHeader]:
    """Return the headers of the batches that lie end to end in `buffer`. Everything but their records is checked.

    Raises:
        InvalidBatch: a batch is not what its header says.
        CorruptBatch: a checksum does not hold.
        UnknownCodec: a batch has a compression that is not known.
        BatchTooLarge: a batch is over the limit.
    """
    headers = []
    position = 0
    with memoryview(buffer) as view:
        while position < len(view):
            header = parse_header(view, position)
            end = position + header.size_bytes
            if header.size_bytes > limits.batch_bytes_max:
                raise BatchTooLarge(size_bytes=header.size_bytes, limit_bytes=limits.batch_bytes_max)
            if end > len(view):
                raise InvalidBatch(
                    f"record batch has {header.size_bytes} bytes by its header, but {len(view) - position} are there"
                )
            if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
                raise InvalidBatch(
                    f"record batch has {header.record_count} records and last offset delta {header.last_offset_delta}"
                )
            if header.record_count > limits.records_max:
                raise InvalidBatch(f"record batch has {header.record_count} records, the limit is {limits.records_max}")
            if header.codec > Codec.ZSTD:
                raise UnknownCodec(codec=header.codec)
            if check_crc:
                computed = crc32c(view[position + _CRC_START : end])
                if computed != header.crc:
                    raise CorruptBatch(stored=header.crc, computed=computed)
            headers.append(header)
            position = end
    return headers


def validate(buffer: Bytes, limits: BatchLimits = DEFAULT_LIMITS) -> list[BatchHeader]:
    """Return the headers of the batches in `buffer` after checking them as `split` does, and every record in them.

    Raises:
        InvalidBatch: a batch is not what its header says, or a record is malformed.
        CorruptBatch: a checksum does not hold.
        UnknownCodec: a batch has a compression that is not known.
        BatchTooLarge: a batch is over the limit.
        DecompressedTooLarge: the records are over the limit once decompressed.
    """
    headers = split(buffer, limits)
    check_records(buffer, headers, limits)
    return headers


def is_quickly_checked(headers: Sequence[BatchHeader]) -> bool:
    """Tell whether `check_records` is fast for these batches: nothing to decompress, nothing to import."""
    has_kernels = are_loaded()
    return all(
        header.codec == Codec.NONE and (has_kernels or header.record_count < _RECORDS_MIN_FOR_KERNELS)
        for header in headers
    )


def check_records(buffer: Bytes, headers: Sequence[BatchHeader], limits: BatchLimits = DEFAULT_LIMITS) -> None:
    """Check every record of the batches that `split` found.

    The limit of decompressed bytes is for all of them together.

    Raises:
        InvalidBatch: a record is malformed, or there are too many batches.
        DecompressedTooLarge: the records are over the limit once decompressed.
    """
    if len(headers) > limits.batches_max:
        raise InvalidBatch(f"{len(headers)} record batches at once are over the limit of {limits.batches_max}")
    position, left = 0, limits
    for header in headers:
        if header.is_control or header.is_log_append_time:
            # Only the log may make either, not a client.
            raise InvalidBatch(
                "record batch is a control batch, or has timestamps of the log: a client may send neither"
            )
        body = records_of(buffer, header, position, left)
        # Numba takes a second to import: it is imported only for many records, and used from then on.
        if not are_worth_it(header.record_count, loaded=_RECORDS_MIN_WITH_KERNELS, unloaded=_RECORDS_MIN_FOR_KERNELS):
            newest = max(delta for delta, *_ in walk(body, header)) + header.base_timestamp
        else:
            from sulina.core.records import kernels

            newest = kernels.check(body, header)
        if newest != header.max_timestamp:
            raise InvalidBatch(
                f"record batch has newest timestamp {header.max_timestamp} by its header, but it is {newest}"
            )
        if header.codec != Codec.NONE:
            left = replace(left, decompressed_bytes_max=left.decompressed_bytes_max - len(body))
        position += header.size_bytes


def record_count(buffer: Bytes) -> int:
    """Return the record count in the header of the batch in `buffer`."""
    return int(_U32.unpack_from(buffer, _COUNT_POSITION)[0])


def write_origin(buffer: bytearray | memoryview, *, producer_id: int, epoch: int, sequence: int) -> None:
    """Write the producer of the batch that fills `buffer`, in place, and its CRC32C, which covers that."""
    _ORIGIN.pack_into(buffer, _ORIGIN_POSITION, producer_id, epoch, sequence)
    with memoryview(buffer) as view:
        _U32.pack_into(buffer, _CRC_POSITION, crc32c(view[_CRC_START:]))


def write_header(
    buffer: bytearray | memoryview,
    *,
    codec: int,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    epoch: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> None:
    """Fill the first 61 bytes of `buffer`, which is a whole batch with its records in place.

    Raises:
        InvalidBatch: a number does not fit its field.
    """
    assert 0 <= codec <= Codec.ZSTD
    assert record_count >= 1
    attributes = codec | (_TRANSACTIONAL if transactional else 0)
    batch_length = len(buffer) - _LENGTH_END
    try:
        _HEADER.pack_into(
            buffer, 0, base_offset, batch_length, epoch, MAGIC, 0, attributes, record_count - 1,
            base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, record_count,
        )  # fmt: skip
    except struct.error as error:
        raise InvalidBatch(f"a field of the batch does not fit: {error}") from None
    with memoryview(buffer) as view:
        _U32.pack_into(buffer, _CRC_POSITION, crc32c(view[_CRC_START:]))


def records_of(
    buffer: Bytes, header: BatchHeader, position: int = 0, limits: BatchLimits = DEFAULT_LIMITS
) -> memoryview:
    """Return the bytes of the records of the batch at `position`, decompressed. The records are not checked.

    Raises:
        InvalidBatch: the bytes are malformed, or too few for the record count.
        UnknownCodec: the compression is not known.
        DecompressedTooLarge: they are over the limit once decompressed.
    """
    body = memoryview(buffer).cast("B")[position + HEADER_BYTES : position + header.size_bytes]
    if header.codec != Codec.NONE:
        body = decompress(header.codec, body, limits.decompressed_bytes_max)
    if header.record_count * RECORD_BYTES_MIN > len(body):  # before any caller allocates by this count
        raise InvalidBatch(
            f"record batch has {header.record_count} records by its header, but only {len(body)} bytes of them"
        )
    return body


def walk(body: Bytes, header: BatchHeader) -> Iterator[RecordSpan]:
    """Yield every record in `body`; at the end all of them are checked.

    This is the reference: the kernels accept and refuse the same bytes.

    Raises:
        InvalidBatch: a record is malformed.
    """
    position = 0
    size = len(body)
    base_timestamp = header.base_timestamp
    for index in range(header.record_count):
        length, position = _read_varint(body, position, size)
        end = position + length
        if length < RECORD_BYTES_MIN - 1 or end > size:
            raise InvalidBatch(f"record {index} has length {length}, not {RECORD_BYTES_MIN - 1} to {size - position}")
        delta, position = _read_varint(body, position + 1, end, 64)  # after one byte of attributes, all unused
        if not _INT64_MIN <= base_timestamp + delta <= _INT64_MAX:
            raise InvalidBatch(f"record {index} has timestamp {base_timestamp} + {delta}, which is too large")
        offset_delta, position = _read_varint(body, position, end)
        if offset_delta != index:
            raise InvalidBatch(f"record {index} has offset delta {offset_delta}, but {index} is right")
        key_start, key_end, position = _nullable(body, position, end)
        value_start, value_end, position = _nullable(body, position, end)
        headers: tuple[tuple[str, int, int], ...] = ()
        header_count, position = _read_varint(body, position, end)
        if header_count:
            headers, position = parse_headers(body, position, end, header_count)
        if position != end:
            raise InvalidBatch(f"record {index} has {end - position} bytes too many")
        yield delta, key_start, key_end, value_start, value_end, headers
    if position != size:
        raise InvalidBatch(f"{size - position} bytes follow the last of {header.record_count} records")


def _read_varint(body: Bytes, position: int, end: int, bits: int = 32) -> tuple[int, int]:
    """Read a zigzag varint. Return it with the position after it."""
    value = shift = 0
    while position < end and shift < bits:
        byte = body[position]
        position += 1
        if byte < 0x80:
            value |= byte << shift
            if value >> bits:
                break
            return (value >> 1) ^ -(value & 1), position
        value |= (byte & 0x7F) << shift
        shift += 7
    raise InvalidBatch(f"the number that ends before byte {position} of the records is not a {bits}-bit varint")


def _nullable(body: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """Return start and end of bytes after their length, and the position after them. Null (-1) starts at -1."""
    length, position = _read_varint(body, position, end)
    if length == -1:
        return -1, -1, position
    if length < 0 or length > end - position:
        raise InvalidBatch(f"a key or value has length {length}, but {end - position} bytes are left")
    return position, position + length, position + length


def parse_headers(body: Bytes, position: int, end: int, count: int) -> tuple[tuple[tuple[str, int, int], ...], int]:
    """Read the headers of a record: each has its key, and start and end of its value. Return the position after them.

    Raises:
        InvalidBatch: they are malformed.
    """
    if count < 0 or 2 * count > end - position:
        raise InvalidBatch(f"a record has {count} headers in {end - position} bytes")
    headers = []
    for _ in range(count):
        key_start, key_end, position = _nullable(body, position, end)
        if key_start < 0:
            raise InvalidBatch("a header has no key")
        try:
            key = str(body[key_start:key_end], "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidBatch(f"the key of a header is not UTF-8: {error.reason}") from None
        value_start, value_end, position = _nullable(body, position, end)
        headers.append((key, value_start, value_end))
    return tuple(headers), position


def _encode_varint(number: int) -> bytes:
    """Encode a varint: zigzag, then seven bits a byte, the lowest first."""
    if not -(2**63) <= number < 2**63:
        raise InvalidBatch(f"a timestamp of the batch, or its distance from the first, does not fit 64 bits: {number}")
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_SMALL_VARINTS = [_encode_varint(number) for number in range(1024)]


def varint(number: int) -> bytes:
    """Encode a varint; the small ones are known."""
    return _SMALL_VARINTS[number] if 0 <= number < 1024 else _encode_varint(number)


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Encode the headers of a record, with their number."""
    parts = [varint(len(headers))]
    for key, value in headers:
        key_bytes = key.encode()
        parts += (varint(len(key_bytes)), key_bytes)
        parts += (b"\x01",) if value is None else (varint(len(value)), value)
    return b"".join(parts)
