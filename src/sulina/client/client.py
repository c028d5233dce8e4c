"""The client: everything that an application does with a node, or with the brokers of a cluster.

It is asynchronous and belongs to one event loop; `client.sync` has the same methods for threads.
"""

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import msgspec

from sulina.client.admin import Admin
from sulina.client.batches import DATA_BYTES_MAX, BatchCodec
from sulina.client.batching_rules import BatchingRules
from sulina.client.brokers import Brokers, Reach
from sulina.client.checks import (
    PositionLike,
    TopicLike,
    checked,
    checked_number,
    checked_text,
    position_text,
    topic_of,
    topic_text,
)
from sulina.client.connection import Connector
from sulina.client.consumer import Consumer
from sulina.client.consumer_attachments import ConsumerTerms
from sulina.client.events import Events
from sulina.client.handling import Handler
from sulina.client.message import HeadersLike, Record
from sulina.client.numbering import Attempts
from sulina.client.options import ClientOptions
from sulina.client.placements import TopicPlacements
from sulina.client.producer import BatchingOptions, OnFailure, Producer, Rest
from sulina.client.publish_ack import PublishAck
from sulina.client.publisher import NO_OPTIONS, PublishTerms, RecordPublisher
from sulina.client.reader import Reader, Reading, ReadRange
from sulina.client.route import Routes
from sulina.client.send_queues import SendQueues
from sulina.client.serialization import SerializationRegistry
from sulina.client.subscriber import SubscriberTerms
from sulina.client.subscribers import AnySubscriber, OnRemoved, Subscribers
from sulina.client.topic_cache import TopicCache
from sulina.client.websocket import WebSocketConnector, split_urls
from sulina.core.delivery.members import SubscriptionKind
from sulina.core.delivery.pubsub import PublishOptions
from sulina.core.delivery.rejects import reject_reason
from sulina.core.log.position import Position
from sulina.core.topic import Schema
from sulina.errors import BatchTooLarge, InvalidSettings, NotStarted, SulinaError
from sulina.json_values import convert_to
from sulina.types import TopicName, checked_producer
from sulina.wire.frames import Call, Publish
from sulina.wire.messages import Published, PubSubMetrics, TopicInfo

HANDLERS_SECONDS = 5.0  # that handlers at work have to finish when a client is closed
EVENT_TYPES_MAX = 100
REJECTED_TOPICS_MAX = 1000  # that are counted apart

T = TypeVar("T")


