"""How long to wait before trying again, and never in step with others.

Twice as long each time, up to a limit, for a node that is not there. A tenth of how long it has lasted, for a partition
that will be served again, though nobody says when: so that little is asked, and little time is lost.
"""

import random
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Between half and all of the pause is waited: chance keeps clients apart that lost the same node."""

    seconds_min: float
    seconds_max: float
    rng: random.Random
    attempt: int = 0

    def next(self) -> float:
        """Seconds to wait now."""
        pause = min(self.seconds_min * 2 ** min(self.attempt, 40), self.seconds_max)
        self.attempt += 1
        return self.rng.uniform(pause / 2, pause)

    def reset(self) -> None:
        """It worked."""
        self.attempt = 0


@dataclass(slots=True)
class Patience:
    """Between half and all of the pause is waited. The first time there is none: what is known may just be old."""

    seconds_min: float
    seconds_max: float
    rng: random.Random
    since: float | None = None  # when it began

    def next(self, now: float) -> float:
        """Seconds to wait now."""
        if self.since is None:
            self.since = now
            return 0.0
        pause = min(max((now - self.since) / 10, self.seconds_min), self.seconds_max)
        return self.rng.uniform(pause / 2, pause)

    def reset(self) -> None:
        """It is over."""
        self.since = None
