"""Directories of partitions: how a new one begins, and what becomes of one that no longer counts.

A directory appears whole: it is built under another name, with its stamp and the state that it goes on from, and gets
its own name when all of it is durable. So there is never one that would begin at 0 where there is more. One that no
longer counts is removed only if everything in it is in the archive; else it is set aside, under a name that says
which epoch it had, for somebody to look at.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from sulina.clock import SystemClock
from sulina.core.archive import ArchiveView, missing
from sulina.core.cluster import Sealed
from sulina.core.commit import Checkpoint, checkpoint_name, encode
from sulina.core.log_state import NO_EPOCH, LogState, MemoryLimits
from sulina.core.resume import GOES_ON, End, How, Stamp, Standing, check_continues, check_witness, standing
from sulina.errors import Corrupt, CorruptLog, LogLocked, VersionNotRetained
from sulina.ports import Files
from sulina.storage.archive import Archive
from sulina.storage.commit_log import CommitLog, put_runs
from sulina.storage.commit_store import DirectoryCommits
from sulina.storage.directory_log import COMMITS_DIRECTORY, LOCK_FILE
from sulina.storage.files import OsFiles, remove_tree
from sulina.storage.steps import Step, Steps, no_steps
from sulina.types import Epoch, Offset

STAMP_FILE = ".topic"
_NEW = ".new"
_DISCARDED = ".discarded"
_SET_ASIDE = ".set-aside"


class Fate(StrEnum):
    """What became of a directory."""

    NOTHING = "nothing"  # there was none
    KEPT = "kept"  # nobody has taken the log over, and not all of it is in the archive
    REMOVED = "removed"  # all of it is in the archive
    SET_ASIDE = "set_aside"


@dataclass(frozen=True, slots=True)
class Leftover:
    """A directory that no longer counts."""

    fate: Fate
    path: str | None = None  # where it is now
    only_here: tuple[tuple[Offset, Offset], ...] = ()  # offsets that are nowhere else


@dataclass(frozen=True, slots=True)
class Resumed:
    """How a log goes on."""

    how: How
    leftover: Leftover


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """A new owner makes a directory ready. Blocks."""

    directory: str
    archive: Archive
    topic_id: str
    epoch: Epoch
    broker_id: str
    sealed: Sealed | None = None
    must_resume: bool = False
    is_adopted: bool = False
    limits: MemoryLimits | None = None
    files: Files
    steps: Steps = no_steps

    def run(self) -> Resumed:
        """Claim the archive, then see to it that the directory is there and goes on from the right place.

        StaleEpoch, ArchiveFailed, CorruptLog, CorruptCommit, LogLocked. May be run again after any failure.
        """
        self.archive.load()
        _clear(self.directory, _NEW, _DISCARDED)
        with _locked(self.files, self.directory):
            before = self.archive.claim(self.epoch, self.broker_id, self._holder_after)
            if before.epoch == self.epoch:
                self._holder_after(
                    before
                )  # it was claimed by an earlier attempt, which may not have looked any further
            found = self._standing(before)
            if found in GOES_ON:
                return Resumed(How.CONTINUED, Leftover(Fate.NOTHING))
            leftover = Leftover(Fate.NOTHING)
            if found is not Standing.ABSENT:
                is_ours = found is Standing.OVERTAKEN
                leftover = put_away(
                    self.directory, self.archive.view, files=self.files, steps=self.steps, is_ours=is_ours
                )
        view = self.archive.view
        assert view.holder is not None
        checkpoint = None if view.is_empty else self.archive.log_checkpoint(self.limits)
        seed(
            self.directory,
            Stamp(topic_id=self.topic_id, holder=view.holder),
            checkpoint,
            files=self.files,
            steps=self.steps,
        )
        return Resumed(How.NEW if checkpoint is None else How.FROM_ARCHIVE, leftover)

    def _standing(self, view: ArchiveView) -> Standing:
        return standing(
            exists=os.path.isdir(self.directory),
            stamp=read_stamp(self.files, self.directory),
            topic_id=self.topic_id,
            claimed_by=view.holder,
            is_adopted=self.is_adopted,
        )

    def _holder_after(self, view: ArchiveView) -> str:
        """Who goes on from what the archive has; before anything is changed. CorruptLog when nobody may."""
        found = self._standing(view)
        if found in GOES_ON:
            self._check_directory(view)
            stamp = read_stamp(self.files, self.directory)
            if stamp is None:
                # Before the claim that names it: after that, a directory without it would be nobody's.
                stamp = Stamp(topic_id=self.topic_id, holder=secrets.token_hex(8))
                _write_stamp(self.files, self.directory, stamp)
            return stamp.holder
        if self.must_resume:
            reason = f"only this disk has all of it, and the directory that had it is {found}"
            raise CorruptLog(path=self.directory, reason=reason)
        check_witness(self.archive.location, self.sealed, End(view.next_offset, view.log_version))
        return secrets.token_hex(8)

    def _check_directory(self, view: ArchiveView) -> None:
        log = _commit_log(self.files, self.directory)
        state = log.load()
        at_archived = None
        if view.log_version >= 0:
            with contextlib.suppress(VersionNotRetained):
                at_archived = log.entry(view.log_version).next_offset
        check_continues(self.directory, state, view, at_archived)
        check_witness(self.directory, self.sealed, End(state.next_offset, state.version))


def let_go(
    directory: str, archive: Archive, *, topic_id: str, files: Files | None = None, steps: Steps = no_steps
) -> Leftover:
    """Remove or set aside the directory of a partition that this broker no longer owns, or never opened again.

    Blocks. May be called again at any time. ArchiveFailed, LogLocked, Corrupt (of the archive).
    """
    files = files or OsFiles()
    if not os.path.isdir(directory):
        _clear(directory, _DISCARDED)
        return Leftover(Fate.NOTHING)
    view = archive.load()
    with _locked(files, directory):
        _clear(directory, _DISCARDED)
        stamp = read_stamp(files, directory)
        found = standing(exists=True, stamp=stamp, topic_id=topic_id, claimed_by=view.holder)
        if found is Standing.NEWEST:
            state = _commit_log(files, directory).load()
            only_here = tuple(_only_here(state, view))
            if only_here or state.version > view.log_version:
                return Leftover(Fate.KEPT, directory, only_here)
        return put_away(directory, view, files=files, steps=steps, is_ours=found is not Standing.FOREIGN)


def put_away(directory: str, view: ArchiveView, *, files: Files, steps: Steps, is_ours: bool) -> Leftover:
    """Remove a directory, or set it aside if it has anything that the archive has not, or is another topic's."""
    state: LogState | None = None
    with contextlib.suppress(Corrupt):
        state = _commit_log(files, directory).load()
    only_here = tuple(_only_here(state, view if is_ours else None)) if state is not None else ()
    parent = os.path.dirname(directory)
    if is_ours and state is not None and not only_here:
        files.rename(directory, directory + _DISCARDED)
        files.sync_directory(parent)
        steps(Step.RESUME_DISCARDED)
        remove_tree(directory + _DISCARDED)
        return Leftover(Fate.REMOVED)
    names = set(files.list(parent))
    base, epoch = os.path.basename(directory), state.epoch if state is not None else NO_EPOCH
    number = next(n for n in range(len(names) + 1) if f"{base}{_SET_ASIDE}-{epoch}-{n}" not in names)
    aside = f"{directory}{_SET_ASIDE}-{epoch}-{number}"
    files.rename(directory, aside)
    files.sync_directory(parent)
    steps(Step.RESUME_SET_ASIDE)
    return Leftover(Fate.SET_ASIDE, aside, only_here)


