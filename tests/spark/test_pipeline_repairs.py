"""Bad records, and tables that are repaired while their stream runs: S3, S4, on a real session and a real node."""

import base64
import io
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from sulina.client import Record, SyncClient
from sulina.core.topic import Schema
from sulina.errors import InvalidSettings
from sulina.spark.delta_native import read_delta
from sulina.spark.errors import BatchUnfinished, ExpectationFailed
from sulina.spark.pipeline import checkpoints
from sulina.spark.pipeline.checkpoints import QueryCheckpoint
from sulina.spark.pipeline.definition import Pipeline, parse
from sulina.spark.pipeline.replaying import Repair, Retried, backfill, retry
from sulina.spark.pipeline.runner import Runner
from sulina.spark.pipeline.silver import KEPT_COLUMNS, NO_VALUE, arrow_decoder
from sulina.spark.pipeline.stages import Stages
from sulina.spark.value_schemas import arrow_schema
from tests.spark.test_pipeline import SCHEMA, order, rows, run_once
from tests.support.serving import Serving

Topic = Callable[..., str]
TIMEOUT_SECONDS = 90.0
BEFORE = 60  # records that are there when a stream begins
POSITIVE = {"name": "positive", "that": "amount > 0"}
_numbers = itertools.count()


def pipeline_of(
    node: Serving, topic: str, folder: Path, name: str | None = None, *, start: str = "earliest", **silver: Any
) -> Pipeline:
    return parse(
        {
            "name": name or f"repairs{next(_numbers)}",
            "url": node.url,
            "tables": str(folder / "tables"),
            "trigger_seconds": 0.5,
            "progress_topic": None,
            "bronze": [{"table": "raw", "topic": topic, "start": start}],
            "silver": [{"table": "orders", "from": "raw", **silver}],
        }
    )


def offsets(spark: SparkSession, pipeline: Pipeline, table: str, mark: str = "") -> list[tuple[int, int]]:
    found = read_delta(spark, pipeline.table_uri(table)).select(f"{mark}partition", f"{mark}offset").collect()
    return sorted((row[0], row[1]) for row in found)


def check_put_aside(
    spark: SparkSession, pipeline: Pipeline, topic: str, sent: list[tuple[bytes | None, str | None]]
) -> None:
    """Records with the reason that each is put aside for, None for those that are good: all are where they belong."""
    aside = {row.offset: row for row in rows(spark, pipeline, "orders_quarantine")}
    bad = {offset: said for offset, said in enumerate(sent) if said[1] is not None}
    assert {offset: row.reasons for offset, row in aside.items()} == {offset: [why] for offset, (_, why) in bad.items()}
    for offset, row in aside.items():
        assert (f"/{row.namespace}/{row.topic}", row.partition) == (topic, 0)
        assert (row.key, row.value) == (f"k{offset}".encode(), bad[offset][0])
        assert row.quarantined_at >= row.timestamp
    assert offsets(spark, pipeline, "orders", "_") == [(0, n) for n in range(len(sent)) if n not in bad]
    assert len(rows(spark, pipeline, "orders_quarantine")) == len(bad)


def publish(client: SyncClient, topic: str, sent: list[tuple[bytes | None, str | None]]) -> None:
    client.publish_batch(topic, [Record(value, key=f"k{n}") for n, (value, _) in enumerate(sent)], split=True)


def test_s3_bad_json_is_put_aside_with_its_offset_its_bytes_and_a_reason(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    whole = order(1).encode()
    sent = [
        (whole, None),
        (b"not json", "JSON is malformed: invalid character (byte 4)"),
        (whole[:-5], "Input data was truncated"),
        (b"", "Input data was truncated"),
        (whole + b"}", "JSON is malformed: trailing characters (byte 42)"),
        (b"\xff\xfe{}", "JSON is malformed: invalid character (byte 0)"),
        (b'{"id": "x", "country": "RO", "amount": 1}', '$.id: "x" is not of type "integer"'),
        (b'{"id": 1, "country": "RO"}', '$: "amount" is a required property'),
        (order(2, colour="red").encode(), "$: Additional properties are not allowed ('colour' was unexpected)"),
        (b"[1, 2]", '$: [1,2] is not of type "object"'),
        (b"null", '$: null is not of type "object"'),
        (None, NO_VALUE),
        (order(-9).encode(), "positive"),
        (order(3).encode(), None),
    ]
    name = topic(schema=SCHEMA)
    publish(client, name, sent)
    pipeline = pipeline_of(node, name, tmp_path, expect=[POSITIVE])
    run_once(spark, pipeline)
    check_put_aside(spark, pipeline, name, sent)


AVRO = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "country", "type": "string"},
        {"name": "paid", "type": "boolean"},
    ],
}


