"""The commit log of one partition, on any `CommitStore`.

Version N is written once, and only after N-1. A reader that sees N sees all of it. The commits define the content of a
log: `CommitLog` replays them from the newest valid checkpoint, and adds to them. It writes no records.

One thread commits; another may write checkpoints and clean up at the same time.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sulina.core.log.commit import (
    CHECKPOINT_EVERY,
    LAST_CHECKPOINT,
    AnyOperation,
    Checkpoint,
    Commit,
    LastCheckpoint,
    checkpoint_name,
    checkpoint_version,
    commit_name,
    commit_version,
    decode,
    encode,
    timestamp_ms,
    timestamp_text,
)
from sulina.core.log.log_state import LogState, MemoryLimits, next_log_ms
from sulina.core.log.plan import next_commit
from sulina.core.log.retention import CHECKPOINTS_KEPT, disposable_before
from sulina.core.log.txn_run import TxnRun, is_run_name
from sulina.errors import CorruptCommit, CorruptLog, VersionConflict, VersionNotRetained
from sulina.failpoints import Failpoint, FailpointHook, no_failpoints
from sulina.ports import Bytes, Clock, CommitStore
from sulina.types import Epoch, Version

HINT_EVERY = 10 * CHECKPOINT_EVERY  # versions; a stale hint costs a longer listing, no more
LOAD_ATTEMPTS_MAX = 10  # beside a busy writer, clean-up may come between each listing and read


@dataclass(frozen=True, slots=True)
class Prepared:
    """A commit, the name of its file, its bytes, and when it was made by the monotonic clock."""

    commit: Commit
    name: str
    data: bytes
    monotonic: float


@dataclass(slots=True)
class _StoreListing:
    """The versions in a store's listing."""

    commits: list[Version]
    checkpoints: list[Version]
    runs: list[str]

    @classmethod
    def of(cls, names: list[str]) -> "_StoreListing":
        commits = [version for name in names if (version := commit_version(name)) is not None]
        checkpoints = [version for name in names if (version := checkpoint_version(name)) is not None]
        return cls(commits, checkpoints, [name for name in names if is_run_name(name)])


