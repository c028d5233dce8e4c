"""The client: sessions with one node or with the brokers of a cluster, and everything that can be done over them.

It is asynchronous and belongs to one event loop; `sync` is the same for threads.
"""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from sulina.client.admin import Admin
from sulina.client.attachments import Terms
from sulina.client.batches import BatchCodec
from sulina.client.batching_producer import BatchingOptions, BatchingProducer, OnFailure, Rest, Write
from sulina.client.batching_rules import BatchingRules
from sulina.client.brokers import Brokers, Reach
from sulina.client.checks import PositionLike, TopicLike, checked, checked_number, position_text, topic_text
from sulina.client.connection import Connector
from sulina.client.lanes import Lanes
from sulina.client.message import HeadersLike, Message
from sulina.client.numbering import Attempts
from sulina.client.options import ClientOptions
from sulina.client.places import Places
from sulina.client.publish_ack import PublishAck
from sulina.client.publisher import NO_OPTIONS, Publisher, PublishTerms
from sulina.client.reader import Range, Reader, Reading
from sulina.client.route import Routes
from sulina.client.subscription import Subscription
from sulina.client.topics import Topics
from sulina.client.websocket import WebSocketConnector, split_urls
from sulina.core.delivery.members import SubscriptionKind
from sulina.core.delivery.pubsub import PublishOptions
from sulina.core.log.position import Position
from sulina.core.topic import Schema
from sulina.errors import InvalidSettings, SulinaError
from sulina.types import TopicName, checked_producer
from sulina.wire.frames import Call
from sulina.wire.messages import Published, TopicInfo

T = TypeVar("T")


