"""A file system in memory, with faults on demand and images of what a crash would leave.

`disk.py` defines what is durable when, and what a power cut can do to the rest. Here is the process: its open files,
its locks, and the faults that it meets. A fault is chosen by the path under which a file was opened. Closing a file
makes nothing durable. Calls may come from several threads.
"""

import errno as errors
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sulina.ports import Bytes
from sulina.testing.disk import Disk, Inode, os_error

TRACE_OPERATIONS_MAX = 1000

Where = Callable[[str], bool]  # picks paths
Names = list[str]  # inside the classes, `list` is a method


class Crashed(BaseException):
    """The world has stopped. Not an Exception: no handler of the code under test may survive it."""


class SimulatedFiles:
    """A `ports.Files`, with faults on demand and images of what a crash would leave."""

    def __init__(self, *, capacity_bytes: int | None = None, disk: Disk | None = None) -> None:
        self._disk = Disk() if disk is None else disk
        self._process = _Process()
        self.capacity_bytes = capacity_bytes

    # The port.

    def open(self, path: str) -> "SimulatedFile":
        with self._process.mutex:
            self._process.check_alive()
            return self._handle(self._disk.find(path), path)

    def create(self, path: str) -> "SimulatedFile":
        with self._process.mutex:
            self._process.begin("create", path)
            return self._handle(self._disk.create(path), path)

    def lock(self, path: str) -> "SimulatedFile | None":
        with self._process.mutex:
            self._process.begin("lock", path)
            inode = self._disk.find(path) if self._disk.has(path) else self._disk.create(path)
            if inode in self._process.locked:
                return None
            self._process.locked.add(inode)
            return self._handle(inode, path, locks=True)

    def link(self, source: str, target: str) -> None:
        with self._process.mutex:
            self._process.begin("link", target)
            self._disk.link(source, target)

    def rename(self, source: str, target: str) -> None:
        with self._process.mutex:
            self._process.begin("rename", target)
            self._disk.rename(source, target)

    def remove(self, path: str) -> None:
        with self._process.mutex:
            self._process.begin("remove", path)
            self._disk.remove(path)

    def make_directory(self, path: str) -> None:
        with self._process.mutex:
            self._process.begin("make_directory", path)
            self._disk.make_directory(path)

    def sync_directory(self, path: str) -> None:
        with self._process.mutex:
            self._process.begin("sync_directory", path)
            directory = self._disk.directory(path)
            try:
                self._process.raise_fault("sync_directory", path)
            except OSError:
                self._disk.drop_unsynced_names(directory)
                raise
            if not self._process.lies("sync_directory", path):
                self._disk.sync_names(directory)

    def list(self, path: str) -> Names:
        with self._process.mutex:
            self._process.check_alive()
            return self._disk.names(path)

    # Crashes.

    def crash(self, rng: random.Random) -> "SimulatedFiles":
        """Return what the disk may hold after a power cut, without faults, locks and limits. This one stays usable."""
        with self._process.mutex:
            return SimulatedFiles(disk=self._disk.after_power_cut(rng))

    def kill(self) -> "SimulatedFiles":
        """Return what the disk holds after the process died: all contents are there, unsynced changes stay unsynced."""
        with self._process.mutex:
            return SimulatedFiles(disk=self._disk.copy())

    def clone(self) -> "SimulatedFiles":
        """Return a copy as `kill` does, with the same faults and capacity."""
        copy = self.kill()
        copy.capacity_bytes = self.capacity_bytes
        copy._process.faults = [replace(fault) for fault in self._process.faults]  # noqa: SLF001 - our own class
        return copy

    @property
    def operations(self) -> int:
        """Number of mutating calls, with failed ones: all but open, close, list, size and reads."""
        return self._process.operations

    @property
    def trace(self) -> "deque[tuple[str, str]]":
        """Newest mutating calls, as (operation, path)."""
        return self._process.trace

    def stop_after(self, operations: int, rng: random.Random | None = None) -> None:
        """Raise `Crashed` in the N-th mutating call from now on, and in every call after it, except `close`.

        The N-th call does nothing; but with `rng`, a write leaves a prefix, from nothing up to all of it.
        """
        assert operations >= 1
        self._process.stop_at, self._process.stop_rng = self._process.operations + operations, rng

    # Faults.

    def fail_sync(self, where: Where, *, errno: int = errors.EIO, times: int = 1) -> None:
        """Make syncs of files or directories fail, as on Linux: unsynced changes stay visible, but are never written,
        and later syncs succeed without them."""
        self._process.faults.append(_Fault(_SYNCS, where, errno=errno, times=times))

    def fail_write(self, where: Where, *, errno: int = errors.EIO, times: int = 1) -> None:
        """Make writes fail before their first byte."""
        self._process.faults.append(_Fault(frozenset({"write"}), where, errno=errno, times=times))

    def drop_syncs(self, where: Where, *, files: bool = True, directories: bool = True) -> None:
        """Make syncs return without syncing, as a disk that lies does."""
        operations = {name for name, lies in (("sync", files), ("sync_directory", directories)) if lies}
        self._process.faults.append(_Fault(frozenset(operations), where, errno=None, times=None))

    def flip_bit(self, path: str, bit_index: int) -> None:
        """Flip a bit of a stored byte, on disk and in memory."""
        with self._process.mutex:
            self._disk.find(path).flip_bit(bit_index)

    @property
    def capacity_bytes(self) -> int | None:
        """Capacity of all files together. A write past it is done in part, then raises OSError (ENOSPC)."""
        return self._disk.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, capacity_bytes: int | None) -> None:
        self._disk.capacity_bytes = capacity_bytes

    # For tests: not counted, and possible after a crash.

    def read(self, path: str) -> bytes:
        """Return the current contents of a file."""
        with self._process.mutex:
            return bytes(self._disk.find(path).contents)

    def size(self, path: str) -> int:
        """Return the current size of a file in bytes."""
        return len(self._disk.find(path).contents)

    def paths(self) -> Names:
        """List every file, sorted."""
        with self._process.mutex:
            return sorted(self._disk.paths())

    def _handle(self, inode: Inode, path: str, *, locks: bool = False) -> "SimulatedFile":
        return SimulatedFile(self._process, self._disk, inode, path, locks)


