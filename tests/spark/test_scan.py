"""What a scan plans and reads, by its ranges and bytes: S1. A real node and its archive, no Spark session."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from sulina.client import Record, SyncClient
from sulina.core.log.commit import Commit
from sulina.errors import OffsetOutOfRange, VersionNotRetained
from sulina.spark import log_catalogue
from sulina.spark.arrow_batches import read_range
from sulina.spark.byte_source import RangeReader
from sulina.spark.commit_feed import kept_commits
from sulina.spark.data_source import SulinaReader, SulinaStreamReader, Task
from sulina.spark.errors import IncompleteScan
from sulina.spark.options import ReadOptions
from sulina.spark.planner import Planner
from sulina.spark.scan import Range, Span
from sulina.types import Epoch, Offset, PartitionName, Version
from tests.support.serving import Serving

Topic = Callable[..., str]
WAIT_SECONDS = 30.0
ARCHIVED = [40, 40]  # records of each slice
TAIL = [5, 7]
VALUE_BYTES = 100
AT = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


def half_archived(client: SyncClient, topic: Topic, *, value_bytes: int = VALUE_BYTES) -> tuple[str, int]:
    """Make a topic whose newest records are not archived yet; where the archive ends."""
    name = topic(policy={"archive_bytes": 30 * value_bytes, "archive_seconds": 3600})
    for count in ARCHIVED:
        client.publish_batch(name, [b"a" * value_bytes] * count)
        wait_archived(client, name)
    for count in TAIL:
        client.publish_batch(name, [b"t"] * count)
    return name, sum(ARCHIVED)


def wait_archived(client: SyncClient, topic: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while (info := client.admin.partition(topic)).archived_offset != info.end_offset:
        assert time.monotonic() < deadline, f"only {info.archived_offset} of {info.end_offset} are archived"
        time.sleep(0.01)


def options(node: Serving, topic: str, **more: Any) -> dict[str, str]:
    return {"url": node.url, "topic": topic} | {name: str(value) for name, value in more.items()}


def planned(node: Serving, topic: str, filters: Sequence[Filter] = (), **more: Any) -> list[Task]:
    """What executors would read."""
    return planned_by(options(node, topic, **more), filters)


def planned_by(given: dict[str, str], filters: Sequence[Filter] = ()) -> list[Task]:
    reader = SulinaReader(ReadOptions.of(given, is_stream=False))
    list(reader.pushFilters(list(filters)))
    return [task for task in reader.partitions() if isinstance(task, Task)]


def ranges(tasks: Iterable[Task]) -> list[Range]:
    return [one for task in tasks for one in task.ranges]


def offsets(tasks: Iterable[Task]) -> list[int]:
    """What executors do read."""
    found = [
        read_range(task.source.open(one), one, ["offset"], fail_on_data_loss=True)
        for task in tasks
        for one in task.ranges
    ]
    return [offset for rows in found for batch in rows for offset in batch.column("offset").to_pylist()]


# Archive and hot tail


@pytest.fixture
def archive_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little is archived, it is read from there."""
    monkeypatch.setattr(log_catalogue, "SMALL_BYTES", 0)


@pytest.mark.usefixtures("archive_first")
def test_s1_one_scan_reads_the_archive_and_the_tail_from_its_owner_each_offset_once(
    client: SyncClient, node: Serving, topic: Topic
) -> None:
    name, archived = half_archived(client, topic)
    tasks = planned(node, name)
    places = [(bool(one.stored), one.start, one.end) for one in ranges(tasks)]
    assert places == [(True, 0, archived), (False, archived, archived + sum(TAIL))]
    assert offsets(tasks) == list(range(archived + sum(TAIL)))
    assert offsets(planned(node, name, start=f"offset:{archived - 3}")) == list(range(archived - 3, 92))
    assert offsets(planned(node, name, start=f"offset:{archived + 3}")) == list(range(archived + 3, 92))
    assert offsets(planned(node, name, end=f"offset:{archived + 3}")) == list(range(archived + 3))
    assert offsets(planned(node, name, minPartitions=9)) == list(range(92))
    assert len(planned(node, name, minPartitions=9)) > len(tasks)


@pytest.mark.usefixtures("archive_first")
def test_s1_the_bytes_of_the_tail_are_its_own(client: SyncClient, node: Serving, topic: Topic) -> None:
    """The owner's segment has the archived records too: its size would divide a small tail into many tasks."""
    name, _ = half_archived(client, topic, value_bytes=2000)
    stored, tail = ranges(planned(node, name))
    assert tail.size_bytes < stored.size_bytes / 4


