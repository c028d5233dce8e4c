"""Avro becomes columns by the topic's schema; what does not fit has a reason (mission S1, S3)."""

import math
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sulina.core.topic import Schema, SchemaKind
from sulina.errors import InvalidSettings
from sulina.spark.decoding import Decoder, Mode
from sulina.spark.value_schemas import arrow_schema

FLAT: dict[str, Any] = {
    "type": "record",
    "name": "Flat",
    "fields": [
        {"name": "i", "type": "int"},
        {"name": "l", "type": ["null", "long"]},
        {"name": "f", "type": "float"},
        {"name": "d", "type": ["double", "null"]},
        {"name": "b", "type": "boolean"},
        {"name": "s", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "four", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "e", "type": ["null", {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}]},
        {"name": "nothing", "type": "null"},
        {"name": "money", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 3}]},
        {
            "name": "small",
            "type": {"type": "fixed", "name": "M", "size": 5, "logicalType": "decimal", "precision": 9, "scale": 9},
        },
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "time_ms", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "time_us", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}
NESTED = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "counts", "type": ["null", {"type": "map", "values": "long"}]},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "price", "type": "double"},
                        {
                            "name": "marks",
                            "type": ["null", {"type": "array", "items": {"type": "array", "items": "int"}}],
                        },
                    ],
                },
            },
        },
        {"name": "first", "type": ["null", "Line"]},
        {"name": "second", "type": "Line"},
    ],
}
TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [{"name": "left", "type": ["null", "Tree"]}, {"name": "v", "type": "int"}],
}


def schema_of(definition: Any) -> Schema:
    return Schema(kind=SchemaKind.AVRO, definition=definition)


def encoded(definition: Any, row: Any) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(definition), row)
    return stream.getvalue()


def decode(definition: Any, *values: bytes | None) -> tuple[list[Any], list[str | None]]:
    """Both ways, which must agree."""
    quick = Decoder.of(schema_of(definition)).decode(pa.array(values, pa.binary()))
    exact = Decoder(schema_of(definition), Mode.PERMISSIVE, is_quick=False).decode(pa.array(values, pa.binary()))
    quick.data.validate(full=True)
    assert quick.data.type == exact.data.type
    assert repr(quick.data.to_pylist()) == repr(exact.data.to_pylist())  # NaN too
    assert quick.error.equals(exact.error)
    return quick.data.to_pylist(), quick.error.to_pylist()


def field(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}


WIDE = Context(prec=50)
MIDNIGHT = datetime(2026, 11, 30, tzinfo=UTC)
moments = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
flat_rows = st.fixed_dictionaries(
    {
        "i": st.integers(-(2**31), 2**31 - 1),
        "l": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.floats(width=32, allow_nan=False),
        "d": st.none() | st.floats(allow_nan=False),
        "b": st.booleans(),
        "s": st.none() | st.text(),
        "raw": st.binary(),
        "four": st.binary(min_size=4, max_size=4),
        "e": st.none() | st.sampled_from("ABC"),
        "nothing": st.none(),
        "money": st.none() | st.integers(1 - 10**38, 10**38 - 1).map(lambda number: Decimal(number).scaleb(-3, WIDE)),
        "small": st.integers(1 - 10**9, 10**9 - 1).map(lambda number: Decimal(number).scaleb(-9)),
        "day": st.dates(),
        "ms": moments.map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)),
        "us": st.none() | moments,
        "local": st.datetimes(),
        "time_ms": st.integers(0, 86_399_999),
        "time_us": st.integers(0, 86_399_999_999),
        "uuid": st.uuids().map(str),
    }
)
lines = st.fixed_dictionaries(
    {
        "price": st.floats(allow_nan=False),
        "marks": st.none() | st.lists(st.lists(st.integers(-5, 5), max_size=3), max_size=3),
    }
)
nested_rows = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "tags": st.lists(st.none() | st.text(max_size=3), max_size=4),
        "counts": st.none() | st.dictionaries(st.text(max_size=3), st.integers(-9, 9), max_size=3),
        "lines": st.lists(lines, max_size=3),
        "first": st.none() | lines,
        "second": lines,
    }
)


