"""Topics become tables: S3, S4, S7, on a real session and a real node."""

import itertools
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from sulina.cli import app
from sulina.client import Record, SyncClient
from sulina.errors import InvalidSettings, VersionNotRetained
from sulina.spark.delta_native import read_delta
from sulina.spark.errors import PipelineFailed
from sulina.spark.pipeline.definition import Pipeline, parse
from sulina.spark.pipeline.reporting import Reporter
from sulina.spark.pipeline.runner import Runner
from sulina.spark.pipeline.stages import Stages
from tests.support.serving import Serving

Topic = Callable[..., str]
SCHEMA = {
    "kind": "json",
    "definition": {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "country": {"type": "string"},
            "amount": {"type": "number"},
            "at": {"type": "string", "format": "date-time"},
        },
        "required": ["id", "country", "amount"],
        "additionalProperties": False,
    },
}
MOMENT_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
_numbers = itertools.count()


def pipeline_of(node: Serving, topic: str, folder: Path, name: str | None = None, **silver: Any) -> Pipeline:
    return parse(
        {
            "name": name or f"shop{next(_numbers)}",
            "url": node.url,
            "tables": str(folder / "tables"),
            "bronze": [{"table": "raw", "topic": topic, "start": silver.pop("start", "earliest")}],
            "silver": [
                {
                    "table": "orders",
                    "from": "raw",
                    "expect": [{"name": "positive", "that": "amount > 0"}],
                    **silver,
                }
            ],
            "gold": [
                {
                    "table": "revenue",
                    "sql": "select country, count(*) as n, sum(amount) as total from orders group by country",
                }
            ],
        }
    )


def run_once(spark: SparkSession, pipeline: Pipeline) -> Runner:
    runner = Runner(Stages(spark, pipeline))
    runner.run_once()
    return runner


def order(number: int, **more: Any) -> str:
    return json.dumps({"id": number, "country": "RO" if number % 2 else "BG", "amount": number + 1.0} | more)


def rows(spark: SparkSession, pipeline: Pipeline, table: str) -> list[Any]:
    return read_delta(spark, pipeline.table_uri(table)).collect()


