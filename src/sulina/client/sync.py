"""The same client for threads: its event loop runs in a thread of its own, and every call waits for it.

Nothing is done here that `client` does not do.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from sulina.client.admin import MOVE_SECONDS, PolicyLike, SchemaLike
from sulina.client.batches import take_from
from sulina.client.batching_producer import BatchingProducer, OnFailure, Write
from sulina.client.batching_rules import BatchingRules
from sulina.client.checks import PositionLike, TopicLike
from sulina.client.client import Client
from sulina.client.loop_thread import LoopThread, Run
from sulina.client.message import Delivered, HeadersLike, Received
from sulina.client.move_watch import OnProgress
from sulina.client.publish_ack import PublishAck
from sulina.client.reader import Reader
from sulina.client.subscription import Subscription
from sulina.client.sync_batching import SyncBatchingProducer
from sulina.core.delivery.members import SubscriptionKind
from sulina.core.delivery.pubsub import PublishOptions, SubscriberInfo
from sulina.core.log.commit import Commit
from sulina.core.topic import DeliveryGuarantee, Schema
from sulina.errors import PositionDiverged
from sulina.wire.messages import (
    BrokerInfo,
    ClusterInfo,
    Fetched,
    NamespaceInfo,
    NodeInfo,
    PartitionInfo,
    Placement,
    ProducerInfo,
    Published,
    PubSubMetrics,
    ReaderInfo,
    Rebalanced,
    SubscriptionInfo,
    TopicInfo,
    UnloadInfo,
)

T = TypeVar("T")


class SyncDelivered(Received, frozen=True, eq=False):
    """One record that a subscription delivered, to be acked or nacked by any thread."""

    attempt: int  # 1 the first time
    delivered: Delivered
    run: Run

    def ack(self) -> bool:
        """As `Delivered.ack`: True when the cursor is durable, False when the record will be delivered again."""
        return bool(self.run(self.delivered.ack()))

    def ack_soon(self) -> None:
        """As `ack`, without waiting."""
        self.delivered.ack_soon()

    def nack(self, delay_seconds: float | None = None) -> bool:
        """Have the record delivered again."""
        return bool(self.run(self.delivered.nack(delay_seconds)))


class SyncSubscription:
    """`with client.subscribe(…) as messages:` and `for message in messages:`."""

    def __init__(self, subscription: Subscription, run: Run) -> None:
        self._subscription = subscription
        self._run = run
        self._buffer: deque[Delivered] = deque()
        self._records_max = max(1, subscription.terms.credit // 2)

    def __enter__(self) -> Self:
        self._run(self._subscription.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Make acks durable and detach."""
        self._buffer.clear()
        self._run(self._subscription.close())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncDelivered:
        while True:
            if not self._buffer:
                self._buffer.extend(self._run(self._subscription.take(self._records_max)))
                if not self._buffer:
                    raise StopIteration
            if (message := self._next_here()) is not None:
                return message

    def get(self, timeout_seconds: float | None = None) -> SyncDelivered | None:
        """The next message; None when there is none for so long, or the subscription was closed."""
        if (message := self._next_here()) is not None:
            return message
        delivered = self._run(self._subscription.get(timeout_seconds))
        return None if delivered is None else self._sync(delivered)

    def batches(self, records_max: int | None = None) -> Iterator[list[SyncDelivered]]:
        """Messages in lists, as they come."""
        while messages := self._take_here(records_max) or self._run(self._subscription.take(records_max)):
            yield [self._sync(message) for message in messages]

    def ack(self, messages: Iterable[SyncDelivered]) -> bool:
        """True when the cursors are durable; False when any of the deliveries had been taken back."""
        return bool(self._run(self._subscription.ack([message.delivered for message in messages])))

    def _next_here(self) -> SyncDelivered | None:
        return next((self._sync(message) for message in self._take_here(1)), None)

    def _take_here(self, records_max: int | None) -> list[Delivered]:
        """What iteration has taken ahead, but for what comes again."""
        while self._buffer:
            if taken := [message for message in take_from(self._buffer, records_max) if not message.attachment.is_gone]:
                return taken
        return []

    def _sync(self, m: Delivered) -> SyncDelivered:
        return SyncDelivered(
            m.value, m.key, m.timestamp_ms, m.headers, m.offset, m.partition, m.topic, m.attempt, m, self._run
        )


