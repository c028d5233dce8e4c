"""The clock of this machine, behind `ports.Clock`."""

import time


class SystemClock:
    """Wall time in seconds since 1970, UTC, and monotonic time in seconds that never go back: the system's own."""

    __slots__ = ()

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
