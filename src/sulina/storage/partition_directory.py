"""Directories of partitions: how a new owner prepares one, and how one that is not needed is removed or set aside.

A directory appears whole: it is built under another name, with its stamp and the state that it continues from, and gets
its own name when all of it is durable. So a directory never begins at 0 where the log has records. A directory that was
overtaken is removed only if everything in it is in the archive; else it is set aside, under a name with its epoch, for
an operator.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from sulina.clock import SystemClock
from sulina.core.formats import STAMP
from sulina.core.log.archive import ArchiveView, missing
from sulina.core.log.commit import Checkpoint, checkpoint_name, encode
from sulina.core.log.log_state import NO_EPOCH, LogState, MemoryLimits
from sulina.core.log.resume import (
    ARCHIVE,
    CONTINUES,
    DIRECTORY,
    DirectoryState,
    End,
    How,
    Stamp,
    Witness,
    check_continues,
    check_joins,
    check_witnesses,
    directory_state,
)
from sulina.errors import Corrupt, LogIncomplete, LogLocked, VersionNotRetained
from sulina.failpoints import Failpoint, FailpointHook, no_failpoints
from sulina.ports import Files
from sulina.storage.archive import Archive
from sulina.storage.commit_log import CommitLog, put_runs
from sulina.storage.commit_store import DirectoryCommits
from sulina.storage.directory_log import COMMITS_DIRECTORY, LOCK_FILE
from sulina.storage.files import OsFiles, read_whole, remove_tree, write_whole
from sulina.types import Epoch, Offset, Version

STAMP_FILE = ".topic"
NOTHING_ARCHIVED = ArchiveView(Version(-1), NO_EPOCH, None, Offset(0), Offset(0), Version(-1), ())
_NEW = ".new"
_DISCARDED = ".discarded"
_SET_ASIDE = ".set-aside"


class Fate(StrEnum):
    """The outcome for a directory."""

    NOTHING = "nothing"  # there was no directory
    KEPT = "kept"  # no other broker has claimed the log, and not all of it is in the archive
    REMOVED = "removed"  # all of it is in the archive
    SET_ASIDE = "set_aside"


@dataclass(frozen=True, slots=True)
class Leftover:
    """A directory that is no longer needed."""

    fate: Fate
    path: str | None = None  # its path now
    only_here: tuple[tuple[Offset, Offset], ...] = ()  # offsets that exist nowhere else


@dataclass(frozen=True, slots=True)
class Resumed:
    """How a log continues."""

    how: How
    leftover: Leftover


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryResume:
    """Prepares the directory of a partition for a new owner. Blocks."""

    directory: str
    archive: Archive
    topic_id: str
    epoch: Epoch
    broker_id: str
    partition: str = ""  # name of the partition, for messages
    heard: Sequence[Witness] = ()  # ends that were reported of the log
    must_resume: bool = False
    is_adopted: bool = False
    limits: MemoryLimits | None = None
    files: Files
    failpoints: FailpointHook = no_failpoints

    def run(self) -> Resumed:
        """Claim the archive, then make the directory continue from the right offset. May be run again after a failure.

        Raises:
            StaleEpoch: a newer owner has claimed the log.
            LogIncomplete: records that were reported are missing.
            LogLocked: another process writes to the directory.
            CorruptLog: the directory and the archive do not fit together.
            CorruptCommit: a commit is damaged.
            ArchiveFailed: the object store does not answer.
        """
        self.archive.load()
        _clear(self.directory, _NEW, _DISCARDED)
        with locked(self.files, self.directory):
            before = self.archive.claim(self.epoch, self.broker_id, self._holder_after)
            if before.epoch == self.epoch:
                # An earlier attempt has claimed it, and may have stopped before these checks.
                self._holder_after(before)
            found = self._state_of(before)
            if found in CONTINUES:
                return Resumed(How.CONTINUED, Leftover(Fate.NOTHING))
            leftover = Leftover(Fate.NOTHING)
            if found is not DirectoryState.ABSENT:
                leftover = remove_or_set_aside(
                    self.directory, before, found, files=self.files, failpoints=self.failpoints
                )
        view = self.archive.view
        assert view.holder is not None
        checkpoint = None if view.is_empty else self.archive.log_checkpoint(self.limits)
        seed(
            self.directory,
            Stamp(topic_id=self.topic_id, holder=view.holder),
            checkpoint,
            files=self.files,
            failpoints=self.failpoints,
        )
        return Resumed(How.NEW if checkpoint is None else How.FROM_ARCHIVE, leftover)

    def _state_of(self, view: ArchiveView) -> DirectoryState:
        return directory_state(
            exists=os.path.isdir(self.directory),
            stamp=read_stamp(self.files, self.directory),
            topic_id=self.topic_id,
            claimed_by=view.holder,
            is_adopted=self.is_adopted,
        )

    def _holder_after(self, view: ArchiveView) -> str:
        """Return the holder that continues from a view of the archive, before anything is changed, or refuse."""
        found = self._state_of(view)
        if found in CONTINUES:
            self._check_directory(view)
            stamp = read_stamp(self.files, self.directory)
            if stamp is None:
                # Before the claim that names it: after that, a directory without a stamp would count as foreign.
                stamp = Stamp(topic_id=self.topic_id, holder=secrets.token_hex(8))
                _write_stamp(self.files, self.directory, stamp)
            return stamp.holder
        if self.must_resume and not self._is_released(view):
            told = max((witness.end.next_offset for witness in self.heard), default=view.next_offset)
            raise LogIncomplete(
                partition=self.partition,
                where=ARCHIVE,
                start=view.next_offset,
                end=told,
                source=f"only the disk of broker {self.broker_id} has all of it, and the directory there is {found}",
            )
        end = End(view.next_offset, view.log_version, view.epoch)
        check_witnesses(self.partition, ARCHIVE, self.heard, end)
        return secrets.token_hex(8)

    def _is_released(self, view: ArchiveView) -> bool:
        """Return whether the directory of the newest claim was removed here, because the archive had all of it."""
        note = read_released_note(self.files, self.directory)
        return note is not None and note.holder == view.holder

    def _check_directory(self, view: ArchiveView) -> None:
        log = _commit_log(self.files, self.directory)
        state = log.load()
        at_archived = None
        if view.log_version >= 0:
            with contextlib.suppress(VersionNotRetained):
                at_archived = log.entry(view.log_version).next_offset
        check_continues(self.directory, state, view, at_archived)
        # The claim that names this directory may be newer than the last commit in it.
        end = End(state.next_offset, state.version, max(state.epoch, view.epoch))
        check_witnesses(self.partition, DIRECTORY, self.heard, end)
        check_joins(self.partition, self.heard, state.start_offset, state.next_offset, view)


def release_directory(
    directory: str,
    archive: Archive,
    *,
    topic_id: str,
    files: Files | None = None,
    failpoints: FailpointHook = no_failpoints,
) -> Leftover:
    """Remove or set aside the directory of a partition that this broker no longer owns, or never opened again.

    Blocks. May be called again at any time.

    Raises:
        ArchiveFailed: the object store does not answer.
        LogLocked: another process writes to the directory.
        Corrupt: the archive is damaged.
    """
    files = files or OsFiles()
    if not os.path.isdir(directory):
        _clear(directory, _DISCARDED)
        return Leftover(Fate.NOTHING)
    view = archive.load()
    with locked(files, directory):
        _clear(directory, _DISCARDED)
        stamp = read_stamp(files, directory)
        found = directory_state(exists=True, stamp=stamp, topic_id=topic_id, claimed_by=view.holder)
        if found is DirectoryState.NEWEST:
            state = _commit_log(files, directory).load()
            only_here = tuple(_only_here(state, view, found))
            if only_here or state.version > view.log_version:
                return Leftover(Fate.KEPT, directory, only_here)
        return remove_or_set_aside(directory, view, found, files=files, failpoints=failpoints)


def set_directory_aside(files: Files, directory: str) -> Leftover:
    """Set a directory aside, whatever the archive has of it. Blocks.

    Raises:
        LogLocked: another process writes to the directory.
    """
    if not os.path.isdir(directory):
        return Leftover(Fate.NOTHING)
    with locked(files, directory):
        return remove_or_set_aside(
            directory, NOTHING_ARCHIVED, DirectoryState.FOREIGN, files=files, failpoints=no_failpoints
        )


def remove_or_set_aside(
    directory: str, view: ArchiveView, found: DirectoryState, *, files: Files, failpoints: FailpointHook
) -> Leftover:
    """Remove a directory, or set it aside if it has records that the archive lacks, or belongs to another topic."""
    is_ours = found is not DirectoryState.FOREIGN
    state: LogState | None = None
    with contextlib.suppress(Corrupt):
        state = _commit_log(files, directory).load()
    only_here = tuple(_only_here(state, view, found)) if state is not None else ()
    parent = os.path.dirname(directory)
    if is_ours and state is not None and not only_here:
        if (stamp := read_stamp(files, directory)) is not None:
            note = released_note(directory)
            files.make_directory(os.path.dirname(note))
            write_whole(files, note, STAMP.encode(stamp))
        files.rename(directory, directory + _DISCARDED)
        files.sync_directory(parent)
        failpoints(Failpoint.RESUME_DISCARDED)
        remove_tree(directory + _DISCARDED)
        return Leftover(Fate.REMOVED)
    names = set(files.list(parent))
    base, epoch = os.path.basename(directory), state.epoch if state is not None else NO_EPOCH
    number = next(n for n in range(len(names) + 1) if f"{base}{_SET_ASIDE}-{epoch}-{n}" not in names)
    aside = f"{directory}{_SET_ASIDE}-{epoch}-{number}"
    files.rename(directory, aside)
    files.sync_directory(parent)
    failpoints(Failpoint.RESUME_SET_ASIDE)
    return Leftover(Fate.SET_ASIDE, aside, only_here)


def set_aside_in(files: Files, data: str) -> list[str]:
    """Find the names of directories that were set aside. Blocks."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(name for name in files.list(data) if f"{_SET_ASIDE}-" in name)
    return []


