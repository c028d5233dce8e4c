"""The time that this broker's retention goes by: it looks at all clocks of the cluster, and says when its own is off.

The newest shown time is kept in the metadata store, by whichever broker finds it old, so that a broker that starts has
something to compare its clock with. Brokers remember it on their disks and in the archive too (`stored`): a store that
was lost and recovered would else leave the first broker that looks with nothing but its own clock.
"""

from collections.abc import Callable, Sequence

import msgspec
import structlog

from sulina.broker.events import EventStream
from sulina.core.cluster import keys
from sulina.core.cluster.entries import RememberedTime
from sulina.core.cluster.shown_time import REMEMBER_SECONDS, ShownTime, ahead_seconds
from sulina.core.formats import METADATA
from sulina.errors import SulinaError
from sulina.ports import NO_REVISION, Clock, Compare, MetadataStore, Put

_logger = structlog.get_logger("sulina.time")


class Timekeeper:
    """`look` once for each round of retention."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        clock: Clock,
        events: EventStream,
        others: Callable[[], Sequence[float]],
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._events = events
        self._others = others  # the wall clocks of the other brokers, as they are now
        self._time = ShownTime()
        self._looked: tuple[float, float] | None = None  # the shown time, and when that was by the monotonic clock
        self.ahead_seconds = 0.0  # of our clock; negative: it is behind
        self.stored: bytes | None = None  # the shown time as the metadata store last had it

    def now(self) -> float:
        """Return the time that has been shown by now; what the wall clock says before the first look."""
        wall = self._clock.now()
        return wall if self._looked is None else min(wall, self._looked[0] + self._clock.monotonic() - self._looked[1])

    async def look(self) -> float | None:
        """Return the time that has been shown; None while the metadata store cannot be read."""
        try:
            remembered, revision = await self._remembered()
        except (SulinaError, OSError) as error:
            _logger.warning("time_not_read", error=str(error))
            return None
        wall, monotonic, others = self._clock.now(), self._clock.monotonic(), self._others()
        shown = self._time.look(wall=wall, monotonic=monotonic, others=others, remembered=remembered)
        self._looked = (shown, monotonic)
        self._say(ahead_seconds(wall=wall, others=others, shown=shown))
        if remembered is None or shown - remembered >= REMEMBER_SECONDS:
            await self._remember(shown, revision)
        return shown

    async def _remembered(self) -> tuple[float | None, int]:
        entry = await self._metadata.get(keys.SHOWN_TIME)
        if entry is None:
            return None, NO_REVISION
        try:
            remembered = METADATA.decode(entry.value, RememberedTime, entry.key).shown_ms / 1000
            self.stored = entry.value
            return remembered, entry.revision
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _logger.error("time_damaged", key=keys.SHOWN_TIME, error=str(error))
            return None, entry.revision

    async def _remember(self, shown: float, revision: int) -> None:
        """Store a newer time, unless another broker was quicker."""
        value = METADATA.encode(RememberedTime(shown_ms=int(shown * 1000)))
        try:
            await self._metadata.txn(compares=[Compare(keys.SHOWN_TIME, revision)], puts=[Put(keys.SHOWN_TIME, value)])
        except (SulinaError, OSError) as error:
            _logger.warning("time_not_written", error=str(error))

    def _say(self, ahead: float) -> None:
        was_off, self.ahead_seconds = bool(self.ahead_seconds), ahead
        if ahead and not was_off:
            self._events.emit("clock_off", ahead_seconds=round(ahead, 1))
        elif was_off and not ahead:
            self._events.emit("clock_right_again")