@settings(max_examples=50)
@given(st.lists(flat_rows, max_size=6))
def test_s3_flat_data_are_decoded_as_they_were_encoded(rows: list[dict[str, Any]]) -> None:
    values = [
        encoded(
            FLAT,
            {
                **row,
                "time_ms": (MIDNIGHT + timedelta(milliseconds=row["time_ms"])).time(),
                "time_us": (MIDNIGHT + timedelta(microseconds=row["time_us"])).time(),
            },
        )
        for row in rows
    ]
    data, error = decode(FLAT, *values)
    assert not any(error)
    assert data == [{**row, "time_ms": row["time_ms"] * 1000} for row in rows]


@settings(max_examples=50)
@given(st.lists(nested_rows, max_size=6))
def test_s3_nested_data_are_decoded_as_they_were_encoded(rows: list[dict[str, Any]]) -> None:
    data, error = decode(NESTED, *(encoded(NESTED, row) for row in rows))
    assert not any(error)
    assert data == [{**row, "counts": None if row["counts"] is None else list(row["counts"].items())} for row in rows]


def test_data_that_are_no_records_have_one_column_and_null_values_none() -> None:
    assert decode("long", encoded("long", 7), None) == ([{"value": 7}, None], [None, None])
    uuid = UUID(int=5)
    fixed = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    assert decode(fixed, uuid.bytes)[0] == [{"value": str(uuid)}]


def test_numbers_that_are_none_stay_what_they_are() -> None:
    data, _ = decode(field("double"), encoded("double", math.nan), encoded("double", -math.inf))
    assert math.isnan(data[0]["x"])
    assert data[1]["x"] == -math.inf


def test_a_union_of_several_things_is_text() -> None:
    record = {"type": "record", "name": "In", "fields": [{"name": "a", "type": "int"}]}
    union = field(["null", "int", "string", record, {"type": "map", "values": "int"}, "bytes"])
    given_ = [None, 5, "ä", {"a": 1}, {"k": 2}, b"\x00\xff"]
    data, error = decode(union, *(encoded(union, {"x": each}) for each in given_), b"\x0e", b"\x01")
    assert [row and row["x"] for row in data] == [None, "5", '"ä"', '{"a":1}', '{"k":2}', '"AP8="', None, None]
    assert error == [None] * 6 + ["x: there is no branch 7", "x: there is no branch -1"]


def test_a_union_inside_of_a_union_is_one_text() -> None:
    fields = [{"name": "m", "type": {"type": "map", "values": "bytes"}}, {"name": "u", "type": ["int", "string"]}]
    union = field(["int", {"type": "record", "name": "In", "fields": fields}])
    data, _ = decode(union, encoded(union, {"x": {"m": {"k": b"a"}, "u": "t"}}))
    assert data == [{"x": '{"m":{"k":"YQ=="},"u":"t"}'}]


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 2}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", b"", "x: 1 bytes are expected, 0 are left"),
        ("int", b"\x80\x80\x80\x80\x20", "x: 4294967296 does not fit 32 bits"),
        ("long", b"\xff" * 9 + b"\x02", "x: is a number of more than 64 bits"),
        ("long", b"\xff" * 20, "x: is a number of more than 64 bits"),
        ("long", b"\x80", "x: 1 bytes are expected, 0 are left"),
        ("long", b"\x02\x02", "1 bytes are left over after the datum"),
        ("boolean", b"\x02", "x: 2 is neither false nor true"),
        ("float", b"\x00" * 3, "x: 4 bytes are expected, 3 are left"),
        ("double", b"\x00" * 7, "x: 8 bytes are expected, 7 are left"),
        ("string", b"\x06ab", "x: 3 bytes are expected, 2 are left"),
        ("string", b"\x01", "x: -1 bytes are expected, 0 are left"),
        ("string", b"\x02\xff", "x: is not UTF-8"),
        ("string", b"\x06\xed\xa0\x80", "x: is not UTF-8"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "x: 9223372036854775807 bytes are expected, 0 are left"),
        (["null", "int"], b"\x04", "x: there is no branch 2"),
        (["null", "int"], b"\x01", "x: there is no branch -1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "x: there is no symbol 1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", "x: there is no symbol -1"),
        ({"type": "fixed", "name": "F", "size": 3}, b"ab", "x: 3 bytes are expected, 2 are left"),
        ({"type": "array", "items": "int"}, b"\x04\x02", "x[1]: 1 bytes are expected, 0 are left"),
        ({"type": "array", "items": "int"}, b"\x02\x02", "x[1]: 1 bytes are expected, 0 are left"),
        ({"type": "array", "items": "int"}, b"\xff" * 9 + b"\x01\x00\x02\x00", "x[0]: a block of items has no size"),
        ({"type": "array", "items": "int"}, b"\x01\x01\x02\x00", "x[0]: a block of items has no size"),
        ({"type": "map", "values": "int"}, b"\x02\x02\xff\x02\x00", "x[0]: is not UTF-8"),
        (CENTS, b"\x04\x03\xe8", "x: has more than 3 digits"),
        (CENTS, b"\x28" + b"\x01" + b"\x00" * 19, "x: has more than 3 digits"),
        (MILLIS, b"\xff" * 9 + b"\x01", "x: is a time that microseconds of 64 bits do not reach"),
    ],
)
def test_a_datum_that_does_not_fit_has_a_reason_that_says_where(kind: Any, value: bytes, expected: str) -> None:
    assert decode(field(kind), value) == ([None], [expected])