class CommitLog:
    """State and writer of one commit log. Open with `load`, then `commit`."""

    def __init__(
        self,
        store: CommitStore,
        *,
        clock: Clock,
        writer: str,
        is_alone: bool = False,
        limits: MemoryLimits | None = None,
        failpoints: FailpointHook = no_failpoints,
    ) -> None:
        self.store = store
        self.state = LogState(limits=limits or MemoryLimits())
        self._limits = self.state.limits
        self._clock = clock
        self._reach = failpoints
        self._writer = writer  # unique, so that a commit found under our version shows whether it is ours
        self._is_alone = is_alone  # a lock keeps other writers away
        self._numbers = itertools.count()
        self._swept: Version | None = None  # commits below it are removed; None until we have cleaned up
        self._oldest_kept: Version | None = None  # commits below it are removed, or being removed
        # Written and read back by us, oldest first. Recovery uses those of others too, clean-up relies on ours only.
        self._checkpoints: list[Version] = []
        self._named: dict[Version, set[str]] = {}  # the runs of txn_ids that each of those needs
        self._runs: set[str] = set()  # runs of txn_ids that are stored
        self._measured: tuple[float, int] | None = None  # start of our measuring, by monotonic clock and log's time

    def limit(self, limits: MemoryLimits) -> None:
        """Use other limits for producers and txn_ids from the next commit on."""
        self._limits = self.state.limits = limits

    def load(self, names: list[str] | None = None) -> LogState:
        """Load the state: newest valid checkpoint, then every commit after it.

        `names` is the listing of the store, in any order, if the caller has it already.

        Raises:
            CorruptCommit: a commit is damaged.
            CorruptLog: commits are missing, and no checkpoint covers them.
        """
        for _ in range(LOAD_ATTEMPTS_MAX):
            try:
                self.state, self._measured = self._load(names), None
                self._measured = self._clock.monotonic(), self.log_ms()
                return self.state
            except FileNotFoundError as error:
                # Another process may have cleaned up since our listing: then the next one has a newer checkpoint.
                names, gone = None, error
        raise CorruptLog(path=self.store.location, reason=f"{gone}, and no checkpoint covers it")

    def _load(self, names: list[str] | None) -> LogState:
        after, hint = "", self.store.get(LAST_CHECKPOINT)
        if hint is not None:
            with contextlib.suppress(CorruptCommit):
                after = f"{decode(LAST_CHECKPOINT, hint, LastCheckpoint).version:020d}"
        newer = self.store.list(after) if names is None else sorted(name for name in names if name > after)
        listing = _StoreListing.of(newer)
        state = self._newest_checkpoint(listing)
        if state is None and after:
            listing = _StoreListing.of(self.store.list())
            state = self._newest_checkpoint(listing)
        if state is None:
            state = LogState(limits=self._limits)
        newest = listing.commits[-1] if listing.commits else state.version
        # Not only listed commits: a listing may miss files that were created while it was made.
        while state.version < newest:
            commit = self._read(Version(state.version + 1))
            if commit is None:
                raise FileNotFoundError(f"commit {state.version + 1} is missing, {newest} exists")
            state.apply(commit)
        return state

    def readable(self) -> Iterator[Commit | Checkpoint]:
        """Yield every commit and checkpoint that can be read, even of a log that cannot be rebuilt."""
        listing = _StoreListing.of(self.store.list())
        for version in listing.commits:
            with contextlib.suppress(CorruptCommit):
                if (commit := self._read(version)) is not None:
                    yield commit
        for version in listing.checkpoints:
            if (checkpoint := self._read_checkpoint(version)) is not None:
                yield checkpoint

    def _newest_checkpoint(self, listing: _StoreListing) -> LogState | None:
        damage: CorruptCommit | None = None
        for version in reversed(listing.checkpoints):
            checkpoint = self._read_checkpoint(version)
            if checkpoint is not None:
                try:
                    load_runs(checkpoint.txn_runs, self.store.get)
                except CorruptCommit as error:
                    damage = damage or error  # the one before may not name that run
                    continue
                self._runs = {run.name for run in checkpoint.txn_runs if run.name is not None}
                return LogState.from_checkpoint(checkpoint, self._limits)
        if damage is not None:
            raise damage
        return None

    def _read_checkpoint(self, version: Version) -> Checkpoint | None:
        """Read a checkpoint; None if it is torn, damaged or missing: an older one, or the commits, can replace it."""
        name = checkpoint_name(version)
        data = self.store.get(name)
        if data is None:
            return None
        try:
            checkpoint = decode(name, data, Checkpoint)
        except CorruptCommit:
            return None
        return checkpoint if checkpoint.version == version else None

    def _read(self, version: Version) -> Commit | None:
        name = commit_name(version)
        data = self.store.get(name)
        if data is None:
            return None
        commit = decode(name, data, Commit)
        if commit.version != version:
            raise CorruptCommit(name=name, reason=f"it has version {commit.version}")
        return commit

    def commit(
        self,
        operations: Sequence[AnyOperation],
        *,
        epoch: Epoch,
        expected_version: Version | None = None,
    ) -> Commit:
        """Write the next version, durable on return. After a conflict the state has the other writer's commit.

        Raises:
            VersionConflict: another writer was first, or `expected_version` is not the current one.
        """
        if expected_version is not None and expected_version != self.state.version:
            raise VersionConflict(expected=expected_version, current=self.state.version)
        prepared = self.prepare(operations, epoch=epoch)
        return self.finish(prepared, lambda: self.store.put_if_absent(prepared.name, prepared.data))

    def prepare(self, operations: Sequence[AnyOperation], *, epoch: Epoch, log_ms: int | None = None) -> "Prepared":
        """Build the next version without storing it; `log_ms` is the log's own time, if the caller has asked for it.

        Raises:
            StaleEpoch: a newer owner has claimed the log.
            InvalidInput: no batch can carry this epoch.
            CorruptCommit: the commit breaks the rules of the log.
        """
        now, monotonic = self._clock.now(), self._clock.monotonic()
        log_ms = self.log_ms() if log_ms is None else log_ms
        txn_id = f"{self._writer}:{int(now * 1000)}:{next(self._numbers)}"
        commit = next_commit(self.state, operations, txn_id=txn_id, now=now, epoch=epoch, log_ms=log_ms)
        # Before it is stored: no log with a commit that breaks the rules could ever be opened.
        self.state.check(commit)
        return Prepared(commit, commit_name(commit.version), encode(commit), monotonic)

    def log_ms(self) -> int:
        """Return the log's own time at this moment. Other threads may call it while one commits."""
        measured, state = self._measured, self.state
        if measured is not None:
            passed_ms = int((self._clock.monotonic() - measured[0]) * 1000)
            return next_log_ms(measured[1], measured_ms=passed_ms, last_ms=0, now_ms=0)
        now_ms = int(self._clock.now() * 1000)
        last_ms = timestamp_ms(state.timestamp) if state.timestamp else now_ms
        return next_log_ms(state.log_ms, measured_ms=None, last_ms=last_ms, now_ms=now_ms)

    def finish(self, prepared: "Prepared", put: Callable[[], bool]) -> Commit:
        """Store a prepared commit by `put`, and apply it to the state.

        Raises:
            VersionConflict: another writer was first.
        """
        commit, before = prepared.commit, self.state.version
        if not put() or not (self._is_alone or self._has_predecessor(commit)):
            self.refresh()
            raise VersionConflict(expected=before, current=self.state.version)
        self.state.apply(commit)
        if self._measured is None:
            self._measured = prepared.monotonic, self.state.log_ms
        return commit

    def _has_predecessor(self, commit: Commit) -> bool:
        if commit.version == 0 or self.store.get(commit_name(commit.version - 1)) is not None:
            return True
        # The version was free because its commit was removed while we slept: clean-up removes the oldest first, and
        # never the newest, so a writer that is up to date finds the commit before its own.
        self.store.delete(commit_name(commit.version))
        return False

    def refresh(self) -> None:
        """Apply the commits of other writers."""
        if self.state.version < 0 or self.store.get(commit_name(self.state.version)) is None:
            self.load()  # the next commit was removed while we slept
        while (commit := self._read(Version(self.state.version + 1))) is not None:
            self.state.apply(commit)
            self._measured = None

    def entry(self, version: Version) -> Commit:
        """Read the commit of a version.

        Raises:
            VersionNotRetained: it was removed, or does not exist yet.
        """
        commit = self._read(version) if version >= 0 else None
        if commit is None:
            oldest, current = self.oldest_version(), self.state.version
            raise VersionNotRetained(version=version, oldest=oldest, current=current)
        return commit

    def entries(self, start: Version, end: Version) -> Iterator[Commit]:
        """Yield the commits of versions [start, end)."""
        for version in range(start, end):
            yield self.entry(Version(version))

    def oldest_version(self) -> Version:
        """Return the version of the oldest commit that is retained."""
        if self._oldest_kept is not None:
            return self._oldest_kept
        commits = _StoreListing.of(self.store.list()).commits
        return commits[0] if commits else Version(max(self.state.version, 0))

    def take_checkpoint(self) -> Checkpoint:
        """Return the current state, for `write_checkpoint`, which may run in another thread."""
        return self.state.checkpoint(timestamp_text(self._clock.now()))

    def write_checkpoint(self, checkpoint: Checkpoint, *, compress: bool = False) -> None:
        """Store a checkpoint, and the runs of txn_ids that no earlier one names; read them back.

        Clean-up relies only on files that were read back.

        Raises:
            CorruptCommit: a file cannot be read back.
        """
        version, names = checkpoint.version, {run.name for run in checkpoint.txn_runs if run.name is not None}
        put_runs(self.store, (run for run in checkpoint.txn_runs if run.name not in self._runs))
        self._runs |= names
        self.store.put_if_absent(checkpoint_name(version), encode(checkpoint, compress=compress))
        if self._read_checkpoint(version) is None:
            raise CorruptCommit(name=checkpoint_name(version), reason="it cannot be read back")
        self._reach(Failpoint.CHECKPOINT_VERIFIED)
        self._checkpoints.append(version)
        self._named[version] = names
        if version % HINT_EVERY == 0:
            self.store.delete(LAST_CHECKPOINT)
            self._reach(Failpoint.CHECKPOINT_HINT_REMOVED)
            self.store.put_if_absent(LAST_CHECKPOINT, encode(LastCheckpoint(version=version)))
            self._reach(Failpoint.CHECKPOINT_HINT_WRITTEN)

    def clean_up(self, keep_from: Version) -> int:
        """Delete the commits below `keep_from` that no recovery needs, and old checkpoints. Return how many files."""
        kept = self._checkpoints[-CHECKPOINTS_KEPT:]
        if len(kept) < CHECKPOINTS_KEPT:
            return 0
        end = disposable_before(kept, keep_from)
        checkpoints = self._checkpoints
        if self._swept is None:
            # Only once: commits from before us may have gaps.
            listing = _StoreListing.of(self.store.list())
            checkpoints = listing.checkpoints
            self._runs.update(listing.runs)
            commits = [version for version in listing.commits if version < end]
            oldest = next((version for version in listing.commits if version >= end), end)
        else:
            commits = [Version(version) for version in range(self._swept, end)]
            oldest = max(end, self._swept)
        self._reach(Failpoint.CLEANUP_PLANNED)
        self._oldest_kept = oldest  # before any is removed: no reader is sent to a commit that is being removed
        for version in commits:  # oldest first, so that the rest has no gap
            self.store.delete(commit_name(version))
            self._reach(Failpoint.CLEANUP_COMMIT_REMOVED)
        self._swept = oldest  # a log that continues from an archive never had older ones
        needless = [version for version in checkpoints if version < kept[0]]
        for version in needless:
            self.store.delete(checkpoint_name(version))
            self._reach(Failpoint.CLEANUP_CHECKPOINT_REMOVED)
        self._checkpoints = kept
        self._named = {version: self._named[version] for version in kept}
        forgotten = self._runs.difference(*self._named.values())
        for name in forgotten:
            self.store.delete(name)
        self._runs -= forgotten
        return len(commits) + len(needless) + len(forgotten)


def put_runs(store: CommitStore, runs: Iterable[TxnRun]) -> None:
    """Store runs of txn_ids, and read them back.

    Raises:
        CorruptCommit: one cannot be read back.
    """
    for run in runs:
        assert run.name is not None
        data = run.encode()
        store.put_if_absent(run.name, data)  # its name depends on its content: it may be there already
        if store.get(run.name) != data:
            raise CorruptCommit(name=run.name, reason="it cannot be read back")


def load_runs(runs: Iterable[TxnRun], get: Callable[[str], Bytes | None]) -> None:
    """Read the runs that a checkpoint names.

    Raises:
        FileNotFoundError: one is missing.
        CorruptCommit: one is damaged.
    """
    for run in runs:
        assert run.name is not None
        data = get(run.name)
        if data is None:
            raise FileNotFoundError(f"{run.name} with {run.count} txn_ids is missing")
        run.load(bytes(data))
