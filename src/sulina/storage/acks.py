"""Acknowledges appends: once they are as durable as their topic requires, and only while this broker is the owner.

Ownership is checked right before each ack. If it is lost, the outcome is unknown to the publisher.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable

from sulina.core.log.log_state import Appended
from sulina.errors import ArchiveFailed, LeaseExpired, SulinaError
from sulina.ports import Clock
from sulina.types import Version

ACK_SECONDS_MAX = 10.0  # an append waits this long for an archive that fails

_Future = asyncio.Future[Appended]


def always() -> bool:
    """Allow every ack: there is no other owner."""
    return True


class Acks:
    """The appends of a log that are not acknowledged yet. For one event loop."""

    def __init__(self, broker_id: str, may_ack: Callable[[], bool], clock: Clock, *, waits: bool) -> None:
        self.waits = waits  # whether acks wait for the archive
        self._broker_id = broker_id
        self._may_ack = may_ack
        self._clock = clock
        self._archived = Version(-1)
        self._waiting: list[tuple[Version, int, float, _Future, Appended]] = []  # a heap
        self._numbers = itertools.count()
        self._failure: Callable[[], SulinaError] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def answer(self, future: _Future, appended: Appended) -> None:
        """Acknowledge an append that is durable on disk, now or when the archive has it."""
        if self._failure is not None:
            future.set_exception(self._failure())
        elif self.waits and appended.version > self._archived:
            entry = (appended.version, next(self._numbers), self._clock.monotonic(), future, appended)
            heapq.heappush(self._waiting, entry)
        else:
            self._ack_if_owner(future, appended)

    def archived(self, version: Version) -> None:
        """Acknowledge the appends that waited for the archive to reach a version."""
        self._archived = max(version, self._archived)
        while self._waiting and self._waiting[0][0] <= version:
            _, _, _, future, appended = heapq.heappop(self._waiting)
            self._ack_if_owner(future, appended)

    def _ack_if_owner(self, future: _Future, appended: Appended) -> None:
        """Acknowledge an append if this broker is still the owner; else its outcome is unknown to the publisher."""
        if future.done():
            return  # it was cancelled
        if self._may_ack():
            future.set_result(appended)
        else:
            future.set_exception(LeaseExpired(broker=self._broker_id))

    def fail_late(self, path: str, cause: Exception) -> None:
        """Fail the appends that have waited long for an archive that failed again; publishers may retry them."""
        before = self._clock.monotonic() - ACK_SECONDS_MAX
        late = [entry for entry in self._waiting if entry[2] <= before]
        if late:
            self._waiting = [entry for entry in self._waiting if entry[2] > before]
            heapq.heapify(self._waiting)
            failed = cause.cause if isinstance(cause, ArchiveFailed) else cause
            self._fail(late, lambda: ArchiveFailed(path=path, cause=failed))

    def fail(self, error: Callable[[], SulinaError]) -> None:
        """Fail all appends that wait, and all later ones, each with an error object of its own."""
        self._failure = error
        waiting, self._waiting = self._waiting, []
        self._fail(waiting, error)

    def _fail(
        self, entries: list[tuple[Version, int, float, _Future, Appended]], error: Callable[[], SulinaError]
    ) -> None:
        for _, _, _, future, _ in entries:
            if not future.done():
                future.set_exception(error())
