"""Publish/subscribe of one node: feeds of the partitions that it owns, an endpoint for its own subscribers, relays
that keep these joined at every owner. Frames to this node itself take the same way, without a connection.
"""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import structlog
from msgspec.structs import replace

from sulina.broker.events import EventStream
from sulina.broker.pubsub.endpoint import Delivery, Endpoint, LocalSubscriber
from sulina.broker.pubsub.feed import Feed, Links
from sulina.broker.pubsub.peers import PeerEvents, Peers
from sulina.broker.pubsub.relay import Relay
from sulina.broker.pubsub.snapshots import MetricsSnapshots
from sulina.broker.pubsub.totals import Taken, Totals, added, summed
from sulina.broker.topic import Topic
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
KNOWN_SECONDS = 2.0  # for a topic that others know to be known here
JOIN_SECONDS = 10.0  # until every owner has answered
LOCAL_SUBSCRIBERS_MAX = 100_000

_logger = structlog.get_logger("sulina.pubsub")


class Knows(Protocol):
    """What the hub needs of the broker."""

    def topic_if_known(self, name: TopicName) -> Topic | None:
        """None: there is none, as far as is known here."""
        ...

    async def topic_when_known(self, name: TopicName, seconds: float) -> Topic | None:
        """As soon as it is known here; None: it is not in so many seconds."""
        ...

    def known_topics(self) -> Iterable[Topic]:
        """All of them."""
        ...

    def owner_of(self, partition: PartitionName) -> str | None:
        """The broker that serves it, if it is there."""
        ...

    def pubsub_metrics(self, name: TopicName | None) -> PubSubMetrics:
        """Return the metrics of one topic, or of all."""
        ...


@dataclass(frozen=True, slots=True)
class _Asked:
    """A join that has not been answered."""

    owner: str
    name: PartitionName
    subscriber: LocalSubscriber
    answer: "asyncio.Future[Position | None]"


