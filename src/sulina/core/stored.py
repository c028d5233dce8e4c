"""Stored batches: what a reader checks before it believes a byte.

A batch's CRC32C covers all but its first 21 bytes. The rest is checked against what the commit log knows: the offset
follows from the batch before, the epoch is the segment's, the length must lead to the next batch or to the end.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from sulina.core.batch import HEADER_BYTES, MAGIC
from sulina.errors import CorruptSegment
from sulina.types import Epoch, Offset

_FRONT = struct.Struct(">qiibIhi")  # base_offset, length, epoch, magic, crc, attributes, last_offset_delta
_STAMP = struct.Struct(">qii")  # base_offset, length, epoch: all that the log may change in a batch
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35
_LENGTH_END = 12
_CRC_START = 21

STAMP_BYTES = _STAMP.size


class StoredBatch(NamedTuple):
    """A whole batch in a buffer: bytes [start, end), offsets [base_offset, end_offset)."""

    start: int
    end: int
    base_offset: Offset
    end_offset: Offset


def stamp(offset: Offset, size_bytes: int, epoch: Epoch) -> bytes:
    """The first bytes of a batch as they are stored; the rest stays as it came."""
    return _STAMP.pack(offset, size_bytes - _LENGTH_END, epoch)


def size_at(data: memoryview, start: int) -> int:
    """How many bytes the batch at `start` says it has; for a buffer that holds at least its header."""
    length: int = _FRONT.unpack_from(data, start)[1]
    return _LENGTH_END + length


def max_timestamp_at(data: memoryview, start: int) -> int:
    """The newest timestamp of the batch at `start`."""
    found: int = _MAX_TIMESTAMP.unpack_from(data, start + _MAX_TIMESTAMP_AT)[0]
    return found


def stored_batches(
    data: memoryview,
    *,
    path: str,
    position: int,
    offset: Offset,
    epoch: Epoch,
    wanted: Offset = Offset(0),
) -> Iterator[StoredBatch]:
    """The whole batches at the front of `data`, which was read at `position` where a batch starts with `offset`.

    Each is checked, but for the CRC of those that end before `wanted`: they are passed over, not served. Ends before
    the first batch that is not whole. CorruptSegment at the first that is not what was written.
    """
    start, available = 0, len(data)
    while available - start >= HEADER_BYTES:
        found, length, its_epoch, magic, crc, _, delta = _FRONT.unpack_from(data, start)
        end = start + _LENGTH_END + length
        if found != offset or its_epoch != epoch or magic != MAGIC or delta < 0 or end - start < HEADER_BYTES:
            reason = (
                f"it says offset {found}, epoch {its_epoch}, format {magic}, {length} bytes; epoch {epoch} is right"
            )
            raise CorruptSegment(path=path, position=position + start, offset=offset, reason=reason)
        if end > available:
            return
        end_offset = Offset(offset + delta + 1)
        if end_offset > wanted:
            computed = crc32c(data[start + _CRC_START : end])
            if computed != crc:
                reason = f"its CRC32C is {computed:#010x}, its header says {crc:#010x}"
                raise CorruptSegment(path=path, position=position + start, offset=offset, reason=reason)
        yield StoredBatch(start, end, offset, end_offset)
        start, offset = end, end_offset
