"""How a batch of a stream becomes tasks: S2. Nothing is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sulina.core.log.commit import SegmentRef
from sulina.spark.log_catalogue import LogCatalogue
from sulina.spark.options import ReadOptions
from sulina.spark.planner import Planner
from sulina.spark.scan import TASK_ROWS, Piece, Span, shares
from sulina.types import Epoch, Offset, PartitionName, TopicName

ORDERS = TopicName.parse("/shop/orders")
PARTITIONS = [PartitionName(ORDERS, number) for number in range(3)]
ENDS = {PARTITIONS[0]: Offset(90), PARTITIONS[1]: Offset(7), PARTITIONS[2]: Offset(300)}


@dataclass
class Known:
    """Logs that say where records lie, and nothing else."""

    pieces: Mapping[PartitionName, tuple[Piece, ...]]

    def partitions(self) -> list[PartitionName]:
        return list(self.pieces)

    def span(self, partition: PartitionName) -> Span:
        pieces = self.pieces[partition]
        return Span(partition, pieces[0].start, pieces[-1].end, pieces)


def pieces(end: int, rows: int, size: int, *, is_stored: bool) -> tuple[Piece, ...]:
    """[0, end) in pieces of so many rows."""
    found = []
    for start in range(0, end, rows):
        last = min(end, start + rows)
        stored = SegmentRef(
            name="", base=Offset(start), next_offset=Offset(last), size=size, epoch=Epoch(1), created_ms=0,
            written_ms=0, timestamp_max=0, object="slice",
        )  # fmt: skip
        found.append(Piece(Offset(start), Offset(last), size, stored if is_stored else None))
    return tuple(found)


def rows_of_tasks(rows: int, size: int, *, is_stored: bool, tasks_min: int | None) -> list[list[tuple[int, int]]]:
    logs = Known({name: pieces(end, rows, size, is_stored=is_stored) for name, end in ENDS.items()})
    given = {"url": "http://127.0.0.1:1", "topic": str(ORDERS)}
    options = ReadOptions.of(given | ({"minPartitions": str(tasks_min)} if tasks_min else {}), is_stream=True)
    tasks = Planner(options, cast(LogCatalogue, logs)).between({name: Offset(0) for name in PARTITIONS}, ENDS)
    return [
        [(one.partition.partition, offset) for one in task for offset in range(one.start, one.end)] for task in tasks
    ]


@pytest.mark.parametrize("tasks_min", [None, 1, 4, 50])
def test_s2_a_batch_that_is_replayed_has_the_same_tasks_wherever_its_records_lie_by_then(tasks_min: int | None) -> None:
    """The sink knows a task by its number: with other rows in it, they would be taken for those of the first time."""
    first = rows_of_tasks(300, 4000, is_stored=False, tasks_min=tasks_min)
    assert sorted(row for task in first for row in task) == [
        (p.partition, n) for p in PARTITIONS for n in range(ENDS[p])
    ]
    assert len(first) == (tasks_min or 1)
    assert rows_of_tasks(10, 900, is_stored=True, tasks_min=tasks_min) == first, "archived since"
    assert rows_of_tasks(64, 90 << 20, is_stored=True, tasks_min=tasks_min) == first, "and merged"
    assert rows_of_tasks(300, 40 << 20, is_stored=False, tasks_min=tasks_min) == first


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 1000)), max_size=5), st.integers(1, 20), st.integers(1, 300)
)
def test_offsets_are_shared_evenly_and_in_order(ranges: list[tuple[int, int]], tasks_min: int, rows_max: int) -> None:
    wanted = {PartitionName(ORDERS, n): (start, start + rows) for n, (start, rows) in enumerate(ranges)}
    found = shares(wanted, tasks_min=tasks_min, rows_max=rows_max)
    rows = [[(name, offset) for name, start, end in task for offset in range(start, end)] for task in found]
    every = [(name, offset) for name, (start, end) in wanted.items() for offset in range(start, end)]
    assert [row for task in rows for row in task] == every
    sizes = [len(task) for task in rows]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    assert max(sizes, default=0) <= rows_max
    assert len(found) >= min(tasks_min, len(every))


def test_a_small_batch_is_one_task() -> None:
    assert len(shares({PARTITIONS[0]: (5, 6), PARTITIONS[1]: (0, TASK_ROWS - 1)})) == 1
    assert shares({}) == []
