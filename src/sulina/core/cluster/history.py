"""Which part of the metadata store's history may be forgotten: only what this broker itself has seen to be old.

A revision says nothing about time, and clocks of machines differ. So a broker notes, by its own monotonic clock, when
it saw the store at which revision; what it saw some seconds ago is at least that old. Others may be behind by that much
and still go on where they were; one that is further behind lists everything again.
"""

from collections import deque

NOTES_PER_KEEP = 60  # how finely time is told; also the bound on what is remembered
PRESSED_SHARE = 0.7  # of its quota in use: the store is about to be full
PRESSED_KEEP_SECONDS = 10.0  # for brokers that are connected, and only slow
NOTHING = 0  # no revision


class SeenRevisions:
    """When this broker saw which revision, for as long as history is kept."""

    def __init__(self, keep_seconds: float) -> None:
        self._keep_seconds = keep_seconds
        self._notes: deque[tuple[float, int]] = deque()  # when, and which; both rise

    def __len__(self) -> int:
        return len(self._notes)

    def saw(self, revision: int, now: float) -> None:
        """Note that the store was at `revision`, or further."""
        if self._notes:
            at, newest = self._notes[-1]
            if revision <= newest or now - at < self._keep_seconds / NOTES_PER_KEEP:
                return
        self._notes.append((now, revision))
        while len(self._notes) > 1 and self._notes[1][0] <= now - self._keep_seconds:
            self._notes.popleft()

    def older_than(self, seconds: float, now: float) -> int:
        """Return the newest revision that was seen at least so long ago; `NOTHING` when none was."""
        return next((revision for at, revision in reversed(self._notes) if at <= now - seconds), NOTHING)


def is_pressed(*, is_full: bool, used_bytes: int | None, quota_bytes: int | None) -> bool:
    """Whether the store takes no more writes, or soon will not."""
    if used_bytes is None or quota_bytes is None:
        return is_full
    return is_full or used_bytes > PRESSED_SHARE * quota_bytes


def kept_seconds(wanted: float, *, is_pressed: bool) -> float:
    """How much history to keep: as much as is wanted, unless the store runs out of room."""
    return min(wanted, PRESSED_KEEP_SECONDS) if is_pressed else wanted
