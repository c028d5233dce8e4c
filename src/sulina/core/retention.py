"""Which segments may go, and which files of the commit log.

Only whole sealed segments go, from the oldest on, and never past an offset that somebody still needs. Commit files go
only when two valid checkpoints make them needless, so that one checkpoint may be lost.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sulina.core.commit import Remove, SegmentRef
from sulina.types import Offset, Version

CHECKPOINTS_KEPT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What the log may forget: a segment goes when any limit says so. None does not limit."""

    bytes_max: int | None = None
    age_seconds_max: float | None = None  # since a segment was last written
    before_offset: Offset | None = None  # everything below it may go
    keep_from: Offset | None = None  # nothing from here on may go, whatever the others say


def expired(segments: Sequence[SegmentRef], retention: Retention, now: float) -> list[Remove]:
    """The removals that bring the log within `retention`."""
    removals: list[Remove] = []
    total_bytes = sum(segment.size for segment in segments)
    for segment in segments:
        if not segment.sealed or not _past(segment, retention, now, total_bytes):
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


def _past(segment: SegmentRef, retention: Retention, now: float, total_bytes: int) -> bool:
    if retention.bytes_max is not None and total_bytes > retention.bytes_max:
        return True
    # By our clock: what a producer says of its records' times may be long past, or far ahead.
    if retention.age_seconds_max is not None and now - segment.written_ms / 1000 > retention.age_seconds_max:
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
