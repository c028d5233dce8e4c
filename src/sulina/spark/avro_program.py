"""Instructions for the Avro kernel, compiled from a schema, and the columns that are made from its cells."""

from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sulina.spark import _avro_kernel as kernel
from sulina.spark.avro_columns import AvroArray, AvroLeaf, AvroMap, AvroOption, AvroRecord, AvroUnion, Part

ENTRIES_MAX = 1 << 24  # cells that one datum may become

_CODES = {
    "null": kernel.NOTHING, "boolean": kernel.BOOLEAN, "int": kernel.INT, "long": kernel.LONG, "float": kernel.FLOAT,
    "double": kernel.DOUBLE, "bytes": kernel.BYTES, "string": kernel.STRING, "fixed": kernel.FIXED,
    "enum": kernel.ENUM,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """The cells that the kernel has found, by slot: a slot belongs to one column."""

    data: NDArray[np.uint8]
    numbers: NDArray[np.int64]
    there: NDArray[np.uint8]
    bases: NDArray[np.int64]
    counts: NDArray[np.int64]

    def slot(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        part = slice(self.bases[number], self.bases[number] + self.counts[number])
        return self.numbers[0, part], self.numbers[1, part], self.there[part] == 0


@dataclass(slots=True)
class Program:
    """Instructions for the kernel. `has_repeats`: some slots may have more entries than there are data."""

    code: list[list[int]] = field(default_factory=list)
    nulls: list[int] = field(default_factory=list)  # slots, in runs: those that get a null together
    slot_count: int = 0
    has_repeats: bool = False

    @classmethod
    def of(cls, part: AvroRecord) -> "Program | None":
        """Compile a record; return None if it has unions, which the kernel does not know."""
        program = cls()
        try:
            for _name, inner in part.fields:
                program._add(inner)
        except _UnknownToKernel:
            return None
        program.code.append([kernel.DONE, 0, 0, 0, 0])
        return program

    def run(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> tuple[Found, NDArray[np.uint8]]:
        """Take all data apart; which of them fit."""
        rows = len(offsets) - 1
        is_taken = np.ones(rows, np.uint8)
        code, nulls = np.array(self.code, np.int64), np.array([*self.nulls, 0], np.int64)
        bases = np.zeros(self.slot_count, np.int64)
        if self.has_repeats:
            numbers, there = np.zeros((2, 1), np.int64), np.zeros(1, np.uint8)
            sizes = kernel.take_apart(data, offsets, code, nulls, bases, numbers, there, is_taken, True, ENTRIES_MAX)
        else:
            sizes = np.full(self.slot_count, rows, np.int64)
        bases[1:] = np.cumsum(sizes)[:-1]
        total = int(sizes.sum())
        numbers, there = np.empty((2, total), np.int64), np.empty(total, np.uint8)
        counts = kernel.take_apart(data, offsets, code, nulls, bases, numbers, there, is_taken, False, ENTRIES_MAX)
        return Found(data, numbers, there, bases, counts), is_taken

    def _slot(self) -> int:
        self.slot_count += 1
        return self.slot_count - 1

    def _add(self, part: Part) -> list[int]:
        """Add the instructions of a part. Return the slots that get a null when the part is null."""
        if isinstance(part, AvroLeaf):
            slot = self._slot()
            self.code.append(_leaf_code(part, slot))
            return [slot]
        if isinstance(part, AvroOption):
            at = len(self.code)
            self.code.append([])
            slots = self._add(part.inner)
            first = len(self.nulls)
            self.nulls.extend(slots)
            self.code[at] = [kernel.OPTION, part.null_index, first, len(self.nulls), len(self.code)]
            return slots
        if isinstance(part, AvroRecord):
            slots = [self._slot()]
            self.code.append([kernel.PRESENT, slots[0], 0, 0, 0])
            for _name, inner in part.fields:
                slots.extend(self._add(inner))
            return slots
        if isinstance(part, AvroUnion):
            raise _UnknownToKernel
        self.has_repeats = True
        slot, at = self._slot(), len(self.code)
        self.code.append([])
        if isinstance(part, AvroMap):
            self._add(_KEY)
        self._add(part.item)
        self.code.append([kernel.END, slot, 0, 0, len(self.code) + 1])
        self.code[at] = [kernel.REPEAT, slot, 0, 0, len(self.code)]
        return [slot]


class _UnknownToKernel(Exception):
    """A part that the kernel cannot decode. Never leaves this module."""


_KEY = AvroLeaf("string", pa.string())


def _leaf_code(leaf: AvroLeaf, slot: int) -> list[int]:
    if pa.types.is_decimal(leaf.type):
        high, low = divmod(10**leaf.type.precision, 1 << 64)
        what = kernel.DECIMAL_FIXED if leaf.avro == "fixed" else kernel.DECIMAL_BYTES
        return [what, slot, _signed(high), _signed(low), leaf.size]
    first = len(leaf.symbols) if leaf.avro == "enum" else leaf.size if leaf.avro == "fixed" else leaf.times
    return [_CODES[leaf.avro], slot, first, leaf.over, 0]


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


class Assembler:
    """Makes columns from slots, in the order in which the program has numbered them."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._next = 0

    def struct(self, record: AvroRecord, rows: int) -> pa.StructArray:
        """Return the columns of whole data."""
        arrays = [self._column(part) for _name, part in record.fields]
        assert all(len(array) == rows for array in arrays)
        return pa.StructArray.from_arrays(arrays, fields=list(record.type))

    def _column(self, part: Part) -> pa.Array:
        if isinstance(part, AvroOption):
            return self._column(part.inner)
        assert not isinstance(part, AvroUnion)
        first, second, is_null = self._found.slot(self._next)
        self._next += 1
        mask = pa.array(is_null) if is_null.any() else None
        if isinstance(part, AvroLeaf):
            return self._leaf(part, first, second, is_null)
        if isinstance(part, AvroRecord):
            arrays = [self._column(inner) for _name, inner in part.fields]
            return pa.StructArray.from_arrays(arrays, fields=list(part.type), mask=mask)
        offsets = pa.array(_offsets(first))
        if isinstance(part, AvroArray):
            return pa.ListArray.from_arrays(offsets, self._column(part.item), type=part.type, mask=mask)
        keys = self._column(_KEY)
        return pa.MapArray.from_arrays(offsets, keys, self._column(part.item), type=part.type, mask=mask)

    def _leaf(
        self, leaf: AvroLeaf, first: NDArray[np.int64], second: NDArray[np.int64], is_null: NDArray[np.bool_]
    ) -> pa.Array:
        if leaf.avro == "null":
            return pa.nulls(len(first), leaf.type)
        if pa.types.is_decimal(leaf.type):
            halves = pa.py_buffer(np.stack([first, second], axis=1).tobytes())
            return pa.Array.from_buffers(leaf.type, len(first), [_bitmap(is_null), halves])
        if leaf.avro == "enum":
            return pa.array(leaf.symbols, pa.string()).take(pa.array(first, mask=is_null))
        if leaf.avro in ("bytes", "string", "fixed"):
            offsets = _offsets(second)
            target = np.empty(int(offsets[-1]), np.uint8)
            kernel.gather(self._found.data, first, second, target)
            kind = pa.string() if leaf.avro == "string" else pa.binary()
            buffers = [_bitmap(is_null), pa.py_buffer(offsets), pa.py_buffer(target)]
            made = pa.Array.from_buffers(kind, len(first), buffers)
            return pa.array([uuid_text(value) for value in made.to_pylist()], pa.string()) if leaf.is_uuid else made
        if leaf.avro in ("float", "double"):
            bits = first.astype(np.uint32).view(np.float32) if leaf.avro == "float" else first.view(np.float64)
            return pa.array(bits, leaf.type, mask=is_null, from_pandas=False)
        if pa.types.is_date(leaf.type):
            return pa.array(first.astype(np.int32), pa.int32(), mask=is_null).view(leaf.type)
        if pa.types.is_timestamp(leaf.type):
            return pa.array(first, pa.int64(), mask=is_null).view(leaf.type)
        return pa.array(first.astype(leaf.type.to_pandas_dtype()), leaf.type, mask=is_null)


def uuid_text(value: bytes | None) -> str | None:
    return None if value is None else str(UUID(bytes=value))


def _offsets(sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    assert offsets[-1] < 2**31  # a chunk is smaller
    return offsets.astype(np.int32)


def _bitmap(is_null: NDArray[np.bool_]) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(~is_null, bitorder="little").tobytes()) if is_null.any() else None
