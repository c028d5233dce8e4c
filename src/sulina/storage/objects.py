"""Object stores for archives: a bucket, or a directory that brokers share. All calls block.

- An object is whole and durable when a put returns, or it does not exist.
- When the store does not answer, ArchiveFailed is raised within seconds: the caller decides how long to retry. A put
  that failed may arrive all the same, even later; so a name is never used for two different contents, and the outcome
  of `put_if_absent` is found out by reading back.
- Credentials come from the environment, as for the clouds' own tools.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from sulina.errors import ArchiveFailed, InvalidSettings
from sulina.ports import Bytes, CommitStore, Files
from sulina.storage.commit_store import DirectoryCommits, ObjectCommits, failing_at
from sulina.storage.files import OsFiles, remove_tree

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, ClientConfig, ObjectStore, RetryConfig

SMALL_BYTES_MAX = 1 << 20  # requests for larger objects get more time
CONNECT_SECONDS = 2
SMALL_SECONDS = 4  # for one request
LARGE_SECONDS = 30
RETRY_SECONDS = 3  # after the first request; then the call has failed
RETRIES_MAX = 4
PART_BYTES = 8 << 20  # larger objects are sent in parts
_ASIDE = ".aside"
_DELETED_AT_ONCE = 1000

Names = list[str]  # inside the classes, `list` is a method

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Listed:
    """An object, by its path below the prefix that was listed."""

    name: str
    size: int
    modified: float  # seconds since 1970, by the store's clock


class Objects(Protocol):
    """An object store. Paths are relative, with slashes. Every call raises ArchiveFailed when the store fails."""

    @property
    def location(self) -> str:
        """Name of the store, for messages."""
        ...

    def put(self, path: str, data: Sequence[Bytes]) -> None:
        """Store buffers as one object; overwrites."""
        ...

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Store an object. Return False if another one is there; one with the same bytes counts as ours."""
        ...

    def get(self, path: str) -> memoryview | None:
        """Return the whole object, or None if it does not exist."""
        ...

    def get_range(self, path: str, start: int, size: int) -> memoryview | None:
        """Return `size` bytes from `start` on, which the object must have; None if it does not exist."""
        ...

    def list(self, prefix: str) -> list[Listed]:
        """List all objects below the folder `prefix`, or all objects if it is empty; in any order."""
        ...

    def folders(self, prefix: str = "") -> Names:
        """List the names of the folders right below `prefix`, in any order."""
        ...

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; no error for those that do not exist."""
        ...

    def delete_all(self, prefix: str) -> None:
        """Delete all objects below `prefix`."""
        ...

    def commits(self, path: str) -> CommitStore:
        """Return the store of a commit log in the folder `path`."""
        ...


def open_objects(url: str, *, endpoint: str | None = None) -> Objects:
    """Open the store at `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///directory` or, for tests, `memory://`.

    No request is sent yet.

    Raises:
        InvalidSettings: the URL is not one of these, or has options that the store refuses.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.path == "/":
            raise InvalidSettings(f"{url} names no directory: use file:///DIRECTORY")
        return DirectoryObjects(unquote(parts.path).rstrip("/"))
    if parts.scheme == "memory":
        from obstore.store import MemoryStore

        return CloudObjects(MemoryStore(), location=url)
    if parts.scheme not in ("s3", "gs", "az") or not parts.netloc:
        raise InvalidSettings(
            f"{url} is not an object store: use s3://BUCKET/PREFIX, gs://, az:// or file:///DIRECTORY"
        )
    try:
        small = _cloud_store(url, endpoint, SMALL_SECONDS)
        large = _cloud_store(url, endpoint, LARGE_SECONDS)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise InvalidSettings(f"{url} cannot be used as an object store: {reason}") from error
    return CloudObjects(small, large, location=url)


