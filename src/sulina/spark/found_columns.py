"""Columns of JSON values that have no schema: those that a definition states, and those that a sample of values has.

- A column is a property of the object, by name, with one of TYPES. Each may be absent or null.
- What has no column of its own is in `_rest`, as JSON text. So no property of a value is lost.
- The columns found in some values take all of these values.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sulina.core.topic import Schema, SchemaKind
from sulina.errors import InvalidSettings
from sulina.spark.json_columns import check_names, columns_of
from sulina.spark.misfits import Misfit

JSON = "json"
TYPES: dict[str, dict[str, Any]] = {
    "bigint": {"type": ["integer", "null"]},
    "double": {"type": ["number", "null"]},
    "boolean": {"type": ["boolean", "null"]},
    "string": {"type": ["string", "null"]},
    "timestamp": {"type": ["string", "null"], "format": "date-time"},
    "date": {"type": ["string", "null"], "format": "date"},
    JSON: {},  # anything, as its JSON text
}
COLUMNS_FOUND_MAX = 100
NAME_LENGTH_MAX = 100
FEW_MAX = 20  # different values of a column by which rows can be grouped
_TEXT_TYPES = {"string", "timestamp", "date"}
_NUMBER_TYPES = {"bigint", "double"}
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_EXACT_MAX = 2**53  # a double has every integer up to here, and not every one beyond
_LARGE = "bigint that a double may not have"
_COLUMNS = {name: columns_of(schema) for name, schema in TYPES.items()}


@dataclass(slots=True)
class FoundColumns:
    """What some values have."""

    columns: dict[str, str] = field(default_factory=dict)  # names and types, in the order in which they came
    left_out: list[str] = field(default_factory=list)  # names of properties that have no column of their own
    values: int = 0
    objects: int = 0  # values that are JSON objects
    groups: str | None = None  # the column with the fewest different values, where they are few


def schema_of_columns(columns: Mapping[str, str]) -> Schema:
    """Return the schema of objects with these columns.

    Raises:
        InvalidSettings: there is no column, a type is unknown, or a name cannot be a column's.
    """
    if not columns:
        raise InvalidSettings("there are no columns: name at least one with its type, such as amount = 'double'")
    for name, kind in columns.items():
        if not is_column_name(name):
            raise InvalidSettings(
                f"column {name!r}: use letters, digits and _, a letter first, at most {NAME_LENGTH_MAX} characters; "
                f"properties with other names are in the column _rest"
            )
        if kind not in TYPES:
            raise InvalidSettings(f"column {name}: type {kind!r} is unknown; use one of {', '.join(TYPES)}")
    check_names(list(columns))
    properties = {name: TYPES[kind] for name, kind in columns.items()}
    return Schema(kind=SchemaKind.JSON, definition={"type": "object", "properties": properties})


def is_column_name(name: str) -> bool:
    """Tell whether a property of this name can be a column. Names that begin with _ are the pipeline's own."""
    return name.isidentifier() and name[0] != "_" and len(name) <= NAME_LENGTH_MAX


def find_columns(values: Iterable[bytes | None]) -> FoundColumns:
    """Return the columns of the JSON objects among some values."""
    found = FoundColumns()
    kinds: dict[str, str | None] = {}  # None: only nulls so far
    seen: dict[str, set[Any]] = {}  # the different values of a column, while they are few
    for value in values:
        found.values += 1
        parsed = _parsed(value)
        if isinstance(parsed, dict):
            found.objects += 1
            for name, cell in parsed.items():
                kinds[name] = widened(kinds.get(name), type_of(cell))
                different = seen.setdefault(name, set())
                if len(different) <= FEW_MAX and isinstance(cell, str | bool):
                    different.add(cell)
    names: set[str] = set()
    for name, kind in kinds.items():
        if is_column_name(name) and name.lower() not in names and len(names) < COLUMNS_FOUND_MAX:
            names.add(name.lower())
            found.columns[name] = "bigint" if kind == _LARGE else kind or JSON
        else:
            found.left_out.append(name)
    few = {
        name: len(seen[name])
        for name, kind in found.columns.items()
        if kind in ("string", "boolean") and 2 <= len(seen[name]) <= FEW_MAX and len(seen[name]) * 2 <= found.objects
    }
    found.groups = min(few, key=lambda name: few[name], default=None)
    return found


def type_of(cell: Any) -> str | None:
    """Return the narrowest type that takes a value of JSON; None for null, _LARGE for a large bigint."""
    match cell:
        case None:
            return None
        case bool():
            return "boolean"
        case int():
            if not _INT64_MIN <= cell <= _INT64_MAX:
                return JSON
            return "bigint" if abs(cell) <= _EXACT_MAX else _LARGE
        case float():
            return "double"
        case str():
            return next((kind for kind in ("timestamp", "date") if _takes(kind, cell)), "string")
    return JSON


def widened(one: str | None, other: str | None) -> str | None:
    """Return the narrowest type that takes what either takes, without changing a value."""
    if one is None or other is None or one == other:
        return one or other
    pair = {one, other}
    if pair == {"bigint", _LARGE}:
        return _LARGE
    if pair <= _NUMBER_TYPES:
        return "double"
    return "string" if pair <= _TEXT_TYPES else JSON


def _takes(kind: str, text: str) -> bool:
    if not re.match(r"\d{4}-\d", text):  # nearly all texts
        return False
    try:
        _COLUMNS[kind].convert(text)
    except Misfit:
        return False
    return True


def _parsed(value: bytes | None) -> Any:
    try:
        return None if value is None else msgspec.json.decode(value)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or nested too deep
        return None
