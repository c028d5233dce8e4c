"""The rules by which one subscription sends the records of one partition to its consumers.

- A record is in one place: acked, held by one consumer, ready to be sent, delayed, dying, or not read yet.
- What is ready goes before what has not been read. A failed delivery (nack, timeout) counts; a consumer that leaves
  does not make its records fail, it gives them back.
- key_shared: a record waits while another consumer holds records of its slot, so the order within a key is kept.
- Whoever nacks a record, or is late with it, gives up its order: what comes after it does not wait for it.
- Whoever does not ack in time, or takes nothing for as long while records wait for it, is late: what it does not hold
  goes to others (see `members`), so that they are not held up for longer than that.
- Everything is bounded: when too many records are unacked, nothing new is read until some are. One of several consumers
  holds no more than half of those.

`want` says what to read, `take` shares it out; time is an argument.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from sulina.core.delivery.cursor import Cursor
from sulina.core.delivery.members import Member, Members, SubscriptionKind
from sulina.core.delivery.ranges import Range, RangeMap, RangeSet

UNACKED_RECORDS_MAX = 10_000  # of one subscription in one partition, before nothing new is read
PIECES_MAX = 10_000  # that a cursor is in, before nothing new is read
END = 2**63 - 1
SHARING = (SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRules:
    """The topic's policy, as far as it matters here."""

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
    """What one consumer is to be sent: `ranges`, which lie in the batches of these numbers."""

    member: Member
    attempt: int
    ranges: list[Range] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    def add(self, start: int, end: int, batch: int) -> None:
        """More of the same."""
        if self.ranges and self.ranges[-1][1] == start:
            self.ranges[-1] = (self.ranges[-1][0], end)
        else:
            self.ranges.append((start, end))
        if not self.batches or self.batches[-1] != batch:
            self.batches.append(batch)


@dataclass(slots=True)
class _Outstanding:
    """One sending of which something is not acked."""

    deadline: float
    member: Member
    remaining: int
    span: Range


