"""The rules that the kill test holds a node to can fail: each of them sees the history that breaks it."""

from collections.abc import Sequence

import pytest

from sulina.core.delivery.members import SubscriptionKind
from tests.support.kill_history import (
    AckAnswered,
    AckSent,
    Added,
    Answer,
    Committed,
    CursorAsked,
    CursorShown,
    Delivered,
    Ended,
    Event,
    History,
    NackSent,
    Restarted,
    Stored,
    Txn,
    violations,
)

A, B = "consumer-a/1", "consumer-b/2"


class Small:
    """One partition with three publishes of one publisher: t0 at [0, 2), t1 at [2, 3), t2 at [3, 5)."""

    def __init__(self, kind: SubscriptionKind = SubscriptionKind.EXCLUSIVE) -> None:
        self.history = History()
        self.log: dict[int, list[Stored]] = {0: []}
        self.feed: dict[int, list[Committed]] = {0: [Committed(0, 0)]}
        self.kind = kind
        for number, count in enumerate([2, 1, 2]):
            self.publish(f"t{number}", [b"k"] * count)

    def publish(self, txn_id: str, keys: Sequence[bytes | None]) -> Txn:
        now, records, feed = self.history.now, self.log[0], self.feed[0]
        txn = self.history.txns[txn_id] = Txn.of(txn_id, "p", keys, partition=0, at=now())
        start, version = len(records), len(feed)
        records += [Stored(start + place, *content) for place, content in enumerate(txn.records)]
        feed.append(Committed(version, len(records), (Added(txn_id, start, len(records)),)))
        txn.answers.append(Answer(now(), 0, start, len(keys), version))
        return txn

    def consume(self, *events: Event) -> None:
        self.history.kinds["sub"] = self.kind
        self.history.events["sub"] = list(events)
        for event in events:
            if isinstance(event, Delivered):
                for offset in event.offsets:
                    self.history.saw((0, offset), (self.log[0][offset].key, self.log[0][offset].value))

    @property
    def wrong(self) -> list[str]:
        return violations(self.history, self.log, self.feed)


def shown(number: int, offset: int, acked: Sequence[tuple[int, int]] = (), *, lag: int | None = None) -> CursorShown:
    ahead = sum(end - start for start, end in acked)
    return CursorShown(number, 0, offset, acked, 5, 5 - offset - ahead if lag is None else lag)


ALL_ACKED: list[Event] = [
    Delivered(A, 0, 1, range(5)),
    AckSent(A, 0, range(5), 9),
    AckAnswered(9),
    CursorAsked(10),
    shown(10, 5),
]


def test_a_history_without_fault_is_accepted() -> None:
    small = Small()
    small.consume(
        Delivered(A, 0, 1, [0, 1]),
        AckSent(A, 0, [0, 1], 1),
        AckAnswered(1),
        CursorAsked(2),
        Delivered(A, 0, 1, [2, 3]),
        shown(2, 2),
        NackSent(A, 0, [2]),
        AckSent(A, 0, [3]),
        CursorAsked(3),
        shown(3, 2, [(3, 4)]),
        Ended(A),
        Restarted(),
        CursorAsked(4),
        shown(4, 2),  # the ack of 3 was not durable
        Delivered(B, 0, 2, [2]),
        Delivered(B, 0, 1, [3, 4]),
        AckSent(B, 0, [2, 3]),
        AckSent(B, 0, [4], 5),
        AckAnswered(5),
        CursorAsked(6),
        shown(6, 5),
        Ended(B),
        Restarted(is_graceful=True),
        CursorAsked(7),
        shown(7, 5),
    )
    small.history.txns["t3"] = Txn.of("t3", "p", [None], partition=None, at=99)  # sent, and never answered
    assert small.wrong == []


# The log


def test_a_lost_record_is_seen() -> None:
    small = Small()
    small.log[0].pop()
    assert "t2 was acknowledged at (0, 3) and is not there" in small.wrong
    assert any("ends in the middle of a publish" in line for line in small.wrong)


def test_a_lost_publish_is_seen_also_where_offsets_close_up() -> None:
    small = Small()
    small.log[0] = [*small.log[0][:2], *(Stored(r.offset - 1, r.key, r.value) for r in small.log[0][3:])]
    assert "t1 was acknowledged at (0, 2) and is not there" in small.wrong


def test_a_publish_that_is_there_twice_is_seen() -> None:
    small = Small()
    small.log[0].append(Stored(5, small.log[0][2].key, small.log[0][2].value))
    assert "t1 is at (0, 2) and at (0, 5)" in small.wrong


def test_a_publish_that_is_there_twice_in_different_partitions_is_seen() -> None:
    small = Small()
    small.history.txns["t1"].partition = None
    small.log[1] = [Stored(0, small.log[0][2].key, small.log[0][2].value)]
    assert "t1 is at (0, 2) and at (1, 0)" in small.wrong


