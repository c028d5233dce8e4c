"""Rows are records: the same bytes one way, the same records the other, whichever path they take."""

import subprocess
import sys
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sulina.core.records import kernels  # noqa: F401 from here on kernels are used
from sulina.core.records.batch import BatchLimits, split, validate
from sulina.core.records.record import Headers, StoredRecord, decode, encode
from sulina.core.records.rows import decode_rows, encode_rows
from sulina.errors import BatchTooLarge, DecompressedTooLarge, InvalidBatch, InvalidInput

FEW, MANY = 3, 40  # on either side of what makes a kernel worth its call
MILLISECONDS = st.integers(-(2**62), 2**62 - 1) | st.integers(-100, 100)
BLOBS = st.none() | st.binary(max_size=200)
HEADERS: st.SearchStrategy[Headers] = st.lists(st.tuples(st.text(max_size=10), BLOBS), max_size=3).map(tuple)
RECORDS = st.lists(st.builds(StoredRecord, key=BLOBS, value=BLOBS, timestamp_ms=MILLISECONDS), min_size=1, max_size=60)
WITH_HEADERS = st.builds(StoredRecord, key=BLOBS, value=BLOBS, timestamp_ms=MILLISECONDS, headers=HEADERS)


def encoded(records: list[StoredRecord]) -> bytearray:
    """The records, column by column."""
    return encode_rows(
        [record.value for record in records],
        [record.key for record in records],
        [record.timestamp_ms for record in records],
        [record.headers for record in records],
    )


@given(records=RECORDS)
@example([StoredRecord(value=None)] * MANY)
@example([StoredRecord(value=b"", key=b"")] * MANY)
@example([StoredRecord(value=b"v", key=None), StoredRecord(value=None, key=b"k")] * MANY)
def test_rows_encode_to_the_very_bytes_of_records(records: list[StoredRecord]) -> None:
    batch = encoded(records)
    assert batch == encode(records)
    assert isinstance(batch, bytearray)
    validate(batch)


@given(records=st.lists(WITH_HEADERS, min_size=1, max_size=30))
def test_headers_are_encoded_too(records: list[StoredRecord]) -> None:
    assert encoded(records) == encode(records)


@given(values=st.lists(BLOBS, min_size=1, max_size=60), stamp=MILLISECONDS, data=st.data())
def test_one_timestamp_serves_all_and_keys_may_be_absent(values: list[bytes | None], stamp: int, data: Any) -> None:
    keys = data.draw(st.none() | st.lists(BLOBS, min_size=len(values), max_size=len(values)))
    records = [StoredRecord(v, k, stamp) for v, k in zip(values, keys or [None] * len(values), strict=True)]
    assert encode_rows(values, keys, stamp) == encode(records)


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("keys", [None, b"k"])
def test_one_timestamp_serves_records_with_headers_too(count: int, keys: bytes | None) -> None:
    headers: list[Headers] = [(("h", b"1"),), *[()] * (count - 1)]
    records = [StoredRecord(b"v", keys, 5, each) for each in headers]
    assert encode_rows([b"v"] * count, None if keys is None else [keys] * count, 5, headers) == encode(records)


@pytest.mark.parametrize("count", [*range(1, 70), 127, 128, 129, 999, 1000, 1023, 1024, 1025, 2000])
def test_any_number_of_rows_is_encoded_and_decoded(count: int) -> None:
    records = [StoredRecord(b"v" * (index % 150), b"k%d" % index, index, offset=index) for index in range(count)]
    batch = encoded(records)
    assert batch == encode(records)
    assert decode_rows(batch) == records


@pytest.mark.parametrize("count", [1, FEW, MANY])
def test_lengths_are_right_at_every_border_of_a_varint(count: int) -> None:
    for size in [0, 1, 50, 55, 56, 57, 58, 63, 64, 127, 128, 8180, 8191, 8192, 8193, (1 << 20) - 8, 1 << 20]:
        sides = ((b"v" * size, None), (None, b"k" * size), (b"v" * size, b"k"))
        for value, key in sides if size <= 8193 else sides[: FEW - count]:
            records = [StoredRecord(value, key, 5, offset=index) for index in range(count)]
            batch = encoded(records)
            assert batch == encode(records)
            assert decode_rows(batch) == records


@pytest.mark.parametrize("count", [1, MANY])
def test_timestamps_may_lie_at_the_ends_of_64_bits(count: int) -> None:
    deltas = [0, 2**63 - 1, -(2**63), -1, 63, 64, -64, -65, *(2**bits for bits in range(62))] * count
    for start in (0, 1, -1):
        records = [StoredRecord(b"", None, delta, offset=index) for index, delta in enumerate([start, *deltas])]
        records = [record for record in records if -(2**63) <= record.timestamp_ms - start < 2**63]
        records = [StoredRecord(b"", None, record.timestamp_ms, (), index) for index, record in enumerate(records)]
        batch = encoded(records)
        assert batch == encode(records)
        assert decode_rows(batch) == records
    for stamp in (-(2**63), 2**63 - 1):
        assert encode_rows([b""] * count, None, stamp) == encode([StoredRecord(b"", None, stamp)] * count)