class Hub:
    """`start` it with its broker; `close` it."""

    def __init__(
        self,
        broker_id: str,
        knows: Knows,
        *,
        config: PubSubConfig,
        clock: Clock,
        events: EventStream,
    ) -> None:
        self._broker_id = broker_id
        self._knows = knows
        self._config = config
        self._clock = clock
        self._events = events
        self._peers: Peers | None = None  # None: this node is alone
        self._links = Links(self.send, self._is_up, self._has_room)
        self.endpoint = Endpoint(config, send=self.send, clock=clock)
        self.feeds: dict[PartitionName, Feed] = {}
        self._snapshots = MetricsSnapshots(
            knows.pubsub_metrics,
            lambda: [topic.name for topic in knows.known_topics()],
            seconds=config.metrics_event_seconds,
            events=events,
        )
        self._totals = Totals()
        self._relays: dict[PartitionName, Relay] = {}
        self._starts: dict[int, str] = {}  # where a subscriber that has not been anywhere begins, by handle
        self._lives: dict[str, int] = {}  # when a broker that we have seen was started
        self._asked: dict[int, _Asked] = {}
        self._ids = itertools.count(int(clock.now() * 1_000_000))  # not those of a former life of this node
        self._local: deque[AnyPeerFrame] = deque()
        self._work: set[asyncio.Task[Any]] = set()
        self._ticking: asyncio.Task[None] | None = None
        self.batches_sent: Counter[str] = Counter()  # by node

    def connect(self, peers: Peers) -> None:
        """To other brokers, before it is started; without that, this node is alone."""
        self._peers = peers
        peers.listen(PeerEvents(frame=self._on_frame, up=self._on_up, down=self._on_down, room=self._on_room))

    def start(self) -> None:
        """Time passes from now on."""
        self._ticking = asyncio.create_task(self._tick(), name="pubsub-tick")

    async def close(self) -> None:
        """Let everybody go."""
        error = NotServing(reason="the node is stopping")
        for relay in list(self._relays.values()):
            await relay.close()
        for subscriber in list(self.endpoint.subscribers.values()):
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
        deliver: Callable[[Delivery], None],
        removed: Callable[[SulinaError], None],
    ) -> LocalSubscriber:
        """A subscriber, which is then to `join`. TopicNotFound, LimitReached, InvalidSettings."""
        seconds = 0.0 if self._peers is None else KNOWN_SECONDS
        if await self._knows.topic_when_known(topic, seconds) is None:
            raise TopicNotFound(topic=str(topic))
        Position.parse(start)
        if len(self.endpoint.subscribers) >= LOCAL_SUBSCRIBERS_MAX:
            raise LimitReached(kind="subscribers of a node", limit=LOCAL_SUBSCRIBERS_MAX)
        subscriber = self.endpoint.attach(topic, name, deliver, removed)
        self._starts[subscriber.handle] = start
        return subscriber

    async def join(self, subscriber: LocalSubscriber, positions: Mapping[int, Position]) -> dict[int, Position]:
        """Have every owner send to it, from `positions` on; where it begins, by partition. NotServing.

        One for which that fails is not attached any more.
        """
        try:
            topic = self._topic(subscriber.topic)
            subscriber.partitions = [place.name for place in topic.places]
            answers = {
                place.name.partition: self._relay(place.name, topic).add(
                    subscriber, positions.get(place.name.partition)
                )
                for place in topic.places
            }
            async with asyncio.timeout(JOIN_SECONDS):
                begun = dict(zip(answers, await asyncio.gather(*answers.values()), strict=True))
        except TimeoutError:
            self.leave(subscriber)
            raise NotServing(reason=f"not all partitions of {subscriber.topic} have an owner that answers") from None
        except BaseException:
            self.leave(subscriber)
            raise
        return {number: position for number, position in begun.items() if position is not None}

    def leave(self, subscriber: LocalSubscriber, *, is_lost: bool = False, error: SulinaError | None = None) -> None:
        """It wants no more, or its connection is lost; `error` is for who waits for its join."""
        self._starts.pop(subscriber.handle, None)
        self.endpoint.detach(subscriber, is_lost=is_lost)
        for name in subscriber.partitions:
            relay = self._relays.get(name)
            if relay is None:
                continue
            owner = relay.remove(subscriber, error or NotServing(reason="it has left"))
            if owner is not None:
                self.send(owner, Leave(str(name.topic), name.partition, subscriber.handle))
            if relay.is_empty:
                del self._relays[name]

    def _relay(self, name: PartitionName, topic: Topic) -> Relay:
        relay = self._relays.get(name)
        if relay is None:
            relay = self._relays[name] = Relay(
                name,
                topic.stored.topic_id,
                endpoint=self.endpoint,
                owner_of=self._knows.owner_of,
                ask=self._ask,
                give_up=self._give_up,
            )
        return relay

    async def _ask(
        self, owner: str, name: PartitionName, subscriber: LocalSubscriber, position: Position | None
    ) -> Position | None:
        request, answer = next(self._ids), asyncio.get_running_loop().create_future()
        self._asked[request] = _Asked(owner, name, subscriber, answer)
        start, relay = self._starts.get(subscriber.handle, "latest"), self._relays.get(name)
        try:
            frame = JoinPartition(
                request,
                str(name.topic),
                name.partition,
                subscriber.handle,
                subscriber.name,
                None if position is None else position.value,
                start,
                relay.topic_id if relay is not None else "",
                NO_EPOCH if position is None or position.epoch is None else position.epoch,
            )
            if not self.send(owner, frame):
                raise NotServing(reason=f"there is no connection with {owner}")
            async with asyncio.timeout(JOIN_SECONDS):
                return await answer  # type: ignore[no-any-return]
        except TimeoutError:
            raise NotServing(reason=f"{owner} does not answer") from None
        finally:
            self._asked.pop(request, None)

    def _give_up(self, subscriber: LocalSubscriber, error: SulinaError) -> None:
        self.leave(subscriber, error=error)
        subscriber.removed(error)

    # Feeds of this node

    def feed(self, name: PartitionName) -> Feed:
        """Of a partition that is served here. NotOwner, Draining, TopicNotFound."""
        topic = self._topic(name.topic)
        topic.check_number(name.partition)
        place = topic.places[name.partition]
        place.check()
        feed = self.feeds.get(name)
        if feed is None or topic.feeds.get(name.partition) is not feed:
            feed = self.feeds[name] = topic.feeds[name.partition] = Feed(
                place,
                topic.partitions[name.partition] if topic.is_reliable else None,
                local=self._broker_id,
                config=self._config,
                links=self._links,
                clock=self._clock,
                events=self._events,
                on_closed=self._feed_closed,
            )
            for node in self._lives:
                if self._is_up(node):
                    feed.node_up(node, is_new_life=False)
        return feed

    def subscribers(self, topic: Topic) -> list[SubscriberInfo]:
        """Of the partitions that are served here."""
        return [
            replace(info, partition=number)
            for number, feed in sorted(topic.feeds.items())
            for info in feed.fan_out.info()
        ]

    def metrics(self, topic: Topic | None, rejected: Taken) -> PubSubMetrics:
        """Of one topic, or of all; `rejected` is what was not a topic's to reject."""
        if topic is not None:
            here = [feed.fan_out for feed in topic.feeds.values()]
            return summed(str(topic.name), [topic.taken], self._totals.of(str(topic.name), here), here)
        everywhere = [feed.fan_out for feed in self.feeds.values()]
        past = [self._totals.of(name, ()) for name in self._totals.topics()]
        counts = added([*past, *(fan_out.counts for fan_out in everywhere)])
        taken = [known.taken for known in self._knows.known_topics()]
        return summed(None, [rejected, *taken], counts, everywhere)

    def delivered(self) -> Iterator[tuple[str, FanOutCounts, int, int]]:
        """By topic: the counts, and how many subscribers are active and suspended."""
        feeds: dict[str, list[FanOut]] = {name: [] for name in self._totals.topics()}
        for name, feed in list(self.feeds.items()):
            feeds.setdefault(str(name.topic), []).append(feed.fan_out)
        for topic, here in feeds.items():
            counts = self._totals.of(topic, here)
            yield topic, counts, sum(one.active for one in here), sum(one.suspended for one in here)

    def _topic(self, name: TopicName) -> Topic:
        topic = self._knows.topic_if_known(name)
        if topic is None:
            raise TopicNotFound(topic=str(name))
        return topic

    def _feed_closed(self, feed: Feed) -> None:
        self._totals.closed(str(feed.name.topic), feed.fan_out)
        if self.feeds.get(feed.name) is feed:
            del self.feeds[feed.name]

    def topics_changed(self) -> None:
        """Partitions have other owners, or topics are gone, or are others of the same name."""
        for name, relay in list(self._relays.items()):
            topic = self._knows.topic_if_known(name.topic)
            if topic is not None and topic.stored.topic_id == relay.topic_id:
                relay.look()
                continue
            for subscriber in relay.subscribers:
                self._give_up(subscriber, TopicNotFound(topic=str(name.topic)))

    # Frames

    def send(self, node: str, frame: AnyPeerFrame) -> bool:
        """To a broker, or to this one."""
        if isinstance(frame, DeliverBatch):
            self.batches_sent[node] += 1
        if node != self._broker_id:
            return self._peers is not None and self._peers.send(node, frame)
        if not self._local:
            asyncio.get_running_loop().call_soon(self._drain)
        self._local.append(frame)
        return True

    def _drain(self) -> None:
        for _ in range(len(self._local)):  # what comes meanwhile is next
            self._on_frame(self._broker_id, self._local.popleft())
        if self._local:
            asyncio.get_running_loop().call_soon(self._drain)

    def _is_up(self, node: str) -> bool:
        return node == self._broker_id or (self._peers is not None and self._peers.is_up(node))

    def _has_room(self, node: str) -> bool:
        return node == self._broker_id or (self._peers is not None and self._peers.has_room(node))

    def _on_frame(self, source: str, frame: AnyPeerFrame) -> None:
        try:
            self._handle(source, frame)
        except SulinaError as error:
            _logger.warning("peer_frame_refused", broker=source, frame=type(frame).__name__, error=str(error))
        except Exception:
            # A bug of ours: the frames behind it must not suffer.
            _logger.exception("peer_frame_failed", broker=source, frame=type(frame).__name__)

    def _handle(self, source: str, frame: AnyPeerFrame) -> None:
        match frame:
            case DeliverBatch():
                self.endpoint.deliver(source, _partition(frame.topic, frame.partition), frame)
            case Reported():
                feed = self.feeds.get(_partition(frame.topic, frame.partition))
                if feed is not None:
                    feed.reported(source, frame.fence, frame.report)
            case Present():
                live = frozenset(unpack_handles(frame.handles))
                for feed in self.feeds.values():
                    self._spawn(feed.keep_only(source, live))
            case JoinPartition():
                self._spawn(self._join(source, frame))
            case Leave():
                self._spawn(self._leave(source, frame))
            case Joined() | Refused():
                self._answered(source, frame)
            case Resume():
                self.endpoint.resume(source, _partition(frame.topic, frame.partition), frame)
            case Removed():
                self._removed(_partition(frame.topic, frame.partition), frame)

    async def _join(self, source: str, frame: JoinPartition) -> None:
        try:
            await self._knows.topic_when_known(TopicName.parse(frame.topic), KNOWN_SECONDS)
            name = _partition(frame.topic, frame.partition)
            feed = self.feed(name)
            if frame.topic_id != self._topic(name.topic).stored.topic_id:
                raise NotServing(reason=f"{name.topic} is another topic by now, here or there")
            if frame.offset is None:
                position = Position.parse(frame.start)
            else:
                position = Position.at_offset(frame.offset, frame.epoch)
            begin = await feed.join(SubscriberId(source, frame.handle), frame.name, position)
            answer: AnyPeerFrame = Joined(frame.id, None)
            if begin is not None:
                answer = Joined(frame.id, begin.value, NO_EPOCH if begin.epoch is None else begin.epoch)
        except SulinaError as error:
            answer = Refused(frame.id, error.code, str(error), dict(error.details()))
        self.send(source, answer)

    async def _leave(self, source: str, frame: Leave) -> None:
        name = _partition(frame.topic, frame.partition)
        await self._knows.topic_when_known(name.topic, KNOWN_SECONDS)  # as its join has waited, and not before it
        feed = self.feeds.get(name)
        if feed is not None:
            await feed.leave(SubscriberId(source, frame.handle))

    def _answered(self, source: str, frame: Joined | Refused) -> None:
        asked = self._asked.get(frame.id)
        if asked is None or asked.owner != source or asked.answer.done():
            return
        if isinstance(frame, Refused):
            asked.answer.set_exception(frame.error())
            return
        known = self.endpoint.position(asked.name, asked.subscriber)
        begin = None if frame.offset is None else Position.at_offset(frame.offset, frame.epoch)
        if begin is not None and known is not None and begin.value < known:
            # What it has acked is not there any more: its client is to know, and begins anew.
            self._give_up(asked.subscriber, NotServing(reason=f"{asked.name} has lost what it had"))
        elif asked.subscriber.handle in self.endpoint.subscribers:
            # At once: the first batch may be right behind, or the word that it is let go.
            self.endpoint.joined(asked.name, source, asked.subscriber, frame.offset)
            if (relay := self._relays.get(asked.name)) is not None:
                relay.joined(asked.subscriber, source, begin)
        if not asked.answer.done():
            asked.answer.set_result(begin)

    def _removed(self, name: PartitionName, frame: Removed) -> None:
        error = frame.error()
        for handle in unpack_handles(frame.handles):
            subscriber = self.endpoint.subscribers.get(handle)
            if subscriber is None or subscriber.topic != name.topic:
                continue
            if not isinstance(error, NotServing):
                self._give_up(subscriber, error)
                continue
            self.endpoint.forget(name, handle)
            if (relay := self._relays.get(name)) is not None:
                relay.let_go(subscriber)

    def _on_up(self, node: str, started_ms: int) -> None:
        is_new_life = self._lives.get(node, started_ms) != started_ms
        self._lives[node] = started_ms
        self.send(node, Present(pack_handles(tuple(self.endpoint.subscribers))))
        for feed in self.feeds.values():
            feed.node_up(node, is_new_life=is_new_life)
        for relay in self._relays.values():
            relay.look()

    def _on_down(self, node: str, reason: str) -> None:
        for asked in list(self._asked.values()):
            if asked.owner == node and not asked.answer.done():
                asked.answer.set_exception(NotServing(reason=f"the connection with {node} is lost: {reason}"))
        for feed in self.feeds.values():
            feed.node_down(node, reason)
        for relay in self._relays.values():
            relay.owner_lost(node)

    def _on_room(self, node: str) -> None:
        for feed in self.feeds.values():
            feed.node_ready(node)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._clock.monotonic()
            parts: list[Endpoint | Feed | MetricsSnapshots] = [self.endpoint, *self.feeds.values(), self._snapshots]
            for part in parts:
                try:
                    part.tick(now)
                except Exception:
                    # A bug of ours: the others must go on.
                    _logger.exception("pubsub_tick_failed", part=type(part).__name__)


@lru_cache(maxsize=65_536)
def _partition(topic: str, number: int) -> PartitionName:
    return PartitionName(TopicName.parse(topic), number)
