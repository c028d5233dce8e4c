"""The state of a partition's log: what all commits up to a version add up to.

Commits apply one after the other, without gap, and each must continue the one before it: same offsets, same bytes,
an epoch that never falls. A commit that does not is damage or a bug, never something to work around. The state is a
function of the commits alone, so whoever replays them has the same one.
"""

from dataclasses import dataclass, field
from typing import Self

from msgspec.structs import replace

from sulina.core.commit import (
    NO_ORIGIN,
    Add,
    Checkpoint,
    Claim,
    Commit,
    OriginRef,
    Remove,
    Run,
    Seal,
    SegmentRef,
    TxnRef,
    commit_name,
    timestamp_ms,
)
from sulina.core.segment import segment_name
from sulina.errors import CorruptCommit, DuplicateSequence, SequenceGap, StaleOrigin
from sulina.types import Epoch, Offset, Version

SEQUENCES = 1 << 31  # a producer's sequence starts again at 0 after 2^31 - 1
RUNS_KEPT = 5  # of each origin; what Kafka's producers may have in flight

NO_EPOCH = Epoch(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """How many writers the log remembers. Past it the ones that wrote longest ago are forgotten."""

    origins_max: int = 10_000
    txns_max: int = 10_000


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch went, and the commit that made it visible."""

    offset_start: Offset
    offset_end: Offset
    version: Version


@dataclass(frozen=True, slots=True)
class View:
    """What readers of one version may see. It never changes."""

    version: Version
    epoch: Epoch
    start_offset: Offset
    next_offset: Offset
    segments: tuple[SegmentRef, ...]


def repeat_of(origin: OriginRef | None, *, origin_id: int, epoch: int, sequence: int, count: int) -> Appended | None:
    """What a producer's batch was answered before; None when it is new and next in turn, else an error."""
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
    # Behind by less than half the circle is old; ahead is a gap.
    if (expected - sequence) % SEQUENCES < SEQUENCES // 2:
        raise DuplicateSequence(origin_id=origin_id, sequence=sequence, last=origin.last_seq)
    raise SequenceGap(origin_id=origin_id, sequence=sequence, expected=expected)


def advanced(origin: OriginRef | None, *, origin_id: int, epoch: int, run: Run) -> OriginRef:
    """The origin after another run of its records."""
    count = run.offset_end - run.offset_start
    older = origin.runs if origin is not None and origin.epoch == epoch else ()
    return OriginRef(
        origin_id=origin_id,
        epoch=epoch,
        last_seq=(run.sequence + count - 1) % SEQUENCES,
        runs=(*older, run)[-RUNS_KEPT:],
    )


def grown(txn: TxnRef | None, txn_id: str, start: Offset, end: Offset, version: Version) -> TxnRef:
    """The transaction after another add. Its adds follow one another in one commit."""
    first = txn.offset_start if txn is not None and txn.version == version else start
    return TxnRef(txn_id, first, end, version)


@dataclass(slots=True, kw_only=True)
class LogState:
    """Mutable, but only by `apply`; readers take a `view`."""

    limits: MemoryLimits = field(default_factory=MemoryLimits)
    version: Version = Version(-1)
    epoch: Epoch = NO_EPOCH
    start_offset: Offset = Offset(0)
    next_offset: Offset = Offset(0)
    segments: list[SegmentRef] = field(default_factory=list)
    origins: dict[int, OriginRef] = field(default_factory=dict)  # longest silent first
    txns: dict[str, TxnRef] = field(default_factory=dict)  # oldest first

    def apply(self, commit: Commit) -> None:
        """Go on to the commit's version, or raise CorruptCommit; then the state is not to be used any more."""
        if commit.version != self.version + 1:
            raise self._corrupt(commit, f"it says version {commit.version}, {self.version + 1} is next")
        if commit.epoch < self.epoch:
            raise self._corrupt(commit, f"epoch {commit.epoch} comes after {self.epoch}")
        for operation in commit.operations:
            match operation:
                case Add():
                    self._add(commit, operation)
                case Remove():
                    self._remove(commit, operation)
                case Claim():
                    self._claim(commit, operation)
                case Seal():
                    self._seal(commit, operation)
        if (commit.start_offset, commit.next_offset) != (self.start_offset, self.next_offset):
            said = f"[{commit.start_offset}, {commit.next_offset})"
            raise self._corrupt(
                commit, f"it says {said}, its operations lead to {self.start_offset}, {self.next_offset}"
            )
        if commit.epoch != self.epoch:
            raise self._corrupt(commit, f"epoch {commit.epoch} was never claimed, {self.epoch} was")
        self.version = commit.version

    def check(self, commit: Commit) -> None:
        """CorruptCommit if `apply` would raise it; changes nothing."""
        LogState(
            version=self.version,
            epoch=self.epoch,
            start_offset=self.start_offset,
            next_offset=self.next_offset,
            segments=list(self.segments),
        ).apply(commit)

    def _add(self, commit: Commit, add: Add) -> None:
        active = self.segments[-1] if self.segments else None
        now_ms = timestamp_ms(commit.timestamp)
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
                created_ms=now_ms,
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
        if add.origin_id != NO_ORIGIN:
            # Put at the end: the first ones are the longest silent.
            run = Run(add.origin_seq, add.offset_start, add.offset_end, commit.version)
            known = self.origins.pop(add.origin_id, None)
            self.origins[add.origin_id] = advanced(known, origin_id=add.origin_id, epoch=add.origin_epoch, run=run)
            while len(self.origins) > self.limits.origins_max:
                del self.origins[next(iter(self.origins))]
        if add.txn_id is not None:
            txn = self.txns.get(add.txn_id)
            self.txns[add.txn_id] = grown(txn, add.txn_id, add.offset_start, add.offset_end, commit.version)
            while len(self.txns) > self.limits.txns_max:
                del self.txns[next(iter(self.txns))]

    def _remove(self, commit: Commit, remove: Remove) -> None:
        oldest = self.segments[0] if self.segments else None
        if (
            oldest is None
            or (remove.segment, remove.offset_end) != (oldest.name, oldest.next_offset)
            or not oldest.sealed
        ):
            raise self._corrupt(commit, f"it removes {remove.segment}, the oldest is {oldest}")
        del self.segments[0]
        self.start_offset = remove.offset_end

    def _claim(self, commit: Commit, claim: Claim) -> None:
        if claim.epoch <= self.epoch:
            raise self._corrupt(commit, f"it claims epoch {claim.epoch} after {self.epoch}")
        # A segment has one epoch: so every batch's epoch can be checked although no checksum covers it.
        self._seal_newest()
        self.epoch = claim.epoch

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
        """What readers of this version may see."""
        return View(self.version, self.epoch, self.start_offset, self.next_offset, tuple(self.segments))

    def checkpoint(self, timestamp: str) -> Checkpoint:
        """All of it, to store."""
        return Checkpoint(
            version=self.version,
            timestamp=timestamp,
            last_offset=self.next_offset - 1,
            start_offset=self.start_offset,
            next_offset=self.next_offset,
            epoch=self.epoch,
            segments=tuple(self.segments),
            origins=tuple(self.origins.values()),
            txns=tuple(self.txns.values()),
        )

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, limits: MemoryLimits) -> Self:
        """The state that `checkpoint` stored."""
        return cls(
            limits=limits,
            version=checkpoint.version,
            epoch=checkpoint.epoch,
            start_offset=checkpoint.start_offset,
            next_offset=checkpoint.next_offset,
            segments=list(checkpoint.segments),
            origins={origin.origin_id: origin for origin in checkpoint.origins},
            txns={txn.txn_id: txn for txn in checkpoint.txns},
        )