class SyncReader:
    """`for record in client.consume(…):`; `with` it to begin before the first record is asked for."""

    def __init__(self, reader: Reader, run: Run) -> None:
        self._reader = reader
        self._run = run
        self._buffer: deque[Received] = deque()

    @property
    def divergences(self) -> Sequence[PositionDiverged]:
        """What was read and given up since, the newest last: the reader went on where the log does."""
        return tuple(self._reader.divergences)

    def __enter__(self) -> Self:
        self._run(self._reader.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Read no more."""
        self._buffer.clear()
        self._run(self._reader.close())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Received:
        if not self._buffer:
            self._buffer.extend(self._run(self._reader.take()))
            if not self._buffer:
                raise StopIteration
        return self._buffer.popleft()

    def batches(self, records_max: int | None = None) -> Iterator[list[Received]]:
        """Records in lists, as they come."""
        while records := take_from(self._buffer, records_max) or self._run(self._reader.take(records_max)):
            yield records


class SyncClient:
    """`with sulina.connect(url) as client:`. Any thread may call it; what the methods do is said in `Client`."""

    def __init__(self, open_client: Callable[[], Coroutine[Any, Any, Client]]) -> None:
        """`open_client` runs in the loop where the client will live."""
        self._thread = LoopThread()
        self._is_closed = False
        try:
            self._client = self._run(open_client())
        except BaseException:
            self._is_closed = True
            self._thread.stop()
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def close(self) -> None:
        """Detach, flush acks, and let go."""
        if not self._is_closed:
            self._is_closed = True
            try:
                self._run(self._client.close())
            finally:
                self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where the node is."""
        return self._client.url

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._client.is_connected

    @property
    def asynchronous(self) -> Client:
        """The client in its loop, for what is built upon this one."""
        return self._client

    @property
    def run(self) -> Run:
        """Waits for work that is done in that loop."""
        return self._thread.run

    # Records

    def publish(
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
        """One record."""
        return self._run(
            self._client.publish(
                topic,
                value,
                key=key,
                headers=headers,
                timestamp_ms=timestamp_ms,
                partition=partition,
                txn_id=txn_id,
                expected_version=expected_version,
                schema=schema,
                timeout_seconds=timeout_seconds,
                idempotent=idempotent,
                options=options,
            )
        )

    def publish_batch(
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
        """Publish records, all or nothing; with `split`, in parts, one for each partition that their keys name."""
        return self._run(
            self._client.publish_batch(
                topic,
                messages,
                partition=partition,
                txn_id=txn_id,
                expected_version=expected_version,
                schema=schema,
                timeout_seconds=timeout_seconds,
                idempotent=idempotent,
                options=options,
                split=split,
            )
        )

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
    ) -> SyncBatchingProducer:
        """Messages that are produced one by one, by any thread, are published in batches."""

        async def make() -> BatchingProducer:  # where its loop is
            return self._client.batching_producer(
                topic,
                rules=rules,
                on_failure=on_failure,
                retry_seconds=retry_seconds,
                publish_timeout_seconds=publish_timeout_seconds,
                options=options,
                write=write,
                name=name,
            )

        return SyncBatchingProducer(self._run(make()), self._thread.run)

    def publish_encoded(
        self,
        topic: TopicLike,
        partition: int,
        data: memoryview,
        *,
        txn_id: str | None = None,
        timeout_seconds: float | None = None,
    ) -> Published:
        """Record batches in Kafka's format, stored as they are, all or nothing."""
        return self._run(
            self._client.publish_encoded(topic, partition, data, txn_id=txn_id, timeout_seconds=timeout_seconds)
        )

    def consume(
        self,
        topic: TopicLike,
        *,
        start: PositionLike = "earliest",
        partitions: Sequence[int] | None = None,
        follow: bool = True,
        version: int | None = None,
        max_bytes: int = 1 << 20,
    ) -> SyncReader:
        """Records without a subscription."""
        reader = self._client.consume(
            topic, start=start, partitions=partitions, follow=follow, version=version, max_bytes=max_bytes
        )
        return SyncReader(reader, self._thread.run)

    def subscribe(
        self,
        topic: TopicLike,
        subscription: str,
        *,
        kind: SubscriptionKind | str = SubscriptionKind.EXCLUSIVE,
        start: PositionLike = "latest",
        credit: int = 1000,
        name: str = "",
    ) -> SyncSubscription:
        """Messages as they come, to be acked."""
        made = self._client.subscribe(topic, subscription, kind=kind, start=start, credit=credit, name=name)
        return SyncSubscription(made, self._thread.run)

    def fetch(
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
        """Batches as they are stored."""
        return self._run(
            self._client.fetch(
                topic,
                partition,
                offset,
                max_bytes=max_bytes,
                version=version,
                min_version=min_version,
                min_offset=min_offset,
                wait_seconds=wait_seconds,
                epoch=epoch,
            )
        )

    # Namespaces and topics

    def create_namespace(self, namespace: str, policy: PolicyLike | None = None) -> NamespaceInfo:
        """Create it, or give it another policy."""
        return self._run(self._client.create_namespace(namespace, policy))

    def namespace(self, namespace: str) -> NamespaceInfo:
        """One namespace."""
        return self._run(self._client.namespace(namespace))

    def namespaces(self) -> list[NamespaceInfo]:
        """All of them."""
        return self._run(self._client.namespaces())

    def delete_namespace(self, namespace: str) -> None:
        """One that has no topics."""
        self._run(self._client.delete_namespace(namespace))

    def create_topic(
        self,
        topic: TopicLike,
        partitions: int = 1,
        *,
        delivery: DeliveryGuarantee | str = DeliveryGuarantee.RELIABLE,
        policy: PolicyLike | None = None,
        schema: SchemaLike | None = None,
    ) -> TopicInfo:
        """Create it, or give it another policy."""
        return self._run(self._client.create_topic(topic, partitions, delivery=delivery, policy=policy, schema=schema))

    def topic(self, topic: TopicLike) -> TopicInfo:
        """One topic."""
        return self._run(self._client.topic(topic))

    def topics(self, *, namespace: str | None = None) -> list[TopicInfo]:
        """All of them, or those of one namespace."""
        return self._run(self._client.topics(namespace=namespace))

    def delete_topic(self, topic: TopicLike, *, force: bool = False) -> None:
        """With all its data."""
        self._run(self._client.delete_topic(topic, force=force))

    def partition(self, topic: TopicLike, partition: int = 0) -> PartitionInfo:
        """Its offsets, version and segments."""
        return self._run(self._client.partition(topic, partition))

    def commits(self, topic: TopicLike, partition: int = 0, *, start: int, end: int) -> list[Commit]:
        """The commits of versions [start, end)."""
        return self._run(self._client.commits(topic, partition, start=start, end=end))

    def locate(self, topic: TopicLike, position: PositionLike, partition: int = 0) -> int:
        """The offset that a position means now."""
        return self._run(self._client.locate(topic, position, partition))

    # Subscriptions

    def create_subscription(
        self,
        topic: TopicLike,
        subscription: str,
        *,
        kind: SubscriptionKind | str = SubscriptionKind.EXCLUSIVE,
        start: PositionLike = "latest",
    ) -> SubscriptionInfo:
        """Create it, with its cursors at `start`."""
        return self._run(self._client.create_subscription(topic, subscription, kind=kind, start=start))

    def subscription(self, topic: TopicLike, subscription: str) -> SubscriptionInfo:
        """One subscription, its consumers and cursors."""
        return self._run(self._client.subscription(topic, subscription))

    def subscriptions(self, topic: TopicLike) -> list[SubscriptionInfo]:
        """All of a topic."""
        return self._run(self._client.subscriptions(topic))

    def delete_subscription(self, topic: TopicLike, subscription: str, *, force: bool = False) -> None:
        """With its cursors."""
        self._run(self._client.delete_subscription(topic, subscription, force=force))

    def seek(
        self, topic: TopicLike, subscription: str, position: PositionLike, partition: int | None = None
    ) -> SubscriptionInfo:
        """Move its cursors."""
        return self._run(self._client.seek(topic, subscription, position, partition))

    def consumers(self, topic: TopicLike, partition: int = 0) -> dict[str, list[str]]:
        """The ids of consumers that are attached at the owner of a partition, by subscription."""
        return self._run(self._client.consumers(topic, partition))

    def producers(self, topic: TopicLike) -> list[ProducerInfo]:
        """Who publishes to a topic."""
        return self._run(self._client.producers(topic))

    def subscribers(self, topic: TopicLike) -> list[SubscriberInfo]:
        """Who is sent all that is published to a topic."""
        return self._run(self._client.subscribers(topic))

    # Registered readers

    def register_reader(
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
        """Say where a query is: retention keeps what it needs."""
        return self._run(self._client.register_reader(
            name, topic, positions, expires_seconds=expires_seconds, kind=kind, description=description, force=force,
            epochs=epochs,
        ))  # fmt: skip

    def reader(self, name: str, topic: TopicLike) -> ReaderInfo:
        """Its positions and lag."""
        return self._run(self._client.reader(name, topic))

    def readers(self, topic: TopicLike | None = None) -> list[ReaderInfo]:
        """All of them, or those of one topic."""
        return self._run(self._client.readers(topic))

    def delete_reader(self, name: str, topic: TopicLike) -> None:
        """It holds nothing back any more."""
        self._run(self._client.delete_reader(name, topic))

    def info(self) -> NodeInfo:
        """The node that answers."""
        return self._run(self._client.info())

    # The cluster

    def lookup(self, topic: TopicLike) -> Placement:
        """Where the partitions of a topic are served."""
        return self._run(self._client.lookup(topic))

    def cluster(self) -> ClusterInfo:
        """The cluster as the home sees it."""
        return self._run(self._client.cluster())

    def pubsub_metrics(self, topic: TopicLike | None = None) -> PubSubMetrics:
        """What became of messages, of one topic or of all, at all brokers together since each was started."""
        return self._run(self._client.pubsub_metrics(topic))

    def unloads(self, topic: TopicLike) -> list[UnloadInfo]:
        """Those that are under way for a topic."""
        return self._run(self._client.unloads(topic))

    def cancel_unloads(self, topic: TopicLike, *, partition: int | None = None) -> list[UnloadInfo]:
        """Take back wishes to unload or move a topic; which."""
        return self._run(self._client.cancel_unloads(topic, partition=partition))

    def unload(
        self,
        topic: TopicLike,
        *,
        force: bool = False,
        to: str | None = None,
        partition: int | None = None,
        give_up: bool = False,
        wait: bool = True,
        on_progress: OnProgress | None = None,
        timeout_seconds: float = MOVE_SECONDS,
    ) -> list[UnloadInfo]:
        """Have partitions leave their owners. `on_progress` is called in the thread of the client's loop."""
        return self._run(
            self._client.unload(
                topic,
                force=force,
                to=to,
                partition=partition,
                give_up=give_up,
                wait=wait,
                on_progress=on_progress,
                timeout_seconds=timeout_seconds,
            )
        )

    def move(
        self,
        topic: TopicLike,
        to: str,
        *,
        force: bool = False,
        partition: int | None = None,
        wait: bool = True,
        on_progress: OnProgress | None = None,
        timeout_seconds: float = MOVE_SECONDS,
    ) -> list[UnloadInfo]:
        """`unload` for one broker."""
        return self._run(
            self._client.move(
                topic,
                to,
                force=force,
                partition=partition,
                wait=wait,
                on_progress=on_progress,
                timeout_seconds=timeout_seconds,
            )
        )

    def drain_broker(self, broker_id: str) -> BrokerInfo:
        """It gives away what it owns, and is given nothing more."""
        return self._run(self._client.drain_broker(broker_id))

    def activate_broker(self, broker_id: str) -> BrokerInfo:
        """It may own partitions again."""
        return self._run(self._client.activate_broker(broker_id))

    def rebalance(self) -> Rebalanced:
        """Spread the load; what is to be moved."""
        return self._run(self._client.rebalance())
