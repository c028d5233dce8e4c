"""All tables of pipeline.toml, and the good orders once more: as a Delta Lake table that other tools read."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from sulina.spark.pipeline.declarative import define

spark = SparkSession.active()
pipeline = define(Path(__file__).parents[1] / "pipeline.toml", spark)

dp.create_sink("lake", "sulina-delta", {"path": pipeline.table_uri("orders")})


@dp.append_flow(target="lake")
def orders_to_the_lake() -> DataFrame:
    return spark.readStream.table("orders")
