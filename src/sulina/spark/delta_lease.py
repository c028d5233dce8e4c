"""One maintainer of a Delta table at a time: numbered leases below the table's root.

- `_sulina/maintenance/{number}.json` says who holds the table, and until when. The next number may be taken once the
  newest is released or past its time; it is put if absent, so of two who try, one has it.
- The number is the fence. It goes into every commit of the holder, and a table that has a higher one takes none of a
  lower. So a holder who slept past his time can do no harm, whatever the clocks say: leases only save work.
- Numbers only grow: a table that has lost its leases goes on after the highest that its log has seen.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import msgspec

from sulina.core.formats import TABLE_FILE
from sulina.errors import ArchiveFailed
from sulina.spark.errors import MaintenanceBusy, MaintenanceFenced
from sulina.spark.table_location import TableLocation

APP = "sulina.maintenance"  # name of the application transaction that carries the fence
FOLDER = "_sulina/maintenance"
LEASE_SECONDS = 300.0  # renewed long before; the longest wait of others after a crash
ATTEMPTS_MAX = 5

Clock = Callable[[], float]  # seconds since 1970


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    holder: str
    expires_ms: int  # 0: released


@dataclass(slots=True)
class MaintenanceLease:
    """The right to maintain a table, until its time ends."""

    location: TableLocation
    number: int
    holder: str
    seconds: float
    clock: Clock
    expires_ms: int

    def keep(self) -> None:
        """Renew the lease when a third of its time is over; call it often.

        Raises:
            MaintenanceFenced: somebody else has a newer lease.
            ArchiveFailed: it could not be written.
        """
        if self.expires_ms - self.clock() * 1000 > self.seconds * 1000 * 2 / 3:
            return
        newest = _newest(self.location)
        if newest is not None and newest[0] > self.number:
            raise MaintenanceFenced(table=self.location.path_or_uri, ours=self.number, current=newest[0])
        self.expires_ms = _in(self.seconds, self.clock)
        self._write(self.expires_ms)

    def stored_at(self) -> float:
        """Return when the lease was last written, by the clock of the table's store.

        Raises:
            ArchiveFailed: the store does not list it.
        """
        for listed in self.location.objects().list(FOLDER):
            if f"{FOLDER}/{listed.name}" == _path(self.number):
                return listed.modified
        cause = FileNotFoundError(f"{_path(self.number)} was put, and is not listed")
        raise ArchiveFailed(path=self.location.path_or_uri, cause=cause)

    def release(self) -> None:
        """Release the lease, so that the next maintainer can start at once."""
        self._write(0)

    def _write(self, expires_ms: int) -> None:
        # Nobody else writes this number. One that comes after a higher one changes nothing.
        data = TABLE_FILE.encode(_Record(holder=self.holder, expires_ms=expires_ms))
        self.location.objects().put(_path(self.number), [data])


@contextmanager
def hold(
    location: TableLocation, *, recorded: int, seconds: float = LEASE_SECONDS, clock: Clock = time.time
) -> Iterator[MaintenanceLease]:
    """Hold a table while the context is open; `recorded` is the highest fence in its log.

    Raises:
        MaintenanceBusy: somebody else holds it.
        ArchiveFailed: the store does not answer.
    """
    lease = take(location, recorded=recorded, seconds=seconds, clock=clock)
    try:
        yield lease
    finally:
        with suppress(ArchiveFailed):  # then it ends by itself
            lease.release()


def take(
    location: TableLocation, *, recorded: int, seconds: float = LEASE_SECONDS, clock: Clock = time.time
) -> MaintenanceLease:
    """Acquire the next lease and delete older ones.

    Raises:
        MaintenanceBusy: somebody else holds it.
        ArchiveFailed: the store does not answer.
    """
    holder = f"{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:8]}"
    objects = location.objects()
    for _ in range(ATTEMPTS_MAX):
        newest = _newest(location)
        if newest is not None and newest[1].expires_ms > clock() * 1000:
            break
        number = max(recorded, 0 if newest is None else newest[0]) + 1
        expires_ms = _in(seconds, clock)
        data = TABLE_FILE.encode(_Record(holder=holder, expires_ms=expires_ms))
        if objects.put_if_absent(_path(number), data):
            objects.delete([_path(older) for older in _numbers(location) if older < number])
            return MaintenanceLease(location, number, holder, seconds, clock, expires_ms)
    held, until = ("somebody", "soon") if newest is None else (newest[1].holder, _moment(newest[1].expires_ms))
    raise MaintenanceBusy(table=location.path_or_uri, holder=held, until=until)


def _newest(location: TableLocation) -> tuple[int, _Record] | None:
    number = max(_numbers(location), default=None)
    if number is None:
        return None
    data = location.objects().get(_path(number))
    try:
        return number, TABLE_FILE.decode(data or b"", _Record, f"{location.path_or_uri}/{_path(number)}")
    except msgspec.DecodeError:
        return number, _Record(holder="", expires_ms=0)  # nothing of ours: the fence is what counts


def _numbers(location: TableLocation) -> list[int]:
    names = [listed.name.removesuffix(".json") for listed in location.objects().list(FOLDER)]
    return [int(name) for name in names if name.isdecimal()]


def _path(number: int) -> str:
    return f"{FOLDER}/{number:020d}.json"


def _in(seconds: float, clock: Clock) -> int:
    return int((clock() + seconds) * 1000)


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
