"""The outside world as small Protocols. The real ones are in `storage` and `metadata`, the fakes in `testing`.

Calls on files and commit stores block: from an event loop they are made in a thread. Calls on the metadata store are
asynchronous.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

Bytes = bytes | bytearray | memoryview


class Clock(Protocol):
    """Time, so that tests can control it."""

    def now(self) -> float:
        """Return seconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...


class File(Protocol):
    """An open file. Positions are bytes from its start."""

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return the bytes at `position`; fewer only at the end of the file."""
        ...

    def write(self, position: int, buffers: Sequence[Bytes]) -> None:
        """Write all of `buffers`, one after the other.

        Raises:
            OSError: some of the bytes may be written.
        """
        ...

    def sync(self) -> None:
        """Return when contents and size are durable. A failure is final: what is on disk is unknown."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Cut the file, or extend it with zeros."""
        ...

    def size(self) -> int:
        """Return the size of the file in bytes."""
        ...

    def close(self) -> None:
        """Close the file and release its lock. Nothing becomes durable by it."""
        ...


class Files(Protocol):
    """A file system. A created, linked, renamed or removed name is durable only after `sync_directory`."""

    def open(self, path: str) -> File:
        """Open an existing file, to read and write.

        Raises:
            FileNotFoundError: it does not exist.
        """
        ...

    def create(self, path: str) -> File:
        """Create a file, to read and write.

        Raises:
            FileExistsError: it exists.
        """
        ...

    def lock(self, path: str) -> File | None:
        """Create or open a file and lock it until it is closed or the process ends; None if another has the lock."""
        ...

    def link(self, source: str, target: str) -> None:
        """Add a second name for a file; never overwrites.

        Raises:
            FileExistsError: `target` exists.
            FileNotFoundError: `source` does not exist.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file; overwrites `target`."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file.

        Raises:
            FileNotFoundError: it does not exist.
        """
        ...

    def list(self, path: str) -> list[str]:
        """List the names in a directory, in any order.

        Raises:
            FileNotFoundError: it does not exist.
        """
        ...

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents; no error if it exists. Durable on return."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory are durable."""
        ...


class CommitStore(Protocol):
    """The files of one commit log: in a directory, or under a prefix in an object store."""

    @property
    def location(self) -> str:
        """Name of the store, for messages."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Store a file, whole and durable. Return False, and store nothing, if the name exists."""
        ...

    def get(self, name: str) -> bytes | None:
        """Return the whole file, or None if it does not exist."""
        ...

    def list(self, after: str = "") -> list[str]:
        """List the names greater than `after`, sorted."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file; no error if it does not exist."""
        ...


# The metadata store: small values under keys, with a revision that rises with every transaction.

TXN_OPERATIONS_MAX = 120  # compares of one transaction; also its puts and deletes together. etcd allows 128
VALUE_BYTES_MAX = 1 << 20
NO_REVISION = 0  # of a key that does not exist


@dataclass(frozen=True, slots=True)
class Entry:
    """A key with its value, and the revision that last changed it."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The entries under a prefix, sorted by key, as of one revision of the whole store."""

    entries: list[Entry]
    revision: int


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition: the key was last changed by `revision`; `NO_REVISION`: it does not exist."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """A value to store. With a lease, it is deleted when the lease ends."""

    key: str
    value: bytes
    lease_id: int = 0  # 0: no lease


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Whether all compares held, so that all puts and deletes were done; and the revision of the store after it."""

    is_done: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """One key put (`value`) or deleted (None) by one revision."""

    key: str
    value: bytes | None
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpace:
    """The size of a metadata store and its revision; None: not known."""

    revision: int  # the store is at this revision, or a later one
    is_full: bool = False  # it accepts no writes until there is room
    size_bytes: int | None = None  # on disk, with free space inside
    used_bytes: int | None = None  # without free space inside
    quota_bytes: int | None = None  # it is full at this size


class Lease(Protocol):
    """A timed right: the keys that were put with it are deleted when it ends."""

    @property
    def lease_id(self) -> int:
        """Id of the lease, to put keys with."""
        ...

    async def keep_alive(self) -> float:
        """Renew the lease. Return how many seconds it has now.

        Raises:
            LeaseLost: it has ended.
        """
        ...

    async def revoke(self) -> None:
        """End the lease now, and delete its keys. No error if it has ended."""
        ...


class StoreHistory(Protocol):
    """Whether a metadata store still has the history that it once showed. A store that went back refuses calls."""

    @property
    def revision(self) -> int:
        """Newest revision that was seen."""
        ...

    @property
    def accepted(self) -> int:
        """How often a new history was accepted: earlier answers do not count for it."""
        ...

    @property
    def went_back(self) -> Exception | None:
        """Error of every call since the store went back; None if it did not."""
        ...

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the store went back, and when a new history is accepted."""
        ...

    def confirm_by(self, check: Callable[[], Awaitable[None]]) -> None:
        """Call `check` after a connection was lost: another store may answer now, at any revision."""
        ...

    def expect(self, revision: int) -> None:
        """Count a revision as seen: the store must not be older."""
        ...

    def declare(self, evidence: str) -> Exception:
        """Refuse all calls from now on, because of evidence that the store went back. Return the error."""
        ...

    def accept(self) -> None:
        """Accept the history that the store has now."""
        ...


class MetadataStore(Protocol):
    """The store that brokers share. Every call is atomic, durable on return, and sees all calls before it.

    A store that went back raises MetadataWentBack from every call but `peek`.
    """

    @property
    def history(self) -> StoreHistory:
        """The history of the store: whether it went back."""
        ...

    async def peek(self, key: str) -> Entry | None:
        """Get one entry, even from a store that went back."""
        ...

    async def get(self, key: str) -> Entry | None:
        """Get one entry; None if it does not exist."""
        ...

    async def list(self, prefix: str) -> Listing:
        """List all entries whose keys begin with `prefix`."""
        ...

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        """Do all puts and deletes in one revision if every compare holds, else nothing.

        A key may be named once among puts and deletes; deleting a key that does not exist is no error.

        Raises:
            InvalidInput: there are too many operations, a value is too large, or a key is named twice.
            LeaseLost: a lease of a put has ended.
        """
        ...

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Sequence[Change]]:
        """Yield the changes under `prefix` of every revision greater than `after`, in order, while it is iterated.

        Changes of one revision come together.

        Raises:
            Compacted: `after` is too old, or the reader is too slow and its queue overflows: list, then watch again.
        """
        ...

    async def lease(self, ttl_seconds: float) -> Lease:
        """Grant a new lease."""
        ...

    async def compact(self, revision: int) -> None:
        """Remove the history up to and including `revision`; entries stay, and running watches miss nothing.

        A full store gets room by it. No error if that history is removed already.

        Raises:
            InvalidInput: the store is not at `revision` yet.
        """
        ...

    async def space(self) -> StoreSpace:
        """Return the size of the store and its limits."""
        ...

    async def close(self) -> None:
        """Close the store; watches end."""
        ...
