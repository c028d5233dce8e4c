"""The namespaces, topics and subscriptions that a broker knows: what the metadata store has, and nothing else.

Whoever stores a change takes it over by `_sync_topic`; what others store comes through watches, and is taken over by
the same. What cannot be read is damaged, and closed; the others are served.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog

from sulina.broker.archives import Archives
from sulina.broker.catalogue import Catalogue, CatalogueTopic, Outdated, StoredSubscription
from sulina.broker.consumer import Consumer
from sulina.broker.cursors import CursorWriter
from sulina.broker.events import EventStream
from sulina.broker.logs import Logs
from sulina.broker.metrics import Metrics
from sulina.broker.options import BrokerOptions, Counts
from sulina.broker.other_owners import OtherOwners
from sulina.broker.partition import Partition
from sulina.broker.standing import Standing
from sulina.broker.stored_topic import StoredTopic
from sulina.broker.subscription import Subscription, TopicContext
from sulina.broker.tiers import Tiers
from sulina.broker.topic import Topic
from sulina.broker.whole import whole
from sulina.clock import SystemClock
from sulina.core.delivery.cursor import Cursor
from sulina.core.log.position import Position
from sulina.core.records.record import StoredRecord
from sulina.core.topic import Policy
from sulina.errors import (
    Compacted,
    CorruptCommit,
    NotServing,
    SubscriptionNotFound,
    SulinaError,
    TopicNotFound,
)
from sulina.ports import Clock, Files, MetadataStore
from sulina.storage.files import OsFiles
from sulina.storage.partition_log import LogThreads
from sulina.types import TopicName

DEFAULT_NAMESPACE = "default"
AGREE_TRIES = 10
WATCH_PAUSE_SECONDS = 0.5

Result = TypeVar("Result")

_logger = structlog.get_logger("sulina.topics")


class KnownTopics(ABC):
    """`_load` once; in a cluster then `_follow`."""

    def __init__(
        self,
        metadata: MetadataStore,
        options: BrokerOptions,
        *,
        threads: LogThreads,
        files: Files | None = None,
        clock: Clock | None = None,
        standing: Standing | None = None,
        archives: Archives | None = None,
    ) -> None:
        self.options = options
        self.counts = Counts()
        self._clock = clock or SystemClock()
        self._files = files or OsFiles()
        self.events = EventStream(self._clock)
        self.metrics = Metrics()
        self._standing = standing  # None: the node is alone
        self._archives = archives
        self._metadata = metadata
        self._catalogue = Catalogue(metadata)
        self._writer = CursorWriter(metadata)
        tiers = None
        if archives is not None:
            tiers = Tiers(
                archives,
                metadata=metadata,
                writer=self._writer,
                standing=standing,
                options=options,
                files=self._files,
                clock=self._clock,
                threads=threads,
                metrics=self.metrics,
                events=self.events,
            )
        self._logs = Logs(
            options,
            lambda name: self._topics.get(name),
            threads=threads,
            files=self._files,
            clock=self._clock,
            metrics=self.metrics,
            events=self.events,
            tiers=tiers,
        )
        self._namespaces: dict[str, Policy] = {}
        self._topics: dict[TopicName, Topic] = {}
        self._by_text: dict[str, Topic] = {}  # the same topics, by `/ns/topic`
        self._deleting: dict[TopicName, StoredTopic] = {}  # marked, and not yet gone
        self._damaged: dict[TopicName, CorruptCommit] = {}  # whose metadata cannot be read
        self._lock = asyncio.Lock()  # for changes to what exists
        self._deletes = asyncio.Lock()  # of what is left of topics
        self.changes: set[asyncio.Task[Any]] = set()
        self._state = "starting"
        self.others: OtherOwners | None = None  # in a cluster

    async def _load(self) -> tuple[int, int]:
        """What exists; what was being deleted is finished. The revisions from which to follow changes."""
        revisions = await self._catalogue.load()
        for namespace in self._catalogue.namespaces():
            self._sync_namespace(namespace)
        if DEFAULT_NAMESPACE not in self._namespaces:
            with contextlib.suppress(Outdated):  # another broker was first
                await self._catalogue.put_namespace(DEFAULT_NAMESPACE, Policy())
            await self._catalogue.refresh_namespace(DEFAULT_NAMESPACE)
            self._sync_namespace(DEFAULT_NAMESPACE)
        for name in self._catalogue.names():
            await self._sync_topic(name)
        return revisions

    def _check_serving(self) -> None:
        if self._state != "ready":
            raise NotServing(reason=f"it is {self._state}")

    # Taking over what is stored

    async def _follow(self, prefix: str, after: int) -> None:
        """Take over what others store, for ever."""
        is_behind = False
        while True:
            try:
                if is_behind:
                    after = await self._catch_up()
                    is_behind = False
                async for changes in self._metadata.watch(prefix, after=after):
                    after = changes[-1].revision
                    if self._catalogue.is_traffic(changes):
                        self._catalogue.apply(changes)  # which nobody decides by: they are many, and wait for nobody
                        continue
                    async with self._lock:
                        await self._sync(*self._catalogue.apply(changes))
                return  # the store is closed
            except Compacted:
                is_behind = True
            except Exception as error:  # noqa: BLE001
                # Whatever it is: who no longer hears of topics cannot serve them.
                _logger.error("watch_failed", prefix=prefix, error=str(error))
                is_behind = True
                await asyncio.sleep(WATCH_PAUSE_SECONDS)

    async def _catch_up(self) -> int:
        """Take over everything; the revision from which to follow."""
        async with self._lock:
            known = {*self._topics, *self._deleting, *self._damaged}
            after = min(await self._catalogue.load())
            self._change_all()
            await self._sync({*self._namespaces, *self._catalogue.namespaces()}, {*known, *self._catalogue.names()})
        return after

    def _change_all(self) -> None:
        """Change all topics that stay, before anything is awaited: a first record compares with what was loaded."""
        for name, topic in self._topics.items():
            with contextlib.suppress(CorruptCommit):  # it is synced, and named, in its turn
                known = self._catalogue.topic(name)
                if known is not None and known.stored == topic.stored:
                    self._change(topic, known)

    async def _sync(self, namespaces: Iterable[str], topics: Iterable[TopicName]) -> None:
        """Make what is here what the catalogue has. Called under the lock that the catalogue was changed under.

        Else somebody could decide by what is here, and compare with the newer revisions of the catalogue.
        """
        for namespace in namespaces:
            self._sync_namespace(namespace)
        for name in topics:
            await self._sync_topic(name)

    def _sync_namespace(self, namespace: str) -> None:
        policy = self._catalogue.namespace(namespace)
        if policy is None:
            self._namespaces.pop(namespace, None)
            return
        known = self._namespaces.get(namespace)
        self._namespaces[namespace] = policy
        if known is not None and known != policy:
            for topic in self._of_namespace(namespace):
                topic.change(topic.own_policy, policy, topic.schema)
                self._logs.reconfigure(topic)

    def _of_namespace(self, namespace: str) -> Iterator[Topic]:
        return (topic for name, topic in self._topics.items() if name.namespace == namespace)

    async def _sync_topic(self, name: TopicName) -> None:
        """Make what is here what is stored. Called under the lock."""
        try:
            known = self._catalogue.topic(name)
        except CorruptCommit as damage:
            self._damaged[name] = damage
            self.events.emit("topic_damaged", name, reason=str(damage))
            return
        self._damaged.pop(name, None)
        topic = self._topics.get(name)
        is_going = known is None or known.stored.is_deleting
        if topic is not None and (is_going or known.stored.topic_id != topic.stored.topic_id):  # type: ignore[union-attr]
            await self._remove_topic(topic, is_deleted=await self._is_deleted(topic, known))
            topic = None
        if known is None:
            self._deleting.pop(name, None)
        elif known.stored.is_deleting:
            self._deleting[name] = known.stored
        else:
            self._deleting.pop(name, None)
            if topic is None:
                topic = self._add_topic(name, known)
            else:
                self._change(topic, known)
            await self._sync_subscriptions(topic, known)

    def _add_topic(self, name: TopicName, known: CatalogueTopic) -> Topic:
        topic = Topic(
            name,
            known.stored,
            policy=known.policy,
            namespace_policy=self._namespaces.get(name.namespace, Policy()),
            schema=known.schema,
            metrics=self.metrics.topic(str(name)),
            options=self.options,
            counts=self.counts,
            opener=self._logs.open,
            rights=self._standing,
            is_fixed=known.is_fixed,
            fix_schema=self._fix_schema,
            events=self.events,
        )
        self._topics[name] = self._by_text[str(name)] = topic
        self.counts.partitions += known.stored.partitions
        return topic

    def _change(self, topic: Topic, known: CatalogueTopic) -> None:
        topic.is_fixed = topic.is_fixed or known.is_fixed
        if (known.policy, known.schema) == (topic.own_policy, topic.schema):
            return
        topic.change(known.policy, self._namespaces.get(topic.name.namespace, Policy()), known.schema)
        self._logs.reconfigure(topic)
        self.events.emit("topic_changed", topic.name)

    async def _is_deleted(self, topic: Topic, known: CatalogueTopic | None) -> bool:
        """Return whether this very topic was deleted: its mark is there. A store that lost it has none."""
        topic_id = topic.stored.topic_id
        if known is not None and known.stored.topic_id == topic_id:
            return known.stored.is_deleting
        return await self._catalogue.is_deleted(topic_id)

    async def _remove_topic(self, topic: Topic, *, is_deleted: bool) -> None:
        """Serve a topic no more. What is here of it is removed if it was deleted; else it is kept until it returns."""
        name = topic.name
        del self._topics[name], self._by_text[str(name)]
        self.counts.partitions -= topic.stored.partitions
        self.counts.subscriptions -= len(topic.subscriptions)
        self.counts.cursors -= len(topic.subscriptions) * len(topic.partitions)
        error = TopicNotFound(topic=str(name))
        await topic.stop_subscriptions(error)
        await self._writer.forget(topic.cursor_keys())
        async with topic.lock:  # somebody may be about to let go of a partition
            await topic.close(error)
            self._logs.forget(topic)
            if is_deleted:
                await self._logs.remove(name, topic.stored)
            else:
                kept = await self._logs.set_aside(name, topic.stored)
                self.events.emit("topic_vanished", name, topic_id=topic.stored.topic_id, kept=kept)
        self.metrics.forget(str(name))

    async def _sync_subscriptions(self, topic: Topic, known: CatalogueTopic) -> None:
        for name, subscription in list(topic.subscriptions.items()):
            stored = known.subscriptions.get(name)
            if stored is None:
                error: SulinaError = SubscriptionNotFound(topic=str(topic.name), subscription=name)
                await self._remove_subscription(topic, subscription, error)
            elif stored.revision != subscription.revision:  # made again, or stored again by a recovery
                error = NotServing(reason=f"subscription {name} of {topic.name} was made again")
                await self._remove_subscription(topic, subscription, error)
        for name, stored in known.subscriptions.items():
            if name not in topic.subscriptions:
                self._add_subscription(topic, name, stored)
            if (held := known.holders.get(name)) is not None:
                await topic.subscriptions[name].set_holder(*held)
        if self._standing is None:
            await self._make_cursors_or_say(topic)
        elif any(sub.lacks(place.name.partition) for sub in topic.subscriptions.values() for place in topic.places):
            # That may have to open logs, and ask the object store: nobody else waits for it.
            task = asyncio.create_task(self._make_cursors_or_say(topic), name=f"cursors {topic.name}")
            self.changes.add(task)
            task.add_done_callback(self.changes.discard)

    async def _make_cursors_or_say(self, topic: Topic) -> None:
        try:
            await self._make_cursors(topic)
        except CorruptCommit as damage:
            await self._damage(topic, damage)
        except (SulinaError, OSError) as error:
            # Whoever attaches tries again, and is told.
            _logger.error("cursors_not_made", topic=str(topic.name), error=str(error))

    async def _damage(self, topic: Topic, damage: CorruptCommit) -> None:
        """A stored cursor cannot be read: nobody may guess it, so the topic is not served."""
        self._damaged[topic.name] = damage
        self.events.emit("topic_damaged", topic.name, reason=str(damage))
        del self._topics[topic.name], self._by_text[str(topic.name)]
        self.counts.partitions -= topic.stored.partitions
        self.counts.subscriptions -= len(topic.subscriptions)
        self.counts.cursors -= len(topic.subscriptions) * len(topic.partitions)
        await topic.close(damage)
        self._logs.forget(topic)

    async def _make_cursors(self, topic: Topic, only: int | None = None) -> None:
        """Give every subscription a cursor in every partition that is ours: the stored one, or a new one at its start.

        CorruptCommit.
        """
        async with topic.lock:
            for partition in topic.partitions:
                number = partition.name.partition
                is_meant = partition.place.is_here if only is None else number == only
                lacking = [sub for sub in topic.subscriptions.values() if sub.lacks(number)]
                if not is_meant or not lacking:
                    continue
                stored = await self._catalogue.cursors(topic.name)
                for subscription in lacking:
                    known = stored.get((subscription.name, number))
                    cursor = known or await self._new_cursor(subscription, partition)
                    if cursor is not None:
                        await subscription.adopt(number, cursor, is_moved=known is not None)

    async def _new_cursor(self, subscription: Subscription, partition: Partition) -> Cursor | None:
        """None: the subscription has gone meanwhile, or the partition has."""
        topic, number = partition.name.topic, partition.name.partition
        cursor = Cursor(*await partition.locate_with_epoch(Position.parse(subscription.settings.start)))
        try:
            await self._catalogue.create_cursor(topic, subscription.name, number, cursor, subscription.fences(number))
        except Outdated:
            return (await self._catalogue.cursors(topic)).get((subscription.name, number))
        return cursor

    async def _agreed(self, name: TopicName | str, change: Callable[[], Awaitable[Result]]) -> Result:
        """Make a change that builds on what is stored; anew when somebody else was first. Called under the lock."""
        for _ in range(AGREE_TRIES):
            try:
                return await change()
            except Outdated:
                if isinstance(name, str):
                    await self._catalogue.refresh_namespace(name)
                    self._sync_namespace(name)
                else:
                    await self._read_again(name)
        raise NotServing(reason=f"others keep changing {name}")

    @whole
    async def _fetch(self, name: TopicName) -> None:
        """Make a topic and its namespace here what the metadata store has now, also if its client leaves meanwhile."""
        async with self._lock:
            await self._read_again(name)

    async def _read_again(self, name: TopicName) -> None:
        """Make a topic and its namespace here what the metadata store has now. Called under the lock."""
        await self._catalogue.refresh(name)
        self._sync_namespace(name.namespace)
        await self._sync_topic(name)

    async def _fix_schema(self, topic: Topic) -> None:
        """The first record is about to be accepted. TopicNotFound when the topic has gone meanwhile."""
        async with topic.fixing:
            for _ in range(AGREE_TRIES):
                if topic.is_fixed:
                    return
                try:
                    await self._catalogue.fix_schema(topic.name)
                    topic.is_fixed = True
                except Outdated:
                    await self._fetch(topic.name)
                    if self._topics.get(topic.name) is not topic:
                        raise TopicNotFound(topic=str(topic.name)) from None
        raise NotServing(reason=f"others keep changing {topic.name}")

    def _topic(self, name: TopicName) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise self._damaged.get(name) or TopicNotFound(topic=str(name))
        return topic

    def topic_named(self, text: str) -> Topic:
        """The topic of `/ns/topic`, without checking a name that is known. TopicNotFound, InvalidName."""
        topic = self._by_text.get(text)
        return topic if topic is not None else self._topic(TopicName.parse(text))

    def _add_subscription(self, topic: Topic, name: str, stored: StoredSubscription) -> None:
        context = TopicContext(
            topic=topic.name,
            partitions=topic.partitions,
            writer=self._writer,
            clock=self._clock,
            metrics=topic.metrics,
            bury=partial(self._bury, topic),
            claim=None if self._standing is None else partial(self._claim, topic),
        )
        topic.subscriptions[name] = Subscription(name, stored, context, topic.rules)
        self.counts.subscriptions += 1
        self.counts.cursors += len(topic.partitions)

    async def _remove_subscription(self, topic: Topic, subscription: Subscription, error: SulinaError) -> None:
        """Close a subscription that is not stored any more; its consumers are told the error."""
        del topic.subscriptions[subscription.name]
        self.counts.subscriptions -= 1
        self.counts.cursors -= len(topic.partitions)
        await subscription.close(error)
        await self._writer.forget(subscription.cursor_keys())

    @abstractmethod
    async def _claim(self, topic: Topic, subscription: Subscription, consumer: Consumer) -> None:
        """Make a consumer the holder of a subscription, if it may be."""

    @abstractmethod
    async def _bury(
        self, topic: Topic, subscription: str, partition: int, records: Sequence[StoredRecord], attempts: int
    ) -> None:
        """Put records into the dead-letter topic of theirs."""
