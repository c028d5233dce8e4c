"""Rows of a table by the values of its partition columns, and those values as text.

The log of a table says which values a file has. The folder that it lies in says so too, as Hive has it, for readers
that look there; nothing here reads it. An empty string is null: that is how Delta Lake has it.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from sulina.errors import InvalidSettings

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
FOLDER_BYTES_MAX = 200  # length of one folder's name; file systems allow 255
_ESCAPED = re.compile("[\x01-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")

Values = tuple[str | None, ...]  # of the partition columns, in their order


def split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Yield the rows of each combination of values, in the order in which they came."""
    codes = np.zeros(batch.num_rows, np.int64)
    texts: list[list[str | None]] = []
    indices = []
    for name in columns:
        encoded = batch.column(name).dictionary_encode(null_encoding="encode")
        texts.append(to_texts(encoded.dictionary))
        indices.append(encoded.indices.to_numpy(zero_copy_only=False))
        if len(encoded.dictionary) > 1:
            # Made dense again each time, so that the product never overflows.
            codes = np.unique(codes * len(encoded.dictionary) + indices[-1], return_inverse=True)[1]
    if not batch.num_rows:
        return
    if not codes.any():
        yield tuple(text[index[0]] for text, index in zip(texts, indices, strict=True)), batch
        return
    order = np.argsort(codes, kind="stable")
    ordered = batch.take(pa.array(order))
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        row = order[start]
        values = tuple(text[index[row]] for text, index in zip(texts, indices, strict=True))
        yield values, ordered.slice(start, end - start)


def to_texts(values: pa.Array) -> list[str | None]:
    """Return partition values as the log has them.

    Raises:
        InvalidSettings: a date is outside the years that the log can hold.
    """
    if pa.types.is_timestamp(values.type) and values.type.tz is not None:
        values = values.cast(pa.timestamp("us", "UTC"))
    try:
        found = values.to_pylist()
    except (OverflowError, ValueError) as error:
        raise InvalidSettings(f"a partition column has a date outside the years 1 to 9999: {error}") from error
    if pa.types.is_float32(values.type):
        return [None if value is None else str(np.float32(value)) for value in found]
    return [_text(value) for value in found]


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            return f"{value.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
        return value.isoformat(sep=" ", timespec="microseconds")
    return value.isoformat() if isinstance(value, date) else str(value)


def to_scalar(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a text in the log.

    Raises:
        InvalidSettings: it is not of that type.
    """
    if text is None or text == "":
        return pa.scalar(None, kind)
    try:
        if pa.types.is_timestamp(kind) and kind.tz is not None and not re.search(r"(Z|[+-]\d\d:?\d\d)$", text):
            text += "Z"
        return pa.scalar(text).cast(kind)
    except pa.ArrowException as error:
        raise InvalidSettings(f"partition value {text!r} is no {kind}: {error}") from error


# Folders


def folder_of(columns: Sequence[str], values: Values) -> str:
    """Return `day=2026-11-01/kind=a%2Fb/`, or nothing where there are no partition columns."""
    return "".join(f"{_folder(name, value)}/" for name, value in zip(columns, values, strict=True))


def _folder(name: str, value: str | None) -> str:
    folder = f"{_escape(name)}={HIVE_NULL if value is None else _escape(value)}"
    encoded = folder.encode()
    if len(encoded) <= FOLDER_BYTES_MAX:
        return folder
    # Readers go by the log: a folder needs to be nobody else's, no more.
    digest = hashlib.sha256(encoded).hexdigest()[:16]
    return f"{encoded[: FOLDER_BYTES_MAX - 17].decode(errors='ignore').rstrip('%0123456789ABCDEF')}~{digest}"


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found.group()):02X}", text)


def is_hive(path: str, columns: Sequence[str], values: Values) -> bool:
    """Tell whether readers that take values from folder names find these."""
    folders = path.split("/")[:-1]
    if len(folders) != len(columns):
        return False
    for folder, name, value in zip(folders, columns, values, strict=True):
        said_name, _, said = folder.partition("=")
        if unquote(said_name) != name or (value is None) != (said == HIVE_NULL):
            return False
        if value is not None and unquote(said) != value:
            return False
    return True
