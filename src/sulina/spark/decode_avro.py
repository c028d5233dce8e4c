"""Avro data to columns, by the topic's schema. A datum is one value, without a header, to its last byte.

Stricter than most readers: a branch or symbol that does not exist, a truth that is neither 0 nor 1, and bytes after the
datum are faults.
"""

import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sulina.core.topic import Schema
from sulina.spark.avro_columns import (
    DIGITS_MAX,
    AvroArray,
    AvroLeaf,
    AvroMap,
    AvroOption,
    AvroRecord,
    AvroUnion,
    Part,
    parts_of,
)
from sulina.spark.misfits import Misfit

ENTRIES_MAX = 1 << 24  # cells that one datum may become

_EXACT = Context(prec=DIGITS_MAX + 1)


class AvroRows:
    """Decodes values that are one row each."""

    def __init__(self, schema: Schema) -> None:
        from sulina.spark.avro_program import Program

        self._record = parts_of(schema.definition)
        self._program = Program.of(self._record)
        self._fields = [(name, _reading(part)) for name, part in self._record.fields]
        self.type: pa.StructType = self._record.type

    def rows(self, values: pa.BinaryArray) -> tuple[pa.StructArray, NDArray[np.bool_]]:
        """Return the rows of the data that fit, and which these are. No value is null."""
        if self._program is None:
            return pa.array([], self.type), np.zeros(len(values), np.bool_)
        from sulina.spark.avro_program import Assembler

        found, is_taken = self._program.run(*_bytes_of(values))
        return Assembler(found).struct(self._record, int(is_taken.sum())), is_taken.astype(np.bool_)

    def row(self, value: bytes) -> dict[str, Any]:
        """Return the row of one datum.

        Raises:
            Misfit: it does not fit the schema, and where.
        """
        datum = _Datum(value)
        row = _record(self._fields, datum)
        if datum.position != len(value):
            raise Misfit(f"{len(value) - datum.position} bytes are left over after the datum")
        return row


