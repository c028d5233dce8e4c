"""Record batches are held to what their headers say (mission L8: a flipped bit is detected, never served)."""

import struct
import subprocess
import sys
from collections.abc import Callable

import pytest
from crc32c import crc32c

from sulina.core.records.batch import (
    HEADER_BYTES,
    BatchLimits,
    is_quickly_checked,
    parse_header,
    record_count,
    split,
    validate,
    write_origin,
)
from sulina.core.records.compression import Codec
from sulina.core.records.record import StoredRecord, decode, encode
from sulina.errors import (
    BatchTooLarge,
    CorruptBatch,
    DecompressedTooLarge,
    InvalidBatch,
    SulinaError,
    UnknownCodec,
)

RECORDS = [
    StoredRecord(key=b"k1", value=b"one", timestamp_ms=1_700_000_000_000, headers=(("trace", b"\x01"), ("none", None))),
    StoredRecord(key=None, value=b"two", timestamp_ms=1_700_000_000_250),
    StoredRecord(key=b"", value=None, timestamp_ms=1_699_999_999_000),
]


def many(count: int) -> list[StoredRecord]:
    return [StoredRecord(value=b"v%d" % index, timestamp_ms=index) for index in range(count)]


def sealed(batch: bytearray) -> bytearray:
    """The same batch with length and CRC made right: what a lying but careful client sends."""
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def lying(field: str, position: int, value: int, records: list[StoredRecord] = RECORDS) -> bytearray:
    batch = encode(records)
    struct.pack_into(field, batch, position, value)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def test_a_header_reads_back_what_was_written() -> None:
    batch = encode(RECORDS, base_offset=41, epoch=7, producer_id=9, producer_epoch=2, base_sequence=5)
    header = parse_header(b"before" + batch, 6)
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.end_offset, header.epoch, header.magic) == (41, 44, 7, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 5)
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000, 1_700_000_000_250)
    assert (header.record_count, header.last_offset_delta, header.codec) == (3, 2, 0)
    flags = (header.is_log_append_time, header.is_transactional, header.is_control)
    assert flags == (False, False, False)


def test_flags_are_read_from_the_attributes() -> None:
    assert parse_header(lying(">h", 21, 0x08)).is_log_append_time
    assert parse_header(lying(">h", 21, 0x20)).is_control
    assert parse_header(encode(RECORDS, transactional=True)).is_transactional
    assert parse_header(lying(">h", 21, 0x04)).codec == 4


@pytest.mark.parametrize("size", [0, 1, 12, HEADER_BYTES - 1])
def test_a_short_header_is_refused(size: int) -> None:
    with pytest.raises(InvalidBatch, match=f"but only {size} are there"):
        parse_header(encode(RECORDS)[:size])


@pytest.mark.parametrize(
    ("field", "position", "value", "message"),
    [
        (">b", 16, 1, "format version 1"),
        (">i", 8, 48, "length 48, which is less than a header"),
        (">i", 8, -1, "length -1, which is less than a header"),
        (">q", 0, -1, "base offset -1"),
        (">q", 0, 2**63 - 1, "base offset"),
        (">i", 57, -1, "-1 records"),
        (">i", 23, -5, "last offset delta -5"),
    ],
)
def test_a_header_that_cannot_be_is_refused(field: str, position: int, value: int, message: str) -> None:
    with pytest.raises(InvalidBatch, match=message):
        parse_header(lying(field, position, value))


def test_batches_end_to_end_are_split() -> None:
    buffer = encode(RECORDS, base_offset=10) + encode(many(100), base_offset=13, codec=4)
    for found in (split(buffer), validate(buffer), split(memoryview(buffer)), validate(bytes(buffer))):
        assert [(header.base_offset, header.end_offset) for header in found] == [(10, 13), (13, 113)]


def test_an_empty_buffer_holds_no_batches() -> None:
    assert split(b"") == validate(b"") == []


@pytest.mark.parametrize("tail", [b"\x00", b"\x00" * 60, b"\x00" * 61, b"garbage" * 20])
def test_nothing_may_trail_the_last_batch(tail: bytes) -> None:
    with pytest.raises(InvalidBatch):
        split(encode(RECORDS) + tail)


