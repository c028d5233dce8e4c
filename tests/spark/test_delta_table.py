"""Delta tables that are written exactly once, and that others read, and streams of them: S3, S4, without a session."""

import pickle
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNotNull, IsNull, LessThan, StringStartsWith
from pyspark.sql.types import StructType

from sulina.errors import InvalidSettings, VersionNotRetained
from sulina.spark.delta_data_source import DeltaReadOptions, DeltaStreamReader
from sulina.spark.delta_files import NewFile, write_files
from sulina.spark.delta_log import files_of, open_table, read_commit, snapshot
from sulina.spark.delta_pruning import pruned
from sulina.spark.delta_scan import ScanPlan, divided, read_pieces
from sulina.spark.delta_schema import arrow_schema
from sulina.spark.delta_sink import DeltaStreamWriter, SinkOptions, WrittenFiles
from sulina.spark.delta_table import Committed, WriteTo, commit, plan_write
from sulina.spark.errors import TableRewritten, TableSchemaConflict, TableUnsupported
from sulina.spark.table_location import TableLocation
from tests.support.s3 import BUCKET, S3Server, s3

__all__ = ["s3"]  # a fixture

RACES = 8


def schema(ddl: str) -> StructType:
    """Spark's own parser of DDL needs a session: names and types with commas between them."""
    fields = []
    for part in ddl.split(","):
        name, kind = part.split()[:2]
        fields.append({"name": name, "type": kind, "nullable": "NOT" not in part, "metadata": {}})
    return StructType.fromJson({"type": "struct", "fields": fields})


def put(folder: Path, ddl: str, rows: Sequence[Sequence[Any]], **settings: Any) -> tuple[WriteTo, list[NewFile]]:
    """Files, not committed."""
    to = WriteTo(location=TableLocation.parse(str(folder)), schema=schema(ddl), **settings)
    columns = arrow_schema(to.schema)
    arrays = [pa.array([row[n] for row in rows], field.type) for n, field in enumerate(columns)]
    batch = pa.RecordBatch.from_arrays(arrays, names=columns.names)
    return to, write_files(plan_write(to), [batch])


def append(folder: Path, ddl: str, rows: Sequence[Sequence[Any]], **settings: Any) -> Committed:
    app, version = settings.pop("app", None), settings.pop("version", 0)
    to, files = put(folder, ddl, rows, **settings)
    return commit(to, files, app=app, version=version)


def rows_of(folder: Path, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(folder, **options).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row["n"])


def data_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}


def test_s3_a_table_is_made_by_the_first_commit_and_grows_by_the_next(tmp_path: Path) -> None:
    assert append(tmp_path, "n long", [[1], [2]]) == Committed(0, True)
    assert append(tmp_path, "n long", [[3]]) == Committed(1, True)
    assert rows_of(tmp_path) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert rows_of(tmp_path, version=0) == [{"n": 1}, {"n": 2}]
    protocol = DeltaTable(tmp_path).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_s3_the_same_batch_again_adds_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    for _ in range(3):
        append(tmp_path, "n long", [[1]], app="query", version=0)
    append(tmp_path, "n long", [[2]], app="query", version=1)
    before = data_files(tmp_path)
    assert append(tmp_path, "n long", [[1]], app="query", version=0) == Committed(1, False)
    assert append(tmp_path, "n long", [[2]], app="query", version=1) == Committed(1, False)
    assert append(tmp_path, "n long", [[9]], app="other", version=0) == Committed(2, True)
    assert rows_of(tmp_path) == [{"n": 1}, {"n": 2}, {"n": 9}]
    assert len(data_files(tmp_path)) == len(before) + 1


_RACER = """
import sys
from pathlib import Path
from tests.spark.test_delta_table import append
for line in sys.stdin:
    folder, version = line.split("\\t")
    made = append(Path(folder), "n long", [[int(version)]], app="query", version=int(version))
    print(made.is_new, flush=True)
"""


