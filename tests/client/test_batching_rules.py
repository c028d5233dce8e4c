"""Batches by size, by time, and on demand: P5."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sulina.client.batching_rules import Batching, BatchingRules, OnItsWay
from sulina.errors import InvalidSettings


def batching(**rules: float) -> Batching[int]:
    return Batching(BatchingRules(**rules))  # type: ignore[arg-type]


def taken(of: Batching[int], now: float) -> list[int]:
    batch = of.take(now)
    return [] if batch is None else batch.messages


def test_p5_a_batch_leaves_when_it_is_full() -> None:
    waiting = batching(records_max=3, wait_seconds_max=10, in_flight_max=2)
    for number in range(5):
        assert waiting.add(number, 1, 0.0)
    assert taken(waiting, 0.0) == [0, 1, 2]
    assert taken(waiting, 9.9) == []
    assert waiting.due_at() == 10.0
    assert taken(waiting, 10.0) == [3, 4]


def test_p5_a_batch_leaves_with_the_message_that_fills_it() -> None:
    waiting = batching(records_max=3, wait_seconds_max=10)
    waiting.add(0, 1, 0.0)
    waiting.add(1, 1, 0.0)
    assert taken(waiting, 0.0) == []
    waiting.add(2, 1, 0.0)
    assert taken(waiting, 0.0) == [0, 1, 2]


def test_p5_a_batch_waits_from_its_first_message_on() -> None:
    waiting = batching(wait_seconds_max=10)
    waiting.add(0, 1, 0.0)
    waiting.add(1, 1, 4.0)
    assert waiting.due_at() == 10.0
    assert taken(waiting, 9.9) == []
    assert taken(waiting, 10.0) == [0, 1]


def test_p5_a_batch_leaves_when_its_bytes_are_enough_and_has_no_more_than_they_allow() -> None:
    waiting = batching(bytes_max=10, wait_seconds_max=10, in_flight_max=9)
    for number, size in enumerate((6, 6, 25, 1)):
        waiting.add(number, size, 0.0)
    assert [taken(waiting, 0.0) for _ in range(4)] == [[0], [1], [2], []]
    assert waiting.due_at() == 10.0, "one byte can wait"
    waiting = batching(bytes_max=10, in_flight_max=9)
    for number, size in enumerate((4, 4, 4, 6)):
        waiting.add(number, size, 0.0)
    assert [taken(waiting, 1.0) for _ in range(3)] == [[0, 1], [2, 3], []]


def test_p5_what_waits_and_what_is_on_its_way_are_bounded_together() -> None:
    waiting = batching(queue_records_max=3, records_max=2, in_flight_max=1)
    assert [waiting.add(number, 1, 0.0) for number in range(4)] == [True, True, True, False]
    batch = waiting.take(0.0)
    assert batch is not None
    assert not waiting.add(4, 1, 0.0)
    assert waiting.due_at() is None, "one is on its way, and more may not be"
    waiting.arrived(batch)
    assert waiting.add(5, 1, 0.0)
    narrow = batching(queue_bytes_max=10)
    assert [narrow.add(number, size, 0.0) for number, size in enumerate((6, 5, 4))] == [True, False, True]
    assert batching(queue_bytes_max=10).add(0, 99, 0.0), "one that is larger than all would never find room"


def test_p5_what_is_wanted_now_does_not_wait_and_what_comes_later_does() -> None:
    waiting = batching(wait_seconds_max=10, in_flight_max=9)
    waiting.add(0, 1, 0.0)
    waiting.add(1, 1, 0.0)
    waiting.hurry()
    assert waiting.remove(1)
    assert taken(waiting, 0.0) == [0]
    waiting.add(2, 1, 1.0)
    assert taken(waiting, 5.0) == []
    assert not waiting.remove(0), "it has left"


def test_p5_a_batch_is_full_by_the_bytes_that_wait_at_this_moment() -> None:
    waiting = batching(bytes_max=10, wait_seconds_max=10)
    waiting.hurry()
    waiting.add(0, 6, 0.0)
    waiting.add(1, 3, 0.0)
    assert waiting.due_at() == 10.0, "nothing waited when somebody was in a hurry, and nine bytes are not ten"
    waiting.remove(0)
    waiting.add(2, 6, 0.0)
    assert waiting.due_at() == 10.0
    waiting.add(3, 1, 0.0)
    assert waiting.due_at() == 0.0
    assert waiting.clear() == [1, 2, 3]
    waiting.add(4, 9, 0.0)
    assert waiting.due_at() == 10.0


def test_p5_what_has_arrived_or_is_cleared_gives_its_room_back() -> None:
    waiting = batching(wait_seconds_max=0)
    waiting.add(0, 6, 0.0)
    batch = waiting.take(0.0)
    assert batch is not None
    waiting.add(1, 4, 0.0)
    assert (waiting.records, waiting.size_bytes) == (2, 10)
    waiting.arrived(batch)
    assert (waiting.records, waiting.size_bytes) == (1, 4)
    waiting.clear()
    assert (waiting.records, waiting.size_bytes) == (0, 0)


@pytest.mark.parametrize("name", ["records_max", "bytes_max", "queue_records_max", "queue_bytes_max", "in_flight_max"])
def test_rules_that_would_let_nothing_through_are_refused(name: str) -> None:
    with pytest.raises(InvalidSettings, match=name):
        BatchingRules(**{name: 0})


@dataclass(frozen=True)
class Add:
    size: int


Action = Add | str
ACTIONS = st.lists(st.one_of(st.integers(0, 12).map(Add), st.sampled_from(["take", "arrive", "hurry", "wait", "drop"])))


@given(ACTIONS, st.integers(1, 4), st.integers(1, 20), st.integers(1, 6), st.integers(1, 3))
def test_p5_nothing_is_lost_doubled_or_passed_whatever_happens(
    actions: list[Action], records: int, size: int, queue: int, flights: int
) -> None:
    rules = BatchingRules(
        records_max=records, bytes_max=size, queue_records_max=queue, in_flight_max=flights, wait_seconds_max=1.0
    )
    waiting: Batching[int] = Batching(rules)
    now, number = 0.0, 0
    inside: list[int] = []  # that wait, in their order
    sizes: dict[int, int] = {}
    flying: list[OnItsWay[int]] = []
    for action in actions:
        if isinstance(action, Add):
            number += 1
            has_room = len(inside) + sum(len(batch.messages) for batch in flying) < queue
            assert waiting.add(number, action.size, now) == has_room
            if has_room:
                inside.append(number)
                sizes[number] = action.size
        elif action == "take":
            batch = waiting.take(now)
            if batch is not None:
                assert batch.messages == inside[: len(batch.messages)]
                assert len(batch.messages) <= records
                assert len(batch.messages) == 1 or sum(sizes[one] for one in batch.messages) <= size
                del inside[: len(batch.messages)]
                flying.append(batch)
                assert len(flying) <= flights
        elif action == "arrive" and flying:
            waiting.arrived(flying.pop(0))
        elif action == "hurry":
            waiting.hurry()
            assert waiting.due_at() is None or waiting.due_at() <= now  # type: ignore[operator]
        elif action == "wait":
            now += 1.0
            assert (waiting.due_at() is None) == (not inside or len(flying) == flights)
        elif action == "drop" and inside:
            assert waiting.remove(inside.pop(len(inside) // 2))
        assert waiting.waiting == len(inside)
        assert waiting.records == len(inside) + sum(len(batch.messages) for batch in flying)
        assert waiting.size_bytes == sum(sizes[one] for one in inside) + sum(batch.size_bytes for batch in flying)
    assert waiting.clear() == inside
