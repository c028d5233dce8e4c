"""How long to wait before an attempt is repeated.

Jitter keeps clients apart that lost the same node: each waits between half and all of a pause. The source of chance is
an argument, a function that returns a number from 0 to below 1, so that a seed decides it in tests.
"""

from collections.abc import Callable
from dataclasses import dataclass

DOUBLINGS_MAX = 40  # beyond it a float would overflow, and every maximum is reached before

Chance = Callable[[], float]


def doubled(seconds: float, seconds_max: float, attempt: int) -> float:
    """Return the pause after attempt 0, 1, …: twice as long each time, up to the maximum."""
    return min(seconds * 2.0 ** min(attempt, DOUBLINGS_MAX), seconds_max)


def jittered(pause_seconds: float, chance: Chance) -> float:
    """Return a time between half and all of the pause."""
    return pause_seconds * (1 + chance()) / 2


@dataclass(slots=True)
class Backoff:
    """Pauses that double with each attempt, up to a maximum: for a node that does not answer."""

    seconds_min: float
    seconds_max: float
    chance: Chance
    attempt: int = 0

    def next(self) -> float:
        """Return how many seconds to wait now, and count the attempt."""
        pause = doubled(self.seconds_min, self.seconds_max, self.attempt)
        self.attempt += 1
        return jittered(pause, self.chance)

    def reset(self) -> None:
        """Begin with the shortest pause again, after an attempt that worked."""
        self.attempt = 0


@dataclass(slots=True)
class ElapsedBackoff:
    """Pauses of a tenth of the elapsed time: for a partition that will be served again at an unknown time.

    So there are few requests, and little time is lost. The first pause is 0: the client's information may just be old.
    """

    seconds_min: float
    seconds_max: float
    chance: Chance
    since: float | None = None  # when the first attempt failed

    def next(self, now: float) -> float:
        """Return how many seconds to wait now."""
        if self.since is None:
            self.since = now
            return 0.0
        pause = min(max((now - self.since) / 10, self.seconds_min), self.seconds_max)
        return jittered(pause, self.chance)

    def reset(self) -> None:
        """Begin with no pause again, after an attempt that worked."""
        self.since = None
