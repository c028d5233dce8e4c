"""JSON becomes columns by the topic's schema; what does not fit has a reason (mission S1, S3)."""

import json
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sulina.core.records.values import check_values, checker
from sulina.core.topic import Schema, SchemaKind
from sulina.errors import InvalidRecord
from sulina.spark.decoding import Decoder, Mode

ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "price": {"type": "number"},
        "is_paid": {"type": "boolean"},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": ["string", "null"], "format": "date"},
        "kind": {"enum": ["new", "old"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "buyer": {"anyOf": [{"$ref": "#/$defs/person"}, {"type": "null"}]},
        "notes": {"type": "object"},
        "any": True,
    },
    "required": ["id"],
    "additionalProperties": False,
    "$defs": {
        "person": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "friends": {"type": "array", "items": {"type": "integer"}}},
            "required": ["name"],
            "additionalProperties": False,
        }
    },
}


def schema_of(definition: Any) -> Schema:
    return Schema(kind=SchemaKind.JSON, definition=definition)


def values_of(*values: Any) -> pa.BinaryArray:
    """Bytes and None as they are, anything else as JSON."""
    return pa.array(
        [value if isinstance(value, bytes | None) else json.dumps(value).encode() for value in values], pa.binary()
    )


def decode(definition: Any, *values: Any) -> tuple[list[Any], list[str | None]]:
    """Both ways, which must agree."""
    quick = Decoder.of(schema_of(definition)).decode(values_of(*values))
    exact = Decoder(schema_of(definition), Mode.PERMISSIVE, is_quick=False).decode(values_of(*values))
    quick.data.validate(full=True)
    assert quick.data.type == exact.data.type
    assert quick.data.equals(exact.data)
    assert quick.error.equals(exact.error)
    return quick.data.to_pylist(), quick.error.to_pylist()


def reason(definition: Any, value: Any) -> str:
    data, error = decode(definition, value)
    assert data == [None]
    assert error[0] is not None
    return error[0]


def test_s3_values_become_columns() -> None:
    row = {
        "id": 2**63 - 1, "name": "ä\u0000", "price": 1, "is_paid": True, "at": "2026-11-30T12:00:00.123456789+01:00",
        "day": "2026-11-30", "kind": "old", "tags": ["a", ""], "buyer": {"name": "b", "friends": [1]},
        "notes": {"x": [1, 1.5]}, "any": [None, {"y": 1}],
    }  # fmt: skip
    data, error = decode(ORDER, row, {"id": 1}, {"id": 2, "day": None, "buyer": None, "any": None}, None)
    assert error == [None] * 4
    assert data[0] == {
        **row, "price": 1.0, "at": datetime(2026, 11, 30, 11, 0, 0, 123457, UTC), "day": date(2026, 11, 30),
        "notes": '{"x":[1,1.5]}', "any": '[null,{"y":1}]',
    }  # fmt: skip
    assert data[1] == {**dict.fromkeys(row), "id": 1}
    assert data[2] == {**dict.fromkeys(row), "id": 2}
    assert data[3] is None


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({}, '"id" is a required property'),
        ({"id": "1"}, "$.id: "),
        ({"id": 1.5}, "$.id: "),
        ({"id": True}, "$.id: "),
        ({"id": None}, "$.id: "),
        ({"id": 2**63}, "$.id: does not fit 64 bits"),
        ({"id": -(2**70)}, "$.id: does not fit 64 bits"),
        ({"id": 1e300}, "$.id: does not fit 64 bits"),
        ({"id": 1, "price": 10**400}, "$.price: is too large a number"),
        (b'{"id": 1, "price": 1e400}', "out of range"),
        (b'{"id": 1, "price": NaN}', "malformed"),
        (b'{"id": 1, "price": Infinity}', "malformed"),
        ({"id": 1, "price": "1"}, "$.price: "),
        ({"id": 1, "at": "yesterday"}, "$.at: is not a date-time"),
        ({"id": 1, "at": "2026-11-30T12:00:00"}, "$.at: is not a date-time"),
        ({"id": 1, "day": "2026-02-30"}, "$.day: is not a date"),
        ({"id": 1, "kind": "other"}, "$.kind: "),
        ({"id": 1, "kind": None}, "$.kind: "),
        ({"id": 1, "tags": ["a", 1]}, "$.tags[1]: "),
        ({"id": 1, "tags": "a"}, "$.tags: "),
        ({"id": 1, "buyer": {"friends": []}}, "$.buyer: "),
        ({"id": 1, "notes": []}, "$.notes: "),
        ({"id": 1, "more": 1}, "more"),
        ([], "$: "),
        (b"null", "$: "),
        (b'{"id": 1', "truncated"),
        (b"", "truncated"),
        (b'{"id": 1} {"id": 2}', "trailing"),
        (b'{"id": 1, "name": "\xff"}', "not UTF-8"),
        (b'{"id": 1, "name": "\\ud800"}', "truncated"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"id": 1, "any": ' + b"[" * 500 + b"]" * 500 + b"}", "nested too deep"),
        (b'{"id": 1, "any": ' + b"[" * 200 + b"]" * 200 + b"}", "nested too deep"),
    ],
)
def test_a_value_that_does_not_fit_has_a_reason_that_says_where(value: Any, where: str) -> None:
    assert where in reason(ORDER, value)
    assert len(reason(ORDER, value)) <= 300


