"""The archive of one partition: slices of its log as objects, and a commit log that says which of them count.

- Objects are put first, under names that are nobody else's; then a commit, put if absent, makes them part of the
  archive. What was put and never committed is in nobody's way, and swept some day.
- `claim` raises the epoch: from then on a commit of an older epoch cannot come next, so its writer loses, learns it,
  and stops. Whoever claims sees all that was ever committed before.
- When the store does not answer, nothing is assumed: the next call looks first at what is there.

Everything blocks. One thread at a time changes the archive; any number may read.
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
VERSIONS_KEPT = 100  # of the archive's own log: those who follow it need not begin anew
CONFLICTS_MAX = 8
ORPHAN_SECONDS = 3600.0  # since it was first seen: by then whoever put it has committed it, or never will
GRACE_SECONDS = 60.0  # that merged slices stay for those who are reading them
FETCHES_AT_ONCE = 8
_ASIDE = ".aside"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSlice:
    """A slice that is to become part of an archive."""

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
    runs: Sequence[TxnRun] = ()  # of txn_ids, that the state names

    @property
    def size(self) -> int:
        """Bytes of its batches."""
        return sum(map(len, self.data))

    def add(self) -> Add:
        """The operation that makes it count."""
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
    """A name for the batches of a slice, that nobody has used or will."""
    return object_name(offset, secrets.token_hex(8))


class Archive(ArchiveReader):
    """Made for a path, which need not exist; `load` before anything else."""

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
        self._log = CommitLog(
            objects.commits(f"{path}/{COMMITS_FOLDER}"), clock=self._clock, writer=secrets.token_hex(8)
        )
        self._lock = threading.Lock()  # for all that changes the archive, or what we know of it
        self._is_unsure = False  # whether our last commit was stored
        self._epoch: Epoch | None = None  # that we write with
        self._due: Checkpoint | None = None
        self._garbage: deque[tuple[float, list[str]]] = deque()
        self._in_flight: set[str] = set()
        self._sweeping = threading.Lock()  # of runs of txn_ids: none is deleted while another thread counts on it
        self._runs: set[str] | None = None  # of txn_ids, that are there; None: look first
        self._orphans: dict[str, float] = {}  # objects that no slice has, and since when we know that

    # Looking

    def load(self) -> ArchiveView:
        """See what is there. ArchiveFailed, CorruptCommit, CorruptLog."""
        with self._lock:
            self._look()
            return self.view

    def highest_claim(self) -> tuple[Epoch, str | None]:
        """Return the highest epoch that anything readable shows, and who claimed it, if that is known.

        Also of an archive that cannot be loaded. Old claims are in checkpoints only.

        Raises:
            ArchiveFailed: the object store does not answer.
        """
        found: list[tuple[Epoch, str | None]] = [(NO_EPOCH, None)]
        for each in self._log.readable():
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
        if self._log.state.version < 0:
            self._log.load()
        else:
            self._log.refresh()
        self._is_unsure = False
        self._show()

    def _show(self) -> None:
        self.view = ArchiveView.of(self._log.state)

    # Changing

    def claim(self, epoch: Epoch, broker_id: str, holder_after: Callable[[ArchiveView], str]) -> ArchiveView:
        """Write with `epoch` from now on, and fence whoever has a lower one. StaleEpoch when there is a higher one.

        `holder_after` is asked which directory goes on from what is there; the answer is what was there. An epoch that
        this broker has claimed before is its own still.

        Raises:
            EpochTaken: another broker has claimed this very epoch.
        """
        with self._lock:
            if self._is_unsure or self._log.state.version < 0:
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
        """Put the batches of a slice. May run beside the two below."""
        self._in_flight.add(new.object)
        if new.size:
            self._objects.put(f"{self.path}/{new.object}", new.data)
        self._reach(Failpoint.ARCHIVE_OBJECT_PUT)

    def put_commits(self, new: NewSlice) -> None:
        """Put the commits that made them."""
        self._in_flight.add(commits_name(new.object))
        if new.commits:
            self._objects.put(f"{self.path}/{commits_name(new.object)}", [new.commits])
        self._reach(Failpoint.ARCHIVE_COMMITS_PUT)

    def put_state(self, new: NewSlice) -> None:
        """Put the state of the log at its end, if it comes with one, and the runs of txn_ids that it names."""
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
        """Return the runs of txn_ids that the newest state names: others are needed by nobody."""
        state = self._newest_state()[1]
        return {run.name for run in state.txn_runs if run.name is not None} if state is not None else set()

    def add(self, new: NewSlice) -> SegmentRef:
        """Make a slice that was put part of the archive: its newest. VersionConflict when it does not come next.

        StaleEpoch: there is a newer owner, and we are none any more.
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
        self.landed(new)
        self._reach(Failpoint.ARCHIVE_COMMITTED)
        return added

    def store(self, new: NewSlice) -> SegmentRef:
        """All of the above."""
        try:
            self.put_data(new)
            self.put_commits(new)
            self.put_state(new)
            return self.add(new)
        finally:
            self.landed(new)

    def discard(self, new: NewSlice) -> None:
        """Delete what was put of a slice that nobody has tried to add. What cannot be deleted now is swept later."""
        self._delete([new.object, commits_name(new.object), state_name(new.object)])

    def landed(self, new: NewSlice) -> None:
        """It is no longer on its way, whatever became of it."""
        self._in_flight -= {new.object, commits_name(new.object), state_name(new.object)}
        self._in_flight.difference_update(run.name for run in new.runs if run.name is not None)

    def check_ours(self) -> None:
        """StaleEpoch when a newer owner is known: what the archive has since is not of our log."""
        assert self._epoch is not None, "claim first"
        if self.view.epoch > self._epoch:
            raise StaleEpoch(ours=self._epoch, current=self.view.epoch)

    def _commit(self, operations: Sequence[AnyOperation], epoch: Epoch) -> None:
        """Store the next version. VersionConflict: somebody else has; StaleEpoch: somebody with a higher epoch."""
        self._is_unsure = True
        try:
            commit = self._log.commit(operations, epoch=epoch)
        except VersionConflict:
            self._is_unsure = False
            self._show()
            if self.view.epoch > epoch:
                raise StaleEpoch(ours=epoch, current=self.view.epoch) from None
            raise
        self._is_unsure = False
        self._show()
        if checkpoint_due(commit.version):
            self._due = self._log.take_checkpoint()

    def _change(self, operations_for: Callable[[ArchiveView], Sequence[AnyOperation]]) -> None:
        """Commit what `operations_for` makes of what is there; nothing, if that is nothing."""
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
                except VersionConflict:  # a commit of our own, whose reply was lost, has come after all
                    continue
                return
            raise VersionConflict(expected=self.view.version, current=self.view.version)

    # The log's state

    def log_checkpoint(self, limits: MemoryLimits | None = None) -> Checkpoint:
        """The state of the partition's log where the archive ends, as a directory that goes on from there has it.

        From the newest state in the archive and the commits since. CorruptLog, CorruptCommit, ArchiveFailed.
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
        """Return the place of the slice that brought the newest state, and the state; -1 and None: there is none."""
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

    # Forgetting

    def retain(self, retention: Retention) -> list[SegmentRef]:
        """Remove what `retention` no longer keeps; the newest state stays, and all since."""
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
        """Make one slice of many small ones; which, and of which. None where there is nothing to merge.

        Their objects stay for a while, for those who are reading them.
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
            # Retention may have taken some of them meanwhile; or an earlier attempt has been stored.
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
        """Write the checkpoint that is due, and delete what was merged a while ago."""
        with self._lock:
            due, self._due = self._due, None
        if due is not None:
            self._log.write_checkpoint(due)
            self._log.clean_up(Version(due.version - VERSIONS_KEPT))
            self._reach(Failpoint.ARCHIVE_CHECKPOINTED)
        while self._garbage and self._garbage[0][0] + GRACE_SECONDS <= self._clock.monotonic():
            self._delete(self._garbage.popleft()[1])

    def sweep(self) -> int:
        """Delete the objects that no slice has, and that no slice had an hour ago either; how many. StaleEpoch.

        The hour is by our monotonic clock: when an object was put, only other clocks can say.
        """
        listed = self._objects.list(self.path)
        # After the listing: what was put before it and counts, counts by now.
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
            # A run has the same name whenever it is put: a slice on its way, or one that came since we looked, may
            # need an old one. Those on their way come first: what lands meanwhile is named by the newest state.
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
                return  # they are orphans now: a sweep will find them
            self._reach(Failpoint.ARCHIVE_OBJECTS_DELETED)

    def delete_all(self) -> None:
        """The topic is gone, and this with it. May be called again; needs no claim."""
        self._objects.delete_all(self.path)


def seed_of(checkpoint: Checkpoint) -> Checkpoint:
    """The state of a log as a directory begins with it that has none of its records."""
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
