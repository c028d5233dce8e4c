"""The audit: S6, on a real session, of a real node, its archive, its data directory and tables made of it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from sulina.cli import run as command
from sulina.cli.audit import verdict
from sulina.client import Record, SyncClient
from sulina.clock import SystemClock
from sulina.core.log.commit import Add
from sulina.core.log.retention import Retention
from sulina.core.records.batch import split
from sulina.core.records.columns import encode_columns
from sulina.errors import CorruptSegment, InvalidSettings, TopicNotFound
from sulina.spark.arrow_batches import read_range
from sulina.spark.audit import Audit
from sulina.spark.audit_checks import AuditReport, Finding, Kind
from sulina.spark.errors import TableNotFound
from sulina.spark.log_catalogue import open_catalogue
from sulina.spark.options import LogLocation
from sulina.spark.scan import Range, TopicChoice
from sulina.storage.directory_log import DirectoryLog
from sulina.storage.files import OsFiles
from sulina.types import Offset, PartitionName, TopicName, Version
from tests.support.serving import Serving

PARTITIONS = 3
BATCHES = 12
BATCH = 5
RECORDS = BATCHES * BATCH  # of each partition


@dataclass(frozen=True, slots=True)
class World:
    """A topic, and where its records are. Only copies of it are ever damaged."""

    spark: SparkSession
    client: SyncClient
    node: Serving
    topic: str

    @property
    def objects(self) -> Path:
        return self.node.data.parent / "objects"

    def copy(self, root: Path, to: Path) -> Path:
        """Of an archive or a data directory, what is of this topic."""
        for number in range(PARTITIONS):
            name = PartitionName(TopicName.parse(self.topic), number).directory
            shutil.copytree(root / name, to / name)
        return to

    def audit(self, *, path: object = None, range_offsets: int = 16, **more: Any) -> AuditReport:
        location = LogLocation(
            url=self.node.url if path is None else None,
            path=None if path is None else str(path),
            objects=None,
            objects_endpoint=None,
        )
        topic = TopicName.parse(self.topic)
        return Audit(spark=self.spark, location=location, topic=topic, range_offsets=range_offsets, **more).run()


@pytest.fixture(scope="module")
def world(spark: SparkSession, client: SyncClient, node: Serving) -> World:
    name = "/default/audited"
    client.admin.create_topic(name, partitions=PARTITIONS, policy={"ack": "archived"})
    for first in range(0, RECORDS, BATCH):
        for partition in range(PARTITIONS):
            messages = [
                Record(f"v{n}", key=f"k{n}" if n % 2 else None, headers={"n": str(n)} if n % 3 else None)
                for n in range(first, first + BATCH)
            ]
            client.publish_batch(name, messages, partition=partition)
    return World(spark, client, node, name)


@pytest.fixture(scope="module")
def bronze(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Everything, written as a pipeline writes it."""
    folder = tmp_path_factory.mktemp("bronze")
    rows = world.spark.readStream.format("sulina").option("url", world.node.url).option("topic", world.topic)
    query = (
        rows.option("start", "earliest")
        .load()
        .writeStream.format("sulina-delta")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return str(folder / "table")


def rows_of(table: str) -> list[dict[str, Any]]:
    return list(DeltaTable(table).to_pyarrow_table().to_pylist())


def written(table: str, rows: list[dict[str, Any]], to: Path) -> str:
    """Other rows, with the columns of a table."""
    write_deltalake(str(to), pa.Table.from_pylist(rows, DeltaTable(table).to_pyarrow_table().schema))
    return str(to)


def told(report: AuditReport) -> set[tuple[Kind, int | None, int | None, int | None]]:
    return {(one.kind, one.partition, one.start, one.end) for one in report.findings}


def only(report: AuditReport) -> Finding:
    (found,) = report.findings
    return found


@pytest.mark.parametrize("where", ["url", "archive", "directory"])
def test_s6_a_healthy_topic_and_its_table_hold_wherever_they_are_read(world: World, bronze: str, where: str) -> None:
    path = {"url": None, "archive": world.objects, "directory": world.node.data}[where]
    report = world.audit(path=path, table=bronze, is_complete=True)
    assert report.findings == []
    assert report.holds
    assert [(one.partition, one.start, one.end, one.records) for one in report.partitions] == [
        (number, 0, RECORDS, RECORDS) for number in range(PARTITIONS)
    ]
    assert [(one.table_records, one.behind, one.forgotten) for one in report.partitions] == [(RECORDS, 0, 0)] * 3
    versions = [world.client.admin.partition(world.topic, number).version + 1 for number in range(PARTITIONS)]
    assert [one.versions for one in report.partitions] == versions


def test_s6_a_table_that_is_behind_is_told_and_a_finding_only_if_it_must_be_complete(
    world: World, bronze: str, tmp_path: Path
) -> None:
    kept = [row for row in rows_of(bronze) if row["partition"] != 1 or row["offset"] < 21]
    kept = [row for row in kept if row["partition"] != 2]
    table = written(bronze, kept, tmp_path / "table")
    report = world.audit(table=table)
    assert report.findings == []
    assert [one.behind for one in report.partitions] == [0, RECORDS - 21, RECORDS]
    report = world.audit(table=table, is_complete=True)
    assert told(report) == {(Kind.TABLE_BEHIND, 1, 21, RECORDS), (Kind.TABLE_BEHIND, 2, 0, RECORDS)}
    assert not report.holds


def test_s6_whatever_is_wrong_with_a_table_is_found_and_named(world: World, bronze: str, tmp_path: Path) -> None:
    rows = sorted(rows_of(bronze), key=lambda row: (row["partition"], row["offset"]))
    parts = [rows[number * RECORDS : (number + 1) * RECORDS] for number in range(PARTITIONS)]
    first = [row for row in parts[0] if row["offset"] != 7 and not 16 <= row["offset"] < 48]  # whole ranges too
    parts[1][20] = parts[1][20] | {"value": b"other"}
    assert parts[1][2]["key"] is None
    parts[1][2] = parts[1][2] | {"key": b""}  # neither null nor empty is nothing
    parts[1][31] = parts[1][31] | {"headers": [{"key": "n", "value": None}]}
    third = [*parts[2], parts[2][33], parts[2][33] | {"offset": RECORDS + 9}]
    unknown = parts[2][0] | {"partition": 9}
    table = written(bronze, [*first, *parts[1], *third, unknown], tmp_path / "table")
    report = world.audit(table=table)
    assert told(report) == {
        (Kind.TABLE_MISSING, 0, 7, 8),
        (Kind.TABLE_MISSING, 0, 16, 48),
        (Kind.TABLE_CHANGED, 1, 20, 21),
        (Kind.TABLE_CHANGED, 1, 2, 3),
        (Kind.TABLE_CHANGED, 1, 31, 32),
        (Kind.TABLE_REPEATED, 2, 33, 34),
        (Kind.TABLE_FOREIGN, 2, RECORDS + 9, RECORDS + 10),
        (Kind.TABLE_FOREIGN, 9, 0, 1),
    }
    said = {one.what for one in report.findings}
    assert "the table lacks offset 7, and has later ones" in said
    assert "offset 20 differs between log and table" in said
    assert "the table has offset 33 more than once" in said


def test_s6_a_table_that_began_late_holds_and_it_is_told_where_it_begins(
    world: World, bronze: str, tmp_path: Path
) -> None:
    rows = [row for row in rows_of(bronze) if row["partition"] != 1 or row["offset"] >= 20]
    table = written(bronze, rows, tmp_path / "table")
    report = world.audit(table=table)
    assert (report.holds, [one.begins for one in report.partitions]) == (True, [None, 20, None])
    assert [one.table_records for one in report.partitions] == [RECORDS, RECORDS - 20, RECORDS]
    assert [one.records for one in report.partitions] == [RECORDS] * PARTITIONS
    assert "the table equals the log in 160 rows, begins after 20 records" in verdict(report)
    assert told(world.audit(table=table, is_from_first=True)) == {(Kind.TABLE_MISSING, 1, 0, 20)}


def test_s6_a_repeat_does_not_make_up_for_a_hole(world: World, bronze: str, tmp_path: Path) -> None:
    """{1, 5, 6} and {2, 3, 7} are as many, and have the same sum and the same sum of squares."""
    rows = [row for row in rows_of(bronze) if row["partition"] != 0 or row["offset"] not in (1, 5, 6)]
    again = [row for row in rows if row["partition"] == 0 and row["offset"] in (2, 3, 7)]
    report = world.audit(table=written(bronze, rows + again, tmp_path / "table"))
    assert told(report) == {
        (Kind.TABLE_MISSING, 0, 1, 2),
        (Kind.TABLE_MISSING, 0, 5, 7),
        (Kind.TABLE_REPEATED, 0, 2, 4),
        (Kind.TABLE_REPEATED, 0, 7, 8),
    }


def test_s6_a_byte_that_changed_in_the_archive_is_told_with_its_place_and_the_rest_is_audited(
    world: World, bronze: str, tmp_path: Path
) -> None:
    copy = world.copy(world.objects, tmp_path / "objects")
    objects = sorted(next(copy.glob("*-part=1/*/_delta_log")).parent.glob("*.log"))
    assert len(objects) > 3
    for damaged in (objects[1], objects[3]):
        flip(damaged, damaged.stat().st_size - 3)
    report = world.audit(path=copy, table=bronze)
    starts = [int(name.name.partition("-")[0]) for name in objects]
    assert told(report) == {
        (Kind.DAMAGED, 1, starts[1], starts[2]),
        (Kind.DAMAGED, 1, starts[3], starts[4] if len(starts) > 4 else RECORDS),
    }
    assert any(objects[1].name in one.what and "CRC32C" in one.what for one in report.findings)
    lost = sum(end - start for start, end in report.partitions[1].unread)
    assert [one.records for one in report.partitions] == [RECORDS, RECORDS - lost, RECORDS]


def test_s6_a_byte_that_changed_in_a_data_directory_is_told_with_its_place(
    world: World, bronze: str, tmp_path: Path
) -> None:
    copy = world.copy(world.node.data, tmp_path / "data")
    commits = world.client.admin.commits(
        world.topic, 2, start=0, end=world.client.admin.partition(world.topic, 2).version + 1
    )
    add = next(op for one in commits for op in one.operations if isinstance(op, Add) and op.offset_start == 30)
    flip(next(copy.glob(f"*-part=2/{add.segment}")), add.position + 70)
    report = world.audit(path=copy)
    assert told(report) == {(Kind.DAMAGED, 2, 30, 30 + BATCH)}
    assert f"{add.segment} is damaged at byte {add.position} (offset 30)" in only(report).what
    assert [one.records for one in report.partitions] == [RECORDS, RECORDS, RECORDS - BATCH]
    flip(next(copy.glob(f"*-part=2/{add.segment}")), add.position + 10)  # its length: nothing leads past it any more
    report = world.audit(path=copy)
    assert [one.records for one in report.partitions][:2] == [RECORDS, RECORDS]
    assert report.partitions[2].unread[0][0] == 30
    assert report.partitions[2].records == RECORDS - sum(end - start for start, end in report.partitions[2].unread)
    assert {one.kind for one in report.findings} == {Kind.DAMAGED}


def test_s6_damage_that_a_broker_finds_is_told_too(world: World, topic: Callable[..., str]) -> None:
    name = topic()
    for first in range(0, 30, 10):
        world.client.publish_batch(name, [f"v{n}" for n in range(first, first + 10)])
    add = world.client.admin.commits(name, start=2, end=3)[0].operations[0]
    assert isinstance(add, Add)
    directory = world.node.data / PartitionName(TopicName.parse(name), 0).directory
    flip(directory / add.segment, add.position + 70)
    report = World(world.spark, world.client, world.node, name).audit()
    assert told(report) == {(Kind.DAMAGED, 0, 10, 20)}
    assert "(offset 10)" in only(report).what
    assert report.partitions[0].records == 20
    flip(directory / add.segment, add.position + 70)


def flip(file: Path, position: int) -> None:
    """One bit, in place; twice is not at all."""
    with file.open("r+b") as opened:
        opened.seek(position)
        byte = opened.read(1)[0]
        opened.seek(position)
        opened.write(bytes([byte ^ 0x10]))


def test_s6_a_commit_that_is_missing_or_damaged_is_told(world: World, tmp_path: Path) -> None:
    copy = world.copy(world.node.data, tmp_path / "data")
    next(copy.glob("*-part=0/_delta_log/00000000000000000005.json")).unlink()
    flip(next(copy.glob("*-part=1/_delta_log/00000000000000000004.json")), 20)
    report = world.audit(path=copy)
    assert (Kind.VERSIONS, 0, 5, 6) in told(report)
    assert "version 5 is missing" in {one.what for one in report.findings}
    assert any("00000000000000000004.json is damaged" in one.what and one.partition == 1 for one in report.findings)
    assert report.partitions[-1].partition == 2
    assert report.partitions[-1].records == RECORDS


def test_s6_what_the_log_has_forgotten_is_no_fault_of_a_table(world: World, bronze: str, tmp_path: Path) -> None:
    copy = world.copy(world.node.data, tmp_path / "data")
    log = DirectoryLog(str(next(copy.glob("*-part=0"))), files=OsFiles(), clock=SystemClock())
    log.open()
    log.retain(Retention(bytes_max=0))
    log.close()
    report = world.audit(path=copy, table=bronze, is_complete=True)
    assert report.findings == []
    assert [(one.start, one.table_records, one.forgotten) for one in report.partitions] == [
        (RECORDS, 0, RECORDS),
        (0, RECORDS, 0),
        (0, RECORDS, 0),
    ]
    twice = [row for row in rows_of(bronze) if row["partition"] == 0 and row["offset"] == 3]
    report = world.audit(path=copy, table=written(bronze, rows_of(bronze) + twice, tmp_path / "table"))
    assert told(report) == {(Kind.TABLE_REPEATED, 0, 3, 4)}


def test_s6_of_a_silver_table_every_row_is_of_a_record_and_no_record_has_two(world: World, tmp_path: Path) -> None:
    namespace, topic = world.topic.split("/")[1:]
    good = [{"_namespace": namespace, "_topic": topic, "_partition": 0, "_offset": n} for n in range(0, RECORDS, 2)]
    bad = [{"namespace": namespace, "topic": topic, "partition": 0, "offset": n} for n in (1, 3)]
    other = [{"_namespace": namespace, "_topic": "other", "_partition": 0, "_offset": 1000}]
    write_deltalake(str(tmp_path / "silver"), pa.Table.from_pylist(good + other))
    write_deltalake(str(tmp_path / "aside"), pa.Table.from_pylist(bad))
    silver, aside = str(tmp_path / "silver"), str(tmp_path / "aside")
    report = world.audit(table=silver, quarantine=aside)
    assert report.findings == []
    assert [one.table_records for one in report.partitions] == [RECORDS // 2 + 2, 0, 0]
    ranges = report.partitions[0].ranges or []
    assert [(one.start, one.records, one.table_records) for one in ranges][:2] == [(0, 16, 10), (16, 16, 8)]
    write_deltalake(silver, pa.Table.from_pylist([good[1], good[1] | {"_partition": 1, "_offset": 777}]), mode="append")
    report = world.audit(table=silver, quarantine=aside)
    assert told(report) == {(Kind.TABLE_REPEATED, 0, 2, 3), (Kind.TABLE_FOREIGN, 1, 777, 778)}
    with pytest.raises(InvalidSettings, match="silver"):
        world.audit(table=silver, is_complete=True)


def test_s6_what_cannot_be_audited_is_an_error(world: World, bronze: str, tmp_path: Path) -> None:
    with pytest.raises(TableNotFound):
        world.audit(table=str(tmp_path / "nothing"))
    with pytest.raises(InvalidSettings, match="quarantine"):
        world.audit(table=bronze, quarantine=bronze)
    with pytest.raises(InvalidSettings, match="--table"):
        world.audit(is_complete=True)
    write_deltalake(str(tmp_path / "gold"), pa.table({"country": ["RO"], "n": [1]}))
    with pytest.raises(InvalidSettings, match="bronze"):
        world.audit(table=str(tmp_path / "gold"))
    missing = World(world.spark, world.client, world.node, "/default/nobody-made-it")
    with pytest.raises(TopicNotFound):
        missing.audit()


def test_s6_a_table_whose_files_are_gone_is_a_finding(world: World, bronze: str, tmp_path: Path) -> None:
    shutil.copytree(bronze, tmp_path / "table")
    for file in (tmp_path / "table").rglob("*.parquet"):
        file.unlink()
    report = world.audit(table=str(tmp_path / "table"))
    assert only(report).kind == Kind.TABLE_UNREADABLE
    assert "\n" not in only(report).what
    assert [one.records for one in report.partitions] == [RECORDS] * PARTITIONS


def test_s6_the_command_says_it_in_a_report_and_an_exit_code(
    world: World, bronze: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command(["audit", world.topic, "--url", world.node.url, "--table", bronze, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["holds"] is True
    assert len(report["partitions"]) == PARTITIONS
    table = written(bronze, [row for row in rows_of(bronze) if row["offset"] != 9], tmp_path / "table")
    assert command(["audit", "audited", "--path", str(world.node.data), "--table", table]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert lines[-1] == "/default/audited failed the audit: 3 findings."
    assert sum("the table lacks offset 9, and has later ones" in line for line in lines) == 3


# Without Spark


def test_commits_are_read_from_the_oldest_that_is_kept_on_and_gaps_show(world: World, tmp_path: Path) -> None:
    name = PartitionName(TopicName.parse(world.topic), 0)
    newest = world.client.admin.partition(world.topic, 0).version
    copy = world.copy(world.node.data, tmp_path / "data")
    for version in (0, 1, 7):
        next(copy.glob(f"*-part=0/_delta_log/{version:020d}.json")).unlink()
    for path, expected in (
        (None, [*range(newest + 1)]),
        (world.objects, [*range(newest + 1)]),
        (copy, [*range(2, 7), *range(8, newest + 1)]),
    ):
        url = world.node.url if path is None else None
        location = LogLocation(url=url, path=None if path is None else str(path), objects=None, objects_endpoint=None)
        logs = open_catalogue(location, TopicChoice((world.topic,)))
        assert name in logs.partitions()
        assert [commit.version for commit in logs.commits(name)] == expected


class Sent:
    """Bytes as a broker would send them."""

    def __init__(self, *batches: bytes) -> None:
        self.data = b"".join(batches)

    def read(self, offset: Offset) -> tuple[memoryview, Offset]:
        return memoryview(self.data), split(self.data, check_crc=False)[-1].end_offset

    def newest(self) -> Version:
        return Version(0)

    def commits(self, start: Version, end: Version) -> list[Any]:
        return []


def test_with_check_crc_a_batch_that_changed_on_its_way_is_named() -> None:
    values = pa.array([b"a", b"b"])
    batches = [bytearray(encode_columns(value=values, timestamp_ms=0, base_offset=n)) for n in (0, 2, 4)]
    wanted = Range(PartitionName(TopicName.parse("/a/b"), 1), Offset(0), Offset(6), 0)
    read: Callable[..., Any] = lambda check: list(  # noqa: E731
        read_range(Sent(*map(bytes, batches)), wanted, ["offset"], fail_on_data_loss=True, check_crc=check)
    )
    assert sum(batch.num_rows for batch in read(True)) == 6
    batches[1][-2] ^= 1
    assert sum(batch.num_rows for batch in read(False)) == 6
    with pytest.raises(CorruptSegment, match=r"topic=a\.b-part=1 is damaged at byte \d+ \(offset 2\).*CRC32C"):
        read(True)
