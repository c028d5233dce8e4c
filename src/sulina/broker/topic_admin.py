"""How namespaces and topics are created, changed and deleted, and how they are listed.

Changes run one at a time, are in the metadata store before they are seen here, and are finished even if the client that
asked for them has gone. Records do not wait for them, except the first of a topic that was changed at that moment.
A topic is deleted in two steps: it is marked, and from then on served no more; then its data goes, and the mark last.
So a delete that was cut short is finished later, and a new topic of the same name never meets data of the old one.
"""

import asyncio
import contextlib
from collections import Counter
from functools import partial
from typing import Any

import msgspec

from sulina.broker.all_owners import AllOwners
from sulina.broker.catalogue import Outdated
from sulina.broker.cluster_handle import ClusterHandle
from sulina.broker.dead_letters import check_dead_letters
from sulina.broker.events import EventStream
from sulina.broker.options import BrokerOptions
from sulina.broker.partition_logs import PartitionLogs
from sulina.broker.run_to_completion import run_to_completion
from sulina.broker.stored_topic import StoredTopic
from sulina.broker.topic import Topic
from sulina.broker.topic_registry import DEFAULT_NAMESPACE, TopicRegistry
from sulina.core.records.values import checker
from sulina.core.topic import Policy, TopicSettings, resolved
from sulina.errors import (
    AlreadyExists,
    InvalidInput,
    LimitReached,
    NamespaceNotEmpty,
    NamespaceNotFound,
    SchemaConflict,
    SulinaError,
)
from sulina.ports import Clock, Compare
from sulina.types import TopicName, checked_namespace
from sulina.wire.messages import NamespaceInfo, TopicInfo, TopicPage

TOPICS_OF_A_PAGE_MAX = 1000
PAGE_BYTES_MAX = 4 << 20