@pytest.mark.parametrize("count", [2, MANY])
@pytest.mark.parametrize("stamps", [(2**63, 2**63), (-1, 2**63 - 1), (0, 2**64), (1, -(2**63)), (2**80, 0)])
def test_timestamps_that_64_bits_do_not_hold_are_refused(stamps: tuple[int, int], count: int) -> None:
    every = [*stamps] * (count // 2)
    with pytest.raises(InvalidBatch):
        encode([StoredRecord(b"", None, stamp) for stamp in every])
    with pytest.raises(InvalidBatch):
        encode_rows([b""] * count, None, every)
    if not -(2**63) <= stamps[0] < 2**63:
        with pytest.raises(InvalidBatch):
            encode_rows([b""] * count, None, stamps[0])


@pytest.mark.parametrize("count", [2, MANY])
def test_lists_that_make_no_batch_are_refused(count: int) -> None:
    values = [b"v"] * count
    with pytest.raises(InvalidBatch, match="at least one record"):
        encode_rows([], None, 0)
    with pytest.raises(InvalidBatch, match=r"2 values|40 values"):
        encode_rows(values, values[1:], 0)
    with pytest.raises(InvalidBatch, match="but 1 "):
        encode_rows(values, None, [1])
    with pytest.raises(InvalidBatch, match="but 1 "):
        encode_rows(values, None, 1, [()])


def test_sizes_that_lie_cannot_make_a_kernel_leave_its_buffers() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return 1_000_000

    with pytest.raises(InvalidBatch):
        encode_rows([Long(b"v")] * MANY, None, 0)
    with pytest.raises(InvalidBatch):
        encode_rows([b"v"] * MANY, [Long(b"k")] * MANY, 0)


@given(
    runs=st.lists(
        st.tuples(st.lists(WITH_HEADERS, min_size=1, max_size=20), st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4])),
        max_size=5,
    ),
    base=st.integers(0, 2**40),
    skipped=st.integers(0, 60),
    max_records=st.none() | st.integers(0, 60),
)
def test_batches_of_any_codec_decode_as_records_do_from_an_offset_on(
    runs: list[tuple[list[StoredRecord], int]], base: int, skipped: int, max_records: int | None
) -> None:
    buffer = bytearray()
    expected: list[StoredRecord] = []
    for records, codec in runs:
        batch = encode(records, codec=codec, base_offset=base + len(expected))
        expected += decode(batch)
        buffer += batch
    wanted = expected[skipped:][:max_records]
    for data in (buffer, bytes(buffer), memoryview(buffer)):
        assert decode_rows(data, base + skipped, max_records) == wanted


def test_batches_with_holes_between_them_decode_from_the_offset_on() -> None:
    records = [StoredRecord(b"%d" % index, None, index) for index in range(MANY)]
    data = encode(records, base_offset=100) + encode(records, base_offset=1000)
    assert [record.offset for record in decode_rows(data, 130)] == [*range(130, 140), *range(1000, 1040)]
    assert [record.offset for record in decode_rows(data, 500)] == [*range(1000, 1040)]
    assert decode_rows(data, 2000) == []
    assert decode_rows(b"") == []


def test_control_batches_have_no_records_and_the_log_may_have_given_the_time() -> None:
    records = [StoredRecord(b"a", None, 5), StoredRecord(b"b", None, 9)]
    plain, appended, control = (encode(records, base_offset=offset) for offset in (0, 2, 4))
    appended[22] |= 0x08
    control[22] |= 0x20
    found = decode_rows(plain + appended + control + encode(records, base_offset=6))
    assert [(record.offset, record.timestamp_ms) for record in found] == [
        (0, 5), (1, 9), (2, 9), (3, 9), (6, 5), (7, 9),
    ]  # fmt: skip


@settings(max_examples=300)
@given(records=st.lists(WITH_HEADERS, min_size=1, max_size=6), data=st.data())
def test_damaged_batches_are_refused_as_the_reference_refuses_them(records: list[StoredRecord], data: Any) -> None:
    sound = encode(records)
    batch = bytearray(sound + encode(records, base_offset=len(records)))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.just(len(batch)) | st.integers(0, len(batch)))
    del batch[cut:]
    try:
        expected = by_reference(bytes(batch))
    except InvalidInput:
        with pytest.raises(InvalidInput):  # which one depends on what is looked at first
            decode_rows(batch)
    else:
        assert decode_rows(batch) == expected


def by_reference(data: bytes) -> list[StoredRecord]:
    headers = split(data, check_crc=False)
    positions = accumulate((header.size_bytes for header in headers), initial=0)
    pairs = zip(headers, positions, strict=False)
    return [record for header, position in pairs for record in decode(data, header, position)]


def test_limits_hold_for_rows_too() -> None:
    plain, packed = (encode([StoredRecord(b"x" * 1000)] * 10, codec=codec) for codec in (0, 4))
    with pytest.raises(DecompressedTooLarge):
        decode_rows(packed, limits=BatchLimits(decompressed_bytes_max=5000))
    with pytest.raises(BatchTooLarge):
        decode_rows(plain, limits=BatchLimits(batch_bytes_max=100))
    with pytest.raises(InvalidBatch):
        decode_rows(plain, limits=BatchLimits(records_max=9))


def test_a_few_rows_need_no_numba() -> None:
    script = """
import sys
from sulina.core.records.record import StoredRecord, decode, encode
from sulina.core.records.rows import decode_rows, encode_rows
for count in (1, 2, 63):
    batch = encode_rows([b"v"] * count, [b"k"] * count, 7)
    assert batch == encode([StoredRecord(b"v", b"k", 7)] * count)
    assert decode_rows(batch) == decode(batch)
assert "numba" not in sys.modules and "numpy" not in sys.modules
assert encode_rows([b"v"] * 64, None, 7) == encode([StoredRecord(b"v", None, 7)] * 64)
assert "numba" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
