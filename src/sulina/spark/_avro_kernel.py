"""Kernel that takes Avro data apart, compiled by Numba. It does in bulk what `decode_avro.AvroRows.row` does.

- A schema is a list of instructions; whatever a datum says, no byte outside it is read and nothing is written outside
  the slots. A datum that does not fit leaves nothing behind.
- It takes the same data as the exact way, or fewer; a test holds the two together.
- A slot holds what one column has: two numbers and whether it is there, for each entry. For bytes the numbers are
  where they are and how many; for a decimal its two halves; for an array how many items it has.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sulina.core.records.kernels import kernel

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]

# An instruction is a row: what, the slot, two arguments, and for OPTION and END where to go on.
NOTHING, BOOLEAN, INT, LONG, FLOAT, DOUBLE, BYTES, STRING, FIXED, ENUM = range(10)
DECIMAL_BYTES, DECIMAL_FIXED, PRESENT, OPTION, REPEAT, END, DONE = range(10, 17)
WHAT, SLOT, FIRST, SECOND, TARGET = range(5)
LEFT, ITEMS, BEGINS = range(3)  # state of an open array: items left in the block, items so far, where its item begins

DEPTH_MAX = 64  # arrays inside of arrays

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_INT64_MAX = 2**63 - 1


@kernel
def _varint(data: U8, position: int, end: int) -> tuple[int, int]:
    """Return a zigzag varint of 64 bits and where it ends, or -1."""
    number, shift = np.uint64(0), 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        if shift == 63 and byte > 1:
            return 0, -1
        number |= np.uint64(byte & 0x7F) << np.uint64(shift)
        if byte < 0x80:
            return np.int64(number >> np.uint64(1)) ^ -np.int64(number & np.uint64(1)), position  # type: ignore[return-value]
        shift += 7
    return 0, -1


@kernel
def _is_utf8(data: U8, position: int, end: int) -> bool:
    while position < end:
        byte = data[position]
        position += 1
        if byte < 0x80:
            continue
        if byte < 0xC2 or byte > 0xF4:
            return False
        more = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        if more > end - position:
            return False
        # The second byte's range keeps out overlong forms, surrogates and what is past the last code point.
        low = 0xA0 if byte == 0xE0 else 0x90 if byte == 0xF0 else 0x80
        high = 0x9F if byte == 0xED else 0x8F if byte == 0xF4 else 0xBF
        if data[position] < low or data[position] > high:
            return False
        for index in range(position + 1, position + more):
            if data[index] & 0xC0 != 0x80:
                return False
        position += more
    return True


@kernel
def _number(data: U8, position: int, end: int, what: int, times: int, over: int) -> tuple[int, int]:
    """Return a varint that is within the range of its type, and where it ends, or -1."""
    number, position = _varint(data, position, end)
    if position < 0:
        return 0, -1
    if what == ENUM:
        return (number, position) if 0 <= number < times else (0, -1)
    if what == INT and (number < _INT32_MIN or number > _INT32_MAX):
        return 0, -1
    if times > 1:
        if number > _INT64_MAX // times or number < -(_INT64_MAX // times):
            return 0, -1
        number *= times
    elif over > 1:
        number = number // over
    return number, position


@kernel
def _decimal(data: U8, position: int, size: int, high_max: int, low_max: int) -> tuple[int, int, bool]:
    """Return the two halves of a big-endian number of `size` bytes, and whether it is below the limit."""
    while size > 16:  # bytes that only repeat the sign
        if data[position] != (0xFF if data[position + 1] >= 0x80 else 0):
            return 0, 0, False
        position, size = position + 1, size - 1
    fill = np.uint64(0xFFFFFFFFFFFFFFFF) if size > 0 and data[position] >= 0x80 else np.uint64(0)
    high, low = fill, fill
    for index in range(position, position + size):
        high = (high << np.uint64(8)) | (low >> np.uint64(56))
        low = (low << np.uint64(8)) | np.uint64(data[index])
    size_high, size_low = high, low
    if fill != np.uint64(0):
        size_low = ~low + np.uint64(1)
        size_high = ~high + (np.uint64(1) if size_low == np.uint64(0) else np.uint64(0))
    limit_high, limit_low = np.uint64(high_max), np.uint64(low_max)
    is_under = size_high < limit_high or (size_high == limit_high and size_low < limit_low)
    return np.int64(low), np.int64(high), is_under  # type: ignore[return-value]


@kernel
def _leaf(data: U8, position: int, end: int, code: I64, at: int) -> tuple[int, int, int]:
    """Return where a leaf ends, or -1, and its two numbers."""
    what = code[at, WHAT]
    if what == NOTHING:
        return position, 0, 0
    if what == BOOLEAN:
        is_one = position < end and data[position] < 2
        return (position + 1, int(data[position]), 0) if is_one else (-1, 0, 0)
    if what in (INT, LONG, ENUM):
        number, position = _number(data, position, end, what, code[at, FIRST], code[at, SECOND])
        return position, number, 0
    if what in (FLOAT, DOUBLE):
        size = 4 if what == FLOAT else 8
        if end - position < size:
            return -1, 0, 0
        bits = np.uint64(0)
        for index in range(size):
            bits |= np.uint64(data[position + index]) << np.uint64(8 * index)
        return position + size, np.int64(bits), 0  # type: ignore[return-value]
    size = code[at, FIRST]
    if what in (BYTES, STRING, DECIMAL_BYTES):
        size, position = _varint(data, position, end)
    elif what == DECIMAL_FIXED:
        size = code[at, TARGET]
    if position < 0 or size < 0 or size > end - position:
        return -1, 0, 0
    if what == STRING and not _is_utf8(data, position, position + size):
        return -1, 0, 0
    if what in (DECIMAL_BYTES, DECIMAL_FIXED):
        low, high, is_under = _decimal(data, position, size, code[at, FIRST], code[at, SECOND])
        return (position + size if is_under else -1), low, high
    return position + size, position, size


@kernel
def _block(data: U8, position: int, end: int) -> tuple[int, int]:
    """Return how many items a block has and where they begin, or -1."""
    count, position = _varint(data, position, end)
    if position >= 0 and count < 0:
        count = -count
        size, position = _varint(data, position, end)  # of the block, for a reader that skips it
        if size < 0 or count < 0:
            return 0, -1
    return count, position


@kernel
def _datum(
    data: U8, position: int, end: int, code: I64, nulls: I64, bases: I64, counts: I64, numbers: I64, there: U8,
    frames: I64, is_counting: bool, entries_max: int,
) -> bool:  # fmt: skip
    """Take one datum apart into the slots, from where `counts` are on. Whether it fits, to its last byte."""
    depth, at, entries = 0, 0, 0
    while True:
        what, slot = code[at, WHAT], code[at, SLOT]
        if what == DONE:
            return position == end
        first, second, is_there = 0, 0, np.uint8(1)
        at += 1
        if what <= DECIMAL_FIXED:
            position, first, second = _leaf(data, position, end, code, at - 1)
            is_there = np.uint8(what != NOTHING)
        elif what == OPTION:
            index, position = _varint(data, position, end)
            if position < 0 or index < 0 or index > 1:
                return False
            if index == slot:  # the branch that is null
                for each in range(code[at - 1, FIRST], code[at - 1, SECOND]):
                    into = nulls[each]
                    if not is_counting:
                        numbers[0, bases[into] + counts[into]] = 0
                        numbers[1, bases[into] + counts[into]] = 0
                        there[bases[into] + counts[into]] = 0
                    counts[into] += 1
                    entries += 1
                at = code[at - 1, TARGET]
            if entries > entries_max:
                return False
            continue
        elif what in (REPEAT, END):
            if what == REPEAT:
                if depth == DEPTH_MAX:
                    return False
                frames[LEFT, depth], frames[ITEMS, depth], frames[BEGINS, depth] = 0, 0, at
                depth += 1
            else:
                frames[LEFT, depth - 1] -= 1
            if frames[LEFT, depth - 1] == 0:
                frames[LEFT, depth - 1], position = _block(data, position, end)
                frames[ITEMS, depth - 1] += frames[LEFT, depth - 1]
            if position < 0:
                return False
            if frames[LEFT, depth - 1] > 0:
                at = frames[BEGINS, depth - 1]
                continue
            depth -= 1
            at = code[at - 1, TARGET]
            first = frames[ITEMS, depth]
        if position < 0:
            return False
        if not is_counting:
            numbers[0, bases[slot] + counts[slot]] = first
            numbers[1, bases[slot] + counts[slot]] = second
            there[bases[slot] + counts[slot]] = is_there
        counts[slot] += 1
        entries += 1
        if entries > entries_max:
            return False


@kernel
def take_apart(
    data: U8, offsets: I64, code: I64, nulls: I64, bases: I64, numbers: I64, there: U8, is_taken: U8,
    is_counting: bool, entries_max: int,
) -> Any:  # fmt: skip
    """Take all data apart that `is_taken` names; it is cleared for those that do not fit. The entries of each slot."""
    counts = np.zeros(len(bases), np.int64)
    saved = np.zeros(len(bases), np.int64)
    frames = np.zeros((3, DEPTH_MAX), np.int64)
    for row in range(len(offsets) - 1):
        if not is_taken[row]:
            continue
        for slot in range(len(bases)):
            saved[slot] = counts[slot]
        if not _datum(
            data, offsets[row], offsets[row + 1], code, nulls, bases, counts, numbers, there, frames, is_counting,
            entries_max,
        ):  # fmt: skip
            counts[:] = saved
            is_taken[row] = 0
    return counts


@kernel
def gather(data: U8, starts: I64, sizes: I64, target: U8) -> None:
    """Copy pieces one after the other."""
    position = 0
    for index in range(len(starts)):
        start = starts[index]
        for each in range(sizes[index]):
            target[position + each] = data[start + each]
        position += sizes[index]
