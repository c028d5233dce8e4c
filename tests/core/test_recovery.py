"""R10: what shows that a metadata store went back, and what a recovery writes."""

from typing import Any

import msgspec
import pytest

from sulina.core import keys
from sulina.core.cluster import Epoch, Unassigned
from sulina.core.recovery import ClaimSeen, Identity, Memory, Recovery, Seen, evidence, merged, plan_recovery
from sulina.types import PartitionName, TopicName

ORDERS = TopicName("default", "orders")
PARTITION = PartitionName(ORDERS, 0)


def seen(broker: str = "a", *, generation: int = 1, revision: int = 100, mark: int = 7) -> Seen:
    return Seen(
        cluster_id="c",
        generation=generation,
        revision=revision,
        mark=mark,
        broker_id=broker,
        store_id=f"disk-{broker}",
    )


@pytest.mark.parametrize(
    ("identity", "revision", "marks", "expected"),
    [
        (None, 500, {"a": 7}, "it is empty"),
        (Identity(cluster_id="c"), 100, {"a": 7}, None),
        (Identity(cluster_id="c"), 500, {"a": 9}, None),
        (Identity(cluster_id="c"), 99, {"a": 7}, "it is at revision 99, broker a has seen 100"),
        (Identity(cluster_id="c"), 500, {"a": 6}, "broker a had written its mark 7, it has 6"),
        (Identity(cluster_id="c"), 500, {}, "it has none"),
        (Identity(cluster_id="c", generation=2), 3, {}, None),  # recovered since: nothing can be compared
    ],
)
def test_r10_a_store_that_lost_anything_that_was_seen_went_back(
    identity: Identity | None, revision: int, marks: dict[str, int], expected: str | None
) -> None:
    found = evidence(seen(), identity, revision, marks)
    assert found is None if expected is None else expected in str(found)


def test_r10_a_store_of_before_a_recovery_went_back() -> None:
    assert evidence(seen(generation=3), Identity(cluster_id="c", generation=2), 500, {"a": 9}) is not None


def topic(topic_id: str = "t1", *, ack: str | None = None, is_deleting: bool = False) -> dict[str, str]:
    head = {"delivery": "reliable", "partitions": 1, "created_ms": 0, "topic_id": topic_id, "is_deleting": is_deleting}
    return {
        keys.delivery(ORDERS): text(head),
        keys.policy(ORDERS): text({"ack": ack} if ack else {}),
        keys.subscription(ORDERS, "s"): text({}),
    }


def text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def epoch(number: int, broker: str = "a", *, is_archived: bool = False) -> dict[str, str]:
    entry = Epoch(epoch=number, broker_id=broker, store_id=f"disk-{broker}", is_archived=is_archived)
    return {keys.epoch(PARTITION): text(entry)}


def memory(entries: dict[str, str], broker: str = "a", *, revision: int = 100, generation: int = 1) -> Memory:
    return Memory(seen=seen(broker, revision=revision, generation=generation), entries=entries)


def planned(
    stored: dict[str, str], memories: list[Memory], claim: ClaimSeen | None = None, identity: Identity | None = None
) -> Recovery:
    claims = {PARTITION: claim} if claim is not None else {}
    return plan_recovery(identity, {key: value.encode() for key, value in stored.items()}, memories, claims, now_ms=1)


def waiting(recovery: Recovery) -> tuple[Epoch, Unassigned]:
    return (
        msgspec.json.decode(recovery.puts[keys.epoch(PARTITION)], type=Epoch),
        msgspec.json.decode(recovery.puts[keys.unassigned(PARTITION)], type=Unassigned),
    )


def test_r10_an_empty_store_gets_back_every_topic_and_goes_above_every_epoch() -> None:
    recovery = planned({}, [memory({**topic(), **epoch(5)})], ClaimSeen(6, "b"))
    assert recovery.puts[keys.delivery(ORDERS)] == topic()[keys.delivery(ORDERS)].encode()
    assert keys.subscription(ORDERS, "s") in recovery.puts
    assert keys.namespace_topic(ORDERS) in recovery.puts
    raised, entry = waiting(recovery)
    assert (raised.epoch, raised.broker_id) == (6, "b")
    assert (entry.from_broker, entry.is_recovering) == ("b", True)
    assert [(ahead.topic, ahead.is_missing) for ahead in recovery.topics] == [(ORDERS, True)]
    assert [(ahead.stored, ahead.highest) for ahead in recovery.epochs] == [(None, 6)]


