"""A broker with its HTTP application, in this process."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
import uvloop
from starlette.types import Receive, Scope, Send

from sulina.broker.broker import Broker
from sulina.broker.options import BrokerOptions
from sulina.broker.pubsub.peers import PeerConnections
from sulina.listeners.http import HttpApp, make_app
from sulina.metadata.memory import MemoryMetadata
from sulina.ports import Files
from sulina.storage.files import VolatileFiles
from sulina.storage.partition_log import LogThreads


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], uvloop.Loop]]:
    """Listeners are tested on the loop that nodes run on: its transports are the ones that matter."""
    return {"uvloop": uvloop.new_event_loop}


@contextlib.asynccontextmanager
async def a_broker(
    directory: Path, files: Files | None = None, peers: PeerConnections | None = None
) -> AsyncIterator[Broker]:
    metadata = MemoryMetadata()
    threads = LogThreads.of(writers=1, readers=1)
    options = BrokerOptions(data=str(directory), software="1.2.3")
    broker = Broker(metadata, options, threads=threads, files=files or VolatileFiles(), peers=peers)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
        await metadata.close()
        threads.shutdown()


async def no_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("no test here opens a WebSocket")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with a_broker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def app(broker: Broker) -> HttpApp:
    return make_app(broker, websocket=no_websocket)


@pytest.fixture
async def http(app: HttpApp) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://node:8080") as client:
        yield client
