"""The fan-out of one partition at its owner: does what `core.delivery.fan_out` says, and tells it what happens.

Of a reliable topic one task reads the log, once for all subscribers that are at one place in it. Of a topic that keeps
nothing, what is published is sent at once.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import structlog

from sulina.broker.events import EventStream
from sulina.broker.partition import Log, Partition
from sulina.broker.partition_ownership import PartitionOwnership
from sulina.core.delivery.fan_out import Effect, FanOut, Payload, RemoveSubscriber, ResumeAt, Send, Tell
from sulina.core.delivery.pubsub import DeliveryReport, PubSubConfig, SubscriberId, TopicOptions
from sulina.core.log.log_state import NO_EPOCH
from sulina.core.log.position import Position
from sulina.errors import LogClosed, NotServing, OffsetOutOfRange, SubscriberRemoved, SulinaError
from sulina.ports import Clock
from sulina.types import Offset
from sulina.wire.peer import AnyPeerFrame, DeliverBatch, Fence, Removed, Resume, pack_handles

READ_BYTES = 256 << 10
FAILURE_PAUSE_SECONDS = 1.0
UNSURE_PAUSE_SECONDS = 0.05

_logger = structlog.get_logger("sulina.feed")


@dataclass(frozen=True, slots=True)
class Links:
    """Ways to the nodes. The owner's own is one of them."""

    send: Callable[[str, AnyPeerFrame], bool]
    is_up: Callable[[str], bool]
    has_room: Callable[[str], bool]


