"""The tables of a metadata file, for one thread that may block.

- One process has the file at a time (LogLocked for others), and every row carries a checksum.
- A file appears whole, so an empty file is damage, never a new store.
- `state` is the state that the last successful COMMIT made durable. A transaction works on a copy of it.
- Revisions are consecutive: each from `compacted + 1` to `revision` has at least one change in the history.
- Keys are stored as UTF-8 bytes: their order is that of code points, and a prefix is a range.
"""

import contextlib
import fcntl
import os
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import groupby
from operator import attrgetter

import apsw
from crc32c import crc32c

from sulina.core.formats import SQLITE
from sulina.errors import Compacted, Corrupt, InvalidInput, LeaseLost, LogLocked, MetadataFailed, SulinaError
from sulina.metadata.checks import HISTORY_BYTES_MAX, check_compact
from sulina.metadata.watches import History
from sulina.ports import NO_REVISION, Change, Compare, Entry, Listing, Put, TxnResult

APPLICATION_ID = int.from_bytes(b"SulM")  # in the header of the file
BUSY_MILLISECONDS = 1_000  # wait this long for a tool that reads the file
WAL_BYTES_KEPT = 16 << 20  # after a checkpoint

SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SQLITE.number};
CREATE TABLE state (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  revision INTEGER NOT NULL,          -- of the last transaction that changed something
  compacted INTEGER NOT NULL,         -- the newest revision that the history has no more
  history_changes INTEGER NOT NULL,
  history_bytes INTEGER NOT NULL,
  lease_id_last INTEGER NOT NULL,     -- ids are never used again
  crc INTEGER NOT NULL
) STRICT;
CREATE TABLE entries (
  key BLOB PRIMARY KEY,
  value BLOB NOT NULL,
  revision INTEGER NOT NULL,
  lease_id INTEGER NOT NULL,          -- 0: none
  crc INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX entries_by_lease ON entries (lease_id) WHERE lease_id > 0;
CREATE TABLE changes (
  revision INTEGER NOT NULL,
  position INTEGER NOT NULL,          -- within the revision
  key BLOB NOT NULL,
  value BLOB,                         -- NULL: deleted
  crc INTEGER NOT NULL,
  PRIMARY KEY (revision, position)
) STRICT, WITHOUT ROWID;
CREATE TABLE leases (
  lease_id INTEGER PRIMARY KEY,
  ttl_seconds REAL NOT NULL,
  crc INTEGER NOT NULL
) STRICT;
"""


@dataclass(frozen=True, slots=True)
class State:
    """The numbers of the store as of one revision."""

    revision: int = NO_REVISION
    compacted: int = NO_REVISION
    history_changes: int = 0
    history_bytes: int = 0
    lease_id_last: int = 0

    @property
    def crc(self) -> int:
        return crc32c(struct.pack(">5q", *astuple(self)))


class SqliteTables:
    """An open file, created if it does not exist.

    Raises LogLocked, MetadataFailed, Corrupt, NewerFormat, InvalidInput.
    """

    def __init__(self, path: str, *, history_changes_max: int) -> None:
        self.path = path
        self._history_changes_max = history_changes_max
        with self._translated(), contextlib.ExitStack() as held:
            held.callback(os.close, _lock(path))
            if not os.path.exists(path):
                _create(path)
            if os.path.getsize(path) == 0:
                raise _damaged(path, "it is empty")
            self._db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
            held.callback(self._db.close)
            self._configure()
            self.state, self.leases = self._check()
            self._held = held.pop_all()

    def get(self, key: str, *, ended: Collection[int] = ()) -> Entry | None:
        """Get one entry, unless it belongs to one of the `ended` leases."""
        with self._translated():
            entry, lease_id = _read_entry(self._db, self.path, key.encode())
            return None if lease_id in ended else entry

    def list(self, prefix: str, *, ended: Collection[int] = ()) -> Listing:
        """List all entries under a prefix, without those of the `ended` leases."""
        with self._translated():
            rows = self._db.execute(
                "SELECT key, value, revision, lease_id, crc FROM entries WHERE key >= ? AND key < ? ORDER BY key",
                _range(prefix),
            )
            read = [(_checked_entry(self.path, *row), row[3]) for row in rows]
            return Listing([entry for entry, lease_id in read if lease_id not in ended], self.state.revision)

    def history(self, prefix: str, *, after: int) -> History:
        """Return the changes under a prefix after a revision.

        Raises:
            Compacted: some of them were removed.
        """
        if after < self.state.compacted:
            raise Compacted(after=after, oldest=self.state.compacted + 1)
        with self._translated():
            rows = self._db.execute(
                "SELECT key, value, revision, position, crc FROM changes"
                " WHERE revision > ? AND key >= ? AND key < ? ORDER BY revision, position",
                (after, *_range(prefix)),
            )
            changes = [_checked_change(self.path, *row) for row in rows]
        return History([list(same) for _, same in groupby(changes, attrgetter("revision"))], self.state.revision)

    @contextlib.contextmanager
    def transaction(self) -> Iterator["Draft"]:
        """Run a transaction: all of it is durable at the end, or nothing is done.

        Raises:
            MetadataFailed: the outcome is unknown until the next one.
        """
        with self._translated():
            if self._db.in_transaction:  # the end of the one before failed
                self._db.execute("ROLLBACK")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                draft = Draft(self._db, self.path, self.state)
                yield draft
                draft.finish(self._history_changes_max)
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(apsw.Error):  # SQLite may have rolled back by itself
                    self._db.execute("ROLLBACK")
                raise
            self.state = draft.state

    def close(self) -> None:
        """Close the file. SQLite's log is merged into it if possible."""
        with self._translated():
            self._held.close()

    def _configure(self) -> None:
        self._db.set_busy_timeout(BUSY_MILLISECONDS)
        self._db.pragma("locking_mode", "EXCLUSIVE")  # before WAL, which then needs no shared memory
        self._db.execute("BEGIN EXCLUSIVE; COMMIT")  # acquires the lock, which stays
        if self._db.pragma("application_id") != APPLICATION_ID:
            raise InvalidInput(f"{self.path} is not a metadata file of Sulina, but another database: use another path")
        if (version := self._db.pragma("user_version")) != SQLITE.number:
            SQLITE.check(version, self.path)
            raise InvalidInput(f"{self.path} has no metadata format ({version}): restore it from a copy")
        if self._db.pragma("journal_mode", "WAL") != "wal":
            raise OSError(f"{self.path} cannot use a write-ahead log: use a local disk")
        self._db.pragma("synchronous", "FULL")
        self._db.pragma("fullfsync", 1)  # macOS
        self._db.pragma("checkpoint_fullfsync", 1)
        self._db.pragma("journal_size_limit", WAL_BYTES_KEPT)
        self._db.pragma("trusted_schema", 0)

    def _check(self) -> tuple[State, dict[int, float]]:
        """Read everything once, so that damage is found now, not later while serving."""
        if (found := self._db.execute("PRAGMA quick_check(1)").get) != "ok":
            raise _damaged(self.path, str(found))
        row = self._db.execute(
            "SELECT revision, compacted, history_changes, history_bytes, lease_id_last, crc FROM state"
        ).fetchone()
        if row is None or (state := State(*row[:5])).crc != row[5]:
            raise _damaged(self.path, "its numbers fail their checksum")
        leases: dict[int, float] = {}
        for lease_id, ttl_seconds, crc in self._db.execute("SELECT lease_id, ttl_seconds, crc FROM leases"):
            if crc != _lease_crc(lease_id, ttl_seconds) or lease_id > state.lease_id_last:
                raise _damaged(self.path, f"lease {lease_id} fails its checksum")
            leases[lease_id] = ttl_seconds
        for entry in self._db.execute("SELECT key, value, revision, lease_id, crc FROM entries"):
            _checked_entry(self.path, *entry)
            if entry[2] > state.revision or (entry[3] and entry[3] not in leases):
                raise _damaged(self.path, f"{entry[0]!r} has revision {entry[2]} and lease {entry[3]}")
        self._check_history(state)
        return state, leases

    def _check_history(self, state: State) -> None:
        revisions: set[int] = set()
        changes = size_bytes = 0
        for row in self._db.execute("SELECT key, value, revision, position, crc FROM changes"):
            _checked_change(self.path, *row)
            revisions.add(row[2])
            changes += 1
            size_bytes += len(row[0]) + len(row[1] or b"")
        is_complete = revisions == set(range(state.compacted + 1, state.revision + 1))
        if not is_complete or (changes, size_bytes) != (state.history_changes, state.history_bytes):
            raise _damaged(self.path, "its history is not complete")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (apsw.BusyError, apsw.LockedError):
            raise LogLocked(path=self.path) from None
        except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.ConstraintError) as error:
            raise _damaged(self.path, str(error)) from error
        except (apsw.Error, OSError) as error:
            raise MetadataFailed(path=self.path, cause=error) from error


