"""The queries of a pipeline: one for each bronze and silver table, and for each gold one that grows.

A complete gold table has none: it is a pure function of the versions of the tables that it reads, so it is
made again when they have changed, and replaced in one commit that says of which versions it is.
"""

import json
import os
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from sulina.errors import InvalidSettings
from sulina.spark.delta_log import find_table, schema_of, snapshot
from sulina.spark.delta_native import read_delta
from sulina.spark.delta_table import WriteTo, commit
from sulina.spark.errors import failing
from sulina.spark.pipeline.checkpoints import QueryCheckpoint
from sulina.spark.pipeline.definition import Bronze, Gold, GoldMode, Pipeline, Silver, Table
from sulina.spark.pipeline.silver import ASIDE, decoded, sorted_out, undecoded
from sulina.spark.pipeline.silver_sink import FORMAT, QUARANTINE, register
from sulina.spark.pipeline.value_schema import values_schema
from sulina.spark.schema import RAW_SCHEMA
from sulina.spark.session import cloned
from sulina.spark.table_location import TableLocation
from sulina.spark.value_schemas import spark_type

DELTA = "sulina-delta"
LOOKS_PER_TRIGGER = 4  # of a table that is made from another table, for new rows there


@dataclass(slots=True)
class Stages:
    """The queries of a pipeline, on a clone of a session: temporary views of the user are there, and stay theirs."""

    spark: SparkSession
    pipeline: Pipeline
    _made_of: dict[str, dict[str, int]] = field(default_factory=dict)  # gold tables, and the versions they were made of

    def __post_init__(self) -> None:
        self.pipeline = anywhere(self.pipeline)
        if self.pipeline.silver:
            register(self.spark)  # before it is cloned: a clone cannot replace what it got
        self.spark = cloned(self.spark)
        self._drop_views()  # where SQL names a table, it is the pipeline's and never a view of the user

    def prepare(self) -> None:
        """Check the queries, and create every bronze and quarantine table, so that queries that read them can start.

        Raises:
            PipelineFailed: the SQL of a table is wrong.
            TableSchemaConflict: one exists with other columns.
        """
        self.check_queries()
        tables = [(one.table, spark_type(RAW_SCHEMA), tuple(one.partition_by)) for one in self.pipeline.bronze]
        tables += [(one.quarantine_table, QUARANTINE, ()) for one in self.pipeline.silver]
        for table, columns, partition_columns in tables:
            if find_table(self.location(table)) is None:
                commit(WriteTo(location=self.location(table), schema=columns, partition_columns=partition_columns), [])

    def check_queries(self) -> None:
        """Check the SQL of silver and gold tables, on no rows: nothing is read or written.

        Raises:
            PipelineFailed: Spark does not know a column, a table or a word of it.
        """
        made: dict[str, StructType] = {}
        for silver in self.pipeline.silver:
            made[silver.quarantine_table] = QUARANTINE
            with failing(self.pipeline.name, silver.table):
                rows = self.spark.createDataFrame([], spark_type(RAW_SCHEMA))
                found = sorted_out(self.decoded(silver, rows), silver).schema
                made[silver.table] = StructType([one for one in found.fields if one.name != ASIDE])
        for bronze in self.pipeline.bronze:
            made[bronze.table] = spark_type(RAW_SCHEMA)
        try:
            for gold in self.pipeline.gold_in_order:
                self._drop_views()
                made[gold.table] = self._answer_columns(gold, made)
        finally:
            self._drop_views()  # which have no rows: what runs later must not find them

    def _answer_columns(self, gold: Gold, made: dict[str, StructType]) -> StructType:
        """Return the columns of a gold table, from those of the tables that its query can read. PipelineFailed."""
        others = [name for name in self.pipeline.names if name != gold.table]
        with failing(self.pipeline.name, gold.table, others if gold.source is None else [gold.source]):
            for name in self.pipeline.sources_of(gold) if gold.mode == GoldMode.COMPLETE else [gold.source or ""]:
                columns = self._widened(name, made.get(name, StructType()))
                if columns.fields:
                    self.spark.createDataFrame([], columns).createOrReplaceTempView(name)
            return self.spark.sql(gold.sql).schema

    def _drop_views(self) -> None:
        for name in self.pipeline.names:
            self.spark.catalog.dropTempView(name)

    def _widened(self, table: str, columns: StructType) -> StructType:
        """Return these columns, and those that a table has from earlier definitions."""
        found = find_table(self.location(table))
        older = schema_of(found).fields if found is not None else []
        return StructType([*columns.fields, *(one for one in older if one.name not in columns.names)])

    def location(self, table: str) -> TableLocation:
        """Return where a table is."""
        return TableLocation.parse(self.pipeline.table_uri(table))

    # Queries

    def start(self, one: Bronze | Silver | Gold, *, is_once: bool) -> StreamingQuery:
        """Begin, or go on where it was."""
        if isinstance(one, Silver):
            writer = self._silver(one)
        else:
            if isinstance(one, Bronze):
                rows = self.spark.readStream.format("sulina").options(**bronze_options(self.pipeline, one)).load()
            else:
                rows = self._growing(one)
            options = {"path": self.pipeline.table_uri(one.table), "mergeSchema": "true"}
            if one.partition_by:
                options["partitionColumns"] = ",".join(one.partition_by)
            writer = rows.writeStream.format(DELTA).options(**options).outputMode("append")
        name, checkpoint = f"{self.pipeline.name}.{one.table}", self.checkpoint(one.table)
        if not checkpoint.has_begun():
            check_begun(self.pipeline, one)
            checkpoint.remove_torn_start()
        writer = writer.queryName(name).option("checkpointLocation", checkpoint.uri)
        if is_once:
            return writer.trigger(availableNow=True).start()
        seconds = self.pipeline.trigger_seconds
        if not isinstance(one, Bronze):
            seconds /= LOOKS_PER_TRIGGER  # there is a batch only where the table before has one: looking costs little
        return writer.trigger(processingTime=f"{seconds} seconds").start()

    def checkpoint(self, table: str) -> QueryCheckpoint:
        """Return the checkpoint of the query that writes a table."""
        return checkpoint_of(self.pipeline, table)

    def _new_rows(self, table: str, *, of: str) -> DataFrame:
        options = {"path": self.pipeline.table_uri(table), "reader": f"{self.pipeline.name}.{of}"}
        return self.spark.readStream.format(DELTA).options(**options).load()

    def _silver(self, silver: Silver) -> DataStreamWriter:
        rows = sorted_out(self.decoded(silver, self._new_rows(silver.source, of=silver.table)), silver, is_stream=True)
        options = self._silver_options(silver, f"{self.pipeline.name}.{silver.table}")
        return rows.writeStream.format(FORMAT).options(**options).outputMode("append")

    def _silver_options(self, silver: Silver, app: str) -> dict[str, str]:
        options = {
            "path": self.pipeline.table_uri(silver.table),
            "quarantine": self.pipeline.table_uri(silver.quarantine_table),
            "table": silver.table,
            "app": app,
        }
        return options | ({"partitionColumns": ",".join(silver.partition_by)} if silver.partition_by else {})

    def decoded(self, silver: Silver, rows: DataFrame) -> DataFrame:
        """Return rows of the bronze table, decoded as the silver one is defined.

        Raises:
            InvalidSettings: its topics have no schema, or several.
        """
        return undecoded(rows) if silver.decode == "raw" else decoded(rows, values_schema(self.pipeline, silver))

    def write(self, rows: DataFrame, table: str, app: str, version: int) -> None:
        """Append rows to a table, once for each app and version."""
        options = {"path": self.pipeline.table_uri(table), "mergeSchema": "true"}
        rows.write.format(DELTA).options(**options, txn=app, txnVersion=str(version)).mode("append").save()

    def write_silver(self, rows: DataFrame, silver: Silver, app: str) -> None:
        """Append the records of a bronze table or of a topic to a silver one, once for each app. ExpectationFailed."""
        ready = sorted_out(self.decoded(silver, rows), silver)
        ready.write.format(FORMAT).options(**self._silver_options(silver, app)).mode("append").save()

    def rows_of(self, table: str) -> int:
        """Return how many rows a table has."""
        return rows_of(self.location(table))

    # Gold

    def _growing(self, gold: Gold) -> DataFrame:
        """Return the new rows of a gold table that grows."""
        assert gold.source is not None
        assert gold.watermark is not None
        rows = self._new_rows(gold.source, of=gold.table).withWatermark(gold.watermark.column, gold.watermark.delay)
        rows.createOrReplaceTempView(gold.source)
        return self.spark.sql(gold.sql)

    def refresh(self, gold: Gold) -> int | None:
        """Run the query again if the tables that it reads have changed; return the number of its rows, else None."""
        assert gold.mode == GoldMode.COMPLETE
        versions = {}
        for name in self.pipeline.sources_of(gold):
            table = find_table(self.location(name))
            if table is None:
                return None  # nothing has come yet
            versions[name] = table.version()
        known = self._known(gold) if versions else self._made_of.get(gold.table)  # no tables: once in each run
        if known == versions:
            return None
        for name, version in versions.items():
            read_delta(self.spark, self.pipeline.table_uri(name), version=version).createOrReplaceTempView(name)
        options = {"path": self.pipeline.table_uri(gold.table), "overwriteSchema": "true"}
        if gold.partition_by:
            options["partitionColumns"] = ",".join(gold.partition_by)
        made_of = json.dumps({"sources": versions})
        answer = self.spark.sql(gold.sql)
        answer.write.format(DELTA).options(**options, userMetadata=made_of).mode("overwrite").save()
        self._made_of[gold.table] = versions
        return self.rows_of(gold.table)

    def _known(self, gold: Gold) -> dict[str, int] | None:
        """Return the versions from which the table was made last, as its log has them."""
        if gold.table not in self._made_of:
            table = find_table(self.location(gold.table))
            found: dict[str, Any] = {}
            for entry in table.history(1) if table is not None else ():
                found = json.loads(entry.get("userMetadata") or "{}")
            self._made_of[gold.table] = found.get("sources", {})
        return self._made_of[gold.table] or None