def test_s3_two_processes_that_race_with_the_same_batch_commit_it_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _RACER]
    root = Path(__file__).parents[2]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) for _ in range(2)
    ]
    try:
        # Each table is made by a race for its version 0 too.
        for folder in (tmp_path / "a", tmp_path / "b"):
            for version in range(RACES // 2):
                for racer in racers:
                    assert racer.stdin is not None
                    racer.stdin.write(f"{folder}\t{version}\n")
                    racer.stdin.flush()
                said = [racer.stdout.readline().strip() for racer in racers if racer.stdout is not None]
                assert sorted(said) == ["False", "True"]
                assert rows_of(folder) == [{"n": n} for n in range(version + 1)]
                assert len(data_files(folder)) == version + 1  # the loser has removed its own
    finally:
        for racer in racers:
            racer.communicate(timeout=60)


def test_s3_files_without_a_commit_leave_the_table_as_it_was(tmp_path: Path) -> None:
    append(tmp_path, "n long", [[1]], app="query", version=0)
    _, files = put(tmp_path, "n long", [[2]])  # and here it is killed
    assert rows_of(tmp_path) == [{"n": 1}]
    assert append(tmp_path, "n long", [[2]], app="query", version=1).is_new  # as if started again
    assert rows_of(tmp_path) == [{"n": 1}, {"n": 2}]
    assert {files[0].path} < data_files(tmp_path)
    DeltaTable(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert files[0].path not in data_files(tmp_path)
    assert rows_of(tmp_path) == [{"n": 1}, {"n": 2}]


def test_s3_a_commit_that_seemed_to_fail_is_found_and_its_files_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, "n long", [[1]], app="query", version=0)
    original, calls = DeltaTable.create_write_transaction, []

    def lost_answer(table: DeltaTable, *args: Any, **kwargs: Any) -> None:
        calls.append(1)
        original(table, *args, **kwargs)
        raise OSError("the connection was reset")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost_answer)
    assert append(tmp_path, "n long", [[2]], app="query", version=1) == Committed(1, True)
    assert append(tmp_path, "n long", [[3]]) == Committed(2, True)  # without an application transaction too
    assert len(calls) == 2
    assert rows_of(tmp_path) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_s3_a_new_column_needs_leave_and_a_missing_one_is_null(tmp_path: Path) -> None:
    append(tmp_path, "n long NOT NULL, word string", [[1, "a"]])
    with pytest.raises(TableSchemaConflict, match="columns more: it has none; set mergeSchema=true"):
        append(tmp_path, "n long, word string, more double", [[2, "b", 0.5]])
    assert append(tmp_path, "N long, more double", [[3, 1.5]], merge_schema=True).is_new
    assert append(tmp_path, "more double, n long", [[2.5, 4]]).is_new
    assert rows_of(tmp_path) == [
        {"n": 1, "word": "a", "more": None},
        {"n": 3, "word": None, "more": 1.5},
        {"n": 4, "word": None, "more": 2.5},
    ]
    assert len(data_files(tmp_path)) == 3


def test_s3_a_changed_type_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    append(tmp_path, "n long NOT NULL, word string", [[1, "a"]])
    with pytest.raises(TableSchemaConflict, match="column n: it is bigint there and string in the rows"):
        append(tmp_path, "n string, word string", [["1", "a"]], merge_schema=True)
    with pytest.raises(TableSchemaConflict, match="columns n: they are NOT NULL"):
        append(tmp_path, "word string", [["a"]])
    with pytest.raises(TableSchemaConflict, match="1 rows are null"):
        append(tmp_path, "n long", [[None]])
    with pytest.raises(TableSchemaConflict, match="partition columns are none, and not word"):
        append(tmp_path, "n long, word string", [[1, "a"]], partition_columns=("word",))
    with pytest.raises(InvalidSettings, match="void"):
        append(tmp_path, "n long, v void", [[1, None]], merge_schema=True)
    assert DeltaTable(tmp_path).version() == 0
    assert len(data_files(tmp_path)) == 1


def test_s3_an_overwrite_replaces_all_files_in_one_commit(tmp_path: Path) -> None:
    append(tmp_path, "n long", [[1]])
    append(tmp_path, "n long", [[2]])
    assert append(tmp_path, "n long, w string", [[3, "x"]], overwrite=True, merge_schema=True) == Committed(2, True)
    assert rows_of(tmp_path) == [{"n": 3, "w": "x"}]
    assert append(tmp_path, "n string", [["z"]], overwrite=True, overwrite_schema=True) == Committed(3, True)
    assert rows_of(tmp_path) == [{"n": "z"}]
    assert append(tmp_path, "n string", [], overwrite=True, user_metadata="why") == Committed(4, True)
    assert rows_of(tmp_path) == []
    assert DeltaTable(tmp_path).history(1)[0]["userMetadata"] == "why"
    assert rows_of(tmp_path, version=1) == [{"n": 1}, {"n": 2}]


def test_s3_a_table_that_needs_more_than_we_do_is_refused(tmp_path: Path) -> None:
    append(tmp_path, "n long", [[1]])
    DeltaTable(tmp_path).alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(TableUnsupported, match="constraint"):
        append(tmp_path, "n long", [[-1]])


