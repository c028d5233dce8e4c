"""Records on standard output: as text for people, as JSON, or as bare values."""

import base64
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import msgspec

from sulina.cli import terminal
from sulina.core.records.serializer import SERIALIZER_HEADER

Format = Literal["text", "json", "raw"]
SHOWN_MAX = 400  # characters of a value in text


class PrintableRecord(Protocol):
    """The fields of a record that are printed, whether it was read or delivered."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Any: ...


def printer(form: Format) -> Callable[[PrintableRecord], None]:
    """Return a function that prints one record, without a flush."""
    show = {"text": _text, "json": _json, "raw": _raw}[form]
    return lambda record: terminal.write(show(record))


def flush() -> None:
    """Flush the records that were printed."""
    sys.stdout.flush()


def _raw(record: PrintableRecord) -> bytes:
    return (record.value or b"") + b"\n"


def _json(record: PrintableRecord) -> bytes:
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
    }
    _put(fields, "key", record.key)
    _put(fields, "value", record.value)
    headers = [_put({"name": name}, "value", value) for name, value in record.headers]
    return msgspec.json.encode(fields | {"headers": headers}) + b"\n"


def _put(fields: dict[str, Any], name: str, data: bytes | None) -> dict[str, Any]:
    """Set a field to text, or `{name}_b64` to base64 if the bytes are not UTF-8."""
    try:
        fields[name] = None if data is None else data.decode()
    except UnicodeDecodeError:
        fields[f"{name}_b64"] = base64.b64encode(data or b"").decode()
    return fields


def _text(record: PrintableRecord) -> bytes:
    moment = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).astimezone()
    parts = [f"{record.partition}:{record.offset}", f"{moment:%H:%M:%S}.{record.timestamp_ms % 1000:03d}"]
    parts.append("-" if record.key is None else _shown(record.key))
    parts.append("-" if record.value is None else _shown(record.value))
    shown = [header for header in record.headers if header[0] != SERIALIZER_HEADER]  # of use to programs only
    parts += [f"{name}={'-' if value is None else _shown(value)}" for name, value in shown]
    return "  ".join(parts).encode() + b"\n"


def _shown(data: bytes) -> str:
    """Return bytes as one line of printable text."""
    text = data[: 4 * SHOWN_MAX].decode(errors="replace")
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(data):,} bytes)"
