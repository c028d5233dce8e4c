"""Hostile bytes: whatever comes in, only SulinaErrors come out, and both walkers judge alike."""

import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sulina.core.records import kernels
from sulina.core.records.batch import HEADER_BYTES, BatchHeader, BatchLimits, parse_header, split, validate, walk
from sulina.core.records.columns import decode_columns
from sulina.core.records.compression import Codec, compress, decompress
from sulina.core.records.record import StoredRecord, decode, encode
from sulina.errors import DecompressedTooLarge, InvalidBatch, SulinaError

LIMITS = BatchLimits(batch_bytes_max=1 << 20, decompressed_bytes_max=1 << 20, records_max=1 << 16)
BLOBS = st.none() | st.binary(max_size=80)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BLOBS), max_size=3).map(tuple)
RECORDS = st.lists(
    st.builds(StoredRecord, key=BLOBS, value=BLOBS, timestamp_ms=st.integers(-(2**61), 2**61), headers=HEADERS),
    min_size=1,
    max_size=8,
)
# Where a byte goes, as a fraction so that it falls into any batch, and what it becomes.
EDITS = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True), st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFE, 0xFF]) | st.integers(0, 255)
    ),
    min_size=1,
    max_size=4,
)


def outcome(function: Callable[[], object]) -> str:
    try:
        function()
    except SulinaError as error:
        return type(error).__name__
    return "accepted"


def everything_survives(buffer: bytes) -> None:
    outcome(lambda: split(buffer, LIMITS))
    validated = outcome(lambda: validate(buffer, LIMITS))
    decoded = outcome(lambda: decode(buffer, limits=LIMITS))
    outcome(lambda: decode_columns(buffer, limits=LIMITS).validate(full=True))
    if validated == "accepted" and buffer:
        assert decoded == "accepted", "what is valid decodes"
        assert decode_columns(buffer, limits=LIMITS).num_rows >= 0


def sealed(batch: bytearray) -> bytes:
    """With length and CRC made right, so that the lie lies deeper."""
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return bytes(batch)


def edited(data: bytes | bytearray, edits: list[tuple[float, int]], start: int = 0) -> bytearray:
    out = bytearray(data)
    for place, byte in edits:
        out[start + int(place * (len(out) - start))] = byte
    return out


def walkers_agree(body: bytes, count: int, base_timestamp: int = 0) -> bool:
    header = BatchHeader._make(struct.unpack(">qiibIhiqqqhii", bytes(HEADER_BYTES)))
    header = header._replace(record_count=count, base_timestamp=base_timestamp)
    python = outcome(lambda: list(walk(body, header)))
    kernel = outcome(lambda: kernels.check(body, header))
    assert python == kernel
    return python == "accepted"


@settings(max_examples=300)
@given(buffer=st.binary(max_size=300))
@example(buffer=b"\x00" * 61)
@example(buffer=b"\xff" * 200)
def test_random_bytes_are_survived(buffer: bytes) -> None:
    everything_survives(buffer)


@settings(max_examples=300)
@given(body=st.binary(max_size=100), count=st.integers(0, 2**31 - 1), attributes=st.integers(0, 63))
def test_random_records_under_a_right_header_are_survived(body: bytes, count: int, attributes: int) -> None:
    batch = bytearray(HEADER_BYTES) + body
    batch[16] = 2
    struct.pack_into(">hi", batch, 21, attributes, max(count - 1, 0))
    struct.pack_into(">i", batch, 57, count)
    everything_survives(sealed(batch))


@settings(max_examples=400)
@given(records=RECORDS, codec=st.integers(0, 4), edits=EDITS)
def test_valid_batches_with_changed_bytes_are_survived(
    records: list[StoredRecord], codec: int, edits: list[tuple[float, int]]
) -> None:
    batch = edited(encode(records, codec=codec), edits)
    everything_survives(bytes(batch))
    everything_survives(sealed(batch) if len(batch) >= HEADER_BYTES else bytes(batch))


