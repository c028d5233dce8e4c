"""The port to the nodes of a cluster, this one among them. `listeners/peer.py` implements it on a network."""

import asyncio
from collections import deque
from typing import Protocol

from sulina.wire.peer import AnyPeerFrame


class PeerListener(Protocol):
    """Is told what happens on connections, on the event loop and never while `send` runs."""

    def peer_frame(self, broker_id: str, frame: AnyPeerFrame) -> None:
        """Take a frame that a broker has sent; Hello, Ping, Pong and requests are not passed on."""
        ...

    def peer_up(self, broker_id: str, started_ms: int) -> None:
        """Note a connection with a broker, and when that was started: another time means that it restarted."""
        ...

    def peer_down(self, broker_id: str, reason: str) -> None:
        """Note that the connection with a broker is lost."""
        ...

    def peer_room(self, broker_id: str) -> None:
        """Note that a broker whose send queue was full can be sent to again."""
        ...


class PeerConnections(Protocol):
    """One connection to each other broker that is registered, which reconnects by itself, and a loopback."""

    def listen(self, listener: PeerListener) -> None:
        """Set who is told from now on; to be done before the first connection."""
        ...

    def is_up(self, broker_id: str) -> bool:
        """Return whether there is a connection, as far as is known; with this node itself there always is."""
        ...

    def has_room(self, broker_id: str) -> bool:
        """Return whether there is a connection whose send queue is not full."""
        ...

    def send(self, broker_id: str, frame: AnyPeerFrame) -> bool:
        """Send a frame without waiting; False: there is no connection. A frame may be lost with its connection."""
        ...


class Loopback:
    """The connection of a node with itself: a frame is handled in a later turn of the event loop, as those of others.

    A node without other brokers has no other connection.
    """

    def __init__(self, broker_id: str) -> None:
        self._broker_id = broker_id
        self._listener: PeerListener | None = None
        self._frames: deque[AnyPeerFrame] = deque()

    def listen(self, listener: PeerListener) -> None:
        """Set who gets the frames."""
        self._listener = listener

    def is_up(self, broker_id: str) -> bool:
        """Return whether it is this node itself."""
        return broker_id == self._broker_id

    def has_room(self, broker_id: str) -> bool:
        """Return whether it is this node itself."""
        return broker_id == self._broker_id

    def send(self, broker_id: str, frame: AnyPeerFrame) -> bool:
        """Queue a frame for this node; False: it is for another."""
        if broker_id != self._broker_id:
            return False
        if not self._frames:
            asyncio.get_running_loop().call_soon(self._drain)
        self._frames.append(frame)
        return True

    def _drain(self) -> None:
        assert self._listener is not None
        for _ in range(len(self._frames)):  # frames that are queued meanwhile wait for the next turn
            self._listener.peer_frame(self._broker_id, self._frames.popleft())
        if self._frames:
            asyncio.get_running_loop().call_soon(self._drain)
