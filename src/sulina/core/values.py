"""Values and their schemas: whether a schema is one, and whether values fit it.

A schema comes from a client, so it is not trusted: it fetches nothing, and its patterns take linear time.
"""

import base64
import binascii
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

import fastavro
import jsonschema_rs
import msgspec
import pyarrow as pa

from sulina.core.topic import SCHEMA_BYTES_MAX, Schema, SchemaKind
from sulina.errors import InvalidRecord, InvalidSettings

Check = Callable[[bytes], None]  # raises ValueError with the reason


def check_values(schema: Schema, values: Iterable[bytes | None]) -> None:
    """InvalidRecord names the first value that does not fit. None is a tombstone, and fits every schema."""
    check = checker(schema)
    for index, value in enumerate(values):
        if value is not None:
            try:
                check(value)
            except (ValueError, LookupError, EOFError, TypeError, pa.ArrowException) as error:
                raise InvalidRecord(
                    index=index, reason=str(error).splitlines()[0][:300] if str(error) else type(error).__name__
                ) from None


def checker(schema: Schema) -> Check:
    """What checks one value. InvalidSettings when the schema is none."""
    if len(msgspec.json.encode(schema.definition)) > SCHEMA_BYTES_MAX:
        raise InvalidSettings(f"a schema may have {SCHEMA_BYTES_MAX} bytes")
    if schema.kind == SchemaKind.BYTES and schema.definition is not None:
        raise InvalidSettings("a schema of bytes has no definition")
    try:
        return _CHECKERS[schema.kind](schema.definition)
    except (ValueError, TypeError, LookupError, RecursionError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise InvalidSettings(f"not a schema of {schema.kind}: {reason}") from None


def _bytes_checker(_definition: Any) -> Check:
    return lambda _value: None


def _json_checker(definition: Any) -> Check:
    if not isinstance(definition, dict | bool):
        raise TypeError("JSON Schema is an object or a boolean")
    # Linear patterns, no fetching.
    validator = jsonschema_rs.validator_for(
        definition, offline=True, pattern_options=jsonschema_rs.RegexOptions(), ignore_unknown_formats=True
    )

    def check(value: bytes) -> None:
        validator.validate(msgspec.json.decode(value))

    return check


def _avro_checker(definition: Any) -> Check:
    parsed = fastavro.parse_schema(definition)

    def check(value: bytes) -> None:
        stream = BytesIO(value)
        fastavro.schemaless_reader(stream, parsed, None)
        if stream.read(1):
            raise ValueError("bytes are left over after the record")

    return check


def _arrow_checker(definition: Any) -> Check:
    try:
        expected = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(definition, validate=True)))
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None

    def check(value: bytes) -> None:
        with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
            if not reader.schema.equals(expected):
                raise ValueError(f"its columns are {reader.schema.names}, with other types or names than the topic's")
            for _ in reader:
                pass

    return check


_CHECKERS: dict[SchemaKind, Callable[[Any], Check]] = {
    SchemaKind.BYTES: _bytes_checker,
    SchemaKind.JSON: _json_checker,
    SchemaKind.AVRO: _avro_checker,
    SchemaKind.ARROW: _arrow_checker,
}
