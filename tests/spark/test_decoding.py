"""Values become rows, whatever their kind: modes, chunks, places, and Arrow inside of values (mission S1, S3)."""

import base64
import pickle
import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sulina.core.topic import BYTES_SCHEMA, Schema, SchemaKind
from sulina.errors import InvalidRecord, InvalidSettings
from sulina.spark import decode_arrow, decoding
from sulina.spark.decode_json import JsonRows
from sulina.spark.decoding import Decoded, Decoder, Mode

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])
JSON = Schema(
    kind=SchemaKind.JSON,
    definition={"properties": {"id": {"type": "integer"}}, "required": ["id"], "additionalProperties": False},
)
AVRO = Schema(
    kind=SchemaKind.AVRO,
    definition={
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "names", "type": {"type": "array", "items": "string"}}],
    },
)


def arrow(columns: pa.Schema) -> Schema:
    return Schema(kind=SchemaKind.ARROW, definition=base64.b64encode(columns.serialize()).decode())


def stream(columns: pa.Schema, *batches: list[dict[str, Any]], compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, columns, options=options) as writer:
        for rows in batches:
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=columns))
    return bytes(sink.getvalue())


def decode(schema: Schema, *values: bytes | None) -> Decoded:
    decoded = Decoder.of(schema).decode(pa.array(values, pa.binary()))
    decoded.data.validate(full=True)
    assert len(decoded.data) == len(decoded.error)
    return decoded


def test_s3_a_value_of_arrow_becomes_as_many_rows_as_it_has() -> None:
    one, two, three = ({"id": number, "name": "n", "tags": ["a", None]} for number in range(3))
    decoded = decode(
        arrow(COLUMNS), stream(COLUMNS, [one], [two, three]), None, stream(COLUMNS), b"junk", stream(COLUMNS, [one])
    )
    assert decoded.data.to_pylist() == [one, two, three, None, None, None, one]
    assert decoded.value_rows is not None
    assert decoded.value_rows.to_pylist() == [0, 0, 0, 1, 2, 3, 4]
    assert [each is not None for each in decoded.error.to_pylist()] == [False] * 5 + [True, False]


def test_types_of_arrow_that_spark_does_not_have_become_those_that_it_has() -> None:
    columns = pa.schema(
        [
            ("u64", pa.uint64()), ("word", pa.dictionary(pa.int8(), pa.large_string())),
            ("ns", pa.timestamp("ns", "Europe/Paris")), ("s", pa.timestamp("s")), ("bytes", pa.large_list(pa.uint8())),
            ("time", pa.time64("ns")), ("times", pa.list_(pa.struct([("t", pa.time32("s"))]))),
            ("map", pa.map_(pa.string(), pa.struct([("half", pa.float16())]))), ("two", pa.list_(pa.int8(), 2)),
            ("view", pa.string_view()), ("wide", pa.decimal256(20, 3)), ("three", pa.binary(3)), ("day", pa.date64()),
            ("in", pa.struct([("word", pa.dictionary(pa.int32(), pa.string()))])), ("span", pa.duration("s")),
        ]
    )  # fmt: skip
    row = {
        "u64": 2**64 - 1, "word": "x", "ns": datetime(2026, 11, 30, 1, 2, 3, 4, UTC),
        "s": datetime(2026, 11, 30), "bytes": [255], "time": time(0, 0, 1), "times": [{"t": time(0, 0, 2)}],  # noqa: DTZ001
        "map": [("k", {"half": np.float16(1.5)})], "two": [1, 2], "view": "v", "wide": Decimal("1.234"),
        "three": b"abc", "day": date(2026, 11, 30), "in": {"word": "y"}, "span": timedelta(seconds=2),
    }  # fmt: skip
    for compression in (None, "zstd", "lz4"):
        decoded = decode(arrow(columns), stream(columns, [row], [row], compression=compression), stream(columns, [row]))
        assert decoded.error.null_count == 3
        assert decoded.data.to_pylist() == [
            {**row, "u64": Decimal(2**64 - 1), "time": 1_000_000, "times": [{"t": 2_000_000}]}
        ] * 3  # fmt: skip


def test_a_row_of_arrow_that_does_not_become_sparks_type_is_bad_and_others_are_not() -> None:
    columns = pa.schema([("at", pa.timestamp("s", "UTC"))])
    far, near = ({"at": seconds} for seconds in (2**62, 5))
    decoded = decode(arrow(columns), stream(columns, [near]), stream(columns, [near, far]), stream(columns, [near]))
    assert [row is None for row in decoded.data.to_pylist()] == [False, True, False]
    assert decoded.error[1].as_py().startswith("at: does not become timestamp[us, tz=UTC]")


