"""One node in one process, from its settings to its graceful end.

It is ready when its broker is and its port answers. It stops in the order that loses nothing: no new connections, what
was taken is finished, cursors are written, logs are closed, the metadata store is closed.
"""

import asyncio
import contextlib
import resource
import tempfile
import time
import weakref
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

import structlog
from starlette.types import ASGIApp

from sulina.addresses import address_text, split_address
from sulina.broker.broker import Broker
from sulina.broker.options import BrokerOptions, no_span
from sulina.config import Settings
from sulina.core.cluster.entries import Registration
from sulina.core.records.batch import validate
from sulina.core.records.kernel_choice import warm_up
from sulina.core.records.rows import decode_rows, encode_rows
from sulina.errors import Disconnected
from sulina.failpoints import failpoints_from_environment
from sulina.listeners.http import make_app
from sulina.listeners.http_protocol import make_server
from sulina.listeners.local import LocalConnection
from sulina.listeners.peer import PeerNetwork
from sulina.listeners.peer_owners import PeerOwners, answer_peer
from sulina.listeners.websocket import WebSocketListener
from sulina.metadata.memory import MemoryMetadata
from sulina.node.cluster import open_archives, open_metadata, take_directory
from sulina.node.tracing import Tracing
from sulina.ports import Files, MetadataStore
from sulina.storage.files import OsFiles, VolatileFiles
from sulina.storage.partition_log import LogThreads
from sulina.types import PartitionName
from sulina.wire.peer import PeerRequest

WRITERS, READERS, ARCHIVERS = 4, 4, 8  # threads for the logs

_logger = structlog.get_logger("sulina.node")


