"""A schema says which columns its values become, to Arrow and to Spark (mission S1, S3)."""

import base64
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sulina.core.topic import BYTES_SCHEMA, Schema, SchemaKind
from sulina.errors import InvalidSettings
from sulina.spark.decoding import Decoder
from sulina.spark.json_columns import COLUMNS_MAX
from sulina.spark.value_schemas import arrow_schema, spark_type

UTC = pa.timestamp("us", "UTC")


def json(definition: Any) -> Schema:
    return Schema(kind=SchemaKind.JSON, definition=definition)


def avro(kind: Any) -> Schema:
    definition = {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}
    return Schema(kind=SchemaKind.AVRO, definition=definition)


def arrow(columns: pa.Schema) -> Schema:
    return Schema(kind=SchemaKind.ARROW, definition=base64.b64encode(columns.serialize()).decode())


def closed(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ({"type": "string"}, pa.string()),
        ({"type": "string", "format": "date-time"}, UTC),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": "string", "format": "uuid"}, pa.string()),
        ({"type": "integer", "minimum": 1}, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": "boolean"}, pa.bool_()),
        ({"type": ["integer", "null"]}, pa.int64()),
        ({"type": ["integer", "string"]}, pa.string()),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, pa.int64()),
        ({"oneOf": [{"type": "null"}, {"type": "boolean"}]}, pa.bool_()),
        ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, pa.string()),
        ({"allOf": [{"type": "integer"}]}, pa.int64()),
        ({"allOf": [{"type": "integer"}, {"minimum": 1}]}, pa.string()),
        ({"enum": ["a", "b"]}, pa.string()),
        ({"enum": [1, "b"]}, pa.string()),
        ({"const": "a"}, pa.string()),
        ({"type": "array", "items": {"type": "number"}}, pa.list_(pa.float64())),
        ({"type": "array"}, pa.list_(pa.string())),
        ({"type": "array", "prefixItems": [{"type": "integer"}]}, pa.list_(pa.string())),
        ({"type": "object"}, pa.string()),
        (closed({"a": {"type": "integer"}}), pa.struct([("a", pa.int64())])),
        ({"properties": {"a": {}}}, pa.struct([("a", pa.string()), ("_rest", pa.string())])),
        ({"$ref": "#/$defs/one"}, pa.int64()),
        ({"$ref": "#/$defs/two"}, pa.list_(pa.int64())),
        ({"$ref": "#/$defs/a~1b~0c"}, pa.bool_()),
        ({"$ref": "#named"}, pa.string()),
        ({}, pa.string()),
        (True, pa.string()),
        ({"type": "null"}, pa.string()),
    ],
)
def test_s3_json_schema_becomes_columns(definition: Any, expected: pa.DataType) -> None:
    definitions = {
        "one": {"type": "integer"},
        "two": {"type": "array", "items": {"$ref": "#/$defs/one"}},
        "a/b~c": {"type": "boolean"},
        "four": {"$anchor": "named", "type": "integer"},
    }
    found = arrow_schema(json(closed({"x": definition}, **{"$defs": definitions})))
    assert found == pa.schema([("x", expected)])


def test_columns_have_an_end_and_one_name_each() -> None:
    chain = {f"d{n}": closed({name: {"$ref": f"#/$defs/d{n + 1}"} for name in "ab"}) for n in range(30)}
    with pytest.raises(InvalidSettings, match=f"more than {COLUMNS_MAX} columns"):
        arrow_schema(json({"$ref": "#/$defs/d0", "$defs": {**chain, "d30": {}}}))
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(20):
        deep = {"type": "array", "items": deep}
    assert str(arrow_schema(json(closed({"x": deep}))).field("x").type).count("list") == 20
    for names in (["a", "A"], ["_rest"], [""]):
        with pytest.raises(InvalidSettings, match="column"):
            arrow_schema(json({"properties": dict.fromkeys(names, True)}))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("null", pa.string()),
        ("boolean", pa.bool_()),
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("bytes", pa.binary()),
        ("string", pa.string()),
        ({"type": "fixed", "name": "F", "size": 3}, pa.binary()),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.string()),
        ({"type": "array", "items": "int"}, pa.list_(pa.int32())),
        ({"type": "map", "values": ["null", "int"]}, pa.map_(pa.string(), pa.int32())),
        (["int", "null"], pa.int32()),
        (["int", "string"], pa.string()),
        ({"type": "record", "name": "I", "fields": [{"name": "a", "type": "int"}]}, pa.struct([("a", pa.int32())])),
        ({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}, pa.decimal128(10, 2)),
        ({"type": "int", "logicalType": "date"}, pa.date32()),
        ({"type": "int", "logicalType": "time-millis"}, pa.int64()),
        ({"type": "long", "logicalType": "time-micros"}, pa.int64()),
        ({"type": "long", "logicalType": "timestamp-millis"}, UTC),
        ({"type": "long", "logicalType": "timestamp-micros"}, UTC),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, pa.timestamp("us")),
        ({"type": "string", "logicalType": "uuid"}, pa.string()),
        ({"type": "string", "logicalType": "timestamp-millis"}, pa.string()),
        ({"type": "int", "logicalType": "unheard-of"}, pa.int32()),
    ],
)
def test_s3_avro_becomes_columns(kind: Any, expected: pa.DataType) -> None:
    assert arrow_schema(avro(kind)) == pa.schema([("x", expected)])


