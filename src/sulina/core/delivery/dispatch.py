"""The rules by which one subscription sends the records of one partition to its consumers.

- A record is in one state: acked, held by one consumer, ready to be sent, delayed, dying (on its way to the dead-letter
  topic), or not read yet.
- Ready records go before records that have not been read. A nack or a timeout counts as a failed delivery; when a
  consumer is detached, its records are ready again and do not count as failed.
- key_shared: a record waits while another consumer holds records of its slot, so the order within a key is kept.
- A record that was nacked or timed out loses its order: later records do not wait for it.
- A consumer that does not ack in time, or takes nothing for as long while records wait for it, is late: records that it
  does not hold go to others (see `members`).
- Everything is bounded: while too many records are unacked, nothing new is read. One of several consumers holds at most
  half of that number.

`want` returns what to read, `take` assigns it to consumers. Time is an argument.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from sulina.core.delivery.cursor import Cursor
from sulina.core.delivery.members import Member, Members, SubscriptionKind
from sulina.core.delivery.ranges import Range, RangeMap, RangeSet

UNACKED_RECORDS_MAX = 10_000  # of one subscription in one partition; then nothing new is read
PIECES_MAX = 10_000  # ranges of a cursor; then nothing new is read
END = 2**63 - 1
SHARING = (SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRules:
    """The part of the topic's policy that concerns deliveries."""

    ack_timeout_seconds: float = 30.0
    redelivery_delay_seconds: float = 1.0
    deliveries_max: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The offsets of a stored batch, and the slots of its records if keys matter."""

    start: int
    end: int
    slots: Sequence[int] = ()


@dataclass(slots=True)
class PlannedDelivery:
    """A delivery to one consumer: the offsets in `ranges`, and the numbers of the batches that have them."""

    member: Member
    attempt: int
    ranges: list[Range] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    def add(self, start: int, end: int, batch: int) -> None:
        """Add the range [start, end) of a batch."""
        if self.ranges and self.ranges[-1][1] == start:
            self.ranges[-1] = (self.ranges[-1][0], end)
        else:
            self.ranges.append((start, end))
        if not self.batches or self.batches[-1] != batch:
            self.batches.append(batch)


@dataclass(slots=True)
class _Outstanding:
    """A delivery that is not acked as a whole."""

    deadline: float
    member: Member
    remaining: int
    span: Range


class Dispatch:
    """The state of one subscription in one partition."""

    def __init__(
        self, cursor: Cursor, members: Members, rules: DispatchRules, unacked_max: int = UNACKED_RECORDS_MAX
    ) -> None:
        self.cursor = cursor
        self.rules = rules
        self.read_offset = cursor.offset  # everything below has been read
        self.dying = RangeSet()  # delivered too often; on the way to the dead-letter topic
        self.members = members
        self._unacked_max = unacked_max
        self.ready = RangeSet()
        self._delayed: list[tuple[float, int, int]] = []  # a heap: due, range
        self._held: dict[Member, RangeMap] = {}  # the value of a range is the number of its delivery
        self._holding: Counter[Member] = Counter()  # number of records
        self._idle_since: dict[Member, float] = {}  # of consumers that cannot take records that wait for them
        self._outstanding: OrderedDict[int, _Outstanding] = OrderedDict()
        self._number = 0
        self._slots: dict[int, int] = {}  # by offset, of records that were read and are not acked
        self._holders: dict[int, tuple[Member, int]] = {}  # by slot: the consumer, and its number of records
        self._changes = 0  # changes that may make a keyed record deliverable
        self._stuck: tuple[object, ...] | None = None  # the state when nothing was deliverable

    @property
    def in_flight(self) -> int:
        """Number of records that consumers have not acked."""
        return sum(delivery.remaining for delivery in self._outstanding.values())

    @property
    def delayed(self) -> list[Range]:
        """Ranges that are delivered again later."""
        return [(start, end) for _, start, end in self._delayed]

    @property
    def slots(self) -> dict[int, int]:
        """Slots of the records that were read and are not acked, by offset."""
        return self._slots

    @property
    def slot_holders(self) -> dict[int, tuple[Member, int]]:
        """Consumer of each slot that has unacked records, and their number."""
        return self._holders

    def held_by(self, member: Member) -> list[Range]:
        """Return the ranges that a consumer holds."""
        return [(start, end) for start, end, _ in self._held.get(member, ())]

    @property
    def _unacked(self) -> int:
        return self.read_offset - self.cursor.offset - self.cursor.acked.count

    def can_take(self, member: Member) -> bool:
        """Return whether a consumer may be sent records of this partition."""
        is_bounded = len(self.members.present) > 1 and self.members.kind in SHARING
        return member.is_able and (not is_bounded or self._holding[member] < max(1, self._unacked_max // 2))

    # Reading

    def want(self, end_offset: int) -> Range | None:
        """Return the offsets to read next, given the end of the log; None: no consumer can be sent anything."""
        if self.ready.count:
            ready = self._first_ready()
            if ready is not None:
                return ready
        pieces = len(self.cursor.acked) + len(self.cursor.attempts)
        has_room = self._unacked < self._unacked_max and pieces < PIECES_MAX
        return (self.read_offset, END) if self.read_offset < end_offset and has_room and self._peek() else None

    def _peek(self) -> bool:
        if self.members.kind in SHARING:
            return any(map(self.can_take, self.members.timely))
        first = self.members.first
        return first is not None and self.can_take(first)

    def _first_ready(self) -> Range | None:
        """Return the span from the first ready record that can be sent; all ready records in it are sent together."""
        if self.members.kind != SubscriptionKind.KEY_SHARED:
            return (next(iter(self.ready))[0], self.read_offset) if self._peek() else None
        now = (self._changes, self.members.version, *map(self.can_take, self.members.present))
        if self._stuck == now:
            return None
        blocked: set[int] = set()
        for start, end in self.ready:
            for offset in range(start, end):
                slot = self._slots[offset]
                if slot not in blocked:
                    if self._receiver(slot) is not None:
                        return (offset, self.read_offset)
                    blocked.add(slot)
        self._stuck = now
        return None

    def _receiver(self, slot: int) -> Member | None:
        owner = self.members.owner_of(slot)
        if owner is None or not self.can_take(owner):
            return None
        holder = self._holders.get(slot)
        return owner if holder is None or holder[0] is owner else None

    # Assigning records to consumers

    def take(self, wanted: Range, batches: Sequence[Batch], now: float) -> list[PlannedDelivery]:
        """Assign batches to consumers. They are contiguous, and begin at `wanted` or before."""
        deliveries: list[PlannedDelivery] = []
        earlier = next(iter(self.ready), (END, END))[0] < wanted[0]
        if earlier and self.members.kind in (SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER):
            return []  # a consumer was detached during the read, and its records go first
        blocked: set[int] = set()  # slots with a waiting record that later ones may not overtake
        if earlier and self.members.kind == SubscriptionKind.KEY_SHARED:
            blocked = {self._slots[o] for low, high in self.ready for o in range(low, min(high, wanted[0]))}
        for number, batch in enumerate(batches):
            start, end = max(batch.start, wanted[0]), min(batch.end, wanted[1])
            if start >= end:
                continue
            is_new = start >= self.read_offset
            pieces = self.cursor.unacked(start, end) if is_new else self.ready.within(start, end)
            if batch.slots:
                self._share_by_slot(batch, number, pieces, blocked, deliveries)
            elif pieces:
                member = self.members.next_able(self.can_take)
                if member is None:
                    break
                for low, high in pieces:
                    self._send(low, high, member, number, deliveries)
            if is_new:
                self.read_offset = end
        for delivery in deliveries:
            self._hold(delivery, now)
        return deliveries

    def _share_by_slot(
        self,
        batch: Batch,
        number: int,
        pieces: Sequence[Range],
        blocked: set[int],
        deliveries: list[PlannedDelivery],
    ) -> None:
        self._changes += 1
        for low, high in pieces:
            for offset in range(low, high):
                slot = batch.slots[offset - batch.start]
                self._slots[offset] = slot
                member = None if slot in blocked else self._receiver(slot)
                if member is None:
                    blocked.add(slot)
                    self.ready.add(offset, offset + 1)
                    continue
                holder = self._holders.get(slot)
                self._holders[slot] = (member, 1 if holder is None else holder[1] + 1)
                self._send(offset, offset + 1, member, number, deliveries)

    def _send(self, start: int, end: int, member: Member, batch: int, deliveries: list[PlannedDelivery]) -> None:
        if self.ready.count:
            self.ready.remove(start, end)
        member.credit -= end - start
        self._holding[member] += end - start
        self._idle_since.pop(member, None)
        for low, high, failed in self.cursor.attempts.pieces(start, end, 0):
            # To keep the order, only the last delivery of a consumer may grow. In shared subscriptions a failed record
            # has lost its order: one delivery for each attempt is enough.
            mine = [sent for sent in deliveries if sent.member is member]
            if self.members.kind not in SHARING:
                mine = mine[-1:]
            delivery = next((sent for sent in mine if sent.attempt == failed + 1), None)
            if delivery is None:
                delivery = PlannedDelivery(member, failed + 1)
                deliveries.append(delivery)
            delivery.add(low, high, batch)

    def _hold(self, delivery: PlannedDelivery, now: float) -> None:
        self._number += 1
        held = self._held.setdefault(delivery.member, RangeMap())
        for start, end in delivery.ranges:
            held.put(start, end, self._number)
        self._outstanding[self._number] = _Outstanding(
            now + self.rules.ack_timeout_seconds,
            delivery.member,
            sum(end - start for start, end in delivery.ranges),
            (delivery.ranges[0][0], delivery.ranges[-1][1]),
        )

    # Acks and nacks

    def ack(self, member: Member, ranges: Sequence[Range]) -> int:
        """Ack records; return how many of them the consumer held. Those that it does not hold are ignored."""
        count = 0
        for start, end in ranges:
            for low, high in self._release(member, start, end):
                self.members.has_acked(member)
                count += self.cursor.ack(low, high)
                if self._slots:
                    for offset in range(low, high):
                        self._slots.pop(offset, None)
        return count

    def nack(self, member: Member, ranges: Sequence[Range], due: float) -> int:
        """Have records delivered again at `due`; return how many of them the consumer held."""
        pieces = [piece for start, end in ranges for piece in self._release(member, start, end)]
        if pieces:
            self.members.has_acked(member)  # it is working, though it failed
        self._fail(pieces, due)
        return sum(end - start for start, end in pieces)

    def detach(self, member: Member) -> None:
        """Make the records of a consumer ready for others: it was detached."""
        for start, end in self._release(member, 0, END):
            self.ready.add(start, end)
        for known in (self._held, self._holding, self._idle_since):
            known.pop(member, None)

    def _release(self, member: Member, start: int, end: int, number: int | None = None) -> list[Range]:
        held = self._held.get(member)
        if held is None:
            return []
        released = []
        for low, high, sent in held.pop(start, end, number):
            outstanding = self._outstanding[sent]
            outstanding.remaining -= high - low
            self._holding[member] -= high - low
            if not outstanding.remaining:
                del self._outstanding[sent]
            released.append((low, high))
            self._changes += 1
            if self._holders:
                self._release_slots(low, high)
        return released

    def _release_slots(self, start: int, end: int) -> None:
        for offset in range(start, end):
            slot = self._slots[offset]
            member, count = self._holders[slot]
            if count == 1:
                del self._holders[slot]
            else:
                self._holders[slot] = (member, count - 1)

    def _fail(self, pieces: Sequence[Range], due: float) -> None:
        limit = self.rules.deliveries_max
        for start, end in pieces:
            for low, high, failed in self.cursor.failed(start, end):
                if limit is not None and failed >= limit:
                    self.dying.add(low, high)
                else:
                    self._delay(low, high, due)

    def _delay(self, start: int, end: int, due: float) -> None:
        heapq.heappush(self._delayed, (due, start, end))

    # Time

    def tick(self, now: float) -> int:
        """Do what is due at this time; return how many records were not acked in time."""
        late = 0
        self.members.pass_time(now)
        while self._outstanding:
            number, oldest = next(iter(self._outstanding.items()))
            if oldest.deadline > now:
                break
            self.members.set_late(oldest.member, now, self.rules.ack_timeout_seconds)
            pieces = self._release(oldest.member, *oldest.span, number)
            late += sum(end - start for start, end in pieces)
            self._fail(pieces, now + self.rules.redelivery_delay_seconds)
        while self._delayed and self._delayed[0][0] <= now:
            _, start, end = heapq.heappop(self._delayed)
            self._changes += 1
            for low, high in self.cursor.unacked(start, end):
                self.ready.add(low, high)
        if self.members.kind == SubscriptionKind.KEY_SHARED:
            self._look_for_idle(now)
        return late

    def _look_for_idle(self, now: float) -> None:
        """Find consumers that take nothing while keyed records wait; they may have no delivery that times out."""
        seconds = self.rules.ack_timeout_seconds
        for member in self.members.present:
            if not self.ready or self.can_take(member):
                self._idle_since.pop(member, None)
            elif now - self._idle_since.setdefault(member, now) >= seconds:
                self.members.set_late(member, now, seconds)

    def next_tick(self) -> float | None:
        """Return when `tick` has something to do; None: never, as things are."""
        times = [self._delayed[0][0]] if self._delayed else []
        if self._outstanding:
            times.append(next(iter(self._outstanding.values())).deadline)
        if (next_try := self.members.next_try) is not None:
            times.append(next_try)
        timely = [since for member, since in self._idle_since.items() if member.late_until is None]
        times += [since + self.rules.ack_timeout_seconds for since in timely]
        return min(times, default=None)

    def change_rules(self, rules: DispatchRules, now: float) -> None:
        """Use other rules; a shorter timeout holds also for records that consumers already have."""
        self.rules = rules
        latest = now + rules.ack_timeout_seconds
        for delivery in self._outstanding.values():
            delivery.deadline = min(delivery.deadline, latest)  # the deadlines stay in the order of the deliveries

    # Dead letters and retention

    def dead_lettered(self, start: int, end: int) -> None:
        """Ack dying records: they are in the dead-letter topic."""
        self.dying.remove(start, end)
        self.cursor.ack(start, end)
        for offset in range(start, end) if self._slots else ():
            self._slots.pop(offset, None)

    def dead_letter_failed(self, start: int, end: int, due: float) -> None:
        """Deliver dying records once more at `due`: they could not be published to the dead-letter topic."""
        self.dying.remove(start, end)
        self._delay(start, end, due)

    def skip_to(self, offset: int) -> int:
        """Skip records below `offset`, which the log does not have any more; return how many were not acked."""
        for member in list(self._held):
            self._release(member, 0, offset)
        self.ready.remove(0, offset)
        self.dying.remove(0, offset)
        self._slots = {place: slot for place, slot in self._slots.items() if place >= offset}
        self.read_offset = max(self.read_offset, offset)
        return self.cursor.skip_to(offset)
