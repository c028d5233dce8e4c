"""Tables of a pipeline as others read them: S3. deltalake, polars, DuckDB and Spark see the same rows.

Spark with Delta Lake's own jar is `tests/interop/test_delta_jar.py`, in an environment of its own.
"""

import io
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fastavro
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from sulina.client import Record, SyncClient
from sulina.errors import InvalidSettings
from sulina.spark.delta_native import read_delta
from sulina.spark.delta_schema import table_schema
from sulina.spark.pipeline.definition import Pipeline, parse
from tests.spark.test_pipeline import run_once
from tests.support.serving import Serving

FIELDS: list[tuple[str, Any]] = [
    ("id", "long"),
    ("country", ["null", "string"]),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("tags", {"type": "array", "items": "string"}),
    ("who", {"type": "record", "name": "who", "fields": [{"name": "name", "type": "string"}]}),
    ("more", {"type": "map", "values": "double"}),
]
AVRO = {"type": "record", "name": "order", "fields": [{"name": name, "type": kind} for name, kind in FIELDS]}
NAMES = [name for name, _ in FIELDS]


def order(number: int) -> dict[str, Any]:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number, microseconds=number)
    return {
        "id": number,
        "country": (None, "a b", "50/50", "ü")[number % 4],
        "price": Decimal(number) / 8,
        "at": at,
        "day": at.date(),
        "tags": [str(number)] * (number % 3),
        "who": {"name": f"w{number}"},
        "more": {"half": number / 2},
    }


def encoded(row: dict[str, Any]) -> bytes:
    made = io.BytesIO()
    fastavro.schemaless_writer(made, AVRO, row)
    return made.getvalue()


def pipeline_of(node: Serving, topic: str, folder: Path, **silver: Any) -> Pipeline:
    return parse(
        {
            "name": "read_by_others",
            "url": node.url,
            "tables": str(folder),
            "bronze": [{"table": "raw", "topic": topic, "partition_by": ["topic", "partition"]}],
            "silver": [{"table": "orders", "from": "raw", "partition_by": ["country"], **silver}],
        }
    )


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Whatever form a library gives to maps and instants."""
    more = row["more"]
    if isinstance(more, list):
        more = dict((item["key"], item["value"]) if isinstance(item, dict) else item for item in more)
    at = row["at"]
    return {**row, "more": more, "at": at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)}


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((plain(row) for row in rows), key=lambda row: row["id"])


def duckdb_rows(uri: str, names: list[str]) -> list[dict[str, Any]]:
    """By DuckDB's extension for Delta, where it is installed; else the files of the newest version, by their names.

    The extension is a download from DuckDB's own site, which not every machine reaches.
    """
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET autoinstall_known_extensions = false")
    columns = ", ".join(f'"{name}"' for name in names)
    try:
        connection.execute("LOAD delta")
        found = connection.execute(f"SELECT {columns} FROM delta_scan(?)", [uri])
    except duckdb.Error:
        table = DeltaTable(uri)
        files = [f"{uri}/{unquote(path)}" for path in table.get_add_actions(flatten=True).column("path").to_pylist()]
        found = connection.execute(
            f"SELECT {columns} FROM read_parquet(?, union_by_name = true, hive_partitioning = true)", [files]
        )
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def test_s3_deltalake_polars_and_duckdb_read_what_a_pipeline_wrote(
    spark: SparkSession, client: SyncClient, node: Serving, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(2, schema={"kind": "avro", "definition": AVRO})
    client.publish_batch(name, [Record(encoded(order(n)), key=str(n)) for n in range(20)], split=True)
    run_once(spark, pipeline_of(node, name, tmp_path, sql="select * from input"))
    client.publish_batch(name, [Record(encoded(order(n)), key=str(n)) for n in range(20, 30)], split=True)
    pipeline = pipeline_of(node, name, tmp_path, sql="select *, price * 2 >= 5 as dear from input")  # a new column
    run_once(spark, pipeline)

    wanted = [order(n) | {"dear": None if n < 20 else True} for n in range(30)]
    names = [*NAMES, "dear"]
    uri = pipeline.table_uri("orders")
    assert by_id(DeltaTable(uri).to_pyarrow_table(columns=names).to_pylist()) == wanted
    import polars as pl  # takes a second, and every worker loads this module

    frame = pl.read_delta(uri)
    assert by_id(frame.select(names).to_dicts()) == wanted
    assert sorted(frame.filter(pl.col("country") == "50/50")["id"].to_list()) == list(range(2, 30, 4))
    assert by_id(duckdb_rows(uri, names)) == wanted
    ours = read_delta(spark, uri).select(*names).collect()
    assert by_id([row.asDict(recursive=True) for row in ours]) == wanted
    assert DeltaTable(uri).metadata().partition_columns == ["country"]

    raw = pipeline.table_uri("raw")
    ends = [client.admin.partition(name, number).end_offset for number in range(2)]
    log = [(number, offset) for number in range(2) for offset in range(ends[number])]
    for found in (DeltaTable(raw).to_pyarrow_table().to_pylist(), pl.read_delta(raw).to_dicts()):
        assert sorted((row["partition"], row["offset"]) for row in found) == log
        assert {row["value"] for row in found} == {encoded(order(n)) for n in range(30)}
    assert isinstance(wanted[0]["day"], date)


def test_s3_a_length_of_time_is_refused_with_a_way_to_keep_it(spark: SparkSession) -> None:
    rows = spark.sql("select interval '1 02:03:04.000005' day to second as took")
    with pytest.raises(InvalidSettings, match="column took is a length of time") as refused:
        table_schema(rows.schema)
    kept = rows.selectExpr(f"{str(refused.value).rpartition('seconds, ')[2]} as seconds")
    assert [row.seconds for row in kept.collect()] == [Decimal("93784.000005")]
    assert table_schema(kept.schema).names == ["seconds"]
