"""Runs a pipeline: once, through what is there now, or for as long as it is wanted.

- Once: bronze, then silver, then gold, each to its end.
- Continuously: all queries side by side; complete gold tables are made again when a table that they read has changed.
- A query that fails ends the run, with its error; the others stop after their batch. Nothing is lost: the
  next run goes on where this one was, each record once. A query whose Python process was late to start is started
  again here.
- A run is stopped by a file beside the checkpoints, or by a signal.
"""

import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sulina.spark.delta_log import find_table
from sulina.spark.errors import PipelineFailed, failing, said
from sulina.spark.pipeline.checks import check
from sulina.spark.pipeline.definition import Bronze, Gold, Pipeline, Silver, Table, parse
from sulina.spark.pipeline.silver import ways
from sulina.spark.pipeline.silver_sink import RowCounts, counts_at
from sulina.spark.pipeline.stages import Stages
from sulina.spark.planner import FORMAT, offset_of

POLL_SECONDS = 0.25
STARTING = "starting its query"
WAITING = "waiting for new records"
# Spark gives a Python process ten seconds to start, and cannot be told otherwise. A busy machine may not keep that.
LATE = re.compile("Python worker (failed )?to connect back")
STARTS_MAX = 5


class TableProgress(msgspec.Struct, kw_only=True):
    """The progress of one table."""

    table: str
    stage: str
    state: str = "waiting"  # running, idle, done, failed
    doing: str | None = None  # in words; None: nothing is under way
    batch: int | None = None
    rows: int = 0  # since this run began
    rows_per_second: float = 0.0
    batch_seconds: float | None = None
    lag: int | None = None  # records that wait in the topic
    offsets: dict[str, dict[str, int]] | None = None  # where it is
    version: int | None = None  # of the table
    quarantined: int = 0
    dropped: int = 0
    reasons: dict[str, int] = {}
    error: str | None = None


Tell = Callable[[list[TableProgress]], None]


