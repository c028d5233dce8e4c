"""The numbers under which a client publishes to a partition, so that the log knows what it has written already.

- The client makes up a producer id for each partition: 62 random bits, above the ids that are given out in turn.
- A publish gets its number when it is first sent, and keeps it however often it is sent again: the log answers a
  number that it has with the first answer, and needs one entry for the producer, whatever others publish meanwhile.
- A number that was refused stays unused. One that the log has passed was not written, and is replaced by a new one.
"""

import secrets
from typing import NamedTuple

from sulina.core.records.batch import SEQUENCES

_ID_BITS = 62


class OriginNumber(NamedTuple):
    """Who wrote a batch, and which of its records is the first."""

    producer_id: int
    sequence: int


class Numbering:
    """Gives out the numbers of one partition."""

    def __init__(self) -> None:
        self.producer_id = (1 << _ID_BITS) + secrets.randbits(_ID_BITS)
        self._next = 0

    def next(self, count: int) -> OriginNumber:
        """Return the number of a batch with this many records: used by no other, and higher than those before."""
        number = OriginNumber(self.producer_id, self._next)
        self._next = (self._next + count) % SEQUENCES
        return number


class Attempts:
    """What one batch of records was sent as, for who sends it again until it is through.

    A number is kept only while the batch may have been written under it. One that was only refused is given up: by the
    next try the log may have passed it by so much that it could not say whether it was written.
    """

    def __init__(self) -> None:
        self.pin = secrets.randbits(31)  # records without a key go to the same partition each time
        self.numbers: dict[tuple[str, int], OriginNumber] = {}  # by topic id and partition

    def keep(self, place: tuple[str, int], number: OriginNumber | None) -> None:
        """Keep the number that was used at a place; None: the next try there gets a new one."""
        if number is None:
            self.numbers.pop(place, None)
        else:
            self.numbers[place] = number
