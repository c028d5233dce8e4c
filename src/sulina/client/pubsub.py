"""Publish/subscribe: handlers that are called with what is published, whatever node that comes from.

- Payloads are written by a registry, and read by one: whoever registers the same types gets back what was published.
- A publish is answered by an ack. What is wrong with a message is a reject, which says why; faults of the system raise.
- It is the same over a node in this process and over a cluster; `sync_pubsub` is the same for threads.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self, overload

import msgspec

from sulina.client.batching_producer import BatchingProducer, OnFailure, Rest
from sulina.client.batching_rules import BatchingRules
from sulina.client.checks import PositionLike, TopicLike, checked_text, position_text, topic_text
from sulina.client.client import Client
from sulina.client.connect import Connecting
from sulina.client.events import Events
from sulina.client.handling import Handler
from sulina.client.identity import IdentitySubscriber
from sulina.client.message import HeadersLike, Message, header_pairs
from sulina.client.publish_ack import PublishAck
from sulina.client.serialization import SerializationRegistry, headers_of, without_envelope
from sulina.client.subscriber import Subscriber, SubscriberTerms
from sulina.client.sync import SyncClient
from sulina.core.delivery.pubsub import PublishOptions
from sulina.errors import (
    DuplicateSubscriber,
    InvalidBatch,
    InvalidName,
    InvalidSettings,
    NotSerializable,
    NotStarted,
    SubscriberNotFound,
    SulinaError,
)
from sulina.types import TopicName
from sulina.wire.messages import PubSubMetrics

if TYPE_CHECKING:
    from sulina.client.sync_pubsub import SyncPubSub

STOP_SECONDS = 5.0  # for handlers that are at work
EVENT_TYPES_MAX = 100
REJECTED_TOPICS_MAX = 1000  # that are counted apart

OnRemoved = Callable[[SulinaError], object]
AnySubscriber = Subscriber | IdentitySubscriber


class PubSub:
    """Entered with `async with`, or with `with` for threads; or `start` it, and `stop` it. It can be started again.

    ```python
    async with sulina.PubSub("memory:") as pubsub:
        await pubsub.client.create_topic("/default/orders")
        await pubsub.subscribe("/default/orders", handle)
        ack = await pubsub.publish("/default/orders", {"order": 1})
    ```
    """

    def __init__(
        self, source: Connecting | Client | SyncClient, *, registry: SerializationRegistry | None = None
    ) -> None:
        """A client that is given stays open when this is stopped; one that is made here does not."""
        self.registry = registry or SerializationRegistry()
        self._source = source
        self._client: Client | None = None
        self._turn = asyncio.Lock()  # starts and stops, one after the other
        self._subscribers: dict[tuple[str, str], AnySubscriber] = {}  # by topic and name; also those that are joining
        self._handlers: dict[tuple[str, object], AnySubscriber] = {}  # by topic and handler
        self._events: set[Events] = set()
        self._rejected: dict[str, Counter[str]] = {}  # by topic: what was never sent
        self._producers: list[BatchingProducer] = []
        self._entered: list[SyncPubSub] = []

    # From start to stop

    @property
    def is_started(self) -> bool:
        """Whether it can be used."""
        return self._client is not None

    @property
    def client(self) -> Client:
        """For topics and all else that a node can be asked. NotStarted."""
        if self._client is None:
            raise NotStarted("publish/subscribe is not started, or has been stopped: start it first")
        return self._client

    async def start(self) -> Self:
        """Connect, and start a node if it is to be in this process. Disconnected."""
        async with self._turn:
            if self._client is None:
                if isinstance(self._source, SyncClient):
                    raise InvalidSettings("a client for threads is for `with` and `sync`, not for `async with`")
                self._client = self._source if isinstance(self._source, Client) else await self._source.open()
        return self

    async def stop(self) -> None:
        """Let all subscribers go. Handlers at work have a moment to finish; what producers still hold is discarded."""
        async with self._turn:
            client, self._client = self._client, None
            if client is None:
                return
            is_own = client is not self._source
            try:
                await asyncio.gather(
                    *(subscriber.leave(STOP_SECONDS) for subscriber in list(self._subscribers.values())),
                    *(events.close() for events in list(self._events)),
                )
            finally:
                if is_own:
                    await client.close()
                producers, self._producers = self._producers, []
                await asyncio.gather(*(producer.stop(Rest.DISCARD) for producer in producers))

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def sync(self) -> "SyncPubSub":
        """The same for threads, started; to be stopped by `stop`."""
        from sulina.client.sync_pubsub import SyncPubSub

        if isinstance(self._source, Client):
            raise InvalidSettings("a client of an event loop is for `async with`: give a URL, or a client for threads")
        if isinstance(self._source, SyncClient):
            return SyncPubSub(self._source, registry=self.registry)
        return SyncPubSub(self._source.sync(), registry=self.registry, owns_client=True)

    def __enter__(self) -> "SyncPubSub":
        started = self.sync()
        self._entered.append(started)
        return started

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().stop()

    # Subscribing

    @overload
    async def subscribe(
        self,
        topic: TopicLike,
        handler: Handler,
        *,
        identity: None = None,
        name: str | None = None,
        start: PositionLike = "latest",
        batches: bool = False,
        on_removed: OnRemoved | None = None,
    ) -> Subscriber: ...

    @overload
    async def subscribe(
        self,
        topic: TopicLike,
        handler: Handler,
        *,
        identity: str | None,
        name: str | None = None,
        start: PositionLike = "latest",
        batches: bool = False,
        on_removed: OnRemoved | None = None,
    ) -> AnySubscriber: ...

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
        """Have `handler` called with every message from now on, or from `start` on, where the topic keeps them.

        One message after the other, or lists of them with `batches`; in order, and once at a time, for each partition.
        What returns is acked; what raises has failed: the subscriber is suspended, and tried again later. A coroutine
        function runs on the event loop, a plain function in a thread of the subscriber's own. NotStarted,
        DuplicateSubscriber, TopicNotFound. `on_removed` is called on the loop when the topic lets the subscriber go.

        With an `identity` it offers to serve that name: of all who do, anywhere, one gets the messages of a partition,
        and when it fails or is gone the next one goes on where it was. `start` counts when the identity is new.
        """
        client = self.client
        if not callable(handler):
            raise InvalidSettings(f"a handler is called with messages: {handler!r:.60} cannot be")
        terms = SubscriberTerms(
            topic=topic_text(topic),
            name=checked_text("name", name or f"subscriber-{secrets.token_hex(4)}"),
            start=position_text(start),
            batches=batches,
        )
        by_name, by_handler = (terms.topic, terms.name), (terms.topic, _identity(handler))
        if by_name in self._subscribers:
            raise DuplicateSubscriber(f"{terms.name} is subscribed to {terms.topic} already")
        if by_handler in self._handlers:
            other = self._handlers[by_handler].name
            raise DuplicateSubscriber(f"{other} is subscribed to {terms.topic} with this handler already")
        subscriber: AnySubscriber
        if identity is None:
            subscriber = Subscriber(
                client.brokers,
                client.codec,
                self.registry,
                terms,
                handler,
                on_removed=on_removed,
                on_end=self._forget,
            )
        else:
            subscriber = IdentitySubscriber(
                client,
                identity,
                self.registry,
                terms,
                handler,
                on_removed=on_removed,
                on_end=self._forget,
            )
        self._subscribers[by_name] = self._handlers[by_handler] = subscriber
        await subscriber.open()
        return subscriber

    def _forget(self, subscriber: AnySubscriber) -> None:
        del self._subscribers[subscriber.topic, subscriber.name]
        del self._handlers[subscriber.topic, _identity(subscriber.handler)]

    async def unsubscribe(self, topic: TopicLike, subscriber: AnySubscriber | str) -> None:
        """By the subscriber, or by its name. NotStarted, SubscriberNotFound."""
        _ = self.client
        name = subscriber if isinstance(subscriber, str) else subscriber.name
        known = self._subscribers.get((topic_text(topic), name))
        if known is None or (known is not subscriber and not isinstance(subscriber, str)):
            raise SubscriberNotFound(f"{name} is not subscribed to {topic}")
        await known.unsubscribe()

    @property
    def subscribers(self) -> list[AnySubscriber]:
        """All that are subscribed here, and those that are joining."""
        return list(self._subscribers.values())

    # Publishing

    async def publish(
        self,
        topic: TopicLike,
        payload: object,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        options: PublishOptions | None = None,
        timeout_seconds: float | None = None,
    ) -> PublishAck:
        """One message. Accepted when its topic has it, or rejected, with the reason. NotStarted, TopicNotFound.

        `payload` is anything that the registry can write; None is a tombstone. `options` go before the topic's own.
        """
        messages = (Message(payload, key, headers),)
        return await self._publish(topic, messages, options, timeout_seconds, is_one=True)

    async def publish_batch(
        self,
        topic: TopicLike,
        payloads: Iterable[object],
        *,
        options: PublishOptions | None = None,
        timeout_seconds: float | None = None,
        split: bool = False,
    ) -> PublishAck:
        """Publish payloads, or Messages with keys and headers, all or nothing, in the partition that their keys name.

        When one of them cannot be written, all are rejected, and the ack says which one it was. A batch whose keys
        belong to several partitions is rejected, or with `split` published in parts, as `Client.publish_batch` says.
        """
        return await self._publish(topic, payloads, options, timeout_seconds, split=split)

    async def _publish(
        self,
        topic: TopicLike,
        payloads: Iterable[object],
        options: PublishOptions | None,
        timeout_seconds: float | None,
        *,
        is_one: bool = False,
        split: bool = False,
    ) -> PublishAck:
        client = self.client
        try:
            if not isinstance(topic, str | TopicName):
                raise InvalidName(kind="topic", name=f"{topic!r:.60}", pattern="/namespace/topic")
            TopicName.parse(topic_text(topic))
            written: list[object] = []
            for number, payload in enumerate(payloads):
                if type(payload) is bytes:
                    written.append(payload)  # as it is, for whoever reads it
                    continue
                try:
                    message = payload if isinstance(payload, Message) else Message(payload)
                    written.append(self._written(message))
                except NotSerializable as error:
                    raise error if is_one else NotSerializable(f"payload {number}: {error}") from None
            if not written:
                raise InvalidBatch("there is nothing to publish")
        except SulinaError as error:
            return self._reject(topic, error)
        return await client.publish_batch(topic, written, options=options, timeout_seconds=timeout_seconds, split=split)

    def _written(self, message: Message) -> Message:
        """With the bytes of its value, and what is needed to read them. NotSerializable."""
        headers = without_envelope(header_pairs(message.headers))
        if message.value is None:
            return Message(None, message.key, headers, message.timestamp_ms)
        envelope = self.registry.serialize(message.value)
        return Message(envelope.data, message.key, headers_of(envelope) + headers, message.timestamp_ms)

    def publisher(self, topic: TopicLike) -> "TopicPublisher":
        """What publishes to one topic. NotStarted, InvalidName."""
        _ = self.client
        return TopicPublisher(self, topic_text(topic))

    def batching_producer(
        self,
        topic: TopicLike,
        *,
        rules: BatchingRules | None = None,
        on_failure: OnFailure | str = OnFailure.FAIL,
        retry_seconds: float = 1.0,
        publish_timeout_seconds: float | None = None,
        options: PublishOptions | None = None,
        name: str | None = None,
    ) -> BatchingProducer:
        """Payloads that are produced one by one are published in batches. NotStarted, InvalidName."""
        producer = self.client.batching_producer(
            topic,
            rules=rules,
            on_failure=on_failure,
            retry_seconds=retry_seconds,
            publish_timeout_seconds=publish_timeout_seconds,
            options=options,
            write=self._written,
            name=name,
        )
        self._producers = [each for each in self._producers if not each.is_stopped]
        self._producers.append(producer)
        return producer

    # Watching

    def events(self, types: Iterable[str] = ()) -> Events:
        """What happens on the node from now on: all of it, or what is of these types. NotStarted."""
        chosen = [str(checked_text("an event's type", each)) for each in types]
        if len(chosen) > EVENT_TYPES_MAX:
            raise InvalidSettings(f"{len(chosen)} types of events are more than {EVENT_TYPES_MAX}: take all")
        return Events(self.client.brokers, chosen, self._events)

    async def metrics(self, topic: TopicLike | None = None) -> PubSubMetrics:
        """Of one topic, or of all: at all brokers, and what was rejected here. NotStarted, TopicNotFound."""
        found = await self.client.pubsub_metrics(topic)
        here = [count for name, count in self._rejected.items() if topic is None or name == topic_text(topic)]
        return msgspec.structs.replace(found, rejected=dict(sum(here, Counter(found.rejected))))

    def _reject(self, topic: object, error: SulinaError) -> PublishAck:
        """Before anything is sent: it is counted, and told, here."""
        ack = PublishAck.rejected(error)
        name = str(topic) if isinstance(topic, str | TopicName) else ""
        if name in self._rejected or len(self._rejected) < REJECTED_TOPICS_MAX:
            self._rejected.setdefault(name, Counter())[str(ack.reason)] += 1
        for events in self._events:
            events.rejected(name, str(ack.reason), str(error))
        return ack


class TopicPublisher:
    """Publishes to one topic. It is used up when its `PubSub` is stopped."""

    def __init__(self, pubsub: PubSub, topic: str) -> None:
        self.topic = topic
        self._pubsub = pubsub

    async def publish(
        self,
        payload: object,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        options: PublishOptions | None = None,
        timeout_seconds: float | None = None,
    ) -> PublishAck:
        """As `PubSub.publish`."""
        return await self._pubsub.publish(
            self.topic, payload, key=key, headers=headers, options=options, timeout_seconds=timeout_seconds
        )

    async def publish_batch(
        self,
        payloads: Iterable[object],
        *,
        options: PublishOptions | None = None,
        timeout_seconds: float | None = None,
        split: bool = False,
    ) -> PublishAck:
        """As `PubSub.publish_batch`."""
        return await self._pubsub.publish_batch(
            self.topic, payloads, options=options, timeout_seconds=timeout_seconds, split=split
        )


def _identity(handler: Handler) -> object:
    """Equal for the same handler: a method is made anew each time that it is asked for."""
    owner = getattr(handler, "__self__", None)
    return id(handler) if owner is None else (id(owner), getattr(handler, "__name__", ""))
