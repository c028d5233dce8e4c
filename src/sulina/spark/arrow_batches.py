"""Arrow batches of the records of ranges, with the columns of a topic. Runs in executors."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sulina.core.log.commit import Add
from sulina.core.records.batch import BatchHeader, split
from sulina.core.records.columns import decode_columns, origins
from sulina.core.records.record_columns import SCHEMA
from sulina.errors import CorruptBatch, CorruptSegment, OffsetOutOfRange
from sulina.spark.byte_source import RangeReader
from sulina.spark.commit_feed import pages_back
from sulina.spark.decoding import Decoder, Mode
from sulina.spark.errors import IncompleteScan, StreamDiverged
from sulina.spark.scan import Range
from sulina.spark.schema import DATA, ERROR, RAW_SCHEMA
from sulina.types import Offset, PartitionName, Version


def read_range(
    reader: RangeReader, wanted: Range, columns: Sequence[str], *, fail_on_data_loss: bool, check_crc: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the records of one range. With `check_crc` every batch is checked again.

    Raises:
        OffsetOutOfRange: some are gone, and `fail_on_data_loss` is set.
        CorruptSegment: a batch is damaged.
        IncompleteScan: fewer records came than the range has.
    """
    versions = _Versions(reader, wanted.start) if "version" in columns else None
    offset = wanted.start
    while offset < wanted.end:
        try:
            data, following = reader.read(offset)
        except OffsetOutOfRange as gone:
            if fail_on_data_loss or not offset < gone.start <= gone.end:
                raise
            offset = Offset(gone.start)
            continue
        headers = _checked(data, wanted.partition) if check_crc else split(data, check_crc=False)
        _check_epochs(headers, wanted)
        found = _rows(data, headers, offset, wanted, columns, versions)
        _check_whole(found, headers, offset, min(following, wanted.end), wanted.partition)
        if found is not None:
            yield found
        offset = following


def _check_epochs(headers: list[BatchHeader], wanted: Range) -> None:
    """Check that no batch is of a later epoch than the log had when the range was planned.

    Such a batch has offsets of records that were given up since.

    Raises:
        StreamDiverged: there is one.
    """
    if wanted.epoch is None:
        return
    for header in headers:
        if header.epoch > wanted.epoch and header.base_offset < wanted.end:
            raise StreamDiverged(
                partition=str(wanted.partition), start=header.base_offset, end=wanted.end, epoch=wanted.epoch
            )


def _check_whole(
    found: pa.RecordBatch | None, headers: list[BatchHeader], start: Offset, end: Offset, partition: PartitionName
) -> None:
    """Check that there is a row for every record of [start, end).

    Raises:
        IncompleteScan: there is not.
    """
    rows = 0 if found is None else found.num_rows
    for header in headers:
        if header.is_control:  # has offsets, and no records
            rows += max(0, min(end, header.end_offset) - max(start, header.base_offset))
    if end <= start or rows != end - start:
        raise IncompleteScan(partition=str(partition), start=start, end=max(end, Offset(start + 1)), records=rows)


def _checked(data: memoryview, partition: PartitionName) -> list[BatchHeader]:
    """Return the headers of batches whose checksums are right.

    Raises:
        CorruptSegment: one is not what was written.
    """
    try:
        return split(data)
    except CorruptBatch:
        pass
    position, headers = 0, split(data, check_crc=False)
    for header in headers:
        try:
            split(data[position : position + header.size_bytes])
        except CorruptBatch as error:
            path = f"what was read of {partition.directory}"
            raise CorruptSegment(path=path, position=position, offset=header.base_offset, reason=str(error)) from error
        position += header.size_bytes
    raise AssertionError("one of them is damaged")


def _rows(
    data: memoryview,
    headers: list[BatchHeader],
    offset: Offset,
    wanted: Range,
    columns: Sequence[str],
    versions: "_Versions | None",
) -> pa.RecordBatch | None:
    stored = dict.fromkeys(["offset", *(name for name in columns if name in SCHEMA.names)])
    decoded = decode_columns(data, columns=list(stored), headers=headers)
    offsets = decoded.column("offset").to_numpy(zero_copy_only=True)
    first, last = (int(at) for at in np.searchsorted(offsets, [offset, wanted.end]))
    if first == last:
        return None
    constants = {
        "namespace": wanted.partition.topic.namespace,
        "topic": wanted.partition.topic.topic,
        "partition": wanted.partition.partition,
    }
    arrays = {}
    for name in columns:
        if name in stored:
            arrays[name] = decoded.column(name).slice(first, last - first)
        elif name == "version":
            assert versions is not None
            arrays[name] = versions.of(offsets[first:last])
        elif name == "origin":
            arrays[name] = origins(headers).slice(first, last - first)
        else:
            arrays[name] = pa.repeat(pa.scalar(constants[name], RAW_SCHEMA.field(name).type), last - first)
    if "timestamp" in arrays:
        arrays["timestamp"] = arrays["timestamp"].cast(RAW_SCHEMA.field("timestamp").type)
    schema = pa.schema([RAW_SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=schema)


def with_data(rows: pa.RecordBatch, decoder: Decoder, columns: Sequence[str]) -> pa.RecordBatch:
    """Add the columns that values decode to. In quarantine mode the value is kept only where it does not decode."""
    found = decoder.decode(rows.column("value"))
    if found.value_rows is not None:  # a value of Arrow may have any number of rows
        rows = rows.take(found.value_rows)
    arrays = {name: rows.column(name) for name in columns}
    if decoder.mode == Mode.QUARANTINE and "value" in arrays:
        arrays["value"] = pc.if_else(found.error.is_valid(), arrays["value"], pa.scalar(None, pa.binary()))
    fields = [RAW_SCHEMA.field(name) for name in columns]
    fields += [pa.field(DATA, found.data.type), pa.field(ERROR, found.error.type)]
    return pa.RecordBatch.from_arrays([*arrays.values(), found.data, found.error], schema=pa.schema(fields))


class _Versions:
    """Looks up the version of the commit that added an offset; null where the commit is no longer kept."""

    def __init__(self, reader: RangeReader, start: Offset) -> None:
        self._reader = reader
        self._starts, self._ends, self._versions = (np.empty(0, np.int64) for _ in range(3))
        self._newest = Version(-1)
        self._load(start)

    def of(self, offsets: NDArray[np.int64]) -> pa.Array:
        """Return the version of each of these offsets, which rise."""
        if not len(self._ends) or offsets[-1] >= self._ends[-1]:
            self._load(Offset(int(offsets[0])))  # there were none so new when we looked
        if not len(self._ends):
            return pa.nulls(len(offsets), pa.int64())
        at = np.minimum(np.searchsorted(self._ends, offsets, side="right"), len(self._ends) - 1)
        is_known = (self._starts[at] <= offsets) & (offsets < self._ends[at])
        return pa.array(self._versions[at], mask=~is_known)

    def _load(self, start: Offset) -> None:
        """Walk back from the newest commit until what is known, or `start`, is reached."""
        newest, pages = self._reader.newest(), []
        for page in pages_back(self._reader.commits, self._newest, newest):
            pages.append(page)
            if page[0].next_offset <= start:
                break
        added = [
            (operation.offset_start, operation.offset_end, commit.version)
            for page in reversed(pages)
            for commit in page
            for operation in commit.operations
            if isinstance(operation, Add)
        ]
        columns = np.array(added, np.int64).reshape(-1, 3).T
        self._starts, self._ends, self._versions = (
            np.concatenate(pair) for pair in zip((self._starts, self._ends, self._versions), columns, strict=True)
        )
        self._newest = newest
