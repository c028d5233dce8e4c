"""Good rows, rows that are put aside, and how both are counted: S3. Without Spark: on Arrow, and on real tables."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from sulina.errors import InvalidSettings
from sulina.spark.errors import ExpectationFailed
from sulina.spark.pipeline.silver import ASIDE
from sulina.spark.pipeline.silver_sink import OTHER, REASONS_MAX, Parts, RowCounts, Tables, counts_at
from sulina.spark.table_location import TableLocation

ASIDE_TYPE = pa.struct(
    [
        ("failed", pa.string()),
        ("dropped", pa.string()),
        ("reasons", pa.list_(pa.string())),
        ("namespace", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("version", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
SCHEMA = StructType().add("id", "long").add(ASIDE, StructType())


def tables(folder: Path, **options: str) -> Tables:
    given = {"path": f"{folder}/orders", "quarantine": f"{folder}/aside", "table": "orders", "app": "shop.orders"}
    return Tables.of(given | options, SCHEMA, overwrite=False)


def aside(offset: int, *, reasons: list[str] | None = None, **more: str) -> dict[str, Any]:
    location = {"namespace": "default", "topic": "t", "partition": 0, "offset": offset, "version": 1}
    return {"reasons": reasons or [], "value": b"v%d" % offset} | location | more


def batch(*verdicts: dict[str, Any] | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(range(len(verdicts)), pa.int64()), pa.array(verdicts, ASIDE_TYPE)], names=["id", ASIDE]
    )


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    return list(pa.table(DeltaTable(f"{folder}/{table}").to_pyarrow_table()).to_pylist())


def counted(folder: Path, table: str, version: int) -> RowCounts | None:
    return counts_at(TableLocation.parse(f"{folder}/{table}"), version)


def test_s3_good_rows_and_others_are_two_commits_that_say_what_became_of_the_batch(tmp_path: Path) -> None:
    sink = tables(tmp_path)
    bad = [aside(7, reasons=["amount: no number", "positive"]), aside(8, reasons=["amount: too large"])]
    written = [sink.write(iter([batch(None, bad[0], None), batch(None)])), sink.write(iter([batch(bad[1], None)]))]
    left_out = sink.write(iter([batch(aside(9, dropped="in time"), None)]))
    sink.commit([*written, left_out, None], 4)
    assert sorted(row["id"] for row in rows(tmp_path, "orders")) == [0, 0, 1, 1, 2]
    put_aside = sorted(rows(tmp_path, "aside"), key=lambda row: int(row["offset"]))
    assert [(row["offset"], row["value"], row["reasons"]) for row in put_aside] == [
        (7, b"v7", ["amount: no number", "positive"]),
        (8, b"v8", ["amount: too large"]),
    ]
    assert all(row["quarantined_at"] is not None for row in put_aside)
    assert counted(tmp_path, "orders", 0) == RowCounts(good=5, dropped={"in time": 1})
    assert counted(tmp_path, "aside", 0) == RowCounts(quarantined={"amount": 2})


def test_s3_a_batch_that_is_run_again_adds_nothing_wherever_the_first_attempt_ended(tmp_path: Path) -> None:
    sink = tables(tmp_path)
    verdicts = None, aside(1, reasons=["bad"])
    first = sink.write(iter([batch(*verdicts)]))
    sink.commit([Parts(aside=first.aside, counts=first.counts)], 0)  # and then somebody pulled the plug
    for _ in range(2):
        again = tables(tmp_path)
        again.commit([again.write(iter([batch(*verdicts)]))], 0)
    assert (len(rows(tmp_path, "orders")), len(rows(tmp_path, "aside"))) == (1, 1)
    files = {path.name for path in tmp_path.glob("*/*.parquet")}
    assert len(files) == 3, "that of the first attempt is left to a vacuum; those that added nothing are gone"


def test_s3_where_a_row_must_not_be_there_nothing_of_its_batch_is(tmp_path: Path) -> None:
    sink = tables(tmp_path)
    failing = [aside(6, failed="signed"), aside(5, failed="signed"), aside(7, failed="dated"), aside(1, reasons=["x"])]
    parts = [sink.write(iter([batch(None, one)])) for one in failing]
    with pytest.raises(
        ExpectationFailed, match=r"2 rows for table orders do not meet 'signed', the first is t/0 at .* 5"
    ):
        sink.commit(list(parts), 0)
    assert not list(tmp_path.glob("*/*.parquet"))
    assert not list(tmp_path.glob("*/_delta_log"))


def test_s3_what_is_only_left_out_is_counted_too_and_an_empty_batch_makes_no_version(tmp_path: Path) -> None:
    sink = tables(tmp_path)
    sink.commit([sink.write(iter([batch(None)]))], 0)
    sink.commit([sink.write(iter([batch(aside(3, dropped="in time"))]))], 1)
    sink.commit([sink.write(iter([]))], 2)
    assert DeltaTable(f"{tmp_path}/orders").version() == 1
    assert counted(tmp_path, "orders", 1) == RowCounts(dropped={"in time": 1})
    assert not (tmp_path / "aside").exists()
    assert counted(tmp_path, "orders", 7) is None


def test_s3_the_files_of_a_task_that_fails_are_removed(tmp_path: Path) -> None:
    sink = tables(tmp_path)
    written = sink.write(iter([batch(None, aside(1, reasons=["x"]))]))
    sink.abort([written, None])
    assert not list(tmp_path.glob("*/*.parquet"))
    unfit = pa.RecordBatch.from_pydict({"id": ["no number"], ASIDE: pa.array([None], ASIDE_TYPE)})
    with pytest.raises(Exception, match="no number"):
        sink.write(iter([batch(aside(1, reasons=["x"])), unfit]))
    assert not list(tmp_path.glob("*/*.parquet"))


def test_s3_reasons_that_are_counted_are_bounded() -> None:
    counts = RowCounts()
    for number in range(REASONS_MAX + 20):
        counts.add(RowCounts(quarantined={f"reason {number}": 2}))
    assert len(counts.quarantined) == REASONS_MAX + 1
    assert counts.quarantined[OTHER] == 40


def test_the_format_is_not_for_others(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="use sulina-delta"):
        Tables.of({"path": str(tmp_path)}, SCHEMA, overwrite=False)
    with pytest.raises(InvalidSettings, match="use sulina-delta"):
        Tables.of(dict.fromkeys(("path", "quarantine", "table", "app"), "x"), SCHEMA, overwrite=True)
