import time

import pytest

from sulina.clock import SystemClock
from sulina.ports import Clock
from sulina.testing import VirtualClock


def test_virtual_time_stands_still_until_it_is_advanced() -> None:
    clock: Clock = VirtualClock(now=100.0)
    assert (clock.now(), clock.monotonic()) == (clock.now(), clock.monotonic()) == (100.0, 0.0)


def test_advancing_moves_both_clocks() -> None:
    clock = VirtualClock(now=100.0)
    clock.advance(2.5)
    clock.advance(0.5)
    assert (clock.now(), clock.monotonic()) == (103.0, 3.0)


def test_virtual_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        VirtualClock().advance(-1)


def test_the_system_clock_tells_the_time_of_this_machine() -> None:
    clock: Clock = SystemClock()
    assert time.time() <= clock.now() <= time.time()
    assert time.monotonic() <= clock.monotonic() <= time.monotonic()