@settings(max_examples=200)
@given(records=RECORDS, codec=st.integers(0, 4), cut=st.floats(0, 1))
def test_truncated_batches_are_survived(records: list[StoredRecord], codec: int, cut: float) -> None:
    batch = encode(records, codec=codec)
    size = int(cut * len(batch))
    everything_survives(bytes(batch[:size]))
    if HEADER_BYTES <= size < len(batch):
        assert outcome(lambda: validate(sealed(batch[:size]), LIMITS)) != "accepted"


@settings(max_examples=600)
@given(records=RECORDS, edits=EDITS, count_lie=st.sampled_from([0, 0, 0, 0, 1, -1, 1000]))
def test_both_walkers_judge_changed_records_alike(
    records: list[StoredRecord], edits: list[tuple[float, int]], count_lie: int
) -> None:
    batch = encode(records)
    header = parse_header(batch)
    assert walkers_agree(bytes(batch[HEADER_BYTES:]), header.record_count, header.base_timestamp)
    body = bytes(edited(batch[HEADER_BYTES:], edits))
    walkers_agree(body, max(header.record_count + count_lie, 0), header.base_timestamp)


@settings(max_examples=300)
@given(body=st.binary(max_size=60), count=st.integers(0, 3), base_timestamp=st.integers(-(2**63), 2**63 - 1))
def test_both_walkers_judge_random_records_alike(body: bytes, count: int, base_timestamp: int) -> None:
    walkers_agree(body, count, base_timestamp)


@settings(max_examples=300)
@given(key=st.binary(min_size=1, max_size=8) | st.text(min_size=1, max_size=3).map(str.encode))
@example(key=b"\xed\x9f\xbf")
@example(key=b"\xed\xa0\x80")
@example(key=b"\xf4\x8f\xbf\xbf")
@example(key=b"\xf4\x90\x80\x80")
@example(key=b"\xe0\x9f\xbf")
@example(key=b"\xf0\x8f\xbf\xbf")
@example(key=b"\xc1\xbf")
def test_both_walkers_judge_the_keys_of_headers_alike(key: bytes) -> None:
    record = b"\x00\x00\x00\x01\x01\x02" + bytes([2 * len(key)]) + key + b"\x01"
    try:
        key.decode()
        is_utf8 = True
    except UnicodeDecodeError:
        is_utf8 = False
    assert walkers_agree(bytes([2 * len(record)]) + record, 1) == is_utf8


@settings(max_examples=200)
@given(codec=st.integers(1, 4), data=st.binary(min_size=1, max_size=300), edits=EDITS)
def test_changed_compressed_bytes_are_survived(codec: int, data: bytes, edits: list[tuple[float, int]]) -> None:
    packed = edited(bytes(compress(codec, data * 20)), edits)
    with suppress(InvalidBatch, DecompressedTooLarge):
        assert len(decompress(codec, packed, 5000)) <= 5000


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_bomb_in_a_batch_is_refused(codec: Codec) -> None:
    batch = encode([StoredRecord(value=bytes(32 << 20))], codec=codec)
    limits = BatchLimits(decompressed_bytes_max=1 << 20)
    for read in (
        lambda: validate(batch, limits),
        lambda: decode(batch, limits=limits),
        lambda: decode_columns(batch, limits=limits),
    ):
        assert outcome(read) == "DecompressedTooLarge"


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_count_of_two_thousand_million_allocates_nothing(codec: Codec) -> None:
    batch = encode([StoredRecord(value=b"v")], codec=codec)
    struct.pack_into(">i", batch, 23, 2**31 - 2)
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    buffer = sealed(batch)
    limits = BatchLimits(records_max=2**31)
    for read in (
        lambda: validate(buffer, limits),
        lambda: decode(buffer, limits=limits),
        lambda: decode_columns(buffer, limits=limits),
    ):
        assert outcome(read) == "InvalidBatch"
