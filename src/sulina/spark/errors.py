"""Errors of the Spark side. They belong to the tree of `sulina.errors`."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sulina.errors as known
from sulina.core.nearest import did_you_mean
from sulina.errors import Conflict, InvalidInput, NotAvailable, NotFound, SulinaError, from_code


class ExpectationFailed(InvalidInput):
    """Rows do not meet an expectation that a pipeline insists on. Nothing of their batch was written."""

    def __init__(self, *, table: str, expectation: str, rows: int, first: str) -> None:
        super().__init__(
            f"{rows} rows for table {table} do not meet {expectation!r}, the first is {first}: correct them at their "
            f"source, or set otherwise = 'quarantine' or 'drop' for this expectation"
        )
        self.table, self.expectation, self.rows, self.first = table, expectation, rows, first


class TableUnsupported(InvalidInput):
    """A Delta table that has a feature which this reader or writer does not have. Nothing was read or written."""

    def __init__(self, *, table: str, feature: str) -> None:
        super().__init__(f"table {table} has {feature}, which is not supported here: use an engine that has it")
        self.table, self.feature = table, feature


class SinkDiverged(Conflict):
    """A task of Spark was run again and gave other rows. The first ones are in the topic, the others are not."""

    def __init__(self, *, topic: str, partition: int, writer: str, ours: int, theirs: int) -> None:
        super().__init__(
            f"{writer} has published {theirs} records to partition {partition} of {topic}, and now has {ours}: rows "
            f"must come in the same order when a task is run again; sort them, or write less in one task"
        )
        self.topic, self.partition, self.writer, self.ours, self.theirs = topic, partition, writer, ours, theirs


class SinkBehind(Conflict):
    """A later batch of the same query was published, and how much of this one was published is no longer known."""

    def __init__(self, *, topic: str, partition: int, writer: str, records: int) -> None:
        super().__init__(
            f"{writer} has {records} records for partition {partition} of {topic}, which has a later batch of the same "
            f"writer and no longer knows this one: the checkpoint is older than the topic; bring back the newer one, "
            f"or begin with a new checkpoint, which publishes again what it reads again"
        )
        self.topic, self.partition, self.writer, self.records = topic, partition, writer, records


class TableSchemaConflict(Conflict):
    """The columns of the rows are not those of the table. Nothing was written."""

    def __init__(self, *, table: str, columns: str, reason: str) -> None:
        super().__init__(f"table {table}, {columns}: {reason}")
        self.table, self.columns, self.reason = table, columns, reason


class MaintenanceBusy(Conflict):
    """Somebody else compacts or vacuums the table. Nothing was done; try again later."""

    retryable = True

    def __init__(self, *, table: str, holder: str, until: str) -> None:
        super().__init__(
            f"table {table} is held for maintenance by {holder} until {until}, or for as long as that goes on: "
            f"try again later"
        )
        self.table, self.holder, self.until = table, holder, until


class MaintenanceFenced(Conflict):
    """Another maintainer took over, because this one was away for too long. What it had committed is there."""

    retryable = True

    def __init__(self, *, table: str, ours: int, current: int) -> None:
        super().__init__(
            f"table {table}: maintenance {ours} was away for too long, and {current} took over: nothing is lost, "
            f"what is left to do can be done again"
        )
        self.table, self.ours, self.current = table, ours, current


class TableNotFound(NotFound):
    """No Delta table exists at a location."""

    def __init__(self, *, table: str) -> None:
        super().__init__(f"no Delta table exists at {table}")
        self.table = table


class TableFileGone(NotAvailable):
    """A file of a table was cleaned up before it was read."""

    def __init__(self, *, table: str, path: str) -> None:
        super().__init__(
            f"table {table} no longer has {path}: it was vacuumed; read a newer version, or keep versions for longer"
        )
        self.table, self.path = table, path


class TableRewritten(NotAvailable):
    """A commit took rows of a table away, which a stream may have passed on already."""

    def __init__(self, *, table: str, version: int, operation: str) -> None:
        super().__init__(
            f"version {version} of table {table} ({operation}) took rows away that the stream may have passed on: "
            f"set ignoreChanges=true to read what it added, or begin again with a new checkpoint"
        )
        self.table, self.version, self.operation = table, version, operation


class BatchUnfinished(NotAvailable):
    """The stream of a table has to finish a batch first. Nothing was read or written."""

    def __init__(self, *, table: str, batch: int | None) -> None:
        what = (
            "has not begun"
            if batch is None
            else f"has not finished its batch {batch}, and no run seems to be working on it"
        )
        super().__init__(f"the stream of table {table} {what}: run the pipeline, then try again")
        self.table, self.batch = table, batch


class IncompleteScan(NotAvailable):
    """A scan got fewer records than it had planned to read. The rows that it has returned are not complete."""

    def __init__(self, *, partition: str, start: int, end: int, records: int) -> None:
        super().__init__(
            f"offsets [{start}, {end}) of {partition} hold {end - start} records, and {records} of them were found: "
            f"run it again; if that does not help, `sulina audit` names what is missing"
        )
        self.partition, self.start, self.end, self.records = partition, start, end, records


class StreamDiverged(NotAvailable):
    """Records that a stream has read, or was about to read, were given up, and their offsets used again."""

    def __init__(self, *, partition: str, start: int, end: int, epoch: int) -> None:
        super().__init__(
            f"offsets [{start}, {end}) of {partition} were given up since epoch {epoch}, and the log goes on at "
            f"{start} with other records: set failOnDataLoss=false (in a pipeline: fail_on_data_loss) to go on there, "
            f"which keeps the rows made from the old records, or begin with a new checkpoint and a new table"
        )
        self.partition, self.start, self.end, self.epoch = partition, start, end, epoch


class TableFailed(SulinaError):
    """A table could not be read or committed to. Whether a commit was made is unknown: try again with the same txn."""

    retryable = True

    def __init__(self, *, table: str, cause: BaseException) -> None:
        super().__init__(f"table {table} cannot be read or written: {cause}")
        self.table, self.cause = table, cause
        self.__cause__ = cause


class PipelineFailed(SulinaError):
    """A query of a pipeline ended with an error. What it had committed is there; the next run goes on from there."""

    def __init__(self, *, pipeline: str, table: str, reason: str) -> None:
        super().__init__(f"pipeline {pipeline}: table {table}: {reason}")
        self.pipeline, self.table, self.reason = pipeline, table, reason


class SparkUnavailable(SulinaError):
    """Spark cannot run here: there is no Java, or no PySpark."""


class SparkFailed(SulinaError):
    """A job of Spark ended with an error that is not one of ours."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(f"Spark failed: {reason}")
        self.reason = reason


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise the error of ours that is behind an error of Spark.

    Raises:
        SparkFailed: no error of ours is behind it.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException  # which processes that only name these errors do without

    try:
        yield
    except (PySparkException, Py4JError) as error:
        kind, what = said(error)
        raise (SparkFailed(reason=what) if kind is None else from_code(kind.code, what, {})) from error


