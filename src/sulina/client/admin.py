"""Administration: the operations of `wire.operations` as methods.

What any broker knows is asked of the home. What only the owner of a partition knows is asked of that owner; what
several owners know is put together here.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import msgspec
from msgspec import Struct

from sulina.client.checks import (
    PositionLike,
    TopicLike,
    checked,
    checked_number,
    checked_seconds,
    position_text,
    topic_of,
    topic_text,
)
from sulina.client.merging import merged, merged_all, summed
from sulina.client.move_watch import MoveWatch, OnProgress
from sulina.client.placements import TopicPlacement
from sulina.client.route import Routes
from sulina.core.delivery.members import SubscriptionKind
from sulina.core.delivery.pubsub import SubscriberInfo
from sulina.core.log.commit import Commit
from sulina.core.topic import DeliveryGuarantee, Policy, Schema, TopicSettings
from sulina.errors import InvalidSettings
from sulina.json_values import convert_to
from sulina.types import TopicName
from sulina.wire import operations
from sulina.wire.frames import Call, Fetch
from sulina.wire.messages import (
    BrokerInfo,
    ClusterInfo,
    Fetched,
    NamespaceInfo,
    NodeInfo,
    PartitionInfo,
    Placement,
    ProducerInfo,
    PubSubMetrics,
    ReaderInfo,
    ReaderSettings,
    Rebalanced,
    SubscriptionInfo,
    SubscriptionSettings,
    TopicInfo,
    UnloadInfo,
)
from sulina.wire.operations import READERS_MAX, TOPICS_MAX, Operation

MOVE_SECONDS = 600.0  # everything that is not in the archive yet must be brought there

PolicyLike = Policy | Mapping[str, Any]
SchemaLike = Schema | Mapping[str, Any]
P = ParamSpec("P")
R = TypeVar("R")


class Admin:
    """Namespaces, topics, subscriptions, readers, brokers: how to list, create, change, move and delete them.

    Reads are repeated after a disconnect. Changes are not, once they have been sent: their outcome is unknown.
    """

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    # Namespaces

    async def create_namespace(self, namespace: str, policy: PolicyLike | None = None) -> NamespaceInfo:
        """Create a namespace, or change its policy.

        Raises:
            InvalidSettings: the policy or the name is not valid.
            LimitReached: the cluster has as many namespaces as it allows.
        """
        return await self._ask(operations.CREATE_NAMESPACE, namespace, checked(policy or {}, Policy))

    async def namespace(self, namespace: str) -> NamespaceInfo:
        """Return a namespace.

        Raises:
            NamespaceNotFound: there is no such namespace.
        """
        return await self._ask(operations.NAMESPACE, namespace)

    async def namespaces(self) -> list[NamespaceInfo]:
        """Return all namespaces, by name."""
        return (await self._ask(operations.NAMESPACES)).namespaces

    async def delete_namespace(self, namespace: str) -> None:
        """Delete a namespace without topics.

        Raises:
            NamespaceNotFound: there is no such namespace.
            NamespaceNotEmpty: it has topics.
        """
        await self._ask(operations.DELETE_NAMESPACE, namespace)

    # Topics

    async def create_topic(
        self,
        topic: TopicLike,
        partitions: int = 1,
        *,
        delivery: DeliveryGuarantee | str = DeliveryGuarantee.RELIABLE,
        policy: PolicyLike | None = None,
        schema: SchemaLike | None = None,
    ) -> TopicInfo:
        """Create a topic; one that exists gets this policy and, while it has no data, this schema.

        Raises:
            AlreadyExists: it exists with another number of partitions or another delivery.
            SchemaConflict: it has data and another schema.
            InvalidSettings: the settings are not valid.
            NamespaceNotFound: its namespace does not exist.
            LimitReached: the cluster has as many topics as it allows.
        """
        settings = TopicSettings(
            partitions=partitions,
            delivery=checked(delivery, DeliveryGuarantee),
            policy=checked(policy or {}, Policy),
            value_schema=checked(schema or {}, Schema),
        )
        return await self._ask(operations.CREATE_TOPIC, topic, settings)

    async def topic(self, topic: TopicLike) -> TopicInfo:
        """Return a topic.

        Raises:
            TopicNotFound: there is no such topic.
        """
        return await self._ask(operations.TOPIC, topic)

    async def topics(self, *, namespace: str | None = None) -> list[TopicInfo]:
        """Return all topics, or those of one namespace, by name."""
        found: list[TopicInfo] = []
        after: str | None = None
        while True:
            page = await self._ask(operations.TOPICS, namespace, after, TOPICS_MAX)
            found += page.topics
            after = page.next
            if after is None:
                return found

    async def delete_topic(self, topic: TopicLike, *, force: bool = False) -> None:
        """Delete a topic with all its records and subscriptions.

        Raises:
            TopicNotFound: there is no such topic.
            SubscriptionBusy: consumers are attached; `force` detaches them.
            OwnersNotReached: an owner does not answer, so consumers may be attached there; `force` goes on.
        """
        await self._ask(operations.DELETE_TOPIC, topic, force=force)

    async def partition(self, topic: TopicLike, partition: int = 0) -> PartitionInfo:
        """Return the offsets, the version and the segments of a partition."""
        return await self._ask_owner(partition, operations.PARTITION, topic, partition)

    async def commits(self, topic: TopicLike, partition: int = 0, *, start: int, end: int) -> list[Commit]:
        """Return the commits of versions [start, end), a thousand at most."""
        page = await self._ask_owner(partition, operations.COMMITS, topic, partition, start=start, end=end)
        return page.commits

    async def locate(self, topic: TopicLike, position: PositionLike, partition: int = 0) -> int:
        """Return the offset that a position means now."""
        return await self._ask_owner(partition, operations.LOCATE, topic, position, partition)

    async def fetch(
        self,
        topic: TopicLike,
        partition: int,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        version: int | None = None,
        min_version: int | None = None,
        min_offset: int | None = None,
        wait_seconds: float = 0,
        epoch: int | None = None,
    ) -> Fetched:
        """Read batches as they are stored, waiting up to `wait_seconds` for the first.

        To read on, pass the `epoch` of the answer before: then offsets that were given up since are reported.

        Raises:
            NotYet: `min_version`, or a record at `min_offset`, cannot be read within `wait_seconds`.
            OffsetOutOfRange: `offset` is before the first retained record, or past the end.
            PositionDiverged: something of what was read in `epoch` was given up; read on at its `continues_at`.
        """
        name, wait_ms = topic_text(topic), round(checked_seconds("wait_seconds", wait_seconds) * 1000)
        for what, number in (("partition", partition), ("offset", offset), ("max_bytes", max_bytes)):
            checked_number(what, number)
        for what, given in (
            ("version", version), ("min_version", min_version), ("min_offset", min_offset), ("epoch", epoch),
        ):  # fmt: skip
            if given is not None:
                checked_number(what, given)
        answer = await self._routes.read(
            self._routes.route(TopicName.parse(name), partition, wait_seconds),
            lambda number: Fetch(
                number, name, partition, offset, max_bytes, version, min_version, wait_ms, min_offset, epoch
            ),
            timeout_seconds=self._routes.brokers.options.timeout_seconds + wait_seconds,
            room=self._routes.brokers.rooms.fetches,
        )
        return checked(answer, Fetched)

    # Subscriptions

    async def create_subscription(
        self,
        topic: TopicLike,
        subscription: str,
        *,
        mode: SubscriptionKind | str = SubscriptionKind.EXCLUSIVE,
        start: PositionLike = "latest",
    ) -> SubscriptionInfo:
        """Create a subscription with its cursors at `start`; one that exists stays as it is.

        Raises:
            AlreadyExists: it exists with another mode.
            NotReliable: the topic stores no records.
            OffsetOutOfRange: `start` is outside the log.
        """
        settings = SubscriptionSettings(mode=checked(mode, SubscriptionKind), start=position_text(start))
        return merged(await self._change_at_owners(operations.CREATE_SUBSCRIPTION, topic, subscription, settings))

    async def subscription(self, topic: TopicLike, subscription: str) -> SubscriptionInfo:
        """Return a subscription with the cursors of all partitions that are served now.

        Raises:
            SubscriptionNotFound: there is no such subscription.
        """
        return merged(await self._ask_owners(operations.SUBSCRIPTION, topic, subscription))

    async def subscriptions(self, topic: TopicLike) -> list[SubscriptionInfo]:
        """Return the subscriptions of a topic, by name."""
        found = await self._ask_owners(operations.SUBSCRIPTIONS, topic)
        return merged_all(one.subscriptions for one in found)

    async def delete_subscription(self, topic: TopicLike, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription with its cursors.

        Raises:
            SubscriptionNotFound: there is no such subscription.
            SubscriptionBusy: consumers are attached, at any broker; `force` detaches them.
            OwnersNotReached: an owner does not answer, so consumers may be attached there; `force` goes on.
        """
        lowest = next(iter((await self._place(topic)).owners().values()), 0)
        await self._ask_owner(lowest, operations.DELETE_SUBSCRIPTION, topic, subscription, force=force)

    async def seek(
        self, topic: TopicLike, subscription: str, position: PositionLike, partition: int | None = None
    ) -> SubscriptionInfo:
        """Move the cursors of a subscription, in one partition or in all. Its consumers go on from there.

        Raises:
            SubscriptionNotFound: there is no such subscription.
            OffsetOutOfRange: the position is outside the log.
        """
        if partition is not None:
            return await self._ask_owner(partition, operations.SEEK, topic, subscription, position, partition)
        infos = await self._change_at_owners(operations.SEEK, topic, subscription, position)
        place = await self._place(topic)
        if not place.is_alone:
            # A partition that had no owner, or that moved from one owner to another meanwhile, has not been sought.
            sought = {cursor.partition for info in infos for cursor in info.cursors}
            for number in sorted({at.partition for at in place.partitions} - sought):
                infos.append(await self._ask_owner(number, operations.SEEK, topic, subscription, position, number))
        return merged(infos)

    async def consumers(self, topic: TopicLike, partition: int = 0) -> dict[str, list[str]]:
        """Return the ids of consumers that are attached at the owner of a partition, by subscription."""
        return await self._ask_owner(partition, operations.CONSUMERS, topic, partition)

    # Publish/subscribe

    async def subscribers(self, topic: TopicLike) -> list[SubscriberInfo]:
        """Return the subscribers of a topic, by node and name; once for each partition that is served."""
        lists = await self._ask_owners(operations.SUBSCRIBERS, topic)
        found = [info for one in lists for info in one.subscribers]
        return sorted(found, key=lambda info: (info.node, info.name, info.handle, info.partition))

    async def producers(self, topic: TopicLike) -> list[ProducerInfo]:
        """Return who publishes to a topic over a session, by name, with the broker that each is connected to."""
        return (await self._ask(operations.PRODUCERS, topic)).producers

    async def pubsub_metrics(self, topic: TopicLike | None = None) -> PubSubMetrics:
        """Return what became of messages, of one topic or of all, at all brokers together since each was started."""
        if topic is not None:
            return summed(await self._ask_owners(operations.PUBSUB_METRICS, topic))
        urls = [info.url for info in (await self.cluster()).brokers if info.state != "unreachable"]
        sessions = {self._routes.brokers.session(url) for url in urls}
        make = _call(operations.PUBSUB_METRICS, {})
        answers = await asyncio.gather(*(session.request(make, is_repeatable=True) for session in sessions))
        return summed([convert_to(answer, PubSubMetrics) for answer in answers])

    # Registered readers

    async def register_reader(
        self,
        name: str,
        topic: TopicLike,
        positions: Mapping[int, int],
        *,
        expires_seconds: float | None = None,
        kind: str | None = None,
        description: str | None = None,
        force: bool = False,
        epochs: Mapping[int, int] | None = None,
    ) -> ReaderInfo:
        """Register where a query is, by partition: retention keeps everything from there on.

        The registration counts for `expires_seconds`, at first 7 days: register again now and then, also when nothing
        has come. What is None stays as it was, and so do partitions that are not named.

        `epochs` are those of the answers in which everything before these positions was read. If that is given up,
        retention keeps the log from where it goes on, and the reader may go back to there.

        Raises:
            ReaderAhead: it would go back; `force` allows it.
            PartitionNotFound: the topic has no such partition.
            NotReliable: the topic stores no records.
            LimitReached: the cluster has as many readers as it allows.
        """
        given = {
            "positions": dict(positions) if isinstance(positions, Mapping) else positions,
            "expires_seconds": expires_seconds, "kind": kind, "description": description, "force": force,
            "epochs": dict(epochs or {}),
        }  # fmt: skip
        return await self._ask(operations.REGISTER_READER, name, topic, checked(given, ReaderSettings))

    async def reader(self, name: str, topic: TopicLike) -> ReaderInfo:
        """Return a reader's positions, and its lag as far as the broker that answers knows it.

        Raises:
            ReaderNotFound: no such reader is registered.
        """
        return await self._ask(operations.READER, name, topic)

    async def readers(self, topic: TopicLike | None = None) -> list[ReaderInfo]:
        """Return all registered readers, or those of one topic, by name."""
        found: list[ReaderInfo] = []
        after: str | None = None
        while True:
            page = await self._ask(operations.READERS, topic, after, READERS_MAX)
            found += page.readers
            after = page.next
            if after is None:
                return found

    async def delete_reader(self, name: str, topic: TopicLike) -> None:
        """Delete a registered reader: retention does not wait for it any more.

        Raises:
            ReaderNotFound: no such reader is registered.
        """
        await self._ask(operations.DELETE_READER, name, topic)

    # The cluster

    async def info(self) -> NodeInfo:
        """Return the node that answers."""
        return await self._ask(operations.INFO)

    async def cluster(self) -> ClusterInfo:
        """Return the cluster as the home sees it."""
        return await self._ask(operations.CLUSTER)

    async def brokers(self) -> list[BrokerInfo]:
        """Return the brokers of the cluster, by name."""
        return (await self._ask(operations.BROKERS)).brokers

    async def placement(self, topic: TopicLike) -> Placement:
        """Return where the partitions of a topic are served, as the home knows it.

        Raises:
            TopicNotFound: there is no such topic.
        """
        return await self._routes.placements.ask(topic_of(topic))

    async def moves(self, topic: TopicLike) -> list[UnloadInfo]:
        """Return the moves of a topic that are under way."""
        return (await self._ask(operations.MOVES, topic)).moves

    async def move_topic(
        self,
        topic: TopicLike,
        *,
        to: str | None = None,
        partition: int | None = None,
        force: bool = False,
        give_up: bool = False,
        wait: bool = True,
        on_progress: OnProgress | None = None,
        timeout_seconds: float = MOVE_SECONDS,
    ) -> list[UnloadInfo]:
        """Move the partitions of a topic, or one of them, to `to` or to the broker that the leader picks.

        Returns the moves when they have ended; without `wait` at once. Partitions that are at `to` already stay, and
        are not in the answer. The last step of a move is `moved`; `refused`, if the owner keeps the partition; or
        `recovering`, if the owner died and alone has what is not archived. `on_progress` is called for every step.
        `give_up` lets a partition go on that is closed because records are missing (LogIncomplete): they are lost for
        good.

        Raises:
            SubscriptionBusy: consumers are attached; with `force` they follow by themselves.
            InvalidSettings: there is no broker `to`, or the node is not part of a cluster.
            NotServing: it takes longer than `timeout_seconds`; the moves go on.
        """
        checked_seconds("timeout_seconds", timeout_seconds)
        before = await self.placement(topic)
        asked = (await self._ask(operations.MOVE_TOPIC, topic, to, partition, force, give_up)).moves
        if not wait or not asked:
            return asked
        watch = MoveWatch(topic_text(topic), asked, before, on_progress)
        return await watch.run(self, timeout_seconds, lambda: self._routes.brokers.is_closed)

    async def cancel_moves(self, topic: TopicLike, *, partition: int | None = None) -> list[UnloadInfo]:
        """Cancel the moves of a topic, all or that of one partition, and return them. What has moved stays moved."""
        return (await self._ask(operations.CANCEL_MOVES, topic, partition=partition)).moves

    async def drain_broker(self, broker_id: str) -> BrokerInfo:
        """Move all partitions away from a broker, and assign no more to it.

        Raises:
            BrokerNotFound: there is no such broker.
        """
        return await self._ask(operations.DRAIN_BROKER, broker_id)

    async def activate_broker(self, broker_id: str) -> BrokerInfo:
        """Let a broker own partitions again.

        Raises:
            BrokerNotFound: there is no such broker.
        """
        return await self._ask(operations.ACTIVATE_BROKER, broker_id)

    async def rebalance(self) -> Rebalanced:
        """Move partitions from the most loaded brokers to the least loaded ones, and return the moves."""
        return await self._ask(operations.REBALANCE)

    # How operations are asked for

    async def _place(self, topic: TopicLike) -> TopicPlacement:
        """Return where a topic is served, as far as is known."""
        return await self._routes.placements.get(topic_of(topic))

    async def _ask(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the home's answer."""
        make = _call(operation, _plain(operation.arguments(*args, **kwargs)))
        brokers = self._routes.brokers
        answer = await (brokers.change(make) if operation.changes else brokers.read(make))
        return convert_to(answer, operation.result)

    async def _ask_owner(self, partition: int, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the answer of the owner of a partition."""
        plain = _plain(operation.arguments(*args, **kwargs))
        return await self._request(TopicName.parse(plain["topic"]), partition, operation, plain)

    async def _ask_owners(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> list[R]:
        """Return the answers of all brokers that serve partitions of a topic now, asked at once."""
        plain = _plain(operation.arguments(*args, **kwargs))
        name = TopicName.parse(plain["topic"])
        numbers = await self._owned(name)
        if len(numbers) == 1:
            return [await self._request(name, numbers[0], operation, plain)]
        return list(await asyncio.gather(*(self._request(name, number, operation, plain) for number in numbers)))

    async def _change_at_owners(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> list[R]:
        """Return the answers of all brokers that serve partitions of a topic now, asked one after the other."""
        plain = _plain(operation.arguments(*args, **kwargs))
        name = TopicName.parse(plain["topic"])
        return [await self._request(name, number, operation, plain) for number in await self._owned(name)]

    async def _owned(self, name: TopicName) -> list[int]:
        """Return a partition of each owner of a topic, the owner of the lowest first."""
        place = await self._routes.placements.get(name)
        if not place.is_alone:
            place = await self._routes.placements.look_up(name)
        return list(place.owners().values()) or [0]

    async def _request(
        self, name: TopicName, partition: int, operation: Operation[..., R], plain: Mapping[str, Any]
    ) -> R:
        make, routes = _call(operation, plain), self._routes
        if operation.changes:
            answer = await routes.change(name, partition, make)
        else:
            answer = await routes.read(routes.route(name, partition), make)
        return convert_to(answer, operation.result)


def _call(operation: Operation[..., Any], plain: Mapping[str, Any]) -> Callable[[int], Call]:
    return lambda number: Call(number, operation.name, dict(plain))


def _plain(arguments: Struct) -> dict[str, Any]:
    """Return arguments as they are sent: a frame of another shape would end the connection for all requests.

    Raises:
        InvalidName: the name of a topic is not valid.
        InvalidSettings: an argument is not of its type, or outside its limits.
    """
    given: dict[str, Any] = msgspec.structs.asdict(arguments)
    if given.get("topic") is not None:
        given["topic"] = topic_text(given["topic"])
    if "position" in given:
        given["position"] = position_text(given["position"])
    try:
        plain: dict[str, Any] = msgspec.to_builtins(given)
        msgspec.msgpack.encode(plain)
    except (TypeError, ValueError, OverflowError) as error:  # no type of JSON; a lone surrogate; more than 64 bits
        raise InvalidSettings(f"an argument cannot be sent: {error}") from None
    checked(plain, type(arguments))
    return plain