def test_r10_the_epoch_is_above_the_store_the_memories_and_the_archive() -> None:
    for stored, kept, claim in ((9, 5, 6), (5, 9, 6), (5, 6, 9)):
        memories = [memory({**topic(), **epoch(kept)})]
        raised, _ = waiting(planned({**topic(), **epoch(stored)}, memories, ClaimSeen(claim, "a")))
        assert raised.epoch == 9


def test_r10_who_wrote_last_goes_on_with_its_disk() -> None:
    """The archive's claim tells, not what etcd says: that may be of before a move."""
    memories = [memory({**topic(), **epoch(5, "a")}), memory({}, "b")]
    raised, entry = waiting(planned({**topic(), **epoch(5, "a")}, memories, ClaimSeen(6, "b")))
    assert (raised.broker_id, raised.store_id, raised.is_archived) == ("b", "disk-b", False)
    assert (entry.from_broker, entry.from_store, entry.is_recovering) == ("b", "disk-b", True)


@pytest.mark.parametrize(
    ("ack", "is_archived", "claimed", "expected"),
    [
        ("archived", True, 5, True),
        ("archived", False, 5, False),
        ("local", True, 5, False),
        ("archived", True, 6, False),
    ],
)
def test_r10_anybody_goes_on_only_where_the_archive_has_all_that_was_acknowledged(
    ack: str, is_archived: bool, claimed: int, expected: bool
) -> None:
    memories = [memory({**topic(ack=ack), **epoch(5, is_archived=is_archived)})]
    raised, entry = waiting(planned({}, memories, ClaimSeen(claimed, "a")))
    assert (raised.is_archived, entry.is_recovering) == (expected, not expected)


def test_r10_a_partition_that_nobody_wrote_to_goes_to_anybody() -> None:
    _, entry = waiting(planned({}, [memory({**topic(), **epoch(5)})]))
    assert not entry.is_recovering


def test_r10_owners_of_an_older_store_are_not_believed() -> None:
    stored = {
        **topic(),
        **epoch(5),
        keys.assignment("a", PARTITION): text({"epoch": 5, "since_ms": 0}),
        keys.register("a"): "{}",
        keys.LEADER: "{}",
        keys.unload(PARTITION): "{}",
        keys.broker_state("a"): text({"state": "draining"}),
    }
    recovery = planned(stored, [memory({**topic(), **epoch(5)})], ClaimSeen(5, "a"))
    assert recovery.deletes == {
        keys.assignment("a", PARTITION),
        keys.register("a"),
        keys.LEADER,
        keys.unload(PARTITION),
    }


def test_r10_a_recovery_has_a_higher_generation_than_any_before() -> None:
    identity = Identity(cluster_id="c", generation=4)
    assert planned({}, [memory(topic())], identity=identity).identity == Identity(cluster_id="c", generation=5)
    assert planned({}, [memory(topic(), generation=7)], identity=identity).identity.generation == 8
    assert planned({}, [memory(topic())]).identity == Identity(cluster_id="c", generation=2)


def test_r10_of_two_memories_the_newer_counts_and_what_it_saw_deleted_stays_so() -> None:
    older = memory({**topic(ack="local"), keys.subscription(ORDERS, "gone"): "{}"}, revision=50)
    newer = memory(topic(ack="archived"), "b", revision=60)
    together = merged([newer, older])
    assert together == topic(ack="archived")
    deleted = memory({keys.deleted("t1"): text({"topic": str(ORDERS), "at_ms": 1})}, "b", revision=60)
    assert list(merged([older, deleted])) == [keys.deleted("t1")]
    assert merged([older, memory({}, "b", revision=60)]) == older.entries  # never heard of is not deleted


def test_r10_a_topic_that_was_deleted_after_the_store_was_saved_is_deleted_again() -> None:
    mark = {keys.deleted("t1"): text({"topic": str(ORDERS), "at_ms": 1})}
    recovery = planned(topic(), [memory(mark)])
    assert msgspec.json.decode(recovery.puts[keys.delivery(ORDERS)])["is_deleting"] is True
    assert keys.delivery(ORDERS) not in planned(topic("t2"), [memory(mark)]).puts
