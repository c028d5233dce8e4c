"""The broker of one node: what every listener, and the node itself, asks for.

Changes to what exists (namespaces, topics, subscriptions) run one at a time and are in the metadata store before they
are seen here. Records never wait for them.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from msgspec.structs import replace

from sulina.broker.catalogue import Catalogue, CatalogueTopic
from sulina.broker.consumer import Attachment, Consumer
from sulina.broker.cursors import CursorWriter
from sulina.broker.events import EventStream
from sulina.broker.logs import Logs
from sulina.broker.metrics import Metrics
from sulina.broker.options import BrokerOptions, Counts
from sulina.broker.subscription import Subscription, TopicContext
from sulina.broker.topic import Accepted, StoredTopic, Topic
from sulina.clock import SystemClock
from sulina.core.commit import Commit
from sulina.core.cursor import Cursor
from sulina.core.dead_letter import dead_letter, dead_letter_topic, txn_id_of
from sulina.core.position import Position
from sulina.core.records import Record, encode
from sulina.core.routing import partition_of
from sulina.core.topic import Policy, TopicSettings, check_policy, resolved
from sulina.core.values import checker
from sulina.errors import (
    AlreadyExists,
    InvalidInput,
    LimitReached,
    NamespaceNotEmpty,
    NamespaceNotFound,
    NotReliable,
    NotServing,
    NotYet,
    SchemaConflict,
    SubscriptionBusy,
    SubscriptionNotFound,
    TopicNotFound,
)
from sulina.ports import Bytes, Clock, Files, MetadataStore
from sulina.storage.files import OsFiles
from sulina.storage.partition_log import LogThreads
from sulina.types import Offset, PartitionName, TopicName, Version, checked_namespace, checked_subscription
from sulina.wire.messages import (
    Fetched,
    NamespaceInfo,
    NodeInfo,
    PartitionInfo,
    Published,
    SubscriptionInfo,
    SubscriptionSettings,
    TopicInfo,
    TopicPage,
)

DEFAULT_NAMESPACE = "default"
COMMITS_MAX = 1000
FETCH_BYTES_MAX = 16 << 20
TOPICS_OF_A_PAGE_MAX = 1000


class Broker:
    """`start` it, serve, then `stop` it."""

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
        self._lock = asyncio.Lock()  # for changes to what exists
        self._retention: asyncio.Task[None] | None = None
        self._state = "starting"
        self._started_at = self._clock.monotonic()
        self.metrics.collect_lag(self._lags)

    # Its life

    @property
    def is_ready(self) -> bool:
        """Whether it serves."""
        return self._state == "ready"

    async def start(self) -> None:
        """Load what exists. Logs are opened when they are first used."""
        self._namespaces, topics = await self._catalogue.load()
        if DEFAULT_NAMESPACE not in self._namespaces:
            await self._catalogue.put_namespace(DEFAULT_NAMESPACE, Policy())
            self._namespaces[DEFAULT_NAMESPACE] = Policy()
        for name, known in topics.items():
            if known.stored.is_deleting:
                await self._delete_remains(name, known.stored)
            else:
                self._add_topic(name, known)
        self._writer.start()
        self._retention = asyncio.create_task(self._retain_regularly(), name="retention")
        self._state = "ready"
        self.events.emit("broker_started", broker_id=self.options.broker_id, topics=len(self._topics))

    def drain(self) -> None:
        """Refuse what is new, while what was taken is being finished."""
        self._state = "stopping"

    async def stop(self) -> None:
        """Finish what was taken, write the cursors, let go of the logs."""
        self.drain()
        if self._retention is not None:
            self._retention.cancel()
            await asyncio.wait([self._retention])
        error = NotServing(reason="the node is stopping")
        async with self._lock:
            for topic in self._topics.values():
                await topic.stop_subscriptions(error)
            await self._writer.close()
            await asyncio.gather(*(topic.close(error) for topic in self._topics.values()))
        self.events.emit("broker_stopped", broker_id=self.options.broker_id)
        self.events.close()

    def _check_serving(self) -> None:
        if self._state != "ready":
            raise NotServing(reason=f"it is {self._state}")

    def info(self) -> NodeInfo:
        """This node."""
        return NodeInfo(
            broker_id=self.options.broker_id,
            version=self.options.software,
            is_ready=self.is_ready,
            topics=len(self._topics),
            connections=self.counts.connections,
            uptime_seconds=round(self._clock.monotonic() - self._started_at, 3),
        )

    async def _retain_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.options.retention_interval_seconds)
            await self.retain()

    async def retain(self) -> int:
        """Let topics forget what their policies say; how many segments went."""
        return await self._logs.retain(list(self._topics.values()))

    # Namespaces

    async def put_namespace(self, namespace: str, policy: Policy) -> tuple[NamespaceInfo, bool]:
        """Create or change it; whether it is new. Its topics follow its policy at once."""
        checked_namespace(namespace)
        check_policy(resolved(policy))
        async with self._changing():
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
        return [await self.namespace(namespace) for namespace in sorted(self._namespaces)]

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

    async def put_topic(self, name: TopicName, settings: TopicSettings) -> tuple[TopicInfo, bool]:
        """Create it, or change its policy and, while it has no data, its schema; whether it is new.

        AlreadyExists, SchemaConflict, NamespaceNotFound, InvalidSettings, LimitReached.
        """
        checker(settings.value_schema)
        if settings.policy.dead_letter is not None:
            TopicName.parse(settings.policy.dead_letter)
        async with self._changing():
            namespace = self._namespaces.get(name.namespace)
            if namespace is None:
                raise NamespaceNotFound(namespace=name.namespace)
            check_policy(resolved(settings.policy, namespace))
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
        stored = StoredTopic(settings.delivery, settings.partitions, int(self._clock.now() * 1000))
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
        if schema.fingerprint != topic.schema_id and await topic.has_data():
            raise SchemaConflict(topic=str(topic.name), ours=schema.fingerprint, current=topic.schema_id)
        if settings.policy == topic.own_policy and schema.fingerprint == topic.schema_id:
            return
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
        page = [text for text in names if after is None or text > after][: limit + 1]
        return TopicPage(
            topics=[self._by_text[text].info() for text in page[:limit]],
            next=page[limit - 1] if len(page) > limit else None,
        )

    async def delete_topic(self, name: TopicName, *, force: bool = False) -> None:
        """With all its data. SubscriptionBusy when consumers are attached, unless forced."""
        async with self._changing():
            topic = self._topic(name)
            if not force:
                topic.check_idle()
            await self._catalogue.mark_deleting(name, topic.stored)
            del self._topics[name], self._by_text[str(name)]
            self.counts.partitions -= topic.stored.partitions
            self.counts.subscriptions -= len(topic.subscriptions)
            error = TopicNotFound(topic=str(name))
            await topic.stop_subscriptions(error)
            await self._writer.forget(topic.cursor_keys())
            await topic.close(error)
            await self._delete_remains(name, topic.stored)
            self.metrics.forget(str(name))
        self.events.emit("topic_deleted", name)

    async def _delete_remains(self, name: TopicName, stored: StoredTopic) -> None:
        await self._logs.remove(name, stored.partitions)
        await self._catalogue.delete_topic(name)

    def _topic(self, name: TopicName) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(topic=str(name))
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

    # Records

    async def accept(
        self,
        topic: str,
        data: Bytes,
        *,
        partition: int | None = None,
        txn_id: str | None = None,
        expected_version: int | None = None,
        schema_id: str | None = None,
    ) -> Accepted:
        """Take batches without waiting for them to be durable: the answer's future says when they are."""
        self._check_serving()
        return await self.topic_named(topic).accept(
            data, partition=partition, txn_id=txn_id, expected_version=expected_version, schema_id=schema_id
        )

    async def publish(
        self,
        name: TopicName,
        data: Bytes,
        *,
        partition: int | None = None,
        txn_id: str | None = None,
        expected_version: int | None = None,
        schema_id: str | None = None,
    ) -> Published:
        """Append encoded batches to one partition, all or nothing."""
        self._check_serving()
        accepted = await self._topic(name).accept(
            data, partition=partition, txn_id=txn_id, expected_version=expected_version, schema_id=schema_id
        )
        if accepted.appended is not None:
            await accepted.appended
        return accepted.published()

    async def publish_records(
        self,
        name: TopicName,
        records: Sequence[Record],
        *,
        partition: int | None = None,
        txn_id: str | None = None,
        expected_version: int | None = None,
        schema_id: str | None = None,
    ) -> Published:
        """Append records, in one batch. Those without a timestamp get the time of now."""
        now_ms = int(self._clock.now() * 1000)
        stamped = [record if record.timestamp_ms >= 0 else replace(record, timestamp_ms=now_ms) for record in records]
        return await self.publish(
            name,
            encode(stamped),
            partition=partition,
            txn_id=txn_id,
            expected_version=expected_version,
            schema_id=schema_id,
        )

    async def fetch(
        self,
        name: TopicName,
        partition: int,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        version: int | None = None,
        min_version: int | None = None,
        wait_seconds: float = 0,
    ) -> Fetched:
        """Batches from `offset` on, waiting for the first if there is none yet. NotYet: the version is not there."""
        self._check_serving()
        log = await self._topic(name).partition(partition).log()
        if min_version is not None:
            await log.wait_for(version=Version(min_version), timeout_seconds=wait_seconds)
        view = log.view
        if wait_seconds > 0 and version is None and offset == view.next_offset:
            try:
                await log.wait_for(offset=Offset(offset), timeout_seconds=wait_seconds)
            except NotYet:
                self._check_serving()
        found = await log.read(
            Offset(offset),
            max_bytes=min(max(max_bytes, 0), FETCH_BYTES_MAX),
            version=None if version is None else Version(version),
        )
        return Fetched(
            data=found.data,
            offset=offset,
            next_offset=found.next_offset,
            version=found.version,
            end_offset=found.end_offset,
        )

    async def commits(self, name: TopicName, partition: int, start: int, end: int) -> list[Commit]:
        """The commits of versions [start, end), a thousand at most."""
        log = await self._topic(name).partition(partition).log()
        if start < 0 or end < start:
            raise InvalidInput(f"[{start}, {end}) is not a range of versions")
        return await log.commits(Version(start), Version(min(end, start + COMMITS_MAX)))

    async def partition(self, name: TopicName, partition: int) -> PartitionInfo:
        """Its offsets, version and segments."""
        return await self._topic(name).partition(partition).info()

    async def locate(self, name: TopicName, partition: int, position: Position) -> int:
        """The offset that a position means now."""
        return await self._topic(name).partition(partition).locate(position)

    # Subscriptions

    async def put_subscription(
        self, name: TopicName, subscription: str, settings: SubscriptionSettings
    ) -> tuple[SubscriptionInfo, bool]:
        """Create it, its cursors where `start` says; whether it is new. AlreadyExists when it is of another kind."""
        made, is_new = await self._subscription(self._topic(name), checked_subscription(subscription), settings)
        if made.settings.kind != settings.kind:
            raise AlreadyExists(
                kind="subscription", name=subscription, difference=f"it is {made.settings.kind}, not {settings.kind}"
            )
        return await made.info(), is_new

    async def _subscription(
        self, topic: Topic, subscription: str, settings: SubscriptionSettings
    ) -> tuple[Subscription, bool]:
        """The subscription, made if there is none; whether it is new."""
        if not topic.is_reliable:
            raise NotReliable(topic=str(topic.name))
        known = topic.subscriptions.get(subscription)
        if known is not None:
            return known, False
        position = Position.parse(settings.start)
        async with self._changing():
            if self._topics.get(topic.name) is not topic:
                raise TopicNotFound(topic=str(topic.name))
            known = topic.subscriptions.get(subscription)
            if known is not None:
                return known, False
            if self.counts.subscriptions >= self.options.subscriptions_max:
                raise LimitReached(kind="subscriptions", limit=self.options.subscriptions_max)
            cursors = {p.name.partition: Cursor(await p.locate(position)) for p in topic.partitions}
            await self._catalogue.create_subscription(topic.name, subscription, settings, cursors)
            made = self._add_subscription(topic, subscription, settings, cursors)
        self.events.emit("subscription_added", topic.name, subscription=subscription, kind=str(settings.kind))
        return made, True

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
        return made

    async def _bury(
        self, topic: Topic, subscription: str, partition: int, records: Sequence[Record], attempts: int
    ) -> None:
        """Publish records with where they came from, and create the topic for them if there is none."""
        target = dead_letter_topic(topic.name, topic.policy)
        if target not in self._topics:
            await self.put_topic(target, TopicSettings())
        partitions = self._topic(target).stored.partitions
        for record in records:
            letter = dead_letter(record, PartitionName(topic.name, partition), subscription, attempts)
            chosen = partition_of(record.key, partitions) if record.key is not None else record.offset % partitions
            await self.publish_records(
                target, [letter], partition=chosen, txn_id=txn_id_of(topic.name, partition, subscription, record.offset)
            )
        self.events.emit(
            "records_dead_lettered", topic.name, subscription=subscription, count=len(records), to=str(target)
        )

    async def subscription(self, name: TopicName, subscription: str) -> SubscriptionInfo:
        """SubscriptionNotFound."""
        return await self._known(name, subscription).info()

    async def subscriptions(self, name: TopicName) -> list[SubscriptionInfo]:
        """All of a topic, by name."""
        topic = self._topic(name)
        return [await topic.subscriptions[subscription].info() for subscription in sorted(topic.subscriptions)]

    async def delete_subscription(self, name: TopicName, subscription: str, *, force: bool = False) -> None:
        """With its cursors. SubscriptionBusy when consumers are attached, unless forced."""
        async with self._changing():
            topic, known = self._topic(name), self._known(name, subscription)
            if known.members.present and not force:
                reason = f"{len(known.members.present)} consumers are attached; force lets them go"
                raise SubscriptionBusy(topic=str(name), subscription=subscription, reason=reason)
            error = SubscriptionNotFound(topic=str(name), subscription=subscription)
            await known.close(error)
            await self._writer.forget(known.cursor_keys())
            await self._catalogue.delete_subscription(name, subscription, range(len(topic.partitions)))
            del topic.subscriptions[subscription]
            self.counts.subscriptions -= 1
        self.events.emit("subscription_removed", name, subscription=subscription)

    async def seek(
        self, name: TopicName, subscription: str, position: Position, *, partition: int | None = None
    ) -> SubscriptionInfo:
        """Move it, in one partition or in all; its consumers are let go and come back."""
        self._check_serving()
        known = self._known(name, subscription)
        await known.seek(position, partition)
        self.events.emit("subscription_moved", name, subscription=subscription, position=str(position))
        return await known.info()

    def _known(self, name: TopicName, subscription: str) -> Subscription:
        known = self._topic(name).subscriptions.get(checked_subscription(subscription))
        if known is None:
            raise SubscriptionNotFound(topic=str(name), subscription=subscription)
        return known

    async def attach(
        self, name: TopicName, subscription: str, settings: SubscriptionSettings, consumer: Consumer
    ) -> Attachment:
        """Send records to a consumer from now on; the subscription is made if there is none."""
        self._check_serving()
        topic = self._topic(name)
        checked_subscription(subscription)
        if self.counts.consumers >= self.options.consumers_max:
            raise LimitReached(kind="consumers", limit=self.options.consumers_max)
        if topic.is_reliable:
            known, _ = await self._subscription(topic, subscription, settings)
            await known.attach(consumer, settings)
            attachment = Attachment(consumer, known, partial(known.detach, consumer))
        else:
            topic.attach_passing(subscription, settings, consumer)
            attachment = Attachment(consumer, None, partial(topic.detach_passing, subscription, consumer))
        self.counts.consumers += 1
        self.metrics.consumers.set(self.counts.consumers)
        self.events.emit("consumer_attached", name, subscription=subscription, consumer=consumer.name)
        return attachment

    async def detach(self, name: TopicName, attachment: Attachment) -> None:
        """The consumer's connection has ended, or it has had enough."""
        self.counts.consumers -= 1
        self.metrics.consumers.set(self.counts.consumers)
        await attachment.leave()
        self.events.emit("consumer_detached", name, consumer=attachment.consumer.name)

    def _lags(self) -> Iterator[tuple[str, str, int]]:
        for text, topic in self._by_text.items():
            for name, subscription in topic.subscriptions.items():
                lag = subscription.lag()
                if lag is not None:
                    yield text, name, lag
