"""Rules of a partition's archive: names of objects, how the log is cut into slices, which slices are merged or removed.

A slice is a run of whole commits with the batches that they added, and all its batches have one epoch. The names of its
objects are unique, so an object that was put but never committed cannot be mistaken for another.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sulina.core.log.commit import Add, Claim, Commit, Remove, SegmentRef, decode, encode
from sulina.core.log.log_state import LogState
from sulina.core.log.retention import Retention, expired
from sulina.core.log.txn_run import is_run_name
from sulina.errors import CorruptCommit
from sulina.types import Epoch, Offset, Version

SLICE_BYTES_MAX = 32 << 20  # a slice ends with the commit that reaches this size
SLICE_COMMITS_MAX = 4096
STATE_EVERY_SLICES = 64  # a new owner replays the commits since the newest state
STATE_AFTER_COMMIT_BYTES = 1 << 20
MERGE_SLICES_MIN = 16  # fewer are not worth it
MERGE_SLICES_MAX = 64  # at once
MERGE_SPAN_MS = 6 * 3600 * 1000  # from first to last slice: merged slices expire together
MERGE_CLASSES_BYTES = (4 << 10, 64 << 10, 1 << 20, 8 << 20)  # slices between two bounds count as of one size

_COMMITS = ".commits"
_STATE = ".state"
_DATA = ".log"


def object_name(offset: int, token: str) -> str:
    """Return the name of the object with the batches of the slice that begins at `offset`; `token` makes it unique."""
    return f"{offset:020d}-{token}{_DATA}"


def commits_name(name: str) -> str:
    """Return the name of the object with the commits of the slice whose batches are in `name`."""
    return name.removesuffix(_DATA) + _COMMITS


def state_name(name: str) -> str:
    """Return the name of the object with the log's state at the end of the slice whose batches are in `name`."""
    return name.removesuffix(_DATA) + _STATE


def objects_of(slice_: SegmentRef) -> list[str]:
    """Return the names of all objects that a slice refers to."""
    assert slice_.object is not None
    names = [slice_.object] if slice_.size else []
    names += [commits_name(slice_.object)] if slice_.commits_size else []
    return names + ([slice_.state] if slice_.state else [])


def is_object_name(name: str) -> bool:
    """Tell whether a name is that of a slice's object or of a run of txn_ids; other objects are not ours to delete."""
    stem, _, ending = name.rpartition(".")
    is_of_slice = f".{ending}" in (_DATA, _COMMITS, _STATE) and stem[:20].isdigit() and stem[20:21] == "-"
    return is_of_slice or is_run_name(name)


