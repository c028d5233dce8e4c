"""A subscriber: a handler that is called with all that is published to a topic, through every reconnect.

- It is attached to whichever node the client is connected to. When that is lost it joins again, there or elsewhere, and
  says where it was.
- The deliveries of a partition are handled one after the other. Partitions do not wait for each other, and nobody else
  waits for any of them: a handler that is a plain function runs in a thread of its subscriber's own.
- It is known up to where the handler is done, and in which epoch of the log. Of a reliable topic, what comes again from
  before that is passed over. A record of a later epoch does not come again: it has the offset of one that was given up.
- When the handler raises, the delivery has failed, and what had come after it is forgotten: all of it is sent again.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sulina.client.batches import BatchCodec, within
from sulina.client.brokers import Brokers
from sulina.client.handling import Handler, HandlerCalls, calling, reason_of, threads_for
from sulina.client.message import Message
from sulina.client.serialization import SerializationRegistry
from sulina.client.session import Session
from sulina.core.log.log_state import NO_EPOCH
from sulina.core.log.stored import first_after_epoch
from sulina.errors import Disconnected, NotServing, NotStarted, SulinaError
from sulina.json_values import convert_to
from sulina.wire.frames import AckBatch, Deliver, Detach, FailBatch, FromClient, Join
from sulina.wire.messages import JoinedTopic

DELIVERIES_MAX = 10_000  # of one partition that wait for the handler; the node allows for fewer
REASON_LENGTH_MAX = 500
JOIN_SECONDS = 15.0  # for an answer, before another broker is asked; a node waits for all owners meanwhile
LEAVE_SECONDS = 5.0
STEADY_SECONDS = 5.0  # after which an attachment counts as steady, and pauses begin small again

_logger = logging.getLogger("sulina.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberTerms:
    """What is subscribed to, and how. The same terms hold after every reconnect."""

    topic: str
    name: str
    start: str
    batches: bool


class _SubscriberAttachment:
    """A subscriber as one connection knows it."""

    def __init__(self, session: Session, on_delivery: "Callable[[_SubscriberAttachment, Deliver], None]") -> None:
        self.session = session
        self.handle = session.next_id()
        self.is_reliable = False  # until the node has said so
        self.is_gone = False
        self.has_delivered = False
        self.ready = asyncio.Event()  # joined, or gone
        self.gone: asyncio.Future[SulinaError] = asyncio.get_running_loop().create_future()
        self._on_delivery = on_delivery
        self._frames: list[FromClient] = []  # to send

    # What the session calls

    def deliver(self, frame: Deliver) -> None:
        """Take records, perhaps before the answer that says that it has joined."""
        self.has_delivered = True
        self._on_delivery(self, frame)

    def lose(self, error: SulinaError) -> None:
        """End: nothing that was delivered can be acked any more."""
        self._end()
        self._frames.clear()
        self.session.detach(self.handle)
        if not self.gone.done():
            self.gone.set_result(error)

    def drain(self) -> list[FromClient]:
        """Acks that wait to be sent."""
        frames, self._frames = self._frames, []
        if self.is_gone:
            self.session.detach(self.handle)
        return frames

    # What the subscriber calls

    def settle(self, frame: AckBatch | FailBatch) -> None:
        """Say what became of a delivery, if that still counts."""
        if not self.is_gone:
            self._frames.append(frame)
            self.session.post(self.handle, self)

    def abandon(self) -> None:
        """End without waiting; if it is attached all the same, the node is told."""
        if not self.is_gone:
            self._end()
            self._frames.append(Detach(0, self.handle))
            self.session.post(self.handle, self)

    async def leave(self) -> None:
        """Send the acks, then detach. Nothing is raised: whom the node cannot reach, it detaches itself."""
        connection = self.session.connection
        if self.is_gone or connection is None:
            return
        frames = self.drain()
        self._end()
        with contextlib.suppress(SulinaError):
            for frame in frames:
                await self.session.send(connection, frame)
            await self.session.request(
                lambda number: Detach(number, self.handle),
                is_repeatable=False,
                timeout_seconds=LEAVE_SECONDS,
                is_patient=False,
            )
        self.session.detach(self.handle)

    def _end(self) -> None:
        self.is_gone = True
        self.ready.set()


@dataclass(slots=True, eq=False)
class _PartitionDeliveries:
    """The deliveries of one partition, on their way to the handler."""

    position: int | None = None  # the handler is done with everything before it
    epoch: int = NO_EPOCH  # of the log in which it is
    tail: int | None = None  # where the newest delivery ended
    has_failed: bool = False  # what comes is void until it is sent again
    waiting: deque[tuple[_SubscriberAttachment, Deliver]] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None

    def takes(self, start: int, end: int) -> bool:
        """Return whether a delivery of a reliable topic is to be handled; False: it comes again."""
        if self.has_failed:
            if start == self.tail:  # it was on its way before the node knew
                self.tail = end
                return False
            self.has_failed = False
        elif self.tail is not None and start < self.tail:
            self.waiting.clear()  # all of it is sent again, in this order
        return True

    def forget(self) -> None:
        """Drop what waits: the attachment is lost, and it comes again."""
        self.waiting.clear()
        self.tail, self.has_failed = None, False


class Subscriber:
    """Made by `Client.subscribe`. It is subscribed until it unsubscribes, or the topic removes it."""

    def __init__(
        self,
        brokers: Brokers,
        codec: BatchCodec,
        registry: SerializationRegistry,
        terms: SubscriberTerms,
        handler: Handler,
        *,
        on_removed: Callable[[SulinaError], object] | None = None,
        on_end: "Callable[[Subscriber], None]",
    ) -> None:
        """Make a subscriber; `on_end` is called at its end, `on_removed` when it was not unsubscribed."""
        self.terms = terms
        self.handler = handler
        self.delivered = 0  # messages that the handler is done with
        self.removed: asyncio.Future[SulinaError | None] = asyncio.get_running_loop().create_future()
        self._brokers = brokers
        self._codec = codec
        self._registry = registry
        self._on_removed = on_removed
        self._on_end = on_end
        self._threads = threads_for(handler, terms.name)
        self._lines: defaultdict[int, _PartitionDeliveries] = defaultdict(_PartitionDeliveries)
        self._attachment: _SubscriberAttachment | None = None
        self._is_attached = False
        self._is_over = False
        self._backoff = brokers.home.backoff()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """No other subscriber of this client has it on this topic."""
        return self.terms.name

    @property
    def topic(self) -> str:
        """What it is subscribed to."""
        return self.terms.topic

    @property
    def is_attached(self) -> bool:
        """Whether a node has it at this moment; if not, and it is not removed, it is joining again."""
        return self._is_attached

    def positions(self) -> dict[int, int]:
        """Return the next offset for its handler, by partition; nothing for a best-effort topic."""
        return {number: line.position for number, line in self._lines.items() if line.position is not None}

    async def open(self) -> None:
        """Join.

        Raises:
            NotStarted: the client was closed meanwhile.
            TopicNotFound: there is no such topic.
            Disconnected: no node answers in time.
        """
        try:
            attachment = await self._brokers.at_home(self._join, self._brokers.options.timeout_seconds)
            if self._is_over:  # meanwhile
                await attachment.leave()
                raise NotStarted("the client was closed while the subscriber joined")
        except BaseException:
            self._end(None)
            raise
        self._keeper = asyncio.create_task(self._keep(attachment), name=f"sulina-subscriber {self.name}")

    async def unsubscribe(self) -> None:
        """Return when its node knows: the handler is not called any more, and no call is under way.

        Within a call of the handler, it does not wait for that one.
        """
        await self.leave(None)

    async def leave(self, seconds: float | None) -> None:
        """Unsubscribe. A call that takes longer than `seconds` is cancelled, or goes on alone in its thread."""
        is_inside = calling.get() is self
        if self._is_over:
            if not is_inside:
                await self.wait_removed()
            return
        self._is_over = True
        try:
            if self._keeper is not None:
                self._keeper.cancel()
                await asyncio.wait([self._keeper])
            if not is_inside:
                await self._wait_calls(seconds)
            if self._attachment is not None:
                await self._attachment.leave()
        finally:
            self._end(None)

    async def wait_removed(self, timeout_seconds: float | None = None) -> SulinaError | None:
        """Wait until it gets nothing more. Return why it was removed; None: it was unsubscribed.

        Raises:
            TimeoutError: it was not removed within `timeout_seconds`.
        """
        async with asyncio.timeout(timeout_seconds):
            return await asyncio.shield(self.removed)

    async def _wait_calls(self, seconds: float | None) -> None:
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=seconds)

    def _end(self, error: SulinaError | None) -> None:
        """End: nothing more is delivered."""
        self._is_over = True
        if self._attachment is not None:
            self._attachment.abandon()
            self._forget()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        if self.removed.done():
            return
        self.removed.set_result(error)
        self._on_end(self)
        if error is not None and self._on_removed is not None:
            asyncio.get_running_loop().call_soon(self._on_removed, error)

    # Being attached

    async def _keep(self, attachment: _SubscriberAttachment) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                began_at = loop.time()
                error = await attachment.gone
                self._forget()
                if self._brokers.is_closed or not error.retryable:
                    raise error
                if isinstance(error, NotServing):
                    self._brokers.leave_home(attachment.session)
                if attachment.has_delivered or loop.time() - began_at >= STEADY_SECONDS:
                    self._backoff.reset()
                else:
                    await asyncio.sleep(self._backoff.next())
                attachment = await self._brokers.at_home(self._join)
        except SulinaError as error:
            self._end(error)
        except Exception as error:  # our own bug: tell all that wait
            self._end(Disconnected(url="anywhere", reason=f"the subscriber failed: {error!r}"))
            raise

    async def _join(self, session: Session) -> _SubscriberAttachment:
        attachment = self._attachment = _SubscriberAttachment(session, self._take)
        asked = self.positions()
        epochs = {number: line.epoch for number, line in self._lines.items() if line.epoch != NO_EPOCH}

        def make(number: int) -> FromClient:
            session.attach(attachment.handle, attachment)
            return Join(number, attachment.handle, self.topic, self.name, asked, self.terms.start, epochs)

        seconds = JOIN_SECONDS if self._brokers.has_others else None
        try:
            answer = await session.request(make, is_repeatable=False, is_patient=False, timeout_seconds=seconds)
        except (Disconnected, asyncio.CancelledError):
            attachment.abandon()  # it may be attached nevertheless
            raise
        except SulinaError as error:
            attachment.lose(error)
            raise
        self._begin(attachment, asked, convert_to(answer, JoinedTopic, from_attributes=True))
        return attachment

    def _begin(self, attachment: _SubscriberAttachment, asked: dict[int, int], joined: JoinedTopic) -> None:
        attachment.is_reliable = joined.is_reliable
        for partition, offset in joined.positions.items():
            line = self._lines[partition]
            epoch = joined.epochs.get(partition, NO_EPOCH)
            if offset < asked.get(partition, offset):
                # What we had was given up, or the log is another one.
                self._diverge(line, partition, offset, epoch)
            elif line.position is None or line.position <= offset:
                line.position, line.epoch = offset, epoch
        self._is_attached = not attachment.is_gone
        attachment.ready.set()

    def _diverge(self, line: _PartitionDeliveries, partition: int, offset: int, epoch: int) -> None:
        """Go on at `offset`: what the handler was done with from there on was given up."""
        _logger.warning(
            "offsets %d to %d of %s, partition %d, were given up after %s had them; it goes on at %d",
            offset, (line.position or offset) - 1, self.topic, partition, self.name, offset,
        )  # fmt: skip
        line.position, line.epoch = offset, epoch

    def _forget(self) -> None:
        self._is_attached = False
        self._attachment = None
        for line in self._lines.values():
            line.forget()

    # Deliveries

    def _take(self, attachment: _SubscriberAttachment, frame: Deliver) -> None:
        if self._is_over or attachment is not self._attachment:
            return
        if not frame.ranges:
            attachment.settle(AckBatch(attachment.handle, frame.partition, frame.attempt))
            return
        line = self._lines[frame.partition]
        start, end = frame.ranges[0][0], frame.ranges[-1][1]
        if attachment.is_reliable and not line.takes(start, end):
            return
        line.tail = end
        if len(line.waiting) >= DELIVERIES_MAX:
            self._fail(line, attachment, frame, f"{DELIVERIES_MAX} deliveries wait for the handler")
            return
        line.waiting.append((attachment, frame))
        if line.task is None:
            line.task = asyncio.create_task(self._work(line), name=f"sulina-handler {self.name} {frame.partition}")

    async def _work(self, line: _PartitionDeliveries) -> None:
        """Handle what waits, until nothing does."""
        calling.set(self)
        try:
            while line.waiting and not self._is_over:
                attachment, frame = line.waiting.popleft()
                await attachment.ready.wait()
                if attachment.is_gone or self._is_over:
                    continue
                reason = await self._handle(line, attachment, frame)
                if reason is None:
                    attachment.settle(AckBatch(attachment.handle, frame.partition, frame.attempt))
                elif not self._is_over:
                    self._fail(line, attachment, frame, reason)
        finally:
            line.task = None

    def _fail(self, line: _PartitionDeliveries, attachment: _SubscriberAttachment, frame: Deliver, reason: str) -> None:
        attachment.settle(FailBatch(attachment.handle, frame.partition, frame.attempt, reason[:REASON_LENGTH_MAX]))
        if attachment is self._attachment:  # else what waits is from after it
            line.waiting.clear()
            line.has_failed = attachment.is_reliable

    async def _handle(
        self, line: _PartitionDeliveries, attachment: _SubscriberAttachment, frame: Deliver
    ) -> str | None:
        """Call the handler with all of a delivery. Why that was not possible; None: it is done."""
        calls = messages = None
        begun_at = 0
        try:
            messages = self._messages(line, frame, is_reliable=attachment.is_reliable)
            begun_at = line.position or 0
            arguments = [messages] if messages and self.terms.batches else messages
            calls = HandlerCalls(self.handler, arguments, lambda: self._is_over)
            await calls.run(self._threads)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return reason_of(error)  # the handler's own
        except Exception as error:
            _logger.exception("the handler of %s failed with a delivery of %s", self.name, self.topic)
            return reason_of(error)
        finally:
            if calls is not None and messages is not None:
                count = len(messages) if self.terms.batches and calls.done else calls.done
                self.delivered += count
                if attachment.is_reliable and (line.position or 0) >= begun_at:  # else it is another log by now
                    end = frame.ranges[-1][1] if count == len(messages) else messages[count].offset
                    if end >= (line.position or 0):
                        line.position, line.epoch = end, frame.epoch
        return None if count == len(messages) else "it was unsubscribed"

    def _messages(self, line: _PartitionDeliveries, frame: Deliver, *, is_reliable: bool) -> list[Message]:
        """Return the messages of a delivery, but for those that the handler is done with."""
        records = self._codec.decode(frame.data)
        position = self._done_before(line, frame) if is_reliable else None
        topic, partition, registry = self.topic, frame.partition, self._registry
        return [
            Message(
                topic, partition, record.offset, record.value, record.key, record.headers, record.timestamp_ms,
                1, registry,
            )
            for start, end in frame.ranges
            for record in within(records, start if position is None else max(start, position), end)
        ]  # fmt: skip

    def _done_before(self, line: _PartitionDeliveries, frame: Deliver) -> int | None:
        """Return up to which offset records of a delivery come again; a later epoch does not."""
        if line.position is not None and frame.ranges[0][0] < line.position and NO_EPOCH < line.epoch < frame.epoch:
            offset = first_after_epoch(frame.data, line.epoch)
            if offset is not None and offset < line.position:
                self._diverge(line, frame.partition, offset, frame.epoch)
        return line.position
