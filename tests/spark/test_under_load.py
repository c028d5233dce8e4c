"""Spark reads a topic while others publish to it as fast as they can: no read fails because of them (finding 13).

A node in a process of its own, publishers in another. The short form reads as Spark's tasks do, and a few times by a
session; `SULINA_SPARK_READS=500 pytest -s tests/spark/test_under_load.py` is the long form: that many scans by
a session.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import sulina
from sulina.client import SyncClient
from sulina.errors import VersionNotRetained
from sulina.spark.arrow_batches import read_range
from sulina.spark.filters import Bounds
from sulina.spark.log_catalogue import open_catalogue
from sulina.spark.options import ReadOptions
from sulina.spark.planner import Planner
from tests.support.serving import Serving, serving

READS = int(os.environ.get("SULINA_SPARK_READS", "0"))
SESSION_READS = READS or 2
TASK_READS = 15
TOPIC = "/default/busy"
VERSIONS_KEPT = 1000
LEAD = 100  # versions that a scan may leave out because they are about to go
PUBLISHERS = 8
ROWS = 20_000  # of a read by a session
WAIT_SECONDS = 200.0  # for a thousand commits on a machine with much else to do
PUBLISHING = """
import asyncio, sys
import sulina

async def publish(client):
    while True:
        await client.publish(sys.argv[2], b"x" * 100)

async def main():
    async with sulina.connect(sys.argv[1]) as client:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(int(sys.argv[3])):
                tasks.create_task(publish(client))

asyncio.run(main())
"""


@contextmanager
def publishers(url: str) -> Iterator[None]:
    """A process that publishes at full speed, each record after the ack of the one before."""
    process = subprocess.Popen([sys.executable, "-c", PUBLISHING, url, TOPIC, str(PUBLISHERS)])
    try:
        yield
        assert process.poll() is None, "the publishers have ended"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, SyncClient]]:
    """A node whose clean-up of old versions is at work, because somebody publishes."""
    folder = tmp_path_factory.mktemp("busy")
    with serving(folder / "data") as node, sulina.connect_sync(node.url) as client:
        client.admin.create_topic(TOPIC)
        with publishers(node.url):
            wait_version(client, VERSIONS_KEPT + 100)
            yield node, client


def wait_version(client: SyncClient, version: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while (current := client.admin.partition(TOPIC).version) < version:
        assert time.monotonic() < deadline, f"the log is at version {current} only"
        time.sleep(0.02)


def oldest_version(client: SyncClient) -> int:
    """The oldest that the node still has."""
    try:
        return client.admin.commits(TOPIC, start=0, end=1)[0].version
    except VersionNotRetained as gone:
        return gone.oldest


def scan(url: str, **more: str) -> tuple[list[int], list[int | None]]:
    """Offsets and versions of a scan, planned and read as Spark does it."""
    options = ReadOptions.of({"url": url, "topic": TOPIC, "minPartitions": "2", **more}, is_stream=False)
    planner = Planner(options, open_catalogue(options.location, options.topics))
    offsets: list[int] = []
    versions: list[int | None] = []
    for task in planner.scan(Bounds()):
        for one in task:
            reader = planner.logs.source().open(one)
            for rows in read_range(reader, one, options.columns, fail_on_data_loss=True):
                offsets += rows.column("offset").to_pylist()
                versions += rows.column("version").to_pylist()
    return offsets, versions


@pytest.mark.timeout(600)
def test_s1_no_scan_fails_because_others_publish(busy: tuple[Serving, SyncClient]) -> None:
    node, client = busy
    began = client.admin.partition(TOPIC).version
    for _ in range(TASK_READS):
        offsets, versions = scan(node.url)
        assert offsets == list(range(len(offsets)))
        known = [version for version in versions if version is not None]
        assert known == sorted(known)
        unknown = max((at for at, version in enumerate(versions) if version is None), default=-1)
        assert known[-1] >= began, "the newest are told"
        if unknown >= 0:
            kept_from = oldest_version(client) + LEAD
            following = versions[unknown + 1]
            assert following is not None
            assert following <= kept_from, "null is only what is no longer kept"
    wait_version(client, began + 10)  # they went on publishing


@pytest.mark.timeout(600 + 20 * SESSION_READS)
def test_s1_scans_by_a_session_do_not_fail_because_others_publish(
    spark: SparkSession, busy: tuple[Serving, SyncClient]
) -> None:
    node, client = busy
    began, first = time.monotonic(), client.admin.partition(TOPIC).version
    for number in range(SESSION_READS):
        end = client.admin.partition(TOPIC).end_offset
        start = max(0, end - ROWS)
        rows = spark.read.format("sulina").options(url=node.url, topic=TOPIC, start=f"offset:{start}")
        (found,) = rows.load().agg(F.count("*"), F.min("offset"), F.max("offset"), F.max("version")).collect()
        count, low, high, version = found
        assert low == start
        assert count == high - low + 1 >= end - start, f"read {number}"
        assert version is not None
    seconds = time.monotonic() - began
    commits = client.admin.partition(TOPIC).version - first
    print(f"{SESSION_READS} reads, all good, in {seconds:.0f} s, beside {commits / seconds:.0f} commits/s")
