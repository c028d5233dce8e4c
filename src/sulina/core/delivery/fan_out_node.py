"""What the fan-out of a partition knows of one node: its subscribers, the batches that were sent, and those that wait.

- Attempt numbers increase. Batches that were sent have lower numbers than those that wait, so the order is kept.
- A batch that may have to be sent again is kept until it is reported; kept and waiting batches are bounded together.
- An attempt with a number below `valid_from` of a subscriber is void for it: its report is ignored.
"""

from collections import deque
from dataclasses import dataclass, field

from sulina.core.delivery.fan_out_effects import Payload
from sulina.core.delivery.pubsub import DeliveryStatus, PubSubConfig, SubscriberId, SubscriberInfo, SubscriberStatus

SETS_MAX = 16  # sets of handles that are kept for lookups


@dataclass(slots=True, eq=False)
class FanOutSubscriber:
    """One subscriber and its state."""

    member: SubscriberId
    name: str
    valid_from: int
    offset: int  # the next offset, while it is in no group
    group: "Group | None" = None
    status: SubscriberStatus = SubscriberStatus.ACTIVE
    reason: str = ""  # why it is suspended
    failed_with: DeliveryStatus = (
        DeliveryStatus.SUBSCRIBER_UNREACHABLE
    )  # its last failure; its node may have been away from the start
    failures: int = 0  # since the last success
    failed_since: float | None = None  # the first of them
    away_since: float | None = None  # its node cannot be reached
    due: float | None = None  # when `tick` has to look at it

    @property
    def is_active(self) -> bool:
        """Whether it is sent to."""
        return self.status is SubscriberStatus.ACTIVE

    @property
    def is_listening(self) -> bool:
        """Whether it gets new payloads, now or when its node is connected again."""
        return self.away_since is not None or self.status is SubscriberStatus.ACTIVE

    @property
    def position(self) -> int:
        """The next offset to send to it."""
        return self.offset if self.group is None else self.group.offset

    def expires_at(self, ttl_seconds: float) -> float:
        """Return when it is removed, if it stays suspended."""
        # While its node is away, failures of the subscriber itself do not count.
        since = self.failed_since if self.away_since is None else self.away_since
        assert since is not None
        return since + ttl_seconds

    def info(self, *, is_reliable: bool) -> SubscriberInfo:
        """Return its state as clients see it."""
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
    """Subscribers of one node at one offset of the log, which are sent to together."""

    node: "SubscriberNode"
    offset: int
    members: dict[int, FanOutSubscriber] = field(default_factory=dict)
    unreported: int = 0  # attempts
    unreported_bytes: int = 0
    is_aside: bool = False  # it waits for a report
    into: "Group | None" = None  # the group that it was merged into
    _handles: tuple[int, ...] | None = None

    @property
    def handles(self) -> tuple[int, ...]:
        """Handles of the members; the same object until the members change."""
        if self._handles is None:
            self._handles = tuple(self.members)
        return self._handles

    def add(self, subscriber: FanOutSubscriber) -> None:
        """Add a subscriber."""
        self.members[subscriber.member.handle] = subscriber
        subscriber.group = self
        self._handles = None

    def discard(self, subscriber: FanOutSubscriber) -> None:
        """Remove a subscriber, which stays at the offset of the group."""
        del self.members[subscriber.member.handle]
        subscriber.offset, subscriber.group = self.offset, None
        self._handles = None

    def count(self, batches: int, size_bytes: int) -> None:
        """Change the number and size of unreported batches by these amounts."""
        self.unreported += batches
        self.unreported_bytes += size_bytes


@dataclass(slots=True, eq=False)
class Attempt:
    """One payload that is sent to one node."""

    number: int
    handles: tuple[int, ...]
    start: int
    end: int
    size_bytes: int
    sent_at: float
    payload: Payload | None  # None: it cannot be sent again
    group: Group | None = None
    was_sent: bool = True