class Feed:
    """Lives while the partition is served here, from its first subscriber on."""

    def __init__(
        self,
        ownership: PartitionOwnership,
        partition: Partition | None,
        *,
        local: str,
        config: PubSubConfig,
        links: Links,
        clock: Clock,
        events: EventStream,
        on_closed: Callable[["Feed"], None],
    ) -> None:
        """`partition` is None where the topic keeps nothing."""
        self.name = ownership.name
        self.fan_out = FanOut(config, is_reliable=partition is not None, local=local, topic=str(ownership.name.topic))
        self._ownership = ownership
        self._partition = partition
        self._revision = ownership.revision
        # Whoever counted our attempts before begins anew with another feed, also one of the same epoch.
        self._fence = (ownership.epoch.epoch if ownership.epoch is not None else 0, int(clock.now() * 1_000_000))
        self._epoch: int = NO_EPOCH  # of the log that is read
        self._on_closed = on_closed
        self._links = links
        self._clock = clock
        self._events = events
        self._topic = str(ownership.name.topic)
        self._packed: dict[str, tuple[tuple[int, ...], bytes]] = {}  # by node, the handles that were sent to last
        self._turn = asyncio.Lock()  # joins and leaves, in their order
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    # Who is there

    async def join(self, member: SubscriberId, name: str, position: Position) -> Position | None:
        """From where it is sent to; None: the topic keeps nothing. NotServing, LimitReached.

        Where something of what it had was given up since, that is where the log goes on.
        """
        async with self._turn:
            self._check_open()
            begin = None
            if self._partition is not None:
                begin = Position.at_offset(*await self._partition.locate_with_epoch(position))
            self._check_open()
            if not self._links.is_up(member.node):
                raise NotServing(reason=f"there is no connection with {member.node}")
            offset = None if begin is None else begin.value
            self._do(self.fan_out.join(member, name, offset, self._clock.monotonic()))
            self._start()
            return begin

    async def leave(self, member: SubscriberId) -> None:
        """It wants no more."""
        async with self._turn:
            self._do(self.fan_out.leave(member, self._clock.monotonic()))

    async def keep_only(self, node: str, live: Collection[int]) -> None:
        """Who is at home at a node now; others have left, and word of it was lost."""
        async with self._turn:
            gone = [info for info in self.fan_out.info() if info.node == node and info.handle not in live]
            for info in gone:
                self._do(self.fan_out.leave(SubscriberId(node, info.handle), self._clock.monotonic()))

    def node_up(self, node: str, *, is_new_life: bool) -> None:
        """There is a connection with it again."""
        is_blocked = not self._links.has_room(node)
        now = self._clock.monotonic()
        self._do(self.fan_out.node_up(node, now, is_new_life=is_new_life, is_blocked=is_blocked))

    def node_down(self, node: str, reason: str) -> None:
        """The connection with it is lost."""
        self._do(self.fan_out.node_down(node, self._clock.monotonic(), reason))

    def node_ready(self, node: str) -> None:
        """The connection with it takes more again."""
        if self._links.has_room(node):  # others may have filled it meanwhile: then this is told again
            self._do(self.fan_out.node_ready(node, self._clock.monotonic()))

    def close(self, error: SulinaError) -> None:
        """The partition is served here no more: its subscribers are let go, and look for it."""
        if self._is_closed:
            return
        handles: dict[str, list[int]] = {}
        for info in self.fan_out.info():
            handles.setdefault(info.node, []).append(info.handle)
        self._do(self.fan_out.close(str(error)))
        for node, gone in handles.items():
            self._remove(node, gone, error)
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
        self._on_closed(self)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """To wait for when it is closed."""
        return [] if self._task is None else [self._task]

    def _check_open(self) -> None:
        self._ownership.check()
        if self._is_closed:
            raise self._ownership.refusal()

    # What is published

    def publish(self, payload: Payload, options: TopicOptions) -> None:
        """Of a topic that keeps nothing. NoSubscribers, PartitionDropped, DelayQueueFull: nobody is sent anything."""
        self._do(self.fan_out.publish(payload, options, self._clock.monotonic()))

    def reported(self, node: str, fence: Fence, report: DeliveryReport) -> None:
        """What became of an attempt; of one of another owner, or of another life of this one, nothing."""
        if tuple(fence) == self._fence:
            self._do(self.fan_out.reported(node, report, self._clock.monotonic()))

    def tick(self, now: float) -> None:
        """Time has passed."""
        due = self.fan_out.next_tick()
        if due is not None and due <= now:
            self._do(self.fan_out.tick(now))

    # Doing what the rules say

    def _do(self, effects: Iterable[Effect]) -> None:
        if self._is_closed:
            return
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect)
                case ResumeAt(node, handles):
                    packed = pack_handles(handles)
                    self._links.send(node, Resume(self._topic, self.name.partition, self._fence, packed))
                case RemoveSubscriber(member, reason, status):
                    error = SubscriberRemoved(topic=self._topic, reason=reason, status=str(status))
                    self._remove(member.node, [member.handle], error)
                case Tell(type_, fields):
                    self._events.tell(type_, self._topic, partition=self.name.partition, **fields)
        self._wake.set()

    def _send(self, effect: Send) -> None:
        payload = effect.payload
        handles, packed = self._packed.get(effect.node, ((), b""))
        if handles is not effect.handles:
            packed = pack_handles(effect.handles)
            self._packed[effect.node] = (effect.handles, packed)
        frame = DeliverBatch(
            self._topic,
            self.name.partition,
            self._fence,
            effect.attempt,
            payload.start,
            payload.end,
            packed,
            payload.data,
            self._epoch,
        )
        # One that is lost with its connection is found out when the connection's end is told.
        self._links.send(effect.node, frame)
        if not self._links.has_room(effect.node):
            self.fan_out.node_blocked(effect.node)

    def _remove(self, node: str, handles: Sequence[int], error: SulinaError) -> None:
        packed = pack_handles(tuple(handles))
        details = dict(error.details())
        self._links.send(node, Removed(self._topic, self.name.partition, packed, error.code, str(error), details))

    # Reading the log

    def _start(self) -> None:
        if self._partition is not None and self._task is None:
            self._task = asyncio.create_task(self._run(self._partition), name=f"feed {self.name}")

    async def _run(self, partition: Partition) -> None:
        """While there are subscribers: a log that nobody reads may be closed."""
        try:
            while not self._is_closed and not self.fan_out.is_empty:
                try:
                    await self._read(partition)
                except (LogClosed, NotServing) as error:
                    # Whoever took it away lets the subscribers go.
                    _logger.info("feed_waits", partition=str(self.name), reason=str(error))
                    await asyncio.sleep(FAILURE_PAUSE_SECONDS)
                except Exception:
                    # Damage, or a bug: say so, and go on trying. One that ended in silence would look idle.
                    _logger.exception("feed_failed", partition=str(self.name))
                    await asyncio.sleep(FAILURE_PAUSE_SECONDS)
        finally:
            self._task = None  # who joins next begins anew

    async def _read(self, partition: Partition) -> None:
        async with partition.using() as log:
            self._epoch = log.view.epoch
            log.watchers.add(self._wake.set)
            try:
                while not self.fan_out.is_empty:
                    await self._step(log)
            finally:
                log.watchers.discard(self._wake.set)

    async def _step(self, log: Log) -> None:
        self._wake.clear()
        wanted = self.fan_out.wanted(log.view.next_offset)
        if wanted is None:
            await self._wake.wait()
            return
        if wanted < log.view.start_offset:
            self._skip(log)
            return
        try:
            found = await log.read(Offset(wanted), max_bytes=READ_BYTES)
        except OffsetOutOfRange:
            self._skip(log)
            return
        if not self._ownership.may_ack(self._revision):
            # Another may be the owner: what we would send is its to say.
            await asyncio.sleep(UNSURE_PAUSE_SECONDS)
            return
        self._do(self.fan_out.read(Payload(wanted, found.next_offset, found.data), self._clock.monotonic()))

    def _skip(self, log: Log) -> None:
        """Retention has overtaken subscribers."""
        skipped = self.fan_out.skip_to(log.view.start_offset)
        _logger.warning("records_skipped", partition=str(self.name), count=skipped)
