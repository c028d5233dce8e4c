"""Python processes of Spark: few, and soon ready."""

import contextlib
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
from tests.support.forked_python import forks
from tests.support.serving import Serving

DAEMON = b"sulina.spark.daemon"


def daemons() -> int:
    """How many daemons of workers Spark has started: each has a process that stands for it."""
    wanted = (forks().address.encode(), DAEMON)
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            lines.append(path.read_bytes().split(b"\0"))
    return sum(all(word in line for word in wanted) for line in lines)


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def test_s1_sources_and_functions_share_one_daemon(
    spark: SparkSession, node: Serving, client: SyncClient, topic: Callable[..., str]
) -> None:
    name = topic()
    client.publish(name, b"x").raise_for_status()
    rows = spark.read.format("sulina").options(url=node.url, topic=name, columns="value").load()
    assert rows.mapInArrow(unchanged, rows.schema).count() == 1
    assert daemons() == 1


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
