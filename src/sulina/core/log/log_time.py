"""The time of a log: milliseconds of its life, as far as its owners have measured them. It never goes back.

A clock may be wrong by days, and jump. So the age of a commit is not the difference of two timestamps: a running owner
measures the time between its commits by its monotonic clock. Between the last commit of one process and the first of
the next there are only wall clocks, and their difference counts for a minute at most. So an entry is remembered for at
least its time, and longer where a log was not open in between.
"""

UNMEASURED_MS_MAX = 60_000


def next_log_ms(log_ms: int, *, measured_ms: int | None, last_ms: int, now_ms: int) -> int:
    """Return the time of a log whose newest commit has `log_ms`.

    `measured_ms` has passed since that commit, by the monotonic clock of the process that made it. None: another
    process made it, when its wall clock showed `last_ms`; ours shows `now_ms` now.
    """
    if measured_ms is not None:
        return log_ms + max(0, measured_ms)
    return log_ms + min(max(0, now_ms - last_ms), UNMEASURED_MS_MAX)
