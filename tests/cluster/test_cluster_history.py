"""The rules that clusters are held to can fail: each of them sees the history that breaks it.

The rules of the log and of the commit feed are those of `kill_history`, and are shown to fail in test_kill_history.py.
"""

import pytest

from sulina.core.members import SubscriptionKind
from tests.support.cluster_history import ClusterHistory, cluster_violations
from tests.support.kill_history import AckAnswered, AckSent, Added, Answer, Committed, Delivered, Event, Stored, Txn

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