class Client(Admin):
    """`async with sulina.connect(url) as client:`. Everything may be called from many tasks at once."""

    def __init__(
        self,
        connector: Connector | None = None,
        *,
        options: ClientOptions | None = None,
        url: str = "in-process",
        rng: random.Random | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
        reach: Reach = WebSocketConnector,
    ) -> None:
        """`connector` leads to the node at `url`. Without one, `url` is where brokers are, with commas between them.

        `reach` makes the connectors to all others. InvalidSettings when a URL is none.
        """
        self.options = options or ClientOptions()
        self.name = checked_producer(self.options.name or f"client-{secrets.token_hex(4)}")
        rng = rng or random.Random()
        first, *others = [url] if connector is not None else split_urls(url)
        brokers = Brokers(
            connector or reach(first), url=first, others=others, reach=reach, options=self.options, rng=rng
        )
        places = Places(brokers)
        super().__init__(Routes(brokers, places))
        self._brokers = brokers
        self._places = places
        self._codec = BatchCodec()
        self._topics = Topics(self._ask_topic, seconds=self.options.topic_seconds, first_turn=rng.randrange)
        self._lanes = Lanes(brokers, places)
        self._publisher = Publisher(brokers, self._codec, self._topics, self._lanes)
        self._subscriptions: set[Subscription] = set()
        self._producers: list[BatchingProducer] = []
        self._background: set[asyncio.Task[Any]] = set()
        self._on_close = on_close

    @property
    def url(self) -> str:
        """Where the node is, or the broker that is asked what any of them knows."""
        return self._brokers.home.url

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection at this moment; if not, one is being made."""
        return self._brokers.home.is_connected

    @property
    def brokers(self) -> Brokers:
        """For what is built upon a client."""
        return self._brokers

    @property
    def codec(self) -> BatchCodec:
        """For what is built upon a client."""
        return self._codec

    async def open(self) -> Self:
        """Connect. Disconnected."""
        await self._brokers.open()
        return self

    async def close(self) -> None:
        """Detach, flush acks, and let go. Calls that wait get Disconnected."""
        try:
            if not self._brokers.is_closed:
                await self._let_go()
        finally:  # also when this is being cancelled, a node in this process must stop
            on_close, self._on_close = self._on_close, None
            if on_close is not None:
                await asyncio.shield(on_close())

    async def _let_go(self) -> None:
        try:
            await asyncio.gather(*(subscription.close() for subscription in list(self._subscriptions)))
        finally:
            await self._brokers.close()
            await asyncio.gather(*(producer.stop(Rest.DISCARD) for producer in self._producers))
            await self._lanes.close()
            await self._places.close()
            for task in self._background:
                task.cancel()
            if self._background:
                await asyncio.wait(self._background)
            await self._codec.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ask_topic(self, name: TopicName, timeout_seconds: float | None) -> TopicInfo:
        """What it is; and where, as that is wanted next."""
        info, _ = await asyncio.gather(
            self._brokers.read(
                lambda number: Call(number, "topic", {"topic": str(name)}),
                timeout_seconds=timeout_seconds,
                room=self._brokers.rooms.lookups,
            ),
            self._places.look_up(name),
        )
        return msgspec.convert(info, TopicInfo)

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
        """One record. Returns when it is what the topic's ack level says, or rejected.

        `value` is bytes, text, or anything that msgspec writes as JSON, or a Message; None is a tombstone. The same
        `txn_id` again gets the first answer; without one, the client numbers it, so that it can repeat what a broken
        connection left open. `idempotent=False` does without: Disconnected then means that the outcome is unknown.
        `options` are for subscribers of a topic that keeps nothing.
        """
        return await self.publish_batch(
            topic,
            (value if isinstance(value, Message) else Message(value, key, headers, timestamp_ms),),
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
        messages: Iterable[object],
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
        """Publish messages, or values as `publish` takes them, all or nothing, in the partition that their keys name.

        A batch whose keys belong to several partitions is rejected, and nothing of it is stored. With `split` it is
        published in parts, one for each partition, each all or nothing: `ack.parts` says what became of each.

        Raises:
            SplitFailed: one of several parts met a fault of the system; its `parts` say what became of each.
        """
        terms = PublishTerms(
            partition=partition,
            txn_id=txn_id,
            expected_version=expected_version,
            schema=schema,
            timeout_seconds=timeout_seconds,
            is_idempotent=self.options.idempotent if idempotent is None else idempotent,
            options=options or NO_OPTIONS,
            producer=self.name,
            split=split,
        )
        return await self._publisher.publish(topic, messages, terms)

    def batching_producer(
        self,
        topic: TopicLike,
        *,
        rules: BatchingRules | None = None,
        on_failure: OnFailure | str = OnFailure.FAIL,
        retry_seconds: float = 1.0,
        publish_timeout_seconds: float | None = None,
        options: PublishOptions | None = None,
        write: Write | None = None,
        name: str | None = None,
    ) -> BatchingProducer:
        """Messages that are produced one by one are published in batches, by `rules`: so many, or after so long.

        `write` makes the values of messages bytes, if that is not to be done as `publish` does it. `name` is how the
        topic lists the producer; without one it is the client's.
        """
        producer_name = self.name if name is None else checked_producer(name)
        batching = BatchingOptions(
            rules=rules or BatchingRules(),
            on_failure=checked(on_failure, OnFailure),
            retry_seconds=retry_seconds,
            publish_timeout_seconds=publish_timeout_seconds,
        )

        async def publish(
            topic: str, messages: Sequence[object], *, attempts: Attempts, timeout_seconds: float | None
        ) -> list[PublishAck | SulinaError]:
            terms = PublishTerms(
                attempts=attempts,
                timeout_seconds=timeout_seconds,
                is_idempotent=self.options.idempotent,
                options=options or NO_OPTIONS,
                producer=producer_name,
                split=True,
            )
            return await self._publisher.publish_each(topic, messages, terms)

        self._producers = [producer for producer in self._producers if not producer.is_stopped]
        producer = BatchingProducer(publish, topic_text(topic), batching, write)
        self._producers.append(producer)
        return producer

    async def publish_encoded(
        self,
        topic: TopicLike,
        partition: int,
        data: memoryview,
        *,
        txn_id: str | None = None,
        timeout_seconds: float | None = None,
    ) -> Published:
        """Record batches in Kafka's format, end to end in one buffer: stored as they are, all or nothing."""
        terms = PublishTerms(partition=partition, txn_id=txn_id, timeout_seconds=timeout_seconds)
        return await self._publisher.publish_encoded(TopicName.parse(topic_text(topic)), partition, data, terms)

    # Reading

    def consume(
        self,
        topic: TopicLike,
        *,
        start: PositionLike = "earliest",
        partitions: Sequence[int] | None = None,
        follow: bool = True,
        version: int | None = None,
        max_bytes: int = 1 << 20,
    ) -> Reader:
        """Records from `start` on, of all partitions as they come, each in its order.

        `start` is looked up when the reading begins. With `follow=False` it ends where the topic ended then; with a
        `version`, which is of one partition, it reads what the partition held at it. Offsets that were given up after
        they were read are noted in the reader's `divergences`, and it goes on where the log does.
        """
        name, begin = TopicName.parse(topic_text(topic)), position_text(start)
        checked_number("max_bytes", max_bytes)
        if version is not None:
            checked_number("version", version)
        for partition in partitions or ():
            checked_number("partition", partition)

        async def locate() -> list[Range]:
            count = (await self.topic(name)).settings.partitions  # as it is now, whatever is known of it
            chosen = range(count) if partitions is None else partitions
            if version is not None and len(chosen) != 1:
                raise InvalidSettings("a version counts the commits of one partition: name the partition to read")
            is_endless = follow or version is not None
            return await asyncio.gather(*(self._range(name, number, begin, is_endless) for number in chosen))

        reading = Reading(topic=name, version=version, max_bytes=max_bytes)
        return Reader(self._routes, self._codec, reading, locate, self._in_background)

    async def _range(self, name: TopicName, partition: int, start: str, is_endless: bool) -> Range:
        end = None if is_endless else (await self.partition(name, partition)).end_offset
        asked = Position.parse(start)
        if asked.epoch is None:
            return Range(partition=partition, start=await self.locate(name, start, partition), end=end)
        # What retention has removed is passed over; the owner says what was given up, and the reader notes it.
        first = await self.locate(name, Position(asked.at, asked.value), partition)
        return Range(partition=partition, start=max(asked.value, first), end=end, epoch=asked.epoch)

    def subscribe(
        self,
        topic: TopicLike,
        subscription: str,
        *,
        kind: SubscriptionKind | str = SubscriptionKind.EXCLUSIVE,
        start: PositionLike = "latest",
        credit: int = 1000,
        name: str = "",
    ) -> Subscription:
        """Messages as they come, to be acked. `start` counts when the subscription is new.

        `credit` is how many the node may send ahead of what is taken. A consumer that comes back under the same `name`
        takes its former self's place.
        """
        terms = Terms(
            topic=topic_text(topic),
            subscription=subscription,
            kind=checked(kind, SubscriptionKind),
            start=position_text(start),
            credit=credit,
            name=name or f"consumer-{secrets.token_hex(4)}",
        )
        return Subscription(self._brokers, self._places, self._codec, terms, self._subscriptions)

    def _in_background(self, work: Awaitable[T], name: str) -> asyncio.Task[T]:
        """A task that ends with the client, if not before; its error is whoever's who looks at it."""
        task = asyncio.ensure_future(work)
        task.set_name(name)
        self._background.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()