def test_a_shifted_offset_is_seen() -> None:
    small = Small()
    answer = small.history.txns["t1"].answers[0]
    small.history.txns["t1"].answers = [Answer(answer.at, 0, 3, 1, answer.version)]
    assert "t1 was acknowledged at (0, 3) and is not there" in small.wrong


def test_a_gap_is_seen() -> None:
    small = Small()
    small.log[0][4] = Stored(5, small.log[0][4].key, small.log[0][4].value)
    assert "partition 0: offset 5 where 4 is due" in small.wrong


def test_a_record_that_nobody_sent_is_seen() -> None:
    small = Small()
    small.log[0].append(Stored(5, b"k", b"t9|0|1|"))
    assert any("nobody sent" in line for line in small.wrong)


def test_a_changed_key_is_seen() -> None:
    small = Small()
    small.log[0][2] = Stored(2, b"another", small.log[0][2].value)
    assert any("nobody sent" in line for line in small.wrong)


def test_half_a_publish_that_was_never_answered_is_seen() -> None:
    small = Small()
    txn = small.history.txns["t3"] = Txn.of("t3", "p", [None, None], partition=0, at=small.history.now())
    small.log[0].append(Stored(5, *txn.records[0]))
    assert any("ends in the middle of a publish" in line for line in small.wrong)


def test_a_torn_publish_is_seen() -> None:
    small = Small()
    log = small.log[0]
    log[1], log[2] = Stored(1, log[2].key, log[2].value), Stored(2, log[1].key, log[1].value)
    assert any("begins before another publish is whole" in line for line in small.wrong)
    assert any("begins in the middle of t0" in line for line in small.wrong)


def test_the_wrong_partition_is_seen() -> None:
    small = Small()
    small.history.txns["t1"].partition = 1
    assert "t1 is in partition 0, it belongs to 1" in small.wrong


def test_answers_that_differ_are_seen() -> None:
    small = Small()
    small.history.txns["t1"].answers.append(Answer(90, 0, 2, 1, 3))
    assert any("t1 was answered differently" in line for line in small.wrong)
    assert "t1 was answered version 3, it is 2" in small.wrong


# The commit feed


@pytest.mark.parametrize(
    ("feed", "complaint"),
    [
        ([Committed(0, 2, (Added("t0", 0, 2),)), Committed(2, 3, (Added("t1", 2, 3),))], "version 2 where 1 is due"),
        ([Committed(0, 2, (Added("t0", 0, 2),)), Committed(1, 5, (Added("t2", 3, 5),))], "adds 3, 2 is due"),
        ([Committed(0, 2, (Added("t0", 0, 2),))], "ends at 5, its commits at 2"),
        ([Committed(0, 3, (Added("t0", 0, 2),))], "says 3, it adds up to 2"),
        ([Committed(0, 1, (Added("t0", 0, 1),)), Committed(1, 2, (Added("t0", 1, 2),))], "is in the versions 0 and 1"),
        ([Committed(0, 2, (Added("t1", 0, 2),))], "[0, 2) is not what t1 sent"),
    ],
)
def test_a_commit_feed_that_does_not_fit_is_seen(feed: list[Committed], complaint: str) -> None:
    small = Small()
    small.feed[0] = feed
    assert any(complaint in line for line in small.wrong)


# Order


def test_a_publisher_whose_records_changed_places_is_seen() -> None:
    small = Small()
    small.history.txns["t1"].sent_at = 0
    assert any(line.startswith("t0 at (0, 0) was sent after t1") for line in small.wrong)


def test_a_record_before_one_that_was_answered_earlier_is_seen() -> None:
    small = Small()
    for txn in small.history.txns.values():
        txn.publisher = txn.txn_id
    small.history.txns["t0"].sent_at = 50  # when t2 was answered long ago
    assert any("t0 at (0, 0) was sent when" in line for line in small.wrong)


# Subscriptions


def test_a_delivery_after_a_durable_ack_is_seen() -> None:
    small = Small()
    small.consume(*ALL_ACKED, Ended(A), Restarted(), Delivered(B, 0, 1, [4]), CursorAsked(11), shown(11, 5))
    assert small.wrong == [f"sub: (0, 4) was delivered to {B} after its ack was durable"]


def test_a_delivery_of_what_was_acked_before_a_durable_ack_is_seen() -> None:
    small = Small()
    small.consume(
        Delivered(A, 0, 1, range(5)),
        AckSent(A, 0, range(4)),
        AckSent(A, 0, [4], 9),
        AckAnswered(9),
        Ended(A),
        Restarted(),
        Delivered(B, 0, 1, [2]),
        CursorAsked(11),
        shown(11, 5),
    )
    assert small.wrong == [f"sub: (0, 2) was delivered to {B} after its ack was durable"]


def test_a_delivery_after_a_graceful_restart_of_what_the_cursor_covered_is_seen() -> None:
    small = Small()
    small.consume(
        Delivered(A, 0, 1, range(5)),
        AckSent(A, 0, range(5)),
        CursorAsked(10),
        shown(10, 5),
        Ended(A),
        Restarted(is_graceful=True),
        Delivered(B, 0, 1, [0]),
    )
    assert small.wrong == [f"sub: (0, 0) was delivered to {B} after its ack was durable"]


