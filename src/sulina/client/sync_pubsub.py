"""Publish/subscribe for threads. Nothing is done here that `pubsub` does not do."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from sulina.client.batching_producer import BatchingProducer, OnFailure
from sulina.client.batching_rules import BatchingRules
from sulina.client.checks import PositionLike, TopicLike
from sulina.client.events import Events
from sulina.client.handling import Handler
from sulina.client.loop_thread import Run
from sulina.client.message import HeadersLike
from sulina.client.publish_ack import PublishAck
from sulina.client.pubsub import AnySubscriber, OnRemoved, PubSub, TopicPublisher
from sulina.client.serialization import SerializationRegistry
from sulina.client.sync import SyncClient
from sulina.client.sync_batching import SyncBatchingProducer
from sulina.core.delivery.pubsub import PublishOptions
from sulina.errors import NotStarted, SulinaError
from sulina.wire.messages import PubSubEvent, PubSubMetrics

T = TypeVar("T")


class SyncSubscriber:
    """Subscribed until it unsubscribes, or the topic removes it."""

    def __init__(self, subscriber: AnySubscriber, run: Run) -> None:
        self.asynchronous = subscriber
        self._run = run

    @property
    def name(self) -> str:
        """No other subscriber of this client has it on this topic."""
        return self.asynchronous.name

    @property
    def topic(self) -> str:
        """What it is subscribed to."""
        return self.asynchronous.topic

    @property
    def is_attached(self) -> bool:
        """Whether a node has it at this moment."""
        return self.asynchronous.is_attached

    @property
    def delivered(self) -> int:
        """Messages that the handler is done with."""
        return self.asynchronous.delivered

    def unsubscribe(self) -> None:
        """The handler is not called any more. Within a call of the handler, it does not wait for that one."""
        self._run(self.asynchronous.unsubscribe())

    def wait_removed(self, timeout_seconds: float | None = None) -> SulinaError | None:
        """Why it was removed, once it is; None: it was unsubscribed. TimeoutError."""
        return self._run(asyncio.wait_for(self.asynchronous.wait_removed(), timeout_seconds))  # type: ignore[no-any-return]


class SyncEvents:
    """`with pubsub.events() as events:` and `for event in events:`."""

    def __init__(self, events: Events, run: Run) -> None:
        self._events = events
        self._run = run

    def __enter__(self) -> Self:
        self._run(self._events.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Listen no more."""
        self._run(self._events.close())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PubSubEvent:
        async def following() -> PubSubEvent | None:
            return await anext(self._events, None)  # a future cannot carry the end of an iteration

        event: PubSubEvent | None = self._run(following())
        if event is None:
            raise StopIteration
        return event


class SyncTopicPublisher:
    """Publishes to one topic."""

    def __init__(self, publisher: TopicPublisher, run: Run) -> None:
        self._publisher = publisher
        self._run = run

    @property
    def topic(self) -> str:
        """Where it publishes to."""
        return self._publisher.topic

    def publish(
        self,
        payload: object,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        options: PublishOptions | None = None,
        timeout_seconds: float | None = None,
    ) -> PublishAck:
        """As `PubSub.publish`."""
        work = self._publisher.publish(
            payload, key=key, headers=headers, options=options, timeout_seconds=timeout_seconds
        )
        return self._run(work)  # type: ignore[no-any-return]

    def publish_batch(
        self,
        payloads: Iterable[object],
        *,
        options: PublishOptions | None = None,
        timeout_seconds: float | None = None,
        split: bool = False,
    ) -> PublishAck:
        """As `PubSub.publish_batch`."""
        work = self._publisher.publish_batch(payloads, options=options, timeout_seconds=timeout_seconds, split=split)
        return self._run(work)  # type: ignore[no-any-return]


