"""How far a subscription has come in one partition: everything below `offset` is acked, and some of what follows.

The cursor is what survives: a consumer that comes back gets what is not acked, and nothing that is. It names the epoch
of the log that was acked: what was given up since is not acked in the log that has its offsets now.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from sulina.core.delivery.ranges import Range, RangeMap, RangeSet
from sulina.core.log.epochs import EpochHistory
from sulina.core.log.log_state import NO_EPOCH
from sulina.errors import CorruptCommit

END = 2**63 - 1


Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]


class StoredCursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cursor as the metadata store has it: small also when it is in many pieces, and never in disorder."""

    offset: Natural
    acked: list[tuple[Natural, Positive]] = []  # how far after the one before, and how long
    attempts: list[tuple[Natural, Positive, Positive]] = []  # and how many deliveries have failed
    epoch: int = NO_EPOCH


class Cursor:
    """Mutable; `stored` gives what to keep."""

    def __init__(self, offset: int, epoch: int = NO_EPOCH) -> None:
        self.offset = offset
        self.epoch = epoch  # of the log that it is about; NO_EPOCH: it was stored before cursors had one
        self.acked = RangeSet()  # beyond `offset`
        self.attempts = RangeMap()  # that failed, of records that are not acked

    def ack(self, start: int, end: int) -> int:
        """How many of the offsets had not been acked."""
        self.attempts.pop(start, end)
        new = self.acked.add(max(start, self.offset), end)
        prefix = next(iter(self.acked), None)
        if prefix is not None and prefix[0] == self.offset:
            self.acked.remove(*prefix)
            self.offset = prefix[1]
        return new

    def unacked(self, start: int, end: int) -> list[Range]:
        """What of [start, end) is still to be done."""
        return self.acked.missing(max(start, self.offset), end)

    def skip_to(self, offset: int) -> int:
        """Records below `offset` are gone from the log; how many of them had not been acked."""
        return self.ack(self.offset, offset) if offset > self.offset else 0

    def failed(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Another delivery of [start, end) has failed; how many have, piece by piece."""
        pieces = [(low, high, count + 1) for low, high, count in self.attempts.pieces(start, end, 0)]
        self.attempts.pop(start, end)
        for piece in pieces:
            self.attempts.put(*piece)
        return pieces

    def lag(self, end_offset: int) -> int:
        """Records of the log that are not acked."""
        return max(0, end_offset - self.offset - self.acked.count)

    def follow(self, log: EpochHistory) -> bool:
        """Go on in this log, and forget what was given up: its offsets are others' now. Whether something was."""
        end = log.end_of(self.epoch) if self.epoch != NO_EPOCH else log.next_offset
        acked, attempts = self.acked.remove(end, END), self.attempts.pop(end, END)
        is_beyond = self.offset > end
        self.offset, self.epoch = min(self.offset, end), log.epoch
        return is_beyond or bool(acked or attempts)

    def stored(self) -> bytes:
        """What to keep."""
        acked, attempts = [], []
        place = self.offset
        for start, end in self.acked:
            acked.append((start - place, end - start))
            place = end
        place = self.offset
        for start, end, count in self.attempts:
            attempts.append((start - place, end - start, count))
            place = end
        return msgspec.json.encode(StoredCursor(self.offset, acked, attempts, self.epoch))

    @classmethod
    def load(cls, key: str, data: bytes) -> "Cursor":
        """As it was stored. CorruptCommit names the key when it cannot have been."""
        try:
            stored = msgspec.json.decode(data, type=StoredCursor)
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
