"""Settings of a broker in a cluster, and of its leader."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Times and limits of the control plane."""

    lease_seconds: float = 10.0  # how long a broker may be silent before its partitions are assigned to others
    rescan_seconds: float = 5.0  # between two looks of the leader at everything
    load_seconds: float = 5.0  # between two load reports, if no partition is acquired or released
    moves_at_once: int = 4  # unloads of one broker at a time, for a drain or a rebalance
    rebalance_seconds: float | None = None  # between two automatic rebalances; None: only on request
    rebalance_moves_max: int = 100  # moves that one requested rebalance may start
    unreachable_seconds: float = 24 * 3600.0  # how long a dead broker is shown as unreachable
    stop_seconds: float = 5.0  # for unregistering; after that the lease expires by itself
    history_seconds: float = 300.0  # of history that the metadata store keeps for brokers that were disconnected
    upkeep_seconds: float = 5.0  # between two looks at the size of the metadata store
    waiters_max: int = 100_000  # callers that wait for a change of the view
