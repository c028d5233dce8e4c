"""Detecting that a metadata store went back to an older state, and planning the recovery of the cluster.

A cluster has an identity: an id, and a generation that every recovery raises. Each broker keeps on its disk, and in the
archive, the revision of the store that it has seen, the number of its last mark (a counter that it alone writes), and a
copy of the entries that must outlive the store: topics, subscriptions, cursors, epochs. A store that is older than any
of this has lost something. Recovery puts missing entries back and raises every epoch above all that memories and
archives know, so that no epoch, owner or offset is used twice.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from sulina.core.cluster import keys
from sulina.core.cluster.entries import EpochEntry, Reason, RememberedTime, Unassigned
from sulina.core.formats import METADATA
from sulina.errors import InvalidName
from sulina.types import PartitionName, TopicName


class Identity(Struct, frozen=True, kw_only=True):
    """The cluster that a metadata store belongs to; every recovery raises the generation."""

    cluster_id: str
    generation: int = 1


class Mark(Struct, frozen=True, kw_only=True):
    """A counter that only one broker writes. If the store does not have its newest value, it has lost something."""

    number: int


class Seen(Struct, frozen=True, kw_only=True):
    """The newest state of the metadata store that a broker has seen."""

    cluster_id: str
    generation: int
    revision: int
    mark: int  # its newest mark that the store has accepted
    broker_id: str
    store_id: str


class Memory(Struct, frozen=True, kw_only=True):
    """A broker's copy of the entries that must outlive the metadata store, by key."""

    seen: Seen
    entries: dict[str, str]


def evidence(seen: Seen, identity: Identity | None, revision: int, marks: Mapping[str, int]) -> str | None:
    """Return the evidence that the store went back since a broker saw it; None: there is no evidence.

    `revision` and `marks` are what the store has now.
    """
    who = f"broker {seen.broker_id}"
    if identity is None:
        return f"it is empty, but {who} has seen cluster {seen.cluster_id} in it"
    if identity.generation != seen.generation:
        is_older = identity.generation < seen.generation
        return f"its generation is {identity.generation}, but {who} has seen {seen.generation}" if is_older else None
    if revision < seen.revision:
        return f"it is at revision {revision}, but {who} has seen {seen.revision}"
    if marks.get(seen.broker_id, 0) < seen.mark:
        return f"{who} has written mark {seen.mark}, but the store has {marks.get(seen.broker_id, 'no mark')} of it"
    return None


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """The newest claim in the archive of a partition, by its last writer."""

    epoch: int
    broker_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAhead:
    """A topic of which brokers remember more than the store has."""

    topic: TopicName
    is_missing: bool  # the store does not have it at all
    keys: int  # number of values that are put back


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochAhead:
    """A partition whose epoch in the store is below one that was used."""

    partition: PartitionName
    stored: int | None
    highest: int
    waits_for: str | None  # the broker whose disk may have records that are nowhere else


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The plan of a recovery: what to write, and what to show."""

    identity: Identity
    puts: dict[str, bytes]
    deletes: frozenset[str]
    topics: tuple[TopicAhead, ...]
    epochs: tuple[EpochAhead, ...]
    unreadable: tuple[tuple[PartitionName, str], ...] = ()  # archives and the errors; their partitions stay closed


def topics_of(entries: Iterable[str]) -> dict[TopicName, list[str]]:
    """Return the topics whose keys are among these, each with its keys."""
    found: dict[TopicName, list[str]] = {}
    for key in entries:
        parts = key.split("/")
        try:
            if parts[1] == "topics":
                found.setdefault(TopicName(parts[2], parts[3]), []).append(key)
        except (IndexError, InvalidName):
            continue
    return found


def merged(memories: Sequence[Memory]) -> dict[str, str]:
    """Merge memories: of two values of a key the one that was seen later, of two cursors the one of the later owner.

    A former owner may still remember its own cursor. A topic that a newer memory has seen deleted is left out.
    """
    ordered = sorted(memories, key=lambda memory: (memory.seen.generation, memory.seen.revision))
    together: dict[str, str] = {}
    for memory in ordered:
        for name in topics_of(memory.entries):
            # Subscriptions that were deleted since must not come back from an older memory, nor cursors of a former
            # topic of that name: the epochs of the two cannot be compared.
            prefix, is_same = keys.topic_prefix(name), is_same_topic(name, together, memory.entries)
            for key in [key for key in together if key.startswith(prefix) and not (is_same and keys.is_cursor(key))]:
                together.pop(key)
        for key, text in memory.entries.items():
            if not keys.is_cursor(key) or _cursor_epoch(together.get(key)) <= _cursor_epoch(text):
                together[key] = text
    for name, its_keys in topics_of(list(together)).items():
        head = together.get(keys.delivery(name))
        if head is None or keys.deleted(_head(head).topic_id) in together:
            for key in its_keys:
                together.pop(key)
            together.pop(keys.namespace_topic(name), None)
    return together


def is_same_topic(name: TopicName, one: Mapping[str, str | bytes], other: Mapping[str, str | bytes]) -> bool:
    """Return whether two sets of entries have the same topic of a name, not one that was created later."""
    head, other_head = one.get(keys.delivery(name)), other.get(keys.delivery(name))
    return head is not None and other_head is not None and _topic_id(head) == _topic_id(other_head)


def _topic_id(head: str | bytes) -> str | None:
    """Return the id of a topic; None if its entry is damaged."""
    try:
        return _head(head).topic_id
    except msgspec.DecodeError:
        return None


class _CursorEpoch(Struct):
    """The part of a cursor that recovery needs."""

    epoch: int = -1


def _cursor_epoch(text: str | None) -> int:
    try:
        return -1 if text is None else METADATA.decode(text, _CursorEpoch, "a remembered cursor").epoch
    except msgspec.DecodeError:
        return -1


class _Head(Struct):
    """The part of a topic's entry that recovery needs."""

    partitions: int
    topic_id: str
    delivery: str
    is_deleting: bool = False


