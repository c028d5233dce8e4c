"""Who a broker is, how much it takes on, how it takes part in a cluster, and how much it has."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any

from sulina.core.delivery.pubsub import PubSubConfig
from sulina.failpoints import FailpointHook, no_failpoints
from sulina.setting import SecondsBetween, Setting, SettingGroup, count, yes_or_no

_CLUSTER, _LIMITS = SettingGroup.CLUSTER, SettingGroup.LIMITS

Span = Callable[[str, dict[str, Any]], AbstractContextManager[Any]]


def no_span(_name: str, _attributes: dict[str, Any]) -> AbstractContextManager[Any]:
    """Trace nothing."""
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """How much clients can create. Past a limit there is an error, never memory without end."""

    namespaces_max: int = 1_000
    topics_max: Annotated[int, Setting(count, "Topics; beyond it: `limit_reached`.", group=_LIMITS)] = 10_000
    partitions_max: Annotated[
        int, Setting(count, "Partitions of all topics together; beyond it: `limit_reached`.", group=_LIMITS)
    ] = 20_000
    subscriptions_max: Annotated[
        int, Setting(count, "Subscriptions of all topics together; beyond it: `limit_reached`.", group=_LIMITS)
    ] = 20_000
    consumers_max: Annotated[int, Setting(count, "Attached consumers; beyond it: `limit_reached`.", group=_LIMITS)] = (
        20_000
    )
    cursors_max: int = 100_000  # subscriptions times partitions
    reader_positions_max: int = 10_000  # registered readers times the partitions that they read
    waiting_bytes_max: Annotated[
        int,
        Setting(
            count,
            "Bytes published and not yet committed, of all partitions together; beyond it: `queue_full`, which can be "
            "retried.",
            group=_LIMITS,
        ),
    ] = 256 << 20
    partition_waiting_bytes_max: int = 64 << 20  # and of one partition


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """How a broker maintains its logs."""

    compress_checkpoints: Annotated[
        bool, Setting(yes_or_no, "Compress checkpoints of logs with gzip: smaller files, slightly more CPU time.")
    ] = False
    retention_interval_seconds: Annotated[
        float, Setting(SecondsBetween(0.1, 3600), "How often retention looks at all topics.", has_flag=False)
    ] = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Times and limits of the control plane."""

    lease_seconds: Annotated[
        float,
        Setting(
            SecondsBetween(1, 600), "Time without contact after which a broker is considered dead.", group=_CLUSTER
        ),
    ] = 10.0
    metadata_history_seconds: Annotated[
        float,
        Setting(
            SecondsBetween(1, 86400),
            "How much of etcd's history to keep; the leader compacts older revisions.",
            group=_CLUSTER,
        ),
    ] = 300.0
    rebalance_seconds: Annotated[
        float | None,
        Setting(
            SecondsBetween(1, 86400),
            "Rebalance the brokers at this interval.",
            group=_CLUSTER,
            default="only on `sulina cluster rebalance`",
        ),
    ] = None
    rescan_seconds: float = 5.0  # between two looks of the leader at everything
    load_seconds: float = 5.0  # between two load reports, if no partition is acquired or released
    moves_at_once: int = 4  # unloads of one broker at a time, for a drain or a rebalance
    rebalance_moves_max: int = 100  # moves that one requested rebalance may start
    unreachable_seconds: float = 24 * 3600.0  # how long a dead broker is shown as unreachable
    stop_seconds: float = 5.0  # for unregistering; after that the lease expires by itself
    upkeep_seconds: float = 5.0  # between two looks at the size of the metadata store
    waiters_max: int = 100_000  # callers that wait for a change of the view


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """What a broker is started with."""

    data: str  # the directory of its logs
    broker_id: str = "local"
    software: str = "0"
    limits: BrokerLimits = field(default_factory=BrokerLimits)
    open_logs_max: int = 2_000
    storage: StorageOptions = field(default_factory=StorageOptions)
    unload_seconds_max: float = 30.0  # that a partition takes no records while what it has goes to the archive
    ack_grace_seconds: float = 0.3  # for consumers to ack what they have, before their partition moves
    stop_seconds: float = 10.0  # for giving back what is served here
    archive_cache_bytes: int = 64 << 20
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
