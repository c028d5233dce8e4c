"""The namespaces, topics and subscriptions that exist, as this broker knows them: equal to what the metadata store has.

- What this broker stores it takes over at once by `sync_topic`. What others store comes through watches, and is taken
  over by the same method. So there is one way in which a topic comes, changes and goes.
- A decision by what is known here is stored under the lock (`changing`), and compares with what it was based on:
  one that another broker has overtaken is made again (`agreed`).
- A topic whose metadata cannot be read is closed, and says which key; the others are served. So are all topics of a
  namespace whose policy a newer version has written.
- Listeners are told, in the order of the changes, after what is known here has changed.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog

from sulina.broker.catalogue import Catalogue, CatalogueTopic, Outdated, StoredSubscription
from sulina.broker.cluster_handle import ClusterHandle
from sulina.broker.consumer import ConsumerConnection
from sulina.broker.cursors import CursorWriter
from sulina.broker.dead_letters import check_dead_letters
from sulina.broker.events import EventStream
from sulina.broker.metrics import Metrics
from sulina.broker.options import BrokerOptions, NodeCounts
from sulina.broker.other_owners import OtherOwners
from sulina.broker.partition import Partition
from sulina.broker.partition_logs import PartitionLogs
from sulina.broker.run_to_completion import run_to_completion
from sulina.broker.serving_state import ServingState
from sulina.broker.stored_topic import StoredTopic
from sulina.broker.subscription import Subscription, TopicContext
from sulina.broker.topic import Topic
from sulina.broker.topic_table import TopicTable
from sulina.core.cluster import keys
from sulina.core.delivery.cursor import Cursor
from sulina.core.delivery.dead_letter import dead_letter, dead_letter_topic, txn_id_of
from sulina.core.formats import METADATA
from sulina.core.log.position import Position
from sulina.core.log.publish_request import PublishRequest
from sulina.core.records.record import StoredRecord, encode
from sulina.core.records.routing import partition_of
from sulina.core.topic import Policy, TopicSettings, check_policy, resolved
from sulina.errors import (
    Compacted,
    CorruptCommit,
    LimitReached,
    NamespaceNotFound,
    NewerFormat,
    NotServing,
    SubscriptionNotFound,
    SulinaError,
    TopicNotFound,
)
from sulina.ports import Clock, Compare, MetadataStore
from sulina.types import PartitionName, TopicName, checked_subscription

DEFAULT_NAMESPACE = "default"
AGREE_TRIES = 10
WATCH_PAUSE_SECONDS = 0.5
UNHEARD_SECONDS, UNHEARD_MAX = 0.05, 1000  # for how long a topic is known not to exist; how many such are remembered
LOOKUPS_MAX = 16  # of topics that are not known here, at a time; beyond that the answer is that there is no such topic
NEWS_SECONDS = 0.5  # for a watch to bring a topic that exists, before it is fetched

Result = TypeVar("Result")
TopicListener = Callable[[Topic | None, Topic | None], None]  # told a topic as it was, and as it is; may be the same
ClaimHolder = Callable[[Topic, Subscription, ConsumerConnection], Coroutine[Any, Any, None]]

_logger = structlog.get_logger("sulina.topics")


class TopicRegistry:
    """`load` once; then, where other brokers store things too, `follow`."""

    def __init__(
        self,
        metadata: MetadataStore,
        options: BrokerOptions,
        *,
        catalogue: Catalogue,
        topics: TopicTable,
        logs: PartitionLogs,
        cursor_writer: CursorWriter,
        cluster: ClusterHandle,
        others: OtherOwners,
        claim: ClaimHolder | None,
        serving: ServingState,
        counts: NodeCounts,
        clock: Clock,
        metrics: Metrics,
        events: EventStream,
        is_archiving: bool,
    ) -> None:
        """Take what it needs.

        `claim` makes a consumer the holder of a subscription; None: no other broker can have another holder.
        """
        self.catalogue = catalogue
        self.topics = topics
        self.namespaces: dict[str, Policy] = {}
        self.deleting: dict[TopicName, StoredTopic] = {}  # marked, and not yet gone
        self.damaged: dict[TopicName, CorruptCommit | NewerFormat] = {}  # topics whose metadata cannot be read
        self.newer_namespaces: dict[str, NewerFormat] = {}  # whose policy a newer version wrote; not in `namespaces`
        self.changes: set[asyncio.Task[Any]] = set()  # under way; a stop waits for them
        self.lock = asyncio.Lock()  # for changes to what exists
        self._metadata = metadata
        self._options = options
        self._logs = logs
        self._cursor_writer = cursor_writer
        self._cluster = cluster
        self._others = others
        self._claim = claim
        self._serving = serving
        self._counts = counts
        self._clock = clock
        self._metrics = metrics
        self._events = events
        self._is_archiving = is_archiving
        self._listeners: list[TopicListener] = []
        self._lookups = 0
        self._unheard: dict[TopicName, float] = {}  # topics that do not exist, and until when nobody looks again

    def listen(self, listener: TopicListener) -> None:
        """Call a listener after each time that a topic was taken over, changed or not."""
        self._listeners.append(listener)

    # What exists

    def topic(self, name: TopicName) -> Topic:
        """Return a topic.

        Raises:
            TopicNotFound: there is no such topic, as far as is known here.
            CorruptCommit: its metadata cannot be read.
        """
        topic = self.topics.get(name)
        if topic is None:
            raise self.damaged.get(name) or TopicNotFound(topic=str(name))
        return topic

    def policy_of(self, namespace: str) -> Policy | None:
        """Return the policy of a namespace; None: there is no such namespace, as far as is known here.

        Raises:
            NewerFormat: a newer version wrote it.
        """
        if (newer := self.newer_namespaces.get(namespace)) is not None:
            raise newer
        return self.namespaces.get(namespace)

    def topic_named(self, text: str) -> Topic:
        """Return the topic of `/ns/topic`, without checking a name that is known.

        Raises:
            TopicNotFound, InvalidName, CorruptCommit: there is no such topic, or it cannot be served.
        """
        topic = self.topics.by_text.get(text)
        return topic if topic is not None else self.topic(TopicName.parse(text))

    def subscription(self, name: TopicName, subscription: str) -> Subscription:
        """Return a subscription.

        Raises:
            TopicNotFound, SubscriptionNotFound: there is no such topic, or it has no such subscription.
        """
        known = self.topic(name).subscriptions.get(checked_subscription(subscription))
        if known is None:
            raise SubscriptionNotFound(topic=str(name), subscription=subscription)
        return known

    async def hear_of(self, name: TopicName) -> None:
        """See to it that a topic is known here if it exists: another broker may have made it a moment ago."""
        if name in self.topics or name in self.damaged:
            return
        if not self._cluster.shares_metadata or not self._serving.is_ready:
            return
        now = self._clock.monotonic()
        if now < self._unheard.get(name, 0.0) or self._lookups >= LOOKUPS_MAX:
            return  # it was looked up just now, and there was none
        self._lookups += 1
        try:
            entry = await self._metadata.get(keys.delivery(name))
            if entry is not None and not METADATA.decode(entry.value, StoredTopic, entry.key).is_deleting:
                await self.topics.when_known(name, NEWS_SECONDS) or await self.fetch(name)
                return
        except (SulinaError, OSError, msgspec.DecodeError) as error:
            _logger.warning("topic_not_looked_up", topic=str(name), error=str(error))
        finally:
            self._lookups -= 1
        if len(self._unheard) >= UNHEARD_MAX:
            self._unheard.clear()
        self._unheard[name] = now + UNHEARD_SECONDS

    # Taking over what is stored

    async def load(self) -> tuple[int, int]:
        """Read what exists; return the revisions from which to follow changes of namespaces and topics."""
        revisions = await self.catalogue.load()
        for namespace in self.catalogue.namespaces():
            await self.sync_namespace(namespace)
        if DEFAULT_NAMESPACE not in {*self.namespaces, *self.newer_namespaces}:
            with contextlib.suppress(Outdated):  # another broker was first
                await self.catalogue.put_namespace(DEFAULT_NAMESPACE, Policy())
            await self.catalogue.refresh_namespace(DEFAULT_NAMESPACE)
            await self.sync_namespace(DEFAULT_NAMESPACE)
        for name in self.catalogue.names():
            await self._sync_topic(name)
            if (topic := self.topics.get(name)) is not None:
                await self._make_cursors_or_log(topic)
        return revisions

    async def follow(self, prefix: str, after: int) -> None:
        """Take over what others store under a prefix, for ever."""
        is_behind = False
        while True:
            try:
                if is_behind:
                    after = await self.catch_up()
                    is_behind = False
                async for changes in self._metadata.watch(prefix, after=after):
                    after = changes[-1].revision
                    if self.catalogue.is_traffic(changes):
                        self.catalogue.apply(changes)  # which nobody decides by: they are many, and wait for nobody
                        continue
                    async with self.lock:
                        await self.sync(*self.catalogue.apply(changes))
                return  # the store is closed
            except Compacted:
                is_behind = True
            except Exception as error:  # noqa: BLE001
                # Whatever it is: who no longer hears of topics cannot serve them.
                _logger.error("watch_failed", prefix=prefix, error=str(error))
                is_behind = True
                await asyncio.sleep(WATCH_PAUSE_SECONDS)

    async def catch_up(self) -> int:
        """Take over everything; the revision from which to follow."""
        async with self.lock:
            known = {*(topic.name for topic in self.topics), *self.deleting, *self.damaged}
            after = min(await self.catalogue.load())
            self._change_all()
            namespaces = {*self.namespaces, *self.newer_namespaces, *self.catalogue.namespaces()}
            await self.sync(namespaces, {*known, *self.catalogue.names()})
        return after

    def _change_all(self) -> None:
        """Change all topics that stay, before anything is awaited: a first record compares with what was loaded."""
        for topic in self.topics:
            with contextlib.suppress(CorruptCommit, NewerFormat):  # it is synced, and named, in its turn
                known = self.catalogue.topic(topic.name)
                if known is not None and known.stored == topic.stored:
                    self._change(topic, known)

    async def sync(self, namespaces: Iterable[str], topics: Iterable[TopicName]) -> None:
        """Make what is here what the catalogue has. Called under the lock that the catalogue was changed under.

        Else somebody could decide by what is here, and compare with the newer revisions of the catalogue.
        """
        for namespace in namespaces:
            await self.sync_namespace(namespace)
        for name in topics:
            await self.sync_topic(name)

    async def sync_namespace(self, namespace: str) -> None:
        """Make a namespace here what the catalogue has; its topics follow its policy at once. Called under the lock.

        If a newer version wrote the policy, the topics are closed until it can be read.
        """
        try:
            policy = self.catalogue.namespace(namespace)
        except NewerFormat as newer:
            self.newer_namespaces[namespace] = newer
            self.namespaces.pop(namespace, None)
            for topic in self.topics.of_namespace(namespace):
                await self.sync_topic(topic.name)
            return
        known = self.namespaces.pop(namespace, None)
        if policy is not None:
            self.namespaces[namespace] = policy
        if self.newer_namespaces.pop(namespace, None) is not None:
            for name in [name for name in self.damaged if name.namespace == namespace]:
                await self.sync_topic(name)
        if known is not None and policy is not None and known != policy:
            for topic in self.topics.of_namespace(namespace):
                topic.change(topic.own_policy, policy, topic.schema)
                self._logs.reconfigure(topic)

    async def sync_topic(self, name: TopicName) -> None:
        """Make a topic here what the catalogue has, and tell the listeners. Called under the lock."""
        before = self.topics.get(name)
        await self._sync_topic(name)
        after = self.topics.get(name)
        if after is not None:
            self._make_cursors_soon(after)
        self.topics.announce()
        for listener in self._listeners:
            listener(before, after)

    async def _sync_topic(self, name: TopicName) -> None:
        try:
            known = self._readable(name)
        except (CorruptCommit, NewerFormat) as damage:
            if isinstance(damage, NewerFormat) and (served := self.topics.get(name)) is not None:
                await self._damage(served, damage)  # it must not go on by an older policy, which may delete more
                return
            self.damaged[name] = damage
            self._events.emit("topic_damaged", name, reason=str(damage))
            return
        self.damaged.pop(name, None)
        topic = self.topics.get(name)
        is_going = known is None or known.stored.is_deleting
        if topic is not None and (is_going or known.stored.topic_id != topic.stored.topic_id):  # type: ignore[union-attr]
            await self._remove_topic(topic, is_deleted=await self._is_deleted(topic, known))
            topic = None
        if known is None:
            self.deleting.pop(name, None)
        elif known.stored.is_deleting:
            self.deleting[name] = known.stored
        else:
            self.deleting.pop(name, None)
            if topic is None:
                topic = self._add_topic(name, known)
            else:
                self._change(topic, known)
            await self._sync_subscriptions(topic, known)

    def _readable(self, name: TopicName) -> CatalogueTopic | None:
        """Return what is stored about a topic; None: nothing. CorruptCommit, NewerFormat: nobody may serve it."""
        known = self.catalogue.topic(name)
        if known is not None and not known.stored.is_deleting:
            self.policy_of(name.namespace)
        return known

    def _add_topic(self, name: TopicName, known: CatalogueTopic) -> Topic:
        topic = Topic(
            name,
            known.stored,
            policy=known.policy,
            namespace_policy=self.namespaces.get(name.namespace, Policy()),
            schema=known.schema,
            metrics=self._metrics.topic(str(name)),
            options=self._options,
            counts=self._counts,
            opener=self._logs.open,
            rights=self._cluster,
            is_fixed=known.is_fixed,
            fix_schema=self._fix_schema,
            events=self._events,
        )
        self.topics.add(topic)
        self._counts.partitions += known.stored.partitions
        return topic

    def _change(self, topic: Topic, known: CatalogueTopic) -> None:
        topic.is_fixed = topic.is_fixed or known.is_fixed
        if (known.policy, known.schema) == (topic.own_policy, topic.schema):
            return
        topic.change(known.policy, self.namespaces.get(topic.name.namespace, Policy()), known.schema)
        self._logs.reconfigure(topic)
        self._events.emit("topic_changed", topic.name)

    async def _is_deleted(self, topic: Topic, known: CatalogueTopic | None) -> bool:
        """Return whether this very topic was deleted: its mark is there. A store that lost it has none."""
        topic_id = topic.stored.topic_id
        if known is not None and known.stored.topic_id == topic_id:
            return known.stored.is_deleting
        return await self.catalogue.is_deleted(topic_id)

    async def _remove_topic(self, topic: Topic, *, is_deleted: bool) -> None:
        """Serve a topic no more. What is here of it is removed if it was deleted; else it is kept until it returns."""
        name = topic.name
        self.topics.remove(topic)
        self._counts.partitions -= topic.stored.partitions
        self._counts.subscriptions -= len(topic.subscriptions)
        self._counts.cursors -= len(topic.subscriptions) * len(topic.partitions)
        error = TopicNotFound(topic=str(name))
        await topic.stop_subscriptions(error)
        await self._cursor_writer.discard(topic.cursor_keys())
        async with topic.lock:  # a partition may be about to be released
            await topic.close(error)
            self._logs.forget(topic)
            if is_deleted:
                await self._logs.remove(name, topic.stored)
            else:
                kept = await self._logs.set_aside(name, topic.stored)
                self._events.emit("topic_vanished", name, topic_id=topic.stored.topic_id, kept=kept)
        self._metrics.remove_topic(str(name))

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

    def _make_cursors_soon(self, topic: Topic) -> None:
        if any(
            sub.lacks(ownership.name.partition)
            for sub in topic.subscriptions.values()
            for ownership in topic.ownerships
        ):
            # That may have to open logs, and ask the object store: nobody else waits for it.
            task = asyncio.create_task(self._make_cursors_or_log(topic), name=f"cursors {topic.name}")
            self.changes.add(task)
            task.add_done_callback(self.changes.discard)

    async def _make_cursors_or_log(self, topic: Topic) -> None:
        try:
            await self.make_cursors(topic)
        except (CorruptCommit, NewerFormat) as damage:
            await self._damage(topic, damage)
        except (SulinaError, OSError) as error:
            # A consumer that attaches tries again, and is told.
            _logger.error("cursors_not_made", topic=str(topic.name), error=str(error))

    async def _damage(self, topic: Topic, damage: CorruptCommit | NewerFormat) -> None:
        """Close a topic of which an entry cannot be read: nobody may guess it."""
        if self.topics.get(topic.name) is not topic:
            return  # it went meanwhile
        self.damaged[topic.name] = damage
        self._events.emit("topic_damaged", topic.name, reason=str(damage))
        self.topics.remove(topic)
        self._counts.partitions -= topic.stored.partitions
        self._counts.subscriptions -= len(topic.subscriptions)
        self._counts.cursors -= len(topic.subscriptions) * len(topic.partitions)
        await topic.close(damage)
        self._logs.forget(topic)

    async def make_cursors(self, topic: Topic, only: int | None = None) -> None:
        """Give every subscription a cursor in every partition that is ours: the stored one, or a new one at its start.

        `only` names a partition that is being made ready, and not served yet.

        Raises:
            CorruptCommit: a stored cursor cannot be read.
        """
        async with topic.lock:
            for partition in topic.partitions:
                number = partition.name.partition
                is_meant = partition.ownership.is_here if only is None else number == only
                lacking = [sub for sub in topic.subscriptions.values() if sub.lacks(number)]
                if not is_meant or not lacking:
                    continue
                stored = await self.catalogue.cursors(topic.name)
                for subscription in lacking:
                    known = stored.get((subscription.name, number))
                    cursor = known or await self._new_cursor(subscription, partition)
                    if cursor is not None:
                        await subscription.acquire(number, cursor, is_moved=known is not None)

    async def _new_cursor(self, subscription: Subscription, partition: Partition) -> Cursor | None:
        """Return a new cursor at the start of a subscription; None: the subscription or the partition has gone."""
        topic, number = partition.name.topic, partition.name.partition
        cursor = Cursor(*await partition.locate_with_epoch(Position.parse(subscription.settings.start)))
        try:
            await self.catalogue.create_cursor(topic, subscription.name, number, cursor, subscription.fences(number))
        except Outdated:
            return (await self.catalogue.cursors(topic)).get((subscription.name, number))
        return cursor

    # Changing what is stored

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Hold the lock: changes to what exists run one at a time, and only while the broker serves.

        Raises:
            NotServing: the broker starts or stops.
        """
        async with self.lock:
            self._serving.check()
            yield

    async def agreed(self, name: TopicName | str, change: Callable[[], Awaitable[Result]]) -> Result:
        """Make a change that builds on what is stored, again when another broker was first. Called under the lock.

        Raises:
            NotServing: others were first each time.
        """
        for _ in range(AGREE_TRIES):
            try:
                return await change()
            except Outdated:
                if isinstance(name, str):
                    await self.catalogue.refresh_namespace(name)
                    await self.sync_namespace(name)
                else:
                    await self._read_again(name)
        raise NotServing(reason=f"others keep changing {name}")

    async def fetch(self, name: TopicName) -> Topic | None:
        """Return a topic as the metadata store has it now; None: there is no such topic."""
        await self._fetch(name)
        return self.topics.get(name)

    @run_to_completion
    async def _fetch(self, name: TopicName) -> None:
        """Make a topic and its namespace here what the metadata store has now, also if its client leaves meanwhile."""
        async with self.lock:
            await self._read_again(name)

    async def _read_again(self, name: TopicName) -> None:
        await self.catalogue.refresh(name)
        await self.sync_namespace(name.namespace)
        await self.sync_topic(name)

    async def _fix_schema(self, topic: Topic) -> None:
        """Store that the schema of a topic stays as it is: its first record is about to be accepted."""
        async with topic.fixing:
            for _ in range(AGREE_TRIES):
                if topic.is_fixed:
                    return
                try:
                    await self.catalogue.fix_schema(topic.name)
                    topic.is_fixed = True
                except Outdated:
                    await self._fetch(topic.name)
                    if self.topics.get(topic.name) is not topic:
                        raise TopicNotFound(topic=str(topic.name)) from None
        raise NotServing(reason=f"others keep changing {topic.name}")

    def check_policy(self, policy: Policy) -> None:
        """Check a policy that is to be stored.

        Raises:
            InvalidSettings: it contradicts itself, or needs an archive that this broker does not have.
        """
        check_policy(policy, is_archiving=self._is_archiving)

    async def create_topic(self, name: TopicName, settings: TopicSettings) -> None:
        """Store a topic that does not exist. Called under the lock; `sync_topic` takes it over.

        Raises:
            NamespaceNotFound, NewerFormat, InvalidSettings, LimitReached: it may not be created.
            Outdated: another broker was first.
        """
        namespace = self.policy_of(name.namespace)
        if namespace is None:
            raise NamespaceNotFound(namespace=name.namespace)
        self.check_policy(resolved(settings.policy, namespace))
        options = self._options
        if len(self.topics) >= options.limits.topics_max:
            raise LimitReached(kind="topics", limit=options.limits.topics_max)
        if self._counts.partitions + settings.partitions > options.limits.partitions_max:
            raise LimitReached(kind="partitions", limit=options.limits.partitions_max)
        now_ms = int(self._clock.now() * 1000)
        stored = StoredTopic(settings.delivery, settings.partitions, now_ms, secrets.token_hex(8))
        await self.catalogue.create_topic(
            name,
            CatalogueTopic(stored, settings.policy, settings.value_schema),
            unassigned_ms=await self._cluster.prepare_topic(name, settings.partitions, now_ms),
            unchanged=await self.dead_letters_end(name, settings.policy),
        )

    async def dead_letters_end(self, name: TopicName, policy: Policy) -> list[Compare]:
        """Return what must stay as it is for dead letters of a topic with this policy to come to an end.

        Raises:
            InvalidSettings: they would go in a circle, or too far.
        """
        namespace = self.namespaces.get(name.namespace, Policy())
        if resolved(policy, namespace).dead_letter is None:
            return []  # they go beside the topic
        return await check_dead_letters(self.catalogue, [name], policy, namespaces={})

    # Subscriptions

    def _add_subscription(self, topic: Topic, name: str, stored: StoredSubscription) -> None:
        context = TopicContext(
            topic=topic.name,
            partitions=topic.partitions,
            writer=self._cursor_writer,
            clock=self._clock,
            metrics=topic.metrics,
            dead_letter=partial(self.bury, topic),
            claim=None if self._claim is None else partial(self._claim, topic),
        )
        topic.subscriptions[name] = Subscription(name, stored, context, topic.rules)
        self._counts.subscriptions += 1
        self._counts.cursors += len(topic.partitions)

    async def _remove_subscription(self, topic: Topic, subscription: Subscription, error: SulinaError) -> None:
        """Close a subscription that is not stored any more; its consumers are told the error."""
        del topic.subscriptions[subscription.name]
        self._counts.subscriptions -= 1
        self._counts.cursors -= len(topic.partitions)
        await subscription.close(error)
        await self._cursor_writer.discard(subscription.cursor_keys())

    async def bury(
        self, topic: Topic, subscription: str, partition: int, records: Sequence[StoredRecord], attempts: int
    ) -> None:
        """Publish records to the dead-letter topic, with where they came from; create it if it does not exist."""
        target = dead_letter_topic(topic.name, topic.policy)
        if target not in self.topics:
            await self._create_if_absent(target)
        grave = self.topic(target)
        partitions = grave.stored.partitions
        for record in records:
            letter = dead_letter(record, PartitionName(topic.name, partition), subscription, attempts)
            number = partition_of(record.key, partitions) if record.key is not None else record.offset % partitions
            txn_id = txn_id_of(topic.stored.topic_id, partition, subscription, record.offset)
            await self._send(grave, letter, number, txn_id)
        self._events.emit(
            "records_dead_lettered", topic.name, subscription=subscription, count=len(records), to=str(target)
        )

    async def _send(self, topic: Topic, record: StoredRecord, partition: int, txn_id: str) -> None:
        """Publish a record at the owner of a partition. A dead letter need not fit its schema."""
        if not topic.ownerships[partition].is_here:
            await self._others.publish(PartitionName(topic.name, partition), record, txn_id, topic.schema_id)
            return
        request = PublishRequest(encode([record]), partition=partition, txn_id=txn_id, is_dead_letter=True)
        await (await topic.accept(request)).wait()

    @run_to_completion
    async def _create_if_absent(self, name: TopicName) -> None:
        async with self.changing():
            await self.agreed(name, partial(self._create_unless_known, name))
        if (topic := self.topics.get(name)) is not None:
            await self._cluster.wait_placed([ownership.name for ownership in topic.ownerships])

    async def _create_unless_known(self, name: TopicName) -> None:
        if name not in self.topics and name not in self.deleting and name not in self.damaged:
            await self.create_topic(name, TopicSettings())
            await self.sync_topic(name)
