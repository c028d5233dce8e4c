"""Which part of the metadata store's history may be compacted: only what this broker has itself seen to be old.

A revision says nothing about time, and clocks of machines differ. So a broker notes, by its own monotonic clock, when
it saw the store at which revision: that revision is at least as old as the note. Watchers that are behind by less than
the kept history go on; one that is further behind lists everything again.
"""

from collections import deque

NOTES_PER_KEEP = 60  # how many notes are kept
PRESSED_SHARE = 0.7  # share of its quota in use: the store is about to be full
PRESSED_KEEP_SECONDS = 10.0  # enough for brokers that are connected but slow
NOTHING = 0  # no revision


class SeenRevisions:
    """Revisions that this broker has seen, and when, for as long as history is kept."""

    def __init__(self, keep_seconds: float) -> None:
        self._keep_seconds = keep_seconds
        self._notes: deque[tuple[float, int]] = deque()  # time and revision; both increase

    def __len__(self) -> int:
        return len(self._notes)

    def saw(self, revision: int, now: float) -> None:
        """Note that the store is at `revision` or later."""
        if self._notes:
            at, newest = self._notes[-1]
            if revision <= newest or now - at < self._keep_seconds / NOTES_PER_KEEP:
                return
        self._notes.append((now, revision))
        while len(self._notes) > 1 and self._notes[1][0] <= now - self._keep_seconds:
            self._notes.popleft()

    def older_than(self, seconds: float, now: float) -> int:
        """Return the newest revision that was seen at least `seconds` ago; `NOTHING`: no revision was."""
        return next((revision for at, revision in reversed(self._notes) if at <= now - seconds), NOTHING)


def is_pressed(*, is_full: bool, used_bytes: int | None, quota_bytes: int | None) -> bool:
    """Return whether the store is full, or soon will be."""
    if used_bytes is None or quota_bytes is None:
        return is_full
    return is_full or used_bytes > PRESSED_SHARE * quota_bytes


def kept_seconds(wanted: float, *, is_pressed: bool) -> float:
    """Return how much history to keep: `wanted`, or less if the store runs out of room."""
    return min(wanted, PRESSED_KEEP_SECONDS) if is_pressed else wanted
