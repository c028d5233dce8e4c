"""Replay of tables from the log, and repairs: rows from before a table began, and rows that were put aside by mistake.

- A `replay` fills a table of its own, in one commit.
- A `backfill` and a `retry` add to a table while its stream runs. Each looks at one version of the table, finds out
  what that lacks, and commits it under the number after that of the last repair which that version has. Of two that
  have looked at the same, one commits and the other adds nothing. Run again, they find nothing left to do.
- A backfill ends where the stream began. What batches that are done have read is in the table. So the stream began at
  the first row of the table or, where it has none, where the newest of these batches ended.
- A record that was put aside is open until the table has a row of it, by topic, partition and offset. The quarantine
  only grows. A retry takes what batches that are done have put aside: another may yet put it elsewhere when it is run
  again, with a definition that has been mended.
- Where rows are the same as others once (`deduplicate`), a retry adds none that the table has. The stream does not know
  what was retried: the same row that it reads later is there twice.
"""

import json
from dataclasses import dataclass
from functools import reduce
from uuid import uuid4

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sulina.errors import InvalidSettings
from sulina.spark.delta_log import find_table
from sulina.spark.delta_native import read_delta
from sulina.spark.errors import ExpectationFailed, own_errors
from sulina.spark.log_catalogue import open_catalogue
from sulina.spark.options import LogLocation
from sulina.spark.pipeline.definition import NAME, Bronze, Gold, Silver
from sulina.spark.pipeline.silver import ASIDE, sorted_out
from sulina.spark.pipeline.stages import DELTA, Stages
from sulina.spark.planner import Offsets, from_json, to_json
from sulina.spark.scan import TopicChoice
from sulina.spark.table_location import LOG_FOLDER
from sulina.types import Offset, PartitionName, TopicName

RECORD = ("namespace", "topic", "partition", "offset")


@own_errors()
def replay(stages: Stages, table: str, into: str, *, start: str = "earliest", end: str = "latest") -> int:
    """Make a bronze or silver table again under another name, from one position of the log to another.

    Return how many rows it has then.

    Raises:
        InvalidSettings: there is no such table, it is a gold one, or the new name or a position is not possible.
        VersionNotRetained: the log no longer has that version.
        OffsetOutOfRange: the log does not have that offset.
    """
    pipeline = stages.pipeline
    made = pipeline.find(table)
    if isinstance(made, Gold):
        raise InvalidSettings(f"{table} is a gold table: replay the tables that it reads instead")
    if not NAME.fullmatch(into) or into in pipeline.names:
        raise InvalidSettings(
            f"{into!r} cannot name the new table: use small letters, digits and _, and no table of this pipeline"
        )
    if find_table(stages.location(into)) is not None:
        raise InvalidSettings(f"table {into} exists already: choose another name")
    options = {"start": start, "end": end, "topic": pipeline.bronze_of(table).topic}
    rows = stages.spark.read.format("sulina").options(**stages.pipeline.topic_options, **options).load()
    if isinstance(made, Bronze):
        stages.write(rows, into, f"replay.{into}", 0)
    else:
        silver = msgspec.structs.replace(made, table=into, quarantine=f"{into}_quarantine")
        stages.write_silver(rows, silver, f"replay.{into}")
    return stages.rows_of(into)


# Repairs


