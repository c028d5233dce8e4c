"""The epochs of a log: which offsets each of them wrote, and where the log goes on for a reader of given-up offsets.

When an operator gives up what only a lost broker has, the next owner goes on from where the archive ends, and uses
offsets again that others have read. An offset alone does not tell the two records apart; with an epoch it does.

- A position is an offset and an epoch: everything before the offset was read from a log of that epoch. Any epoch will
  do, from that of the last record that was read to that of the log when it was read: no record of an epoch between them
  lies before the offset.
- Epochs only rise along a log. So what a reader of some epoch has seen of it ends where the first later epoch begins,
  or with the log. A position past that end has diverged, and the log goes on at that end.
- What retention has removed is not known, and nobody is told anything of it.
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
    slices: Sequence[SegmentRef] = ()  # of the archive; those that the segments reach back to are passed over

    def end_of(self, epoch: int) -> Offset:
        """Return the end of all that this epoch and older ones wrote: every later record is of a later epoch."""
        if epoch >= self.epoch:
            return self.next_offset
        archived = _first_after(self.slices, epoch)
        if archived is not None and (not self.segments or archived < self.segments[0].base):
            return min(archived, self.next_offset)
        local = _first_after(self.segments, epoch)
        return self.next_offset if local is None else min(local, self.next_offset)

    def continuation(self, offset: int, epoch: int) -> Offset | None:
        """Return where the log goes on for a reader at this position; None: at its offset.

        Of a position that is newer than the log itself nothing is known here.
        """
        if epoch > self.epoch:
            return None
        end = self.end_of(epoch)
        return end if offset > end else None


def _first_after(runs: Sequence[SegmentRef], epoch: int) -> Offset | None:
    at = bisect_right(runs, epoch, key=lambda run: run.epoch)
    return runs[at].base if at < len(runs) else None
