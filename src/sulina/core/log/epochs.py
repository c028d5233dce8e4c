"""Epochs of a log: the offsets that each of them wrote, and where the log continues for a reader of discarded offsets.

When an operator discards records that only a lost broker has, the next owner continues at the end of the archive, and
uses offsets again that consumers have read. An offset alone does not tell the two records apart; with an epoch it does.

- A position is an offset and an epoch: everything before the offset was read from a log of that epoch. Any epoch is
  right, from that of the last record that was read to that of the log when it was read: no record of an epoch between
  them lies before the offset.
- Epochs only rise along a log. So the part that a reader of some epoch has seen ends where the first later epoch
  begins, or at the end of the log. A position past that end has diverged, and the log continues at that end.
- Offsets that retention has removed are not checked.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from sulina.core.log.commit import SegmentRef
from sulina.types import Epoch, Offset


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """The epochs of one log at one moment. Segments and slices have one epoch each, and follow one another."""

    epoch: Epoch  # of the log
    next_offset: Offset
    segments: Sequence[SegmentRef]
    slices: Sequence[SegmentRef] = ()  # of the archive; those that the segments cover too are ignored

    def end_of(self, epoch: int) -> Offset:
        """Return the end of all records that this epoch and older ones wrote: every later record has a later epoch."""
        if epoch >= self.epoch:
            return self.next_offset
        archived = _first_after(self.slices, epoch)
        if archived is not None and (not self.segments or archived < self.segments[0].base):
            return min(archived, self.next_offset)
        local = _first_after(self.segments, epoch)
        return self.next_offset if local is None else min(local, self.next_offset)

    def continuation(self, offset: int, epoch: int) -> Offset | None:
        """Return where the log continues for a reader at this position; None if that is its own offset.

        A position with a newer epoch than the log's cannot be checked here, and counts as not diverged.
        """
        if epoch > self.epoch:
            return None
        end = self.end_of(epoch)
        return end if offset > end else None


def _first_after(runs: Sequence[SegmentRef], epoch: int) -> Offset | None:
    at = bisect_right(runs, epoch, key=lambda run: run.epoch)
    return runs[at].base if at < len(runs) else None
