"""Where dead letters go, what they carry, and which ways are refused."""

import pytest

from sulina.core.delivery.dead_letter import (
    HOPS_MAX,
    check_way,
    dead_letter,
    dead_letter_topic,
    hops_of,
    is_end,
    txn_id_of,
)
from sulina.core.records.record import StoredRecord
from sulina.core.topic import Policy
from sulina.errors import InvalidSettings
from sulina.types import PartitionName, TopicName

A, B, C = (TopicName("default", name) for name in "abc")


def test_dead_letters_go_where_the_policy_says_or_beside_the_topic_p12() -> None:
    assert dead_letter_topic(A, Policy(dead_letter="/default/b")) == B
    assert dead_letter_topic(A, Policy()) == TopicName("default", "a.dead-letter")


def test_a_topic_of_the_suffix_and_one_that_names_itself_are_ends_p12() -> None:
    assert not is_end(A, Policy())
    assert not is_end(A, Policy(dead_letter="/default/b"))
    assert is_end(A, Policy(dead_letter="/default/a"))
    assert is_end(TopicName("default", "a.dead-letter"), Policy(dead_letter="/default/b"))


def test_a_way_that_comes_back_is_refused_and_so_is_one_that_is_too_long_p12() -> None:
    check_way([A])
    check_way([A, B, C])
    for circle in ([A, A], [A, B, A], [A, B, C, B]):
        with pytest.raises(InvalidSettings, match=f"circle, {' → '.join(map(str, circle))}:"):
            check_way(circle)
    way = [TopicName("default", f"t{number}") for number in range(HOPS_MAX + 2)]
    check_way(way[:-1])
    with pytest.raises(
        InvalidSettings, match=f"dead letters of /default/t0 would pass through more than {HOPS_MAX} topics"
    ):
        check_way(way)


def test_a_dead_letter_carries_its_last_coordinates_and_counts_its_hops_p12() -> None:
    record = StoredRecord(value=b"v", key=b"k", timestamp_ms=7, headers=(("mine", b"1"), ("none", None)), offset=3)
    first = dead_letter(record, PartitionName(A, 1), "s", 5)
    assert (first.value, first.key, first.timestamp_ms, hops_of(first)) == (b"v", b"k", 7, 1)
    assert dict(first.headers)["sulina-topic"] == b"/default/a"
    again = first
    for number in range(2, 20):
        again = dead_letter(again, PartitionName(B, 0), "t", 2)
        assert hops_of(again) == number
    assert again.headers == (
        ("mine", b"1"), ("none", None), ("sulina-topic", b"/default/b"), ("sulina-partition", b"0"),
        ("sulina-offset", str(first.offset).encode()), ("sulina-subscription", b"t"), ("sulina-deliveries", b"2"),
        ("sulina-hops", b"19"),
    )  # fmt: skip


@pytest.mark.parametrize("text", [None, b"", b"-1", b"x", b"9" * 10, b"1.5"])
def test_a_header_that_is_not_a_count_of_hops_counts_nothing_p12(text: bytes | None) -> None:
    assert hops_of(StoredRecord(value=b"", headers=(("sulina-hops", text),))) == 0


def test_the_largest_count_of_hops_is_read_p12() -> None:
    assert hops_of(StoredRecord(value=b"", headers=(("sulina-hops", b"9" * 9),))) == 999_999_999


def test_a_record_has_the_txn_id_that_earlier_releases_gave_it_p12() -> None:
    """Also one that failed before an upgrade and is tried again after it is written once."""
    assert txn_id_of("t1", 3, "s", 42) == "dead-letter-45c0aa6e8d7ac75af91162c0e898d4adc3713486"
