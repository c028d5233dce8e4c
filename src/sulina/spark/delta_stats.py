"""Statistics of a Parquet file, from its footer, as Delta Lake's log has them.

Readers leave a file out when they see from these that it has no row for them. So a lowest value is never higher than
what is there and a highest never lower, and where that cannot be said for sure, nothing is said.
"""

import json
import math
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

COLUMNS_MAX = 32
TEXT_CHARACTERS_MAX = 32
DECIMAL_DIGITS_MAX = 15  # readers take JSON numbers for doubles, which are exact up to here
_CODE_POINT_MAX = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - of UTC, and printed as such


@dataclass(frozen=True, slots=True)
class StatsColumn:
    """A column of a Parquet file, with or without statistics in the log."""

    path: tuple[str, ...]  # in structs
    type: pa.DataType
    parquet_path: str
    has_stats: bool


def leaves(schema: pa.Schema) -> list[StatsColumn]:
    """Return the columns in the order in which a Parquet file has them."""
    found = [leaf for field in schema for leaf in _leaves(field.name, field.type, (), "", in_struct=True)]
    return [leaf if n < COLUMNS_MAX else StatsColumn(leaf.path, leaf.type, leaf.parquet_path, False)
            for n, leaf in enumerate(found)]  # fmt: skip


def _leaves(
    name: str, kind: pa.DataType, above: tuple[str, ...], prefix: str, *, in_struct: bool
) -> Iterator[StatsColumn]:
    path, at = (*above, name), f"{prefix}{name}"
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(field.name, field.type, path, f"{at}.", in_struct=in_struct)
    elif pa.types.is_map(kind):
        yield from _leaves("key", kind.key_type, path, f"{at}.key_value.", in_struct=False)
        yield from _leaves("value", kind.item_type, path, f"{at}.key_value.", in_struct=False)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves("element", kind.value_type, path, f"{at}.list.", in_struct=False)
    else:
        is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        yield StatsColumn(path, kind, at, in_struct and not is_binary)


def with_nan(batch: pa.Table, columns: Sequence[StatsColumn]) -> set[tuple[str, ...]]:
    """Return which columns have a NaN: footers leave it out, and Spark sorts it above all numbers."""
    found = set()
    for leaf in columns:
        if leaf.has_stats and pa.types.is_floating(leaf.type):
            values = batch.column(leaf.path[0])
            if len(leaf.path) > 1:
                values = pc.struct_field(values, list(leaf.path[1:]))
            if pc.any(pc.is_nan(values)).as_py():
                found.add(leaf.path)
    return found


def stats_json(metadata: Any, columns: Sequence[StatsColumn], nan: AbstractSet[tuple[str, ...]]) -> str:
    """Return the statistics of a file with this footer; `nan` names the columns that have one."""
    stats: dict[str, Any] = {"numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for number, leaf in enumerate(columns):
        if not leaf.has_stats:
            continue
        low, high, nulls = _of_column(metadata, number)
        if nulls is not None:
            _set(stats["nullCount"], leaf.path, nulls)
        lowest = _bound(low, leaf.type, is_highest=False) if low is not None else None
        highest = _bound(high, leaf.type, is_highest=True) if high is not None and leaf.path not in nan else None
        if lowest is not None:
            _set(stats["minValues"], leaf.path, lowest)
        if highest is not None:
            _set(stats["maxValues"], leaf.path, highest)
    return json.dumps(stats, ensure_ascii=False, separators=(",", ":"))


def _of_column(metadata: Any, number: int) -> tuple[Any, Any, int | None]:
    """Return the lowest value, the highest and the number of nulls; None: not known."""
    lows, highs, nulls, is_known = [], [], 0, True
    has_nulls_known = True
    for group in range(metadata.num_row_groups):
        column = metadata.row_group(group).column(number)
        found = column.statistics
        if found is None or not found.has_null_count:
            has_nulls_known = False
        else:
            nulls += found.null_count
        if found is not None and found.has_min_max:
            lows.append(_raw(found, "min"))
            highs.append(_raw(found, "max"))
        elif found is None or not found.has_null_count or found.null_count < column.num_values:
            is_known = False
    null_count = nulls if has_nulls_known else None
    if not is_known or not lows:
        return None, None, null_count
    return min(lows), max(highs), null_count


def _raw(found: Any, which: str) -> Any:
    if found.physical_type == "BYTE_ARRAY":
        return getattr(found, which)
    raw = getattr(found, f"{which}_raw")
    if found.physical_type == "FIXED_LEN_BYTE_ARRAY":
        return int.from_bytes(raw, "big", signed=True)
    return raw


def _bound(raw: Any, kind: pa.DataType, *, is_highest: bool) -> Any:
    """Return the lowest or highest value of a column as the log has it; None: nothing is left out for it."""
    if isinstance(raw, str):
        is_short = not is_highest or len(raw) <= TEXT_CHARACTERS_MAX
        return raw[:TEXT_CHARACTERS_MAX] if is_short else _above(raw[:TEXT_CHARACTERS_MAX])
    if pa.types.is_integer(kind):
        return int(raw)
    if pa.types.is_floating(kind):
        return float(raw) if math.isfinite(raw) else None
    if pa.types.is_decimal(kind):
        if kind.precision > DECIMAL_DIGITS_MAX:
            return None
        return float(raw) / 10**kind.scale if kind.scale else raw
    try:
        if pa.types.is_date(kind):
            return (_EPOCH.date() + timedelta(days=raw)).isoformat()
        if pa.types.is_timestamp(kind):
            # Readers may take milliseconds: a highest one that is rounded up loses nothing.
            at = _EPOCH + timedelta(milliseconds=-(-raw // 1000) if is_highest else raw // 1000)
            return at.isoformat(timespec="milliseconds") + ("Z" if kind.tz is not None else "")
    except OverflowError:
        return None
    return None  # booleans


def _above(prefix: str) -> str | None:
    """Return the lowest text that is higher than every text with this prefix; None if no text is."""
    while prefix:
        following = ord(prefix[-1]) + 1
        if _SURROGATES[0] <= following <= _SURROGATES[1]:
            following = _SURROGATES[1] + 1
        if following <= _CODE_POINT_MAX:
            return prefix[:-1] + chr(following)
        prefix = prefix[:-1]
    return None


def _set(target: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        target = target.setdefault(name, {})
    target[path[-1]] = value
