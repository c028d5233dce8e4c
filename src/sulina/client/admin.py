"""What a node is asked about its namespaces, topics and subscriptions, each as one request."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from sulina.client.checks import (
    PositionLike,
    TopicLike,
    checked,
    checked_number,
    checked_seconds,
    position_text,
    topic_text,
)
from sulina.client.session import Session
from sulina.core.commit import Commit
from sulina.core.members import SubscriptionKind
from sulina.core.topic import Delivery, Policy, Schema, TopicSettings
from sulina.wire.frames import Call, Fetch
from sulina.wire.messages import (
    Fetched,
    NamespaceInfo,
    NodeInfo,
    PartitionInfo,
    SubscriptionInfo,
    SubscriptionSettings,
    TopicInfo,
    TopicPage,
)

PAGE = 1000

PolicyLike = Policy | Mapping[str, Any]
SchemaLike = Schema | Mapping[str, Any]
T = TypeVar("T")


class Admin:
    """Reads are repeated after a disconnect. Changes are not, once they have been sent: their outcome is unknown."""

    def __init__(self, session: Session) -> None:
        self._session = session

    # Namespaces

    async def create_namespace(self, namespace: str, policy: PolicyLike | None = None) -> NamespaceInfo:
        """Create it, or give it another policy."""
        plain = msgspec.to_builtins(checked(policy or {}, Policy))
        answer: tuple[NamespaceInfo, bool] = await self._change(
            "put_namespace", tuple[NamespaceInfo, bool], namespace=namespace, policy=plain
        )
        return answer[0]

    async def namespace(self, namespace: str) -> NamespaceInfo:
        """NamespaceNotFound."""
        return await self._read("namespace", NamespaceInfo, namespace=namespace)

    async def namespaces(self) -> list[NamespaceInfo]:
        """All of them."""
        return await self._read("namespaces", list[NamespaceInfo])

    async def delete_namespace(self, namespace: str) -> None:
        """NamespaceNotEmpty."""
        await self._change("delete_namespace", None, namespace=namespace)

    # Topics

    async def create_topic(
        self,
        topic: TopicLike,
        partitions: int = 1,
        *,
        delivery: Delivery | str = Delivery.RELIABLE,
        policy: PolicyLike | None = None,
        schema: SchemaLike | None = None,
    ) -> TopicInfo:
        """Create it; one that exists gets this policy and, while it has no data, this schema.

        AlreadyExists, SchemaConflict, InvalidSettings, NamespaceNotFound.
        """
        settings = TopicSettings(
            partitions=partitions,
            delivery=checked(delivery, Delivery),
            policy=checked(policy or {}, Policy),
            value_schema=checked(schema or {}, Schema),
        )
        plain = msgspec.to_builtins(settings)
        checked(plain, TopicSettings)  # the bounds are only looked at here
        answer: tuple[TopicInfo, bool] = await self._change(
            "put_topic", tuple[TopicInfo, bool], topic=topic_text(topic), settings=plain
        )
        return answer[0]

    async def topic(self, topic: TopicLike, timeout_seconds: float | None = None) -> TopicInfo:
        """TopicNotFound."""
        return await self._read("topic", TopicInfo, timeout_seconds, topic=topic_text(topic))

    async def topics(self, *, namespace: str | None = None) -> list[TopicInfo]:
        """All of them, or those of one namespace, by name."""
        found: list[TopicInfo] = []
        after: str | None = None
        while True:
            page = await self._read("topics", TopicPage, namespace=namespace, after=after, limit=PAGE)
            found += page.topics
            after = page.next
            if after is None:
                return found

    async def delete_topic(self, topic: TopicLike, *, force: bool = False) -> None:
        """With all its data. SubscriptionBusy while consumers are attached, unless forced."""
        await self._change("delete_topic", None, topic=topic_text(topic), force=force)

    async def partition(self, topic: TopicLike, partition: int = 0) -> PartitionInfo:
        """Its offsets, version and segments."""
        return await self._read("partition", PartitionInfo, topic=topic_text(topic), partition=partition)

    async def commits(self, topic: TopicLike, partition: int = 0, *, start: int, end: int) -> list[Commit]:
        """The commits of versions [start, end), a thousand at most."""
        return await self._read(
            "commits", list[Commit], topic=topic_text(topic), partition=partition, start=start, end=end
        )

    async def locate(self, topic: TopicLike, position: PositionLike, partition: int = 0) -> int:
        """The offset that a position means now."""
        return await self._read(
            "locate", int, topic=topic_text(topic), partition=partition, position=position_text(position)
        )

    async def fetch(
        self,
        topic: TopicLike,
        partition: int,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        version: int | None = None,
        min_version: int | None = None,
        wait_seconds: float = 0,
    ) -> Fetched:
        """Batches as they are stored; waits so long for the first, or for a version. NotYet, OffsetOutOfRange."""
        name, wait_ms = topic_text(topic), round(checked_seconds("wait_seconds", wait_seconds) * 1000)
        for what, number in (("partition", partition), ("offset", offset), ("max_bytes", max_bytes)):
            checked_number(what, number)
        for what, given in (("version", version), ("min_version", min_version)):
            if given is not None:
                checked_number(what, given)
        answer = await self._session.request(
            lambda number: Fetch(number, name, partition, offset, max_bytes, version, min_version, wait_ms),
            is_repeatable=True,
            timeout_seconds=self._session.options.timeout_seconds + wait_seconds,
            room=self._session.fetches,
        )
        return checked(answer, Fetched)

    # Subscriptions

    async def create_subscription(
        self,
        topic: TopicLike,
        subscription: str,
        *,
        kind: SubscriptionKind | str = SubscriptionKind.EXCLUSIVE,
        start: PositionLike = "latest",
    ) -> SubscriptionInfo:
        """Create it, with its cursors at `start`. AlreadyExists when it is of another kind."""
        settings = SubscriptionSettings(kind=checked(kind, SubscriptionKind), start=position_text(start))
        answer: tuple[SubscriptionInfo, bool] = await self._change(
            "put_subscription",
            tuple[SubscriptionInfo, bool],
            topic=topic_text(topic),
            subscription=subscription,
            settings=msgspec.to_builtins(settings),
        )
        return answer[0]

    async def subscription(self, topic: TopicLike, subscription: str) -> SubscriptionInfo:
        """SubscriptionNotFound."""
        return await self._read("subscription", SubscriptionInfo, topic=topic_text(topic), subscription=subscription)

    async def subscriptions(self, topic: TopicLike) -> list[SubscriptionInfo]:
        """All of a topic, by name."""
        return await self._read("subscriptions", list[SubscriptionInfo], topic=topic_text(topic))

    async def delete_subscription(self, topic: TopicLike, subscription: str, *, force: bool = False) -> None:
        """With its cursors. SubscriptionBusy while consumers are attached, unless forced."""
        await self._change("delete_subscription", None, topic=topic_text(topic), subscription=subscription, force=force)

    async def seek(
        self, topic: TopicLike, subscription: str, position: PositionLike, partition: int | None = None
    ) -> SubscriptionInfo:
        """Move its cursors, in one partition or in all. Its consumers go on from there by themselves."""
        answer: SubscriptionInfo = await self._change(
            "seek",
            SubscriptionInfo,
            topic=topic_text(topic),
            subscription=subscription,
            position=position_text(position),
            partition=partition,
        )
        return answer

    async def info(self) -> NodeInfo:
        """The node that answers."""
        return await self._read("info", NodeInfo)

    async def _read(self, method: str, kind: type[T], timeout_seconds: float | None = None, **arguments: object) -> T:
        answer: T = await self._call(method, kind, arguments, timeout_seconds, is_repeatable=True)
        return answer

    async def _change(self, method: str, kind: Any, **arguments: object) -> Any:
        return await self._call(method, kind, arguments, None, is_repeatable=False)

    async def _call(
        self,
        method: str,
        kind: Any,
        arguments: dict[str, object],
        timeout_seconds: float | None,
        *,
        is_repeatable: bool,
    ) -> Any:
        answer = await self._session.request(
            lambda number: Call(number, method, arguments), is_repeatable=is_repeatable, timeout_seconds=timeout_seconds
        )
        return msgspec.convert(answer, kind)
