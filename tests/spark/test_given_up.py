"""What a stream does after records that it has read were given up (finding 10): the rule, on logs in memory."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from sulina.core.log.commit import Commit, SegmentRef
from sulina.core.log.epochs import EpochHistory
from sulina.core.log.position import Position
from sulina.core.records.record import StoredRecord, encode
from sulina.spark.arrow_batches import read_range
from sulina.spark.byte_source import ByteSource
from sulina.spark.data_source import SulinaStreamReader, Task
from sulina.spark.errors import StreamDiverged
from sulina.spark.log_catalogue import LogCatalogue
from sulina.spark.options import ReadOptions
from sulina.spark.planner import Planner, from_json, to_json
from sulina.spark.scan import Piece, Range, Span
from sulina.types import Epoch, Offset, PartitionName, TopicName, Version

ORDERS = PartitionName(TopicName.parse("/shop/orders"), 0)
At = dict[str, Any]


def at(position: int | str) -> At:
    return {"format": 1, "/shop/orders": {"0": position}}


@dataclass
class OneLog:
    """A log of one partition, by the epochs of its runs: (first offset, epoch)."""

    runs: list[tuple[int, int]]
    ends: int

    def segments(self) -> list[SegmentRef]:
        bounds = [*(start for start, _ in self.runs), self.ends]
        return [
            SegmentRef(
                name="", base=Offset(start), next_offset=Offset(bounds[number + 1]), size=1, epoch=Epoch(epoch),
                created_ms=0, written_ms=0, timestamp_max=0,
            )
            for number, (start, epoch) in enumerate(self.runs)
        ]  # fmt: skip

    def partitions(self) -> list[PartitionName]:
        return [ORDERS]

    def bounds(self, partition: PartitionName) -> tuple[Offset, Offset]:
        return Offset(0), Offset(self.ends)

    def end(self, partition: PartitionName) -> tuple[Offset, Epoch]:
        return Offset(self.ends), Epoch(self.runs[-1][1])

    def offset(self, partition: PartitionName, position: Position) -> Offset:
        return Offset(position.value)

    def span(self, partition: PartitionName) -> Span:
        pieces = (Piece(Offset(0), Offset(self.ends), 100),) if self.ends else ()
        return Span(partition, Offset(0), Offset(self.ends), pieces, Epoch(self.runs[-1][1]))

    def follow(self, partition: PartitionName, offset: Offset, epoch: Epoch) -> Offset:
        history = EpochHistory(Epoch(self.runs[-1][1]), Offset(self.ends), self.segments())
        again = history.continuation(offset, epoch)
        return offset if again is None else again

    def source(self) -> ByteSource:
        return ByteSource(url="http://127.0.0.1:1")


BEFORE = OneLog([(0, 3)], 20)  # 20 records, all of epoch 3
GIVEN_UP = OneLog([(0, 3), (14, 5)], 40)  # those from 14 on were given up, and others came
SHORTER = OneLog([(0, 3), (14, 5)], 18)
AS_LONG = OneLog([(0, 3), (14, 5)], 20)
EMPTY_SINCE = OneLog([(0, 3), (14, 5)], 14)
MOVED = OneLog([(0, 3), (20, 4)], 25)  # to another owner, with all it had


@dataclass
class Stream:
    """A stream whose log changes under it."""

    log: OneLog
    options: dict[str, str] = field(default_factory=dict)

    def reader(self) -> SulinaStreamReader:
        given = {"url": "http://127.0.0.1:1", "topic": str(ORDERS.topic), "start": "earliest"}
        options = ReadOptions.of(given | self.options, is_stream=True)
        return SulinaStreamReader(options, Planner(options, cast(LogCatalogue, self.log)))

    def next_end(self, start: At) -> At:
        reader = self.reader()
        return reader.latestOffset(start, reader.getDefaultReadLimit())

    def planned(self, start: At, end: At) -> list[tuple[int, int, int | None]]:
        tasks = [task for task in self.reader().partitions(start, end) if isinstance(task, Task)]
        return [(one.start, one.end, one.epoch) for task in tasks for one in task.ranges]


LENIENT = {"failOnDataLoss": "false"}


def test_s1_a_position_has_the_epoch_of_the_log_that_was_read() -> None:
    assert Stream(BEFORE).next_end(at("0@3")) == at("20@3")
    assert Stream(BEFORE).next_end(at(0)) == at("20@3"), "a checkpoint from before epochs were noted"
    assert Stream(BEFORE).planned(at(0), at("20@3")) == [(0, 20, 3)]
    assert Stream(BEFORE).planned(at(5), at(20)) == [(5, 20, None)]


def test_s1_a_move_that_loses_nothing_is_not_noticed() -> None:
    assert Stream(MOVED).next_end(at("20@3")) == at("25@4")
    assert Stream(MOVED).planned(at("20@3"), at("25@4")) == [(20, 25, 4)]
    assert Stream(OneLog([(0, 3), (20, 4)], 20)).next_end(at("20@3")) == at("20@3"), "nothing new is no batch"


@pytest.mark.parametrize("log", [GIVEN_UP, SHORTER, AS_LONG, EMPTY_SINCE])
def test_s1_a_stream_that_stands_on_what_was_given_up_is_told_and_reads_nothing(log: OneLog) -> None:
    with pytest.raises(StreamDiverged, match=r"\[14, 20\) of .*orders.* goes on at 14 .* failOnDataLoss=false") as told:
        Stream(log).next_end(at("20@3"))
    assert (told.value.start, told.value.end, told.value.epoch) == (14, 20, 3)
    with pytest.raises(StreamDiverged):
        Stream(log).planned(at("20@3"), at(f"{log.ends}@5"))


@pytest.mark.parametrize("log", [GIVEN_UP, SHORTER, AS_LONG])
def test_s1_a_stream_that_is_told_to_goes_on_where_the_log_does(log: OneLog) -> None:
    end = Stream(log, LENIENT).next_end(at("20@3"))
    assert end == at(f"{log.ends}@5")
    for _ in range(2):
        assert Stream(log, LENIENT).planned(at("20@3"), end) == [(14, log.ends, 5)], "also when it is replayed"
    assert Stream(log, LENIENT).next_end(end) == end


def test_s1_a_stream_that_is_told_to_waits_where_the_log_goes_on() -> None:
    end = Stream(EMPTY_SINCE, LENIENT).next_end(at("20@3"))
    assert end == at("14@5")
    assert Stream(EMPTY_SINCE, LENIENT).planned(at("20@3"), end) == []


def test_s1_a_planned_batch_whose_records_were_given_up_is_not_replayed_with_others() -> None:
    with pytest.raises(StreamDiverged, match=r"\[14, 20\)"):
        Stream(GIVEN_UP).planned(at("10@3"), at("20@3"))
    assert Stream(GIVEN_UP, LENIENT).planned(at("10@3"), at("20@3")) == [(10, 14, 3)]
    assert Stream(GIVEN_UP, LENIENT).planned(at("20@3"), at("40@5")) == [(14, 40, 5)], "and the next has the rest"


def test_s1_a_stream_that_is_begun_at_a_position_of_another_is_told_too() -> None:
    given = {"start": '{"/shop/orders": {"0": "20@3"}}'}
    assert Stream(BEFORE, given).reader().initialOffset() == at("20@3")
    with pytest.raises(StreamDiverged):
        Stream(GIVEN_UP, given).reader().initialOffset()
    assert Stream(GIVEN_UP, given | LENIENT).reader().initialOffset() == at("14@5")


def test_s1_offsets_are_written_down_and_read_again() -> None:
    other = PartitionName(ORDERS.topic, 1)
    written = to_json({ORDERS: Offset(7), other: Offset(9)}, {ORDERS: Epoch(4)})
    assert written == {"/shop/orders": {"0": "7@4", "1": 9}}
    assert from_json(written) == ({ORDERS: 7, other: 9}, {ORDERS: 4})


# What executors read


@dataclass
class Bytes:
    """A range whose first batches are of one epoch and the others of a later one."""

    epochs: tuple[int, ...]

    def read(self, offset: Offset) -> tuple[memoryview, Offset]:
        data = b"".join(
            bytes(encode([StoredRecord(value=b"x")] * 5, base_offset=5 * number, epoch=epoch))
            for number, epoch in enumerate(self.epochs)
        )
        return memoryview(data), Offset(5 * len(self.epochs))

    def newest(self) -> Version:
        return Version(0)

    def commits(self, start: Version, end: Version) -> list[Commit]:
        return []


def read(epochs: tuple[int, ...], *, planned: int | None, end: int) -> list[int]:
    wanted = Range(ORDERS, Offset(0), Offset(end), 100, (), None if planned is None else Epoch(planned))
    found = read_range(Bytes(epochs), wanted, ["offset"], fail_on_data_loss=True)
    return [offset for rows in found for offset in rows.column("offset").to_pylist()]


def test_s1_a_task_that_meets_records_of_a_later_epoch_than_was_planned_fails() -> None:
    assert read((1, 2, 3), planned=3, end=15) == list(range(15))
    with pytest.raises(StreamDiverged, match=r"\[10, 15\) of"):
        read((1, 2, 3), planned=2, end=15)
    assert read((1, 2, 3), planned=2, end=10) == list(range(10)), "what comes after the range may be of any"
    assert read((1, 2, 3), planned=None, end=15) == list(range(15)), "a checkpoint from before epochs were noted"
