"""How long to wait before trying again: twice as long each time, up to a limit, and never in step with others."""

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