def _cloud_store(url: str, endpoint: str | None, request_seconds: int) -> "ObjectStore":
    from obstore.store import AzureStore, GCSStore, S3Store

    client: ClientConfig = {
        "allow_http": endpoint is not None and endpoint.startswith("http:"),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "timeout": timedelta(seconds=request_seconds),
    }
    backoff: BackoffConfig = {
        "init_backoff": timedelta(milliseconds=50),
        "max_backoff": timedelta(seconds=1),
        "base": 2,
    }
    retry: RetryConfig = {
        "max_retries": RETRIES_MAX,
        "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        "backoff": backoff,
    }
    if url.startswith("s3:"):
        return S3Store.from_url(
            url, config={"endpoint": endpoint} if endpoint else None, client_options=client, retry_config=retry
        )
    if url.startswith("az:"):
        return AzureStore.from_url(
            url, config={"endpoint": endpoint} if endpoint else None, client_options=client, retry_config=retry
        )
    return GCSStore.from_url(
        url, config={"base_url": endpoint} if endpoint else None, client_options=client, retry_config=retry
    )


class CloudObjects:
    """Objects of a bucket, through obstore. `large` has more time for each request."""

    def __init__(self, small: "ObjectStore", large: "ObjectStore | None" = None, *, location: str = "") -> None:
        self.location = location.rstrip("/")
        self._small = small
        self._large = large or small

    def put(self, path: str, data: Sequence[Bytes]) -> None:
        import obstore

        size = sum(map(len, data))
        body = data[0] if len(data) == 1 else b"".join(data)
        with failing_at(f"{self.location}/{path}"):
            if size <= SMALL_BYTES_MAX:
                obstore.put(self._small, path, body, use_multipart=False)
            else:
                obstore.put(self._large, path, body, use_multipart=size > 2 * PART_BYTES, chunk_size=PART_BYTES)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        folder, _, name = path.rpartition("/")
        return self.commits(folder).put_if_absent(name, data)

    def get(self, path: str) -> memoryview | None:
        import obstore

        with failing_at(f"{self.location}/{path}"):
            try:
                return memoryview(obstore.get(self._large, path).bytes())
            except FileNotFoundError:
                return None

    def get_range(self, path: str, start: int, size: int) -> memoryview | None:
        import obstore

        store = self._small if size <= SMALL_BYTES_MAX else self._large
        with failing_at(f"{self.location}/{path}"):
            try:
                return memoryview(obstore.get_range(store, path, start=start, length=size))
            except FileNotFoundError:
                return None

    def list(self, prefix: str) -> list[Listed]:
        import obstore

        start = f"{prefix}/" if prefix else ""
        with failing_at(f"{self.location}/{prefix}"):
            return [
                Listed(entry["path"].removeprefix(start), entry["size"], entry["last_modified"].timestamp())
                for page in obstore.list(self._large, start or None)
                for entry in page
            ]

    def folders(self, prefix: str = "") -> Names:
        import obstore

        start = f"{prefix}/" if prefix else ""
        with failing_at(f"{self.location}/{prefix}"):
            found = obstore.list_with_delimiter(self._large, start or None)
            return [path.rstrip("/").removeprefix(start) for path in found["common_prefixes"]]

    def delete(self, paths: Sequence[str]) -> None:
        import obstore

        for first in range(0, len(paths), _DELETED_AT_ONCE):
            with failing_at(f"{self.location}/{paths[first]}"):
                try:
                    obstore.delete(self._large, paths[first : first + _DELETED_AT_ONCE])
                except FileNotFoundError:
                    for path in paths[first : first + _DELETED_AT_ONCE]:
                        self._delete_one(path)

    def _delete_one(self, path: str) -> None:
        import obstore

        try:
            obstore.delete(self._small, path)
        except FileNotFoundError:
            return

    def delete_all(self, prefix: str) -> None:
        self.delete([f"{prefix}/{listed.name}" for listed in self.list(prefix)])

    def commits(self, path: str) -> CommitStore:
        return ObjectCommits(self._small, path)


