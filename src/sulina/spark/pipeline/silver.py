"""Silver: what a bronze table holds, decoded by the schema of its topic and held to expectations.

A batch is written to two tables: good rows, and what is put aside with its offset and the reason. Each commit names the
query and the batch, so a batch that is run again adds nothing to either, wherever the first attempt ended.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from sulina.core.topic import Schema
from sulina.spark.decoding import Decoder
from sulina.spark.errors import ExpectationFailed
from sulina.spark.pipeline.definition import Expectation, Otherwise, Silver
from sulina.spark.value_schemas import arrow_schema, spark_type

PLACE = ("namespace", "topic", "partition", "offset", "timestamp", "version")  # kept of every row, with a _ before it
INPUT = "input"  # the name under which SQL finds the decoded rows
_REASONS, _DROPPED, _FAILED, _ERROR = "_reasons", "_dropped", "_failed", "_error"
QUARANTINE_DDL = (
    "namespace STRING, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, version BIGINT, "
    "key BINARY, value BINARY, reasons ARRAY<STRING>, quarantined_at TIMESTAMP"
)


@dataclass(slots=True)
class Counts:
    """What became of the rows of a batch."""

    batch: int
    good: int = 0
    dropped: int = 0
    quarantined: int = 0
    by_reason: dict[str, int] = field(default_factory=dict)


def undecoded(rows: DataFrame) -> DataFrame:
    """Key and value as they are, and where the row is from."""
    kept = [F.col(name).alias(f"_{name}") for name in (*PLACE, "key", "value")]
    return rows.select("key", "value", "headers", *kept, F.lit(None).cast("string").alias(_ERROR))


def decoded(rows: DataFrame, schema: Schema) -> DataFrame:
    """One column for each field of the schema, and where the row is from; `_error` where the value is not valid."""
    columns = arrow_schema(schema)
    out = StructType([*spark_type(columns).fields, *_place(rows).fields])
    out = out.add("_key", "binary").add("_value", "binary").add(_ERROR, "string")
    return rows.mapInArrow(_decoding(schema, columns), out)


def _place(rows: DataFrame) -> StructType:
    made = StructType()
    for name in PLACE:
        made = made.add(f"_{name}", rows.schema[name].dataType)
    return made


def _decoding(schema: Schema, columns: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    kept = (*PLACE, "key", "value")

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = Decoder.of(schema)
        for batch in batches:
            found = decoder.decode(batch.column("value"))
            if found.value_rows is not None:  # a value of Arrow may have any number of rows
                batch = batch.take(found.value_rows)
            arrays = [*found.data.flatten(), *(batch.column(name) for name in kept), found.error]
            names = [*columns.names, *(f"_{name}" for name in kept), _ERROR]
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    return decode


def once(rows: DataFrame, silver: Silver) -> DataFrame:
    """Rows that are the same in some columns come once, for as long as the watermark lets them be late.

    What has no time cannot be told from what came long ago, and is put aside. What could not be decoded goes past all
    that: its own time would move the watermark.
    """
    if silver.watermark is None or not silver.deduplicate:
        return rows
    column = F.col(f"`{silver.watermark.column}`")
    timeless = F.when(column.isNull(), F.lit(f"{silver.watermark.column}: it has no time"))
    rows = rows.withColumn(_ERROR, F.coalesce(_ERROR, timeless))
    good = rows.filter(F.col(_ERROR).isNull()).withWatermark(silver.watermark.column, silver.watermark.delay)
    bad = rows.filter(F.col(_ERROR).isNotNull())
    return good.dropDuplicatesWithinWatermark(silver.deduplicate).unionByName(bad)


def judged(rows: DataFrame, expectations: list[Expectation]) -> DataFrame:
    """Which expectations each row misses, by what is to become of it."""

    def missed(what: Otherwise) -> Column:
        names = [
            F.when(~F.coalesce(F.expr(one.that), F.lit(False)) & F.col(_ERROR).isNull(), F.lit(one.name))
            for one in expectations
            if one.otherwise == what
        ]
        return F.filter(F.array(*names, F.lit(None).cast("string")), lambda name: name.isNotNull())

    reasons = F.filter(F.concat(F.array(_ERROR), missed(Otherwise.QUARANTINE)), lambda name: name.isNotNull())
    return rows.select(
        "*",
        reasons.alias(_REASONS),
        missed(Otherwise.DROP).alias(_DROPPED),
        missed(Otherwise.FAIL).alias(_FAILED),
    )


@dataclass(slots=True)
class SilverBatch:
    """What a streaming query does with each batch."""

    silver: Silver
    app: str
    write: Callable[[DataFrame, str, str, int], None]  # rows, table, app, version: once
    told: Callable[[Counts], None] = lambda _: None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        spark = rows.sparkSession
        all_rows = judged(rows, self.silver.expect).persist()
        try:
            counts = self._counts(all_rows, batch)
            good = all_rows.filter((F.size(_REASONS) == 0) & (F.size(_DROPPED) == 0))
            if counts.good:
                self.write(self._shaped(spark, good), self.silver.table, self.app, batch)
            if counts.quarantined:
                self.write(_put_aside(all_rows), self.silver.quarantine_table, self.app, batch)
        finally:
            all_rows.unpersist()
        self.told(counts)

    def _counts(self, rows: DataFrame, batch: int) -> Counts:
        """How many rows go where. ExpectationFailed when one must not be there at all."""
        reason = F.when(F.size(_FAILED) > 0, F.concat(F.lit("!"), F.element_at(_FAILED, 1)))
        reason = reason.when(F.size(_DROPPED) > 0, F.concat(F.lit("-"), F.element_at(_DROPPED, 1)))
        reason = reason.when(F.size(_REASONS) > 0, F.concat(F.lit("?"), _kind(F.element_at(_REASONS, 1))))
        place = F.min(F.struct("_topic", "_partition", "_offset")).alias("first")
        found = rows.groupBy(F.coalesce(reason, F.lit("")).alias("why")).agg(F.count("*").alias("rows"), place)
        counts = Counts(batch)
        for row in found.collect():
            kind, name = row.why[:1], row.why[1:]
            if kind == "!":
                topic, partition, offset = row.first
                where = f"{topic}/{partition} at offset {offset}"
                raise ExpectationFailed(table=self.silver.table, expectation=name, rows=row.rows, first=where)
            if not kind:
                counts.good = row.rows
                continue
            if kind == "-":
                counts.dropped += row.rows
            else:
                counts.quarantined += row.rows
            counts.by_reason[name] = counts.by_reason.get(name, 0) + row.rows
        return counts

    def _shaped(self, spark: SparkSession, rows: DataFrame) -> DataFrame:
        rows = rows.drop(_REASONS, _DROPPED, _FAILED, _ERROR, "_value")
        if self.silver.sql is None:
            return rows
        rows.createOrReplaceTempView(INPUT)
        return spark.sql(self.silver.sql)


def _kind(reason: Column) -> Column:
    """Reasons that tell of a single value are counted together by how they begin."""
    return F.substring_index(reason, ":", 1)


def _put_aside(rows: DataFrame) -> DataFrame:
    place = [F.col(f"_{name}").alias(name) for name in (*PLACE, "key", "value")]
    bad = rows.filter((F.size(_REASONS) > 0) & (F.size(_DROPPED) == 0))
    return bad.select(*place, F.col(_REASONS).alias("reasons"), F.current_timestamp().alias("quarantined_at"))
