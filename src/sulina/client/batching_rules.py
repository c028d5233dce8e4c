"""When messages that come one by one are sent, and how many together.

- A batch is due when it is full, when its first message has waited long enough, or when somebody wants it now.
- Messages leave in the order in which they came.
- What waits and what is on its way are bounded together: past that nothing is taken.
"""

import itertools
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sulina.errors import InvalidSettings

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingRules:
    """The sizes and the time."""

    records_max: int = 1000  # of a batch
    bytes_max: int = 1 << 20
    wait_seconds_max: float = 0.01
    queue_records_max: int = 10_000  # that wait, or are on their way
    queue_bytes_max: int = 64 << 20
    in_flight_max: int = 1  # batches on their way; with more, one may pass another of which a message was refused

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if not getattr(self, name) >= (0 if name == "wait_seconds_max" else 1):
                raise InvalidSettings(f"{name} cannot be {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class _WaitingRecord:
    number: int
    size_bytes: int
    since: float


@dataclass(frozen=True, slots=True, eq=False)
class OnItsWay(Generic[T]):
    """A batch, until it has arrived."""

    messages: list[T]
    size_bytes: int


class Batching(Generic[T]):
    """Messages by whatever the caller knows them by."""

    def __init__(self, rules: BatchingRules) -> None:
        self.rules = rules
        self._waiting: OrderedDict[T, _WaitingRecord] = OrderedDict()
        self._waiting_bytes = 0
        self._in_flight: set[OnItsWay[T]] = set()
        self._numbers = itertools.count(1)
        self._newest = 0  # the number of the last that came
        self._urgent_until = 0  # up to this number, they are wanted now
        self.records = 0  # that wait, or are on their way
        self.size_bytes = 0  # of all of them

    @property
    def waiting(self) -> int:
        """Messages that are not on their way."""
        return len(self._waiting)

    def add(self, message: T, size_bytes: int, now: float) -> bool:
        """Have it wait. False: there is no room, and nothing was changed."""
        if self.records >= self.rules.queue_records_max:
            return False
        if self.records and self.size_bytes + size_bytes > self.rules.queue_bytes_max:
            return False
        self._newest = next(self._numbers)
        self._waiting[message] = _WaitingRecord(self._newest, size_bytes, now)
        self._waiting_bytes += size_bytes
        self._count(1, size_bytes)
        return True

    def remove(self, message: T) -> bool:
        """Let it wait no more. False: it has left already."""
        if message not in self._waiting:
            return False
        size = self._waiting.pop(message).size_bytes
        self._waiting_bytes -= size
        self._count(-1, -size)
        return True

    def hurry(self) -> None:
        """Make everything that waits at this moment due."""
        self._urgent_until = self._newest

    def due_at(self) -> float | None:
        """Return when the next batch may be sent, perhaps in the past; None: not before something else happens."""
        if not self._waiting or len(self._in_flight) >= self.rules.in_flight_max:
            return None
        first = next(iter(self._waiting.values()))
        is_full = len(self._waiting) >= self.rules.records_max or self._waiting_bytes >= self.rules.bytes_max
        if is_full or first.number <= self._urgent_until:
            return first.since
        return first.since + self.rules.wait_seconds_max

    def take(self, now: float) -> OnItsWay[T] | None:
        """Return the batch that is due, which then counts as being sent."""
        due_at = self.due_at()
        if due_at is None or now < due_at:
            return None
        batch: list[T] = []
        size = 0
        for message, waiting in self._waiting.items():
            if batch and (len(batch) == self.rules.records_max or size + waiting.size_bytes > self.rules.bytes_max):
                break
            batch.append(message)
            size += waiting.size_bytes
        for message in batch:
            del self._waiting[message]
        self._waiting_bytes -= size
        taken = OnItsWay(batch, size)
        self._in_flight.add(taken)
        return taken

    def arrived(self, batch: OnItsWay[T]) -> None:
        """Note that a batch was answered."""
        self._in_flight.remove(batch)
        self._count(-len(batch.messages), -batch.size_bytes)

    def clear(self) -> list[T]:
        """Remove everything that waits, and return it."""
        rest = list(self._waiting)
        self._count(-len(rest), -self._waiting_bytes)
        self._waiting.clear()
        self._waiting_bytes = 0
        return rest

    def _count(self, records: int, size_bytes: int) -> None:
        self.records += records
        self.size_bytes += size_bytes
