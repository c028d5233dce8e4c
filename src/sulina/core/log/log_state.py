"""The state of a partition's log: the result of all commits up to a version.

Commits apply one after the other, without a gap, and each must continue the one before it: same offsets, same bytes,
an epoch that never falls. A commit that does not is damage or a bug, and is never worked around. The state depends on
the commits alone, so every replay of them gives the same state.

The log of an archive is such a log too. Its segments are slices: each has an object of its own, is sealed from the
start, and names the versions of the partition's log that it holds, which follow one another as the offsets do. A slice
may have no record (commits that only claim or seal), or no commit (records whose commits were gone before there was an
archive).

A log has a time of its own: milliseconds of its life, as far as its owners have measured them. It never goes back. A
clock may be wrong by days, and jump, so the age of a commit is not the difference of two timestamps: a running owner
measures the time between its commits by its monotonic clock. Between the last commit of one process and the first of
the next there are only wall clocks, and their difference counts for a minute at most. So an entry is remembered for at
least its time, and longer where a log was not open in between.
"""

from dataclasses import dataclass, field
from typing import Self

from msgspec.structs import replace

from sulina.core.log.commit import (
    NO_ORIGIN,
    Add,
    Checkpoint,
    Claim,
    Commit,
    Merge,
    OriginRef,
    Remove,
    Seal,
    SegmentRef,
    SequenceRun,
    commit_name,
    timestamp_ms,
)
from sulina.core.log.segment import segment_name
from sulina.core.log.txn_memory import TxnLimits, TxnMemory
from sulina.core.log.txn_run import TxnRef
from sulina.core.records.batch import SEQUENCES
from sulina.errors import CorruptCommit, DuplicateSequence, SequenceGap, SequenceSkipped, StaleOrigin
from sulina.types import Epoch, Offset, Version

RUNS_KEPT = 5  # of each origin: as many as Kafka's producers may have in flight
RUNS_KEPT_MAX = 1024  # of an origin, while there is room: as many as our client may have in flight

NO_EPOCH = Epoch(-1)
UNMEASURED_MS_MAX = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """How many producers the log remembers, and for how long.

    An origin is removed 30 days after its newest record; past the bound, the longest silent one is removed. After that
    it counts as new: any first sequence is accepted.
    """

    origins_max: int = 10_000
    origin_seconds: float = 30 * 24 * 3600.0
    runs_max: int = 10_000  # beyond RUNS_KEPT of each origin; past it the longest silent origins lose them
    txns: TxnLimits = field(default_factory=TxnLimits)


@dataclass(frozen=True, slots=True)
class Appended:
    """The offsets of an append, and the version of the commit that made it visible."""

    offset_start: Offset
    offset_end: Offset
    version: Version


@dataclass(frozen=True, slots=True)
class View:
    """The part of the log that readers of one version may see. It never changes."""

    version: Version
    epoch: Epoch
    start_offset: Offset
    next_offset: Offset
    segments: tuple[SegmentRef, ...]


def next_log_ms(log_ms: int, *, measured_ms: int | None, last_ms: int, now_ms: int) -> int:
    """Return the time of a log whose newest commit has `log_ms`.

    `measured_ms` has passed since that commit, by the monotonic clock of the process that made it. None: another
    process made it, when its wall clock showed `last_ms`; ours shows `now_ms` now.
    """
    if measured_ms is not None:
        return log_ms + max(0, measured_ms)
    return log_ms + min(max(0, now_ms - last_ms), UNMEASURED_MS_MAX)