class SyncPubSub:
    """`with sulina.PubSub(url) as pubsub:`. Any thread may call it; what the methods do is said in `PubSub`.

    Handlers that are plain functions run in a thread of their subscriber's own, and may call all of this.
    """

    def __init__(
        self, client: SyncClient, *, registry: SerializationRegistry | None = None, owns_client: bool = False
    ) -> None:
        """It is started. `owns_client` closes the client with it."""
        self._client = client
        self._owns_client = owns_client
        self._is_stopped = False
        self._pubsub = PubSub(client.asynchronous, registry=registry)
        client.run(self._pubsub.start())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._is_stopped:
            work.close()
            raise NotStarted("publish/subscribe has been stopped: make another")
        return self._client.run(work)  # type: ignore[no-any-return]

    def _made(self, make: Callable[[], T]) -> T:
        """By the loop, where it belongs."""

        async def made() -> T:
            return make()

        return self._run(made())

    @property
    def client(self) -> SyncClient:
        """For topics and all else that a node can be asked. NotStarted."""
        if self._is_stopped:
            raise NotStarted("publish/subscribe has been stopped: make another")
        return self._client

    @property
    def registry(self) -> SerializationRegistry:
        """What writes and reads payloads."""
        return self._pubsub.registry

    @property
    def is_started(self) -> bool:
        """Whether it can be used."""
        return not self._is_stopped

    def stop(self) -> None:
        """Let all subscribers go. Once."""
        if self._is_stopped:
            return
        try:
            self._run(self._pubsub.stop())
        finally:
            self._is_stopped = True
            if self._owns_client:
                self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Subscribing

    def subscribe(
        self,
        topic: TopicLike,
        handler: Handler,
        *,
        identity: str | None = None,
        name: str | None = None,
        start: PositionLike = "latest",
        batches: bool = False,
        on_removed: OnRemoved | None = None,
    ) -> SyncSubscriber:
        """Have `handler` called with every message. `on_removed` is called in the thread of the client's loop."""
        work = self._pubsub.subscribe(
            topic, handler, identity=identity, name=name, start=start, batches=batches, on_removed=on_removed
        )
        return SyncSubscriber(self._run(work), self._run)

    def unsubscribe(self, topic: TopicLike, subscriber: SyncSubscriber | AnySubscriber | str) -> None:
        """By the subscriber, or by its name."""
        known = subscriber.asynchronous if isinstance(subscriber, SyncSubscriber) else subscriber
        self._run(self._pubsub.unsubscribe(topic, known))

    @property
    def subscribers(self) -> list[SyncSubscriber]:
        """All that are subscribed here."""
        return [SyncSubscriber(subscriber, self._run) for subscriber in self._pubsub.subscribers]

    # Publishing

    def publish(
        self,
        topic: TopicLike,
        payload: object,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        options: PublishOptions | None = None,
        timeout_seconds: float | None = None,
    ) -> PublishAck:
        """One message."""
        return self._run(
            self._pubsub.publish(
                topic, payload, key=key, headers=headers, options=options, timeout_seconds=timeout_seconds
            )
        )

    def publish_batch(
        self,
        topic: TopicLike,
        payloads: Iterable[object],
        *,
        options: PublishOptions | None = None,
        timeout_seconds: float | None = None,
        split: bool = False,
    ) -> PublishAck:
        """Publish messages, all or nothing; with `split`, in parts, one for each partition that their keys name."""
        return self._run(
            self._pubsub.publish_batch(topic, payloads, options=options, timeout_seconds=timeout_seconds, split=split)
        )

    def publisher(self, topic: TopicLike) -> SyncTopicPublisher:
        """What publishes to one topic."""
        return SyncTopicPublisher(self._made(lambda: self._pubsub.publisher(topic)), self._run)

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
    ) -> SyncBatchingProducer:
        """Payloads that are produced one by one, by any thread, are published in batches."""

        def make() -> BatchingProducer:
            return self._pubsub.batching_producer(
                topic,
                rules=rules,
                on_failure=on_failure,
                retry_seconds=retry_seconds,
                publish_timeout_seconds=publish_timeout_seconds,
                options=options,
                name=name,
            )

        return SyncBatchingProducer(self._made(make), self._client.run)

    # Watching

    def events(self, types: Iterable[str] = ()) -> SyncEvents:
        """What happens on the node from now on."""
        return SyncEvents(self._made(lambda: self._pubsub.events(types)), self._client.run)

    def metrics(self, topic: TopicLike | None = None) -> PubSubMetrics:
        """Of one topic, or of all."""
        return self._run(self._pubsub.metrics(topic))