def test_a_value_may_be_nested_to_a_bound() -> None:
    inner = b"[" * 199 + b"]" * 199
    assert (
        decode(ORDER, b'{"id": 1, "any": ' + inner + b"}", b'{"id": 1, "any": "' + b"[" * 999 + b'"}')[1] == [None] * 2
    )
    assert decode({"properties": {"a": {"type": "null"}}}, b'{"more": ' + inner + b"}")[1] == [None]


def test_a_long_value_has_a_short_reason() -> None:
    assert len(reason({"properties": {"a": {"type": "integer"}}}, {"a": "x\n" * 10_000})) == 300


def test_properties_that_the_schema_does_not_name_are_kept_unless_it_forbids_them() -> None:
    open_ = {"type": "object", "properties": {"id": {"type": "integer"}, "in": {"properties": {"a": {}}}}}
    data, error = decode(open_, {"id": 1}, {"id": 2, "x": 2**70, "f0": None}, {"id": 3, "in": {"b": 1}}, {"_rest": 1})
    assert error == [None] * 4
    assert data == [
        {"id": 1, "in": None, "_rest": None},
        {"id": 2, "in": None, "_rest": f'{{"x":{2**70},"f0":null}}'},
        {"id": 3, "in": {"a": None, "_rest": '{"b":1}'}, "_rest": None},
        {"id": None, "in": None, "_rest": '{"_rest":1}'},
    ]
    typed = {**open_, "additionalProperties": {"type": "string"}}
    data, error = decode(typed, {"id": 1, "x": "y"}, {"id": 1, "x": 1})
    assert data == [{"id": 1, "in": None, "_rest": '{"x":"y"}'}, None]
    assert error[1] == '$.x: 1 is not of type "string"'


def test_everything_that_the_schema_asks_for_is_checked() -> None:
    definition = {
        "properties": {"n": {"type": "integer", "minimum": 3}, "s": {"type": "string", "pattern": "^a"}},
        "required": ["other"],
    }
    data, error = decode(definition, {"n": 3, "other": 1}, {"n": 2, "other": 1}, {"n": 3}, {"s": "b", "other": 1})
    assert [row is None for row in data] == [False, True, True, True]
    assert [each and each.split(":")[0] for each in error] == [None, "$.n", "$", "$.s"]


def test_limits_are_what_the_schema_says() -> None:
    definition = {
        "properties": {
            "n": {"type": "integer", "minimum": -1, "maximum": 1},
            "s": {"type": "string", "minLength": 1, "maxLength": 2},
        }
    }
    good = [{"n": -1}, {"n": 1, "s": "ä😀"}, {"n": 1.0, "s": "a"}]
    bad = [{"n": -2}, {"n": 2}, {"n": 2**64}, {"s": ""}, {"s": "abc"}]
    assert [each is None for each in decode(definition, *good, *bad)[1]] == [True] * 3 + [False] * 5
    decode({"properties": {"n": {"type": "integer", "minimum": -(2**63), "maximum": 2**63}}}, {"n": 2**63 - 1})


