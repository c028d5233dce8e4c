"""What a client is started with."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Name, times and bounds of one client. Past a bound, calls wait; past their time, they fail."""

    name: str = ""  # as producers are listed by their topics; empty: one is made up
    # Of one call with all its retries, unless the call says otherwise. A broker that dies is missed when its lease runs
    # out, after 10 s unless the cluster says otherwise; then its partitions are with others in a few seconds more.
    timeout_seconds: float = 30.0
    wait_seconds: float = 0.0  # how long the first connection is tried for; 0: once
    backoff_seconds_min: float = 0.05
    backoff_seconds_max: float = 5.0
    requests_in_flight_max: int = 1024
    bytes_in_flight_max: int = 64 << 20
    fetches_in_flight_max: int = 256
    ack_delay_seconds: float = 0.005  # what `ack_soon` gathers before it sends
    idempotent: bool = True  # every publish has a number, so that it can be repeated after an unknown outcome
    topic_seconds: float = 60.0  # how long it is believed what a topic is, and how many partitions it has