PARTITIONED: list[list[Any]] = [["a b", 1], ["a/b", 2], ["50%", 3], ["%2F", 4], ["ünïcødé ☃", 5], [None, 6], ["x=y", 7]]


def test_s3_others_read_what_we_wrote(tmp_path: Path) -> None:
    """DuckDB reads the files by their names: its extension for Delta is a download, which cannot be had everywhere."""
    import duckdb  # it and polars take a second, and every worker loads this module
    import polars as pl

    append(tmp_path, "p string, n long", PARTITIONED, partition_columns=("p",))
    append(tmp_path, "p string, n long, t timestamp", [["z", 8, datetime(2026, 1, 1, tzinfo=UTC)]], merge_schema=True)
    expected = sorted([*((n, p) for p, n in PARTITIONED), (8, "z")])
    assert sorted((row["n"], row["p"]) for row in rows_of(tmp_path)) == expected
    frame = pl.read_delta(str(tmp_path))
    assert sorted(zip(frame["n"].to_list(), frame["p"].to_list(), strict=True)) == expected
    assert frame.filter(pl.col("p") == "a/b")["n"].to_list() == [2]
    directory = TableLocation.parse(str(tmp_path)).directory
    table = DeltaTable(tmp_path)
    paths = [
        f"{directory}/{file.path}" for file in files_of(TableLocation.parse(str(tmp_path)), snapshot(table), ["p"])
    ]
    found = duckdb.connect().execute("SELECT n FROM read_parquet(?, hive_partitioning = false)", [paths]).fetchall()
    assert sorted(n for (n,) in found) == list(range(1, 9))


def read(folder: Path, filters: Sequence[Filter] = (), **options: Any) -> list[dict[str, Any]]:
    """Through our own scan, as the format does it."""
    location = TableLocation.parse(str(folder))
    table = open_table(location, **options)
    columns = tuple(table.metadata().partition_columns)
    found = pruned(snapshot(table), filters, columns)
    plan = ScanPlan(location, pa.schema(table.schema().to_arrow()), columns)
    tasks = divided(files_of(location, found, columns), 3)
    return [row for task in tasks for batch in read_pieces(plan, task) for row in batch.to_pylist()]


def test_s1_a_scan_gives_each_row_once_however_it_is_divided(tmp_path: Path) -> None:
    append(tmp_path, "p string, n long", PARTITIONED, partition_columns=("p",))
    assert sorted((row["n"], row["p"]) for row in read(tmp_path)) == sorted((n, p) for p, n in PARTITIONED)
    wide = tmp_path / "wide"
    to = WriteTo(location=TableLocation.parse(str(wide)), schema=schema("n long"))
    plan = plan_write(to, target_bytes=1 << 20)
    batches = [pa.record_batch({"n": pa.array(range(first, first + 50_000))}) for first in range(0, 500_000, 50_000)]
    commit(to, write_files(plan, batches))
    assert sorted(row["n"] for row in read(wide)) == list(range(500_000))


@pytest.mark.parametrize(
    ("one", "files"),
    [
        (EqualTo(("n",), 15), 1),
        (EqualTo(("N",), 99), 0),
        (GreaterThan(("n",), 19), 2),  # not exact, never too narrow
        (LessThan(("n",), 10), 2),
        (In(("n",), (5, 25)), 2),
        (EqualTo(("p",), "b"), 1),
        (EqualTo(("p",), "zz"), 0),
        (IsNull(("p",)), 1),
        (IsNotNull(("p",)), 2),
        (IsNull(("n",)), 1),
        (StringStartsWith(("w",), "w1"), 1),
        (GreaterThan(("t",), datetime(2026, 1, 1, 0, 0, 9, 500_000, tzinfo=UTC)), 2),
        (GreaterThan(("t",), datetime(2026, 1, 1, 0, 0, 9, 500, tzinfo=UTC)), 3),  # others cut to milliseconds
        (LessThan(("t",), datetime(2026, 1, 1, tzinfo=UTC)), 1),
        (GreaterThan(("x",), 1000.0), 3),  # NaN is above every number
        (LessThan(("x",), -1.0), 0),
        (EqualTo(("n",), "no number"), 3),
        (EqualTo(("unknown",), 1), 3),
    ],
    ids=str,
)
def test_s1_files_that_can_have_no_row_are_not_read(tmp_path: Path, one: Filter, files: int) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for first, p in ((0, "a"), (10, "b"), (20, None)):
        rows = [[p, n, f"w{n:02}", start + timedelta(seconds=n), float(n)] for n in range(first, first + 10)]
        if p is None:
            rows[0][1] = None
        append(tmp_path, "p string, n long, w string, t timestamp, x double", rows, partition_columns=("p",))
    table = open_table(TableLocation.parse(str(tmp_path)))
    assert pruned(snapshot(table), [one], ["p"]).num_rows == files


