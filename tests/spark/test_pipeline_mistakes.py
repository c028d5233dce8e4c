"""Mistakes in the SQL of a pipeline: one sentence that names pipeline, table and column, before a row is read."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sulina.client import SyncClient
from sulina.errors import InvalidSettings
from sulina.spark.delta_native import read_delta
from sulina.spark.delta_table import WriteTo, commit
from sulina.spark.errors import PipelineFailed
from sulina.spark.pipeline.checks import check, check_table
from sulina.spark.pipeline.definition import parse
from sulina.spark.pipeline.runner import run_pipeline
from sulina.spark.pipeline.stages import Stages
from tests.support.serving import Serving

SCHEMA = {
    "kind": "json",
    "definition": {"type": "object", "properties": {"country": {"type": "string"}, "amount": {"type": "number"}}},
}
GOOD = "select country, sum(amount) as revenue from orders group by country"
_numbers = itertools.count()


@pytest.fixture
def shop(node: Serving, topic: Callable[..., str], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Makes the definition of a pipeline; its topic has a record."""
    name = topic(schema=SCHEMA)

    def make(sql: str = GOOD, *, that: str = "amount > 0", silver_sql: str | None = None) -> dict[str, Any]:
        silver = {"table": "orders", "from": "raw", "expect": [{"name": "positive", "that": that}]}
        return {
            "name": f"mistaken{next(_numbers)}",
            "url": node.url,
            "tables": str(tmp_path / "tables"),
            "bronze": [{"table": "raw", "topic": name}],
            "silver": [silver | ({"sql": silver_sql} if silver_sql else {})],
            "gold": [{"table": "revenue", "sql": sql}],
        }

    return make


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"that": "amuont > 0"}, "table orders: there is no column amuont; did you mean amount?"),
        ({"silver_sql": "select contry from input"}, "table orders: there is no column contry; did you mean country?"),
        (
            {"sql": GOOD.replace("sum(amount)", "sum(amuont)")},
            "table revenue: there is no column amuont; did you mean amount?",
        ),
        (
            {"sql": "select * from orders join rwa using (_offset)"},
            "table revenue: there is no table rwa; did you mean raw?",
        ),
        ({"sql": GOOD.replace("sum(", "summ(")}, "table revenue: there is no function summ"),
        ({"sql": GOOD.replace("select", "selct")}, "table revenue: Syntax error at or near 'selct'"),
    ],
)
def test_s3_a_mistake_in_sql_is_one_sentence_before_a_row_is_read(
    spark: SparkSession, shop: Callable[..., dict[str, Any]], tmp_path: Path, change: dict[str, str], told: str
) -> None:
    pipeline = shop(**change)
    with pytest.raises(PipelineFailed) as failed:
        run_pipeline(pipeline, spark)
    assert str(failed.value).startswith(f"pipeline {pipeline['name']}: {told}")
    assert len(str(failed.value).splitlines()) == 1
    assert not (tmp_path / "tables").exists(), "nothing was made"


