"""The archive of one partition: slices of its log as objects, and a commit log that lists the valid ones.

- Objects are put first, under unique names; then a commit, put if absent, makes them part of the archive. Objects that
  were put and never committed are ignored, and swept later.
- `claim` raises the epoch: from then on a commit of an older epoch cannot come next, so its writer fails, learns why,
  and stops. A claim sees everything that was committed before it.
- When the store does not answer, nothing is assumed: the next call reads first what is there.

All calls block. One thread at a time changes the archive; any number may read.
"""

import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from crc32c import crc32c

from sulina.clock import SystemClock
from sulina.core.log.archive import (
    ArchiveView,
    commits_name,
    expired_slices,
    is_object_name,
    merge_run,
    object_name,
    objects_of,
    state_name,
)
from sulina.core.log.commit import (
    NO_ORIGIN,
    Add,
    AnyOperation,
    Checkpoint,
    Claim,
    Merge,
    SegmentRef,
    decode,
    timestamp_text,
)
from sulina.core.log.log_state import NO_EPOCH, LogState, MemoryLimits
from sulina.core.log.plan import checkpoint_due
from sulina.core.log.retention import Retention
from sulina.core.log.segment import segment_name
from sulina.core.log.txn_run import TxnRun
from sulina.errors import ArchiveFailed, CorruptLog, CorruptSegment, EpochTaken, StaleEpoch, VersionConflict
from sulina.failpoints import Failpoint, FailpointHook, no_failpoints
from sulina.ports import Bytes, Clock
from sulina.storage.archive_cache import ArchiveCache
from sulina.storage.archive_reader import ArchiveReader
from sulina.storage.commit_log import CommitLog, load_runs
from sulina.storage.objects import Objects
from sulina.types import Epoch, Offset, Version

COMMITS_FOLDER = "_delta_log"
VERSIONS_KEPT = 100  # of the archive's own log: a reader that follows it need not load it again
CONFLICTS_MAX = 8
ORPHAN_SECONDS = 3600.0  # since an object was first seen: by then its writer has committed it, or never will
GRACE_SECONDS = 60.0  # merged slices stay this long for reads that have begun
FETCHES_AT_ONCE = 8
_ASIDE = ".aside"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSlice:
    """A slice that is about to become part of an archive."""

    object: str
    offset_start: Offset
    offset_end: Offset
    version_start: Version
    version_end: Version
    epoch: Epoch  # of its batches
    timestamp_max: int
    data: Sequence[Bytes]
    commits: bytes
    state: bytes | None = None
    runs: Sequence[TxnRun] = ()  # runs of txn_ids that the state names

    @property
    def size(self) -> int:
        """Size of its batches in bytes."""
        return sum(map(len, self.data))

    def add(self) -> Add:
        """Return the operation that makes the slice part of the archive."""
        crc = 0
        for part in self.data:
            crc = crc32c(part, crc)
        return Add(
            origin_id=NO_ORIGIN,
            origin_seq=NO_ORIGIN,
            offset_start=self.offset_start,
            offset_end=self.offset_end,
            segment=segment_name(self.offset_start),
            position=0,
            size=self.size,
            timestamp_max=self.timestamp_max,
            object=self.object,
            version_start=self.version_start,
            version_end=self.version_end,
            epoch=self.epoch,
            data_crc=crc,
            commits_size=len(self.commits),
            state=state_name(self.object) if self.state is not None else None,
        )


def new_object(offset: int) -> str:
    """Return a unique name for the batches of a slice."""
    return object_name(offset, secrets.token_hex(8))


