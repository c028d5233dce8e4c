"""Time that moves only when a test advances it."""


class VirtualClock:
    """A `ports.Clock`. Both clocks move together, from any wall time and from monotonic 0."""

    __slots__ = ("_elapsed", "_start")

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._start = now
        self._elapsed = 0.0

    def now(self) -> float:
        """Return seconds since 1970, UTC."""
        return self._start + self._elapsed

    def monotonic(self) -> float:
        """Return the seconds that were advanced."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Move both clocks forward.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: advance({seconds})")
        self._elapsed += seconds