def directory_end(files: Files, directory: str) -> End:
    """Return the end of the log in a directory, without changing anything. Blocks.

    Raises:
        Corrupt: the log is damaged.
    """
    state = _commit_log(files, directory).load()
    return End(state.next_offset, state.version, state.epoch)


def _only_here(state: LogState, view: ArchiveView, found: DirectoryState) -> list[tuple[Offset, Offset]]:
    """Find the offsets of a directory that the archive does not have."""
    ranges = [(segment.base, segment.next_offset, segment.epoch) for segment in state.segments]
    if found is DirectoryState.FOREIGN:
        return missing(ranges, (), Offset(0))
    if found is DirectoryState.OVERTAKEN:
        # Another directory wrote the newest epoch in the archive: records of that epoch here are different ones.
        return missing(ranges, [one for one in view.slices if one.epoch != view.epoch], view.start_offset)
    return missing(ranges, view.slices, view.start_offset)


def seed(
    directory: str, stamp: Stamp, checkpoint: Checkpoint | None, *, files: Files, failpoints: FailpointHook
) -> None:
    """Create a directory that continues from `checkpoint`, or begins at offset 0. It must not exist."""
    new = directory + _NEW
    files.make_directory(f"{new}/{COMMITS_DIRECTORY}")
    if checkpoint is not None:
        commits = DirectoryCommits(files, f"{new}/{COMMITS_DIRECTORY}")
        put_runs(commits, checkpoint.txn_runs)
        commits.put_if_absent(checkpoint_name(checkpoint.version), encode(checkpoint))
    _write_stamp(files, new, stamp)
    failpoints(Failpoint.RESUME_SEEDED)
    files.rename(new, directory)
    failpoints(Failpoint.RESUME_RENAMED)
    files.sync_directory(os.path.dirname(directory))
    failpoints(Failpoint.RESUME_DURABLE)


