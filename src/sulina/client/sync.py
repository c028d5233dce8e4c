"""The client for threads: its event loop runs in a thread of its own, and every call waits for it.

The methods are made from those of the asynchronous client, with their signatures and docstrings.
"""

import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from sulina.client.admin import Admin
from sulina.client.batches import take_from
from sulina.client.checks import TopicLike
from sulina.client.client import Client
from sulina.client.consumer import Consumer
from sulina.client.events import Events
from sulina.client.loop_thread import LoopThread, Run
from sulina.client.message import Message, Record
from sulina.client.producer import Producer, ProducerReport, Receipt, Rest
from sulina.client.publish_ack import PublishAck
from sulina.client.reader import Reader
from sulina.client.serialization import SerializationRegistry
from sulina.client.subscribers import AnySubscriber
from sulina.errors import PositionDiverged, SulinaError
from sulina.wire.messages import Published, PubSubEvent

A_co = TypeVar("A_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
P = ParamSpec("P")
R = TypeVar("R")


class _Blocking(Generic[A_co]):
    """An object of an event loop, for other threads."""

    def __init__(self, wrapped: A_co, run: Run) -> None:
        self._wrapped = wrapped
        self._run = run


def _blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[_Blocking[A], P], R]:
    """Return a method that runs an asynchronous one in the loop, and waits for it."""

    @functools.wraps(method)
    def call(self: _Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(method(self._wrapped, *args, **kwargs))

    return call


def _wrapping(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], wrap: Callable[[R, Run], B]
) -> Callable[Concatenate[_Blocking[A], P], B]:
    """Return a method that runs an asynchronous one in the loop, and wraps what it returns."""

    @functools.wraps(method)
    def call(self: _Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> B:
        return wrap(self._run(method(self._wrapped, *args, **kwargs)), self._run)

    return call


def _in_loop(method: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[A, P], Coroutine[Any, Any, R]]:
    """Return a plain method as an asynchronous one: what it makes belongs to the loop."""

    @functools.wraps(method)
    async def call(self: A, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self, *args, **kwargs)

    return call


class _Takes(Protocol):
    """What gives out messages: a reader, a consumer."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def take(self, records_max: int | None = None) -> list[Message]: ...

    def batches(self, records_max: int | None = None) -> AsyncIterator[list[Message]]: ...


T_co = TypeVar("T_co", bound=_Takes, covariant=True)


class _SyncMessages(_Blocking[T_co]):
    """Messages, taken ahead in lists."""

    def __init__(self, wrapped: T_co, run: Run, ahead_max: int | None = None) -> None:
        super().__init__(wrapped, run)
        self._ahead: deque[Message] = deque()
        self._ahead_max = ahead_max  # messages that iteration takes at once

    def __enter__(self) -> Self:
        self._run(self._wrapped.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration; a consumer makes its acks durable and detaches."""
        self._ahead.clear()
        self._run(self._wrapped.close())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        while not (found := self._taken_ahead(1)):
            self._ahead.extend(self._run(self._wrapped.take(self._ahead_max)))
            if not self._ahead:
                raise StopIteration
        return found[0]

    def batches(self, records_max: int | None = None) -> Iterator[list[Message]]:
        """Iterate over messages in lists, as they come: the fastest way to read many."""
        while messages := self._taken_ahead(records_max) or self._run(self._wrapped.take(records_max)):
            yield messages

    def _taken_ahead(self, records_max: int | None) -> list[Message]:
        return take_from(self._ahead, records_max)


class SyncReader(_SyncMessages[Reader]):
    """`for message in client.read(…):`; `with` it to begin before the first message is asked for."""

    @property
    def divergences(self) -> Sequence[PositionDiverged]:
        """Return what was read and given up since, the newest last: the reader went on where the log does."""
        return tuple(self._wrapped.divergences)


class SyncConsumer(_SyncMessages[Consumer]):
    """`with client.consumer(…) as messages:` and `for message in messages:`. Any thread may ack."""

    def __init__(self, consumer: Consumer, run: Run) -> None:
        super().__init__(consumer, run, ahead_max=max(1, consumer.terms.credit // 2))

    ack = _blocking(Consumer.ack)
    nack = _blocking(Consumer.nack)

    def ack_soon(self, message: Message) -> None:
        """Ack without waiting: many become one request. An ack that is lost means another delivery."""
        self._wrapped.ack_soon(message)

    @property
    def is_attached(self) -> bool:
        """Return whether any node sends to it at this moment."""
        return self._wrapped.is_attached

    def get(self, timeout_seconds: float | None = None) -> Message | None:
        """Return the next message; None: there was none for `timeout_seconds`, or the consumer was closed."""
        found = self._taken_ahead(1)
        return found[0] if found else self._run(self._wrapped.get(timeout_seconds))

    def _taken_ahead(self, records_max: int | None) -> list[Message]:
        """Return what iteration has taken ahead, but for what comes again."""
        while self._ahead:
            if taken := [message for message in take_from(self._ahead, records_max) if self._wrapped.is_own(message)]:
                return taken
        return []


class SyncEvents(_Blocking[Events]):
    """`with client.events() as events:` and `for event in events:`."""

    def __enter__(self) -> Self:
        self._run(self._wrapped.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    close = _blocking(Events.close)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PubSubEvent:
        async def following() -> PubSubEvent | None:
            return await anext(self._wrapped, None)  # a future cannot carry the end of an iteration

        event = self._run(following())
        if event is None:
            raise StopIteration
        return event


class SyncReceipt(_Blocking[Receipt]):
    """The receipt of a record that a producer has taken."""

    @property
    def record(self) -> Record:
        """Return the record as it is stored."""
        return self._wrapped.record

    @property
    def is_done(self) -> bool:
        """Return whether its outcome is known."""
        return self._wrapped.is_done

    def ack(self) -> PublishAck:
        """Wait for the ack of the record. Rejects are acks.

        Raises:
            SulinaError: a fault of the system.
        """
        if not self._wrapped.is_done:
            self._run(self._wrapped.wait())
        return self._wrapped.result()

    def cancel(self) -> bool:
        """Cancel the record. False: it is being published, or its outcome is known."""

        async def cancel() -> bool:
            return self._wrapped.cancel()

        return self._run(cancel())


class SyncProducer(_Blocking[Producer]):
    """`with client.producer(topic) as producer:`. Any thread may produce."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(Rest.SEND if error is None else Rest.DISCARD)

    @property
    def waiting(self) -> int:
        """Return the number of records that are not being published yet."""
        return self._wrapped.waiting

    def report(self) -> ProducerReport:
        """Return what became of all records so far."""
        return self._wrapped.report()

    produce = _wrapping(_in_loop(Producer.produce), SyncReceipt)
    wait_room = _blocking(Producer.wait_room)
    flush = _blocking(Producer.flush)
    stop = _blocking(Producer.stop)


class SyncSubscriber(_Blocking[AnySubscriber]):
    """A handler that is subscribed until it unsubscribes, or the topic removes it."""

    @property
    def name(self) -> str:
        """Return its name; no other subscriber of this client has it on this topic."""
        return self._wrapped.name

    @property
    def topic(self) -> str:
        """Return the topic."""
        return self._wrapped.topic

    @property
    def is_attached(self) -> bool:
        """Return whether a node has it at this moment."""
        return self._wrapped.is_attached

    @property
    def delivered(self) -> int:
        """Return the number of messages that the handler is done with."""
        return self._wrapped.delivered

    def unsubscribe(self) -> None:
        """Stop calling the handler. Within a call of the handler, it does not wait for that one."""
        self._run(self._wrapped.unsubscribe())

    def wait_removed(self, timeout_seconds: float | None = None) -> SulinaError | None:
        """Wait until it gets nothing more. Return why it was removed; None: it was unsubscribed.

        Raises:
            TimeoutError: it was not removed within `timeout_seconds`.
        """
        return self._run(self._wrapped.wait_removed(timeout_seconds))


class SyncAdmin(_Blocking[Admin]):
    """The operations on topics, subscriptions, readers and the cluster, for threads."""

    create_namespace = _blocking(Admin.create_namespace)
    namespace = _blocking(Admin.namespace)
    namespaces = _blocking(Admin.namespaces)
    delete_namespace = _blocking(Admin.delete_namespace)
    create_topic = _blocking(Admin.create_topic)
    topic = _blocking(Admin.topic)
    topics = _blocking(Admin.topics)
    delete_topic = _blocking(Admin.delete_topic)
    partition = _blocking(Admin.partition)
    commits = _blocking(Admin.commits)
    locate = _blocking(Admin.locate)
    fetch = _blocking(Admin.fetch)
    create_subscription = _blocking(Admin.create_subscription)
    subscription = _blocking(Admin.subscription)
    subscriptions = _blocking(Admin.subscriptions)
    delete_subscription = _blocking(Admin.delete_subscription)
    seek = _blocking(Admin.seek)
    consumers = _blocking(Admin.consumers)
    producers = _blocking(Admin.producers)
    subscribers = _blocking(Admin.subscribers)
    pubsub_metrics = _blocking(Admin.pubsub_metrics)
    register_reader = _blocking(Admin.register_reader)
    reader = _blocking(Admin.reader)
    readers = _blocking(Admin.readers)
    delete_reader = _blocking(Admin.delete_reader)
    info = _blocking(Admin.info)
    cluster = _blocking(Admin.cluster)
    brokers = _blocking(Admin.brokers)
    placement = _blocking(Admin.placement)
    moves = _blocking(Admin.moves)
    move_topic = _blocking(Admin.move_topic)
    cancel_moves = _blocking(Admin.cancel_moves)
    drain_broker = _blocking(Admin.drain_broker)
    activate_broker = _blocking(Admin.activate_broker)
    rebalance = _blocking(Admin.rebalance)


class SyncClient(_Blocking[Client]):
    """`with sulina.connect_sync(url) as client:`. Any thread may call it; handlers run in threads of their own."""

    def __init__(self, open_client: Callable[[], Coroutine[Any, Any, Client]]) -> None:
        """Connect; `open_client` runs in the loop where the client will live.

        Raises:
            Disconnected: the node does not answer.
        """
        self._thread = LoopThread()
        self._is_closed = False
        try:
            super().__init__(self._thread.run(open_client()), self._thread.run)
        except BaseException:
            self._is_closed = True
            self._thread.stop()
            raise

    def close(self) -> None:
        """Unsubscribe, send the acks of consumers and detach them, discard what producers hold, and disconnect.

        Handlers at work have 5 seconds to finish. Calls that wait get Disconnected.
        """
        if not self._is_closed:
            self._is_closed = True
            try:
                self._run(self._wrapped.close())
            finally:
                self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Return the name by which topics list this client as a producer."""
        return self._wrapped.name

    @property
    def url(self) -> str:
        """Return where the node is, or the broker that is asked what any of them knows."""
        return self._wrapped.url

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection at this moment; if not, one is being made."""
        return self._wrapped.is_connected

    @property
    def registry(self) -> SerializationRegistry:
        """Return what writes and reads payloads."""
        return self._wrapped.registry

    publish = _blocking(Client.publish)
    publish_batch = _blocking(Client.publish_batch)
    producer = _wrapping(_in_loop(Client.producer), SyncProducer)
    read = _wrapping(_in_loop(Client.read), SyncReader)
    consumer = _wrapping(_in_loop(Client.consumer), SyncConsumer)
    events = _wrapping(_in_loop(Client.events), SyncEvents)
    metrics = _blocking(Client.metrics)
    subscribe = _wrapping(Client.subscribe, SyncSubscriber)

    def unsubscribe(self, topic: TopicLike, subscriber: SyncSubscriber | str) -> None:
        """Stop calling the handler of a subscriber, which is given by itself or by its name.

        Raises:
            NotStarted: the client was closed.
            SubscriberNotFound: it is not subscribed to the topic by this client.
        """
        known = subscriber._wrapped if isinstance(subscriber, SyncSubscriber) else subscriber  # noqa: SLF001
        self._run(self._wrapped.unsubscribe(topic, known))

    @property
    def subscribers(self) -> list[SyncSubscriber]:
        """Return the subscribers of this client, with those that are joining."""
        return [SyncSubscriber(subscriber, self._run) for subscriber in self._wrapped.subscribers]

    @property
    def admin(self) -> SyncAdmin:
        """Return the operations on topics, subscriptions, readers and the cluster.

        Raises:
            NotStarted: the client was closed.
        """
        return SyncAdmin(self._wrapped.admin, self._run)


def publish_encoded(
    client: SyncClient,
    topic: TopicLike,
    partition: int,
    data: memoryview,
    *,
    txn_id: str | None = None,
    topic_id: str | None = None,
) -> Published:
    """Append record batches that are encoded in Kafka's format, end to end in one buffer, all or nothing: for Spark.

    It is one request, like a fetch, and keeps no order: a caller that needs one waits for each answer. With `topic_id`
    a later topic of the same name gets nothing.

    Raises:
        Disconnected: there was no answer: it may have been appended, or not.
        SulinaError: it was rejected, or a fault of the system.
    """
    return client._run(client._wrapped._publish_encoded(topic, partition, data, txn_id, topic_id))  # noqa: SLF001
