"""The columns that the values of a topic become, as Arrow has them and as Spark does.

- Every column may be null: a value that could not be decoded has none of them.
- Types are those that Spark has. Nanoseconds become microseconds; times of day are numbers, the microseconds since
  midnight, as Delta Lake has no type for them.
"""

import base64
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sulina.core.records.values import checker
from sulina.core.topic import Schema, SchemaKind
from sulina.errors import InvalidSettings
from sulina.spark.json_columns import check_names

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_UNSIGNED = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0),
}  # fmt: skip
_SAME = {
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.duration("us"),
}  # fmt: skip
_DIGITS_MAX = 38


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the columns of values of this schema.

    Raises:
        InvalidSettings: there is no schema, or its values make no columns.
    """
    checker(schema)
    if schema.kind == SchemaKind.JSON:
        from sulina.spark.decode_json import JsonRows

        return pa.schema(list(JsonRows(schema).type))
    if schema.kind == SchemaKind.AVRO:
        from sulina.spark.avro_columns import parts_of

        return pa.schema(list(parts_of(schema.definition).type))
    if schema.kind == SchemaKind.ARROW:
        return plain_schema(written_schema(schema.definition))
    raise InvalidSettings("the topic has no schema, so its values cannot be decoded: read them with decode=raw")


def spark_type(schema: pa.Schema) -> "StructType":
    """Return Spark's type for these columns."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def written_schema(definition: Any) -> pa.Schema:
    """Return the schema that values of Arrow are written with. It has been checked."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(definition, validate=True)))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the same columns in types that Spark has.

    Raises:
        InvalidSettings: a type has no equivalent.
    """
    return pa.schema([pa.field(field.name, _without_times(field.type)) for field in timed_schema(schema)])


def timed_schema(schema: pa.Schema) -> pa.Schema:
    """Return the same in types that Spark has, except times of day, which are not yet microseconds.

    Raises:
        InvalidSettings: a type has no equivalent.
    """
    if not len(schema):
        raise InvalidSettings("the schema has no columns")
    check_names(schema.names)
    return pa.schema([pa.field(field.name, _plain_type(field.type, field.name)) for field in schema])


def _without_times(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _without_times(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_without_times(kind.key_type), _without_times(kind.item_type))
    return pa.int64() if pa.types.is_time(kind) else kind


def _plain_type(kind: pa.DataType, where: str) -> pa.DataType:
    is_a = pa.types
    if kind in _SAME:
        return kind
    if kind in _UNSIGNED:
        return _UNSIGNED[kind]
    if is_a.is_dictionary(kind):
        return _plain_type(kind.value_type, where)
    if is_a.is_large_string(kind) or is_a.is_string_view(kind):
        return pa.string()
    if is_a.is_large_binary(kind) or is_a.is_binary_view(kind) or is_a.is_fixed_size_binary(kind):
        return pa.binary()
    if is_a.is_float16(kind):
        return pa.float32()
    if is_a.is_date64(kind):
        return pa.date32()
    if is_a.is_time(kind):
        return pa.time64("us")
    if is_a.is_timestamp(kind):
        return pa.timestamp("us") if kind.tz is None else pa.timestamp("us", "UTC")
    if is_a.is_duration(kind):
        return pa.duration("us")
    if is_a.is_decimal(kind) and kind.precision <= _DIGITS_MAX and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    return _plain_nested(kind, where)


def _plain_nested(kind: pa.DataType, where: str) -> pa.DataType:
    if pa.types.is_struct(kind) and kind.num_fields:
        fields = [kind.field(index) for index in range(kind.num_fields)]
        check_names([field.name for field in fields])
        return pa.struct([pa.field(each.name, _plain_type(each.type, f"{where}.{each.name}")) for each in fields])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type, f"{where}[]"))
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type, f"{where} (key)"), _plain_type(kind.item_type, f"{where}[]"))
    raise InvalidSettings(f"column {where} is {kind}, which Spark has no type for: read its values with decode=raw")