def test_a_whole_number_may_be_written_as_a_fraction_and_the_last_of_two_properties_counts() -> None:
    data, error = decode(ORDER, b'{"id": 1.0}', b'{"id": 1e2}', b'{"id": "x", "id": 7}', b'{"id": 7, "id": "x"}')
    assert [row and row["id"] for row in data] == [1, 100, 7, None]
    assert [each is None for each in error] == [True, True, True, False]


def test_an_older_draft_checks_formats_and_a_newer_one_does_not() -> None:
    body = {"properties": {"mail": {"type": "string", "format": "email"}}}
    assert decode(body, {"mail": "x"})[1] == [None]
    assert "$.mail" in reason({**body, "$schema": "http://json-schema.org/draft-07/schema#"}, {"mail": "x"})
    four = {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"n": {"type": "integer"}}}
    decode(four, {"n": 1}, {"n": 1.0})


def test_an_enumeration_without_null_forbids_it_even_where_the_type_does_not() -> None:
    definition = {"properties": {"k": {"type": ["string", "null"], "enum": ["a"]}}}
    assert decode(definition, {"k": "a"}, {"k": None})[1][1] is not None
    assert decode({"properties": {"k": {"enum": ["a", None]}}}, {"k": None}, {"k": "a"})[1] == [None, None]


def test_values_that_are_no_objects_have_one_column() -> None:
    assert decode({"type": "integer"}, 5, b"null", b'"x"')[0] == [{"value": 5}, None, None]
    assert decode({"type": ["array", "null"], "items": {"type": "integer"}}, [1], b"null")[0] == [
        {"value": [1]},
        {"value": None},
    ]
    assert decode(True, {"a": 1}, 5)[0] == [{"value": '{"a":1}'}, {"value": "5"}]
    assert decode({"type": ["object", "null"], "properties": {"a": {}}}, b"null") == ([None], [None])


def test_names_that_are_odd_are_columns_too() -> None:
    names = ['a"b', "a.b", "a b", "`", "ä", "f0", "\n"]
    definition = {"properties": {name: {"type": "integer"} for name in names}, "additionalProperties": False}
    data, error = decode(definition, dict.fromkeys(names, 1), {'a"b': "x"}, {"a.b": "x"})
    assert data[0] == dict.fromkeys(names, 1)
    assert error[1:] == ['$["a\\"b"]: "x" is not of type "integer"', '$["a.b"]: "x" is not of type "integer"']


def test_a_schema_that_refers_to_itself_has_text_where_it_does() -> None:
    tree = {
        "properties": {"v": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#"}}},
        "additionalProperties": False,
    }
    data, error = decode(tree, {"v": 1, "children": [{"v": 2}]}, {"children": [{"v": "x"}]})
    assert data[0] == {"v": 1, "children": ['{"v":2}']}
    assert error[1] == '$.children[0].v: "x" is not of type "integer"'


scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.floats(allow_nan=False), st.text())
anything = st.recursive(
    scalars.filter(lambda value: value not in (float("inf"), float("-inf"))),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=6,
)
zones = st.sampled_from([UTC, timezone(timedelta(hours=-3))])
moments = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=zones)  # noqa: DTZ001
orders = st.fixed_dictionaries(
    {"id": st.integers(-(2**63), 2**63 - 1)},
    optional={
        "name": st.text(),
        "price": st.floats(allow_nan=False, allow_infinity=False),
        "is_paid": st.booleans(),
        "at": moments,
        "day": st.none() | st.dates(),
        "kind": st.sampled_from(["new", "old"]),
        "tags": st.lists(st.text(), max_size=3),
        "buyer": st.none()
        | st.fixed_dictionaries({"name": st.text()}, optional={"friends": st.lists(st.integers(0, 9))}),
    },
)


