"""Namespaces, topics and subscriptions as the metadata store has them. Every change is one transaction.

A topic exists while its `delivery` key does. Deleting marks it first, so that a crash in between is taken up again, and
a name is free only when nothing of the old topic is left. What is read is kept with its revision, and every change
compares the revisions that it builds on: who was not up to date has changed nothing, and reads again.

Cursors are not kept here: they belong to the owner of their partition.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from sulina.broker.stored_topic import StoredTopic
from sulina.core.cluster import keys
from sulina.core.cluster.entries import DeleteMark, Reason, Unassigned
from sulina.core.delivery.cursor import Cursor
from sulina.core.delivery.holder import Holder
from sulina.core.delivery.members import SubscriptionKind
from sulina.core.formats import METADATA
from sulina.core.topic import Policy, Schema
from sulina.errors import CorruptCommit
from sulina.ports import NO_REVISION, TXN_OPERATIONS_MAX, Change, Compare, Entry, MetadataStore, Put
from sulina.types import PartitionName, TopicName
from sulina.wire.messages import SubscriptionSettings

Read = TypeVar("Read")
DELETE_MARKS_MAX = 10_000
DELETE_MARK_MS = 30 * 24 * 3600 * 1000  # a broker that is away for longer keeps what it has, set aside
ASSIGNED_TOGETHER_MAX = 100  # partitions of a new topic; the leader finds the others


class Outdated(Exception):
    """Somebody else has changed it: nothing was done. Read it again. It never leaves the broker."""


class StoredSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a subscription under the names that the metadata store has for them."""

    kind: SubscriptionKind = SubscriptionKind.EXCLUSIVE  # `mode` everywhere else
    start: str = "latest"


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    """The settings of a subscription, and the revision at which it was created; one created again has another."""

    settings: SubscriptionSettings
    revision: int


@dataclass(slots=True)
class CatalogueTopic:
    """Everything that is stored about one topic, except the cursors of its subscriptions."""

    stored: StoredTopic
    policy: Policy = field(default_factory=Policy)
    schema: Schema = field(default_factory=Schema)
    is_fixed: bool = False  # a record was accepted: its schema is for ever
    subscriptions: dict[str, StoredSubscription] = field(default_factory=dict)
    holders: dict[str, tuple[Holder, int]] = field(default_factory=dict)  # with the revisions of their entries


