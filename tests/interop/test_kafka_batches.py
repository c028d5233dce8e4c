"""Batches that Kafka's own clients write are ours, and ours are theirs, byte for byte where nothing is compressed.

aiokafka compresses by cramjam; kafka-python by lz4, python-snappy and zstandard: all are development dependencies.
"""

from collections.abc import Callable, Sequence
from typing import Any
from warnings import catch_warnings, simplefilter

import aiokafka.record.default_records as aiokafka_records
import pytest

from sulina.core.records.batch import validate
from sulina.core.records.columns import decode_columns
from sulina.core.records.compression import Codec
from sulina.core.records.record import StoredRecord, decode, encode

with catch_warnings():
    simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas the old way while it is imported
    import kafka.record.default_records as kafka_records

RECORDS = [
    StoredRecord(
        key=None if index % 5 == 0 else b"key %d" % index,
        value=None if index % 7 == 3 else b"value %d " % index * (index % 50),
        timestamp_ms=1_700_000_000_000 + index * 17 % 1000,
        headers=(("trace", b"%d" % index), ("ключ", None), ("", b""))[: index % 4],
        offset=index,
    )
    for index in range(500)
]
BIG = [StoredRecord(value=bytes([index % 251]) * 3000, timestamp_ms=index, offset=index) for index in range(300)]
LIBRARIES = {
    "aiokafka in C": (aiokafka_records.DefaultRecordBatchBuilder, aiokafka_records.DefaultRecordBatch),
    "aiokafka in Python": (
        aiokafka_records._DefaultRecordBatchBuilderPy,  # noqa: SLF001  (its Python form has no public name)
        aiokafka_records._DefaultRecordBatchPy,  # noqa: SLF001
    ),
    "kafka-python": (kafka_records.DefaultRecordBatchBuilder, kafka_records.DefaultRecordBatch),
}
library = pytest.mark.parametrize(("builder", "reader"), LIBRARIES.values(), ids=LIBRARIES.keys())
codecs = pytest.mark.parametrize("codec", list(Codec), ids=[codec.name.lower() for codec in Codec])


def theirs(builder: Callable[..., Any], records: Sequence[StoredRecord], codec: int, **origin: Any) -> bytes:
    origin = {"is_transactional": 0, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1} | origin
    build = builder(magic=2, compression_type=codec, batch_size=1 << 24, **origin)
    for index, record in enumerate(records):
        headers = list(record.headers)
        assert build.append(index, record.timestamp_ms, record.key, record.value, headers) is not None
    return bytes(build.build())


def read_by(reader: Callable[..., Any], batch: bytes) -> list[StoredRecord]:
    found = reader(batch)
    assert found.validate_crc()
    return [
        StoredRecord(
            key=record.key,
            value=record.value,
            timestamp_ms=record.timestamp,
            headers=tuple(record.headers),
            offset=record.offset,
        )
        for record in found
    ]


@library
@codecs
@pytest.mark.parametrize("records", [RECORDS[:1], RECORDS[:20], RECORDS, BIG])
def test_we_read_what_clients_write(builder: Any, reader: Any, codec: Codec, records: list[StoredRecord]) -> None:
    batch = theirs(builder, records, codec)
    (header,) = validate(batch)
    if records is BIG:
        assert header.codec == codec  # small batches may be sent as they are when packing does not pay
    assert decode(batch) == records
    table = decode_columns(batch, check_crc=True)
    assert table["value"].to_pylist() == [record.value for record in records]
    assert table["key"].to_pylist() == [record.key for record in records]


@library
@codecs
@pytest.mark.parametrize("records", [RECORDS[:1], RECORDS, BIG])
def test_clients_read_what_we_write(builder: Any, reader: Any, codec: Codec, records: list[StoredRecord]) -> None:
    batch = encode(records, codec=codec)
    assert read_by(reader, bytes(batch)) == records


@library
@pytest.mark.parametrize("records", [RECORDS[:1], RECORDS, BIG])
def test_uncompressed_bytes_are_the_same(builder: Any, reader: Any, records: list[StoredRecord]) -> None:
    batch = theirs(builder, records, Codec.NONE)
    epoch = int.from_bytes(batch[12:16], "big", signed=True)  # outside the CRC; clients differ on "unknown"
    assert encode(records, epoch=epoch) == batch


@library
def test_the_origin_is_written_as_clients_write_it(builder: Any, reader: Any) -> None:
    batch = theirs(builder, RECORDS, Codec.NONE, is_transactional=1, producer_id=77, producer_epoch=3, base_sequence=12)
    epoch = int.from_bytes(batch[12:16], "big", signed=True)
    ours = encode(RECORDS, epoch=epoch, producer_id=77, producer_epoch=3, base_sequence=12, transactional=True)
    assert ours == batch
