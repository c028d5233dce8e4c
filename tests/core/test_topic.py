"""Policies, schemas and settings."""

import base64
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from sulina.core.topic import (
    Ack,
    Policy,
    Schema,
    SchemaKind,
    TopicSettings,
    check_policy,
    resolved,
)
from sulina.core.values import check_values, checker
from sulina.errors import InvalidRecord, InvalidSettings

AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
JSON = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
DEEP: dict[str, Any] = reduce(lambda inner, _: {"not": inner}, range(65), {})
ARROW = pa.schema([("id", pa.int64())])
ARROW_DEFINITION = base64.b64encode(ARROW.serialize()).decode()


def arrow_value(schema: pa.Schema, rows: list[dict[str, object]]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema))
    return bytes(sink.getvalue())


def test_a_policy_is_resolved_topic_then_namespace_then_system() -> None:
    policy = resolved(Policy(deliveries_max=3), Policy(deliveries_max=5, ack=Ack.MEMORY))
    assert policy.deliveries_max == 3
    assert policy.ack == Ack.MEMORY
    assert policy.ack_timeout_seconds == 30.0


def test_what_needs_more_than_there_is_is_refused() -> None:
    for ack, needs in ((Ack.REPLICATED, "replicas"), (Ack.ARCHIVED, "an object store")):
        with pytest.raises(InvalidSettings, match=f"needs {needs}"):
            check_policy(resolved(Policy(ack=ack)))
    check_policy(resolved(Policy(ack=Ack.ARCHIVED)), is_archiving=True)


def test_a_batch_must_fit_a_segment() -> None:
    with pytest.raises(InvalidSettings, match="would not fit"):
        check_policy(resolved(Policy(segment_bytes=1 << 16)))


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b'{"partitions": 0}', b'{"partitions": 100000}', b'{"partitons": 1}', b'{"delivery": "maybe"}',
     b'{"policy": {"retention_bytes": -1}}', b'{"policy": {"ack_timeout_seconds": 0}}', b'{"schema": {"kind": "xml"}}',
     b'{"policy": {"deliveries_max": 1e99}}'],
)  # fmt: skip
def test_bad_settings_are_refused_with_a_reason(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(text, type=TopicSettings)


def test_a_fingerprint_does_not_depend_on_the_order_of_keys() -> None:
    one = Schema(kind=SchemaKind.JSON, definition={"type": "object", "title": "x"})
    two = Schema(kind=SchemaKind.JSON, definition={"title": "x", "type": "object"})
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != Schema(kind=SchemaKind.JSON, definition={"type": "object"}).fingerprint


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (Schema(kind=SchemaKind.JSON, definition=JSON), b'{"id": 1}', b'{"id": "x"}'),
        (Schema(kind=SchemaKind.JSON, definition=JSON), b'{"id": 1}', b"not json"),
        (Schema(kind=SchemaKind.AVRO, definition=AVRO), b"\x02", b""),
        (Schema(kind=SchemaKind.AVRO, definition=AVRO), b"\x02", b"\x02\x02"),
        (
            Schema(kind=SchemaKind.ARROW, definition=ARROW_DEFINITION),
            arrow_value(ARROW, [{"id": 1}]),
            arrow_value(pa.schema([("id", pa.string())]), [{"id": "x"}]),
        ),
        (Schema(kind=SchemaKind.ARROW, definition=ARROW_DEFINITION), arrow_value(ARROW, []), b"nonsense"),
    ],
)
def test_values_are_checked_by_their_schema(schema: Schema, good: bytes, bad: bytes) -> None:
    check_values(checker(schema), [good, None])
    with pytest.raises(InvalidRecord, match="record 1"):
        check_values(checker(schema), [good, bad])


@pytest.mark.parametrize(
    "schema",
    [
        Schema(kind=SchemaKind.BYTES, definition={}),
        Schema(kind=SchemaKind.JSON, definition="text"),
        Schema(kind=SchemaKind.JSON, definition={"type": "nonsense"}),
        Schema(kind=SchemaKind.JSON, definition={"$ref": "file:///etc/hostname"}),
        Schema(kind=SchemaKind.JSON, definition={"$ref": "http://127.0.0.1:1/schema.json"}),
        Schema(kind=SchemaKind.AVRO, definition={"type": "nonsense"}),
        Schema(kind=SchemaKind.AVRO, definition=None),
        Schema(kind=SchemaKind.ARROW, definition="!"),
        Schema(kind=SchemaKind.ARROW, definition=base64.b64encode(b"x").decode()),
        Schema(kind=SchemaKind.JSON, definition={"description": "x" * 300_000}),
        Schema(kind=SchemaKind.JSON, definition=DEEP),
    ],
)
def test_what_is_no_schema_is_refused_and_fetches_nothing(schema: Schema) -> None:
    with pytest.raises(InvalidSettings):
        checker(schema)


def test_settings_come_back_as_they_went() -> None:
    settings = TopicSettings(
        partitions=3, policy=Policy(deliveries_max=2), value_schema=Schema(kind=SchemaKind.JSON, definition=JSON)
    )
    assert msgspec.json.decode(msgspec.json.encode(settings), type=TopicSettings) == settings
    assert b'"schema"' in msgspec.json.encode(settings)
