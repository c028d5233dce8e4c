"""The definition that is written first: it can be read again, and says what it was made from."""

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sulina.core.topic import BYTES_SCHEMA, Schema, SchemaKind
from sulina.errors import InvalidSettings
from sulina.spark.pipeline.definition import Pipeline, parse
from sulina.spark.pipeline.first_definition import NodeSample, TopicSample, first_definition, table_name
from sulina.types import TopicName

URL = "http://127.0.0.1:8080"
ORDERS = TopicName("default", "orders")
topics = st.builds(
    TopicName,
    st.sampled_from(["default", "shop", "x-1"]),
    st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,100}", fullmatch=True)
    | st.sampled_from(["orders", "orders_raw", "orders.raw", "orders_quarantine", "select", "country", "9"]),
)
columns = st.sampled_from(["country", "select", "hour", "records", "a b", "größe"])
values = st.lists(st.dictionaries(columns, st.sampled_from(["RO", "BG", 1]), max_size=4).map(json.dumps), max_size=12)


def sample(name: TopicName = ORDERS, *given: object, schema: Schema = BYTES_SCHEMA, **more: Any) -> TopicSample:
    return TopicSample(name, schema, [json.dumps(value).encode() for value in given], **more)


def written(*topics: TopicSample, **more: Any) -> tuple[str, Pipeline]:
    text = first_definition(NodeSample(list(topics), **more), url=URL, name="shop")
    return text, parse(tomllib.loads(text))


@given(st.dictionaries(topics, values, min_size=1, max_size=6))
def test_s3_what_is_written_is_a_definition_with_every_topic(given: dict[TopicName, list[str]]) -> None:
    found = [TopicSample(name, BYTES_SCHEMA, [one.encode() for one in some]) for name, some in given.items()]
    _, pipeline = written(*found)
    assert {one.topic for one in pipeline.bronze} == {str(name) for name in given}
    assert all(one.columns for one in pipeline.silver)
    assert len(pipeline.gold) == 1


def test_s3_values_that_are_objects_have_a_silver_table_with_their_columns() -> None:
    text, pipeline = written(sample(ORDERS, *range(50), {"order": 0}, {"order": 1.5, "at": "2026-01-01", "a b": 1}))
    (silver,) = pipeline.silver
    assert (silver.table, silver.source, silver.decode) == ("orders", "orders_raw", "json")
    assert silver.columns == {"order": "double", "at": "date"}
    assert "Found in 2 of 52 values" in text
    assert "Only in _rest: a b" in text
    assert "date_trunc('hour', _timestamp) as hour" in pipeline.gold[0].sql


def test_s3_a_gold_table_counts_by_a_column_with_few_values() -> None:
    rows = [{"order": n, "shop": f"s{n % 3}"} for n in range(30)]
    _, pipeline = written(sample(TopicName("default", "other"), 1), sample(ORDERS, *rows))
    (gold,) = pipeline.gold
    assert gold.table == "orders_by_shop"
    assert gold.sql == "select shop, count(*) as records from orders group by 1"


def test_s3_a_topic_with_a_schema_is_decoded_by_it_and_one_without_objects_is_bronze_alone() -> None:
    json_schema = Schema(kind=SchemaKind.JSON, definition={"type": "object", "properties": {"id": {"type": "integer"}}})
    no_columns = Schema(kind=SchemaKind.JSON, definition={"properties": {"a": {}, "A": {}}})
    text, pipeline = written(
        sample(TopicName("default", "lines"), "a", 1),
        sample(TopicName("default", "empty")),
        sample(TopicName("default", "gone"), trouble="the topic cannot be looked at: it is\nclosed"),
        sample(TopicName("default", "odd"), schema=no_columns),
        sample(schema=json_schema),
        best_effort=[TopicName("default", "ticks")],
        beyond=[TopicName("default", f"t{n}") for n in range(30)],
    )
    assert len(pipeline.bronze) == 5
    assert [(one.table, one.decode) for one in pipeline.silver] == [("orders", "schema")]
    assert "none of 2 values is a JSON object" in text
    assert "it has no records" in text
    assert "# No silver table: the topic cannot be looked at: it is closed" in text
    assert "are one to Spark" in text
    assert "best-effort topics store no records: /default/ticks" in text
    assert "/default/t9 and 20 more" in text


def test_without_a_silver_table_records_are_counted() -> None:
    _, pipeline = written(sample(ORDERS, 1, 2))
    assert pipeline.gold[0].sql == (
        "select date_trunc('hour', timestamp) as hour, count(*) as records from orders_raw group by 1"
    )


def test_a_node_without_topics_is_an_error_that_says_so() -> None:
    with pytest.raises(InvalidSettings, match=f"the node at {URL} has no topic to make tables of$"):
        written()
    with pytest.raises(InvalidSettings, match="only best-effort ones, which store no records: /default/ticks"):
        written(best_effort=[TopicName("default", "ticks")])


def test_names_of_tables_are_like_the_texts_that_they_come_from() -> None:
    expected = {"Orders.v2": "orders_v2", "9-lives": "t_9_lives", "--": "t", "ä" * 3: "t", "x" * 90: "x" * 40}
    assert {text: table_name(text) for text in expected} == expected
