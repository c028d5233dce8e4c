"""The Parquet files of Delta tables, and what their statistics say: S3, without a session."""

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sulina.errors import InvalidSettings
from sulina.spark.delta_files import NewFile, WritePlan, discard, write_files
from sulina.spark.delta_partitions import HIVE_NULL, folder_of, is_hive, split, to_scalar, to_texts
from sulina.spark.errors import TableSchemaConflict
from sulina.spark.table_location import TableLocation


def write(folder: Path, table: pa.Table, *partition_columns: str, rows: int = 10_000, **limits: Any) -> list[NewFile]:
    plan = WritePlan(TableLocation.parse(str(folder)), table.schema, partition_columns, **limits)
    return write_files(plan, table.to_batches(max_chunksize=rows))


def stats_of(folder: Path, **columns: pa.Array) -> dict[str, Any]:
    (file,) = write(folder, pa.table(columns))
    stats: dict[str, Any] = json.loads(file.stats)
    return stats


def test_s3_files_have_the_rows_and_their_statistics_what_the_rows_say(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    table = pa.table(
        {
            "n": pa.array(rng.integers(-1000, 1000, 5000)),
            "small": pa.array(rng.integers(-100, 100, 5000), pa.int8()),
            "x": pa.array(rng.normal(size=5000), mask=rng.random(5000) < 0.1),
            "word": pa.array([f"w{n}" for n in rng.integers(0, 50, 5000)]),
            "day": pa.array([date(2026, 1, 1 + n % 28) for n in range(5000)]),
            "price": pa.array([Decimal(n) / 100 for n in range(5000)], pa.decimal128(10, 2)),
        }
    )
    (file,) = write(tmp_path, table)
    again = pq.read_table(tmp_path / file.path)
    assert again.equals(table)
    assert (file.rows, file.size_bytes) == (5000, (tmp_path / file.path).stat().st_size)
    stats = json.loads(file.stats)
    assert stats["numRecords"] == 5000
    for name in table.column_names:
        low, high = (scalar.as_py() for scalar in pc.min_max(table.column(name)).values())
        if isinstance(low, date):
            low, high = low.isoformat(), high.isoformat()
        assert stats["minValues"][name] == pytest.approx(float(low)) if name == "price" else low
        assert stats["maxValues"][name] == pytest.approx(float(high)) if name == "price" else high
        assert stats["nullCount"][name] == table.column(name).null_count


def test_s3_instants_are_microseconds_of_utc_and_their_statistics_never_too_narrow(tmp_path: Path) -> None:
    times = [datetime(2026, 1, 1, 12, 0, 0, 123456, UTC), datetime(2026, 1, 2, 12, 0, 0, 999_999, UTC)]
    (file,) = write(tmp_path, pa.table({"t": pa.array(times, pa.timestamp("us", "UTC"))}))
    footer = pq.read_metadata(tmp_path / file.path)
    assert footer.schema.column(0).physical_type == "INT64"
    assert "timeUnit=microseconds" in str(footer.schema.column(0).logical_type)
    assert "isAdjustedToUTC=true" in str(footer.schema.column(0).logical_type)
    stats = json.loads(file.stats)
    assert stats["minValues"]["t"] == "2026-01-01T12:00:00.123Z"
    assert stats["maxValues"]["t"] == "2026-01-02T12:00:01.000Z"


def test_s3_long_texts_are_cut_so_that_none_is_left_outside(tmp_path: Path) -> None:
    low, high = "a" * 40, "z" * 31 + "\ud7ff" + "tail"
    stats = stats_of(tmp_path, s=pa.array([low, high]), top=pa.array(["\U0010ffff" * 40, "b"]))
    assert stats["minValues"]["s"] == "a" * 32
    assert stats["maxValues"]["s"] == "z" * 31 + "\ue000"  # the surrogates between are no characters
    assert stats["maxValues"]["s"].encode() > high.encode()
    assert "top" not in stats["maxValues"]  # nothing is above it


def test_s3_nothing_is_said_where_it_could_be_wrong(tmp_path: Path) -> None:
    stats = stats_of(
        tmp_path,
        nan=pa.array([1.0, math.nan, 3.0]),
        infinite=pa.array([-math.inf, 0.0, math.inf]),
        all_null=pa.array([None, None, None], pa.int64()),
        blob=pa.array([b"a", None, b"c"]),
        yes=pa.array([True, False, None]),
        huge=pa.array([Decimal(10) ** 30, None, Decimal(1)], pa.decimal128(38, 2)),
        far=pa.array([10**7, 0, 1], pa.int32()).cast(pa.date32()),
    )
    assert stats["minValues"] == {"nan": 1.0, "far": "1970-01-01"}
    assert stats["maxValues"] == {}
    assert stats["nullCount"] == {"nan": 0, "infinite": 0, "all_null": 3, "yes": 1, "huge": 1, "far": 0}


def test_s3_structs_have_statistics_inside_and_arrays_and_maps_none(tmp_path: Path) -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])
    table = pa.table(
        {
            "before": pa.array([[1, 2], None, []], pa.list_(pa.int64())),
            "s": pa.array([{"a": 1, "b": {"c": "x"}}, {"a": None, "b": None}, None], kind),
            "m": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
            "after": pa.array([7, 8, 9]),
        }
    )
    (file,) = write(tmp_path, table)
    assert pq.read_table(tmp_path / file.path).to_pylist() == table.to_pylist()
    stats = json.loads(file.stats)
    assert stats["minValues"] == {"s": {"a": 1, "b": {"c": "x"}}, "after": 7}
    assert stats["maxValues"] == {"s": {"a": 1, "b": {"c": "x"}}, "after": 9}
    assert stats["nullCount"] == {"s": {"a": 2, "b": {"c": 2}}, "after": 0}