@dataclass(slots=True)
class Runner:
    """One run of a pipeline."""

    stages: Stages
    tell: Tell = lambda _progress: None
    is_wanted: Callable[[], bool] = lambda: True
    clock: Callable[[], float] = time.monotonic
    _tables: dict[str, Table] = field(default_factory=dict)
    _progress: dict[str, TableProgress] = field(default_factory=dict)
    _queries: dict[str, StreamingQuery] = field(default_factory=dict)
    _starts: Counter[str] = field(default_factory=Counter)
    _seen: dict[str, int] = field(default_factory=dict)
    _said: dict[str, str] = field(default_factory=dict)  # what Spark said last of each query
    _versions: dict[str, int] = field(default_factory=dict)  # of each table, as far as its log was read

    def __post_init__(self) -> None:
        for one in self.pipeline.all_tables:
            self._tables[one.table] = one
            self._progress[one.table] = TableProgress(table=one.table, stage=type(one).__name__.lower())

    @property
    def pipeline(self) -> Pipeline:
        return self.stages.pipeline

    @property
    def progress(self) -> list[TableProgress]:
        return list(self._progress.values())

    # Once

    def run_once(self) -> None:
        """Run through everything that is there now.

        Raises:
            PipelineFailed: a query ended with an error.
        """
        self._prepare()
        for group in (self.pipeline.bronze, self.pipeline.silver, self.pipeline.growing):
            self._start(group, is_once=True)
            self._wait()
        for gold in self.pipeline.complete:
            read = ", ".join(self.pipeline.sources_of(gold)) or "what its sql names"
            self._progress[gold.table].doing = f"computing from {read}"
            self.tell(self.progress)
            self._refresh(gold)
            self._progress[gold.table].state, self._progress[gold.table].doing = "done", None
        self._note_commits()
        self.tell(self.progress)

    def _wait(self) -> None:
        try:
            while self.is_wanted():
                active = [query for query in self._queries.values() if query.isActive]
                if not self._look(is_once=True) and not active:
                    return
                for query in active[:1]:
                    with contextlib.suppress(StreamingQueryException):  # the next look finds it
                        query.awaitTermination(1)
            self._look(is_once=None)
        finally:
            self._stop()

    # Continuously

    def run(self) -> None:
        """Run until it is no longer wanted.

        Raises:
            PipelineFailed: a query ended with an error.
        """
        self._prepare()
        self._start([*self.pipeline.bronze, *self.pipeline.silver], is_once=False)
        waiting, complete = self.pipeline.growing, self.pipeline.complete
        refreshed_at = 0.0
        try:
            while self.is_wanted():
                ready = [gold for gold in waiting if find_table(self.stages.location(gold.source or "")) is not None]
                self._start(ready, is_once=False)
                waiting = [gold for gold in waiting if gold not in ready]
                if self.clock() - refreshed_at >= self.pipeline.trigger_seconds:
                    for gold in complete:
                        self._refresh(gold)
                    refreshed_at = self.clock()
                self._look(is_once=False)
                self._note_commits()
                self.tell(self.progress)
                time.sleep(POLL_SECONDS)
        finally:
            self._stop()
            self.tell(self.progress)

    # What both do

    def _prepare(self) -> None:
        self.stages.prepare()
        for name in self.pipeline.names:
            self._versions[name] = self._newest(name)

    def _start(self, tables: list[Bronze] | list[Silver] | list[Gold] | list[Any], *, is_once: bool) -> None:
        for one in tables:
            self._progress[one.table].state, self._progress[one.table].doing = "running", STARTING
            self.tell(self.progress)
            with failing(self.pipeline.name, one.table):
                self._queries[one.table] = self.stages.start(one, is_once=is_once)
            self._starts[one.table] += 1

    def _stop(self) -> None:
        for query in self._queries.values():
            if query.isActive:
                query.stop()
        for table in self._queries:
            self._progress[table].doing = None
            if self._progress[table].state != "failed":
                self._progress[table].state = "done"
        self._queries.clear()

    def _refresh(self, gold: Gold) -> None:
        progress, began = self._progress[gold.table], self.clock()
        with failing(self.pipeline.name, gold.table):
            rows = self.stages.refresh(gold)
        if rows is None:
            progress.state = "idle"
            return
        progress.state, progress.rows, progress.batch_seconds = "running", rows, self.clock() - began
        progress.rows_per_second = rows / max(progress.batch_seconds, 1e-9)

    def _look(self, *, is_once: bool | None) -> bool:
        """Update the progress. Return whether a query was started again; None: no query is running.

        Raises:
            PipelineFailed: a query ended with an error.
        """
        failed: PipelineFailed | None = None
        is_again = False
        for table, query in list(self._queries.items()):
            for report in query.recentProgress:
                self._take(table, report)
            if query.isActive:
                self._note_doing(table, str(query.status["message"]))
            error = query.exception() if not query.isActive else None
            is_late = error is not None and LATE.search(str(error)) and self._starts[table] < STARTS_MAX
            if is_late:
                if is_once is not None:
                    self._start([self._tables[table]], is_once=is_once)
                    is_again = True
            elif error is not None:
                self._progress[table].state = "failed"
                self._progress[table].error = said(error)[1]
                failed = PipelineFailed(pipeline=self.pipeline.name, table=table, reason=said(error)[1])
        self.tell(self.progress)
        if failed is not None:
            raise failed
        return is_again

    def _note_doing(self, table: str, said: str) -> None:
        """Say in our words what a query does, when Spark says something else than before."""
        if self._said.get(table) == said:
            return
        self._said[table] = said
        one = self._tables[table]
        source = one.topic if isinstance(one, Bronze) else getattr(one, "source", None) or "?"
        if said.startswith("Waiting"):
            doing = WAITING
        elif said.startswith("Getting"):
            doing = f"planning: looking what is new in {source}"
        elif said.startswith("Processing"):
            doing = f"reading {source}{self._planned(one)}, writing {table}"
        else:
            doing = STARTING
        self._progress[table].doing = doing

    def _planned(self, one: Table) -> str:
        """Return where the batch of a bronze table ends, as words; nothing if that cannot be read now."""
        if isinstance(one, Bronze):
            with contextlib.suppress(Exception):  # it is only told: a request that fails must not end the run
                return _places(self.stages.checkpoint(one.table).newest_end())
        return ""

    def _take(self, table: str, report: Any) -> None:
        found = json.loads(report.json)
        one, progress, batch = self._tables[table], self._progress[table], int(found["batchId"])
        # Spark Connect gives these sums for each source alone.
        rows = sum(int(source.get("numInputRows") or 0) for source in found.get("sources") or ())
        if rows:
            if batch <= self._seen.get(table, -1):
                return
            self._seen[table] = batch
            self._starts[table] = 0  # it works: what was late is forgotten
            progress.batch, progress.state = batch, "running"
            if isinstance(one, Silver):
                rows //= ways(one)
            else:
                progress.rows += rows  # those of a silver table are counted from its log: see _note_commits
            progress.batch_seconds = found.get("durationMs", {}).get("triggerExecution", 0) / 1000
            progress.rows_per_second = rows / max(progress.batch_seconds, 1e-3)
            progress.dropped += sum(
                int(operator.get("numRowsDroppedByWatermark", 0)) for operator in found.get("stateOperators", ())
            )  # too late for the watermark
        elif progress.state == "running" and batch >= self._seen.get(table, -1):
            progress.state = "idle"
        source = (found.get("sources") or [{}])[0]
        end, newest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if end is not None and isinstance(one, Bronze):
            progress.offsets = end
            if newest is not None:
                progress.lag = sum(
                    max(0, offset - end.get(topic, {}).get(number, 0))
                    for topic, partitions in newest.items()
                    for number, offset in partitions.items()
                )

    def _note_commits(self) -> None:
        """Add the counts of new commits of the tables, from where their logs were when this run began."""
        for one in self.pipeline.all_tables:
            version = self._newest(one.table)
            self._progress[one.table].version = version if version >= 0 else None
            if isinstance(one, Silver):
                for name in (one.table, one.quarantine_table):
                    self._count(self._progress[one.table], name)

    def _count(self, progress: TableProgress, name: str) -> None:
        newest = self._newest(name)
        for version in range(self._versions[name] + 1, newest + 1):
            counts = counts_at(self.stages.location(name), version) or RowCounts()
            progress.rows += counts.good
            progress.dropped += sum(counts.dropped.values())
            progress.quarantined += sum(counts.quarantined.values())
            both = RowCounts(dropped=dict(progress.reasons))
            both.add(RowCounts(dropped=counts.dropped | counts.quarantined))
            progress.reasons = both.dropped
        self._versions[name] = newest

    def _newest(self, table: str) -> int:
        found = find_table(self.stages.location(table))
        return found.version() if found is not None else -1


