"""Joins small files of a Delta table, while others read and write it. Needs no Spark.

- Rows stay what they are, so the commit says that no data changed: streams of the table see nothing of it.
- A commit is a compare and swap on the newest version: it is made right after a version in which all files that it
  takes away are still there, or not at all. What another has overwritten meanwhile stays overwritten.
- Writers are never held up. An append that a compaction overtakes is committed after it.
- One maintainer holds a table (`delta_lease`). His number is in each commit; where a higher one is, it is refused.
- Memory: an output file, encoded, and a row group; with a z-order twice `delta_zorder.RUN_BYTES` more.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from sulina.errors import InvalidInput, InvalidSettings
from sulina.spark.binning import bins_of
from sulina.spark.delta_files import (
    OPEN_BYTES_MAX,
    ROW_GROUP_BYTES,
    TARGET_BYTES,
    NewFile,
    WritePlan,
    discard,
    write_files,
)
from sulina.spark.delta_lease import APP, LEASE_SECONDS, MaintenanceLease, hold
from sulina.spark.delta_log import TableFile, check_writable, files_of, open_table, schema_of, snapshot
from sulina.spark.delta_scan import FilePiece, ScanPlan, read_pieces
from sulina.spark.delta_schema import arrow_schema
from sulina.spark.delta_table import make_durable, version_with
from sulina.spark.delta_zorder import z_columns, z_ordered
from sulina.spark.errors import MaintenanceFenced, TableFailed
from sulina.spark.table_location import TableLocation

TARGET_BYTES_MAX = 1 << 30  # an output file is in memory until it is whole
BIN_FILES_MAX = 10_000
Z_BIN_TARGETS = 8  # output files that are ordered together
COMMIT_BYTES = 1 << 30  # rewritten, in one commit; what a crash may cost is no more than that
COMMIT_FILES = 1000
ATTEMPTS_MAX = 100
PAUSE_SECONDS_MAX = 0.2
OPERATION = "sulinaOperation"  # in the commit's information
_AS_DELTA_RS = "/!$&'()+,:;=@"  # characters that delta-rs does not quote in the paths of a log

Told = Callable[[int, int], None]  # bytes that are rewritten, of how many


class Optimized(msgspec.Struct, kw_only=True):
    """What a compaction did. Before and after are of the whole table, without what others did meanwhile."""

    table: str
    files_before: int
    bytes_before: int
    files_after: int
    bytes_after: int
    files_removed: int = 0
    files_added: int = 0
    commits: int = 0
    overtaken: int = 0  # files that others had taken away before they were replaced
    version: int = 0


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Some files of a table, and the new files that have the same rows."""

    removed: tuple[TableFile, ...]
    added: tuple[NewFile, ...]


def optimize(
    location: TableLocation,
    *,
    target_bytes: int = TARGET_BYTES,
    z_order: Sequence[str] = (),
    told: Told = lambda _done, _total: None,
    lease_seconds: float = LEASE_SECONDS,
) -> Optimized:
    """Join small files; with `z_order`, write all files again, with their rows in that order.

    Raises:
        InvalidSettings: `target_bytes` or `z_order` is not possible.
        TableNotFound: there is no table.
        TableUnsupported: it has a feature that this writer lacks.
        MaintenanceBusy: somebody else maintains the table; nothing was done.
        MaintenanceFenced: somebody else took over. What was committed is there, and the rest can be done again.
        TableFailed: the last commit may be there. The rest can be done again.
        ArchiveFailed: a file could not be read or written. The rest can be done again.
    """
    if not 1 <= target_bytes <= TARGET_BYTES_MAX:
        raise InvalidSettings(
            f"a target of {target_bytes} bytes: it is 1 to {TARGET_BYTES_MAX}, as files are in memory"
        )
    table = _checked(location)
    columns = z_columns(z_order, arrow_schema(schema_of(table)), table.metadata().partition_columns)
    with hold(location, recorded=_fence(table), seconds=lease_seconds) as lease:
        return _Compaction(location, lease, target_bytes, columns, told).run()