def test_s3_the_first_32_columns_have_statistics(tmp_path: Path) -> None:
    stats = stats_of(tmp_path, **{f"c{n}": pa.array([n]) for n in range(40)})
    assert list(stats["minValues"]) == [f"c{n}" for n in range(32)]


def test_s3_files_end_at_about_the_size_that_was_asked_for(tmp_path: Path) -> None:
    table = pa.table({"v": pa.array([np.random.default_rng(n).bytes(100) for n in range(20_000)])})
    files = write(tmp_path, table, rows=500, target_bytes=256 << 10)
    assert 6 <= len(files) <= 9
    assert sum(file.rows for file in files) == 20_000
    assert max(file.size_bytes for file in files) < 400 << 10
    values = [value for file in files for value in pq.read_table(tmp_path / file.path).column("v").to_pylist()]
    assert values == table.column("v").to_pylist()


def test_s3_how_many_files_are_open_and_how_much_they_hold_is_bounded(tmp_path: Path) -> None:
    table = pa.table({"p": pa.array([n % 20 for n in range(2000)]), "v": pa.array(range(2000))})
    few = write(tmp_path / "few", table, "p", rows=100, open_files_max=4)
    assert len(few) > 20
    small = write(tmp_path / "small", table, "p", rows=100, open_bytes_max=2000)
    assert len(small) > 20
    for files in (few, small):
        assert sum(file.rows for file in files) == 2000
    assert len(write(tmp_path / "all", table, "p", rows=100)) == 20


NASTY = ["plain", "a b", "a/b", "50%", "%2F", "ünïcødé ☃", "x=y", "q?*[]{}^#", 'a"b', "a:b", "a\\b", "'", ".", "\t"]


def test_s3_partition_values_lie_in_folders_as_hive_has_them(tmp_path: Path) -> None:
    values = [*NASTY, None, ""]
    table = pa.table({"p": pa.array(values), "n": pa.array(range(len(values)))})
    files = write(tmp_path, table, "p")
    found = {dict(file.partition_values)["p"]: file for file in files}
    assert set(found) == {*NASTY, None}  # an empty string is null, to Delta Lake
    assert found["a/b"].path.startswith("p=a%2Fb/part-")
    assert found["50%"].path.startswith("p=50%25/part-")
    assert found["a b"].path.startswith("p=a b/part-")
    assert found[None].path.startswith(f"p={HIVE_NULL}/part-")
    for value, file in found.items():
        stored = pq.read_table(tmp_path / file.path, partitioning=None)
        assert stored.column_names == ["n"]
        assert [values[n] or None for n in stored.column("n").to_pylist()] == [value] * stored.num_rows
        assert is_hive(file.path, ("p",), (value,))