class Node:
    """`start` it; `stop` it."""

    def __init__(self, settings: Settings, broker: Broker, warming: asyncio.Task[None]) -> None:
        self.settings = settings
        self.broker = broker
        self.warming = warming  # done when the kernels are loaded
        self.url = "in-process"
        self._exits = contextlib.AsyncExitStack()
        self._stopping: asyncio.Task[None] | None = None
        self._connections: weakref.WeakSet[LocalConnection] = weakref.WeakSet()

    @classmethod
    async def start(cls, settings: Settings, *, listen: bool = True, volatile: bool = False) -> "Node":
        """Return a node that serves. A `volatile` one keeps its data while it lives, in a directory of its own."""
        files_max = _raise_file_limit()
        async with contextlib.AsyncExitStack() as exits:
            files: Files = VolatileFiles() if volatile else OsFiles()
            metadata: MetadataStore
            if volatile:
                directory = tempfile.TemporaryDirectory(prefix="sulina-", ignore_cleanup_errors=True)
                exits.push_async_callback(asyncio.to_thread, directory.cleanup)
                data, metadata = directory.name, MemoryMetadata()
            else:
                data = settings.data
                await asyncio.to_thread(files.make_directory, data)
                metadata = await open_metadata(settings, data)
            exits.push_async_callback(metadata.close)
            tracing = Tracing.start(settings) if listen else None
            if tracing is not None:
                exits.push_async_callback(tracing.stop)
            threads = LogThreads.of(
                writers=WRITERS, readers=READERS, archivers=ARCHIVERS if settings.objects is not None else 0
            )
            exits.callback(threads.shutdown)
            warming = asyncio.create_task(asyncio.to_thread(warm_up, use_kernels), name="warm-up")
            exits.push_async_callback(asyncio.wait, [warming])  # a thread cannot be stopped
            options = _options(settings, data, files_max, tracing)
            archives = await open_archives(settings, options)

            async def answer(request: PeerRequest) -> Any:  # called when the broker serves
                return await answer_peer(broker, request)

            def owner_of(partition: PartitionName) -> str | None:
                return broker.cluster_handle.owner_of(partition)

            peers = PeerNetwork(settings.broker_id, int(time.time() * 1000), answer=answer)
            registration = None
            if settings.etcd is not None and not volatile:
                lock, store_id = await asyncio.to_thread(take_directory, files, data)
                exits.callback(lock.close)  # after the broker has stopped: a process that has it next takes us for dead
                registration = _registration(settings, store_id, peers.started_ms)
            broker = Broker(
                metadata,
                options,
                threads=threads,
                files=files,
                archives=archives,
                registration=registration,
                cluster_options=settings.cluster,
                others=None if registration is None else PeerOwners(peers, owner_of=owner_of, answer=answer),
                peers=None if registration is None else peers,
            )
            node = cls(settings, broker, warming)
            if registration is None:
                await broker.start()
            exits.push_async_callback(peers.close)  # when the broker has said what it has to say
            exits.push_async_callback(broker.stop)
            exits.push_async_callback(node._close_connections)
            if listen:
                await node._listen(exits, tracing)
            if registration is not None:
                await node._join(peers)
            _logger.info("node_ready", url=node.url, data=settings.data, broker_id=settings.broker_id)
            node._exits = exits.pop_all()
        return node

    async def _join(self, peers: PeerNetwork) -> None:
        settings = self.settings
        await peers.start(settings.peer_listen_host, settings.peer_port)
        await self.broker.start(url=settings.advertise or self.url, peer=settings.peer_address(peers.port))
        self.broker.follow_peers(
            lambda there: peers.set_members({name: split_address(peer) for name, peer in there.items()})
        )

    async def _listen(self, exits: contextlib.AsyncExitStack, tracing: Tracing | None) -> None:
        settings, limits = self.settings, self.settings.http_limits
        websocket = WebSocketListener(self.broker, sessions_max=limits.connections_max)
        http = make_app(self.broker, limits, websocket=websocket)
        app: ASGIApp = http
        if tracing is not None:
            app = tracing.traced(app)
        server = make_server(app, settings.http_host, settings.http_port, limits, before_shutdown=http.stop_waiting)
        await server.start()
        exits.push_async_callback(server.stop)
        exits.push_async_callback(websocket.close)
        exits.callback(self.broker.drain)
        self.url = f"http://{address_text(settings.http_host, server.port)}"

    @property
    def connector(self) -> Callable[[], Awaitable[LocalConnection]]:
        """Return a function that makes connections within this process."""

        async def connect() -> LocalConnection:
            if self._stopping is not None:
                raise Disconnected(url=self.url, reason="the node has stopped")
            connection = LocalConnection(self.broker)
            self._connections.add(connection)
            return connection

        return connect

    async def _close_connections(self) -> None:
        for connection in list(self._connections):
            await connection.close()

    async def stop(self) -> None:
        """Stop the node, once. It is stopped also when the caller is cancelled."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._exits.aclose(), name="node-stop")
        await asyncio.shield(self._stopping)


def _registration(settings: Settings, store_id: str, started_ms: int) -> Registration:
    """Return how the other brokers see this one. Its addresses are known when it listens."""
    return Registration(
        broker_id=settings.broker_id,
        url=settings.advertise or "",
        store_id=store_id,
        started_ms=started_ms,
        software=version("sulina"),
    )


def _options(settings: Settings, data: str, files_max: int, tracing: Tracing | None) -> BrokerOptions:
    return BrokerOptions(
        data=data,
        broker_id=settings.broker_id,
        software=version("sulina"),
        limits=settings.limits,
        open_logs_max=max(16, files_max // 8),
        storage=settings.storage,
        pubsub=settings.pubsub,
        span=tracing.span if tracing is not None else no_span,
        failpoints=failpoints_from_environment(),
    )


def use_kernels() -> None:
    """Use each kernel once: the first use compiles it, or loads what was compiled before."""
    for keys, stamps in ((None, 0), ([b"k"] * 64, list(range(64)))):
        batch = encode_rows([b"value"] * 64, keys, stamps)
        validate(batch)
        decode_rows(batch)


def _raise_file_limit() -> int:
    """Raise the limit on open files as far as the system grants, for logs and sockets; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    granted = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return granted if granted != resource.RLIM_INFINITY else 1 << 20
