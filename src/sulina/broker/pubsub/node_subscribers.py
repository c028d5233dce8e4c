"""The subscribers that are attached to this node: delivers their batches, and reports the result of each to its owner.

`core.delivery.attempts` has the rules. `PartitionJoins` knows which broker owns a partition.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sulina.core.delivery.attempts import DeliverTo, NodeAttempts, SendReport
from sulina.core.delivery.pubsub import DeliveryReport, DeliveryStatus, PubSubConfig, SubscriberFailure
from sulina.core.delivery.ranges import Range
from sulina.errors import SulinaError
from sulina.ports import Clock
from sulina.types import PartitionName, TopicName
from sulina.wire.peer import AnyPeerFrame, DeliverBatch, Fence, Reported, Resume, unpack_handles

NO_FENCE: Fence = (-1, 0)  # no owner has sent anything yet


@dataclass(frozen=True, slots=True)
class SubscriberDelivery:
    """Stored batches for one subscriber; only the records in `ranges` are for it. It acks `number`."""

    partition: int
    number: int
    ranges: list[Range]
    data: memoryview
    epoch: int  # of the log that the batches were read from


@dataclass(slots=True, eq=False)
class LocalSubscriber:
    """A subscriber that is attached to this node.

    `deliver` is called with each delivery and must not wait. `removed` is called with the reason when the subscriber
    has been removed for good.
    """

    handle: int
    topic: TopicName
    name: str
    deliver: Callable[[SubscriberDelivery], None]
    removed: Callable[[SulinaError], None]
    partitions: list[PartitionName] = field(default_factory=list)  # that send to it
    # Deliveries that it has not acked: by number, the partition and the attempt.
    given: dict[int, tuple["PartitionAttempts", int]] = field(default_factory=dict)
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))


@dataclass(frozen=True, slots=True)
class PartitionAttempts:
    """What this node knows of the attempts of one partition's owner."""

    name: PartitionName
    topic: str  # its topic, as frames name it
    source: str  # the broker that sends
    fence: Fence  # of that owner: with another fence, or from another broker, attempts are numbered from the start
    attempts: NodeAttempts


