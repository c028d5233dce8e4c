"""Which segments may go, and which files of the commit log.

Only whole sealed segments go, from the oldest on, and never past an offset that somebody still needs. Commit files go
only when two valid checkpoints make them needless, so that one checkpoint may be lost.

The age of a segment is what can be shown of it. Its commit says when it was written, by a clock that may have been
wrong; the monotonic clock of this process, where it has seen the log grow, says at least and at most how long ago that
was. What producers say of the times of their records counts for nothing here.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sulina.core.log.commit import Remove, SegmentRef
from sulina.types import Offset, Version

CHECKPOINTS_KEPT = 2
SIGHTINGS_MAX = 1024  # of one log; beyond it every other one is dropped


@dataclass(slots=True)
class Sightings:
    """Where a log was seen to end, and when, by the monotonic clock: bounds of the age of what lies before.

    They hold for one owner's epoch: after a change of owner an offset may be another record.
    """

    _ends: list[int] = field(default_factory=list)
    _first_at: list[float] = field(default_factory=list)  # when the log was first seen to end there
    _last_at: list[float] = field(default_factory=list)

    def note(self, end: Offset, now: float) -> None:
        """Say where the log ends now."""
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
        at = bisect_left(self._ends, end)  # the first sighting that has it
        least = now - self._first_at[at] if at < len(self._ends) else 0.0
        most = now - self._last_at[at - 1] if at > 0 else math.inf
        return least, most


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTime:
    """What is known of the time at one moment."""

    shown: float  # seconds since 1970, as far as it has been shown (`core.cluster.shown_time`)
    monotonic: float = 0.0
    sightings: Sightings | None = None  # of the log in question

    def age_seconds(self, written_ms: int, end: Offset) -> float:
        """Return the age of what was last written at `written_ms`, by the writer's clock, and ends before `end`."""
        age = self.shown - written_ms / 1000
        if self.sightings is None:
            return age
        least, most = self.sightings.age_bounds(end, self.monotonic)
        return min(max(age, least), most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What the log may forget: a segment goes when any limit says so. None does not limit."""

    bytes_max: int | None = None
    age_seconds_max: float | None = None  # since a segment was last written
    before_offset: Offset | None = None  # everything below it may go
    keep_from: Offset | None = None  # nothing from here on may go, whatever the others say
    time: KnownTime | None = None  # by which ages are told; None: by the clock of the log alone


def expired(segments: Sequence[SegmentRef], retention: Retention, now: float) -> list[Remove]:
    """The removals that bring the log within `retention`. `now` counts only where the retention knows no time."""
    removals: list[Remove] = []
    time = retention.time or KnownTime(shown=now)
    total_bytes = sum(segment.size for segment in segments)
    written_ms = 0
    for segment in segments:
        # What comes later in the log was written later: a clock that was behind does not make it older.
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
    """Commits and checkpoints below this version are needed by no recovery and by nobody who asked to keep them.

    `checkpoints` are the valid ones. With fewer than two nothing is disposable.
    """
    newest = sorted(checkpoints, reverse=True)[:CHECKPOINTS_KEPT]
    if len(newest) < CHECKPOINTS_KEPT:
        return Version(0)
    return Version(max(0, min(newest[-1], keep_from)))