def test_blocks_may_say_their_size_and_decimals_may_be_long() -> None:
    array = field({"type": "array", "items": "int"})
    assert decode(array, b"\x03\x04\x02\x04\x02\x06\x00")[0] == [{"x": [1, 2, 3]}]
    data, error = decode(field(CENTS), b"\x28" + b"\xff" * 19 + b"\x85", b"\x28" + b"\x00" * 19 + b"\x7b", b"\x00")
    assert not any(error)
    assert [row["x"] for row in data] == [Decimal("-1.23"), Decimal("1.23"), Decimal("0.00")]


def test_a_place_inside_of_a_datum_is_named() -> None:
    row = {"id": 1, "tags": [], "counts": None, "lines": [], "first": None, "second": {"price": 1.0, "marks": None}}
    value = encoded(NESTED, row)
    assert decode(NESTED, value[:-1])[1] == ["second.marks: 1 bytes are expected, 0 are left"]
    assert decode(NESTED, b"\x02\x02\x04")[1] == ["tags[0]: there is no branch 2"]


FEW = ("i", "l", "f", "b", "s", "e", "money")
FLAT_FEW = {"type": "record", "name": "Few", "fields": [each for each in FLAT["fields"] if each["name"] in FEW]}
few_rows = flat_rows.map(lambda row: {name: row[name] for name in FEW})


@settings(max_examples=120)
@given(st.data())
def test_both_ways_agree_on_damaged_and_random_bytes(data: st.DataObject) -> None:
    definition, rows = data.draw(st.sampled_from([(FLAT_FEW, few_rows), (NESTED, nested_rows)]))
    values: list[bytes | None] = [None]
    for _ in range(data.draw(st.integers(1, 6))):
        value = bytearray(encoded(definition, data.draw(rows)))
        for _ in range(data.draw(st.integers(0, 2))):
            if value:
                value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
        values += [
            bytes(value),
            bytes(value[: data.draw(st.integers(0, len(value)))]),
            data.draw(st.binary(max_size=30)),
        ]
    decode(definition, *values)


def test_what_would_become_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sulina.spark.decode_avro.ENTRIES_MAX", 100)
    monkeypatch.setattr("sulina.spark.avro_program.ENTRIES_MAX", 100)
    wide = {"type": "record", "name": "Wide", "fields": [{"name": f"c{n}", "type": "int"} for n in range(40)]}
    array = field({"type": "array", "items": ["null", wide]})
    assert decode(array, b"\x04\x00\x00\x00", b"\x06\x00\x00\x00\x00")[1] == [
        None,
        "x[2]: becomes more than 100 cells",
    ]


def test_a_record_that_contains_itself_has_no_columns() -> None:
    with pytest.raises(InvalidSettings, match="Tree contains itself"):
        Decoder.of(schema_of(TREE))
    with pytest.raises(InvalidSettings, match="Tree contains itself"):
        arrow_schema(schema_of(TREE))
    with pytest.raises(InvalidSettings, match="decimal of 39 digits"):
        Decoder.of(schema_of(field({**CENTS, "precision": 39})))
    with pytest.raises(InvalidSettings, match="no fields"):
        Decoder.of(schema_of({"type": "record", "name": "N", "fields": []}))