@contextmanager
def failing(pipeline: str, table: str, tables: Sequence[str] = ()) -> Iterator[None]:
    """Raise an error of Spark as the failure of a table. `tables` are those that its SQL may name.

    Raises:
        PipelineFailed: Spark raised an error.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        reason = said(error)[1]
        missing = _TABLE.search(str(error))
        near = did_you_mean(missing[1].replace("`", ""), tables) if missing else ""
        raise PipelineFailed(pipeline=pipeline, table=table, reason=reason + near) from error


_RAISED = re.compile(r"sulina\.(?:spark\.)?errors\.(\w+): (.*)")


def said(error: BaseException) -> tuple[type[SulinaError] | None, str]:
    """Return the class of ours that is behind an error of Spark, and its message; None: it is not ours."""
    text = str(error)
    for name, what in reversed(_RAISED.findall(text)):
        kind = getattr(known, name, globals().get(name))
        if isinstance(kind, type) and issubclass(kind, SulinaError):
            return kind, what.strip()
    return None, sentence(text) or type(error).__name__


_WRAPPED = re.compile(r"\[STREAM_FAILED\].*? terminated with exception: ", re.DOTALL)
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*")
_PLACE = re.compile(r"line (\d+),? pos (\d+)")
_COLUMN = re.compile(r"\[UNRESOLVED_COLUMN[.A-Z_]*\].*? name `(.+?)` cannot be resolved")
_COLUMNS = re.compile(r"one of the following\? \[(.*?)\]")
_TABLE = re.compile(r"\[TABLE_OR_VIEW_NOT_FOUND\] The table or view `(.+?)` cannot")
_FUNCTION = re.compile(r"\[UNRESOLVED_ROUTINE\] Cannot resolve routine `(.+?)`")


def sentence(text: str) -> str:
    """Return what an error of Spark says as one sentence, without its codes and without the query's plan."""
    text = _WRAPPED.sub("", text.strip(), count=1)
    if column := _COLUMN.search(text):
        name, near = column[1].replace("`", ""), _COLUMNS.search(text)
        return f"there is no column {name}{did_you_mean(name, near[1].replace('`', '').split(', ') if near else ())}"
    if table := _TABLE.search(text):
        return f"there is no table {table[1].replace('`', '')}"
    if function := _FUNCTION.search(text):
        return f"there is no function {function[1].replace('`', '')}"
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    place = _PLACE.search(text) if _CONDITION.match(first) else None
    plain = _STATE.sub("", _CONDITION.sub("", first, count=1)).rstrip(".")
    return f"{plain}, in line {place[1]} at character {int(place[2]) + 1} of the SQL" if place else plain
