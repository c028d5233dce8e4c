"""The segment files of one partition: one writer appends, any number of threads read.

- The commit log defines which bytes belong to the log; a file may be longer. Its bytes are never trusted, and are
  checked on every read.
- A write is `write`, then either `confirm` after its commit, or `rewind`: then none of it is part of the log.
- An index entry is written after the commit of its batch, so an index never refers to a batch that is not in the log.
- Readers open the file for themselves, so that the writer may close, remove or recycle it at any time: a read then
  fails its check, and the log answers that the offset was removed.
"""

import contextlib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from sulina.core.log.commit import Remove, SegmentRef
from sulina.core.log.segment import (
    INDEX_ENTRY_BYTES,
    SegmentLimits,
    SparseIndex,
    decode_index,
    encode_entry,
    index_name,
    segment_name,
)
from sulina.core.log.stored import StoredRun, checked_run, max_timestamp_at, size_at, stored_batches
from sulina.core.records.batch import HEADER_BYTES
from sulina.errors import CorruptSegment
from sulina.failpoints import Failpoint, FailpointHook, no_failpoints
from sulina.ports import Bytes, File, Files
from sulina.types import Offset

INDEXES_CACHED_MAX = 8
SCAN_BYTES = 1 << 20
POSITIONS_KEPT_MAX = 1024
_SPARE = "spare-"
_ASIDE = ".aside"
_FILE_NAME = re.compile(r"([0-9]{20})\.(log|index)")  # of a segment or its index


@dataclass(slots=True)
class _Active:
    """The segment that is being written."""

    base: Offset
    file: File
    index: SparseIndex
    index_file: File | None = None
    timestamp_max: int = -1


class PlacedBatch(NamedTuple):
    """A batch, and where it is written."""

    segment: Offset
    position: int
    offset: Offset
    timestamp_max: int
    parts: tuple[Bytes, Bytes]  # its first bytes as stamped by the log, the others unchanged


@dataclass(slots=True)
class _UncommittedBatches:
    """Batches that wait for their commit."""

    segment: _Active
    is_new: bool
    batches: list[PlacedBatch]


@dataclass(frozen=True, slots=True)
class StoredBatches:
    """Whole batches as they are stored, and the offsets they cover."""

    data: memoryview
    start_offset: Offset
    next_offset: Offset


