"""Counts and checks of the demo: every acked record is there once, at its offset, in order, with no gap.

Each lane (a producer of one customer's orders) numbers its records, and its key keeps them in one partition. So the
check is simple: the next record of a partition has the next offset, the next record of a lane has the next number.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

LATENCIES_KEPT = 20_000
FAULTS_KEPT = 5
RATE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Order:
    """A record of the demo, as it is stored (JSON)."""

    lane: int
    number: int  # of the lane, from 0
    sent_ns: int  # since 1970
    item: str
    amount: float


class SequenceCheck:
    """Checks that the records of one reader have no gap and are in order."""

    def __init__(self) -> None:
        self.next_offset: dict[int, int] = {}  # by partition
        self.next_number: dict[int, int] = {}  # by lane
        self.records = 0
        self.repeated = 0
        self.faults: list[str] = []

    def take(self, partition: int, offset: int, order: Order) -> bool:
        """Check a record, and return whether it is new; one that was seen before is counted as repeated."""
        expected = self.next_offset.get(partition, 0)
        if offset < expected:
            self.repeated += 1
            return False
        if offset > expected:
            self._fault(f"partition {partition} went from offset {expected - 1} to {offset}")
        number = self.next_number.get(order.lane, 0)
        if order.number != number:
            self._fault(f"lane {order.lane} went from record {number - 1} to {order.number}")
        self.next_offset[partition] = offset + 1
        self.next_number[order.lane] = order.number + 1
        self.records += 1
        return True

    def _fault(self, text: str) -> None:
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(text)


class Rate:
    """Records a second over the last moments."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()
        self.total = 0
        self.frozen: float | None = None  # what is shown once it is over

    def add(self, records: int) -> None:
        """Count more records."""
        self.total += records

    def now(self) -> float:
        """Return the current rate. Call it regularly."""
        if self.frozen is not None:
            return self.frozen
        now = time.monotonic()
        self._marks.append((now, self.total))
        while len(self._marks) > 2 and self._marks[0][0] < now - RATE_SECONDS:
            self._marks.popleft()
        (then, before), (_, total) = self._marks[0], self._marks[-1]
        return (total - before) / (now - then) if now > then else 0.0


@dataclass(slots=True)
class Tally:
    """Everything that the demo shows and checks."""

    started: float = field(default_factory=time.monotonic)
    acked: Rate = field(default_factory=Rate)
    consumed: Rate = field(default_factory=Rate)
    acked_numbers: dict[int, int] = field(default_factory=dict)  # the next number of each lane
    acked_ends: dict[int, int] = field(default_factory=dict)  # the offset after the last acked record, by partition
    delivered: SequenceCheck = field(default_factory=SequenceCheck)
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))
    longest_ack_seconds: float = 0.0
    is_steady: bool = True  # latencies of an outage would hide the others
    sampled_at: float = 0.0  # when a record was last shown
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=4))
    happened: list[tuple[float, str]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # something was acked or delivered

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.started

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds()`, which is checked after every change."""
        while not holds():
            self.changed.clear()
            await self.changed.wait()

    def freeze(self) -> None:
        """Freeze the rates that are shown, before the traffic ends."""
        self.acked.frozen, self.consumed.frozen = self.acked.now(), self.consumed.now()

    def note(self, text: str) -> None:
        """Add an event."""
        self.happened.append((self.seconds, text))

    def percentile_ms(self, share: float) -> float | None:
        """Return a percentile of the recent latencies from publish to delivery."""
        found = sorted(self.latencies_ms)
        return found[min(int(len(found) * share), len(found) - 1)] if found else None

    def is_drained(self) -> bool:
        """Return whether every acked record was delivered."""
        return all(self.delivered.next_offset.get(part, 0) >= end for part, end in self.acked_ends.items())

    def missing(self) -> int:
        """Count the acked records that were not delivered."""
        seen = self.delivered.next_offset
        return sum(max(0, end - seen.get(part, 0)) for part, end in self.acked_ends.items())

    def faults(self, stored: SequenceCheck) -> list[str]:
        """Return all faults. `stored` are the records that the log has at the end."""
        faults = [f"delivered: {fault}" for fault in self.delivered.faults]
        faults += [f"stored: {fault}" for fault in stored.faults]
        if missing := self.missing():
            faults.append(f"{missing} acked records were not delivered")
        for lane, number in sorted(self.acked_numbers.items()):
            if (found := stored.next_number.get(lane, 0)) < number:
                faults.append(f"lane {lane}: {number} records were acked, {found} are stored")
        return faults
