"""A bound on the requests, and on their bytes, that are sent and not yet answered."""

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass

from sulina.client.options import ClientOptions
from sulina.errors import QueueFull

LOOKUPS_MAX = 16
LOOKUPS_BYTES_MAX = 1 << 20


class InFlight:
    """A bound that requests enter in the order in which they came. One that is larger than the bound enters alone."""

    def __init__(self, *, requests_max: int, bytes_max: int) -> None:
        self.requests_max = requests_max
        self.bytes_max = bytes_max
        self.requests = 0
        self.size_bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._entering = 0  # let in, and not yet running again: nobody may pass them

    def try_enter(self, size_bytes: int) -> bool:
        """Take the room if there is some, and nobody waits for it."""
        if self._waiting or self._entering or not self._fits(size_bytes):
            return False
        self.requests += 1
        self.size_bytes += size_bytes
        return True

    async def enter(self, size_bytes: int) -> None:
        """Return when there is room, which is then taken."""
        if self.try_enter(size_bytes):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size_bytes))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._entering -= 1
                self.leave(size_bytes)  # let in and cancelled at the same moment
            else:
                with contextlib.suppress(ValueError):  # it may have been passed over already
                    self._waiting.remove((turn, size_bytes))
                self._let_in()  # a later request may fit where this one did not
            raise
        self._entering -= 1
        self._let_in()

    def leave(self, size_bytes: int) -> None:
        """Give the room back."""
        self.requests -= 1
        self.size_bytes -= size_bytes
        if self._waiting:
            self._let_in()

    def full(self) -> QueueFull:
        """Return the error of a request that has waited too long."""
        return QueueFull(waiting_bytes=self.size_bytes, limit_bytes=self.bytes_max)

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            turn, size_bytes = self._waiting.popleft()
            if not turn.done():
                self.requests += 1
                self.size_bytes += size_bytes
                self._entering += 1
                turn.set_result(None)

    def _fits(self, size_bytes: int) -> bool:
        if not self.requests:
            return True
        return self.requests < self.requests_max and self.size_bytes + size_bytes <= self.bytes_max


@dataclass(frozen=True, slots=True)
class Rooms:
    """The byte budgets of one client, shared by all its sessions."""

    requests: InFlight
    fetches: InFlight  # they may wait long
    lookups: InFlight  # whatever else waits may wait for them

    @classmethod
    def of(cls, options: ClientOptions) -> "Rooms":
        """Make them as large as the options say."""
        bytes_max = options.bytes_in_flight_max
        return cls(
            requests=InFlight(requests_max=options.requests_in_flight_max, bytes_max=bytes_max),
            fetches=InFlight(requests_max=options.fetches_in_flight_max, bytes_max=bytes_max),
            lookups=InFlight(requests_max=LOOKUPS_MAX, bytes_max=LOOKUPS_BYTES_MAX),
        )
