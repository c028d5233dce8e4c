"""Commands `sulina pipeline init|run|status|stop|replay|backfill|retry`."""

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter

from sulina.cli import terminal
from sulina.cli.audit import SparkLogs
from sulina.cli.flags.remote import HERE, Remote
from sulina.errors import Disconnected, InvalidSettings
from sulina.spark.errors import SparkUnavailable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sulina.spark.pipeline.definition import Pipeline
    from sulina.spark.pipeline.runner import TableProgress
    from sulina.spark.pipeline.stages import Stages

COLUMNS = (
    "table",
    "stage",
    "state",
    "batch",
    "rows",
    "rows/s",
    "batch time",
    "lag",
    "quarantined",
    "dropped",
    "version",
)
RIGHT = COLUMNS[3:]
LIVE = (*COLUMNS[:-1], "doing")
STOP_FILE = "stop"
LOG_LEVEL = "spark.log.level"

app = App(name="pipeline", help="Turn topics into Delta Lake tables, exactly once.", group_commands=Group("Commands"))
File = Annotated[Path, Parameter(help="TOML file that defines the pipeline.")]
Master = Annotated[
    str | None,
    Parameter(help="Spark master: local[*], spark://HOST:PORT, yarn or k8s://…. Default: SPARK_MASTER, then local[*]."),
]
ConnectServer = Annotated[str | None, Parameter(help="Spark Connect server, as sc://HOST:PORT. Default: SPARK_REMOTE.")]
DEFAULT = Path("pipeline.toml")


@app.command
def init(
    file: File = DEFAULT,
    /,
    *,
    topic: Annotated[tuple[str, ...], Parameter(alias="-t", show_default=False)] = (),
    example: bool = False,
    force: bool = False,
    remote: Remote = HERE,
) -> None:
    """Write a definition for the topics of a node, which runs as it is.

    Parameters
    ----------
    topic
        Only this topic, or those that a pattern such as `/shop/*` names; may be repeated. Default: all but /system.
    example
        Ask no node, and write the example of the guide.
    force
        Replace the file if it exists.

    Raises:
        InvalidSettings: the file exists or cannot be written, or the node has no topics to make tables of.
    """
    if file.exists() and not force:
        raise InvalidSettings(f"{file} exists already: use --force to replace it, or name another file")
    if example:
        text = files("sulina.spark.pipeline").joinpath("example.toml").read_text(encoding="utf-8")
    else:
        text = _first_definition(file, topic, remote)
    from sulina.spark.pipeline.definition import parse_text

    pipeline = parse_text(text, file)  # before the file is replaced
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidSettings(f"{file} cannot be written: {error.strerror}") from None
    tables = [{"table": one.table, "stage": type(one).__name__.lower()} for one in pipeline.all_tables]
    if remote.json:
        return terminal.print_json({"file": str(file), "pipeline": pipeline.name, "tables": tables})
    made = ", ".join(f"{one['table']} ({one['stage']})" for one in tables)
    what = "an example with the tables" if example else "tables"
    return terminal.done(f"wrote {file}: {what} {made}\nlook at it, then run `sulina pipeline run {file} --once`")


def _first_definition(file: Path, topics: tuple[str, ...], remote: Remote) -> str:
    from sulina.spark.pipeline.first_definition import first_definition, table_name
    from sulina.spark.pipeline.sampling import sampled
    from sulina.spark.scan import TopicChoice

    choice = TopicChoice.parse(",".join(topics)) if topics else None
    try:
        node = remote.run(lambda client: sampled(client, choice))
    except Disconnected as error:
        error.add_note("without a node: `sulina pipeline init --example` writes an example")
        raise
    if not node.topics and not node.best_effort:
        which = f" named {', '.join(topics)}" if topics else ""
        empty = InvalidSettings(f"the node at {remote.url} has no topics{which}")
        empty.add_note("`sulina topic create orders` makes one; or --example writes an example definition")
        raise empty
    return first_definition(node, url=remote.url, name=table_name(file.absolute().parent.name), file=str(file))


