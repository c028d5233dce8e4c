"""The columns of a Delta table, and whether rows fit them. No IO.

Delta Lake writes schemas as Spark does, so Spark's types are the only form here. Names have no case. Fields inside of
structs, arrays and maps are nullable, always; a column may be NOT NULL.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from sulina.errors import InvalidSettings
from sulina.spark.errors import TableSchemaConflict

_SIMPLE = (
    BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType, LongType, ShortType,
    TimestampNTZType, TimestampType,
)  # fmt: skip
_TEXTS = (StringType, CharType, VarcharType)
_NO_NAME = re.compile("[ ,;{}()\n\t=]")  # in a Parquet file, for some of its readers


def table_schema(schema: StructType) -> StructType:
    """Return the schema of a table for these columns.

    Raises:
        InvalidSettings: a name or type cannot be in a table.
    """
    _check_names(schema, "")
    return StructType(
        [
            StructField(
                field.name,
                _plain(field.dataType, field.name),
                field.nullable,
                {name: value for name, value in (field.metadata or {}).items() if name == "comment"},
            )
            for field in schema
        ]
    )


def _check_names(schema: StructType, above: str) -> None:
    seen: dict[str, str] = {}
    for name in schema.names:
        if _NO_NAME.search(name) or not name:
            raise InvalidSettings(f"column {above}{name!r}: a table's columns have none of  ,;{{}}()= in their names")
        if name.lower() in seen:
            raise InvalidSettings(f"columns {above}{seen[name.lower()]} and {above}{name} differ by case alone")
        seen[name.lower()] = name


def _plain(kind: DataType, at: str) -> DataType:
    if isinstance(kind, StructType):
        _check_names(kind, f"{at}.")
        return StructType([StructField(f.name, _plain(f.dataType, f"{at}.{f.name}")) for f in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_plain(kind.elementType, at))
    if isinstance(kind, MapType):
        return MapType(_plain(kind.keyType, at), _plain(kind.valueType, at))
    if isinstance(kind, _TEXTS):
        return StringType()
    if isinstance(kind, _SIMPLE):
        return kind
    if isinstance(kind, DayTimeIntervalType):
        how = f"cast(cast({at} as interval second) as decimal(20, 6))"
        raise InvalidSettings(f"column {at} is a length of time, which no table has: keep its seconds, {how}")
    raise InvalidSettings(f"column {at} is {kind.simpleString()}, which no table has here: cast it, or leave it out")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema of files and batches. Instants are in UTC."""
    return to_arrow_schema(schema, timezone="UTC")


def check_partition_columns(schema: StructType, columns: Sequence[str]) -> tuple[str, ...]:
    """Return partition columns with the names of the schema.

    Raises:
        InvalidSettings: one is unknown, given twice or of a type that cannot be one, or no other column is left.
    """
    names = {field.name.lower(): field for field in schema}
    for column in columns:
        field = names.get(column.lower())
        if field is None:
            raise InvalidSettings(f"partition column {column} is unknown; the columns are {', '.join(schema.names)}")
        if isinstance(field.dataType, (BinaryType, StructType, ArrayType, MapType)):
            raise InvalidSettings(f"partition column {column} is {field.dataType.simpleString()}: take a simple one")
    if len({column.lower() for column in columns}) < len(columns):
        raise InvalidSettings(f"partition columns {', '.join(columns)}: one is there twice")
    if columns and len(columns) == len(schema.fields):
        raise InvalidSettings("all columns are partition columns: files would have no column left")
    return tuple(names[column.lower()].name for column in columns)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The columns of a table after rows were added to it."""

    table: StructType  # as it is afterwards
    rows: StructType  # the rows' columns in their order, with the table's names and types
    added: tuple[StructField, ...]


def fit(table: str, current: StructType, rows: StructType, *, merge: bool) -> Fitted:
    """Decide how rows, with the columns of `table_schema`, are appended to a table.

    Raises:
        TableSchemaConflict: they cannot be; it names the columns.
    """
    known = {field.name.lower(): field for field in current}
    added, renamed = [], []
    for field in rows:
        there = known.get(field.name.lower())
        if there is None:
            added.append(StructField(field.name, field.dataType, True, field.metadata))
            renamed.append(added[-1])
            continue
        # Without what is nullable inside; that of the rows is gone already.
        if _plain(there.dataType, there.name).simpleString().lower() != field.dataType.simpleString().lower():
            ours, theirs = field.dataType.simpleString(), there.dataType.simpleString()
            reason = f"it is {theirs} there and {ours} in the rows; cast it, or overwrite with overwriteSchema=true"
            raise TableSchemaConflict(table=table, columns=f"column {there.name}", reason=reason)
        if _is_strict_inside(there.dataType):
            raise TableSchemaConflict(table=table, columns=f"column {there.name}", reason="it is NOT NULL inside")
        renamed.append(StructField(there.name, there.dataType, there.nullable))
    if added and not merge:
        names = ", ".join(field.name for field in added)
        raise TableSchemaConflict(table=table, columns=f"columns {names}", reason="it has none; set mergeSchema=true")
    missing = [f.name for f in current if not f.nullable and f.name.lower() not in {r.name.lower() for r in rows}]
    if missing:
        raise TableSchemaConflict(
            table=table, columns=f"columns {', '.join(missing)}", reason="they are NOT NULL, and the rows have none"
        )
    return Fitted(StructType([*current.fields, *added]), StructType(renamed), tuple(added))


def _is_strict_inside(kind: DataType) -> bool:
    """Return whether anything inside of a type is NOT NULL."""
    if isinstance(kind, StructType):
        return any(not field.nullable or _is_strict_inside(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return not kind.containsNull or _is_strict_inside(kind.elementType)
    if isinstance(kind, MapType):
        return not kind.valueContainsNull or _is_strict_inside(kind.keyType) or _is_strict_inside(kind.valueType)
    return False
