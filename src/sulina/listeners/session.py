"""One client's session: frames in, frames out, whatever carries them.

- Frames are handled in their order. A publish is handed to the log before the next frame is looked at, and answered
  when it is durable, so any number can be under way and each partition gets them as they were sent.
- What a client may have under way, and what waits to be sent to it, is bounded in bytes and in number: past that its
  frames are not read, and its consumers are sent nothing, until there is room again. Others do not notice.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from sulina.broker.broker import Broker
from sulina.broker.consumer import ConsumerAttachment, ConsumerConnection, ConsumerDelivery
from sulina.broker.topic import Accepted
from sulina.core.delivery.pubsub import PublishOptions
from sulina.core.log.publish_request import NO_OPTIONS, PublishRequest
from sulina.errors import (
    ArchiveFailed,
    ConsumerNotFound,
    InvalidInput,
    LimitReached,
    MetadataFailed,
    NotServing,
    QueueFull,
    SulinaError,
    TopicNotFound,
    from_code,
)
from sulina.listeners.calls import call
from sulina.listeners.outbox import Outbox
from sulina.listeners.session_subscribers import SessionListeners, SessionSubscribers
from sulina.types import TopicName, checked_producer
from sulina.waiting import wait_or_timeout
from sulina.wire.frames import (
    CREDIT_MAX,
    AckBatch,
    AckRecords,
    AddCredit,
    Answer,
    Call,
    Deliver,
    Detach,
    Detached,
    FailBatch,
    Failed,
    Fetch,
    FromClient,
    Join,
    Listen,
    NackRecords,
    Publish,
    Subscribe,
    Unlisten,
)
from sulina.wire.messages import Subscribed, SubscriptionSettings

_logger = structlog.get_logger("sulina.session")

_Producing = tuple[str, str, str | None]  # topic, producer, and which topic of that name it is

# Errors after which a client sends again, instead of failing the publish.
_SENT_AGAIN = (ArchiveFailed, MetadataFailed, NotServing, QueueFull, TopicNotFound)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits on what one client has under way."""

    requests_max: int = 4096  # that have not been answered
    requests_bytes_max: int = 64 << 20
    outbox_bytes_max: int = 8 << 20  # deliveries and answers that wait to be sent
    consumers_max: int = 4096
    producers_max: int = 4096  # topics that it publishes to, by name of the producer; more are not listed
    fetch_bytes_max: int = 4 << 20
    fetches_max: int = 4  # that read at a time; more may wait for records
    wait_seconds_max: float = 30.0


