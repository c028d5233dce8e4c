"""The queries of a pipeline: one for each bronze and silver table, and for each gold one that grows.

A gold table that is asked anew has none: it is a pure function of the versions of the tables that it reads, so it is
made again when they have changed, and replaced in one commit that says of which versions it is.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from sulina.core.scan import TopicChoice
from sulina.core.topic import Schema
from sulina.errors import InvalidSettings
from sulina.spark.delta_log import find_table
from sulina.spark.delta_native import read_delta
from sulina.spark.delta_place import TablePlace
from sulina.spark.delta_table import WriteTo, commit
from sulina.spark.logs import common_schema, open_logs
from sulina.spark.options import Place
from sulina.spark.pipeline.definition import Bronze, Gold, GoldMode, Pipeline, Silver
from sulina.spark.pipeline.silver import QUARANTINE_DDL, Counts, SilverBatch, decoded, once, undecoded
from sulina.spark.schema import RAW_COLUMNS, ddl

DELTA = "sulina-delta"
Told = Callable[[str, Counts], None]


@dataclass(slots=True)
class Stages:
    """What a pipeline runs on one session."""

    spark: SparkSession
    pipeline: Pipeline
    told: Told = lambda _table, _counts: None
    _made_of: dict[str, dict[str, int]] = field(default_factory=dict)  # gold tables, and the versions they were made of

    def prepare(self) -> None:
        """Every bronze and quarantine table exists, so that whoever reads them can begin. TableSchemaConflict."""
        for bronze in self.pipeline.bronze:
            self._make(bronze.table, ddl(RAW_COLUMNS), bronze.partition_by)
        for silver in self.pipeline.silver:
            self._make(silver.quarantine_table, QUARANTINE_DDL, [])

    def _make(self, table: str, columns: str, partition_by: list[str]) -> None:
        place = self.place(table)
        if find_table(place) is None:
            schema = StructType.fromDDL(columns.replace("`", ""))
            assert isinstance(schema, StructType)
            commit(WriteTo(place=place, schema=schema, partition_columns=tuple(partition_by)), [])

    def place(self, table: str) -> TablePlace:
        """Where a table is."""
        return TablePlace.parse(self.pipeline.table_uri(table))

    # Queries

    def start(self, one: Bronze | Silver | Gold, *, is_once: bool) -> StreamingQuery:
        """Begin, or go on where it was."""
        if isinstance(one, Bronze):
            writer = self._bronze(one)
        elif isinstance(one, Silver):
            writer = self._silver(one)
        else:
            writer = self._growing(one)
        name = f"{self.pipeline.name}.{one.table}"
        writer = writer.queryName(name).option("checkpointLocation", f"{self.pipeline.checkpoint_root}/{one.table}")
        if is_once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self.pipeline.trigger_seconds} seconds").start()

    def where(self) -> dict[str, str]:
        """The options that say where topics are."""
        return {"url": self.pipeline.url} if self.pipeline.url else {"path": str(self.pipeline.path)}

    def _bronze(self, bronze: Bronze) -> DataStreamWriter:
        options = {**self.where(), "topic": bronze.topic, "startingOffsets": bronze.starting}
        if bronze.rows_per_batch_max is not None:
            options["maxRowsPerTrigger"] = str(bronze.rows_per_batch_max)
        rows = self.spark.readStream.format("sulina").options(**options).load()
        return self._to(rows, bronze.table, bronze.partition_by)

    def _to(self, rows: DataFrame, table: str, partition_by: list[str]) -> DataStreamWriter:
        options = {"path": self.pipeline.table_uri(table), "mergeSchema": "true"}
        if partition_by:
            options["partitionColumns"] = ",".join(partition_by)
        return rows.writeStream.format(DELTA).options(**options).outputMode("append")

    def _new_rows(self, table: str) -> DataFrame:
        options = {"path": self.pipeline.table_uri(table), "startingVersion": "0"}
        return self.spark.readStream.format(DELTA).options(**options).load()

    def _silver(self, silver: Silver) -> DataStreamWriter:
        rows = once(self.decoded(silver, self._new_rows(silver.source)), silver)
        batch = SilverBatch(silver, f"{self.pipeline.name}.{silver.table}", self.write, self._telling(silver.table))
        return rows.writeStream.foreachBatch(batch)

    def _telling(self, table: str) -> Callable[[Counts], None]:
        return lambda counts: self.told(table, counts)

    def decoded(self, silver: Silver, rows: DataFrame) -> DataFrame:
        """Rows of the bronze table, decoded as the silver one says."""
        return undecoded(rows) if silver.decode == "raw" else decoded(rows, self.schema(silver))

    def schema(self, silver: Silver) -> Schema:
        """What the values of its topics are: they must all be the same. InvalidSettings."""
        choice = TopicChoice.parse(self.pipeline.bronze_of(silver.table).topic)
        place = Place(url=self.pipeline.url, path=self.pipeline.path, objects=None, objects_endpoint=None)
        logs = open_logs(place, choice)
        try:
            return common_schema(logs)
        except InvalidSettings as error:
            raise InvalidSettings(f"silver table {silver.table}: {error}") from None

    def write(self, rows: DataFrame, table: str, app: str, version: int) -> None:
        """Append rows to a table, once for each app and version."""
        options = {"path": self.pipeline.table_uri(table), "mergeSchema": "true"}
        partition_by = next((one.partition_by for one in self.pipeline.silver if one.table == table), [])
        if partition_by:
            options["partitionColumns"] = ",".join(partition_by)
        rows.write.format(DELTA).options(**options, txn=app, txnVersion=str(version)).mode("append").save()

    # Gold

    def _growing(self, gold: Gold) -> DataStreamWriter:
        assert gold.source is not None
        assert gold.watermark is not None
        rows = self._new_rows(gold.source).withWatermark(gold.watermark.column, gold.watermark.delay)
        rows.createOrReplaceTempView(gold.source)
        return self._to(self.spark.sql(gold.sql), gold.table, gold.partition_by)

    def sources(self, gold: Gold) -> list[str]:
        """The tables of this pipeline that its question names."""
        names = [one.table for one in self.pipeline.all_tables if one.table != gold.table]
        names += [one.quarantine_table for one in self.pipeline.silver]
        return [name for name in names if re.search(rf"\b{name}\b", gold.sql)]

    def refresh(self, gold: Gold) -> int | None:
        """Ask anew, if the tables that it reads have changed; the number of rows of the answer. None: they have not."""
        assert gold.mode == GoldMode.COMPLETE
        versions = {}
        for name in self.sources(gold):
            table = find_table(self.place(name))
            if table is None:
                return None  # nothing has come yet
            versions[name] = table.version()
        if self._known(gold) == versions:
            return None
        for name, version in versions.items():
            read_delta(self.spark, self.pipeline.table_uri(name), version=version).createOrReplaceTempView(name)
        answer = self.spark.sql(gold.sql).persist()
        try:
            options = {"path": self.pipeline.table_uri(gold.table), "overwriteSchema": "true"}
            if gold.partition_by:
                options["partitionColumns"] = ",".join(gold.partition_by)
            made_of = json.dumps({"sources": versions})
            answer.write.format(DELTA).options(**options, userMetadata=made_of).mode("overwrite").save()
            self._made_of[gold.table] = versions
            return answer.count()
        finally:
            answer.unpersist()

    def _known(self, gold: Gold) -> dict[str, int] | None:
        """The versions of which the table was made last, as its log says."""
        if gold.table not in self._made_of:
            table = find_table(self.place(gold.table))
            found: dict[str, Any] = {}
            for entry in table.history(1) if table is not None else ():
                found = json.loads(entry.get("userMetadata") or "{}")
            self._made_of[gold.table] = found.get("sources", {})
        return self._made_of[gold.table] or None
