"""Time as far as it has been shown: what retention by age goes by.

A clock that is ahead makes what is minutes old look days old, so no clock is believed alone. The time that has been
shown is the smallest of what these say:
- the wall clock of this machine,
- the wall clocks of all brokers: their lower median,
- the newest time that the cluster remembers, and the monotonic time that has passed here since it was first seen.

Whatever the first two say beyond the third must be shown by the monotonic clock first. That is so where all clocks jump
together, and also after a time in which nobody ran: one cannot be told from the other, and waiting loses nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE_SECONDS = 300.0  # by which clocks may differ; also a restart that is not longer costs nothing
CATCH_UP = 0.01  # a lag is worked off at this share of the time that passes
REMEMBER_SECONDS = 60.0  # the memory is written when it is older than this


@dataclass(slots=True)
class ShownTime:
    """The shown time as one process knows it. `look` at the clocks now and then."""

    _shown: float | None = None  # at the last look
    _looked_at: float = 0.0  # by the monotonic clock

    def look(self, *, wall: float, monotonic: float, others: Sequence[float], remembered: float | None) -> float:
        """Return the time that has been shown by now, in seconds since 1970.

        `others` are the wall clocks of the other brokers, `remembered` is the newest time that any broker has stored.
        Without a memory, at the very first look of a cluster, there is nothing to compare with but the clocks.
        """
        agreed = agreed_time(wall, others)
        known = remembered
        if self._shown is not None:
            passed = self._shown + (monotonic - self._looked_at) * (1 + CATCH_UP)
            known = passed if remembered is None else max(passed, remembered)
        if known is None or agreed - known <= TOLERANCE_SECONDS:
            known = agreed
        self._shown, self._looked_at = known, monotonic
        return known


def agreed_time(wall: float, others: Sequence[float]) -> float:
    """Return the lower median of all wall clocks, and never more than our own says."""
    clocks = sorted([wall, *others])
    return min(wall, clocks[(len(clocks) - 1) // 2])


def ahead_seconds(*, wall: float, others: Sequence[float], shown: float) -> float:
    """Return how far our wall clock is ahead of the shown time; negative: behind the others; 0: about right."""
    if wall - shown > TOLERANCE_SECONDS:
        return wall - shown
    clocks = sorted([wall, *others])
    behind = clocks[(len(clocks) - 1) // 2] - wall
    return -behind if behind > TOLERANCE_SECONDS else 0.0
