"""The cursor: an acked prefix, what is acked beyond it, and how often the rest has failed."""

import pytest

from sulina.core.cursor import Cursor
from sulina.errors import CorruptCommit


def test_acks_out_of_order_move_the_prefix_when_the_gap_closes_p12() -> None:
    cursor = Cursor(10)
    assert cursor.ack(12, 14) == 2
    assert cursor.offset == 10
    assert cursor.unacked(10, 16) == [(10, 12), (14, 16)]
    assert cursor.ack(10, 13) == 2, "one of the three was acked before"
    assert cursor.offset == 14
    assert list(cursor.acked) == []


def test_an_ack_below_the_prefix_counts_nothing() -> None:
    cursor = Cursor(10)
    assert cursor.ack(3, 11) == 1
    assert cursor.ack(3, 11) == 0
    assert cursor.offset == 11


def test_lag_counts_what_is_not_acked() -> None:
    cursor = Cursor(0)
    cursor.ack(2, 4)
    assert cursor.lag(10) == 8


def test_failed_deliveries_are_counted_until_the_record_is_acked() -> None:
    cursor = Cursor(0)
    assert cursor.failed(0, 4) == [(0, 4, 1)]
    assert cursor.failed(2, 6) == [(2, 4, 2), (4, 6, 1)]
    cursor.ack(0, 3)
    assert cursor.attempts.pieces(0, 6, 0) == [(0, 3, 0), (3, 4, 2), (4, 6, 1)]


def test_a_cursor_survives_being_stored() -> None:
    cursor = Cursor(5)
    cursor.ack(7, 9)
    cursor.failed(10, 12)
    again = Cursor.load("/key", cursor.stored())
    assert (again.offset, list(again.acked), list(again.attempts)) == (5, [(7, 9)], [(10, 12, 1)])


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"offset": "x"}', b"\xff"])
def test_a_damaged_cursor_is_named_never_guessed(data: bytes) -> None:
    with pytest.raises(CorruptCommit, match="/topics/x"):
        Cursor.load("/topics/x", data)


def test_what_retention_took_is_skipped_and_counted() -> None:
    cursor = Cursor(5)
    cursor.ack(7, 9)
    assert cursor.skip_to(12) == 5
    assert cursor.offset == 12
    assert cursor.skip_to(3) == 0
