"""Values to columns: our decoders against fastavro and against Spark's own `from_json`, on the same values.

Avro is decoded on one thread: ours makes Arrow columns of whole chunks, fastavro makes a dict of each value, from which
Arrow makes the same columns. Spark's `from_avro` is no peer: it needs a jar that is not in the wheel. JSON is decoded
in one Spark task, from Parquet into nothing: ours by `mapInArrow` as a silver table does it, `from_json` in the JVM.
`from_json` does not check what a JSON Schema asks for, and does not say where a value is wrong; ours does both.
Each of ours is also measured without its quick way, value by value: what the quick way is worth.
"""

import sys

if __name__ == "__main__":
    sys.path.append(f"{sys.path.pop(0)}/..")  # not this directory: its http.py is not what others mean by http

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from benchmarks.measure import Result, Setup, interleaved, main, ratio, seconds_of
from sulina.core.topic import Schema, SchemaKind
from sulina.spark.decoding import Decoder, Mode
from sulina.spark.session import session
from sulina.spark.value_schemas import arrow_schema, spark_type

ROUNDS = 5
CHUNK_ROWS = 50_000
STATES = ["new", "paid", "sent", "back"]

AVRO: dict[str, dict[str, Any]] = {
    "flat": {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "customer", "type": "string"},
            {"name": "state", "type": {"type": "enum", "name": "State", "symbols": STATES}},
            {"name": "amount", "type": "double"},
            {"name": "is_gift", "type": "boolean"},
            {"name": "note", "type": ["null", "string"]},
        ],
    },
    "nested": {
        "type": "record",
        "name": "Basket",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {
                "name": "address",
                "type": {
                    "type": "record",
                    "name": "Address",
                    "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": ["null", "string"]}],
                },
            },
            {
                "name": "lines",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Line",
                        "fields": [
                            {"name": "sku", "type": "string"},
                            {"name": "count", "type": "int"},
                            {"name": "price", "type": "double"},
                        ],
                    },
                },
            },
        ],
    },
}


