"""Spark's data source of topics: `spark.read.format("sulina")` and `spark.readStream.format("sulina")`.

Spark makes these objects in Python workers of the driver, pickles them, and calls `read` in executors. Whatever is
opened belongs to the process: see `clients` and `byte_source`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from sulina.errors import InvalidSettings
from sulina.failpoints import Failpoint, reach
from sulina.spark.byte_source import ByteSource
from sulina.spark.decoding import Decoder
from sulina.spark.filters import Bounds
from sulina.spark.log_catalogue import common_schema, open_catalogue
from sulina.spark.options import ReadOptions
from sulina.spark.planner import Epochs, Offsets, Planner, for_checkpoint, from_json
from sulina.spark.push_filters import PushFilters
from sulina.spark.scan import Range
from sulina.spark.schema import DATA, ERROR, RAW_SCHEMA
from sulina.spark.sink import SulinaStreamWriter, SulinaWriter, WriteOptions
from sulina.spark.stream_positions import StreamPositions
from sulina.spark.value_schemas import spark_type
from sulina.types import Offset


@dataclass(frozen=True, slots=True)
class Task(InputPartition):
    """The ranges that one executor core reads, one after the other."""

    ranges: tuple[Range, ...]
    source: ByteSource


def _read(task: InputPartition, options: ReadOptions, decoder: Decoder | None) -> Iterator[pa.RecordBatch]:
    from sulina.spark.arrow_batches import read_range, with_data  # for executors: its kernels take a second to import

    assert isinstance(task, Task)
    lacks_value = decoder is not None and "value" not in options.columns
    columns = (*options.columns, "value") if lacks_value else options.columns
    loss, crc = options.fail_on_data_loss, options.check_crc
    for one in task.ranges:
        reader = task.source.open(one, is_fresh=crc)
        for rows in read_range(reader, one, columns, fail_on_data_loss=loss, check_crc=crc):
            yield rows if decoder is None else with_data(rows, decoder, options.columns)


def _decoder(options: ReadOptions) -> Decoder | None:
    """Return a decoder for the schema that the topics have now; None: values are not decoded.

    Raises:
        InvalidSettings: there is no schema, or several.
    """
    if options.mode is None:
        return None
    return Decoder.of(common_schema(open_catalogue(options.location, options.topics)), options.mode)


class SulinaDataSource(DataSource):
    """Topics as tables and streams."""

    @classmethod
    def name(cls) -> str:
        return "sulina"

    def schema(self) -> StructType:
        # A stream's options are checked when it is read: only then it is known that it is one.
        options = {name: value for name, value in self.options.items() if name.lower() != "end"}
        read = ReadOptions.of(options, is_stream=False)
        decoder = _decoder(read)
        columns = [RAW_SCHEMA.field(name) for name in read.columns]
        if decoder is not None:
            columns += [pa.field(DATA, decoder.type), pa.field(ERROR, pa.string())]
        return spark_type(pa.schema(columns))

    def reader(self, schema: StructType) -> "SulinaReader":
        """Make the reader of a scan.

        Raises:
            InvalidSettings: an option is unknown or wrong, or is for streams only.
        """
        options = ReadOptions.of(self.options, is_stream=False)
        if options.reader is not None:
            raise InvalidSettings("option reader is for spark.readStream: a scan has no position to keep")
        return SulinaReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> SulinaWriter:
        return SulinaWriter(WriteOptions.of(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> SulinaStreamWriter:
        return SulinaStreamWriter(WriteOptions.of(self.options, schema, overwrite=overwrite))

    def streamReader(self, schema: StructType) -> "SulinaStreamReader":
        return SulinaStreamReader(ReadOptions.of(self.options, is_stream=True))


class SulinaReader(DataSourceReader):
    """One scan of topics."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._decoder = _decoder(options)
        self._bounds = Bounds()
        self.pushFilters = PushFilters(self._bounds.take)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        planner = Planner.of(self._options)
        # Without any task, Spark would make one of its own, that says nothing.
        tasks = planner.scan(self._bounds) or [()]
        return [Task(ranges, planner.logs.source()) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options, self._decoder)


class SulinaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream, for as long as its query runs.

    Its offsets are those of the next records, each with the epoch of the log that was read. So it is noticed when an
    operator has given up some of the log, and offsets are used again.

    A stream with a name (option `reader`) registers its positions at the brokers, and retention keeps what it has not
    read.
    """

    def __init__(self, options: ReadOptions, planner: Planner | None = None) -> None:
        self._options = options
        self._decoder = _decoder(options)
        self._target: tuple[Offsets, Epochs] | None = None  # where a query ends that reads what is there now
        if planner is not None:
            self._planner = planner

    @cached_property
    def _planner(self) -> Planner:
        return Planner.of(self._options)

    @cached_property
    def _positions(self) -> StreamPositions | None:
        """What registers the stream's positions; None: it has no name."""
        reader, url = self._options.reader, self._options.location.url
        return None if reader is None or url is None else StreamPositions(url, reader)

    def __getstate__(self) -> Mapping[str, Any]:
        """Return what executors need: they plan nothing."""
        return {"_options": self._options, "_decoder": self._decoder, "_target": None}

    def initialOffset(self) -> dict[str, Any]:
        _, epochs = self._planner.newest()  # before it is looked up what begins there: it may be older, never newer
        return for_checkpoint(self._planner.start(), epochs)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        newest, epochs = self._planner.newest() if self._target is None else self._target
        is_limited = not isinstance(limit, ReadAllAvailable)
        begun, begun_epochs = from_json(start)
        begin = self._planner.followed(begun, begun_epochs, epochs)
        end = self._planner.next(
            begin,
            newest,
            rows_max=self._options.rows_max if is_limited else None,
            bytes_max=self._options.bytes_max if is_limited else None,
        )
        # Where nothing is new the position keeps its epoch, also after a change of owner: with another one, Spark would
        # run an empty batch.
        still = {partition for partition in begun if end[partition] == begin[partition] == begun[partition]}
        found = for_checkpoint(
            end,
            {partition: epoch for partition, epoch in epochs.items() if partition not in still}
            | {partition: epoch for partition, epoch in begun_epochs.items() if partition in still},
        )
        self._enter(begin, begun_epochs, end)
        reach(Failpoint.SOURCE_ENDED)
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return for_checkpoint(*self._planner.newest())

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._planner.newest()

    def commit(self, end: dict[str, Any]) -> None:
        """Note that a batch is done. Spark calls this when it plans the next one, so it may never come."""
        if self._positions is not None:
            self._positions.advance(*from_json(end))

    def _enter(self, begun: Offsets, epochs: Epochs, end: Offsets) -> None:
        """Register where a batch begins: in partitions that have come since, with their first record."""
        if self._positions is not None:
            self._positions.enter({partition: begun.get(partition, Offset(0)) for partition in end}, epochs)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        (begun, begun_epochs), (ends, end_epochs) = from_json(start), from_json(end)
        self._enter(begun, begun_epochs, ends)
        tasks = self._planner.between(begun, ends, begun_epochs, end_epochs)
        found = [Task(ranges, self._planner.logs.source()) for ranges in tasks]
        reach(Failpoint.SOURCE_PLANNED)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options, self._decoder)
