"""What a driver decides: from options and logs to offsets, and from offsets to tasks. Nothing is read here."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sulina.core.position import At
from sulina.core.scan import SPLIT_BYTES, Positions, Range, Span, limited, packed, ranges, shares, split_bytes
from sulina.errors import OffsetOutOfRange, VersionNotRetained
from sulina.spark.errors import IncompleteScan
from sulina.spark.filters import Bounds
from sulina.spark.logs import Logs, checked_offset, open_logs
from sulina.spark.options import ReadOptions
from sulina.types import Offset, PartitionName, TopicName, Version

Offsets = dict[PartitionName, Offset]
Tasks = list[tuple[Range, ...]]


@dataclass(slots=True)
class Planner:
    """For one scan or stream. Lives in the driver."""

    options: ReadOptions
    logs: Logs
    _reached: set[Version] = field(default_factory=set)  # versions that some partition is known to have come to

    @classmethod
    def of(cls, options: ReadOptions) -> "Planner":
        return cls(options, open_logs(options.place, options.topics))

    # A scan

    def scan(self, bounds: Bounds) -> Tasks:
        """Everything between the starting and the ending positions that the filters leave."""
        wanted: dict[PartitionName, tuple[int, int]] = {}
        for partition in self.logs.partitions():
            if not bounds.has_partition(partition):
                continue
            start, end = self._offset(partition, self.options.starting), self._end(partition)
            start, end = bounds.narrow(self.logs, partition, start, end)
            if start < end:
                wanted[partition] = (start, end)
        return self.tasks(wanted)

    def _offset(self, partition: PartitionName, positions: Positions) -> Offset:
        """Where to begin. What is no longer there is an error, or passed over, as the user wishes."""
        position = positions.of(partition)
        try:
            if position.at == At.VERSION:
                return self._at_version(partition, lambda: self.logs.offset(partition, position))
            return self.logs.offset(partition, position)
        except OffsetOutOfRange as gone:
            if self.options.fail_on_data_loss or gone.offset > gone.end:
                raise
            return Offset(gone.start)

    def _end(self, partition: PartitionName) -> Offset:
        position = self.options.ending.of(partition)
        if position.at == At.VERSION:
            return self._at_version(partition, lambda: self.logs.end_of(partition, Version(position.value)))
        return self.logs.offset(partition, position)

    def _at_version(self, partition: PartitionName, ask: Callable[[], Offset]) -> Offset:
        """Look up a version. A partition that has not come to it, where others have, ends before it.

        VersionNotRetained.
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
        """Ranges of partitions, divided and grouped so that all cores have work and none has crumbs."""
        spans = [self.logs.span(partition) for partition in wanted]
        for span in spans:
            self._check_kept(span, *wanted[span.partition])
        size = split_bytes(spans, wanted, self.options.tasks_min)
        return packed(_ranges(spans, wanted, size), bytes_max=size)

    def _check_kept(self, span: Span, start: int, end: int) -> None:
        """Check that a log still has all of [start, end), unless told to go on with what is left. OffsetOutOfRange."""
        if self.options.fail_on_data_loss:
            for offset in (start, end):
                checked_offset(offset, span.start, span.end)

    # A stream

    def starting(self) -> Offsets:
        """Where a new stream begins."""
        return {partition: self._offset(partition, self.options.starting) for partition in self.logs.partitions()}

    def newest(self) -> Offsets:
        """Where the logs end now."""
        return {partition: self.logs.bounds(partition)[1] for partition in self.logs.partitions()}

    def next(self, start: Offsets, newest: Offsets, *, rows_max: int | None, bytes_max: int | None) -> Offsets:
        """Where a batch ends that begins at `start`. Partitions that have come since begin with their first record."""
        begin = {partition: start.get(partition, Offset(0)) for partition in newest}
        if rows_max is None and bytes_max is None:
            ends = {partition: max(begin[partition], end) for partition, end in newest.items()}
        else:
            spans = [self.logs.span(partition) for partition in newest if begin[partition] < newest[partition]]
            spans = [Span(s.partition, s.start, min(s.end, newest[s.partition]), s.pieces) for s in spans]
            ends = begin | limited(spans, begin, rows_max=rows_max, bytes_max=bytes_max)
        return {**start, **ends}  # a partition that was there before is remembered, whatever the listing says

    def between(self, start: Offsets, end: Offsets) -> Tasks:
        """A batch. Replayed, it has the same tasks, wherever its records lie by then: sinks know tasks by number."""
        self.logs.partitions()
        wanted: dict[PartitionName, tuple[int, int]] = {}
        for partition, last in end.items():
            first = start[partition] if partition in start else self.logs.bounds(partition)[0]
            if first < last:
                wanted[partition] = (first, last)
        spans = {partition: self.logs.span(partition) for partition in wanted}
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
    """Return ranges that have every offset of [start, end) which the log holds, each once. IncompleteScan."""
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


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """`{"/ns/topic": {"0": 17}}`, as the option `startingOffsets` takes it."""
    found: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        found.setdefault(str(partition.topic), {})[str(partition.partition)] = offsets[partition]
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The inverse."""
    return {
        PartitionName(TopicName.parse(topic), int(number)): Offset(offset)
        for topic, partitions in offsets.items()
        for number, offset in partitions.items()
    }