def test_a_cursor_that_went_back_below_a_durable_ack_is_seen() -> None:
    small = Small()
    small.consume(*ALL_ACKED, Ended(A), Restarted(), CursorAsked(11), shown(11, 3, [(4, 5)]))
    assert "sub: the cursor of partition 0 is at 3, and [3] were acked durably" in small.wrong
    assert any("the cursor is CursorShown" in line for line in small.wrong)


def test_a_cursor_that_goes_back_while_the_node_lives_is_seen() -> None:
    small = Small()
    small.consume(
        Delivered(A, 0, 1, range(5)), AckSent(A, 0, range(5)), CursorAsked(1), shown(1, 5), CursorAsked(2), shown(2, 4)
    )
    assert "sub: the cursor of partition 0 went from 5 back to 4" in small.wrong


def test_a_cursor_that_skips_what_nobody_acked_is_seen() -> None:
    small = Small()
    small.consume(Delivered(A, 0, 1, range(5)), AckSent(A, 0, range(3)), CursorAsked(1), shown(1, 5))
    assert small.wrong == ["sub: the cursor of partition 0 covers [3, 4], which nobody acked"]


def test_a_record_that_is_never_delivered_is_seen() -> None:
    small = Small()
    small.consume(Delivered(A, 0, 1, range(4)), AckSent(A, 0, range(5)), CursorAsked(1), shown(1, 5))
    assert small.wrong == ["sub: 1 of partition 0 were never delivered: [4]"]


def test_lag_in_the_end_is_seen() -> None:
    small = Small()
    small.consume(Delivered(A, 0, 1, range(5)), AckSent(A, 0, range(4)), CursorAsked(1), shown(1, 4))
    assert any("ends at 5, the cursor is" in line for line in small.wrong)


def test_a_lag_that_does_not_add_up_is_seen() -> None:
    small = Small()
    small.consume(*ALL_ACKED, CursorAsked(11), shown(11, 5, lag=1))
    assert any("says lag 1" in line for line in small.wrong)


@pytest.mark.parametrize("kind", [SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER, SubscriptionKind.KEY_SHARED])
def test_a_first_delivery_out_of_order_is_seen(kind: SubscriptionKind) -> None:
    small = Small(kind)
    small.consume(Delivered(A, 0, 1, [0, 2, 1, 3, 4]), *ALL_ACKED[1:])
    assert len(small.wrong) == 1
    assert small.wrong[0].startswith(f"sub: (0, 1) was delivered to {A} for the first time after 2")


def test_shared_consumers_have_no_order_and_key_shared_ones_only_within_a_key() -> None:
    for kind in (SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED):
        small = Small(kind)
        if kind == SubscriptionKind.KEY_SHARED:
            small = Small(kind)
            small.log[0].clear()
            small.feed[0] = [Committed(0, 0)]
            small.history.txns.clear()
            small.publish("t0", [b"0", b"1", b"2", b"3", b"4"])
        small.consume(Delivered(A, 0, 1, [4, 1, 0]), Delivered(B, 0, 1, [2, 3]), *_acks_of_both())
        assert small.wrong == []


def _acks_of_both() -> list[Event]:
    return [AckSent(A, 0, [0, 1, 4]), AckSent(B, 0, [2, 3]), CursorAsked(1), shown(1, 5)]


def test_two_consumers_with_the_same_record_are_seen() -> None:
    small = Small(SubscriptionKind.SHARED)
    small.consume(Delivered(A, 0, 1, range(5)), Delivered(B, 0, 1, [4]), *_acks_of_both())
    assert f"sub: (0, 4) was delivered to {B} while {A} had it" in small.wrong


def test_an_attempt_without_a_nack_is_seen() -> None:
    small = Small()
    small.consume(Delivered(A, 0, 2, range(5)), *ALL_ACKED[1:])
    assert f"sub: (0, 0) was delivered to {A} as attempt 2, after 0 nacks" in small.wrong


def test_a_session_that_outlives_its_node_is_seen() -> None:
    small = Small()
    small.consume(
        Delivered(A, 0, 1, [0]), Restarted(), Delivered(B, 0, 1, range(5)), AckSent(B, 0, range(5)), CursorAsked(1)
    )
    assert any("did not notice" in line for line in small.wrong)


def test_a_delivery_of_what_the_log_has_not_is_seen() -> None:
    small = Small()
    small.consume(*ALL_ACKED)
    small.history.contents[0, 4] = (b"k", b"something else")
    assert len(small.wrong) == 1
    assert small.wrong[0].startswith("(0, 4) was delivered as")


def test_deliveries_that_differ_are_seen() -> None:
    small = Small()
    small.consume(*ALL_ACKED)
    small.history.saw((0, 4), (b"k", b"something else"))
    assert len(small.wrong) == 1
    assert "was delivered as" in small.wrong[0]
