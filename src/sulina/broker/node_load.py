"""How much a broker has to do, as it reports it to the leader and shows it to its operator."""

from sulina.broker.options import NodeCounts
from sulina.broker.timekeeper import Timekeeper
from sulina.broker.topic_table import TopicTable
from sulina.core.cluster.entries import LoadReport
from sulina.ports import Clock


class NodeLoad:
    """Makes load reports."""

    def __init__(
        self, broker_id: str, topics: TopicTable, counts: NodeCounts, *, timekeeper: Timekeeper, clock: Clock
    ) -> None:
        self._broker_id = broker_id
        self._topics = topics
        self._counts = counts
        self._timekeeper = timekeeper
        self._clock = clock
        self._sampled = (0.0, 0, 0.0)  # when, the bytes published until then, and the rate before

    def report(self) -> LoadReport:
        """Return how much there is to do at this moment."""
        here = [sum(ownership.is_here for ownership in topic.ownerships) for topic in self._topics]
        return LoadReport(
            broker_id=self._broker_id,
            at_ms=int(self._clock.now() * 1000),
            partitions=sum(here),
            topics=sum(1 for count in here if count),
            connections=self._counts.connections,
            consumers=self._counts.consumers,
            published_bytes_per_second=self._published_rate(),
            clock_ahead_seconds=round(self._timekeeper.ahead_seconds, 1),
        )

    def _published_rate(self) -> float:
        """Return bytes a second since it was last asked for, a second ago or longer."""
        now, count = self._clock.monotonic(), self._counts.published_bytes
        since, before, _ = self._sampled
        if now - since >= 1:
            self._sampled = (now, count, (count - before) / (now - since))
        return self._sampled[2]
