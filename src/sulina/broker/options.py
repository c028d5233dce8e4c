"""Who a broker is, how much it takes on, and how much it has."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from sulina.core.delivery.pubsub import PubSubConfig
from sulina.failpoints import FailpointHook, no_failpoints

Span = Callable[[str, dict[str, Any]], AbstractContextManager[Any]]


def no_span(_name: str, _attributes: dict[str, Any]) -> AbstractContextManager[Any]:
    """Trace nothing."""
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """Every limit has a name; past it there is an error, never memory without end."""

    data: str  # the directory of its logs
    broker_id: str = "local"
    software: str = "0"
    namespaces_max: int = 1_000
    topics_max: int = 10_000
    partitions_max: int = 20_000
    subscriptions_max: int = 20_000
    consumers_max: int = 20_000
    waiting_bytes_max: int = 256 << 20  # to be committed, in all partitions together
    cursors_max: int = 100_000  # subscriptions times partitions
    reader_positions_max: int = 10_000  # registered readers times the partitions that they read
    open_logs_max: int = 2_000
    partition_waiting_bytes_max: int = 64 << 20  # and in one of them
    retention_interval_seconds: float = 60.0
    unload_seconds_max: float = 30.0  # that a partition takes no records while what it has goes to the archive
    ack_grace_seconds: float = 0.3  # for consumers to ack what they have, before their partition moves
    stop_seconds: float = 10.0  # for giving back what is served here
    archive_cache_bytes: int = 64 << 20
    compress_checkpoints: bool = False  # of the logs, as gzip
    pubsub: PubSubConfig = field(default_factory=PubSubConfig)  # deliveries to subscribers
    span: Span = no_span  # around each phase of what takes long
    failpoints: FailpointHook = no_failpoints  # where a test may end the process


@dataclass(slots=True)
class NodeCounts:
    """What grows with what clients do."""

    published_bytes: int = 0
    partitions: int = 0
    subscriptions: int = 0
    cursors: int = 0
    consumers: int = 0
    connections: int = 0
