"""The ends of leases, and the timer that acts on them.

A lease that has ended stays ended: it cannot be renewed, and its store hides its keys until they are deleted.
"""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Collection

from sulina.errors import LeaseLost
from sulina.ports import Clock

TIMER_SECONDS_MIN = 0.01  # timers of a loop may fire earlier by less than this
RETRY_SECONDS = 1.0  # pause after the end of a lease could not be written


class Deadlines:
    """The deadlines of leases. Thread-safe: the loop renews leases while the store's thread writes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ttl_seconds: dict[int, float] = {}
        self._deadlines: dict[int, float] = {}
        self._ended: set[int] = set()
        self._next = math.inf  # no deadline is earlier

    @property
    def count(self) -> int:
        """Number of leases that were not removed."""
        return len(self._ttl_seconds)

    def start(self, lease_id: int, ttl_seconds: float) -> None:
        """Start the time of a new lease."""
        with self._lock:
            self._ttl_seconds[lease_id] = ttl_seconds
            deadline = self._deadlines[lease_id] = self._clock.monotonic() + ttl_seconds
            self._next = min(self._next, deadline)

    def restart(self, lease_id: int) -> float:
        """Renew a lease. Return how many seconds it has now.

        Raises:
            LeaseLost: it has ended.
        """
        with self._lock:
            now = self._clock.monotonic()
            if now >= self._deadlines.get(lease_id, -math.inf):
                raise LeaseLost(lease_id=lease_id)
            ttl_seconds = self._ttl_seconds[lease_id]
            self._deadlines[lease_id] = now + ttl_seconds  # `_next` may stay too early: that costs one check
            return ttl_seconds

    def ended(self) -> Collection[int]:
        """Return the leases that have ended and were not removed yet, oldest first."""
        with self._lock:
            now = self._clock.monotonic()
            if now >= self._next:
                self._ended.update(lease_id for lease_id, deadline in self._deadlines.items() if now >= deadline)
                for lease_id in self._ended:
                    self._deadlines.pop(lease_id, None)
                self._next = min(self._deadlines.values(), default=math.inf)
            return sorted(self._ended)

    def remove(self, lease_id: int) -> None:
        """Remove a lease whose keys are deleted."""
        with self._lock:
            self._ttl_seconds.pop(lease_id, None)
            self._deadlines.pop(lease_id, None)
            self._ended.discard(lease_id)

    def seconds_left(self) -> float | None:
        """Return the seconds until a lease may end; None if there are no leases."""
        with self._lock:
            if self._ended:
                return RETRY_SECONDS
            return self._next - self._clock.monotonic() if self._deadlines else None


class LeaseTimer:
    """Calls `expire` on the loop when a lease may have ended. One timer for any number of leases."""

    def __init__(self, deadlines: Deadlines, expire: Callable[[], None]) -> None:
        self._deadlines = deadlines
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_needed(self) -> bool:
        """Whether there are leases, or the timer is still set for former ones."""
        return self._timer is not None or self._deadlines.count > 0

    def arm(self) -> None:
        """Set the timer. Called after every change that may have brought the next end nearer."""
        seconds = self._deadlines.seconds_left()
        if seconds is None:
            self.stop()
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + max(seconds, TIMER_SECONDS_MIN)
        if self._timer is None or when < self._timer.when():
            self.stop()
            self._timer = loop.call_at(when, self._fire)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._expire()


class HeldLease:
    """A `ports.Lease` of a store in this process."""

    __slots__ = ("_keep_alive", "_lease_id", "_revoke")

    def __init__(
        self, lease_id: int, *, keep_alive: Callable[[int], float], revoke: Callable[[int], Awaitable[None]]
    ) -> None:
        self._lease_id = lease_id
        self._keep_alive = keep_alive
        self._revoke = revoke

    @property
    def lease_id(self) -> int:
        return self._lease_id

    async def keep_alive(self) -> float:
        return self._keep_alive(self._lease_id)

    async def revoke(self) -> None:
        await self._revoke(self._lease_id)