def test_a_batch_cut_anywhere_is_refused() -> None:
    batch = encode(RECORDS)
    for size in range(1, len(batch)):
        with pytest.raises(InvalidBatch):
            split(batch[:size])


def test_every_flipped_bit_under_the_crc_is_found() -> None:
    """Mission L8."""
    batch = encode(RECORDS)
    for position in range(8, len(batch)):
        if 12 <= position < 16:
            continue  # the epoch, which the owner patches
        for bit in range(8):
            damaged = bytearray(batch)
            damaged[position] ^= 1 << bit
            with pytest.raises(SulinaError):
                split(damaged)


def test_a_wrong_crc_names_both_checksums() -> None:
    batch = encode(RECORDS)
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch) as caught:
        split(batch)
    assert caught.value.stored != caught.value.computed
    assert split(batch, check_crc=False)  # for who has checked before


@pytest.mark.parametrize(("count", "delta"), [(3, 3), (3, 1), (0, 0), (2, 2), (2**31 - 1, 2**31 - 2)])
def test_a_count_that_the_offsets_contradict_is_refused(count: int, delta: int) -> None:
    batch = lying(">i", 57, count)
    struct.pack_into(">i", batch, 23, delta)
    with pytest.raises(InvalidBatch, match="records"):
        split(sealed(batch))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    with pytest.raises(UnknownCodec):
        split(lying(">h", 21, codec))
    with pytest.raises(UnknownCodec):
        encode(RECORDS, codec=codec)


def test_limits_hold_for_bytes_and_for_records() -> None:
    batch = encode(many(100))
    assert split(batch, BatchLimits(batch_bytes_max=len(batch), records_max=100))
    with pytest.raises(BatchTooLarge) as caught:
        split(batch, BatchLimits(batch_bytes_max=len(batch) - 1))
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (len(batch), len(batch) - 1)
    with pytest.raises(InvalidBatch, match="the limit is 99"):
        split(batch, BatchLimits(records_max=99))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [10, 1000])
def test_the_limit_holds_for_decompressed_bytes(codec: int, count: int) -> None:
    records = [StoredRecord(value=b"x" * 1000)] * count
    batch = encode(records, codec=codec)
    assert validate(batch)
    with pytest.raises(DecompressedTooLarge):
        validate(batch, BatchLimits(decompressed_bytes_max=1000 * count))


# Each of these is the body of one record, without its length.
BAD_RECORDS = {
    "a key longer than its record": b"\x00\x00\x00\x7e" + b"v" * 10,
    "a key of length -2": b"\x00\x00\x00\x03\x01\x00",
    "a value longer than its record": b"\x00\x00\x00\x01\x7e" + b"v" * 10,
    "a value of length -2": b"\x00\x00\x00\x01\x03\x00",
    "a negative header count": b"\x00\x00\x00\x01\x01\x01",
    "more headers than bytes": b"\x00\x00\x00\x01\x01\x7e\x00\x01",
    "a header without key": b"\x00\x00\x00\x01\x01\x02\x01\x01",
    "a header key that is not UTF-8": b"\x00\x00\x00\x01\x01\x02\x02\xff\x01",
    "a header key that is a surrogate": b"\x00\x00\x00\x01\x01\x02\x06\xed\xa0\x80\x01",
    "a header value of length -2": b"\x00\x00\x00\x01\x01\x02\x00\x03",
    "a header value past the end": b"\x00\x00\x00\x01\x01\x02\x00\x04\x00",
    "an offset delta that is not its place": b"\x00\x00\x02\x01\x01\x00",
    "bytes after the headers": b"\x00\x00\x00\x01\x01\x00\x00",
    "a varint that does not end": b"\x00\x00\xff\xff\xff\xff\xff\xff\x01\x01\x00",
    "a varint over 32 bits": b"\x00\x00\x80\x80\x80\x80\x10\x01\x01\x00",
    "a varlong over 64 bits": b"\x00" + b"\x80" * 9 + b"\x02" + b"\x00\x01\x01\x00",
    "a timestamp over 64 bits": b"\x00" + b"\xfe" + b"\xff" * 8 + b"\x01" + b"\x00\x01\x01\x00",
    "too few bytes": b"\x00\x00\x00\x01\x01",
}


