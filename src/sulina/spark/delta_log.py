"""Log of a Delta table, as far as readers need it: the files of a version, and what a commit changed.

Runs in the driver. A table with a feature that would give a reader of plain Parquet other rows than the table has is
refused.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql.types import StructType

from sulina.errors import InvalidSettings, VersionNotRetained
from sulina.spark.delta_partitions import Values, to_texts
from sulina.spark.errors import TableFailed, TableNotFound, TableUnsupported
from sulina.spark.table_location import LOG_FOLDER, TableLocation

_READER_FEATURES = {"timestampNtz", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck", "columnMapping"}
_WRITER_FEATURES = _READER_FEATURES | {
    "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "identityColumns",
}  # fmt: skip
_COMMANDS = {
    "delta.generationExpression": "generated columns",
    "delta.identity.start": "identity columns",
    "delta.invariants": "column invariants",
    "CURRENT_DEFAULT": "column defaults",
}


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of a table, as the log names it."""

    path: str  # below the root, as the store has it
    size_bytes: int
    partition_values: Values


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One commit: what it added for readers, and whether it took something away from them."""

    version: int
    added: tuple[TableFile, ...]
    has_removed: bool
    operation: str
    paths: frozenset[str]  # of all that it added, compactions too


# Opening


def find_table(location: TableLocation) -> DeltaTable | None:
    """Open the newest version. None: there is no table.

    Raises:
        TableFailed: the log cannot be read.
    """
    try:
        return DeltaTable(location.path_or_uri, storage_options=location.storage_options)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        if location.directory is not None and not _has_log(location):
            return None  # a folder that is no table yet
        raise TableFailed(table=location.path_or_uri, cause=error) from error


def _has_log(location: TableLocation) -> bool:
    return bool(location.objects().list(LOG_FOLDER))


def open_table(location: TableLocation, *, version: int | None = None, timestamp: str | None = None) -> DeltaTable:
    """Open a version to read it.

    Raises:
        TableNotFound: there is no table.
        VersionNotRetained: there is no such version, or no longer.
        InvalidSettings: `timestamp` is not a time.
        TableFailed: the log cannot be read.
        TableUnsupported: it has a feature that this reader lacks.
    """
    table = find_table(location)
    if table is None:
        raise TableNotFound(table=location.path_or_uri)
    if version is not None or timestamp is not None:
        current = table.version()
        try:
            table.load_as_version(_moment(timestamp) if timestamp is not None else version or 0)
        except (DeltaError, ValueError, OSError) as error:
            if version is None:
                raise TableFailed(table=location.path_or_uri, cause=error) from error
            raise VersionNotRetained(version=version, oldest=oldest_version(location), current=current) from error
    check_readable(location, table)
    return table


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InvalidSettings(f"timestamp {text!r} must have the form 2026-11-01T12:00:00Z") from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def schema_of(table: DeltaTable) -> StructType:
    """Return the columns of a table, as Spark has them."""
    return StructType.fromJson(json.loads(table.schema().to_json()))


def check_readable(location: TableLocation, table: DeltaTable) -> None:
    """Check that this reader knows all features of a table.

    Raises:
        TableUnsupported: it does not.
    """
    protocol, settings = table.protocol(), table.metadata().configuration
    _refuse(location, set(protocol.reader_features or ()) - _READER_FEATURES)
    if (settings.get("delta.columnMapping.mode") or "none") != "none":
        _refuse(location, ["column mapping"])
    if "deletionVectors" in (protocol.reader_features or ()) and pa.table(table.deletion_vectors()).num_rows:
        _refuse(location, ["deletion vectors"])


def check_writable(location: TableLocation, table: DeltaTable, *, overwrite: bool) -> None:
    """Check that this writer knows all features of a table, and need not check or change rows.

    Raises:
        TableUnsupported: it does not.
    """
    protocol, settings = table.protocol(), table.metadata().configuration
    _refuse(location, set(protocol.writer_features or ()) - _WRITER_FEATURES)
    if (settings.get("delta.columnMapping.mode") or "none") != "none":
        _refuse(location, ["column mapping"])
    _refuse(location, [f"a constraint ({name})" for name in settings if name.startswith("delta.constraints.")])
    for field in schema_of(table):
        _refuse(location, [feature for key, feature in _COMMANDS.items() if key in (field.metadata or {})])
    if overwrite and settings.get("delta.appendOnly") == "true":
        _refuse(location, ["delta.appendOnly, so nothing of it may be overwritten"])


def _refuse(location: TableLocation, features: Iterable[str]) -> None:
    for feature in sorted(features):
        raise TableUnsupported(table=location.path_or_uri, feature=feature)


# Versions


def snapshot(table: DeltaTable) -> pa.Table:
    """Return a row a file: path, size_bytes, num_records, partition.NAME, min.NAME, max.NAME, null_count.NAME."""
    return pa.table(table.get_add_actions(flatten=True))


def files_of(location: TableLocation, found: pa.Table, partition_columns: Iterable[str]) -> list[TableFile]:
    """Return the files of a snapshot, or of some of its rows, in the order in which they were written."""
    found = found.sort_by([("modification_time", "ascending"), ("path", "ascending")])
    columns = [to_texts(found.column(f"partition.{name}").combine_chunks()) for name in partition_columns]
    values = list(zip(*columns, strict=True)) if columns else [()] * found.num_rows
    return [
        TableFile(_path(location, path), size, tuple(some))
        for path, size, some in zip(
            found.column("path").to_pylist(), found.column("size_bytes").to_pylist(), values, strict=True
        )
    ]


def read_commit(location: TableLocation, version: int, partition_columns: Iterable[str]) -> LogEntry | None:
    """Read one commit. None: it does not exist, or no longer.

    Raises:
        TableUnsupported: it has deletion vectors, or files of another table.
        ArchiveFailed: the store does not answer.
    """
    data = location.objects().get(f"{LOG_FOLDER}/{version:020d}.json")
    if data is None:
        return None
    added, paths, operation, has_removed = [], set(), "a commit", False
    names = list(partition_columns)
    for line in bytes(data).splitlines():
        action = json.loads(line) if line.strip() else {}
        add, remove = action.get("add"), action.get("remove")
        if add is not None:
            paths.add(_path(location, add["path"]))
            if add.get("dataChange", True):
                added.append(_added(location, add, names))
        elif remove is not None:
            has_removed |= bool(remove.get("dataChange", True))
        elif "commitInfo" in action:
            operation = str(action["commitInfo"].get("operation", operation))
    return LogEntry(version, tuple(added), has_removed, operation, frozenset(paths))


def _added(location: TableLocation, add: dict[str, Any], names: list[str]) -> TableFile:
    if add.get("deletionVector") is not None:
        _refuse(location, ["deletion vectors"])
    values = tuple(add["partitionValues"].get(name) or None for name in names)
    return TableFile(_path(location, add["path"]), add["size"], values)


def _path(location: TableLocation, encoded: str) -> str:
    if "://" in encoded or encoded.startswith("/"):
        _refuse(location, ["files of another table (a shallow clone)"])
    return unquote(encoded)


def oldest_version(location: TableLocation) -> int:
    """Return the oldest version whose commit is still there."""
    versions = [
        int(listed.name.removesuffix(".json"))
        for listed in location.objects().list(LOG_FOLDER)
        if listed.name.endswith(".json") and listed.name.removesuffix(".json").isdecimal()
    ]
    return min(versions, default=0)
