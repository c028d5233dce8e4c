"""Columns for an Avro schema: what each part of a datum becomes.

- A union of null and one other thing is that thing, or null; any other union is JSON text.
- A type that contains itself has no columns: InvalidSettings.
- Times of day are microseconds since midnight: Delta Lake has no type for them.
- A logical type that does not fit what it is put on is ignored, as Avro says.
"""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sulina.errors import InvalidSettings
from sulina.spark.json_columns import COLUMNS_MAX, VALUE, check_names

DIGITS_MAX = 38  # of a decimal, in Spark and in Arrow's 128 bits
UUID_BYTES = 16

_UTC = pa.timestamp("us", "UTC")
_LOCAL = pa.timestamp("us")


@dataclass(frozen=True, slots=True)
class AvroLeaf:
    """An Avro type without parts: a number, text, bytes, a time."""

    avro: str  # null, boolean, int, long, float, double, bytes, string, fixed, enum
    type: pa.DataType
    size: int = 0  # bytes of a fixed
    symbols: tuple[str, ...] = ()  # of an enum
    times: int = 1  # factor of a number
    over: int = 1  # divisor of a number, rounded down
    is_uuid: bool = False  # 16 bytes that are shown as text


@dataclass(frozen=True, slots=True)
class AvroOption:
    """A union of one type with null: a nullable column."""

    inner: "Part"
    null_index: int  # which of the two branches is null

    @property
    def type(self) -> pa.DataType:
        return self.inner.type


@dataclass(frozen=True, slots=True)
class AvroArray:
    item: "Part"

    @property
    def type(self) -> pa.DataType:
        return pa.list_(self.item.type)


@dataclass(frozen=True, slots=True)
class AvroMap:
    item: "Part"

    @property
    def type(self) -> pa.DataType:
        return pa.map_(pa.string(), self.item.type)


@dataclass(frozen=True, slots=True)
class AvroRecord:
    fields: tuple[tuple[str, "Part"], ...]

    @property
    def type(self) -> pa.DataType:
        return pa.struct([pa.field(name, part.type) for name, part in self.fields])


@dataclass(frozen=True, slots=True)
class AvroUnion:
    """A union of several types: a column of JSON text."""

    branches: tuple["Part", ...]

    @property
    def type(self) -> pa.DataType:
        return pa.string()


Part = AvroLeaf | AvroOption | AvroArray | AvroMap | AvroRecord | AvroUnion


def parts_of(definition: Any) -> AvroRecord:
    """Return what data of this schema become; a schema that is not a record has the column `value`.

    Raises:
        InvalidSettings: it has no columns, or too many.
    """
    import fastavro

    found = _AvroCompiler().part(fastavro.parse_schema(definition), ())
    return found if isinstance(found, AvroRecord) else AvroRecord(((VALUE, found),))


class _AvroCompiler:
    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._count = 0

    def part(self, schema: Any, inside: tuple[str, ...]) -> Part:
        """Return the part for a schema; `inside` names the records around it."""
        self._count += 1
        if self._count > COLUMNS_MAX:
            raise InvalidSettings(f"the schema has more than {COLUMNS_MAX} columns")
        if isinstance(schema, list):
            return self._union(schema, inside)
        if isinstance(schema, str):
            if schema in inside:
                raise InvalidSettings(
                    f"record {schema} contains itself, and columns have an end: decode its values raw"
                )
            return self.part(self._named[schema], inside) if schema in self._named else _PLAIN[schema]
        kind = schema["type"]
        if not isinstance(kind, str) or kind in self._named:
            return self.part(kind, inside)
        if "name" in schema:
            self._named[schema["name"]] = schema
        if kind in ("record", "error"):
            names = [field["name"] for field in schema["fields"]]
            check_names(names)
            within = (*inside, schema["name"])
            if not names:
                raise InvalidSettings(f"record {schema['name']} has no fields, and so no columns")
            return AvroRecord(tuple((field["name"], self.part(field["type"], within)) for field in schema["fields"]))
        if kind == "array":
            return AvroArray(self.part(schema["items"], inside))
        if kind == "map":
            return AvroMap(self.part(schema["values"], inside))
        return _leaf(kind, schema)

    def _union(self, branches: list[Any], inside: tuple[str, ...]) -> Part:
        parts = [self.part(branch, inside) for branch in branches]
        nulls = [index for index, part in enumerate(parts) if isinstance(part, AvroLeaf) and part.avro == "null"]
        if len(parts) == 2 and len(nulls) == 1 and not isinstance(parts[1 - nulls[0]], AvroUnion):
            return AvroOption(parts[1 - nulls[0]], nulls[0])
        return AvroUnion(tuple(parts))


_PLAIN = {
    "null": AvroLeaf("null", pa.string()),
    "boolean": AvroLeaf("boolean", pa.bool_()),
    "int": AvroLeaf("int", pa.int32()),
    "long": AvroLeaf("long", pa.int64()),
    "float": AvroLeaf("float", pa.float32()),
    "double": AvroLeaf("double", pa.float64()),
    "bytes": AvroLeaf("bytes", pa.binary()),
    "string": AvroLeaf("string", pa.string()),
}
_LOGICAL = {
    ("int", "date"): AvroLeaf("int", pa.date32()),
    ("int", "time-millis"): AvroLeaf("int", pa.int64(), times=1000),
    ("long", "time-micros"): AvroLeaf("long", pa.int64()),
    ("long", "timestamp-millis"): AvroLeaf("long", _UTC, times=1000),
    ("long", "timestamp-micros"): AvroLeaf("long", _UTC),
    ("long", "timestamp-nanos"): AvroLeaf("long", _UTC, over=1000),
    ("long", "local-timestamp-millis"): AvroLeaf("long", _LOCAL, times=1000),
    ("long", "local-timestamp-micros"): AvroLeaf("long", _LOCAL),
    ("long", "local-timestamp-nanos"): AvroLeaf("long", _LOCAL, over=1000),
}


def _leaf(kind: str, schema: dict[str, Any]) -> AvroLeaf:
    logical = schema.get("logicalType")
    size = schema.get("size", 0) if kind == "fixed" else 0
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and precision > 0 and 0 <= scale <= precision:
            if precision > DIGITS_MAX:
                raise InvalidSettings(f"a decimal of {precision} digits: Spark's have at most {DIGITS_MAX}")
            return AvroLeaf(kind, pa.decimal128(precision, scale), size=size)
    if kind == "enum":
        return AvroLeaf(kind, pa.string(), symbols=tuple(schema["symbols"]))
    if kind == "fixed":
        is_uuid = logical == "uuid" and size == UUID_BYTES
        return AvroLeaf(kind, pa.string() if is_uuid else pa.binary(), size=size, is_uuid=is_uuid)
    return _LOGICAL.get((kind, str(logical)), _PLAIN[kind])
