"""Publishes that are sent and not answered, in a queue for each partition: they arrive in the order of their calls.

- While all is well, a publish is sent at once, by its caller, and any number are under way.
- When one is refused or cut off (the partition is moving, the node is full, the connection broke), nothing more is sent
  until all that is under way has been answered. Then what came back is sent first, to the owner of that moment: one
  alone, and when that is accepted, all the others behind it.
- What was sent and not answered is sent again only if it has a number or a txn_id, which is always the same; else it is
  an error, as its outcome is unknown. What was refused may always be sent again.
- What is sent between one trouble and the next is one run: a node that has refused one of a run refuses the later ones
  too, so that nothing passes what is to be sent again.
- A publish that times out is removed from the queue and does not block later ones.
- A txn_id for which the log has no room is tried again too, unless publishes that need no such room are behind it: then
  it is refused, so that they do not wait for minutes.
- What waits here is not under way, so a queue that stands still takes no room from the others.
"""

import asyncio
import itertools
from collections.abc import Iterable
from typing import Any

from sulina.client.brokers import Brokers
from sulina.client.connection import Connection
from sulina.client.numbering import Numbering, OriginNumber
from sulina.client.placements import TopicPlacements
from sulina.client.retries import RequestOutcome, request_outcome, why_waiting
from sulina.client.route import Route
from sulina.client.session import Session
from sulina.client.topic_cache import KnownTopic
from sulina.core.delivery.pubsub import PublishOptions
from sulina.core.records.batch import record_count, write_origin
from sulina.errors import (
    Disconnected,
    LogClosed,
    LogStopped,
    NotOwner,
    SequenceSkipped,
    SulinaError,
    TopicNotFound,
    TxnMemoryFull,
    from_code,
)
from sulina.json_values import convert_to
from sulina.types import TopicName
from sulina.wire.frames import Publish
from sulina.wire.messages import Published

LANES_MAX = 10_000
CHECK_SECONDS = 1.5  # without an answer for two of these, it is asked whether the partition has moved


class PendingPublish:
    """One publish. To a session it is what waits for the answer."""

    __slots__ = (
        "answer",
        "data",
        "expected_version",
        "is_numbered",
        "is_over",
        "is_queued",
        "is_repeatable",
        "is_unknown",
        "number",
        "options",
        "origin",
        "producer",
        "queue",
        "refusal",
        "schema_id",
        "session",
        "size_bytes",
        "turn",
        "txn_id",
    )  # fmt: skip

    def __init__(
        self,
        queue: "PartitionSendQueue",
        data: memoryview,
        txn_id: str | None,
        expected_version: int | None,
        schema_id: str | None,
        options: PublishOptions,
        producer: str | None,
        *,
        is_numbered: bool = False,
        is_repeatable: bool = False,
        origin: OriginNumber | None = None,
    ) -> None:
        """Make a publish; with `is_numbered`, it is one batch, which is numbered here.

        `origin` is the number under which it was sent before and may have been written.
        """
        self.is_numbered = is_numbered
        self.is_repeatable = is_repeatable or is_numbered or txn_id is not None
        self.origin: OriginNumber | None = None  # that its data say
        self.queue = queue
        self.data = data
        self.size_bytes = len(data)
        self.txn_id = txn_id
        self.expected_version = expected_version
        self.schema_id = schema_id
        self.options = options
        self.producer = producer
        self.answer: asyncio.Future[Any] = queue.loop.create_future()
        self.turn = next(queue.turns)
        self.number = 0  # on the session over which it is under way; 0: it is not
        self.session: Session | None = None  # over which it was sent last
        self.is_queued = False  # somebody else sends it
        self.is_over = False  # answered, or given up
        self.is_unknown = origin is not None  # it may have been written
        self.refusal: SulinaError | None = None  # of the last attempt
        if origin is not None:
            self.set_origin(origin)

    def set_origin(self, origin: OriginNumber) -> None:
        """Write its number into its data."""
        if self.origin is not None:
            self.data = memoryview(bytearray(self.data))  # somebody may still be looking at what was sent
        self.origin = origin
        write_origin(self.data, producer_id=origin.producer_id, epoch=0, sequence=origin.sequence)

    # What a session calls

    def done(self) -> bool:
        """Return whether it needs no answer any more."""
        return self.is_over

    def set_result(self, result: Any) -> None:
        """Take the node's answer: it was accepted."""
        self.is_over = True
        self.queue.landed(self)
        if not self.answer.done():
            self.answer.set_result(result)

    def set_exception(self, error: SulinaError) -> None:
        """Take an error: it was not accepted, or the outcome is unknown."""
        self.queue.landed(self)
        found = request_outcome(error)
        if isinstance(error, SequenceSkipped) and self.is_numbered:
            # It was not written, and under this number it never will be.
            self.set_origin(self.queue.numbering.next(record_count(self.data)))
            self.is_unknown, found = False, RequestOutcome.REFUSED
        if found is RequestOutcome.UNKNOWN:
            self.is_unknown = True
            may_repeat = self.is_repeatable and not self.queue.is_closed
        else:
            # What waited when a log stopped may be written: the next try must use the same number.
            self.is_unknown |= isinstance(error, LogStopped | LogClosed)
            may_repeat = found is RequestOutcome.REFUSED or (
                isinstance(error, TopicNotFound) and self.queue.may_be_elsewhere
            )
        if may_repeat:
            self.refusal = None if isinstance(error, Disconnected) else error
            self.queue.take_back(self, error)
        else:
            self.fail(error)

    def fail(self, error: SulinaError) -> None:
        """Fail for good."""
        self.is_over = True
        if not self.answer.done():
            self.answer.set_exception(error)

    def why_late(self, seconds: float) -> SulinaError:
        """Return the error to raise when its time is over."""
        if self.number and self.session is not None:
            return self.session.late(seconds)
        if self.queue.is_entering and self.refusal is None and not self.is_unknown:
            return self.queue.room.full()
        return why_waiting(self.refusal or self.queue.route.reason, self.is_unknown, self.session)


