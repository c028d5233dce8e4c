"""The keys of the metadata store: a release finds what the one before it stored, so none of them may change."""

import pytest

from sulina.core.cluster import keys
from sulina.types import PartitionName, TopicName

ORDERS = TopicName("shop", "orders")
THIRD = PartitionName(ORDERS, 3)


def test_keys_are_those_that_older_releases_have_stored() -> None:
    stored = {
        keys.namespace_policy("shop"): "/namespaces/shop/policy",
        keys.namespace_topics("shop"): "/namespaces/shop/topics/",
        keys.namespace_topic(ORDERS): "/namespaces/shop/topics/shop/orders",
        keys.policy(ORDERS): "/topics/shop/orders/policy",
        keys.schema(ORDERS): "/topics/shop/orders/schema",
        keys.schema_fixed(ORDERS): "/topics/shop/orders/schema_fixed",
        keys.delivery(ORDERS): "/topics/shop/orders/delivery",
        keys.producer(ORDERS, "till", "b1"): "/topics/shop/orders/producers/till/b1",
        keys.subscription(ORDERS, "bill"): "/topics/shop/orders/subscriptions/bill",
        keys.cursor(ORDERS, "bill", 3): "/topics/shop/orders/subscriptions/bill/cursor/3",
        keys.holder(ORDERS, "bill"): "/topics/shop/orders/subscriptions/bill/holder",
        keys.register("b1"): "/cluster/register/b1",
        keys.load("b1"): "/cluster/load/b1",
        keys.broker_state("b1"): "/cluster/brokers/b1/state",
        keys.assignment("b1", THIRD): "/cluster/brokers/b1/shop/orders/3",
        keys.unassigned(THIRD): "/cluster/unassigned/shop/orders/3",
        keys.epoch(THIRD): "/cluster/epochs/shop/orders/3",
        keys.unload(THIRD): "/cluster/unloads/shop/orders/3",
        keys.mark("b1"): "/cluster/marks/b1",
        keys.deleted("t1"): "/cluster/deleted/t1",
        keys.reader_prefix("nightly", ORDERS): "/readers/nightly/shop/orders/",
        keys.reader_position("nightly", THIRD): "/readers/nightly/shop/orders/3",
        keys.storage_prefix(ORDERS): "/storage/topics/shop/orders/",
        keys.archive_prefix(THIRD): "/storage/topics/shop/orders/3/",
        keys.archive_object(THIRD, 42): "/storage/topics/shop/orders/3/objects/00000000000000000042",
        keys.archive_current(THIRD): "/storage/topics/shop/orders/3/cur",
        keys.sealed_state(THIRD): "/storage/topics/shop/orders/3/state",
        keys.given_up(THIRD, 7): "/storage/topics/shop/orders/3/given_up/00000000000000000007",
    }
    assert list(stored) == list(stored.values())


def test_only_a_cursor_is_one_whatever_topics_and_subscriptions_are_called() -> None:
    assert keys.is_cursor(keys.cursor(ORDERS, "cursor", 3))
    named = TopicName("cursor", "cursor")
    others = (keys.policy(named), keys.subscription(named, "cursor"), keys.holder(named, "cursor"))
    assert not any(map(keys.is_cursor, others))


def test_a_key_of_a_partition_ends_with_its_name() -> None:
    for key in (keys.assignment("b1", THIRD), keys.unassigned(THIRD), keys.epoch(THIRD)):
        assert keys.partition_of(key) == THIRD


@pytest.mark.parametrize("key", ["/cluster/epochs/shop/orders/x", "orders/3"])
def test_a_key_that_ends_with_no_partition_is_refused(key: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        keys.partition_of(key)


def test_a_key_of_a_position_names_reader_and_partition() -> None:
    assert keys.reader_of(keys.reader_position("nightly", THIRD)) == ("nightly", THIRD)
