"""Values of each kind of schema, the same ones each time, and the schemas that they fit."""

import base64
import json
import random
from typing import Any

import fastavro
import pyarrow as pa
from fastavro import parse_schema

from sulina.core.topic import SchemaKind

COUNTRIES = ["AT", "BG", "DE", "FR", "HU", "MD", "RO", "RS", "UA"]
_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "country", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "at", "type": "string"},
        {"name": "note", "type": ["null", "string"]},
    ],
}
_ARROW = pa.schema(
    [("id", pa.int64()), ("country", pa.string()), ("amount", pa.float64()), ("at", pa.string()), ("note", pa.string())]
)
SCHEMAS: dict[str, dict[str, Any]] = {
    "json": {
        "kind": "json",
        "definition": {
            "type": "object",
            "properties": {
                "id": {"type": "integer", "minimum": 0},
                "country": {"type": "string", "minLength": 2, "maxLength": 2},
                "amount": {"type": "number"},
                "at": {"type": "string", "format": "date-time"},
                "note": {"type": ["string", "null"]},
            },
            "required": ["id", "country", "amount"],
            "additionalProperties": False,
        },
    },
    "avro": {"kind": "avro", "definition": _AVRO},
    "arrow": {"kind": "arrow", "definition": base64.b64encode(_ARROW.serialize()).decode()},
}


def typed_values(kind: str, count: int) -> list[bytes]:
    """Values of orders: about 130 bytes as JSON. A value of Arrow is one row."""
    rng = random.Random(42)
    orders = [
        {
            "id": number,
            "country": rng.choice(COUNTRIES),
            "amount": round(rng.uniform(1, 1000), 2),
            "at": f"2026-01-01T{rng.randrange(24):02}:{rng.randrange(60):02}:00Z",
            "note": f"{rng.getrandbits(160):040x}",
        }
        for number in range(count)
    ]
    return [_encoded(kind, order) for order in orders]


def _encoded(kind: str, order: dict[str, Any]) -> bytes:
    if kind == SchemaKind.AVRO:
        from io import BytesIO

        out = BytesIO()
        fastavro.schemaless_writer(out, parse_schema(_AVRO), order)
        return out.getvalue()
    if kind == SchemaKind.ARROW:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _ARROW) as writer:
            writer.write_batch(pa.RecordBatch.from_pylist([order], _ARROW))
        return bytes(sink.getvalue())
    return json.dumps(order, separators=(",", ":")).encode()
