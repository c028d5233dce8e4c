"""Tables made again from the log: into new ones, or with what came before they began.

Both are batch jobs that read a range of the log which is fixed when they begin, and commit under a name made of it: run
again, they add nothing.
"""

import json
from hashlib import sha256

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sulina.core.scan import TopicChoice
from sulina.errors import InvalidSettings
from sulina.spark.delta_log import find_table
from sulina.spark.delta_native import read_delta
from sulina.spark.logs import open_logs
from sulina.spark.options import Place
from sulina.spark.pipeline.definition import NAME, Bronze, Gold
from sulina.spark.pipeline.silver import Counts, SilverBatch
from sulina.spark.pipeline.stages import Stages
from sulina.spark.planning import Offsets, to_json
from sulina.types import Offset, PartitionName, TopicName


def replay(
    stages: Stages, table: str, into: str, *, starting: str = "earliest", ending_version: int | None = None
) -> int:
    """Make a bronze or silver table anew under another name, from a position on, to the end or to a version of the log.

    How many rows it has then. InvalidSettings.
    """
    pipeline = stages.pipeline
    made = pipeline.find(table)
    if isinstance(made, Gold):
        raise InvalidSettings(f"{table} is gold: it is made of whole tables; replay those, and ask them")
    if not NAME.fullmatch(into) or into in set(pipeline.names()):
        raise InvalidSettings(
            f"{into!r} is no name for a new table: small letters, digits and _, and none of this pipeline"
        )
    if find_table(stages.place(into)) is not None:
        raise InvalidSettings(f"there is a table {into} already: name another")
    options = {"startingOffsets": starting, "topic": pipeline.bronze_of(table).topic}
    if ending_version is not None:
        options["endingVersion"] = str(ending_version)
    rows = stages.spark.read.format("sulina").options(**stages.where(), **options).load()
    return _make(stages, rows, table, into, f"replay.{into}")


def backfill(stages: Stages, table: str) -> int:
    """Bring into a bronze table what is in the log before the first record that it has of each partition.

    How many rows came. Silver tables that are made of it take them as they take all that is new; the stream may run
    meanwhile. InvalidSettings.
    """
    pipeline = stages.pipeline
    made = pipeline.find(table)
    if not isinstance(made, Bronze):
        raise InvalidSettings(f"{table} is made of other tables: backfill {pipeline.bronze[0].table}, and it follows")
    place = Place(url=pipeline.url, path=pipeline.path, objects=None, objects_endpoint=None)
    logs = open_logs(place, TopicChoice.parse(made.topic))
    held = _first_held(stages, table)
    older: Offsets = {}
    for partition in logs.partitions():
        start, end = logs.bounds(partition)
        older[partition] = Offset(max(start, min(held.get(partition, end), end)))
    options = {"endingOffsets": json.dumps(to_json(older)), "topic": made.topic}
    rows = stages.spark.read.format("sulina").options(**stages.where(), **options).load()
    name = sha256(options["endingOffsets"].encode()).hexdigest()[:16]
    return _make(stages, rows, table, table, f"backfill.{pipeline.name}.{table}.{name}")


def _first_held(stages: Stages, table: str) -> dict[PartitionName, int]:
    """The first offset that a table has of each partition."""
    if find_table(stages.place(table)) is None:
        return {}
    rows = read_delta(stages.spark, stages.pipeline.table_uri(table))
    found = rows.groupBy("namespace", "topic", "partition").agg(F.min("offset").alias("lowest")).collect()
    return {PartitionName(TopicName(row.namespace, row.topic), row.partition): row.lowest for row in found}


def _make(stages: Stages, rows: DataFrame, table: str, into: str, app: str) -> int:
    made = stages.pipeline.find(table)
    if isinstance(made, Bronze):
        count = rows.count()
        if count:
            stages.write(rows, into, app, 0)
        return count
    assert not isinstance(made, Gold)
    counted: list[Counts] = []
    quarantine = made.quarantine_table if into == table else f"{into}_quarantine"
    silver = msgspec.structs.replace(made, table=into, quarantine=quarantine)
    SilverBatch(silver, app, stages.write, counted.append)(stages.decoded(made, rows), 0)
    return counted[0].good
