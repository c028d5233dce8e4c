"""The archives of a broker's partitions, all in one object store.

The archive of a partition lies under its topic's id, so a topic that is made anew never meets its past.
"""

import secrets
from concurrent.futures import Executor

from sulina.broker.options import BrokerOptions
from sulina.errors import ArchiveFailed
from sulina.storage.archive import Archive
from sulina.storage.archive_cache import ArchiveCache
from sulina.storage.objects import Objects
from sulina.types import PartitionName

IDENTITY = "store-id"


class Archives:
    """`of` a partition; they share what they have read."""

    def __init__(
        self,
        objects: Objects,
        options: BrokerOptions,
        readers: Executor | None = None,
        *,
        endpoint: str | None = None,
    ) -> None:
        self._objects = objects
        self.endpoint = endpoint  # of the object store, where it is not the cloud's own
        self._options = options
        self._readers = readers
        self._cache = ArchiveCache(options.archive_cache_bytes)

    def identity(self) -> str:
        """Of the object store: made by the first who asks, and the same for all who reach the same store.

        Blocks. ArchiveFailed.
        """
        self._objects.put_if_absent(IDENTITY, secrets.token_hex(16).encode())
        found = self._objects.get(IDENTITY)
        if found is None:
            raise ArchiveFailed(path=self.location, cause=FileNotFoundError(f"{IDENTITY} was put, and is not there"))
        return bytes(found).decode("ascii", "replace")

    @property
    def location(self) -> str:
        """Where it is, as a URL."""
        return self._objects.location

    def of(self, partition: PartitionName, topic_id: str) -> Archive:
        """To be loaded before anything else."""
        return Archive(
            self._objects,
            f"{partition.directory}/{topic_id}",
            cache=self._cache,
            readers=self._readers,
            steps=self._options.steps,
        )