def avro(number: int, country: str = "RO") -> bytes:
    made = io.BytesIO()
    fastavro.schemaless_writer(made, AVRO, {"id": number, "country": country, "paid": True})
    return made.getvalue()


def test_s3_bad_avro_is_put_aside_with_its_offset_its_bytes_and_a_reason(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    sent = [
        (avro(1), None),
        (b"", "id: 1 bytes are expected, 0 are left"),
        (avro(2)[:-1], "paid: 1 bytes are expected, 0 are left"),
        (avro(2)[:2], "country: 2 bytes are expected, 0 are left"),
        (avro(3) + b"\x00\x00", "2 bytes are left over after the datum"),
        (avro(4)[:-1] + b"\x07", "paid: 7 is neither false nor true"),
        (avro(5, "??").replace(b"??", b"\xff\xff"), "country: is not UTF-8"),
        (b"\xff" * 12, "id: is a number of more than 64 bits"),
        (order(6).encode(), "paid: 58 is neither false nor true"),
        (None, NO_VALUE),
        (avro(7), None),
    ]
    name = topic(schema={"kind": "avro", "definition": AVRO})
    publish(client, name, sent)
    pipeline = pipeline_of(node, name, tmp_path)
    run_once(spark, pipeline)
    check_put_aside(spark, pipeline, name, sent)


def test_s3_values_of_arrow_become_their_rows_and_bad_ones_a_reason() -> None:
    columns = pa.schema([pa.field("id", pa.int64())])
    definition = base64.b64encode(columns.serialize().to_pybytes()).decode()
    schema = msgspec.convert({"kind": "arrow", "definition": definition}, Schema)

    def stream(ids: list[int]) -> bytes:
        made = pa.BufferOutputStream()
        with pa.ipc.new_stream(made, columns) as writer:
            writer.write_table(pa.table({"id": pa.array(ids, pa.int64())}, columns))
        return bytes(made.getvalue())

    values = [stream([1, 2]), stream([]), b"no arrow", stream([3])[:40], None, stream([3])]
    numbers = pa.array(range(len(values)), pa.int64())
    given = {name: pa.nulls(len(values)) for name in KEPT_COLUMNS} | {
        "offset": numbers,
        "value": pa.array(values, pa.binary()),
    }
    (found,) = arrow_decoder(schema, arrow_schema(schema))(iter([pa.RecordBatch.from_pydict(given)]))
    read = [(row["_offset"], row["id"], row["_error"]) for row in found.to_pylist()]
    assert [(offset, number) for offset, number, error in read if error is None] == [(0, 1), (0, 2), (5, 3)]
    said = {offset: error for offset, _, error in read if error is not None}
    assert list(said) == [2, 3, 4], "a value without rows has none, and is no bad one"
    assert said[2].startswith("not an IPC stream: ")
    assert said[3].startswith("not an IPC stream: ")
    assert said[4] == NO_VALUE


# After a fix


LENIENT = """
select cast(get_json_object(text, '$.id') as bigint) as id, get_json_object(text, '$.country') as country,
       cast(get_json_object(text, '$.amount') as double) as amount, _partition, _offset
from (select *, cast(value as string) as text from input) where get_json_object(text, '$.id') > 0
"""


def test_s3_what_was_put_aside_comes_into_the_table_once_after_a_fix(
    spark: SparkSession,
    client: SyncClient,
    node: Serving,
    topic: Topic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = topic(schema=SCHEMA)
    unfit = ['{"id": "5", "country": "RO", "amount": 6}', "{", order(-8)]
    client.publish_batch(name, [*(order(n) for n in range(5)), *unfit])
    strict = pipeline_of(node, name, tmp_path, expect=[{"name": "dear", "that": "amount > 3"}])
    run_once(spark, strict)
    assert sorted(row.id for row in rows(spark, strict, "orders")) == [3, 4]

    mended = pipeline_of(node, name, tmp_path, strict.name, expect=[POSITIVE])
    stages, others = Stages(spark, mended), []

    def overtaken(repair: Repair, *args: Any) -> bool:
        monkeypatch.undo()
        others.append(retry(stages, "orders"))
        return repair.add(*args)

    monkeypatch.setattr(Repair, "add", overtaken)
    assert retry(stages, "orders") == Retried(0, 6), "the other was quicker"
    assert others == [Retried(3, 3)]
    assert retry(stages, "orders") == Retried(0, 3)
    client.publish(name, order(8)).raise_for_status()
    run_once(spark, mended)
    assert sorted(row.id for row in rows(spark, mended, "orders")) == [0, 1, 2, 3, 4, 8]

    raw = pipeline_of(node, name, tmp_path, strict.name, decode="raw", sql=LENIENT)
    assert retry(Stages(spark, raw), "orders") == Retried(1, 2)
    found = {row["_offset"]: (row.id, row.country, row.amount) for row in rows(spark, raw, "orders")}
    assert found[5] == (5, "RO", 6.0)
    assert sorted(found) == [0, 1, 2, 3, 4, 5, 8]
    assert len(rows(spark, raw, "orders_quarantine")) == 6, "it only grows"

    with pytest.raises(InvalidSettings, match="raw has no quarantine"):
        retry(stages, "raw")
    never = [{"name": "never", "that": "amount > 100", "otherwise": "fail"}]
    with pytest.raises(ExpectationFailed, match=r"'never', the first is .*/0 at offset 7"):
        retry(Stages(spark, pipeline_of(node, name, tmp_path, strict.name, expect=never)), "orders")
    for done in (Path(mended.checkpoint_root) / "orders" / "commits").glob("[0-9]*"):
        done.unlink()  # as if it had been killed before Spark knew that the batch was done
    monkeypatch.setattr(checkpoints, "WAIT_SECONDS", 0.0)
    with pytest.raises(BatchUnfinished, match="has not finished its batch 0"):
        retry(stages, "orders")


def test_s3_a_retry_adds_no_row_that_the_table_has_in_another_record(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    name = topic(schema=SCHEMA)
    early, late = "2026-01-01T10:00:00Z", "2026-01-02T10:00:00Z"
    sent = [order(1, at=early), order(1, at=early, amount=-1), order(2), order(3, at=early, amount=-3)]
    client.publish_batch(name, [*sent, order(1, at=late, amount=-1)])
    once: dict[str, Any] = {"deduplicate": ["id"], "watermark": {"column": "at", "delay": "1 hour"}}
    pipeline = pipeline_of(node, name, tmp_path, expect=[POSITIVE], **once)
    run_once(spark, pipeline)
    aside = {row.offset: row.reasons for row in rows(spark, pipeline, "orders_quarantine")}
    assert aside == {1: ["positive"], 2: ["at: it has no time"], 3: ["positive"], 4: ["positive"]}
    mended = Stages(spark, pipeline_of(node, name, tmp_path, pipeline.name, **once))
    assert retry(mended, "orders") == Retried(2, 2)
    assert offsets(spark, pipeline, "orders", "_") == [(0, 0), (0, 3), (0, 4)]


# What was before


def test_s4_a_backfill_takes_nothing_that_the_stream_will_take(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    name = topic(2, schema=SCHEMA)
    client.publish_batch(name, [Record(order(n), key=str(n)) for n in range(30)], split=True)
    pipeline = pipeline_of(node, name, tmp_path, start="latest")
    stages = Stages(spark, pipeline)
    with pytest.raises(BatchUnfinished, match="the stream of table raw has not begun: run the pipeline"):
        backfill(stages, "raw")
    run_once(spark, pipeline)
    client.publish_batch(name, [order(n) for n in range(30, 35)], partition=0)
    run_once(spark, pipeline)  # so that the table holds rows of one partition, and none of the other
    client.publish_batch(name, [Record(order(n), key=str(n)) for n in range(35, 40)], split=True)  # for the stream
    assert backfill(stages, "raw") == 30
    assert backfill(stages, "raw") == 0
    run_once(spark, pipeline)
    assert backfill(stages, "raw") == 0
    ends = [client.admin.partition(name, number).end_offset for number in range(2)]
    log = [(number, offset) for number in range(2) for offset in range(ends[number])]
    assert offsets(spark, pipeline, "raw") == log
    assert offsets(spark, pipeline, "orders", "_") == log


def test_s4_a_table_is_backfilled_and_mended_while_its_stream_runs(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Topic, tmp_path: Path
) -> None:
    name = topic(2, schema=SCHEMA)
    client.publish_batch(name, [Record(order(n), key=str(n)) for n in range(BEFORE)], split=True)
    running = pipeline_of(node, name, tmp_path, start="latest", expect=[{"name": "even", "that": "id % 2 = 0"}])
    mended = Stages(spark, pipeline_of(node, name, tmp_path, running.name, start="latest"))
    is_over, sent = threading.Event(), Counter[str]()
    runner = Runner(Stages(spark, running), is_wanted=lambda: not is_over.is_set())
    failed: list[BaseException] = []

    def run() -> None:
        spark.createDataFrame([], "n int")  # makes it the session of this thread: Spark finds Python's sources by that
        try:
            runner.run()
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    def produce() -> None:
        for number in itertools.count(BEFORE):
            if is_over.is_set():
                return
            client.publish(name, order(number), key=str(number)).raise_for_status()
            sent["records"] += 1
            is_over.wait(0.005)

    threads = [threading.Thread(target=run), threading.Thread(target=produce)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        came = wait_for(lambda: failed or backfill(mended, "raw"), deadline)
        aside = running.table_uri("orders_quarantine")
        wait_for(lambda: failed or DeltaTable(aside).count() > BEFORE // 2, deadline)
        if failed:
            raise failed[0]
        retried = [retry(mended, "orders").rows for _ in range(2)]
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not failed
    assert came >= BEFORE
    assert retried[0] > 0
    run_once(spark, running)
    retry(mended, "orders")
    ends = [client.admin.partition(name, number).end_offset for number in range(2)]
    assert sum(ends) == BEFORE + sent["records"]
    log = [(number, offset) for number in range(2) for offset in range(ends[number])]
    assert offsets(spark, running, "raw") == log
    assert offsets(spark, running, "orders", "_") == log
    apps = DeltaTable(running.table_uri("raw")).transaction_version(f"backfill.{running.name}.raw")
    assert apps == 0, "one commit brought all that was before"


def wait_for(ask: Callable[[], Any], deadline: float) -> Any:
    """What it says once it is something, and the stream has begun."""
    while True:
        try:
            found = ask()
        except BatchUnfinished:
            found = None
        if found:
            return found
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_s3_a_checkpoint_says_what_is_done_and_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = QueryCheckpoint(str(tmp_path), "raw")
    assert checkpoint.done() is None
    with pytest.raises(BatchUnfinished, match="has not begun"):
        checkpoint.wait_done()
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for batch in (9, 10):
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{"conf": {{}}}}\n{{"/d/t": {{"0": {batch}}}}}')
    monkeypatch.setattr(checkpoints, "POLL_SECONDS", 0.0)
    with pytest.raises(BatchUnfinished, match="its batch 0, and no run"):
        checkpoint.wait_done(clock=itertools.count(0.0, 40.0).__next__)
    for name in ("9", "10", ".10.crc"):
        (tmp_path / "commits" / name).write_text("v1\n{}")
    assert (checkpoint.wait_done(), checkpoint.wait_done(10)) == (10, 10)
    assert checkpoint.end_of(10) == {"/d/t": {"0": 10}}


def test_s3_a_driver_that_died_writing_its_first_batch_does_not_keep_the_next_from_starting(tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    for name in (".0.1479b031.tmp", "..0.1479b031.tmp.crc"):
        (offsets / name).touch()
    checkpoint = QueryCheckpoint(str(tmp_path), "orders")
    checkpoint.remove_torn_start()
    assert [*offsets.glob("*")] == []
    offsets.mkdir(exist_ok=True)
    (offsets / "0").write_text("v1")
    (offsets / ".1.1479b031.tmp").touch()
    checkpoint.remove_torn_start()
    assert sorted(path.name for path in offsets.iterdir()) == [".1.1479b031.tmp", "0"]
