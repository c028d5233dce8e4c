"""One cluster for all tests of a worker that can share it, each with topics of its own; others start theirs."""

import os
from collections.abc import AsyncIterator, Generator

import pytest
import pytest_asyncio

from tests.support.cluster_world import World, cluster
from tests.support.etcd import EtcdServer, etcd
from tests.support.s3 import s3

__all__ = ["etcd", "s3"]  # fixtures

SHARED = ("a", "b", "c")
OBJECTS = os.environ.get("SULINA_TEST_OBJECTS", "file")  # or s3: a real server, for all tests


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_world(
    tmp_path_factory: pytest.TempPathFactory, etcd: EtcdServer, request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    """Its brokers are started for the first test that asks."""
    s3 = request.getfixturevalue("s3") if OBJECTS == "s3" else None
    async with cluster(tmp_path_factory.mktemp("cluster"), etcd, s3=s3) as world:
        yield world


@pytest_asyncio.fixture(loop_scope="session")
async def world(shared_world: World) -> World:
    """Three brokers, `a`, `b` and `c`, whatever the test before has done to them."""
    for broker_id in set(shared_world.brokers) - set(SHARED):
        await shared_world.remove(broker_id)
    await shared_world.restore(*SHARED)
    return shared_world


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the clusters of a test that failed."""
    report = yield
    if report.failed and call.when == "call":
        worlds = {id(value): value for value in getattr(item, "funcargs", {}).values() if isinstance(value, World)}
        for world in worlds.values():
            report.sections.append(("the cluster", world.report()))
            world.keep()
    return report
