"""Python processes of Spark: few, and soon ready."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sulina.client import SyncClient
from sulina.spark.daemon import leave_zip
from tests.support.serving import Serving

DAEMON = b"sulina.spark.daemon"


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/status").read_text().partition("PPid:")[2].split()[0])


def daemons_of(java: int) -> list[int]:
    children = [
        int(child) for threads in Path(f"/proc/{java}/task").glob("*/children") for child in threads.read_text().split()
    ]
    return [child for child in children if DAEMON in Path(f"/proc/{child}/cmdline").read_bytes()]


def parents(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"parent": pa.array([os.getppid()], pa.int32())})


def test_s1_sources_and_functions_share_one_daemon(
    spark: SparkSession, node: Serving, client: SyncClient, topic: Callable[..., str]
) -> None:
    name = topic()
    client.publish(name, b"x").raise_for_status()
    rows = spark.read.format("sulina").options(url=node.url, topic=name, columns="value").load()
    (row,) = rows.mapInArrow(parents, "parent int").collect()
    assert daemons_of(parent_of(row.parent)) == [row.parent]


def test_s1_a_daemon_has_loaded_what_its_workers_would_each_load() -> None:
    used = {f"sulina.spark.{name}" for name in ("data_source", "delta_data_source", "arrow_batches", "sink")}
    program = "import sys; from sulina.spark.daemon import load; load(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert used <= set(done.stdout.split())


def test_s1_workers_import_pyspark_from_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    home = os.path.dirname(pyspark.__file__)
    ours = [entry for entry in sys.path if not entry.endswith("pyspark.zip")]
    monkeypatch.setattr(sys, "path", [f"{home}/python/lib/pyspark.zip", "/elsewhere/pyspark.zip", *ours])
    leave_zip()
    assert sys.path == ["/elsewhere/pyspark.zip", *ours], "another Spark's files may be others"
