"""What a scan reads: S1."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sulina.core.log.commit import SegmentRef
from sulina.core.log.position import EARLIEST, LATEST, Position
from sulina.errors import InvalidName, InvalidSettings
from sulina.spark.scan import Piece, Positions, Range, Span, TopicChoice, limited, packed, ranges, shares, split_bytes
from sulina.types import Epoch, Offset, PartitionName, TopicName

ORDERS = TopicName.parse("/shop/orders")
FIRST, SECOND = PartitionName(ORDERS, 0), PartitionName(ORDERS, 1)


def stored(base: int, end: int, size: int, *, is_object: bool) -> SegmentRef:
    return SegmentRef(
        name=f"{base:020d}.log",
        base=Offset(base),
        next_offset=Offset(end),
        size=size,
        epoch=Epoch(1),
        created_ms=0,
        written_ms=0,
        timestamp_max=0,
        object=f"{base}.log" if is_object else None,
    )


@st.composite
def spans(draw: st.DrawFn, partition: PartitionName = FIRST) -> Span:
    """Objects first, then what only the owner has."""
    start = offset = draw(st.integers(0, 50))
    pieces = []
    for is_object in [True] * draw(st.integers(0, 4)) + [False] * draw(st.integers(0, 2)):
        rows, size = draw(st.integers(1, 100)), draw(st.integers(1, 2000))
        where = stored(offset, offset + rows, size, is_object=True) if is_object else None
        pieces.append(Piece(Offset(offset), Offset(offset + rows), size, where))
        offset += rows
    return Span(partition, Offset(start), Offset(offset), tuple(pieces))


@given(spans(), st.integers(0, 500), st.integers(0, 500), st.integers(1, 3000))
def test_ranges_cover_what_is_wanted_once_and_in_order(span: Span, start: int, end: int, bytes_max: int) -> None:
    found = ranges(span, start, end, bytes_max=bytes_max)
    offsets = [offset for one in found for offset in range(one.start, one.end)]
    assert offsets == list(range(max(start, span.start), max(max(start, span.start), min(end, span.end))))
    for one in found:
        if one.stored:
            assert one.stored[0].base <= one.start
            assert one.stored[-1].next_offset >= one.end
            assert len(one.stored) == 1 or one.size_bytes <= bytes_max


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 200))
def test_tasks_have_every_range_once_in_order_and_are_not_too_large(sizes: list[int], bytes_max: int) -> None:
    wanted = [Range(FIRST, Offset(n), Offset(n + 1), size) for n, size in enumerate(sizes)]
    groups = packed(wanted, bytes_max=bytes_max)
    assert [one for group in groups for one in group] == wanted
    assert all(sum(one.size_bytes for one in group) <= bytes_max or len(group) == 1 for group in groups)


@given(
    st.lists(spans(), min_size=1, max_size=1),
    spans(SECOND),
    st.integers(1, 300) | st.none(),
    st.integers(1, 5000) | st.none(),
)
def test_a_limit_holds_and_nobody_starves(
    first: list[Span], second: Span, rows_max: int | None, bytes_max: int | None
) -> None:
    both = [*first, second]
    starts = {span.partition: span.start for span in both}
    ends = limited(both, starts, rows_max=rows_max, bytes_max=bytes_max)
    taken = {span.partition: ends[span.partition] - span.start for span in both}
    assert all(0 <= taken[span.partition] <= span.end - span.start for span in both)
    if rows_max is not None:
        assert sum(taken.values()) <= rows_max
    waiting = [span for span in both if span.end > span.start]
    if waiting and (rows_max is None or rows_max >= len(waiting)):
        assert all(taken[span.partition] >= 1 for span in waiting)


def test_ranges_join_what_is_small_split_what_is_large_and_know_where_it_is_stored() -> None:
    objects = [stored(base, base + 10, size, is_object=True) for base, size in ((0, 100), (10, 100), (20, 500))]
    pieces = [Piece(one.base, one.next_offset, one.size, one) for one in objects]
    span = Span(SECOND, Offset(0), Offset(60), (*pieces, Piece(Offset(30), Offset(60), 301)))
    assert ranges(span, 0, 60, bytes_max=200) == [
        Range(SECOND, Offset(0), Offset(20), 200, (objects[0], objects[1])),
        Range(SECOND, Offset(20), Offset(30), 500, (objects[2],)),  # an object is read whole
        Range(SECOND, Offset(30), Offset(45), 150),
        Range(SECOND, Offset(45), Offset(60), 151),
    ]
    assert ranges(span, 10, 20) == [Range(SECOND, Offset(10), Offset(20), 100, (objects[1],))]
    assert ranges(span, 5, 15, bytes_max=99) == [
        Range(SECOND, Offset(5), Offset(10), 50, (objects[0],)),
        Range(SECOND, Offset(10), Offset(15), 50, (objects[1],)),
    ]


def test_a_segment_of_a_directory_is_split_and_no_range_is_empty() -> None:
    segment = stored(10, 13, 3000, is_object=False)
    span = Span(FIRST, Offset(10), Offset(13), (Piece(Offset(10), Offset(13), 3000, segment),))
    by_row = [Range(FIRST, Offset(n), Offset(n + 1), 1000, (segment,)) for n in (10, 11, 12)]
    assert ranges(span, 0, 99, bytes_max=1) == by_row
    small = Span(FIRST, Offset(0), Offset(3), (Piece(Offset(0), Offset(3), 3),))
    assert ranges(small, 0, 3, bytes_max=1) == [Range(FIRST, Offset(n), Offset(n + 1), 1) for n in range(3)]


def test_a_task_may_be_filled_to_its_last_byte() -> None:
    wanted = [Range(FIRST, Offset(n), Offset(n + 1), size) for n, size in enumerate([50, 50, 1, 99, 1])]
    assert packed(wanted, bytes_max=100) == [tuple(wanted[:2]), tuple(wanted[2:4]), tuple(wanted[4:])]


def test_a_limit_of_bytes_is_shared_by_rows_and_the_small_are_not_rounded_away() -> None:
    def span(partition: PartitionName, rows: int) -> Span:
        return Span(partition, Offset(0), Offset(rows), (Piece(Offset(0), Offset(rows), 10 * rows),))

    both = [span(FIRST, 100), span(SECOND, 20)]
    starts = {FIRST: Offset(0), SECOND: Offset(0)}
    assert limited(both, starts, rows_max=None, bytes_max=600) == {FIRST: 50, SECOND: 10}
    assert limited(both, {FIRST: Offset(90), SECOND: Offset(30)}, rows_max=10, bytes_max=100) == {
        FIRST: 100,
        SECOND: 30,
    }
    third = PartitionName(ORDERS, 2)
    three = [span(FIRST, 1000), span(SECOND, 1), span(third, 1)]
    assert limited(three, starts | {third: Offset(0)}, rows_max=3, bytes_max=None) == {FIRST: 1, SECOND: 1, third: 1}


@given(
    st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 50), st.integers(0, 60)), max_size=5),
    st.integers(1, 12) | st.none(),
    st.integers(1, 40),
)
def test_s1_shares_have_every_offset_once_in_order_and_are_equal(
    rows: dict[int, tuple[int, int]], tasks_min: int | None, rows_max: int
) -> None:
    wanted = {PartitionName(ORDERS, number): (start, start + count) for number, (start, count) in rows.items()}
    tasks = shares(wanted, tasks_min=tasks_min, rows_max=rows_max)
    flat = [(partition, offset) for task in tasks for partition, start, end in task for offset in range(start, end)]
    assert flat == [(partition, offset) for partition, (start, end) in wanted.items() for offset in range(start, end)]
    sizes = [sum(end - start for _, start, end in task) for task in tasks]
    assert len(tasks) == min(len(flat), max(tasks_min or 1, -(-len(flat) // rows_max)))
    assert not sizes or (min(sizes) >= 1 and max(sizes) - min(sizes) <= 1)
    assert all(start < end for task in tasks for _, start, end in task)


def test_more_tasks_are_smaller() -> None:
    span = Span(FIRST, Offset(0), Offset(100), (Piece(Offset(0), Offset(100), 1000),))
    size = split_bytes([span], {FIRST: (0, 100)}, 7)
    assert size == 1000 // 7
    assert len(packed(ranges(span, 0, 100, bytes_max=size), bytes_max=size)) >= 7
    assert split_bytes([span], {}, None) == 32 << 20
    assert split_bytes([span], {FIRST: (0, 100)}, 2000) == 1


def test_positions_are_words_or_offsets_by_partition() -> None:
    assert Positions.parse("earliest", LATEST).of(FIRST) == EARLIEST
    some = Positions.parse('{"/shop/orders": {"0": 23, "1": -2}}', LATEST)
    assert [some.of(name) for name in (FIRST, SECOND)] == [Position.parse("offset:23"), EARLIEST]
    assert some.of(PartitionName(ORDERS, 2)) == LATEST
    assert Positions.parse(' {"/shop/orders": {"0": -1}}', EARLIEST).of(FIRST) == LATEST


@pytest.mark.parametrize(
    "text",
    ["", "soon", "{", "[]", '{"/orders": {"0": 1}}', '{"/a/b": {"x": 1}}', '{"/a/b": 5}']
    + [f'{{"/a/b": {{"0": {offset}}}}}' for offset in ("-3", "true", "1.5", '"7"', "null")],
)
def test_other_positions_are_refused(text: str) -> None:
    with pytest.raises(InvalidSettings):
        Positions.parse(text, LATEST)


def test_topics_are_names_or_patterns() -> None:
    assert TopicChoice.parse("/shop/orders, /shop/orders").names == (ORDERS,)
    choice = TopicChoice.parse("/shop/*,/logs/web?")
    assert choice.names is None
    assert [choice.has(TopicName.parse(name)) for name in ("/shop/x", "/logs/web1", "/logs/web")] == [True, True, False]
    for text in ("", " , "):
        with pytest.raises(InvalidSettings):
            TopicChoice.parse(text)
    assert TopicChoice.parse("orders, /default/orders").names == (TopicName.parse("/default/orders"),)
    assert TopicChoice.parse("orders*").has(TopicName.parse("/default/orders1"))
    with pytest.raises(InvalidName):
        TopicChoice.parse("/orders")
    for text in ("/shop*", "/shop/orders/*", "a/shop/orders*"):
        with pytest.raises(InvalidSettings, match="must have the form /namespace/topic"):
            TopicChoice.parse(text)
    assert TopicChoice.parse("/shop/X").names == (TopicName.parse("/shop/X"),)