@dataclass(frozen=True, slots=True)
class Repair:
    """One version of a table, and what is to be added to it if nobody has repaired it since."""

    stages: Stages
    table: str
    app: str
    number: int
    version: int | None  # None: there is no table yet

    @classmethod
    def of(cls, stages: Stages, table: str, kind: str) -> "Repair":
        found = find_table(stages.location(table))
        app = f"{kind}.{stages.pipeline.name}.{table}"
        last = None if found is None else found.transaction_version(app)
        return cls(stages, table, app, 0 if last is None else last + 1, None if found is None else found.version())

    def held(self) -> DataFrame | None:
        """Return the rows of the table at that version; None: there is no table yet."""
        if self.version is None:
            return None
        return read_delta(self.stages.spark, self.stages.pipeline.table_uri(self.table), version=self.version)

    def add(self, rows: DataFrame, partition_by: list[str]) -> bool:
        """Add rows. Return False if another repair of the same version came first."""
        ours = uuid4().hex
        options = {
            "path": self.stages.pipeline.table_uri(self.table),
            "mergeSchema": "true",
            "txn": self.app,
            "txnVersion": str(self.number),
            "userMetadata": json.dumps({"repair": self.app, "id": ours}),
        }
        if partition_by:
            options["partitionColumns"] = ",".join(partition_by)
        rows.write.format(DELTA).options(**options).mode("append").save()
        return self._has(ours)

    def _has(self, ours: str) -> bool:
        location = self.stages.location(self.table)
        found = find_table(location)
        newest = -1 if found is None else found.version()
        for version in range(newest, -1 if self.version is None else self.version, -1):
            commit = location.objects().get(f"{LOG_FOLDER}/{version:020d}.json")
            if commit is not None and ours.encode() in bytes(commit):
                return True
        return False


# What was before


@own_errors()
def backfill(stages: Stages, table: str) -> int:
    """Add to a bronze table what the log has from before its stream began. Return the number of rows.

    Silver tables that are made from it read these rows as any new ones; the stream may run meanwhile.

    Raises:
        InvalidSettings: it is not a bronze table.
        BatchUnfinished: it is not known yet where the stream began.
    """
    pipeline = stages.pipeline
    made = pipeline.find(table)
    if not isinstance(made, Bronze):
        raise InvalidSettings(f"{table} is made of other tables: backfill {pipeline.bronze[0].table}, and it follows")
    checkpoint = stages.checkpoint(table)
    read, _ = from_json(checkpoint.end_of(checkpoint.wait_done()))
    repair = Repair.of(stages, table, "backfill")
    held = _first_held(repair)
    location = LogLocation(url=pipeline.url, path=pipeline.path, objects=None, objects_endpoint=None)
    logs = open_catalogue(location, TopicChoice.parse(made.topic))
    starts: Offsets = {}
    ends: Offsets = {}
    for partition in logs.partitions():
        start, end = logs.bounds(partition)
        # A partition that the stream has not met yet is its own from the first record on.
        began = min(held.get(partition, read[partition]), read[partition]) if partition in read else start
        starts[partition], ends[partition] = start, Offset(max(start, min(began, end)))
    count = sum(ends[partition] - starts[partition] for partition in ends)
    if not count:
        return 0
    options = {name: json.dumps(to_json(at)) for name, at in (("start", starts), ("end", ends))}
    rows = (
        stages.spark.read.format("sulina").options(**stages.pipeline.topic_options, **options, topic=made.topic).load()
    )
    return count if repair.add(rows, made.partition_by) else 0


def _first_held(repair: Repair) -> dict[PartitionName, Offset]:
    """Return the first offset that a table has of each partition."""
    rows = repair.held()
    if rows is None:
        return {}
    found = rows.groupBy(*RECORD[:3]).agg(F.min("offset").alias("lowest")).collect()
    return {PartitionName(TopicName(row.namespace, row.topic), row.partition): Offset(row.lowest) for row in found}


# What was put aside


class Retried(msgspec.Struct, frozen=True):
    """How many quarantined records were added, and how many stay."""

    rows: int  # that were added to the table
    left: int  # records that stay in the quarantine