class DirectoryObjects:
    """Objects as files below a directory, which brokers on other machines may have mounted too."""

    def __init__(self, root: str, *, files: Files | None = None) -> None:
        self.location = f"file://{root}"
        self._root = root
        self._files = files or OsFiles()
        self._made: set[str] = set()  # folders that are known to be durable

    def _make(self, folder: str) -> None:
        if folder not in self._made:
            self._files.make_directory(folder)
            self._made.add(folder)

    def put(self, path: str, data: Sequence[Bytes]) -> None:
        target = f"{self._root}/{path}"
        folder = os.path.dirname(target)
        aside = f"{target}.{os.getpid()}.{next(_numbers)}{_ASIDE}"
        with _disk_failing_at(target):
            self._make(folder)
            file = self._files.create(aside)
            try:
                try:
                    file.write(0, data)
                    file.sync()
                finally:
                    file.close()
                self._files.rename(aside, target)
            except OSError:
                # On a full disk, the partly written file would keep it full.
                with suppress(OSError):
                    self._files.remove(aside)
                raise
            self._files.sync_directory(folder)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        folder, _, name = path.rpartition("/")
        return self.commits(folder).put_if_absent(name, data)

    def get(self, path: str) -> memoryview | None:
        return self._read(path, 0, None)

    def get_range(self, path: str, start: int, size: int) -> memoryview | None:
        return self._read(path, start, size)

    def _read(self, path: str, start: int, size: int | None) -> memoryview | None:
        target = f"{self._root}/{path}"
        with _disk_failing_at(target):
            try:
                file = self._files.open(target)
            except FileNotFoundError:
                return None
            try:
                data = file.read(start, file.size() - start if size is None else size)
            finally:
                file.close()
            if size is not None and len(data) < size:
                raise OSError(f"it ends after {start + len(data)} bytes")
            return memoryview(data)

    def list(self, prefix: str) -> list[Listed]:
        found: list[Listed] = []
        top = f"{self._root}/{prefix}".rstrip("/")
        with _disk_failing_at(top):
            for folder, _, names in os.walk(top):
                for name in names:
                    path = f"{folder}/{name}"
                    try:
                        status = os.stat(path)
                    except FileNotFoundError:
                        continue
                    found.append(Listed(path.removeprefix(f"{top}/"), status.st_size, status.st_mtime))
        return found

    def folders(self, prefix: str = "") -> Names:
        top = f"{self._root}/{prefix}".rstrip("/")
        with _disk_failing_at(top):
            try:
                with os.scandir(top) as entries:
                    return [entry.name for entry in entries if entry.is_dir()]
            except FileNotFoundError:
                return []

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            with _disk_failing_at(f"{self._root}/{path}"):
                try:
                    self._files.remove(f"{self._root}/{path}")
                except FileNotFoundError:
                    continue

    def delete_all(self, prefix: str) -> None:
        """Delete all objects below `prefix`.

        Raises:
            ArchiveFailed: some of them are still there.
        """
        top = f"{self._root}/{prefix}"
        with _disk_failing_at(top):
            self._made = {folder for folder in self._made if not f"{folder}/".startswith(f"{top}/")}
            remove_tree(top)
            if os.path.isdir(top):  # another process was deleting too, and ended half way
                raise OSError("some of it is still there: delete it again")

    def commits(self, path: str) -> CommitStore:
        return _SharedCommits(self, self._files, f"{self._root}/{path}")

    def make(self, folder: str) -> None:
        """Make a folder durably, if it does not exist."""
        self._make(folder)


class _SharedCommits:
    """Commits in a directory that need not exist yet, and that other processes write to."""

    def __init__(self, objects: DirectoryObjects, files: Files, directory: str) -> None:
        self.location = directory
        self._objects = objects
        self._commits = DirectoryCommits(files, directory)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        with _disk_failing_at(f"{self.location}/{name}"):
            self._objects.make(self.location)
            if self._commits.put_if_absent(name, data):
                return True
            if self._commits.get(name) != data:
                return False
            # Our own commit, from an attempt that failed before its name was durable.
            self._commits.restate(name, data)
            return True

    def get(self, name: str) -> bytes | None:
        with _disk_failing_at(f"{self.location}/{name}"):
            return self._commits.get(name)

    def list(self, after: str = "") -> list[str]:
        with _disk_failing_at(self.location):
            try:
                return self._commits.list(after)
            except FileNotFoundError:
                return []

    def delete(self, name: str) -> None:
        with _disk_failing_at(f"{self.location}/{name}"):
            self._commits.delete(name)


@contextmanager
def _disk_failing_at(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArchiveFailed(path=path, cause=error) from error
