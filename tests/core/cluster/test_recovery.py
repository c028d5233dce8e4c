"""R10: what shows that a metadata store went back, and what a recovery writes."""

from typing import Any

import msgspec
import pytest

from sulina.core.cluster import keys
from sulina.core.cluster.entries import EpochEntry, Unassigned
from sulina.core.cluster.recovery import (
    ClaimSeen,
    EpochAhead,
    Identity,
    Memory,
    Recovery,
    Seen,
    TopicAhead,
    evidence,
    merged,
    plan_recovery,
)
from sulina.core.formats import METADATA
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
        (Identity(cluster_id="c"), 99, {"a": 7}, "it is at revision 99, but broker a has seen 100"),
        (Identity(cluster_id="c"), 500, {"a": 6}, "broker a has written mark 7, but the store has 6 of it"),
        (Identity(cluster_id="c"), 500, {}, "the store has no mark of it"),
        (Identity(cluster_id="c", generation=2), 3, {}, None),  # recovered since: nothing can be compared
    ],
)
def test_r10_a_store_that_lost_anything_that_was_seen_went_back(
    identity: Identity | None, revision: int, marks: dict[str, int], expected: str | None
) -> None:
    found = evidence(seen(), identity, revision, marks)
    assert found is None if expected is None else expected in str(found)


def test_r10_a_broker_misses_its_first_mark_too() -> None:
    assert evidence(seen(mark=1), Identity(cluster_id="c"), 500, {}) is not None
    assert evidence(seen(mark=0), Identity(cluster_id="c"), 500, {}) is None


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
    return METADATA.encode(value).decode()


def epoch(number: int, broker: str = "a", *, is_archived: bool = False) -> dict[str, str]:
    entry = EpochEntry(epoch=number, broker_id=broker, store_id=f"disk-{broker}", is_archived=is_archived)
    return {keys.epoch(PARTITION): text(entry)}


def memory(entries: dict[str, str], broker: str = "a", *, revision: int = 100, generation: int = 1) -> Memory:
    return Memory(seen=seen(broker, revision=revision, generation=generation), entries=entries)


def planned(
    stored: dict[str, str], memories: list[Memory], claim: ClaimSeen | None = None, identity: Identity | None = None
) -> Recovery:
    claims = {PARTITION: claim} if claim is not None else {}
    return plan_recovery(identity, {key: value.encode() for key, value in stored.items()}, memories, claims, now_ms=1)


def waiting(recovery: Recovery) -> tuple[EpochEntry, Unassigned]:
    return (
        msgspec.json.decode(recovery.puts[keys.epoch(PARTITION)], type=EpochEntry),
        msgspec.json.decode(recovery.puts[keys.unassigned(PARTITION)], type=Unassigned),
    )


def test_r10_an_empty_store_gets_back_every_topic_and_goes_above_every_epoch() -> None:
    recovery = planned({}, [memory({**topic(), **epoch(5)})], ClaimSeen(6, "b"))
    assert recovery.puts[keys.delivery(ORDERS)] == topic()[keys.delivery(ORDERS)].encode()
    assert recovery.puts[keys.IDENTITY] == METADATA.encode(recovery.identity)
    assert keys.subscription(ORDERS, "s") in recovery.puts
    assert recovery.puts[keys.namespace_topic(ORDERS)] == b"{}"
    raised, entry = waiting(recovery)
    assert (raised.epoch, raised.broker_id) == (6, "b")
    assert (entry.from_broker, entry.is_recovering) == ("b", True)
    assert recovery.topics == (TopicAhead(topic=ORDERS, is_missing=True, keys=3),)
    assert recovery.epochs == (EpochAhead(partition=PARTITION, stored=None, highest=6, waits_for="b"),)


def shown(ms: int) -> dict[str, str]:
    return {keys.SHOWN_TIME: text({"shown_ms": ms})}


