"""What a scan reads: S1."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sulina.core.commit import SegmentRef
from sulina.core.position import EARLIEST, LATEST, Position
from sulina.core.scan import Piece, Positions, Range, Span, TopicChoice, limited, packed, ranges, split_bytes
from sulina.errors import InvalidName, InvalidSettings
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


def test_more_tasks_are_smaller() -> None:
    span = Span(FIRST, Offset(0), Offset(100), (Piece(Offset(0), Offset(100), 1000),))
    size = split_bytes([span], {FIRST: (0, 100)}, 7)
    assert size == 1000 // 7
    assert len(packed(ranges(span, 0, 100, bytes_max=size), bytes_max=size)) >= 7
    assert split_bytes([span], {}, None) == 32 << 20


def test_positions_are_words_or_offsets_by_partition() -> None:
    assert Positions.parse("earliest", LATEST).of(FIRST) == EARLIEST
    some = Positions.parse('{"/shop/orders": {"0": 23, "1": -2}}', LATEST)
    assert [some.of(name) for name in (FIRST, SECOND)] == [Position.parse("offset:23"), EARLIEST]
    assert some.of(PartitionName(ORDERS, 2)) == LATEST


@pytest.mark.parametrize(
    "text", ["", "soon", "{", "[]", '{"orders": {"0": 1}}', '{"/a/b": {"x": 1}}', '{"/a/b": {"0": -3}}', '{"/a/b": 5}']
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
    with pytest.raises(InvalidName):
        TopicChoice.parse("orders")
    with pytest.raises(InvalidSettings):
        TopicChoice.parse("orders*")
