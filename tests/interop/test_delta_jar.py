"""Tables that Spark with Delta Lake's own jar and we read, write and optimize together: S3, S5.

The jar runs on an older Spark than ours, so it has an environment of its own: `make interop`.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession

import sulina
from sulina.spark.delta_native import read_delta
from sulina.spark.session import session
from tests.support import serving

pytest.importorskip("delta", reason="Delta Lake's own jar is not here: make interop")
JARS = sorted(Path(sys.prefix, "ivy", "jars").glob("*.jar"))
if not JARS:
    pytest.skip("Delta Lake's own jar could not be fetched: make interop", allow_module_level=True)

OURS, THEIRS = "sulina-delta", "delta"
ROWS = 300
RACES = 8
COLUMNS = "n bigint, country string, price decimal(20, 4), at timestamp, day date, tags array<string>, \
who struct<name: string, age: int>, more map<string, double>, raw binary"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    made = session(
        "interop",
        master="local[2]",
        settings={
            "spark.jars": ",".join(map(str, JARS)),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.databricks.delta.snapshotPartitions": "2",
        },
    )
    yield made
    made.stop()


def orders(spark: SparkSession, first: int, count: int = ROWS) -> DataFrame:
    """Rows with a column of every kind."""
    made = [
        (
            n,
            None if n % 7 == 0 else ("a b", "50%", "ü/x")[n % 3],
            Decimal(n) / 4,
            datetime(2026, 1, 1, 12, 0, n % 60, n, tzinfo=UTC),
            date(2026, 1, 1 + n % 28),
            [str(n), None],
            Row(name=f"w{n}", age=n % 90) if n % 5 else None,
            {"half": n / 2},
            bytes([n % 256]),
        )
        for n in range(first, first + count)
    ]
    return spark.createDataFrame(made, COLUMNS).coalesce(1)


def append(rows: DataFrame, how: str, path: Path, **options: str) -> None:
    rows.write.format(how).options(**options).mode("append").save(str(path))


def same(found: DataFrame, expected: DataFrame) -> bool:
    """All rows, all columns. A map cannot be compared by Spark: it is, as text."""
    names = [name if name != "more" else "to_json(more) as more" for name in expected.columns]
    ours, theirs = (rows.selectExpr(*names).orderBy("n").collect() for rows in (found, expected))
    return bool(ours == theirs) and len(ours) > 0


def test_s3_deltas_own_jar_reads_appends_to_and_optimizes_what_we_wrote(spark: SparkSession, tmp_path: Path) -> None:
    path, began = tmp_path / "table", time.monotonic()
    for first in range(0, 3 * ROWS, ROWS):
        append(orders(spark, first), OURS, path, partitionColumns="country")
    append(orders(spark, 3 * ROWS).selectExpr("*", "'x' as late"), OURS, path, mergeSchema="true")  # a new column

    def expected(count: int) -> DataFrame:
        late = f"case when n >= {3 * ROWS} and n < {4 * ROWS} then 'x' end as late"
        return orders(spark, 0, count).selectExpr("*", late)

    def theirs() -> DataFrame:
        return spark.read.format(THEIRS).load(str(path))

    def ours() -> list[DataFrame]:
        return [spark.read.format(OURS).load(str(path)), read_delta(spark, str(path))]

    assert same(theirs(), expected(4 * ROWS))
    assert theirs().filter("country = '50%'").count() == expected(4 * ROWS).filter("country = '50%'").count()
    stream = Increments(spark, tmp_path)
    assert stream.read(path) == list(range(4 * ROWS))

    append(orders(spark, 4 * ROWS), THEIRS, path)
    spark.sql(f"OPTIMIZE delta.`{path}`").collect()
    append(orders(spark, 5 * ROWS), OURS, path)
    assert stream.read(path) == list(range(4 * ROWS, 6 * ROWS)), "the OPTIMIZE adds nothing"
    for found in (*ours(), theirs()):
        assert same(found, expected(6 * ROWS))
    operations = [entry["operation"] for entry in DeltaTable(path).history()]
    assert operations.count("OPTIMIZE") == 1
    then = 4  # after four commits, and one that added a column
    assert read_delta(spark, str(path), version=then).count() == 4 * ROWS
    assert spark.read.format(THEIRS).option("versionAsOf", then).load(str(path)).count() == 4 * ROWS
    print(f"{6 * ROWS} rows, {len(operations)} versions, {time.monotonic() - began:.1f} s")


class Increments:
    """A query of ours, that reads what is new."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder

    def read(self, path: Path) -> list[int]:
        seen: list[int] = []

        def take(rows: DataFrame, _batch: int) -> None:
            seen.extend(row.n for row in rows.select("n").collect())

        rows = self._spark.readStream.format(OURS).option("start", "version:0").load(str(path))
        query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(self._folder / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        return sorted(seen)


def test_s3_both_commit_at_the_same_time_and_nothing_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    path, began = tmp_path / "table", time.monotonic()
    append(orders(spark, 0, 10), OURS, path)
    failed: list[BaseException] = []

    def writing(how: str, first: int) -> Callable[[], None]:
        def write() -> None:
            for number in range(first, first + RACES * 10, 10):
                append(orders(spark, number, 10), how, path)

        return write

    def optimize() -> None:
        for _ in range(3):
            spark.sql(f"OPTIMIZE delta.`{path}`").collect()

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    jobs = [writing(OURS, 10), writing(THEIRS, 10 + RACES * 10), optimize]
    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    every = list(range(10 + 2 * RACES * 10))
    for found in (spark.read.format(THEIRS).load(str(path)), read_delta(spark, str(path))):
        assert sorted(row.n for row in found.select("n").collect()) == every
    operations = [entry["operation"] for entry in DeltaTable(path).history()]
    assert operations.count("WRITE") >= 2 * RACES
    print(f"{len(every)} rows, {len(operations)} versions, {time.monotonic() - began:.1f} s: {operations}")


def test_s3_a_topic_is_streamed_into_a_table_that_deltas_own_jar_writes(spark: SparkSession, tmp_path: Path) -> None:
    with serving.serving(tmp_path / "data") as node, sulina.connect_sync(node.url) as client:
        client.admin.create_topic("/default/orders", partitions=2)
        for run in range(2):
            client.publish_batch("/default/orders", [f"{run}-{n}" for n in range(100)])
            rows = spark.readStream.format("sulina").options(url=node.url, topic="/default/orders")
            rows = rows.option("start", "earliest")
            query = rows.load().writeStream.format(THEIRS).option("checkpointLocation", str(tmp_path / "checkpoint"))
            query.trigger(availableNow=True).start(str(tmp_path / "table")).awaitTermination()
        ends = [client.admin.partition("/default/orders", number).end_offset for number in range(2)]
    log = [(number, offset) for number in range(2) for offset in range(ends[number])]
    found: Any = spark.read.format(THEIRS).load(str(tmp_path / "table")).select("partition", "offset").collect()
    assert sorted((row[0], row[1]) for row in found) == log
    assert len(log) == 200
    again = read_delta(spark, str(tmp_path / "table")).select("partition", "offset").collect()
    assert sorted((row[0], row[1]) for row in again) == log
