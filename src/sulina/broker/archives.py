"""The archives of a broker's partitions, all in one object store.

The archive of a partition lies under its topic's id, so a topic that is created again never meets its past.
"""

import secrets
from collections.abc import Iterator
from concurrent.futures import Executor

import msgspec
import structlog

from sulina.broker.options import BrokerOptions
from sulina.core.cluster.recovery import Memory, Seen
from sulina.core.formats import MEMORY
from sulina.errors import ArchiveFailed, CorruptCommit
from sulina.storage.archive import Archive
from sulina.storage.archive_cache import ArchiveCache
from sulina.storage.objects import Objects
from sulina.types import PartitionName

IDENTITY = "store-id"
_logger = structlog.get_logger("sulina.archives")

SEEN_FOLDER, MEMORY_FOLDER = "cluster/seen", "cluster/memory"  # what brokers know of the metadata store


class Archives:
    """Makes the archive `of` each partition; they share one cache."""

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
        """Return the id of the object store, which the first broker that asks makes. Blocks.

        All brokers that reach the same store get the same id.

        Raises:
            ArchiveFailed: the object store does not answer.
        """
        self._objects.put_if_absent(IDENTITY, secrets.token_hex(16).encode())
        found = self._objects.get(IDENTITY)
        if found is None:
            raise ArchiveFailed(path=self.location, cause=FileNotFoundError(f"{IDENTITY} was put, and is not there"))
        return bytes(found).decode("ascii", "replace")

    def seen(self) -> list[Seen]:
        """Return how far brokers have seen the metadata store, as they last wrote it here. Blocks.

        Raises:
            ArchiveFailed: the object store does not answer.
        """
        found = []
        for name, data in self._read_all(SEEN_FOLDER):
            try:
                found.append(MEMORY.decode(data, Seen, name))
            except msgspec.DecodeError as error:
                _logger.error("cluster_seen_damaged", object=name, error=str(error))  # it is a witness only
        return found

    def memories(self) -> list[Memory]:
        """Return what brokers remember of the metadata store, as they last wrote it here. Blocks.

        Raises:
            ArchiveFailed: the object store does not answer.
            CorruptCommit: one of them cannot be read.
        """
        found = []
        for name, data in self._read_all(MEMORY_FOLDER):
            try:
                found.append(MEMORY.decode(data, Memory, name))
            except msgspec.DecodeError as error:
                raise CorruptCommit(name=name, reason=str(error)) from None
        return found

    def remember(self, memory: Memory) -> None:
        """Keep what a broker remembers of the metadata store. Blocks.

        Raises:
            ArchiveFailed: the object store does not take it.
        """
        name = f"{memory.seen.broker_id}.json"
        self._objects.put(f"{MEMORY_FOLDER}/{name}", [MEMORY.encode(memory)])
        self._objects.put(f"{SEEN_FOLDER}/{name}", [MEMORY.encode(memory.seen)])

    def _read_all(self, folder: str) -> Iterator[tuple[str, bytes]]:
        for listed in self._objects.list(folder):
            name = f"{folder}/{listed.name}"
            if name.endswith(".json") and (data := self._objects.get(name)) is not None:
                yield name, bytes(data)

    @property
    def location(self) -> str:
        """Return where the object store is, as a URL."""
        return self._objects.location

    def of(self, partition: PartitionName, topic_id: str) -> Archive:
        """Return the archive of a partition. It is to be loaded before anything else."""
        return Archive(
            self._objects,
            f"{partition.directory}/{topic_id}",
            cache=self._cache,
            readers=self._readers,
            failpoints=self._options.failpoints,
        )
