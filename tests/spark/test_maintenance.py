"""Compaction, vacuum and the log of Delta tables, while others read and write them: S5. One test has a session."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from pyspark.sql import SparkSession

from sulina.errors import CorruptCommit, InvalidName, InvalidSettings
from sulina.spark import delta_compaction, delta_lease
from sulina.spark.delta_compaction import optimize, replace_files
from sulina.spark.delta_files import write_files
from sulina.spark.delta_history import history
from sulina.spark.delta_lease import APP, hold, take
from sulina.spark.delta_log import files_of, open_table, snapshot
from sulina.spark.delta_readers import SILENT_DAYS, path_of
from sulina.spark.delta_table import WriteTo, commit, plan_write
from sulina.spark.delta_vacuum import vacuum
from sulina.spark.delta_zorder import z_codes, z_ordered
from sulina.spark.errors import MaintenanceBusy, MaintenanceFenced, TableNotFound, TableUnsupported
from sulina.spark.table_location import TableLocation
from tests.spark.test_delta_table import Stream, append, data_files, put, rows_of, schema
from tests.support.s3 import BUCKET, S3Server, s3

__all__ = ["s3"]  # a fixture

DAY_SECONDS = 86_400.0
VALUES = ["a b", "a/b", "50%", "ünïcødé ☃", None, "x=y:z"]
ROOT = Path(__file__).parents[2]


def location_of(folder: Path) -> TableLocation:
    return TableLocation.parse(str(folder))


def appended(folder: Path, numbers: Sequence[int]) -> None:
    """A version and a file for each."""
    for n in numbers:
        append(folder, "n long", [[n]])


def numbers_in(folder: Path) -> list[int]:
    return [row["n"] for row in rows_of(folder)]


def age(folder: Path, days: float, paths: Sequence[str] | None = None) -> None:
    """As if files were of another day."""
    then = time.time() - days * DAY_SECONDS
    for path in [folder / name for name in paths] if paths is not None else folder.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


# Compaction


def test_s5_compaction_makes_one_file_of_many_in_each_partition_and_keeps_every_row(tmp_path: Path) -> None:
    rows = [[value, n, f"w{n}"] for n, value in enumerate(VALUES * 2)]
    for first in (0, len(VALUES)):
        append(tmp_path, "p string, n long, w string", rows[first : first + len(VALUES)], partition_columns=("p",))
    append(tmp_path, "p string, n long, more double", [["alone", 100, 0.5]], merge_schema=True)
    expected = rows_of(tmp_path)
    done = optimize(location_of(tmp_path))
    assert (done.files_before, done.files_after) == (2 * len(VALUES) + 1, len(VALUES) + 1)
    assert (done.files_removed, done.files_added, done.commits, done.overtaken) == (12, 6, 1, 0)
    assert rows_of(tmp_path) == expected
    table = DeltaTable(tmp_path)
    assert done.version == table.version()
    found = snapshot(table)
    assert (found.num_rows, sum(found.column("size_bytes").to_pylist())) == (done.files_after, done.bytes_after)
    of_value = {row["partition.p"]: row for row in found.to_pylist()}
    assert of_value[None]["num_records"] == 2
    assert (of_value["50%"]["min.n"], of_value["50%"]["max.n"]) == (2, 8)
    assert of_value["50%"]["path"].startswith("p=50%2525/part-")
    import polars as pl  # takes a second, and every worker loads this module

    frame = pl.read_delta(str(tmp_path)).sort("n")
    assert frame.select("p", "n", "w", "more").to_dicts() == [
        {name: row[name] for name in ("p", "n", "w", "more")} for row in expected
    ]
    assert rows_of(tmp_path, version=done.version - 1) == expected  # time travel still finds its files
    again = optimize(location_of(tmp_path))
    assert (again.commits, again.files_after, again.version) == (0, done.files_after, done.version)


def test_s5_files_that_are_large_enough_are_left_alone_and_the_rest_fills_up_to_the_target(tmp_path: Path) -> None:
    appended(tmp_path, range(12))
    size = max(snapshot(DeltaTable(tmp_path)).column("size_bytes").to_pylist())
    done = optimize(location_of(tmp_path), target_bytes=size * 4)
    assert (done.files_before, done.files_after) == (12, 3)
    assert numbers_in(tmp_path) == list(range(12))
    one = optimize(location_of(tmp_path), target_bytes=1)
    assert one.commits == 0
    with pytest.raises(InvalidSettings, match="target of 0 bytes"):
        optimize(location_of(tmp_path), target_bytes=0)


def test_s5_a_z_order_keeps_all_rows_and_makes_files_narrow_in_every_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_compaction, "Z_BIN_TARGETS", 100)
    random = np.random.default_rng(5)
    to = WriteTo(location=location_of(tmp_path), schema=schema("x long, y double, flag boolean, n long"))
    for first in range(0, 40_000, 10_000):
        batch = pa.record_batch(
            {
                "x": pa.array(random.integers(0, 1000, 10_000)),
                "y": pa.array(random.random(10_000), mask=random.random(10_000) < 0.01),
                "flag": pa.array(random.random(10_000) < 0.5),
                "n": pa.array(range(first, first + 10_000)),
            }
        )
        commit(to, write_files(plan_write(to), [batch]))
    expected = rows_of(tmp_path)
    size = sum(snapshot(DeltaTable(tmp_path)).column("size_bytes").to_pylist())
    optimize(location_of(tmp_path), target_bytes=size // 8, z_order=["X", "y"])
    assert rows_of(tmp_path) == expected
    found = snapshot(DeltaTable(tmp_path))
    assert found.num_rows >= 4
    corner = [row for row in found.to_pylist() if row["min.x"] < 50 and row["min.y"] < 0.05]
    assert len(corner) <= 2  # the others cannot have a row of it; before, all had
    location = location_of(tmp_path)
    for wrong, message in (
        (["z"], "'z' is unknown; the columns"),
        (["flags"], "did you mean flag"),
        (["x", "X"], "twice"),
    ):
        with pytest.raises(InvalidSettings, match=message):
            optimize(location, z_order=wrong)


def test_s5_z_codes_interleave_ranks_and_runs_bound_what_is_ordered_at_once() -> None:
    square = np.arange(4, dtype=np.uint64)
    x, y = (axis.ravel() for axis in np.meshgrid(square, square, indexing="ij"))
    order = np.argsort(z_codes([x, y], 16))
    assert [(int(x[at]), int(y[at])) for at in order[:8]] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3),
    ]  # fmt: skip
    batches = [pa.record_batch({"n": pa.array([3, None, 1])}), pa.record_batch({"n": pa.array([2, 0, 9])})]
    runs = [batch.column("n").to_pylist() for batch in z_ordered(batches, ["n"], run_bytes=1)]
    assert runs == [[1, 3, None], [0, 2, 9]]
    together = [n for batch in z_ordered(batches, ["n"]) for n in batch.column("n").to_pylist()]
    assert together == [0, 1, 2, 3, 9, None]


# Commits


def test_s5_delta_rs_without_retries_commits_right_after_its_snapshot_or_not_at_all(tmp_path: Path) -> None:
    """What `replace_files` stands on."""
    appended(tmp_path, [1])
    table = DeltaTable(tmp_path)
    appended(tmp_path, [2])
    _, files = put(tmp_path, "n long", [[3]])
    add = AddAction(files[0].path, files[0].size_bytes, {}, files[0].modified_ms, True, files[0].stats)
    for retries, is_committed in ((0, False), (5, True)):
        properties = CommitProperties(max_commit_retries=retries)
        try:
            table.create_write_transaction([add], "append", table.schema(), [], commit_properties=properties)
        except CommitFailedError:
            assert not is_committed
        assert len(numbers_in(tmp_path)) == 2 + is_committed


def before_the_attempt(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], *, times: int = 1) -> None:
    """Something that happens right before delta-rs is asked to commit, after all looks at the table."""
    original, left = DeltaTable.create_write_transaction, [act] * times
    inside: list[Callable[[], Any]] = []

    def overtaken(table: DeltaTable, *args: Any, **kwargs: Any) -> None:
        if left and not inside:
            inside.append(left.pop())
            inside[0]()
            inside.clear()
        original(table, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken)


def test_s5_a_compaction_that_is_overtaken_by_appends_commits_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(tmp_path, range(3))
    more = iter([10, 11, 12])
    _, spare = put(tmp_path, "n long", [[0]])  # a commit that is under way

    before_the_attempt(monkeypatch, lambda: appended(tmp_path, [next(more)]), times=3)
    done = optimize(location_of(tmp_path))
    assert (done.version, done.files_removed, done.files_added, done.overtaken) == (6, 3, 1, 0)
    assert numbers_in(tmp_path) == [0, 1, 2, 10, 11, 12]
    assert spare[0].path in data_files(tmp_path)
    monkeypatch.undo()
    before_the_attempt(monkeypatch, lambda: optimize(location_of(tmp_path)))
    assert append(tmp_path, "n long", [[13]], app="stream", version=7).is_new  # overtaken by a compaction
    assert numbers_in(tmp_path) == [0, 1, 2, 10, 11, 12, 13]
    assert [facts.operation for facts in history(location_of(tmp_path), 2)] == ["WRITE append", "OPTIMIZE"]


def test_s5_what_was_overwritten_while_it_was_compacted_stays_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [["a", 1], ["b", 2], ["a", 3], ["b", 4]]
    for row in rows:
        append(tmp_path, "p string, n long", [row], partition_columns=("p",))
    table = DeltaTable(tmp_path)
    before_the_attempt(monkeypatch, lambda: table.delete("p = 'a'"))
    done = optimize(location_of(tmp_path))
    assert (done.files_removed, done.files_added, done.overtaken) == (2, 1, 2)
    assert rows_of(tmp_path) == [{"p": "b", "n": 2}, {"p": "b", "n": 4}]
    live = {file.path for file in files_of(location_of(tmp_path), snapshot(DeltaTable(tmp_path)), ["p"])}
    assert len(data_files(tmp_path) - live) == 4  # those that were there; what the lost bin had written is gone


def test_s5_an_overwrite_that_a_compaction_overtakes_leaves_no_row_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(tmp_path, range(3))
    removed: list[int] = []
    before_the_attempt(monkeypatch, lambda: removed.append(optimize(location_of(tmp_path)).files_removed))
    append(tmp_path, "n long", [[9]], overwrite=True)
    assert removed == [3]
    assert numbers_in(tmp_path) == [9]


def test_s5_a_commit_whose_answer_is_lost_is_found_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    appended(tmp_path, range(3))
    original = DeltaTable.create_write_transaction

    def lost_answer(table: DeltaTable, *args: Any, **kwargs: Any) -> None:
        original(table, *args, **kwargs)
        raise OSError("the connection was reset")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost_answer)
    done = optimize(location_of(tmp_path))
    assert (done.version, done.files_after, done.overtaken) == (3, 1, 0)
    assert numbers_in(tmp_path) == [0, 1, 2]


# One at a time


def test_s5_a_second_maintainer_is_told_who_holds_the_table_and_until_when(tmp_path: Path) -> None:
    appended(tmp_path, range(2))
    location = location_of(tmp_path)
    with hold(location, recorded=0) as lease:
        with pytest.raises(MaintenanceBusy, match=rf"held for maintenance by .*/{os.getpid()}/.* until 20") as busy:
            optimize(location)
        assert busy.value.retryable
        assert busy.value.holder == lease.holder
        with pytest.raises(MaintenanceBusy):
            vacuum(location)
        assert vacuum(location, is_dry_run=True).files == []
    optimize(location)
    assert DeltaTable(tmp_path).transaction_version(APP) == 2
    assert [path.name for path in (tmp_path / delta_lease.FOLDER).iterdir()] == [f"{2:020d}.json"]
    for path in (tmp_path / delta_lease.FOLDER).iterdir():
        path.unlink()  # numbers go on all the same
    with hold(location, recorded=DeltaTable(tmp_path).transaction_version(APP) or 0) as lease:
        assert lease.number == 3


def test_s5_a_lease_is_renewed_while_it_is_used_and_lost_to_the_next_holder_after_it_ended(tmp_path: Path) -> None:
    appended(tmp_path, [1])
    location, now = location_of(tmp_path), [1000.0]
    lease = take(location, recorded=0, seconds=30, clock=lambda: now[0])
    for _ in range(5):
        now[0] += 20
        lease.keep()
    with pytest.raises(MaintenanceBusy):
        take(location, recorded=0, seconds=30, clock=lambda: now[0] + 29)
    now[0] += 31
    other = take(location, recorded=0, seconds=30, clock=lambda: now[0])
    assert other.number == lease.number + 1
    with pytest.raises(MaintenanceFenced):
        lease.keep()
    lease.release()  # too late to matter
    with pytest.raises(MaintenanceBusy):
        take(location, recorded=0, seconds=30, clock=lambda: now[0])


def test_s5_a_maintainer_who_slept_past_his_lease_can_do_no_harm(tmp_path: Path) -> None:
    appended(tmp_path, range(4))
    location = location_of(tmp_path)

    def sleep(_done: int, _total: int) -> None:
        optimize(location)  # another takes over, and is done when this one wakes up

    with pytest.raises(MaintenanceFenced, match="maintenance 1 was away for too long, and 2 took over"):
        optimize(location, lease_seconds=0, told=sleep)
    assert numbers_in(tmp_path) == list(range(4))
    assert len(snapshot(DeltaTable(tmp_path))) == 1
    assert len(data_files(tmp_path)) == 4 + 1  # nothing of the sleeper's is left


def test_s5_of_two_compactions_of_the_same_files_the_first_to_commit_counts(tmp_path: Path) -> None:
    """Whatever their numbers are: the sleeper wakes up before the one who took over has committed."""
    appended(tmp_path, range(4))
    location, table = location_of(tmp_path), DeltaTable(tmp_path)
    files = tuple(files_of(location, snapshot(table), []))

    def rewrite() -> delta_compaction.Rewrite:
        return delta_compaction.Rewrite(files, tuple(put(tmp_path, "n long", [[n] for n in range(4)])[1]))

    first, second = rewrite(), rewrite()
    assert replace_files(location, [first], 1) == ([first], 4)
    assert replace_files(location, [second], 2) == ([], 4)
    assert numbers_in(tmp_path) == list(range(4))
    assert second.added[0].path not in data_files(tmp_path)


_RACER = """
import sys
from pathlib import Path
from sulina.errors import SulinaError
from sulina.spark.delta_compaction import optimize
from sulina.spark.table_location import TableLocation
for line in sys.stdin:
    folder, seconds, size = line.split("\\t")
    try:
        done = optimize(TableLocation.parse(folder), lease_seconds=float(seconds), target_bytes=int(size))
        print(done.files_removed, flush=True)
    except SulinaError as error:
        print(error.code, flush=True)
