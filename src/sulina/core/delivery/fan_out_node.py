"""What the fan-out of a partition knows of one node: who is subscribed there, what is on its way, what waits.

- Attempts have numbers that only grow. What is on its way has lower ones than what waits: the order is kept.
- What may have to be sent again is kept until it is reported, and counts as if it waited: both are bounded together.
- An attempt with a number below a subscriber's `valid_from` is void for it: it credits nothing, and blames nobody.
"""

from collections import deque
from dataclasses import dataclass, field

from sulina.core.delivery.fan_out_effects import Payload
from sulina.core.delivery.pubsub import DeliveryStatus, PubSubConfig, SubscriberId, SubscriberInfo, SubscriberStatus

SETS_MAX = 16  # of handles that are looked up


@dataclass(slots=True, eq=False)
class FanOutSubscriber:
    """One member, and how it is doing."""

    member: SubscriberId
    name: str
    valid_from: int
    offset: int  # where it goes on, while it is in no group
    group: "Group | None" = None
    status: SubscriberStatus = SubscriberStatus.ACTIVE
    reason: str = ""  # why it is suspended
    failed_with: DeliveryStatus = DeliveryStatus.SUBSCRIBER_UNREACHABLE  # at last; its node may be away from the start
    failures: int = 0  # since its last success
    failed_since: float | None = None  # the first of them
    away_since: float | None = None  # its node cannot be reached
    due: float | None = None  # when time changes something for it

    @property
    def is_active(self) -> bool:
        """Whether it is sent to."""
        return self.status is SubscriberStatus.ACTIVE

    @property
    def is_listening(self) -> bool:
        """Whether it gets what is published, now or when its node is back."""
        return self.away_since is not None or self.status is SubscriberStatus.ACTIVE

    @property
    def position(self) -> int:
        """The offset that it is sent next."""
        return self.offset if self.group is None else self.group.offset

    def expires_at(self, ttl_seconds: float) -> float:
        """When it is removed, if it stays suspended."""
        # While its node is away, nothing can be held against the subscriber itself.
        since = self.failed_since if self.away_since is None else self.away_since
        assert since is not None
        return since + ttl_seconds

    def info(self, *, is_reliable: bool) -> SubscriberInfo:
        """As others see it."""
        return SubscriberInfo(
            node=self.member.node,
            handle=self.member.handle,
            name=self.name,
            status=self.status,
            reason=self.reason,
            offset=self.position if is_reliable else None,
        )


@dataclass(slots=True, eq=False)
class Group:
    """Subscribers of one node at one position of the log; they are sent to together."""

    node: "SubscriberNode"
    offset: int
    members: dict[int, FanOutSubscriber] = field(default_factory=dict)
    unreported: int = 0  # attempts
    unreported_bytes: int = 0
    is_aside: bool = False  # it waits for a report
    into: "Group | None" = None  # the one that it has become a part of
    _handles: tuple[int, ...] | None = None

    @property
    def handles(self) -> tuple[int, ...]:
        """The same object until the members change."""
        if self._handles is None:
            self._handles = tuple(self.members)
        return self._handles

    def add(self, subscriber: FanOutSubscriber) -> None:
        """One more."""
        self.members[subscriber.member.handle] = subscriber
        subscriber.group = self
        self._handles = None

    def discard(self, subscriber: FanOutSubscriber) -> None:
        """It goes on from here by itself, or not at all."""
        del self.members[subscriber.member.handle]
        subscriber.offset, subscriber.group = self.offset, None
        self._handles = None

    def count(self, batches: int, size_bytes: int) -> None:
        """More is on its way, or less."""
        self.unreported += batches
        self.unreported_bytes += size_bytes


@dataclass(slots=True, eq=False)
class Attempt:
    """One payload for one node."""

    number: int
    handles: tuple[int, ...]
    start: int
    end: int
    size_bytes: int
    sent_at: float
    payload: Payload | None  # None: it is not sent again
    group: Group | None = None
    was_sent: bool = True