@pytest.mark.usefixtures("archive_first")
def test_s1_a_stream_goes_from_the_archive_into_the_tail_each_offset_once(
    client: SyncClient, node: Serving, topic: Topic
) -> None:
    name, archived = half_archived(client, topic)
    reader = SulinaStreamReader(ReadOptions.of(options(node, name, start="earliest"), is_stream=True))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tasks = [task for task in reader.partitions(start, end) if isinstance(task, Task)]
    assert [bool(one.stored) for one in ranges(tasks)] == [True, False]
    assert offsets(tasks) == list(range(92))
    client.publish_batch(name, [b"t"] * 3)
    after = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert offsets(task for task in reader.partitions(end, after) if isinstance(task, Task)) == [92, 93, 94]
    middle = {name: {"0": archived - 1}}
    assert offsets(task for task in reader.partitions(middle, after) if isinstance(task, Task)) == list(range(79, 95))


# Nothing is left out in silence


@pytest.mark.usefixtures("archive_first")
@pytest.mark.parametrize("lost", [0, 1, 2], ids=["first", "middle", "tail"])
def test_s1_a_plan_without_some_of_the_records_is_an_error(
    client: SyncClient, node: Serving, topic: Topic, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    name, _ = half_archived(client, topic)
    whole = log_catalogue.BrokerCatalogue.span

    def holed(self: log_catalogue.BrokerCatalogue, partition: PartitionName) -> Span:
        span = whole(self, partition)
        pieces = list(span.pieces)
        assert len(pieces) == 3
        del pieces[lost]
        return Span(partition, span.start, span.end, tuple(pieces))

    monkeypatch.setattr(log_catalogue.BrokerCatalogue, "span", holed)
    with pytest.raises(IncompleteScan, match=r"offsets \[0, 92\) .* hold 92 records, and "):
        planned(node, name)
    stream = SulinaStreamReader(ReadOptions.of(options(node, name), is_stream=True))
    with pytest.raises(IncompleteScan):
        stream.partitions({name: {"0": 0}}, {name: {"0": 92}})


def test_s1_a_stream_that_is_beyond_the_end_of_its_log_is_an_error(
    client: SyncClient, node: Serving, topic: Topic
) -> None:
    name = topic()
    client.publish_batch(name, ["a", "b"])
    stream = SulinaStreamReader(ReadOptions.of(options(node, name), is_stream=True))
    with pytest.raises(OffsetOutOfRange):
        stream.partitions({name: {"0": 1}}, {name: {"0": 5}})
    lenient = SulinaStreamReader(ReadOptions.of(options(node, name, failOnDataLoss="false"), is_stream=True))
    tasks = [task for task in lenient.partitions({name: {"0": 1}}, {name: {"0": 5}}) if isinstance(task, Task)]
    assert offsets(tasks) == [1]


@dataclass
class Watched:
    """A reader of a range that notes what it is asked for, and may keep something back."""

    reader: RangeReader
    kept_back: Callable[[memoryview, Offset], tuple[memoryview, Offset]] | None = None
    read_bytes: int = 0
    asked_commits: int = field(default=0)

    def read(self, offset: Offset) -> tuple[memoryview, Offset]:
        data, following = self.reader.read(offset)
        self.read_bytes += len(data)
        return (data, following) if self.kept_back is None else self.kept_back(data, following)

    def newest(self) -> Version:
        self.asked_commits += 1
        return self.reader.newest()

    def commits(self, start: Version, end: Version) -> list[Commit]:
        self.asked_commits += 1
        return self.reader.commits(start, end)


def watched(node: Serving, topic: str, **more: Any) -> Iterator[tuple[Range, Watched]]:
    for task in planned(node, topic, **more):
        for one in task.ranges:
            yield one, Watched(task.source.open(one))


@pytest.mark.parametrize(
    "kept_back",
    [
        lambda data, following: (data, Offset(following + 1)),
        lambda data, following: (data[: len(data) // 2], following),
        lambda data, following: (data[:0], following),
        lambda data, _following: (data[:0], Offset(0)),
    ],
    ids=["one", "half", "all", "no progress"],
)
def test_s1_a_range_that_gives_fewer_records_than_planned_is_an_error(
    client: SyncClient,
    node: Serving,
    topic: Topic,
    kept_back: Callable[[memoryview, Offset], tuple[memoryview, Offset]],
) -> None:
    name = topic()
    for _ in range(4):
        client.publish_batch(name, ["same size"] * 5)
    [(wanted, reader)] = watched(node, name, end="offset:18")
    whole = list(read_range(reader, wanted, ["offset"], fail_on_data_loss=True))
    assert [offset for batch in whole for offset in batch.column("offset").to_pylist()] == list(range(18))
    reader.kept_back = kept_back
    longer = Range(wanted.partition, wanted.start, Offset(wanted.end + 5), wanted.size_bytes)
    with pytest.raises(IncompleteScan):
        list(read_range(reader, longer, ["offset"], fail_on_data_loss=True))


# Versions and moments


def test_s4_a_scan_begins_at_a_moment_or_a_version_in_every_partition(
    client: SyncClient, node: Serving, topic: Topic
) -> None:
    """S1, S4: partitions count their versions each for itself: one that has not come to it yet has nothing of it."""
    name = topic(2, policy={"ack": "archived"})
    for second in range(4):
        client.publish_batch(name, [Record("x", timestamp_ms=AT + 1000 * second)] * 5, partition=0)
    client.publish_batch(name, [Record("x", timestamp_ms=AT)] * 3, partition=1)
    versions = [client.admin.partition(name, number).version for number in range(2)]
    assert versions[0] == versions[1] + 3

    def read(location: dict[str, str], **more: Any) -> dict[int, list[int]]:
        given = {"topic": name} | location | {key: str(value) for key, value in more.items()}
        found: dict[int, list[int]] = {0: [], 1: []}
        for one in ranges(planned_by(given)):
            found[one.partition.partition] += range(one.start, one.end)
        return found

    for location in ({"url": node.url}, {"path": f"file://{node.data.parent}/objects"}, {"path": str(node.data)}):
        assert read(location, start=f"timestamp:{AT + 1500}") == {0: list(range(10, 20)), 1: []}
        assert read(location, start="timestamp:2026-01-01T00:00:01Z") == {0: list(range(5, 20)), 1: []}
        assert read(location, start=f"version:{versions[0]}") == {0: list(range(15, 20)), 1: []}
        assert read(location, start=f"version:{versions[0] - 1}") == {0: list(range(10, 20)), 1: []}
        assert read(location, start=f"version:{versions[1]}") == {0: list(range(20)), 1: [0, 1, 2]}
        assert read(location, end=f"version:{versions[0] - 1}") == {0: list(range(15)), 1: [0, 1, 2]}
        with pytest.raises(VersionNotRetained):
            read(location, start=f"version:{versions[0] + 2}")
        with pytest.raises(VersionNotRetained):
            read(location, end=f"version:{versions[0] + 1}")


@dataclass
class CleanedUp:
    """A log that is cleaned up by `speed` versions whenever it is asked; it may name what is just being removed."""

    newest_version: int
    speed: int
    is_stale: bool
    oldest: int = 0
    questions: int = 0

    def commits(self, start: Version, end: Version) -> list[Commit]:
        self.questions += 1
        before, self.oldest = self.oldest, self.oldest + self.speed
        if start < self.oldest:
            oldest = before if self.is_stale else self.oldest
            raise VersionNotRetained(version=start, oldest=oldest, current=self.newest_version)
        return [commit(version) for version in range(start, end)]


def commit(version: int) -> Commit:
    return Commit(
        version=Version(version),
        timestamp="",
        txn_id="",
        operations=(),
        checkpoint_hint=False,
        epoch=Epoch(1),
        start_offset=Offset(0),
        next_offset=Offset(version),
    )


@pytest.mark.parametrize("is_stale", [False, True])
@pytest.mark.parametrize("speed", [1, 10, 70])
def test_s1_commits_are_found_however_fast_clean_up_is(speed: int, is_stale: bool) -> None:
    log = CleanedUp(newest_version=2999, speed=speed, is_stale=is_stale)
    found = [one.version for one in kept_commits(log.commits, Version(0), Version(1000))]
    assert found == list(range(found[0], 1000)), "a run that ends with the last"
    assert found[0] <= log.oldest + 330
    assert log.questions <= 7


def test_s1_commits_that_are_all_gone_are_no_error() -> None:
    log = CleanedUp(newest_version=2999, speed=10, is_stale=False, oldest=1500)
    assert kept_commits(log.commits, Version(0), Version(1000)) == []
    assert log.questions == 1


# Push-down


EARLY, LATE = datetime.fromtimestamp(AT / 1000, UTC), datetime.fromtimestamp(AT / 1000 + 45, UTC)


@pytest.fixture(scope="module")
def orders(client: SyncClient) -> str:
    """Two partitions of 60 records, in ten commits each; a record a second."""
    name = "/default/spark-push-down"
    client.admin.create_topic(name, partitions=2)
    for partition in range(2):
        for first in range(0, 60, 6):
            records = [Record(b"v" * 500, timestamp_ms=AT + 1000 * n) for n in range(first, first + 6)]
            client.publish_batch(name, records, partition=partition)
    return name


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], {0: (0, 60), 1: (0, 60)}),
        ([EqualTo(("partition",), 1)], {1: (0, 60)}),
        ([In(("partition",), (0, 7))], {0: (0, 60)}),
        ([EqualTo(("topic",), "another")], {}),
        ([EqualTo(("namespace",), "default"), EqualTo(("partition",), 0)], {0: (0, 60)}),
        ([EqualTo(("offset",), 7)], {0: (7, 8), 1: (7, 8)}),
        ([GreaterThan(("offset",), 7), LessThan(("offset",), 20)], {0: (8, 20), 1: (8, 20)}),
        ([GreaterThanOrEqual(("offset",), 7), LessThanOrEqual(("offset",), 20)], {0: (7, 21), 1: (7, 21)}),
        ([GreaterThanOrEqual(("offset",), 60)], {}),
        ([GreaterThanOrEqual(("timestamp",), LATE)], {0: (45, 60), 1: (45, 60)}),
        ([LessThan(("timestamp",), EARLY)], {0: (0, 60), 1: (0, 60)}),
        ([GreaterThanOrEqual(("version",), 4), EqualTo(("partition",), 1)], {1: (18, 60)}),
        ([LessThanOrEqual(("version",), 4)], {0: (0, 24), 1: (0, 24)}),
        ([LessThanOrEqual(("version",), 999), EqualTo(("partition",), 1)], {1: (0, 60)}),
        ([LessThan(("version",), 4), GreaterThan(("version",), 2)], {0: (12, 18), 1: (12, 18)}),
        ([StringStartsWith(("topic",), "x"), EqualTo(("value",), b"v")], {0: (0, 60), 1: (0, 60)}),
    ],
)
def test_s1_filters_decide_what_is_planned_to_be_read(
    node: Serving, orders: str, filters: list[Filter], expected: dict[int, tuple[int, int]]
) -> None:
    found = sorted(ranges(planned(node, orders, filters)), key=lambda one: (one.partition, one.start))
    by_partition = {number: list(some) for number, some in groupby(found, lambda one: one.partition.partition)}
    assert {number: (some[0].start, some[-1].end) for number, some in by_partition.items()} == expected
    whole = sum(one.size_bytes for one in ranges(planned(node, orders)))
    share = sum(end - start for start, end in expected.values()) / 120
    assert sum(one.size_bytes for one in found) <= whole * share + 4


