"""The port to the other brokers. `listeners/peer.py` is it on a network."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sulina.wire.peer import AnyPeerFrame


@dataclass(slots=True)
class PeerEvents:
    """Who is told what, on the event loop, never while `send` runs."""

    frame: Callable[[str, AnyPeerFrame], None]  # from this broker; Hello, Ping and Pong are not passed on
    up: Callable[[str, int], None]  # the broker, and when it was started: another time is another life
    down: Callable[[str, str], None]  # the broker, and why
    room: Callable[[str], None]  # what was full takes more again


class Peers(Protocol):
    """One connection for each other broker that is there, made and made again by itself."""

    def listen(self, events: PeerEvents) -> None:
        """Before anything is connected."""
        ...

    def is_up(self, broker_id: str) -> bool:
        """Whether there is a connection, as far as is known."""
        ...

    def has_room(self, broker_id: str) -> bool:
        """Whether it is up and little enough waits to be sent."""
        ...

    def send(self, broker_id: str, frame: AnyPeerFrame) -> bool:
        """Never waits; False: there is no connection, and nothing was sent. What was sent may be lost with it."""
        ...
