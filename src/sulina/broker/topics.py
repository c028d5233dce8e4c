"""What exists on a broker: namespaces, topics and subscriptions, and how they come, change and go.

Changes run one at a time, are in the metadata store before they are seen here, and are finished even if whoever asked
for them has gone. Records do not wait for them, except the first of a topic that was changed at that moment.
"""

import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from sulina.broker.catalogue import CatalogueTopic, Outdated
from sulina.broker.known_topics import DEFAULT_NAMESPACE, KnownTopics
from sulina.broker.stored_topic import StoredTopic
from sulina.broker.topic import Topic, refuse_consumers
from sulina.broker.whole import whole
from sulina.core.cluster import keys
from sulina.core.delivery.dead_letter import (
    DEAD_LETTER_SUFFIX,
    check_way,
    dead_letter,
    dead_letter_topic,
    is_end,
    txn_id_of,
)
from sulina.core.log.publish_request import PublishRequest
from sulina.core.records.record import StoredRecord, encode
from sulina.core.records.routing import partition_of
from sulina.core.records.values import checker
from sulina.core.topic import Policy, TopicSettings, check_policy, resolved
from sulina.errors import (
    AlreadyExists,
    InvalidInput,
    LimitReached,
    NamespaceNotEmpty,
    NamespaceNotFound,
    SchemaConflict,
)
from sulina.ports import Compare
from sulina.types import PartitionName, TopicName, checked_namespace
from sulina.wire.messages import NamespaceInfo, TopicInfo, TopicPage

TOPICS_OF_A_PAGE_MAX = 1000
PAGE_BYTES_MAX = 4 << 20