def repeat_of(
    origin: OriginRef | None, *, origin_id: int, epoch: int, sequence: int, count: int, may_skip: bool = False
) -> Appended | None:
    """Return the first answer to a batch that is sent again; None if it is new and is the next one.

    `may_skip`: the producer skips sequences whose batches were refused, and otherwise sends in order.

    Raises:
        StaleOrigin: a newer instance of the producer has published.
        SequenceGap: an earlier batch is missing.
        SequenceSkipped: the log went on without this batch.
        DuplicateSequence: the batch is older than the remembered runs, so its answer is not known.
    """
    if origin is None or epoch > origin.epoch:
        if origin is not None and sequence != 0:
            raise SequenceGap(origin_id=origin_id, sequence=sequence, expected=0)
        return None
    if epoch < origin.epoch:
        raise StaleOrigin(origin_id=origin_id, ours=epoch, current=origin.epoch)
    expected = (origin.last_seq + 1) % SEQUENCES
    if sequence == expected:
        return None
    for run in reversed(origin.runs):
        skipped = (sequence - run.sequence) % SEQUENCES
        if skipped + count <= run.offset_end - run.offset_start:
            start = Offset(run.offset_start + skipped)
            return Appended(start, Offset(start + count), run.version)
    if not _is_behind(sequence, expected):
        if may_skip:
            return None
        raise SequenceGap(origin_id=origin_id, sequence=sequence, expected=expected)
    if may_skip and _is_behind(origin.runs[0].sequence, sequence):
        # All batches since then are remembered, and this is not among them.
        raise SequenceSkipped(origin_id=origin_id, sequence=sequence, last=origin.last_seq)
    raise DuplicateSequence(origin_id=origin_id, sequence=sequence, last=origin.last_seq)


def _is_behind(sequence: int, other: int) -> bool:
    """Return whether `sequence` equals the other one, or comes before it by less than half of the circle."""
    return (other - sequence) % SEQUENCES < SEQUENCES // 2


def advanced(origin: OriginRef | None, *, origin_id: int, epoch: int, run: SequenceRun, log_ms: int = 0) -> OriginRef:
    """Return the origin after another run of its records."""
    last_seq = _following(run) - 1
    older = origin.runs if origin is not None and origin.epoch == epoch else ()
    if older and _continues(older[-1], run):
        older, run = older[:-1], SequenceRun(older[-1].sequence, older[-1].offset_start, run.offset_end, run.version)
    runs = (*older[-(RUNS_KEPT_MAX - 1) :], run)
    return OriginRef(origin_id=origin_id, epoch=epoch, last_seq=last_seq % SEQUENCES, runs=runs, log_ms=log_ms)


def _following(run: SequenceRun) -> int:
    return (run.sequence + run.offset_end - run.offset_start) % SEQUENCES


def _continues(last: SequenceRun, run: SequenceRun) -> bool:
    """Return whether two runs are one: of one commit, end to end."""
    return (last.version, last.offset_end, _following(last)) == (run.version, run.offset_start, run.sequence)


