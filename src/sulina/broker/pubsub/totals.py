"""Counts of publishes and deliveries by topic, over the feeds of this node, open and closed."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from sulina.core.delivery.fan_out import FanOut, FanOutCounts
from sulina.wire.messages import PubSubMetrics

TOPICS_MAX = 10_000  # whose counts are kept after their feeds are closed


@dataclass(slots=True)
class PublishCounts:
    """Publishes that a topic has accepted and rejected."""

    accepted: int = 0  # records
    rejected: Counter[str] = field(default_factory=Counter)  # publishes, by reason

    def add(self, other: "PublishCounts") -> None:
        """Add the counts of another topic."""
        self.accepted += other.accepted
        self.rejected.update(other.rejected)


def sum_counts(parts: Iterable[FanOutCounts]) -> FanOutCounts:
    """Sum counts up."""
    total = FanOutCounts()
    for part in parts:
        for one in fields(FanOutCounts):
            value = getattr(part, one.name)
            if isinstance(value, int):
                setattr(total, one.name, getattr(total, one.name) + value)
        for status, count in part.failed_records.items():
            total.failed_records[status] += count
        for status, count in part.reported_batches.items():
            total.reported_batches[status] += count
    return total


class FeedTotals:
    """Keeps the counts of closed feeds, so that no total ever falls."""

    def __init__(self) -> None:
        self._past: dict[str, FanOutCounts] = {}

    def add_closed(self, topic: str, fan_out: FanOut) -> None:
        """Keep the counts of a feed that has been closed."""
        self._past[topic] = sum_counts([self._past.pop(topic, FanOutCounts()), fan_out.counts])
        if len(self._past) > TOPICS_MAX:
            del self._past[next(iter(self._past))]

    def topics(self) -> list[str]:
        """Return the topics of closed feeds."""
        return list(self._past)

    def total(self, topic: str, feeds: Iterable[FanOut]) -> FanOutCounts:
        """Return the total of one topic, given its open feeds."""
        return sum_counts([self._past.get(topic, FanOutCounts()), *(fan_out.counts for fan_out in feeds)])


def metrics_of(
    topic: str | None, publishes: Iterable[PublishCounts], counts: FanOutCounts, feeds: Iterable[FanOut]
) -> PubSubMetrics:
    """Return the metrics of a topic, or of all topics, as clients see them."""
    accepted, rejected = 0, Counter[str]()
    for one in publishes:
        accepted += one.accepted
        rejected.update(one.rejected)
    fan_outs = list(feeds)
    return PubSubMetrics(
        topic=topic,
        accepted=accepted,
        rejected={str(reason): count for reason, count in rejected.items()},
        delivered=counts.delivered_records,
        failed={str(status): count for status, count in counts.failed_records.items() if count},
        batches={str(status): count for status, count in counts.reported_batches.items() if count},
        redelivered=counts.redelivered_records,
        queued=sum(fan_out.waiting_batches for fan_out in fan_outs),
        dropped=counts.dropped_records,
        missed=counts.missed_records,
        active=sum(fan_out.active for fan_out in fan_outs),
        suspended=sum(fan_out.suspended for fan_out in fan_outs),
    )
