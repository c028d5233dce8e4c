"""A driver as its users have one: `sulina pipeline run`, and beside it a query from a topic to a topic.

Both are in one process, so that one kill takes them both. With `"once": true` it goes through all there is, then has
`sulina audit` prove the tables, and ends.
"""

import json
import os
import sys
from threading import Thread

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from sulina.cli import FAILED, run
from sulina.spark.pipeline.checkpoints import QueryCheckpoint
from sulina.spark.pipeline.definition import Pipeline, load
from sulina.spark.session import session

TASKS_MIN = 2  # so that a batch of the copy has several tasks, however small it is


def copying(pipeline: Pipeline, master: str, to: str, *, is_once: bool) -> StreamingQuery:
    """Every record of the pipeline's topic goes to another topic."""
    assert pipeline.url is not None
    spark = session(pipeline.name, master=master, settings=pipeline.settings)
    where = {"url": pipeline.url, "topic": pipeline.bronze[0].topic, "start": "earliest"}
    rows = spark.readStream.format("sulina").options(**where, minPartitions=TASKS_MIN).load()
    writer = rows.select("key", "value").writeStream.format("sulina").options(url=pipeline.url, topic=to)
    checkpoint = QueryCheckpoint(f"{pipeline.checkpoint_root}/copy", "copy")
    checkpoint.remove_torn_start()
    writer = writer.option("checkpointLocation", checkpoint.uri).queryName("copy")
    trigger = {"availableNow": True} if is_once else {"processingTime": f"{pipeline.trigger_seconds} seconds"}
    return writer.trigger(**trigger).start()


def ended_with(query: StreamingQuery) -> None:
    """A copy that fails ends the driver, as a table that fails does."""
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        sys.stderr.write(f"the copy failed: {error}\n")
        sys.stderr.flush()
        os._exit(FAILED)


def end_with_parent() -> None:
    """Whoever started this holds its standard input open, and lets go of it however he ends."""
    sys.stdin.buffer.read()
    os._exit(FAILED)


def audited(pipeline: Pipeline) -> int:
    """The exit codes of both audits, added."""
    [bronze], [silver] = pipeline.bronze, pipeline.silver
    aside = ["--quarantine", pipeline.table_uri(silver.quarantine_table)]
    tables = [[pipeline.table_uri(bronze.table), "--complete"], [pipeline.table_uri(silver.table), *aside]]
    return sum(run(["audit", bronze.topic, "--url", str(pipeline.url), "--table", *table]) for table in tables)


def main() -> None:
    Thread(target=end_with_parent, daemon=True).start()
    given = json.loads(sys.argv[1])
    pipeline, is_once = load(given["pipeline"]), bool(given["once"])
    query = copying(pipeline, given["master"], given["copy"], is_once=is_once)
    if is_once:
        query.awaitTermination()
    else:
        Thread(target=ended_with, args=(query,), daemon=True).start()
    command = ["pipeline", "run", given["pipeline"], "--master", given["master"]]
    code = run([*command, *(["--once"] if is_once else [])])
    if is_once and not code and given["audit"]:
        code = audited(pipeline)
    sys.stderr.flush()
    os._exit(code)  # Spark's own ending takes seconds, and there is nothing left to say


if __name__ == "__main__":
    main()
