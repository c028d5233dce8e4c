"""The subscribers that are attached to this node: gives them their batches, and reports what became of each batch.

What is shared between them and a partition's owner is counted by `core.delivery.attempts`. Where the owner is, the
relay knows.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sulina.core.delivery.attempts import Hand, NodeAttempts, SendReport
from sulina.core.delivery.pubsub import DeliveryReport, DeliveryStatus, PubSubConfig, SubscriberFailure
from sulina.core.delivery.ranges import Range
from sulina.errors import SulinaError
from sulina.ports import Clock
from sulina.types import PartitionName, TopicName
from sulina.wire.peer import AnyPeerFrame, DeliverBatch, Fence, Reported, Resume, unpack_handles

NOT_YET: Fence = (-1, 0)  # nothing has been sent


@dataclass(frozen=True, slots=True)
class Delivery:
    """Stored batches for one subscriber, of which `ranges` are its own; `number` is what it acks."""

    partition: int
    number: int
    ranges: list[Range]
    data: memoryview
    epoch: int  # of the log that they come from


@dataclass(slots=True, eq=False)
class LocalSubscriber:
    """`deliver` must not wait; when a topic lets it go for good, `removed` is told why."""

    handle: int
    topic: TopicName
    name: str
    deliver: Callable[[Delivery], None]
    removed: Callable[[SulinaError], None]
    partitions: list[PartitionName] = field(default_factory=list)  # that it is to be joined in
    # What it was given and has not acked: by number, whose attempt it is.
    given: dict[int, tuple["Partition", int]] = field(default_factory=dict)
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))


class Partition:
    """What this node shares with the owner of one partition."""

    def __init__(self, name: PartitionName, source: str, fence: Fence, attempts: NodeAttempts) -> None:
        self.name = name
        self.source = source  # the broker that sends
        self.fence = fence  # its own: of another one, attempts are counted anew
        self.attempts = attempts

    def is_of(self, source: str, fence: Fence) -> bool:
        """Whether these attempts are counted here."""
        return self.fence == fence and self.source == source


class Endpoint:
    """Frames in, deliveries out; acks in, reports out."""

    def __init__(self, config: PubSubConfig, *, send: Callable[[str, AnyPeerFrame], bool], clock: Clock) -> None:
        self._config = config
        self._send = send
        self._clock = clock
        self._handles = itertools.count(int(clock.now() * 1_000_000))  # not those of a former life of this node
        self.subscribers: dict[int, LocalSubscriber] = {}
        self._by_topic: dict[TopicName, dict[int, LocalSubscriber]] = {}
        self._partitions: dict[PartitionName, Partition] = {}
        self._unpacked: dict[bytes, tuple[int, ...]] = {}
        self._late_acks = 0  # of partitions that are gone

    # Who is here

    def attach(
        self,
        topic: TopicName,
        name: str,
        deliver: Callable[[Delivery], None],
        removed: Callable[[SulinaError], None],
    ) -> LocalSubscriber:
        """A subscriber, under a handle that no other has in the life of this node."""
        handle = next(self._handles)
        made = self.subscribers[handle] = LocalSubscriber(handle, topic, name, deliver, removed)
        self._by_topic.setdefault(topic, {})[handle] = made
        return made

    def detach(self, subscriber: LocalSubscriber, *, is_lost: bool = False) -> None:
        """It has left, or its connection is lost."""
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
                self._report(shared, shared.attempts.gone(subscriber.handle, now))
            self._report(shared, shared.attempts.remove(subscriber.handle, now))
            if not others:
                del self._partitions[name]

    def joined(self, name: PartitionName, owner: str, subscriber: LocalSubscriber, offset: int | None) -> None:
        """The owner sends to it from `offset` on."""
        self._shared(name, owner, is_reliable=offset is not None).attempts.add(subscriber.handle, offset)

    def position(self, name: PartitionName, subscriber: LocalSubscriber) -> int | None:
        """Everything before it is acked; None where it has not been, or where nothing is kept."""
        shared = self._partitions.get(name)
        return None if shared is None else shared.attempts.position(subscriber.handle)

    def forget(self, name: PartitionName, handle: int) -> None:
        """The topic has let a subscriber go; it may come back."""
        shared = self._partitions.get(name)
        if shared is not None:
            self._report(shared, shared.attempts.gone(handle, self._clock.monotonic()))

    def _shared(self, name: PartitionName, owner: str, *, is_reliable: bool) -> Partition:
        known = self._partitions.get(name)
        if known is None:
            attempts = NodeAttempts(self._config, is_reliable=is_reliable, epoch=NOT_YET[0])
            known = self._partitions[name] = Partition(name, owner, NOT_YET, attempts)
        return known

    # What owners send

    def deliver(self, owner: str, name: PartitionName, frame: DeliverBatch) -> None:
        """A batch for some of us."""
        shared = self._partitions.get(name)
        if shared is None:
            self._send(owner, _nobody(name, frame))
            return
        if frame.fence[0] < shared.fence[0]:
            return  # whoever sends this owns it no more
        if not shared.is_of(owner, frame.fence):
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
            if isinstance(step, Hand):
                subscriber = self.subscribers[step.handle]
                number = next(subscriber.numbers)
                subscriber.given[number] = (shared, step.attempt)
                ranges = _own(max(step.start_from, frame.start), frame.end, step.passed)
                subscriber.deliver(Delivery(name.partition, number, ranges, frame.data, frame.epoch))
            else:
                self._tell(shared, step)

    def resume(self, owner: str, name: PartitionName, frame: Resume) -> None:
        """Some of us, who had failed, are sent to again."""
        shared = self._partitions.get(name)
        if shared is None or frame.fence[0] < shared.fence[0]:
            return
        if not shared.is_of(owner, frame.fence):
            shared = self._renew(shared, owner, frame.fence)
        handles = unpack_handles(frame.handles)
        self._report(shared, shared.attempts.resume(handles))
        for handle in handles:
            if (subscriber := self.subscribers.get(handle)) is not None:
                _forget_void(subscriber, shared)

    def _renew(self, shared: Partition, owner: str, fence: Fence) -> Partition:
        """Another owner, or another life of it, counts its attempts anew; what was acked is acked."""
        old = shared.attempts
        attempts = NodeAttempts(self._config, is_reliable=old.is_reliable, epoch=fence[0])
        made = Partition(shared.name, owner, fence, attempts)
        for subscriber in self._by_topic.get(shared.name.topic, {}).values():
            if old.has(subscriber.handle):
                made.attempts.add(subscriber.handle, old.position(subscriber.handle))
                old.remove(subscriber.handle, self._clock.monotonic())  # nobody waits for its reports
                _forget_void(subscriber, shared)
        self._partitions[shared.name] = made
        return made

    # What subscribers say

    def acked(self, subscriber: LocalSubscriber, number: int) -> None:
        """It has done with a delivery. Too late, or never given: nothing."""
        given = subscriber.given.pop(number, None)
        if given is None:
            self._late_acks += 1
            return
        shared, attempt = given
        self._report(shared, shared.attempts.acked(subscriber.handle, attempt, self._clock.monotonic()))

    def failed(self, subscriber: LocalSubscriber, number: int, reason: str) -> None:
        """It could not take a delivery."""
        given = subscriber.given.pop(number, None)
        if given is not None:
            shared, attempt = given
            self._report(shared, shared.attempts.failed(subscriber.handle, attempt, reason, self._clock.monotonic()))

    def tick(self, now: float) -> None:
        """Time has passed."""
        for shared in list(self._partitions.values()):
            due = shared.attempts.next_tick()
            if due is not None and due <= now:
                self._report(shared, shared.attempts.tick(now))

    @property
    def late_acks(self) -> int:
        """That credited nothing."""
        return self._late_acks + sum(shared.attempts.late_acks for shared in self._partitions.values())

    def _report(self, shared: Partition, reports: Iterable[SendReport]) -> None:
        for report in reports:
            self._tell(shared, report)

    def _tell(self, shared: Partition, report: SendReport) -> None:
        name = shared.name
        frame = Reported(str(name.topic), name.partition, shared.fence, report.report)
        self._send(shared.source, frame)  # where it is lost, the batch is sent again, or counts as failed


def _nobody(name: PartitionName, frame: DeliverBatch) -> Reported:
    """Nobody is here any more. The owner is told: what it counts as on its way would be so for ever."""
    status, reason = DeliveryStatus.SUBSCRIBER_UNREACHABLE, "it is not subscribed here"
    failed = tuple(SubscriberFailure(handle, status, reason) for handle in unpack_handles(frame.handles))
    return Reported(str(name.topic), name.partition, frame.fence, DeliveryReport(frame.attempt, failed))


def _forget_void(subscriber: LocalSubscriber, shared: Partition) -> None:
    """What it was given of a partition, and may not ack any more."""
    holds, handle = shared.attempts.holds, subscriber.handle
    for number, (given_by, attempt) in list(subscriber.given.items()):
        if given_by is shared and not holds(handle, attempt):
            del subscriber.given[number]


def _own(start: int, end: int, passed: Iterable[Range]) -> list[Range]:
    """[start, end) without what is passed over."""
    own = []
    for low, high in passed:
        if start < low:
            own.append((start, low))
        start = max(start, high)
    if start < end:
        own.append((start, end))
    return own