def test_s1_a_version_that_is_not_there_is_named(tmp_path: Path) -> None:
    append(tmp_path, "n long", [[1]])
    append(tmp_path, "n long", [[2]])
    assert read(tmp_path, version=0) == [{"n": 1}]
    with pytest.raises(VersionNotRetained, match="version 7 does not exist yet; the newest is 1"):
        read(tmp_path, version=7)
    assert len(read(tmp_path, timestamp="2100-01-01T00:00:00Z")) == 2
    with pytest.raises(InvalidSettings):
        read(tmp_path, timestamp="yesterday")


def test_s3_a_write_that_is_given_up_removes_its_files_unless_a_commit_was_tried(tmp_path: Path) -> None:
    options = SinkOptions.of({"path": str(tmp_path)}, schema("n long"), overwrite=False, is_stream=True)
    writer = DeltaStreamWriter(options)
    first, second, third = (writer.write(iter([pa.record_batch({"n": pa.array([n])})])) for n in range(3))
    writer.abort([first, None], 0)
    assert data_files(tmp_path) == {file.path for file in (*second.files, *third.files)}
    writer.abort([second], 0)  # all tasks were done: what failed was the commit, if it did
    assert data_files(tmp_path) == {file.path for file in (*second.files, *third.files)}
    with pytest.raises(InvalidSettings, match="did not name the query"):
        writer.commit([third], 0)
    named = replace(options, txn_app="mine")
    DeltaStreamWriter(named).commit([third], 0)
    assert (DeltaTable(tmp_path).version(), read(tmp_path)) == (0, [{"n": 2}])
    DeltaStreamWriter(named).commit([WrittenFiles((), None)], 1)  # no rows, no version
    assert DeltaTable(tmp_path).version() == 0
    with pytest.raises(InvalidSettings, match="option txn does not apply to a stream: set txnApp"):
        SinkOptions.of({"path": str(tmp_path), "txn": "x"}, schema("n long"), overwrite=False, is_stream=True)


def test_s3_a_table_whose_folder_was_removed_is_made_again(tmp_path: Path) -> None:
    for n in range(2):
        append(tmp_path / "t", "p string, n long", [["a", n]], partition_columns=("p",))
        assert rows_of(tmp_path / "t") == [{"p": "a", "n": n}]
        shutil.rmtree(tmp_path / "t")


def test_s3_a_commit_says_what_it_added_and_whether_it_took_something(tmp_path: Path) -> None:
    append(tmp_path, "p string, n long", PARTITIONED, partition_columns=("p",))
    append(tmp_path, "p string, n long", [["a b", 9]])
    DeltaTable(tmp_path).optimize.compact()
    append(tmp_path, "p string, n long", [["q", 1]], overwrite=True)
    location = TableLocation.parse(str(tmp_path))
    entries = [read_commit(location, version, ["p"]) for version in range(5)]
    assert entries[4] is None
    first, second, compaction, overwrite = (entry for entry in entries if entry is not None)
    assert {file.partition_values for file in first.added} == {(p,) for p, _ in PARTITIONED}
    assert all((tmp_path / file.path).exists() for file in (*first.added, *second.added))
    assert (len(compaction.added), compaction.has_removed, len(compaction.paths)) == (0, False, 1)
    assert (len(overwrite.added), overwrite.has_removed) == (1, True)


class Stream:
    """A query's own steps with a stream of a table, without the query."""

    def __init__(self, folder: Path, **options: str) -> None:
        self._given = {"path": str(folder), **options}
        self.restart()
        self.at = self.reader.initialOffset()

    def restart(self, **options: str) -> None:
        """As from a checkpoint: another process, at the same offset."""
        self._given |= options
        made = DeltaStreamReader(DeltaReadOptions.of(self._given), schema("n long"))
        self.reader: DeltaStreamReader = pickle.loads(pickle.dumps(made))

    def batch(self, at: dict[str, Any] | None = None) -> list[int]:
        """What the next one has; or, from an offset on, what an earlier one had."""
        start, end = at or self.at, self.at
        if at is None:
            end = self.at = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        tasks = self.reader.partitions(start, end)
        return sorted(n for task in tasks for rows in self.reader.read(task) for n in rows.column("n").to_pylist())


