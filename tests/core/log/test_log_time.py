"""The time of a log: what was measured counts, what wall clocks say counts for little."""

from sulina.core.log.log_time import UNMEASURED_MS_MAX, next_log_ms

DAY_MS = 24 * 3600 * 1000


def test_what_a_running_owner_measured_counts_in_full() -> None:
    assert next_log_ms(5, measured_ms=DAY_MS, last_ms=0, now_ms=0) == 5 + DAY_MS


def test_between_two_processes_a_clock_that_is_days_ahead_counts_for_a_minute_l13() -> None:
    assert next_log_ms(5, measured_ms=None, last_ms=1000, now_ms=1000 + 2 * DAY_MS) == 5 + UNMEASURED_MS_MAX
    assert next_log_ms(5, measured_ms=None, last_ms=1000, now_ms=3000) == 2005


def test_it_never_goes_back() -> None:
    assert next_log_ms(5, measured_ms=None, last_ms=DAY_MS, now_ms=0) == 5
    assert next_log_ms(5, measured_ms=-1, last_ms=0, now_ms=0) == 5