class Segments:
    """All segment files of a directory."""

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        limits: SegmentLimits,
        spares_max: int = 0,
        failpoints: FailpointHook = no_failpoints,
    ) -> None:
        self.directory = directory
        self._files = files
        self._limits = limits
        self._spares_max = spares_max
        self._spares: list[str] = []
        self._reach = failpoints
        self._active: _Active | None = None
        self._written: list[_UncommittedBatches] = []
        self._lock = threading.Lock()  # for the next three attributes
        self._doubted: set[Offset] = set()  # segments whose index was rebuilt because of damage
        self._indexes: OrderedDict[str, SparseIndex] = OrderedDict()
        self._positions: OrderedDict[tuple[Offset, Offset], int] = OrderedDict()  # by segment and offset

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    # Opening

    def recover(self, segments: Sequence[SegmentRef], start: Offset, end: Offset) -> CorruptSegment | None:
        """Make the files agree with the commit log: cut uncommitted bytes, delete files that are not in the log.

        Return damage at the end of the log: then nothing can be appended to the newest segment.
        """
        known = {segment.base for segment in segments}
        for name in self._files.list(self.directory):
            found = _FILE_NAME.fullmatch(name)
            base = Offset(int(found[1])) if found is not None else None
            if name.startswith(_SPARE):
                self._spares.append(name)
            # Between these offsets the log knows every file; one that it does not know is not ours to delete.
            elif name.endswith(_ASIDE) or (base is not None and base not in known and not start <= base < end):
                self._files.remove(self.path(name))
                self._reach(Failpoint.OPEN_ORPHAN_REMOVED)
        while len(self._spares) > self._spares_max:
            self._files.remove(self.path(self._spares.pop()))
        if not segments or segments[-1].sealed:
            return None
        return self._recover_active(segments[-1])

    def _recover_active(self, newest: SegmentRef) -> CorruptSegment | None:
        path = self.path(newest.name)
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            return CorruptSegment(path=path, position=0, offset=newest.base, reason="the file is missing")
        try:
            if file.size() > newest.size:
                file.truncate(newest.size)
                self._reach(Failpoint.OPEN_TRUNCATED)
            index, damage = self._load_index(newest)
            if damage is not None:
                file.close()
                return damage
            self._write_index(newest.base, index)
            index_file = self._files.open(self.path(index_name(newest.base)))
        except BaseException:
            file.close()
            raise
        self._active = _Active(newest.base, file, index, index_file, newest.timestamp_max)
        return None

    # Writing

    def write(self, batches: Sequence[PlacedBatch]) -> None:
        """Write batches at the positions that the plan gave them, durable on return."""
        for base, run in groupby(batches, key=lambda batch: batch.segment):
            active = self._active
            is_new = active is None or active.base != base
            segment = self._create(base) if active is None or is_new else active
            placed = list(run)
            self._written.append(_UncommittedBatches(segment, is_new, placed))
            segment.file.write(placed[0].position, [part for batch in placed for part in batch.parts])
        self._reach(Failpoint.APPEND_WRITTEN)
        for written in self._written:
            written.segment.file.sync()
        self._reach(Failpoint.APPEND_SYNCED)
        if any(written.is_new for written in self._written):
            self._files.sync_directory(self.directory)
            self._reach(Failpoint.APPEND_DIRECTORY_SYNCED)

    def _create(self, base: Offset) -> _Active:
        path = self.path(segment_name(base))
        index = SparseIndex(self._limits.index_interval_bytes)
        if not self._spares:
            file = self._files.create(path)
            self._reach(Failpoint.ROLL_CREATED)
            return _Active(base, file, index)
        # Its blocks are allocated: syncing it is several times faster than syncing a file that grows.
        self._files.rename(self.path(self._spares.pop()), path)
        self._reach(Failpoint.ROLL_RECYCLED)
        return _Active(base, self._files.open(path), index)

    def confirm(self) -> None:
        """Add the batches that were written to the index, after their commit, and close full segments."""
        for written in self._written:
            if self._active is not None and written.segment is not self._active:
                self.seal()
            segment = self._active = written.segment
            if segment.index_file is None:
                path = self.path(index_name(segment.base))
                with contextlib.suppress(FileNotFoundError):
                    self._files.remove(path)
                segment.index_file = self._files.create(path)
            entries: list[bytes] = []
            position = len(segment.index.offsets) * INDEX_ENTRY_BYTES
            for batch in written.batches:
                entries.append(segment.index.note(batch.offset, batch.position, segment.timestamp_max))
                segment.timestamp_max = max(segment.timestamp_max, batch.timestamp_max)
            if any(entries):
                segment.index_file.write(position, entries)
        self._written.clear()
        self._reach(Failpoint.APPEND_INDEXED)

    def rewind(self, segments: Sequence[SegmentRef]) -> None:
        """Undo the last write, which was not committed, without touching bytes that the log refers to."""
        self._reach(Failpoint.ABORT_STARTED)
        committed = {segment.base: segment.size for segment in segments}
        for written in self._written:
            size = committed.get(written.segment.base)
            if size is not None:
                written.segment.file.truncate(size)
                self._reach(Failpoint.ABORT_TRUNCATED)
            else:
                written.segment.file.close()
                self._files.remove(self.path(segment_name(written.segment.base)))
                self._reach(Failpoint.ABORT_REMOVED)
        self._written.clear()
        newest = segments[-1] if segments else None
        if self._active is not None and (newest is None or newest.sealed or newest.base != self._active.base):
            self.seal()

    def seal(self) -> None:
        """Close the active segment: the next batch begins another one."""
        if self._active is not None:
            active, self._active = self._active, None
            active.file.close()
            if active.index_file is not None:
                try:
                    active.index_file.sync()
                finally:
                    active.index_file.close()
            with self._lock:
                self._remember(segment_name(active.base), active.index)
            self._reach(Failpoint.ROLL_SEALED)

    def remove(self, removals: Sequence[Remove]) -> None:
        """Recycle or delete the files of segments that were removed from the log."""
        for removal in removals:
            path = self.path(removal.segment)
            is_worth_keeping = 2 * removal.size >= self._limits.segment_bytes_max
            with contextlib.suppress(FileNotFoundError):
                if len(self._spares) < self._spares_max and is_worth_keeping:
                    spare = _SPARE + removal.segment
                    self._files.rename(path, self.path(spare))
                    self._spares.append(spare)
                    self._reach(Failpoint.REMOVE_SPARED)
                else:
                    self._files.remove(path)
                    self._reach(Failpoint.REMOVE_DELETED)
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(self.path(index_name(removal.offset_start)))
            with self._lock:
                self._indexes.pop(removal.segment, None)
                self._doubted.discard(removal.offset_start)

    def close(self) -> None:
        """Close the files."""
        segments = [written.segment for written in self._written] + ([self._active] if self._active else [])
        self._active = None
        self._written.clear()
        for segment in segments:
            segment.file.close()
            if segment.index_file is not None:
                segment.index_file.close()

    # Reading

    def read(self, segment: SegmentRef, offset: Offset, *, end: Offset, max_bytes: int) -> StoredBatches:
        """Read batches from the one that holds `offset` on: as many as fit, at least one, none from `end` on."""
        position: int | None = 0
        if offset != segment.base:
            with self._lock:  # a sequential reader continues where the last read ended
                position = self._positions.get((segment.base, offset))
        try:
            floor = (position, offset) if position is not None else self._index_of(segment).floor(offset)
            return self._read(segment, floor, offset, end, max_bytes)
        except CorruptSegment:
            # The index may be wrong. If the read fails without it too, the segment is damaged; trying once is enough.
            with self._lock:
                if segment.base in self._doubted:
                    raise
                self._doubted.add(segment.base)
            index, _ = self._rebuild_index(segment)
            return self._read(segment, index.floor(offset), offset, end, max_bytes)

    def _read(
        self, segment: SegmentRef, floor: tuple[int, Offset], offset: Offset, end: Offset, max_bytes: int
    ) -> StoredBatches:
        position, first = floor if floor[1] >= 0 else (0, segment.base)
        path = self.path(segment.name)
        passing = self._limits.index_interval_bytes if first < offset else 0
        size = max(max_bytes + passing, HEADER_BYTES)
        while True:
            left = segment.size - position
            data = self._read_bytes(segment, position, min(size, left))
            run = checked_run(
                data,
                path=path,
                position=position,
                offset=first,
                epoch=segment.epoch,
                wanted=offset,
                until=end,
                bytes_max=max_bytes,
            )
            passed, first = run.end, run.end_offset
            if run.start < run.end:
                with self._lock:
                    self._positions[segment.base, run.end_offset] = position + passed
                    while len(self._positions) > POSITIONS_KEPT_MAX:
                        self._positions.popitem(last=False)
                return StoredBatches(data[run.start : run.end], run.base_offset, run.end_offset)
            # The wanted batch is not whole: read it alone, with the size that its header states.
            position, left, rest = position + passed, left - passed, len(data) - passed
            size = size_at(data, passed) if rest >= HEADER_BYTES else HEADER_BYTES
            if size > left:
                reason = f"a batch of {size} bytes cannot end within the segment"
                raise CorruptSegment(path=path, position=position, offset=first, reason=reason)

    def _read_bytes(self, segment: SegmentRef, position: int, size: int) -> memoryview:
        path = self.path(segment.name)
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            raise CorruptSegment(path=path, position=0, offset=segment.base, reason="the file is missing") from None
        try:
            data = file.read(position, size)
        finally:
            file.close()
        if len(data) < size:
            reason = f"the file ends here, but the segment ends at {segment.size}"
            raise CorruptSegment(path=path, position=position + len(data), offset=segment.base, reason=reason)
        return memoryview(data)

    def scan(
        self, segment: SegmentRef, position: int = 0, offset: Offset | None = None
    ) -> Iterator[tuple[memoryview, StoredRun, int]]:
        """Yield every batch of a segment from `position` on, checked, with the position of its buffer.

        Raises:
            CorruptSegment: a batch is damaged.
        """
        first = segment.base if offset is None else offset
        path = self.path(segment.name)
        size = SCAN_BYTES
        while position < segment.size:
            left = segment.size - position
            data = self._read_bytes(segment, position, min(size, left))
            end = 0
            for batch in stored_batches(data, path=path, position=position, offset=first, epoch=segment.epoch):
                yield data, batch, position
                end, first = batch.end, batch.end_offset
            position, left = position + end, left - end
            needed = size_at(data, end) if len(data) - end >= HEADER_BYTES else HEADER_BYTES
            if left and needed > left:
                reason = f"a batch of {needed} bytes cannot end within the segment"
                raise CorruptSegment(path=path, position=position, offset=first, reason=reason)
            size = max(needed, SCAN_BYTES)

    def batches_since(self, segment: SegmentRef, timestamp_ms: int) -> Iterator[memoryview]:
        """Yield the batches of a segment whose headers state a record at or after a time."""
        position, offset = self._index_of(segment).before_timestamp(timestamp_ms)
        for data, batch, _ in self.scan(segment, position, None if offset < 0 else offset):
            if max_timestamp_at(data, batch.start) >= timestamp_ms:
                yield data[batch.start : batch.end]

    # Indexes

    def _index_of(self, segment: SegmentRef) -> SparseIndex:
        active = self._active
        if active is not None and active.base == segment.base:
            return active.index
        with self._lock:
            index = self._indexes.get(segment.name)
            if index is not None:
                self._indexes.move_to_end(segment.name)
                return index
        index, _ = self._load_index(segment)
        if segment.sealed:
            with self._lock:
                self._remember(segment.name, index)
        return index

    def _remember(self, name: str, index: SparseIndex) -> None:
        self._indexes[name] = index
        while len(self._indexes) > INDEXES_CACHED_MAX:
            self._indexes.popitem(last=False)

    def _load_index(self, segment: SegmentRef) -> tuple[SparseIndex, CorruptSegment | None]:
        """Load an index from its file, and find missing entries again. Return the damage that ended the search, too."""
        try:
            file = self._files.open(self.path(index_name(segment.base)))
        except FileNotFoundError:
            return self._rebuild_index(segment)
        try:
            data = file.read(0, file.size())
        finally:
            file.close()
        return self._extend_index(segment, decode_index(data, segment, self._limits.index_interval_bytes))

    def _rebuild_index(self, segment: SegmentRef) -> tuple[SparseIndex, CorruptSegment | None]:
        return self._extend_index(segment, SparseIndex(self._limits.index_interval_bytes))

    def _extend_index(self, segment: SegmentRef, index: SparseIndex) -> tuple[SparseIndex, CorruptSegment | None]:
        position, offset, newest = 0, segment.base, -1
        if index.offsets:
            position, offset, newest = index.positions[-1], Offset(index.offsets[-1]), index.timestamps[-1]
        try:
            for data, batch, at in self.scan(segment, position, offset):
                index.note(batch.base_offset, at + batch.start, newest)
                newest = max(newest, max_timestamp_at(data, batch.start))
        except CorruptSegment as damage:
            return index, damage
        return index, None

    def _write_index(self, base: Offset, index: SparseIndex) -> None:
        """Replace the file of an index by one with the entries of `index`."""
        path = self.path(index_name(base))
        aside = path + _ASIDE
        file = self._files.create(aside)
        try:
            entries = zip(index.offsets, index.positions, index.timestamps, strict=True)
            file.write(0, [encode_entry(*entry) for entry in entries])
        finally:
            file.close()
        self._files.rename(aside, path)
