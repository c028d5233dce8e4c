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
from sulina.spark.delta_table import WriteTo, commit
from sulina.spark.errors import PipelineFailed
from sulina.spark.pipeline.checks import check
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
