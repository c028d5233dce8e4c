"""Who gets a partition, and which partitions move (F2, F7)."""

from hypothesis import given
from hypothesis import strategies as st

from sulina.core.cluster.balance import Load, PlannedMove, UnownedPartition, is_uneven, plan_moves, spread
from sulina.types import PartitionName, TopicName

TOPIC = TopicName("default", "orders")


def names(count: int, start: int = 0) -> list[PartitionName]:
    return [PartitionName(TOPIC, number) for number in range(start, start + count)]


def loads(*counts: int) -> list[Load]:
    return [Load(count, 0.0, f"b{number}") for number, count in enumerate(counts)]


counts = st.lists(st.integers(0, 40), min_size=1, max_size=8)


def placed(some: list[int]) -> dict[str, list[PartitionName]]:
    """Brokers that have so many partitions."""
    start, by_broker = 0, {}
    for number, count in enumerate(some):
        by_broker[f"b{number}"] = names(count, start)
        start += count
    return by_broker


def moved(by_broker: dict[str, list[PartitionName]], moves: list[PlannedMove]) -> dict[str, list[PartitionName]]:
    after = {broker: list(has) for broker, has in by_broker.items()}
    for move in moves:
        after[move.source].remove(move.partition)
        after[move.target].append(move.partition)
    return after


def loads_of(by_broker: dict[str, list[PartitionName]]) -> list[Load]:
    return [Load(len(has), 0.0, broker) for broker, has in by_broker.items()]


def test_f2_the_broker_with_the_least_gets_the_next() -> None:
    assert spread([UnownedPartition(name) for name in names(3)], loads(2, 0, 1)) == dict(
        zip(names(3), ["b1", "b1", "b2"], strict=True)
    )


def test_bytes_decide_between_brokers_that_have_as_many() -> None:
    busy = [Load(1, 1e6, "a"), Load(1, 5.0, "b")]
    assert spread([UnownedPartition(names(1)[0])], busy) == {names(1)[0]: "b"}


def test_a_partition_does_not_return_to_who_gave_it_away() -> None:
    name = names(1)[0]
    assert spread([UnownedPartition(name, avoid="b0")], loads(0, 9)) == {name: "b1"}
    assert spread([UnownedPartition(name, avoid="b0")], loads(5)) == {name: "b0"}, "unless there is nobody else"


def test_nobody_gets_anything_when_nobody_is_there() -> None:
    assert spread([UnownedPartition(name) for name in names(3)], []) == {}


@given(counts, st.integers(0, 60))
def test_f2_everything_gets_an_owner_and_counts_end_as_even_as_may_be(some: list[int], waiting: int) -> None:
    after = {load.broker_id: load.partitions for load in loads(*some)}
    for broker in spread([UnownedPartition(name) for name in names(waiting)], loads(*some)).values():
        after[broker] += 1
    assert sum(after.values()) == sum(some) + waiting
    gained = [after[f"b{number}"] for number, count in enumerate(some) if after[f"b{number}"] > count]
    if gained:
        assert max(gained) - min(after.values()) <= 1, "who gained is nowhere fuller than another by two"


@given(counts, st.lists(st.integers(0, 8), max_size=40))
def test_whom_a_partition_avoids_gets_it_only_when_alone(some: list[int], avoided: list[int]) -> None:
    waiting = [UnownedPartition(name, f"b{avoid}") for name, avoid in zip(names(len(avoided)), avoided, strict=True)]
    given_to = spread(waiting, loads(*some))
    assert set(given_to) == {one.partition for one in waiting}
    assert len(some) == 1 or all(given_to[one.partition] != one.avoid for one in waiting)


@given(st.permutations(range(12)), counts)
def test_the_same_view_gives_the_same_plan(order: list[int], some: list[int]) -> None:
    waiting = [UnownedPartition(name) for name in names(12)]
    shuffled = [waiting[place] for place in order]
    assert spread(shuffled, list(reversed(loads(*some)))) == spread(waiting, loads(*some))
    by_broker = placed(some)
    assert plan_moves(by_broker, loads(*some), moves_max=9) == plan_moves(
        {broker: list(reversed(has)) for broker, has in reversed(by_broker.items())},
        list(reversed(loads(*some))),
        moves_max=9,
    )


@given(counts, st.integers(1, 20), st.booleans())
def test_f7_from_any_state_a_rebalance_converges_and_then_proposes_nothing(
    some: list[int], moves_max: int, only_if_uneven: bool
) -> None:
    by_broker, rounds = placed(some), 0
    ever: set[tuple[PartitionName, str]] = set()
    while moves := plan_moves(by_broker, loads_of(by_broker), moves_max=moves_max, only_if_uneven=only_if_uneven):
        assert len(moves) <= moves_max
        for move in moves:
            assert (move.partition, move.target) not in ever, "it went there before: ping-pong"
            ever |= {(move.partition, move.source), (move.partition, move.target)}
        before, by_broker = by_broker, moved(by_broker, moves)
        assert _unevenness(by_broker) < _unevenness(before), "every round helps"
        rounds += 1
        assert rounds <= sum(some) + 1
    sizes = [len(has) for has in by_broker.values()]
    assert sum(sizes) == sum(some)
    assert not is_uneven(sizes)
    if not only_if_uneven:
        assert max(sizes) - min(sizes) <= 1


@given(counts)
def test_f7_small_differences_move_nothing_by_themselves(some: list[int]) -> None:
    if not is_uneven(some):
        assert plan_moves(placed(some), loads(*some), moves_max=100, only_if_uneven=True) == []


def test_what_is_worth_a_move() -> None:
    assert not is_uneven([5])
    assert not is_uneven([1, 0]), "moving one would only turn it round"
    assert not is_uneven([100, 110, 115]), "within a fifth of the mean"
    assert is_uneven([10, 0])
    assert is_uneven([2, 0])


def test_what_is_under_way_is_counted_where_it_goes() -> None:
    """b0 has four, two of which are on their way to b1: nothing is left to plan."""
    assert plan_moves({"b0": names(2)}, [Load(2, 0.0, "b0"), Load(2, 0.0, "b1")], moves_max=9) == []


def _unevenness(by_broker: dict[str, list[PartitionName]]) -> int:
    return sum(len(has) ** 2 for has in by_broker.values())


def test_f2_nothing_moves_by_itself_for_one_partition_or_for_a_fifth_more_than_the_mean() -> None:
    assert not is_uneven([2, 1])
    assert not is_uneven([6, 4])
    assert is_uneven([7, 4])


def test_f2_an_operator_may_even_out_what_would_not_move_by_itself() -> None:
    partitions = names(8)
    uneven = [Load(8, 0.0, "a"), Load(4, 0.0, "b"), Load(6, 0.0, "c")]
    moves = plan_moves({"a": partitions}, uneven, moves_max=9)
    assert moves == [PlannedMove(partitions[0], "a", "b"), PlannedMove(partitions[1], "a", "b")]
    assert plan_moves({"a": partitions}, uneven, moves_max=1) == moves[:1]
    assert plan_moves({}, uneven, moves_max=9) == [], "nothing of it can be moved"
    even = [Load(6, 0.0, "a"), Load(4, 0.0, "b")]
    assert plan_moves({"a": partitions}, even, moves_max=9, only_if_uneven=True) == []
    assert plan_moves({"a": partitions}, even, moves_max=9) == [PlannedMove(partitions[0], "a", "b")]