def closed(properties: dict[str, Any], *optional: str) -> dict[str, Any]:
    """Return the JSON Schema of an object that has these properties and no others."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
JSON: dict[str, dict[str, Any]] = {
    "flat": closed(
        {
            "id": WHOLE,
            "customer": TEXT,
            "state": {"type": "string", "enum": STATES},
            "amount": NUMBER,
            "is_gift": {"type": "boolean"},
            "note": {"type": ["string", "null"]},
        }
    ),
    "nested": closed(
        {
            "id": WHOLE,
            "tags": {"type": "array", "items": TEXT},
            "address": closed({"city": TEXT, "zip": {"type": ["string", "null"]}}),
            "lines": {"type": "array", "items": closed({"sku": TEXT, "count": WHOLE, "price": NUMBER})},
        }
    ),
}


def rows_of(shape: str, count: int) -> Iterator[dict[str, Any]]:
    """Yield the same rows in every run."""
    chance = np.random.default_rng(14)
    for n in range(count):
        pick = int(chance.integers(0, 1 << 30))
        if shape == "flat":
            yield {
                "id": n,
                "customer": f"customer-{pick % 10_000}",
                "state": STATES[pick % 4],
                "amount": pick % 100_000 / 100,
                "is_gift": pick % 7 == 0,
                "note": None if pick % 3 else f"please ring at {pick}",
            }
        else:
            yield {
                "id": n,
                "tags": [f"tag-{pick % (7 + index)}" for index in range(pick % 4)],
                "address": {"city": f"city-{pick % 1000}", "zip": None if pick % 5 else "12345"},
                "lines": [
                    {"sku": f"sku-{pick % (100 + index)}", "count": index + 1, "price": pick % 9999 / 100}
                    for index in range(1 + pick % 3)
                ],
            }


def benchmark(setup: Setup) -> Iterator[Result]:
    """Avro on one thread, then JSON in a session of one core."""
    count = setup.choose(20_000, 200_000)
    for shape in AVRO:
        yield from avro(shape, count)
    spark = session("bench", master="local[1]")
    try:
        for shape in JSON:
            yield from json_text(Path(setup.directory).absolute(), spark, shape, count)
        yield from wrong_values(spark)
    finally:
        spark.stop()


def speeds(count: int, *works: Callable[[], object]) -> list[list[float]]:
    """Return rows a second of each, round by round; the first round is for code to be compiled."""

    def timed(work: Callable[[], object]) -> Callable[[], float]:
        return lambda: count / seconds_of(work)

    interleaved(1, *map(timed, works))
    return interleaved(ROUNDS, *map(timed, works))


def decoding(decoder: Decoder, values: pa.BinaryArray) -> Callable[[], None]:
    """Return what decodes all values, in chunks as they come from a topic."""

    def work() -> None:
        for first in range(0, len(values), CHUNK_ROWS):
            found = decoder.decode(values.slice(first, CHUNK_ROWS))
            assert found.error.null_count == len(found.error)

    return work


def avro(shape: str, count: int) -> Iterator[Result]:
    """Our kernel, our exact way and fastavro."""
    parsed = fastavro.parse_schema(AVRO[shape])
    schema = Schema(kind=SchemaKind.AVRO, definition=AVRO[shape])
    data = []
    for row in rows_of(shape, count):
        stream = BytesIO()
        fastavro.schemaless_writer(stream, parsed, row)
        data.append(stream.getvalue())
    values = pa.array(data, pa.binary())
    quick = Decoder.of(schema)

    def peer() -> None:
        for first in range(0, len(values), CHUNK_ROWS):
            texts = values.slice(first, CHUNK_ROWS).to_pylist()
            pa.array([fastavro.schemaless_reader(BytesIO(text), parsed, None) for text in texts], quick.type)

    exact = Decoder(schema, Mode.PERMISSIVE, is_quick=False)
    found = speeds(count, decoding(quick, values), decoding(exact, values), peer)
    yield Result(f"Avro, {shape}: ours", median(found[0]), "rows/s")
    yield Result(f"Avro, {shape}: ours to fastavro", ratio(found[0], found[2]), "×")
    yield Result(f"Avro, {shape}: ours to ours without the quick way", ratio(found[0], found[1]), "×")


def json_text(home: Path, spark: SparkSession, shape: str, count: int) -> Iterator[Result]:
    """Our decoder and Spark's `from_json`, each in one task; then ours alone, with and without its quick way."""
    schema = Schema(kind=SchemaKind.JSON, definition=JSON[shape])
    path, columns = f"{home}/{shape}.parquet", arrow_schema(schema)
    values = pa.array([json.dumps(row).encode() for row in rows_of(shape, count)], pa.binary())
    pq.write_table(pa.table({"value": values}), path)
    rows = spark.read.parquet(path)

    def ours(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = Decoder.of(schema)
        for batch in batches:
            found = decoder.decode(batch.column("value"))
            yield pa.RecordBatch.from_arrays([*found.data.flatten(), found.error], names=[*columns.names, "_error"])

    out = StructType(spark_type(columns).fields).add("_error", "string")
    quick = rows.mapInArrow(ours, out)
    text = F.col("value").cast("string")
    spark_own = rows.select(F.from_json(text, spark_type(columns), {"mode": "PERMISSIVE"}).alias("row")).select("row.*")

    def into_nothing(frame: DataFrame) -> Callable[[], None]:
        return lambda: frame.write.format("noop").mode("overwrite").save()

    found = speeds(count, into_nothing(quick), into_nothing(spark_own))
    yield Result(f"JSON, {shape}: ours in Spark", median(found[0]), "rows/s")
    yield Result(f"JSON, {shape}: ours to from_json", ratio(*found), "×")
    exact = Decoder(schema, Mode.PERMISSIVE, is_quick=False)
    alone = speeds(count, decoding(Decoder.of(schema), values), decoding(exact, values))
    yield Result(f"JSON, {shape}: ours without Spark", median(alone[0]), "rows/s")
    yield Result(f"JSON, {shape}: ours to ours without the quick way", ratio(*alone), "×")


WRONG: list[dict[str, Any]] = [
    {"id": None},
    {"id": "7"},
    {"id": 7.5},
    {"id": 1 << 70},
    {"customer": 5},
    {"customer": None},
    {"state": "lost"},
    {"amount": "12"},
    {"is_gift": "yes"},
    {"note": ["a", "b"]},
    {"more": 1},
]


def wrong_values(spark: SparkSession) -> Iterator[Result]:
    """Count values that the schema refuses, which the two take without a word."""
    schema = Schema(kind=SchemaKind.JSON, definition=JSON["flat"])
    good = next(rows_of("flat", 1))
    texts = [json.dumps({**good, **change}).encode() for change in WRONG]
    texts += [json.dumps({name: good[name] for name in good if name != left_out}).encode() for left_out in good]
    values = pa.array(texts, pa.binary())
    ours = Decoder.of(schema).decode(values).error.null_count
    told = StructType(spark_type(arrow_schema(schema)).fields).add("_corrupt_record", "string")
    rows = spark.createDataFrame([(text.decode(),) for text in texts], "value string")
    found = rows.select(F.from_json("value", told, {"mode": "PERMISSIVE"}).alias("row"))
    theirs = found.filter("row._corrupt_record is null").count()
    yield Result("JSON: wrong values", len(texts), "")
    yield Result("JSON: wrong values that ours takes", ours, "")
    yield Result("JSON: wrong values that from_json takes", theirs, "")


if __name__ == "__main__":
    main("Values to columns.", benchmark)
