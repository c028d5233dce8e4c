"""The columns that are found in JSON values without a schema: they take those values, and lose nothing of them."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sulina.errors import InvalidSettings
from sulina.spark.decoding import Decoder
from sulina.spark.found_columns import COLUMNS_FOUND_MAX, find_columns, schema_of_columns, type_of, widened
from sulina.spark.json_columns import REST

TIMES = ["2026-01-01T10:00:00Z", "2026-01-01", "2026-13-45", "2026-01-01T10:00:00", "noon", ""]
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(2**53 - 2, 2**53 + 2),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5), st.sampled_from(TIMES),
)  # fmt: skip
cells = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
names = st.sampled_from(["id", "Id", "größe", "_offset", "a b", "", "x.y", "order", "9"])
objects = st.lists(st.dictionaries(names, cells, max_size=5), min_size=1, max_size=8)


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def decoded(values: list[bytes]) -> tuple[dict[str, str], list[Any], list[str | None]]:
    columns = find_columns(values).columns
    found = Decoder.of(schema_of_columns(columns)).decode(pa.array(values, pa.binary()))
    return columns, found.data.to_pylist(), found.error.to_pylist()


@given(objects)
@example([{"id": 2**53 + 1}, {"id": 2.5}])  # which a double would round
def test_s3_columns_that_are_found_take_every_value_and_lose_no_field(rows: list[dict[str, Any]]) -> None:
    values = [text(row) for row in rows]
    found = find_columns(values)
    every = {name for row in rows for name in row}
    assert set(found.columns) | set(found.left_out) == every
    if not found.columns:
        return
    columns, data, errors = decoded(values)
    assert errors == [None] * len(rows)
    for row, out in zip(rows, data, strict=True):
        rest = json.loads(out[REST]) if out[REST] is not None else {}
        assert set(rest) == set(row) - set(columns)
        for name, cell in row.items():
            kind = columns.get(name)
            if kind is None:
                assert rest[name] == cell
            elif kind == "json":
                assert (None if out[name] is None else json.loads(out[name])) == cell
            elif kind in ("timestamp", "date"):
                assert (out[name] is None) == (cell is None)
            else:
                assert out[name] == cell, "Python compares an integer with a double without rounding it"


kinds = st.sampled_from([None, "bigint", type_of(2**60), "double", "boolean", "string", "timestamp", "date", "json"])


@given(kinds, kinds, kinds)
def test_the_order_of_values_does_not_change_a_type(one: str | None, two: str | None, three: str | None) -> None:
    assert widened(one, two) == widened(two, one)
    assert widened(one, one) == one
    assert widened(widened(one, two), three) == widened(one, widened(two, three))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([1, 2], "bigint"),
        ([1, 2.5], "double"),
        ([2**53, 2.5, -(2**53)], "double"),
        ([2**53 + 1, 2.5], "json"),
        ([2.5, 1, -(2**53) - 1], "json"),
        ([2**53 + 1, 1], "bigint"),
        ([1, None], "bigint"),
        ([None], "json"),
        ([1, "x"], "json"),
        ([True, 1], "json"),
        ([2**63], "json"),
        (["x"], "string"),
        (["2026-01-01"], "date"),
        (["2026-01-01T00:00:00+02:00"], "timestamp"),
        (["2026-01-01T00:00:00"], "string"),
        (["2026-01-01", "2026-01-01T00:00:00Z"], "string"),
        ([{"a": 1}], "json"),
        ([[1]], "json"),
    ],
)
def test_s3_the_type_is_the_narrowest_that_takes_all_values(cells: list[Any], expected: str) -> None:
    assert find_columns([text({"x": cell}) for cell in cells]).columns == {"x": expected}


def test_what_is_no_object_is_counted_and_has_no_columns() -> None:
    found = find_columns([b"1", b"", None, b"{", b"\xff", b"[" * 5000, b'{"order": 0}', b'{"order": 1}'])
    assert (found.values, found.objects, found.columns) == (8, 2, {"order": "bigint"})


def test_properties_that_cannot_be_columns_are_named() -> None:
    found = find_columns([text({"id": 1, "ID": 2, "_key": 3, "a b": 4}), text({f"c{n}": n for n in range(200)})])
    assert found.left_out[:3] == ["ID", "_key", "a b"]
    assert len(found.columns) == COLUMNS_FOUND_MAX
    assert len(found.columns) + len(found.left_out) == 204


def test_rows_are_grouped_by_a_column_with_few_values() -> None:
    rows = [{"id": f"n{n}", "shop": f"s{n % 4}", "paid": n % 2 == 0, "same": "x"} for n in range(100)]
    assert find_columns(map(text, rows)).groups == "paid"
    assert find_columns([text({"id": f"n{n}"}) for n in range(100)]).groups is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "there are no columns"),
        ({"x": "int"}, "type 'int' is unknown; use one of bigint"),
        ({"_offset": "bigint"}, "column '_offset'"),
        ({"a b": "bigint"}, "column 'a b'"),
        ({"a": "bigint", "A": "string"}, "are one to Spark"),
    ],
)
def test_columns_that_cannot_be_are_refused(columns: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        schema_of_columns(columns)
