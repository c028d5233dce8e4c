"""Topics and tables in Spark: reading, writing, freshness; against Spark's own Parquet on the same rows and cores.

Records have values of 100 bytes that do not compress, and keys of 8, in two partitions. Reading means all columns, into
nothing (`noop`). Writing means the rows of a Parquet read, to a table or to Parquet: what differs is the writer alone.
A table's rows are visible when delta-rs finds the version that has them. Scaling is measured in processes of their own,
as a process has one session. Spark's Kafka source is no peer here: nothing of ours speaks Kafka's protocol yet.

What Spark takes from Python it takes row by row and column by column. `ReadyMade` gives it the same rows out of memory:
that is the limit for any source in Python (docs/adr/0018).
"""

import sys

if __name__ == "__main__":
    sys.path.append(f"{sys.path.pop(0)}/..")  # not this directory: its http.py is not what others mean by http

import itertools
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import sulina
from benchmarks.measure import (
    MIB,
    Result,
    Setup,
    at_least,
    at_most,
    interleaved,
    main,
    percentile,
    ratio,
    seconds_of,
)
from sulina.client import SyncClient
from sulina.client.sync import publish_encoded
from sulina.core.records.columns import encode_columns
from sulina.spark.delta_native import read_delta
from sulina.spark.pipeline.definition import Pipeline
from sulina.spark.schema import RAW_SCHEMA
from sulina.spark.session import session
from sulina.spark.value_schemas import spark_type
from tests.support import serving

VALUE_BYTES = 100
BATCH_ROWS = 10_000
READY_ROWS = 40_000  # of a batch: about what a read of a topic gives
PARTITIONS = 2
COLD, HOT, LIVE = "/bench/cold", "/bench/hot", "/bench/live"
HEAP_MIB = 4096
SETTINGS = {
    "spark.driver.memory": f"{HEAP_MIB}m",
    "spark.sql.streaming.noDataProgressEventInterval": "100ms",  # what a query does that has nothing to do is told, too
}
TICK_SECONDS = 0.02  # between the publishes of a live topic
TICK_ROWS = 10
DEADLINE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Bench:
    """A node with full topics, and a session."""

    setup: Setup
    home: Path
    node: serving.Serving
    client: SyncClient
    rows: int
    spark: SparkSession = field(repr=False)

    @property
    def objects(self) -> str:
        return f"file://{self.home}/objects"

    @property
    def parquet(self) -> str:
        return f"{self.home}/parquet"

    @property
    def table(self) -> str:
        return f"{self.home}/table"

    def rounds(self, *works: Callable[[], float]) -> list[list[float]]:
        """Once for code to be compiled and files to be in memory, then for the figures."""
        interleaved(1, *works)
        return interleaved(self.setup.choose(2, 4), *works)


def fill(client: SyncClient, topic: str, rows: int) -> None:
    """Records that do not compress."""
    rng = np.random.default_rng(7)
    data = rng.integers(32, 127, BATCH_ROWS * VALUE_BYTES, np.uint8).tobytes()
    value = pa.array([data[n * VALUE_BYTES : (n + 1) * VALUE_BYTES] for n in range(BATCH_ROWS)], pa.binary())
    for first in range(0, rows, BATCH_ROWS):
        key = pa.array([b"%08d" % n for n in range(first, first + BATCH_ROWS)], pa.binary())
        batch = encode_columns(value=value, key=key, timestamp_ms=int(time.time() * 1000))
        publish_encoded(client, topic, first // BATCH_ROWS % PARTITIONS, batch)


def until(is_so: Callable[[], bool], what: str) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} within {DEADLINE_SECONDS:g} s")
        time.sleep(0.01)


def is_archived(client: SyncClient, topic: str) -> bool:
    """Whether all of it is in the archive."""
    found = [client.admin.partition(topic, partition) for partition in range(PARTITIONS)]
    return all(info.archived_offset == info.end_offset for info in found)


def benchmark(setup: Setup) -> Iterator[Result]:
    """Each claim in turn, on one node and one session."""
    home = Path(setup.directory).absolute()
    (home / "objects").mkdir()
    rows = setup.choose(300_000, 10_000_000)
    with (
        serving.serving(home / "data", arguments=["--objects", f"file://{home}/objects"], is_forked=False) as node,
        sulina.connect_sync(node.url) as client,
    ):
        client.admin.create_namespace("bench")
        policy = {"archive_bytes": 8 << 20, "archive_seconds": 1.0}
        for topic in (COLD, HOT, LIVE):
            client.admin.create_topic(topic, partitions=PARTITIONS, policy=policy)
        fill(client, COLD, rows)
        fill(client, HOT, rows)
        until(lambda: is_archived(client, COLD), "nothing more comes into the archive")
        spark = session("bench", settings=SETTINGS)
        try:
            bench = Bench(setup, home, node, client, rows, spark)
            yield from started(bench)
            before = few_rows(bench)
            for claim in (reads, writes, tables):
                yield from claim(bench)
            yield from memory(setup, before)
            yield from live(bench)
        finally:
            spark.stop()
        yield from scaling(bench)