@dataclass(frozen=True, slots=True)
class ArchiveView:
    """What an archive holds at one of its versions. It never changes."""

    version: Version  # of the archive's own log
    epoch: Epoch  # of the newest claim
    holder: str | None  # the directory of the newest claim; None before the first
    start_offset: Offset
    next_offset: Offset
    log_version: Version  # how far into the partition's log it reaches; -1: no commit of it
    slices: tuple[SegmentRef, ...]
    claimer: str | None = None  # the broker of the newest claim; None also where an older release has written it

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever put into the archive."""
        return self.log_version < 0 and self.next_offset == 0

    @classmethod
    def of(cls, state: LogState) -> "ArchiveView":
        """Return the view of the archive that a state of its commit log describes."""
        return cls(
            state.version,
            state.epoch,
            state.holder,
            state.start_offset,
            state.next_offset,
            state.log_version,
            tuple(state.segments),
            state.claimer,
        )


# Cutting


@dataclass(slots=True)
class Cut:
    """A slice that is being assembled: commits are added until it is full."""

    offset_start: Offset
    version_start: Version
    bytes_max: int = SLICE_BYTES_MAX
    commits: list[Commit] = field(default_factory=list)
    size: int = 0
    timestamp_max: int = -1
    epoch: Epoch = Epoch(-1)

    def takes(self, commit: Commit) -> bool:
        """Tell whether the next commit belongs to this slice. A claim begins a slice, because it begins an epoch."""
        if not self.commits:
            return True
        has_claim = any(isinstance(operation, Claim) for operation in commit.operations)
        return not has_claim and self.size < self.bytes_max and len(self.commits) < SLICE_COMMITS_MAX

    def add(self, commit: Commit) -> None:
        """Add the next commit to the slice.

        Raises:
            CorruptCommit: it is not the version that follows.
        """
        if commit.version != self.version_end:
            raise CorruptCommit(name=str(commit.version), reason=f"version {self.version_end} is due")
        self.commits.append(commit)
        self.epoch = commit.epoch
        for operation in commit.operations:
            if isinstance(operation, Add):
                self.size += operation.size
                self.timestamp_max = max(self.timestamp_max, operation.timestamp_max)

    @property
    def version_end(self) -> Version:
        """One past the last version in the slice."""
        return Version(self.version_start + len(self.commits))

    @property
    def offset_end(self) -> Offset:
        """One past the last offset in the slice."""
        return self.commits[-1].next_offset if self.commits else self.offset_start


def encode_commits(commits: Iterable[Commit]) -> bytes:
    """Encode the commits of a slice as one object: the same lines as in the log."""
    return b"".join(encode(commit) for commit in commits)


def decode_commits(name: str, data: bytes, slice_: SegmentRef) -> list[Commit]:
    """Decode the commits of a slice.

    Raises:
        CorruptCommit: they are damaged, or are not the versions that the slice names.
    """
    commits = [decode(name, line, Commit) for line in data.splitlines(keepends=True)]
    if [commit.version for commit in commits] != list(range(slice_.version_start, slice_.version_end)):
        raise CorruptCommit(name=name, reason=f"it does not hold versions {slice_.version_start}:{slice_.version_end}")
    return commits


def is_state_due(slices: Sequence[SegmentRef], last_state_bytes: int) -> bool:
    """Tell whether the next slice must carry the log's state: without one, a takeover replays ever more commits.

    A state may be large, so a run of small slices carries only one.
    """
    commit_bytes = 0
    for since, slice_ in enumerate(reversed(slices), 1):
        if slice_.state is not None:
            break
        commit_bytes += slice_.commits_size
        if since >= STATE_EVERY_SLICES or commit_bytes > max(STATE_AFTER_COMMIT_BYTES, 2 * last_state_bytes):
            return True
    return False


# Finding


def slice_at(slices: Sequence[SegmentRef], offset: int) -> int:
    """Return the index of the slice that holds `offset`; the number of slices if `offset` is past the end."""
    return bisect_right(slices, offset, key=lambda slice_: slice_.next_offset)


def slice_of_version(slices: Sequence[SegmentRef], version: int) -> int:
    """Return the index of the first slice with `version` or a later one."""
    return bisect_right(slices, version, key=lambda slice_: slice_.version_end)


def missing(
    ranges: Iterable[tuple[Offset, Offset, Epoch]], slices: Sequence[SegmentRef], start: Offset
) -> list[tuple[Offset, Offset]]:
    """Return which of the offsets [from, to), with these epochs, the archive does not have. It begins at `start`.

    An epoch has one writer, so an offset with the same epoch is the same record. Offsets before `start` were removed
    by retention, and do not count as missing.
    """
    found: list[tuple[Offset, Offset]] = []
    for low, high, epoch in ranges:
        at = max(low, start)
        for slice_ in slices[slice_at(slices, at) :]:
            if at >= high or slice_.base >= high:
                break
            if slice_.epoch != epoch or not slice_.size:
                continue
            if slice_.base > at:
                found.append((at, slice_.base))
            at = max(at, slice_.next_offset)
        if at < high:
            found.append((at, high))
    joined: list[tuple[Offset, Offset]] = []
    for low, high in found:
        if joined and joined[-1][1] == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return joined


# Removing


def expired_slices(slices: Sequence[SegmentRef], retention: Retention, now: float) -> list[Remove]:
    """Return the removals that bring an archive within `retention`. The newest state and every later slice stay."""
    kept = next((at for at in reversed(range(len(slices))) if slices[at].state is not None), 0)
    removals = expired(slices, retention, now)[:kept]
    return [
        Remove(
            segment=removal.segment,
            offset_start=removal.offset_start,
            offset_end=removal.offset_end,
            size=removal.size,
            object=slice_.object,
        )
        for removal, slice_ in zip(removals, slices, strict=False)
    ]


# Merging


def merge_run(slices: Sequence[SegmentRef], *, bytes_max: int = SLICE_BYTES_MAX) -> tuple[int, int] | None:
    """Return the indexes [from, to) of slices to merge into one; None if there is nothing to merge.

    Small slices are merged into larger ones, and those again when there are many of about their size: every byte is
    written a few times at most, and the number of slices grows with their bytes. The newest state must not be lost, so
    a run ends with it, ends before it, or begins after it.
    """
    newest_state = next((at for at in reversed(range(len(slices))) if slices[at].state is not None), -1)
    smaller = 0
    for class_bytes in MERGE_CLASSES_BYTES:
        first = 0
        while first < len(slices):
            end = _run_end(slices, first, newest_state, class_bytes, bytes_max)
            # Smaller slices come along. Alone they wait until they are many: else a large one is rewritten for a few.
            if sum(slice_.size >= smaller for slice_ in slices[first:end]) >= MERGE_SLICES_MIN:
                return first, end
            first = max(end, first + 1)
        smaller = class_bytes
    return None


def _run_end(slices: Sequence[SegmentRef], first: int, newest_state: int, class_bytes: int, bytes_max: int) -> int:
    """Return the index where a run that begins at `first` ends."""
    size, epoch = 0, None
    for at in range(first, min(len(slices), first + MERGE_SLICES_MAX)):
        slice_ = slices[at]
        is_of_another_epoch = slice_.size > 0 and epoch not in (None, slice_.epoch)
        is_past_state = first <= newest_state < at
        is_late = slice_.written_ms - slices[first].created_ms > MERGE_SPAN_MS
        is_large = slice_.size >= class_bytes or size + slice_.size > bytes_max
        if is_large or is_of_another_epoch or is_past_state or is_late:
            return at
        size += slice_.size
        epoch = slice_.epoch if slice_.size else epoch
    return min(len(slices), first + MERGE_SLICES_MAX)
