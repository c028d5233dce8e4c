"""Leaves out files of a table that cannot have rows which a filter lets through, by partition values and statistics.

Spark applies every filter again to the rows, so a file that stays for nothing costs time, and one that goes wrongly
costs rows: whatever is not known, or not understood, stays.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

_COARSE = timedelta(milliseconds=1)  # others cut a highest instant to milliseconds


def pruned(found: pa.Table, filters: Iterable[Filter], partition_columns: Sequence[str]) -> pa.Table:
    """Return the rows of a snapshot (see `delta_log.snapshot`) whose files may have rows that pass all filters."""
    names = {name.lower(): name for name in found.column_names}
    for one in filters:
        attribute = getattr(one, "attribute", None)
        if not attribute or any("." in part for part in attribute):
            continue
        column = ".".join(attribute).lower()
        is_partition = column in {name.lower() for name in partition_columns}
        kinds = ("partition", "partition") if is_partition else ("min", "max")
        low, high = (names.get(f"{kind}.{column}") for kind in kinds)
        nulls = names.get(f"null_count.{column}")
        try:
            mask = _mask(found, one, low, high, nulls, is_partition=is_partition)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            mask = None  # a value that the column cannot have: Spark knows better what to make of it
        if mask is not None:
            found = found.filter(mask)
    return found


def _mask(
    found: pa.Table, one: Filter, low: str | None, high: str | None, nulls: str | None, *, is_partition: bool
) -> pa.ChunkedArray | None:
    if isinstance(one, IsNull | IsNotNull):
        return _null_mask(found, is_null=isinstance(one, IsNull), partition=low if is_partition else None, nulls=nulls)
    if low is None or high is None:
        return None
    lows, highs = found.column(low), found.column(high)
    if isinstance(one, In):
        masks = [_between(lows, highs, value, value) for value in one.value if value is not None]
        mask = _any(masks) if masks and None not in masks else None
    elif isinstance(one, EqualTo | EqualNullSafe):
        mask = None if one.value is None else _between(lows, highs, one.value, one.value)
    elif isinstance(one, GreaterThan | GreaterThanOrEqual):
        mask = _between(lows, highs, one.value, None)
    elif isinstance(one, LessThan | LessThanOrEqual):
        mask = _between(lows, highs, None, one.value)
    elif isinstance(one, StringStartsWith):
        begins = pc.or_(pc.less_equal(lows, one.value), pc.starts_with(lows, one.value))
        mask = pc.and_(pc.greater_equal(highs, one.value), begins)
    else:
        return None
    # A partition that is null has no row that any of these leaves; a statistic that is null is one that is not known.
    return None if mask is None else pc.fill_null(mask, not is_partition)


def _null_mask(found: pa.Table, *, is_null: bool, partition: str | None, nulls: str | None) -> pa.ChunkedArray | None:
    if partition is not None:
        column = found.column(partition)
        return pc.is_null(column) if is_null else pc.is_valid(column)
    if nulls is None:
        return None
    counts = found.column(nulls)
    mask = pc.greater(counts, 0) if is_null else pc.less(counts, found.column("num_records"))
    return pc.fill_null(mask, True)


def _between(lows: pa.ChunkedArray, highs: pa.ChunkedArray, low: Any, high: Any) -> pa.ChunkedArray | None:
    """Return where some value of [low, high] may be; an end that is None is open."""
    mask = None
    if low is not None:
        if pa.types.is_floating(highs.type) and high is None:
            return None  # NaN is above every number to Spark, and most statistics keep silent about it
        value = _comparable(low, highs.type)
        mask = None if value is None else pc.greater_equal(highs, value)
        if mask is None:
            return None
    if high is not None:
        value = _comparable(high, lows.type, is_high=True)
        if value is None:
            return None
        below = pc.less_equal(lows, value)
        mask = below if mask is None else pc.and_(mask, below)
    return mask


def _comparable(value: Any, kind: pa.DataType, *, is_high: bool = False) -> pa.Scalar | None:
    if isinstance(value, float) and value != value:
        return None
    if pa.types.is_timestamp(kind):
        if not isinstance(value, datetime) or (value.tzinfo is None) != (kind.tz is None):
            return None
        value = value if is_high else value - _COARSE
    elif isinstance(value, datetime):
        return None
    return pa.scalar(value, kind)


def _any(masks: Sequence[Any]) -> Any:
    found = masks[0]
    for mask in masks[1:]:
        found = pc.or_kleene(found, mask)
    return found
