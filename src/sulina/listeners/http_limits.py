"""How much the HTTP surface lets in. Everything that a stranger can make grow has its bound here."""

from dataclasses import dataclass
from typing import Annotated

from sulina.setting import SecondsBetween, Setting, SettingGroup, count

_LIMITS = SettingGroup.LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Past a limit there is a clear refusal: 408, 413, 429, 431 or 503, never memory without end."""

    # One request
    body_bytes_max: Annotated[int, Setting(count, "Bytes of the body of a request; beyond it: 413.", group=_LIMITS)] = (
        32 << 20
    )
    records_max: int = 100_000  # of one publish, and of one read
    read_bytes_max: int = 16 << 20  # of stored batches, but one batch always goes whole
    read_bytes: int = 1 << 20  # unless asked otherwise
    wait_seconds_max: float = 30.0
    head_bytes_max: int = 32 << 10

    # All requests together. Bodies up to `small_body_bytes` need no room of their own: connections bound them.
    small_body_bytes: int = 64 << 10
    in_flight_body_bytes_max: int = 256 << 20
    in_flight_read_bytes_max: int = 256 << 20

    # Connections
    connections_max: Annotated[
        int,
        Setting(
            count,
            "Open connections, HTTP and WebSocket together; beyond it a connection is refused. The limit is lower "
            "where the system allows fewer open files.",
            group=_LIMITS,
        ),
    ] = 10_000
    backlog: int = 2048
    head_timeout_seconds: Annotated[
        float,
        Setting(
            SecondsBetween(0.1, 3600),
            "Time for the head of a request, from its first byte or from connecting; beyond it: 408, or the connection "
            "is closed if nothing came.",
            group=_LIMITS,
        ),
    ] = 10.0
    body_timeout_seconds: Annotated[
        float,
        Setting(
            SecondsBetween(0.1, 3600),
            "Time for the body of a request, extended while 64 KiB come each second; beyond it: 408.",
            group=_LIMITS,
        ),
    ] = 30.0
    body_bytes_per_second_min: int = 64 << 10
    send_timeout_seconds: float = 30.0  # in which a client reads nothing of what waits for it
    keep_alive_seconds: float = 60.0
    pipelined_requests_max: int = 256
    heartbeat_seconds: float = 15.0  # of event streams
    linger_seconds: float = 2.0  # to let a refused client read why
    shutdown_seconds: int = 10  # for requests under way

    # WebSockets
    frame_bytes_max: int = 72 << 20
    fragments_max: int = 1024  # of one message
    in_flight_frame_bytes_max: int = 256 << 20
    ping_seconds: float = 20.0
    pong_seconds: float = 20.0


DEFAULT_HTTP_LIMITS = HttpLimits()
