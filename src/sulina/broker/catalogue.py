"""Namespaces, topics and subscriptions as the metadata store has them. Every change is one transaction.

A topic exists while its `delivery` key does. Deleting marks it first, so that a crash in between is taken up again at
the next start, and a name is free only when nothing of the old topic is left.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from sulina.broker.topic import StoredTopic
from sulina.core import keys
from sulina.core.cursor import Cursor
from sulina.core.topic import Policy, Schema
from sulina.errors import CorruptCommit, VersionConflict
from sulina.ports import NO_REVISION, TXN_OPERATIONS_MAX, Compare, Entry, MetadataStore, Put
from sulina.types import TopicName
from sulina.wire.messages import SubscriptionSettings

Read = TypeVar("Read")


@dataclass(slots=True)
class StoredSubscription:
    """A subscription with its cursors by partition."""

    settings: SubscriptionSettings = field(default_factory=SubscriptionSettings)
    cursors: dict[int, Cursor] = field(default_factory=dict)


@dataclass(slots=True)
class CatalogueTopic:
    """Everything stored about one topic."""

    stored: StoredTopic
    policy: Policy = field(default_factory=Policy)
    schema: Schema = field(default_factory=Schema)
    subscriptions: dict[str, StoredSubscription] = field(default_factory=dict)


class Catalogue:
    """The node is alone with its store: what it has read stays true until it writes."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def load(
        self,
    ) -> tuple[dict[str, Policy], dict[TopicName, CatalogueTopic], dict[TopicName, CorruptCommit]]:
        """All namespaces, all topics, and what is wrong with those that cannot be read: the others are served.

        CorruptCommit for a namespace.
        """
        namespaces = {
            entry.key.split("/")[2]: _read(entry, Policy)
            for entry in (await self._metadata.list(keys.NAMESPACES)).entries
            if entry.key.count("/") == 3 and entry.key.endswith("/policy")
        }
        grouped: dict[TopicName, list[Entry]] = {}
        for entry in (await self._metadata.list(keys.TOPICS)).entries:
            parts = entry.key.split("/")
            grouped.setdefault(TopicName(parts[2], parts[3]), []).append(entry)
        topics: dict[TopicName, CatalogueTopic] = {}
        damaged: dict[TopicName, CorruptCommit] = {}
        for name, entries in grouped.items():
            try:
                topic = _topic_of(name, entries)
            except CorruptCommit as error:
                damaged[name] = error
            else:
                if topic is not None:
                    topics[name] = topic
        return namespaces, topics, damaged

    async def put_namespace(self, namespace: str, policy: Policy) -> None:
        """Create or change it."""
        await self._metadata.txn(puts=[Put(keys.namespace_policy(namespace), msgspec.json.encode(policy))])

    async def delete_namespace(self, namespace: str) -> None:
        """The caller has seen that it is empty."""
        await self._metadata.txn(deletes=[keys.namespace_policy(namespace)])

    async def create_topic(self, name: TopicName, topic: CatalogueTopic) -> None:
        """VersionConflict when it exists, which only another writer could have done."""
        done = await self._metadata.txn(
            compares=[Compare(keys.delivery(name), NO_REVISION)],
            puts=[
                Put(keys.delivery(name), msgspec.json.encode(topic.stored)),
                Put(keys.policy(name), msgspec.json.encode(topic.policy)),
                Put(keys.schema(name), msgspec.json.encode(topic.schema)),
                Put(keys.namespace_topic(name), b"{}"),
            ],
        )
        if not done.is_done:
            raise VersionConflict(expected=NO_REVISION, current=done.revision)

    async def change_topic(self, name: TopicName, policy: Policy, schema: Schema) -> None:
        """Another policy and schema, together."""
        await self._metadata.txn(
            puts=[
                Put(keys.policy(name), msgspec.json.encode(policy)),
                Put(keys.schema(name), msgspec.json.encode(schema)),
            ]
        )

    async def mark_deleting(self, name: TopicName, stored: StoredTopic) -> None:
        """From now on the topic is only there to be deleted."""
        marked = msgspec.structs.replace(stored, is_deleting=True)
        await self._metadata.txn(puts=[Put(keys.delivery(name), msgspec.json.encode(marked))])

    async def delete_topic(self, name: TopicName) -> None:
        """Forget it. Its `delivery` key goes last."""
        entries = (await self._metadata.list(keys.topic_prefix(name))).entries
        await self._delete([entry.key for entry in entries if entry.key != keys.delivery(name)])
        await self._metadata.txn(deletes=[keys.delivery(name), keys.namespace_topic(name)])

    async def create_subscription(
        self, name: TopicName, subscription: str, settings: SubscriptionSettings, cursors: Mapping[int, Cursor]
    ) -> None:
        """Its cursors first: a subscription that exists has one in every partition."""
        puts = [Put(keys.cursor(name, subscription, number), cursor.stored()) for number, cursor in cursors.items()]
        head = Put(keys.subscription(name, subscription), msgspec.json.encode(settings))
        while len(puts) >= TXN_OPERATIONS_MAX:
            await self._metadata.txn(puts=puts[:TXN_OPERATIONS_MAX])
            del puts[:TXN_OPERATIONS_MAX]
        await self._metadata.txn(puts=[*puts, head])

    async def delete_subscription(self, name: TopicName, subscription: str) -> None:
        """Itself first: cursors without a subscription mean nothing."""
        await self._metadata.txn(deletes=[keys.subscription(name, subscription)])

    async def delete_cursors(self, cursor_keys: list[str]) -> None:
        """Then these."""
        await self._delete(cursor_keys)

    async def _delete(self, gone: list[str]) -> None:
        for first in range(0, len(gone), TXN_OPERATIONS_MAX):
            await self._metadata.txn(deletes=gone[first : first + TXN_OPERATIONS_MAX])


def _read(entry: Entry, kind: type[Read]) -> Read:
    try:
        return msgspec.json.decode(entry.value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptCommit(name=entry.key, reason=str(error)) from None


def _topic_of(name: TopicName, entries: Iterable[Entry]) -> CatalogueTopic | None:
    """The topic that these entries make; None when they are leftovers."""
    topic: CatalogueTopic | None = None
    subscriptions: dict[str, StoredSubscription] = {}
    cursors: dict[str, dict[int, Cursor]] = {}
    by_key = {entry.key: entry for entry in entries}
    head = by_key.pop(keys.delivery(name), None)
    if head is None:
        return None
    topic = CatalogueTopic(_read(head, StoredTopic))
    for key, entry in by_key.items():
        match key.split("/")[4:]:
            case ["policy"]:
                topic.policy = _read(entry, Policy)
            case ["schema"]:
                topic.schema = _read(entry, Schema)
            case ["subscriptions", subscription]:
                subscriptions[subscription] = StoredSubscription(_read(entry, SubscriptionSettings))
            case ["subscriptions", subscription, "cursor", number]:
                cursors.setdefault(subscription, {})[int(number)] = Cursor.load(key, entry.value)
    for subscription, known in subscriptions.items():
        known.cursors = cursors.get(subscription, {})
        missing = set(range(topic.stored.partitions)) - set(known.cursors)
        if missing:
            raise CorruptCommit(name=keys.cursor(name, subscription, min(missing)), reason="it is missing")
    topic.subscriptions = subscriptions
    return topic
