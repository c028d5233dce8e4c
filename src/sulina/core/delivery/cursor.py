"""The cursor of a subscription in one partition: everything below `offset` is acked, and some ranges above it.

Cursors outlive consumers and brokers: records that are not acked are delivered again, acked ones are not. A cursor
names the epoch of the log that was acked. If records were given up since, their offsets have other records, which are
not acked.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from sulina.core.delivery.ranges import Range, RangeMap, RangeSet
from sulina.core.formats import METADATA
from sulina.core.log.epochs import EpochHistory
from sulina.core.log.log_state import NO_EPOCH
from sulina.errors import CorruptCommit

END = 2**63 - 1


Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]


class StoredCursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cursor as the metadata store has it. Ranges are stored as differences, so they are small and always sorted."""

    offset: Natural
    acked: list[tuple[Natural, Positive]] = []  # distance from the range before, length
    attempts: list[tuple[Natural, Positive, Positive]] = []  # the same, and the number of failed deliveries
    epoch: int = NO_EPOCH


class Cursor:
    """A mutable cursor; `stored` returns its stored form."""

    def __init__(self, offset: int, epoch: int = NO_EPOCH) -> None:
        self.offset = offset
        self.epoch = epoch  # of the log that was acked; NO_EPOCH: stored before cursors had an epoch
        self.acked = RangeSet()  # beyond `offset`
        self.attempts = RangeMap()  # numbers of failed deliveries of records that are not acked

    def ack(self, start: int, end: int) -> int:
        """Ack [start, end); return how many of its offsets had not been acked."""
        self.attempts.pop(start, end)
        new = self.acked.add(max(start, self.offset), end)
        prefix = next(iter(self.acked), None)
        if prefix is not None and prefix[0] == self.offset:
            self.acked.remove(*prefix)
            self.offset = prefix[1]
        return new

    def unacked(self, start: int, end: int) -> list[Range]:
        """Return the ranges of [start, end) that are not acked."""
        return self.acked.missing(max(start, self.offset), end)

    def skip_to(self, offset: int) -> int:
        """Skip records below `offset`, which the log does not have any more; return how many had not been acked."""
        return self.ack(self.offset, offset) if offset > self.offset else 0

    def failed(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Count a failed delivery of [start, end); return its pieces with their numbers of failures."""
        pieces = [(low, high, count + 1) for low, high, count in self.attempts.pieces(start, end, 0)]
        self.attempts.pop(start, end)
        for piece in pieces:
            self.attempts.put(*piece)
        return pieces

    def lag(self, end_offset: int) -> int:
        """Return the number of records that are not acked, given the end of the log."""
        return max(0, end_offset - self.offset - self.acked.count)

    def follow(self, log: EpochHistory) -> bool:
        """Use this log from now on, without acks of records that were given up; return whether there were any."""
        end = log.end_of(self.epoch) if self.epoch != NO_EPOCH else log.next_offset
        acked, attempts = self.acked.remove(end, END), self.attempts.pop(end, END)
        is_beyond = self.offset > end
        self.offset, self.epoch = min(self.offset, end), log.epoch
        return is_beyond or bool(acked or attempts)

    def stored(self) -> bytes:
        """Return the stored form."""
        acked, attempts = [], []
        place = self.offset
        for start, end in self.acked:
            acked.append((start - place, end - start))
            place = end
        place = self.offset
        for start, end, count in self.attempts:
            attempts.append((start - place, end - start, count))
            place = end
        return METADATA.encode(StoredCursor(self.offset, acked, attempts, self.epoch))

    @classmethod
    def load(cls, key: str, data: bytes) -> "Cursor":
        """Read a stored cursor.

        Raises:
            CorruptCommit: the data is not a cursor; names the key.
        """
        try:
            stored = METADATA.decode(data, StoredCursor, key)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptCommit(name=key, reason=str(error)) from None
        cursor = cls(stored.offset, stored.epoch)
        place = stored.offset
        for gap, length in stored.acked:
            cursor.acked.add(place + gap, place + gap + length)
            place += gap + length
        place = stored.offset
        for gap, length, count in stored.attempts:
            cursor.attempts.put(place + gap, place + gap + length, count)
            place += gap + length
        return cursor
