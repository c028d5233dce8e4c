"""Reads an archive: batches by offset, commits by version. Every byte is checked, as in the log on disk.

Objects are fetched in blocks, through a shared cache of limited size. For a sequential reader the next block is fetched
while the current one is used.
"""

import threading
from collections import OrderedDict
from concurrent.futures import Executor

from sulina.core.log.archive import ArchiveView, commits_name, decode_commits, slice_at, slice_of_version
from sulina.core.log.commit import Commit, SegmentRef
from sulina.core.log.log_state import LogState
from sulina.core.log.stored import bounds, checked_run, max_timestamp_at, size_at
from sulina.core.records.batch import DEFAULT_LIMITS, HEADER_BYTES, BatchLimits
from sulina.core.records.record import decode
from sulina.errors import CorruptCommit, CorruptSegment, OffsetOutOfRange, VersionNotRetained
from sulina.storage.archive_cache import ArchiveCache
from sulina.storage.directory_log import READ_BYTES, Slice
from sulina.storage.objects import Objects
from sulina.types import Offset, Version

BLOCK_BYTES = 4 << 20
BLOCKS_AHEAD = 2
POSITIONS_KEPT_MAX = 256


class _Gone(Exception):
    """The object does not exist: it was removed, or merged into another."""


class ArchiveReader:
    """The readable side of an archive; from any thread."""

    def __init__(self, objects: Objects, path: str, *, cache: ArchiveCache, readers: Executor | None) -> None:
        self.path = path
        self.view = ArchiveView.of(LogState())
        self._objects = objects
        self.cache = cache
        self.readers = readers  # threads that fetch ahead
        self._positions: OrderedDict[tuple[str, Offset], int] = OrderedDict()  # of batches in objects
        self._positions_lock = threading.Lock()

    @property
    def location(self) -> str:
        """Name of the archive, for messages."""
        return f"{self._objects.location}/{self.path}"

    def refresh(self) -> None:
        """Load what has been committed since the last time."""
        raise AssertionError("Archive, which has the commit log, overrides this")

    def read(self, offset: Offset, max_bytes: int = READ_BYTES, *, until: Offset | None = None) -> Slice:
        """Read batches from `offset` on, none that begins at `until` or after; empty at the end of the archive.

        At least one batch is read, even if it is larger than `max_bytes`.

        Raises:
            OffsetOutOfRange: the archive does not have the offset.
            CorruptSegment: an object is damaged or missing.
            ArchiveFailed: the object store does not answer.
        """
        for is_last in (False, True):
            view = self.view
            end = view.next_offset
            if not view.start_offset <= offset <= end:
                raise OffsetOutOfRange(offset=offset, start=view.start_offset, end=end)
            if offset == end:
                return Slice(memoryview(b""), offset, offset, view.log_version, end)
            at = slice_at(view.slices, offset)
            try:
                data, start, following = self._read(view, at, offset, end if until is None else until, max_bytes)
            except _Gone:
                if is_last:
                    slice_ = view.slices[at]
                    path = f"{self.location}/{slice_.object}"
                    raise CorruptSegment(path=path, position=0, offset=slice_.base, reason="it is missing") from None
                self.refresh()
                continue
            return Slice(data, start, following, view.log_version, end)
        raise AssertionError

    def _read(
        self, view: ArchiveView, at: int, offset: Offset, until: Offset, max_bytes: int
    ) -> tuple[memoryview, Offset, Offset]:
        slice_ = view.slices[at]
        name = slice_.object or ""
        known = self._position_of(name, offset)
        is_reading_on = known is not None or offset == slice_.base
        position, first = (known, offset) if known is not None else (0, slice_.base)
        window = max(max_bytes, BLOCK_BYTES // 4)
        size = window
        while True:
            data = self._bytes(slice_, position, min(size, slice_.size - position))
            run = checked_run(
                data,
                path=f"{self.location}/{name}",
                position=position,
                offset=first,
                epoch=slice_.epoch,
                wanted=offset,
                until=until,
                bytes_max=max_bytes,
            )
            if run.start < run.end:
                break
            position, first = position + run.end, run.end_offset
            rest, left = len(data) - run.end, slice_.size - position
            needed = size_at(data, run.end) if rest >= HEADER_BYTES else HEADER_BYTES
            if needed > left:
                reason = f"a batch of {needed} bytes cannot end within the object"
                raise CorruptSegment(path=f"{self.location}/{name}", position=position, offset=first, reason=reason)
            size = max(needed, window)
        end = position + run.end
        self._note(name, run.end_offset, end)
        if is_reading_on:
            self._fetch_ahead(view, at, end)
        return data[run.start : run.end], run.base_offset, run.end_offset

    def _position_of(self, name: str, offset: Offset) -> int | None:
        with self._positions_lock:
            return self._positions.get((name, offset))

    def _note(self, name: str, offset: Offset, position: int) -> None:
        with self._positions_lock:
            self._positions[name, offset] = position
            while len(self._positions) > POSITIONS_KEPT_MAX:
                self._positions.popitem(last=False)

    # Blocks

    def _bytes(self, slice_: SegmentRef, position: int, size: int) -> memoryview:
        first, last = position // BLOCK_BYTES, max(position, position + size - 1) // BLOCK_BYTES
        blocks = [self._block(slice_, number) for number in range(first, last + 1)]
        start = position - first * BLOCK_BYTES
        if len(blocks) == 1:
            return blocks[0][start : start + size]
        blocks[0] = blocks[0][start:]
        blocks[-1] = blocks[-1][: position + size - last * BLOCK_BYTES]
        return memoryview(b"".join(blocks))

    def _block(self, slice_: SegmentRef, number: int) -> memoryview:
        path = f"{self.path}/{slice_.object}"
        block = self.cache.get((path, number), lambda: self._fetch(slice_, number))
        if block is None:
            raise _Gone
        return block

    def _fetch(self, slice_: SegmentRef, number: int) -> memoryview | None:
        start = number * BLOCK_BYTES
        return self._objects.get_range(f"{self.path}/{slice_.object}", start, min(BLOCK_BYTES, slice_.size - start))

    def _fetch_ahead(self, view: ArchiveView, at: int, position: int) -> None:
        if self.readers is None:
            return
        number = position // BLOCK_BYTES
        for _ in range(BLOCKS_AHEAD):
            number += 1
            while number * BLOCK_BYTES >= view.slices[at].size:
                at, number = at + 1, 0
                if at == len(view.slices):
                    return
            slice_ = view.slices[at]
            self.cache.fetch_ahead(
                (f"{self.path}/{slice_.object}", number),
                lambda slice_=slice_, number=number: self._fetch(slice_, number),  # type: ignore[misc]
                self.readers,
            )

    # Commits

    def commits(self, start: Version, end: Version) -> list[Commit]:
        """Return the commits of versions [start, end).

        Raises:
            VersionNotRetained: the archive does not have all of them.
            CorruptCommit: an object is damaged.
            ArchiveFailed: the object store does not answer.
        """
        for is_last in (False, True):
            view = self.view
            at = slice_of_version(view.slices, start)
            if at < len(view.slices) and view.slices[at].version_start > start:
                raise self._not_retained(view, start)
            if end > view.log_version + 1 or (start < end and at == len(view.slices)):
                raise self._not_retained(view, Version(max(start, view.log_version + 1)))
            found: list[Commit] = []
            try:
                for slice_ in view.slices[at:]:
                    if slice_.version_start >= end:
                        break
                    found += [commit for commit in self.commits_of(slice_) if start <= commit.version < end]
            except CorruptCommit:
                if is_last:
                    raise
                self.refresh()
                continue
            return found
        raise AssertionError

    def _not_retained(self, view: ArchiveView, version: Version) -> VersionNotRetained:
        oldest = next((s.version_start for s in view.slices if s.version_end > s.version_start), view.log_version)
        return VersionNotRetained(version=version, oldest=oldest, current=view.log_version)

    def commits_of(self, slice_: SegmentRef) -> list[Commit]:
        """Return all commits of a slice.

        Raises:
            CorruptCommit: the object is damaged or missing.
        """
        if not slice_.commits_size:
            return []
        name = commits_name(slice_.object or "")
        return decode_commits(name, self._commit_bytes(slice_), slice_)

    def _commit_bytes(self, slice_: SegmentRef) -> bytes:
        if not slice_.commits_size:
            return b""
        path = f"{self.path}/{commits_name(slice_.object or '')}"
        data = self.cache.get((path, 0), lambda: self._objects.get(path))
        if data is None or len(data) != slice_.commits_size:
            reason = "it is missing" if data is None else f"it has {len(data)} bytes, not {slice_.commits_size}"
            raise CorruptCommit(name=path, reason=reason)
        return bytes(data)

    # Times

    def offset_for_timestamp(
        self, timestamp_ms: int, *, before: Offset | None = None, limits: BatchLimits = DEFAULT_LIMITS
    ) -> Offset | None:
        """Return the first offset whose record has this timestamp or a later one; None if none before `before` has."""
        view = self.view
        for slice_ in view.slices:
            if before is not None and slice_.base >= before:
                break
            if slice_.timestamp_max < timestamp_ms or not slice_.size:
                continue
            offset = slice_.base
            while offset < slice_.next_offset:
                found = self.read(offset, BLOCK_BYTES, until=slice_.next_offset)
                for start, end, _, _ in bounds(found.data):
                    if max_timestamp_at(found.data, start) < timestamp_ms:
                        continue
                    # The newest timestamp in a batch's header may be wrong: check the records.
                    for record in decode(found.data[start:end], limits=limits):
                        if record.timestamp_ms >= timestamp_ms:
                            return Offset(record.offset)
                offset = found.next_offset
        return None
