"""How far a subscription has come in one partition: everything below `offset` is acked, and some of what follows.

The cursor is what survives: a consumer that comes back gets what is not acked, and nothing that is.
"""

import msgspec

from sulina.core.ranges import Range, RangeMap, RangeSet
from sulina.errors import CorruptCommit


class StoredCursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cursor as the metadata store has it."""

    offset: int
    acked: list[Range] = []
    attempts: list[tuple[int, int, int]] = []  # deliveries that failed, by range


class Cursor:
    """Mutable; `stored` gives what to keep."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
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

    def stored(self) -> bytes:
        """What to keep."""
        return msgspec.json.encode(StoredCursor(self.offset, list(self.acked), list(self.attempts)))

    @classmethod
    def load(cls, key: str, data: bytes) -> "Cursor":
        """As it was stored. CorruptCommit names the key when it cannot have been."""
        try:
            stored = msgspec.json.decode(data, type=StoredCursor)
        except msgspec.DecodeError as error:
            raise CorruptCommit(name=key, reason=str(error)) from None
        cursor = cls(stored.offset)
        for start, end in stored.acked:
            cursor.acked.add(start, end)
        for start, end, count in stored.attempts:
            cursor.attempts.put(start, end, count)
        return cursor
