"""Columns and records are two views of the same bytes (mission S1: Arrow throughout)."""

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sulina.core.records.batch import BatchLimits, parse_header, split, validate
from sulina.core.records.columns import decode_columns, encode_columns, origins
from sulina.core.records.record import StoredRecord, decode, encode
from sulina.core.records.record_columns import HEADERS_TYPE, SCHEMA
from sulina.errors import BatchTooLarge, CorruptBatch, DecompressedTooLarge, InvalidBatch, InvalidInput, UnknownCodec

# A timestamp column prints years 1 to 9999 only; records hold more.
MILLISECONDS = st.integers(-62_000_000_000_000, 253_000_000_000_000)
BLOBS = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=10), BLOBS), max_size=3).map(tuple)
RECORDS = st.lists(
    st.builds(StoredRecord, key=BLOBS, value=BLOBS, timestamp_ms=MILLISECONDS, headers=HEADERS),
    min_size=1,
    max_size=20,
)


def rows(table: pa.RecordBatch) -> list[StoredRecord]:
    """A decoded table as the records that the reference decoder gives."""
    table.validate(full=True)
    assert table.schema == SCHEMA
    return [
        StoredRecord(
            key=row["key"],
            value=row["value"],
            timestamp_ms=row["stamp"],
            headers=tuple((header["key"], header["value"]) for header in row["headers"]),
            offset=row["offset"],
        )
        for row in table.append_column("stamp", table["timestamp"].cast(pa.int64()))
        .drop_columns("timestamp")
        .to_pylist()
    ]


def columns_of(records: list[StoredRecord]) -> dict[str, pa.Array]:
    return {
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "timestamp_ms": pa.array([record.timestamp_ms for record in records], pa.int64()),
        "headers": pa.array(
            [[{"key": key, "value": value} for key, value in record.headers] for record in records], HEADERS_TYPE
        ),
    }


@given(records=RECORDS)
def test_columns_encode_to_the_very_bytes_of_records(records: list[StoredRecord]) -> None:
    origin: dict[str, Any] = {"base_offset": 7, "epoch": 3, "producer_id": 1, "producer_epoch": 2, "base_sequence": 9}
    assert encode_columns(**columns_of(records), **origin) == encode(records, **origin)


@given(runs=st.lists(st.tuples(RECORDS, st.sampled_from([0, 0, 0, 1, 2, 3, 4])), max_size=5))
def test_batches_of_any_codec_end_to_end_decode_as_records_do(runs: list[tuple[list[StoredRecord], int]]) -> None:
    buffer = bytearray()
    expected: list[StoredRecord] = []
    for records, codec in runs:
        batch = encode(records, codec=codec, base_offset=len(expected))
        expected += decode(batch)
        buffer += batch
    assert rows(decode_columns(buffer, check_crc=True)) == expected


@given(records=RECORDS, start=st.integers(0, 19), size=st.integers(1, 20), codec=st.integers(0, 4))
def test_slices_of_columns_encode_as_the_rows_they_show(
    records: list[StoredRecord], start: int, size: int, codec: int
) -> None:
    start = min(start, len(records) - 1)
    shown = records[start : start + size]
    sliced = {name: column[start : start + size] for name, column in columns_of(records).items()}
    batch = encode_columns(**sliced, codec=codec)
    validate(batch)
    assert decode(batch) == decode(encode(shown))


def test_two_hundred_thousand_rows_come_back() -> None:
    count = 200_000
    value = pa.array([b"value %d" % index if index % 7 else None for index in range(count)], pa.binary())
    key = pa.array([b"key %d" % index if index % 3 else None for index in range(count)], pa.binary())
    stamps = pa.array(range(count), pa.int64())
    batch = encode_columns(value=value, key=key, timestamp_ms=stamps, base_offset=5)
    assert validate(batch)[0].record_count == count
    table = decode_columns(batch)
    table.validate(full=True)
    assert table["value"].equals(value)
    assert table["key"].equals(key)
    assert table["timestamp"].cast(pa.int64()).equals(stamps)
    assert table["offset"].equals(pa.array(range(5, count + 5)))
    assert table["value"].null_count == value.null_count


def test_chunks_strings_large_binaries_and_other_timestamps_are_taken() -> None:
    expected = encode([StoredRecord(value=b"a", key=b"k", timestamp_ms=5), StoredRecord(value=b"b", timestamp_ms=6)])
    value = pa.chunked_array([["a"], ["b"]], pa.string())
    key = pa.array([b"k", None], pa.large_binary())
    micros = pa.array([5_999, 6_000], pa.timestamp("us", "UTC"))
    assert encode_columns(value=value, key=key, timestamp_ms=micros) == expected
    chunked_micros = pa.chunked_array([micros[:1], micros[1:]])
    assert encode_columns(value=value, key=key, timestamp_ms=chunked_micros) == expected
    one_time = decode(encode_columns(value=value, timestamp_ms=77))
    assert [record.timestamp_ms for record in one_time] == [77, 77]


def test_null_headers_are_no_headers() -> None:
    headers = pa.array([None, [("a", b"1"), ("b", None)], []], HEADERS_TYPE)
    batch = encode_columns(value=pa.array([b"x", b"y", b"z"]), timestamp_ms=0, headers=headers)
    assert [record.headers for record in decode(batch)] == [(), (("a", b"1"), ("b", None)), ()]


