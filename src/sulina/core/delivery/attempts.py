"""Batches of one partition at one node: which subscribers have them and have not acked them.

- An attempt is reported once, when each of its subscribers has acked it, has failed, or was removed.
- A subscriber fails when it does not ack its oldest batch in time, counted from when that became the oldest; when its
  connection is lost; when its handler raises; when it has more unacked than it may. Then all its batches are void, and
  it is given nothing until it is resumed.
- Reliable topic: a subscriber is never given again what it has acked, whatever the owner sends. Subscribers that are
  far behind are reported, so that the owner can send to the others without waiting for them.
- Best-effort topic: an attempt that is sent again after a lost connection is not delivered again. A subscriber that
  still has it may still ack it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from sulina.core.delivery.pubsub import DeliveryReport, DeliveryStatus, PubSubConfig, SubscriberFailure
from sulina.core.delivery.ranges import Range, RangeSet

REMEMBERED_MAX = 1_000  # failed attempts, which may be sent again; also handles that are not known here
NOT_SUBSCRIBED = (DeliveryStatus.SUBSCRIBER_UNREACHABLE, "the subscriber is not attached to this node")


class DeliverTo(Struct, frozen=True):
    """Deliver a batch to a subscriber: only the records in `ranges`, which it has not acked."""

    handle: int
    attempt: int
    ranges: list[Range]


class SendReport(Struct, frozen=True):
    """Send the owner the report on an attempt."""

    report: DeliveryReport


class _PendingBatch(NamedTuple):
    start: int
    batches_before: int  # given to the subscriber
    bytes_before: int


@dataclass(slots=True, eq=False)
class _SubscriberProgress:
    next_offset: int | None  # everything before it was given to the subscriber
    pending: dict[int, _PendingBatch] = field(default_factory=dict)  # by attempt
    pending_bytes: int = 0
    given_batches: int = 0  # in total
    given_bytes: int = 0
    failure: tuple[DeliveryStatus, str] | None = None  # set: it is given nothing
    is_told: bool = False  # the failure was reported to the owner
    acked: RangeSet | None = None  # beyond `position`

    @property
    def position(self) -> int | None:
        return next(iter(self.pending.values())).start if self.pending else self.next_offset

    def give(self, attempt: int, start: int, size_bytes: int) -> None:
        self.pending[attempt] = _PendingBatch(start, self.given_batches, self.given_bytes)
        self.pending_bytes += size_bytes
        self.given_batches += 1
        self.given_bytes += size_bytes

    def is_behind(self, config: PubSubConfig) -> bool:
        """Return whether a quarter of what it may have was given since its oldest unacked batch, acked or not."""
        oldest = next(iter(self.pending.values()))
        return (
            4 * (self.given_batches - oldest.batches_before) >= config.unacked_batches_max
            or 4 * (self.given_bytes - oldest.bytes_before) >= config.unacked_bytes_max
        )


@dataclass(slots=True, eq=False)
class _UnreportedAttempt:
    end: int
    size_bytes: int
    waiting: set[int]
    failed: list[SubscriberFailure]


class NodeAttempts:
    """The attempts of one owner in one epoch; for another owner or epoch a new object is made."""

    def __init__(self, config: PubSubConfig, *, is_reliable: bool, epoch: int) -> None:
        self.is_reliable = is_reliable
        self.epoch = epoch
        self.late_acks = 0  # acks that came too late to count
        self._config = config
        self._subscribers: dict[int, _SubscriberProgress] = {}
        self._attempts: dict[int, _UnreportedAttempt] = {}  # not reported
        self._oldest_since: OrderedDict[int, float] = (
            OrderedDict()
        )  # by handle: since when its oldest batch is the oldest
        self._unknown: OrderedDict[int, None] = OrderedDict()  # handles that failed before they were added
        self._behind: set[int] = set()  # handles of subscribers that were far behind and still have batches
        self._told: frozenset[int] = frozenset()  # the handles that the owner knows to be behind
        self._highest = 0  # number of the newest attempt
        self._failures: OrderedDict[int, tuple[SubscriberFailure, ...]] = OrderedDict()  # of reported attempts

    @property
    def unreported(self) -> list[int]:
        """Attempts that have not been reported."""
        return list(self._attempts)

    @property
    def remembered_failures(self) -> list[int]:
        """Reported attempts whose failures are remembered, oldest first."""
        return list(self._failures)

    @property
    def unknown_handles(self) -> list[int]:
        """Handles that failed because they were not known here, oldest first."""
        return list(self._unknown)

    @property
    def unacked(self) -> dict[int, tuple[int, int]]:
        """Number and size of the batches that each subscriber has not acked, by handle."""
        return {handle: (len(one.pending), one.pending_bytes) for handle, one in self._subscribers.items()}

    # Subscribers

    def add(self, handle: int, offset: int | None) -> None:
        """Add a subscriber that is sent everything from `offset` on; a known one keeps its position."""
        known = self._subscribers.get(handle)
        if known is None:
            made = self._subscribers[handle] = _SubscriberProgress(offset if self.is_reliable else None)
            if handle in self._unknown:
                del self._unknown[handle]
                # The owner has a report that it failed; batches that are still on their way are not for it.
                made.failure, made.is_told = NOT_SUBSCRIBED, True
        elif known.failure is not None and not known.is_told:
            known.failure = None

    def has(self, handle: int) -> bool:
        """Return whether a subscriber was added and not removed."""
        return handle in self._subscribers

    def holds(self, handle: int, attempt: int) -> bool:
        """Return whether a subscriber has an attempt that it may ack."""
        subscriber = self._subscribers.get(handle)
        return subscriber is not None and attempt in subscriber.pending

    def position(self, handle: int) -> int | None:
        """Return the offset before which a subscriber has acked everything; None: not known, or a best-effort topic."""
        subscriber = self._subscribers.get(handle)
        return subscriber.position if subscriber is not None and self.is_reliable else None

    def acked_out_of_order(self, handle: int) -> list[Range]:
        """Return what a subscriber has acked beyond its position."""
        return list(self._subscribers[handle].acked or ())

    def remove(self, handle: int, now: float) -> list[SendReport]:  # noqa: ARG002
        """Remove a subscriber that has unsubscribed; its unacked batches do not count as failed."""
        reports = self._void(handle, None)
        self._subscribers.pop(handle, None)
        return reports

    # Batches from the owner

    def deliver(
        self, attempt: int, start: int, end: int, size_bytes: int, handles: Sequence[int], now: float
    ) -> list[DeliverTo | SendReport]:
        """Deliver a batch with the offsets [start, end) to these subscribers."""
        if attempt <= self._highest:
            return self._repeated(attempt, handles)
        self._highest = attempt
        steps: list[DeliverTo | SendReport] = []
        made = _UnreportedAttempt(end, size_bytes, set(), [])
        for handle in handles:
            subscriber = self._subscribers.get(handle)
            if subscriber is None:
                made.failed.append(SubscriberFailure(handle, *NOT_SUBSCRIBED))
                self._unknown[handle] = None
                if len(self._unknown) > REMEMBERED_MAX:
                    self._unknown.popitem(last=False)
                continue
            if subscriber.failure is None and self._is_over(subscriber, size_bytes):
                steps += self._break(handle, DeliveryStatus.OTHER_ERROR, self._over_reason(subscriber))
            if subscriber.failure is not None:
                subscriber.is_told = True
                made.failed.append(SubscriberFailure(handle, *subscriber.failure))
                continue
            hand = self._part(subscriber, handle, attempt, start, end)
            if hand is None:
                continue
            if not subscriber.pending:
                self._oldest_since[handle] = now
            subscriber.give(attempt, hand.ranges[0][0], size_bytes)
            made.waiting.add(handle)
            if self.is_reliable and subscriber.is_behind(self._config):
                self._behind.add(handle)
            steps.append(hand)
        if made.waiting:
            self._attempts[attempt] = made
        else:
            steps.append(self._report(attempt, made))
        if self._behind != self._told:
            is_mixed = not self._behind.isdisjoint(made.waiting) and not made.waiting <= self._behind
            if is_mixed or not self._told <= self._behind:
                steps.append(self._report_behind())
        return steps

    def resume(self, handles: Iterable[int]) -> list[SendReport]:
        """Accept batches for subscribers that had failed; on a reliable topic unacked records are sent again."""
        reports: list[SendReport] = []
        for handle in handles:
            self._unknown.pop(handle, None)
            subscriber = self._subscribers.get(handle)
            if subscriber is None:
                continue
            if self.is_reliable:
                reports += self._void(handle, None)
            subscriber.failure, subscriber.is_told = None, False
        return reports

    def _part(
        self, subscriber: _SubscriberProgress, handle: int, attempt: int, start: int, end: int
    ) -> DeliverTo | None:
        """Return the part of a batch that is new to a subscriber; None: it has acked all of it."""
        if not self.is_reliable:
            return DeliverTo(handle, attempt, [(start, end)])
        known = subscriber.next_offset
        if known is not None and known >= end:
            # An owner sends unacked records again only after a resume.
            known = subscriber.position
            if known is None or known >= end:
                return None
        begin = start if known is None else max(start, known)
        subscriber.next_offset = end if subscriber.next_offset is None else max(end, subscriber.next_offset)
        if subscriber.acked is None:
            return DeliverTo(handle, attempt, [(begin, end)])
        ranges = subscriber.acked.missing(begin, end)  # some were acked out of order, before a failure
        first = ranges[0][0] if ranges else end
        self._trim_acked(subscriber, subscriber.position if subscriber.pending else first)
        return DeliverTo(handle, attempt, ranges) if ranges else None

    def _is_over(self, subscriber: _SubscriberProgress, size_bytes: int) -> bool:
        if not subscriber.pending:
            return False
        config = self._config
        return (
            len(subscriber.pending) >= config.unacked_batches_max
            or subscriber.pending_bytes + size_bytes > config.unacked_bytes_max
        )

    def _over_reason(self, subscriber: _SubscriberProgress) -> str:
        return (
            f"it has {len(subscriber.pending)} unacked batches of {subscriber.pending_bytes} bytes; "
            f"the limit is {self._config.unacked_batches_max} batches or {self._config.unacked_bytes_max} bytes"
        )

    def _repeated(self, attempt: int, handles: Sequence[int]) -> list[DeliverTo | SendReport]:
        """Handle an attempt that was sent again: its report was lost with a connection, or is still to come."""
        if self.is_reliable:
            reason = f"attempt {attempt} comes after {self._highest}"
            failed = tuple(SubscriberFailure(handle, DeliveryStatus.OTHER_ERROR, reason) for handle in handles)
            return [SendReport(DeliveryReport(attempt, failed))]
        if attempt in self._attempts:
            return []
        meant = set(handles)
        failed = tuple(failure for failure in self._failures.get(attempt, ()) if failure.handle in meant)
        steps: list[DeliverTo | SendReport] = []
        for failure in failed:
            steps += self._break(failure.handle, failure.status, failure.reason, is_told=True)
        return [*steps, SendReport(DeliveryReport(attempt, failed))]

    # Answers of subscribers

    def acked(self, handle: int, attempt: int, now: float) -> list[SendReport]:
        """Note that a subscriber has acked a batch; an ack that comes too late only counts as late."""
        subscriber = self._subscribers.get(handle)
        if subscriber is None or attempt not in subscriber.pending:
            self.late_acks += 1
            return []
        is_oldest = next(iter(subscriber.pending)) == attempt
        start = subscriber.pending.pop(attempt).start
        batch = self._attempts[attempt]
        subscriber.pending_bytes -= batch.size_bytes
        if not subscriber.pending:
            del self._oldest_since[handle]
        elif is_oldest:
            self._oldest_since[handle] = now
            self._oldest_since.move_to_end(handle)
        if self.is_reliable:
            if not is_oldest:
                subscriber.acked = subscriber.acked or RangeSet()
                subscriber.acked.add(start, batch.end)
            elif subscriber.acked is not None:
                self._trim_acked(subscriber, subscriber.position)
        batch.waiting.discard(handle)
        reports = [] if batch.waiting else [self._report(attempt, self._attempts.pop(attempt))]
        if handle in self._behind and not subscriber.pending:
            self._behind.discard(handle)
            if self._behind != self._told:
                reports.append(self._report_behind())
        return reports

    def failed(self, handle: int, attempt: int, reason: str, now: float) -> list[SendReport]:  # noqa: ARG002
        """Note that a subscriber has failed to handle a batch; ignored if it does not have it any more."""
        if not self.holds(handle, attempt):
            return []
        return self._break(handle, DeliveryStatus.OTHER_ERROR, reason)

    def disconnected(self, handle: int, now: float) -> list[SendReport]:  # noqa: ARG002
        """Note that the connection of a subscriber is lost; it may be added again, and keeps its position."""
        return self._break(handle, DeliveryStatus.SUBSCRIBER_UNREACHABLE, "its connection was lost")

    def tick(self, now: float) -> list[SendReport]:
        """Fail the subscribers that have had their oldest batch for too long."""
        reports: list[SendReport] = []
        while (due := self.next_tick()) is not None and due <= now:
            reason = f"no ack within {self._config.subscriber_timeout_seconds:g} s"
            reports += self._break(next(iter(self._oldest_since)), DeliveryStatus.TIMEOUT, reason)
        return reports

    def next_tick(self) -> float | None:
        """Return when `tick` has something to do; None: never, as things are."""
        if not self._oldest_since:
            return None
        return next(iter(self._oldest_since.values())) + self._config.subscriber_timeout_seconds

    def _break(self, handle: int, status: DeliveryStatus, reason: str, *, is_told: bool = False) -> list[SendReport]:
        subscriber = self._subscribers.get(handle)
        if subscriber is None:
            return []
        subscriber.failure = (status, reason)
        subscriber.is_told = is_told or subscriber.is_told or bool(subscriber.pending)
        return self._void(handle, SubscriberFailure(handle, status, reason))

    def _void(self, handle: int, failure: SubscriberFailure | None) -> list[SendReport]:
        """Take all unacked batches back from a subscriber."""
        subscriber = self._subscribers.get(handle)
        if subscriber is None or not subscriber.pending:
            return []
        if self.is_reliable:
            subscriber.next_offset = subscriber.position
        pending, subscriber.pending, subscriber.pending_bytes = subscriber.pending, {}, 0
        del self._oldest_since[handle]
        self._behind.discard(handle)
        reports = []
        for attempt in pending:
            batch = self._attempts[attempt]
            batch.waiting.discard(handle)
            if failure is not None:
                batch.failed.append(failure)
            if not batch.waiting:
                reports.append(self._report(attempt, self._attempts.pop(attempt)))
        return reports

    def _trim_acked(self, subscriber: _SubscriberProgress, before: int | None) -> None:
        if subscriber.acked is not None and before is not None:
            subscriber.acked.remove(0, before)
            if not len(subscriber.acked):
                subscriber.acked = None

    def _report_behind(self) -> SendReport:
        self._told = frozenset(self._behind)
        return SendReport(DeliveryReport(0, slow=tuple(sorted(self._told))))

    def _report(self, attempt: int, batch: _UnreportedAttempt) -> SendReport:
        failed = tuple(batch.failed)
        if failed and not self.is_reliable:
            self._failures[attempt] = failed
            if len(self._failures) > REMEMBERED_MAX:
                self._failures.popitem(last=False)
        return SendReport(DeliveryReport(attempt, failed))