class Dispatch:
    """One subscription in one partition."""

    def __init__(
        self, cursor: Cursor, members: Members, rules: DispatchRules, unacked_max: int = UNACKED_RECORDS_MAX
    ) -> None:
        self.cursor = cursor
        self.rules = rules
        self.read_offset = cursor.offset  # everything below has been read
        self.dying = RangeSet()  # tried too often; on the way to the dead-letter topic
        self._members = members
        self._unacked_max = unacked_max
        self._ready = RangeSet()
        self._delayed: list[tuple[float, int, int]] = []  # a heap: due, range
        self._held: dict[Member, RangeMap] = {}  # by number of sending
        self._holding: Counter[Member] = Counter()  # how many records
        self._idle_since: dict[Member, float] = {}  # of those who cannot take what waits for them
        self._outstanding: OrderedDict[int, _Outstanding] = OrderedDict()
        self._number = 0
        self._slots: dict[int, int] = {}  # of records that were read and are not acked
        self._holders: dict[int, tuple[Member, int]] = {}  # of slots: who, and how many records
        self._changes = 0  # that may make something deliverable by its slot
        self._stuck: tuple[object, ...] | None = None  # as it was when nothing was

    @property
    def in_flight(self) -> int:
        """Records that consumers have and have not acked."""
        return sum(sending.remaining for sending in self._outstanding.values())

    @property
    def _unacked(self) -> int:
        return self.read_offset - self.cursor.offset - self.cursor.acked.count

    def can_take(self, member: Member) -> bool:
        """Return whether a consumer may be sent something of this partition."""
        is_bounded = len(self._members.present) > 1 and self._members.kind in SHARING
        return member.is_able and (not is_bounded or self._holding[member] < max(1, self._unacked_max // 2))

    # What to read

    def want(self, end_offset: int) -> Range | None:
        """The offsets to read next, given the end of the log; None: nobody could be sent anything."""
        if self._ready:
            ready = self._first_ready()
            if ready is not None:
                return ready
        pieces = len(self.cursor.acked) + len(self.cursor.attempts)
        has_room = self._unacked < self._unacked_max and pieces < PIECES_MAX
        return (self.read_offset, END) if self.read_offset < end_offset and has_room and self._peek() else None

    def _peek(self) -> bool:
        if self._members.kind in SHARING:
            return any(map(self.can_take, self._members.timely))
        first = self._members.first
        return first is not None and self.can_take(first)

    def _first_ready(self) -> Range | None:
        """Return the span from the first record that can be sent on: what is ready in it goes out together."""
        if self._members.kind != SubscriptionKind.KEY_SHARED:
            return (next(iter(self._ready))[0], self.read_offset) if self._peek() else None
        now = (self._changes, self._members.version, *map(self.can_take, self._members.present))
        if self._stuck == now:
            return None
        blocked: set[int] = set()
        for start, end in self._ready:
            for offset in range(start, end):
                slot = self._slots[offset]
                if slot not in blocked:
                    if self._receiver(slot) is not None:
                        return (offset, self.read_offset)
                    blocked.add(slot)
        self._stuck = now
        return None

    def _receiver(self, slot: int) -> Member | None:
        owner = self._members.owner_of(slot)
        if owner is None or not self.can_take(owner):
            return None
        holder = self._holders.get(slot)
        return owner if holder is None or holder[0] is owner else None

    # Sharing it out

    def take(self, wanted: Range, batches: Sequence[Batch], now: float) -> list[PlannedDelivery]:
        """Share out what was read because it was wanted. Batches follow one another and begin at or before it."""
        sendings: list[PlannedDelivery] = []
        earlier = next(iter(self._ready), (END, END))[0] < wanted[0]
        if earlier and self._members.kind in (SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER):
            return []  # somebody has left while this was read, and what it gave back goes first
        blocked: set[int] = set()  # slots in which something waits that nothing may overtake
        if earlier and self._members.kind == SubscriptionKind.KEY_SHARED:
            blocked = {self._slots[o] for low, high in self._ready for o in range(low, min(high, wanted[0]))}
        for number, batch in enumerate(batches):
            start, end = max(batch.start, wanted[0]), min(batch.end, wanted[1])
            if start >= end:
                continue
            is_new = start >= self.read_offset
            pieces = self.cursor.unacked(start, end) if is_new else self._ready.within(start, end)
            if batch.slots:
                self._share_by_slot(batch, number, pieces, blocked, sendings)
            elif pieces:
                member = self._members.next_able(self.can_take)
                if member is None:
                    break
                for low, high in pieces:
                    self._send(low, high, member, number, sendings)
            if is_new:
                self.read_offset = end
        for sending in sendings:
            self._hold(sending, now)
        return sendings

    def _share_by_slot(
        self,
        batch: Batch,
        number: int,
        pieces: Sequence[Range],
        blocked: set[int],
        sendings: list[PlannedDelivery],
    ) -> None:
        self._changes += 1
        for low, high in pieces:
            for offset in range(low, high):
                slot = batch.slots[offset - batch.start]
                self._slots[offset] = slot
                member = None if slot in blocked else self._receiver(slot)
                if member is None:
                    blocked.add(slot)
                    self._ready.add(offset, offset + 1)
                    continue
                holder = self._holders.get(slot)
                self._holders[slot] = (member, 1 if holder is None else holder[1] + 1)
                self._send(offset, offset + 1, member, number, sendings)

    def _send(self, start: int, end: int, member: Member, batch: int, sendings: list[PlannedDelivery]) -> None:
        self._ready.remove(start, end)
        member.credit -= end - start
        self._holding[member] += end - start
        self._idle_since.pop(member, None)
        for low, high, failed in self.cursor.attempts.pieces(start, end, 0):
            # To keep the order, only the last sending of a consumer may grow. Where consumers share, what has failed
            # has given up its order: one sending for each attempt is enough.
            mine = [sent for sent in sendings if sent.member is member]
            if self._members.kind not in SHARING:
                mine = mine[-1:]
            sending = next((sent for sent in mine if sent.attempt == failed + 1), None)
            if sending is None:
                sending = PlannedDelivery(member, failed + 1)
                sendings.append(sending)
            sending.add(low, high, batch)

    def _hold(self, sending: PlannedDelivery, now: float) -> None:
        self._number += 1
        held = self._held.setdefault(sending.member, RangeMap())
        for start, end in sending.ranges:
            held.put(start, end, self._number)
        self._outstanding[self._number] = _Outstanding(
            now + self.rules.ack_timeout_seconds,
            sending.member,
            sum(end - start for start, end in sending.ranges),
            (sending.ranges[0][0], sending.ranges[-1][1]),
        )

    # What consumers say

    def ack(self, member: Member, ranges: Sequence[Range]) -> int:
        """These are done; how many of them the consumer held. What it does not hold is not its to ack."""
        count = 0
        for start, end in ranges:
            for low, high in self._release(member, start, end):
                self._members.has_acked(member)
                count += self.cursor.ack(low, high)
                if self._slots:
                    for offset in range(low, high):
                        self._slots.pop(offset, None)
        return count

    def nack(self, member: Member, ranges: Sequence[Range], due: float) -> int:
        """These are to be sent again, once they are due; how many of them the consumer held."""
        pieces = [piece for start, end in ranges for piece in self._release(member, start, end)]
        if pieces:
            self._members.has_acked(member)  # it is at work, whatever came of it
        self._fail(pieces, due)
        return sum(end - start for start, end in pieces)

    def detach(self, member: Member) -> None:
        """The consumer has left, or is being replaced: what it holds is anybody's."""
        for start, end in self._release(member, 0, END):
            self._ready.add(start, end)
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
                self._let_go(low, high)
        return released

    def _let_go(self, start: int, end: int) -> None:
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

    # What time does

    def tick(self, now: float) -> int:
        """Let pass what is due; how many records were not acked in time."""
        late = 0
        self._members.pass_time(now)
        while self._outstanding:
            number, oldest = next(iter(self._outstanding.items()))
            if oldest.deadline > now:
                break
            self._members.is_late(oldest.member, now, self.rules.ack_timeout_seconds)
            pieces = self._release(oldest.member, *oldest.span, number)
            late += sum(end - start for start, end in pieces)
            self._fail(pieces, now + self.rules.redelivery_delay_seconds)
        while self._delayed and self._delayed[0][0] <= now:
            _, start, end = heapq.heappop(self._delayed)
            self._changes += 1
            for low, high in self.cursor.unacked(start, end):
                self._ready.add(low, high)
        if self._members.kind == SubscriptionKind.KEY_SHARED:
            self._look_for_idle(now)
        return late

    def _look_for_idle(self, now: float) -> None:
        """Find consumers that take nothing while keyed records wait: nothing of theirs may be under way to time out."""
        seconds = self.rules.ack_timeout_seconds
        for member in self._members.present:
            if not self._ready or self.can_take(member):
                self._idle_since.pop(member, None)
            elif now - self._idle_since.setdefault(member, now) >= seconds:
                self._members.is_late(member, now, seconds)

    def next_tick(self) -> float | None:
        """When `tick` will have something to do."""
        times = [self._delayed[0][0]] if self._delayed else []
        if self._outstanding:
            times.append(next(iter(self._outstanding.values())).deadline)
        if (next_try := self._members.next_try) is not None:
            times.append(next_try)
        timely = [since for member, since in self._idle_since.items() if member.late_until is None]
        times += [since + self.rules.ack_timeout_seconds for since in timely]
        return min(times, default=None)

    def change_rules(self, rules: DispatchRules, now: float) -> None:
        """Go by other rules, also for what is with consumers already: nobody has longer than they say."""
        self.rules = rules
        latest = now + rules.ack_timeout_seconds
        for sending in self._outstanding.values():
            sending.deadline = min(sending.deadline, latest)  # the order of sending stays that of the deadlines

    # What the shell has done

    def buried(self, start: int, end: int) -> None:
        """Dying records are in the dead-letter topic."""
        self.dying.remove(start, end)
        self.cursor.ack(start, end)
        for offset in range(start, end) if self._slots else ():
            self._slots.pop(offset, None)

    def spared(self, start: int, end: int, due: float) -> None:
        """Dying records could not be put into the dead-letter topic; they are delivered once more."""
        self.dying.remove(start, end)
        self._delay(start, end, due)

    def skip_to(self, offset: int) -> int:
        """The log no longer has what lies below `offset`; how many unacked records that costs."""
        for member in list(self._held):
            self._release(member, 0, offset)
        self._ready.remove(0, offset)
        self.dying.remove(0, offset)
        self._slots = {place: slot for place, slot in self._slots.items() if place >= offset}
        self.read_offset = max(self.read_offset, offset)
        return self.cursor.skip_to(offset)
