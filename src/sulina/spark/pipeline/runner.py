"""Runs a pipeline: once, through what is there now, or for as long as it is wanted.

- Once: bronze, then silver, then gold, each to its end.
- Continuously: all queries side by side; gold tables that are asked anew are made when what they read has changed.
- A query that fails ends the run, with its error; the others stop after their batch. Nothing is lost: whoever starts it
  again goes on where it was, each record once.
- Whoever wants it to stop says so in a file beside the checkpoints, or by a signal.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from sulina.spark.delta_log import find_table
from sulina.spark.errors import PipelineFailed, said
from sulina.spark.pipeline.definition import Bronze, Gold, GoldMode, Pipeline, Silver
from sulina.spark.pipeline.silver import Counts
from sulina.spark.pipeline.stages import Stages

POLL_SECONDS = 0.25


class TableProgress(msgspec.Struct, kw_only=True):
    """How one table is coming along."""

    table: str
    stage: str
    state: str = "waiting"  # running, idle, done, failed
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
    _progress: dict[str, TableProgress] = field(default_factory=dict)
    _queries: dict[str, StreamingQuery] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stages.told = self._counted
        for one in self.pipeline.all_tables:
            self._progress[one.table] = TableProgress(table=one.table, stage=type(one).__name__.lower())

    @property
    def pipeline(self) -> Pipeline:
        return self.stages.pipeline

    @property
    def progress(self) -> list[TableProgress]:
        return list(self._progress.values())

    # Once

    def run_once(self) -> None:
        """Through everything that is there now. PipelineFailed."""
        self.stages.prepare()
        for group in (self.pipeline.bronze, self.pipeline.silver, self._growing()):
            self._start(group, is_once=True)
            self._wait()
        for gold in self._asked_anew():
            self._refresh(gold)
            self._progress[gold.table].state = "done"
        self._note_versions()
        self.tell(self.progress)

    def _wait(self) -> None:
        try:
            while any(query.isActive for query in self._queries.values()):
                if not self.is_wanted():
                    return
                self._look()
                next(query for query in self._queries.values() if query.isActive).awaitTermination(1)
            self._look()
        except StreamingQueryException:
            self._look()
        finally:
            self._stop()

    # Continuously

    def run(self) -> None:
        """Until it is no longer wanted. PipelineFailed."""
        self.stages.prepare()
        self._start([*self.pipeline.bronze, *self.pipeline.silver], is_once=False)
        waiting = self._growing()
        refreshed_at = 0.0
        try:
            while self.is_wanted():
                ready = [gold for gold in waiting if find_table(self.stages.place(gold.source or "")) is not None]
                self._start(ready, is_once=False)
                waiting = [gold for gold in waiting if gold not in ready]
                if self.clock() - refreshed_at >= self.pipeline.trigger_seconds:
                    for gold in self._asked_anew():
                        self._refresh(gold)
                    refreshed_at = self.clock()
                self._look()
                self._note_versions()
                self.tell(self.progress)
                time.sleep(POLL_SECONDS)
        finally:
            self._stop()
            self.tell(self.progress)

    # What both do

    def _growing(self) -> list[Gold]:
        return [gold for gold in self.pipeline.gold if gold.mode == GoldMode.APPEND]

    def _asked_anew(self) -> list[Gold]:
        return [gold for gold in self.pipeline.gold if gold.mode == GoldMode.COMPLETE]

    def _start(self, tables: list[Bronze] | list[Silver] | list[Gold] | list[Any], *, is_once: bool) -> None:
        for one in tables:
            self._queries[one.table] = self.stages.start(one, is_once=is_once)
            self._progress[one.table].state = "running"

    def _stop(self) -> None:
        for query in self._queries.values():
            if query.isActive:
                query.stop()
        for table in self._queries:
            if self._progress[table].state != "failed":
                self._progress[table].state = "done"
        self._queries.clear()

    def _refresh(self, gold: Gold) -> None:
        progress, began = self._progress[gold.table], self.clock()
        rows = self.stages.refresh(gold)
        if rows is None:
            progress.state = "idle"
            return
        progress.state, progress.rows, progress.batch_seconds = "running", rows, self.clock() - began
        progress.rows_per_second = rows / max(progress.batch_seconds, 1e-9)

    def _look(self) -> None:
        """Take over what the queries say. PipelineFailed when one has."""
        failed: PipelineFailed | None = None
        for table, query in self._queries.items():
            for report in query.recentProgress:
                self._take(table, report)
            error = query.exception() if not query.isActive else None
            if error is not None:
                self._progress[table].state = "failed"
                self._progress[table].error = said(error)[1]
                failed = PipelineFailed(pipeline=self.pipeline.name, table=table, reason=said(error)[1])
        self.tell(self.progress)
        if failed is not None:
            raise failed

    def _take(self, table: str, report: Any) -> None:
        found = json.loads(report.json)
        progress, batch = self._progress[table], int(found["batchId"])
        if found.get("numInputRows"):
            if batch <= self._seen.get(table, -1):
                return
            self._seen[table] = batch
            progress.batch, progress.state = batch, "running"
            progress.rows += int(found["numInputRows"])
            progress.rows_per_second = float(found.get("processedRowsPerSecond") or 0.0)
            progress.dropped += sum(
                int(operator.get("numRowsDroppedByWatermark", 0)) for operator in found.get("stateOperators", ())
            )  # too late for the watermark
            progress.batch_seconds = found.get("durationMs", {}).get("triggerExecution", 0) / 1000
        elif progress.state == "running" and batch >= self._seen.get(table, -1):
            progress.state = "idle"
        source = (found.get("sources") or [{}])[0]
        end, newest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if end is not None and isinstance(self.pipeline.find(table), Bronze):
            progress.offsets = end
            if newest is not None:
                progress.lag = _lag(end, newest)

    def _counted(self, table: str, counts: Counts) -> None:
        progress = self._progress[table]
        progress.quarantined += counts.quarantined
        progress.dropped += counts.dropped
        for reason, rows in counts.by_reason.items():
            progress.reasons = progress.reasons | {reason: progress.reasons.get(reason, 0) + rows}

    def _note_versions(self) -> None:
        for one in self.pipeline.all_tables:
            table = find_table(self.stages.place(one.table))
            self._progress[one.table].version = table.version() if table is not None else None


def _offsets(value: Any) -> dict[str, dict[str, int]] | None:
    if isinstance(value, str):
        value = json.loads(value)
    return value if isinstance(value, dict) and all(isinstance(one, dict) for one in value.values()) else None


def _lag(end: dict[str, dict[str, int]], newest: dict[str, dict[str, int]]) -> int:
    return sum(
        max(0, offset - end.get(topic, {}).get(number, 0))
        for topic, partitions in newest.items()
        for number, offset in partitions.items()
    )