@pytest.mark.parametrize(("stored_ms", "expected"), [(None, 5000), (1000, 5000), (6000, None)])
def test_l15_the_store_gets_back_the_latest_time_that_had_been_shown(
    stored_ms: int | None, expected: int | None
) -> None:
    """L15: else the first broker that looks has nothing to compare its clock with, or only a time of long ago."""
    stored = shown(stored_ms) if stored_ms is not None else {}
    memories = [memory(topic() | shown(5000)), memory(topic() | shown(1000), "b", revision=200), memory(topic(), "c")]
    found = planned(stored, memories).puts.get(keys.SHOWN_TIME)
    assert found == (None if expected is None else shown(expected)[keys.SHOWN_TIME].encode())


@pytest.mark.parametrize(
    ("claim", "remembered", "expected"),
    [
        (None, 7, (7, "c")),  # the claim was cleaned up, or is what is damaged
        (ClaimSeen(3, "a"), 7, (7, "c")),
        (ClaimSeen(7, "c"), 3, (7, "c")),
        (ClaimSeen(9, None), 7, (9, "c")),
    ],
)
def test_r10_of_a_damaged_archive_nobody_believes_that_it_has_everything_or_the_newest_claim(
    claim: ClaimSeen | None, remembered: int, expected: tuple[int, str]
) -> None:
    memories = [memory(topic(ack="archived") | epoch(remembered, "c", is_archived=True), "c")]
    claims = {PARTITION: claim} if claim is not None else {}
    raised, unassigned = waiting(plan_recovery(None, {}, memories, claims, damaged=[PARTITION], now_ms=1))
    assert (raised.epoch, raised.broker_id) == expected
    assert not raised.is_archived
    assert unassigned.is_recovering
    assert unassigned.from_broker == "c"


def test_r10_what_the_store_still_has_is_neither_put_back_nor_reported() -> None:
    namespace = {keys.namespace_policy("default"): text({"ack": "archived"})}
    known = {**topic(), **epoch(5, is_archived=True), **namespace}
    recovery = planned(known, [memory(known)], ClaimSeen(5, "a"))
    assert (recovery.topics, recovery.epochs) == ((), ())
    assert set(recovery.puts) == {keys.IDENTITY, keys.epoch(PARTITION), keys.unassigned(PARTITION)}
    behind = planned({**topic(), **epoch(4)}, [memory(known)], ClaimSeen(5, "a"))
    assert behind.puts[keys.namespace_policy("default")] == namespace[keys.namespace_policy("default")].encode()
    assert behind.epochs == (EpochAhead(partition=PARTITION, stored=4, highest=5, waits_for=None),)


def test_r10_every_topic_is_put_back_whether_or_not_it_ever_had_an_owner() -> None:
    def head(name: TopicName) -> dict[str, str]:
        return {keys.delivery(name): text({"delivery": "reliable", "partitions": 1, "topic_id": str(name)})}

    never, late = TopicName("default", "never"), TopicName("default", "zebra")
    remembered = {"/topics/odd": "{}", **head(never), **topic(), **epoch(5), **head(late)}
    recovery = planned({}, [memory(remembered)])
    assert [ahead.topic for ahead in recovery.topics] == [never, ORDERS, late]
    assert {keys.delivery(name) for name in (never, ORDERS, late)} <= set(recovery.puts)
    assert [ahead.partition for ahead in recovery.epochs] == [PARTITION], "also behind one that nobody ever owned"


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
    ("known", "claim", "expected"),
    [
        ({}, ClaimSeen(6, "a"), ("a", "disk-a")),  # only the archive has heard of an owner
        ({}, ClaimSeen(6, "away"), ("away", "")),
        ({}, ClaimSeen(6, None), ("", "")),  # a claim of an older release names nobody
        (epoch(5, "b"), ClaimSeen(6, None), ("b", "disk-b")),
        (epoch(5, "b"), None, ("b", "disk-b")),
    ],
)
def test_r10_the_last_writer_is_as_much_as_anybody_knows_of_it(
    known: dict[str, str], claim: ClaimSeen | None, expected: tuple[str, str]
) -> None:
    raised, entry = waiting(planned({}, [memory({**topic(), **known})], claim))
    assert (raised.broker_id, raised.store_id) == (entry.from_broker, entry.from_store) == expected


