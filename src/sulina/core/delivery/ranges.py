"""Sets and maps of offsets, kept as half-open ranges: acked offsets, unacked ones, numbers of attempts.

Ranges are sorted and disjoint. Costs depend on their number, not on their length.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

Range = tuple[int, int]


class RangeSet:
    """A set of offsets. Adjacent ranges are merged."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.count = 0  # of offsets

    def __iter__(self) -> Iterator[Range]:
        return zip(self._starts, self._ends, strict=True)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._starts)

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._starts, offset) - 1
        return index >= 0 and offset < self._ends[index]

    def add(self, start: int, end: int) -> int:
        """Add [start, end); return how many of its offsets are new."""
        if start >= end:
            return 0
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        known = sum(self._ends[index] - self._starts[index] for index in range(first, last))
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        new = end - start - known
        self.count += new
        return new

    def remove(self, start: int, end: int) -> list[Range]:
        """Remove [start, end); return the ranges of it that were in the set."""
        removed = self.within(start, end)
        if not removed:
            return removed
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        kept = [(self._starts[first], start), (end, self._ends[last - 1])]
        rest = [(low, high) for low, high in kept if low < high]
        self._starts[first:last] = [low for low, _ in rest]
        self._ends[first:last] = [high for _, high in rest]
        self.count -= sum(high - low for low, high in removed)
        return removed

    def within(self, start: int, end: int) -> list[Range]:
        """Return the ranges of [start, end) that are in the set."""
        found = []
        for index in range(bisect_right(self._ends, start), len(self._starts)):
            if self._starts[index] >= end:
                break
            found.append((max(start, self._starts[index]), min(end, self._ends[index])))
        return found

    def missing(self, start: int, end: int) -> list[Range]:
        """Return the ranges of [start, end) that are not in the set."""
        gaps = []
        for low, high in self.within(start, end):
            if start < low:
                gaps.append((start, low))
            start = high
        if start < end:
            gaps.append((start, end))
        return gaps


class RangeMap:
    """A map from offsets to numbers. Adjacent ranges are not merged."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._values: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return zip(self._starts, self._ends, self._values, strict=True)

    def __len__(self) -> int:
        return len(self._starts)

    def put(self, start: int, end: int, value: int) -> None:
        """Map [start, end), none of which may be in the map, to a number."""
        index = bisect_right(self._starts, start)
        assert index == 0 or self._ends[index - 1] <= start
        assert index == len(self._starts) or end <= self._starts[index]
        self._starts.insert(index, start)
        self._ends.insert(index, end)
        self._values.insert(index, value)

    def get(self, offset: int, default: int) -> int:
        """Return the number of one offset."""
        index = bisect_right(self._starts, offset) - 1
        return self._values[index] if index >= 0 and offset < self._ends[index] else default

    def pieces(self, start: int, end: int, default: int) -> list[tuple[int, int, int]]:
        """Return all of [start, end), split where the number changes."""
        found: list[tuple[int, int, int]] = []
        for index in range(bisect_right(self._ends, start), len(self._starts)):
            low, high = self._starts[index], self._ends[index]
            if low >= end:
                break
            if start < low:
                found.append((start, low, default))
            found.append((max(start, low), min(end, high), self._values[index]))
            start = high
        if start < end:
            found.append((start, end, default))
        return found

    def pop(self, start: int, end: int, only: int | None = None) -> list[tuple[int, int, int]]:
        """Remove and return the ranges of [start, end) in the map, or those of them with the number `only`."""
        first = index = bisect_right(self._ends, start)
        popped: list[tuple[int, int, int]] = []
        kept: list[tuple[int, int, int]] = []
        while index < len(self._starts) and self._starts[index] < end:
            low, high, value = self._starts[index], self._ends[index], self._values[index]
            index += 1
            if only is not None and value != only:
                kept.append((low, high, value))
                continue
            if low < start:
                kept.append((low, start, value))
            popped.append((max(low, start), min(high, end), value))
            if high > end:
                kept.append((end, high, value))
        if popped:
            self._starts[first:index] = [low for low, _, _ in kept]
            self._ends[first:index] = [high for _, high, _ in kept]
            self._values[first:index] = [value for _, _, value in kept]
        return popped
