"""How long is waited before something is tried again."""

import random

import pytest

from sulina.core.backoff import Backoff, ElapsedBackoff, doubled, jittered


def test_pauses_double_up_to_a_limit_and_begin_again() -> None:
    backoff = Backoff(1.0, 8.0, random.Random(1).random)
    for longest in (1, 2, 4, 8, 8, 8):
        assert longest / 2 <= backoff.next() <= longest
    backoff.attempt = 10_000
    assert backoff.next() <= 8
    backoff.reset()
    assert backoff.next() <= 1


def test_a_pause_is_the_same_for_the_same_chance() -> None:
    assert (jittered(4.0, lambda: 0.0), jittered(4.0, lambda: 0.5)) == (2.0, 3.0)
    assert Backoff(1.0, 8.0, lambda: 1.0).next() == doubled(1.0, 8.0, 0) == 1.0


def test_a_long_wait_is_asked_about_less_often() -> None:
    backoff = ElapsedBackoff(0.05, 5.0, lambda: 1.0)
    assert backoff.next(100.0) == 0.0, "what is known may just be old"
    assert backoff.next(100.1) == 0.05
    assert backoff.next(110.0) == pytest.approx(1.0)
    assert backoff.next(1000.0) == 5.0
    backoff.reset()
    assert backoff.next(2000.0) == 0.0