def _head(text: str | bytes) -> _Head:
    return METADATA.decode(text, _Head, "the entry of a topic")


def partitions_of(entries: Mapping[str, str | bytes]) -> dict[PartitionName, str]:
    """Return every partition of the topics in these entries, with the id of its topic."""
    found: dict[PartitionName, str] = {}
    for name in topics_of(entries):
        if (text := entries.get(keys.delivery(name))) is not None:
            head = _head(text)
            found |= {PartitionName(name, number): head.topic_id for number in range(head.partitions)}
    return found


def plan_recovery(
    identity: Identity | None,
    stored: Mapping[str, bytes],
    memories: Sequence[Memory],
    claims: Mapping[PartitionName, ClaimSeen],
    *,
    damaged: Container[PartitionName] = (),
    now_ms: int,
) -> Recovery:
    """Decide what to put back, and which epochs to raise.

    `claims` has the newest claim of every known partition; for `damaged` archives the newest may be missing. Every
    partition that was ever written to goes to the broker that claimed it last, whose disk may have more than the
    archive. A broker that has unloaded the partition knows that, and goes on from the archive.
    """
    remembered = {key: text.encode() for key, text in merged(memories).items()}
    everything = {**stored, **remembered}
    topics, puts = _put_back(stored, remembered)
    stores = {memory.seen.broker_id: memory.seen.store_id for memory in memories}
    epochs = []
    for partition, topic_id in sorted(partitions_of(everything).items()):
        before, kept = _epoch(stored.get(keys.epoch(partition))), _epoch(remembered.get(keys.epoch(partition)))
        is_damaged = partition in damaged
        raised = _raised(everything, partition, before, kept, claims.get(partition), stores, is_damaged=is_damaged)
        if raised is None:
            continue  # the partition never had an owner
        raised = msgspec.structs.replace(raised, topic_id=topic_id)
        entry = Unassigned(
            reason=Reason.DEAD,
            since_ms=now_ms,
            from_broker=raised.broker_id,
            from_store=raised.store_id,
            is_recovering=not raised.is_archived,
        )
        puts[keys.epoch(partition)] = METADATA.encode(raised)
        puts[keys.unassigned(partition)] = METADATA.encode(entry)
        waits_for = raised.broker_id if entry.is_recovering else None
        if before is None or before.epoch < raised.epoch:
            at = before.epoch if before is not None else None
            epochs.append(EpochAhead(partition=partition, stored=at, highest=raised.epoch, waits_for=waits_for))
    puts |= _shown_time(stored, memories)
    newest = _next_identity(identity, memories)
    puts[keys.IDENTITY] = METADATA.encode(newest)
    # Owners are assigned again: no broker may go on by assignments of an older store.
    gone = {
        key
        for key in stored
        if key.startswith((keys.UNLOADS, keys.REGISTER)) or key == keys.LEADER or _is_assignment(key)
    }
    return Recovery(
        identity=newest,
        puts={key: value for key, value in puts.items() if key not in gone},
        deletes=frozenset(gone),
        topics=tuple(topics),
        epochs=tuple(epochs),
    )


