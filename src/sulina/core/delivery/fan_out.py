"""The fan-out of one partition, at its owner: which subscribers are at which node, and what each node is sent.

- A batch is sent to a node once, with the handles of the subscribers that it is for. A node gets batches in order.
- A subscriber that fails is suspended and sent nothing. It is tried again after a backoff that doubles, or when its
  node is connected again. After `suspended_ttl` without a success it is removed.
- A node that cannot be reached, or whose send queue is full, is sent nothing, and delays no other node.
- Reliable topic: records that were sent and are not reported as delivered are sent again, from the log.
- Best-effort topic: a payload goes to the subscribers that are active. Payloads that wait for a node are sent before
  newer ones. A publish that raises has changed nothing.

Events in, effects out, to be carried out in their order. Time is an argument.
"""

import heapq
from collections.abc import Collection

from sulina.core.backoff import doubled
from sulina.core.delivery.fan_out_effects import (
    Effect,
    EmitEvent,
    FanOutCounts,
    Payload,
    RemoveSubscriber,
    ResumeAt,
    Send,
)
from sulina.core.delivery.fan_out_node import Attempt, FanOutSubscriber, SubscriberNode
from sulina.core.delivery.fan_out_positions import FanOutPositions
from sulina.core.delivery.pubsub import (
    DeliveryPolicy,
    DeliveryReport,
    DeliveryStatus,
    PubSubConfig,
    PubSubEventType,
    SubscriberFailure,
    SubscriberId,
    SubscriberInfo,
    SubscriberStatus,
    TopicOptions,
)
from sulina.errors import DelayQueueFull, LimitReached, NoSubscribers, PartitionDropped

__all__ = ["Effect", "EmitEvent", "FanOut", "FanOutCounts", "Payload", "RemoveSubscriber", "ResumeAt", "Send"]

NOT_CONNECTED = "its node cannot be reached"


