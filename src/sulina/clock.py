"""The clock of this machine, behind `ports.Clock`."""

import time


class SystemClock:
    """Wall time and monotonic time of the system."""

    __slots__ = ()

    def now(self) -> float:
        """Return seconds since 1970, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()
