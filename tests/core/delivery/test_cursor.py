"""The cursor: an acked prefix, what is acked beyond it, and how often the rest has failed."""

import pytest

from sulina.core.delivery.cursor import Cursor
from sulina.core.log.commit import SegmentRef
from sulina.core.log.epochs import EpochHistory
from sulina.core.log.log_state import NO_EPOCH
from sulina.core.log.segment import segment_name
from sulina.errors import CorruptCommit
from sulina.types import Epoch, Offset


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
    cursor.ack(0, 2)
    assert (cursor.offset, cursor.lag(10), cursor.lag(4), cursor.lag(3)) == (4, 6, 0, 0)


def test_failed_deliveries_are_counted_until_the_record_is_acked() -> None:
    cursor = Cursor(0)
    assert cursor.failed(0, 4) == [(0, 4, 1)]
    assert cursor.failed(2, 6) == [(2, 4, 2), (4, 6, 1)]
    cursor.ack(0, 3)
    assert cursor.attempts.pieces(0, 6, 0) == [(0, 3, 0), (3, 4, 2), (4, 6, 1)]


def test_a_cursor_survives_being_stored() -> None:
    cursor = Cursor(5)
    for start, end in [(7, 9), (12, 17), (30, 31)]:
        cursor.ack(start, end)
    for start, end in [(10, 12), (11, 12), (20, 24)]:
        cursor.failed(start, end)
    again = Cursor.load("/key", cursor.stored())
    assert (again.offset, list(again.acked)) == (5, [(7, 9), (12, 17), (30, 31)])
    assert list(again.attempts) == [(10, 11, 1), (11, 12, 2), (20, 24, 1)]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"offset": "x"}', b"\xff"])
def test_a_damaged_cursor_is_named_never_guessed(data: bytes) -> None:
    with pytest.raises(CorruptCommit, match=r"/topics/x is damaged: (?!None)\S"):
        Cursor.load("/topics/x", data)


def test_what_retention_took_is_skipped_and_counted() -> None:
    cursor = Cursor(5)
    cursor.ack(7, 9)
    assert cursor.skip_to(12) == 5
    assert cursor.offset == 12
    assert cursor.skip_to(3) == 0


@pytest.mark.parametrize(
    ("end", "offset", "acked", "attempts", "changes"),
    [
        (20, 5, [(7, 9), (12, 17)], [(9, 12, 1), (17, 19, 1)], False),
        (19, 5, [(7, 9), (12, 17)], [(9, 12, 1), (17, 19, 1)], False),
        (18, 5, [(7, 9), (12, 17)], [(9, 12, 1), (17, 18, 1)], True),
        (15, 5, [(7, 9), (12, 15)], [(9, 12, 1)], True),
        (10, 5, [(7, 9)], [(9, 10, 1)], True),
        (5, 5, [], [], True),
        (4, 4, [], [], True),
    ],
)
def test_u10_what_lies_beyond_the_end_of_a_log_is_forgotten_because_others_will_be_there(
    end: int, offset: int, acked: list[object], attempts: list[object], changes: bool
) -> None:
    cursor = Cursor(5)
    cursor.ack(7, 9)
    cursor.ack(12, 17)
    cursor.failed(9, 12)
    cursor.failed(17, 19)
    assert cursor.follow(log(end)) is changes
    assert (cursor.offset, list(cursor.acked), list(cursor.attempts)) == (offset, acked, attempts)
    assert cursor.follow(log(end)) is False


def log(end: int, *starts: tuple[int, int]) -> EpochHistory:
    """A log that ends there, and whose epochs begin at these offsets."""
    ends = [*(base for _, base in starts[1:]), end]
    segments = [
        SegmentRef(
            name=segment_name(base), base=Offset(base), next_offset=Offset(until), size=1, epoch=Epoch(epoch),
            created_ms=0, written_ms=0, timestamp_max=0,
        )
        for (epoch, base), until in zip(starts, ends, strict=False)
    ]  # fmt: skip
    return EpochHistory(segments[-1].epoch if segments else Epoch(0), Offset(end), segments)


def test_a_cursor_beyond_the_log_comes_back_to_its_end() -> None:
    cursor = Cursor(5)
    assert [cursor.follow(log(6)), cursor.follow(log(5)), cursor.follow(log(4))] == [False, False, True]
    assert cursor.offset == 4


def test_u10_acks_of_what_was_given_up_do_not_count_for_records_that_have_its_offsets_now() -> None:
    cursor = Cursor(3, epoch=1)
    cursor.ack(5, 8)
    cursor.ack(12, 17)
    cursor.failed(9, 11)
    assert cursor.follow(log(40, (1, 0), (4, 7)))
    assert (cursor.offset, list(cursor.acked), list(cursor.attempts), cursor.epoch) == (3, [(5, 7)], [], 4)
    assert not cursor.follow(log(50, (1, 0), (4, 7))), "it is a cursor of this log now"


def test_u10_a_cursor_past_what_was_given_up_goes_back_to_where_the_log_goes_on() -> None:
    cursor = Cursor(20, epoch=1)
    assert cursor.follow(log(40, (1, 0), (4, 7)))
    assert (cursor.offset, cursor.epoch) == (7, 4)


def test_u10_a_cursor_keeps_its_epoch_when_it_is_stored() -> None:
    assert Cursor.load("key", Cursor(7, epoch=3).stored()).epoch == 3
    assert Cursor.load("key", b'{"offset":7}').epoch == NO_EPOCH, "one of before"


def test_a_cursor_of_no_epoch_keeps_its_place_in_whatever_log_it_meets_first() -> None:
    cursor = Cursor(20)
    assert not cursor.follow(log(40, (1, 0), (4, 7))), "it was never read by an epoch that could have ended before"
    assert (cursor.offset, cursor.epoch) == (20, 4)
