"""`readStream` and `writeStream` with topics: S1, S2, on a real session and a real node."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sulina.client import SyncClient
from sulina.spark.log_catalogue import SMALL_BYTES
from tests.spark.test_data_source import fill, read, values
from tests.spark.test_scan import half_archived
from tests.support.serving import Serving

Topic = Callable[..., str]


def stream(spark: SparkSession, topic: str, url: str, **options: Any) -> DataFrame:
    given = {"start": "earliest"} | {name: str(value) for name, value in options.items()}
    return spark.readStream.format("sulina").options(topic=topic, url=url, **given).load()


def run_once(frame: DataFrame, checkpoint: Path, sink: str, **options: str) -> list[dict[str, Any]]:
    """All that is there now; what the query reported of each batch."""
    started = (
        frame.writeStream.format(sink)
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert started.awaitTermination(120), "it does not end"
    return [json.loads(progress.json) for progress in started.recentProgress]


def test_s1_a_stream_reads_what_comes_and_goes_on_where_it_was(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    source, target = topic(2), topic()
    fill(client, source, 40)
    columns = stream(spark, source, node.url).select("key", "value", "headers", "timestamp")
    reports = run_once(columns, tmp_path, "sulina", url=node.url, topic=target)
    assert sum(report["numInputRows"] for report in reports) == 40
    run_once(columns, tmp_path, "sulina", url=node.url, topic=target)
    assert client.admin.partition(target).end_offset == 40, "nothing has come since"
    fill(client, source, 10, start=40)
    run_once(columns, tmp_path, "sulina", url=node.url, topic=target)
    rows = read(spark, target, url=node.url).collect()
    assert sorted(int(row.value[1:]) for row in rows) == list(range(50))
    assert {(bytes(row.key), bytes(row.value)) for row in rows} == {(b"k%d" % n, b"v%d" % n) for n in range(50)}
    assert all(dict(row.headers)["n"] == b"%d" % int(row.value[1:]) for row in rows)


def test_s1_a_table_and_a_stream_have_the_archive_and_the_hot_tail_each_offset_once(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    """What is archived is more than an owner is asked for; the newest records only the owner has."""
    name, archived = half_archived(client, topic, value_bytes=SMALL_BYTES // 60)
    info = client.admin.partition(name)
    assert archived == info.archived_offset == info.end_offset - 12
    table = read(spark, name, url=node.url, columns="offset")
    assert sorted(row.offset for row in table.collect()) == list(range(info.end_offset))
    run_once(stream(spark, name, node.url, columns="offset"), tmp_path, "memory", queryName="hot_tail")
    assert sorted(row.offset for row in spark.table("hot_tail").collect()) == list(range(info.end_offset))


def test_s2_a_batch_that_is_replayed_adds_nothing(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    """As after a crash of the driver: the sink has the batch, Spark's checkpoint does not know it."""
    source, target = topic(2), topic(3)
    fill(client, source, 60)
    columns = stream(spark, source, node.url).select("key", "value")
    run_once(columns, tmp_path, "sulina", url=node.url, topic=target)
    for commit in (tmp_path / "commits").iterdir():
        if commit.name.lstrip(".").startswith("0"):
            commit.unlink()
    reports = run_once(columns, tmp_path, "sulina", url=node.url, topic=target)
    assert sum(report["numInputRows"] for report in reports) == 60, "it was read again"
    rows = read(spark, target, url=node.url).collect()
    assert sorted(row.value for row in rows) == sorted(b"v%d" % n for n in range(60))


def test_s2_rows_with_keys_go_where_every_client_sends_them(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic
) -> None:
    by_client, by_spark = topic(5), topic(5)
    fill(client, by_client, 100)
    read(spark, by_client, url=node.url).select("key", "value").write.format("sulina").mode("append").options(
        url=node.url, topic=by_spark
    ).save()
    placed = [
        {bytes(row.key): row.partition for row in read(spark, name, url=node.url).collect()}
        for name in (by_client, by_spark)
    ]
    assert placed[0] == placed[1]
    assert len(placed[0]) == 100


def test_s2_a_write_with_a_txn_is_written_once(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic
) -> None:
    name = topic()
    frame = spark.range(30).selectExpr("cast(id as string) as value", "'all' as key")
    for _ in range(2):
        frame.write.format("sulina").mode("append").options(url=node.url, topic=name, txn="import-7").save()
    assert sorted(values(read(spark, name, url=node.url)), key=int) == [str(n) for n in range(30)]


def test_s1_a_limit_divides_what_is_read_into_batches(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    """S10: and with a name, its position follows; the last batch is told when the next one is planned."""
    source = topic(2)
    fill(client, source, 100)
    reports = run_once(stream(spark, source, node.url, maxRowsPerTrigger=30, reader="limited"), tmp_path, "noop")
    rows = [report["numInputRows"] for report in reports if report["numInputRows"]]
    assert sum(rows) == 100
    assert max(rows) <= 30
    last = [report for report in reports if report["numInputRows"]][-1]["sources"][0]["endOffset"]
    ends = (json.loads(last) if isinstance(last, str) else last)[source].values()
    assert sum(int(str(end).partition("@")[0]) for end in ends) == 100
    registered = sum(one.offset for one in client.admin.reader("limited", source).positions)
    assert 100 - rows[-1] <= registered <= 100


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        ("select 1 as value, 2 as colour", {}, "colour"),
        ("select 'x' as key", {}, "column value"),
        ("select 'x' as value, '/default/t' as topic", {}, "exactly one of them is needed"),
        ("select 'x' as value, 99 as partition", {}, "partitions"),
    ],
)
def test_rows_that_are_no_records_are_refused(
    spark: SparkSession, node: Serving, topic: Topic, frame: str, options: dict[str, str], message: str
) -> None:
    name = topic()
    with pytest.raises(PySparkException, match=message):
        spark.sql(frame).write.format("sulina").mode("append").options(url=node.url, topic=name, **options).save()


def test_a_topic_is_not_overwritten(spark: SparkSession, node: Serving, topic: Topic) -> None:
    with pytest.raises(PySparkException, match="mode append"):
        spark.sql("select 'x' as value").write.format("sulina").mode("overwrite").options(
            url=node.url, topic=topic()
        ).save()


def test_p11_a_string_that_spark_writes_is_text_to_every_reader_and_bytes_are_bytes(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    first, second = topic(), topic()
    client.publish(first, "published").raise_for_status()

    def write(query: str) -> None:
        rows = spark.sql(query).coalesce(1)
        rows.write.format("sulina").mode("append").options(url=node.url, topic=first).save()

    header = "array(named_struct('key', '{}', 'value', cast('{}' as binary))) as headers"
    write("select 'text' as value union all select null")
    write("select cast('bytes' as binary) as value")
    write(f"select 'own header' as value, {header.format('n', '7')}")
    write(f"select '[1, 2]' as value, {header.format('sulina-serializer', '2')}")
    payloads = ["published", "text", None, b"bytes", "own header", [1, 2]]
    messages = list(client.read(first, follow=False))
    assert [message.payload for message in messages] == payloads
    assert ("n", b"7") in messages[4].headers
    expected = [bytes(message.value) if message.value is not None else None for message in messages]
    assert [row.value for row in read(spark, first, url=node.url).orderBy("offset").collect()] == expected
    again = stream(spark, first, node.url).select("headers", "value")
    run_once(again, tmp_path, "sulina", url=node.url, topic=second)
    assert [message.payload for message in client.read(second, follow=False)] == payloads
