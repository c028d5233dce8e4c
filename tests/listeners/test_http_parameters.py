"""Paths and queries: nothing that a client sends becomes a name or a number unchecked."""

import pytest

from sulina.errors import InvalidName
from sulina.listeners.http_parameters import Targets, check_path, flag, number, read_partition, read_query, text_up_to
from sulina.listeners.http_problem import HttpError
from sulina.types import TopicName


def test_the_path_of_records_names_topic_and_partition() -> None:
    targets = Targets()
    found = targets[b"/v1/topics/default/orders/records"]
    assert found is not None
    assert (found.topic, found.partition) == (TopicName("default", "orders"), None)
    assert targets[b"/v1/topics/default/orders/records"] is found
    there = targets[b"/v1/topics/default/orders/partitions/7/records"]
    assert there is not None
    assert (there.partition, there.parameters) == (7, {"namespace": "default", "topic": "orders", "partition": "7"})


def test_percent_encoding_of_plain_letters_is_the_same_name() -> None:
    found = Targets()[b"/v1/topics/def%61ult/%6Frders/records"]
    assert found is not None
    assert found.topic == TopicName("default", "orders")


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/topics/default/orders",
        b"/v1/topics/default/orders/records/",
        b"/v1/topics/default/records",
        b"/v1/topics//orders/records",
        b"/v1/topics/a/b/c/records",
        b"/v2/topics/default/orders/records",
    ],
)
def test_other_paths_are_none_of_records(path: bytes) -> None:
    assert Targets()[path] is None


@pytest.mark.parametrize(
    "name", [b"..", b"%2e%2e", b"%2E.", b"a%2Fb", b"..%2f..%2fetc", b".hidden", b"a%00", b"a%0a", b"%ff", b"a" * 201]
)
def test_no_path_makes_a_name_outside_the_rules(name: bytes) -> None:
    targets = Targets()
    for path in (b"/v1/topics/" + name + b"/t/records", b"/v1/topics/n/" + name + b"/records"):
        with pytest.raises(InvalidName):
            targets[path]


@pytest.mark.parametrize("text", ["-1", "x", "1.0", "00", "100000", "१", "9" * 5000, "", " 1"])
def test_a_partition_is_a_plain_number(text: str) -> None:
    with pytest.raises(HttpError):
        read_partition(text)


@pytest.mark.parametrize("path", [b"/v1/topics/a%2fb", b"/v1/x%2F..%2F", b"/v1/a%5cb", b"/v1/a\\b", b"/v1/a%00"])
def test_a_segment_with_a_slash_in_it_is_refused(path: bytes) -> None:
    with pytest.raises(InvalidName):
        check_path(path)
    check_path(b"/v1/topics/a/b")


READERS = {"offset": number(0, 100), "force": flag, "after": text_up_to(5)}


def test_a_query_is_read_by_its_readers() -> None:
    assert read_query(b"", READERS) == {}
    assert read_query(b"offset=7&force=true&after=%2Fa", READERS) == {"offset": 7, "force": True, "after": "/a"}


@pytest.mark.parametrize(
    "query",
    [
        b"ofset=1", b"offset=1&offset=2", b"offset=", b"offset=-1", b"offset=101", b"offset=1.5", b"offset=1e3",
        b"offset=%31%00", b"force=1", b"force=TRUE", b"after=123456", b"after=%ff", b"\xff=1", b"offset=" + b"9" * 9999,
        b"&".join(b"a%d=1" % n for n in range(100)),
    ],
)  # fmt: skip
def test_what_a_query_gets_wrong_is_a_400(query: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        read_query(query, READERS)
    assert caught.value.code == "invalid_parameter"