class SimulatedFile:
    """A `ports.File`. Calls after `close` raise OSError (EBADF)."""

    __slots__ = ("_disk", "_inode", "_locks", "_process", "is_open", "path")

    def __init__(self, process: "_Process", disk: Disk, inode: Inode, path: str, locks: bool) -> None:
        self._process, self._disk, self._inode = process, disk, inode
        self.path, self._locks, self.is_open = path, locks, True

    def read(self, position: int, size_bytes: int) -> bytes:
        with self._process.mutex:
            self._check_usable(position)
            return bytes(self._inode.contents[position : position + size_bytes])

    def write(self, position: int, buffers: Sequence[Bytes]) -> None:
        with self._process.mutex:
            self._check_usable(position)
            data = b"".join(buffers)
            if self._process.is_last("write", self.path):
                self._inode.write(position, data[: self._process.bytes_done_of(len(data))])
                self._process.check_alive()
            self._process.raise_fault("write", self.path)
            overflow = self._disk.overflow_bytes(position + len(data) - len(self._inode.contents))
            self._inode.write(position, data[: max(0, len(data) - overflow)])
            if overflow > 0:
                raise os_error(errors.ENOSPC, self.path)

    def sync(self) -> None:
        with self._process.mutex:
            self._check_usable()
            self._process.begin("sync", self.path)
            try:
                self._process.raise_fault("sync", self.path)
            except OSError:
                self._inode.unsynced.clear()
                raise
            if not self._process.lies("sync", self.path):
                self._inode.sync()

    def truncate(self, size_bytes: int) -> None:
        with self._process.mutex:
            self._check_usable(size_bytes)
            self._process.begin("truncate", self.path)
            if self._disk.overflow_bytes(size_bytes - len(self._inode.contents)) > 0:
                raise os_error(errors.ENOSPC, self.path)
            self._inode.truncate(size_bytes)

    def size(self) -> int:
        with self._process.mutex:
            self._check_usable()
            return len(self._inode.contents)

    def close(self) -> None:
        with self._process.mutex:
            if self.is_open and self._locks:
                self._process.locked.discard(self._inode)
            self.is_open = False

    def _check_usable(self, position: int = 0) -> None:
        assert position >= 0
        self._process.check_alive()
        if not self.is_open:
            raise os_error(errors.EBADF, self.path)


_SYNCS = frozenset({"sync", "sync_directory"})


@dataclass(slots=True)
class _Fault:
    operations: frozenset[str]
    where: Where
    errno: int | None  # None: the call returns without an effect
    times: int | None  # left; None: for ever


class _Process:
    """The part of a `SimulatedFiles` that dies: calls, locks, and faults."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.locked: set[Inode] = set()
        self.operations = 0
        self.trace: deque[tuple[str, str]] = deque(maxlen=TRACE_OPERATIONS_MAX)
        self.stop_at: int | None = None
        self.stop_rng: random.Random | None = None
        self.faults: list[_Fault] = []

    def begin(self, operation: str, path: str) -> None:
        if self.is_last(operation, path):
            self.check_alive()

    def is_last(self, operation: str, path: str) -> bool:
        """Count an operation, and return whether the world stops in it."""
        self.check_alive()
        self.operations += 1
        self.trace.append((operation, path))
        return self.operations == self.stop_at

    def check_alive(self) -> None:
        if self.stop_at is not None and self.operations >= self.stop_at:
            operation, path = self.trace[-1]
            raise Crashed(f"stopped in operation {self.operations}: {operation} {path}")

    def bytes_done_of(self, size_bytes: int) -> int:
        return 0 if self.stop_rng is None else self.stop_rng.randint(0, size_bytes)

    def raise_fault(self, operation: str, path: str) -> None:
        for fault in self.faults:
            if fault.errno and fault.times and operation in fault.operations and fault.where(path):
                fault.times -= 1
                raise os_error(fault.errno, path)

    def lies(self, operation: str, path: str) -> bool:
        return any(fault.errno is None and operation in fault.operations and fault.where(path) for fault in self.faults)