@own_errors()
def retry(stages: Stages, table: str) -> Retried:
    """Decode and check again what a silver table put aside, as it is defined now. Good rows are added once.

    Raises:
        InvalidSettings: it is not a silver table, or its rows do not say which record they are of.
        BatchUnfinished: the stream has not reached what was put aside.
        ExpectationFailed: a row must not be there at all, and nothing was added.
    """
    silver = stages.pipeline.find(table)
    if not isinstance(silver, Silver):
        raise InvalidSettings(f"{table} has no quarantine: only silver tables do")
    aside = find_table(stages.location(silver.quarantine_table))
    if aside is None:
        return Retried(0, 0)
    last = aside.transaction_version(f"{stages.pipeline.name}.{table}")
    if last is not None:
        stages.checkpoint(table).wait_done(last)
    repair = Repair.of(stages, table, "retry")
    records = _open(stages, silver, aside.version(), repair).persist()
    decoded = stages.decoded(silver, _whole(stages, silver, records))
    ready = sorted_out(_unlike(decoded, repair.held(), silver), silver).persist()
    try:
        _check_allowed(ready, silver)
        good, key = ready.filter(F.col(ASIDE).isNull()).drop(ASIDE), _record_key(stages, silver)
        rows, left = good.count(), records.count()
        if rows and repair.add(good, silver.partition_by):
            left -= good.select(*(f"_{name}" for name in key)).distinct().count()
        else:
            rows = 0
        return Retried(rows, left)
    finally:
        ready.unpersist()
        records.unpersist()


def _record_key(stages: Stages, silver: Silver) -> tuple[str, ...]:
    """Return the columns that tell a record from all others: with one topic, without its name."""
    topics = TopicChoice.parse(stages.pipeline.bronze_of(silver.source).topic).names
    return RECORD[2:] if topics is not None and len(topics) == 1 else RECORD


def _open(stages: Stages, silver: Silver, version: int, repair: Repair) -> DataFrame:
    """Return the records that were put aside and that the table has no row of, each once."""
    uri = stages.pipeline.table_uri(silver.quarantine_table)
    records = read_delta(stages.spark, uri, version=version).dropDuplicates(list(RECORD))
    held, key = repair.held(), _record_key(stages, silver)
    if held is None:
        return records
    _check_columns(held, [f"_{name}" for name in key], silver)
    there = held.select(*(F.col(f"_{name}").alias(name) for name in key))
    return records.join(there, list(key), "left_anti")


def _check_columns(rows: DataFrame, needed: list[str], silver: Silver) -> None:
    missing = [name for name in needed if name not in rows.columns]
    if missing:
        raise InvalidSettings(
            f"silver table {silver.table} has no column {', '.join(missing)}, so which records it has is unknown: "
            f"keep them in its sql, or replay it into a new table"
        )


def _whole(stages: Stages, silver: Silver, records: DataFrame) -> DataFrame:
    """Return the records as the bronze table has them: it alone keeps headers, which raw values come with."""
    if silver.decode != "raw":
        return records
    bronze = read_delta(stages.spark, stages.pipeline.table_uri(silver.source))
    return bronze.join(records.select(*RECORD), list(RECORD), "left_semi")


def _check_allowed(ready: DataFrame, silver: Silver) -> None:
    failed = ready.filter(F.col(f"{ASIDE}.failed").isNotNull()).select(f"{ASIDE}.*")
    found = failed.groupBy("failed").agg(F.count("*").alias("rows"), F.min(F.struct(*RECORD[1:])).alias("first"))
    for row in found.limit(1).collect():
        first = f"{row.first.topic}/{row.first.partition} at offset {row.first.offset}"
        raise ExpectationFailed(table=silver.table, expectation=row.failed, rows=row.rows, first=first)


def _unlike(rows: DataFrame, held: DataFrame | None, silver: Silver) -> DataFrame:
    """Return the rows that the table does not have, where rows are to come once."""
    if held is None or silver.watermark is None or not silver.deduplicate:
        return rows
    time = silver.watermark.column
    _check_columns(held, [*silver.deduplicate, time], silver)
    ours, theirs = rows.alias("ours"), held.alias("theirs")
    delay = F.expr(f"interval '{silver.watermark.delay}'")
    at = F.col(f"ours.`{time}`")
    alike = [F.col(f"ours.`{name}`").eqNullSafe(F.col(f"theirs.`{name}`")) for name in silver.deduplicate]
    near: Column = F.col(f"theirs.`{time}`").between(at - delay, at + delay)
    return ours.join(theirs, reduce(Column.__and__, alike, near), "left_anti")
