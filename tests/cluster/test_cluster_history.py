"""The rules that clusters are held to can fail: each of them sees the history that breaks it.

The rules of the log and of the commit feed are those of `kill_history`, and are shown to fail in test_kill_history.py.
"""

import pytest

from sulina.core.delivery.members import SubscriptionKind
from tests.support.cluster_history import ClusterHistory, cluster_violations
from tests.support.kill_history import (
    AckAnswered,
    AckSent,
    Added,
    Answer,
    Committed,
    CursorAsked,
    CursorShown,
    CursorsRestored,
    Delivered,
    Ended,
    Event,
    RangeGivenUp,
    Stored,
    Txn,
)

A, B = "a/1", "a/2"  # two attachments of one consumer
ALL: list[Event] = [Delivered(A, 0, 1, range(4)), AckSent(A, 0, range(4), 1), AckAnswered(1)]


class Small:
    """One partition with two publishes of two records: t0 by a first owner, t1 by a second; both claim first."""

    def __init__(self, kind: SubscriptionKind = SubscriptionKind.EXCLUSIVE) -> None:
        self.history = ClusterHistory()
        self.log: dict[int, list[Stored]] = {0: []}
        self.feed: dict[int, list[Committed]] = {0: []}
        self.kind = kind
        for number in range(2):
            self.publish(f"t{number}")

    def publish(self, txn_id: str) -> None:
        records, feed, now = self.log[0], self.feed[0], self.history.now
        start = len(records)
        feed.append(Committed(len(feed), start))  # the claim
        txn = self.history.txns[txn_id] = Txn.of(txn_id, "p", [None, None], partition=0, at=now())
        records += [Stored(start + place, *content) for place, content in enumerate(txn.records)]
        feed.append(Committed(len(feed), start + 2, (Added(txn_id, start, start + 2),)))
        txn.answers.append(Answer(now(), 0, start, 2, len(feed) - 1))

    def read(self, *offsets: int) -> None:
        for offset in offsets:
            record = self.log[0][offset]
            self.history.was_read("reader", (0, offset), (record.key, record.value))

    def consumed(self, *events: Event, cursor: int = 4) -> list[str]:
        self.history.kinds["sub"] = self.kind
        self.history.cursors["sub"] = {0: cursor}
        self.history.events["sub"] = list(events)
        return self.wrong

    @property
    def wrong(self) -> list[str]:
        return cluster_violations(self.history, self.log, self.feed)


def test_a_history_without_fault_is_accepted() -> None:
    small = Small()
    small.read(0, 1, 2, 3)
    small.history.txns["t2"] = Txn.of("t2", "p", [None], partition=0, at=99)  # sent, and never answered
    assert not small.consumed(
        Delivered(A, 0, 1, [0, 1]),
        AckSent(A, 0, [0], 1),
        AckAnswered(1),
        AckSent(A, 0, [1], 2),  # the attachment was lost
        Delivered(B, 0, 1, [1, 2, 3]),
        AckSent(B, 0, [1, 2, 3], 3),
        AckAnswered(3),
    )


def test_an_acked_record_that_another_owner_does_not_have_is_seen() -> None:
    small = Small()
    del small.log[0][2:], small.feed[0][2:]
    assert "t1 was acknowledged at (0, 2) and is not there" in small.wrong


def test_an_offset_that_two_owners_gave_is_seen() -> None:
    small = Small()
    answer = small.history.txns["t1"].answers[0]
    small.history.txns["t2"] = Txn.of("t2", "q", [None, None], partition=0, at=small.history.now())
    small.history.txns["t2"].answers.append(Answer(99, 0, answer.base_offset, 2, answer.version))
    assert "t2 was acknowledged at (0, 2) and is not there" in small.wrong


def test_a_version_that_an_owner_skipped_is_seen() -> None:
    small = Small()
    del small.feed[0][2]
    assert any("version 3 where 2 is due" in line for line in small.wrong)


def test_an_offset_that_was_seen_with_two_contents_is_seen() -> None:
    small = Small()
    small.read(0, 1, 2, 3)
    small.history.was_read("another", (0, 0), (None, b"something else"))
    assert len(small.wrong) == 1
    assert "was delivered as" in small.wrong[0]


@pytest.mark.parametrize("offsets", [(0, 2), (0, 1, 1), (1,), (0, 1, 0)])
def test_a_reader_that_misses_a_record_or_gets_one_again_is_seen(offsets: tuple[int, ...]) -> None:
    small = Small()
    small.read(*offsets)
    assert len(small.wrong) == 1
    assert "is due" in small.wrong[0]


def test_a_delivery_after_a_durable_ack_is_seen() -> None:
    assert Small().consumed(*ALL, Delivered(B, 0, 1, [3])) == [
        f"sub: (0, 3) was delivered to {B} after its ack was durable"
    ]


def test_a_delivery_that_skips_a_record_is_seen() -> None:
    assert Small().consumed(Delivered(A, 0, 1, [0, 2]), Delivered(B, 0, 1, range(4)), *ALL[1:]) == [
        f"sub: (0, 2) was delivered to {A} where 1 is due"
    ]