def _only_here(state: LogState, view: ArchiveView | None) -> list[tuple[Offset, Offset]]:
    ranges = [(segment.base, segment.next_offset, segment.epoch) for segment in state.segments]
    return missing(ranges, view.slices, view.start_offset) if view is not None else missing(ranges, (), Offset(0))


def seed(directory: str, stamp: Stamp, checkpoint: Checkpoint | None, *, files: Files, steps: Steps) -> None:
    """Begin a directory that goes on from `checkpoint`, or at offset 0. There must be none."""
    new = directory + _NEW
    files.make_directory(f"{new}/{COMMITS_DIRECTORY}")
    if checkpoint is not None:
        commits = DirectoryCommits(files, f"{new}/{COMMITS_DIRECTORY}")
        put_runs(commits, checkpoint.txn_runs)
        commits.put_if_absent(checkpoint_name(checkpoint.version), encode(checkpoint))
    _write_stamp(files, new, stamp)
    steps(Step.RESUME_SEEDED)
    files.rename(new, directory)
    steps(Step.RESUME_RENAMED)
    files.sync_directory(os.path.dirname(directory))
    steps(Step.RESUME_DURABLE)


def _clear(directory: str, *ends: str) -> None:
    """What an attempt that died has left, half made or half removed. What is half made is its maker's to clear."""
    for end in ends:
        if os.path.isdir(directory + end):
            remove_tree(directory + end)


def read_stamp(files: Files, directory: str) -> Stamp | None:
    """What a directory says about itself; None when it says nothing that can be understood."""
    try:
        file = files.open(f"{directory}/{STAMP_FILE}")
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(file.read(0, file.size()), type=Stamp)
    except msgspec.MsgspecError:
        return None
    finally:
        file.close()


def _write_stamp(files: Files, directory: str, stamp: Stamp) -> None:
    path = f"{directory}/{STAMP_FILE}"
    aside = f"{path}.{secrets.token_hex(4)}.aside"
    file = files.create(aside)
    try:
        file.write(0, [msgspec.json.encode(stamp)])
        file.sync()
    finally:
        file.close()
    files.rename(aside, path)
    files.sync_directory(directory)


def _commit_log(files: Files, directory: str) -> CommitLog:
    return CommitLog(DirectoryCommits(files, f"{directory}/{COMMITS_DIRECTORY}"), clock=SystemClock(), writer="reader")


@contextlib.contextmanager
def _locked(files: Files, directory: str) -> Iterator[None]:
    """Nobody else has the directory meanwhile. One that is not there needs no lock."""
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
