"""Who a broker is, how much it takes on, and how much it has."""

from dataclasses import dataclass


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
    open_logs_max: int = 2_000
    partition_waiting_bytes_max: int = 64 << 20  # and in one of them
    retention_interval_seconds: float = 60.0


@dataclass(slots=True)
class Counts:
    """What grows with what clients do."""

    waiting_bytes: int = 0
    partitions: int = 0
    subscriptions: int = 0
    cursors: int = 0
    consumers: int = 0
    connections: int = 0
