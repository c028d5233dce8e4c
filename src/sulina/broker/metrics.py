"""Metrics of a node, for Prometheus. The counters of a topic are created once, and removed with the topic."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sulina.core.delivery.fan_out import FanOutCounts

_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class TopicMetrics:
    """The counters of one topic."""

    published_records: Counter
    published_bytes: Counter
    publishes: Counter
    delivered_records: Counter
    acked_records: Counter
    nacked_records: Counter
    timed_out_records: Counter
    dead_lettered_records: Counter
    dropped_records: Counter
    skipped_records: Counter


_TOPIC_COUNTERS = {
    "published_records": "Records accepted",
    "published_bytes": "Bytes of the batches accepted",
    "publishes": "Publishes accepted",
    "delivered_records": "Records sent to consumers, redeliveries included",
    "acked_records": "Records acked by consumers",
    "nacked_records": "Records that consumers asked to have delivered again",
    "timed_out_records": "Records not acked in time",
    "dead_lettered_records": "Records moved to a dead-letter topic",
    "dropped_records": "Records of best-effort topics that a subscription had no room for",
    "skipped_records": "Unacked records of subscriptions that retention removed",
}


class Metrics:
    """The registry and the counters of one node."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counters = {
            name: Counter(f"sulina_{name}", text, ["topic"], registry=self.registry)
            for name, text in _TOPIC_COUNTERS.items()
        }
        self._topics: dict[str, TopicMetrics] = {}
        self.errors = Counter("sulina_errors", "Refused requests, by error code", ["code"], registry=self.registry)
        self.connections = Gauge("sulina_connections", "Open WebSocket sessions", registry=self.registry)
        self.consumers = Gauge("sulina_consumers", "Attached consumers", registry=self.registry)
        self._commits = Counter("sulina_commits", "Commits of partition logs", registry=self.registry)
        self._appends = Counter("sulina_appends", "Appends in these commits", registry=self.registry)
        self._conflicts = Counter(
            "sulina_conflicts", "Appends refused because of a version conflict", registry=self.registry
        )
        self._checkpoints = Counter("sulina_checkpoints", "Checkpoints written", registry=self.registry)
        self.retention_rounds = Counter("sulina_retention_rounds", "Rounds of retention", registry=self.registry)
        self._clock_ahead = Gauge(
            "sulina_clock_ahead_seconds",
            "How far the clock is ahead of the time that retention goes by; negative: behind the other brokers",
            registry=self.registry,
        )
        self._sync = Histogram(
            "sulina_sync_seconds", "Writing and syncing the data of a commit", buckets=_SECONDS, registry=self.registry
        )
        self._commit = Histogram(
            "sulina_commit_seconds", "Writing the commit itself", buckets=_SECONDS, registry=self.registry
        )

    def topic(self, topic: str) -> TopicMetrics:
        """Return the counters of a topic."""
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = TopicMetrics(
                **{name: counter.labels(topic) for name, counter in self._counters.items()}
            )
        return known

    def remove_topic(self, topic: str) -> None:
        """Remove the counters of a topic that was deleted."""
        if self._topics.pop(topic, None):
            for counter in self._counters.values():
                counter.remove(topic)

    def collect_lag(self, lags: Callable[[], Iterable[tuple[str, str, int]]]) -> None:
        """Call `lags` for topic, subscription and lag at every scrape."""
        self.registry.register(_Lags(lags))

    def collect_deliveries(self, deliveries: Callable[[], Iterable[tuple[str, FanOutCounts, int, int]]]) -> None:
        """Call `deliveries` for the delivery counts of each topic at every scrape."""
        self.registry.register(_Deliveries(deliveries))

    def collect_batches(self, batches: Callable[[], Iterable[tuple[str, int]]]) -> None:
        """Call `batches` for the number of batches sent to each node at every scrape."""
        self.registry.register(_Batches(batches))

    def collect_clock(self, ahead_seconds: Callable[[], float]) -> None:
        """Call `ahead_seconds` for how far the clock is ahead at every scrape."""
        self._clock_ahead.set_function(ahead_seconds)

    def render(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

    # LogMetrics, called by the threads of log writers

    def committed(self, *, appends: int, size_bytes: int, sync_seconds: float, commit_seconds: float) -> None:  # noqa: ARG002
        """Count a commit of a group of appends."""
        self._commits.inc()
        self._appends.inc(appends)
        self._sync.observe(sync_seconds)
        self._commit.observe(commit_seconds)

    def conflicted(self) -> None:
        """Count an append that was refused because of a version conflict."""
        self._conflicts.inc()

    def checkpointed(self, *, seconds: float, files_removed: int) -> None:  # noqa: ARG002
        """Count a checkpoint."""
        self._checkpoints.inc()


class _Lags(Collector):
    def __init__(self, lags: Callable[[], Iterable[tuple[str, str, int]]]) -> None:
        self._lags = lags

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "sulina_subscription_lag_records", "Records not acked", labels=["topic", "subscription"]
        )
        for topic, subscription, lag in self._lags():
            family.add_metric([topic, subscription], lag)
        yield family


_DELIVERED = {
    "delivered_records": "Records that subscribers have acked",
    "queued_records": "Records that had to wait for a node",
    "dropped_records": "Records that were dropped for a node",
    "redelivered_records": "Records that were sent again",
    "missed_records": "Records published while a subscriber was suspended",
    "skipped_records": "Records that retention removed before a subscriber got them",
}


class _Deliveries(Collector):
    def __init__(self, deliveries: Callable[[], Iterable[tuple[str, FanOutCounts, int, int]]]) -> None:
        self._deliveries = deliveries

    def collect(self) -> Iterable[Metric]:
        counted = {
            name: CounterMetricFamily(f"sulina_pubsub_{name}", text, labels=["topic"])
            for name, text in _DELIVERED.items()
        }
        failed = CounterMetricFamily(
            "sulina_pubsub_failed_records", "Records that subscribers failed to handle", labels=["topic", "status"]
        )
        subscribers = GaugeMetricFamily("sulina_pubsub_subscribers", "Subscribers", labels=["topic", "status"])
        for topic, counts, active, suspended in self._deliveries():
            for name, family in counted.items():
                family.add_metric([topic], getattr(counts, name))
            for status, count in counts.failed_records.items():
                failed.add_metric([topic, status], count)
            subscribers.add_metric([topic, "active"], active)
            subscribers.add_metric([topic, "suspended"], suspended)
        return [*counted.values(), failed, subscribers]


class _Batches(Collector):
    def __init__(self, batches: Callable[[], Iterable[tuple[str, int]]]) -> None:
        self._batches = batches

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "sulina_pubsub_batches_sent",
            "Batches sent to a node, once for all its subscribers",
            labels=["node"],
        )
        for node, count in self._batches():
            family.add_metric([node], count)
        return [family]