def test_s3_a_topic_becomes_bronze_silver_and_gold_tables_each_record_once(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    name = topic(2, schema=SCHEMA)
    client.publish_batch(name, [Record(order(n), key=str(n)) for n in range(40)], split=True)
    bad = ["{", '{"id": "x", "country": "RO", "amount": 1}', order(7, colour="red"), order(-9), ""]
    client.publish_batch(name, [Record(value, key="bad") for value in bad])
    pipeline = pipeline_of(node, name, tmp_path)
    runner = run_once(spark, pipeline)
    raw = rows(spark, pipeline, "raw")
    ends = [client.admin.partition(name, number).end_offset for number in range(2)]
    assert sorted((row.partition, row.offset) for row in raw) == [(p, o) for p in range(2) for o in range(ends[p])]
    good = rows(spark, pipeline, "orders")
    assert sorted((row.id, row.country, row.amount) for row in good) == sorted(
        (n, "RO" if n % 2 else "BG", n + 1.0) for n in range(40)
    )
    aside = rows(spark, pipeline, "orders_quarantine")
    assert {bytes(row.value).decode() for row in aside} == set(bad)
    places = {(row.partition, row.offset): bytes(row.value) for row in raw}
    assert all(places[row.partition, row.offset] == row.value for row in aside)
    assert all(row.reasons for row in aside)
    assert next(row.reasons for row in aside if row.value == order(-9).encode()) == ["positive"]
    assert {row.country: row.n for row in rows(spark, pipeline, "revenue")} == {"RO": 20, "BG": 20}
    progress = {one.table: one for one in runner.progress}
    assert (progress["raw"].rows, progress["orders"].quarantined) == (45, 5)
    assert progress["orders"].reasons["positive"] == 1

    versions = {table: DeltaTable(pipeline.table_uri(table)).version() for table in ("raw", "orders", "revenue")}
    run_once(spark, pipeline)
    assert versions == {table: DeltaTable(pipeline.table_uri(table)).version() for table in versions}, "nothing is new"
    client.publish(name, order(100), key="100").raise_for_status()
    run_once(spark, pipeline)
    assert [row.id for row in rows(spark, pipeline, "orders") if row.id >= 100] == [100]
    assert sum(row.n for row in rows(spark, pipeline, "revenue")) == 41
    with pytest.raises(InvalidSettings, match=r"table raw has rows, and the checkpoint .* is gone"):
        run_once(spark, pipeline_of(node, name, tmp_path, "renamed"))


def test_s3_a_topic_without_a_schema_becomes_the_tables_that_init_writes_whatever_else_is_in_it(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    name = topic()
    client.publish_batch(name, [str(n) for n in range(100)] + [b"\xff", "{", "", None])  # as `seq 1 100` and others do
    good = [{"order": n, "shop": f"s{n % 2}", "lines": [{"id": n}]} for n in range(4)]
    client.publish_batch(name, [good[0], json.dumps(good[1]), json.dumps(good[2]).encode(), Record(good[3], key="k")])
    client.publish(name, {"order": 4, "shop": None, "Größe": 1.5, "a b": 2}).raise_for_status()
    file = tmp_path / "pipeline.toml"
    assert (
        app(["pipeline", "init", str(file), "--topic", name, "--url", node.url], result_action="return_value") is None
    )
    definition = tomllib.loads(file.read_text()) | {"tables": str(tmp_path / "tables"), "name": f"init{next(_numbers)}"}
    pipeline = parse(definition)
    (bronze, silver, gold) = (one.table for one in pipeline.all_tables)
    doing: list[str] = []
    runner = Runner(Stages(spark, pipeline), tell=lambda progress: doing.extend(str(one.doing) for one in progress))
    runner.run_once()
    assert len(rows(spark, pipeline, bronze)) == 109
    found = {row.order: row.asDict() for row in rows(spark, pipeline, silver)}
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert [json.loads(found[n]["lines"]) for n in range(4)] == [one["lines"] for one in good]
    assert (found[4]["shop"], found[4]["Größe"], found[4]["_rest"]) == (None, 1.5, '{"a b":2}')
    aside = {row.offset: row.reasons for row in rows(spark, pipeline, f"{silver}_quarantine")}
    assert sorted(aside) == list(range(104))
    assert aside[0] == ['$: 0 is not of type "object"']
    assert all(aside.values())
    assert {row.shop: row.records for row in rows(spark, pipeline, gold)} == {"s0": 2, "s1": 2, None: 1}
    assert {"starting its query", f"computing from {silver}"} <= set(doing)
    assert [one.doing for one in runner.progress] == [None] * 3


def test_s3_an_expectation_that_must_hold_ends_the_run_and_writes_nothing(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    name = topic(schema=SCHEMA)
    client.publish_batch(name, [order(1), order(-5)])
    must = [{"name": "positive", "that": "amount > 0", "otherwise": "fail"}]
    pipeline = pipeline_of(node, name, tmp_path, expect=must)
    with pytest.raises(PipelineFailed, match=r"'positive', the first is .* at offset 1"):
        run_once(spark, pipeline)
    assert not list((tmp_path / "tables" / "orders").glob("*"))
    mended = pipeline_of(node, name, tmp_path, pipeline.name, expect=[must[0] | {"otherwise": "drop"}])
    run_once(spark, mended)
    assert [row.id for row in rows(spark, mended, "orders")] == [1]


def test_s3_rows_that_are_the_same_come_once(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    name = topic(schema=SCHEMA)
    at = "2026-01-01T10:00:00Z"
    client.publish_batch(name, [order(n % 5, at=at) for n in range(20)] + ["{", "{"])
    pipeline = pipeline_of(node, name, tmp_path, deduplicate=["id"], watermark={"column": "at", "delay": "1 hour"})
    run_once(spark, pipeline)
    client.publish_batch(name, [order(n, at=at) for n in range(6)])
    run_once(spark, pipeline)
    assert sorted(row.id for row in rows(spark, pipeline, "orders")) == list(range(6))
    assert len(rows(spark, pipeline, "orders_quarantine")) == 2


def test_s7_a_pipeline_is_a_registered_reader_and_reports(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    name = topic(schema=SCHEMA)
    client.publish_batch(name, [order(n) for n in range(10)])
    pipeline = pipeline_of(node, name, tmp_path)
    runner = run_once(spark, pipeline)
    Reporter(pipeline)(runner.progress, is_last=True)
    reader = client.admin.reader(f"{pipeline.name}.raw", name)
    assert [(one.partition, one.offset) for one in reader.positions] == [(0, 10)]
    assert reader.lag == 0
    reports = [message.payload for message in client.read("/system/pipelines", follow=False)]
    mine = [report for report in reports if report["pipeline"] == pipeline.name]
    assert {table["table"] for table in mine[-1]["tables"]} == {"raw", "orders", "revenue"}


DEFINITION = """
name = "replayed"
url = "{url}"
tables = "{folder}/tables"
bronze = [{{table = "raw", topic = "{topic}"}}]
silver = [{{table = "orders", from = "raw"}}]
"""


def test_s4_a_replay_begins_at_a_moment_a_version_or_an_offset_and_may_end_at_a_version(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    name, file = topic(2, schema=SCHEMA), tmp_path / "pipeline.toml"
    file.write_text(DEFINITION.format(url=node.url, folder=tmp_path, topic=name))
    sent = [(partition, n) for n in range(0, 30, 10) for partition in range(2)]
    for partition, first in sent:  # ten records of a second in each commit
        records = [Record(order(n), timestamp_ms=MOMENT_MS + 100 * n) for n in range(first, first + 10)]
        client.publish_batch(name, records, partition=partition)
    second = client.admin.partition(name).version - 1  # of three commits

    def replayed(table: str, into: str, *words: str) -> list[int]:
        assert not app(["pipeline", "replay", table, into, str(file), *words, "--master", "local[2]"])
        found = read_delta(spark, str(tmp_path / "tables" / into)).collect()
        assert all(found.count(row) == 1 for row in found)
        column = "offset" if table == "raw" else "_offset"
        return sorted(row[column] for row in found)

    twice = [[n for n in range(30) for _ in range(2)][2 * first :] for first in (0, 10, 15, 25)]
    assert replayed("raw", "since_version", "--start", f"version:{second}") == twice[1]
    assert replayed("raw", "since_moment", "--start", f"timestamp:{MOMENT_MS + 1500}") == twice[2]
    assert replayed("orders", "silver_since_moment", "--start", "timestamp:2026-01-01T00:00:02.5Z") == twice[3]
    assert replayed("raw", "since_offset", "--start", "offset:25") == twice[3]
    then = replayed("orders", "then", "--end", f"version:{second}")
    assert then == twice[0][:40], "the table as it was"
    middle = replayed("orders", "middle", "--start", f"version:{second}", "--end", f"version:{second}")
    assert middle == twice[1][:20]
    with pytest.raises(InvalidSettings, match="already"):
        app(["pipeline", "replay", "orders", "then", str(file), "--master", "local[2]"])
    with pytest.raises(VersionNotRetained, match=f"^version 999 does not exist yet; the newest is {second + 1}$"):
        app(["pipeline", "replay", "raw", "never", str(file), "--end", "version:999", "--master", "local[2]"])