def encoded(order: dict[str, Any]) -> bytes:
    return json.dumps(order, default=lambda moment: moment.isoformat()).encode()


@settings(max_examples=60)
@given(st.lists(orders, max_size=8))
def test_what_was_encoded_is_decoded(rows: list[dict[str, Any]]) -> None:
    data, error = decode(ORDER, *map(encoded, rows))
    assert not any(error)
    for got, row in zip(data, rows, strict=True):
        expected = {**dict.fromkeys(ORDER["properties"]), **row}  # type: ignore[call-overload]
        if expected["buyer"] is not None:
            expected["buyer"] = {"friends": None, **expected["buyer"]}
        assert got == expected


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An order in which something may be wrong."""
    order = draw(orders)
    if draw(st.booleans()):
        order = {**order, draw(st.sampled_from([*ORDER["properties"], "more"])): draw(anything)}  # type: ignore[misc]
    text = bytearray(encoded(order))
    if draw(st.integers(0, 3)) == 0:
        text[draw(st.integers(0, len(text) - 1))] = draw(st.integers(0, 255) | st.sampled_from(b'0-.eE"{}[], '))
    return bytes(text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 5)) == 0 else text)


@settings(max_examples=80)
@given(st.lists(st.one_of(st.none(), damaged(), st.binary(max_size=8)), max_size=10))
def test_both_ways_agree_on_good_and_bad_values_and_take_nothing_that_the_broker_refuses(
    values: list[bytes | None],
) -> None:
    data, error = decode(ORDER, *values)
    check = checker(schema_of(ORDER))
    for value, row, why in zip(values, data, error, strict=True):
        assert value is not None or (row is None and why is None)
        if row is not None:
            check_values(check, [value])


schemas = st.recursive(
    st.sampled_from(
        [
            {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {}, True,
            {"type": "null"},
            {"type": "string", "format": "date-time"}, {"enum": ["a", "b"]}, {"type": ["integer", "null"]},
            {"type": ["integer", "string"]}, {"type": "integer", "minimum": 1}, {"const": "a"},
            {"type": "integer", "minimum": -3, "maximum": 2.0}, {"type": "integer", "maximum": 2**70},
            {"type": "string", "maxLength": 2}, {"type": "string", "minLength": 1, "pattern": "."}, {"type": "object"},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(lambda item: {"type": "array", "items": item}, inner),
        st.builds(lambda item: {"anyOf": [item, {"type": "null"}]}, inner),
        st.builds(lambda item: {"oneOf": [{"type": "null"}, item]}, inner),
        st.builds(
            lambda named, required, more: {
                "type": "object", "properties": named, "required": required, "additionalProperties": more
            },
            st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
            st.lists(st.sampled_from("abc"), unique=True, max_size=2),
            st.sampled_from([True, False, {"type": "integer"}]),
        ),
    ),
    max_leaves=5,
)  # fmt: skip


@settings(max_examples=150)
@given(schemas, st.lists(anything | st.sampled_from(["a", "2026-11-30T12:00:00Z"]), min_size=1, max_size=6))
def test_both_ways_agree_for_any_schema(definition: Any, values: list[Any]) -> None:
    wrapped = [value for each in values for value in (each, {"a": each}, {"a": [each], "b": 1})]
    texts = [json.dumps(value).encode() for value in wrapped]
    data, error = decode(definition, *texts)
    check = checker(schema_of(definition))
    for text, row, why in zip(texts, data, error, strict=True):
        if why is None:
            check_values(check, [text])
        assert row is None or why is None


def test_in_failfast_the_first_bad_value_is_named_by_its_place() -> None:
    decoder = Decoder.of(schema_of(ORDER), "failfast")
    assert decoder.decode(values_of({"id": 1}, None)).error.null_count == 2
    with pytest.raises(InvalidRecord, match="record 2 does not fit") as caught:
        decoder.decode(values_of({"id": 1}, None, {"id": "x"}, {}))
    assert caught.value.index == 2