@app.command
def run(
    file: File = DEFAULT,
    /,
    *,
    once: bool = False,
    master: Master = None,
    remote: ConnectServer = None,
    spark_logs: SparkLogs = False,
    json: bool = False,
) -> None:
    """Run a pipeline until it is stopped. It continues where its tables end.

    Parameters
    ----------
    once
        Process the records that are there now, then stop.
    json
        Print the progress as JSON, one document per line.
    """
    stages = _stages(file, master, remote, spark_logs=spark_logs)
    from sulina.spark.pipeline.reporting import Reporter
    from sulina.spark.pipeline.runner import Runner

    report = Reporter(stages.pipeline)
    latest: list[TableProgress] = []
    lines = _ProgressLines(is_once=once, is_silent=json or sys.stderr.isatty())

    def show() -> "RenderableType":
        return terminal.make_table(LIVE, [(*row(one)[:-1], one.doing) for one in latest], right=RIGHT)

    with _stopping(_stop_file(stages.pipeline)) as is_wanted, terminal.live(show, is_silent=json) as draw:

        def tell(progress: "list[TableProgress]") -> None:
            latest[:] = progress
            if json:
                terminal.print_json({"pipeline": stages.pipeline.name, "tables": progress})
            else:
                draw()
                lines.tell(progress)
            report(progress)

        runner = Runner(stages, tell=tell, is_wanted=is_wanted)
        try:
            if once:
                runner.run_once()
            else:
                runner.run()
        finally:
            report(runner.progress, is_last=True)
    if not json:
        terminal.print_table(COLUMNS, [row(one) for one in runner.progress], right=RIGHT)


@app.command
def status(file: File = DEFAULT, /, *, json: bool = False) -> None:
    """Show the tables of a pipeline with their version, rows, size, last change and lag.

    Parameters
    ----------
    json
        Print the result as JSON, and nothing else on standard output.
    """
    _check_spark()
    from sulina.spark.pipeline.definition import load
    from sulina.spark.pipeline.inspection import inspect

    found = inspect(load(file))
    if json:
        return terminal.print_json(found)
    columns = ("table", "stage", "version", "rows", "files", "size", "changed", "lag")
    rows = [
        (
            one.table,
            one.stage,
            one.version,
            one.rows,
            one.files,
            None if one.size_bytes is None else terminal.bytes_text(one.size_bytes),
            None if one.changed_ms is None else _ago(one.changed_ms),
            one.lag,
        )
        for one in found
    ]
    return terminal.print_table(columns, rows, right=columns[2:])


@app.command
def stop(file: File = DEFAULT, /) -> None:
    """Stop a pipeline after its current batches. It continues there when it is run again.

    Raises:
        InvalidSettings: the pipeline does not run on this machine.
    """
    from sulina.spark.pipeline.definition import load

    pipeline = load(file)
    path = _stop_file(pipeline)
    if not path.parent.is_dir():
        raise InvalidSettings(f"pipeline {pipeline.name} is not running on this machine")
    path.touch()
    terminal.done(f"stopping {pipeline.name} after its current batches")


@app.command
def replay(
    table: str,
    into: str,
    file: File = DEFAULT,
    /,
    *,
    start: str = "earliest",
    end: str = "latest",
    master: Master = None,
    remote: ConnectServer = None,
    spark_logs: SparkLogs = False,
) -> None:
    """Build a bronze or silver table from the log again, under another name.

    Parameters
    ----------
    table
        Table of the pipeline to replay.
    into
        Name of the new table.
    start
        First position: earliest, offset:N, timestamp:…, version:N.
    end
        End position: latest, offset:N, timestamp:…, or version:N for the table as it was at that version.
    """
    stages = _stages(file, master, remote, table, spark_logs=spark_logs)
    from sulina.spark.pipeline.replaying import replay as made

    count = made(stages, table, into, start=start, end=end)
    terminal.done(f"wrote {terminal.counted(count, 'row')} to {into}: {stages.pipeline.table_uri(into)}")


@app.command
def backfill(
    table: str,
    file: File = DEFAULT,
    /,
    *,
    master: Master = None,
    remote: ConnectServer = None,
    spark_logs: SparkLogs = False,
) -> None:
    """Add the topic's records from before its first row to a bronze table. The pipeline may run meanwhile.

    Parameters
    ----------
    table
        Bronze table of the pipeline.
    """
    stages = _stages(file, master, remote, table, spark_logs=spark_logs)
    from sulina.spark.pipeline.replaying import backfill as made

    terminal.done(f"added {terminal.counted(made(stages, table), 'row')} to {table}")


