"""How values become bytes with a serializer header, and how payloads are read from them.

- Bytes, text, JSON and Arrow need no registration; Avro needs a schema, and a user's own type needs two functions.
- Types are matched exactly: a subclass is another type, because it would come back as its parent.
- Two headers of a record say how to read its value. Plain bytes have none, so producers and consumers that do not know
  these headers write and read them as they are.
"""

import datetime
import decimal
import sys
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeVar

import msgspec

from sulina.core.delivery.pubsub import Envelope
from sulina.core.records.record import Headers
from sulina.core.records.serializer import JSON_HEADERS, SERIALIZER_HEADER, TEXT_HEADERS, TYPE_HEADER, Serializer
from sulina.core.records.values import checker
from sulina.core.topic import Schema, SchemaKind
from sulina.errors import InvalidEnvelope, InvalidSettings, NotSerializable
from sulina.json_values import convert_to, json_decoder

USER_ID_MIN = 100
USER_ID_MAX = 2**31 - 1
TYPE_NAME_LENGTH_MAX = 500

T = TypeVar("T")

_RESERVED = frozenset((SERIALIZER_HEADER, TYPE_HEADER))
# What Avro's logical types are in Python: they pass as they are.
_AVRO_TYPES = (bytes, datetime.datetime, datetime.date, datetime.time, decimal.Decimal, uuid.UUID)


@dataclass(frozen=True, slots=True)
class _Form:
    """How values of one type are written and read."""

    serializer_id: int
    type_name: str
    dumps: Callable[[Any], Any]
    loads: Callable[[bytes], Any]


class SerializationRegistry:
    """`register` what is not known, then `serialize` and `deserialize`. Both sides need the same registrations."""

    def __init__(self) -> None:
        self._by_type: dict[type, _Form] = {}
        self._by_name: dict[tuple[int, str], _Form] = {}
        self._to_json = msgspec.json.Encoder().encode

    def register(
        self,
        kind: type[T],
        *,
        serializer_id: int,
        type_name: str,
        dumps: Callable[[T], bytes],
        loads: Callable[[bytes], T],
    ) -> None:
        """Register a type with its own functions. Several types may share an id.

        Raises:
            InvalidSettings: the id, the name or the type is not valid, or is registered already.
        """
        if not isinstance(serializer_id, int) or not USER_ID_MIN <= serializer_id <= USER_ID_MAX:
            raise InvalidSettings(f"a serializer's id is from {USER_ID_MIN} to {USER_ID_MAX}, not {serializer_id!r}")
        self._add(kind, _Form(serializer_id, type_name, dumps, loads))

    def register_json(self, kind: type, *, type_name: str | None = None) -> None:
        """Register a dataclass, a Struct or another type that msgspec knows: it comes back as one.

        Raises:
            InvalidSettings: it cannot be read from JSON, or is registered already.
        """
        try:
            loads: Callable[[bytes], Any] = json_decoder(kind).decode
        except TypeError as error:
            raise InvalidSettings(f"{kind!r} cannot be read from JSON: {error}") from None
        self._add(kind, _Form(Serializer.JSON, type_name or _name_of(kind), self._to_json, loads))

    def register_avro(self, kind: type, *, schema: Any, type_name: str | None = None) -> None:
        """Register a dataclass, a Struct or a dict by the JSON of an Avro schema.

        Raises:
            InvalidSettings: the schema is not valid, or the type is registered already.
        """
        checker(Schema(kind=SchemaKind.AVRO, definition=schema))
        import fastavro

        parsed = fastavro.parse_schema(schema)

        def dumps(value: object) -> bytes:
            stream = BytesIO()
            record = msgspec.to_builtins(value, builtin_types=_AVRO_TYPES)
            fastavro.schemaless_writer(stream, parsed, record, strict=True)
            return stream.getvalue()

        def loads(data: bytes) -> Any:
            stream = BytesIO(data)
            record = fastavro.schemaless_reader(stream, parsed, None)
            if stream.read(1):
                raise ValueError("bytes are left over after the record")
            return convert_to(record, kind, builtin_types=_AVRO_TYPES)

        self._add(kind, _Form(Serializer.AVRO, type_name or _name_of(kind), dumps, loads))

    def _add(self, kind: type, form: _Form) -> None:
        name = form.type_name
        if not isinstance(kind, type):
            raise InvalidSettings(f"only types are registered, not {kind!r:.60}")
        if not isinstance(name, str) or not 0 < len(name) <= TYPE_NAME_LENGTH_MAX:
            raise InvalidSettings(f"the name of a type has 1 to {TYPE_NAME_LENGTH_MAX} characters, not {name!r:.60}")
        if not name.isprintable():  # nor has a lone surrogate any bytes
            raise InvalidSettings(f"the name of a type is plain text, not {name!r:.60}")
        if kind in self._by_type:
            raise InvalidSettings(f"{kind.__qualname__} is registered already")
        if (form.serializer_id, name) in self._by_name:
            raise InvalidSettings(f"another type is registered as {name!r} of serializer {form.serializer_id}")
        self._by_type[kind] = self._by_name[form.serializer_id, name] = form

    def serialize(self, value: object) -> Envelope:
        """Return a value as bytes, with the serializer and the name of the type that read them.

        Raises:
            NotSerializable: no serializer can write it, or the registered one fails.
        """
        form = self._by_type.get(type(value))
        if form is not None:
            return Envelope(form.serializer_id, form.type_name, _written(form.dumps, value))
        if isinstance(value, bytes | bytearray | memoryview):
            return Envelope(Serializer.BYTES, "", bytes(value))
        if isinstance(value, str):
            return Envelope(Serializer.TEXT, "", _written(str.encode, value))
        if (arrow := _arrow_name(value)) is not None:
            return Envelope(Serializer.ARROW, arrow, _written(_arrow_dumps, value))
        return Envelope(Serializer.JSON, "", _written(self._to_json, value))

    def write(self, value: object, headers: Headers = ()) -> tuple[bytes | None, Headers]:
        """Return a value as it is stored, and the headers with those that its readers need.

        Bytes keep the headers that are given, so that a message can be published again by its value and headers.

        Raises:
            NotSerializable: no serializer can write the value, or the registered one fails.
        """
        if value is None:
            return None, without_envelope(headers) if headers else ()
        if isinstance(value, bytes | bytearray | memoryview) and type(value) not in self._by_type:
            return bytes(value), headers
        envelope = self.serialize(value)
        if envelope.type_name or envelope.serializer_id not in _HEADERS:
            own = headers_of(envelope)
        else:
            own = _HEADERS[envelope.serializer_id]  # always the same object: batches are encoded faster
        return envelope.data, own + without_envelope(headers) if headers else own

    def deserialize(self, envelope: Envelope) -> Any:
        """Return the value of an envelope; JSON of an unknown type is plain.

        Raises:
            InvalidEnvelope: no serializer knows it, or its bytes are not what it says.
        """
        form = self._by_name.get((envelope.serializer_id, envelope.type_name))
        loads = form.loads if form is not None else _PLAIN.get(envelope.serializer_id)
        if loads is None:
            raise InvalidEnvelope(
                f"nobody here can read type {envelope.type_name!r} of serializer {envelope.serializer_id}: register it"
            )
        try:
            value = loads(envelope.data)
            if envelope.serializer_id == Serializer.ARROW and envelope.type_name == "RecordBatch":
                [value] = value.to_batches() or [_empty_batch(value)]
        except Exception as error:
            raise InvalidEnvelope(
                f"{len(envelope.data)} bytes are not what serializer {envelope.serializer_id} writes "
                f"for type {envelope.type_name!r}: {_reason(error)}"
            ) from error
        return value