def run_pipeline(pipeline: Pipeline | dict[str, Any], spark: SparkSession) -> list[TableProgress]:
    """Run a pipeline through everything that is there now, and return the progress of each table.

    The pipeline is one that was read from a file, or what such a file has.

    Raises:
        InvalidSettings: the definition is wrong.
        PipelineFailed: a query ended with an error.
    """
    definition = pipeline if isinstance(pipeline, Pipeline) else parse(pipeline)
    check(definition)
    runner = Runner(Stages(spark, definition))
    runner.run_once()
    return runner.progress


def _places(end: dict[str, Any] | None) -> str:
    """Return where a batch of topics ends, as words."""
    offsets = [number for one in (_offsets(end) or {}).values() for number in one.values()]
    if not offsets:
        return ""
    return f" up to offset {offsets[0]:,}" if len(offsets) == 1 else f", {len(offsets):,} partitions"


def _offsets(value: Any) -> dict[str, dict[str, int]] | None:
    """Return the offsets of topics, without the epochs that `planner.to_json` puts after them; None: not of topics."""
    if isinstance(value, str):
        value = json.loads(value)
    topics = {topic: one for topic, one in value.items() if topic != FORMAT} if isinstance(value, dict) else None
    if topics is None or not all(isinstance(one, dict) for one in topics.values()):
        return None
    return {topic: {number: offset_of(at) for number, at in one.items()} for topic, one in topics.items()}
