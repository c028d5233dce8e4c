"""How old a segment is: what its commit says, within what the monotonic clock has seen."""

import math

import pytest

from sulina.core.log.commit import SegmentRef
from sulina.core.log.retention import SIGHTINGS_MAX, KnownTime, Retention, Sightings, expired
from sulina.core.log.segment import segment_name
from sulina.types import Epoch, Offset

DAY = 24 * 3600.0
NOON = 1_700_000_000.0


def segment(base: int, written: float) -> SegmentRef:
    """Return a segment of 10 records, last written at `written`, relative to noon."""
    return SegmentRef(
        name=segment_name(base),
        base=Offset(base),
        next_offset=Offset(base + 10),
        size=100,
        epoch=Epoch(0),
        created_ms=0,
        written_ms=int((NOON + written) * 1000),
        timestamp_max=0,
        sealed=True,
    )


def gone(
    segments: list[SegmentRef], *, shown: float, monotonic: float = 0.0, sightings: Sightings | None = None
) -> int:
    """Return how many segments a retention of one day removes."""
    time = KnownTime(shown=NOON + shown, monotonic=monotonic, sightings=sightings)
    return len(expired(segments, Retention(age_seconds_max=DAY, time=time), math.inf))


def test_the_clock_of_the_log_counts_for_nothing_where_the_time_is_known_l15() -> None:
    assert gone([segment(0, 0)], shown=DAY) == 0
    assert gone([segment(0, 0)], shown=DAY + 1) == 1


def test_what_follows_in_the_log_is_not_older_whatever_its_writer_s_clock_said_l15() -> None:
    written_by_a_clock_that_was_behind = [segment(0, 0), segment(10, -3 * DAY)]
    assert gone(written_by_a_clock_that_was_behind, shown=60) == 0


def test_what_was_seen_to_come_a_minute_ago_is_not_older_l15() -> None:
    sightings = Sightings()
    sightings.note(Offset(0), 100.0)
    sightings.note(Offset(10), 160.0)
    assert gone([segment(0, -3 * DAY)], shown=0, monotonic=170.0, sightings=sightings) == 0
    assert gone([segment(0, -3 * DAY)], shown=0, monotonic=101.0 + DAY, sightings=sightings) == 1


def test_what_was_seen_for_a_day_is_a_day_old_though_its_writer_s_clock_was_ahead() -> None:
    sightings = Sightings()
    sightings.note(Offset(10), 100.0)
    ahead = [segment(0, 1000 * DAY)]
    assert gone(ahead, shown=0, monotonic=100.0 + DAY, sightings=sightings) == 0
    assert gone(ahead, shown=0, monotonic=101.0 + DAY, sightings=sightings) == 1


def test_sightings_bound_an_age_from_both_sides() -> None:
    sightings = Sightings()
    assert sightings.age_bounds(Offset(5), 50.0) == (0.0, math.inf)
    sightings.note(Offset(10), 100.0)
    sightings.note(Offset(10), 130.0)
    sightings.note(Offset(20), 160.0)
    assert sightings.age_bounds(Offset(10), 200.0) == (100.0, math.inf)
    assert sightings.age_bounds(Offset(11), 200.0) == (40.0, 70.0)
    assert sightings.age_bounds(Offset(20), 200.0) == (40.0, 70.0)
    assert sightings.age_bounds(Offset(21), 200.0) == (0.0, 40.0)


def test_sightings_are_bounded_and_claim_no_more_than_was_seen() -> None:
    sightings = Sightings()
    looks = 5 * SIGHTINGS_MAX
    for number in range(looks):
        sightings.note(Offset(number), float(number))
    assert len(sightings) <= SIGHTINGS_MAX
    for number in range(0, looks, 97):
        least, most = sightings.age_bounds(Offset(number), float(looks))
        assert least <= looks - number <= most
    assert sightings.age_bounds(Offset(looks - 1), float(looks)) == pytest.approx((1, 2))
