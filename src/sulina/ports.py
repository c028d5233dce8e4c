"""What the shells need of the world, as small Protocols. The real ones are in `storage`, the fakes in `testing`.

All calls block; whoever calls them from an event loop does so in a thread.
"""

from collections.abc import Sequence
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
