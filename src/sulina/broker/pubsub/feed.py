"""The fan-out of one partition at its owner: carries out what `core.delivery.fan_out` decides.

On a reliable topic one task reads the log, once for all subscribers that are at the same offset. On a best-effort topic
a publish is sent at once.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import structlog

from sulina.broker.events import EventStream
from sulina.broker.log_reading import FAILURE_PAUSE_SECONDS, read_while_owned
from sulina.broker.partition import Log, Partition
from sulina.broker.partition_ownership import PartitionOwnership
from sulina.broker.pubsub.peers import PeerConnections
from sulina.core.delivery.fan_out import Effect, EmitEvent, FanOut, Payload, RemoveSubscriber, ResumeAt, Send
from sulina.core.delivery.pubsub import DeliveryReport, PubSubConfig, SubscriberId, TopicOptions
from sulina.core.log.log_state import NO_EPOCH
from sulina.core.log.position import Position
from sulina.errors import LogClosed, NotServing, OffsetOutOfRange, SubscriberRemoved, SulinaError
from sulina.ports import Clock
from sulina.types import Offset
from sulina.wire.peer import DeliverBatch, Fence, Removed, Resume, pack_handles

_logger = structlog.get_logger("sulina.feed")


class PartitionFeed:
    """Sends the records of a partition to its subscribers; open from the first one on, while it is served here."""

    def __init__(
        self,
        ownership: PartitionOwnership,
        partition: Partition | None,
        *,
        local: str,
        config: PubSubConfig,
        peers: PeerConnections,
        batches_sent: Counter[str],
        clock: Clock,
        events: EventStream,
        on_closed: Callable[["PartitionFeed"], None],
    ) -> None:
        """Create the feed; `partition` is None for a best-effort topic."""
        self.name = ownership.name
        self.fan_out = FanOut(config, is_reliable=partition is not None, local=local, topic=str(ownership.name.topic))
        self._ownership = ownership
        self._partition = partition
        self._revision = ownership.revision
        # Nodes number attempts from the start for another fence. A second feed in the same epoch has another time.
        self._fence = (ownership.epoch.epoch if ownership.epoch is not None else 0, int(clock.now() * 1_000_000))
        self._epoch: int = NO_EPOCH  # of the log that is being read
        self._on_closed = on_closed
        self._peers = peers
        self._batches_sent = batches_sent  # by node, over all partitions
        self._clock = clock
        self._events = events
        self._topic = str(ownership.name.topic)
        self._packed: dict[str, tuple[tuple[int, ...], bytes]] = {}  # by node: the handles of the last batch
        self._turn = asyncio.Lock()  # subscribers are added and removed in the order of the requests
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    # Subscribers and their nodes

    async def add_subscriber(self, member: SubscriberId, name: str, position: Position) -> Position | None:
        """Send to a subscriber from now on; return where it begins, or None on a best-effort topic.

        It begins at `position`, or before it where records that it has had were given up since.

        Raises:
            NotServing: the partition is not served here, or there is no connection with the subscriber's node.
            LimitReached: the partition has as many subscribers as it may have.
        """
        async with self._turn:
            self._check_open()
            begin = None
            if self._partition is not None:
                begin = Position.at_offset(*await self._partition.locate_with_epoch(position))
            self._check_open()
            if not self._peers.is_up(member.node):
                raise NotServing(reason=f"no connection with broker {member.node}")
            offset = None if begin is None else begin.value
            self._do(self.fan_out.add(member, name, offset, self._clock.monotonic()))
            self._start()
            return begin

    async def remove_subscriber(self, member: SubscriberId) -> None:
        """Stop sending to a subscriber."""
        async with self._turn:
            self._do(self.fan_out.remove(member, self._clock.monotonic()))

    async def keep_only(self, node: str, live: Collection[int]) -> None:
        """Remove the subscribers of a node that are not among its `live` handles: their unsubscribe was lost."""
        async with self._turn:
            gone = [info for info in self.fan_out.info() if info.node == node and info.handle not in live]
            for info in gone:
                self._do(self.fan_out.remove(SubscriberId(node, info.handle), self._clock.monotonic()))

    def node_up(self, node: str, *, has_restarted: bool) -> None:
        """Send to a node again: there is a connection with it."""
        is_blocked = not self._peers.has_room(node)
        now = self._clock.monotonic()
        self._do(self.fan_out.node_up(node, now, has_restarted=has_restarted, is_blocked=is_blocked))

    def node_down(self, node: str, reason: str) -> None:
        """Stop sending to a node: the connection with it is lost."""
        self._do(self.fan_out.node_down(node, self._clock.monotonic(), reason))

    def node_ready(self, node: str) -> None:
        """Go on sending to a node: its send queue is not full any more."""
        if self._peers.has_room(node):  # other feeds may have filled it; then this is called again
            self._do(self.fan_out.node_ready(node, self._clock.monotonic()))

    def close(self, error: SulinaError) -> None:
        """Stop: the partition is not served here any more. Its subscribers are told, and join the next owner."""
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
        """The tasks to wait for after `close`."""
        return [] if self._task is None else [self._task]

    def _check_open(self) -> None:
        self._ownership.check()
        if self._is_closed:
            raise self._ownership.refusal()

    # Publishes and reports

    def publish(self, payload: Payload, options: TopicOptions) -> None:
        """Send a payload of a best-effort topic; when it raises, nothing was sent to anybody.

        Raises:
            NoSubscribers, PartitionDropped, DelayQueueFull: see `FanOut.publish`.
        """
        self._do(self.fan_out.publish(payload, options, self._clock.monotonic()))

    def reported(self, node: str, fence: Fence, report: DeliveryReport) -> None:
        """Take a node's report on an attempt; reports on attempts of other owners or older feeds are ignored."""
        if tuple(fence) == self._fence:
            self._do(self.fan_out.reported(node, report, self._clock.monotonic()))

    def tick(self, now: float) -> None:
        """Do what is due at this time."""
        due = self.fan_out.next_tick()
        if due is not None and due <= now:
            self._do(self.fan_out.tick(now))

    # Carrying out effects

    def _do(self, effects: Iterable[Effect]) -> None:
        if self._is_closed:
            return
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect)
                case ResumeAt(node, handles):
                    packed = pack_handles(handles)
                    self._peers.send(node, Resume(self._topic, self.name.partition, self._fence, packed))
                case RemoveSubscriber(member, reason, status):
                    error = SubscriberRemoved(topic=self._topic, reason=reason, status=str(status))
                    self._remove(member.node, [member.handle], error)
                case EmitEvent(type_, fields):
                    self._events.emit_unlogged(type_, self._topic, partition=self.name.partition, **fields)
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
        self._batches_sent[effect.node] += 1
        # A frame that is lost with its connection is noticed when the connection goes down.
        self._peers.send(effect.node, frame)
        if not self._peers.has_room(effect.node):
            self.fan_out.node_blocked(effect.node)

    def _remove(self, node: str, handles: Sequence[int], error: SulinaError) -> None:
        packed = pack_handles(tuple(handles))
        details = dict(error.details())
        self._peers.send(node, Removed(self._topic, self.name.partition, packed, error.code, str(error), details))

    # Reading the log

    def _start(self) -> None:
        if self._partition is not None and self._task is None:
            self._task = asyncio.create_task(self._run(self._partition), name=f"feed {self.name}")

    async def _run(self, partition: Partition) -> None:
        """Read the log while there are subscribers: a log that nobody reads may be closed."""
        try:
            while not self._is_closed and not self.fan_out.is_empty:
                try:
                    await self._read(partition)
                except (LogClosed, NotServing) as error:
                    # The partition is being closed or moved; `close` tells the subscribers.
                    _logger.info("feed_waits", partition=str(self.name), reason=str(error))
                    await asyncio.sleep(FAILURE_PAUSE_SECONDS)
                except Exception:
                    # Damage, or a bug: log it and try again. A task that ended silently would look idle.
                    _logger.exception("feed_failed", partition=str(self.name))
                    await asyncio.sleep(FAILURE_PAUSE_SECONDS)
        finally:
            self._task = None  # the next subscriber starts another task

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
            found = await read_while_owned(log, Offset(wanted), lambda: self._ownership.may_ack(self._revision))
        except OffsetOutOfRange:
            self._skip(log)
            return
        if found is None:
            return
        self._do(self.fan_out.read(Payload(wanted, found.next_offset, found.data), self._clock.monotonic()))

    def _skip(self, log: Log) -> None:
        """Move subscribers past records that retention has removed."""
        skipped = self.fan_out.skip_to(log.view.start_offset)
        _logger.warning("records_skipped", partition=str(self.name), count=skipped)
