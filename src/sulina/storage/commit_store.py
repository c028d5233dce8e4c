"""Stores for the files of a commit log: a local directory, or a prefix in an object store.

A name is put once, whole and durable, or not at all: a second put fails. In a directory a file is written aside,
synced, and linked to its name, which never overwrites; in an object store it is a conditional put.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sulina.errors import ArchiveFailed
from sulina.failpoints import Failpoint, FailpointHook, no_failpoints
from sulina.ports import Files

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_ASIDE = ".aside"
_STEPS = ("aside_created", "aside_written", "aside_synced", "linked", "directory_synced", "aside_removed")
_COMMIT = [Failpoint(f"commit.{step}") for step in _STEPS]
_CHECKPOINT = [Failpoint(f"checkpoint.{step}") for step in _STEPS]  # and of the files that belong to one
_ENDING_OF_COMMITS = "json"  # after the first dot: those of checkpoints have another
_numbers = itertools.count()


class DirectoryCommits:
    """Commits as files of a local directory."""

    def __init__(self, files: Files, directory: str, failpoints: FailpointHook = no_failpoints) -> None:
        self.location = directory
        self._files = files
        self._reach = failpoints

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self.publish(name, self.stage(name, data))

    def stage(self, name: str, data: bytes) -> str:
        """Write a file aside, durable on return. Return its name there."""
        created, written, synced, *_ = _COMMIT if name.partition(".")[2] == _ENDING_OF_COMMITS else _CHECKPOINT
        aside = f"{name}.{os.getpid()}.{next(_numbers)}{_ASIDE}"
        file = self._files.create(f"{self.location}/{aside}")
        try:
            self._reach(created)
            file.write(0, [data])
            self._reach(written)
            # Before the name exists: a commit must never be seen torn.
            file.sync()
        except OSError:
            self.delete(aside)
            raise
        finally:
            file.close()
        self._reach(synced)
        return aside

    def publish(self, name: str, aside: str) -> bool:
        """Give a staged file its name, durable on return. Return False if the name exists."""
        *_, linked, durable, removed = _COMMIT if name.partition(".")[2] == _ENDING_OF_COMMITS else _CHECKPOINT
        try:
            try:
                self._files.link(f"{self.location}/{aside}", f"{self.location}/{name}")
            except FileExistsError:
                return False
            self._reach(linked)
            # The link is not durable without it.
            self._files.sync_directory(self.location)
            self._reach(durable)
            return True
        finally:
            self.delete(aside)
            self._reach(removed)

    def restate(self, name: str, data: bytes) -> None:
        """Put a file again that is there already, durable on return.

        Its first writer may have died, or failed, before its name was durable. Syncing the directory again would not
        help: after a failure the next sync may succeed and do nothing. A new file with a new name does.
        """
        aside = f"{self.location}/{name}{_ASIDE}"
        file = self._files.create(aside)
        try:
            file.write(0, [data])
            file.sync()
        finally:
            file.close()
        self._files.rename(aside, f"{self.location}/{name}")
        self._files.sync_directory(self.location)
        self._reach(Failpoint.OPEN_RESTATED)

    def get(self, name: str) -> bytes | None:
        try:
            file = self._files.open(f"{self.location}/{name}")
        except FileNotFoundError:
            return None
        try:
            return file.read(0, file.size())
        finally:
            file.close()

    def list(self, after: str = "") -> list[str]:
        return sorted(name for name in self._files.list(self.location) if name > after and not name.endswith(_ASIDE))

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(f"{self.location}/{name}")

    def sweep(self) -> None:
        """Delete files that a dead writer left aside. Only for the directory's one writer."""
        for name in [name for name in self._files.list(self.location) if name.endswith(_ASIDE)]:
            self._files.remove(f"{self.location}/{name}")
            self._reach(Failpoint.OPEN_ASIDE_REMOVED)


class ObjectCommits:
    """Commits as objects under a prefix: S3, GCS, Azure, memory or a folder, through obstore. Raises ArchiveFailed."""

    def __init__(self, store: "ObjectStore", prefix: str) -> None:
        self.location = prefix.rstrip("/")
        self._store = store

    def put_if_absent(self, name: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        path = f"{self.location}/{name}"
        try:
            with failing_at(path):
                try:
                    obstore.put(self._store, path, data, mode="create", use_multipart=False)
                except AlreadyExistsError:
                    # A put whose reply was lost is retried by obstore, and then finds its own object.
                    return self.get(name) == data
        except ArchiveFailed:
            # The put may be done all the same. If it is not there now, it may still come: a later attempt handles that.
            found = self.get(name)
            if found is None:
                raise
            return found == data
        return True

    def get(self, name: str) -> bytes | None:
        import obstore

        with failing_at(f"{self.location}/{name}"):
            try:
                return bytes(obstore.get(self._store, f"{self.location}/{name}").bytes())
            except FileNotFoundError:
                return None

    def list(self, after: str = "") -> list[str]:
        import obstore

        prefix = f"{self.location}/"
        offset = prefix + after if after else None
        with failing_at(prefix):
            pages = obstore.list(self._store, prefix, offset=offset)
            return sorted(entry["path"].removeprefix(prefix) for page in pages for entry in page)

    def delete(self, name: str) -> None:
        import obstore

        with failing_at(f"{self.location}/{name}"), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, f"{self.location}/{name}")


@contextlib.contextmanager
def failing_at(path: str) -> Iterator[None]:
    """Turn every error of obstore into ArchiveFailed.

    Raises:
        ArchiveFailed: obstore raised an error.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        # The lines after the first are for developers of obstore.
        raise ArchiveFailed(path=path, cause=OSError(str(error).partition("\n")[0])) from error
