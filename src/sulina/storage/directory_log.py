"""The log in a partition's directory: segments and commits together. All calls block.

A group of appends is: plan, write, sync, commit, index. Only the commit makes anything visible, and it comes after
the sync of everything it refers to. When a write or a sync fails, what is on disk is unknown: the writer stops for
good, and the next `open` recovers by checksum.
"""

import contextlib
import logging
import secrets
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Protocol

from msgspec.structs import replace

from sulina.byte_budget import ByteBudget
from sulina.core.log.commit import AnyOperation, Checkpoint, Claim, Commit, Remove, Seal, commit_name
from sulina.core.log.log_state import NO_EPOCH, Appended, MemoryLimits, View
from sulina.core.log.plan import Append, Plan
from sulina.core.log.retention import Retention, expired
from sulina.core.log.segment import SegmentLimits
from sulina.core.records.batch import DEFAULT_LIMITS, STAMP_BYTES, BatchHeader, BatchLimits, stamp
from sulina.core.records.record import decode
from sulina.errors import (
    Corrupt,
    CorruptLog,
    CorruptSegment,
    LogLocked,
    LogStopped,
    NewerFormat,
    NotYet,
    OffsetOutOfRange,
    StaleEpoch,
    SulinaError,
    TxnMemoryFull,
    VersionConflict,
)
from sulina.failpoints import Failpoint, FailpointHook, no_failpoints
from sulina.ports import Clock, File, Files
from sulina.storage.commit_log import CommitLog
from sulina.storage.commit_store import DirectoryCommits
from sulina.storage.segments import PlacedBatch, Segments
from sulina.types import Epoch, Offset, Version

COMMITS_DIRECTORY = "_delta_log"
LOCK_FILE = ".lock"
PROBE_FILE = ".probe"
PROBE_BYTES = 1 << 20  # there must be room for this before a stopped log is opened again
READ_BYTES = 1 << 20