class FanOut:
    """The subscribers of a partition. `local` is the owner's own node, which is always ready."""

    def __init__(self, config: PubSubConfig, *, is_reliable: bool, local: str, topic: str = "the topic") -> None:
        self.counts = FanOutCounts()
        self._config = config
        self._is_reliable = is_reliable
        self._local = local
        self._topic = topic
        self.nodes = {local: SubscriberNode(local, is_up=True)}
        self._members = 0
        self._positions = FanOutPositions(config)
        self._wanted: int | None = None
        # A heap. An entry that does not match `due` of its subscriber any more is ignored.
        self._timers: list[tuple[float, int, FanOutSubscriber]] = []
        self._timers_made = 0

    @property
    def active(self) -> int:
        """Number of subscribers that are sent to."""
        return sum(len(node.handles) for node in self.nodes.values() if node.is_up)

    @property
    def suspended(self) -> int:
        """Number of subscribers that are not sent to."""
        return self._members - self.active

    @property
    def waiting_batches(self) -> int:
        """Number of batches in delay queues."""
        return sum(len(node.queue) for node in self.nodes.values())

    @property
    def waiting_bytes(self) -> int:
        """Size of the batches in delay queues, and of those that may have to be sent again."""
        return sum(node.kept_bytes for node in self.nodes.values())

    @property
    def timers(self) -> int:
        """Number of entries in the heap of timers."""
        return len(self._timers)

    def info(self) -> list[SubscriberInfo]:
        """Return all subscribers, sorted by node and handle."""
        found = [
            one.info(is_reliable=self._is_reliable) for node in self.nodes.values() for one in node.members.values()
        ]
        return sorted(found, key=lambda info: (info.node, info.handle))

    # Subscribers

    def add(self, member: SubscriberId, name: str, offset: int | None, now: float) -> list[Effect]:
        """Add a subscriber, or resume a known one; on a reliable topic it is sent everything from `offset` on.

        Raises:
            LimitReached: the partition has `subscribers_max` subscribers.
        """
        assert offset is not None or not self._is_reliable, "a reliable topic has positions"
        node = self._node(member.node)
        known = node.members.get(member.handle)
        if known is not None:
            known.name = name
            return self._add_again(node, known, offset)
        if self._members >= self._config.subscribers_max:
            raise LimitReached(kind="subscribers of a partition", limit=self._config.subscribers_max)
        subscriber = FanOutSubscriber(member, name, node.next_attempt, offset or 0)
        node.members[member.handle] = subscriber
        node.changed()
        # The handle may have been here before: its old attempts, sent or queued, are void.
        node.void_before = node.next_attempt
        self._members += 1
        effects: list[Effect] = [_told(PubSubEventType.SUBSCRIBER_ADDED, subscriber)]
        if node.is_up:
            if self._is_reliable:
                self._positions.add(node, subscriber)
            # Its node may still count it as failed, from before it was removed.
            effects.append(ResumeAt(node.name, (member.handle,)))
        else:
            effects.append(self._wait_for_node(subscriber, NOT_CONNECTED, now))
        return effects

    def _add_again(self, node: SubscriberNode, subscriber: FanOutSubscriber, offset: int | None) -> list[Effect]:
        if offset is not None:
            if subscriber.group is not None:
                sent_from = self._sent_from(node, subscriber)
                if sent_from <= offset <= subscriber.position:
                    return []  # everything from there on is being sent already
                node.void(subscriber)
                self._positions.discard(subscriber)
                subscriber.offset = offset
                self._positions.add(node, subscriber)
                return [ResumeAt(node.name, (subscriber.member.handle,))]
            subscriber.offset = offset
        if subscriber.is_active or not node.is_up:
            return []
        return self._resume(node, [subscriber])

    def _sent_from(self, node: SubscriberNode, subscriber: FanOutSubscriber) -> int:
        handle, valid_from = subscriber.member.handle, subscriber.valid_from
        for number, attempt in node.pending.items():
            if number >= valid_from and node.is_for(attempt, handle):
                return attempt.start
        return subscriber.position

    def remove(self, member: SubscriberId, now: float) -> list[Effect]:  # noqa: ARG002
        """Remove a subscriber that has unsubscribed."""
        node = self.nodes.get(member.node)
        subscriber = node.members.get(member.handle) if node is not None else None
        if node is None or subscriber is None:
            return []
        return self._remove(node, subscriber, "it has unsubscribed")

    def _remove(self, node: SubscriberNode, subscriber: FanOutSubscriber, reason: str) -> list[Effect]:
        self._positions.discard(subscriber)
        subscriber.due = None
        node.void_before = node.next_attempt
        del node.members[subscriber.member.handle]
        node.probation.pop(subscriber.member.handle, None)
        node.changed()
        self._members -= 1
        effects: list[Effect] = [_told(PubSubEventType.SUBSCRIBER_REMOVED, subscriber, reason=reason)]
        if not node.members:
            self._drop_queue(node, effects)
        return effects

    def _drop_queue(self, node: SubscriberNode, effects: list[Effect]) -> None:
        """Drop the queued batches of a node."""
        while node.queue:
            effects.append(self._dropped(node, node.queue.popleft()))

    def _dropped(self, node: SubscriberNode, attempt: Attempt) -> Effect:
        node.keep(-1, -attempt.size_bytes)
        return self._drop(node, attempt.end - attempt.start)

    def _drop(self, node: SubscriberNode, records: int) -> Effect:
        self.counts.dropped_batches += 1
        self.counts.dropped_records += records
        return EmitEvent(PubSubEventType.BATCH_DROPPED, {"node": node.name, "count": records})

    def _node(self, name: str) -> SubscriberNode:
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = SubscriberNode(name)
        return node

    @property
    def is_empty(self) -> bool:
        """Whether there are no subscribers."""
        return not self._members

    def close(self, reason: str) -> list[Effect]:
        """Remove all subscribers and drop queued batches: the partition is not served here any more."""
        effects: list[Effect] = []
        for node in self.nodes.values():
            effects += [
                self._lost(node, attempt, len(handles), reason)
                for attempt in node.pending.values()
                if attempt.payload is not None and (handles := node.valid_handles(attempt))
            ]
            node.pending.clear()
            self._drop_queue(node, effects)
            for subscriber in list(node.members.values()):
                effects += self._remove(node, subscriber, reason)
        return effects

    # Connections with nodes

    def node_up(self, name: str, now: float, *, has_restarted: bool, is_blocked: bool = False) -> list[Effect]:
        """Send to a node again: it is connected. With `is_blocked` its send queue is full already.

        With `has_restarted` the node has restarted, and its former subscribers are removed.
        """
        assert name != self._local
        node = self._node(name)
        effects = self.node_down(name, now, "its node reconnected") if node.is_up else []
        if has_restarted:
            self._drop_queue(node, effects)
            for subscriber in list(node.members.values()):
                effects += self._remove(node, subscriber, "its node restarted")
        node.is_up, node.is_blocked = True, is_blocked
        node.changed()
        for subscriber in node.members.values():
            subscriber.away_since = None
        effects += self._resume(node, list(node.members.values()))
        return effects + self._flush(node, now)

    def node_down(self, name: str, now: float, reason: str) -> list[Effect]:
        """Stop sending to a node: its connection is lost, perhaps with batches that were on their way."""
        assert name != self._local
        node = self._node(name)
        effects: list[Effect] = []
        if self._is_reliable:
            self._go_back(node)
        again: list[Attempt] = []
        for attempt in node.pending.values():
            if attempt.payload is not None:
                again.append(attempt)
            elif handles := node.valid_handles(attempt):
                effects.append(self._lost(node, attempt, len(handles), reason))
        node.pending.clear()
        node.queue.extendleft(reversed(again))
        if not node.members:
            self._drop_queue(node, effects)
        node.is_up, node.is_blocked = False, False
        node.slow = frozenset()
        node.probation.clear()
        here = [subscriber for subscriber in node.members.values() if subscriber.away_since is None]
        effects += [self._wait_for_node(subscriber, reason, now) for subscriber in here]
        node.changed()
        return effects

    def _go_back(self, node: SubscriberNode) -> None:
        """Set the subscribers of a node back to the first batch that was not reported."""
        first: dict[int, int] = {}
        for attempt in node.pending.values():
            for handle in node.valid_handles(attempt):
                first.setdefault(handle, attempt.start)
        for handle, subscriber in node.members.items():
            self._set_back(subscriber, first.get(handle, subscriber.position))

    def _set_back(self, subscriber: FanOutSubscriber, offset: int) -> None:
        self._positions.discard(subscriber)
        back = subscriber.offset - offset
        if back > 0:
            self.counts.redelivered_records += back
            subscriber.offset = offset

    def _lost(self, node: SubscriberNode, attempt: Attempt, subscribers: int, reason: str) -> Effect:
        """Count a batch as lost; one event for all its subscribers, which have the same reason and may be many."""
        status = DeliveryStatus.SUBSCRIBER_UNREACHABLE
        records = attempt.end - attempt.start
        self.counts.failed_records[status] += records * subscribers
        self.counts.reported_batches[status] += 1
        fields = {"node": node.name, "attempt": attempt.number, "subscribers": subscribers, "count": records}
        return EmitEvent(PubSubEventType.DELIVERY_FAILED, {**fields, "status": status, "reason": reason})

    def _wait_for_node(self, subscriber: FanOutSubscriber, reason: str, now: float) -> Effect:
        subscriber.away_since = now
        subscriber.failed_with = DeliveryStatus.SUBSCRIBER_UNREACHABLE
        subscriber.status, subscriber.reason = SubscriberStatus.SUSPENDED, reason
        self._wake(subscriber, subscriber.expires_at(self._config.suspended_ttl_seconds))
        return _told(PubSubEventType.SUBSCRIBER_SUSPENDED, subscriber, reason=reason)

    def node_blocked(self, name: str) -> None:
        """Stop sending to a node whose send queue is full."""
        node = self.nodes.get(name)
        if node is not None and node.is_up and name != self._local:
            node.is_blocked = True

    def node_ready(self, name: str, now: float) -> list[Effect]:
        """Go on sending to a node: its send queue is not full any more."""
        node = self.nodes.get(name)
        if node is None or not node.is_blocked:
            return []
        node.is_blocked = False
        return self._flush(node, now)

    def _flush(self, node: SubscriberNode, now: float) -> list[Effect]:
        """Send queued batches in order, to those of their subscribers that are still active.

        At most as much is sent ahead as a subscriber may have unacked; the rest is sent as reports arrive.
        """
        effects: list[Effect] = []
        sent = 0
        while node.queue and node.may_flush(self._config):
            attempt = node.queue.popleft()
            handles = node.valid_handles(attempt)
            if handles != node.handles:
                handles = tuple(handle for handle in handles if node.members[handle].is_active)
            if not handles or attempt.payload is None:
                effects.append(self._dropped(node, attempt))
                continue
            if attempt.was_sent:
                self.counts.redelivered_batches += 1
                self.counts.redelivered_records += attempt.end - attempt.start
            attempt.handles, attempt.sent_at, attempt.was_sent = handles, now, True
            node.pending[attempt.number] = attempt
            effects.append(Send(node.name, attempt.number, attempt.payload, handles))
            sent += 1
        if sent:
            effects.append(EmitEvent(PubSubEventType.QUEUE_FLUSHED, {"node": node.name, "batches": sent}))
        return effects

    # Best-effort topics

    def publish(self, payload: Payload, options: TopicOptions, now: float) -> list[Effect]:
        """Send a payload to the active subscribers; when it raises, nothing has changed.

        Raises:
            NoSubscribers: there is no active subscriber.
            PartitionDropped: no node can be reached, and the options say not to wait for nodes.
            DelayQueueFull: the queue of a node that cannot be reached is full.
        """
        assert not self._is_reliable, "a reliable topic is read from its log"
        ready: list[SubscriberNode] = []
        away: list[SubscriberNode] = []
        for node in self.nodes.values():
            if node.members and node.handles:
                (ready if node.is_ready else away).append(node)
        waits = options.keeps_for_unreachable
        self._check(payload, ready, away, waits=waits)
        records = payload.end - payload.start
        is_sent_again = options.delivery_policy == DeliveryPolicy.AT_LEAST_ONCE
        effects = [self._send(node, payload, now, is_sent_again=is_sent_again) for node in ready]
        effects += [self._queue(node, payload, now) if waits else self._drop(node, records) for node in away]
        for node in self.nodes.values():
            self.counts.missed_records += records * (len(node.members) - len(node.handles))
        return effects

    def _check(self, payload: Payload, ready: list[SubscriberNode], away: list[SubscriberNode], *, waits: bool) -> None:
        if not ready and not away:
            raise NoSubscribers(topic=self._topic)
        if not waits:
            if not ready:
                names = ", ".join(node.name for node in away)
                raise PartitionDropped(
                    f"{self._topic} has subscribers only on {names}, which cannot be reached, and no delay queue"
                )
            return
        for node in away:
            if not node.has_room(payload.size_bytes, self._config):
                raise DelayQueueFull(
                    node=node.name, waiting_bytes=node.kept_bytes, limit_bytes=self._config.delay_queue_bytes_max
                )

    def _send(self, node: SubscriberNode, payload: Payload, now: float, *, is_sent_again: bool) -> Effect:
        size = payload.size_bytes
        kept = None
        if is_sent_again and node.name != self._local and node.has_room(size, self._config):
            kept = payload
            node.keep(1, size)
        number, handles = node.next_number(), node.handles
        node.pending[number] = Attempt(number, handles, payload.start, payload.end, size, now, kept)
        return Send(node.name, number, payload, handles)

    def _queue(self, node: SubscriberNode, payload: Payload, now: float) -> Effect:
        size, records = payload.size_bytes, payload.end - payload.start
        node.keep(1, size)
        node.queue.append(
            Attempt(node.next_number(), node.handles, payload.start, payload.end, size, now, payload, was_sent=False)
        )
        self.counts.queued_batches += 1
        self.counts.queued_records += records
        return EmitEvent(PubSubEventType.BATCH_QUEUED, {"node": node.name, "count": records})

    # Reliable topics

    def wanted(self, end: int) -> int | None:
        """Return the offset to read next, given the end of the log; None: nothing can be sent now."""
        self._wanted = self._positions.wanted(end)
        return self._wanted

    def read(self, payload: Payload, now: float) -> list[Effect]:
        """Send what was read to the subscribers at the wanted offset, which may lie within the payload."""
        wanted = self._wanted
        at = wanted if wanted is not None and payload.start <= wanted < payload.end else payload.start
        effects: list[Effect] = []
        size = payload.size_bytes
        for group, handles in self._positions.send(at, payload.end, size):
            node = group.node
            number = node.next_number()
            node.pending[number] = Attempt(number, handles, at, payload.end, size, now, None, group)
            effects.append(Send(node.name, number, payload, handles))
        return effects

    def skip_to(self, start: int) -> int:
        """Move subscribers to the start of the log; return how many records they have lost together."""
        lost = self._positions.skip_to(start)
        for node in self.nodes.values():
            for subscriber in node.members.values():
                if subscriber.group is None and subscriber.offset < start:
                    lost += start - subscriber.offset
                    subscriber.offset = start
        self.counts.skipped_records += lost
        return lost

    # Reports of nodes

    def reported(self, name: str, report: DeliveryReport, now: float) -> list[Effect]:
        """Take the report of a node on one attempt; a report on an unknown attempt is ignored."""
        node = self.nodes.get(name)
        if node is None:
            return []
        if not report.attempt:
            self._positions.slow(node, report.slow)
            return []
        attempt = node.pending.get(report.attempt)
        if attempt is None:
            return []
        self.counts.reported_batches[report.status] += 1
        effects: list[Effect] = []
        handles: Collection[int] = node.valid_handles(attempt)
        if report.failed:
            left = dict.fromkeys(handles)
            for failure in report.failed:
                if failure.handle in left:
                    del left[failure.handle]
                    effects += self._failed(node, attempt, failure, now)
            handles = left
        del node.pending[attempt.number]
        if attempt.payload is not None:
            node.keep(-1, -attempt.size_bytes)
        if attempt.group is not None:
            self._positions.reported(attempt.group, attempt.size_bytes)
        if handles:
            effects.append(self._delivered(node, attempt, handles, now))
        if node.queue:  # best-effort topic: the report makes room for what waits
            effects += self._flush(node, now)
        return effects

    def _delivered(self, node: SubscriberNode, attempt: Attempt, handles: Collection[int], now: float) -> Effect:
        if node.probation:
            few, many = (node.probation, handles) if len(node.probation) < 8 else (handles, node.probation)
            for handle in [handle for handle in few if handle in many]:
                succeeded = node.probation.pop(handle)
                succeeded.failures, succeeded.failed_since = 0, None
        records = attempt.end - attempt.start
        self.counts.delivered_records += records * len(handles)
        return EmitEvent(
            PubSubEventType.DELIVERY_SUCCEEDED,
            {
                "node": node.name,
                "attempt": attempt.number,
                "subscribers": len(handles),
                "count": records,
                "seconds": now - attempt.sent_at,
            },
        )

    def _failed(self, node: SubscriberNode, attempt: Attempt, failure: SubscriberFailure, now: float) -> list[Effect]:
        subscriber = node.members[failure.handle]
        # A failure that a node reports with a status of success is still a failure.
        status = failure.status if failure.status != DeliveryStatus.DELIVERED else DeliveryStatus.OTHER_ERROR
        records = attempt.end - attempt.start
        self.counts.failed_records[status] += records
        fields = {"attempt": attempt.number, "count": records, "status": status, "reason": failure.reason}
        effects: list[Effect] = [_told(PubSubEventType.DELIVERY_FAILED, subscriber, **fields)]
        if self._is_reliable:
            first = node.first_sent(failure.handle, subscriber.valid_from, attempt)
            self._set_back(subscriber, first.start)
        node.void(subscriber)
        node.probation.pop(failure.handle, None)
        subscriber.failed_with = status
        subscriber.failures += 1
        if subscriber.failed_since is None:
            subscriber.failed_since = now
        subscriber.status = SubscriberStatus.SUSPENDED
        subscriber.reason = f"{status}: {failure.reason}" if failure.reason else str(status)
        node.changed()
        effects.append(_told(PubSubEventType.SUBSCRIBER_SUSPENDED, subscriber, reason=subscriber.reason))
        expires_at = subscriber.expires_at(self._config.suspended_ttl_seconds)
        if now >= expires_at:
            return effects + self._expired(node, subscriber)
        pause = doubled(self._config.backoff_seconds, self._config.backoff_seconds_max, subscriber.failures - 1)
        self._wake(subscriber, min(expires_at, now + pause))
        return effects

    def _expired(self, node: SubscriberNode, subscriber: FanOutSubscriber) -> list[Effect]:
        reason = f"suspended for more than {self._config.suspended_ttl_seconds:g} s ({subscriber.reason})"
        return [
            RemoveSubscriber(subscriber.member, reason, subscriber.failed_with),
            *self._remove(node, subscriber, reason),
        ]

    def _resume(self, node: SubscriberNode, subscribers: list[FanOutSubscriber]) -> list[Effect]:
        """Send to subscribers again; their failures are forgotten only after a success."""
        if not subscribers:
            return []
        for subscriber in subscribers:
            subscriber.status, subscriber.reason, subscriber.due = SubscriberStatus.ACTIVE, "", None
            if subscriber.failed_since is not None:
                node.probation[subscriber.member.handle] = subscriber
            if self._is_reliable:
                self._positions.add(node, subscriber)
        node.changed()
        resumed: list[Effect] = [ResumeAt(node.name, tuple(one.member.handle for one in subscribers))]
        return resumed + [_told(PubSubEventType.SUBSCRIBER_RESUMED, one) for one in subscribers]

    # Time

    def tick(self, now: float) -> list[Effect]:
        """Resume or remove the subscribers that have been suspended for long enough."""
        effects: list[Effect] = []
        resumed: dict[str, list[FanOutSubscriber]] = {}
        while (due := self.next_tick()) is not None and due <= now:
            subscriber = heapq.heappop(self._timers)[2]
            subscriber.due = None
            node = self.nodes[subscriber.member.node]
            if now >= subscriber.expires_at(self._config.suspended_ttl_seconds):
                effects += self._expired(node, subscriber)
            else:
                resumed.setdefault(node.name, []).append(subscriber)
        for name, subscribers in resumed.items():
            effects += self._resume(self.nodes[name], subscribers)
        return effects

    def next_tick(self) -> float | None:
        """Return when `tick` has something to do; None: never, as things are."""
        while self._timers and self._timers[0][2].due != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _wake(self, subscriber: FanOutSubscriber, due: float) -> None:
        if subscriber.due == due:
            return
        subscriber.due = due
        self._timers_made += 1
        heapq.heappush(self._timers, (due, self._timers_made, subscriber))
        if len(self._timers) > 2 * self._members + 100:
            self._timers = [timer for timer in self._timers if timer[2].due == timer[0]]
            heapq.heapify(self._timers)


def _told(type_: PubSubEventType, subscriber: FanOutSubscriber, **fields: object) -> EmitEvent:
    return EmitEvent(type_, {"node": subscriber.member.node, "subscriber": subscriber.name, **fields})