class PartitionSendQueue:
    """Keeps the publishes to one partition in order, across retries and changes of its owner."""

    def __init__(self, topic: KnownTopic, route: Route, brokers: Brokers) -> None:
        self.loop = asyncio.get_running_loop()
        self.room = brokers.rooms.requests
        self.route = route
        self.numbering = Numbering()
        self.is_entering = False  # the first that waits here waits for room
        self.oldest = 0  # of those under way, when it was last looked at
        self._name = topic.name
        self._topic_id = topic.topic_id
        self._partition = route.partition
        self._session = route.now()
        self.turns = itertools.count(1)  # what comes first is sent first
        self._run = 0  # what it sends now; 0: a new one begins
        self._sent: dict[int, PendingPublish] = {}  # under way, by turn
        self._returned: dict[int, PendingPublish] = {}  # back again
        self._waiting: dict[int, PendingPublish] = {}  # not sent yet, or to be sent again
        self._error: SulinaError | None = None  # that the last brought back
        self._is_checking = False
        self._is_trying = False  # one alone goes first
        self._landed = asyncio.Event()  # nothing is under way
        self._keeper: asyncio.Task[None] | None = None

    @property
    def is_closed(self) -> bool:
        """Whether nothing is sent any more."""
        return self.route.is_closed

    @property
    def is_empty(self) -> bool:
        """Whether nobody would miss it."""
        return not self._sent and not self._returned and not self._waiting and self._keeper is None

    @property
    def may_be_elsewhere(self) -> bool:
        """Whether a broker that does not know the topic may just be behind the others."""
        return not self.route.is_alone

    async def publish(self, pending: PendingPublish, seconds: float) -> Published:
        """Send a publish, and return the node's answer.

        Raises:
            Disconnected: there was no answer in time, or the outcome is unknown.
            QueueFull: there was no room in time.
            SulinaError: the node's own error.
        """
        try:
            async with asyncio.timeout(seconds):
                session = self._session
                if (
                    self._keeper is None
                    and session is not None
                    and (connection := session.connection) is not None
                    and not pending.is_queued
                    and self.room.try_enter(pending.size_bytes)
                ):
                    await self._send(session, connection, pending)
                elif not pending.is_queued:
                    self.enqueue(pending)
                answer = await pending.answer
            return answer if isinstance(answer, Published) else convert_to(answer, Published)
        except TimeoutError:
            raise pending.why_late(seconds) from None
        finally:
            if not pending.is_over:
                self.leave(pending)
            elif not pending.answer.cancelled():
                pending.answer.exception()  # seen: the time may have been over at the same moment

    def enqueue(self, pending: PendingPublish) -> None:
        """Queue a publish behind all that are queued; the keeper sends it."""
        pending.is_queued = True
        self._waiting[pending.turn] = pending
        self._keep()

    async def _send(self, session: Session, connection: Connection, pending: PendingPublish) -> None:
        number = pending.number = session.next_id()
        pending.session = session
        self._sent[pending.turn] = pending
        session.pending[number] = pending
        if not self._run:
            self._run = number
        if pending.is_numbered and pending.origin is None:
            pending.set_origin(self.numbering.next(record_count(pending.data)))
        frame = Publish(
            number, self._name, pending.data, self._partition, pending.txn_id, pending.expected_version,
            pending.schema_id, self._topic_id, self._run,
            pending.options.delivery_policy, pending.options.partition_behavior, pending.producer, pending.is_numbered,
        )  # fmt: skip
        try:
            await session.send(connection, frame)
        except Disconnected as error:
            if session.pending.pop(number, None) is not None:
                pending.set_exception(error)

    # What becomes of them

    def landed(self, pending: PendingPublish) -> None:
        """Note that a publish is under way no more."""
        del self._sent[pending.turn]
        pending.number = 0
        self.room.leave(pending.size_bytes)
        if not self._sent and self._keeper is not None:
            self._landed.set()

    def take_back(self, pending: PendingPublish, error: SulinaError) -> None:
        """Queue a publish again, before all that came later."""
        self._returned[pending.turn] = pending
        if isinstance(error, SequenceSkipped):
            self._keep()  # it has another number: there is nothing to wait for
            return
        if not (isinstance(self._error, NotOwner) and self._error.url):  # the best that can be said
            self._error = error
        self._keep()

    def leave(self, pending: PendingPublish) -> None:
        """Remove a publish whose caller has given up, if it is not over."""
        if pending.is_over:
            return
        pending.is_over = True
        if pending.number:
            assert pending.session is not None
            pending.session.pending.pop(pending.number, None)
            pending.is_unknown = True
            self.landed(pending)
        self._returned.pop(pending.turn, None)
        self._waiting.pop(pending.turn, None)

    async def check(self) -> None:
        """Check whether the partition has moved, because nothing was answered for a while."""
        if self._is_checking:
            return
        self._is_checking = True
        try:
            has_moved = await self.route.has_moved()
        finally:
            self._is_checking = False
        if has_moved:
            for pending in list(self._sent.values()):
                assert pending.session is not None
                if pending.session.pending.pop(pending.number, None) is not None:
                    reason = "it did not answer, and the partition has moved"
                    pending.set_exception(Disconnected(url=pending.session.url, reason=reason))

    def is_stalled(self) -> bool:
        """Return whether the oldest publish is the same as the last time."""
        before, self.oldest = self.oldest, next(iter(self._sent), 0)
        return before != 0 and before == self.oldest

    # Keeping the order

    def _keep(self) -> None:
        if self._keeper is None:
            self._keeper = asyncio.create_task(
                self._send_all(), name=f"sulina-send-queue {self._name} {self._partition}"
            )

    async def _send_all(self) -> None:
        """Send what waits, one after the other, until nothing does."""
        try:
            while self._returned or self._waiting:
                if self._returned:
                    await self._turn_back()
                else:
                    await self._send_first()
        except SulinaError as error:
            self._fail_all(error)
        except asyncio.CancelledError:
            self._fail_all(Disconnected(url="anywhere", reason="the client is closed"))
            raise
        except Exception as error:  # our own bug: tell all that wait
            self._fail_all(Disconnected(url="anywhere", reason=f"the send queue failed: {error!r}"))
            raise
        finally:
            self._keeper = None
            self.is_entering = False

    async def _turn_back(self) -> None:
        await self._wait_landed()
        error, self._error = self._error, None
        # Whatever came back was sent before anything that waits.
        self._waiting = {turn: self._returned[turn] for turn in sorted(self._returned)} | self._waiting
        self._returned = {}
        self._refuse_blocking()
        self._is_trying = True
        self._session, self._run = None, 0
        if self._waiting and error is not None:
            await self.route.refused(error)

    def _refuse_blocking(self) -> None:
        """Refuse what waits for room among txn_ids while publishes that need none are behind it.

        That may take minutes. Nothing passes it all the same: it is not written.
        """
        last = max((turn for turn, pending in self._waiting.items() if pending.txn_id is None), default=0)
        for turn, pending in list(self._waiting.items()):
            if turn < last and pending.txn_id is not None and isinstance(pending.refusal, TxnMemoryFull):
                del self._waiting[turn]
                pending.fail(why_waiting(pending.refusal, pending.is_unknown, pending.session))

    async def _send_first(self) -> None:
        session = self._session
        if session is None or session.connection is None:
            session = await self.route.session()
        if session is not self._session:
            await self._wait_landed()  # only one owner has something under way
            if self._returned:
                return
            self._session, self._run = session, 0
        pending = next(iter(self._waiting.values()), None)
        if pending is None:
            return
        self.is_entering = True
        await self.room.enter(pending.size_bytes)
        self.is_entering = False
        connection = session.connection
        if self._returned or connection is None or self._waiting.pop(pending.turn, None) is None:
            self.room.leave(pending.size_bytes)
            return
        await self._send(session, connection, pending)
        if self._is_trying:
            await self._wait_landed()
            if not self._returned:
                self._is_trying = False
                self.route.worked()

    async def _wait_landed(self) -> None:
        while self._sent:
            self._landed.clear()
            await self._landed.wait()

    def _fail_all(self, error: SulinaError) -> None:
        everybody: Iterable[PendingPublish] = [*self._returned.values(), *self._waiting.values()]
        self._returned, self._waiting, self._error = {}, {}, None
        for pending in everybody:
            if pending.is_unknown:
                pending.fail(why_waiting(error, True, pending.session))
            else:
                pending.fail(from_code(error.code, str(error), error.details()))

    async def close(self) -> None:
        """Send nothing more."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])


class SendQueues:
    """The send queues of one client, one for each partition that it publishes to."""

    def __init__(self, brokers: Brokers, placements: TopicPlacements) -> None:
        self._brokers = brokers
        self._places = placements
        self._queues: dict[tuple[str, int], PartitionSendQueue] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._checks: set[asyncio.Task[None]] = set()

    def queue(self, topic: KnownTopic, partition: int) -> PartitionSendQueue:
        """Return the queue of a partition, always the same one."""
        queue = self._queues.get((topic.topic_id, partition))
        return self._open(topic, partition) if queue is None else queue

    def _open(self, topic: KnownTopic, partition: int) -> PartitionSendQueue:
        if len(self._queues) >= LANES_MAX:
            for key in [key for key, queue in self._queues.items() if queue.is_empty]:
                del self._queues[key]
        route = Route(self._brokers, self._places, TopicName.parse(topic.name), partition, topic_id=topic.topic_id)
        queue = self._queues[topic.topic_id, partition] = PartitionSendQueue(topic, route, self._brokers)
        if self._watcher is None and not route.is_alone:
            self._watcher = asyncio.create_task(self._watch(), name="sulina-send-queues")
        return queue

    async def _watch(self) -> None:
        """Check queues whose broker has stopped answering: others may have its partitions."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            for queue in list(self._queues.values()):
                if queue.is_stalled() and not queue.route.is_alone:
                    check = asyncio.create_task(queue.check(), name="sulina-send-queue-check")
                    self._checks.add(check)
                    check.add_done_callback(self._checks.discard)

    async def close(self) -> None:
        """Close all queues: nothing more is sent."""
        tasks = [task for task in (self._watcher, *self._checks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*(queue.close() for queue in self._queues.values()))
        if tasks:
            await asyncio.wait(tasks)