class Catalogue:
    """Read with `load`, kept up to date by its own changes, by `apply` and by `refresh`."""

    def __init__(self, metadata: MetadataStore, *, is_followed: bool) -> None:
        self.metadata = metadata
        self._namespaces: dict[str, Entry] = {}  # the policy entries
        self._topics: dict[TopicName, dict[str, Entry]] = {}  # by key
        self.producers_at_load: list[tuple[TopicName, str]] = []  # topics, and the brokers that wrote entries there
        self._is_followed = is_followed  # what others store comes by `apply`
        # Keys that were deleted, at which revision, until a watch has passed it and no transaction is under way, whose
        # answer may be older.
        self._gone: dict[str, int] = {}
        self._under_way = 0
        self._loads = 0
        self._loaded: dict[str, int] = {}  # the revisions of the last load, by the first part of a key

    # Reading

    async def load(self) -> tuple[int, int]:
        """Read everything; the revisions from which to watch namespaces and topics."""
        namespaces = await self.metadata.list(keys.NAMESPACES)
        topics = await self.metadata.list(keys.TOPICS)
        self._namespaces, self._topics, self._gone = {}, {}, {}
        self._loads, self._loaded = self._loads + 1, {"namespaces": namespaces.revision, "topics": topics.revision}
        split = [entry.key.split("/") for entry in topics.entries]
        self.producers_at_load = [(TopicName(parts[2], parts[3]), parts[6]) for parts in split if _is_producer(parts)]
        for entry in [*namespaces.entries, *topics.entries]:
            self._keep(entry)
        return namespaces.revision, topics.revision

    async def refresh(self, name: TopicName) -> None:
        """Read one topic and its namespace again."""
        namespace = await self.metadata.get(keys.namespace_policy(name.namespace))
        listing = await self.metadata.list(keys.topic_prefix(name))
        self._namespaces.pop(name.namespace, None)  # only now: who looks meanwhile must not find nothing
        self._topics.pop(name, None)
        for entry in [*([namespace] if namespace else []), *listing.entries]:
            self._keep(entry)

    async def refresh_namespace(self, namespace: str) -> None:
        """Read a namespace again; its topics stay as they are known."""
        entry = await self.metadata.get(keys.namespace_policy(namespace))
        self._namespaces.pop(namespace, None)
        if entry is not None:
            self._keep(entry)

    def apply(self, changes: Sequence[Change]) -> tuple[set[str], set[TopicName]]:
        """Apply what a watch brings, in its order; return the namespaces and topics that it is about."""
        namespaces: set[str] = set()
        topics: set[TopicName] = set()
        for change in changes:
            known = self._known(change.key)
            newest = known.revision if known is not None else self._gone.get(change.key, NO_REVISION)
            if change.revision < newest:
                continue  # our own later change is here already
            if change.value is None:
                self._forget(change.key)
                if self._under_way:
                    self._gone[change.key] = change.revision
            else:
                self._keep(Entry(change.key, change.value, change.revision))
            parts = change.key.split("/")
            if parts[1] == "namespaces":
                namespaces.add(parts[2])
            elif not _is_traffic(change.key):
                topics.add(TopicName(parts[2], parts[3]))
        if self._gone and changes and not self._under_way:
            kind, passed = changes[-1].key.split("/")[1], changes[-1].revision
            self._gone = {
                key: revision for key, revision in self._gone.items() if revision > passed or key.split("/")[1] != kind
            }
        return namespaces, topics

    @staticmethod
    def is_traffic(changes: Sequence[Change]) -> bool:
        """Return whether changes are about cursors and producers alone, of which nothing is kept here."""
        return all(_is_traffic(change.key) for change in changes)

    def entries(self) -> dict[str, bytes]:
        """Return all that is known, by key."""
        known = [*self._namespaces.values(), *(entry for topic in self._topics.values() for entry in topic.values())]
        return {entry.key: entry.value for entry in known}

    def namespaces(self) -> Iterator[str]:
        """Return the names of all namespaces."""
        return iter(list(self._namespaces))

    def namespace(self, namespace: str) -> Policy | None:
        """Return the policy that the topics of a namespace inherit; None: there is no such namespace.

        Raises:
            CorruptCommit: it cannot be read.
        """
        entry = self._namespaces.get(namespace)
        return None if entry is None else _read(entry, Policy)

    async def topics_of(self, namespace: str) -> int:
        """Return how many topics a namespace has in the store, also those that other brokers have created."""
        return len((await self.metadata.list(keys.namespace_topics(namespace))).entries)

    def names(self) -> list[TopicName]:
        """Return every topic of which anything is stored."""
        return list(self._topics)

    def topic(self, name: TopicName) -> CatalogueTopic | None:
        """Return what is stored about a topic; None: nothing, or leftovers only.

        Raises:
            CorruptCommit: it cannot be read.
        """
        entries = self._topics.get(name, {})
        head = entries.get(keys.delivery(name))
        return None if head is None else _topic_of(_read(head, StoredTopic), entries.values())

    async def read_topic(self, name: TopicName) -> tuple[StoredTopic, Compare] | None:
        """Read a topic as the store has it now, without keeping it; return it, and what holds while it stays so.

        Raises:
            CorruptCommit: it cannot be read.
        """
        entry = await self.metadata.get(keys.delivery(name))
        return None if entry is None else (_read(entry, StoredTopic), Compare(entry.key, entry.revision))

    async def read_policy(self, key: str) -> tuple[Policy, Compare]:
        """Return the policy under a key as the store has it now, and what holds while it stays so. CorruptCommit."""
        entry = await self.metadata.get(key)
        if entry is None:
            return Policy(), Compare(key, NO_REVISION)
        return _read(entry, Policy), Compare(key, entry.revision)

    def _known(self, key: str) -> Entry | None:
        parts = key.split("/")
        if parts[1] == "namespaces":
            return self._namespaces.get(parts[2]) if len(parts) == 4 else None
        return self._topics.get(TopicName(parts[2], parts[3]), {}).get(key)

    def _keep(self, entry: Entry) -> None:
        parts = entry.key.split("/")
        if parts[1] == "namespaces":
            if len(parts) == 4:
                self._namespaces[parts[2]] = entry
        elif not _is_traffic(entry.key):
            self._topics.setdefault(TopicName(parts[2], parts[3]), {})[entry.key] = entry

    def _forget(self, key: str) -> None:
        parts = key.split("/")
        if parts[1] == "namespaces":
            if len(parts) == 4:
                self._namespaces.pop(parts[2], None)
            return
        name = TopicName(parts[2], parts[3])
        entries = self._topics.get(name, {})
        entries.pop(key, None)
        if not entries:
            self._topics.pop(name, None)

    # Changes. Outdated: nothing was done.

    async def put_namespace(self, namespace: str, policy: Policy, unchanged: Sequence[Compare] = ()) -> None:
        """Create or change a namespace while what it builds on is unchanged."""
        key = keys.namespace_policy(namespace)
        await self._txn([key, *unchanged], puts=[Put(key, METADATA.encode(policy))])

    async def delete_namespace(self, namespace: str) -> None:
        """Delete a namespace that the caller has seen to be empty. A topic created meanwhile would have changed it."""
        key = keys.namespace_policy(namespace)
        await self._txn([key], deletes=[key])

    async def create_topic(
        self, name: TopicName, topic: CatalogueTopic, *, unassigned_ms: int | None, unchanged: Sequence[Compare] = ()
    ) -> None:
        """Store a topic, and its namespace with it, so that nobody deletes that meanwhile.

        `unassigned_ms`: since when its partitions wait for an owner; None: they do not wait.
        """
        namespace = self._namespaces[name.namespace]
        first = range(min(topic.stored.partitions, ASSIGNED_TOGETHER_MAX))
        puts = [
            Put(keys.delivery(name), METADATA.encode(topic.stored)),
            Put(keys.policy(name), METADATA.encode(topic.policy)),
            Put(keys.schema(name), METADATA.encode(topic.schema)),
            Put(keys.namespace_topic(name), b"{}"),
            Put(namespace.key, namespace.value),
        ]
        if unassigned_ms is not None:
            entry = Unassigned(reason=Reason.CREATED, since_ms=unassigned_ms, topic_id=topic.stored.topic_id)
            waits = METADATA.encode(entry)
            puts += [Put(keys.unassigned(PartitionName(name, number)), waits) for number in first]
        # What is left of a topic of this name must be gone: nobody may own a partition of it already.
        epochs = [] if unassigned_ms is None else [keys.epoch(PartitionName(name, number)) for number in first]
        unowned = [Compare(key, NO_REVISION) for key in epochs]
        await self._txn([keys.delivery(name), namespace.key, *unowned, *unchanged], puts=puts)

    async def change_topic(
        self, name: TopicName, policy: Policy, schema: Schema | None, unchanged: Sequence[Compare] = ()
    ) -> None:
        """Store another policy; and another schema, if no record was accepted yet."""
        puts = [Put(keys.policy(name), METADATA.encode(policy))]
        compares: list[str | Compare] = [keys.delivery(name), keys.policy(name), *unchanged]
        if schema is not None:
            puts.append(Put(keys.schema(name), METADATA.encode(schema)))
            compares += [keys.schema(name), keys.schema_fixed(name)]
        await self._txn(compares, puts=puts)

    async def fix_schema(self, name: TopicName) -> None:
        """Store that a record is about to be accepted: the schema stays as it is from now on."""
        await self._txn(
            [keys.delivery(name), keys.schema(name), keys.schema_fixed(name)],
            puts=[Put(keys.schema_fixed(name), b"{}")],
        )

    async def mark_deleting(self, name: TopicName, stored: StoredTopic) -> None:
        """Store that a topic exists only to be deleted from now on."""
        marked = msgspec.structs.replace(stored, is_deleting=True)
        await self._txn([keys.delivery(name)], puts=[Put(keys.delivery(name), METADATA.encode(marked))])

    async def delete_topic(self, name: TopicName, topic_id: str, mark: Compare, now_ms: int) -> None:
        """Delete what is stored about a topic while `mark` holds.

        Its `delivery` key goes last, and leaves a delete mark under the topic's id.

        Raises:
            Outdated: somebody else was quicker.
        """
        entries = [entry.key for entry in (await self.metadata.list(keys.topic_prefix(name))).entries]
        entries += [entry.key for entry in (await self.metadata.list(keys.storage_prefix(name))).entries]
        entries += [key for key in await self._reader_keys() if key.split("/")[3:5] == [name.namespace, name.topic]]
        await self._delete([key for key in entries if key != keys.delivery(name)], mark)
        deleted = Put(keys.deleted(topic_id), METADATA.encode(DeleteMark(topic=str(name), at_ms=now_ms)))
        await self._txn([mark], puts=[deleted], deletes=[keys.delivery(name), keys.namespace_topic(name)])

    async def is_deleted(self, topic_id: str) -> bool:
        """Return whether there is a delete mark for this very topic: its absence alone says nothing."""
        return await self.metadata.get(keys.deleted(topic_id)) is not None

    async def forget_delete_marks(self, now_ms: int) -> None:
        """Remove delete marks that are old, or more than there may be. What is not removed by then is kept on disks."""
        marks = (await self.metadata.list(keys.DELETED)).entries
        newest_first = sorted(marks, key=lambda entry: -entry.revision)
        gone = [
            entry.key
            for number, entry in enumerate(newest_first)
            if number >= DELETE_MARKS_MAX or _read(entry, DeleteMark).at_ms < now_ms - DELETE_MARK_MS
        ]
        for first in range(0, len(gone), TXN_OPERATIONS_MAX):
            await self.metadata.txn(deletes=gone[first : first + TXN_OPERATIONS_MAX])

    async def _reader_keys(self) -> list[str]:
        return [entry.key for entry in (await self.metadata.list(keys.READERS)).entries]

    def mark(self, name: TopicName) -> Compare:
        """Return what holds while the topic is as it is known here."""
        return self._as_known(keys.delivery(name))

    def _as_known(self, key: str) -> Compare:
        known = self._known(key)
        return Compare(key, NO_REVISION if known is None else known.revision)

    async def create_subscription(
        self,
        name: TopicName,
        subscription: str,
        settings: SubscriptionSettings,
        partitions: int,
        cursors: Mapping[int, Cursor],
    ) -> None:
        """Store a subscription with these cursors; those that an earlier one has left go first.

        The other cursors are created by the owners of the partitions.
        """
        await self.delete_cursors(name, subscription, partitions)
        key = keys.subscription(name, subscription)
        puts = [Put(keys.cursor(name, subscription, number), cursor.stored()) for number, cursor in cursors.items()]
        puts.append(Put(key, METADATA.encode(StoredSettings(kind=settings.mode, start=settings.start))))
        while len(puts) > TXN_OPERATIONS_MAX:  # cursors without a subscription mean nothing
            await self._txn([keys.delivery(name), key], puts=puts[: TXN_OPERATIONS_MAX - 1])
            puts = puts[TXN_OPERATIONS_MAX - 1 :]
        await self._txn([keys.delivery(name), key], puts=puts)

    async def delete_subscription(self, name: TopicName, subscription: str) -> None:
        """Delete a subscription, itself first: cursors without a subscription mean nothing."""
        key = keys.subscription(name, subscription)
        await self._txn([key], deletes=[key, keys.holder(name, subscription)])

    async def read_holder(self, name: TopicName, subscription: str) -> tuple[Holder | None, Compare]:
        """Return who holds a subscription as the store has it now, and what holds while it stays so.

        Raises:
            CorruptCommit: it cannot be read.
        """
        key = keys.holder(name, subscription)
        entry = await self.metadata.get(key)
        if entry is None:
            return None, Compare(key, NO_REVISION)
        return _read(entry, Holder), Compare(key, entry.revision)

    async def put_holder(self, name: TopicName, subscription: str, holder: Holder, fences: Sequence[Compare]) -> int:
        """Store another holder while the fences hold; return the revision of the entry."""
        key = keys.holder(name, subscription)
        return await self._txn(fences, puts=[Put(key, METADATA.encode(holder))])

    async def delete_cursors(self, name: TopicName, subscription: str, partitions: int) -> None:
        """Delete the cursors of a subscription that was deleted.

        Raises:
            Outdated: it was created again, so they are the new one's.
        """
        gone = [keys.cursor(name, subscription, number) for number in range(partitions)]
        await self._delete(gone, Compare(keys.subscription(name, subscription), NO_REVISION))

    async def _delete(self, gone: list[str], unchanged: Compare) -> None:
        for first in range(0, len(gone), TXN_OPERATIONS_MAX):
            await self._txn([unchanged], deletes=gone[first : first + TXN_OPERATIONS_MAX])

    async def _txn(
        self, unchanged: Sequence[str | Compare], *, puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        compares = [self._as_known(key) if isinstance(key, str) else key for key in unchanged]
        self._under_way += 1
        loads = self._loads
        try:
            done = await self.metadata.txn(compares=compares, puts=puts, deletes=deletes)
        finally:
            self._under_way -= 1
        if not done.is_done:
            raise Outdated(f"{compares[0].key} was changed by somebody else")
        for put in puts:
            if self._is_news(put.key, done.revision, loads):
                self._keep(Entry(put.key, put.value, done.revision))
        for key in deletes:
            if self._is_news(key, done.revision, loads):
                self._forget(key)
                if self._is_followed:
                    self._gone[key] = done.revision
        return done.revision

    def _is_news(self, key: str, revision: int, loads: int) -> bool:
        """Return whether a change of ours is newer than what is known: a watch may have brought more than that, or all
        may have been loaded since it was begun, when there had been `loads` of them."""
        if not key.startswith((keys.TOPICS, keys.NAMESPACES)):
            return False
        if self._loads != loads and revision <= self._loaded[key.split("/")[1]]:
            return False
        known = self._known(key)
        return revision > max(known.revision if known is not None else NO_REVISION, self._gone.get(key, NO_REVISION))

    # Cursors

    async def cursors(self, name: TopicName, subscription: str | None = None) -> dict[tuple[str, int], Cursor]:
        """Return every stored cursor of a topic, or of one of its subscriptions, by subscription and partition."""
        prefix = keys.topic_prefix(name) + "subscriptions/" + (f"{subscription}/" if subscription is not None else "")
        found = {}
        for entry in (await self.metadata.list(prefix)).entries:
            if keys.is_cursor(entry.key):
                parts = entry.key.split("/")
                found[parts[5], int(parts[7])] = Cursor.load(entry.key, entry.value)
        return found

    async def create_cursor(
        self, name: TopicName, subscription: str, partition: int, cursor: Cursor, fences: Sequence[Compare]
    ) -> None:
        """Store the cursor of a subscription that does not have one in the partition.

        Raises:
            Outdated: it has one, or a fence does not hold.
        """
        key = keys.cursor(name, subscription, partition)
        compares = [Compare(key, NO_REVISION), *fences]
        if not (await self.metadata.txn(compares=compares, puts=[Put(key, cursor.stored())])).is_done:
            raise Outdated(f"{key} was made by somebody else")


def _is_producer(parts: list[str]) -> bool:
    return len(parts) == 7 and parts[4] == "producers"


def _is_traffic(key: str) -> bool:
    """Return whether a key says what is done with a topic, which changes often, rather than what the topic is."""
    return keys.is_cursor(key) or _is_producer(key.split("/"))


def _read(entry: Entry, kind: type[Read]) -> Read:
    try:
        return METADATA.decode(entry.value, kind, entry.key)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptCommit(name=entry.key, reason=str(error)) from None


def _topic_of(stored: StoredTopic, entries: Iterable[Entry]) -> CatalogueTopic:
    topic = CatalogueTopic(stored)
    for entry in entries:
        match entry.key.split("/")[4:]:
            case ["policy"]:
                topic.policy = _read(entry, Policy)
            case ["schema"]:
                topic.schema = _read(entry, Schema)
            case ["schema_fixed"]:
                topic.is_fixed = True
            case ["subscriptions", subscription]:
                as_stored = _read(entry, StoredSettings)
                settings = SubscriptionSettings(mode=as_stored.kind, start=as_stored.start)
                topic.subscriptions[subscription] = StoredSubscription(settings, entry.revision)
            case ["subscriptions", subscription, "holder"]:
                topic.holders[subscription] = (_read(entry, Holder), entry.revision)
    return topic