@dataclass(slots=True)
class Draft:
    """A transaction of SQLite in which several of ours follow each other, each with its own revision.

    An operation that raises an error of Sulina's has written nothing; any other error ends all of them.
    """

    _db: apsw.Connection
    _path: str
    state: State
    changes: list[list[Change]] = field(default_factory=list)  # of each new revision
    granted: dict[int, float] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    _before: State = field(init=False)

    def __post_init__(self) -> None:
        self._before = self.state

    def txn(self, compares: Sequence[Compare], puts: Sequence[Put], deletes: Sequence[str]) -> TxnResult:
        """Do all puts and deletes in one revision if every compare holds, else nothing.

        Raises:
            LeaseLost: a lease of a put has ended.
        """
        for compare in compares:
            entry, _ = _read_entry(self._db, self._path, compare.key.encode())
            if compare.revision != (entry.revision if entry else NO_REVISION):
                return TxnResult(False, self.state.revision)
        for lease_id in {put.lease_id for put in puts if put.lease_id}:
            if not self._has_lease(lease_id):
                raise LeaseLost(lease_id=lease_id)
        self._apply(puts, [key.encode() for key in deletes])
        return TxnResult(True, self.state.revision)

    def grant(self, ttl_seconds: float) -> int:
        """Add a lease. Return its id."""
        lease_id = self.state.lease_id_last + 1
        self._db.execute(
            "INSERT INTO leases VALUES (?, ?, ?)", (lease_id, ttl_seconds, _lease_crc(lease_id, ttl_seconds))
        )
        self.state = replace(self.state, lease_id_last=lease_id)
        self.granted[lease_id] = ttl_seconds
        return lease_id

    def end_lease(self, lease_id: int) -> None:
        """Delete the keys of a lease in one revision, if it has not ended before."""
        if self._has_lease(lease_id):
            rows = self._db.execute("SELECT key FROM entries WHERE lease_id = ? ORDER BY key", (lease_id,))
            self._apply((), [key for (key,) in rows])
            self._db.execute("DELETE FROM leases WHERE lease_id = ?", (lease_id,))
        self.ended.append(lease_id)

    def compact(self, revision: int) -> None:
        """Remove the changes up to and including `revision`.

        Raises:
            InvalidInput: the store is not at `revision` yet.
        """
        check_compact(revision, self.state.revision)
        while self.state.compacted < revision:
            self._compact(self.state.compacted + 1)

    def finish(self, history_changes_max: int) -> None:
        """Remove the oldest changes past the limit, and store the state."""
        while (
            self.state.history_changes > history_changes_max or self.state.history_bytes > HISTORY_BYTES_MAX
        ) and self.state.compacted + 1 < self.state.revision:
            self._compact(self.state.compacted + 1)
        if self.state != self._before:
            self._db.execute(
                "UPDATE state SET revision = ?, compacted = ?, history_changes = ?, history_bytes = ?,"
                " lease_id_last = ?, crc = ?",
                (*astuple(self.state), self.state.crc),
            )

    def _has_lease(self, lease_id: int) -> bool:
        return self._db.execute("SELECT 1 FROM leases WHERE lease_id = ?", (lease_id,)).get is not None

    def _apply(self, puts: Sequence[Put], deletes: Sequence[bytes]) -> None:
        revision = self.state.revision + 1
        changes: list[Change] = []
        size_bytes = 0
        for put in puts:
            key, value = put.key.encode(), bytes(put.value)
            self._db.execute(
                "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)",
                (key, value, revision, put.lease_id, _row_crc(key, value, revision, put.lease_id)),
            )
            changes.append(Change(put.key, value, revision))
        for key in deletes:
            self._db.execute("DELETE FROM entries WHERE key = ?", (key,))
            if self._db.changes():
                changes.append(Change(key.decode(), None, revision))
        for position, change in enumerate(changes):
            key, stored = change.key.encode(), change.value
            crc = _row_crc(key, stored, revision, position)
            self._db.execute("INSERT INTO changes VALUES (?, ?, ?, ?, ?)", (revision, position, key, stored, crc))
            size_bytes += len(key) + len(stored or b"")
        if changes:
            self.changes.append(changes)
            self.state = replace(
                self.state,
                revision=revision,
                history_changes=self.state.history_changes + len(changes),
                history_bytes=self.state.history_bytes + size_bytes,
            )

    def _compact(self, revision: int) -> None:
        size_bytes: int = self._db.execute(
            "SELECT sum(length(key) + ifnull(length(value), 0)) FROM changes WHERE revision = ?", (revision,)
        ).get
        self._db.execute("DELETE FROM changes WHERE revision = ?", (revision,))
        self.state = replace(
            self.state,
            compacted=revision,
            history_changes=self.state.history_changes - self._db.changes(),
            history_bytes=self.state.history_bytes - size_bytes,
        )


