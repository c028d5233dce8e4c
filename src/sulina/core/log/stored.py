"""Stored batches: the checks before a reader uses any byte of them.

A batch's CRC32C covers all but its first 21 bytes. Those are checked against the commit log: the offset must follow
from the batch before, the epoch must be the segment's, the length must lead to the next batch or to the end.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from sulina.core.records.batch import HEADER_BYTES, MAGIC
from sulina.errors import CorruptSegment
from sulina.types import Epoch, Offset

_FRONT = struct.Struct(">qiibIhi")  # base_offset, length, epoch, magic, crc, attributes, last_offset_delta
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35
_LENGTH_END = 12
_CRC_START = 21
_LENGTH_MIN = HEADER_BYTES - _LENGTH_END


def size_at(data: memoryview, start: int) -> int:
    """Return the size of the batch at `start`, by its header; `data` must hold at least that header."""
    length: int = _FRONT.unpack_from(data, start)[1]
    return _LENGTH_END + length


def max_timestamp_at(data: memoryview, start: int) -> int:
    """Return the newest timestamp of the batch at `start`."""
    found: int = _MAX_TIMESTAMP.unpack_from(data, start + _MAX_TIMESTAMP_AT)[0]
    return found


def bounds(data: memoryview) -> list[tuple[int, int, int, int]]:
    """Return for each batch in checked bytes: its start and end in them, its first offset and the one past its last."""
    found = []
    position = 0
    while position < len(data):
        offset, length, _, _, _, _, last_delta = _FRONT.unpack_from(data, position)
        end = position + _LENGTH_END + length
        found.append((position, end, offset, offset + last_delta + 1))
        position = end
    return found


def first_after_epoch(data: memoryview, epoch: int) -> int | None:
    """Return the first offset in checked bytes whose batch has a later epoch; None if there is no such batch."""
    position = 0
    while position < len(data):
        offset, length, written_in, *_ = _FRONT.unpack_from(data, position)
        if written_in > epoch:
            return int(offset)
        position += _LENGTH_END + length
    return None


class StoredRun(NamedTuple):
    """Batches end to end in a buffer: bytes [start, end), offsets [base_offset, end_offset).

    Empty when the walk did not reach the wanted offset; then `end` and `end_offset` are where it stopped.
    """

    start: int
    end: int
    base_offset: Offset
    end_offset: Offset


def checked_run(
    data: memoryview,
    *,
    path: str,
    position: int,
    offset: Offset,
    epoch: Epoch,
    wanted: Offset,
    until: Offset,
    bytes_max: int,
) -> StoredRun:
    """Find the whole batches in `data` from the one that holds `wanted` on, and check each of them.

    The run has all batches that end before `until` and within `bytes_max`, but at least one. It ends before a batch
    that is not what was written. `data` was read at `position`, where a batch starts with `offset`.

    Raises:
        CorruptSegment: the first batch is not what was written.
    """
    # The hot path of every read: one batch per turn, and no object that is not needed.
    unpack, checksum, available = _FRONT.unpack_from, crc32c, len(data)
    start, base_offset = -1, offset
    at = 0
    while available - at >= HEADER_BYTES:
        found, length, its_epoch, magic, crc, _, delta = unpack(data, at)
        if found != offset or its_epoch != epoch or magic != MAGIC or delta < 0 or length < _LENGTH_MIN:
            if start >= 0:
                break
            raise _misplaced(data, at, path, position, offset, epoch)
        end = at + _LENGTH_END + length
        if end > available:
            break
        end_offset = offset + delta + 1
        if end_offset > wanted:
            if start >= 0 and (offset >= until or end - start > bytes_max):
                break
            # Keeping the GIL: handing it to another thread and back costs more than most checksums.
            if checksum(data[at + _CRC_START : end], gil_release_mode=0) != crc:
                if start >= 0:
                    break
                raise _damaged(data, at, end, path, position, offset)
            if start < 0:
                start, base_offset = at, offset
        at, offset = end, Offset(end_offset)
    return StoredRun(at if start < 0 else start, at, base_offset if start >= 0 else offset, offset)


def stored_batches(data: memoryview, *, path: str, position: int, offset: Offset, epoch: Epoch) -> Iterator[StoredRun]:
    """Yield the whole batches at the front of `data`, each checked as in `checked_run`.

    Raises:
        CorruptSegment: a batch is not what was written.
    """
    at = 0
    while True:
        run = checked_run(
            data[at:],
            path=path,
            position=position + at,
            offset=offset,
            epoch=epoch,
            wanted=offset,
            until=offset,
            bytes_max=0,
        )
        if run.start == run.end:
            return
        yield StoredRun(at, at + run.end, offset, run.end_offset)
        at, offset = at + run.end, run.end_offset


def _misplaced(data: memoryview, at: int, path: str, position: int, offset: Offset, epoch: Epoch) -> CorruptSegment:
    found, length, its_epoch, magic, *_ = _FRONT.unpack_from(data, at)
    has = f"it has offset {found}, epoch {its_epoch}, format {magic}, {length} bytes"
    reason = f"{has}; expected offset {offset}, epoch {epoch}"
    return CorruptSegment(path=path, position=position + at, offset=offset, reason=reason)


def _damaged(data: memoryview, at: int, end: int, path: str, position: int, offset: Offset) -> CorruptSegment:
    stored, computed = _FRONT.unpack_from(data, at)[4], crc32c(data[at + _CRC_START : end])
    reason = f"its CRC32C is {computed:#010x}, its header says {stored:#010x}"
    return CorruptSegment(path=path, position=position + at, offset=offset, reason=reason)
