"""Which segments, and which files of the commit log, may be removed.

Only whole sealed segments are removed, from the oldest on, and never past an offset that a reader still needs. Commit
files are removed only when two valid checkpoints replace them, so that one checkpoint may be lost.

The age of a segment is the age that can be shown. Its commit has the time of writing, by a clock that may have been
wrong; the monotonic clock of this process, if it has seen the log grow, bounds how long ago that was. The timestamps of
producers do not count here.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sulina.core.log.commit import Remove, SegmentRef
from sulina.types import Offset, Version

CHECKPOINTS_KEPT = 2
SIGHTINGS_MAX = 1024  # of one log; beyond it every other sighting is dropped


@dataclass(slots=True)
class Sightings:
    """Ends of a log with the times when they were seen, by the monotonic clock: they bound the age of earlier records.

    They are valid for one owner's epoch: after a change of owner an offset may be another record.
    """

    _ends: list[int] = field(default_factory=list)
    _first_at: list[float] = field(default_factory=list)  # when the log was first seen to end there
    _last_at: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of sightings that are kept."""
        return len(self._ends)

    def note(self, end: Offset, now: float) -> None:
        """Note that the log ends at `end` now."""
        if self._ends and end <= self._ends[-1]:
            self._last_at[-1] = now
            return
        if len(self._ends) >= SIGHTINGS_MAX:
            del self._ends[1::2], self._first_at[1::2], self._last_at[1::2]
        self._ends.append(end)
        self._first_at.append(now)
        self._last_at.append(now)

    def age_bounds(self, end: Offset, now: float) -> tuple[float, float]:
        """Return how many seconds ago, at least and at most, the record before `end` was written."""
        at = bisect_left(self._ends, end)  # the first sighting that includes the record
        least = now - self._first_at[at] if at < len(self._ends) else 0.0
        most = now - self._last_at[at - 1] if at > 0 else math.inf
        return least, most


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTime:
    """The time as it is known at one moment."""

    shown: float  # seconds since 1970, as far as clocks have shown it (`core.cluster.shown_time`)
    monotonic: float = 0.0
    sightings: Sightings | None = None  # of the log in question

    def age_seconds(self, written_ms: int, end: Offset) -> float:
        """Return the age of records that end before `end`, last written at `written_ms` by the writer's clock."""
        age = self.shown - written_ms / 1000
        if self.sightings is None:
            return age
        least, most = self.sightings.age_bounds(end, self.monotonic)
        return min(max(age, least), most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Limits of a log: a segment is removed when it is past any of them. None does not limit."""

    bytes_max: int | None = None
    age_seconds_max: float | None = None  # since a segment was last written
    before_offset: Offset | None = None  # segments that end at or before it may be removed
    keep_from: Offset | None = None  # records from here on stay, whatever the other limits are
    time: KnownTime | None = None  # for ages; None: the clock of the log alone decides


def expired(segments: Sequence[SegmentRef], retention: Retention, now: float) -> list[Remove]:
    """Return the removals that bring the log within `retention`. `now` counts only if `retention.time` is None."""
    removals: list[Remove] = []
    time = retention.time or KnownTime(shown=now)
    total_bytes = sum(segment.size for segment in segments)
    written_ms = 0
    for segment in segments:
        # Later segments were written later: a clock that was behind does not make them older.
        written_ms = max(written_ms, segment.written_ms)
        age_seconds = time.age_seconds(written_ms, segment.next_offset)
        if not segment.sealed or not _past(segment, retention, age_seconds, total_bytes):
            break
        if retention.keep_from is not None and segment.next_offset > retention.keep_from:
            break
        total_bytes -= segment.size
        removals.append(
            Remove(
                segment=segment.name,
                offset_start=segment.base,
                offset_end=segment.next_offset,
                size=segment.size,
            )
        )
    return removals


def _past(segment: SegmentRef, retention: Retention, age_seconds: float, total_bytes: int) -> bool:
    if retention.bytes_max is not None and total_bytes > retention.bytes_max:
        return True
    if retention.age_seconds_max is not None and age_seconds > retention.age_seconds_max:
        return True
    return retention.before_offset is not None and segment.next_offset <= retention.before_offset


def disposable_before(checkpoints: Iterable[Version], keep_from: Version) -> Version:
    """Return the version below which no recovery, and no holder of a pin, needs commits and checkpoints.

    `checkpoints` are the valid ones. With fewer than two, every file is needed.
    """
    newest = sorted(checkpoints, reverse=True)[:CHECKPOINTS_KEPT]
    if len(newest) < CHECKPOINTS_KEPT:
        return Version(0)
    return Version(max(0, min(newest[-1], keep_from)))