class TopicAdmin:
    """Creates, changes, deletes and lists namespaces and topics."""

    def __init__(
        self,
        registry: TopicRegistry,
        *,
        cluster: ClusterHandle,
        owners: AllOwners,
        logs: PartitionLogs,
        options: BrokerOptions,
        clock: Clock,
        events: EventStream,
    ) -> None:
        self.changes: set[asyncio.Task[Any]] = registry.changes
        self._registry = registry
        self._catalogue = registry.catalogue
        self._topics = registry.topics
        self._cluster = cluster
        self._owners = owners
        self._logs = logs
        self._options = options
        self._clock = clock
        self._events = events
        self._deletes = asyncio.Lock()  # one at a time, of what is left of topics

    # Namespaces

    @run_to_completion
    async def put_namespace(self, namespace: str, policy: Policy) -> tuple[NamespaceInfo, bool]:
        """Create or change a namespace; return it, and whether it is new. Its topics follow its policy at once.

        Raises:
            InvalidSettings: its policy, or that of a topic in it, would contradict itself.
            LimitReached: there are too many namespaces.
            NewerFormat: a newer version wrote its policy.
        """
        checked_namespace(namespace)
        self._registry.check_policy(resolved(policy))
        async with self._registry.changing():
            is_new = await self._registry.agreed(namespace, partial(self._put_namespace, namespace, policy))
            await self._registry.sync_namespace(namespace)
        if is_new:
            self._events.emit("namespace_created", namespace=namespace)
        return await self.namespace(namespace), is_new

    async def _put_namespace(self, namespace: str, policy: Policy) -> bool:
        for topic in self._topics.of_namespace(namespace):
            self._registry.check_policy(resolved(topic.own_policy, policy))
        is_new = self._registry.policy_of(namespace) is None
        if is_new and len(self._registry.namespaces) >= self._options.limits.namespaces_max:
            raise LimitReached(kind="namespaces", limit=self._options.limits.namespaces_max)
        unchanged: list[Compare] = []
        if policy.dead_letter is not None:
            target = TopicName.parse(policy.dead_letter)
            unchanged = await check_dead_letters(self._catalogue, [target], namespaces={namespace: policy})
        await self._catalogue.put_namespace(namespace, policy, unchanged)
        return is_new

    async def namespace(self, namespace: str) -> NamespaceInfo:
        """Return a namespace.

        Raises:
            NamespaceNotFound: there is no such namespace.
            NewerFormat: a newer version wrote its policy.
        """
        checked_namespace(namespace)
        policy = self._registry.policy_of(namespace)
        if policy is None:
            raise NamespaceNotFound(namespace=namespace)
        topics = sum(1 for _ in self._topics.of_namespace(namespace))
        return NamespaceInfo(namespace=namespace, policy=policy, topics=topics)

    async def namespaces(self) -> list[NamespaceInfo]:
        """Return all namespaces, by name."""
        topics = Counter(topic.name.namespace for topic in self._topics)
        return [
            NamespaceInfo(namespace=namespace, policy=policy, topics=topics[namespace])
            for namespace, policy in sorted(self._registry.namespaces.items())
        ]

    @run_to_completion
    async def delete_namespace(self, namespace: str) -> None:
        """Delete a namespace.

        Raises:
            NamespaceNotFound: there is no such namespace.
            NamespaceNotEmpty: it has topics.
        """
        async with self._registry.changing():
            await self._registry.agreed(namespace, partial(self._delete_namespace, namespace))
            await self._registry.sync_namespace(namespace)
        self._events.emit("namespace_deleted", namespace=namespace)

    async def _delete_namespace(self, namespace: str) -> None:
        info = await self.namespace(namespace)
        topics = max(info.topics, await self._catalogue.topics_of(namespace))
        if topics:
            raise NamespaceNotEmpty(namespace=namespace, topics=topics)
        if namespace == DEFAULT_NAMESPACE:
            raise InvalidInput(f"namespace {namespace} is always there")
        await self._catalogue.delete_namespace(namespace)

    # Topics

    @run_to_completion
    async def put_topic(self, name: TopicName, settings: TopicSettings) -> tuple[TopicInfo, bool]:
        """Create a topic, or change its policy and, while it has no data, its schema; return it, and whether it is new.

        Raises:
            AlreadyExists: it has other partitions, or another delivery.
            SchemaConflict: it has data of another schema.
            NamespaceNotFound, InvalidSettings, LimitReached: it may not be created so.
        """
        checker(settings.value_schema)
        async with self._registry.changing():
            is_new = await self._registry.agreed(name, partial(self._put_topic, name, settings))
            await self._registry.sync_topic(name)
            topic = self._registry.topic(name)
        if is_new:
            self._events.emit("topic_created", name, partitions=settings.partitions, delivery=str(settings.delivery))
            await self._cluster.wait_placed([ownership.name for ownership in topic.ownerships])
        return topic.info(), is_new

    async def _put_topic(self, name: TopicName, settings: TopicSettings) -> bool:
        if name in self._registry.damaged:
            raise self._registry.damaged[name]
        if name in self._registry.deleting:
            await self.finish_delete(name)
        topic = self._topics.get(name)
        if topic is not None:
            await self._change_topic(topic, settings)
            return False
        await self._registry.create_topic(name, settings)
        return True

    async def _change_topic(self, topic: Topic, settings: TopicSettings) -> None:
        stored = topic.stored
        namespace = self._registry.namespaces.get(topic.name.namespace, Policy())
        self._registry.check_policy(resolved(settings.policy, namespace))
        for what, old, new in (
            ("partitions", stored.partitions, settings.partitions),
            ("delivery", stored.delivery, settings.delivery),
        ):
            if old != new:
                raise AlreadyExists(kind="topic", name=str(topic.name), difference=f"{what} is {old}, not {new}")
        schema = settings.value_schema
        unchanged: list[Compare] = []
        if settings.policy != topic.own_policy:
            unchanged = await self._registry.dead_letters_end(topic.name, settings.policy)
        if schema.fingerprint != topic.schema_id:
            if topic.is_fixed:
                raise SchemaConflict(topic=str(topic.name), ours=schema.fingerprint, current=topic.schema_id)
            await self._catalogue.change_topic(topic.name, settings.policy, schema, unchanged)
        elif settings.policy != topic.own_policy:
            await self._catalogue.change_topic(topic.name, settings.policy, None, unchanged)

    async def topic(self, name: TopicName) -> TopicInfo:
        """Return a topic.

        Raises:
            TopicNotFound: there is no such topic.
        """
        return self._registry.topic(name).info()

    async def topics(self, *, namespace: str | None = None, after: str | None = None, limit: int = 100) -> TopicPage:
        """Return a page of topics, by name.

        Raises:
            NamespaceNotFound: there is no such namespace.
            InvalidInput: the limit is out of bounds.
        """
        if namespace is not None:
            await self.namespace(namespace)
        if not 1 <= limit <= TOPICS_OF_A_PAGE_MAX:
            raise InvalidInput(f"limit must be 1 to {TOPICS_OF_A_PAGE_MAX}, not {limit}")
        found = {str(topic.name): topic for topic in self._topics if namespace in (None, topic.name.namespace)}
        rest = sorted(text for text in found if after is None or text > after)
        page: list[TopicInfo] = []
        size_bytes = 0  # of the schemas, which may be large
        for text in rest[:limit]:
            info = found[text].info()
            size_bytes += len(msgspec.json.encode(info.settings))
            if page and size_bytes > PAGE_BYTES_MAX:
                break
            page.append(info)
        return TopicPage(topics=page, next=page[-1].topic if len(page) < len(rest) else None)

    @run_to_completion
    async def delete_topic(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic with all its data.

        Raises:
            SubscriptionBusy: consumers are attached at a broker, and it was not forced.
            OwnersNotReached: a broker that may have consumers does not answer.
        """
        if not force and name not in self._registry.deleting:
            await self._owners.check_idle(name)
        async with self._registry.changing():
            if name not in self._registry.deleting:
                await self._registry.agreed(name, partial(self._mark_deleting, name, force))
                await self._registry.sync_topic(name)
        await self.finish_delete(name)
        self._events.emit("topic_deleted", name)

    async def _mark_deleting(self, name: TopicName, force: bool) -> None:
        topic = self._registry.topic(name)
        if not force:
            topic.check_idle()  # one may have come while others were asked
        await self._catalogue.mark_deleting(name, topic.stored)

    async def finish_delete(self, name: TopicName) -> None:
        """Delete what is left of a topic that is marked. If it fails, the next call tries it again.

        Other topics need not wait for it; a new topic of the same name does.
        """
        async with self._deletes:
            stored, known = self._registry.deleting.get(name), self._catalogue.topic(name)
            if stored is None:
                return
            if known is not None and known.stored == stored:  # else another broker was quicker
                with contextlib.suppress(Outdated):
                    await self._delete_remains(name, stored, self._catalogue.mark(name))
            if self._registry.deleting.get(name) is stored:
                del self._registry.deleting[name]

    async def _delete_remains(self, name: TopicName, stored: StoredTopic, mark: Compare) -> None:
        """Delete what is left while `mark` holds, by which this very topic is being deleted.

        The name may be another topic's at any moment.
        """
        await self._cluster.forget_topic(name, stored.partitions, mark)  # its owners release it
        await self._logs.opener.delete(name, stored)
        if name not in self._topics:
            await self._logs.remove(name, stored)
        await self._catalogue.delete_topic(name, stored.topic_id, mark, int(self._clock.now() * 1000))

    async def finish_deletes(self) -> None:
        """Finish every delete that was begun and not finished; what fails is tried again by the next call."""
        for name in list(self._registry.deleting):
            try:
                await self.finish_delete(name)
            except (SulinaError, OSError) as error:
                self._events.emit("topic_not_deleted", name, reason=str(error))