class Archive(ArchiveReader):
    """An archive at a path, which need not exist yet; call `load` first."""

    def __init__(
        self,
        objects: Objects,
        path: str,
        *,
        clock: Clock | None = None,
        cache: ArchiveCache | None = None,
        readers: Executor | None = None,
        failpoints: FailpointHook = no_failpoints,
    ) -> None:
        super().__init__(objects, path, cache=cache or ArchiveCache(), readers=readers)
        self._clock = clock or SystemClock()
        self._reach = failpoints
        self.commit_log = CommitLog(
            objects.commits(f"{path}/{COMMITS_FOLDER}"), clock=self._clock, writer=secrets.token_hex(8)
        )
        self._lock = threading.Lock()  # for every change of the archive, or of our view of it
        self._is_unsure = False  # whether the outcome of our last commit is unknown
        self._epoch: Epoch | None = None  # that we write with
        self._due: Checkpoint | None = None
        self._garbage: deque[tuple[float, list[str]]] = deque()
        self._in_flight: set[str] = set()
        self._sweeping = threading.Lock()  # no run of txn_ids is deleted while another thread relies on it
        self._runs: set[str] | None = None  # runs of txn_ids that are stored; None: list them first
        self._orphans: dict[str, float] = {}  # objects that no slice refers to, and since when we know that

    # Loading

    def load(self) -> ArchiveView:
        """Load the archive's state.

        Raises:
            ArchiveFailed: the object store does not answer.
            CorruptCommit: a commit is damaged.
            CorruptLog: commits are missing.
        """
        with self._lock:
            self._look()
            return self.view

    def highest_claim(self) -> tuple[Epoch, str | None]:
        """Return the highest epoch in any readable file, and the broker that claimed it, if known.

        Works for an archive that cannot be loaded, too. Old claims are in checkpoints only.
        Raises:
            ArchiveFailed: the object store does not answer.
        """
        found: list[tuple[Epoch, str | None]] = [(NO_EPOCH, None)]
        for each in self.commit_log.readable():
            if isinstance(each, Checkpoint):
                found.append((each.epoch, each.claimer))
                continue
            found.append((each.epoch, None))
            found += [(claim.epoch, claim.broker_id) for claim in each.operations if isinstance(claim, Claim)]
        return max(found, key=lambda claim: (claim[0], claim[1] is not None))

    def refresh(self) -> None:
        with self._lock:
            self._look()

    def _look(self) -> None:
        if self.commit_log.state.version < 0:
            self.commit_log.load()
        else:
            self.commit_log.refresh()
        self._is_unsure = False
        self._show()

    def _show(self) -> None:
        self.view = ArchiveView.of(self.commit_log.state)

    # Changing

    def claim(self, epoch: Epoch, broker_id: str, holder_after: Callable[[ArchiveView], str]) -> ArchiveView:
        """Write with `epoch` from now on, and fence owners with a lower one. Return the view before the claim.

        `holder_after` decides which directory continues from that view. An epoch that this broker has claimed before is
        still its own.

        Raises:
            StaleEpoch: a higher epoch has been claimed.
            EpochTaken: another broker has claimed this very epoch.
        """
        with self._lock:
            if self._is_unsure or self.commit_log.state.version < 0:
                self._look()
            while True:
                before = self.view
                if before.epoch > epoch:
                    raise StaleEpoch(ours=epoch, current=before.epoch)
                if before.epoch == epoch:
                    if before.claimer not in (None, broker_id):
                        raise EpochTaken(epoch=epoch, by=before.claimer)
                    self._epoch = epoch
                    return before
                claim = Claim(epoch=epoch, broker_id=broker_id, holder=holder_after(before))
                try:
                    self._commit([claim], epoch)
                except VersionConflict:
                    continue
                self._epoch = epoch
                self._reach(Failpoint.ARCHIVE_CLAIMED)
                return before

    def put_data(self, new: NewSlice) -> None:
        """Put the batches of a slice. May run at the same time as `put_commits` and `put_state`."""
        self._in_flight.add(new.object)
        if new.size:
            self._objects.put(f"{self.path}/{new.object}", new.data)
        self._reach(Failpoint.ARCHIVE_OBJECT_PUT)

    def put_commits(self, new: NewSlice) -> None:
        """Put the commits of a slice."""
        self._in_flight.add(commits_name(new.object))
        if new.commits:
            self._objects.put(f"{self.path}/{commits_name(new.object)}", [new.commits])
        self._reach(Failpoint.ARCHIVE_COMMITS_PUT)

    def put_state(self, new: NewSlice) -> None:
        """Put the state of the log at the end of a slice, if it has one, and the runs of txn_ids in that state."""
        if new.state is not None:
            self._in_flight.add(state_name(new.object))
            self._put_runs(new.runs)
            self._objects.put(f"{self.path}/{state_name(new.object)}", [new.state])
            self._reach(Failpoint.ARCHIVE_STATE_PUT)

    def _put_runs(self, runs: Sequence[TxnRun]) -> None:
        if runs and self._runs is None:
            self._runs = self._named_runs()
        for run in runs:
            assert run.name is not None
            assert self._runs is not None
            with self._sweeping:
                self._in_flight.add(run.name)
                if run.name not in self._runs:
                    self._objects.put(f"{self.path}/{run.name}", [run.encode()])
                    self._runs.add(run.name)

    def _named_runs(self) -> set[str]:
        """Return the runs of txn_ids that the newest state names: no others are needed."""
        state = self._newest_state()[1]
        return {run.name for run in state.txn_runs if run.name is not None} if state is not None else set()

    def add(self, new: NewSlice) -> SegmentRef:
        """Commit a slice that was put as the newest of the archive.

        Raises:
            VersionConflict: it is not the next slice.
            StaleEpoch: there is a newer owner.
        """
        assert self._epoch is not None, "claim first"
        add = new.add()
        with self._lock:
            if self._is_unsure:
                self._look()
            self.check_ours()
            view = self.view
            if view.log_version >= 0 and (new.offset_start, new.version_start) != (
                view.next_offset,
                view.log_version + 1,
            ):
                raise VersionConflict(expected=Version(new.version_start - 1), current=view.log_version)
            self._commit([add], self._epoch)
            added = self.view.slices[-1]
        self.end_upload(new)
        self._reach(Failpoint.ARCHIVE_COMMITTED)
        return added

    def store(self, new: NewSlice) -> SegmentRef:
        """Put a slice and commit it."""
        try:
            self.put_data(new)
            self.put_commits(new)
            self.put_state(new)
            return self.add(new)
        finally:
            self.end_upload(new)

    def discard(self, new: NewSlice) -> None:
        """Delete the objects of a slice that was never committed. Those that cannot be deleted now are swept later."""
        self._delete([new.object, commits_name(new.object), state_name(new.object)])

    def end_upload(self, new: NewSlice) -> None:
        """End the upload of a slice, whatever its outcome: a sweep may then delete objects that nothing refers to."""
        self._in_flight -= {new.object, commits_name(new.object), state_name(new.object)}
        self._in_flight.difference_update(run.name for run in new.runs if run.name is not None)

    def check_ours(self) -> None:
        """Check that no newer owner is known: later slices of the archive are not of our log.

        Raises:
            StaleEpoch: there is a newer owner.
        """
        assert self._epoch is not None, "claim first"
        if self.view.epoch > self._epoch:
            raise StaleEpoch(ours=self._epoch, current=self.view.epoch)

    def _commit(self, operations: Sequence[AnyOperation], epoch: Epoch) -> None:
        """Store the next version. VersionConflict: another writer has; StaleEpoch: one with a higher epoch has."""
        self._is_unsure = True
        try:
            commit = self.commit_log.commit(operations, epoch=epoch)
        except VersionConflict:
            self._is_unsure = False
            self._show()
            if self.view.epoch > epoch:
                raise StaleEpoch(ours=epoch, current=self.view.epoch) from None
            raise
        self._is_unsure = False
        self._show()
        if checkpoint_due(commit.version):
            self._due = self.commit_log.take_checkpoint()

    def _change(self, operations_for: Callable[[ArchiveView], Sequence[AnyOperation]]) -> None:
        """Commit the operations that `operations_for` returns for the current view, if any."""
        with self._lock:
            if self._is_unsure:
                self._look()
            for _ in range(CONFLICTS_MAX):
                self.check_ours()
                operations = operations_for(self.view)
                if not operations:
                    return
                assert self._epoch is not None
                try:
                    self._commit(operations, self._epoch)
                except VersionConflict:  # a commit of our own, whose reply was lost, was stored after all
                    continue
                return
            raise VersionConflict(expected=self.view.version, current=self.view.version)

    # The log's state

    def log_checkpoint(self, limits: MemoryLimits | None = None) -> Checkpoint:
        """Return the state of the partition's log at the end of the archive, for a directory that continues from there.

        It is built from the newest state in the archive and the commits since.

        Raises:
            CorruptLog: objects are missing, or do not fit together.
            CorruptCommit: an object is damaged.
            ArchiveFailed: the object store does not answer.
        """
        view = self.view
        at, newest = self._newest_state()
        if newest is not None:
            self._load_runs(newest.txn_runs)
            state = LogState.from_checkpoint(newest, limits or MemoryLimits())
        else:
            state = LogState(limits=limits or MemoryLimits())
        rest = [slice_ for slice_ in view.slices[at + 1 :] if slice_.commits_size]
        with ThreadPoolExecutor(max_workers=FETCHES_AT_ONCE) as threads:
            fetched = list(threads.map(self.commits_of, rest)) if len(rest) > 1 else [*map(self.commits_of, rest)]
        for commits in fetched:
            for commit in commits:
                state.follow(commit)
        if (state.version, state.next_offset) != (view.log_version, view.next_offset):
            reason = f"its commits lead to version {state.version}, offset {state.next_offset}"
            raise CorruptLog(path=self.location, reason=f"{reason}; it holds {view.log_version}, {view.next_offset}")
        return seed_of(state.checkpoint(timestamp_text(self._clock.now())))

    def _newest_state(self) -> tuple[int, Checkpoint | None]:
        """Return the index of the slice with the newest state, and the state; -1 and None without any."""
        slices = self.view.slices
        at = next((at for at in reversed(range(len(slices))) if slices[at].state is not None), -1)
        if at < 0:
            return at, None
        name = slices[at].state
        assert name is not None
        data = self._objects.get(f"{self.path}/{name}")
        if data is None:
            raise CorruptLog(path=self.location, reason=f"the state {name} is missing")
        return at, decode(name, bytes(data), Checkpoint)

    def _load_runs(self, runs: Sequence[TxnRun]) -> None:
        def get(name: str) -> memoryview | None:
            return self._objects.get(f"{self.path}/{name}")

        try:
            with ThreadPoolExecutor(max_workers=FETCHES_AT_ONCE) as threads:
                for _ in threads.map(lambda run: load_runs([run], get), runs):
                    pass
        except FileNotFoundError as error:
            raise CorruptLog(path=self.location, reason=str(error)) from None

    # Removing

    def retain(self, retention: Retention) -> list[SegmentRef]:
        """Remove the slices that are past `retention`; the newest state and all later slices stay."""
        removed: list[SegmentRef] = []

        def operations(view: ArchiveView) -> Sequence[AnyOperation]:
            removals = expired_slices(view.slices, retention, self._clock.now())
            removed[:] = view.slices[: len(removals)]
            return removals

        self._change(operations)
        if removed:
            self._reach(Failpoint.ARCHIVE_REMOVED)
            self._delete([name for slice_ in removed for name in objects_of(slice_)])
        return removed

    def merge(self) -> tuple[SegmentRef, Sequence[SegmentRef]] | None:
        """Merge many small slices into one. Return the new slice and the merged ones; None if there are none to merge.

        The objects of the merged slices stay for a while, for reads that have begun.
        """
        run = merge_run(self.view.slices)
        if run is None:
            return None
        parts = self.view.slices[run[0] : run[1]]
        data = [self._whole(part) for part in parts]
        commits = [self._commit_bytes(part) for part in parts]
        merged = new_object(parts[0].base)
        self._in_flight |= {merged, commits_name(merged)}
        crc = 0
        for part in data:
            crc = crc32c(part, crc)
        merge = Merge(
            first=parts[0].object or "",
            count=len(parts),
            object=merged,
            data_crc=crc,
            size=sum(map(len, data)),
            commits_size=sum(map(len, commits)),
        )
        if merge.size:
            self._objects.put(f"{self.path}/{merged}", data)
        if merge.commits_size:
            self._objects.put(f"{self.path}/{commits_name(merged)}", commits)

        def operations(view: ArchiveView) -> Sequence[AnyOperation]:
            # Retention may have removed some of them meanwhile; or an earlier attempt has been stored.
            at = next((at for at, slice_ in enumerate(view.slices) if slice_.object == parts[0].object), None)
            return [merge] if at is not None and view.slices[at : at + len(parts)] == parts else []

        self._change(operations)
        self._in_flight -= {merged, commits_name(merged)}
        found = next((slice_ for slice_ in self.view.slices if slice_.object == merged), None)
        if found is None:
            return None
        self._reach(Failpoint.ARCHIVE_MERGED)
        gone = [name for part in parts for name in objects_of(part) if name != found.state]
        self._garbage.append((self._clock.monotonic(), gone))
        return found, parts

    def _whole(self, slice_: SegmentRef) -> memoryview:
        if not slice_.size:
            return memoryview(b"")
        name = f"{self.path}/{slice_.object}"
        data = self._objects.get(name)
        if data is None or len(data) != slice_.size or crc32c(data) != slice_.data_crc:
            reason = "it is missing" if data is None else f"its {len(data)} bytes are not the {slice_.size} put there"
            raise CorruptSegment(path=name, position=0, offset=slice_.base, reason=reason)
        return data

    def tidy(self) -> None:
        """Write the checkpoint that is due, and delete the objects of slices that were merged a while ago."""
        with self._lock:
            due, self._due = self._due, None
        if due is not None:
            self.commit_log.write_checkpoint(due)
            self.commit_log.clean_up(Version(due.version - VERSIONS_KEPT))
            self._reach(Failpoint.ARCHIVE_CHECKPOINTED)
        while self._garbage and self._garbage[0][0] + GRACE_SECONDS <= self._clock.monotonic():
            self._delete(self._garbage.popleft()[1])

    def sweep(self) -> int:
        """Delete the objects that no slice refers to, now and an hour ago. Return how many.

        The hour is by our monotonic clock: the time of a put is known by other clocks only.

        Raises:
            StaleEpoch: there is a newer owner.
        """
        listed = self._objects.list(self.path)
        # After the listing: an object that was put before it and is valid has been committed by now.
        self.refresh()
        self.check_ours()
        known = {name for slice_ in self.view.slices for name in objects_of(slice_)} | self._in_flight
        known |= {name for _, names in self._garbage for name in names} | self._named_runs()
        now = self._clock.monotonic()
        self._orphans = {
            found.name: self._orphans.get(found.name, now)
            for found in listed
            if found.name not in known and (is_object_name(found.name) or found.name.endswith(_ASIDE))
        }
        old = [name for name, since in self._orphans.items() if now - since >= ORPHAN_SECONDS]
        if not old:
            return 0
        with self._sweeping:
            # A run has the same name whenever it is put: a slice that is being uploaded, or one that was added since
            # the listing, may need an old one. Uploads are read first: one that ends meanwhile is in the newest state.
            needed = set(self._in_flight)
            needed |= self._named_runs()
            orphans = [name for name in old if name not in needed]
            if self._runs is not None:
                self._runs -= set(orphans)
            self._delete(orphans)
        return len(orphans)

    def _delete(self, names: Sequence[str]) -> None:
        if names:
            try:
                self._objects.delete([f"{self.path}/{name}" for name in names])
            except ArchiveFailed:
                return  # they are orphans now: a sweep deletes them
            self._reach(Failpoint.ARCHIVE_OBJECTS_DELETED)

    def delete_all(self) -> None:
        """Delete the whole archive, with its topic. May be called again; needs no claim."""
        self._objects.delete_all(self.path)


def seed_of(checkpoint: Checkpoint) -> Checkpoint:
    """Return the state of a log for a directory that has none of its records."""
    return Checkpoint(
        version=checkpoint.version,
        timestamp=checkpoint.timestamp,
        last_offset=checkpoint.next_offset - 1,
        start_offset=checkpoint.next_offset,
        next_offset=checkpoint.next_offset,
        epoch=checkpoint.epoch,
        segments=(),
        origins=checkpoint.origins,
        txns=checkpoint.txns,
        txn_runs=checkpoint.txn_runs,
        log_ms=checkpoint.log_ms,
        newest_ms=checkpoint.newest_ms,
    )