class Client:
    """`async with sulina.connect(url) as client:`. Everything may be called from many tasks at once.

    Before it is connected, and after it was closed, every method raises NotStarted.
    """

    def __init__(
        self,
        connector: Connector | None = None,
        *,
        options: ClientOptions | None = None,
        registry: SerializationRegistry | None = None,
        url: str = "in-process",
        rng: random.Random | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
        reach: Reach = WebSocketConnector,
    ) -> None:
        """Prepare a client that connects when it is entered or awaited.

        `connector` opens connections to the node at `url`. Without it, `url` lists brokers, separated by commas.
        `reach` makes the connectors to all other brokers. `on_close` is called when the client is closed.

        Raises:
            InvalidSettings: a URL or an option is not valid.
        """
        self.registry = registry or SerializationRegistry()
        self._options = options or ClientOptions()
        self.name = checked_producer(self._options.name or f"client-{secrets.token_hex(4)}")
        rng = rng or random.Random()
        first, *others = [url] if connector is not None else split_urls(url)
        brokers = Brokers(
            connector or reach(first), url=first, others=others, reach=reach, options=self._options, rng=rng
        )
        self._brokers = brokers
        self._places = TopicPlacements(brokers)
        self._routes = Routes(brokers, self._places)
        self._admin = Admin(self._routes)
        self._codec = BatchCodec()
        self._queues = SendQueues(brokers, self._places)
        topics = TopicCache(self._ask_topic, seconds=self._options.topic_seconds, first_turn=rng.randrange)
        self._publisher = RecordPublisher(brokers, self._codec, topics, self._queues, self.registry, self._count_reject)
        self._subscribers = Subscribers(brokers, self._codec, self.registry, self._consume_as)
        self._consumers: set[Consumer] = set()
        self._producers: list[Producer] = []
        self._events: set[Events] = set()
        self._rejected: dict[str, Counter[str]] = {}  # by topic: what was never sent
        self._background: set[asyncio.Task[Any]] = set()
        self._on_close = on_close
        self._is_open = False

    # From connecting to closing

    @property
    def url(self) -> str:
        """Return where the node is, or the broker that is asked what any of them knows."""
        return self._brokers.home.url

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection at this moment; if not, one is being made."""
        return self._brokers.home.is_connected

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    def __enter__(self) -> NoReturn:
        raise TypeError("this client is asynchronous: use `async with`, or `with sulina.connect_sync(url)`")

    def __exit__(self, *_: object) -> None:
        """Do nothing: `with` looks for this method before it calls `__enter__`."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self) -> Self:
        if self._brokers.is_closed:
            raise NotStarted("the client was closed: connect again")
        if not self._is_open:
            try:
                await self._brokers.home.open()
            except BaseException:
                await self.close()
                raise
            self._is_open = True
        return self

    async def close(self) -> None:
        """Unsubscribe, send the acks of consumers and detach them, discard what producers hold, and disconnect.

        Handlers at work have 5 seconds to finish. Calls that wait get Disconnected.
        """
        self._is_open = False
        try:
            if not self._brokers.is_closed:
                await self._close()
        finally:  # also when this is being cancelled, a node in this process must stop
            on_close, self._on_close = self._on_close, None
            if on_close is not None:
                await asyncio.shield(on_close())

    async def _close(self) -> None:
        try:
            await asyncio.gather(
                self._subscribers.close(HANDLERS_SECONDS),
                *(events.close() for events in list(self._events)),
                *(consumer.close() for consumer in list(self._consumers)),
            )
        finally:
            await self._brokers.close()
            await asyncio.gather(*(producer.stop(Rest.DISCARD) for producer in self._producers))
            await self._queues.close()
            await self._places.close()
            for task in self._background:
                task.cancel()
            if self._background:
                await asyncio.wait(self._background)
            await self._codec.close()

    def _check_open(self) -> None:
        if not self._is_open:
            closed = self._brokers.is_closed
            raise NotStarted(
                "the client was closed: connect again"
                if closed
                else "the client is not connected: `async with` it, or await it, first"
            )

    async def _ask_topic(self, name: TopicName, timeout_seconds: float | None) -> TopicInfo:
        """Return what a topic is; where it is served is looked up too, as that is wanted next."""
        info, _ = await asyncio.gather(
            self._brokers.read(
                lambda number: Call(number, "topic", {"topic": str(name)}),
                timeout_seconds=timeout_seconds,
                room=self._brokers.rooms.lookups,
            ),
            self._places.look_up(name),
        )
        return convert_to(info, TopicInfo)

    # Publishing

    async def publish(
        self,
        topic: TopicLike,
        value: object,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
        txn_id: str | None = None,
        expected_version: int | None = None,
        schema: Schema | str | None = None,
        timeout_seconds: float | None = None,
        idempotent: bool | None = None,
        options: PublishOptions | None = None,
    ) -> PublishAck:
        """Publish one record, and return when it is as durable as the topic's ack level says, or rejected.

        `value` is a `Record`, or anything that the registry can write: bytes, text, JSON, Arrow, registered types. None
        deletes the key in tables. The same `txn_id` again gets the first answer. Without one, the client numbers each
        publish, so that it can repeat it after a broken connection; with `idempotent=False` it does not, and
        Disconnected means that the outcome is unknown. `options` are for the subscribers of best-effort topics.

        Raises:
            NotStarted: the client is not connected, or was closed.
            TopicNotFound: there is no such topic.
            PubSubError: another fault of the system. Faults of the record are rejects, in the ack.
        """
        return await self.publish_batch(
            topic,
            (value if isinstance(value, Record) else Record(value, key, headers, timestamp_ms),),
            partition=partition,
            txn_id=txn_id,
            expected_version=expected_version,
            schema=schema,
            timeout_seconds=timeout_seconds,
            idempotent=idempotent,
            options=options,
        )

    async def publish_batch(
        self,
        topic: TopicLike,
        records: Iterable[object],
        *,
        partition: int | None = None,
        txn_id: str | None = None,
        expected_version: int | None = None,
        schema: Schema | str | None = None,
        timeout_seconds: float | None = None,
        idempotent: bool | None = None,
        options: PublishOptions | None = None,
        split: bool = False,
    ) -> PublishAck:
        """Publish records, or values as `publish` takes them, all or nothing, to the partition that their keys name.

        A batch whose keys belong to several partitions is rejected, and nothing of it is stored. With `split` it is
        published in parts, one for each partition, each all or nothing: `ack.parts` says what became of each.

        Raises:
            NotStarted: the client is not connected, or was closed.
            TopicNotFound: there is no such topic.
            SplitFailed: one of several parts met a fault of the system; its `parts` say what became of each.
        """
        self._check_open()
        terms = PublishTerms(
            partition=partition,
            txn_id=txn_id,
            expected_version=expected_version,
            schema=schema,
            timeout_seconds=timeout_seconds,
            is_idempotent=self._options.idempotent if idempotent is None else idempotent,
            options=options or NO_OPTIONS,
            producer=self.name,
            split=split,
        )
        return await self._publisher.publish(topic, records, terms)

    def producer(
        self,
        topic: TopicLike,
        *,
        rules: BatchingRules | None = None,
        on_failure: OnFailure | str = OnFailure.FAIL,
        retry_seconds: float = 1.0,
        publish_timeout_seconds: float | None = None,
        options: PublishOptions | None = None,
        name: str | None = None,
    ) -> Producer:
        """Return a producer: it takes records one by one, and publishes them in batches by `rules`.

        `name` is how the topic lists the producer; without it, by the client's name.

        Raises:
            NotStarted: the client is not connected, or was closed.
            InvalidSettings: a setting is not valid.
        """
        self._check_open()
        producer_name = self.name if name is None else checked_producer(name)
        batching = BatchingOptions(
            rules=rules or BatchingRules(),
            on_failure=checked(on_failure, OnFailure),
            retry_seconds=retry_seconds,
            publish_timeout_seconds=publish_timeout_seconds,
        )

        async def publish(
            topic: str, records: Sequence[object], *, attempts: Attempts, timeout_seconds: float | None
        ) -> list[PublishAck | SulinaError]:
            terms = PublishTerms(
                attempts=attempts,
                timeout_seconds=timeout_seconds,
                is_idempotent=self._options.idempotent,
                options=options or NO_OPTIONS,
                producer=producer_name,
                split=True,
            )
            return await self._publisher.publish_each(topic, records, terms)

        self._producers = [producer for producer in self._producers if not producer.is_stopped]
        producer = Producer(publish, topic_text(topic), batching, self.registry)
        self._producers.append(producer)
        return producer

    async def _publish_encoded(
        self, topic: TopicLike, partition: int, data: memoryview, txn_id: str | None, topic_id: str | None
    ) -> Published:
        """Ask the owner of a partition to append record batches, all or nothing, in whatever order requests come."""
        self._check_open()
        if len(data) > DATA_BYTES_MAX:
            raise BatchTooLarge(size_bytes=len(data), limit_bytes=DATA_BYTES_MAX)
        name = topic_text(topic)
        answer = await self._routes.change(
            TopicName.parse(name),
            partition,
            lambda number: Publish(number, name, data, partition, txn_id, topic_id=topic_id),
            size_bytes=len(data),
        )
        return checked(answer, Published)

    def _count_reject(self, topic: str, error: SulinaError) -> None:
        """Count a publish that was rejected before it was sent, and tell those who listen to events."""
        reason = str(reject_reason(error))
        if topic in self._rejected or len(self._rejected) < REJECTED_TOPICS_MAX:
            self._rejected.setdefault(topic, Counter())[reason] += 1
        for events in self._events:
            events.rejected(topic, reason, str(error))

    # Reading

    def read(
        self,
        topic: TopicLike,
        *,
        start: PositionLike = "earliest",
        partitions: Sequence[int] | None = None,
        follow: bool = True,
        version: int | None = None,
        max_bytes: int = 1 << 20,
    ) -> Reader:
        """Return a reader of messages from `start` on: partitions as they come, each in its order.

        The node does not remember how far it read: positions are the caller's. `start` is looked up when the reading
        begins. With `follow=False` it ends where the topic ended then; with a `version`, which is of one partition, it
        reads what the partition held at that version. Offsets that were given up after they were read are in the
        reader's `divergences`, and it goes on where the log does.

        Raises:
            NotStarted: the client is not connected, or was closed.
            InvalidSettings: a setting is not valid.
        """
        self._check_open()
        name, begin = topic_of(topic), position_text(start)
        checked_number("max_bytes", max_bytes)
        if version is not None:
            checked_number("version", version)
        for partition in partitions or ():
            checked_number("partition", partition)

        async def locate() -> list[ReadRange]:
            count = (await self._admin.topic(name)).settings.partitions  # as it is now, whatever is known of it
            chosen = range(count) if partitions is None else partitions
            if version is not None and len(chosen) != 1:
                raise InvalidSettings("a version counts the commits of one partition: name the partition to read")
            is_endless = follow or version is not None
            return await asyncio.gather(*(self._range(name, number, begin, is_endless) for number in chosen))

        reading = Reading(topic=name, version=version, max_bytes=max_bytes)
        return Reader(self._routes, self._codec, self.registry, reading, locate, self._in_background)

    async def _range(self, name: TopicName, partition: int, start: str, is_endless: bool) -> ReadRange:
        end = None if is_endless else (await self._admin.partition(name, partition)).end_offset
        asked = Position.parse(start)
        if asked.epoch is None:
            return ReadRange(partition=partition, start=await self._admin.locate(name, start, partition), end=end)
        # What retention has removed is passed over; the owner says what was given up, and the reader notes it.
        first = await self._admin.locate(name, Position(asked.at, asked.value), partition)
        return ReadRange(partition=partition, start=max(asked.value, first), end=end, epoch=asked.epoch)

    def consumer(
        self,
        topic: TopicLike,
        subscription: str,
        *,
        mode: SubscriptionKind | str = SubscriptionKind.EXCLUSIVE,
        start: PositionLike = "latest",
        credit: int = 1000,
        name: str = "",
    ) -> Consumer:
        """Return a consumer of a durable subscription, which is created if it does not exist: iterate, and ack each.

        `start` counts when the subscription is new. `credit` is how many messages the node may send ahead of those that
        were taken. Reconnecting with the same `name` replaces the previous connection of that consumer.

        Raises:
            NotStarted: the client is not connected, or was closed.
            InvalidSettings: a setting is not valid.
        """
        self._check_open()
        return self._make_consumer(
            ConsumerTerms(
                topic=topic_text(topic),
                subscription=subscription,
                kind=checked(mode, SubscriptionKind),
                start=position_text(start),
                credit=credit,
                name=name or f"consumer-{secrets.token_hex(4)}",
            )
        )

    def _make_consumer(self, terms: ConsumerTerms) -> Consumer:
        return Consumer(self._brokers, self._places, self._codec, self.registry, terms, self._consumers)

    def _in_background(self, work: Awaitable[T], name: str) -> asyncio.Task[T]:
        """Return a task that ends with the client, if not before; its errors are for those who wait for it."""
        task = asyncio.ensure_future(work)
        task.set_name(name)
        self._background.add(task)
        task.add_done_callback(self._background_done)
        return task

    def _background_done(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()

    # Handlers

    async def subscribe(
        self,
        topic: TopicLike,
        handler: Handler,
        *,
        identity: str | None = None,
        name: str | None = None,
        start: PositionLike = "latest",
        batches: bool = False,
        on_removed: OnRemoved | None = None,
    ) -> AnySubscriber:
        """Call `handler` with every message of a topic from now on, or from `start` on where the topic stores them.

        It is called with one message after the other, or with lists of them if `batches` is set; in order, and once at
        a time, for each partition. Returning acks. Raising fails the delivery: the subscriber is suspended, and tried
        again later. A coroutine function runs on the event loop, a plain function in a thread of the subscriber's own.
        `on_removed` is called on the loop when the topic removes the subscriber.

        With an `identity`, many subscribers may offer to serve that name, at any node, and one of them gets the
        messages of a partition; when it fails or is gone, the next one goes on where it was. `start` counts when the
        identity is new.

        Raises:
            NotStarted: the client is not connected, or was closed.
            DuplicateSubscriber: the name, or the handler, is subscribed to the topic already.
            TopicNotFound: there is no such topic.
        """
        self._check_open()
        return await self._subscribers.add(
            topic_text(topic), handler, identity=identity, name=name, start=position_text(start), batches=batches,
            on_removed=on_removed,
        )  # fmt: skip

    async def unsubscribe(self, topic: TopicLike, subscriber: AnySubscriber | str) -> None:
        """Stop calling the handler of a subscriber, which is given by itself or by its name.

        Raises:
            NotStarted: the client is not connected, or was closed.
            SubscriberNotFound: it is not subscribed to the topic by this client.
        """
        self._check_open()
        await self._subscribers.remove(topic, subscriber)

    @property
    def subscribers(self) -> list[AnySubscriber]:
        """Return the subscribers of this client, with those that are joining."""
        return self._subscribers.all()

    def _consume_as(self, identity: str, terms: SubscriberTerms, credit: int) -> Consumer:
        return self._make_consumer(
            ConsumerTerms(
                topic=terms.topic,
                subscription=identity,
                kind=SubscriptionKind.FAILOVER,
                start=terms.start,
                credit=credit,
                name=terms.name,
            )
        )

    # Watching and administration

    def events(self, types: Iterable[str] = ()) -> Events:
        """Return what happens on the node from now on: all events, or those of these types.

        Raises:
            NotStarted: the client is not connected, or was closed.
            InvalidSettings: there are too many types, or one is not text.
        """
        self._check_open()
        chosen = [str(checked_text("an event's type", each)) for each in types]
        if len(chosen) > EVENT_TYPES_MAX:
            raise InvalidSettings(f"{len(chosen)} types of events are more than {EVENT_TYPES_MAX}: listen to all")
        return Events(self._brokers, chosen, self._events)

    async def metrics(self, topic: TopicLike | None = None) -> PubSubMetrics:
        """Return what became of messages, of one topic or of all, at all brokers, and what this client rejected.

        Raises:
            NotStarted: the client is not connected, or was closed.
            TopicNotFound: there is no such topic.
        """
        found = await self.admin.pubsub_metrics(topic)
        here = [count for name, count in self._rejected.items() if topic is None or name == topic_text(topic)]
        return msgspec.structs.replace(found, rejected=dict(sum(here, Counter(found.rejected))))

    @property
    def admin(self) -> Admin:
        """Return the operations on topics, subscriptions, readers and the cluster.

        Raises:
            NotStarted: the client is not connected, or was closed.
        """
        self._check_open()
        return self._admin