def rows_of(location: TableLocation) -> int:
    """Return how many rows a table has."""
    found = find_table(location)
    return sum(snapshot(found).column("num_records").to_pylist()) if found is not None else 0


def checkpoint_of(pipeline: Pipeline, table: str) -> QueryCheckpoint:
    """Return the checkpoint of the query that writes a table."""
    return QueryCheckpoint(f"{pipeline.checkpoint_root}/{table}", table)


def check_begun(pipeline: Pipeline, one: Table) -> None:
    """Check that the tables of a query without a batch have no rows.

    Raises:
        InvalidSettings: rows would be written twice, or new batches taken for old ones.
    """
    checkpoint = checkpoint_of(pipeline, one.table)
    tables = (one.table, one.quarantine_table) if isinstance(one, Silver) else (one.table,)
    for table in tables:
        if not checkpoint.has_begun() and rows_of(TableLocation.parse(pipeline.table_uri(table))):
            raise InvalidSettings(
                f"table {table} has rows, and the checkpoint {checkpoint.uri} that goes with them is gone, or of a "
                f"pipeline with another name: bring it back, or remove the table as well"
            )


def bronze_options(pipeline: Pipeline, bronze: Bronze) -> dict[str, str]:
    """Return the options with which a bronze table reads its topics."""
    options = {**pipeline.topic_options, "topic": bronze.topic, "start": bronze.start}
    if bronze.rows_per_batch_max:
        options["maxRowsPerTrigger"] = str(bronze.rows_per_batch_max)
    if not bronze.fail_on_data_loss:
        options["failOnDataLoss"] = "false"
    return options


def anywhere(pipeline: Pipeline) -> Pipeline:
    """Return the definition with absolute paths: a Spark Connect server has another working directory."""
    given = {name: getattr(pipeline, name) for name in ("tables", "checkpoints", "path")}
    paths = {name: os.path.abspath(at) for name, at in given.items() if at is not None and "://" not in at}
    return replace(pipeline, **paths)
