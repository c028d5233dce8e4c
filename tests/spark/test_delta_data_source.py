"""`format("sulina-delta")` on a real session: S3, tables that are written, read and streamed."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from sulina.errors import InvalidSettings
from sulina.spark.delta_native import read_delta
from sulina.spark.errors import TableNotFound

DELTA = "sulina-delta"
ROWS_DDL = (
    "p STRING, day DATE, n BIGINT NOT NULL, at TIMESTAMP, b BINARY, s STRUCT<x: INT, y: ARRAY<STRING>>, "
    "m MAP<STRING, BIGINT>"
)
DAY = date(2026, 11, 1)
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
ROWS: list[tuple[Any, ...]] = [
    ("a/b 50%", DAY, 1, AT, b"\x00\xff", (1, ["é", None]), {"k": 1}),
    (None, None, 2, None, None, None, None),
    ("ü=☃", DAY, 3, AT, b"", (None, []), {}),
]


def write(frame: DataFrame, path: Path, mode: str = "append", **options: Any) -> None:
    given = {name: str(value) for name, value in options.items()}
    frame.write.format(DELTA).mode(mode).options(**given).save(str(path))


def numbers(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame([(value,) for value in values], "n BIGINT").coalesce(1)


def load(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format(DELTA).options(**given).load(str(path))


def column(frame: DataFrame, name: str = "n") -> list[Any]:
    return sorted(row[0] for row in frame.select(name).collect())


def plain(rows: Sequence[Any]) -> list[Any]:
    """Rows that can be compared."""
    return sorted(
        (
            (r.p, r.day, r.n, r.at, None if r.b is None else bytes(r.b), r.s and (r.s.x, r.s.y), r.m)
            for r in rows
        ),
        key=lambda row: row[2],
    )  # fmt: skip


def stream(spark: SparkSession, source: Path, target: Path, checkpoint: Path, **options: Any) -> StreamingQuery:
    """From table to table, what is there now."""
    given = {name: str(value) for name, value in options.items()}
    rows = spark.readStream.format(DELTA).options(**given).load(str(source))
    writer = rows.writeStream.format(DELTA).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.start(str(target))
    query.awaitTermination(120)
    assert not query.isActive
    return query


def test_s3_rows_of_all_types_come_back_by_the_format_and_by_sparks_own_reader(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = spark.createDataFrame(ROWS, ROWS_DDL)
    # Instants without a zone, of the session's: which is UTC.
    expected = plain(frame.collect())
    write(frame, tmp_path, partitionColumns="p,day,at")
    assert len(DeltaTable(tmp_path).file_uris()) == 3
    by_format, native = load(spark, tmp_path), read_delta(spark, str(tmp_path))
    assert by_format.columns == native.columns == frame.columns
    assert plain(by_format.collect()) == expected
    assert plain(native.collect()) == expected
    native.explain()
    assert "FileScan parquet" in capsys.readouterr().out
    chosen = read_delta(spark, str(tmp_path), where={"p": ["a/b 50%", None]})
    assert column(chosen) == [1, 2]
    assert column(read_delta(spark, str(tmp_path), where={"day": DAY, "p": "ü=☃"})) == [3]
    assert read_delta(spark, str(tmp_path), where={"p": "nobody"}).count() == 0
    with pytest.raises(InvalidSettings, match="n is not a partition column"):
        read_delta(spark, str(tmp_path), where={"n": 1})
    assert load(spark, tmp_path, columns="n,p").columns == ["n", "p"]
    assert column(load(spark, tmp_path, columns="n").where("n > 1")) == [2, 3]
    spread = load(spark, tmp_path, minPartitions=3)
    assert spread.rdd.getNumPartitions() == 3
    assert spread.where(F.col("p") == "ü=☃").rdd.getNumPartitions() == 1


def test_s3_a_table_grows_is_overwritten_and_keeps_its_versions(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    write(numbers(spark), table)
    assert read_delta(spark, str(table)).count() == load(spark, table).count() == 0
    write(numbers(spark, 1, 2), table)
    write(numbers(spark, 3), table, txn="job-7")
    write(numbers(spark, 3), table, txn="job-7")
    assert DeltaTable(table).version() == 2
    write(numbers(spark, 9), table, "overwrite")
    assert column(load(spark, table)) == column(read_delta(spark, str(table))) == [9]
    assert column(load(spark, table, version=2)) == column(read_delta(spark, str(table), version=2)) == [1, 2, 3]
    more = numbers(spark, 10).withColumn("word", F.lit("x"))
    with pytest.raises(PySparkException, match=r"columns word: it has none; set mergeSchema=true"):
        write(more, table)
    write(more, table, mergeSchema="true")
    assert sorted(tuple(row) for row in read_delta(spark, str(table)).collect()) == [(9, None), (10, "x")]
    assert sorted(tuple(row) for row in load(spark, table).collect()) == [(9, None), (10, "x")]
    with pytest.raises(PySparkException, match=r"(?i)option mergeSchem is unknown; did you mean mergeSchema"):
        write(more, table, mergeSchem="true")
    with pytest.raises(PySparkException, match="no Delta table exists at"):
        load(spark, tmp_path / "nowhere").count()
    with pytest.raises(TableNotFound):
        read_delta(spark, str(tmp_path / "nowhere"))


def test_s3_a_stream_of_several_batches_is_written_exactly_once_and_so_is_its_replay(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, target, checkpoint = tmp_path / "source", tmp_path / "target", tmp_path / "checkpoint"
    for first in range(0, 50, 10):
        write(numbers(spark, *range(first, first + 10)), source)
    query = stream(spark, source, target, checkpoint, maxFilesPerTrigger=2)
    assert column(read_delta(spark, str(target))) == list(range(50))
    assert DeltaTable(target).version() == 2  # 2, 2 and 1 files
    assert DeltaTable(target).transaction_version(str(query.id)) == 2
    files = set(target.rglob("part-*"))

    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    stream(spark, source, target, checkpoint, maxFilesPerTrigger=2)
    assert column(read_delta(spark, str(target))) == list(range(50))
    assert DeltaTable(target).version() == 2
    assert set(target.rglob("part-*")) == files  # the second files of the batch are gone again

    write(numbers(spark, 50), source)
    stream(spark, source, target, checkpoint, maxFilesPerTrigger=2)
    assert column(load(spark, target)) == list(range(51))


def test_s3_a_complete_answer_replaces_the_table_with_every_batch(spark: SparkSession, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for n in (1, 2):
        write(numbers(spark, n, n + 10), source)
    rows = spark.readStream.format(DELTA).option("maxFilesPerTrigger", 1).load(str(source))
    counts = rows.groupBy().agg(F.sum("n").alias("n"))
    writer = counts.writeStream.format(DELTA).outputMode("complete").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(target))
    assert query.awaitTermination(120)
    assert column(load(spark, target)) == [26]
    assert column(load(spark, target, version=0)) == [12]
