"""A Delta table that is written exactly once, through delta-rs. Runs in the driver.

- A commit carries who made it and the number that he gave it (an application transaction). One that is there already
  adds nothing. The log is asked first, and again after every failure: delta-rs itself refuses only what another writer
  committed at the same moment.
- Files that a commit might have are never removed: where the outcome is not known, they stay, and a vacuum takes them.
- Two writers that make the same table at once: one makes it, the other finds it made. For that, making it is never
  tried twice by delta-rs, which would put a second beginning after the first.
"""

import contextlib
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyspark.sql.types import StructType

from sulina.core.backoff import doubled, jittered
from sulina.errors import InvalidInput
from sulina.failpoints import Failpoint, reach
from sulina.spark.delta_files import TARGET_BYTES, NewFile, WritePlan, discard
from sulina.spark.delta_log import check_writable, find_table, read_commit, schema_of
from sulina.spark.delta_schema import arrow_schema, check_partition_columns, fit, table_schema
from sulina.spark.errors import TableFailed, TableSchemaConflict
from sulina.spark.table_location import LOG_FOLDER, TableLocation

ATTEMPTS_MAX = 20
DELTA_RETRIES_MAX = 100  # how often an append is tried again that other appends overtake
PAUSE_SECONDS = 0.05
PAUSE_SECONDS_MAX = 1.0
CONFIGURATION = {"delta.enableDeletionVectors": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTo:
    """A table, what is written to it, and what may change of it. Pickled."""

    location: TableLocation
    schema: StructType  # of the rows
    partition_columns: tuple[str, ...] | None = None  # None: those that the table has
    overwrite: bool = False
    merge_schema: bool = False
    overwrite_schema: bool = False
    user_metadata: str | None = None  # a word of the user's own, kept with the commit


@dataclass(frozen=True, slots=True)
class Committed:
    """The table's version with these files; or its newest, where there was nothing to add to it."""

    version: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class _Shape:
    """The table's columns, before and after."""

    schema: StructType
    rows: StructType
    partition_columns: tuple[str, ...]
    added: tuple[Field, ...] = ()


def plan_write(to: WriteTo, *, target_bytes: int = TARGET_BYTES) -> WritePlan:
    """Return how executors write. Nothing is written yet.

    Raises:
        TableSchemaConflict: the columns do not fit the table.
        TableUnsupported: it has a feature that this writer lacks.
        InvalidSettings: a column cannot be in a table, or cannot be a partition column.
    """
    shape = _shape(to, find_table(to.location))
    return WritePlan(to.location, arrow_schema(shape.rows), shape.partition_columns, target_bytes)


def commit(to: WriteTo, files: Sequence[NewFile], *, app: str | None = None, version: int = 0) -> Committed:
    """Make files part of the table, or delete them if the table has (app, version) already.

    Raises:
        TableSchemaConflict: nothing was committed, and the files are deleted.
        TableUnsupported: nothing was committed, and the files are deleted.
        TableFailed: the outcome is not known. Try again with the same app and version.
    """
    failure: Exception | None = None
    since: int | None = None  # the version that was there before the first attempt
    for attempt in range(ATTEMPTS_MAX):
        table = find_table(to.location)
        newest = table.version() if table is not None else -1
        since = newest if since is None else since
        if failure is not None and (ours := version_with(to.location, files, since, newest)) is not None:
            return Committed(ours, True)  # an attempt that seemed to fail did not
        recorded = table.transaction_version(app) if table is not None and app is not None else None
        if recorded is not None and recorded >= version:
            reach(Failpoint.COMMIT_FOUND, to.location.path_or_uri)
            return _found_there(to.location, files, since, newest)
        if table is not None and not files and not to.overwrite and to.user_metadata is None:
            return Committed(newest, False)
        try:
            reach(Failpoint.COMMIT_BEGUN, to.location.path_or_uri)
            made = _attempt(to, table, files, app, version)
            reach(Failpoint.COMMIT_DONE, to.location.path_or_uri)
            return Committed(made, True)
        except (InvalidInput, TableSchemaConflict):
            if failure is None:
                discard(to.location, files)
            raise
        except Exception as error:  # noqa: BLE001 - delta-rs raises plain ones too; whatever it was, the log decides
            failure = error
        time.sleep(jittered(doubled(PAUSE_SECONDS, PAUSE_SECONDS_MAX, attempt), random.random))
    assert failure is not None
    raise TableFailed(table=to.location.path_or_uri, cause=failure)


def _found_there(location: TableLocation, files: Sequence[NewFile], since: int, newest: int) -> Committed:
    """Settle with a commit of the same (app, version): ours that seemed to fail, or another process'."""
    ours = version_with(location, files, since, newest)
    if ours is not None:
        return Committed(ours, True)
    discard(location, files)
    return Committed(newest, False)


def version_with(location: TableLocation, files: Sequence[NewFile], since: int, newest: int) -> int | None:
    """Return the version after `since` that has one of these files. A commit has all of its files or none."""
    paths = {file.path for file in files[:1]}
    for version in range(since + 1, newest + 1) if paths else ():
        entry = read_commit(location, version, ())
        if entry is not None and entry.paths & paths:
            return version
    return None


def _shape(to: WriteTo, table: DeltaTable | None) -> _Shape:
    rows = table_schema(to.schema)
    if table is None:
        columns = check_partition_columns(rows, to.partition_columns or ())
        return _Shape(rows, rows, columns)
    check_writable(to.location, table, overwrite=to.overwrite)
    current = tuple(table.metadata().partition_columns)
    wanted = current if to.partition_columns is None else to.partition_columns
    if [name.lower() for name in wanted] != [name.lower() for name in current]:
        reason = f"its partition columns are {', '.join(current) or 'none'}, and not {', '.join(wanted) or 'none'}"
        raise TableSchemaConflict(table=to.location.path_or_uri, columns="partition columns", reason=reason)
    if to.overwrite and to.overwrite_schema:
        return _Shape(rows, rows, check_partition_columns(rows, current))
    fitted = fit(to.location.path_or_uri, schema_of(table), rows, merge=to.merge_schema)
    missing = [name for name in current if name not in fitted.rows.names]
    if missing:
        reason = "the rows have none, and files are kept by it; add it, as null"
        raise TableSchemaConflict(
            table=to.location.path_or_uri, columns=f"partition column {missing[0]}", reason=reason
        )
    added = tuple(Field.from_json(field.json()) for field in fitted.added)
    return _Shape(fitted.table, fitted.rows, current, added)


def _attempt(to: WriteTo, table: DeltaTable | None, files: Sequence[NewFile], app: str | None, version: int) -> int:
    """Try to commit once. An error of delta-rs does not tell whether it was committed."""
    shape = _shape(to, table)
    properties = CommitProperties(
        app_transactions=[] if app is None else [Transaction(app, version)],
        max_commit_retries=0 if table is None or to.overwrite else DELTA_RETRIES_MAX,
        custom_metadata=None if to.user_metadata is None else {"userMetadata": to.user_metadata},
    )
    added = [
        AddAction(file.path, file.size_bytes, dict(file.partition_values), file.modified_ms, True, file.stats)
        for file in files
    ]
    schema, columns = Schema.from_json(shape.schema.json()), list(shape.partition_columns)
    if table is None:
        create_table_with_add_actions(
            to.location.path_or_uri,
            schema,
            added,
            partition_by=columns,
            configuration=CONFIGURATION,
            storage_options=to.location.storage_options,
            commit_properties=properties,
        )
        make_durable(to.location, 0)
        return 0
    if shape.added and not to.overwrite:
        table.alter.add_columns(list(shape.added))
        table.update_incremental()
    table.create_write_transaction(
        [*added],
        "overwrite" if to.overwrite else "append",
        schema,
        columns,
        commit_properties=properties,
    )
    before = table.version()
    table.update_incremental()
    newest = table.version()
    made = None if newest == before + 1 else version_with(to.location, files, before, newest)
    make_durable(to.location, newest if made is None else made)
    return newest if made is None else made


def make_durable(location: TableLocation, version: int) -> None:
    """Sync a commit to disk, which delta-rs leaves to the system: a torn commit would make the table unreadable."""
    if location.directory is None:
        return
    folder = f"{location.directory}/{LOG_FOLDER}"
    for path in (f"{folder}/{version:020d}.json", folder):
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
