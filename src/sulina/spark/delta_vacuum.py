"""Removes files that no reader of a Delta table needs any more. Needs no Spark.

What is kept, whatever its age:
- every file of the newest version;
- every file that a commit within the retention took away: versions of that time can still be read;
- every file that a registered stream has not read yet (`delta_readers`);
- whatever is younger than the retention: it may be of a commit that is under way;
- everything below a folder that is a table itself, and whatever is no data file.

Ages are told by the earlier of two clocks: ours, and that of the store, which has just given the lease its time. So a
machine whose clock is ahead takes nothing that is young by the store's. A dry run has no lease: it goes by ours.

The log itself is kept by delta-rs: it writes a checkpoint every 100 versions, and removes commits that are older than
30 days and than a checkpoint (`delta.logRetentionDuration`).
"""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

import msgspec
from deltalake import DeltaTable

from sulina.errors import InvalidSettings, VersionNotRetained
from sulina.spark.delta_history import Actions, read_actions
from sulina.spark.delta_lease import APP, Clock, hold
from sulina.spark.delta_log import check_writable, open_table, snapshot
from sulina.spark.delta_readers import TablePosition, live_readers, path_of
from sulina.spark.errors import TableUnsupported
from sulina.spark.table_location import LOG_FOLDER, TableLocation
from sulina.storage.objects import Listed

RETENTION_SECONDS = 7 * 86_400.0
RETENTION_SECONDS_MIN = 3600.0
READS_AT_ONCE = 16  # commits that are read at the same time
DELETED_AT_ONCE = 1000
_DATA = (".parquet", ".aside")  # a file that a killed writer has left aside is data too


class OldFile(msgspec.Struct, kw_only=True):
    """A file that no version and no reader needs."""

    path: str
    size_bytes: int
    modified_ms: int


class Vacuumed(msgspec.Struct, kw_only=True):
    """The files that were removed, or would be."""

    table: str
    version: int
    is_dry_run: bool
    files: list[OldFile]
    files_kept: int  # files that the newest version does not have, and that stay
    readers: dict[str, TablePosition]
    clock_ahead_seconds: float = 0.0  # how far our clock was ahead of the store's, which counted then

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def vacuum(
    location: TableLocation,
    *,
    retention_seconds: float = RETENTION_SECONDS,
    is_forced: bool = False,
    is_dry_run: bool = False,
    clock: Clock = time.time,
) -> Vacuumed:
    """Remove files that nobody needs; `is_forced` allows any retention, and goes by `clock` alone.

    Raises:
        InvalidSettings, TableNotFound, TableUnsupported, MaintenanceBusy: nothing was done.
    """
    if retention_seconds < (0 if is_forced else RETENTION_SECONDS_MIN):
        raise InvalidSettings(
            f"a retention of {retention_seconds:g} s may take files of a commit that is under way, and of queries that "
            f"run: keep an hour or more, or force it where nobody else is at the table"
        )
    if is_dry_run:
        return _found(location, retention_seconds, clock())
    table = open_table(location)
    with hold(location, recorded=table.transaction_version(APP) or 0, clock=clock) as lease:
        ahead = 0.0 if is_forced else max(0.0, clock() - lease.stored_at())
        found = _found(location, retention_seconds, clock() - ahead)
        for first in range(0, len(found.files), DELETED_AT_ONCE):
            lease.keep()
            location.objects().delete([file.path for file in found.files[first : first + DELETED_AT_ONCE]])
    return msgspec.structs.replace(found, is_dry_run=False, clock_ahead_seconds=ahead)


def _found(location: TableLocation, retention_seconds: float, now: float) -> Vacuumed:
    # The table before and after the look at its folders: what is committed in between is of one of them, or young.
    before = _paths(open_table(location))
    listed = location.objects().list("")
    readers = live_readers(location, now)
    table = open_table(location)
    check_writable(location, table, overwrite=False)
    live = _paths(table)
    for path in sorted((before & live) - {one.name for one in listed}):
        # It is gone, or the store has another name for it: then what is listed cannot be told from what is not needed.
        raise TableUnsupported(table=location.path_or_uri, feature=f"a file that its store does not list ({path})")
    cutoff = now - retention_seconds
    kept = before | live | _needed(location, listed, readers, cutoff)
    useless = [one for one in _data_files(listed) if one.name not in live]
    old = [one for one in useless if one.name not in kept and one.modified < cutoff]
    return Vacuumed(
        table=location.path_or_uri,
        version=table.version(),
        is_dry_run=True,
        files=[
            OldFile(path=one.name, size_bytes=one.size, modified_ms=int(one.modified * 1000))
            for one in sorted(old, key=lambda one: one.name)
        ],
        files_kept=len(useless) - len(old),
        readers=readers,
    )


def _data_files(listed: Iterable[Listed]) -> list[Listed]:
    inner = [one.name.partition(f"/{LOG_FOLDER}/")[0] + "/" for one in listed if f"/{LOG_FOLDER}/" in one.name]
    tables = tuple(sorted(set(inner)))
    return [
        one
        for one in listed
        if one.name.endswith(_DATA) and not one.name.startswith(tables) and not _is_hidden(one.name)
    ]


def _is_hidden(path: str) -> bool:
    """Tell whether a path has a hidden folder. Folders of partitions are not: they have an equals sign."""
    return any(folder.startswith(("_", ".")) and "=" not in folder for folder in path.split("/"))


# What somebody needs


def _needed(
    location: TableLocation, listed: Sequence[Listed], readers: dict[str, TablePosition], cutoff: float
) -> set[str]:
    """Return the files that commits since the cutoff removed, and those that readers have not read."""
    read_to = min((_position(one) for one in readers.values()), default=None)
    young: set[int] = set()
    wanted: list[int] = []
    for one in listed:
        version = _version(one.name)
        if version is None:
            continue
        if one.modified >= cutoff:
            young.add(version)
        if version in young or (read_to is not None and version > read_to):
            wanted.append(version)
    found = _snapshots(location, readers)
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        for actions in pool.map(lambda version: read_actions(location, version), wanted):
            if actions is not None:
                found |= _kept_by(actions, young, read_to)
    return found


def _kept_by(actions: Actions, young: set[int], read_to: int | None) -> set[str]:
    found = actions.removed_paths if actions.version in young else set()
    return found | actions.new_paths if read_to is not None and actions.version > read_to else found


def _position(reader: TablePosition) -> int:
    return reader.version if reader.snapshot is None else reader.snapshot


def _snapshots(location: TableLocation, readers: dict[str, TablePosition]) -> set[str]:
    """Return the files of versions that readers have begun with.

    Raises:
        VersionNotRetained: such a version is gone.
    """
    found: set[str] = set()
    for name, reader in readers.items():
        if reader.snapshot is None:
            continue
        try:
            table = open_table(location, version=reader.snapshot)
        except VersionNotRetained as error:
            error.add_note(
                f"reader {name} begins with it; if it is gone, remove {location.path_or_uri}/{path_of(name)}"
            )
            raise
        found |= _paths(table)
    return found


def _paths(table: DeltaTable) -> set[str]:
    return {unquote(path) for path in snapshot(table).column("path").to_pylist()}


def _version(path: str) -> int | None:
    """Return the version of a commit in the table's own log; None: it is another file."""
    folder, _, name = path.rpartition("/")
    number = name.removesuffix(".json")
    return int(number) if folder == LOG_FOLDER and name.endswith(".json") and number.isdecimal() else None