def test_s3_topics_and_columns_are_checked_without_spark(shop: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    def told(pipeline: dict[str, Any]) -> str:
        with pytest.raises(InvalidSettings) as refused:
            check(parse(pipeline))
        return str(refused.value)

    pipeline = shop()
    check(parse(pipeline))
    right = pipeline["bronze"][0]["topic"]
    pipeline["bronze"][0]["topic"] = f"{right}-"
    assert f"bronze table raw: there is no topic {right}-; did you mean " in told(pipeline)
    pipeline["bronze"][0]["topic"] = right
    pipeline["silver"][0]["partition_by"] = ["contry"]
    assert "silver table orders: partition_by names column 'contry'" in told(pipeline)
    pipeline["silver"][0]["partition_by"] = ["Country", "_partition"]
    check(parse(pipeline))
    (tmp_path / "tables").write_text("")
    assert "tables is a file" in told(pipeline)


def test_s3_a_column_of_an_earlier_definition_may_still_be_asked_for(
    spark: SparkSession, shop: Callable[..., dict[str, Any]]
) -> None:
    """The table still has the column, so a query of it is no mistake."""
    stages = Stages(spark, parse(shop("select place, count(*) as orders from orders group by place")))
    with pytest.raises(PipelineFailed, match="there is no column place"):
        stages.check_queries()
    commit(WriteTo(location=stages.location("orders"), schema=StructType().add("place", "string")), [])
    stages.check_queries()


def test_s3_two_pipelines_in_one_folder_are_told_before_a_row_is_read(
    spark: SparkSession, shop: Callable[..., dict[str, Any]], client: SyncClient
) -> None:
    pipeline = shop()
    client.publish(pipeline["bronze"][0]["topic"], {"country": "ro", "amount": 1.5}).raise_for_status()
    run_pipeline(pipeline, spark)
    with pytest.raises(InvalidSettings, match=r"table raw has rows, .* of a pipeline with another name"):
        run_pipeline(pipeline | {"name": "another"}, spark)
    check_table(parse(pipeline | {"name": "another"}), "raw", is_log_read=True)  # a replay needs no checkpoint


def test_s3_gold_reads_the_pipelines_tables_in_any_order_and_views_of_the_user_stay_theirs(
    spark: SparkSession, shop: Callable[..., dict[str, Any]], client: SyncClient
) -> None:
    pipeline = shop(silver_sql="select country, amount * 2 as amount from input")
    client.publish(pipeline["bronze"][0]["topic"], {"country": "ro", "amount": 1.5}).raise_for_status()
    pipeline["gold"] = [
        {"table": "first", "sql": "select country, revenue * rate as leu from revenue join rates using (country)"},
        *pipeline["gold"],
        {"table": "fares", "sql": "select max(rate) as highest from rates"},
    ]
    views = {name: spark.sql(f"select 'ro' as country, 5 as rate, '{name}' as mine") for name in ("orders", "input")}
    views["rates"] = spark.sql("select 'ro' as country, 5 as rate")
    for name, view in views.items():
        view.createOrReplaceTempView(name)
    try:
        for _ in range(2):  # the second run finds nothing new
            run_pipeline(pipeline, spark)
            for table, expected in (("revenue", ("ro", 3.0)), ("first", ("ro", 15.0)), ("fares", (5,))):
                found = read_delta(spark, f"{pipeline['tables']}/{table}").collect()
                assert [tuple(row) for row in found] == [expected], table
            for name, view in views.items():
                assert spark.table(name).collect() == view.collect(), "the view is as it was"
            assert not spark.catalog.tableExists("revenue"), "no view is left in the session of the user"
    finally:
        for name in views:
            spark.catalog.dropTempView(name)


def test_s3_gold_that_grows_is_never_joined_with_an_empty_table(
    spark: SparkSession, shop: Callable[..., dict[str, Any]]
) -> None:
    pipeline = shop()
    grows = {"mode": "append", "from": "orders", "watermark": {"column": "_timestamp", "delay": "1 minute"}}
    pipeline["gold"].append(
        {"table": "large", "sql": "select orders.* from orders, raw where offset = _offset", **grows}
    )
    stages = Stages(spark, parse(pipeline))
    with pytest.raises(PipelineFailed, match="table large: there is no table raw"):
        stages.check_queries()
    pipeline["gold"][-1]["sql"] = "select * from orders where amount > 9"
    stages = Stages(spark, parse(pipeline))
    stages.check_queries()
    left = [name for name in stages.pipeline.names if stages.spark.catalog.tableExists(name)]
    assert left == [], "a table without rows is not taken for a table of the pipeline later"


def test_s3_a_repair_of_one_table_needs_nothing_of_the_others(
    shop: Callable[..., dict[str, Any]],
) -> None:
    pipeline = shop()
    pipeline["bronze"].append({"table": "visits_raw", "topic": "/default/deleted"})
    pipeline["silver"].append({"table": "visits", "from": "visits_raw", "decode": "raw"})
    given = parse(pipeline)
    with pytest.raises(InvalidSettings, match="there is no topic /default/deleted"):
        check(given)
    for table in ("raw", "orders", "revenue"):
        check_table(given, table, is_log_read=True)
    check_table(given, "visits", is_log_read=False)
    for table in ("visits_raw", "visits"):
        with pytest.raises(InvalidSettings, match="there is no topic /default/deleted"):
            check_table(given, table, is_log_read=True)
