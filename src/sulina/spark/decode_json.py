"""JSON values to columns, by the topic's JSON Schema. What the broker's own check refuses is refused here too.

A property that comes twice has its last value, as everywhere in Sulina.
"""

from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sulina.core.topic import Schema
from sulina.spark.json_columns import VALUE, JsonObject, columns_of, converted, readable, step
from sulina.spark.misfits import Misfit

VALUE_DEPTH_MAX = 200  # far from where Python, or the validator, would give up

_UNREADABLE = (ValueError, RecursionError)  # msgspec's own errors are ValueErrors, and so is bad UTF-8


class JsonRows:
    """Decodes values that are one row each."""

    def __init__(self, schema: Schema) -> None:
        self._column = columns_of(schema.definition)
        self._is_record = isinstance(self._column, JsonObject)
        self._validator = jsonschema_rs.validator_for(
            schema.definition, offline=True, pattern_options=jsonschema_rs.RegexOptions(), ignore_unknown_formats=True
        )
        # Null as a whole is left to `row`.
        self._quick = msgspec.json.Decoder(self._column.reads if self._is_record else readable(self._column))
        self._open: msgspec.json.Decoder[Any] | None = None
        if isinstance(self._column, JsonObject) and self._column.has_rest:
            self._open = msgspec.json.Decoder(self._column.open)
            self._names = {each.name for each in self._column.properties}
        self._read = msgspec.json.Decoder().decode
        inner = self._column.type
        self.type: pa.StructType = inner if self._is_record else pa.struct([pa.field(VALUE, inner)])

    def rows(self, values: pa.BinaryArray) -> tuple[pa.StructArray, NDArray[np.bool_]]:
        """Return the rows of the values that fit for certain, and which these are. No value is null."""
        texts = values.to_pylist()
        cells, rests, is_taken = self._read_quickly(texts)
        if not self._column.is_plain:
            fits = self._fitting(texts, is_taken)
            kept = np.flatnonzero(fits).tolist()
            cells = [cells[index] for index in kept]
            rests = {row: rests[index] for row, index in enumerate(kept) if index in rests}
            is_taken[is_taken] = fits
        built = self._column.build(cells)
        if not self._is_record:
            built = pa.StructArray.from_arrays([built], fields=list(self.type))
        elif rests:
            rest = pa.array([rests.get(index) for index in range(len(cells))], pa.string())
            built = pa.StructArray.from_arrays([*built.flatten()[:-1], rest], fields=list(self.type))
        return built, is_taken

    def row(self, value: bytes) -> dict[str, Any] | None:
        """Return the row of one value; None for JSON's null where the schema allows that.

        Raises:
            Misfit: it does not fit the schema, and where.
        """
        try:
            found = self._read(value)
        except UnicodeDecodeError:
            raise Misfit("not UTF-8") from None
        except RecursionError:
            raise Misfit("nested too deep") from None
        except ValueError as error:
            raise Misfit(str(error)) from None
        if _is_deep(value, found):
            raise Misfit("nested too deep")
        try:
            self._validator.validate(found)
        except jsonschema_rs.ValidationError as error:
            raise Misfit(error.message, *_way(error.instance_path)) from None
        except ValueError as error:  # nested too deep for the validator
            raise Misfit(str(error)) from None
        try:
            row = converted(self._column, found)
        except Misfit as misfit:
            raise misfit.under("$") from None
        return row if self._is_record else {VALUE: row}

    def _read_quickly(self, texts: Sequence[bytes]) -> tuple[list[Any], dict[int, str], NDArray[np.bool_]]:
        """Return the cells that could be read, the other properties of some of them, and which values were read."""
        cells: list[Any] = []
        rests: dict[int, str] = {}
        is_taken = np.ones(len(texts), np.bool_)
        left, refused = iter(texts), 0
        while True:
            try:
                cells.extend(map(self._quick.decode, left))  # keeps those before one that cannot be read
                return cells, rests, is_taken
            except _UNREADABLE:
                index = len(cells) + refused
            found = self._open_row(texts[index])
            if found is None:
                is_taken[index] = False
                refused += 1
            else:
                rests[len(cells)] = found[1]
                cells.append(found[0])

    def _open_row(self, text: bytes) -> tuple[Any, str] | None:
        """Return an object with properties that the schema does not name, and those as text. None: it is not one."""
        if self._open is None:
            return None
        try:
            cell, found = self._open.decode(text), self._read(text)
            if _is_deep(text, found) or not self._validator.is_valid(found):
                return None
        except _UNREADABLE:
            return None
        rest = {name: value for name, value in found.items() if name not in self._names}
        if not rest:  # then something else was wrong with it
            return None
        return cell, msgspec.json.encode(rest).decode()

    def _fitting(self, texts: Sequence[bytes], is_taken: NDArray[np.bool_]) -> list[bool]:
        """Return which of the values that were read the validator accepts too."""
        read, is_valid = self._read, self._validator.is_valid
        fits = []
        for index in np.flatnonzero(is_taken).tolist():
            try:
                found = read(texts[index])
                fits.append(not _is_deep(texts[index], found) and is_valid(found))
            except _UNREADABLE:
                fits.append(False)
        return fits


def _is_deep(text: bytes, found: Any) -> bool:
    if text.count(b"[") + text.count(b"{") <= VALUE_DEPTH_MAX:  # nearly all values
        return False
    level, depth = [found], 0
    while level and depth <= VALUE_DEPTH_MAX:
        parts = [part for part in level if isinstance(part, dict | list)]
        level = [value for part in parts for value in (part.values() if isinstance(part, dict) else part)]
        depth += bool(parts)
    return depth > VALUE_DEPTH_MAX


def _way(path: Sequence[str | int]) -> list[str]:
    return ["$", *(f"[{part}]" if isinstance(part, int) else step(part) for part in path)]
