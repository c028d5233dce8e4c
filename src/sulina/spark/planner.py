"""Planner of scans and streams, in the driver: from options and a catalogue to offsets, from offsets to tasks.

No record is read here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sulina.core.formats import SPARK_OFFSETS
from sulina.core.log.position import At, Position
from sulina.errors import OffsetOutOfRange, VersionNotRetained
from sulina.spark.errors import IncompleteScan, StreamDiverged
from sulina.spark.filters import Bounds
from sulina.spark.log_catalogue import LogCatalogue, checked_offset, open_catalogue
from sulina.spark.options import ReadOptions
from sulina.spark.scan import SPLIT_BYTES, Positions, Range, Span, limited, packed, ranges, shares, split_bytes
from sulina.types import Epoch, Offset, PartitionName, TopicName, Version

Offsets = dict[PartitionName, Offset]
Epochs = Mapping[PartitionName, Epoch]  # the epoch in which everything before an offset was read
JsonOffsets = Mapping[str, Any]
Tasks = list[tuple[Range, ...]]
NO_EPOCHS: Epochs = {}
FORMAT = "format"  # beside the names of topics, which begin with a slash


@dataclass(slots=True)
class Planner:
    """Plans one scan or stream. Lives in the driver."""

    options: ReadOptions
    logs: LogCatalogue
    _reached: set[Version] = field(default_factory=set)  # versions that some partition is known to have come to

    @classmethod
    def of(cls, options: ReadOptions) -> "Planner":
        """Make a planner with the catalogue that the options name.

        Raises:
            InvalidSettings: the location cannot be one.
            Disconnected: no broker answers.
        """
        return cls(options, open_catalogue(options.location, options.topics))

    # A scan

    def scan(self, bounds: Bounds) -> Tasks:
        """Return tasks for everything between `start` and `end` that the filters leave."""
        wanted: dict[PartitionName, tuple[int, int]] = {}
        for partition in self.logs.partitions():
            if not bounds.has_partition(partition):
                continue
            start, end = self._offset(partition, self.options.start), self._end(partition)
            start, end = bounds.narrow(self.logs, partition, start, end)
            if start < end:
                wanted[partition] = (start, end)
        return self.tasks(wanted)

    def _offset(self, partition: PartitionName, positions: Positions) -> Offset:
        """Return where to begin.

        Raises:
            OffsetOutOfRange: the log does not have that, and `failOnDataLoss` is set.
        """
        position = positions.of(partition)
        if position.epoch is not None:
            current = {partition: self.logs.end(partition)[1]}
            at = self.followed({partition: Offset(position.value)}, {partition: Epoch(position.epoch)}, current)
            position = Position(At.OFFSET, at[partition])
        try:
            if position.at == At.VERSION:
                return self._at_version(partition, lambda: self.logs.offset(partition, position))
            return self.logs.offset(partition, position)
        except OffsetOutOfRange as gone:
            if self.options.fail_on_data_loss or gone.offset > gone.end:
                raise
            return Offset(gone.start)

    def _end(self, partition: PartitionName) -> Offset:
        position = self.options.end.of(partition)
        if position.at == At.VERSION:
            return self._at_version(partition, lambda: self.logs.end_of(partition, Version(position.value)))
        return self.logs.offset(partition, position)

    def _at_version(self, partition: PartitionName, ask: Callable[[], Offset]) -> Offset:
        """Look up a version. A partition that has not reached it, where others have, ends before it.

        Raises:
            VersionNotRetained: no partition has it, or no longer.
        """
        try:
            return ask()
        except VersionNotRetained as gone:
            if gone.version <= gone.current or not self._has_version(Version(gone.version)):
                raise
            return self.logs.bounds(partition)[1]

    def _has_version(self, version: Version) -> bool:
        """Return whether any partition has come to a version."""
        for partition in () if version in self._reached else self.logs.partitions():
            try:
                self.logs.end_of(partition, version)
            except VersionNotRetained as gone:
                if gone.version > gone.current:
                    continue
            self._reached.add(version)
            break
        return version in self._reached

    def tasks(self, wanted: Mapping[PartitionName, tuple[int, int]]) -> Tasks:
        """Divide ranges of partitions into tasks, so that all cores have work and no task is tiny."""
        spans = [self.logs.span(partition) for partition in wanted]
        for span in spans:
            self._check_kept(span, *wanted[span.partition])
        size = split_bytes(spans, wanted, self.options.tasks_min)
        return packed(_ranges(spans, wanted, size), bytes_max=size)

    def _check_kept(self, span: Span, start: int, end: int) -> None:
        """Check that a log still has all of [start, end), unless `failOnDataLoss` is off.

        Raises:
            OffsetOutOfRange: it does not.
        """
        if self.options.fail_on_data_loss:
            for offset in (start, end):
                checked_offset(offset, span.start, span.end)

    # A stream

    def start(self) -> Offsets:
        """Return where a new stream begins."""
        return {partition: self._offset(partition, self.options.start) for partition in self.logs.partitions()}

    def newest(self) -> tuple[Offsets, Epochs]:
        """Return where the logs end now, and the epochs that they have there."""
        ends = {partition: self.logs.end(partition) for partition in self.logs.partitions()}
        return {partition: end for partition, (end, _) in ends.items()}, {
            partition: epoch for partition, (_, epoch) in ends.items() if epoch >= 0
        }

    def followed(self, offsets: Offsets, epochs: Epochs, current: Epochs) -> Offsets:
        """Return where to go on, for a stream that has read everything before `offsets` in `epochs`.

        That is where it is, unless an operator has given up some of what it has read: then those offsets are others' by
        now, and the log goes on before them. `current` are the epochs of the logs now: within one nothing is given up.

        Raises:
            StreamDiverged: something was given up, and the user has not said to go on.
        """
        found = dict(offsets)
        for partition, epoch in epochs.items():
            if current.get(partition, epoch) == epoch:
                continue
            offset, again = offsets[partition], self.logs.follow(partition, offsets[partition], epoch)
            if again < offset and self.options.fail_on_data_loss:
                raise StreamDiverged(partition=str(partition), start=again, end=offset, epoch=epoch)
            found[partition] = again
        return found

    def next(self, start: Offsets, newest: Offsets, *, rows_max: int | None, bytes_max: int | None) -> Offsets:
        """Return where a batch ends that begins at `start`. New partitions begin with their first record."""
        begin = {partition: start.get(partition, Offset(0)) for partition in newest}
        if rows_max is None and bytes_max is None:
            ends = {partition: max(begin[partition], end) for partition, end in newest.items()}
        else:
            spans = [self.logs.span(partition) for partition in newest if begin[partition] < newest[partition]]
            spans = [Span(s.partition, s.start, min(s.end, newest[s.partition]), s.pieces) for s in spans]
            ends = begin | limited(spans, begin, rows_max=rows_max, bytes_max=bytes_max)
        return {**start, **ends}  # a partition that was there before is remembered, whatever the listing says

    def between(
        self, start: Offsets, end: Offsets, start_epochs: Epochs = NO_EPOCHS, end_epochs: Epochs = NO_EPOCHS
    ) -> Tasks:
        """Return the tasks of a batch. Replayed, it has the same tasks, because sinks know tasks by number.

        Raises:
            StreamDiverged: some of its records, or of those before it, were given up since it was planned.
        """
        self.logs.partitions()
        begin = {name: start[name] if name in start else self.logs.bounds(name)[0] for name in end}
        spans = {
            name: self.logs.span(name)
            for name in end
            if (begin[name], start_epochs.get(name)) != (end[name], end_epochs.get(name))
        }
        current = {name: span.epoch for name, span in spans.items() if span.epoch is not None}
        begin, end = (
            self.followed(at, {name: epoch for name, epoch in epochs.items() if name in spans}, current)
            for at, epochs in ((begin, start_epochs), (end, end_epochs))
        )
        wanted = {name: (begin[name], end[name]) for name in spans if begin[name] < end[name]}
        spans = {name: replace(spans[name], epoch=end_epochs.get(name)) for name in wanted}
        for partition, span in spans.items():
            self._check_kept(span, *wanted[partition])
        return [
            tuple(one for partition, first, last in share for one in _whole_ranges(spans[partition], first, last))
            for share in shares(wanted, tasks_min=self.options.tasks_min)
        ]


def _ranges(spans: Iterable[Span], wanted: Mapping[PartitionName, tuple[int, int]], size: int) -> Iterable[Range]:
    for span in spans:
        yield from _whole_ranges(span, *wanted[span.partition], bytes_max=size)


def _whole_ranges(span: Span, start: int, end: int, *, bytes_max: int = SPLIT_BYTES) -> list[Range]:
    """Return ranges that have every offset of [start, end) which the log holds, each once.

    Raises:
        IncompleteScan: they would not.
    """
    found = ranges(span, start, end, bytes_max=bytes_max)
    at = start = max(start, span.start)
    end = max(start, min(end, span.end))
    for one in found:
        if one.start != at:
            break
        at = one.end
    if at != end:
        raise IncompleteScan(partition=str(span.partition), start=start, end=end, records=at - start)
    return found


# As Spark's checkpoints have them


def to_json(offsets: Offsets, epochs: Epochs = NO_EPOCHS) -> dict[str, dict[str, int | str]]:
    """Return `{"/ns/topic": {"0": "17@4"}}`, as the option `start` takes it; without an epoch, 17 is a number."""
    found: dict[str, dict[str, int | str]] = {}
    for partition in sorted(offsets):
        offset, epoch = offsets[partition], epochs.get(partition)
        at: int | str = offset if epoch is None else f"{offset}@{epoch}"
        found.setdefault(str(partition.topic), {})[str(partition.partition)] = at
    return found


def for_checkpoint(offsets: Offsets, epochs: Epochs = NO_EPOCHS) -> dict[str, Any]:
    """Return what `to_json` does, with the number of its format."""
    return {FORMAT: SPARK_OFFSETS.number, **to_json(offsets, epochs)}


def from_json(offsets: JsonOffsets) -> tuple[Offsets, Epochs]:
    """Return the offsets and epochs of `to_json`; checkpoints of an older Sulina have no epochs.

    Raises:
        NewerFormat: a newer version of Sulina wrote the checkpoint.
    """
    found: Offsets = {}
    epochs: dict[PartitionName, Epoch] = {}
    SPARK_OFFSETS.check(offsets.get(FORMAT, 1), "the checkpoint of this query")
    for topic, partitions in offsets.items():
        if topic == FORMAT:
            continue
        for number, at in partitions.items():
            partition = PartitionName(TopicName.parse(topic), int(number))
            found[partition] = Offset(offset_of(at))
            if isinstance(at, str):
                epochs[partition] = Epoch(int(at.partition("@")[2]))
    return found, epochs


def offset_of(at: int | str) -> int:
    """Return the offset of an entry."""
    return at if isinstance(at, int) else int(at.partition("@")[0])
