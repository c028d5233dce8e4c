"""Source of the bytes of ranges, for executors: the owner of a partition, an archive, or a data directory.

A `ByteSource` is pickled with every task. Nothing is ever written here. A reader of files reads what is
committed and nothing else, whether a broker runs or not, and checks every byte.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from sulina.clock import SystemClock
from sulina.core.log.archive import ArchiveView
from sulina.core.log.commit import Commit
from sulina.core.log.segment import SegmentLimits
from sulina.errors import CorruptSegment, OffsetOutOfRange
from sulina.spark.clients import client_of
from sulina.spark.scan import Range
from sulina.storage.archive import COMMITS_FOLDER, Archive
from sulina.storage.archive_cache import ArchiveCache
from sulina.storage.commit_log import CommitLog
from sulina.storage.commit_store import DirectoryCommits
from sulina.storage.files import OsFiles
from sulina.storage.objects import Objects, open_objects
from sulina.storage.segments import Segments
from sulina.types import Epoch, Offset, PartitionName, TopicName, Version

READ_BYTES = 4 << 20
CACHE_BYTES = 48 << 20
THREADS = 4


class RangeReader(Protocol):
    """A reader of one range of one partition."""

    def read(self, offset: Offset) -> tuple[memoryview, Offset]:
        """Return whole batches from the one that holds `offset` on, and where to read on.

        Raises:
            OffsetOutOfRange: the log does not have it.
            Corrupt: a byte is damaged.
        """
        ...

    def newest(self) -> Version:
        """Return the newest version whose commit can be read."""
        ...

    def commits(self, start: Version, end: Version) -> list[Commit]:
        """Return the commits of versions [start, end).

        Raises:
            VersionNotRetained: one is gone.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteSource:
    """Opens readers of ranges where the bytes of some topics are stored. Pickled with every task."""

    url: str | None = None
    objects: str | None = None
    objects_endpoint: str | None = None
    directory: str | None = None
    topic_ids: Mapping[TopicName, str] = field(default_factory=dict)  # for topics in the archive

    def open(self, wanted: Range, *, is_fresh: bool = False) -> RangeReader:
        """Read a range that was planned on this source; if it is to be fresh, nothing comes from a cache."""
        if not wanted.stored:
            assert self.url is not None
            return _AtBroker(self.url, wanted)
        if self.directory is not None:
            return _InDirectory(self.directory, wanted)
        return _InArchive(self.archive(wanted.partition, is_fresh=is_fresh), wanted)

    def archive(self, partition: PartitionName, *, is_fresh: bool = False) -> Archive:
        """Return the archive of a partition, not loaded."""
        assert self.objects is not None
        path = f"{partition.directory}/{self.topic_ids[partition.topic]}"
        objects = open_shared(self.objects, self.objects_endpoint)
        cache = ArchiveCache(CACHE_BYTES) if is_fresh else _cache()
        return Archive(objects, path, cache=cache, readers=_threads())


def open_directory(directory: str, partition: PartitionName) -> CommitLog:
    """Return the commit log of a partition in a data directory, to be loaded, and read only."""
    store = DirectoryCommits(OsFiles(), f"{directory}/{partition.directory}/{COMMITS_FOLDER}")
    return CommitLog(store, clock=SystemClock(), writer="")


@lru_cache(maxsize=8)
def open_shared(url: str, endpoint: str | None) -> Objects:
    """Return the store of a URL; a process has one for each."""
    return open_objects(url, endpoint=endpoint)


@lru_cache(maxsize=1)
def _cache() -> ArchiveCache:
    return ArchiveCache(CACHE_BYTES)


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="sulina-read")


class _AtBroker:
    """Reads the hot tail from the partition's owner. While a part is decoded, the next is on its way."""

    def __init__(self, url: str, wanted: Range) -> None:
        self._client = client_of(url)
        self._topic, self._partition = wanted.partition.topic, wanted.partition.partition
        self._end = wanted.end
        self._next: tuple[Offset, Future[tuple[memoryview, Offset]]] | None = None

    def read(self, offset: Offset) -> tuple[memoryview, Offset]:
        asked, self._next = self._next, None
        data, following = asked[1].result() if asked is not None and asked[0] == offset else self._fetch(offset)
        if offset < following < self._end:
            self._next = following, _threads().submit(self._fetch, following)
        return data, following

    def _fetch(self, offset: Offset) -> tuple[memoryview, Offset]:
        found = self._client.admin.fetch(self._topic, self._partition, offset, max_bytes=READ_BYTES)
        return found.data, Offset(found.next_offset)

    def newest(self) -> Version:
        return Version(self._client.admin.partition(self._topic, self._partition).version)

    def commits(self, start: Version, end: Version) -> list[Commit]:
        return self._client.admin.commits(self._topic, self._partition, start=start, end=end)


class _InArchive:
    """Reads objects of an archive, as they were when the scan was planned; merged ones are found again."""

    def __init__(self, archive: Archive, wanted: Range) -> None:
        slices = wanted.stored
        self._archive, self._end = archive, slices[-1].next_offset
        self._newest = Version(slices[-1].version_end - 1)
        archive.view = ArchiveView(
            Version(0), Epoch(0), None, slices[0].base, slices[-1].next_offset, self._newest, slices
        )

    def read(self, offset: Offset) -> tuple[memoryview, Offset]:
        found = self._archive.read(offset, READ_BYTES, until=self._end)
        return found.data, found.next_offset

    def newest(self) -> Version:
        return self._newest

    def commits(self, start: Version, end: Version) -> list[Commit]:
        return self._archive.commits(start, end)


class _InDirectory:
    """Reads segments of a data directory. A file that is gone by now was removed by retention."""

    def __init__(self, directory: str, wanted: Range) -> None:
        self._log = open_directory(directory, wanted.partition)
        self._segments = Segments(OsFiles(), f"{directory}/{wanted.partition.directory}", limits=SegmentLimits())
        self._stored = wanted.stored
        self._is_loaded = False

    def read(self, offset: Offset) -> tuple[memoryview, Offset]:
        segment = next(one for one in self._stored if one.base <= offset < one.next_offset)
        try:
            found = self._segments.read(segment, offset, end=segment.next_offset, max_bytes=READ_BYTES)
        except CorruptSegment:
            state = self._log.load()
            if offset < state.start_offset:
                raise OffsetOutOfRange(offset=offset, start=state.start_offset, end=state.next_offset) from None
            raise
        return found.data, found.next_offset

    def newest(self) -> Version:
        self._is_loaded = True
        return self._log.load().version

    def commits(self, start: Version, end: Version) -> list[Commit]:
        if not self._is_loaded:
            self.newest()
        return list(self._log.entries(start, end))
