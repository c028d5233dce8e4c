"""`format("sulina")` for reading: S1, on a real session, from a real node, its archive and its data directory."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sulina.client import Record, SyncClient
from sulina.core.log.commit import Add
from sulina.spark.schema import RAW_COLUMNS
from tests.support.serving import Serving

Topic = Callable[..., str]


def fill(client: SyncClient, topic: str, count: int, *, per_batch: int = 10, start: int = 0) -> None:
    """Records with keys k0, k1, … in batches."""
    for first in range(start, start + count, per_batch):
        numbers = range(first, min(first + per_batch, start + count))
        client.publish_batch(topic, [Record(f"v{n}", key=f"k{n}", headers={"n": str(n)}) for n in numbers], split=True)


def read(spark: SparkSession, topic: str, **options: Any) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("sulina").option("topic", topic).options(**given).load()


def values(frame: DataFrame) -> list[str]:
    return [row[0].decode() for row in frame.orderBy("partition", "offset").select("value").collect()]


def test_s1_a_topic_is_a_table_with_all_that_a_record_has(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic
) -> None:
    name = topic()
    fill(client, name, 25)
    frame = read(spark, name, url=node.url)
    assert frame.columns == list(RAW_COLUMNS)
    rows = frame.orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(25))
    assert [bytes(row.value) for row in rows] == [b"v%d" % n for n in range(25)]
    assert [bytes(row.key) for row in rows] == [b"k%d" % n for n in range(25)]
    assert {(row.namespace, row.topic, row.partition) for row in rows} == {("default", name.split("/")[2], 0)}
    headers = [{h.key: bytes(h.value) for h in row.headers} for row in rows]
    assert headers == [{"sulina-serializer": b"1", "n": b"%d" % n} for n in range(25)]
    commits = client.admin.commits(name, start=0, end=client.admin.partition(name).version + 1)
    added = [(commit.version, one) for commit in commits for one in commit.operations if isinstance(one, Add)]
    by_offset = {offset: version for version, one in added for offset in range(one.offset_start, one.offset_end)}
    assert [row.version for row in rows] == [by_offset[n] for n in range(25)]
    assert all(abs(row.timestamp.timestamp() - time.time()) < 3600 for row in rows)
    assert all(row.origin is not None for row in rows)  # the client's own: it publishes under one


def test_s1_partitions_are_read_side_by_side_and_each_record_once(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic
) -> None:
    name = topic(4)
    fill(client, name, 400, per_batch=50)
    frame = read(spark, name, url=node.url, minPartitions=6)
    assert frame.rdd.getNumPartitions() >= 4
    assert frame.count() == 400
    assert frame.select("value").distinct().count() == 400


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(100)),
        ({"start": "latest"}, range(0)),
        ({"start": '{"TOPIC": {"0": 40}}'}, range(40, 100)),
        ({"end": '{"TOPIC": {"0": 40}}'}, range(40)),
        ({"start": "offset:35", "end": "offset:36"}, range(35, 36)),
        ({"start": "version:3"}, range(20, 100)),
        ({"end": "version:3"}, range(30)),
        ({"start": "timestamp:2020-01-01T00:00:00Z"}, range(100)),
        ({"start": "timestamp:2100-01-01T00:00:00Z"}, range(0)),
    ],
)
def test_s1_a_scan_begins_and_ends_where_it_is_told(
    spark: SparkSession,
    client: SyncClient,
    node: Serving,
    topic: Topic,
    options: dict[str, str],
    expected: range,
) -> None:
    name = topic()
    fill(client, name, 100)
    given = {key: value.replace("TOPIC", name) for key, value in options.items()}
    assert values(read(spark, name, url=node.url, **given)) == [f"v{n}" for n in expected]


def test_s1_several_topics_and_patterns_are_one_table(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic
) -> None:
    first, second = topic(), topic(2)
    fill(client, first, 10)
    fill(client, second, 10)
    frame = read(spark, f"{first}, {second}", url=node.url)
    counts = {(row.topic, row.partition): row["count"] for row in frame.groupBy("topic", "partition").count().collect()}
    assert sum(counts.values()) == 20
    assert {name for name, _ in counts} == {first.split("/")[2], second.split("/")[2]}
    some = read(spark, first[:-1] + "*", url=node.url).filter(F.col("topic") == first.split("/")[2])
    assert some.count() == 10


def test_s1_filters_and_columns_decide_what_is_read(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic
) -> None:
    name = topic(2)
    for partition in range(2):
        client.publish_batch(name, [f"{partition}-{n}" for n in range(50)], partition=partition)
    frame = read(spark, name, url=node.url, columns="offset,partition,value")
    assert frame.columns == ["offset", "partition", "value"]
    some = frame.filter("partition = 1 and offset >= 10 and offset < 20")
    assert [row.value.decode() for row in some.orderBy("offset").collect()] == [f"1-{n}" for n in range(10, 20)]
    whole = read(spark, name, url=node.url)
    assert whole.filter("timestamp >= '2100-01-01'").count() == 0
    assert whole.filter("version <= 1").count() == 100 == whole.filter("version >= 1").count()
    assert whole.filter("partition in (0, 7)").count() == 50


def test_s1_the_archive_and_the_data_directory_are_read_without_a_broker(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic
) -> None:
    """Hot tail and archive are one: what is asked for is read once, wherever it is."""
    name = topic(policy={"ack": "archived"})
    fill(client, name, 60, per_batch=20)
    expected = [f"v{n}" for n in range(60)]
    archive = f"file://{node.data.parent}/objects"
    assert values(read(spark, name, path=archive)) == expected
    assert values(read(spark, name, path=str(node.data))) == expected
    for options in ({"start": "version:2"}, {"start": "offset:20"}):
        assert values(read(spark, name, path=archive, **options)) == expected[20:]
        assert values(read(spark, name, path=str(node.data), **options)) == expected[20:]
    versions = [row.version for row in read(spark, name, path=archive).orderBy("offset").collect()]
    assert versions == [row.version for row in read(spark, name, path=str(node.data)).orderBy("offset").collect()]
    assert versions == [row.version for row in read(spark, name, url=node.url).orderBy("offset").collect()]
    moment = read(spark, name, path=archive, start="timestamp:2020-01-01T00:00:00Z")
    assert moment.count() == 60


def test_s3_values_become_columns_by_the_schema_of_their_topic(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic
) -> None:
    definition = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    name = topic(schema={"kind": "json", "definition": definition})
    client.publish_batch(name, ['{"id": 1}', "{", '{"id": 2}'])
    rows = read(spark, name, url=node.url, decode="schema", columns="offset").orderBy("offset").collect()
    assert [row.data and row.data.id for row in rows] == [1, None, 2]
    assert [row.error is None for row in rows] == [True, False, True]
    kept = read(spark, name, url=node.url, decode="schema", mode="quarantine").orderBy("offset").collect()
    assert [row.value for row in kept] == [None, b"{", None]
    with pytest.raises(PySparkException, match="record 1 does not fit"):
        read(spark, name, url=node.url, decode="schema", mode="failfast").collect()
    with pytest.raises(PySparkException, match="has no schema"):
        read(spark, topic(), url=node.url, decode="schema")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "set either option url"),
        ({"url": "http://127.0.0.1:1", "path": "/x"}, "set either option url"),
        ({"url": "URL", "strat": "earliest"}, "did you mean start"),
        ({"url": "URL", "start": "yesterday"}, "is not valid: use earliest, latest"),
        ({"url": "URL", "columns": "ofset"}, "'ofset' is unknown; the columns are namespace"),
        ({"url": "URL", "topic": "/default/nobody-made-it"}, "there is no topic"),
        ({"url": "URL", "topic": "or ders"}, "or ders"),
        ({"url": "URL", "start": "offset:999"}, "999"),
    ],
)
def test_bad_options_are_told_at_once(
    spark: SparkSession, node: Serving, topic: Topic, options: dict[str, str], message: str
) -> None:
    given = {"topic": topic()} | {key: value.replace("URL", node.url) for key, value in options.items()}
    with pytest.raises(PySparkException, match=message):
        spark.read.format("sulina").options(**given).load().collect()
