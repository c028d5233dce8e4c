"""Topics and tables in Spark: reading, writing, freshness; against Spark's own Parquet on the same rows and cores.

Records have values of 100 bytes and keys of 8, in two partitions. Reading means all columns, into nothing (`noop`).
"""

import sys

sys.path.append(f"{sys.path.pop(0)}/..")  # not this directory: its http.py is not what others mean by http

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import sulina
from benchmarks.measure import Result, Setup, at_least, interleaved, main, ratio, seconds_of
from sulina.client import SyncClient
from sulina.core.columns import encode_columns
from sulina.spark.session import session
from tests.support import serving

VALUE_BYTES = 100
BATCH_ROWS = 10_000
PARTITIONS = 2
COLD, HOT = "/bench/cold", "/bench/hot"


def fill(client: SyncClient, topic: str, rows: int) -> None:
    """Records that do not compress."""
    rng = np.random.default_rng(7)
    data = rng.integers(32, 127, BATCH_ROWS * VALUE_BYTES, np.uint8).tobytes()
    value = pa.array([data[n * VALUE_BYTES : (n + 1) * VALUE_BYTES] for n in range(BATCH_ROWS)], pa.binary())
    for first in range(0, rows, BATCH_ROWS):
        key = pa.array([b"%08d" % n for n in range(first, first + BATCH_ROWS)], pa.binary())
        batch = encode_columns(value=value, key=key, timestamp_ms=int(time.time() * 1000))
        client.publish_encoded(topic, first // BATCH_ROWS % PARTITIONS, batch)


def wait_archived(client: SyncClient, topic: str) -> None:
    """Until all of it is in the archive."""
    for partition in range(PARTITIONS):
        while True:
            info = client.partition(topic, partition)
            if info.archived_offset == info.end_offset:
                break
            time.sleep(0.1)


def reading(frame: Callable[[], DataFrame], rows: int) -> Callable[[], float]:
    """Rows a second."""
    return lambda: rows / seconds_of(lambda: frame().write.format("noop").mode("overwrite").save())


def benchmark(setup: Setup) -> Iterator[Result]:
    """Each claim in turn, on one node and one session."""
    home = Path(setup.directory).absolute()
    (home / "objects").mkdir()
    rows = setup.choose(300_000, 10_000_000)
    with (
        serving.serving(home / "data", arguments=["--objects", f"file://{home}/objects"]) as node,
        sulina.connect(node.url) as client,
    ):
        client.create_namespace("bench")
        for topic in (COLD, HOT):
            client.create_topic(topic, partitions=PARTITIONS, policy={"archive_bytes": 8 << 20, "archive_seconds": 1.0})
            fill(client, topic, rows)
        wait_archived(client, COLD)
        spark = session("bench", settings={"spark.driver.memory": "4g"})
        try:
            yield from reads(setup, spark, node.url, f"file://{home}/objects", f"{home}/parquet", rows)
        finally:
            spark.stop()


def reads(setup: Setup, spark: SparkSession, url: str, objects: str, parquet: str, rows: int) -> Iterator[Result]:
    """Archive and hot tail, against Parquet."""

    def cold() -> DataFrame:
        return spark.read.format("sulina").options(path=objects, topic=COLD).load()

    def hot() -> DataFrame:
        return spark.read.format("sulina").options(url=url, topic=HOT, objects="none").load()

    cold().write.parquet(parquet)
    works = [reading(frame, rows) for frame in (lambda: spark.read.parquet(parquet), cold, hot)]
    interleaved(1, *works)  # code is compiled, files are in memory
    native, archive, tail = interleaved(setup.choose(2, 5), *works)
    yield Result("read Parquet, Spark's own", median(native), "rows/s")
    yield Result("read a topic, archive", median(archive), "rows/s")
    yield Result("read a topic, hot tail", median(tail), "rows/s")
    yield at_least("read a topic, archive / Parquet", ratio(archive, native), "ratio", 0.75)
    yield at_least("read a topic, hot tail / Parquet", ratio(tail, native), "ratio", 0.75)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], benchmark)
