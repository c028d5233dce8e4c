"""The headers of rows whose value is a string: what every other surface writes for one value."""

from typing import Any

import pyarrow as pa
import pytest

from sulina.core.records.record_columns import HEADERS_TYPE
from sulina.errors import InvalidInput
from sulina.spark.header_columns import serializer_headers

TEXT = {"key": "sulina-serializer", "value": b"1"}
JSON = {"key": "sulina-serializer", "value": b"2"}
OWN = {"key": "n", "value": b"7"}
EMPTY = {"key": "none", "value": None}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_strings_are_text_and_nulls_are_nothing(kind: pa.DataType) -> None:
    value = pa.array(["a", None, "", "b"], kind)
    assert headers_of(value) == [[TEXT], [], [TEXT], [TEXT]]
    assert headers_of(value[:0]) == []


def test_own_headers_follow_and_one_that_names_a_serializer_wins() -> None:
    value = pa.array(["a", "b", "c", "d", None, "e", None])
    own = [[OWN, EMPTY], None, [], [OWN, JSON], [OWN], [EMPTY], None]
    expected = [[TEXT, OWN, EMPTY], [TEXT], [TEXT], [OWN, JSON], [OWN], [TEXT, EMPTY], []]
    column = pa.array(own, HEADERS_TYPE)
    assert headers_of(value, column) == expected
    assert headers_of(value[2:6], column[2:6]) == expected[2:6], "of a slice"
    texts = pa.array([[{"key": "n", "value": "7"}]], pa.list_(pa.struct({"key": pa.string(), "value": pa.string()})))
    assert headers_of(value[:1], texts) == [[TEXT, OWN]]


def test_bytes_keep_the_headers_that_they_have() -> None:
    column = pa.array([[OWN], None], HEADERS_TYPE)
    assert serializer_headers(pa.array([b"a", b"b"]), column) is column
    assert serializer_headers(pa.array([b"a", b"b"]), None) is None


def test_another_column_is_no_headers() -> None:
    with pytest.raises(InvalidInput, match="column headers is int64"):
        serializer_headers(pa.array(["a"]), pa.array([1]))


def headers_of(value: pa.Array, headers: pa.Array | None = None) -> list[Any]:
    found = serializer_headers(value, headers)
    assert found is not None
    found.validate(full=True)
    return list(found.to_pylist())