def test_s4_a_stream_begins_with_all_of_a_table_or_where_it_is_told(tmp_path: Path) -> None:
    for n in range(3):
        append(tmp_path, "n long", [[n]])
    streams = [Stream(tmp_path), Stream(tmp_path, start="version:1"), Stream(tmp_path, start="latest")]
    starts = [{"version": -1, "snapshot": 2}, {"version": 0}, {"version": 2}]
    assert [stream.at for stream in streams] == [{"format": 1} | start for start in starts]
    append(tmp_path, "n long", [[3]])
    assert [stream.batch() for stream in streams] == [[0, 1, 2, 3], [1, 2, 3], [3]]
    assert [stream.at for stream in streams] == [{"format": 1, "version": 3}] * 3
    assert streams[0].batch() == []
    append(tmp_path, "n long", [[4]])
    assert [stream.batch() for stream in streams] == [[4]] * 3
    with pytest.raises(InvalidSettings):
        Stream(tmp_path, version="1")


def test_s4_a_batch_has_no_more_files_than_were_allowed_and_is_the_same_again(tmp_path: Path) -> None:
    rows = [[f"p{n}", n] for n in range(5)]
    append(tmp_path, "p string, n long", rows, partition_columns=("p",))  # five files of one version
    append(tmp_path, "p string, n long", [["q", 5]])
    stream = Stream(tmp_path, maxFilesPerTrigger="2")
    append(tmp_path, "p string, n long", [["r", 6], ["s", 7], ["t", 8]])
    seen, offsets = [], [stream.at]
    for _ in range(6):
        stream.restart()
        seen.append(stream.batch())
        offsets.append(stream.at)
        assert stream.batch(offsets[-2]) == seen[-1]
    assert [len(batch) for batch in seen] == [2, 2, 2, 2, 1, 0]
    assert sorted(n for batch in seen for n in batch) == list(range(9))
    assert offsets[1] == {"format": 1, "version": -1, "files": 2, "snapshot": 1}
    assert offsets[4] == {"format": 1, "version": 1, "files": 2}
    assert offsets[5] == offsets[6] == {"format": 1, "version": 2}


def test_s4_a_stream_passes_compactions_over_and_stops_where_rows_were_taken_away(tmp_path: Path) -> None:
    for n in range(3):
        append(tmp_path, "n long", [[n]])
    stream = Stream(tmp_path, start="version:0")
    assert stream.batch() == [0, 1, 2]
    DeltaTable(tmp_path).optimize.compact()
    append(tmp_path, "n long", [[3]])
    assert stream.batch() == [3]
    append(tmp_path, "n long", [[100]], overwrite=True)
    before = stream.at
    with pytest.raises(TableRewritten, match=r"version 5 of table .* set ignoreChanges=true"):
        stream.batch()
    stream.restart(ignoreChanges="true")
    assert stream.batch(before) == [100]
    assert Stream(tmp_path).batch() == [100]  # a new stream has no past
    DeltaTable(tmp_path).create_checkpoint()
    for version in (0, 1):  # as when the log is cleaned up
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(VersionNotRetained, match="version 1 is not retained; versions 2 to 5 are"):
        Stream(tmp_path, start="version:1").batch()


def test_s3_a_table_in_a_bucket_is_the_same(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("AWS_SKIP_SIGNATURE", "true"), ("AWS_REGION", "us-east-1")):
        monkeypatch.setenv(name, value)
    location = TableLocation.parse(f"s3://{BUCKET}/tables/one", s3.endpoint)
    to = WriteTo(location=location, schema=schema("p string, n long"), partition_columns=("p",))

    def add(rows: list[list[Any]], version: int) -> Committed:
        batch = pa.record_batch({"p": pa.array([p for p, _ in rows]), "n": pa.array([n for _, n in rows])})
        return commit(to, write_files(plan_write(to), [batch]), app="query", version=version)

    assert add(PARTITIONED, 0) == Committed(0, True)
    assert add([["a b", 8]], 1) == Committed(1, True)
    assert add([["a b", 8]], 1) == Committed(1, False)
    table = open_table(location)
    expected = sorted([*((n, p) for p, n in PARTITIONED), (8, "a b")])
    assert sorted((row["n"], row["p"]) for row in table.to_pyarrow_table().to_pylist()) == expected
    plan = ScanPlan(location, arrow_schema(to.schema), ("p",))
    tasks = divided(files_of(location, snapshot(table), ("p",)))
    rows = [row for task in tasks for batch in read_pieces(plan, task) for row in batch.to_pylist()]
    assert sorted((row["n"], row["p"]) for row in rows) == expected
    assert len([name for name in location.objects().list("p=a b") if name.name.endswith(".parquet")]) == 2