def test_r10_a_topic_inherits_its_acks_from_its_namespace() -> None:
    namespace = {keys.namespace_policy("default"): text({"ack": "archived"})}
    for ack, expected in ((None, True), ("local", False)):
        memories = [memory({**topic(ack=ack), **epoch(5, is_archived=True), **namespace})]
        raised, _ = waiting(planned({}, memories, ClaimSeen(5, "a")))
        assert raised.is_archived is expected


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
    assert planned(topic(), [], identity=identity).identity == Identity(cluster_id="c", generation=5)
    other = Identity(cluster_id="made since", generation=4)
    assert planned({}, [memory(topic())], identity=other).identity == Identity(cluster_id="c", generation=5)


def test_r10_of_two_memories_the_newer_counts_and_what_it_saw_deleted_stays_so() -> None:
    gone = {keys.subscription(ORDERS, "gone"): "{}", keys.namespace_topic(ORDERS): "{}"}
    older = memory({**topic(ack="local"), **gone}, revision=50)
    newer = memory(topic(ack="archived"), "b", revision=60)
    together = merged([newer, older])
    assert together == {**topic(ack="archived"), keys.namespace_topic(ORDERS): "{}"}
    deleted = memory({keys.deleted("t1"): text({"topic": str(ORDERS), "at_ms": 1})}, "b", revision=60)
    assert list(merged([older, deleted])) == [keys.deleted("t1")]
    assert merged([older, memory({}, "b", revision=60)]) == older.entries  # never heard of is not deleted


@pytest.mark.parametrize("name", [TopicName("cursor", "orders"), TopicName("default", "cursor")])
def test_r10_a_subscription_that_is_gone_stays_so_also_of_a_topic_called_cursor(name: TopicName) -> None:
    head = text({"delivery": "reliable", "partitions": 1, "topic_id": "t1"})
    cursor = {keys.cursor(name, "s", 0): "{}"}  # each broker has those of its own partitions only
    older = memory({keys.delivery(name): head, keys.subscription(name, "gone"): "{}", **cursor}, revision=50)
    newer = memory({keys.delivery(name): head, keys.subscription(name, "s"): "{}"}, "b", revision=60)
    assert merged([older, newer]) == {**newer.entries, **cursor}


def test_r10_a_topic_that_was_deleted_after_the_store_was_saved_is_deleted_again() -> None:
    mark = {keys.deleted("t1"): text({"topic": str(ORDERS), "at_ms": 1})}
    recovery = planned(topic(), [memory(mark)])
    assert msgspec.json.decode(recovery.puts[keys.delivery(ORDERS)])["is_deleting"] is True
    assert keys.delivery(ORDERS) not in planned(topic("t2"), [memory(mark)]).puts


def test_r10_the_cursor_of_a_former_topic_of_the_same_name_counts_for_nothing() -> None:
    """A topic that is made again begins with the first epoch: an old cursor would skip its records."""
    cursor = keys.cursor(ORDERS, "s", 0)
    former = memory({**topic("t1"), cursor: text({"offset": 1000, "epoch": 7})}, "b", revision=100)
    newer = memory({**topic("t2"), cursor: text({"offset": 20, "epoch": 1})}, "a", revision=200)
    for memories in ([newer, former], [former, newer]):
        assert merged(memories)[cursor] == text({"offset": 20, "epoch": 1})
    without = memory(topic("t2"), "a", revision=200)
    assert cursor not in merged([former, without])


def test_r10_of_two_cursors_the_one_of_the_later_owner_counts_even_if_the_other_saw_more_of_the_store() -> None:
    cursor = keys.cursor(ORDERS, "s", 0)

    def at(offset: int, epoch: int) -> dict[str, str]:
        return {**topic(), cursor: text({"offset": offset, "epoch": epoch})}

    later, former = memory(at(70, 5), "a", revision=100), memory(at(40, 4), "b", revision=200)
    for memories in ([later, former], [former, later]):
        assert merged(memories)[cursor] == text({"offset": 70, "epoch": 5})
    sought = memory(at(10, 5), "a", revision=300)  # by the same owner: the newest, also where it was moved back
    assert merged([later, sought])[cursor] == text({"offset": 10, "epoch": 5})
    assert merged([later, memory(topic(), "b", revision=200)])[cursor] == text({"offset": 70, "epoch": 5})
