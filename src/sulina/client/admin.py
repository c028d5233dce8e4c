"""What is asked about namespaces, topics, subscriptions and subscribers.

What any broker knows is asked of the home. What only the owner of a partition knows is asked of that one; what several
owners know is put together here.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from sulina.client.checks import (
    PositionLike,
    TopicLike,
    checked,
    checked_number,
    checked_seconds,
    checked_text,
    position_text,
    topic_text,
)
from sulina.client.in_flight import InFlight
from sulina.client.merging import merged, merged_all
from sulina.client.places import Place
from sulina.client.route import Routes
from sulina.core.delivery.members import SubscriptionKind
from sulina.core.delivery.pubsub import SubscriberInfo
from sulina.core.log.commit import Commit
from sulina.core.topic import Delivery, Policy, Schema, TopicSettings
from sulina.types import TopicName
from sulina.wire.frames import Call, Fetch
from sulina.wire.messages import (
    Fetched,
    NamespaceInfo,
    NodeInfo,
    PartitionInfo,
    ProducerInfo,
    ReaderInfo,
    ReaderPage,
    ReaderSettings,
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

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._options = routes.brokers.options

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
        return await self._read_at(topic, partition, "partition", PartitionInfo)

    async def commits(self, topic: TopicLike, partition: int = 0, *, start: int, end: int) -> list[Commit]:
        """The commits of versions [start, end), a thousand at most."""
        return await self._read_at(topic, partition, "commits", list[Commit], start=start, end=end)

    async def locate(self, topic: TopicLike, position: PositionLike, partition: int = 0) -> int:
        """The offset that a position means now."""
        return await self._read_at(topic, partition, "locate", int, position=position_text(position))

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

        Who reads on passes the `epoch` of the answer before, and so hears of offsets that were given up since.

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
            timeout_seconds=self._options.timeout_seconds + wait_seconds,
            room=self._routes.brokers.rooms.fetches,
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
        arguments = {
            "topic": topic_text(topic), "subscription": subscription, "settings": msgspec.to_builtins(settings),
        }  # fmt: skip
        made: list[tuple[SubscriptionInfo, bool]] = await self._change_at_owners(
            topic, "put_subscription", tuple[SubscriptionInfo, bool], arguments
        )
        return merged([info for info, _ in made])

    async def subscription(self, topic: TopicLike, subscription: str) -> SubscriptionInfo:
        """With the cursors of all partitions that are served now. SubscriptionNotFound."""
        arguments = {"topic": topic_text(topic), "subscription": subscription}
        return merged(await self._read_owners(topic, "subscription", SubscriptionInfo, arguments))

    async def subscriptions(self, topic: TopicLike) -> list[SubscriptionInfo]:
        """All of a topic, by name."""
        arguments = {"topic": topic_text(topic)}
        return merged_all(await self._read_owners(topic, "subscriptions", list[SubscriptionInfo], arguments))

    async def delete_subscription(self, topic: TopicLike, subscription: str, *, force: bool = False) -> None:
        """With its cursors. SubscriptionBusy while consumers are attached at any broker, unless forced."""
        arguments = {"topic": topic_text(topic), "subscription": subscription, "force": force}
        await self._change_at(topic, await self._lowest(topic), "delete_subscription", None, arguments)

    async def seek(
        self, topic: TopicLike, subscription: str, position: PositionLike, partition: int | None = None
    ) -> SubscriptionInfo:
        """Move its cursors, in one partition or in all. Its consumers go on from there by themselves."""
        arguments = {
            "topic": topic_text(topic), "subscription": subscription, "position": position_text(position),
            "partition": partition,
        }  # fmt: skip
        if partition is not None:
            answer: SubscriptionInfo = await self._change_at(
                topic, checked_number("partition", partition), "seek", SubscriptionInfo, arguments
            )
            return answer
        infos: list[SubscriptionInfo] = await self._change_at_owners(topic, "seek", SubscriptionInfo, arguments)
        place = await self._place(topic)
        if not place.is_alone:
            # A partition that nobody served, or that moved from one owner to another meanwhile, has not been sought.
            sought = {cursor.partition for info in infos for cursor in info.cursors}
            for number in sorted({at.partition for at in place.partitions} - sought):
                own = {**arguments, "partition": number}
                infos.append(await self._change_at(topic, number, "seek", SubscriptionInfo, own))
        return merged(infos)

    async def consumers(self, topic: TopicLike, partition: int = 0) -> dict[str, list[str]]:
        """Return the ids of consumers that are attached at the owner of a partition, by subscription."""
        return await self._read_at(topic, partition, "consumers", dict[str, list[str]])

    async def subscribers(self, topic: TopicLike) -> list[SubscriberInfo]:
        """Who is sent all that is published to a topic, by node and name; once for each partition that is served."""
        lists = await self._read_owners(topic, "subscribers", list[SubscriberInfo], {"topic": topic_text(topic)})
        found = [info for infos in lists for info in infos]
        return sorted(found, key=lambda info: (info.node, info.name, info.handle, info.partition))

    async def producers(self, topic: TopicLike) -> list[ProducerInfo]:
        """Return who publishes to a topic over a session, by name, with the broker that each is connected to."""
        return await self._read("producers", list[ProducerInfo], topic=topic_text(topic))

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
        """Say where a query is, by partition: retention keeps what lies there and after it.

        It counts until it has not been heard of for `expires_seconds`, at first 7 days: say it again now and then, also
        when nothing has come. What is None stays as it was, and so do partitions that are not named. ReaderAhead when
        it would go back, unless forced; PartitionNotFound, NotReliable, LimitReached.

        `epochs` are those of the answers in which everything before these positions was read. If that is given up,
        retention keeps the log from where it goes on, and the reader may go back to there.
        """
        given = {
            "positions": positions, "expires_seconds": expires_seconds, "kind": kind, "description": description,
            "force": force,
        }  # fmt: skip
        for what, text in (("kind", kind), ("description", description)):
            if text is not None:
                checked_text(what, text)
        if isinstance(positions, Mapping):
            given["positions"] = dict(positions)
        if epochs is not None:
            given["epochs"] = dict(epochs)
        settings = msgspec.to_builtins(checked(given, ReaderSettings))
        answer: tuple[ReaderInfo, bool] = await self._change(
            "put_reader",
            tuple[ReaderInfo, bool],
            reader=checked_text("reader", name),
            topic=topic_text(topic),
            settings=settings,
        )
        return answer[0]

    async def reader(self, name: str, topic: TopicLike) -> ReaderInfo:
        """Its positions, and its lag as far as the node that answers knows. ReaderNotFound."""
        return await self._read("reader", ReaderInfo, reader=checked_text("reader", name), topic=topic_text(topic))

    async def readers(self, topic: TopicLike | None = None) -> list[ReaderInfo]:
        """All of them, or those of one topic, by name."""
        of = None if topic is None else topic_text(topic)
        found: list[ReaderInfo] = []
        after: str | None = None
        while True:
            page = await self._read("readers", ReaderPage, topic=of, after=after, limit=PAGE)
            found += page.readers
            after = page.next
            if after is None:
                return found

    async def delete_reader(self, name: str, topic: TopicLike) -> None:
        """It holds nothing back any more. ReaderNotFound."""
        await self._change("delete_reader", None, reader=checked_text("reader", name), topic=topic_text(topic))

    async def info(self) -> NodeInfo:
        """The node that answers."""
        return await self._read("info", NodeInfo)

    # The home

    async def _read(
        self,
        method: str,
        kind: type[T],
        timeout_seconds: float | None = None,
        room: InFlight | None = None,
        **arguments: object,
    ) -> T:
        answer = await self._routes.brokers.read(_call(method, arguments), timeout_seconds=timeout_seconds, room=room)
        return msgspec.convert(answer, kind)

    async def _change(self, method: str, kind: Any, **arguments: object) -> Any:
        answer = await self._routes.brokers.change(_call(method, arguments))
        return msgspec.convert(answer, kind)

    # Owners

    async def _place(self, topic: TopicLike) -> Place:
        """Where it is, as far as is known."""
        return await self._routes.places.get(TopicName.parse(topic_text(topic)))

    async def _lowest(self, topic: TopicLike) -> int:
        """The first partition that somebody serves."""
        return next(iter((await self._place(topic)).owners().values()), 0)

    async def _read_at(self, topic: TopicLike, partition: int, method: str, kind: type[T], **arguments: object) -> T:
        """Of the owner of one partition."""
        name, number = TopicName.parse(topic_text(topic)), checked_number("partition", partition)
        make = _call(method, {"topic": str(name), "partition": number, **arguments})
        return msgspec.convert(await self._routes.read(self._routes.route(name, number), make), kind)

    async def _change_at(
        self, topic: TopicLike, partition: int, method: str, kind: Any, arguments: Mapping[str, object]
    ) -> Any:
        """Of the owner of one partition."""
        name = TopicName.parse(topic_text(topic))
        answer = await self._routes.change(name, partition, _call(method, arguments))
        return msgspec.convert(answer, kind)

    async def _read_owners(
        self, topic: TopicLike, method: str, kind: type[T], arguments: Mapping[str, object]
    ) -> list[T]:
        """Of everybody who serves something of a topic now; those who lose it meanwhile are passed over."""
        name = TopicName.parse(topic_text(topic))
        place = await self._place(topic)
        if not place.is_alone:
            place = await self._routes.places.look_up(name)
        make = _call(method, arguments)
        if len(place.owners()) <= 1:
            number = next(iter(place.owners().values()), 0)
            return [msgspec.convert(await self._routes.read(self._routes.route(name, number), make), kind)]
        found = await asyncio.gather(
            *(self._routes.read(self._routes.route(name, number), make) for number in place.owners().values())
        )
        return [msgspec.convert(answer, kind) for answer in found]

    async def _change_at_owners(
        self, topic: TopicLike, method: str, kind: Any, arguments: Mapping[str, object]
    ) -> list[Any]:
        """Of everybody who serves something of a topic now, one after the other; the one with the lowest first."""
        name = TopicName.parse(topic_text(topic))
        place = await self._place(topic)
        if not place.is_alone:
            place = await self._routes.places.look_up(name)
        numbers = list(place.owners().values()) or [0]
        return [await self._change_at(topic, number, method, kind, arguments) for number in numbers]


def _call(method: str, arguments: Mapping[str, object]) -> Callable[[int], Call]:
    return lambda number: Call(number, method, dict(arguments))
