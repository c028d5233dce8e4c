"""Records as JSON: what goes in comes out, and what is wrong is said."""

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sulina.core.delivery.pubsub import DeliveryPolicy, PartitionBehavior, PublishOptions
from sulina.core.records.record import StoredRecord
from sulina.core.records.rows import decode_rows
from sulina.core.records.serializer import TEXT_HEADERS
from sulina.errors import InvalidInput
from sulina.listeners.http_problem import HttpError
from sulina.listeners.http_records import read_publish, record_out

NOW = 1_700_000_000_000


def publish(**fields: Any) -> list[StoredRecord]:
    return decode_rows(read_publish(json.dumps(fields).encode(), NOW, 1000).data)


def shown(record: StoredRecord) -> Any:
    return msgspec.to_builtins(record_out(record))


def test_text_becomes_bytes_and_absent_timestamps_now() -> None:
    [record] = publish(records=[{"key": "ключ", "value": "hello"}])
    assert record == StoredRecord(b"hello", "ключ".encode(), NOW, TEXT_HEADERS)


def test_bytes_come_in_base64() -> None:
    data = base64.b64encode(bytes(range(256))).decode()
    [record] = publish(records=[{"key_b64": data, "value_b64": data, "timestamp": 5}])
    assert record == StoredRecord(bytes(range(256)), bytes(range(256)), 5)
    assert shown(record) == {"offset": 0, "timestamp": 5, "key_b64": data, "value_b64": data, "headers": {}}


def test_a_null_value_is_a_tombstone() -> None:
    [first, second] = publish(records=[{"key": "k", "value": None}, {"value": ""}])
    assert (first.value, second.value) == (None, b"")
    assert shown(first)["value"] is None
    assert shown(second) == {
        "offset": 1,
        "timestamp": NOW,
        "key": None,
        "value": "",
        "headers": {"sulina-serializer": "1"},
    }


def test_headers_may_repeat_and_be_null() -> None:
    headers = {"trace": "a", "tag": ["x", "y", None], "empty": None}
    [record] = publish(records=[{"value": "v", "headers": headers}])
    pairs = (("trace", b"a"), ("tag", b"x"), ("tag", b"y"), ("tag", None), ("empty", None))
    assert record.headers == TEXT_HEADERS + pairs
    assert shown(record)["headers"] == {"sulina-serializer": "1"} | headers


def test_headers_that_are_not_text_come_out_in_base64() -> None:
    [record] = publish(records=[{"value": "v", "headers": {"a": "b"}, "headers_b64": {"raw": "/w=="}}])
    assert record.headers == (*TEXT_HEADERS, ("a", b"b"), ("raw", b"\xff"))
    answer = shown(record)
    assert "headers" not in answer
    assert answer["headers_b64"] == {"sulina-serializer": "MQ==", "a": "Yg==", "raw": "/w=="}


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=20),
            st.none() | st.binary(max_size=20),
            st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_what_json_shows_can_be_published_again(rows: list[Any]) -> None:
    records: list[StoredRecord] = []
    for value, key, headers in rows:
        by_name: dict[str, list[bytes | None]] = {}
        for name, data in headers:
            by_name.setdefault(name, []).append(data)
        pairs = tuple((name, data) for name, group in by_name.items() for data in group)
        if value is not None and _is_text(value):  # what is published as text is text
            pairs = TEXT_HEADERS + pairs
        records.append(StoredRecord(value, key, 7, pairs, len(records)))
    shapes = [shown(record) for record in records]
    again = publish(records=[{k: v for k, v in shape.items() if k != "offset"} for shape in shapes])
    assert again == records


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_serializer_that_is_given_is_kept() -> None:
    [record] = publish(records=[{"value": "{}", "headers": {"sulina-serializer": "2"}}])
    assert record.headers == (("sulina-serializer", b"2"),)


@pytest.mark.parametrize(
    "record",
    [
        {}, {"key": "k"}, {"value": 5}, {"value": {"a": 1}}, {"value": "a", "value_b64": "YQ=="},
        {"value": "a", "key": "k", "key_b64": "aw=="}, {"vlaue": "a"}, {"value_b64": "%%%"},
        {"value": "a", "timestamp": -1},
        {"value": "a", "timestamp": 2**63}, {"value": "a", "headers": []}, {"value": "a", "headers": {"a": 5}}, None, 5,
    ],
)  # fmt: skip
def test_records_of_another_shape_are_invalid(record: Any) -> None:
    with pytest.raises(InvalidInput):
        publish(records=[record])
    with pytest.raises(InvalidInput):
        publish(records=[{"value": "fine"}, record])


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"records": []}, {"records": {}}, {"records": [{"value": "a"}], "txn": "x"},
        {"records": [{"value": "a"}], "txn_id": ""}, {"records": [{"value": "a"}], "txn_id": "x" * 201},
        {"records": [{"value": "a"}], "expected_version": -1}, {"records": [{"value": "a"}] * 1001},
    ],
)  # fmt: skip
def test_publishes_of_another_shape_are_invalid(fields: Any) -> None:
    with pytest.raises(InvalidInput):
        publish(**fields)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nonsense", b'{"records": [{"value": "\\ud800"}]}', b'{"records": [{"value": "\xff"}]}',
        b'{"a":' * 100_000, b'{"records":' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_not_json_is_malformed(body: bytes) -> None:
    with pytest.raises((HttpError, InvalidInput)) as caught:
        read_publish(body, NOW, 1000)
    assert isinstance(caught.value, InvalidInput) or getattr(caught.value, "code", "") == "malformed_body"


def test_what_else_a_publish_says_is_kept() -> None:
    said = {
        "txn_id": "t", "expected_version": 3, "schema_id": "s", "delivery_policy": "at_most_once",
        "partition_behavior": "drop",
    }  # fmt: skip
    for record in ({"value": "plain"}, {"value": "other", "timestamp": 1}):
        request = read_publish(json.dumps({"records": [record], **said}).encode(), NOW, 10)
        assert (request.txn_id, request.expected_version, request.schema_id) == ("t", 3, "s")
        assert request.options == PublishOptions(
            delivery_policy=DeliveryPolicy.AT_MOST_ONCE, partition_behavior=PartitionBehavior.DROP
        )
