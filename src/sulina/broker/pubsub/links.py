"""Sends frames to nodes: to other brokers over their connections, to this node itself through a queue."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable

from sulina.broker.pubsub.peers import NoPeers, PeerConnections, PeerEvents
from sulina.wire.peer import AnyPeerFrame, DeliverBatch


class NodeLinks:
    """Frames to this node are handled in a later turn of the event loop, as frames from others are."""

    def __init__(self, broker_id: str, on_frame: Callable[[str, AnyPeerFrame], None]) -> None:
        self._broker_id = broker_id
        self._on_frame = on_frame
        self._peers: PeerConnections = NoPeers()
        self._local: deque[AnyPeerFrame] = deque()
        self.batches_sent: Counter[str] = Counter()  # by node

    def connect(self, peers: PeerConnections, events: PeerEvents) -> None:
        """Use these connections from now on."""
        self._peers = peers
        peers.listen(events)

    def is_up(self, node: str) -> bool:
        """Return whether a node is connected; this one always is."""
        return node == self._broker_id or self._peers.is_up(node)

    def has_room(self, node: str) -> bool:
        """Return whether a node is connected and its send queue is not full."""
        return node == self._broker_id or self._peers.has_room(node)

    def send(self, node: str, frame: AnyPeerFrame) -> bool:
        """Send a frame without waiting; False: there is no connection with the node."""
        if isinstance(frame, DeliverBatch):
            self.batches_sent[node] += 1
        if node != self._broker_id:
            return self._peers.send(node, frame)
        if not self._local:
            asyncio.get_running_loop().call_soon(self._drain)
        self._local.append(frame)
        return True

    def _drain(self) -> None:
        for _ in range(len(self._local)):  # frames that are queued meanwhile wait for the next turn
            self._on_frame(self._broker_id, self._local.popleft())
        if self._local:
            asyncio.get_running_loop().call_soon(self._drain)