def _clear(directory: str, *ends: str) -> None:
    """Remove what a dead attempt has left, half made or half removed. Only the maker may remove what is half made."""
    for end in ends:
        if os.path.isdir(directory + end):
            remove_tree(directory + end)


def released_note(directory: str) -> str:
    """Return the path of the file that keeps the stamp of a directory which was removed after it was archived."""
    return os.path.join(os.path.dirname(directory), "released", os.path.basename(directory).removeprefix("topic="))


def read_released_note(files: Files, directory: str) -> Stamp | None:
    """Return the stamp of a directory that was removed after it was archived; None if none was."""
    return _decoded(path := released_note(directory), read_whole(files, path))


def read_stamp(files: Files, directory: str) -> Stamp | None:
    """Return the stamp of a directory; None if it has none, or an unreadable one."""
    return _decoded(path := f"{directory}/{STAMP_FILE}", read_whole(files, path))


def _decoded(path: str, data: bytes | None) -> Stamp | None:
    try:
        return None if data is None else STAMP.decode(data, Stamp, path)
    except msgspec.MsgspecError:
        return None


def ensure_stamp(files: Files, directory: str, topic_id: str) -> None:
    """Stamp a directory with its topic, if it has no stamp yet. Blocks."""
    if read_stamp(files, directory) is None:
        _write_stamp(files, directory, Stamp(topic_id=topic_id, holder=secrets.token_hex(8)))


def _write_stamp(files: Files, directory: str, stamp: Stamp) -> None:
    write_whole(files, f"{directory}/{STAMP_FILE}", STAMP.encode(stamp))


def _commit_log(files: Files, directory: str) -> CommitLog:
    return CommitLog(DirectoryCommits(files, f"{directory}/{COMMITS_DIRECTORY}"), clock=SystemClock(), writer="reader")


@contextlib.contextmanager
def locked(files: Files, directory: str) -> Iterator[None]:
    """Lock a directory. One that does not exist needs no lock.

    Raises:
        LogLocked: another process has the lock.
    """
    if not os.path.isdir(directory):
        yield
        return
    lock = files.lock(f"{directory}/{LOCK_FILE}")
    if lock is None:
        raise LogLocked(path=directory)
    try:
        yield
    finally:
        lock.close()