@app.command
def retry(
    table: str,
    file: File = DEFAULT,
    /,
    *,
    master: Master = None,
    remote: ConnectServer = None,
    spark_logs: SparkLogs = False,
) -> None:
    """Process the quarantined records of a silver table again, by its current definition.

    The pipeline may run meanwhile.

    Parameters
    ----------
    table
        Silver table of the pipeline.
    """
    stages = _stages(file, master, remote, table, spark_logs=spark_logs, is_log_read=False)
    from sulina.spark.pipeline.replaying import retry as made

    done = made(stages, table)
    left = terminal.counted(done.left, "record")
    terminal.done(f"added {terminal.counted(done.rows, 'row')} to {table}; {left} left in quarantine")


class _ProgressLines:
    """Says what each table waits for, on a line of its own, where there is no terminal to draw in.

    A run without end says it until a table waits for new records: from then on it would be the same again and again.
    """

    def __init__(self, *, is_once: bool, is_silent: bool) -> None:
        self._is_once, self._is_silent = is_once, is_silent
        self._said: dict[str, str] = {}
        self._waited: set[str] = set()

    def tell(self, progress: "list[TableProgress]") -> None:
        from sulina.spark.pipeline.runner import WAITING

        for one in progress:
            if (
                self._is_silent
                or one.doing is None
                or one.table in self._waited
                or self._said.get(one.table) == one.doing
            ):
                continue
            self._said[one.table] = one.doing
            if one.doing == WAITING and not self._is_once:
                self._waited.add(one.table)
            terminal.say(f"{one.table}: {one.doing}")


def row(one: "TableProgress") -> tuple[Any, ...]:
    """Return the progress of a table as a row to print."""
    return (
        one.table,
        one.stage,
        one.state,
        one.batch,
        f"{one.rows:,}",
        f"{one.rows_per_second:,.0f}",
        None if one.batch_seconds is None else f"{one.batch_seconds:.2f} s",
        one.lag,
        one.quarantined or None,
        one.dropped or None,
        one.version,
    )


def _ago(moment_ms: int) -> str:
    return f"{terminal.seconds_text(max(0.0, time.time() - moment_ms / 1000))} ago"


def _check_spark() -> None:
    try:
        import deltalake  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SparkUnavailable(f"{error.name} is missing: pip install 'sulina[spark]'") from None


def _stages(
    file: Path,
    master: str | None,
    remote: str | None,
    table: str | None = None,
    *,
    spark_logs: bool,
    is_log_read: bool = True,
) -> "Stages":
    """Return a pipeline on a new session, and say so: starting one takes seconds. What can be checked before, is.

    With `table`, only what concerns this table is checked.

    Raises:
        InvalidSettings: the definition does not fit the topics and tables that are there, or lacks `table`.
    """
    from sulina.spark.pipeline.definition import load

    pipeline = load(file)
    if table is not None:
        pipeline.find(table)
    _check_spark()
    from sulina.spark.pipeline.checks import check, check_table

    if table is None:
        check(pipeline)
    else:
        check_table(pipeline, table, is_log_read=is_log_read)
    terminal.say("starting Spark …")
    from pyspark.logger import PySparkLogger

    from sulina.spark.pipeline.stages import Stages
    from sulina.spark.session import session

    name = f"sulina pipeline {pipeline.name}"
    spark = session(name, master=master, remote=remote, settings=pipeline.settings, is_quiet=not spark_logs)
    is_ours = remote is None and "SPARK_REMOTE" not in os.environ and str(spark.sparkContext.master).startswith("local")
    if is_ours and not spark_logs and LOG_LEVEL not in pipeline.settings:
        spark.sparkContext.setLogLevel("OFF")  # what goes wrong is told in one line, without Java's trace
        formatters = [(handler, handler.formatter) for handler in logging.getLogger().handlers]
        for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # of PySpark, which prints traces too
            PySparkLogger.getLogger(logger).setLevel("CRITICAL")
        for handler, formatter in formatters:  # PySpark has given every handler one of its own
            handler.setFormatter(formatter)
    return Stages(spark, pipeline)


def _stop_file(pipeline: "Pipeline") -> Path:
    state = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("TMPDIR") or "/tmp"
    return Path(state) / f"sulina-{os.getuid()}" / "pipelines" / pipeline.name / STOP_FILE


@contextlib.contextmanager
def _stopping(path: Path) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether the pipeline should go on: no signal has come, no stop file is there."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    stopped: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        if stopped:
            raise KeyboardInterrupt
        stopped.append(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: not stopped and not path.exists()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()
