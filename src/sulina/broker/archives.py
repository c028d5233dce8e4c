"""The archives of a broker's partitions, all in one object store.

The archive of a partition lies under its topic's id, so a topic that is made anew never meets its past.
"""

from concurrent.futures import Executor

from sulina.broker.options import BrokerOptions
from sulina.storage.archive import Archive
from sulina.storage.archive_cache import ArchiveCache
from sulina.storage.objects import Objects
from sulina.types import PartitionName


class Archives:
    """`of` a partition; they share what they have read."""

    def __init__(self, objects: Objects, options: BrokerOptions, readers: Executor | None = None) -> None:
        self._objects = objects
        self._options = options
        self._readers = readers
        self._cache = ArchiveCache(options.archive_cache_bytes)

    def of(self, partition: PartitionName, topic_id: str) -> Archive:
        """To be loaded before anything else."""
        return Archive(
            self._objects,
            f"{partition.directory}/{topic_id}",
            cache=self._cache,
            readers=self._readers,
            steps=self._options.steps,
        )
