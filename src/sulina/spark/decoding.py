"""Values to columns, by the schema of their topic.

- Each value becomes one row or, if it is Arrow, as many as it has. One that has none, or is bad, is one without data.
- A bad value has a reason; a null value (a tombstone) has neither data nor a reason.
- There is a quick way for whole chunks and an exact one for single values. The quick way takes only what the exact one
  takes, and gives the same; what it leaves goes the exact way, which is also where reasons come from.
- At most CHUNK_ROWS values, and about CHUNK_BYTES of them, are taken apart at once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sulina.core.records.values import checker
from sulina.core.topic import Schema, SchemaKind
from sulina.errors import InvalidRecord, InvalidSettings
from sulina.spark.misfits import Misfit

CHUNK_ROWS = 1 << 16
CHUNK_BYTES = 64 << 20


class Mode(StrEnum):
    """What happens to bad values."""

    PERMISSIVE = "permissive"  # they are rows without data, and with a reason
    QUARANTINE = "quarantine"  # the same, and the caller writes them to another table
    FAILFAST = "failfast"  # InvalidRecord


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded values: `data` and `error` belong together, row by row."""

    data: pa.StructArray  # null: see error; both null: a tombstone, or a value of Arrow without rows
    error: pa.StringArray
    value_rows: pa.Int64Array | None  # which value each row is of; None: row i is of value i


class RowDecoder(Protocol):
    """A decoder for schemas whose values are one row each."""

    type: pa.StructType

    def rows(self, values: pa.BinaryArray) -> tuple[pa.StructArray, NDArray[np.bool_]]:
        """Return the rows of the values that the quick way can decode, and which these are. No value is null."""

    def row(self, value: bytes) -> dict[str, Any] | None:
        """Return the row of one value by the exact way, as Arrow takes it.

        Raises:
            Misfit: it does not fit the schema, and where.
        """


class Decoder:
    """Decodes the values of one topic. It may be pickled; making one takes milliseconds, so keep it."""

    def __init__(self, schema: Schema, mode: Mode, *, is_quick: bool = True) -> None:
        self.schema, self.mode = schema, mode
        self._is_quick = is_quick
        checker(schema)
        self._chunk = self._of_kind(schema)

    @classmethod
    def of(cls, schema: Schema, mode: Mode | str = Mode.PERMISSIVE) -> "Decoder":
        """Make a decoder.

        Raises:
            InvalidSettings: the topic has no schema, or one whose values make no columns.
        """
        if mode not in list(Mode):
            raise InvalidSettings(f"mode {mode!r} is unknown; use one of {', '.join(Mode)}")
        return cls(schema, Mode(mode))

    def __reduce__(self) -> tuple[Any, ...]:
        return Decoder.of, (self.schema, self.mode)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode values to rows.

        Raises:
            InvalidRecord: in FAILFAST, a value does not fit; it has the index of the first.
        """
        if values.type != pa.binary():
            values = values.cast(pa.binary())
        parts, first = [], 0
        for chunk in _chunks(values):
            part = self._chunk(chunk, first)
            if self.mode == Mode.FAILFAST and part.error.null_count < len(part.error):
                _raise_first(part, first)
            parts.append(part)
            first += len(chunk)
        if len(parts) == 1:
            return parts[0]
        rows = [part.value_rows for part in parts]
        return Decoded(
            data=pa.concat_arrays([part.data for part in parts]) if parts else pa.array([], self.type),
            error=pa.concat_arrays([part.error for part in parts]) if parts else pa.array([], pa.string()),
            value_rows=None if not rows or rows[0] is None else pa.concat_arrays(rows),
        )

    def _of_kind(self, schema: Schema) -> Callable[[pa.BinaryArray, int], Decoded]:
        rows: RowDecoder
        if schema.kind == SchemaKind.ARROW:
            from sulina.spark.decode_arrow import ArrowRows

            several = ArrowRows(schema)
            self.type = several.type
            return lambda chunk, first: Decoded(*several.decode(chunk, first))
        if schema.kind == SchemaKind.JSON:
            from sulina.spark.decode_json import JsonRows

            rows = JsonRows(schema)
        elif schema.kind == SchemaKind.AVRO:
            from sulina.spark.decode_avro import AvroRows

            rows = AvroRows(schema)
        else:
            raise InvalidSettings("the topic has no schema, so its values cannot be decoded: read them with decode=raw")
        self.type = rows.type
        return lambda chunk, _first: _decode_rows(rows, chunk, is_quick=self._is_quick)


def _chunks(values: pa.BinaryArray) -> Iterator[pa.BinaryArray]:
    rows_max = max(1, min(CHUNK_ROWS, CHUNK_BYTES * len(values) // max(1, values.nbytes)))
    for start in range(0, len(values), rows_max):
        yield values.slice(start, rows_max)


def _raise_first(part: Decoded, first: int) -> None:
    row = int(np.flatnonzero(part.error.is_valid().to_numpy(zero_copy_only=False))[0])
    index = first + row if part.value_rows is None else part.value_rows[row].as_py()
    raise InvalidRecord(index=index, reason=part.error[row].as_py())


def _decode_rows(rows: RowDecoder, values: pa.BinaryArray, *, is_quick: bool) -> Decoded:
    """Decode by the quick way, then by the exact way what is left, and return all in the order of the values."""
    count = len(values)
    indices = np.full(count, -1, np.int64)  # where among the rows that were made; -1: nowhere
    present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    quick = pa.array([], rows.type)
    left = present
    if is_quick and len(present):
        quick, is_taken = rows.rows(values if len(present) == count else values.drop_null())
        indices[present[is_taken]] = np.arange(len(quick))
        left = present[~is_taken]
    if not len(left):
        if len(quick) == count:
            return Decoded(quick, pa.nulls(count, pa.string()), None)
        return Decoded(_placed([quick], indices), pa.nulls(count, pa.string()), None)
    good: list[dict[str, Any] | None] = []
    reasons: list[str | None] = [None] * count
    for index, value in zip(left.tolist(), values.take(pa.array(left)).to_pylist(), strict=True):
        try:
            row = rows.row(value)
        except Misfit as misfit:
            reasons[index] = str(misfit)
            continue
        indices[index] = len(quick) + len(good)
        good.append(row)
    exact = pa.array(good, rows.type)
    return Decoded(_placed([quick, exact], indices), pa.array(reasons, pa.string()), None)


def _placed(parts: list[pa.StructArray], indices: NDArray[np.int64]) -> pa.StructArray:
    return pa.concat_arrays(parts).take(pa.array(indices, mask=indices < 0))
