"""Names are checked once, and then are safe in a path."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sulina.errors import InvalidName
from sulina.types import PARTITIONS_MAX, PartitionName, TopicName

BAD = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "a\0b",
    "a b",
    "é",
    "a\n",
    "-\u0660",
    "a" * 201,
    "a" * 4096,
    "\ud800",
    "a=b",
    "%2e%2e",
]


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_bad_names_are_refused_with_a_short_message(name: str) -> None:
    for namespace, topic in (("ok", name), (name, "ok")):
        with pytest.raises(InvalidName) as refusal:
            TopicName(namespace, topic)
        assert len(str(refusal.value)) < 250
    with pytest.raises(InvalidName):
        TopicName.parse(f"/ok/{name}")


@pytest.mark.parametrize("text", ["orders", "/orders", "//orders", "/a/b/c", "a/b", "/a/", ""])
def test_a_topic_is_written_with_its_namespace(text: str) -> None:
    with pytest.raises(InvalidName):
        TopicName.parse(text)


def test_p1_a_short_name_has_no_dot_since_readers_would_take_it_for_one_of_two_topics() -> None:
    assert TopicName.of("orders") == TopicName("default", "orders")
    assert TopicName.of("/default/shop.orders") == TopicName("default", "shop.orders")
    with pytest.raises(InvalidName, match=r"write /default/shop\.orders or /shop/orders"):
        TopicName.of("shop.orders")
    for text in (".", "..", ".orders", "a" * 300 + ".b"):
        with pytest.raises(InvalidName):
            TopicName.of(text)


@pytest.mark.parametrize("partition", [-1, PARTITIONS_MAX])
def test_partitions_are_bounded(partition: int) -> None:
    with pytest.raises(InvalidName):
        PartitionName(TopicName("a", "b"), partition)


def test_a_namespace_has_no_dot_so_that_two_topics_never_share_a_directory() -> None:
    with pytest.raises(InvalidName):
        TopicName("a.b", "c")
    assert PartitionName(TopicName("a", "b.c"), 3).directory == "topic=a.b.c-part=3"


NAMESPACES = st.from_regex(r"[a-zA-Z0-9_-]{1,200}", fullmatch=True)
TOPICS = st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,199}", fullmatch=True)


@given(NAMESPACES, TOPICS, st.integers(0, PARTITIONS_MAX - 1))
def test_a_directory_names_one_partition_and_stays_where_it_is(namespace: str, topic: str, partition: int) -> None:
    name = PartitionName(TopicName(namespace, topic), partition)
    assert PartitionName.from_directory(name.directory) == name
    assert TopicName.parse(str(name.topic)) == name.topic
    assert os.path.normpath(f"/data/{name.directory}") == f"/data/{name.directory}"


@given(st.text(max_size=60))
def test_no_text_becomes_a_path_that_leads_elsewhere(text: str) -> None:
    try:
        name = PartitionName(TopicName("ns", text), 0)
    except InvalidName:
        return
    assert "/" not in name.directory
    assert "\0" not in name.directory


@pytest.mark.parametrize("name", ["topic=a-part=0", "topic=a.b-part=00", "topic=a.b-part=x", "_delta_log", "topic=a.b"])
def test_other_directories_are_no_partitions(name: str) -> None:
    with pytest.raises(InvalidName):
        PartitionName.from_directory(name)