@pytest.mark.parametrize("body", BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
@pytest.mark.parametrize("kernel", [False, True])
def test_a_record_is_refused_that_has(body: bytes, kernel: bool) -> None:
    count = 100 if kernel else 3
    batch = encode(many(count))
    header = parse_header(batch)
    first_bytes = batch[HEADER_BYTES] // 2 + 1  # the length is one byte, zigzag
    batch[HEADER_BYTES : HEADER_BYTES + first_bytes] = bytes([2 * len(body)]) + body
    struct.pack_into(">q", batch, 27, 1)  # a base timestamp that the largest delta passes 64 bits from
    batch = sealed(batch)
    assert split(batch)[0].record_count == header.record_count
    with pytest.raises(InvalidBatch):
        validate(batch)
    with pytest.raises(InvalidBatch):
        decode(batch)


@pytest.mark.parametrize("count", [3, 100])
def test_bytes_after_the_last_record_are_refused(count: int) -> None:
    with pytest.raises(InvalidBatch):
        validate(sealed(encode(many(count)) + b"\x00"))


@pytest.mark.parametrize("count", [3, 100])
def test_records_that_are_missing_are_noticed(count: int) -> None:
    batch = encode(many(count))
    for lie in (count - 1, count + 1, 2**20):
        struct.pack_into(">i", batch, 57, lie)
        struct.pack_into(">i", batch, 23, lie - 1)
        with pytest.raises(InvalidBatch):
            validate(sealed(batch))


def test_numbers_in_more_bytes_than_needed_are_accepted() -> None:
    """As Kafka does: a varint's length is not part of its meaning."""
    body = b"\x00" + b"\x80\x00" + b"\x80\x80\x00" + b"\x81\x00" + b"\x82\x80\x80\x80\x00v" + b"\x80\x00"
    batch = sealed(encode([StoredRecord(value=b"")])[:HEADER_BYTES] + bytes([2 * len(body)]) + body)
    assert validate(batch)
    assert [(record.key, record.value) for record in decode(batch)] == [(None, b"v")]


def test_small_users_import_neither_numba_nor_pyarrow_nor_numpy() -> None:
    script = """
import sys
from sulina.core.records import batch, compression, record as records
batch.validate(records.encode([records.StoredRecord(value=b"v")] * 63))
assert records.decode(records.encode([records.StoredRecord(value=b"v")]))
assert not {"numba", "numpy", "pyarrow"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_l13_who_wrote_a_batch_is_written_into_it_and_the_batch_still_holds(
    kind: Callable[[bytearray], bytearray | memoryview],
) -> None:
    batch = kind(encode(RECORDS))
    write_origin(batch, producer_id=2**40, epoch=7, sequence=99)
    [header] = validate(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 7, 99)
    assert [record.value for record in decode(bytes(batch))] == [record.value for record in RECORDS]


@pytest.mark.parametrize("count", [1, 3, 300])
def test_a_batch_says_how_many_records_it_has(count: int) -> None:
    assert record_count(encode(many(count))) == count


def test_a_batch_that_is_compressed_takes_longer_to_check() -> None:
    plain, packed = split(encode(RECORDS)), split(encode(RECORDS, codec=Codec.ZSTD))
    assert is_quickly_checked(plain)
    assert not is_quickly_checked(packed)
    assert not is_quickly_checked([*plain, *packed])


def test_every_batch_of_several_is_checked_at_its_own_place() -> None:
    good, bad = encode(RECORDS), encode(RECORDS)
    bad[HEADER_BYTES] = 0  # the length of the first record
    assert len(validate(good * 3)) == 3
    with pytest.raises(InvalidBatch, match="record 0 has length 0, not 6 to "):
        validate(good * 2 + sealed(bad))


def test_the_limit_of_decompressed_bytes_is_for_all_batches_together() -> None:
    packed = encode(many(3), codec=Codec.ZSTD)
    body = len(encode(many(3))) - HEADER_BYTES
    validate(packed * 3, BatchLimits(decompressed_bytes_max=3 * body))
    with pytest.raises(DecompressedTooLarge):
        validate(packed * 3, BatchLimits(decompressed_bytes_max=3 * body - 1))