_base = attrgetter("base")
_logger = logging.getLogger("sulina.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """How one partition's log behaves. The defaults suit a topic of ordinary size."""

    broker_id: str = "local"
    writer_id: str | None = None  # unique, in every commit; None: a random one
    epoch: Epoch | None = None  # to write with; None: the epoch that the log has
    batches: BatchLimits = DEFAULT_LIMITS
    segments: SegmentLimits = field(default_factory=SegmentLimits)
    memory: MemoryLimits = field(default_factory=MemoryLimits)
    spare_segments_max: int = 1  # removed files that are kept for new segments
    group_bytes_max: int = 16 << 20  # in one commit
    waiting_bytes_max: int = 64 << 20  # that wait to be committed
    node_budget: ByteBudget | None = None  # for the bytes that wait to be committed in all logs of a node
    versions_kept: int = 1_000  # commits for time travel
    compress_checkpoints: bool = False  # as gzip; readers accept both


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole batches as they are stored. The first may begin before the requested offset."""

    data: memoryview
    start_offset: Offset
    next_offset: Offset  # to read on
    version: Version  # that was read
    end_offset: Offset  # of the log at that version


class LogMetrics(Protocol):
    """Counts what the log does. Called from the writer's thread, so it must be fast."""

    def committed(self, *, appends: int, size_bytes: int, sync_seconds: float, commit_seconds: float) -> None:
        """Count a group of appends that has become visible."""
        ...

    def conflicted(self) -> None:
        """Count an append that was refused because another writer was first."""
        ...

    def checkpointed(self, *, seconds: float, files_removed: int) -> None:
        """Count a checkpoint that was written, and the files that were removed after it."""
        ...


class NoMetrics:
    """Counts nothing."""

    def committed(self, *, appends: int, size_bytes: int, sync_seconds: float, commit_seconds: float) -> None:
        pass

    def conflicted(self) -> None:
        pass

    def checkpointed(self, *, seconds: float, files_removed: int) -> None:
        pass


class DirectoryLog:
    """The log of one directory. One thread writes; another may call `checkpoint` meanwhile, and any number may read."""

    def __init__(
        self,
        directory: str,
        *,
        files: Files,
        clock: Clock,
        options: LogOptions | None = None,
        metrics: LogMetrics | None = None,
        stager: Executor | None = None,
        failpoints: FailpointHook = no_failpoints,
    ) -> None:
        self._stager = stager  # its threads write commit files while ours writes their data; None: one after the other
        self.directory = directory
        self.options = options or LogOptions()
        self.damage: CorruptSegment | None = None  # found at the end of the log when it was opened
        self._failure: Exception | None = None
        self._lock: File | None = None
        self._due: deque[Checkpoint] = deque(maxlen=1)  # the newest that is not written yet
        self.pins: dict[str, Version] = {}  # by holder: the version from which it needs the commits
        self._files = files
        self._clock = clock
        self._metrics = metrics or NoMetrics()
        self._reach = failpoints
        self._store = DirectoryCommits(files, f"{directory}/{COMMITS_DIRECTORY}", failpoints)
        writer = self.options.writer_id or f"{self.options.broker_id}:{secrets.token_hex(4)}"
        self.commits = CommitLog(
            self._store, clock=clock, writer=writer, is_alone=True, limits=self.options.memory, failpoints=failpoints
        )
        self.segments = Segments(
            files,
            directory,
            limits=self.options.segments,
            spares_max=self.options.spare_segments_max,
            failpoints=failpoints,
        )
        self.epoch = NO_EPOCH
        self.view = self.commits.state.view()

    # Opening and closing

    def open(self) -> None:
        """Lock the directory, and recover to its last commit.

        Raises:
            LogLocked: another process has the lock.
            StaleEpoch: a newer owner has claimed the log.
            Corrupt: the log cannot be recovered.
            NewerFormat: a newer version of Sulina has written it.
        """
        self._files.make_directory(self._store.location)
        self._lock = self._files.lock(f"{self.directory}/{LOCK_FILE}")
        if self._lock is None:
            raise LogLocked(path=self.directory)
        try:
            self._reach(Failpoint.OPEN_LOCKED)
            self._recover()
        except BaseException:
            self.segments.close()
            self._lock.close()
            raise

    def _recover(self) -> None:
        names = self._store.list()
        state = self.commits.load(names)  # a newer format ends it here, before anything is changed
        self._reach(Failpoint.OPEN_LOADED)
        self._store.sweep()
        if state.version < 0:
            self._refuse_lost_commits(names)
        else:
            newest = commit_name(state.version)
            data = self._store.get(newest)
            if data is not None:  # else it is in a checkpoint, which was written after it was durable
                self._store.restate(newest, data)
        wanted = self.options.epoch if self.options.epoch is not None else max(state.epoch, Epoch(0))
        if wanted < state.epoch:
            raise StaleEpoch(ours=wanted, current=state.epoch)
        self.damage = self.segments.recover(state.segments, state.start_offset, state.next_offset)
        self.epoch = wanted
        if wanted > state.epoch:
            self.segments.seal()
            self._commit([Claim(epoch=wanted, broker_id=self.options.broker_id)])
            self._reach(Failpoint.OPEN_CLAIMED)
        elif self.damage is not None:
            # Nothing is appended after damage: the next batch starts a segment of its own.
            last = state.segments[-1]
            self._commit([Seal(segment=last.name, offset_end=last.next_offset, size=last.size)])
        self.view = self.commits.state.view()

    def _refuse_lost_commits(self, names: list[str]) -> None:
        """Refuse a directory with segments but no commits: a log never starts at 0 again."""
        left = [name for name in self._files.list(self.directory) if name.endswith(".log")]
        left += [name for name in names if not name.endswith(".aside")]
        if left:
            reason = f"there are no commits, but {min(left)} exists"
            raise CorruptLog(path=self._store.location, reason=reason)

    def close(self) -> None:
        """Close the files and release the directory. All commits are durable already."""
        self.segments.close()
        if self._lock is not None:
            self._lock.close()

    # Appending

    def append(self, appends: Sequence[Append]) -> list[Appended | SulinaError]:
        """Append in one commit; one answer for each. After an error of the disk all later answers are LogStopped."""
        if self._failure is not None:
            return self._stopped_for(len(appends))
        try:
            plan = Plan(self.commits.state, self.options.segments, self._clock.now(), self.commits.log_ms())
            for append in appends:
                plan.admit(append)
            self._reach(Failpoint.APPEND_PLANNED)
            if plan.placements:
                self._write(plan, appends)
        except VersionConflict as lost:
            return self._aborted(lost, len(appends))
        except Exception as failure:  # noqa: BLE001
            # An error of the disk or our own bug: what is on disk is unknown, so no later write may rely on it.
            self._failure = failure
            return self._stopped_for(len(appends))
        for answer in plan.answers:
            if isinstance(answer, SulinaError):
                self._tell(self._metrics.conflicted)
        return list(plan.answers)

    def check_txn_room(self, txn_id: str, waiting: int) -> None:
        """Check that a txn_id is known, or that there is room for it after `waiting` others. From any thread.

        Raises:
            TxnMemoryFull: there is no room.
        """
        state, now_ms = self.commits.state, self.commits.log_ms()
        limits = state.limits.txns
        if not state.txns.has_room(waiting, now_ms, limits) and state.txns.find(txn_id, now_ms, limits) is None:
            raise TxnMemoryFull(remembered=state.txns.count, limit=limits.txn_ids_max, seconds=limits.seconds)

    def reconfigure(self, options: LogOptions) -> None:
        """Use other limits from now on."""
        self.options = options
        self.commits.limit(options.memory)

    def _write(self, plan: Plan, appends: Sequence[Append]) -> None:
        batches = placed_batches(plan, appends, self.epoch)
        operations = plan.operations
        started = self._clock.monotonic()
        prepared = self.commits.prepare(operations, epoch=self.epoch, log_ms=plan.log_ms)
        if self._stager is None:
            self.segments.write(batches)
            put = partial(self._store.put_if_absent, prepared.name, prepared.data)
        else:
            # Two files, two syncs, at the same time. The commit gets its name when both are done.
            staging = self._stager.submit(self._store.stage, prepared.name, prepared.data)
            try:
                self.segments.write(batches)
            finally:
                wait([staging])
            put = partial(self._store.publish, prepared.name, staging.result())
        synced = self._clock.monotonic()
        self._checkpoint_after(self.commits.finish(prepared, put))
        committed = self._clock.monotonic()
        self._reach(Failpoint.APPEND_COMMITTED)
        self.segments.confirm()
        self.view = self.commits.state.view()
        self._tell(
            lambda: self._metrics.committed(
                appends=sum(placement.batch == 0 for placement in plan.placements),
                size_bytes=sum(operation.size for operation in operations),
                sync_seconds=synced - started,
                commit_seconds=committed - synced,
            )
        )

    def _commit(self, operations: Sequence[AnyOperation]) -> None:
        self._checkpoint_after(self.commits.commit(operations, epoch=self.epoch))

    def _checkpoint_after(self, commit: Commit) -> None:
        if commit.checkpoint_hint:
            self._due.append(self.commits.take_checkpoint())

    def _aborted(self, lost: VersionConflict, count: int) -> list[Appended | SulinaError]:
        self._undo_write()
        if self._failure is not None:
            return self._stopped_for(count)
        return [VersionConflict(expected=lost.expected, current=lost.current) for _ in range(count)]

    def _undo_write(self) -> None:
        """Undo our write after another writer has committed in our directory, and apply its commits."""
        self._tell(self._metrics.conflicted)
        try:
            self.segments.rewind(self.commits.state.segments)
        except OSError as failure:
            self._failure = failure
        self.view = self.commits.state.view()
        if self.commits.state.epoch > self.epoch:
            self._failure = StaleEpoch(ours=self.epoch, current=self.commits.state.epoch)

    def _tell(self, hook: Callable[[], None]) -> None:
        try:
            hook()
        except Exception:  # metrics must not be able to stop the log
            _logger.exception("a metrics hook failed")

    @property
    def stopped(self) -> LogStopped | None:
        """Why nothing can be written any more; None if it can."""
        return None if self._failure is None else LogStopped(path=self.directory, cause=self._failure)

    def stop(self, cause: Exception) -> None:
        """Refuse all writes from now on."""
        self._failure = self._failure or cause

    def _stopped_for(self, count: int) -> list[Appended | SulinaError]:
        # One error for each: an error that is raised in many tasks collects the tracebacks of all.
        assert self._failure is not None
        return [LogStopped(path=self.directory, cause=self._failure) for _ in range(count)]

    def probe(self) -> None:
        """Check that the disk can store a file durably. Changes nothing in the log.

        Raises:
            OSError: it cannot.
        """
        path = f"{self.directory}/{PROBE_FILE}"
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(path)
        file = self._files.create(path)
        try:
            file.write(0, [bytes(PROBE_BYTES)])
            file.sync()
        finally:
            file.close()
            self._files.remove(path)

    # Other commits

    def rotate(self) -> View:
        """Seal the newest segment, so that the whole log is in files that never change again."""
        newest = self.view.segments[-1] if self.view.segments else None
        if newest is not None and not newest.sealed:
            self._reach(Failpoint.ROTATE_PLANNED)
            seal = Seal(segment=newest.name, offset_end=newest.next_offset, size=newest.size)
            self._or_stop(lambda: self._commit([seal]))
            self._reach(Failpoint.ROTATE_COMMITTED)
            self._or_stop(self.segments.seal)
            self.view = self.commits.state.view()
        return self.view

    def retain(self, retention: Retention) -> list[Remove]:
        """Remove the segments that are past `retention`."""
        now = self._clock.now()
        newest = self.view.segments[-1] if self.view.segments else None
        removals = expired(self.view.segments, retention, now)
        if newest is not None and not newest.sealed and len(removals) == len(self.view.segments) - 1:
            # All others are removed: would this one be removed too, if nothing more is added to it?
            sealed = [*self.view.segments[:-1], replace(newest, sealed=True)]
            if len(expired(sealed, retention, now)) == len(sealed):
                self.rotate()
                removals = expired(self.view.segments, retention, now)
        if removals:
            self._reach(Failpoint.REMOVE_PLANNED)
            self._or_stop(lambda: self._commit(removals))
            self._reach(Failpoint.REMOVE_COMMITTED)
            # Readers must not be sent to segments that are about to be removed.
            self.view = self.commits.state.view()
            self._or_stop(lambda: self.segments.remove(removals))
        return removals

    def claim(self, epoch: Epoch) -> View:
        """Write with a higher epoch from now on; owners with a lower one are fenced."""
        self._or_stop(lambda: self._claim(epoch))
        return self.view

    def _claim(self, epoch: Epoch) -> None:
        commit = self.commits.commit([Claim(epoch=epoch, broker_id=self.options.broker_id)], epoch=epoch)
        self.epoch = commit.epoch
        self.segments.seal()
        self._checkpoint_after(commit)
        self.view = self.commits.state.view()

    def _or_stop(self, work: Callable[[], None]) -> None:
        if self.stopped is not None:
            raise self.stopped
        try:
            work()
        except VersionConflict:
            self._undo_write()
            raise
        except (OSError, Corrupt, NewerFormat) as failure:
            self._failure = failure
            raise LogStopped(path=self.directory, cause=failure) from failure

    # Reading, from any thread

    def read(
        self,
        offset: Offset,
        max_bytes: int = READ_BYTES,
        version: Version | None = None,
        end_max: Offset | None = None,
    ) -> Slice:
        """Read batches from `offset` on, as of a version or the newest; empty at the end of the log, or at `end_max`.

        At least one batch is read, even if it is larger than `max_bytes`. Every byte is checked.

        Raises:
            NotYet: the log has not reached `version`.
            OffsetOutOfRange: the log does not have the offset.
            VersionNotRetained: the commit of `version` was removed.
            CorruptSegment: stored bytes are damaged.
        """
        view = self.view
        end = view.next_offset
        if version is not None and version > view.version:
            raise NotYet(f"version {version} does not exist yet: the log is at version {view.version}")
        if version is not None and version < view.version:
            end = self.commits.entry(version).next_offset
        if end_max is not None:
            end = min(end, end_max)
        if not view.start_offset <= offset <= end:
            raise OffsetOutOfRange(offset=offset, start=view.start_offset, end=end)
        at = view.version if version is None else version
        if offset == end:
            return Slice(memoryview(b""), offset, offset, at, end)
        try:
            holding = view.segments[max(0, bisect_right(view.segments, offset, key=_base) - 1)]
            found = self.segments.read(holding, offset, end=end, max_bytes=max_bytes)
        except CorruptSegment:
            # Retention may have removed the file meanwhile.
            if offset < self.view.start_offset:
                raise OffsetOutOfRange(offset=offset, start=self.view.start_offset, end=end) from None
            raise
        return Slice(found.data, found.start_offset, found.next_offset, at, end)

    def offset_for_timestamp(self, timestamp_ms: int) -> Offset | None:
        """Return the first offset whose record has this timestamp or a later one; None if no record has."""
        for segment in self.view.segments:
            if segment.timestamp_max < timestamp_ms:
                continue
            for batch in self.segments.batches_since(segment, timestamp_ms):
                # The newest timestamp in a batch's header may be wrong: check the records.
                for record in decode(batch, limits=self.options.batches):
                    if record.timestamp_ms >= timestamp_ms:
                        return Offset(record.offset)
        return None

    # Checkpoints

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether `checkpoint` has one to write."""
        return bool(self._due)

    def checkpoint(self) -> None:
        """Write the newest checkpoint that is due, and remove the files that it replaces. May run beside the writer."""
        if not self._due or self._failure is not None:
            return
        due = self._due.pop()
        started = self._clock.monotonic()
        keep_from = min([Version(due.version - self.options.versions_kept), *self.pins.values()])
        try:
            self.commits.write_checkpoint(due, compress=self.options.compress_checkpoints)
            removed = self.commits.clean_up(keep_from)
        except Exception as failure:  # noqa: BLE001 as above
            self._failure = failure
            return
        seconds = self._clock.monotonic() - started
        self._tell(lambda: self._metrics.checkpointed(seconds=seconds, files_removed=removed))


def placed_batches(plan: Plan, appends: Sequence[Append], epoch: Epoch) -> list[PlacedBatch]:
    """Return the batches of a plan with their bytes: stamped with offset and epoch, otherwise unchanged."""
    placed: list[PlacedBatch] = []
    start, data = 0, memoryview(b"")
    for placement in plan.placements:
        append = appends[placement.append]
        header: BatchHeader = append.batches[placement.batch]
        if placement.batch == 0:
            start, data = 0, memoryview(append.request.data)
        end = start + header.size_bytes
        parts = (stamp(placement.offset, header.size_bytes, epoch), data[start + STAMP_BYTES : end])
        placed.append(PlacedBatch(placement.segment, placement.position, placement.offset, header.max_timestamp, parts))
        start = end
    return placed