@dataclass(slots=True, kw_only=True)
class LogState:
    """The state at one version. Only `apply` and `follow` change it; readers take a `view`."""

    limits: MemoryLimits = field(default_factory=MemoryLimits)
    version: Version = Version(-1)
    epoch: Epoch = NO_EPOCH
    start_offset: Offset = Offset(0)
    next_offset: Offset = Offset(0)
    segments: list[SegmentRef] = field(default_factory=list)
    origins: dict[int, OriginRef] = field(default_factory=dict)  # longest silent first
    runs: int = 0  # of origins, beyond RUNS_KEPT of each
    txns: TxnMemory = field(default_factory=TxnMemory)
    log_ms: int = 0  # the log's own time
    newest_ms: int = 0  # of all commits, by the clocks of their writers: later commits do not count as older
    timestamp: str = field(default="", compare=False)  # of the newest commit, by its writer's clock; empty: none
    log_version: Version = Version(-1)  # archive only: the last version of the log that it has
    holder: str | None = None  # archive only: the directory named by the newest claim
    claimer: str | None = None  # archive only: the broker that made the newest claim

    def apply(self, commit: Commit) -> None:
        """Apply the next commit. After an error the state must not be used any more.

        Raises:
            CorruptCommit: the commit does not continue this state.
        """
        if commit.version != self.version + 1:
            raise self._corrupt(commit, f"it has version {commit.version}, but {self.version + 1} is next")
        if commit.epoch < self.epoch:
            raise self._corrupt(commit, f"its epoch {commit.epoch} is lower than {self.epoch}, the log's")
        self._pass_time(commit)
        for operation in commit.operations:
            match operation:
                case Add(object=None):
                    self._add(commit, operation)
                case Add():
                    self._add_slice(commit, operation)
                case Merge():
                    self._merge(commit, operation)
                case Remove():
                    self._remove(commit, operation)
                case Claim():
                    self._claim(commit, operation)
                case Seal():
                    self._seal(commit, operation)
        if (commit.start_offset, commit.next_offset) != (self.start_offset, self.next_offset):
            said = f"[{commit.start_offset}, {commit.next_offset})"
            raise self._corrupt(
                commit, f"it has offsets {said}, but its operations lead to [{self.start_offset}, {self.next_offset})"
            )
        if commit.epoch != self.epoch:
            raise self._corrupt(commit, f"its epoch {commit.epoch} was never claimed, {self.epoch} was")
        self.version = commit.version
        self._keep_bounds()

    def check(self, commit: Commit) -> None:
        """Check that `apply` would accept a commit, without changing anything.

        Raises:
            CorruptCommit: the commit does not continue this state.
        """
        LogState(
            version=self.version,
            epoch=self.epoch,
            start_offset=self.start_offset,
            next_offset=self.next_offset,
            segments=list(self.segments),
            log_version=self.log_version,
        ).apply(commit)

    def follow(self, commit: Commit) -> None:
        """Apply the parts of a commit that do not depend on where records lie: offsets, epoch, origins, transactions.

        The commits of one log come from several directories, one after the other, each with segments of its own.

        Raises:
            CorruptCommit: the commit does not continue this state.
        """
        if commit.version != self.version + 1 or commit.epoch < self.epoch:
            raise self._corrupt(
                commit, f"it has version {commit.version}, epoch {commit.epoch} after {self.version}, {self.epoch}"
            )
        self._pass_time(commit)
        for operation in commit.operations:
            if isinstance(operation, Add):
                if operation.offset_start != self.next_offset or operation.offset_end <= operation.offset_start:
                    added = f"[{operation.offset_start}, {operation.offset_end})"
                    raise self._corrupt(commit, f"it adds {added} at {self.next_offset}")
                self.next_offset = operation.offset_end
                self._remember(commit, operation)
        if commit.next_offset != self.next_offset:
            raise self._corrupt(
                commit, f"it ends at {commit.next_offset}, but its operations lead to {self.next_offset}"
            )
        self.version, self.epoch, self.start_offset = commit.version, commit.epoch, self.next_offset
        self._keep_bounds()

    def _add(self, commit: Commit, add: Add) -> None:
        active = self.segments[-1] if self.segments else None
        now_ms = self.newest_ms
        count = add.offset_end - add.offset_start
        if add.offset_start != self.next_offset or count <= 0 or add.size <= 0:
            raise self._corrupt(commit, f"it adds [{add.offset_start}, {add.offset_end}) at {self.next_offset}")
        if active is None or add.segment != active.name:
            if add.segment != segment_name(self.next_offset) or add.position != 0:
                raise self._corrupt(commit, f"it starts segment {add.segment} at offset {self.next_offset}")
            self._seal_newest()
            active = SegmentRef(
                name=add.segment,
                base=self.next_offset,
                next_offset=self.next_offset,
                size=0,
                epoch=self.epoch,
                created_ms=timestamp_ms(commit.timestamp),  # not the newest: it rolls by age after a clock was ahead
                written_ms=now_ms,
                timestamp_max=add.timestamp_max,
            )
            self.segments.append(active)
        if active.sealed or active.epoch != self.epoch or add.position != active.size:
            raise self._corrupt(commit, f"it adds at byte {add.position} of {active}")
        self.next_offset = add.offset_end
        self.segments[-1] = replace(
            active,
            next_offset=add.offset_end,
            size=add.position + add.size,
            written_ms=now_ms,
            timestamp_max=max(active.timestamp_max, add.timestamp_max),
        )
        self._remember(commit, add)

    def _remember(self, commit: Commit, add: Add) -> None:
        if add.origin_id != NO_ORIGIN:
            run = SequenceRun(add.origin_seq, add.offset_start, add.offset_end, commit.version)
            known = self.origins.pop(add.origin_id, None)
            origin = advanced(known, origin_id=add.origin_id, epoch=add.origin_epoch, run=run, log_ms=self.log_ms)
            self.runs += _beyond_kept(origin) - _beyond_kept(known)
            # Added at the end: the first ones are the longest silent.
            self.origins[add.origin_id] = origin
        if add.txn_id is not None:
            self.txns.remember(TxnRef(add.txn_id, add.offset_start, add.offset_end, commit.version, self.log_ms))

    def _pass_time(self, commit: Commit) -> None:
        self.log_ms, self.timestamp = max(self.log_ms, commit.log_ms), commit.timestamp
        self.newest_ms = max(self.newest_ms, timestamp_ms(commit.timestamp))
        if self.txns.count:
            self.txns.remove_expired(self.log_ms, self.limits.txns)

    def _keep_bounds(self) -> None:
        """Remove expired origins, and the longest silent ones past a bound."""
        if self.txns.count:
            self.txns.seal(self.limits.txns)
        while self.origins:
            oldest = self.origins[next(iter(self.origins))]
            is_over = self.log_ms - oldest.log_ms > self.limits.origin_seconds * 1000
            if len(self.origins) <= self.limits.origins_max and not is_over:
                break
            self.runs -= _beyond_kept(oldest)
            del self.origins[oldest.origin_id]
        if self.runs > self.limits.runs_max:
            self._trim_runs()

    def _trim_runs(self) -> None:
        """Leave the longest silent origins RUNS_KEPT runs each, until half of the bound is free again."""
        for origin in list(self.origins.values()):
            if self.runs <= self.limits.runs_max // 2:
                break
            self.runs -= _beyond_kept(origin)
            self.origins[origin.origin_id] = replace(origin, runs=origin.runs[-RUNS_KEPT:])

    def _add_slice(self, commit: Commit, add: Add) -> None:
        count, versions = add.offset_end - add.offset_start, add.version_end - add.version_start
        newest = self.segments[-1] if self.segments else None
        is_next = add.offset_start == self.next_offset
        if self.log_version < 0:
            # A log that is older than its archive may begin anywhere, and its first commits may be gone.
            is_next |= newest is None and self.next_offset == 0
            is_next_version = add.state is not None or add.version_start == 0
        else:
            is_next_version = add.version_start == self.log_version + 1
        if (
            not is_next
            or (versions > 0 and not is_next_version)
            or (count > 0) != (add.size > 0)
            or min(count, versions) < 0
            or not (count or versions or add.state)
            or (add.segment, add.position) != (segment_name(add.offset_start), 0)
            or not (newest.epoch if newest else NO_EPOCH) <= add.epoch <= self.epoch
        ):
            raise self._corrupt(commit, f"it adds {add} after offset {self.next_offset}, version {self.log_version}")
        if newest is None and self.next_offset == 0:
            self.start_offset = add.offset_start
        self.next_offset = add.offset_end
        self.log_version = Version(add.version_end - 1) if versions else self.log_version
        now_ms = self.newest_ms
        self.segments.append(
            SegmentRef(
                name=add.segment,
                base=add.offset_start,
                next_offset=add.offset_end,
                size=add.size,
                epoch=add.epoch,
                created_ms=now_ms,
                written_ms=now_ms,
                timestamp_max=add.timestamp_max,
                sealed=True,
                object=add.object,
                version_start=add.version_start,
                version_end=add.version_end,
                data_crc=add.data_crc,
                commits_size=add.commits_size,
                state=add.state,
            )
        )

    def _merge(self, commit: Commit, merge: Merge) -> None:
        at = next((at for at, slice_ in enumerate(self.segments) if slice_.object == merge.first), len(self.segments))
        parts = self.segments[at : at + merge.count]
        if (
            merge.count < 2
            or len(parts) != merge.count
            or merge.size != sum(part.size for part in parts)
            or merge.commits_size != sum(part.commits_size for part in parts)
            or len({part.epoch for part in parts if part.size}) > 1
        ):
            raise self._corrupt(commit, f"it merges {merge.count} slices from {merge.first} on: {parts}")
        first, last = parts[0], parts[-1]
        versions = [part for part in parts if part.version_end > part.version_start]
        epochs = [part.epoch for part in parts if part.size] or [part.epoch for part in parts]
        self.segments[at : at + merge.count] = [
            replace(
                last,
                name=first.name,
                base=first.base,
                size=merge.size,
                epoch=max(epochs),
                created_ms=first.created_ms,
                timestamp_max=max(part.timestamp_max for part in parts),
                object=merge.object,
                version_start=versions[0].version_start if versions else last.version_start,
                data_crc=merge.data_crc,
                commits_size=merge.commits_size,
            )
        ]
        if any(part.state for part in parts):
            self._check_state_is_kept(commit)

    def _check_state_is_kept(self, commit: Commit) -> None:
        """Check that a state is left: a takeover starts from the newest state and applies the commits after it."""
        if not any(slice_.state for slice_ in reversed(self.segments)):
            raise self._corrupt(commit, "it would remove the last state of the log")

    def _remove(self, commit: Commit, remove: Remove) -> None:
        oldest = self.segments[0] if self.segments else None
        if (
            oldest is None
            or (remove.segment, remove.offset_end, remove.object) != (oldest.name, oldest.next_offset, oldest.object)
            or not oldest.sealed
        ):
            raise self._corrupt(commit, f"it removes {remove.segment}, the oldest is {oldest}")
        del self.segments[0]
        if remove.object is not None:
            self._check_state_is_kept(commit)
        self.start_offset = remove.offset_end

    def _claim(self, commit: Commit, claim: Claim) -> None:
        if claim.epoch <= self.epoch:
            raise self._corrupt(commit, f"it claims epoch {claim.epoch} after {self.epoch}")
        # A segment has one epoch: so every batch's epoch can be checked although no checksum covers it.
        self._seal_newest()
        self.epoch, self.holder, self.claimer = claim.epoch, claim.holder, claim.broker_id

    def _seal(self, commit: Commit, seal: Seal) -> None:
        newest = self.segments[-1] if self.segments else None
        if newest is None or (seal.segment, seal.size) != (newest.name, newest.size):
            raise self._corrupt(commit, f"it seals {seal.segment}, the newest is {newest}")
        self._seal_newest()

    def _seal_newest(self) -> None:
        if self.segments and not self.segments[-1].sealed:
            self.segments[-1] = replace(self.segments[-1], sealed=True)

    def _corrupt(self, commit: Commit, reason: str) -> CorruptCommit:
        return CorruptCommit(name=commit_name(commit.version), reason=reason)

    def view(self) -> View:
        """Return the part of the log that readers of this version may see."""
        return View(self.version, self.epoch, self.start_offset, self.next_offset, tuple(self.segments))

    def checkpoint(self, timestamp: str) -> Checkpoint:
        """Return the whole state, to be stored."""
        return Checkpoint(
            version=self.version,
            timestamp=timestamp,
            last_offset=self.next_offset - 1,
            start_offset=self.start_offset,
            next_offset=self.next_offset,
            epoch=self.epoch,
            segments=tuple(self.segments),
            origins=tuple(self.origins.values()),
            txns=self.txns.newest,
            txn_runs=self.txns.sealed,
            log_ms=self.log_ms,
            newest_ms=self.newest_ms,
            log_version=self.log_version,
            holder=self.holder,
            claimer=self.claimer,
        )

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, limits: MemoryLimits) -> Self:
        """Return the state that `checkpoint` stored. Its runs of txn_ids must have been loaded."""
        return cls(
            limits=limits,
            version=checkpoint.version,
            epoch=checkpoint.epoch,
            start_offset=checkpoint.start_offset,
            next_offset=checkpoint.next_offset,
            segments=list(checkpoint.segments),
            origins={origin.origin_id: origin for origin in checkpoint.origins},
            runs=sum(map(_beyond_kept, checkpoint.origins)),
            txns=TxnMemory(checkpoint.txn_runs, checkpoint.txns),
            log_ms=checkpoint.log_ms,
            newest_ms=max([checkpoint.newest_ms, *(segment.written_ms for segment in checkpoint.segments)]),
            timestamp=checkpoint.timestamp,
            log_version=checkpoint.log_version,
            holder=checkpoint.holder,
            claimer=checkpoint.claimer,
        )


def _beyond_kept(origin: OriginRef | None) -> int:
    return 0 if origin is None else max(0, len(origin.runs) - RUNS_KEPT)