@pytest.mark.parametrize(
    "bad",
    [
        {"value": pa.array([], pa.binary())},
        {"value": pa.array([1, 2])},
        {"timestamp_ms": pa.array([1, None], pa.int64())},
        {"timestamp_ms": pa.array([1], pa.int64())},
        {"timestamp_ms": pa.array([-(2**63), 2**63 - 1], pa.int64())},
        {"timestamp_ms": 2**63},
        {"key": pa.array([b"k"], pa.binary())},
        {"headers": pa.array([[(None, b"1")], []], HEADERS_TYPE)},
        {"headers": pa.array([[None], []], HEADERS_TYPE)},
        {"headers": pa.array(["a", "b"])},
    ],
)
def test_columns_that_make_no_batch_are_refused(bad: dict[str, object]) -> None:
    good = {"value": pa.array([b"a", b"b"], pa.binary()), "timestamp_ms": 0}
    with pytest.raises(InvalidInput):
        encode_columns(**(good | bad))


def test_offsets_of_a_column_that_lie_are_refused() -> None:
    for ends in ([0, 100, 3], [0, -5, 3]):  # Arrow itself looks at the first and the last only
        buffers = [None, pa.array(ends, pa.int32()).buffers()[1], pa.py_buffer(b"abc")]
        value = pa.Array.from_buffers(pa.binary(), 2, buffers)
        with pytest.raises(InvalidInput):
            encode_columns(value=value, timestamp_ms=0)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(UnknownCodec):
        encode_columns(value=pa.array([b"a"]), timestamp_ms=0, codec=5)


def test_only_the_columns_asked_for_are_given_in_their_order() -> None:
    records = [StoredRecord(key=b"k", value=None, timestamp_ms=3, headers=(("h", b"1"),)), StoredRecord(value=b"v")]
    buffer = encode(records, base_offset=8) + encode(records, base_offset=10, codec=4)
    whole = decode_columns(buffer)
    for names in (["value"], ["headers", "offset"], ["timestamp"], ["key", "value"], list(reversed(SCHEMA.names)), []):
        some = decode_columns(buffer, columns=names)
        some.validate(full=True)
        assert some.schema.names == names
        for name in names:
            assert some[name].equals(whole[name])
    with pytest.raises(InvalidInput, match="no column 'partition'"):
        decode_columns(buffer, columns=["partition"])


def test_nothing_decodes_to_an_empty_table() -> None:
    assert rows(decode_columns(b"")) == []


def test_log_append_time_and_control_batches_are_honoured() -> None:
    records = [StoredRecord(value=b"a", timestamp_ms=5), StoredRecord(value=b"b", timestamp_ms=9)]
    plain, appended, control = (encode(records, base_offset=offset) for offset in (0, 2, 4))
    appended[22] |= 0x08
    control[22] |= 0x20
    table = rows(decode_columns(plain + appended + control + encode(records, base_offset=6)))
    assert [record.timestamp_ms for record in table] == [5, 9, 9, 9, 5, 9]
    assert [record.offset for record in table] == [0, 1, 2, 3, 6, 7]
    assert rows(decode_columns(control)) == []


def test_the_crc_is_checked_when_asked() -> None:
    batch = encode([StoredRecord(value=b"aaaa")])
    batch[-3] ^= 1
    assert decode_columns(batch).num_rows == 1
    with pytest.raises(CorruptBatch):
        decode_columns(batch, check_crc=True)


def test_limits_hold_for_columns_too() -> None:
    batch = encode([StoredRecord(value=b"x" * 1000)] * 10, codec=4)
    with pytest.raises(DecompressedTooLarge):
        decode_columns(batch, limits=BatchLimits(decompressed_bytes_max=5000))
    with pytest.raises(BatchTooLarge):
        decode_columns(batch, limits=BatchLimits(batch_bytes_max=100))
    with pytest.raises(InvalidBatch):
        decode_columns(batch[:-1])


def test_columns_do_not_hold_more_memory_than_they_show() -> None:
    batch = encode([StoredRecord(key=b"k", value=b"v" * 1000)] * 1000)
    before = pa.total_allocated_bytes()
    keys = decode_columns(batch, columns=["key"])
    assert pa.total_allocated_bytes() - before < 50_000
    assert keys.num_rows == 1000


def test_an_encoded_batch_can_be_patched_in_place() -> None:
    for codec in range(5):
        batch = encode_columns(value=pa.array([b"a"]), timestamp_ms=0, codec=codec)
        batch[7] = 9
        assert parse_header(batch).base_offset == 9
        validate(batch)


def test_kernels_work_where_no_cache_can_be_written() -> None:
    script = """
from numba.core import caching
implementation = getattr(caching, "CacheImpl", None) or caching._CacheImpl  # renamed between versions of Numba
implementation._locator_classes = []
from sulina.core.records import batch, record as records
assert batch.validate(records.encode([records.StoredRecord(value=b"v")] * 64))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_origins_are_those_of_the_batches_and_null_where_nobody_said() -> None:
    def encoded(rows: int, offset: int, **origin: int) -> memoryview:
        return encode_columns(value=pa.array([b"x"] * rows), timestamp_ms=0, base_offset=offset, **origin)  # type: ignore[arg-type]

    said = encoded(3, 0, producer_id=7, producer_epoch=2, base_sequence=2**31 - 2)
    found = origins(split(bytes(said) + bytes(encoded(2, 3)))).to_pylist()
    assert [row and (row["id"], row["epoch"], row["sequence"]) for row in found] == [
        (7, 2, 2**31 - 2),
        (7, 2, 2**31 - 1),
        (7, 2, 0),
        None,
        None,
    ]
    assert origins(split(encoded(2, 0))).null_count == 2
    assert len(origins([])) == 0