def test_s3_partition_values_of_all_kinds_come_back_from_their_texts() -> None:
    cases: list[tuple[Any, pa.DataType, str]] = [
        (-5, pa.int32(), "-5"),
        (True, pa.bool_(), "true"),
        (1.5, pa.float64(), "1.5"),
        (0.1, pa.float32(), "0.1"),
        (Decimal("1.20"), pa.decimal128(10, 2), "1.20"),
        (date(2026, 11, 1), pa.date32(), "2026-11-01"),
        (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), pa.timestamp("us", "UTC"), "2026-01-02T03:04:05.000006Z"),
        (datetime(2026, 1, 2, 3, 4, 5), pa.timestamp("us"), "2026-01-02 03:04:05.000000"),  # noqa: DTZ001
        (None, pa.int64(), ""),
    ]
    for value, kind, text in cases:
        array = pa.array([value], kind)
        assert to_texts(array) == [text or None]
        assert to_scalar(text, kind) == array[0]
    with pytest.raises(InvalidSettings):
        to_scalar("x", pa.int64())


def test_s3_rows_are_split_by_all_partition_columns_in_the_order_they_came() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 5, 1000), rng.integers(0, 3, 1000)
    batch = pa.record_batch(
        {"a": pa.array(a, mask=a == 4), "b": pa.array([f"b{n}" for n in b]), "n": pa.array(range(1000))}
    )
    found = {values: rows.column("n").to_pylist() for values, rows in split(batch, ["a", "b"])}
    expected: dict[tuple[str | None, str], list[int]] = {}
    for n in range(1000):
        expected.setdefault((None if a[n] == 4 else str(a[n]), f"b{b[n]}"), []).append(n)
    assert found == expected


def test_s3_a_partition_value_too_long_for_a_folder_gets_one_of_its_own(tmp_path: Path) -> None:
    values = ["é" * 300, "é" * 299 + "x"]
    first, second = (folder_of(["p"], (value,)) for value in values)
    assert first != second
    assert all(len(folder.encode()) <= 255 for folder in (first, second))
    files = write(tmp_path, pa.table({"p": pa.array(values), "n": pa.array([1, 2])}), "p")
    assert {dict(file.partition_values)["p"] for file in files} == set(values)
    assert not any(is_hive(file.path, ("p",), (dict(file.partition_values)["p"],)) for file in files)


def test_s3_a_null_where_the_table_says_not_null_leaves_no_files(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    plan = WritePlan(TableLocation.parse(str(tmp_path)), schema, target_bytes=1)
    good, bad = pa.record_batch({"n": pa.array([1, 2])}), pa.record_batch({"n": pa.array([3, None])})
    with pytest.raises(TableSchemaConflict, match="column n: 1 rows are null"):
        write_files(plan, [good, bad])
    assert not list(tmp_path.rglob("*.parquet"))


def test_s3_files_that_nobody_wants_are_removed(tmp_path: Path) -> None:
    files = write(tmp_path, pa.table({"n": [1]}))
    discard(TableLocation.parse(str(tmp_path)), [*files, *files])
    assert not list(tmp_path.rglob("*.parquet"))


def test_s3_a_place_is_a_path_or_an_url_of_a_store(tmp_path: Path) -> None:
    assert TableLocation.parse(f"file://{tmp_path}/a%20b").directory == f"{tmp_path}/a b"
    assert TableLocation.parse(f"{tmp_path}/a b/").path_or_uri == f"{tmp_path}/a b"
    assert TableLocation.parse("s3a://bucket/x/", "http://127.0.0.1:1").uri == "s3://bucket/x"
    options = TableLocation.parse("s3://bucket/x", "http://127.0.0.1:1").storage_options
    assert options["aws_conditional_put"] == "etag"
    assert options["aws_endpoint_url"] == "http://127.0.0.1:1"
    for wrong in (None, " ", "hdfs://x/y", "/a%2Fb"):
        with pytest.raises(InvalidSettings):
            TableLocation.parse(wrong)