@pytest.mark.parametrize(
    "kind",
    [
        pa.dense_union([pa.field("a", pa.int8())]), pa.month_day_nano_interval(), pa.decimal256(60, 2), pa.null(),
        pa.run_end_encoded(pa.int32(), pa.int8()), pa.struct([]), pa.list_(pa.null()),
    ],
    ids=str,
)  # fmt: skip
def test_types_of_arrow_that_spark_cannot_have_are_named(kind: pa.DataType) -> None:
    with pytest.raises(InvalidSettings, match="column x"):
        arrow_schema(arrow(pa.schema([("x", kind)])))


def test_bytes_and_schemas_that_are_none_have_no_columns() -> None:
    with pytest.raises(InvalidSettings, match="no schema"):
        arrow_schema(BYTES_SCHEMA)
    for bad in (json({"type": 5}), Schema(kind=SchemaKind.AVRO, definition={"type": "x"}), arrow(pa.schema([]))):
        with pytest.raises(InvalidSettings):
            arrow_schema(bad)


EVERYTHING = pa.schema(
    [
        ("truth", pa.bool_()), ("i8", pa.int8()), ("i16", pa.int16()), ("i32", pa.int32()), ("i64", pa.int64()),
        ("u64", pa.uint64()), ("f32", pa.float32()), ("f64", pa.float64()), ("text", pa.string()),
        ("raw", pa.binary()), ("day", pa.date32()), ("at", pa.timestamp("ns", "UTC")), ("local", pa.timestamp("ms")),
        ("money", pa.decimal128(10, 2)), ("words", pa.list_(pa.string())), ("span", pa.duration("us")),
        ("odd `name`, of: it", pa.struct([("in side", pa.map_(pa.string(), pa.int64()))])),
    ]
)  # fmt: skip


def test_s3_spark_has_the_same_types_in_words_and_in_rows(spark: SparkSession) -> None:
    found = arrow_schema(arrow(EVERYTHING))
    row = pa.table({name: pa.nulls(1, kind) for name, kind in zip(found.names, found.types, strict=True)})
    frame = spark.createDataFrame(row, schema=spark_type(found))
    assert frame.schema == spark_type(found) == spark_type(frame.toArrow().schema)


def test_s3_decoded_values_are_rows_of_spark(spark: SparkSession) -> None:
    schema = json(
        {
            "properties": {
                "id": {"type": "integer"},
                "at": {"type": "string", "format": "date-time"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "buyer": closed({"name": {"type": "string"}}),
            }
        }
    )
    values = [b'{"id": 1, "at": "2026-11-30T12:00:00Z", "tags": ["a"], "buyer": {"name": "b"}, "x": 1}', b"{", None]
    decoded = Decoder.of(schema).decode(pa.array(values, pa.binary()))
    table = pa.table({"data": decoded.data, "error": decoded.error})
    frame = spark.createDataFrame(table)
    assert frame.schema["data"].dataType == spark_type(arrow_schema(schema))
    rows = frame.selectExpr("data.id", "data.buyer.name", "data.tags", "data._rest", "error IS NULL", "date(data.at)")
    assert [tuple(row)[:5] for row in rows.collect()] == [
        (1, "b", ["a"], '{"x":1}', True),
        (None, None, None, None, False),
        (None, None, None, None, True),
    ]
