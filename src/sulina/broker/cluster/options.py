"""How a broker keeps its place in a cluster, and how fast a leader moves things."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Every limit has a name."""

    lease_seconds: float = 10.0  # how long a broker may be silent before its partitions go to others
    rescan_seconds: float = 5.0  # the leader looks at everything, whatever it was told
    load_seconds: float = 5.0  # between two load reports, when nothing is gained or lost
    moves_at_once: int = 4  # unloads of one broker that a drain or a rebalance keeps under way
    rebalance_seconds: float | None = None  # between two automatic rebalances; None: only when asked
    rebalance_moves_max: int = 100  # that one asked-for rebalance may wish for
    forget_seconds: float = 24 * 3600.0  # how long a broker that is gone is shown as unreachable
    stop_seconds: float = 5.0  # for leaving in good order; then the lease ends by itself
    history_seconds: float = 300.0  # of the metadata store's history that are kept for brokers that were away
    upkeep_seconds: float = 5.0  # between two looks at how much room the metadata store has
    waiters_max: int = 100_000  # that wait for a change of the view