def _lock(path: str) -> int:
    """Lock the file; raises LogLocked. The lock lasts until the descriptor is closed or the process ends.

    SQLite's own locks are not enough: if several processes open the file at once, all could fail.
    """
    descriptor = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise LogLocked(path=path) from None
        raise
    return descriptor


def _create(path: str) -> None:
    """Create an empty store under this name, whole or not at all."""
    with contextlib.closing(apsw.Connection(":memory:")) as memory:
        memory.execute(SCHEMA)
        memory.execute("INSERT INTO state VALUES (1, ?, ?, ?, ?, ?, ?)", (*astuple(State()), State().crc))
        contents = memory.serialize("main")
    aside = os.open(f"{path}.aside", os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with open(aside, "wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(aside)
    os.rename(f"{path}.aside", path)
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read_entry(db: apsw.Connection, path: str, key: bytes) -> tuple[Entry | None, int]:
    row = db.execute("SELECT key, value, revision, lease_id, crc FROM entries WHERE key = ?", (key,)).fetchone()
    return (None, 0) if row is None else (_checked_entry(path, *row), row[3])


def _checked_entry(path: str, key: bytes, value: bytes, revision: int, lease_id: int, crc: int) -> Entry:
    if _row_crc(key, value, revision, lease_id) != crc:
        raise _damaged(path, f"the entry {key!r} fails its checksum")
    return Entry(key.decode(), value, revision)


def _checked_change(path: str, key: bytes, value: bytes | None, revision: int, position: int, crc: int) -> Change:
    if _row_crc(key, value, revision, position) != crc:
        raise _damaged(path, f"change {position} of revision {revision} fails its checksum")
    return Change(key.decode(), value, revision)


def _row_crc(key: bytes, value: bytes | None, revision: int, number: int) -> int:
    value_bytes = -1 if value is None else len(value)
    return crc32c(value or b"", crc32c(key, crc32c(struct.pack(">3q", revision, number, value_bytes))))


def _lease_crc(lease_id: int, ttl_seconds: float) -> int:
    return crc32c(struct.pack(">qd", lease_id, ttl_seconds))


def _range(prefix: str) -> tuple[bytes, bytes]:
    """Return the range [first, second) of the keys that begin with a prefix."""
    start = prefix.encode()
    # No byte of UTF-8 is 0xFF, so the last byte can always be incremented.
    return start, (start[:-1] + bytes([start[-1] + 1]) if start else b"\xff")


def _damaged(path: str, reason: str) -> SulinaError:
    return Corrupt(f"the metadata file {path} is damaged: {reason}; restore it from a backup")
