"""Rows in an order in which those that are near in several columns lie near each other.

Each column's values become ranks, and the bits of the ranks are interleaved (a Z-order curve). So a file, or a row
group, has a narrow range in each of the columns, and readers leave out most of them whichever column they ask for.
"""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sulina.errors import InvalidSettings

COLUMNS_MAX = 8
RUN_BYTES = 256 << 20  # in Arrow's form, that are ordered together; as much again while they are
BATCH_ROWS = 1 << 12
_CODE_BITS = 64


def z_columns(names: Sequence[str], schema: pa.Schema, partition_columns: Sequence[str]) -> tuple[str, ...]:
    """Return columns with the table's own names.

    Raises:
        InvalidSettings: one is unknown, nested, a partition column or given twice.
    """
    known = {name.lower(): name for name in schema.names}
    found: list[str] = []
    for name in names:
        column = known.get(name.lower())
        if column is None:
            close = get_close_matches(name.lower(), list(known), n=1)
            hint = f"; did you mean {known[close[0]]}?" if close else f"; the columns are {', '.join(schema.names)}"
            raise InvalidSettings(f"z-order: column {name!r} is unknown{hint}")
        if column in partition_columns:
            raise InvalidSettings(f"z-order: {column} is a partition column, of which a file has one value anyway")
        if pa.types.is_nested(schema.field(column).type):
            raise InvalidSettings(f"z-order: {column} is {schema.field(column).type}: take a simple one")
        if column in found:
            raise InvalidSettings(f"z-order: {column} is there twice")
        found.append(column)
    if len(found) > COLUMNS_MAX:
        raise InvalidSettings(f"z-order: {len(found)} columns, {COLUMNS_MAX} are allowed; two or three serve best")
    return tuple(found)


def z_ordered(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], *, run_bytes: int = RUN_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield all rows, ordered in runs of at most `run_bytes`, so that memory is bounded."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if waiting and size + batch.nbytes > run_bytes:
            yield from _run(waiting, columns)
            waiting, size = [], 0
        waiting.append(batch)
        size += batch.nbytes
    if waiting:
        yield from _run(waiting, columns)


def _run(batches: list[pa.RecordBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(batches)
    codes = z_codes([_ranks(table.column(name)) for name in columns], table.num_rows)
    yield from table.take(pa.array(np.argsort(codes, kind="stable"))).to_batches(max_chunksize=BATCH_ROWS)


def _ranks(values: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """Return the rank of each value from 0 on; equal values have the same, and null has the highest."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    ranks = pc.rank(values.combine_chunks(), sort_keys="ascending", tiebreaker="dense")
    return np.asarray(ranks.to_numpy() - np.uint64(1), np.uint64)


def z_codes(ranks: Sequence[npt.NDArray[np.uint64]], rows: int) -> npt.NDArray[np.uint64]:
    """Interleave the bits of ranks, the highest first. Ranks with too many bits lose their lowest."""
    codes = np.zeros(rows, np.uint64)
    if not rows:
        return codes
    bits = _CODE_BITS // len(ranks)
    ranks_scaled = []
    for column in ranks:
        # Stretched over all its bits: a column with few values counts as much as one with many.
        top = max(1, int(column.max()))
        scaled = column.astype(np.float64) * ((2.0 ** min(bits, 32) - 1) / top)
        ranks_scaled.append(scaled.astype(np.uint64))
    for bit in reversed(range(min(bits, 32))):
        for rank in ranks_scaled:
            codes = (codes << np.uint64(1)) | ((rank >> np.uint64(bit)) & np.uint64(1))
    return codes