def test_a_session_that_gets_records_out_of_order_is_seen() -> None:
    assert Small(SubscriptionKind.SHARED).consumed(Delivered(A, 0, 1, [0, 1, 3, 2]), *ALL[1:]) == [
        f"sub: (0, 2) was delivered to {A} after 3"
    ]


def test_what_was_on_its_way_to_a_consumer_that_ended_may_come_late_to_another_and_only_once() -> None:
    late: list[Event] = [Ended(B), Delivered(A, 0, 1, [0, 1, 3]), Delivered(A, 0, 1, [2])]
    assert Small(SubscriptionKind.SHARED).consumed(*late, *ALL[1:]) == []
    assert Small().consumed(*late, *ALL[1:]) != []
    assert Small(SubscriptionKind.SHARED).consumed(*late, Delivered(A, 0, 1, [1]), *ALL[1:]) == [
        f"sub: (0, 1) was delivered to {A} after 2"
    ]


def test_shared_consumers_may_skip_and_exclusive_ones_may_not() -> None:
    events = [Delivered(A, 0, 1, [1, 3]), Delivered(B, 0, 1, [0, 2]), *ALL[1:]]
    assert Small(SubscriptionKind.SHARED).consumed(*events) == []
    assert Small().consumed(*events) != []


def test_a_record_that_is_never_delivered_is_seen() -> None:
    assert Small().consumed(Delivered(A, 0, 1, [0, 1, 2]), AckSent(A, 0, [0, 1, 2], 1), AckAnswered(1)) == [
        "sub: 1 of partition 0 were never delivered: [3]",
    ]


def test_a_cursor_that_is_not_at_the_end_is_seen() -> None:
    assert Small().consumed(*ALL, cursor=3) == ["sub: partition 0 ends at 4, the cursor is 3"]


def test_an_ack_without_an_answer_is_not_durable() -> None:
    assert Small().consumed(*ALL[:2], Delivered(B, 0, 1, [2, 3])) == []


def test_what_was_given_up_is_forgotten_and_nothing_else() -> None:
    small = Small()
    small.read(0, 1, 2, 3)
    small.history.read.clear()
    del small.log[0][2:], small.feed[0][2:]
    assert small.wrong
    assert small.history.give_up(0, 2, 4) == 2
    assert small.wrong == []
    del small.log[0][1:]
    assert small.wrong


# What was given up


def given_up() -> Small:
    """A reader has read t1 and an operator has given it up; t2 has its offsets now."""
    small = Small()
    small.read(0, 1, 2, 3)
    del small.log[0][2:], small.feed[0][2:]
    assert small.history.give_up(0, 2, 4) == 2
    small.publish("t2")
    return small


def test_a_reader_goes_on_where_the_log_does_after_a_range_was_given_up() -> None:
    small = given_up()
    small.read(2, 3)
    assert small.wrong == []


def test_a_reader_that_passes_over_records_which_took_the_place_of_others_is_seen() -> None:
    small = given_up()
    small.read(3)
    assert small.wrong == ["reader read offset 3 of partition 0 where 2 is due"]


def test_a_reader_that_goes_back_further_than_what_was_given_up_is_seen() -> None:
    small = given_up()
    small.read(1, 2, 3)
    assert small.wrong == ["reader read offset 1 of partition 0 where 2 is due"]


def test_a_record_that_is_read_after_it_was_given_up_is_seen() -> None:
    small = given_up()
    small.history.was_read("another", (0, 2), small.history.txns["t1"].records[0])
    assert any("was delivered as" in line for line in small.wrong)


def test_what_was_acked_and_not_reported_is_lost_with_what_was_given_up_and_nothing_older() -> None:
    small = Small()
    early, late = (small.history.txns[name].answers[0].at for name in ("t0", "t1"))
    del small.log[0][:], small.feed[0][:]
    assert small.history.give_up(0, 0, 0, unreported_after=early) == 2
    assert small.history.txns["t1"].answers == []
    assert any("t0 was acknowledged at (0, 0) and is not there" in line for line in small.wrong)
    assert late > early


def test_consumers_get_what_took_the_place_of_others_and_must_get_all_of_it() -> None:
    again: list[Event] = [*ALL, RangeGivenUp(0, 2, 4), Delivered(B, 0, 1, [2, 3]), AckSent(B, 0, [2, 3], 2)]
    assert Small().consumed(*again, AckAnswered(2)) == []
    assert Small().consumed(*ALL, RangeGivenUp(0, 2, 4)) == ["sub: 2 of partition 0 were never delivered: [2, 3]"]
    assert Small().consumed(*ALL, RangeGivenUp(0, 2, 4), Delivered(B, 0, 1, [3])) == [
        f"sub: (0, 3) was delivered to {B} where 2 is due",
        "sub: 1 of partition 0 were never delivered: [2]",
    ]
    assert Small().consumed(*ALL, RangeGivenUp(0, 2, 4), Delivered(B, 0, 1, range(1, 4))) == [
        f"sub: (0, 1) was delivered to {B} after its ack was durable"
    ]