class ServerSession:
    """`handle` every frame that comes, send every frame of the `outbox`, then `close`."""

    def __init__(self, broker: Broker, limits: SessionLimits | None = None, name: str = "") -> None:
        self._broker = broker
        self._limits = limits or SessionLimits()
        self._name = name
        self.outbox = Outbox(self._limits.outbox_bytes_max, self._block)
        self._attachments: dict[int, tuple[TopicName, ConsumerAttachment]] = {}
        self._subscribers = SessionSubscribers(broker, self.outbox, name)
        self._listeners = SessionListeners(broker, self.outbox)
        self._producers: set[_Producing] = set()
        self._broken_runs: dict[int, SulinaError] = {}  # of publishes, and why the first of each was refused
        self._requests = 0
        self._requests_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._reading = asyncio.Semaphore(self._limits.fetches_max)
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetches: set[asyncio.Task[None]] = set()  # of the tasks, those that may wait long
        self._idle = asyncio.Event()  # no request is under way
        self._idle.set()
        self._is_closed = False
        broker.counts.connections += 1
        broker.metrics.connections.set(broker.counts.connections)

    async def finish(self, seconds: float) -> None:
        """Answer the requests under way, for this many seconds at most; no frame is handled any more."""
        for fetch in self._fetches:  # nothing is lost by it: the reader asks again
            fetch.cancel()
        await wait_or_timeout(self._idle, seconds)
        self.outbox.close()

    async def close(self) -> None:
        """Detach all consumers and subscribers of the client, which has gone."""
        if self._is_closed:
            return
        self._is_closed = True
        self.outbox.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        while self._attachments:  # others may be detached meanwhile
            _, (topic, attachment) = self._attachments.popitem()
            await self._broker.detach(topic, attachment)
        for topic_text, producer, _ in self._producers:
            self._broker.producers.detach(TopicName.parse(topic_text), producer)
        self._subscribers.close()
        await self._listeners.close()
        self._broker.counts.connections -= 1
        self._broker.metrics.connections.set(self._broker.counts.connections)

    async def handle(self, frame: FromClient) -> None:
        """Do what a frame says. It returns when the next may come; answers come through the outbox."""
        if not self._has_room.is_set():
            await self._has_room.wait()
        if self.outbox.is_full:
            await self.outbox.wait_room()
        match frame:
            case Publish():
                await self._answering(frame.id, self._publish(frame))
            case AckRecords() | NackRecords():
                await self._answering(frame.id, self._settle(frame))
            case AckBatch() | FailBatch():
                self._subscribers.settle(frame)
            case AddCredit():
                await self._answering(0, self._add_credit(frame))
            case Fetch():
                fetch = self._spawn(self._answering(frame.id, self._fetch(frame)))
                self._fetches.add(fetch)
                fetch.add_done_callback(self._fetches.discard)
            case Call():
                self._spawn(self._answering(frame.id, self._call(frame)))
            case Join():
                self._spawn(self._answering(frame.id, self._join(frame)))
            case Listen():
                await self._answering(frame.id, self._listeners.listen(frame))
            case Unlisten():
                await self._answering(frame.id, self._listeners.unlisten(frame))
            case Subscribe():
                await self._answering(frame.id, self._subscribe(frame))
            case Detach():
                await self._answering(frame.id, self._detach(frame))

    # Answers

    async def _answering(self, request: int, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, or say why not. A request with id 0 wants no answer."""
        try:
            await work
        except SulinaError as error:
            self._fail(request, error)
        except Exception:
            # Whatever it is, this client must hear that it failed, and the others must be served.
            _logger.exception("session_request_failed", client=self._name)
            if request:
                self.outbox.put(Failed(request, "internal", "the node failed to do this; its log says why"))

    def _fail(self, request: int, error: SulinaError) -> None:
        self._broker.metrics.errors.labels(error.code).inc()
        if request:
            self.outbox.put(Failed(request, error.code, str(error), error.details()))

    def _begin(self, size_bytes: int) -> None:
        self._requests += 1
        self._idle.clear()
        self._requests_bytes += size_bytes
        if self._requests >= self._limits.requests_max or self._requests_bytes >= self._limits.requests_bytes_max:
            self._has_room.clear()

    def _end(self, size_bytes: int) -> None:
        self._requests -= 1
        self._requests_bytes -= size_bytes
        if not self._requests:
            self._idle.set()
        if self._requests < self._limits.requests_max and self._requests_bytes < self._limits.requests_bytes_max:
            self._has_room.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._begin(0)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._end(0)

    # Records

    async def _publish(self, frame: Publish) -> None:
        try:
            if (broken := self._broken_runs.get(frame.run)) is not None:
                raise from_code(broken.code, str(broken), broken.details())
            producing = frame.topic, frame.producer or "", frame.topic_id
            is_new = frame.producer is not None and producing not in self._producers
            if is_new:
                checked_producer(producing[1])
            accepted = await self._broker.accept(frame.topic, _request_of(frame))
        except SulinaError as error:
            self._break_run(frame.run, error)
            raise
        if is_new and not self._is_closed and len(self._producers) < self._limits.producers_max:
            self._producers.add(producing)
            self._broker.producers.attach(accepted.ownership.name.topic, producing[1])
        if accepted.pending is None:
            self.outbox.put(Answer(frame.id, accepted.published()))
            return
        self._begin(len(frame.data))
        accepted.pending.add_done_callback(partial(self._published, frame.id, frame.run, len(frame.data), accepted))

    def _published(self, request: int, run: int, size_bytes: int, accepted: Accepted, _done: object) -> None:
        self._end(size_bytes)
        try:
            self.outbox.put(Answer(request, accepted.published()))
        except SulinaError as error:
            self._break_run(run, error)
            self._fail(request, error)
        except Exception:
            _logger.exception("publish_failed", client=self._name)
            self.outbox.put(Failed(request, "internal", "the node failed to do this; its log says why"))

    def _break_run(self, run: int, error: SulinaError) -> None:
        """Refuse the rest of a run: what the client sends again must not be overtaken by what it has sent already."""
        if run and isinstance(error, _SENT_AGAIN):
            self._broken_runs.setdefault(run, error)
            if len(self._broken_runs) > self._limits.requests_max:
                del self._broken_runs[next(iter(self._broken_runs))]

    async def _fetch(self, frame: Fetch) -> None:
        topic, wait_seconds = (
            TopicName.parse(frame.topic),
            min(max(frame.wait_ms, 0) / 1000, self._limits.wait_seconds_max),
        )
        await self._broker.hear_of(topic)
        await self._broker.wait_for(
            topic,
            frame.partition,
            frame.offset,
            version=frame.version,
            min_version=frame.min_version,
            min_offset=frame.min_offset,
            wait_seconds=wait_seconds,
            epoch=frame.epoch,
        )
        async with self._reading:
            await self.outbox.wait_room()
            max_bytes = min(frame.max_bytes, self._limits.fetch_bytes_max)
            fetched = await self._broker.fetch(
                topic,
                frame.partition,
                frame.offset,
                max_bytes=max_bytes,
                version=frame.version,
                epoch=frame.epoch,
            )
            self.outbox.put(Answer(frame.id, fetched), len(fetched.data))

    async def _call(self, frame: Call) -> None:
        self.outbox.put(Answer(frame.id, await call(self._broker, frame.method, frame.arguments)))

    # Consumers

    def _check_free(self, number: int) -> None:
        if number in self._attachments or number in self._subscribers:
            raise InvalidInput(f"consumer {number} is attached already")
        if len(self._attachments) + len(self._subscribers) >= self._limits.consumers_max:
            raise LimitReached(kind="consumers of one connection", limit=self._limits.consumers_max)

    async def _join(self, frame: Join) -> None:
        self._check_free(frame.consumer)
        await self._subscribers.join(frame)

    async def _subscribe(self, frame: Subscribe) -> None:
        self._check_free(frame.consumer)
        topic = TopicName.parse(frame.topic)
        await self._broker.hear_of(topic)
        consumer = ConsumerConnection(
            name=frame.name or f"{self._name}/{frame.consumer}",
            credit=frame.credit,
            id=frame.consumer_id,
            deliver=partial(self._deliver, frame.consumer),
            detached=partial(self._detached, frame.consumer),
        )
        settings = SubscriptionSettings(mode=frame.kind, start=frame.start)
        # The answer is in the outbox before the first delivery is.
        consumer.is_blocked = True
        attachment = await self._broker.attach(topic, frame.subscription, settings, consumer)
        if self._is_closed:
            await self._broker.detach(topic, attachment)
            return
        self._attachments[frame.consumer] = (topic, attachment)
        self.outbox.put(Answer(frame.id, Subscribed(is_reliable=attachment.subscription is not None)))
        consumer.is_blocked = self.outbox.is_full
        if attachment.subscription is not None:
            attachment.subscription.wake()

    def _deliver(self, number: int, delivery: ConsumerDelivery) -> None:
        frame = Deliver(number, delivery.partition, delivery.attempt, delivery.data, delivery.ranges)
        self.outbox.put(frame, len(delivery.data))

    def _detached(self, number: int, error: SulinaError) -> None:
        """Tell the client that the broker has detached a consumer."""
        self.outbox.put(Detached(number, error.code, str(error), error.details()))
        gone = self._attachments.pop(number, None)
        if gone is not None:
            task = asyncio.create_task(self._broker.detach(*gone))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _detach(self, frame: Detach) -> None:
        if self._subscribers.leave(frame.consumer):
            if frame.id:
                self.outbox.put(Answer(frame.id))
            return
        topic, attachment = self._attached(frame.consumer)
        del self._attachments[frame.consumer]
        await self._broker.detach(topic, attachment)
        if frame.id:
            self.outbox.put(Answer(frame.id))

    def _attached(self, number: int) -> tuple[TopicName, ConsumerAttachment]:
        known = self._attachments.get(number)
        if known is None:
            raise ConsumerNotFound(consumer=number)
        return known

    async def _add_credit(self, frame: AddCredit) -> None:
        _, attachment = self._attached(frame.consumer)
        attachment.consumer.credit = min(attachment.consumer.credit + frame.records, CREDIT_MAX)
        if attachment.subscription is not None:
            attachment.subscription.wake()

    async def _settle(self, frame: AckRecords | NackRecords) -> None:
        _, attachment = self._attached(frame.consumer)
        consumer, subscription = attachment.consumer, attachment.subscription
        if subscription is None:  # at most once: there is nothing to keep
            if frame.id:
                self.outbox.put(Answer(frame.id, 0))
        elif isinstance(frame, NackRecords):
            delay = None if frame.delay_ms is None else frame.delay_ms / 1000
            count = subscription.nack(consumer, frame.partition, frame.ranges, delay)
            if frame.id:
                self.outbox.put(Answer(frame.id, count))
        elif not frame.id:
            subscription.ack(consumer, frame.partition, frame.ranges)
        else:
            count, durable = subscription.ack_durably(consumer, frame.partition, frame.ranges)
            self._begin(0)
            durable.add_done_callback(partial(self._acked, frame.id, count))

    def _acked(self, request: int, count: int, durable: asyncio.Future[None]) -> None:
        self._end(0)
        error = None if durable.cancelled() else durable.exception()
        if error is None:
            self.outbox.put(Answer(request, count))
        elif isinstance(error, SulinaError):
            self._fail(request, error)
        else:
            self.outbox.put(Failed(request, "internal", "the cursor could not be written; the node's log says why"))

    def _block(self, is_full: bool) -> None:
        """Stop deliveries when the connection takes no more, and start them when it does again."""
        for _, attachment in self._attachments.values():
            attachment.consumer.is_blocked = is_full
            if not is_full and attachment.subscription is not None:
                attachment.subscription.wake()


def _request_of(frame: Publish) -> PublishRequest:
    options = NO_OPTIONS
    if frame.delivery_policy or frame.partition_behavior:
        options = PublishOptions(delivery_policy=frame.delivery_policy, partition_behavior=frame.partition_behavior)
    return PublishRequest(
        frame.data,
        partition=frame.partition,
        txn_id=frame.txn_id,
        expected_version=frame.expected_version,
        schema_id=frame.schema_id,
        topic_id=frame.topic_id,
        may_skip=frame.may_skip,
        options=options,
    )
