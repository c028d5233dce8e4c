"""Bounds on what a scan of topics reads, from the filters that Spark pushes down.

Only what a log can find without reading is of use: partition, offset, timestamp, version, namespace and topic. Spark
applies every filter again to the rows, so a bound may be wider than its filter, never narrower.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from sulina.core.log.position import At, Position
from sulina.errors import NotAvailable
from sulina.spark.log_catalogue import LogCatalogue
from sulina.types import Offset, PartitionName, Version

_UNDERSTOOD = (EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual)
_NAMES = ("namespace", "topic", "partition")
_NUMBERS = ("offset", "version", "timestamp")


@dataclass(slots=True)
class Bounds:
    """The bounds of rows that filters let through. Both ends are inclusive."""

    low: dict[str, int] = field(default_factory=dict)
    high: dict[str, int] = field(default_factory=dict)
    among: dict[str, frozenset[Any]] = field(default_factory=dict)  # namespace, topic, partition

    def take(self, filters: Iterable[Filter]) -> None:
        """Narrow the bounds as far as these filters allow."""
        for one in filters:
            self._take(one)

    def _take(self, one: Filter) -> None:
        name = _column(one.attribute) if isinstance(one, _UNDERSTOOD) else ""
        if name in _NAMES and isinstance(one, In):
            self._among(name, frozenset(one.value))
        elif name in _NAMES and isinstance(one, EqualTo):
            self._among(name, frozenset([one.value]))
        elif name in _NUMBERS and not isinstance(one, In):
            self._number(name, one)

    def _among(self, name: str, values: frozenset[Any]) -> None:
        self.among[name] = self.among[name] & values if name in self.among else values

    def _number(self, name: str, one: Any) -> None:
        value = _milliseconds(one.value) if name == "timestamp" else one.value
        if not isinstance(value, int):
            return
        if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
            # A timestamp was cut to milliseconds, so one that is larger may be equal now.
            low = value + 1 if isinstance(one, GreaterThan) and name != "timestamp" else value
            self.low[name] = max(low, self.low.get(name, low))
        if isinstance(one, EqualTo | LessThan | LessThanOrEqual):
            high = value - 1 if isinstance(one, LessThan) and name != "timestamp" else value
            self.high[name] = min(high, self.high.get(name, high))

    # What they leave

    def has_partition(self, partition: PartitionName) -> bool:
        """Tell whether a partition may have such rows."""
        values = {
            "namespace": partition.topic.namespace,
            "topic": partition.topic.topic,
            "partition": partition.partition,
        }
        return all(values[name] in allowed for name, allowed in self.among.items())

    def narrow(self, logs: LogCatalogue, partition: PartitionName, start: Offset, end: Offset) -> tuple[Offset, Offset]:
        """Return the part of [start, end) where such rows can be.

        Timestamps are the producers' and need not rise: so only the first record that is as new or newer is a bound,
        and the other end stays open.
        """
        start = max(start, Offset(self.low.get("offset", start)))
        if "offset" in self.high:
            end = min(end, Offset(self.high["offset"] + 1))
        if "timestamp" in self.low and self.low["timestamp"] > 0:
            start = max(
                start, _found(lambda: logs.offset(partition, Position(At.TIMESTAMP, self.low["timestamp"])), start)
            )
        if self.low.get("version", 0) > 0:
            before = Version(self.low["version"] - 1)
            start = max(start, _found(lambda: logs.end_of(partition, before), start))
        if self.high.get("version", -1) >= 0:
            end = min(end, _found(lambda: logs.end_of(partition, Version(self.high["version"])), end))
        return start, max(start, end)


def _found(ask: Callable[[], Offset], otherwise: Offset) -> Offset:
    try:
        return ask()
    except NotAvailable:
        return otherwise  # a version that is not kept, or not there yet, narrows nothing


def _column(attribute: tuple[str, ...]) -> str:
    return attribute[0].lower() if len(attribute) == 1 else ""


def _milliseconds(value: Any) -> int | None:
    if isinstance(value, datetime):
        return int(value.timestamp() * 1000)
    return None if isinstance(value, date) else value
