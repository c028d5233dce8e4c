"""What the shells need of the world, as small Protocols. The real ones are in `storage` and `metadata`, the fakes in
`testing`.

Calls on files and commit stores block; whoever calls them from an event loop does so in a thread. Calls on the
metadata store are asynchronous.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

Bytes = bytes | bytearray | memoryview


class Clock(Protocol):
    """Time, so that tests can own it."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


class File(Protocol):
    """An open file. Positions are bytes from its start."""

    def read(self, position: int, size_bytes: int) -> bytes:
        """What lies at `position`; shorter only at the end of the file."""
        ...

    def write(self, position: int, buffers: Sequence[Bytes]) -> None:
        """Write all of `buffers`, one after the other, or raise OSError."""
        ...

    def sync(self) -> None:
        """Return when contents and size are durable. A failure is final: what is on disk is unknown."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Cut, or extend with zeros."""
        ...

    def size(self) -> int:
        """Bytes in the file."""
        ...

    def close(self) -> None:
        """Let go, also of a lock; nothing becomes durable by it."""
        ...


class Files(Protocol):
    """A file system. A created, linked, renamed or removed name is durable only after `sync_directory`."""

    def open(self, path: str) -> File:
        """An existing file, to read and write. FileNotFoundError."""
        ...

    def create(self, path: str) -> File:
        """A new file, to read and write. FileExistsError."""
        ...

    def lock(self, path: str) -> File | None:
        """Create or open the file and hold it alone until closed or the process ends; None when another does."""
        ...

    def link(self, source: str, target: str) -> None:
        """A second name for a file; never overwrites. FileExistsError, FileNotFoundError."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Another name for a file; overwrites."""
        ...

    def remove(self, path: str) -> None:
        """FileNotFoundError."""
        ...

    def list(self, path: str) -> list[str]:
        """The names in a directory, in no order. FileNotFoundError."""
        ...

    def make_directory(self, path: str) -> None:
        """With its parents; no error when it exists. Durable on return."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory are durable."""
        ...


class CommitStore(Protocol):
    """Where the files of one commit log live: a directory, or a prefix in an object store."""

    @property
    def location(self) -> str:
        """For messages."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Store whole and durable, or answer False because the name exists."""
        ...

    def get(self, name: str) -> bytes | None:
        """All of it, or None when there is none."""
        ...

    def list(self, after: str = "") -> list[str]:
        """The names greater than `after`, sorted."""
        ...

    def delete(self, name: str) -> None:
        """No error when there is none."""
        ...


# The metadata store: small values under keys, with a revision that rises with every transaction.

TXN_OPERATIONS_MAX = 120  # compares of one transaction; also its puts and deletes together. etcd takes 128
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
    """A key must have been changed last by `revision`; `NO_REVISION`: it must not exist."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """A value to store. With a lease, it goes when the lease does."""

    key: str
    value: bytes
    lease_id: int = 0  # none


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Whether all compares held, so that everything was done; and the revision of the store after it."""

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
    """The room that a metadata store has, and how far it has come; None: it does not say."""

    revision: int  # it is there, or further
    is_full: bool = False  # it takes no more writes until somebody makes room
    size_bytes: int | None = None  # on disk, with what is free inside
    used_bytes: int | None = None  # without that
    quota_bytes: int | None = None  # at which it is full


class Lease(Protocol):
    """A timed right: the keys that were put with it go when it ends."""

    @property
    def lease_id(self) -> int:
        """To put keys with."""
        ...

    async def keep_alive(self) -> float:
        """Start its time anew; how many seconds it has now. LeaseLost."""
        ...

    async def revoke(self) -> None:
        """End it now, and its keys with it. No error when it has ended."""
        ...


class StoreHistory(Protocol):
    """Whether a metadata store still has the history that it once showed. One that went back answers nothing."""

    @property
    def revision(self) -> int:
        """Return the newest revision that was seen."""
        ...

    @property
    def accepted(self) -> int:
        """Return how often a new history was accepted: what was asked before that says nothing about it."""
        ...

    @property
    def went_back(self) -> Exception | None:
        """Return the error of every call since the store went back; None while it did not."""
        ...

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the store went back, and when a new history is accepted."""
        ...

    def confirm_by(self, check: Callable[[], Awaitable[None]]) -> None:
        """Have `check` asked where a connection was lost: another store may answer now, at any revision."""
        ...

    def expect(self, revision: int) -> None:
        """Take a revision as seen: the store must not be older."""
        ...

    def declare(self, evidence: str) -> Exception:
        """Stop all calls: something shows that the store went back."""
        ...

    def accept(self) -> None:
        """Begin again with the history that the store has now."""
        ...


class MetadataStore(Protocol):
    """Where brokers keep what they share. Every call is atomic and durable on return, and sees what came before it.

    A store that went back raises MetadataWentBack from every call but `peek`.
    """

    @property
    def history(self) -> StoreHistory:
        """Tell whether the store still has what it once had."""
        ...

    async def peek(self, key: str) -> Entry | None:
        """Get one entry, also from a store that went back."""
        ...

    async def get(self, key: str) -> Entry | None:
        """One entry, or None."""
        ...

    async def list(self, prefix: str) -> Listing:
        """All entries whose keys begin with `prefix`."""
        ...

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        """All puts and deletes in one revision if every compare holds, else nothing.

        A key may be named once among puts and deletes; deleting one that does not exist is no error.
        InvalidInput (too many operations, a value too large, a key named twice), LeaseLost.
        """
        ...

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Sequence[Change]]:
        """The changes under `prefix` of every revision greater than `after`, in order, for as long as it is iterated.

        Changes of one revision come together. Compacted when `after` is too old (list again, then watch from there),
        or when the reader is so slow that its queue overflows.
        """
        ...

    async def lease(self, ttl_seconds: float) -> Lease:
        """A new lease."""
        ...

    async def compact(self, revision: int) -> None:
        """Forget the history up to and with `revision`; entries stay, and running watches miss nothing.

        Where the store is full, make room by it. No error when that much is forgotten already. InvalidInput when the
        store has not come to `revision`.
        """
        ...

    async def space(self) -> StoreSpace:
        """Return how much room there is."""
        ...

    async def close(self) -> None:
        """Let go; watches end."""
        ...
