"""One suite, two forms: a node in this process, and a cluster of three, with subscribers away from the owner."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sulina.config import Settings
from sulina.core.delivery.pubsub import PubSubConfig
from sulina.node import Node
from tests.cluster.conftest import pytest_runtest_makereport
from tests.pubsub.forms import Form, Times
from tests.support.cluster_world import World, cluster
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd", "pytest_runtest_makereport"]  # a fixture, a hook

SHARED = ("a", "b", "c")
HERE = Times(0.5, 2.5)  # a failing subscriber is tried twice before it is removed
THERE = Times(2.0, 6.0)  # other tests may keep the machine busy


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_node() -> AsyncIterator[Node]:
    times = PubSubConfig(subscriber_timeout_seconds=HERE.subscriber_timeout, suspended_ttl_seconds=HERE.suspended_ttl)
    settings = Settings(http="127.0.0.1:0", pubsub=times)
    node = await Node.start(settings, listen=False, volatile=True)
    yield node
    await node.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_world(tmp_path_factory: pytest.TempPathFactory, etcd: EtcdServer) -> AsyncIterator[World]:
    arguments = ["--subscriber-timeout-seconds", str(THERE.subscriber_timeout)]
    arguments += ["--suspended-ttl-seconds", str(THERE.suspended_ttl)]
    folder = tmp_path_factory.mktemp("pubsub")
    async with cluster(folder, etcd, is_peer_proxied=True, arguments=arguments) as world:
        yield world


@pytest_asyncio.fixture(loop_scope="session")
async def world(shared_world: World) -> World:
    """Three brokers, whole and connected, whatever the test before has done to them."""
    await shared_world.restore(*SHARED)
    return shared_world


@pytest.fixture(params=["memory", "cluster"])
def made_form(request: pytest.FixtureRequest) -> Form:
    if request.param == "memory":
        return Form("memory", HERE, node=request.getfixturevalue("shared_node"))
    return Form("cluster", THERE, world=request.getfixturevalue("world"))


@pytest_asyncio.fixture(loop_scope="session")
async def form(made_form: Form) -> AsyncIterator[Form]:
    """Where a test of both runs."""
    async with made_form.exits:
        yield made_form


@pytest_asyncio.fixture(loop_scope="session")
async def there(world: World) -> AsyncIterator[Form]:
    """The cluster alone."""
    found = Form("cluster", THERE, world=world)
    async with found.exits:
        yield found