"""


def test_s5_two_processes_that_compact_at_once_while_a_stream_appends_keep_every_row_once(tmp_path: Path) -> None:
    """With leases, and with leases that have ended when they begin."""
    command = [sys.executable, "-c", _RACER]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)
    ]
    try:
        for lease_seconds in (300, 0):
            folder, said = tmp_path / str(lease_seconds), []
            for first, size in ((0, 2000), (15, 128 << 20)):
                appended(folder, range(first, first + 10))
                for racer in racers:
                    assert racer.stdin is not None
                    racer.stdin.write(f"{folder}\t{lease_seconds}\t{size}\n")
                    racer.stdin.flush()
                appended(folder, range(first + 10, first + 15))
                said += [racer.stdout.readline().strip() for racer in racers if racer.stdout is not None]
            assert [int(word) for word in said if word.isdecimal() and word != "0"], said  # somebody did something
            assert numbers_in(folder) == list(range(30))
            live = {file.path for file in files_of(location_of(folder), snapshot(DeltaTable(folder)), [])}
            assert len(live) < 30
            assert live <= data_files(folder)
    finally:
        for racer in racers:
            racer.communicate(timeout=60)


def test_s5_a_path_without_a_table_and_a_table_that_needs_more_than_we_do_are_refused(tmp_path: Path) -> None:
    for act in (optimize, vacuum, lambda location: history(location, 5)):
        with pytest.raises(TableNotFound):
            act(location_of(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()
    appended(tmp_path, range(2))
    DeltaTable(tmp_path).alter.add_constraint({"positive": "n >= 0"})
    with pytest.raises(TableUnsupported, match="constraint"):
        optimize(location_of(tmp_path))


# Streams


def test_s5_a_stream_sees_nothing_of_a_compaction_and_says_how_far_it_is(tmp_path: Path) -> None:
    appended(tmp_path, range(3))
    stream = Stream(tmp_path, start="version:0", reader="shop.orders")
    assert stream.batch() == [0, 1, 2]
    position = tmp_path / path_of("shop.orders")
    assert b'"version":-1' in position.read_bytes()
    optimize(location_of(tmp_path))
    appended(tmp_path, [3])
    optimize(location_of(tmp_path))
    assert stream.batch() == [3]
    stream.reader.commit({"version": 2})
    assert b'"version":2,' in position.read_bytes()
    stream.reader.commit(stream.at)
    assert vacuum(location_of(tmp_path)).readers["shop.orders"].version == 5
    with pytest.raises(InvalidName):
        Stream(tmp_path, reader="../etc")


def test_s5_the_first_batch_of_a_stream_is_the_same_again_after_the_table_has_grown(tmp_path: Path) -> None:
    appended(tmp_path, range(3))
    stream = Stream(tmp_path)
    assert stream.batch() == [0, 1, 2]
    appended(tmp_path, [3])
    optimize(location_of(tmp_path))
    restarted = Stream(tmp_path)  # before Spark had noted that the batch was done, so it asks anew where to begin
    begin, restarted.at = restarted.at, stream.at
    assert begin == {"format": 1, "version": -1, "snapshot": 4}
    assert restarted.batch(begin) == [0, 1, 2]
    assert restarted.batch() == [3]


def test_s5_a_real_stream_goes_on_over_compaction_and_vacuum_without_gap_or_duplicate(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"

    def run() -> None:
        options = {"start": "version:0", "reader": "copy", "maxFilesPerTrigger": "3"}
        rows = spark.readStream.format("sulina-delta").options(**options).load(str(source))
        writer = rows.writeStream.format("sulina-delta").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(target))
        assert query.awaitTermination(120)

    appended(source, range(5))
    run()
    appended(source, range(5, 8))
    age(source, days=20)
    assert optimize(location_of(source)).files_removed == 8
    appended(source, [8])
    removed = vacuum(
        location_of(source), retention_seconds=3600, is_forced=True, clock=lambda: time.time() + DAY_SECONDS
    )
    # Five files were read, but Spark says so of a batch only when the next one is planned.
    assert (len(removed.files), removed.readers["copy"].version) == (3, 2)
    run()
    assert numbers_in(target) == list(range(9))


# Vacuum


def test_s5_a_vacuum_takes_what_is_old_and_of_no_version_within_the_retention_and_nothing_else(tmp_path: Path) -> None:
    appended(tmp_path, range(3))
    originals = data_files(tmp_path)
    optimize(location_of(tmp_path))
    _, waiting = put(tmp_path, "n long", [[100]])  # of a commit that is under way
    _, forgotten = put(tmp_path, "n long", [[101]])
    (tmp_path / "inner").mkdir()
    appended(tmp_path / "inner", [7])
    (tmp_path / "notes.txt").write_text("mine")
    inner = data_files(tmp_path / "inner")
    age(tmp_path, days=8)
    age(tmp_path, 0.001, [waiting[0].path])
    newest = f"_delta_log/{DeltaTable(tmp_path).version():020d}.json"
    age(tmp_path, days=1, paths=[newest])
    location = location_of(tmp_path)
    assert {file.path for file in vacuum(location, is_dry_run=True).files} == {forgotten[0].path}
    assert forgotten[0].path in data_files(tmp_path)
    done = vacuum(location)
    assert (not done.is_dry_run, [file.path for file in done.files], done.files_kept) == (True, [forgotten[0].path], 4)
    assert rows_of(tmp_path, version=2) == [{"n": n} for n in range(3)]
    age(tmp_path, days=8, paths=[newest])
    assert {file.path for file in vacuum(location).files} == originals
    assert numbers_in(tmp_path) == [0, 1, 2]
    assert numbers_in(tmp_path / "inner") == [7]
    assert {str(Path("inner") / path) for path in inner} < data_files(tmp_path)
    assert (tmp_path / "notes.txt").exists()
    assert waiting[0].path in data_files(tmp_path)


def test_s5_a_vacuum_keeps_what_a_registered_reader_has_not_read(tmp_path: Path) -> None:
    appended(tmp_path, range(4))
    location, originals = location_of(tmp_path), data_files(tmp_path)
    optimize(location)
    reader, beginner = Stream(tmp_path, start="version:2", reader="slow"), Stream(tmp_path, reader="beginner")
    reader.reader.latestOffset(reader.at, reader.reader.getDefaultReadLimit())
    age(tmp_path, days=8)
    gone = {file.path for file in vacuum(location).files}
    assert len(gone) == 2
    assert reader.batch() == [2, 3]
    assert gone < originals
    reader.reader.commit(reader.at)
    begin = beginner.at
    beginner.reader.latestOffset(begin, beginner.reader.getDefaultReadLimit())
    appended(tmp_path, [4])
    optimize(location)
    age(tmp_path, days=8)
    # All of version 4 for the one, the file of version 5 for both; only what is left of the first four goes.
    assert {file.path for file in vacuum(location).files} == originals - gone
    assert beginner.batch() == [0, 1, 2, 3, 4]
    later = vacuum(location, is_dry_run=True, clock=lambda: time.time() + (SILENT_DAYS + 1) * DAY_SECONDS)
    assert later.readers == {}
    assert len(later.files) == 2
    (tmp_path / path_of("slow")).write_text("{")
    with pytest.raises(CorruptCommit, match=r"slow\.json is damaged"):
        vacuum(location)


def test_s5_a_vacuum_by_a_clock_that_is_ahead_takes_nothing_that_is_young_by_the_stores(tmp_path: Path) -> None:
    appended(tmp_path, range(3))
    location = location_of(tmp_path)
    optimize(location)
    reader = Stream(tmp_path, start="version:0", reader="slow")
    reader.reader.latestOffset(reader.at, reader.reader.getDefaultReadLimit())
    done = vacuum(location, clock=lambda: time.time() + 40 * DAY_SECONDS)
    assert (done.files, done.files_kept, list(done.readers)) == ([], 3, ["slow"])
    assert done.clock_ahead_seconds == pytest.approx(40 * DAY_SECONDS, abs=60)
    assert rows_of(tmp_path, version=2) == [{"n": n} for n in range(3)]


def test_s5_a_retention_of_less_than_an_hour_must_be_forced(tmp_path: Path) -> None:
    appended(tmp_path, range(3))
    optimize(location_of(tmp_path))
    with pytest.raises(InvalidSettings, match="keep an hour or more"):
        vacuum(location_of(tmp_path), retention_seconds=60)
    with pytest.raises(InvalidSettings):
        vacuum(location_of(tmp_path), retention_seconds=-1, is_forced=True)
    done = vacuum(location_of(tmp_path), retention_seconds=0, is_forced=True, clock=lambda: time.time() + 10)
    assert len(done.files) == 3
    assert len(data_files(tmp_path)) == 1
    assert numbers_in(tmp_path) == [0, 1, 2]


def test_s5_a_vacuum_removes_nothing_when_the_store_does_not_list_what_the_table_has(tmp_path: Path) -> None:
    appended(tmp_path, range(2))
    (lost,) = sorted(data_files(tmp_path))[:1]
    _, left = put(tmp_path, "n long", [[9]])
    age(tmp_path, days=8)
    (tmp_path / lost).unlink()
    with pytest.raises(TableUnsupported, match="does not list"):
        vacuum(location_of(tmp_path))
    assert left[0].path in data_files(tmp_path)


def test_s5_the_log_of_a_table_is_cleaned_up_behind_a_checkpoint_and_does_not_grow_for_ever(tmp_path: Path) -> None:
    appended(tmp_path, [0])
    DeltaTable(tmp_path).alter.set_table_properties({"delta.checkpointInterval": "5"})
    appended(tmp_path, range(1, 6))
    age(tmp_path, days=31)
    appended(tmp_path, range(6, 13))
    names = sorted(path.name for path in (tmp_path / "_delta_log").iterdir())
    assert any(name.endswith(".checkpoint.parquet") for name in names)
    assert f"{0:020d}.json" not in names
    assert len(names) < 14
    assert numbers_in(tmp_path) == list(range(13))
    optimize(location_of(tmp_path))
    assert numbers_in(tmp_path) == list(range(13))


# History


def test_s5_history_says_what_each_version_did_and_who_made_it(tmp_path: Path) -> None:
    append(tmp_path, "n long", [[1], [2]], app="query-1", version=0)
    append(tmp_path, "n long", [[3]], app="query-1", version=1)
    optimize(location_of(tmp_path))
    append(tmp_path, "n long", [[4]], overwrite=True, user_metadata="a reason")
    found = history(location_of(tmp_path), 10)
    told = [
        (f.version, f.operation, f.rows_added, f.files_added, f.files_removed, f.changes_data, f.transactions)
        for f in found
    ]
    assert told == [
        (3, "WRITE overwrite", 1, 1, 1, True, {}),
        (2, "OPTIMIZE", 3, 1, 2, False, {APP: 1}),
        (1, "WRITE append", 1, 1, 0, True, {"query-1": 1}),
        (0, "CREATE TABLE", 2, 1, 0, True, {"query-1": 0}),
    ]
    assert found[0].user_metadata == "a reason"
    assert abs((found[0].timestamp_ms or 0) / 1000 - time.time()) < 600
    assert [facts.version for facts in history(location_of(tmp_path), 2)] == [3, 2]
    DeltaTable(tmp_path).create_checkpoint()
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()  # as when the log is cleaned up
    assert [facts.version for facts in history(location_of(tmp_path), 10)] == [3, 2]


# Buckets


def test_s5_a_table_in_a_bucket_is_maintained_in_the_same_way(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("AWS_SKIP_SIGNATURE", "true"), ("AWS_REGION", "us-east-1")):
        monkeypatch.setenv(name, value)
    location = TableLocation.parse(f"s3://{BUCKET}/tables/maintained", s3.endpoint)
    to = WriteTo(location=location, schema=schema("p string, n long"), partition_columns=("p",))
    for first in (0, 10):
        batch = pa.record_batch({"p": pa.array(VALUES), "n": pa.array(range(first, first + len(VALUES)))})
        commit(to, write_files(plan_write(to), [batch]))
    with hold(location, recorded=0), pytest.raises(MaintenanceBusy):
        optimize(location)
    assert optimize(location).files_after == len(VALUES)
    ahead = vacuum(location, clock=lambda: time.time() + 8 * DAY_SECONDS)
    assert ahead.files == [], "a clock that is ahead takes nothing that is young by the store's"
    assert ahead.clock_ahead_seconds == pytest.approx(8 * DAY_SECONDS, abs=60)
    later = vacuum(location, is_forced=True, clock=lambda: time.time() + 8 * DAY_SECONDS)
    assert len(later.files) == 2 * len(VALUES)
    assert vacuum(location, is_forced=True, clock=lambda: time.time() + 8 * DAY_SECONDS).files == []
    table = open_table(location)
    rows = table.to_pyarrow_table().sort_by("n").to_pylist()
    assert rows == [{"p": p, "n": first + n} for first in (0, 10) for n, p in enumerate(VALUES)]
