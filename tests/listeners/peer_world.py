"""Brokers that talk to each other over real sockets, and a stranger who speaks bytes."""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn, Self

import structlog
from structlog.typing import EventDict, WrappedLogger

from sulina.broker.pubsub.peers import PeerConnections
from sulina.listeners.peer import PeerLimits, PeerNetwork
from sulina.wire.peer import LENGTH, AnyPeerFrame, DeliverBatch, Hello, decode_peer, encode_peer

HOST = "127.0.0.1"
WAIT_SECONDS_MAX = 30.0
QUICK = PeerLimits(heartbeat_seconds=0.05, silence_seconds=0.4, redial_seconds_min=0.01, redial_seconds_max=0.05)


def batch(number: int, size_bytes: int = 10) -> DeliverBatch:
    """A frame with a number to know it by."""
    return DeliverBatch("/default/t", 0, (1, 0), number, number, number + 1, b"", memoryview(bytes(size_bytes)))


class Node:
    """A broker's end of its connections, and everything that it was told."""

    def __init__(self, network: PeerNetwork) -> None:
        self.network = network
        self.id = network.broker_id
        self.told: list[tuple[Any, ...]] = []  # ("up", broker, started_ms), ("down", broker, reason), ("room", broker)
        self.frames: dict[str, list[AnyPeerFrame]] = {}
        self.fails_at: AnyPeerFrame | None = None  # a frame with which this broker does not come to terms
        self._changed = asyncio.Event()
        peers: PeerConnections = network  # the port fits
        peers.listen(self)

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.network.port

    def _tell(self, *what: Any) -> None:
        if what[0] == "up":
            assert self.network.is_up(what[1])
        if what[0] == "down":
            assert not self.network.is_up(what[1])
            assert not self.network.has_room(what[1])
        self.told.append(what)
        self._changed.set()

    def peer_up(self, broker_id: str, started_ms: int) -> None:
        self._tell("up", broker_id, started_ms)

    def peer_down(self, broker_id: str, reason: str) -> None:
        self._tell("down", broker_id, reason)

    def peer_room(self, broker_id: str) -> None:
        self._tell("room", broker_id)

    def peer_frame(self, broker_id: str, frame: AnyPeerFrame) -> None:
        self.frames.setdefault(broker_id, []).append(frame)
        self._changed.set()
        if frame == self.fails_at:
            raise RuntimeError("by order of a test")

    def numbers(self, broker: str) -> list[int]:
        """Of the batches that came from there."""
        return [frame.attempt for frame in self.frames.get(broker, []) if isinstance(frame, DeliverBatch)]

    def count(self, *what: Any) -> int:
        """How often it was told something that begins so."""
        return sum(event[: len(what)] == what for event in self.told)

    async def until(self, condition: Callable[[], bool]) -> None:
        """It holds, after something that this broker was told."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_told(self, *what: Any, times: int = 1) -> None:
        await self.until(lambda: self.count(*what) >= times)


@contextlib.asynccontextmanager
async def a_node(broker_id: str, *, started_ms: int = 1, limits: PeerLimits = QUICK, **tls: Any) -> AsyncIterator[Node]:
    node = Node(PeerNetwork(broker_id, started_ms, limits=limits, **tls))
    await node.network.start(HOST, 0)
    try:
        yield node
    finally:
        await node.network.close()


class Logged(structlog.testing.LogCapture):
    """What is logged while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()
        self._outer: list[Any] = []

    def __call__(self, logger: WrappedLogger, method_name: str, event_dict: EventDict) -> NoReturn:
        self._changed.set()
        super().__call__(logger, method_name, event_dict)

    def __enter__(self) -> Self:
        processors = structlog.get_config()["processors"]
        self._outer = [*processors]
        processors[:] = [self]  # in place: loggers that exist have it too
        return self

    def __exit__(self, *failure: object) -> None:
        structlog.get_config()["processors"][:] = self._outer

    def reasons(self, event: str) -> list[str]:
        return [entry["reason"] for entry in self.entries if entry["event"] == event]

    async def until(self, event: str, times: int = 1) -> None:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while sum(entry["event"] == event for entry in self.entries) < times:
                self._changed.clear()
                await self._changed.wait()


async def connect(*nodes: Node) -> None:
    """Everybody knows everybody, and is connected."""
    members = {node.id: node.address for node in nodes}
    for node in nodes:
        node.network.set_members(members)
    for one, other in itertools.permutations(nodes, 2):
        await one.until(lambda one=one, other=other: one.network.is_up(other.id))  # type: ignore[misc]


class Stranger:
    """A socket to a broker, in the hands of the test. It reads only when it is told to, and its buffer is small."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()

    async def send(self, data: bytes | bytearray) -> None:
        await self._loop.sock_sendall(self.socket, data)

    async def hello(self, broker_id: str, to: str, *, started_ms: int = 1, **more: Any) -> None:
        await self.send(encode_peer(Hello(broker_id, started_ms, to, **more)))

    async def trickle(self, data: bytes) -> None:
        """A byte now and then, for as long as anybody takes them."""
        with contextlib.suppress(ConnectionError):
            for byte in data:
                await self.send(bytes([byte]))
                await asyncio.sleep(0.02)

    async def read(self) -> AnyPeerFrame:
        """The next frame, whatever it is."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            body = await self._take((LENGTH.unpack(await self._take(LENGTH.size)))[0])
        return decode_peer(body)

    async def _take(self, size_bytes: int) -> bytes:
        while len(self._received) < size_bytes:
            piece = await self._loop.sock_recv(self.socket, 1 << 16)
            assert piece, "the connection is closed"
            self._received += piece
        taken = bytes(self._received[:size_bytes])
        del self._received[:size_bytes]
        return taken

    async def until_closed(self) -> None:
        """By the other side. What comes before is passed over."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            with contextlib.suppress(ConnectionResetError):
                while await self._loop.sock_recv(self.socket, 1 << 16):
                    pass


@contextlib.asynccontextmanager
async def a_stranger(port: int) -> AsyncIterator[Stranger]:
    connection = socket.socket()
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    try:
        await asyncio.get_running_loop().sock_connect(connection, (HOST, port))
        yield Stranger(connection)
    finally:
        connection.close()
