"""Sets and maps of ranges, against sets and dicts of single offsets."""

from hypothesis import given
from hypothesis import strategies as st

from sulina.core.delivery.ranges import RangeMap, RangeSet

spans = st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
steps = st.lists(st.tuples(st.sampled_from(["add", "remove"]), spans), max_size=40)


def offsets(ranges: list[tuple[int, int]]) -> set[int]:
    assert all(start < end for start, end in ranges), "an empty range"
    return {offset for start, end in ranges for offset in range(start, end)}


@given(steps, spans)
def test_a_range_set_is_a_set(done: list[tuple[str, tuple[int, int]]], probe: tuple[int, int]) -> None:
    ranges, model = RangeSet(), set[int]()
    for what, (start, end) in done:
        span = set(range(start, end))
        if what == "add":
            assert ranges.add(start, end) == len(span - model)
            model |= span
        else:
            assert offsets(ranges.remove(start, end)) == span & model
            model -= span
        assert offsets(list(ranges)) == model
        assert ranges.count == len(model)
        ends = [end for _, end in ranges]
        assert all(end < start for end, (start, _) in zip(ends, list(ranges)[1:], strict=False)), "ranges that touch"
    span = set(range(*probe))
    assert offsets(ranges.within(*probe)) == span & model
    assert offsets(ranges.missing(*probe)) == span - model
    assert (probe[0] in ranges) == (probe[0] in model)


@given(st.lists(st.tuples(spans, st.integers(0, 3), st.booleans()), max_size=40), spans)
def test_a_range_map_is_a_dict(done: list[tuple[tuple[int, int], int, bool]], probe: tuple[int, int]) -> None:
    ranges, model = RangeMap(), dict[int, int]()
    for (start, end), number, is_put in done:
        if is_put:
            ranges.pop(start, end)
            ranges.put(start, end, number)
            model.update(dict.fromkeys(range(start, end), number))
        else:
            popped = ranges.pop(start, end, number)
            gone = {offset for offset in range(start, end) if model.get(offset) == number}
            assert offsets([(low, high) for low, high, _ in popped]) == gone
            for offset in gone:
                del model[offset]
        assert {offset: value for low, high, value in ranges for offset in range(low, high)} == model
        assert all(low < high for low, high, _ in ranges), "an empty range"
    found = ranges.pieces(*probe, 9)
    assert [low for low, _, _ in found] + [probe[1]] == [probe[0]] + [high for _, high, _ in found], "end to end"
    pieces = {offset: value for low, high, value in found for offset in range(low, high)}
    assert pieces == {offset: model.get(offset, 9) for offset in range(*probe)}
    assert ranges.get(probe[0], 9) == model.get(probe[0], 9)


def a_map() -> RangeMap:
    ranges = RangeMap()
    for start, end, number in [(0, 4, 1), (4, 8, 2), (8, 12, 1), (15, 20, 1)]:
        ranges.put(start, end, number)
    return ranges


def test_only_those_with_the_number_are_taken_out_and_the_rest_stays_as_it_is() -> None:
    ranges = a_map()
    assert ranges.pop(2, 17, only=1) == [(2, 4, 1), (8, 12, 1), (15, 17, 1)]
    assert list(ranges) == [(0, 2, 1), (4, 8, 2), (17, 20, 1)]
    assert ranges.pop(0, 20, only=7) == []
    assert ranges.pop(4, 8, only=2) == [(4, 8, 2)]
    assert list(ranges) == [(0, 2, 1), (17, 20, 1)]


def test_what_only_touches_is_neither_taken_nor_found() -> None:
    ranges = a_map()
    assert ranges.pop(12, 15) == []
    assert ranges.pieces(12, 15, 0) == [(12, 15, 0)]
    assert ranges.pop(4, 8) == [(4, 8, 2)]
    assert ranges.pieces(4, 8, 0) == [(4, 8, 0)]
    assert list(ranges) == [(0, 4, 1), (8, 12, 1), (15, 20, 1)]


def test_nothing_added_is_nothing_new() -> None:
    ranges = RangeSet()
    assert [ranges.add(*span) for span in ((0, 3), (5, 7), (4, 4), (9, 8))] == [3, 2, 0, 0]
    assert (list(ranges), len(ranges), ranges.count) == ([(0, 3), (5, 7)], 2, 5)
