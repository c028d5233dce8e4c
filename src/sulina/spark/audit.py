"""Audit of a topic: every offset exists once, checksums hold, versions have no gap, and the table equals the log.

- What is looked at is decided at the start: first the version of the table, then the ends of the log. So whatever the
  table has was in the log by then, and what comes later is not looked at.
- The log is read once, by executors, from where it is, every batch checked and nothing taken from a cache. Of each
  range of offsets they make sums (`audit_checks` says which); the table's are compared with them here.
- Damage ends a job. It is told with its place, and the audit goes on around it, up to a limit.
- Ranges that differ are read once more, a few of them, to say which offsets it is.

Runs in the driver. Nothing is written.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from sulina.core.log.commit import Add
from sulina.errors import (
    Corrupt,
    DecompressedTooLarge,
    InvalidBatch,
    InvalidSettings,
    OffsetOutOfRange,
    SulinaError,
    from_code,
)
from sulina.spark.audit_checks import (
    FINDINGS_MAX,
    OUTSIDE,
    RANGE_OFFSETS,
    AuditReport,
    ByRange,
    Coverage,
    Finding,
    Interval,
    Kind,
    OffsetHashes,
    PartitionAudit,
    Rules,
    Sums,
    Suspect,
    beginnings,
    check_commits,
    check_log,
    check_table,
    check_unknown,
    frontiers,
    joined,
    look_closer,
    range_size,
)
from sulina.spark.delta_log import open_table
from sulina.spark.delta_native import read_delta
from sulina.spark.errors import SparkFailed, said
from sulina.spark.log_catalogue import LogCatalogue, open_catalogue
from sulina.spark.options import LogLocation
from sulina.spark.planner import to_json
from sulina.spark.scan import TopicChoice
from sulina.spark.schema import RAW_COLUMNS, RAW_SCHEMA
from sulina.spark.table_location import TableLocation
from sulina.spark.value_schemas import spark_type
from sulina.types import Offset, PartitionName, TopicName

DAMAGES_MAX = 20  # findings of damage in one partition; the offsets after the last are not read
CLOSER_RANGES_MAX = 20
CLOSER_OFFSETS_MAX = 1_000_000  # in one range
STARTS_MAX = 5  # how often retention may overtake the audit of a range
WORD_BITS = 64
LOG_KINDS = (Kind.MISSING, Kind.REPEATED)
HASHED = ("offset", "timestamp", "key", "value", "headers")
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_PARTITION = re.compile(r"-part=(\d+)")
_OFFSET = re.compile(r"\(offset (\d+)\)")


@dataclass(frozen=True, slots=True)
class TopicRows:
    """The rows of a table that came from the topic: partition, offset, and a hash where rows hold whole records."""

    rows: DataFrame
    is_whole: bool


@dataclass(slots=True, kw_only=True)
class Audit:
    """An audit of one topic, and of a table that was made from it."""

    spark: SparkSession
    location: LogLocation
    topic: TopicName
    table: str | None = None
    quarantine: str | None = None  # the quarantine table of a silver table
    is_complete: bool = False  # a table that is behind is a finding
    is_from_first: bool = False  # so is one that begins later than the log
    range_offsets: int = RANGE_OFFSETS
    _logs: LogCatalogue = field(init=False)
    _rules: Rules = field(init=False)
    _names: dict[int, PartitionName] = field(init=False, default_factory=dict)
    _audits: dict[int, PartitionAudit] = field(init=False, default_factory=dict)
    _findings: list[Finding] = field(init=False, default_factory=list)
    _begins: dict[int, int] = field(init=False, default_factory=dict)  # the table's first row of each partition

    def run(self) -> AuditReport:
        """Read the whole log, and the table. Damage becomes a finding, and is not raised.

        Raises:
            TopicNotFound: there is no such topic.
            TableNotFound: there is no such table.
            InvalidSettings: the options contradict each other.
            Disconnected: no broker answers.
        """
        began = time.monotonic()
        if self.range_offsets < 1:
            raise InvalidSettings(f"a range has 1 offset or more, not {self.range_offsets}")
        self.spark.conf.set(PUSHDOWN, "true")  # else a partition that cannot be read would stop the others
        self._audits, self._names, self._findings = {}, {}, []
        held, version = None, None
        try:
            held, version = self._held()
        except PySparkException as error:
            self._unreadable(error)
        self._fix_scope(is_whole=held is None or held.is_whole)
        self._check_versions()
        table = self._table_sums(held)
        ends = frontiers(self._audits.values(), table) if table is not None else {}
        self._begins = beginnings(self._audits.values(), table, self._rules) if table is not None else {}
        log = self._log_sums(ends)
        suspects: list[Suspect] = []
        for audit in self._audits.values():
            suspects += check_log(audit, log, self._rules)
            if table is not None:
                suspects += check_table(
                    audit, log, table, ends[audit.partition], self._rules, self._begins[audit.partition]
                )
        if table is not None:
            suspects += check_unknown(table, self._names)
        self._findings += joined(self._closer(suspects, held if table is not None else None))
        return AuditReport(
            topic=str(self.topic),
            table=self.table,
            table_version=version,
            holds=not self._findings,
            partitions=[self._audits[number] for number in sorted(self._audits)],
            findings=self._findings[:FINDINGS_MAX],
            findings_left_out=max(0, len(self._findings) - FINDINGS_MAX),
            seconds=round(time.monotonic() - began, 3),
        )

    # What is looked at

    def _fix_scope(self, *, is_whole: bool) -> None:
        self._logs = open_catalogue(self.location, TopicChoice((str(self.topic),)))
        for name in self._logs.partitions():
            self._names[name.partition] = name
            try:
                start, end = self._logs.bounds(name)
            except Corrupt as error:
                # What its commits say is all that can be told of it.
                self._findings.append(Finding(kind=Kind.DAMAGED, what=str(error), partition=name.partition))
                continue
            self._audits[name.partition] = PartitionAudit(partition=name.partition, start=start, end=end)
        source = self._logs.source()
        self._rules = Rules(
            range_offsets=range_size(sum(one.end - one.start for one in self._audits.values()), self.range_offsets),
            is_whole=is_whole,
            must_be_complete=self.is_complete,
            must_begin_first=self.is_from_first,
            may_be_ahead=source.url is None and source.directory is None,
        )

    def _check_versions(self) -> None:
        for number, name in self._names.items():
            audit = self._audits.get(number)
            seen = check_commits(
                number,
                self._logs.commits(name),
                end=None if audit is None else audit.end,
                is_kept=partial(self._is_kept, name),
            )
            self._findings += seen.findings
            if audit is not None:
                audit.versions = seen.versions

    def _is_kept(self, name: PartitionName, version: int) -> bool:
        oldest = next(self._logs.commits(name), None)
        return oldest is not None and oldest.version <= version

    # The table

    def _held(self) -> tuple[TopicRows | None, int | None]:
        """Return the rows of the table and its version.

        Raises:
            TableNotFound: there is no such table.
            TableUnsupported: it has a feature that this reader lacks.
            InvalidSettings: it has not the columns of a bronze or silver table, or the options do not fit it.
        """
        if self.table is None:
            if self.quarantine is not None or self.is_complete or self.is_from_first:
                raise InvalidSettings("no table is given to compare with the log: add --table TABLE")
            return None, None
        rows, version = self._load(self.table)
        if set(HASHED) <= set(rows.columns):
            if self.quarantine is not None:
                raise InvalidSettings(f"{self.table} has every record: only a silver table has a quarantine")
            _check_types(self.table, rows.schema)
            return TopicRows(_offsets(self._of_topic(rows, ""), "", _hash().alias("hash")), True), version
        if not {"_partition", "_offset"} <= set(rows.columns):
            raise InvalidSettings(
                f"{self.table} cannot be compared with a log: a bronze table has the columns {', '.join(RAW_COLUMNS)}, "
                f"a silver one has _partition and _offset"
            )
        if self.is_complete or self.is_from_first:
            raise InvalidSettings(f"{self.table} is a silver table, which may leave records out: it is never complete")
        found = _offsets(self._of_topic(rows, "_"), "_")
        if self.quarantine is not None:
            aside, _ = self._load(self.quarantine)
            if not {"partition", "offset"} <= set(aside.columns):
                raise InvalidSettings(
                    f"{self.quarantine} is not a quarantine table: it lacks the columns partition and offset"
                )
            found = found.unionByName(_offsets(self._of_topic(aside, ""), ""))
        return TopicRows(found, False), version

    def _load(self, uri: str) -> tuple[DataFrame, int]:
        endpoint = self.location.objects_endpoint if "://" in uri and not uri.startswith("file:") else None
        version = open_table(TableLocation.parse(uri, endpoint)).version()
        return read_delta(self.spark, uri, version=version, endpoint=endpoint), version

    def _of_topic(self, rows: DataFrame, mark: str) -> DataFrame:
        """Keep the rows of this topic; all rows where the table does not name topics."""
        for column, value in (("namespace", self.topic.namespace), ("topic", self.topic.topic)):
            if f"{mark}{column}" in rows.columns:
                rows = rows.filter(F.col(f"{mark}{column}") == value)
        return rows

    def _table_sums(self, held: TopicRows | None) -> ByRange | None:
        """Return the sums of the table by range. None: there is no table, or it cannot be read."""
        if held is None:
            return None
        if not self._audits:
            return {}
        starts = _looked_up({number: audit.start for number, audit in self._audits.items()})
        ends = _looked_up({number: audit.end for number, audit in self._audits.items()})
        offset = F.col("offset")
        coverage = (
            F.when(starts.isNull() | (offset < 0) | (offset >= ends), F.lit(int(Coverage.FOREIGN)))
            .when(offset < starts, F.lit(int(Coverage.FORGOTTEN)))
            .otherwise(F.lit(int(Coverage.HELD)))
        )
        rows = held.rows
        broken = [number for number in self._names if number not in self._audits]
        if broken:
            rows = rows.filter(~F.col("partition").isin(broken))  # nothing is known of the log there
        try:
            return _sums(rows, self._rules.range_offsets, coverage, has_hash=held.is_whole)
        except PySparkException as error:
            self._unreadable(error)
            return None

    def _unreadable(self, error: PySparkException) -> None:
        what = f"the table cannot be read: {said(error)[1]}"
        self._findings.append(Finding(kind=Kind.TABLE_UNREADABLE, what=what))

    # The log

    def _log_sums(self, ends: dict[int, int]) -> ByRange:
        """Return the sums of all partitions. If one is damaged it is read by itself, and the others again."""
        left = {number: (audit.start, audit.end) for number, audit in self._audits.items() if audit.start < audit.end}
        found: ByRange = {}
        while left:
            try:
                return found | self._sums_of(left, ends)
            except PySparkException as error:
                named = _PARTITION.search(_damage(error)[1])
            alone = [int(named[1])] if named and int(named[1]) in left else list(left)
            for number in alone:
                del left[number]
                for sums in self._around_damage(self._audits[number], ends):
                    for key, value in sums.items():
                        found[key] = found.get(key, Sums()).plus(value)
        return found

    def _around_damage(self, audit: PartitionAudit, ends: dict[int, int]) -> Iterator[ByRange]:
        """Read a partition piece by piece and note what cannot be read."""
        left: list[Interval] = [(audit.start, audit.end)]
        damages = starts = 0
        while left:
            start, end = left.pop()
            try:
                yield self._sums_of({audit.partition: (start, end)}, ends)
                continue
            except PySparkException as error:
                kind, what = _damage(error)
            if issubclass(kind, OffsetOutOfRange):
                starts += 1
                first = min(end, self._logs.bounds(self._names[audit.partition])[0])
                if first <= start or starts > STARTS_MAX:
                    raise from_code(kind.code, what, {})
                audit.unread = sorted([*audit.unread, (start, first)])  # retention was quicker
                left += [(first, end)] if first < end else []
                continue
            damages += 1
            position = _OFFSET.search(what)
            is_inside = position is not None and start <= int(position[1]) < end
            at = int(position[1]) if position and is_inside else start
            until = self._damage_end(audit.partition, at, end, is_inside) if damages < DAMAGES_MAX else end
            audit.unread = sorted([*audit.unread, (at, until)])
            self._findings.append(
                Finding(
                    kind=Kind.DAMAGED, what=what, partition=audit.partition, start=at, end=until, records=until - at
                )
            )
            left += [piece for piece in ((until, end), (start, at)) if piece[0] < piece[1]]

    def _damage_end(self, partition: int, offset: int, otherwise: int, is_first: bool) -> int:
        """Return where to read on: after everything that was added together with the damaged batch.

        If that did not help, because the batch does not lead to the next one, return the end of its file or object.
        """
        name = self._names[partition]
        if is_first:
            with suppress(Corrupt):
                for commit in self._logs.commits(name):
                    for add in commit.operations:
                        if isinstance(add, Add) and add.offset_start <= offset < add.offset_end:
                            return min(add.offset_end, otherwise)
        pieces = self._logs.span(name).pieces
        return next((min(piece.end, otherwise) for piece in pieces if piece.start <= offset < piece.end), otherwise)

    def _sums_of(self, wanted: dict[int, Interval], ends: dict[int, int]) -> ByRange:
        coverage = F.lit(int(Coverage.HELD))
        if ends:
            is_behind = F.col("offset") >= _looked_up(ends)
            is_before = F.col("offset") < _looked_up(self._begins)
            coverage = (
                F.when(is_behind, F.lit(int(Coverage.BEHIND)))
                .when(is_before, F.lit(int(Coverage.BEFORE)))
                .otherwise(coverage)
            )
        has_hash = bool(ends) and self._rules.is_whole
        return _sums(self._log(wanted, has_hash=has_hash), self._rules.range_offsets, coverage, has_hash=has_hash)

    def _log(self, wanted: dict[int, Interval], *, has_hash: bool) -> DataFrame:
        """Return the records of these intervals: partition, offset, and hash if it is asked for."""
        where = {
            "url": self.location.url,
            "path": self.location.path,
            "objects": self.location.objects,
            "objectsEndpoint": self.location.objects_endpoint,
        }
        options = {name: value for name, value in where.items() if value is not None}
        for which, at in (("start", 0), ("end", 1)):
            offsets = {self._names[number]: Offset(interval[at]) for number, interval in wanted.items()}
            options[which] = json.dumps(to_json(offsets))
        columns = ("partition", *HASHED) if has_hash else ("partition", "offset")
        reader = self.spark.read.format("sulina").options(**options, checkCrc="true", columns=",".join(columns))
        rows = reader.option("topic", str(self.topic)).load()
        if len(wanted) < len(self._names):
            rows = rows.filter(F.col("partition").isin(sorted(wanted)))
        return rows.select("partition", "offset", *([_hash().alias("hash")] if has_hash else []))

    # A closer look

    def _closer(self, suspects: list[Suspect], held: TopicRows | None) -> Iterator[Finding]:
        looked = 0
        for suspect in suspects:
            is_small = suspect.end - suspect.start <= CLOSER_OFFSETS_MAX
            if suspect.is_exact or not is_small or looked == CLOSER_RANGES_MAX:
                yield from suspect.findings
                continue
            looked += 1
            found = self._look(suspect, held)
            yield from found or suspect.findings

    def _look(self, suspect: Suspect, held: TopicRows | None) -> list[Finding]:
        """Return the exact offsets of what is wrong; nothing where they cannot be read again."""
        number, start, end = suspect.partition, suspect.start, suspect.end
        audit, is_whole = self._audits[number], self._rules.is_whole
        is_of_log = any(finding.kind in LOG_KINDS for finding in suspect.findings)
        log = table = None
        try:
            if is_of_log or (is_whole and audit.start <= start):
                has_hash = not is_of_log
                log = _rows(self._log({number: (start, end)}, has_hash=has_hash), has_hash=has_hash)
            if held is not None and not is_of_log:
                some = held.rows.filter((F.col("partition") == number) & F.col("offset").between(start, end - 1))
                table = _rows(some, has_hash=is_whole)
        except PySparkException as error:
            _damage(error)
            return []
        found = look_closer(suspect, log, table, is_whole=is_whole)
        return [finding for finding in found if (finding.kind in LOG_KINDS) == is_of_log]


def _offsets(rows: DataFrame, mark: str, *more: Column) -> DataFrame:
    """Return partition and offset of rows; both are null in a row that does not say."""
    partition, offset = (F.coalesce(F.col(f"{mark}{name}"), F.lit(-1)) for name in ("partition", "offset"))
    return rows.select(partition.cast("int").alias("partition"), offset.cast("bigint").alias("offset"), *more)


def _check_types(table: str, schema: StructType) -> None:
    raw = spark_type(RAW_SCHEMA)
    for wanted in (raw[name] for name in HASHED):
        ours, theirs = wanted.dataType.simpleString(), schema[wanted.name].dataType.simpleString()
        if ours != theirs:
            raise InvalidSettings(f"{table} is not a bronze table: its column {wanted.name} is {theirs}, not {ours}")


def _hash() -> Column:
    """Return the hash of a whole record. Hashes skip nulls, so each value has a flag beside it."""
    headers = F.transform(
        "headers", lambda one: F.struct(one["key"].isNull(), one["key"], one["value"].isNull(), one["value"])
    )
    return F.xxhash64(
        F.col("offset"),
        F.col("timestamp"),
        F.col("key").isNull(),
        F.col("key"),
        F.col("value").isNull(),
        F.col("value"),
        F.when(F.col("headers").isNull(), F.lit(-1)).otherwise(F.size("headers")),
        F.when(F.size("headers") > 0, headers),
    )


def _looked_up(by_partition: dict[int, int]) -> Column:
    """Return what the partition of a row has, null where there is nothing, from an array for speed."""
    numbers = [by_partition.get(number) for number in range(max(by_partition) + 1)]
    return F.get(F.array(*(F.lit(number).cast("bigint") for number in numbers)), F.col("partition"))


def _sums(rows: DataFrame, size: int, coverage: Column, *, has_hash: bool) -> ByRange:
    """Sum up by partition, range and side. Distinct offsets are counted by bits, 64 to a word."""
    within = f"{int(Coverage.HELD)}, {int(Coverage.BEHIND)}, {int(Coverage.BEFORE)}"
    covered = rows.withColumn("coverage", coverage)
    covered = covered.withColumn("range", F.expr(f"if(coverage in ({within}), offset div {size}, {OUTSIDE}L)"))
    covered = covered.withColumn("word", F.expr(f"offset div {WORD_BITS}"))
    words = covered.groupBy("partition", "range", "coverage", "word").agg(
        F.count("*").alias("records"),
        F.expr(f"bit_or(shiftleft(1L, cast(pmod(offset, {WORD_BITS}) as int)))").alias("bits"),
        F.min("offset").alias("low"),
        F.max("offset").alias("high"),
        F.expr("bit_xor(hash)" if has_hash else "0L").alias("crossed"),
        F.expr("sum(shiftrightunsigned(hash, 32))" if has_hash else "0L").alias("upper"),
        F.expr("sum(hash & 4294967295L)" if has_hash else "0L").alias("lower"),
    )
    found = words.groupBy("partition", "range", "coverage").agg(
        F.sum("records"),
        F.expr("sum(bit_count(bits))"),
        F.min("low"),
        F.max("high"),
        F.bit_xor("crossed"),
        F.sum("upper"),
        F.sum("lower"),
    )
    columns = [column.to_pylist() for column in found.toArrow().columns]
    return {(row[0], row[1], row[2]): Sums(*row[3:]) for row in zip(*columns, strict=True)}


def _rows(rows: DataFrame, *, has_hash: bool) -> OffsetHashes:
    """Return what `look_closer` needs of some rows."""
    hashed = F.col("hash") if has_hash else F.lit(0).cast("bigint")
    found = rows.groupBy("offset").agg(
        F.count("*").alias("records"), F.min(hashed).alias("least"), F.max(hashed).alias("largest")
    )
    return OffsetHashes.of(found.toArrow())


def _damage(error: PySparkException) -> tuple[type[SulinaError], str]:
    """Return which damage ended a job, or that retention came before it. Any other error is raised as it is."""
    kind, what = said(error)
    if kind is None:
        raise SparkFailed(reason=what) from error
    if not issubclass(kind, Corrupt | InvalidBatch | DecompressedTooLarge | OffsetOutOfRange):
        raise from_code(kind.code, what, {}) from error
    return kind, what
