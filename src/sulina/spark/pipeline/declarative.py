"""The tables of a pipeline as datasets of Spark Declarative Pipelines (`pyspark.pipelines`).

`define` is called in a Python file of such a pipeline. Bronze, silver and quarantine tables are streaming tables, gold
ones are materialized views. They are the catalogue's tables, in its format: what is run when, and where it goes on, is
Spark's. Good rows and others are written by queries of their own, so where a row must not be there at all, one of them
may have written its batch before the other ends.

Spark 4.3 knows no watermarks there, so what needs one (`deduplicate`, gold that grows) is refused.
"""

import os
import sys
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.errors import PySparkValueError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sulina.errors import InvalidSettings
from sulina.spark.pipeline.definition import Bronze, Gold, Pipeline, Silver, load
from sulina.spark.pipeline.silver import ASIDE, INPUT, decoded_in_place, good_rows, judged, undecoded
from sulina.spark.pipeline.silver_sink import QUARANTINE
from sulina.spark.pipeline.stages import anywhere, bronze_options
from sulina.spark.pipeline.value_schema import values_schema
from sulina.spark.session import LOCAL

_FALSE_ALARM = "__python_accumulator__"


def define(pipeline: Pipeline | str | Path, spark: SparkSession) -> Pipeline:
    """Declare all tables of a definition.

    Raises:
        InvalidSettings: the definition is wrong, or a table needs a watermark.
    """
    found = anywhere(pipeline if isinstance(pipeline, Pipeline) else load(pipeline))
    late: list[Silver | Gold] = [*found.silver, *found.gold]
    for one in late:
        if one.watermark is not None:
            raise InvalidSettings(f"table {one.table} needs a watermark: Spark Declarative Pipelines have none")
    for bronze in found.bronze:
        _bronze(found, bronze, spark)
    for silver in found.silver:
        _silver(found, silver, spark)
    for gold in found.gold:
        _gold(gold, spark)
    return found


def _bronze(pipeline: Pipeline, bronze: Bronze, spark: SparkSession) -> None:
    def rows() -> DataFrame:
        return spark.readStream.format("sulina").options(**bronze_options(pipeline, bronze)).load()

    dp.table(name=bronze.table, partition_cols=bronze.partition_by or None)(rows)


def _silver(pipeline: Pipeline, silver: Silver, spark: SparkSession) -> None:
    sorted_view, input_view = f"{silver.table}_{ASIDE.strip('_')}", f"{silver.table}_{INPUT}"

    def all_rows() -> DataFrame:
        raw = spark.readStream.table(silver.source)
        is_raw = silver.decode == "raw"
        rows = judged(undecoded(raw) if is_raw else decoded_in_place(raw, values_schema(pipeline, silver)), silver)
        failed = F.col(f"{ASIDE}.failed")
        said = F.concat(F.lit(f"a row for table {silver.table} does not meet "), failed)
        return rows.filter(F.when(failed.isNotNull(), F.raise_error(said)).otherwise(F.lit(True)))

    def good() -> DataFrame:
        return good_rows(spark.readStream.table(sorted_view), silver, is_stream=True)

    def shaped() -> DataFrame:
        if silver.sql is None:
            return spark.readStream.table(input_view)
        return spark.sql(f"with {INPUT} as (select * from stream({input_view})) select * from ({silver.sql})")

    def aside() -> DataFrame:
        rows = spark.readStream.table(sorted_view).filter(f"{ASIDE} is not null and {ASIDE}.dropped is null")
        kept = [f"{ASIDE}.{name}" for name in QUARANTINE.names[:-1]]
        return rows.select(*kept, F.current_timestamp().alias(QUARANTINE.names[-1]))

    dp.temporary_view(name=sorted_view)(all_rows)
    dp.temporary_view(name=input_view)(good)
    dp.table(name=silver.table, partition_cols=silver.partition_by or None)(shaped)
    dp.table(name=silver.quarantine_table)(aside)


def _gold(gold: Gold, spark: SparkSession) -> None:
    dp.materialized_view(name=gold.table, partition_cols=gold.partition_by or None)(lambda: spark.sql(gold.sql))


def run(spec: str | Path, *, is_dry: bool = False) -> None:
    """Run as `spark-pipelines run` does, on this machine unless SPARK_REMOTE is set; dry: only check it.

    When it is done, Spark 4.3 sends counters that its own command takes for an error: here they are ignored.
    """
    from pyspark.pipelines import cli

    os.environ.setdefault("SPARK_REMOTE", LOCAL)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        cli.run(spec_path=Path(spec), full_refresh=[], full_refresh_all=False, refresh=[], dry=is_dry)
    except PySparkValueError as error:
        if _FALSE_ALARM not in str(error):
            raise
