"""Policies, schemas and settings."""

import base64
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from sulina.core.records.values import check_values, checker
from sulina.core.topic import (
    Ack,
    Policy,
    Schema,
    SchemaKind,
    TopicSettings,
    check_policy,
    needs_check,
    resolved,
)
from sulina.errors import InvalidName, InvalidRecord, InvalidSettings

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
    check_policy(Policy(batch_bytes_max=1 << 16, segment_bytes=1 << 16))


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


def avro_array(items: object) -> Schema:
    return Schema(kind=SchemaKind.AVRO, definition={"type": "array", "items": items})


EMPTY_RECORD = {"type": "record", "name": "Empty", "fields": []}


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "null"},
        EMPTY_RECORD,
        {"type": "error", "name": "Error", "fields": []},
        {"type": "fixed", "name": "Nothing", "size": 0},
        {"type": "record", "name": "Nulls", "fields": [{"name": "a", "type": "null"}, {"name": "b", "type": "null"}]},
        {"type": "record", "name": "Outer", "fields": [{"name": "inner", "type": EMPTY_RECORD}]},
    ],
)
def test_an_array_that_could_say_any_size_in_a_few_bytes_is_refused_wherever_it_is(items: object) -> None:
    array = {"type": "array", "items": items}
    outer = {
        "type": "record",
        "name": "Holder",
        "fields": [{"name": "id", "type": "long"}, {"name": "a", "type": array}],
    }
    for definition in (array, ["null", array], {"type": "map", "values": array}, outer):
        with pytest.raises(InvalidSettings, match="an array of items without any bytes is not allowed"):
            checker(Schema(kind=SchemaKind.AVRO, definition=definition))


def test_an_array_of_a_named_type_without_bytes_is_refused() -> None:
    fields = [{"name": "one", "type": EMPTY_RECORD}, {"name": "many", "type": {"type": "array", "items": "Empty"}}]
    with pytest.raises(InvalidSettings, match="without any bytes"):
        checker(Schema(kind=SchemaKind.AVRO, definition={"type": "record", "name": "Outer", "fields": fields}))


@pytest.mark.parametrize(
    "items",
    [
        "long",
        ["null"],
        {"type": "array", "items": "string"},
        {"type": "map", "values": "null"},
        {"type": "fixed", "name": "One", "size": 1},
        {"type": "record", "name": "Half", "fields": [{"name": "a", "type": "null"}, {"name": "b", "type": "int"}]},
    ],
)
def test_an_array_whose_items_take_bytes_is_allowed(items: object) -> None:
    check_values(checker(avro_array(items)), [b"\x00"])


def test_any_bytes_are_bytes() -> None:
    check_values(checker(Schema()), [b"", b"\xff", None])


def test_a_schema_reads_no_file(tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("true")
    with pytest.raises(InvalidSettings, match=r"there\.json"):
        checker(Schema(kind=SchemaKind.JSON, definition={"$ref": (tmp_path / "there.json").as_uri()}))


def test_a_pattern_that_may_take_more_than_linear_time_is_refused() -> None:
    with pytest.raises(InvalidSettings):
        checker(Schema(kind=SchemaKind.JSON, definition={"pattern": "(a)\\1"}))


def test_a_definition_with_anything_between_its_base64_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"not a schema of arrow: .*base64"):
        checker(Schema(kind=SchemaKind.ARROW, definition=f"{ARROW_DEFINITION[:4]}!{ARROW_DEFINITION[4:]}"))


def test_a_value_that_does_not_fit_is_named_with_the_reason() -> None:
    other = arrow_value(pa.schema([("name", pa.string())]), [])
    for kind, definition, bad, reason in (
        (SchemaKind.JSON, JSON, b'{"id": "x"}', 'schema: "x" is not of type "integer"$'),
        (SchemaKind.ARROW, ARROW_DEFINITION, other, r"schema: its columns are \['name'\]"),
    ):
        with pytest.raises(InvalidRecord, match=f"^record 1 .*{reason}"):
            check_values(checker(Schema(kind=kind, definition=definition)), [None, bad])


@pytest.mark.parametrize(
    ("topic", "namespace", "expected"),
    [(None, None, True), (None, False, False), (True, False, True), (False, None, False), (False, True, False)],
)
def test_u11_values_are_checked_by_the_schema_unless_the_policy_says_no(
    topic: bool | None, namespace: bool | None, expected: bool
) -> None:
    policy = resolved(Policy(validate=topic), Policy(validate=namespace))
    assert needs_check(Schema(kind=SchemaKind.JSON, definition=JSON), policy) is expected
    assert not needs_check(Schema(), policy), "a topic without a schema takes any bytes"


def test_a_topic_for_dead_letters_has_the_name_of_a_topic() -> None:
    check_policy(Policy(dead_letter="/default/late"))
    with pytest.raises(InvalidName):
        check_policy(Policy(dead_letter="no name"))


def test_settings_come_back_as_they_went() -> None:
    settings = TopicSettings(
        partitions=3, policy=Policy(deliveries_max=2), value_schema=Schema(kind=SchemaKind.JSON, definition=JSON)
    )
    assert msgspec.json.decode(msgspec.json.encode(settings), type=TopicSettings) == settings
    assert b'"schema"' in msgspec.json.encode(settings)