def test_s1_a_column_that_is_not_asked_for_is_not_decoded(node: Serving, orders: str) -> None:
    """The batches come whole; what is made of them is what was asked for, and commits are only read for versions."""
    made: dict[str, tuple[int, int]] = {}
    for columns in (["offset"], ["offset", "partition", "value"], ["offset", "version"]):
        batches: list[pa.RecordBatch] = []
        commits = 0
        for wanted, reader in watched(node, orders):
            batches += read_range(reader, wanted, columns, fail_on_data_loss=True)
            commits += reader.asked_commits
        assert all(batch.schema.names == columns for batch in batches)
        assert sum(batch.num_rows for batch in batches) == 120
        made["+".join(columns)] = (sum(batch.nbytes for batch in batches), commits)
    assert made["offset"] == (120 * 8, 0)
    assert made["offset+partition+value"][0] >= 120 * 500
    assert made["offset+partition+value"][1] == 0
    assert made["offset+version"][1] > 0


def test_s1_a_planner_reads_nothing_where_no_filter_leaves_anything(node: Serving, orders: str) -> None:
    read = ReadOptions.of(options(node, orders), is_stream=False)
    planner = Planner(read, log_catalogue.open_catalogue(read.location, read.topics))
    assert planner.between({}, {}) == []
    assert ranges(planned(node, orders, [EqualTo(("partition",), 5)])) == []
