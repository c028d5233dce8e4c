"""Every test of the client runs in virtual time, unless it says otherwise."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from sulina.client import Client, ClientOptions
from tests.client.fake_node import FakeNode
from tests.client.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("real_time"):
        return {"real": asyncio.new_event_loop}
    return {"virtual": VirtualTimeLoop}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real_time: threads are at work, so time must pass by itself")


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
async def client(node: FakeNode) -> AsyncIterator[Client]:
    async with node.client(ClientOptions()) as client:
        yield client