def cold(spark: SparkSession, objects: str, **options: str) -> DataFrame:
    """All of a topic, from its archive."""
    return spark.read.format("sulina").options(path=objects, topic=COLD, **options).load()


def hot(bench: Bench, **options: str) -> DataFrame:
    """All of a topic, from its owner."""
    where = {"url": bench.node.url, "topic": HOT, "objects": "none"}
    return bench.spark.read.format("sulina").options(**where, **options).load()


class ReadyMade(DataSource):
    """Rows of a topic that are there already: `rows` of them, by repeating the batch in the file `path`."""

    @classmethod
    def name(cls) -> str:
        return "ready-made"

    def schema(self) -> StructType:
        return spark_type(RAW_SCHEMA)

    def reader(self, schema: StructType) -> "ReadyMadeReader":  # noqa: ARG002 - Spark passes it by its name
        return ReadyMadeReader(self.options["path"], int(self.options["rows"]))


class ReadyMadeReader(DataSourceReader):
    """Tasks of as many rows as those of a topic have."""

    def __init__(self, path: str, rows: int) -> None:
        self._path, self._rows = path, rows

    def partitions(self) -> list[InputPartition]:
        size = 1 << 18
        return [InputPartition(min(size, self._rows - first)) for first in range(0, self._rows, size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(self._path) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
            for first in range(0, partition.value, len(batch)):
                yield batch.slice(0, partition.value - first)


def ready_made(bench: Bench) -> Callable[[], DataFrame]:
    """The rows of a topic, out of memory."""
    path = f"{bench.home}/ready-made"
    rows = cold(bench.spark, bench.objects, end=_offsets(READY_ROWS // PARTITIONS)).toArrow()
    batch = pa.RecordBatch.from_arrays(rows.combine_chunks().to_batches()[0].columns, schema=RAW_SCHEMA)
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, RAW_SCHEMA) as writer:
        writer.write_batch(batch)
    bench.spark.dataSource.register(ReadyMade)
    reader = bench.spark.read.format("ready-made").option("rows", bench.rows)
    return lambda: reader.load(path)


def into_nothing(frame: DataFrame) -> None:
    """Read all of it."""
    frame.write.format("noop").mode("overwrite").save()


def reading(frame: Callable[[], DataFrame], rows: int) -> Callable[[], float]:
    """Rows a second."""
    return lambda: rows / seconds_of(lambda: into_nothing(frame()))


# Claims


def started(bench: Bench) -> Iterator[Result]:
    """What it takes a session that is just there to read its first records: Python processes begin."""
    frame = cold(bench.spark, bench.objects, start=_offsets(0), end=_offsets(1))
    yield Result("first records that a new session reads", seconds_of(frame.collect), "s")


def reads(bench: Bench) -> Iterator[Result]:
    """Archive and hot tail, against Parquet."""
    spark, objects, parquet = bench.spark, bench.objects, bench.parquet
    cold(spark, objects).write.parquet(parquet)
    frames = (
        lambda: spark.read.parquet(parquet),
        lambda: cold(spark, objects),
        lambda: hot(bench),
        ready_made(bench),
        lambda: cold(spark, objects, columns="offset,key,value"),
    )
    native, archive, tail, limit, few = bench.rounds(*(reading(frame, bench.rows) for frame in frames))
    yield Result("read Parquet, Spark's own", median(native), "rows/s")
    yield Result("read a topic, archive", median(archive), "rows/s")
    yield Result("read a topic, hot tail", median(tail), "rows/s")
    yield at_least("read a topic, archive / Parquet", ratio(archive, native), "ratio", 0.75)
    yield at_least("read a topic, hot tail / Parquet", ratio(tail, native), "ratio", 0.75)
    yield Result("read ready-made rows from Python / Parquet", ratio(limit, native), "ratio")
    yield at_least("read a topic, archive / ready-made rows", ratio(archive, limit), "ratio", 0.75)
    yield Result("read offset, key and value of a topic, archive / Parquet", ratio(few, native), "ratio")


def writes(bench: Bench) -> Iterator[Result]:
    """Tables, against Parquet. Ours are durable when they are written, Spark's Parquet is not."""
    spark, numbers = bench.spark, itertools.count()

    def writing(frame: Callable[[], DataFrame], format_: str) -> Callable[[], float]:
        def work() -> float:
            path = f"{bench.home}/written-{next(numbers)}"
            seconds = seconds_of(lambda: frame().write.format(format_).mode("append").save(path))
            shutil.rmtree(path)
            return bench.rows / seconds

        return work

    def from_parquet() -> DataFrame:
        return spark.read.parquet(bench.parquet)

    def from_topic() -> DataFrame:
        return cold(spark, bench.objects)

    native, table, topic = bench.rounds(
        writing(from_parquet, "parquet"), writing(from_parquet, "sulina-delta"), writing(from_topic, "sulina-delta")
    )
    yield Result("write Parquet, Spark's own", median(native), "rows/s")
    yield Result("write a table", median(table), "rows/s")
    yield Result("write a table from a topic", median(topic), "rows/s")
    yield at_least("write a table / Parquet", ratio(table, native), "ratio", 0.6)


def tables(bench: Bench) -> Iterator[Result]:
    """A table read back: by Spark's own reader, which is how we do it, and through Python."""
    spark, table = bench.spark, bench.table
    spark.read.parquet(bench.parquet).write.format("sulina-delta").mode("append").save(table)
    frames = (
        lambda: spark.read.parquet(table),
        lambda: read_delta(spark, table),
        lambda: spark.read.format("sulina-delta").load(table),
    )
    native, ours, python = bench.rounds(*(reading(frame, bench.rows) for frame in frames))
    yield Result("read the files of a table, Spark's own", median(native), "rows/s")
    yield Result("read a table", median(ours), "rows/s")
    yield at_least("read a table / its files", ratio(ours, native), "ratio", 0.95)
    yield Result("read a table through Python / its files", ratio(python, native), "ratio")


# Memory


def few_rows(bench: Bench) -> float:
    """The most that a Python worker holds, in MiB, when a quarter of the rows are read and written in all ways."""
    ending = bench.rows // PARTITIONS // 4
    path = f"{bench.home}/few"
    into_nothing(cold(bench.spark, bench.objects, end=_offsets(ending)))
    into_nothing(hot(bench, end=_offsets(ending, HOT)))
    some = cold(bench.spark, bench.objects, end=_offsets(ending))
    some.write.format("sulina-delta").mode("append").save(path)
    into_nothing(bench.spark.read.format("sulina-delta").load(path))
    shutil.rmtree(path)
    return worker_mib()


def memory(setup: Setup, before: float) -> Iterator[Result]:
    """After all reads and writes: whoever held more rows at once would have grown."""
    now = worker_mib()
    yield Result("memory of a Python worker at most", now, "MiB")
    if not setup.quick:  # a quarter of a few rows does not fill a worker's buffers once
        yield at_most("memory of a Python worker, all rows / a quarter of them", now / before, "ratio", 1.3)
    driver = held_mib(java())
    yield Result("memory of the driver's Java at most", driver, "MiB")
    yield at_most("memory of the driver's Java / its heap", driver / HEAP_MIB, "ratio", 1.5)


def java() -> int:
    """The process of the driver's Java, with executors in it."""
    return next(one for one in below(os.getpid()) if Path(f"/proc/{one}/comm").read_text().strip() == "java")


def worker_mib() -> float:
    """The most that one of the Python processes below Java has held."""
    return max(held_mib(process) for process in below(java()))


def held_mib(process: int) -> float:
    """The most that a process has held since it started; 0 if it is gone."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return 0.0
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / MIB if "VmHWM:" in status else 0.0


def below(process: int) -> Iterator[int]:
    """All that a process and its children have started."""
    for threads in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = threads.read_text().split()
        except FileNotFoundError:
            continue
        for child in map(int, children):
            yield child
            yield from below(child)


# A query that runs


def live(bench: Bench) -> Iterator[Result]:
    """From publish to a row in a table, as a pipeline has it; and what a query costs that has nothing to do."""
    path, trigger_seconds = f"{bench.home}/live", Pipeline(name="live", tables="").trigger_seconds
    rows = bench.spark.readStream.format("sulina").options(url=bench.node.url, topic=LIVE).load()
    writer = rows.writeStream.format("sulina-delta").option("checkpointLocation", f"{path}.checkpoint")
    query = writer.trigger(processingTime=f"{trigger_seconds} seconds").start(path)
    try:
        with Watching(path) as watching:
            published = publish_live(bench, watching)
            seconds = watching.seconds(since=published)
        yield Result("from publish to a row in a table, trigger", trigger_seconds, "s")
        yield at_most("from publish to a row in a table, p50", percentile(seconds, 50), "s", 1.0)
        yield Result("from publish to a row in a table, p99", percentile(seconds, 99), "s")
        yield Result("a micro-batch with one record, p50", median(one_by_one(bench, query)), "ms")
        yield at_most("a trigger with nothing to do, p50", median(idle(bench, query)), "ms", 200)
    finally:
        query.stop()


class Watching:
    """Looks for new versions of a table, and notes when it found each."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._found: dict[int, float] = {}  # version, and the time
        self._is_wanted = True
        self._thread = threading.Thread(target=self._watch, name="watching")

    def __enter__(self) -> "Watching":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_wanted = False
        self._thread.join()

    @property
    def versions(self) -> int:
        return len(self._found)

    def _watch(self) -> None:
        table: DeltaTable | None = None
        while self._is_wanted:
            if table is None and DeltaTable.is_deltatable(self._path):
                table = DeltaTable(self._path)
            if table is not None:
                table.update_incremental()
                now = time.time()
                for version in range(len(self._found), table.version() + 1):
                    self._found[version] = now
            time.sleep(0.005)

    def seconds(self, since: float) -> list[float]:
        """How long each record took that was published since then. Their values say when they were."""
        found = []
        for version, seen in dict(self._found).items():
            log = Path(self._path, "_delta_log", f"{version:020d}.json").read_text()
            for action in map(json.loads, log.splitlines()):
                if "add" in action:
                    values = pq.read_table(f"{self._path}/{action['add']['path']}", columns=["value"]).column(0)
                    found += [seen - at for at in map(float, values.to_pylist()) if at >= since]
        return found


def publish_live(bench: Bench, watching: Watching) -> float:
    """A steady few records; first until the query is at work, then for the figures. When those began."""
    began, until_ = 0.0, time.time() + DEADLINE_SECONDS
    while time.time() < until_:
        if not began and watching.versions >= 5:
            began = time.time()
            until_ = began + bench.setup.choose(8, 30)
        stamps = [b"%.6f" % time.time()] * TICK_ROWS
        batch = encode_columns(value=pa.array(stamps, pa.binary()), timestamp_ms=int(time.time() * 1000))
        publish_encoded(bench.client, LIVE, 0, batch)
        time.sleep(TICK_SECONDS)
    last = watching.versions
    until(lambda: watching.versions > last + 1 or is_idle(bench), "the last records do not become rows")
    return began


def is_idle(bench: Bench) -> bool:
    """Whether the query has nothing left to do."""
    (query,) = bench.spark.streams.active
    progress = query.lastProgress
    return progress is not None and not progress.numInputRows and not query.status["isTriggerActive"]


def one_by_one(bench: Bench, query: StreamingQuery) -> list[float]:
    """How long batches of one record took, in milliseconds."""
    first = query.lastProgress.batchId if query.lastProgress is not None else 0
    count = bench.setup.choose(3, 15)
    for number in range(count):
        bench.client.publish(LIVE, b"%.6f" % time.time(), key=b"k").raise_for_status()
        until(lambda: len(_batches(query, first)) > number, "a record does not become a row")  # noqa: B023
    return _batches(query, first)


def _batches(query: StreamingQuery, first: int) -> list[float]:
    return [
        float(one.durationMs["triggerExecution"])
        for one in query.recentProgress
        if one.numInputRows == 1 and one.batchId >= first
    ]


def idle(bench: Bench, query: StreamingQuery) -> list[float]:
    """How long triggers took that found nothing, in milliseconds."""
    time.sleep(bench.setup.choose(5, 15))
    return [float(one.durationMs["triggerExecution"]) for one in query.recentProgress[-10:] if not one.numInputRows]


# Scaling


def scaling(bench: Bench) -> Iterator[Result]:
    """One core, and two."""
    one, two = (_in_child(bench, cores) for cores in (1, 2))
    for name in ("read Parquet, Spark's own", "read a topic, archive"):
        yield Result(f"{name}, 1 core", one[name], "rows/s")
        yield Result(f"{name}, 2 cores / 1 core", two[name] / one[name], "ratio")


def _in_child(bench: Bench, cores: int) -> dict[str, float]:
    words = ["cores", str(cores), bench.objects, bench.parquet, str(bench.rows), str(bench.setup.choose(1, 3))]
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def child(cores: str, objects: str, parquet: str, rows: str, rounds: str) -> None:
    """What `_in_child` runs."""
    spark = session("bench", master=f"local[{cores}]", settings=SETTINGS)
    works = [
        reading(lambda: spark.read.parquet(parquet), int(rows)),
        reading(lambda: cold(spark, objects), int(rows)),
    ]
    interleaved(1, *works)
    native, archive = interleaved(int(rounds), *works)
    spark.stop()
    print(json.dumps({"read Parquet, Spark's own": median(native), "read a topic, archive": median(archive)}))


def _offsets(offset: int, topic: str = COLD) -> str:
    return json.dumps({topic: {str(partition): offset for partition in range(PARTITIONS)}})


if __name__ == "__main__":
    if sys.argv[1:2] == ["cores"]:
        child(*sys.argv[2:])
    else:
        main(__doc__.splitlines()[0], benchmark)
