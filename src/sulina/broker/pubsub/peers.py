"""The port to the other brokers. `listeners/peer.py` implements it on a network."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sulina.wire.peer import AnyPeerFrame


@dataclass(slots=True)
class PeerEvents:
    """What `PeerConnections` calls, on the event loop and never while `send` runs."""

    frame: Callable[[str, AnyPeerFrame], None]  # the broker that sent it; Hello, Ping and Pong are not passed on
    up: Callable[[str, int], None]  # the broker, and when it was started: another time means that it restarted
    down: Callable[[str, str], None]  # the broker, and the reason
    room: Callable[[str], None]  # a broker whose send queue was full can be sent to again


class PeerConnections(Protocol):
    """One connection to each other broker that is registered; it reconnects by itself."""

    def listen(self, events: PeerEvents) -> None:
        """Set what is called from now on; to be done before the first connection."""
        ...

    def is_up(self, broker_id: str) -> bool:
        """Return whether there is a connection, as far as is known."""
        ...

    def has_room(self, broker_id: str) -> bool:
        """Return whether there is a connection whose send queue is not full."""
        ...

    def send(self, broker_id: str, frame: AnyPeerFrame) -> bool:
        """Send a frame without waiting; False: there is no connection. A frame may be lost with its connection."""
        ...


class NoPeers:
    """Connections of a node that has no other brokers."""

    def listen(self, events: PeerEvents) -> None:
        """Ignore the callbacks: no connection ever exists."""

    def is_up(self, _broker_id: str) -> bool:
        """Return False."""
        return False

    def has_room(self, _broker_id: str) -> bool:
        """Return False."""
        return False

    def send(self, _broker_id: str, _frame: AnyPeerFrame) -> bool:
        """Return False: nothing was sent."""
        return False
