"""What has become of messages, by topic: of the feeds that are here, and of those that were."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from sulina.core.delivery.fan_out import FanOut, FanOutCounts
from sulina.wire.messages import PubSubMetrics

TOPICS_MAX = 10_000  # that are remembered when they are gone


@dataclass(slots=True)
class Taken:
    """What a topic has taken, and what not."""

    accepted: int = 0  # records
    rejected: Counter[str] = field(default_factory=Counter)  # publishes, by reason

    def add(self, other: "Taken") -> None:
        """What another has taken, too."""
        self.accepted += other.accepted
        self.rejected.update(other.rejected)


def added(parts: Iterable[FanOutCounts]) -> FanOutCounts:
    """All of them together."""
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


class Totals:
    """Counts of feeds that have been closed are kept, so that no sum ever falls."""

    def __init__(self) -> None:
        self._past: dict[str, FanOutCounts] = {}

    def closed(self, topic: str, fan_out: FanOut) -> None:
        """A feed is here no more."""
        self._past[topic] = added([self._past.pop(topic, FanOutCounts()), fan_out.counts])
        if len(self._past) > TOPICS_MAX:
            del self._past[next(iter(self._past))]

    def topics(self) -> list[str]:
        """That had feeds."""
        return list(self._past)

    def of(self, topic: str, here: Iterable[FanOut]) -> FanOutCounts:
        """Of one topic, with the feeds of it that are here."""
        return added([self._past.get(topic, FanOutCounts()), *(fan_out.counts for fan_out in here)])


def summed(topic: str | None, taken: Iterable[Taken], counts: FanOutCounts, here: Iterable[FanOut]) -> PubSubMetrics:
    """As it is shown."""
    accepted, rejected = 0, Counter[str]()
    for one in taken:
        accepted += one.accepted
        rejected.update(one.rejected)
    fan_outs = list(here)
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