def test_arrow_with_other_columns_or_cut_off_or_lying_is_bad() -> None:
    rows = [{"id": 1, "name": "abc", "tags": []}]
    good = stream(COLUMNS, rows)
    other = stream(pa.schema([("id", pa.string())]), [{"id": "x"}])
    liar = good.replace(struct.pack("<ii", 0, 3), struct.pack("<ii", 0, 2**30))  # the offsets of `name`
    assert liar != good
    reasons = decode(arrow(COLUMNS), other, good[:-20], good[: len(good) // 2], b"", liar).error.to_pylist()
    assert reasons[0].startswith("its columns are ['id']")
    assert all(reason.startswith("not an IPC stream: ") for reason in reasons[1:])


def test_arrow_that_says_that_it_becomes_too_much_is_refused_before_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = pa.schema([("n", pa.int64())])
    value = stream(columns, [{"n": 0}] * 10_000, compression="zstd")
    assert len(value) < 1000
    assert decode(arrow(columns), value).error.null_count == 10_000
    monkeypatch.setattr(decode_arrow, "DECOMPRESSED_BYTES_MAX", 79_999)
    assert "decompresses to more than" in decode(arrow(columns), value).error[0].as_py()
    words = pa.schema([("w", pa.dictionary(pa.int32(), pa.string()))])
    value = stream(words, [{"w": "x" * 100_000}], compression="zstd")
    assert "decompresses to more than" in decode(arrow(words), value).error[0].as_py()
    monkeypatch.setattr(decode_arrow, "VALUE_ROWS_MAX", 2)
    assert "more than 2 rows" in decode(arrow(columns), stream(columns, [{"n": 1}] * 3)).error[0].as_py()


rows_of_arrow = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | st.text(max_size=5),
        "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
    }
)


@settings(max_examples=40)
@given(st.lists(st.lists(rows_of_arrow, min_size=1, max_size=3), max_size=4))
def test_what_was_encoded_as_arrow_is_decoded(values: list[list[dict[str, Any]]]) -> None:
    decoded = decode(arrow(COLUMNS), *(stream(COLUMNS, rows) for rows in values))
    assert decoded.data.to_pylist() == [row for rows in values for row in rows]


@settings(max_examples=150)
@given(st.data())
def test_damaged_arrow_never_raises(data: st.DataObject) -> None:
    value = bytearray(stream(COLUMNS, [{"id": 1, "name": "abc", "tags": ["x", "y"]}, {"id": None}]))
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    decode(arrow(COLUMNS), bytes(value), data.draw(st.binary(max_size=40)))


@pytest.mark.parametrize("schema", [JSON, AVRO, arrow(COLUMNS)], ids=lambda schema: schema.kind)
def test_random_bytes_are_bad_or_good_but_never_raise(schema: Schema) -> None:
    random = np.random.default_rng(7)
    values = [random.bytes(int(size)) for size in random.integers(0, 40, 2000)]
    decoded = decode(schema, *values, None)
    is_bad, has_data = decoded.error.is_valid(), decoded.data.is_valid()
    assert not any(bad and there for bad, there in zip(is_bad.to_pylist(), has_data.to_pylist(), strict=True))
    assert decoded.error[-1].as_py() is None


GOOD = {JSON.kind: b'{"id": 1}', AVRO.kind: b"\x02\x00", SchemaKind.ARROW: stream(COLUMNS, [{"id": 1}])}


@pytest.mark.parametrize("schema", [JSON, AVRO, arrow(COLUMNS)], ids=lambda schema: schema.kind)
def test_rows_keep_their_order_across_chunks_and_slices(schema: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    values = pa.array([GOOD[schema.kind], b"?", None] * 7, pa.binary())
    whole = Decoder.of(schema).decode(values)
    monkeypatch.setattr(decoding, "CHUNK_ROWS", 4)
    parts = Decoder.of(schema).decode(values)
    assert parts.data.equals(whole.data)
    assert parts.error.equals(whole.error)
    assert parts.value_rows == whole.value_rows
    sliced = Decoder.of(schema).decode(values.slice(5, 9).cast(pa.large_binary()))
    assert sliced.data.equals(whole.data.slice(5, 9))
    with pytest.raises(InvalidRecord) as caught:
        Decoder.of(schema, Mode.FAILFAST).decode(values.slice(2))
    assert caught.value.index == 2
    with pytest.raises(InvalidRecord) as caught:
        Decoder.of(schema, Mode.FAILFAST).decode(pa.array([GOOD[schema.kind]] * 6 + [b"?"], pa.binary()))
    assert caught.value.index == 6


@pytest.mark.parametrize("schema", [JSON, AVRO, arrow(COLUMNS)], ids=lambda schema: schema.kind)
def test_no_values_are_no_rows_and_a_decoder_survives_pickling(schema: Schema) -> None:
    decoder = pickle.loads(pickle.dumps(Decoder.of(schema, "quarantine")))
    assert decoder.mode == Mode.QUARANTINE
    empty = decoder.decode(pa.array([], pa.binary()))
    assert (len(empty.data), len(empty.error), empty.data.type) == (0, 0, decoder.type)
    tombstones = decoder.decode(pa.nulls(3, pa.binary()))
    assert tombstones.data.null_count == tombstones.error.null_count == 3


def test_a_chunk_is_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "CHUNK_BYTES", 1000)
    seen: list[int] = []
    inner = JsonRows.rows

    def counted(self: JsonRows, values: pa.BinaryArray) -> Any:
        seen.append(len(values))
        return inner(self, values)

    monkeypatch.setattr(JsonRows, "rows", counted)
    value = b'{"id": 1' + b" " * 300 + b"}"
    assert Decoder.of(JSON).decode(pa.array([value] * 9, pa.binary())).error.null_count == 9
    assert len(seen) >= 3
    assert max(seen) <= 3


def test_what_cannot_be_decoded_is_said_at_once() -> None:
    with pytest.raises(InvalidSettings, match="no schema"):
        Decoder.of(BYTES_SCHEMA)
    with pytest.raises(InvalidSettings, match="mode 'other' is unknown; use one of permissive, quarantine, failfast"):
        Decoder.of(JSON, "other")
    with pytest.raises(InvalidSettings, match="not a schema of json"):
        Decoder.of(Schema(kind=SchemaKind.JSON, definition={"type": "nonsense"}))
