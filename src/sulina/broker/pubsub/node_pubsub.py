"""Publish/subscribe of one node.

- A `PartitionFeed` for each partition that this node owns sends records to the nodes of its subscribers.
- `NodeSubscribers` delivers to the subscribers that are attached here.
- A `PartitionJoins` for each partition that these subscribe to keeps them joined at its owner.
- `PeerConnections` carries the frames between them, also those from this node to itself.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import structlog
from msgspec.structs import replace

from sulina.broker.events import EventStream
from sulina.broker.pubsub.feed import PartitionFeed
from sulina.broker.pubsub.joins import PartitionJoins
from sulina.broker.pubsub.node_subscribers import LocalSubscriber, NodeSubscribers, SubscriberDelivery
from sulina.broker.pubsub.peers import Loopback, PeerConnections
from sulina.broker.pubsub.snapshots import MetricsSnapshots
from sulina.broker.pubsub.totals import FeedTotals, PublishCounts, metrics_of, sum_counts
from sulina.broker.topic import Topic
from sulina.broker.topic_table import TopicTable
from sulina.core.delivery.fan_out import FanOut, FanOutCounts
from sulina.core.delivery.pubsub import PubSubConfig, SubscriberId, SubscriberInfo
from sulina.core.log.log_state import NO_EPOCH
from sulina.core.log.position import Position
from sulina.errors import LimitReached, NotServing, SulinaError, TopicNotFound
from sulina.ports import Clock
from sulina.types import PartitionName, TopicName
from sulina.wire.messages import PubSubMetrics
from sulina.wire.peer import (
    AnyPeerFrame,
    DeliverBatch,
    Joined,
    JoinPartition,
    Leave,
    Present,
    Refused,
    Removed,
    Reported,
    Resume,
    pack_handles,
    unpack_handles,
)

TICK_SECONDS = 0.05
KNOWN_SECONDS = 2.0  # how long to wait for a topic that was just created at another broker
JOIN_SECONDS = 10.0  # how long to wait for the answers of owners
LOCAL_SUBSCRIBERS_MAX = 100_000

_logger = structlog.get_logger("sulina.pubsub")


@dataclass(frozen=True, slots=True)
class _PendingJoin:
    """A join that its owner has not answered."""

    owner: str
    name: PartitionName
    subscriber: LocalSubscriber
    answer: "asyncio.Future[Position | None]"


class NodePubSub:
    """The publish/subscribe part of a broker. `start` and `stop` it with the broker."""

    def __init__(
        self,
        broker_id: str,
        topics: TopicTable,
        *,
        owner_of: Callable[[PartitionName], str | None],
        config: PubSubConfig,
        clock: Clock,
        events: EventStream,
        peers: PeerConnections | None = None,
    ) -> None:
        """Connect the parts. `peers` are the connections to the brokers of a cluster; None: there are no others."""
        self._broker_id = broker_id
        self._topics = topics
        self._owner_of = owner_of  # the broker that owns a partition; None: no broker does
        self._config = config
        self._clock = clock
        self._events = events
        self._has_peers = peers is not None
        self._peers = peers or Loopback(broker_id)
        self._peers.listen(self)
        self.batches_sent: Counter[str] = Counter()  # by node
        self.local_subscribers = NodeSubscribers(config, send=self._peers.send, clock=clock)
        self.feeds: dict[PartitionName, PartitionFeed] = {}
        self._snapshots = MetricsSnapshots(
            self._metrics_of,
            lambda: [topic.name for topic in topics],
            seconds=config.metrics_event_seconds,
            events=events,
        )
        self._totals = FeedTotals()
        self.unplaced = PublishCounts()  # rejects that belong to no topic, or to a deleted one
        self._joins: dict[PartitionName, PartitionJoins] = {}
        self._starts: dict[int, str] = {}  # by handle: where a subscriber without a position begins
        self._started_ms: dict[str, int] = {}  # by broker: when it was started
        self._pending_joins: dict[int, _PendingJoin] = {}
        self._ids = itertools.count(int(clock.now() * 1_000_000))  # none from before a restart
        self._work: set[asyncio.Task[Any]] = set()
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the timer."""
        self._ticking = asyncio.create_task(self._tick(), name="pubsub-tick")

    async def stop(self) -> None:
        """Stop all tasks, and remove all subscribers."""
        error = NotServing(reason="the node is stopping")
        for joins in list(self._joins.values()):
            await joins.close()
        for subscriber in list(self.local_subscribers.subscribers.values()):
            subscriber.removed(error)
        tasks: list[asyncio.Task[Any]] = [task for feed in self.feeds.values() for task in feed.tasks]
        for feed in list(self.feeds.values()):
            feed.close(error)
        tasks += [*self._work, *([self._ticking] if self._ticking is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Subscribers of this node

    async def attach(
        self,
        topic: TopicName,
        name: str,
        *,
        start: str,
        deliver: Callable[[SubscriberDelivery], None],
        removed: Callable[[SulinaError], None],
    ) -> LocalSubscriber:
        """Attach a subscriber, without joining it: see `join`.

        Raises:
            TopicNotFound: there is no such topic.
            InvalidSettings: `start` is not a position.
            LimitReached: this node has as many subscribers as it may have.
        """
        seconds = KNOWN_SECONDS if self._has_peers else 0.0
        if await self._topics.when_known(topic, seconds) is None:
            raise TopicNotFound(topic=str(topic))
        Position.parse(start)
        if len(self.local_subscribers.subscribers) >= LOCAL_SUBSCRIBERS_MAX:
            raise LimitReached(kind="subscribers of a node", limit=LOCAL_SUBSCRIBERS_MAX)
        subscriber = self.local_subscribers.attach(topic, name, deliver, removed)
        self._starts[subscriber.handle] = start
        return subscriber

    async def join(self, subscriber: LocalSubscriber, positions: Mapping[int, Position]) -> dict[int, Position]:
        """Ask the owner of each partition to send to a subscriber, from `positions` on; return where it begins in each.

        When it raises, the subscriber has been detached.

        Raises:
            NotServing: a partition has no owner, or its owner does not answer.
        """
        try:
            topic = self._topic(subscriber.topic)
            subscriber.partitions = [ownership.name for ownership in topic.ownerships]
            answers = {
                ownership.name.partition: self._joins_of(ownership.name, topic).add(
                    subscriber, positions.get(ownership.name.partition)
                )
                for ownership in topic.ownerships
            }
            async with asyncio.timeout(JOIN_SECONDS):
                begun = dict(zip(answers, await asyncio.gather(*answers.values()), strict=True))
        except TimeoutError:
            self.detach(subscriber)
            raise NotServing(
                reason=f"not every partition of {subscriber.topic} has an owner that answered in {JOIN_SECONDS:g} s"
            ) from None
        except BaseException:
            self.detach(subscriber)
            raise
        return {number: position for number, position in begun.items() if position is not None}

    def detach(self, subscriber: LocalSubscriber, *, is_lost: bool = False, error: SulinaError | None = None) -> None:
        """Detach a subscriber, which has unsubscribed or, with `is_lost`, whose connection is lost.

        A `join` of it that is still under way raises `error`.
        """
        self._starts.pop(subscriber.handle, None)
        self.local_subscribers.detach(subscriber, is_lost=is_lost)
        for name in subscriber.partitions:
            joins = self._joins.get(name)
            if joins is None:
                continue
            owner = joins.remove(subscriber, error or NotServing(reason="the subscriber was detached"))
            if owner is not None:
                self._peers.send(owner, Leave(str(name.topic), name.partition, subscriber.handle))
            if joins.is_empty:
                del self._joins[name]

    def _joins_of(self, name: PartitionName, topic: Topic) -> PartitionJoins:
        joins = self._joins.get(name)
        if joins is None:
            joins = self._joins[name] = PartitionJoins(
                name,
                topic.stored.topic_id,
                local_subscribers=self.local_subscribers,
                owner_of=self._owner_of,
                ask=self._ask,
                remove_for_good=self._remove_for_good,
            )
        return joins

    async def _ask(
        self, owner: str, name: PartitionName, subscriber: LocalSubscriber, position: Position | None
    ) -> Position | None:
        request, answer = next(self._ids), asyncio.get_running_loop().create_future()
        self._pending_joins[request] = _PendingJoin(owner, name, subscriber, answer)
        start, joins = self._starts.get(subscriber.handle, "latest"), self._joins.get(name)
        try:
            frame = JoinPartition(
                request,
                str(name.topic),
                name.partition,
                subscriber.handle,
                subscriber.name,
                None if position is None else position.value,
                start,
                joins.topic_id if joins is not None else "",
                NO_EPOCH if position is None or position.epoch is None else position.epoch,
            )
            if not self._peers.send(owner, frame):
                raise NotServing(reason=f"no connection with broker {owner}")
            async with asyncio.timeout(JOIN_SECONDS):
                return await answer  # type: ignore[no-any-return]
        except TimeoutError:
            raise NotServing(reason=f"broker {owner} did not answer in {JOIN_SECONDS:g} s") from None
        finally:
            self._pending_joins.pop(request, None)

    def _remove_for_good(self, subscriber: LocalSubscriber, error: SulinaError) -> None:
        self.detach(subscriber, error=error)
        subscriber.removed(error)

    # Feeds of this node

    def feed(self, name: PartitionName) -> PartitionFeed:
        """Return the feed of a partition that is served here; it is created for the first subscriber.

        Raises:
            TopicNotFound: there is no such topic.
            PartitionNotFound: the topic has fewer partitions.
            NotOwner, Draining: the partition is not served here, or is about to be moved.
        """
        topic = self._topic(name.topic)
        topic.check_number(name.partition)
        ownership = topic.ownerships[name.partition]
        ownership.check()
        feed = self.feeds.get(name)
        if feed is None or topic.feeds.get(name.partition) is not feed:
            feed = self.feeds[name] = topic.feeds[name.partition] = PartitionFeed(
                ownership,
                topic.partitions[name.partition] if topic.is_reliable else None,
                local=self._broker_id,
                config=self._config,
                peers=self._peers,
                batches_sent=self.batches_sent,
                clock=self._clock,
                events=self._events,
                on_closed=self._feed_closed,
            )
            for node in self._started_ms:
                if self._peers.is_up(node):
                    feed.node_up(node, has_restarted=False)
        return feed

    def subscribers(self, topic: Topic) -> list[SubscriberInfo]:
        """Return the subscribers of the partitions that are served here."""
        return [
            replace(info, partition=number)
            for number, feed in sorted(topic.feeds.items())
            for info in feed.fan_out.info()
        ]

    def _metrics_of(self, name: TopicName | None) -> PubSubMetrics:
        return self.metrics(None if name is None else self._topic(name))

    def metrics(self, topic: Topic | None) -> PubSubMetrics:
        """Return the metrics of one topic, or of all."""
        if topic is not None:
            feeds = [feed.fan_out for feed in topic.feeds.values()]
            total = self._totals.total(str(topic.name), feeds)
            return metrics_of(str(topic.name), [topic.publish_counts], total, feeds)
        feeds = [feed.fan_out for feed in self.feeds.values()]
        closed = [self._totals.total(name, ()) for name in self._totals.topics()]
        publishes = [known.publish_counts for known in self._topics]
        total = sum_counts([*closed, *(fan_out.counts for fan_out in feeds)])
        return metrics_of(None, [self.unplaced, *publishes], total, feeds)

    def delivered(self) -> Iterator[tuple[str, FanOutCounts, int, int]]:
        """Yield for each topic its counts, and how many of its subscribers are active and suspended."""
        feeds: dict[str, list[FanOut]] = {name: [] for name in self._totals.topics()}
        for name, feed in list(self.feeds.items()):
            feeds.setdefault(str(name.topic), []).append(feed.fan_out)
        for topic, here in feeds.items():
            counts = self._totals.total(topic, here)
            yield topic, counts, sum(one.active for one in here), sum(one.suspended for one in here)

    def _topic(self, name: TopicName) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(topic=str(name))
        return topic

    def _feed_closed(self, feed: PartitionFeed) -> None:
        self._totals.add_closed(str(feed.name.topic), feed.fan_out)
        if self.feeds.get(feed.name) is feed:
            del self.feeds[feed.name]

    def topics_changed(self) -> None:
        """Look for changed owners, and remove subscribers of topics that were deleted or replaced by others."""
        for name, joins in list(self._joins.items()):
            topic = self._topics.get(name.topic)
            if topic is not None and topic.stored.topic_id == joins.topic_id:
                joins.look()
                continue
            for subscriber in joins.subscribers:
                self._remove_for_good(subscriber, TopicNotFound(topic=str(name.topic)))

    # Frames

    def peer_frame(self, broker_id: str, frame: AnyPeerFrame) -> None:
        """Handle a frame of a broker, or of this node itself."""
        try:
            match frame:
                case DeliverBatch():
                    self.local_subscribers.deliver(broker_id, _partition(frame.topic, frame.partition), frame)
                case Reported():
                    feed = self.feeds.get(_partition(frame.topic, frame.partition))
                    if feed is not None:
                        feed.reported(broker_id, frame.fence, frame.report)
                case Present():
                    live = frozenset(unpack_handles(frame.handles))
                    for feed in self.feeds.values():
                        self._spawn(feed.keep_only(broker_id, live))
                case JoinPartition():
                    self._spawn(self._join(broker_id, frame))
                case Leave():
                    self._spawn(self._leave(broker_id, frame))
                case Joined() | Refused():
                    self._answered(broker_id, frame)
                case Resume():
                    self.local_subscribers.resume(broker_id, _partition(frame.topic, frame.partition), frame)
                case Removed():
                    self._removed(_partition(frame.topic, frame.partition), frame)
        except SulinaError as error:
            _logger.warning("peer_frame_refused", broker_id=broker_id, frame=type(frame).__name__, error=str(error))
        except Exception:
            # A bug: the frames behind this one must still be handled.
            _logger.exception("peer_frame_failed", broker_id=broker_id, frame=type(frame).__name__)

    async def _join(self, source: str, frame: JoinPartition) -> None:
        try:
            await self._topics.when_known(TopicName.parse(frame.topic), KNOWN_SECONDS)
            name = _partition(frame.topic, frame.partition)
            feed = self.feed(name)
            if frame.topic_id != self._topic(name.topic).stored.topic_id:
                raise NotServing(reason=f"topic {name.topic} was deleted and created again")
            if frame.offset is None:
                position = Position.parse(frame.start)
            else:
                position = Position.at_offset(frame.offset, frame.epoch)
            begin = await feed.add_subscriber(SubscriberId(source, frame.handle), frame.name, position)
            answer: AnyPeerFrame = Joined(frame.id, None)
            if begin is not None:
                answer = Joined(frame.id, begin.value, NO_EPOCH if begin.epoch is None else begin.epoch)
        except SulinaError as error:
            answer = Refused(frame.id, error.code, str(error), dict(error.details()))
        self._peers.send(source, answer)

    async def _leave(self, source: str, frame: Leave) -> None:
        name = _partition(frame.topic, frame.partition)
        # Its join waits for the topic too, and must come first.
        await self._topics.when_known(name.topic, KNOWN_SECONDS)
        feed = self.feeds.get(name)
        if feed is not None:
            await feed.remove_subscriber(SubscriberId(source, frame.handle))

    def _answered(self, source: str, frame: Joined | Refused) -> None:
        pending = self._pending_joins.get(frame.id)
        if pending is None or pending.owner != source or pending.answer.done():
            return
        if isinstance(frame, Refused):
            pending.answer.set_exception(frame.error())
            return
        known = self.local_subscribers.position(pending.name, pending.subscriber)
        begin = None if frame.offset is None else Position.at_offset(frame.offset, frame.epoch)
        if begin is not None and known is not None and begin.value < known:
            # Records that it has acked are lost: its client is told, and subscribes again.
            self._remove_for_good(
                pending.subscriber, NotServing(reason=f"{pending.name} has lost records that the subscriber had acked")
            )
        elif pending.subscriber.handle in self.local_subscribers.subscribers:
            # At once: the first batch, or the removal of the subscriber, may be the next frame.
            self.local_subscribers.joined(pending.name, source, pending.subscriber, frame.offset)
            if (joins := self._joins.get(pending.name)) is not None:
                joins.joined(pending.subscriber, source, begin)
        if not pending.answer.done():
            pending.answer.set_result(begin)

    def _removed(self, name: PartitionName, frame: Removed) -> None:
        error = frame.error()
        for handle in unpack_handles(frame.handles):
            subscriber = self.local_subscribers.subscribers.get(handle)
            if subscriber is None or subscriber.topic != name.topic:
                continue
            if not isinstance(error, NotServing):
                self._remove_for_good(subscriber, error)
                continue
            self.local_subscribers.interrupt(name, handle)
            if (joins := self._joins.get(name)) is not None:
                joins.rejoin(subscriber)

    def peer_up(self, broker_id: str, started_ms: int) -> None:
        """Send to the subscribers of a broker that is connected, and join those of this node there."""
        has_restarted = self._started_ms.get(broker_id, started_ms) != started_ms
        self._started_ms[broker_id] = started_ms
        self._peers.send(broker_id, Present(pack_handles(tuple(self.local_subscribers.subscribers))))
        for feed in self.feeds.values():
            feed.node_up(broker_id, has_restarted=has_restarted)
        for joins in self._joins.values():
            joins.look()

    def peer_down(self, broker_id: str, reason: str) -> None:
        """Stop sending to the subscribers of a broker that is not connected any more."""
        for pending in list(self._pending_joins.values()):
            if pending.owner == broker_id and not pending.answer.done():
                lost = f"the connection with broker {broker_id} was lost: {reason}"
                pending.answer.set_exception(NotServing(reason=lost))
        for feed in self.feeds.values():
            feed.node_down(broker_id, reason)
        for joins in self._joins.values():
            joins.owner_lost(broker_id)

    def peer_room(self, broker_id: str) -> None:
        """Go on sending to a broker whose send queue was full."""
        for feed in self.feeds.values():
            feed.node_ready(broker_id)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._clock.monotonic()
            parts: list[NodeSubscribers | PartitionFeed | MetricsSnapshots] = [
                self.local_subscribers,
                *self.feeds.values(),
                self._snapshots,
            ]
            for part in parts:
                try:
                    part.tick(now)
                except Exception:
                    # A bug: the other parts must still get their tick.
                    _logger.exception("pubsub_tick_failed", part=type(part).__name__)


@lru_cache(maxsize=65_536)
def _partition(topic: str, number: int) -> PartitionName:
    return PartitionName(TopicName.parse(topic), number)