@dataclass(slots=True, eq=False)
class SubscriberNode:
    """A node with subscribers, as this partition sees it."""

    name: str
    is_up: bool = False
    is_blocked: bool = False  # its send queue is full
    members: dict[int, FanOutSubscriber] = field(default_factory=dict)
    probation: dict[int, FanOutSubscriber] = field(
        default_factory=dict
    )  # active, but without a success since a failure
    pending: dict[int, Attempt] = field(default_factory=dict)  # sent and not reported, by number
    queue: deque[Attempt] = field(default_factory=deque)
    slow: frozenset[int] = frozenset()  # subscribers that the node has reported to be far behind
    kept_batches: int = 0  # waiting, or sent and not reported
    kept_bytes: int = 0
    void_before: int = 0  # attempts with lower numbers may be void for a subscriber
    next_attempt: int = 1
    _handles: tuple[int, ...] | None = None
    _sets: dict[int, tuple[tuple[int, ...], frozenset[int]]] = field(default_factory=dict)  # of handles, by identity

    @property
    def is_ready(self) -> bool:
        """Whether new payloads can be sent at once: nothing waits before them."""
        return self.is_up and not self.is_blocked and not self.queue

    def may_flush(self, config: PubSubConfig) -> bool:
        """Return whether the first waiting batch can be sent."""
        if not self.is_up or self.is_blocked:
            return False
        if not self.pending:
            return True
        # Half of what a subscriber may have unacked: with all of it at once it would fail.
        if 2 * len(self.pending) >= config.unacked_batches_max:
            return False
        size = sum(attempt.size_bytes for attempt in self.pending.values()) + self.queue[0].size_bytes
        return 2 * size <= config.unacked_bytes_max

    @property
    def handles(self) -> tuple[int, ...]:
        """Handles of the listening subscribers; the same object until they change."""
        if self._handles is None:
            self._handles = tuple(handle for handle, one in self.members.items() if one.is_listening)
        return self._handles

    def changed(self) -> None:
        """Note that a subscriber was added or removed, or has another state."""
        self._handles = None

    def void(self, subscriber: FanOutSubscriber) -> None:
        """Make the attempts void that were sent to a subscriber; those that wait stay valid."""
        number = self.queue[0].number if self.queue else self.next_attempt
        subscriber.valid_from = max(subscriber.valid_from, number)
        self.void_before = max(self.void_before, number)

    def has_room(self, size_bytes: int, config: PubSubConfig) -> bool:
        """Return whether one more payload may wait; one that exceeds the limit by itself may wait alone."""
        if not self.kept_batches:
            return True
        fits = self.kept_bytes + size_bytes <= config.delay_queue_bytes_max
        return fits and self.kept_batches < config.delay_queue_batches_max

    def keep(self, batches: int, size_bytes: int) -> None:
        """Change the number and size of kept batches by these amounts."""
        self.kept_batches += batches
        self.kept_bytes += size_bytes

    def next_number(self) -> int:
        """Return a new attempt number."""
        number = self.next_attempt
        self.next_attempt += 1
        return number

    def valid_handles(self, attempt: Attempt) -> tuple[int, ...]:
        """Return the handles for which an attempt is not void."""
        if attempt.number >= self.void_before:
            return attempt.handles
        number, members = attempt.number, self.members
        return tuple(
            handle
            for handle in attempt.handles
            if (subscriber := members.get(handle)) is not None and subscriber.valid_from <= number
        )

    def is_for(self, attempt: Attempt, handle: int) -> bool:
        """Return whether an attempt is for a subscriber. Many attempts share one tuple of many handles."""
        handles = attempt.handles
        known = self._sets.get(id(handles))
        if known is None or known[0] is not handles:
            if len(self._sets) >= SETS_MAX:
                self._sets.clear()
            known = self._sets[id(handles)] = (handles, frozenset(handles))
        return handle in known[1]

    def first_sent(self, handle: int, valid_from: int, attempt: Attempt) -> Attempt:
        """Return the earliest unreported attempt for a subscriber, this one at the latest."""
        for number, earlier in self.pending.items():
            if number >= attempt.number:
                break
            if number >= valid_from and self.is_for(earlier, handle):
                return earlier
        return attempt
