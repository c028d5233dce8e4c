"""Segments and their index: names, when to roll, the bytes of an index.

A segment is named after its first offset and holds batches end to end. The index is a shortcut into it with one entry
for every `index_interval_bytes`: it can always be rebuilt from the segment, so it is used only where its checksum
holds.
"""

import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from crc32c import crc32c

from sulina.core.log.commit import SegmentRef
from sulina.types import Offset

INDEX_ENTRY_BYTES = 28
_ENTRY = struct.Struct(">QQq")
_CRC = struct.Struct(">I")


def segment_name(base: int) -> str:
    """Return the file name of the segment whose first offset is `base`."""
    return f"{base:020d}.log"


def index_name(base: int) -> str:
    """Return the file name of the index of the segment whose first offset is `base`."""
    return f"{base:020d}.index"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLimits:
    """When a segment is full, and how dense its index is."""

    segment_bytes_max: int = 256 << 20
    segment_age_seconds_max: float = 24 * 3600.0
    index_interval_bytes: int = 64 << 10


def takes_more(segment: SegmentRef, *, now_ms: int, limits: SegmentLimits) -> bool:
    """Tell whether a segment may get more batches, if they fit: it is not sealed, and not too old.

    A segment from the future was begun by a clock that was ahead: it is closed now, not when that time has come.
    """
    return not segment.sealed and abs(now_ms - segment.created_ms) < limits.segment_age_seconds_max * 1000


@dataclass(slots=True)
class SparseIndex:
    """Entries (offset, position, timestamp) of a segment, one for every interval of bytes.

    The batch at `position` starts with `offset`, and `timestamp` is the newest of all records before it in the segment.
    All three grow, so each can be searched by bisection.
    """

    interval_bytes: int
    offsets: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)

    def note(self, offset: int, position: int, timestamp_before: int) -> bytes:
        """Record a batch. Return the entry to store; empty if the last entry is near enough."""
        if self.positions and position - self.positions[-1] < self.interval_bytes:
            return b""
        # The offsets last: a thread that searches meanwhile uses no more entries than there are offsets.
        self.timestamps.append(timestamp_before)
        self.positions.append(position)
        self.offsets.append(offset)
        return encode_entry(offset, position, timestamp_before)

    def floor(self, offset: Offset) -> tuple[int, Offset]:
        """Return the last known (position, offset) of a batch that starts at or before `offset`."""
        at = bisect_right(self.offsets, offset) - 1
        return (self.positions[at], Offset(self.offsets[at])) if at >= 0 else (0, Offset(-1))

    def before_timestamp(self, timestamp_ms: int) -> tuple[int, Offset]:
        """Return a (position, offset) such that every batch before it is older than `timestamp_ms`."""
        at = bisect_left(self.timestamps, timestamp_ms, hi=len(self.offsets)) - 1
        return (self.positions[at], Offset(self.offsets[at])) if at >= 0 else (0, Offset(-1))


def encode_entry(offset: int, position: int, timestamp: int) -> bytes:
    """Encode one index entry with its checksum."""
    entry = _ENTRY.pack(offset, position, timestamp)
    return entry + _CRC.pack(crc32c(entry))


def decode_index(data: bytes, segment: SegmentRef, interval_bytes: int) -> SparseIndex:
    """Decode the valid part of an index file: up to its first torn, damaged or impossible entry, or to the committed
    end of the segment. The missing entries are found again by walking the segment."""
    index = SparseIndex(interval_bytes)
    for at in range(0, len(data) - INDEX_ENTRY_BYTES + 1, INDEX_ENTRY_BYTES):
        entry = data[at : at + _ENTRY.size]
        if _CRC.unpack_from(data, at + _ENTRY.size)[0] != crc32c(entry):
            break
        offset, position, timestamp = _ENTRY.unpack(entry)
        if position >= segment.size or offset >= segment.next_offset:
            break
        if index.offsets:
            fits = offset > index.offsets[-1] and position > index.positions[-1] and timestamp >= index.timestamps[-1]
        else:
            fits = offset == segment.base and position == 0
        if not fits:
            break
        index.offsets.append(offset)
        index.positions.append(position)
        index.timestamps.append(timestamp)
    return index