class Topics(KnownTopics):
    """What of these may be asked for, made, changed and deleted."""

    async def _load(self) -> tuple[int, int]:
        """What exists; what was being deleted is finished. The revisions from which to follow changes."""
        revisions = await super()._load()
        if self._standing is None:
            for name in list(self._deleting):
                try:
                    await self._finish_delete(name)
                except OSError as error:
                    self.events.emit("topic_not_deleted", name, reason=str(error))
        return revisions

    # Namespaces

    @whole
    async def put_namespace(self, namespace: str, policy: Policy) -> tuple[NamespaceInfo, bool]:
        """Create or change it; whether it is new. Its topics follow its policy at once."""
        checked_namespace(namespace)
        self._check_policy(resolved(policy))
        async with self._changing():
            is_new = await self._agreed(namespace, partial(self._put_namespace, namespace, policy))
            self._sync_namespace(namespace)
        if is_new:
            self.events.emit("namespace_created", namespace=namespace)
        return await self.namespace(namespace), is_new

    async def _put_namespace(self, namespace: str, policy: Policy) -> bool:
        for topic in self._of_namespace(namespace):
            self._check_policy(resolved(topic.own_policy, policy))
        is_new = namespace not in self._namespaces
        if is_new and len(self._namespaces) >= self.options.namespaces_max:
            raise LimitReached(kind="namespaces", limit=self.options.namespaces_max)
        unchanged: list[Compare] = []
        if policy.dead_letter is not None:
            target = TopicName.parse(policy.dead_letter)
            unchanged = await self._check_dead_letters([target], namespaces={namespace: policy})
        await self._catalogue.put_namespace(namespace, policy, unchanged)
        return is_new

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
            await self._agreed(namespace, partial(self._delete_namespace, namespace))
            self._sync_namespace(namespace)
        self.events.emit("namespace_deleted", namespace=namespace)

    async def _delete_namespace(self, namespace: str) -> None:
        info = await self.namespace(namespace)
        topics = max(info.topics, await self._catalogue.topics_of(namespace))
        if topics:
            raise NamespaceNotEmpty(namespace=namespace, topics=topics)
        if namespace == DEFAULT_NAMESPACE:
            raise InvalidInput(f"namespace {namespace} is always there")
        await self._catalogue.delete_namespace(namespace)

    async def _check_dead_letters(
        self, way: list[TopicName], policy: Policy | None = None, *, namespaces: Mapping[str, Policy]
    ) -> list[Compare]:
        """Follow dead letters from the last topic of `way` on; what must stay as it is for the way to end.

        `policy` is the topic's; None: the stored one. `namespaces` are about to get these policies.
        InvalidSettings when they would go in a circle, or too far.
        """
        unchanged: list[Compare] = []
        while not way[-1].topic.endswith(DEAD_LETTER_SUFFIX):
            own, own_stays = await self._catalogue.read_policy(keys.policy(way[-1]))
            namespace, namespace_stays = await self._catalogue.read_policy(keys.namespace_policy(way[-1].namespace))
            if policy is None:
                unchanged.append(own_stays)
            if way[-1].namespace not in namespaces:
                unchanged.append(namespace_stays)
            found = resolved(policy or own, namespaces.get(way[-1].namespace, namespace))
            if is_end(way[-1], found):
                break
            way, policy = [*way, dead_letter_topic(way[-1], found)], None
            check_way(way)
        return list(dict.fromkeys(unchanged))

    def _check_policy(self, policy: Policy) -> None:
        check_policy(policy, is_archiving=self._archives is not None)

    # Topics

    @whole
    async def put_topic(self, name: TopicName, settings: TopicSettings) -> tuple[TopicInfo, bool]:
        """Create it, or change its policy and, while it has no data, its schema; whether it is new.

        AlreadyExists, SchemaConflict, NamespaceNotFound, InvalidSettings, LimitReached.
        """
        checker(settings.value_schema)
        async with self._changing():
            is_new = await self._agreed(name, partial(self._put_topic, name, settings))
            await self._sync_topic(name)
            topic = self._topic(name)
        if is_new:
            self.events.emit("topic_created", name, partitions=settings.partitions, delivery=str(settings.delivery))
            await self._placed(topic)
        return topic.info(), is_new

    async def _put_topic(self, name: TopicName, settings: TopicSettings) -> bool:
        namespace = self._namespaces.get(name.namespace)
        if namespace is None:
            raise NamespaceNotFound(namespace=name.namespace)
        self._check_policy(resolved(settings.policy, namespace))
        if name in self._damaged:
            raise self._damaged[name]
        if name in self._deleting:
            await self._finish_delete(name)
        topic = self._topics.get(name)
        if topic is not None:
            await self._change_topic(topic, settings)
            return False
        await self._create_topic(name, settings)
        return True

    async def _dead_letters_end(self, name: TopicName, policy: Policy) -> list[Compare]:
        """Return what must stay as it is for dead letters of a topic with this policy to come to an end."""
        namespace = self._namespaces.get(name.namespace, Policy())
        if resolved(policy, namespace).dead_letter is None:
            return []  # they go beside the topic
        return await self._check_dead_letters([name], policy, namespaces={})

    async def _create_topic(self, name: TopicName, settings: TopicSettings) -> None:
        options = self.options
        if len(self._topics) >= options.topics_max:
            raise LimitReached(kind="topics", limit=options.topics_max)
        if self.counts.partitions + settings.partitions > options.partitions_max:
            raise LimitReached(kind="partitions", limit=options.partitions_max)
        now_ms = int(self._clock.now() * 1000)
        stored = StoredTopic(settings.delivery, settings.partitions, now_ms, secrets.token_hex(8))
        known = CatalogueTopic(stored, settings.policy, settings.value_schema)
        await self._catalogue.create_topic(
            name,
            known,
            unassigned_ms=None if self._standing is None else now_ms,
            unchanged=await self._dead_letters_end(name, settings.policy),
        )

    async def _change_topic(self, topic: Topic, settings: TopicSettings) -> None:
        stored = topic.stored
        for what, old, new in (
            ("partitions", stored.partitions, settings.partitions),
            ("delivery", stored.delivery, settings.delivery),
        ):
            if old != new:
                raise AlreadyExists(kind="topic", name=str(topic.name), difference=f"{what} is {old}, not {new}")
        schema = settings.value_schema
        unchanged: list[Compare] = []
        if settings.policy != topic.own_policy:
            unchanged = await self._dead_letters_end(topic.name, settings.policy)
        if schema.fingerprint != topic.schema_id:
            if topic.is_fixed:
                raise SchemaConflict(topic=str(topic.name), ours=schema.fingerprint, current=topic.schema_id)
            await self._catalogue.change_topic(topic.name, settings.policy, schema, unchanged)
        elif settings.policy != topic.own_policy:
            await self._catalogue.change_topic(topic.name, settings.policy, None, unchanged)

    async def _placed(self, topic: Topic) -> None:
        """Return when the partitions of a new topic have owners; a node that is alone has them at once."""

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
        """With all its data. SubscriptionBusy when consumers are attached at any broker, unless forced.

        OwnersNotReached when a broker that may have consumers does not answer.
        """
        if not force and name not in self._deleting:
            await self._check_idle(name)
        async with self._changing():
            if name not in self._deleting:
                await self._agreed(name, partial(self._mark_deleting, name, force))
                await self._sync_topic(name)
        await self._finish_delete(name)
        self.events.emit("topic_deleted", name)

    async def _check_idle(self, name: TopicName, subscription: str | None = None) -> None:
        """Raise SubscriptionBusy when consumers of a topic, or of one subscription of it, are attached."""
        refuse_consumers(name, self._topic(name).consumers(), subscription)

    async def _mark_deleting(self, name: TopicName, force: bool) -> None:
        topic = self._topic(name)
        if not force:
            topic.check_idle()  # one may have come while others were asked
        await self._catalogue.mark_deleting(name, topic.stored)

    async def _finish_delete(self, name: TopicName) -> None:
        """Delete what is left of a topic that is marked; tried again, by whoever comes next, when it fails.

        Others need not wait for it, but who wants the name does.
        """
        async with self._deletes:
            stored, known = self._deleting.get(name), self._catalogue.topic(name)
            if stored is None:
                return
            if known is not None and known.stored == stored:  # else another broker was quicker
                with contextlib.suppress(Outdated):
                    await self._delete_remains(name, stored, self._catalogue.mark(name))
            if self._deleting.get(name) is stored:
                del self._deleting[name]

    async def _delete_remains(self, name: TopicName, stored: StoredTopic, mark: Compare) -> None:
        """While `mark` holds, by which this very topic is being deleted: its name may be another's any moment."""
        if name not in self._topics:
            await self._logs.remove(name, stored)
        await self._catalogue.delete_topic(name, stored.topic_id, mark, int(self._clock.now() * 1000))

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Changes to what exists run one at a time, and only while the broker serves."""
        async with self._lock:
            self._check_serving()
            yield

    async def _bury(
        self, topic: Topic, subscription: str, partition: int, records: Sequence[StoredRecord], attempts: int
    ) -> None:
        """Publish records with where they came from, and create the topic for them if there is none."""
        target = dead_letter_topic(topic.name, topic.policy)
        if target not in self._topics:
            await self._create_if_absent(target)
        grave = self._topic(target)
        partitions = grave.stored.partitions
        for record in records:
            letter = dead_letter(record, PartitionName(topic.name, partition), subscription, attempts)
            number = partition_of(record.key, partitions) if record.key is not None else record.offset % partitions
            txn_id = txn_id_of(topic.stored.topic_id, partition, subscription, record.offset)
            await self._send(grave, letter, number, txn_id)
        self.events.emit(
            "records_dead_lettered", topic.name, subscription=subscription, count=len(records), to=str(target)
        )

    async def _send(self, topic: Topic, record: StoredRecord, partition: int, txn_id: str) -> None:
        """Publish a record of our own, wherever the partition is served. What is put aside need not fit the schema."""
        schema_id = topic.schema_id
        if self.others is not None and not topic.places[partition].is_here:
            await self.others.publish(PartitionName(topic.name, partition), record, txn_id, schema_id)
            return
        request = PublishRequest(encode([record]), partition=partition, txn_id=txn_id, schema_id=schema_id)
        await (await topic.accept(request)).wait()

    @whole
    async def _create_if_absent(self, name: TopicName) -> None:
        async with self._changing():
            if name not in self._topics and name not in self._deleting and name not in self._damaged:
                await self._agreed(name, partial(self._put_topic, name, TopicSettings()))
                await self._sync_topic(name)
        if (topic := self._topics.get(name)) is not None:
            await self._placed(topic)