# Cursors


def cursor(number: int, offset: int) -> CursorShown:
    return CursorShown(number, 0, offset, (), 4, 4 - offset)


def test_a_cursor_that_goes_back_without_a_seek_is_seen() -> None:
    assert Small().consumed(*ALL, CursorAsked(2), cursor(2, 4)) == []
    assert Small().consumed(*ALL, CursorAsked(2), cursor(2, 3)) == [
        "sub: the cursor of partition 0 is at 3, and acks up to 4 were durable: it went back without a seek"
    ]


def test_a_cursor_that_was_asked_for_before_an_ack_was_durable_may_lack_it() -> None:
    assert Small().consumed(*ALL[:2], CursorAsked(2), AckAnswered(1), cursor(2, 0)) == []


def test_restored_cursors_lack_what_was_acked_since_and_nothing_older() -> None:
    acked: list[Event] = [Delivered(A, 0, 1, [0, 1]), AckSent(A, 0, [0, 1], 1), AckAnswered(1)]
    acked += [Delivered(A, 0, 1, [2, 3]), AckSent(A, 0, [2, 3], 2), AckAnswered(2), CursorsRestored(1)]
    assert Small().consumed(*acked, CursorAsked(3), cursor(3, 2), Delivered(B, 0, 1, [2, 3])) == []
    assert Small().consumed(*acked, CursorAsked(3), cursor(3, 1), Delivered(B, 0, 1, [1, 2, 3])) == [
        "sub: the cursor of partition 0 is at 1, and acks up to 2 were durable: it went back without a seek",
        f"sub: (0, 1) was delivered to {B} after its ack was durable",
    ]


# What brokers answer


def look(small: Small, *, epoch: int, start: int = 0, end: int = 4) -> list[str]:
    """A broker is asked and answers at once."""
    small.history.saw_partition(small.history.before(0), "a", 0, epoch=epoch, start=start, end=end)
    return small.history.faults


def acked() -> Small:
    small = Small()
    small.history.was_acked(0, 4)
    assert look(small, epoch=7) == []
    return small


def test_an_owner_that_serves_after_a_newer_one_is_seen() -> None:
    assert look(acked(), epoch=6, end=9) == ["a served partition 0 under epoch 6 after another owner had epoch 7"]


def test_an_owner_that_was_asked_before_a_newer_one_answered_may_be_the_older() -> None:
    small = acked()
    before = small.history.before(0)
    assert look(small, epoch=8) == []
    small.history.saw_partition(before, "a", 0, epoch=7, start=0, end=4)
    assert small.history.faults == []


def test_an_answer_that_lacks_what_was_acked_before_is_seen() -> None:
    assert look(acked(), epoch=7, end=2) == [
        "a served partition 0 under epoch 7 up to 2, where 4 were acknowledged before"
    ]


def test_after_a_range_was_given_up_less_may_be_served_and_no_less_than_that() -> None:
    small = acked()
    before = small.history.before(0)
    small.history.give_up(0, 2, 4)
    small.history.saw_partition(before, "a", 0, epoch=7, start=0, end=2)
    assert look(small, epoch=8, end=2) == []
    assert len(look(small, epoch=8, end=1)) == 1


def test_records_that_go_before_their_time_are_seen() -> None:
    assert look(acked(), epoch=7, start=1) == [
        "a served partition 0 under epoch 7 from 1 on: records have gone before their time"
    ]


def test_a_partition_that_is_closed_without_a_cause_or_with_another_error_is_seen() -> None:
    small = Small()
    small.history.may_close[0] = {"log_incomplete"}
    small.history.saw_closed("a", 0, "log_incomplete", "records [2, 4) are missing")
    assert small.wrong == []
    small.history.saw_closed("a", 0, "corrupt_log", "?")
    del small.history.may_close[0]
    small.history.saw_closed("a", 0, "log_incomplete", "records [2, 4) are missing")
    assert [line.partition(":")[0] for line in small.wrong] == ["a closed partition 0 without a cause"] * 2


# Publishes without a txn_id


def unnamed(small: Small) -> None:
    commits = small.feed[0]
    commits[:] = [
        Committed(c.version, c.next_offset, tuple(Added(None, a.start, a.end) for a in c.added)) for c in commits
    ]


def test_publishes_that_rely_on_origin_and_sequence_are_known_by_their_records() -> None:
    small = Small()
    unnamed(small)
    assert small.wrong == []


def test_a_sequence_of_an_origin_that_is_written_twice_is_seen() -> None:
    small = Small()
    records = small.log[0]
    records += [Stored(4 + place, *content) for place, content in enumerate(small.history.txns["t1"].records)]
    small.feed[0].append(Committed(4, 6, (Added("t1", 4, 6),)))
    unnamed(small)
    assert any("t1 is at (0, 2) and at (0, 4)" in line for line in small.wrong)
