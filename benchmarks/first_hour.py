"""What a newcomer waits for: a Spark session, a small pipeline, an audit, a record on its way to a silver table.

Each command is a process of its own, as a newcomer starts it, after one run that warms caches as the first use of the
machine does. The peer is PySpark as it comes, in a process of its own too: a session; and the same rows through three
Parquet tables, where nothing is exactly once and nothing is checked.
"""

import sys

if __name__ == "__main__":
    sys.path.append(f"{sys.path.pop(0)}/..")  # not this directory: its http.py is not what others mean by http

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

import sulina
from benchmarks.measure import Result, Setup, at_most, interleaved, main, ratio, seconds_of
from benchmarks.serving.processes import Server, sulina_server
from sulina.client import SyncClient

TOPIC = "/default/orders"
ORDERS = [{"order": number, "shop": f"s{number % 4}", "amount": 2.5} for number in range(32)]
WAIT_SECONDS_MAX = 120.0
LOOK_SECONDS = 0.02
SULINA = [sys.executable, "-m", "sulina.cli"]
OUR_SESSION = "from sulina.spark import spark_session; spark_session()"
SESSION = "from pyspark.sql import SparkSession; SparkSession.builder.master('local[*]').getOrCreate()"
TABLES = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[*]").getOrCreate()
source, to = sys.argv[1:]
spark.read.text(source).write.mode("overwrite").parquet(f"{to}/raw")
raw = spark.read.parquet(f"{to}/raw")
rows = raw.selectExpr("from_json(value, 'order bigint, shop string, amount double') as one").select("one.*")
rows.write.mode("overwrite").parquet(f"{to}/orders")
spark.read.parquet(f"{to}/orders").groupBy("shop").count().write.mode("overwrite").parquet(f"{to}/by_shop")
"""


def benchmark(setup: Setup) -> Iterator[Result]:
    """The claims about a newcomer's first hour."""
    rounds = setup.choose(1, 3)
    work = Path(setup.directory) / "work"
    work.mkdir()
    (work / "orders.jsonl").write_text("".join(json.dumps(order) + "\n" for order in ORDERS))
    with sulina_server(f"{setup.directory}/node") as node, sulina.connect_sync(node.url) as client:
        client.admin.create_topic(TOPIC)
        client.publish_batch(TOPIC, ORDERS).raise_for_status()
        run(work, node, ["pipeline", "init"])
        run(work, node, ["pipeline", "run", "--once"])
        yield from sessions(rounds, work)
        yield from pipelines(rounds, work, node)
        yield from fresh(setup.choose(3, 10), work, node, client)


def sessions(rounds: int, work: Path) -> Iterator[Result]:
    """A session is there, and its process has ended."""
    ours, plain = interleaved(rounds, lambda: python(work, "-c", OUR_SESSION), lambda: python(work, "-c", SESSION))
    yield Result("a Spark session", median(ours), "s")
    yield Result("a Spark session, PySpark's own", median(plain), "s")
    yield at_most("a Spark session / PySpark's own", ratio(ours, plain), "ratio", 0.6)


def pipelines(rounds: int, work: Path, node: Server) -> Iterator[Result]:
    """Thirty-two records into bronze, silver and gold; the same command with nothing new; an audit of the table."""
    count = 0

    def first() -> float:
        nonlocal count
        count += 1
        text = (work / "pipeline.toml").read_text()
        (work / f"{count}.toml").write_text(
            text.replace('"./tables"', f'"./tables-{count}"').replace('name = "work"', f'name = "work_{count}"')
        )
        return run(work, node, ["pipeline", "run", f"{count}.toml", "--once"])

    took, again, audit, plain = interleaved(
        rounds,
        first,
        lambda: run(work, node, ["pipeline", "run", f"{count}.toml", "--once"]),
        lambda: run(work, node, ["audit", "orders", "--table", f"./tables-{count}/orders_raw"]),
        lambda: python(work, "-c", TABLES, "orders.jsonl", "parquet"),
    )
    yield Result("32 rows through three Parquet tables, PySpark's own", median(plain), "s")
    for name, values in (
        ("pipeline run --once, 32 records", took),
        ("pipeline run --once, nothing new", again),
        ("audit of 32 records and their table", audit),
    ):
        yield Result(name, median(values), "s")
        yield at_most(f"{name} / Parquet", ratio(values, plain), "ratio", 1.0)


def fresh(records: int, work: Path, node: Server, client: SyncClient) -> Iterator[Result]:
    """From a publish to the row of a silver table, while the pipeline runs with a trigger of one second."""
    silver = work / "tables" / "orders"
    took = []
    with subprocess.Popen(
        [*SULINA, "pipeline", "run", "--json"], cwd=work, env=environment(node), stdout=subprocess.DEVNULL
    ) as running:
        try:
            for number in range(records + 1):
                order = 1_000_000 + number
                started = time.perf_counter()
                client.publish(TOPIC, {"order": order, "shop": "late", "amount": 1.0}).raise_for_status()
                while order not in orders(silver):
                    assert running.poll() is None, "the pipeline ended"
                    assert time.perf_counter() - started < WAIT_SECONDS_MAX
                    time.sleep(LOOK_SECONDS)
                took.append(time.perf_counter() - started)
        finally:
            running.terminate()
    yield at_most("a record to its row in silver, p50", median(took[1:]), "s", 2.5)  # the first waits for the start


def orders(table: Path) -> Sequence[int]:
    """Return what a table has."""
    try:
        found = DeltaTable(str(table)).to_pyarrow_table(columns=["order"])
    except TableNotFoundError:
        return []
    numbers: list[int] = found.column("order").to_pylist()
    return numbers


def run(work: Path, node: Server, words: Sequence[str]) -> float:
    """Run a command of `sulina`; return the seconds it took."""
    return seconds_of(
        lambda: subprocess.run(
            [*SULINA, *words], cwd=work, env=environment(node), check=True, stdout=subprocess.DEVNULL
        )
    )


def python(work: Path, *words: str) -> float:
    """Run Python; return the seconds it took."""
    return seconds_of(lambda: subprocess.run([sys.executable, *words], cwd=work, check=True, stderr=subprocess.DEVNULL))


def environment(node: Server) -> dict[str, str]:
    """Return the environment of a command."""
    return {**os.environ, "SULINA_URL": node.url}


if __name__ == "__main__":
    main(__doc__.splitlines()[0], benchmark)
