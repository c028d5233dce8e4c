"""What one node shares with the owner of one partition: the batches that its subscribers have and have not acked.

- An attempt is reported once, when everybody it is for has acked it, failed, or left.
- A subscriber fails when it does not ack its oldest batch in time, counted from when that became the oldest; when it is
  gone; when it raises; when it has more unacked than it may. Then all that it has is void, and it is given nothing
  until it is resumed.
- Reliable: what a subscriber has acked it is not given again, whatever the owner sends. Who falls far behind the others
  is named, so that the owner lets the others go on before it has to fail.
- A topic that keeps nothing: an attempt that has been here before, sent again after a broken connection, is given to
  nobody again. Who still has it may still ack it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from sulina.core.delivery.pubsub import DeliveryReport, DeliveryStatus, PubSubConfig, SubscriberFailure
from sulina.core.delivery.ranges import Range, RangeSet

REMEMBERED_MAX = 1_000  # attempts of which somebody failed, in case that they are sent again; handles unknown here
NOT_SUBSCRIBED = (DeliveryStatus.SUBSCRIBER_UNREACHABLE, "it is not subscribed here")


class Hand(Struct, frozen=True):
    """Give a batch to a subscriber: its records from `start_from` on, without those that lie in `passed`."""

    handle: int
    attempt: int
    start_from: int
    passed: tuple[Range, ...] = ()  # acked out of order, before it failed


class SendReport(Struct, frozen=True):
    """Say to the owner what became of an attempt."""

    report: DeliveryReport


class _PendingBatch(NamedTuple):
    start: int
    batches_before: int  # that were given to the subscriber
    bytes_before: int


@dataclass(slots=True, eq=False)
class _SubscriberProgress:
    next_offset: int | None  # everything before it was given
    pending: dict[int, _PendingBatch] = field(default_factory=dict)  # by attempt
    pending_bytes: int = 0
    given_batches: int = 0  # ever
    given_bytes: int = 0
    failure: tuple[DeliveryStatus, str] | None = None  # it is given nothing
    is_told: bool = False  # the owner has heard of it
    acked: RangeSet | None = None  # beyond what is acked without a gap

    @property
    def position(self) -> int | None:
        return next(iter(self.pending.values())).start if self.pending else self.next_offset

    def give(self, attempt: int, start: int, size_bytes: int) -> None:
        self.pending[attempt] = _PendingBatch(start, self.given_batches, self.given_bytes)
        self.pending_bytes += size_bytes
        self.given_batches += 1
        self.given_bytes += size_bytes

    def is_behind(self, config: PubSubConfig) -> bool:
        """By a quarter of what it may have, counted from its oldest, whatever it has acked since."""
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
    """Of one epoch of the owner. Who counts anew makes a new one, and adds its subscribers where they are."""

    def __init__(self, config: PubSubConfig, *, is_reliable: bool, epoch: int) -> None:
        self.is_reliable = is_reliable
        self.epoch = epoch
        self.late_acks = 0  # that credited nothing
        self._config = config
        self._subscribers: dict[int, _SubscriberProgress] = {}
        self._attempts: dict[int, _UnreportedAttempt] = {}  # that are not reported
        self._oldest_since: OrderedDict[int, float] = OrderedDict()  # by handle: since when its oldest batch is that
        self._unknown: OrderedDict[int, None] = OrderedDict()  # handles that failed before they were added
        self._behind: set[int] = set()  # handles, until they have nothing left
        self._told: frozenset[int] = frozenset()  # of them the owner knows
        self._highest = 0  # attempt that was here
        self._failures: OrderedDict[int, tuple[SubscriberFailure, ...]] = OrderedDict()  # of attempts that are reported

    # Who is here

    def add(self, handle: int, offset: int | None) -> None:
        """A subscriber that is sent everything from `offset` on. One that is known goes on where it was."""
        known = self._subscribers.get(handle)
        if known is None:
            made = self._subscribers[handle] = _SubscriberProgress(offset if self.is_reliable else None)
            if handle in self._unknown:
                del self._unknown[handle]
                # The owner was told that it failed, and what follows on the way is not for it.
                made.failure, made.is_told = NOT_SUBSCRIBED, True
        elif known.failure is not None and not known.is_told:
            known.failure = None

    def has(self, handle: int) -> bool:
        """Whether it was added, and not removed."""
        return handle in self._subscribers

    def holds(self, handle: int, attempt: int) -> bool:
        """Whether the subscriber has it, and may ack it."""
        subscriber = self._subscribers.get(handle)
        return subscriber is not None and attempt in subscriber.pending

    def position(self, handle: int) -> int | None:
        """Everything before it is acked. None: it has not been given anything, or nothing is kept."""
        subscriber = self._subscribers.get(handle)
        return subscriber.position if subscriber is not None and self.is_reliable else None

    def remove(self, handle: int, now: float) -> list[SendReport]:  # noqa: ARG002
        """It leaves on purpose: nothing that it has is held against it."""
        reports = self._void(handle, None)
        self._subscribers.pop(handle, None)
        return reports

    # What the owner sends

    def deliver(
        self, attempt: int, start: int, end: int, size_bytes: int, handles: Sequence[int], now: float
    ) -> list[Hand | SendReport]:
        """A batch with the offsets [start, end) for these."""
        if attempt <= self._highest:
            return self._again(attempt, handles)
        self._highest = attempt
        steps: list[Hand | SendReport] = []
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
            subscriber.give(attempt, hand.start_from, size_bytes)
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
                steps.append(self._tell_behind())
        return steps

    def resume(self, handles: Iterable[int]) -> list[SendReport]:
        """The owner sends to them again, on a reliable topic from before what they have not acked."""
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

    def _part(self, subscriber: _SubscriberProgress, handle: int, attempt: int, start: int, end: int) -> Hand | None:
        """What of a batch is new to a subscriber; None: nothing, it has acked all of it."""
        if not self.is_reliable:
            return Hand(handle, attempt, start)
        known = subscriber.next_offset
        if known is not None and known >= end:
            # An owner never sends twice what is not acked, unless it says so by a resume.
            known = subscriber.position
            if known is None or known >= end:
                return None
        begin = start if known is None else max(start, known)
        subscriber.next_offset = end if subscriber.next_offset is None else max(end, subscriber.next_offset)
        if subscriber.acked is None:
            return Hand(handle, attempt, begin)
        passed = subscriber.acked.within(begin, end)
        if passed and passed[0][0] == begin:
            begin = passed.pop(0)[1]
        self._forget_acked(subscriber, subscriber.position if subscriber.pending else begin)
        return Hand(handle, attempt, begin, tuple(passed)) if begin < end else None

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
            f"it has {len(subscriber.pending)} batches with {subscriber.pending_bytes} bytes unacked; "
            f"it may have {self._config.unacked_batches_max} with {self._config.unacked_bytes_max}"
        )

    def _again(self, attempt: int, handles: Sequence[int]) -> list[Hand | SendReport]:
        """Its report was lost with a connection, or is still to come."""
        if self.is_reliable:
            reason = f"attempt {attempt} comes after {self._highest}"
            failed = tuple(SubscriberFailure(handle, DeliveryStatus.OTHER_ERROR, reason) for handle in handles)
            return [SendReport(DeliveryReport(attempt, failed))]
        if attempt in self._attempts:
            return []
        meant = set(handles)
        failed = tuple(failure for failure in self._failures.get(attempt, ()) if failure.handle in meant)
        steps: list[Hand | SendReport] = []
        for failure in failed:
            steps += self._break(failure.handle, failure.status, failure.reason, is_told=True)
        return [*steps, SendReport(DeliveryReport(attempt, failed))]

    # What subscribers do

    def acked(self, handle: int, attempt: int, now: float) -> list[SendReport]:
        """It has done with a batch. Late, or never given: nothing, but it is counted."""
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
                self._forget_acked(subscriber, subscriber.position)
        batch.waiting.discard(handle)
        reports = [] if batch.waiting else [self._done(attempt)]
        if handle in self._behind and not subscriber.pending:
            self._behind.discard(handle)
            if self._behind != self._told:
                reports.append(self._tell_behind())
        return reports

    def failed(self, handle: int, attempt: int, reason: str, now: float) -> list[SendReport]:  # noqa: ARG002
        """It raised. Late: nothing."""
        if not self.holds(handle, attempt):
            return []
        return self._break(handle, DeliveryStatus.OTHER_ERROR, reason)

    def disconnected(self, handle: int, now: float) -> list[SendReport]:  # noqa: ARG002
        """Its connection is lost. It may be added again, and goes on where it was."""
        return self._break(handle, DeliveryStatus.SUBSCRIBER_UNREACHABLE, "its connection is lost")

    def tick(self, now: float) -> list[SendReport]:
        """Whoever has had its oldest batch for too long fails."""
        reports: list[SendReport] = []
        while (due := self.next_tick()) is not None and due <= now:
            reason = f"no ack within {self._config.subscriber_timeout_seconds:g} s"
            reports += self._break(next(iter(self._oldest_since)), DeliveryStatus.TIMEOUT, reason)
        return reports

    def next_tick(self) -> float | None:
        """When `tick` will have something to do."""
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
        """It has nothing any more. What it has not acked is to come again, or is lost to it."""
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
                reports.append(self._done(attempt))
        return reports

    def _forget_acked(self, subscriber: _SubscriberProgress, before: int | None) -> None:
        if subscriber.acked is not None and before is not None:
            subscriber.acked.remove(0, before)
            if not len(subscriber.acked):
                subscriber.acked = None

    def _tell_behind(self) -> SendReport:
        self._told = frozenset(self._behind)
        return SendReport(DeliveryReport(0, slow=tuple(sorted(self._told))))

    def _done(self, attempt: int) -> SendReport:
        return self._report(attempt, self._attempts.pop(attempt))

    def _report(self, attempt: int, batch: _UnreportedAttempt) -> SendReport:
        failed = tuple(batch.failed)
        if failed and not self.is_reliable:
            self._failures[attempt] = failed
            if len(self._failures) > REMEMBERED_MAX:
                self._failures.popitem(last=False)
        return SendReport(DeliveryReport(attempt, failed))
