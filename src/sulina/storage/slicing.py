"""Cuts slices of a log on disk for its archive. All calls block, and may run beside the writer.

A slice is cut from the log's commits, and has their batches as they are stored, every one checked. Records from before
there was an archive may have lost their commits: then slices have the records alone, and the last of them has the state
of the log, from which its history begins.
"""

from collections.abc import Sequence

from sulina.core.log.archive import SLICE_BYTES_MAX, ArchiveView, Cut, encode_commits
from sulina.core.log.commit import Checkpoint, Commit, encode
from sulina.errors import CorruptLog, CorruptSegment, VersionNotRetained
from sulina.storage.archive import NewSlice, new_object, seed_of
from sulina.storage.directory_log import DirectoryLog
from sulina.types import Epoch, Offset, Version


def next_slice(
    log: DirectoryLog, archive: ArchiveView, *, state: Checkpoint | None = None, bytes_max: int = SLICE_BYTES_MAX
) -> NewSlice | None:
    """Return the next slice for the archive; None if there is nothing to archive.

    `state`: a state of the log that must get into the archive. The slice ends there at the latest, and then includes
    it.

    Raises:
        CorruptSegment: stored bytes are damaged.
        CorruptCommit: a commit is damaged.
        CorruptLog: commits are missing.
    """
    if needs_state(log, archive):
        return None if state is None else _without_commits(log, archive, state, bytes_max)
    last = state.version if state is not None else log.view.version
    cut = Cut(archive.next_offset, Version(archive.log_version + 1), bytes_max)
    try:
        for commit in log.commits.entries(cut.version_start, Version(last + 1)):
            if not cut.takes(commit):
                break
            cut.add(commit)
    except VersionNotRetained:
        reason = f"the commit of version {cut.version_end} is gone, and the archive has only those before it"
        raise CorruptLog(path=log.directory, reason=reason) from None
    brings_state = state is not None and cut.version_end == state.version + 1
    if not cut.commits and not brings_state:
        return None
    return _new(
        cut.offset_start,
        cut.offset_end,
        cut.version_start,
        commits=cut.commits,
        epoch=max(cut.epoch, archive.slices[-1].epoch if archive.slices else cut.epoch),
        timestamp_max=cut.timestamp_max,
        data=_batches(log, cut.offset_start, cut.offset_end, cut.size),
        state=state if brings_state else None,
    )


def needs_state(log: DirectoryLog, archive: ArchiveView) -> bool:
    """Tell whether the archive can only begin with a state, because the log's first commits or records were removed."""
    if archive.log_version >= 0:
        return False
    return bool(archive.slices) or log.view.start_offset > 0 or log.commits.oldest_version() > 0


def _without_commits(log: DirectoryLog, archive: ArchiveView, state: Checkpoint, bytes_max: int) -> NewSlice:
    start = archive.next_offset if archive.slices else log.view.start_offset
    segment = next((segment for segment in state.segments if segment.next_offset > start), None)
    newest = archive.slices[-1].epoch if archive.slices else Epoch(-1)
    if segment is None:
        data, end, epoch, timestamp_max = [], start, max(newest, state.epoch), -1
    else:
        end = segment.next_offset
        found = log.read(start, bytes_max, end_max=end)
        data, end, epoch, timestamp_max = [found.data], found.next_offset, segment.epoch, segment.timestamp_max
    if end < state.next_offset:
        return _new(start, end, Version(0), epoch=epoch, timestamp_max=timestamp_max, data=data)
    return _new(
        start,
        end,
        state.version,
        commits=[log.commits.entry(state.version)],
        epoch=epoch,
        timestamp_max=timestamp_max,
        data=data,
        state=state,
    )


def _batches(log: DirectoryLog, start: Offset, end: Offset, size: int) -> list[memoryview]:
    data: list[memoryview] = []
    offset = start
    while offset < end:
        found = log.read(offset, size, end_max=end)
        data.append(found.data)
        offset = found.next_offset
    stored = sum(map(len, data))
    if stored != size:
        reason = f"offsets [{start}, {end}) have {stored} bytes, but {size} by their commits"
        raise CorruptSegment(path=log.directory, position=0, offset=start, reason=reason)
    return data


def _new(
    start: Offset,
    end: Offset,
    version_start: Version,
    *,
    epoch: Epoch,
    timestamp_max: int,
    data: Sequence[memoryview],
    commits: Sequence[Commit] = (),
    state: Checkpoint | None = None,
) -> NewSlice:
    return NewSlice(
        object=new_object(start),
        offset_start=start,
        offset_end=end,
        version_start=version_start,
        version_end=Version(version_start + len(commits)),
        epoch=epoch,
        timestamp_max=timestamp_max,
        data=data,
        commits=encode_commits(commits),
        state=encode(seed_of(state)) if state is not None else None,
        runs=state.txn_runs if state is not None else (),
    )