@dataclass(slots=True, eq=False)
class SubscriberNode:
    """The place where subscribers are attached, as this partition sees it."""

    name: str
    is_up: bool = False
    is_blocked: bool = False  # its connection takes no more for now
    members: dict[int, FanOutSubscriber] = field(default_factory=dict)
    probation: dict[int, FanOutSubscriber] = field(default_factory=dict)  # active, without a success since they failed
    pending: dict[int, Attempt] = field(default_factory=dict)  # sent and not reported, by number
    queue: deque[Attempt] = field(default_factory=deque)
    slow: frozenset[int] = frozenset()  # who is far behind the others, as the node says
    kept_batches: int = 0  # that wait, or that may have to be sent again
    kept_bytes: int = 0
    void_before: int = 0  # only attempts below are void for anybody
    next_attempt: int = 1
    _handles: tuple[int, ...] | None = None
    _sets: dict[int, tuple[tuple[int, ...], frozenset[int]]] = field(default_factory=dict)  # of handles, by identity

    @property
    def is_ready(self) -> bool:
        """Whether it is sent what is new: nothing is to pass what waits."""
        return self.is_up and not self.is_blocked and not self.queue

    def may_flush(self, config: PubSubConfig) -> bool:
        """Whether it is sent the first of what waits."""
        if not self.is_up or self.is_blocked:
            return False
        if not self.pending:
            return True
        # Half of what a subscriber may have: who was sent it at once would fail by it.
        if 2 * len(self.pending) >= config.unacked_batches_max:
            return False
        size = sum(attempt.size_bytes for attempt in self.pending.values()) + self.queue[0].size_bytes
        return 2 * size <= config.unacked_bytes_max

    @property
    def handles(self) -> tuple[int, ...]:
        """Of those who are listening; the same object until they change."""
        if self._handles is None:
            self._handles = tuple(handle for handle, one in self.members.items() if one.is_listening)
        return self._handles

    def changed(self) -> None:
        """Somebody came, went, or changed their state."""
        self._handles = None

    def void(self, subscriber: FanOutSubscriber) -> None:
        """What has been sent to it is void; what waits is not."""
        number = self.queue[0].number if self.queue else self.next_attempt
        subscriber.valid_from = max(subscriber.valid_from, number)
        self.void_before = max(self.void_before, number)

    def has_room(self, size_bytes: int, config: PubSubConfig) -> bool:
        """Whether one more payload may wait. One that is over the limit by itself may wait alone."""
        if not self.kept_batches:
            return True
        fits = self.kept_bytes + size_bytes <= config.delay_queue_bytes_max
        return fits and self.kept_batches < config.delay_queue_batches_max

    def keep(self, batches: int, size_bytes: int) -> None:
        """More is kept, or less."""
        self.kept_batches += batches
        self.kept_bytes += size_bytes

    def number(self) -> int:
        """Of the next attempt."""
        number = self.next_attempt
        self.next_attempt += 1
        return number

    def valid_handles(self, attempt: Attempt) -> tuple[int, ...]:
        """Those for whom it is not void."""
        if attempt.number >= self.void_before:
            return attempt.handles
        number, members = attempt.number, self.members
        return tuple(
            handle
            for handle in attempt.handles
            if (subscriber := members.get(handle)) is not None and subscriber.valid_from <= number
        )

    def is_for(self, attempt: Attempt, handle: int) -> bool:
        """Whether it was sent to this subscriber. Many attempts share the handles of many subscribers."""
        handles = attempt.handles
        known = self._sets.get(id(handles))
        if known is None or known[0] is not handles:
            if len(self._sets) >= SETS_MAX:
                self._sets.clear()
            known = self._sets[id(handles)] = (handles, frozenset(handles))
        return handle in known[1]

    def first_sent(self, handle: int, valid_from: int, attempt: Attempt) -> Attempt:
        """The earliest attempt for a subscriber that is not reported delivered, at the latest this one."""
        for number, earlier in self.pending.items():
            if number >= attempt.number:
                break
            if number >= valid_from and self.is_for(earlier, handle):
                return earlier
        return attempt
