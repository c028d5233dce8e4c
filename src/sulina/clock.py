"""The clock of this machine, behind `ports.Clock`."""

import time


class SystemClock:
    """Wall time and monotonic time, as the system has them."""

    __slots__ = ()

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()
