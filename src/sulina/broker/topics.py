"""What exists on a broker: namespaces, topics and subscriptions, and how they come, change and go.

Changes run one at a time, are in the metadata store before they are seen here, and are finished even if whoever asked
for them has gone. Records never wait for them.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any

import msgspec

from sulina.broker.catalogue import Catalogue, CatalogueTopic
from sulina.broker.cursors import CursorWriter
from sulina.broker.events import EventStream
from sulina.broker.logs import Logs
from sulina.broker.metrics import Metrics
from sulina.broker.options import BrokerOptions, Counts
from sulina.broker.subscription import Subscription, TopicContext
from sulina.broker.topic import StoredTopic, Topic
from sulina.broker.whole import whole
from sulina.clock import SystemClock
from sulina.core.cursor import Cursor
from sulina.core.dead_letter import dead_letter, dead_letter_topic, txn_id_of
from sulina.core.records import Record, encode
from sulina.core.routing import partition_of
from sulina.core.topic import Policy, TopicSettings, check_policy, resolved
from sulina.core.values import checker
from sulina.errors import (
    AlreadyExists,
    CorruptCommit,
    InvalidInput,
    LimitReached,
    NamespaceNotEmpty,
    NamespaceNotFound,
    NotServing,
    SchemaConflict,
    TopicNotFound,
)
from sulina.ports import Clock, Files, MetadataStore
from sulina.storage.files import OsFiles
from sulina.storage.partition_log import LogThreads
from sulina.types import PartitionName, TopicName, checked_namespace
from sulina.wire.messages import (
    NamespaceInfo,
    SubscriptionSettings,
    TopicInfo,
    TopicPage,
)

DEFAULT_NAMESPACE = "default"
TOPICS_OF_A_PAGE_MAX = 1000
PAGE_BYTES_MAX = 4 << 20


class Topics:
    """The part of a broker that knows what there is."""

    def __init__(
        self,
        metadata: MetadataStore,
        options: BrokerOptions,
        *,
        threads: LogThreads,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.options = options
        self.counts = Counts()
        self._clock = clock or SystemClock()
        self.events = EventStream(self._clock)
        self.metrics = Metrics()
        self._logs = Logs(
            options,
            lambda name: self._topics.get(name),
            threads=threads,
            files=files or OsFiles(),
            clock=self._clock,
            metrics=self.metrics,
            events=self.events,
        )
        self._catalogue = Catalogue(metadata)
        self._writer = CursorWriter(metadata)
        self._namespaces: dict[str, Policy] = {}
        self._topics: dict[TopicName, Topic] = {}
        self._by_text: dict[str, Topic] = {}  # the same topics, by `/ns/topic`
        self._deleting: dict[TopicName, StoredTopic] = {}  # marked, and not yet gone
        self._damaged: dict[TopicName, CorruptCommit] = {}  # whose metadata cannot be read
        self._lock = asyncio.Lock()  # for changes to what exists
        self.changes: set[asyncio.Task[Any]] = set()
        self._state = "starting"

    async def _load(self) -> None:
        """What exists; what was being deleted is finished."""
        self._namespaces, topics, self._damaged = await self._catalogue.load()
        for name, damage in self._damaged.items():
            self.events.emit("topic_damaged", name, reason=str(damage))
        if DEFAULT_NAMESPACE not in self._namespaces:
            await self._catalogue.put_namespace(DEFAULT_NAMESPACE, Policy())
            self._namespaces[DEFAULT_NAMESPACE] = Policy()
        for name, known in topics.items():
            if known.stored.is_deleting:
                self._deleting[name] = known.stored
                try:
                    await self._delete_remains(name)
                except OSError as error:
                    self.events.emit("topic_not_deleted", name, reason=str(error))
            else:
                self._add_topic(name, known)

    def _check_serving(self) -> None:
        if self._state != "ready":
            raise NotServing(reason=f"it is {self._state}")

    # Namespaces

    @whole
    async def put_namespace(self, namespace: str, policy: Policy) -> tuple[NamespaceInfo, bool]:
        """Create or change it; whether it is new. Its topics follow its policy at once."""
        checked_namespace(namespace)
        check_policy(resolved(policy))
        async with self._changing():
            for topic in self._of_namespace(namespace):
                check_policy(resolved(topic.own_policy, policy))
            is_new = namespace not in self._namespaces
            if is_new and len(self._namespaces) >= self.options.namespaces_max:
                raise LimitReached(kind="namespaces", limit=self.options.namespaces_max)
            await self._catalogue.put_namespace(namespace, policy)
            self._namespaces[namespace] = policy
            for topic in self._of_namespace(namespace):
                topic.change(topic.own_policy, policy, topic.schema)
                self._logs.reconfigure(topic)
        if is_new:
            self.events.emit("namespace_created", namespace=namespace)
        return await self.namespace(namespace), is_new

    async def namespace(self, namespace: str) -> NamespaceInfo:
        """NamespaceNotFound."""
        checked_namespace(namespace)
        if namespace not in self._namespaces:
            raise NamespaceNotFound(namespace=namespace)
        topics = sum(1 for _ in self._of_namespace(namespace))
        return NamespaceInfo(namespace=namespace, policy=self._namespaces[namespace], topics=topics)

    async def namespaces(self) -> list[NamespaceInfo]:
        """All of them, by name."""
        topics = Counter(name.namespace for name in self._topics)
        return [
            NamespaceInfo(namespace=namespace, policy=policy, topics=topics[namespace])
            for namespace, policy in sorted(self._namespaces.items())
        ]

    @whole
    async def delete_namespace(self, namespace: str) -> None:
        """NamespaceNotEmpty."""
        async with self._changing():
            info = await self.namespace(namespace)
            if info.topics:
                raise NamespaceNotEmpty(namespace=namespace, topics=info.topics)
            if namespace == DEFAULT_NAMESPACE:
                raise InvalidInput(f"namespace {namespace} is always there")
            await self._catalogue.delete_namespace(namespace)
            del self._namespaces[namespace]
        self.events.emit("namespace_deleted", namespace=namespace)

    def _of_namespace(self, namespace: str) -> Iterator[Topic]:
        return (topic for name, topic in self._topics.items() if name.namespace == namespace)

    # Topics

    @whole
    async def put_topic(self, name: TopicName, settings: TopicSettings) -> tuple[TopicInfo, bool]:
        """Create it, or change its policy and, while it has no data, its schema; whether it is new.

        AlreadyExists, SchemaConflict, NamespaceNotFound, InvalidSettings, LimitReached.
        """
        checker(settings.value_schema)
        async with self._changing():
            namespace = self._namespaces.get(name.namespace)
            if namespace is None:
                raise NamespaceNotFound(namespace=name.namespace)
            check_policy(resolved(settings.policy, namespace))
            if name in self._damaged:
                raise self._damaged[name]
            if name in self._deleting:
                await self._delete_remains(name)
            topic = self._topics.get(name)
            if topic is not None:
                await self._change_topic(topic, settings, namespace)
                return topic.info(), False
            topic = await self._create_topic(name, settings)
        self.events.emit("topic_created", name, partitions=settings.partitions, delivery=str(settings.delivery))
        return topic.info(), True

    async def _create_topic(self, name: TopicName, settings: TopicSettings) -> Topic:
        options = self.options
        if len(self._topics) >= options.topics_max:
            raise LimitReached(kind="topics", limit=options.topics_max)
        if self.counts.partitions + settings.partitions > options.partitions_max:
            raise LimitReached(kind="partitions", limit=options.partitions_max)
        created_ms = int(self._clock.now() * 1000)
        stored = StoredTopic(settings.delivery, settings.partitions, created_ms, secrets.token_hex(8))
        known = CatalogueTopic(stored, settings.policy, settings.value_schema)
        await self._catalogue.create_topic(name, known)
        return self._add_topic(name, known)

    async def _change_topic(self, topic: Topic, settings: TopicSettings, namespace: Policy) -> None:
        stored = topic.stored
        for what, old, new in (
            ("partitions", stored.partitions, settings.partitions),
            ("delivery", stored.delivery, settings.delivery),
        ):
            if old != new:
                raise AlreadyExists(kind="topic", name=str(topic.name), difference=f"{what} is {old}, not {new}")
        schema = settings.value_schema
        if settings.policy == topic.own_policy and schema.fingerprint == topic.schema_id:
            return
        async with topic.quiet() if schema.fingerprint != topic.schema_id else nullcontext():
            if schema.fingerprint != topic.schema_id and await topic.has_data():
                raise SchemaConflict(topic=str(topic.name), ours=schema.fingerprint, current=topic.schema_id)
            await self._catalogue.change_topic(topic.name, settings.policy, schema)
            topic.change(settings.policy, namespace, schema)
        self._logs.reconfigure(topic)
        self.events.emit("topic_changed", topic.name)

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
        )
        for subscription, stored in known.subscriptions.items():
            self._add_subscription(topic, subscription, stored.settings, stored.cursors)
        self._topics[name] = self._by_text[str(name)] = topic
        self.counts.partitions += known.stored.partitions
        return topic

    async def topic(self, name: TopicName) -> TopicInfo:
        """TopicNotFound."""
        return self._topic(name).info()

    async def topics(self, *, namespace: str | None = None, after: str | None = None, limit: int = 100) -> TopicPage:
        """By name, some at a time."""
        if namespace is not None:
            await self.namespace(namespace)
        if not 1 <= limit <= TOPICS_OF_A_PAGE_MAX:
            raise InvalidInput(f"limit must be 1 to {TOPICS_OF_A_PAGE_MAX}, not {limit}")
        names = sorted(text for text, topic in self._by_text.items() if namespace in (None, topic.name.namespace))
        rest = [text for text in names if after is None or text > after]
        page: list[TopicInfo] = []
        size_bytes = 0  # of the schemas, which may be large
        for text in rest[:limit]:
            info = self._by_text[text].info()
            size_bytes += len(msgspec.json.encode(info.settings))
            if page and size_bytes > PAGE_BYTES_MAX:
                break
            page.append(info)
        return TopicPage(topics=page, next=page[-1].topic if len(page) < len(rest) else None)

    @whole
    async def delete_topic(self, name: TopicName, *, force: bool = False) -> None:
        """With all its data. SubscriptionBusy when consumers are attached, unless forced."""
        async with self._changing():
            if name in self._deleting:
                await self._delete_remains(name)
                return
            topic = self._topic(name)
            if not force:
                topic.check_idle()
            await self._catalogue.mark_deleting(name, topic.stored)
            self._deleting[name] = topic.stored
            del self._topics[name], self._by_text[str(name)]
            self.counts.partitions -= topic.stored.partitions
            self.counts.subscriptions -= len(topic.subscriptions)
            self.counts.cursors -= len(topic.subscriptions) * len(topic.partitions)
            error = TopicNotFound(topic=str(name))
            await topic.stop_subscriptions(error)
            await self._writer.forget(topic.cursor_keys())
            await topic.close(error)
            self._logs.forget(topic)
            await self._delete_remains(name)
            self.metrics.forget(str(name))
        self.events.emit("topic_deleted", name)

    async def _delete_remains(self, name: TopicName) -> None:
        """Of a topic that is marked; tried again, by whoever comes next, when it fails."""
        await self._logs.remove(name, self._deleting[name].partitions)
        await self._catalogue.delete_topic(name)
        del self._deleting[name]

    def _topic(self, name: TopicName) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise self._damaged.get(name) or TopicNotFound(topic=str(name))
        return topic

    def topic_named(self, text: str) -> Topic:
        """The topic of `/ns/topic`, without checking a name that is known. TopicNotFound, InvalidName."""
        topic = self._by_text.get(text)
        return topic if topic is not None else self._topic(TopicName.parse(text))

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Changes to what exists run one at a time, and only while the broker serves."""
        async with self._lock:
            self._check_serving()
            yield

    # Subscriptions

    def _add_subscription(
        self, topic: Topic, subscription: str, settings: SubscriptionSettings, cursors: dict[int, Cursor]
    ) -> Subscription:
        context = TopicContext(
            topic=topic.name,
            partitions=topic.partitions,
            writer=self._writer,
            clock=self._clock,
            metrics=topic.metrics,
            bury=partial(self._bury, topic),
        )
        made = Subscription(subscription, settings, cursors, context, topic.rules)
        topic.subscriptions[subscription] = made
        self.counts.subscriptions += 1
        self.counts.cursors += len(topic.partitions)
        return made

    async def _bury(
        self, topic: Topic, subscription: str, partition: int, records: Sequence[Record], attempts: int
    ) -> None:
        """Publish records with where they came from, and create the topic for them if there is none."""
        target = dead_letter_topic(topic.name, topic.policy)
        if target not in self._topics:
            await self._create_if_absent(target)
        grave = self._topic(target)
        partitions = grave.stored.partitions
        for record in records:
            letter = dead_letter(record, PartitionName(topic.name, partition), subscription, attempts)
            accepted = await grave.accept(
                encode([letter]),
                partition=partition_of(record.key, partitions)
                if record.key is not None
                else record.offset % partitions,
                txn_id=txn_id_of(topic.stored.topic_id, partition, subscription, record.offset),
            )
            if accepted.appended is not None:
                await accepted.appended
        self.events.emit(
            "records_dead_lettered", topic.name, subscription=subscription, count=len(records), to=str(target)
        )

    @whole
    async def _create_if_absent(self, name: TopicName) -> None:
        async with self._changing():
            if name.namespace not in self._namespaces:
                raise NamespaceNotFound(namespace=name.namespace)
            if name not in self._topics and name not in self._deleting and name not in self._damaged:
                await self._create_topic(name, TopicSettings())
