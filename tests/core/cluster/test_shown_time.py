"""What retention takes for the time: no single clock can make it run ahead."""

import pytest

from sulina.core.cluster.shown_time import CATCH_UP, TOLERANCE_SECONDS, ShownTime, agreed_time, ahead_seconds

NOON = 1_700_000_000.0
DAY = 24 * 3600.0


def looked(time: ShownTime, wall: float, after: float, *others: float, remembered: float | None = None) -> float:
    """Return what has been shown, relative to noon. `after` are seconds by the monotonic clock."""
    known = None if remembered is None else NOON + remembered
    clocks = [NOON + other for other in others]
    return time.look(wall=NOON + wall, monotonic=after, others=clocks, remembered=known) - NOON


def test_it_goes_with_clocks_that_agree() -> None:
    time = ShownTime()
    assert looked(time, 0, 0, 1, -1) == 0
    assert looked(time, 60, 60, 61, 59) == 60


def test_a_clock_that_jumps_ahead_shows_nothing_l15() -> None:
    time = ShownTime()
    looked(time, 0, 0)
    assert looked(time, 2 * DAY + 60, 60) == pytest.approx(60 * (1 + CATCH_UP))
    assert looked(time, 2 * DAY + 120, 120) == pytest.approx(120 * (1 + CATCH_UP))


def test_clocks_that_jump_together_wait_for_the_monotonic_clock_l15() -> None:
    time = ShownTime()
    looked(time, 0, 0, 0, 0)
    jumped = 2 * DAY + 60
    assert looked(time, jumped, 60, jumped, jumped, remembered=0) < 61


def test_a_broker_that_starts_with_a_clock_ahead_is_held_by_what_the_cluster_remembers_l15() -> None:
    assert looked(ShownTime(), 2 * DAY, 0, remembered=-30) == -30
    assert looked(ShownTime(), 2 * DAY, 0, 2 * DAY, remembered=-30) == -30, "also if another has jumped with it"


@pytest.mark.parametrize(
    ("others", "shown"),
    [((0.0,), 0.0), ((0.0, 0.0), 0.0), ((0.0, 3 * DAY), 2 * DAY), ((-DAY, 2 * DAY), 2 * DAY), ((-DAY,), -DAY)],
)
def test_without_a_memory_the_lower_median_of_all_clocks_counts(others: tuple[float, ...], shown: float) -> None:
    assert looked(ShownTime(), 2 * DAY, 0, *others) == shown


def test_what_other_brokers_have_shown_meanwhile_counts_at_once() -> None:
    time = ShownTime()
    looked(time, 0, 0)
    assert looked(time, DAY, 10, DAY, remembered=DAY - 30) == DAY, "this process was paused for a day"


def test_small_steps_are_followed_and_a_lag_is_worked_off() -> None:
    time = ShownTime()
    looked(time, 0, 0)
    assert looked(time, TOLERANCE_SECONDS, 0) == TOLERANCE_SECONDS
    after = 1000 * 2 * DAY
    assert looked(time, TOLERANCE_SECONDS + 2 * DAY + after, after) == TOLERANCE_SECONDS + 2 * DAY + after


def test_a_clock_that_goes_back_is_followed() -> None:
    time = ShownTime()
    looked(time, 0, 0)
    assert looked(time, -DAY, 60) == -DAY


def test_our_own_clock_is_never_passed() -> None:
    assert agreed_time(NOON, [NOON + DAY, NOON + DAY]) == NOON


def test_a_clock_says_how_far_it_is_off() -> None:
    assert ahead_seconds(wall=NOON + DAY, others=[], shown=NOON) == DAY
    assert ahead_seconds(wall=NOON, others=[NOON + DAY, NOON + DAY], shown=NOON) == -DAY
    assert ahead_seconds(wall=NOON, others=[NOON + 5, NOON - 5], shown=NOON - 1) == 0
    assert ahead_seconds(wall=NOON, others=[NOON + 100, NOON + 100], shown=NOON) == 0
    assert ahead_seconds(wall=NOON, others=[NOON + DAY], shown=NOON) == 0, (
        "of two clocks that differ either may be wrong"
    )
