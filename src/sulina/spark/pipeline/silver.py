"""Silver: what a bronze table holds, decoded by the schema of its topic and held to expectations.

Nothing here runs, and no session is asked anything: it says what Spark is to do with the rows of a stream, or of a
batch, before they come to `silver_sink`. A row has `_aside` then: null where it is good, else what it was and why it is
not in the table.

Where a table has neither `sql` nor `deduplicate`, rows are decoded once. With one of these, good rows and the others go
different ways, and each way reads and decodes for itself.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from sulina.core.topic import Schema, SchemaKind
from sulina.errors import InvalidSettings
from sulina.spark.decoding import Decoder
from sulina.spark.pipeline.definition import Expectation, Otherwise, Silver
from sulina.spark.schema import RAW_SCHEMA
from sulina.spark.value_schemas import arrow_schema, spark_type

INPUT = "input"  # the name under which SQL finds the decoded rows
ASIDE = "_aside"
_ERROR, _DECODED, _FOUND = "_error", "_decoded", "_found"
NO_VALUE = "null: the record has no value"
KEPT_COLUMNS = (
    "namespace",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "version",
    "key",
    "value",
)  # with a _ before it
INPUT_COLUMNS = tuple(f"_{name}" for name in KEPT_COLUMNS if name != "value")  # of every silver table, beside its own
RAW_INPUT_COLUMNS = ("key", "value", "headers", *INPUT_COLUMNS)  # where nothing is decoded


def undecoded(rows: DataFrame) -> DataFrame:
    """Return key and value as they are, and where the row is from."""
    kept = [F.col(name).alias(f"_{name}") for name in KEPT_COLUMNS]
    return rows.select("key", "value", "headers", *kept, F.lit(None).cast("string").alias(_ERROR))


def decoded(rows: DataFrame, schema: Schema) -> DataFrame:
    """Return one column for each field of the schema, and where the row is from; `_error` if a value is not valid."""
    columns = arrow_schema(schema)
    out = StructType(spark_type(columns).fields)
    for name in KEPT_COLUMNS:
        out = out.add(f"_{name}", spark_type(RAW_SCHEMA)[name].dataType)
    return rows.mapInArrow(arrow_decoder(schema, columns), out.add(_ERROR, "string"))


def arrow_decoder(schema: Schema, columns: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow` that decodes values to columns and keeps the columns of the topic."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = Decoder.of(schema)
        for batch in batches:
            found = decoder.decode(batch.column("value"))
            if found.value_rows is not None:  # a value of Arrow may have any number of rows
                batch = batch.take(found.value_rows)
            error = pc.if_else(batch.column("value").is_null(), NO_VALUE, found.error)
            arrays = [*found.data.flatten(), *(batch.column(name) for name in KEPT_COLUMNS), error]
            names = [*columns.names, *(f"_{name}" for name in KEPT_COLUMNS), _ERROR]
            rows = pa.RecordBatch.from_arrays(arrays, names=names)
            if found.value_rows is not None:  # or none at all
                rows = rows.filter(pc.or_(found.data.is_valid(), error.is_valid()))
            yield rows

    return decode


def decoded_in_place(rows: DataFrame, schema: Schema) -> DataFrame:
    """Return the same without knowing the columns of the rows, which some of Spark's callers do not know yet.

    Raises:
        InvalidSettings: a value is several rows.
    """
    if schema.kind == SchemaKind.ARROW:
        raise InvalidSettings("values of Arrow have any number of rows, and cannot be decoded one for one here")
    data = StructType().add("data", spark_type(arrow_schema(schema))).add("error", "string")

    def decode(values: Iterator[pa.Array]) -> Iterator[pa.Array]:
        decoder = Decoder.of(schema)
        for some in values:
            found = decoder.decode(some)
            yield pa.StructArray.from_arrays([found.data, found.error], names=["data", "error"])

    decoding = F.arrow_udf(decode, data)  # type: ignore[attr-defined]
    found = rows.select("*", decoding("value").alias(_DECODED))
    kept = [F.col(name).alias(f"_{name}") for name in KEPT_COLUMNS]
    return found.select(f"{_DECODED}.data.*", *kept, F.col(f"{_DECODED}.error").alias(_ERROR))


def ways(silver: Silver) -> int:
    """Return how often each row is read and decoded."""
    return 1 if silver.sql is None and not silver.deduplicate else 2


def sorted_out(rows: DataFrame, silver: Silver, *, is_stream: bool = False) -> DataFrame:
    """Return decoded rows as `silver_sink` takes them: as the table has them, and `_aside`."""
    rows = judged(rows, silver)
    if ways(silver) == 1:
        return rows
    good = good_rows(rows, silver, is_stream=is_stream)
    if silver.sql is not None:
        good.createOrReplaceTempView(INPUT)
        good = good.sparkSession.sql(silver.sql)
    bad = rows.filter(F.col(ASIDE).isNotNull()).select(ASIDE)
    return good.unionByName(bad, allowMissingColumns=True)


def judged(rows: DataFrame, silver: Silver) -> DataFrame:
    """Return decoded rows, and in `_aside` why a row is not in the table."""
    error = F.col(_ERROR)
    if silver.deduplicate and silver.watermark is not None:
        # What has no time cannot be told from what came long ago.
        timeless = F.col(f"`{silver.watermark.column}`").isNull()
        error = F.coalesce(error, F.when(timeless, F.lit(f"{silver.watermark.column}: it has no time")))

    def missed(what: Otherwise) -> list[Column]:
        return [_missed(one, error) for one in silver.expect if one.otherwise == what]

    nothing = F.lit(None).cast("string")
    aside = F.struct(
        F.coalesce(*missed(Otherwise.FAIL), nothing).alias("failed"),
        F.coalesce(*missed(Otherwise.DROP), nothing).alias("dropped"),
        F.array_compact(F.array(error, *missed(Otherwise.QUARANTINE))).alias("reasons"),
        *(F.col(f"_{name}").alias(name) for name in KEPT_COLUMNS),
    )
    found = F.col(_FOUND)
    is_bad = found.failed.isNotNull() | found.dropped.isNotNull() | (F.size(found.reasons) > 0)
    kept = F.expr(f"* except ({_ERROR}, {_FOUND}, _value)")
    return rows.select("*", aside.alias(_FOUND)).select(kept, F.when(is_bad, found).alias(ASIDE))


def good_rows(rows: DataFrame, silver: Silver, *, is_stream: bool) -> DataFrame:
    """Return judged rows that are good. Duplicates come once, within the watermark."""
    good = rows.filter(F.col(ASIDE).isNull()).select(F.expr(f"* except ({ASIDE})"))
    if silver.watermark is None or not silver.deduplicate:
        return good
    if not is_stream:
        return good.dropDuplicates(silver.deduplicate)
    timed = good.withWatermark(silver.watermark.column, silver.watermark.delay)
    return timed.dropDuplicatesWithinWatermark(silver.deduplicate)


def _missed(one: Expectation, error: Column) -> Column:
    """Return an expectation's name where a row that could be decoded does not meet it."""
    return F.when(~F.coalesce(F.expr(one.that), F.lit(False)) & error.isNull(), F.lit(one.name))
