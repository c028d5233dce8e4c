"""Snapshots of metrics on the stream of events: for all topics together, and for each topic.

A listener that asks for this type of event gets all snapshots when it begins. At every interval all listeners get those
that have changed. Nothing is emitted while nobody listens. A tick emits few, so that no listener's queue overflows.
"""

from collections import deque
from collections.abc import Callable, Iterable

from msgspec.structs import asdict

from sulina.broker.events import EventStream
from sulina.core.delivery.pubsub import PubSubEventType
from sulina.errors import TopicNotFound
from sulina.types import TopicName
from sulina.wire.messages import PubSubMetrics

TOLD_A_TICK = 20
LOOKED_AT_A_TICK = 100  # so that a tick is short however many topics there are


class MetricsSnapshots:
    """Emits snapshots of metrics in `tick`."""

    def __init__(
        self,
        metrics: Callable[[TopicName | None], PubSubMetrics],
        topics: Callable[[], Iterable[TopicName]],
        *,
        seconds: float,
        events: EventStream,
    ) -> None:
        self._metrics = metrics
        self._topics = topics
        self._seconds = seconds
        self._events = events
        self._told: dict[TopicName | None, PubSubMetrics] = {}
        self._waiting: deque[TopicName | None] = deque()
        self._due: float | None = None  # None: there is no listener
        self._asked = 0

    def tick(self, now: float) -> None:
        """Emit what is due at this time."""
        if not self._events.listeners:
            self._told.clear()
            self._waiting.clear()
            self._due = None
            return
        if self._asked != self._events.snapshots_asked:
            self._asked = self._events.snapshots_asked
            self._told.clear()
            self._due = now
        elif self._due is None:
            self._due = now + self._seconds
        if now >= self._due and not self._waiting:  # all topics have had their turn
            self._due = now + self._seconds
            self._waiting = deque([None, *self._topics()])
            self._told = {name: self._told[name] for name in self._waiting if name in self._told}
        told = looked_at = 0
        while self._waiting and told < TOLD_A_TICK and looked_at < LOOKED_AT_A_TICK:
            told += self._tell(self._waiting.popleft())
            looked_at += 1

    def _tell(self, name: TopicName | None) -> bool:
        """Emit the metrics of a topic, or of all topics; False: they have not changed."""
        try:
            found = self._metrics(name)
        except TopicNotFound:  # it was deleted since the interval began
            return False
        nothing = None if name is None else PubSubMetrics(topic=str(name))
        if found == self._told.get(name, nothing):
            return False
        self._told[name] = found
        fields = asdict(found)
        topic = fields.pop("topic")
        self._events.emit_unlogged(PubSubEventType.METRICS_SNAPSHOT, topic, **fields)
        return True