class NodeSubscribers:
    """Takes frames from owners and makes deliveries; takes acks from subscribers and sends reports to owners."""

    def __init__(self, config: PubSubConfig, *, send: Callable[[str, AnyPeerFrame], bool], clock: Clock) -> None:
        self._config = config
        self._send = send
        self._clock = clock
        self._handles = itertools.count(int(clock.now() * 1_000_000))  # none from before a restart
        self.subscribers: dict[int, LocalSubscriber] = {}
        self._by_topic: dict[TopicName, dict[int, LocalSubscriber]] = {}
        self._partitions: dict[PartitionName, PartitionAttempts] = {}
        self._unpacked: dict[bytes, tuple[int, ...]] = {}
        self._late_acks = 0  # for deliveries that had been taken back

    # Attaching and detaching

    def attach(
        self,
        topic: TopicName,
        name: str,
        deliver: Callable[[SubscriberDelivery], None],
        removed: Callable[[SulinaError], None],
    ) -> LocalSubscriber:
        """Attach a subscriber, under a handle that is unique for as long as this node runs."""
        handle = next(self._handles)
        made = self.subscribers[handle] = LocalSubscriber(handle, topic, name, deliver, removed)
        self._by_topic.setdefault(topic, {})[handle] = made
        return made

    def detach(self, subscriber: LocalSubscriber, *, is_lost: bool = False) -> None:
        """Detach a subscriber, which has unsubscribed or, with `is_lost`, whose connection is lost."""
        if self.subscribers.pop(subscriber.handle, None) is None:
            return
        subscriber.given.clear()
        others = self._by_topic[subscriber.topic]
        del others[subscriber.handle]
        if not others:
            del self._by_topic[subscriber.topic]
        now = self._clock.monotonic()
        for name in subscriber.partitions:
            shared = self._partitions.get(name)
            if shared is None:
                continue
            if is_lost:
                self._report(shared, shared.attempts.disconnected(subscriber.handle, now))
            self._report(shared, shared.attempts.remove(subscriber.handle, now))
            if not others:
                del self._partitions[name]

    def joined(self, name: PartitionName, owner: str, subscriber: LocalSubscriber, offset: int | None) -> None:
        """Expect batches for a subscriber: the owner sends to it from `offset` on."""
        self._shared(name, owner, is_reliable=offset is not None).attempts.add(subscriber.handle, offset)

    def position(self, name: PartitionName, subscriber: LocalSubscriber) -> int | None:
        """Return the offset before which a subscriber has acked everything; None: not known, or a best-effort topic."""
        shared = self._partitions.get(name)
        return None if shared is None else shared.attempts.position(subscriber.handle)

    def interrupt(self, name: PartitionName, handle: int) -> None:
        """Take back the deliveries of a subscriber that the owner has stopped sending to; it may start again."""
        shared = self._partitions.get(name)
        if shared is not None:
            self._report(shared, shared.attempts.disconnected(handle, self._clock.monotonic()))

    def _shared(self, name: PartitionName, owner: str, *, is_reliable: bool) -> PartitionAttempts:
        known = self._partitions.get(name)
        if known is None:
            attempts = NodeAttempts(self._config, is_reliable=is_reliable, epoch=NO_FENCE[0])
            known = self._partitions[name] = PartitionAttempts(name, str(name.topic), owner, NO_FENCE, attempts)
        return known

    # Frames from owners

    def deliver(self, owner: str, name: PartitionName, frame: DeliverBatch) -> None:
        """Deliver a batch to the subscribers that it is for."""
        shared = self._partitions.get(name)
        if shared is None:
            self._send(owner, _unreachable(name, frame))
            return
        if frame.fence[0] < shared.fence[0]:
            return  # the sender does not own the partition any more
        if (shared.source, shared.fence) != (owner, frame.fence):
            shared = self._renew(shared, owner, frame.fence)
        handles = self._unpacked.get(frame.handles)
        if handles is None:
            if len(self._unpacked) > 100:
                self._unpacked.clear()
            handles = self._unpacked[frame.handles] = unpack_handles(frame.handles)
        steps = shared.attempts.deliver(
            frame.attempt, frame.start, frame.end, len(frame.data), handles, self._clock.monotonic()
        )
        for step in steps:
            if isinstance(step, DeliverTo):
                subscriber = self.subscribers[step.handle]
                number = next(subscriber.numbers)
                subscriber.given[number] = (shared, step.attempt)
                subscriber.deliver(SubscriberDelivery(name.partition, number, step.ranges, frame.data, frame.epoch))
            else:
                self._report(shared, [step])

    def resume(self, owner: str, name: PartitionName, frame: Resume) -> None:
        """Expect batches again for subscribers that had failed."""
        shared = self._partitions.get(name)
        if shared is None or frame.fence[0] < shared.fence[0]:
            return
        if (shared.source, shared.fence) != (owner, frame.fence):
            shared = self._renew(shared, owner, frame.fence)
        handles = unpack_handles(frame.handles)
        self._report(shared, shared.attempts.resume(handles))
        for handle in handles:
            if (subscriber := self.subscribers.get(handle)) is not None:
                _remove_void(subscriber, shared)

    def _renew(self, shared: PartitionAttempts, owner: str, fence: Fence) -> PartitionAttempts:
        """Start to count the attempts of another owner, or of one that restarted; what was acked stays acked."""
        old = shared.attempts
        attempts = NodeAttempts(self._config, is_reliable=old.is_reliable, epoch=fence[0])
        made = PartitionAttempts(shared.name, shared.topic, owner, fence, attempts)
        for subscriber in self._by_topic.get(shared.name.topic, {}).values():
            if old.has(subscriber.handle):
                made.attempts.add(subscriber.handle, old.position(subscriber.handle))
                old.remove(subscriber.handle, self._clock.monotonic())  # nobody waits for its reports
                _remove_void(subscriber, shared)
        self._partitions[shared.name] = made
        return made

    # Answers of subscribers

    def acked(self, subscriber: LocalSubscriber, number: int) -> None:
        """Note that a subscriber has acked a delivery. An ack that comes too late only counts as late."""
        given = subscriber.given.pop(number, None)
        if given is None:
            self._late_acks += 1
            return
        shared, attempt = given
        self._report(shared, shared.attempts.acked(subscriber.handle, attempt, self._clock.monotonic()))

    def failed(self, subscriber: LocalSubscriber, number: int, reason: str) -> None:
        """Note that a subscriber has failed to handle a delivery."""
        given = subscriber.given.pop(number, None)
        if given is not None:
            shared, attempt = given
            self._report(shared, shared.attempts.failed(subscriber.handle, attempt, reason, self._clock.monotonic()))

    def tick(self, now: float) -> None:
        """Do what is due at this time: a subscriber that does not ack in time fails."""
        for shared in list(self._partitions.values()):
            due = shared.attempts.next_tick()
            if due is not None and due <= now:
                self._report(shared, shared.attempts.tick(now))

    @property
    def late_acks(self) -> int:
        """Number of acks that arrived too late to count."""
        return self._late_acks + sum(shared.attempts.late_acks for shared in self._partitions.values())

    def _report(self, shared: PartitionAttempts, reports: Iterable[SendReport]) -> None:
        for report in reports:
            frame = Reported(shared.topic, shared.name.partition, shared.fence, report.report)
            self._send(shared.source, frame)  # if it is lost, the batch is sent again or counts as failed


def _unreachable(name: PartitionName, frame: DeliverBatch) -> Reported:
    """Report that no subscriber of a batch is here; without it the owner would wait for ever."""
    status, reason = DeliveryStatus.SUBSCRIBER_UNREACHABLE, "the subscriber is not attached to this node"
    failed = tuple(SubscriberFailure(handle, status, reason) for handle in unpack_handles(frame.handles))
    return Reported(str(name.topic), name.partition, frame.fence, DeliveryReport(frame.attempt, failed))


def _remove_void(subscriber: LocalSubscriber, shared: PartitionAttempts) -> None:
    """Remove the deliveries of a partition that a subscriber may not ack any more."""
    holds, handle = shared.attempts.holds, subscriber.handle
    for number, (given_by, attempt) in list(subscriber.given.items()):
        if given_by is shared and not holds(handle, attempt):
            del subscriber.given[number]