def headers_of(envelope: Envelope) -> Headers:
    """Return the headers that a record carries beside the envelope's bytes. Plain bytes need none."""
    if envelope.serializer_id == Serializer.BYTES and not envelope.type_name:
        return ()
    number = (SERIALIZER_HEADER, b"%d" % envelope.serializer_id)
    return (number, (TYPE_HEADER, envelope.type_name.encode())) if envelope.type_name else (number,)


def envelope_of(data: bytes, headers: Iterable[tuple[str, bytes | None]]) -> Envelope:
    """Return the envelope of a record as it was read.

    Raises:
        InvalidEnvelope: its serializer headers are not valid.
    """
    found = {name: value or b"" for name, value in headers if name in _RESERVED}
    if not found:
        return Envelope(Serializer.BYTES, "", data)
    number, name = found.get(SERIALIZER_HEADER, b"0"), found.get(TYPE_HEADER, b"")
    if not number.isdigit() or len(number) > len(str(USER_ID_MAX)):
        raise InvalidEnvelope(f"{SERIALIZER_HEADER} is a number, not {number[:60]!r}")
    try:
        return Envelope(int(number), name.decode(), data)
    except UnicodeDecodeError as error:
        raise InvalidEnvelope(f"{TYPE_HEADER} is not text: {error}") from None


def without_envelope(headers: Headers) -> Headers:
    """Return headers without those of the serializer, so that a message can be published again."""
    return tuple(header for header in headers if header[0] not in _RESERVED)


def _written(dumps: Callable[[Any], Any], value: object) -> bytes:
    kind = type(value).__qualname__
    try:
        data = dumps(value)
    except Exception as error:
        raise NotSerializable(f"a value of type {kind} cannot be written: {_reason(error)}") from error
    if not isinstance(data, bytes | bytearray | memoryview):
        raise NotSerializable(f"a value of type {kind} was written as {type(data).__qualname__}, not as bytes")
    return bytes(data)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300] if str(error) else type(error).__name__


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else ""


def _arrow_name(value: object) -> str | None:
    """Return the name of an Arrow type; None for other types. Arrow is not imported for that."""
    arrow = sys.modules.get("pyarrow")
    if arrow is None or not isinstance(value, arrow.Table | arrow.RecordBatch):
        return None
    return "Table" if isinstance(value, arrow.Table) else "RecordBatch"


def _arrow_dumps(value: Any) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write(value)
    return bytes(sink.getvalue().to_pybytes())


def _arrow_loads(data: bytes) -> Any:
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()


def _empty_batch(table: Any) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([], schema=table.schema)


_HEADERS = {int(Serializer.TEXT): TEXT_HEADERS, int(Serializer.JSON): JSON_HEADERS}
# What is read without a registration.
_PLAIN: dict[int, Callable[[bytes], Any]] = {
    Serializer.BYTES: lambda data: data,
    Serializer.TEXT: bytes.decode,
    Serializer.JSON: msgspec.json.decode,
    Serializer.ARROW: _arrow_loads,
}
