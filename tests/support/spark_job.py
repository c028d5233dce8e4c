"""One job that uses everything: a batch, a stream into a table, a sink into a topic, and a pipeline by its command.

Where it runs is said by the session alone. As a script it is a driver in a process of its own.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from sulina.cli import app
from sulina.spark.pipeline.definition import load
from sulina.spark.session import session
from tests.support.spark_cluster import JAVA_OPTIONS

PIPELINE = """
name = "shop"
url = "{url}"
tables = "{folder}/tables"
progress_topic = "{reports}"

[[bronze]]
table = "raw"
topic = "{topic}"

[[silver]]
table = "orders"
from = "raw"

[[silver.expect]]
name = "positive"
that = "amount > 0"

[[silver]]
table = "large"
from = "raw"
sql = "select id, amount * 2 as twice, _offset from input where amount > 10"

[[gold]]
table = "revenue"
sql = "select country, count(*) as n, sum(amount) as total from orders group by country order by country"

[settings]
"spark.executor.memory" = "512m"
"spark.driver.memory" = "1g"
"spark.sql.shuffle.partitions" = "2"
"spark.driver.extraJavaOptions" = "{java}"
"spark.executor.extraJavaOptions" = "{java}"
"""


def define(folder: Path, url: str, topic: str, reports: str) -> Path:
    """The pipeline as a file."""
    file = folder / "pipeline.toml"
    file.write_text(PIPELINE.format(url=url, folder=folder, topic=topic, reports=reports, java=JAVA_OPTIONS))
    return file


def job(spark: SparkSession, folder: Path, url: str, topic: str, copy: str) -> str:
    """Everything but the pipeline; the module that Python workers are forks of."""
    where = {"url": url, "topic": topic}
    rows = spark.read.format("sulina").options(**where).load().filter("offset >= 5")
    rows.write.format("sulina-delta").mode("append").save(str(folder / "batch"))
    stream = spark.readStream.format("sulina").options(**where, start="earliest").load()
    for sink, options in (
        ("sulina-delta", {"path": str(folder / "streamed")}),
        ("sulina", {"url": url, "topic": copy}),
    ):
        columns = ("key", "value", "timestamp") if sink == "sulina" else ("*",)
        writer = stream.select(*columns).writeStream.format(sink).options(**options)
        query = (
            writer.option("checkpointLocation", str(folder / f"checkpoint-{sink}")).trigger(availableNow=True).start()
        )
        assert query.awaitTermination(120), f"{sink} does not end"
    return str(spark.range(1).mapInArrow(_daemon, "name string").collect()[0].name)


def _daemon(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        main = getattr(sys.modules["__main__"], "__spec__", None)
        yield pa.RecordBatch.from_pydict({"name": [main.name if main is not None else ""]})


def main() -> None:
    given = json.loads(sys.argv[1])
    folder, where = Path(given["folder"]), given["where"]
    file = folder / "pipeline.toml"
    spark = session("job", **where, settings=load(file).settings, is_quiet=True)
    daemon = job(spark, folder, given["url"], given["topic"], given["copy"])
    [(option, address)] = where.items()
    code = app(["pipeline", "run", str(file), "--once", "--json", f"--{option}", address])
    print(json.dumps({"daemon": daemon}))
    sys.stdout.flush()
    os._exit(int(code or 0))  # Spark's own ending takes seconds, and there is nothing left to say


if __name__ == "__main__":
    main()
