"""The real file system, behind `ports.Files`.

Thin: each method is the system call it is named after, repeated until all of it is done. The caller decides what must
be synced, and when. Descriptors are closed on exec.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import sys
from collections.abc import Sequence

from sulina.ports import Bytes, Files

IOV_MAX = 1024  # buffers in one pwritev, on Linux and macOS


class OsFile:
    """An open descriptor. Calls after `close` raise OSError (EBADF)."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, position: int, size_bytes: int) -> bytes:
        assert position >= 0
        data = os.pread(self._descriptor, size_bytes, position)
        while len(data) < size_bytes:
            more = os.pread(self._descriptor, size_bytes - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, position: int, buffers: Sequence[Bytes]) -> None:
        assert position >= 0
        for first in range(0, len(buffers), IOV_MAX):
            some = buffers[first : first + IOV_MAX]
            size = sum(map(len, some))
            written = os.pwritev(self._descriptor, some, position)
            if written < size:  # by a signal, or just before the disk is full
                rest = memoryview(b"".join(some))
                while written < size:
                    written += os.pwrite(self._descriptor, rest[written:], position + written)
            position += size

    def sync(self) -> None:
        """Make the contents durable.

        Raises:
            OSError: the file is closed, or the disk failed.
        """
        if sys.platform == "darwin":
            fcntl.fcntl(self.fileno(), fcntl.F_FULLFSYNC)  # fsync alone leaves the data in the drive's cache
        elif self._descriptor >= 0:
            os.fdatasync(self._descriptor)  # flushes a changed size too, but not the times
        else:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # fdatasync would raise ValueError

    def truncate(self, size_bytes: int) -> None:
        assert size_bytes >= 0
        os.ftruncate(self.fileno(), size_bytes)

    def size(self) -> int:
        return os.fstat(self.fileno()).st_size

    def fileno(self) -> int:
        """Return the descriptor.

        Raises:
            OSError: the file is closed.
        """
        if self._descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # fdatasync would raise ValueError
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class _LockFile(OsFile):
    """Releases the lock when it is closed, even if a forked child has the descriptor too."""

    __slots__ = ()

    def close(self) -> None:
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        super().close()


class OsFiles:
    """The file system of this machine."""

    __slots__ = ()

    def open(self, path: str) -> OsFile:
        return OsFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def create(self, path: str) -> OsFile:
        return OsFile(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o644))

    def lock(self, path: str) -> OsFile | None:
        file = _LockFile(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o644))
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except BaseException:
            file.close()
            raise
        return file

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        missing: list[str] = []
        existing = os.path.abspath(path)
        while not os.path.isdir(existing):
            missing.append(existing)
            existing = os.path.dirname(existing)
        # A process that died between its mkdir and its sync left a directory that exists but is not durable.
        # Where the parent cannot be read, nobody could have synced it, and it is older than this process.
        with contextlib.suppress(PermissionError):
            self.sync_directory(os.path.dirname(existing))
        for directory in reversed(missing):
            try:
                os.mkdir(directory)
            except FileExistsError:
                if not os.path.isdir(directory):  # a file is there, not a directory that another process made first
                    raise
            self.sync_directory(os.path.dirname(directory))

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def list(self, path: str) -> list[str]:
        return os.listdir(path)


class _VolatileFile(OsFile):
    """A file that need not survive the process, so nothing is synced."""

    __slots__ = ()

    def sync(self) -> None:
        pass


class VolatileFiles(OsFiles):
    """A file system for logs that end with their process: as `OsFiles`, but nothing is synced."""

    __slots__ = ()

    def open(self, path: str) -> OsFile:
        return _VolatileFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def create(self, path: str) -> OsFile:
        return _VolatileFile(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o644))

    def sync_directory(self, path: str) -> None:
        pass


def write_whole(files: Files, path: str, data: bytes) -> None:
    """Store a small file, or replace it: a crash leaves the old one or the new one, never a part."""
    aside = f"{path}.{secrets.token_hex(4)}.aside"
    file = files.create(aside)
    try:
        file.write(0, [data])
        file.sync()
    finally:
        file.close()
    files.rename(aside, path)
    files.sync_directory(os.path.dirname(path))


def read_whole(files: Files, path: str) -> bytes | None:
    """Return the content of a small file; None if it does not exist."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def remove_tree(path: str) -> None:
    """Remove a directory and everything in it, durably; no error if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
    with contextlib.suppress(FileNotFoundError):
        OsFiles().sync_directory(os.path.dirname(path))
