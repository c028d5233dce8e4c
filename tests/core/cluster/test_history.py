"""Which history may be forgotten: what was seen long enough ago, and nothing by guess."""

import random

from sulina.core.cluster.history import (
    NOTES_PER_KEEP,
    NOTHING,
    PRESSED_KEEP_SECONDS,
    SeenRevisions,
    is_pressed,
    kept_seconds,
)


def test_nothing_is_old_before_it_was_seen_that_long_ago() -> None:
    seen = SeenRevisions(300)
    assert seen.older_than(300, 1000) == NOTHING
    seen.saw(50, 1000)
    assert seen.older_than(300, 1299.9) == NOTHING
    assert seen.older_than(300, 1300) == 50


def test_the_newest_that_is_old_enough_counts() -> None:
    seen = SeenRevisions(300)
    for second in range(0, 1000, 10):
        seen.saw(1000 + second, second)
    assert seen.older_than(300, 990) == 1690
    assert seen.older_than(10, 990) == 1980


def test_a_store_that_went_back_makes_nothing_newer() -> None:
    seen = SeenRevisions(300)
    seen.saw(100, 0)
    seen.saw(40, 100)
    assert seen.older_than(300, 300) == 100  # the store refuses what it does not have


def test_what_is_remembered_is_bounded_and_never_too_new() -> None:
    """Whatever is seen when: the answer was seen at least so long ago, and is hardly older than that."""
    chance = random.Random(1)
    seen, truth, now, revision = SeenRevisions(60), [(0.0, NOTHING)], 0.0, 0
    for _ in range(5000):
        now += chance.expovariate(5)
        revision += chance.randrange(30)
        seen.saw(revision, now)
        truth.append((now, revision))
        asked = chance.choice((5.0, 60.0))
        answer = seen.older_than(asked, now)
        exact = max(known for at, known in truth if at <= now - asked) if now >= asked else NOTHING
        assert answer <= exact
        slack = 2 * 60 / NOTES_PER_KEEP + 3
        assert answer >= max([NOTHING, *(known for at, known in truth if 0 < at <= now - asked - slack)])
        assert len(seen) <= NOTES_PER_KEEP + 2


def test_a_store_that_runs_out_of_room_keeps_less() -> None:
    assert not is_pressed(is_full=False, used_bytes=None, quota_bytes=None)
    assert not is_pressed(is_full=False, used_bytes=69, quota_bytes=100)
    assert not is_pressed(is_full=False, used_bytes=70, quota_bytes=100)
    assert is_pressed(is_full=False, used_bytes=71, quota_bytes=100)
    assert not is_pressed(is_full=False, used_bytes=71, quota_bytes=None)
    assert is_pressed(is_full=True, used_bytes=1, quota_bytes=None)
    assert kept_seconds(300, is_pressed=False) == 300
    assert kept_seconds(300, is_pressed=True) == PRESSED_KEEP_SECONDS
    assert kept_seconds(2, is_pressed=True) == 2