def _bytes_of(values: pa.BinaryArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    _validity, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    array = np.frombuffer(b"" if data is None else data, np.uint8)
    array.flags.writeable = False
    return array, ends


class _Datum:
    """The bytes of a value, and how far they have been read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        self._entries = 0

    def count(self, entries: int) -> None:
        """Add to the number of cells of this datum.

        Raises:
            Misfit: there are too many.
        """
        self._entries += entries
        if self._entries > ENTRIES_MAX:
            raise Misfit(f"becomes more than {ENTRIES_MAX} cells")

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self.position:
            raise Misfit(f"{size} bytes are expected, {len(self._data) - self.position} are left")
        self.position += size
        return self._data[self.position - size : self.position]

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            if shift == 63 and byte > 1:
                raise Misfit("is a number of more than 64 bits")
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
            shift += 7


_Reading = Callable[[_Datum], Any]


def _reading(part: Part) -> _Reading:
    """Return a function that reads a part from a datum, as Arrow takes it. It raises Misfit."""
    if isinstance(part, AvroLeaf):
        return _counted(_leaf_reading(part))
    if isinstance(part, AvroOption):
        return _option_reading(part)
    if isinstance(part, AvroUnion):
        return _union_reading(part)
    if isinstance(part, AvroRecord):
        fields = [(name, _reading(inner)) for name, inner in part.fields]
        return _counted(lambda datum: _record(fields, datum))
    item = _reading(part.item)
    return _counted(lambda datum: _repeated(item, datum, has_keys=isinstance(part, AvroMap)))


def _counted(reading: _Reading) -> _Reading:
    def read(datum: _Datum) -> Any:
        datum.count(1)
        return reading(datum)

    return read


def _record(fields: list[tuple[str, _Reading]], datum: _Datum) -> dict[str, Any]:
    row = {}
    for name, reading in fields:
        try:
            row[name] = reading(datum)
        except Misfit as misfit:
            raise misfit.under(f".{name}") from None
    return row


def _repeated(item: _Reading, datum: _Datum, *, has_keys: bool) -> list[Any]:
    found: list[Any] = []
    try:
        while count := datum.varint():
            if count < 0:
                count = -count
                if datum.varint() < 0 or count >= 2**63:
                    raise Misfit("a block of items has no size")
            for _ in range(count):
                if has_keys:
                    datum.count(1)
                    key = _string(datum)
                    found.append((key, item(datum)))
                else:
                    found.append(item(datum))
    except Misfit as misfit:
        raise misfit.under(f"[{len(found)}]") from None
    return found


def _option_reading(part: AvroOption) -> _Reading:
    reading, null_index, width = _reading(part.inner), part.null_index, _width(part.inner)

    def read(datum: _Datum) -> Any:
        index = datum.varint()
        if index not in (0, 1):
            raise Misfit(f"there is no branch {index}")
        if index != null_index:
            return reading(datum)
        datum.count(width)
        return None

    return read


def _width(part: Part) -> int:
    """Return how many cells a part is when it is null."""
    if isinstance(part, AvroOption):
        return _width(part.inner)
    return 1 + sum(_width(inner) for _name, inner in part.fields) if isinstance(part, AvroRecord) else 1


def _union_reading(part: AvroUnion) -> _Reading:
    readings = [_reading(branch) for branch in part.branches]

    def read(datum: _Datum) -> str | None:
        index = datum.varint()
        if not 0 <= index < len(readings):
            raise Misfit(f"there is no branch {index}")
        value = _for_json(part.branches[index], readings[index](datum))
        return None if value is None else msgspec.json.encode(value).decode()

    return read


def _for_json(part: Part, value: Any) -> Any:
    """Convert a value for JSON: bytes to base64, times to numbers, decimals to strings. JSON text is kept."""
    if value is None:
        return None
    if isinstance(part, AvroOption):
        return _for_json(part.inner, value)
    if isinstance(part, AvroRecord):
        return {name: _for_json(inner, value[name]) for name, inner in part.fields}
    if isinstance(part, AvroMap):
        return {key: _for_json(part.item, each) for key, each in value}
    if isinstance(part, AvroArray):
        return [_for_json(part.item, each) for each in value]
    return msgspec.Raw(value.encode()) if isinstance(part, AvroUnion) else value


def _leaf_reading(leaf: AvroLeaf) -> _Reading:
    if leaf.avro == "null":
        return lambda _datum: None
    if leaf.avro in ("int", "long"):
        return lambda datum: _integer(leaf, datum)
    if leaf.avro == "boolean":
        return _truth
    if leaf.avro in ("float", "double"):
        unpack = struct.Struct("<f" if leaf.avro == "float" else "<d")
        return lambda datum: unpack.unpack(datum.take(unpack.size))[0]
    if leaf.avro == "enum":
        return lambda datum: _symbol(leaf, datum)
    if leaf.avro == "string":
        return _string
    size = leaf.size if leaf.avro == "fixed" else None
    if pa.types.is_decimal(leaf.type):
        return lambda datum: _decimal(leaf, datum.take(datum.varint() if size is None else size))
    if leaf.is_uuid:
        from sulina.spark.avro_program import uuid_text

        return lambda datum: uuid_text(datum.take(leaf.size))
    return lambda datum: datum.take(datum.varint() if size is None else size)


def _integer(leaf: AvroLeaf, datum: _Datum) -> int:
    number = datum.varint()
    if leaf.avro == "int" and not -(2**31) <= number < 2**31:
        raise Misfit(f"{number} does not fit 32 bits")
    number = number * leaf.times // leaf.over
    if leaf.times > 1 and abs(number) > (2**63 - 1) // leaf.times * leaf.times:
        raise Misfit("is a time that microseconds of 64 bits do not reach")
    return number


def _truth(datum: _Datum) -> bool:
    byte = datum.take(1)[0]
    if byte > 1:
        raise Misfit(f"{byte} is neither false nor true")
    return byte == 1


def _symbol(leaf: AvroLeaf, datum: _Datum) -> str:
    index = datum.varint()
    if not 0 <= index < len(leaf.symbols):
        raise Misfit(f"there is no symbol {index}")
    return leaf.symbols[index]


def _string(datum: _Datum) -> str:
    try:
        return datum.take(datum.varint()).decode()
    except UnicodeDecodeError:
        raise Misfit("is not UTF-8") from None


def _decimal(leaf: AvroLeaf, data: bytes) -> Decimal:
    number = int.from_bytes(data, "big", signed=True)
    if abs(number) >= 10**leaf.type.precision:
        raise Misfit(f"has more than {leaf.type.precision} digits")
    return Decimal(number).scaleb(-leaf.type.scale, _EXACT)
