"""Commands `sulina table optimize|vacuum|history`."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Group, Parameter

from sulina.cli import terminal
from sulina.errors import InvalidSettings
from sulina.spark.errors import SparkUnavailable, TableNotFound

if TYPE_CHECKING:
    from sulina.spark.delta_compaction import Optimized
    from sulina.spark.delta_history import CommitFacts
    from sulina.spark.delta_vacuum import Vacuumed
    from sulina.spark.table_location import TableLocation

FILES_SHOWN_MAX = 50
CLOCK_AHEAD_SHOWN_SECONDS = 300.0
NEAR_MAX = 5
LOG_FOLDER = "_delta_log"

app = App(name="table", help="Compact, vacuum and inspect Delta Lake tables.", group_commands=Group("Commands"))
Table = Annotated[str, Parameter(help="Table: a path, s3://BUCKET/PREFIX, gs://… or az://….")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class TableFlags:
    """The options of every command about a table."""

    objects_endpoint: Annotated[
        str | None, Parameter(help="Endpoint URL of the object store if it is not the cloud's own.")
    ] = None
    json: Annotated[bool, Parameter(help="Print the result as JSON, and nothing else on standard output.")] = False


PLAIN = TableFlags()  # the default; cyclopts fills in what was given


@app.command
def optimize(table: Table, /, *, target_mib: int = 128, z_order: str | None = None, asked: TableFlags = PLAIN) -> None:
    """Compact small files into large ones. Readers, streams and writers continue, and see the same rows.

    Parameters
    ----------
    target_mib
        Size of the new files. Files near this size are left as they are.
    z_order
        Comma-separated columns. Rewrites all files, so that rows with near values in these columns are together.

    Raises:
        InvalidSettings: --z-order names no column.
    """
    place = _place(table, asked)
    from sulina.spark.delta_compaction import optimize as compact

    names = () if z_order is None else tuple(name.strip() for name in z_order.split(",") if name.strip())
    if z_order is not None and not names:
        raise InvalidSettings("--z-order names no column; name them with commas: --z-order a,b")
    with _naming(place), _progress(is_shown=not asked.json) as told:
        done = compact(place, target_bytes=target_mib << 20, z_order=names, told=told)
    if asked.json:
        return terminal.print_json(done)
    return _show_optimized(done)


@app.command
def vacuum(
    table: Table,
    /,
    *,
    retention_hours: float = 168.0,
    dry_run: bool = False,
    force: Annotated[
        bool,
        Parameter(
            help="Allow a retention below one hour, and trust the clock of this machine. Safe only while nobody "
            "writes or reads the table."
        ),
    ] = False,
    asked: TableFlags = PLAIN,
) -> None:
    """Remove files that no version within the retention uses and that no registered reader still needs.

    Parameters
    ----------
    retention_hours
        How long versions stay readable. Younger files are never removed.
    dry_run
        Only list the files that would be removed.
    """
    place = _place(table, asked)
    from sulina.spark.delta_vacuum import vacuum as clean

    with _naming(place):
        done = clean(place, retention_seconds=retention_hours * 3600, is_forced=force, is_dry_run=dry_run)
    if asked.json:
        return terminal.print_json(done)
    return _show_vacuumed(done)


@app.command
def history(table: Table, /, *, limit: int = 20, asked: TableFlags = PLAIN) -> None:
    """List the newest versions of a table: time, operation, rows and files, and who committed them.

    Parameters
    ----------
    limit
        Number of versions to list.

    Raises:
        InvalidSettings: --limit is below 1.
    """
    if limit < 1:
        raise InvalidSettings(f"--limit must be 1 or more, not {limit}")
    place = _place(table, asked)
    from sulina.spark.delta_history import history as read

    with _naming(place):
        found = read(place, limit)
    if asked.json:
        return terminal.print_json(found)
    columns = ("version", "when", "operation", "rows", "files", "removed", "size", "by", "metadata")
    return terminal.print_table(
        columns, map(_row, found), right=("version", "rows", "files", "removed", "size"), rare=("by", "metadata")
    )


def _row(facts: "CommitFacts") -> tuple[object, ...]:
    when = None
    if facts.timestamp_ms is not None:
        when = datetime.fromtimestamp(facts.timestamp_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    return (
        facts.version,
        when,
        facts.operation,
        facts.rows_added,
        facts.files_added,
        facts.files_removed,
        terminal.bytes_text(facts.bytes_added),
        ", ".join(f"{app} {number}" for app, number in facts.transactions.items()),
        facts.user_metadata or "",
    )


def _show_optimized(done: "Optimized") -> None:
    if done.overtaken:
        terminal.say(f"skipped {terminal.counted(done.overtaken, 'file')} that another writer replaced meanwhile")
    if not done.files_removed:
        return terminal.done(f"{done.table}: nothing to compact, {_files(done.files_before, done.bytes_before)}")
    before, after = _files(done.files_before, done.bytes_before), _files(done.files_after, done.bytes_after)
    return terminal.done(f"{done.table}: {before} became {after}, by version {done.version}")


def _show_vacuumed(done: "Vacuumed") -> None:
    if done.is_dry_run and done.files:
        rows = [(file.path, terminal.bytes_text(file.size_bytes)) for file in done.files[:FILES_SHOWN_MAX]]
        terminal.print_table(("file", "size"), rows, right=("size",))
        if len(done.files) > FILES_SHOWN_MAX:
            more = terminal.counted(len(done.files) - FILES_SHOWN_MAX, "more file")
            terminal.done(f"and {more}; --json has all of them")
    for name, at in done.readers.items():
        where = f"version {at.version}" if at.snapshot is None else f"the beginning, with version {at.snapshot}"
        terminal.say(f"reader {name} is at {where}: files that it has not read are kept")
    if done.clock_ahead_seconds > CLOCK_AHEAD_SHOWN_SECONDS:
        terminal.say(
            f"the clock of this machine is {done.clock_ahead_seconds:.0f} s ahead of the object store's, so ages are "
            "measured by the store's; set the clock, or trust it with --force"
        )
    verb = "would remove" if done.is_dry_run else "removed"
    kept = terminal.counted(done.files_kept, "unused file")
    terminal.done(f"{done.table}: {verb} {_files(len(done.files), done.size_bytes)}, kept {kept}")


def _files(count: int, size_bytes: int) -> str:
    return f"{terminal.counted(count, 'file')} ({terminal.bytes_text(size_bytes)})"


@contextlib.contextmanager
def _progress(*, is_shown: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar if standard error is a terminal."""
    if not is_shown or not terminal.console(stderr=True).is_terminal:
        yield lambda _done, _total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    with Progress(
        BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=terminal.console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _place(table: str, asked: TableFlags) -> "TableLocation":
    """Return where a table is.

    Raises:
        SparkUnavailable: delta-rs is missing.
        InvalidSettings: the path cannot be a table's.
    """
    try:
        import deltalake  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SparkUnavailable(f"{error.name} is missing: pip install 'sulina[spark]'") from None
    from sulina.spark.table_location import TableLocation

    return TableLocation.parse(table, asked.objects_endpoint)


@contextlib.contextmanager
def _naming(place: "TableLocation") -> Iterator[None]:
    """Add the tables below a folder to the error that it is not a table itself."""
    try:
        yield
    except TableNotFound as error:
        if place.directory is not None:
            for hint in _near(place.directory):
                error.add_note(hint)
        raise


def _near(directory: str) -> list[str]:
    below = _tables_in(directory)
    if below:
        return [f"tables in this folder: {', '.join(below[:NEAR_MAX])}"]
    parent, name = os.path.split(directory)
    close = get_close_matches(name, _tables_in(parent), n=1)
    return [f"did you mean {os.path.join(parent, close[0])}?"] if close else []


def _tables_in(directory: str) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(name for name in os.listdir(directory) if os.path.isdir(f"{directory}/{name}/{LOG_FOLDER}"))
    return []
