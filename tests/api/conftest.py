"""One API, three places: a node in this process, in memory or in a directory, and a node in another process."""

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import sulina
from sulina.client import Client, ClientOptions, SyncClient, WebSocketConnector
from sulina.client.connection import Connector
from sulina.config import Settings
from sulina.node import Node
from tests.support.serving import serving

PLACES = ["memory", "directory", "remote"]

OpenClient = Callable[..., Awaitable[Client]]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real `sulina serve`, one for all tests; each has topics of its own."""
    folder = tmp_path_factory.mktemp("served")
    with serving(folder / "data") as node:
        yield node.url
        assert node.stop() == 0, "\n".join(node.log_lines()[-40:])


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def start_node(place: str, folder: Path) -> Node:
    settings = Settings(data=str(folder / "data"), http="127.0.0.1:0")
    return await Node.start(settings, listen=False, volatile=place == "memory")


@pytest.fixture
async def open_client(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[OpenClient]:
    """Any number of clients, with options of their own, to one node."""
    async with contextlib.AsyncExitStack() as stack:
        connector: Connector
        if place == "remote":
            connector = WebSocketConnector(request.getfixturevalue("served"))
        else:
            node = await start_node(place, tmp_path)
            stack.push_async_callback(node.stop)
            connector = node.connector

        async def open_client(**options: object) -> Client:
            client = Client(connector, options=ClientOptions(**options), url=place)  # type: ignore[arg-type]
            return await stack.enter_async_context(client)

        yield open_client


@pytest.fixture
async def client(open_client: OpenClient) -> Client:
    return await open_client()


@pytest.fixture
def url(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """What `sulina.connect` takes for this place."""
    if place == "remote":
        return str(request.getfixturevalue("served"))
    return "memory:" if place == "memory" else str(tmp_path / "data")


@pytest.fixture
def sync_client(url: str) -> Iterator[SyncClient]:
    """The client for threads; a node in this process lives in its loop."""
    with sulina.connect_sync(url) as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"/default/topic-{uuid.uuid4().hex[:12]}"
