"""What a pipeline may say, and what is told to whoever says something else."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from sulina.errors import InvalidSettings
from sulina.spark.pipeline.definition import GoldMode, Otherwise, load, parse
from sulina.spark.pipeline.stages import bronze_options

BRONZE = {"table": "raw", "topic": "/default/orders"}


def given(**more: Any) -> dict[str, Any]:
    return {"name": "shop", "url": "http://127.0.0.1:8080", "tables": "./t", "bronze": [BRONZE], **more}


def test_s3_the_example_is_a_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(files("sulina.spark.pipeline").joinpath("example.toml").read_text())
    pipeline = load(path)
    assert [one.table for one in pipeline.all_tables] == ["orders_raw", "orders", "revenue"]
    assert pipeline.silver[0].expect[0].otherwise == Otherwise.QUARANTINE
    assert pipeline.gold[0].mode == GoldMode.COMPLETE
    assert pipeline.names[-1] == "orders_quarantine"
    assert pipeline.bronze_of("orders").topic == "/default/orders"
    assert pipeline.checkpoint_root == "./tables/_checkpoints/shop"


def test_s3_a_bronze_table_may_go_on_after_records_were_lost() -> None:
    for says, option in (({}, None), ({"fail_on_data_loss": True}, None), ({"fail_on_data_loss": False}, "false")):
        pipeline = parse(given(bronze=[BRONZE | says]))
        assert bronze_options(pipeline, pipeline.bronze[0]).get("failOnDataLoss") == option


GROWS = {"table": "g", "mode": "append", "from": "raw", "watermark": {"column": "timestamp", "delay": "1 minute"}}
OTHER = [BRONZE, BRONZE | {"table": "other"}]


def gold(*tables: tuple[str, str]) -> list[dict[str, str]]:
    return [{"table": table, "sql": sql} for table, sql in tables]


def test_s3_gold_that_grows_may_name_its_source_only() -> None:
    """New rows of another table would never meet rows that were read before."""
    for sql in ("select * from raw join other using (key)", "select * from `OTHER` o join raw r on o.key = r.key"):
        with pytest.raises(InvalidSettings, match=r"reads the new rows of raw only, and its sql reads (?i:other) too"):
            parse(given(bronze=OTHER, gold=[GROWS | {"sql": sql}]))
    for sql in ("select count(*) as other from raw", "with other as (select * from raw) select * from other"):
        parse(given(bronze=OTHER, gold=[GROWS | {"sql": sql}]))


def test_s3_gold_tables_are_made_after_those_that_they_read() -> None:
    tables = gold(("a", "select * from b join c"), ("b", "select * from c"), ("c", "select * from raw"))
    pipeline = parse(given(gold=tables))
    assert [one.table for one in pipeline.complete] == ["c", "b", "a"]
    assert [one.table for one in pipeline.gold] == ["a", "b", "c"]
    circle = gold(("a", "select * from b"), ("b", "select 1 as a from raw"), ("c", "select * from raw"))
    assert [one.table for one in parse(given(gold=circle)).complete] == ["c", "b", "a"]


def test_s3_gold_may_read_what_only_spark_knows() -> None:
    pipeline = parse(given(gold=gold(("g", "select * from warehouse.customers"))))
    assert pipeline.sources_of(pipeline.gold[0]) == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"bronze": []}, "at least one bronze table"),
        ({"url": None}, "either url"),
        ({"path": "/x"}, "either url"),
        ({"colour": 1}, "unknown field `colour`"),
        ({"bronze": [{"table": "raw"}]}, "missing required field `topic` - at `bronze"),
        ({"bronze": [{"table": "Raw!", "topic": "/a/b"}]}, "'Raw!' is not a valid name"),
        ({"bronze": [{"table": "raw", "topic": "/orders"}]}, "bronze table raw"),
        ({"bronze": [BRONZE | {"start": "soon"}]}, "is not valid: use earliest"),
        ({"bronze": [BRONZE, BRONZE]}, "table raw is made twice"),
        ({"silver": [{"table": "s", "from": "nothing"}]}, "no bronze table 'nothing'"),
        ({"silver": [{"table": "s", "from": "raw", "decode": "magic"}]}, "decode is one of schema, json, raw"),
        ({"silver": [{"table": "s", "from": "raw", "decode": "json"}]}, "silver table s: there are no columns"),
        ({"silver": [{"table": "s", "from": "raw", "decode": "json", "columns": {"a": "int"}}]}, "s: column a: type"),
        ({"silver": [{"table": "s", "from": "raw", "columns": {"a": "bigint"}}]}, "columns need decode = 'json'"),
        ({"silver": [{"table": "s", "from": "raw", "deduplicate": ["id"]}]}, "needs a watermark"),
        ({"silver": [{"table": "s", "from": "raw", "quarantine": "raw"}]}, "made twice"),
        ({"silver": [{"table": "s", "from": "raw", "expect": [{"name": "x", "that": "y", "otherwise": 1}]}]}, "otherw"),
        ({"gold": [{"table": "g", "sql": "select 1", "mode": "append"}]}, "needs from"),
        ({"gold": [{"table": "g", "sql": "select 1", "from": "nothing"}]}, "no table 'nothing'"),
        ({"trigger_seconds": 0}, "trigger_seconds"),
        ({"gold": [{"table": "g", "sql": "select * from rw"}]}, "no table of the pipeline, but rw; did you mean raw"),
        ({"bronze": [BRONZE | {"strat": "latest"}]}, "unknown field `strat`.*did you mean start?"),
        ({"silver": [{"table": "s", "from": "rwa"}]}, "no bronze table 'rwa'; did you mean raw?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        parse({key: value for key, value in given(**more).items() if value is not None})


def test_a_file_that_is_not_a_definition_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="cannot be read"):
        load(tmp_path / "nothing.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(InvalidSettings, match="is not TOML"):
        load(tmp_path / "bad.toml")
