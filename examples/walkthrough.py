"""From events to tables, cell by cell: run it whole (`python examples/walkthrough.py`), or cell by cell in an editor
that knows `# %%`. It makes its own data, in a folder that it removes at the end.
"""

# %% A node, as a process of its own
import atexit
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import sulina
from sulina.spark import read_delta, run_pipeline, spark_session

home = Path(tempfile.mkdtemp(prefix="sulina-walkthrough-"))
command = [sys.executable, "-m", "sulina.cli", "serve", "--json", "--http", "127.0.0.1:0", "--data", str(home / "data")]
node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
url = json.loads(node.stdout.readline())["url"]


def end() -> None:
    """Stop the node and remove its data, however this ends."""
    node.terminate()
    node.wait()
    shutil.rmtree(home, ignore_errors=True)


def end_quietly(kind, error, trace) -> None:
    """Print no trace for ctrl-C, or where nobody reads on, as with `| head`."""
    if not issubclass(kind, BrokenPipeError | KeyboardInterrupt):
        return sys.__excepthook__(kind, error, trace)
    return os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes once more at its end


atexit.register(end)
sys.excepthook = end_quietly
print(f"a node serves at {url}")

# %% A topic with a schema, and three days of a shop's orders; one in fifty is broken, as they are in life
ORDER = {
    "type": "object",
    "properties": {
        "order": {"type": "integer"},
        "country": {"type": "string"},
        "amount": {"type": "number"},
        "at": {"type": "string", "format": "date-time"},
    },
    "required": ["order", "country", "amount", "at"],
}
chance = random.Random(7)


def event(number: int) -> sulina.Record:
    at = f"2026-11-{1 + number % 3:02d}T{number % 24:02d}:{chance.randrange(60):02d}:00Z"
    country = chance.choice(["RO", "BG", "MD", "UA"])
    value = json.dumps({"order": number, "country": country, "amount": round(chance.uniform(1, 200), 2), "at": at})
    if number % 50 == 49:
        value = chance.choice([value[:-9], value.replace('"amount": ', '"amount": "free", "was": '), ""])
    return sulina.Record(value, key=country)


client = sulina.connect_sync(url)
schema = {"kind": "json", "definition": ORDER}
client.admin.create_topic(
    "/default/orders", partitions=2, schema=schema, policy={"validate": False}
)  # bad ones come, too
for first in range(0, 20_000, 1_000):
    ack = client.publish_batch("/default/orders", [event(number) for number in range(first, first + 1_000)], split=True)
    ack.raise_for_status()
print("20,000 records, each acknowledged after it was on the disk")

# %% The topic is a table already
spark = spark_session(is_quiet=True)
raw = spark.read.format("sulina").options(url=url, topic="/default/orders").load()
raw.groupBy("partition").count().orderBy("partition").show()

# %% With its schema it has columns; what cannot be decoded says why
decoded = spark.read.format("sulina").options(url=url, topic="/default/orders", decode="schema").load()
decoded.selectExpr("offset", "data.*", "error").where("error is not null").show(5, truncate=60)

# %% A pipeline: bronze as it came, silver decoded and checked, gold the answer to a question
shop = {
    "name": "walkthrough",
    "url": url,
    "tables": str(home / "tables"),
    "bronze": [{"table": "orders_raw", "topic": "/default/orders"}],
    "silver": [
        {
            "table": "orders",
            "from": "orders_raw",
            "partition_by": ["country"],
            "expect": [{"name": "the amount is at least 2", "that": "amount >= 2"}],
        }
    ],
    "gold": [
        {
            "table": "revenue",
            "sql": "select country, date(at) as day, count(*) as orders, round(sum(amount), 2) as revenue "
            "from orders group by all order by country, day",
        }
    ],
}
for table in run_pipeline(shop, spark):
    print(f"{table.stage:>6} {table.table}: {table.rows} rows in, {table.quarantined} put aside")
read_delta(spark, f"{home}/tables/revenue").show()

# %% What was put aside, with its offset and the reason
aside = read_delta(spark, f"{home}/tables/orders_quarantine")
aside.selectExpr("partition", "offset", "reasons[0] as reason").orderBy("partition", "offset").show(5, truncate=80)

# %% More comes; run again, only that is read. Every table has versions, and each can be read
late = [event(number) for number in range(20_000, 21_000)]
client.publish_batch("/default/orders", late, split=True).raise_for_status()
run_pipeline(shop, spark)
for version in (1, 2):
    then = read_delta(spark, f"{home}/tables/orders_raw", version=version)
    print(f"version {version} of the bronze table has {then.count()} rows")

# %% Any other tool reads the same tables
import polars  # noqa: E402

print(polars.read_delta(f"{home}/tables/revenue").group_by("country").agg(polars.col("revenue").sum()).sort("country"))

# %% The end
spark.stop()
client.close()
