"""The shown time: a time that no single clock can push ahead. Retention by age uses it.

With a clock that is ahead, records that are minutes old seem days old. So the shown time is the smallest of:
- the wall clock of this machine,
- the lower median of the wall clocks of all brokers,
- the newest time that the cluster remembers, plus the monotonic time that has passed here since then.

If the first two are ahead of the third, the shown time follows only as the monotonic clock advances. This happens when
all clocks jump together, and also after all brokers were stopped for a while: the two cannot be told apart, and waiting
loses nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE_SECONDS = 300.0  # by which clocks may differ, and how long a restart may take without a lag
CATCH_UP = 0.01  # the share of passing time by which a lag shrinks
REMEMBER_SECONDS = 60.0  # the remembered time is written again when it is older than this


@dataclass(slots=True)
class ShownTime:
    """The shown time as one process knows it. Call `look` regularly."""

    _shown: float | None = None  # at the last look
    _looked_at: float = 0.0  # by the monotonic clock

    def look(self, *, wall: float, monotonic: float, others: Sequence[float], remembered: float | None) -> float:
        """Return the shown time, in seconds since 1970.

        `others` are the wall clocks of the other brokers, `remembered` is the newest time that any broker has stored.
        Without it, at the first look of a new cluster, there are only the clocks to compare.
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
    """Return the lower median of all wall clocks, but never more than `wall`."""
    clocks = sorted([wall, *others])
    return min(wall, clocks[(len(clocks) - 1) // 2])


def ahead_seconds(*, wall: float, others: Sequence[float], shown: float) -> float:
    """Return how far `wall` is ahead of the shown time; negative: behind the other clocks; 0: about right."""
    if wall - shown > TOLERANCE_SECONDS:
        return wall - shown
    clocks = sorted([wall, *others])
    behind = clocks[(len(clocks) - 1) // 2] - wall
    return -behind if behind > TOLERANCE_SECONDS else 0.0
