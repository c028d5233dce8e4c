"""Values and their schemas: whether a schema is valid, and whether values match it.

A schema comes from a client, so it is not trusted: it fetches nothing, and its patterns take linear time. The library
for a kind of schema is imported when that kind is first used.
"""

import base64
import binascii
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

import msgspec

from sulina.core.topic import SCHEMA_BYTES_MAX, Schema, SchemaKind
from sulina.errors import InvalidRecord, InvalidSettings

DEPTH_MAX = 64

Check = Callable[[bytes], None]  # raises one of _FAULTS with the reason

_FAULTS = (ValueError, LookupError, EOFError, TypeError, RecursionError)


def check_values(check: Check, values: Iterable[bytes | None]) -> None:
    """Check values against a schema. None is a tombstone, and matches every schema.

    Raises:
        InvalidRecord: a value does not match; the error names the first one.
    """
    for index, value in enumerate(values):
        if value is not None:
            try:
                check(value)
            except _FAULTS as error:
                raise InvalidRecord(index=index, reason=_reason(error)) from None


def checker(schema: Schema) -> Check:
    """Return a function that checks one value against a schema.

    Raises:
        InvalidSettings: the schema is not valid, too large, or nested too deep.
    """
    if len(msgspec.json.encode(schema.definition)) > SCHEMA_BYTES_MAX:
        raise InvalidSettings(f"the schema is too large: at most {SCHEMA_BYTES_MAX} bytes are allowed")
    if _depth(schema.definition) > DEPTH_MAX:
        raise InvalidSettings(f"the schema is nested too deep: at most {DEPTH_MAX} levels are allowed")
    if schema.kind == SchemaKind.BYTES and schema.definition is not None:
        raise InvalidSettings("a schema of kind bytes cannot have a definition: leave it out")
    try:
        return _CHECKERS[schema.kind](schema.definition)
    except _FAULTS as error:
        raise InvalidSettings(f"not a schema of {schema.kind}: {_reason(error)}") from None


def _depth(definition: Any) -> int:
    """Count how deep a JSON value is nested, up to one more than the limit."""
    level, depth = [definition], 0
    while level and depth <= DEPTH_MAX:
        inner = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        level = [value for part in inner for value in part]
        depth += bool(inner)
        if not inner:
            break
    return depth


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__


def _bytes_checker(_definition: Any) -> Check:
    return lambda _value: None


def _json_checker(definition: Any) -> Check:
    if not isinstance(definition, dict | bool):
        raise TypeError("a JSON Schema must be an object or a boolean")
    import jsonschema_rs

    # Linear patterns, no fetching.
    validator = jsonschema_rs.validator_for(
        definition, offline=True, pattern_options=jsonschema_rs.RegexOptions(), ignore_unknown_formats=True
    )

    def check(value: bytes) -> None:
        validator.validate(msgspec.json.decode(value))

    return check


def _avro_checker(definition: Any) -> Check:
    import fastavro

    try:
        parsed = fastavro.parse_schema(definition)
    except fastavro.schema.SchemaParseException as error:
        raise ValueError(str(error)) from None
    _check_items(parsed)

    def check(value: bytes) -> None:
        stream = BytesIO(value)
        fastavro.schemaless_reader(stream, parsed, None)
        if stream.read(1):
            raise ValueError("bytes are left over after the record")

    return check


def _check_items(schema: Any, named: dict[str, Any] | None = None) -> None:
    """Refuse an array whose items take no bytes: a few bytes could state any number of items."""
    named = {} if named is None else named
    if isinstance(schema, list):
        for branch in schema:
            _check_items(branch, named)
    elif isinstance(schema, dict):
        if "name" in schema:
            named[schema["name"]] = schema
        items = schema.get("items")
        if items is not None and _is_empty(items, named):
            raise ValueError("an array of items without any bytes is not allowed")
        for part in (items, schema.get("values"), *(field["type"] for field in schema.get("fields", ()))):
            _check_items(part, named)


def _is_empty(schema: Any, named: dict[str, Any]) -> bool:
    """Tell whether values take no bytes. A union takes one for its branch, an array or map one for its end."""
    if isinstance(schema, str):
        schema = {"type": "record", **named[schema]} if schema in named else {"type": schema}
    if not isinstance(schema, dict):
        return False
    kind = schema["type"]
    if kind in ("record", "error"):
        return all(_is_empty(field["type"], named) for field in schema["fields"])
    if isinstance(kind, str):
        return kind == "null" or (kind == "fixed" and schema["size"] == 0)
    return _is_empty(kind, named)


def _arrow_checker(definition: Any) -> Check:
    import pyarrow as pa

    try:
        expected = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(definition, validate=True)))
    except (binascii.Error, pa.ArrowException) as error:
        raise ValueError(str(error)) from None

    def check(value: bytes) -> None:
        try:
            with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
                if not reader.schema.equals(expected):
                    raise ValueError(
                        f"its columns are {reader.schema.names}, with other types or names than the topic's"
                    )
                for _ in reader:
                    pass
        except (pa.ArrowException, OSError) as error:
            raise ValueError(str(error)) from None

    return check


_CHECKERS: dict[SchemaKind, Callable[[Any], Check]] = {
    SchemaKind.BYTES: _bytes_checker,
    SchemaKind.JSON: _json_checker,
    SchemaKind.AVRO: _avro_checker,
    SchemaKind.ARROW: _arrow_checker,
}