def _checked(location: TableLocation) -> DeltaTable:
    table = open_table(location)
    check_writable(location, table, overwrite=False)
    return table


def _fence(table: DeltaTable) -> int:
    return table.transaction_version(APP) or 0


@dataclass(slots=True)
class _Compaction:
    """One run of one maintainer."""

    location: TableLocation
    lease: MaintenanceLease
    target_bytes: int
    z_order: tuple[str, ...]
    told: Told
    _waiting: list[Rewrite] = field(default_factory=list)

    def run(self) -> Optimized:
        table = _checked(self.location)
        found = snapshot(table)
        files, size = found.num_rows, sum(found.column("size_bytes").to_pylist())
        done = Optimized(
            table=self.location.path_or_uri,
            files_before=files,
            bytes_before=size,
            files_after=files,
            bytes_after=size,
            version=table.version(),
        )
        bins = self._bins(table, found)
        total, rewritten = sum(file.size_bytes for some in bins for file in some), 0
        try:
            for some in bins:
                self._waiting.append(Rewrite(some, tuple(self._rewritten(table, some))))
                rewritten += sum(file.size_bytes for file in some)
                self.told(rewritten, total)
                if self._is_enough():
                    self._commit(done)
        except BaseException:
            discard(self.location, [file for one in self._waiting for file in one.added])
            raise
        self._commit(done)
        return done

    def _bins(self, table: DeltaTable, found: pa.Table) -> list[tuple[TableFile, ...]]:
        # A file goes by the very name that it came with. One that delta-rs would name otherwise is left alone.
        is_named = [quote(unquote(path), safe=_AS_DELTA_RS) == path for path in found.column("path").to_pylist()]
        columns = table.metadata().partition_columns
        files = files_of(self.location, found.filter(pa.array(is_named, pa.bool_())), columns)

        def values(file: TableFile) -> tuple[tuple[bool, str], ...]:
            return tuple((value is not None, value or "") for value in file.partition_values)

        bins = []
        for _, group in groupby(sorted(files, key=values), key=values):
            bins += self._bins_of(list(group))
        return bins

    def _bins_of(self, files: list[TableFile]) -> list[tuple[TableFile, ...]]:
        """Group files that have the same partition values, in the order in which they were written."""
        sizes = [file.size_bytes for file in files]
        if not self.z_order:
            found = bins_of(sizes, target_bytes=self.target_bytes, files_max=BIN_FILES_MAX)
            return [tuple(files[at] for at in some) for some in found]
        bins: list[list[TableFile]] = []
        size = 0
        for file in files:
            if not bins or size + file.size_bytes > Z_BIN_TARGETS * self.target_bytes:
                bins.append([])
                size = 0
            bins[-1].append(file)
            size += file.size_bytes
        return [tuple(some) for some in bins]

    def _rewritten(self, table: DeltaTable, files: Sequence[TableFile]) -> list[NewFile]:
        schema, columns = arrow_schema(schema_of(table)), tuple(table.metadata().partition_columns)
        # A little more than the target, so that no scrap is left where the rows need more room than before.
        target = self.target_bytes if self.z_order else self.target_bytes * 5 // 4
        room = max(OPEN_BYTES_MAX, target + 2 * ROW_GROUP_BYTES)
        plan = WritePlan(self.location, schema, columns, target, open_bytes_max=room)
        rows = self._rows(ScanPlan(self.location, schema, columns), files)
        return write_files(plan, z_ordered(rows, self.z_order) if self.z_order else rows)

    def _rows(self, plan: ScanPlan, files: Sequence[TableFile]) -> Iterator[pa.RecordBatch]:
        for file in files:
            for batch in read_pieces(plan, [FilePiece(file, 0, file.size_bytes)]):
                self.lease.keep()
                yield batch

    def _is_enough(self) -> bool:
        removed = [file for one in self._waiting for file in one.removed]
        return len(removed) >= COMMIT_FILES or sum(file.size_bytes for file in removed) >= COMMIT_BYTES

    # Commits

    def _commit(self, done: Optimized) -> None:
        """Commit the rewrites that wait. From here on the log alone decides which files stay."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        kept, version = replace_files(self.location, waiting, self.lease.number)
        for one in waiting:
            if one not in kept:
                done.overtaken += len(one.removed)
        added = [file for one in kept for file in one.added]
        removed = [file for one in kept for file in one.removed]
        done.files_added += len(added)
        done.files_removed += len(removed)
        done.files_after += len(added) - len(removed)
        done.bytes_after += sum(f.size_bytes for f in added) - sum(f.size_bytes for f in removed)
        done.commits += bool(kept)
        done.version = max(done.version, version)


def replace_files(location: TableLocation, rewrites: Sequence[Rewrite], fence: int) -> tuple[list[Rewrite], int]:
    """Commit the rewrites whose files are all still there, and delete the new files of the others.

    Return the rewrites that were committed, and the version.

    Raises:
        MaintenanceFenced: nothing was committed.
        TableUnsupported: nothing was committed.
        TableFailed: whether it was committed is unknown, and all files stay.
    """
    left = list(rewrites)
    failure: Exception | None = None
    since: int | None = None
    for _ in range(ATTEMPTS_MAX):
        # Whatever an attempt before this came to: where a newer version is there now, it is decided, and found there.
        try:
            table = _checked(location)
        except InvalidInput:
            discard(location, _added(left))
            raise
        newest = table.version()
        if since is not None and (ours := version_with(location, _added(left), since, newest)) is not None:
            make_durable(location, ours)
            return left, ours
        if newest != since:
            left = _still_possible(location, table, left, fence)
        if not left:
            return [], newest
        since = newest
        try:
            _attempt(table, left, fence)
        except Exception as error:  # noqa: BLE001 - delta-rs raises plain ones too; whatever it was, the log decides
            failure = error
            time.sleep(random.uniform(0, PAUSE_SECONDS_MAX))
            continue
        make_durable(location, newest + 1)
        return left, newest + 1
    assert failure is not None
    raise TableFailed(table=location.path_or_uri, cause=failure)


def _still_possible(location: TableLocation, table: DeltaTable, rewrites: list[Rewrite], fence: int) -> list[Rewrite]:
    """Return the rewrites whose old files are all still there, and delete the new files of the others.

    Raises:
        MaintenanceFenced: somebody else took over.
    """
    current = _fence(table)
    if current > fence:
        discard(location, _added(rewrites))
        raise MaintenanceFenced(table=location.path_or_uri, ours=fence, current=current)
    live = {unquote(path) for path in snapshot(table).column("path").to_pylist()}
    lost = [one for one in rewrites if any(file.path not in live for file in one.removed)]
    discard(location, _added(lost))
    return [one for one in rewrites if one not in lost]


def _added(rewrites: Sequence[Rewrite]) -> list[NewFile]:
    return [file for one in rewrites for file in one.added]


def _attempt(table: DeltaTable, rewrites: Sequence[Rewrite], fence: int) -> None:
    """Commit exactly one version after the table's, or not at all."""
    columns, now_ms = table.metadata().partition_columns, int(time.time() * 1000)
    actions: list[AddAction | RemoveAction] = [
        AddAction(file.path, file.size_bytes, dict(file.partition_values), file.modified_ms, False, file.stats)
        for file in _added(rewrites)
    ]
    actions += [
        RemoveAction(file.path, False, now_ms, file.size_bytes, dict(zip(columns, file.partition_values, strict=True)))
        for one in rewrites
        for file in one.removed
    ]
    properties = CommitProperties(
        app_transactions=[Transaction(APP, fence)],
        max_commit_retries=0,  # with more, delta-rs would commit it after versions that nobody here has looked at
        custom_metadata={OPERATION: "optimize"},
    )
    table.create_write_transaction(actions, "append", table.schema(), columns, commit_properties=properties)