def _shown_time(stored: Mapping[str, bytes], memories: Sequence[Memory]) -> dict[str, bytes]:
    """Return the entry for the latest shown time that any broker remembers, if the store has an earlier one."""
    remembered = [memory.entries.get(keys.SHOWN_TIME) for memory in memories]
    latest = max((_shown_ms(text) for text in remembered), default=0)
    if latest <= _shown_ms(stored.get(keys.SHOWN_TIME)):
        return {}
    return {keys.SHOWN_TIME: METADATA.encode(RememberedTime(shown_ms=latest))}


def _shown_ms(data: str | bytes | None) -> int:
    try:
        return 0 if data is None else METADATA.decode(data, RememberedTime, keys.SHOWN_TIME).shown_ms
    except msgspec.DecodeError:
        return 0


def _next_identity(identity: Identity | None, memories: Sequence[Memory]) -> Identity:
    """Return the identity after a recovery, with a generation above all that were seen."""
    known = [Identity(cluster_id=one.seen.cluster_id, generation=one.seen.generation) for one in memories]
    newest = max([*known, *([identity] if identity is not None else [])], key=lambda one: one.generation)
    return Identity(cluster_id=known[0].cluster_id if known else newest.cluster_id, generation=newest.generation + 1)


def _put_back(
    stored: Mapping[str, bytes], remembered: Mapping[str, bytes]
) -> tuple[list[TopicAhead], dict[str, bytes]]:
    """Return the topics of which the store has too little, and the values to put back."""
    puts: dict[str, bytes] = {}
    topics = []
    for name, its_keys in sorted(topics_of(remembered).items()):
        differing = [key for key in its_keys if stored.get(key) != remembered[key]]
        puts |= {key: remembered[key] for key in differing}
        is_missing = keys.delivery(name) not in stored
        if is_missing:
            puts[keys.namespace_topic(name)] = b"{}"
        if differing:
            topics.append(TopicAhead(topic=name, is_missing=is_missing, keys=len(differing)))
    for key, value in remembered.items():
        if key.startswith((keys.NAMESPACES, keys.DELETED)) and stored.get(key) != value:
            puts[key] = value
    for name in topics_of(stored):
        head = stored.get(keys.delivery(name))
        if head is not None and keys.deleted(_head(head).topic_id) in remembered:
            # The store has a topic that was deleted since: brokers delete it once more.
            puts[keys.delivery(name)] = METADATA.encode(
                {**METADATA.decode(head, dict[str, Any], keys.delivery(name)), "is_deleting": True}
            )
    return topics, puts


def _raised(
    entries: Mapping[str, bytes],
    partition: PartitionName,
    before: EpochEntry | None,
    kept: EpochEntry | None,
    claim: ClaimSeen | None,
    stores: Mapping[str, str],
    *,
    is_damaged: bool,
) -> EpochEntry | None:
    """Return the highest epoch that was ever used, with the last writer as its owner; None: no epoch was used.

    A damaged archive may be incomplete, and may lack the newest claim.
    """
    known = [one.epoch for one in (before, kept, claim) if one is not None]
    if not known:
        return None
    last = max((one for one in (before, kept) if one is not None), key=lambda one: one.epoch, default=None)
    writer = claim.broker_id if claim is not None else None
    if is_damaged and claim is not None and last is not None and last.epoch >= claim.epoch:
        writer = None
    store_id = stores.get(writer) if writer is not None else None
    return EpochEntry(
        epoch=max(known),
        broker_id=writer or (last.broker_id if last else ""),
        store_id=store_id or (last.store_id if last else ""),
        is_archived=not is_damaged and (claim is None or _is_archived(entries, partition, last, claim)),
    )


def _epoch(data: bytes | None) -> EpochEntry | None:
    try:
        return None if data is None else METADATA.decode(data, EpochEntry, "a remembered epoch")
    except msgspec.DecodeError:
        return None


def _is_archived(
    entries: Mapping[str, bytes], partition: PartitionName, last: EpochEntry | None, claim: ClaimSeen
) -> bool:
    """Return whether everything acknowledged is archived: acks wait for it, and the newest owner has confirmed it."""
    name = partition.topic
    policies = (entries.get(keys.policy(name)), entries.get(keys.namespace_policy(name.namespace)))
    acks = [msgspec.json.decode(policy).get("ack") for policy in policies if policy is not None]
    is_ack_archived = next((ack for ack in acks if ack is not None), None) == "archived"
    return is_ack_archived and last is not None and last.is_archived and last.epoch >= claim.epoch


def _is_assignment(key: str) -> bool:
    return key.startswith(keys.BROKERS) and len(key.split("/")) == 7
