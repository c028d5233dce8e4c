"""The control plane on stores that last: SQLite, and a real etcd, in real time (F1, F6; issue 4, Must show)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from sulina.broker.cluster import ClusterOptions
from sulina.metadata import SqliteMetadata
from sulina.metadata.etcd import EtcdMetadata
from sulina.ports import MetadataStore
from tests.support.control_plane import Line, Member, World
from tests.support.etcd import ALONE, EtcdServer, etcd

__all__ = ["etcd"]  # the fixture

OPTIONS = ClusterOptions(lease_seconds=2.0)
WAIT_SECONDS = 30.0


class EtcdWorld(World):
    """Every broker has a client of its own."""

    def __init__(self, server: EtcdServer, prefix: str, stack: AsyncExitStack, store: MetadataStore) -> None:
        super().__init__(OPTIONS, store)
        self._server = server
        self._prefix = prefix
        self._stack = stack

    async def line(self) -> Line:
        return Line(await _client(self._server, self._prefix, self._stack))

    async def join_all(self, *broker_ids: str) -> list[Member]:
        return [await self.join(broker_id, line=await self.line()) for broker_id in broker_ids]


async def _client(server: EtcdServer, prefix: str, stack: AsyncExitStack) -> EtcdMetadata:
    store = await EtcdMetadata.open(server.endpoints, prefix=prefix, timeout_seconds=2.0)
    stack.push_async_callback(store.close)
    return store


@asynccontextmanager
async def etcd_world(server: EtcdServer) -> AsyncIterator[EtcdWorld]:
    prefix = server.new_prefix()
    async with AsyncExitStack() as stack:
        world = EtcdWorld(server, prefix, stack, await _client(server, prefix, stack))
        async with world:
            yield world


async def test_f6_on_sqlite_a_dead_broker_is_replaced(tmp_path: Path) -> None:
    store = await SqliteMetadata.open(str(tmp_path / "metadata.db"))
    async with World(ClusterOptions(lease_seconds=1.0), store) as world:
        a, b = await world.join_all("a", "b")
        names = await world.create("orders", 10)
        await world.served(names, WAIT_SECONDS)
        await b.kill()
        await world.until(lambda: set(a.owner.mine) == set(names), WAIT_SECONDS)
        await a.stop()
    await store.close()


async def test_f1_f6_on_etcd_a_dead_broker_is_replaced_and_one_that_left_at_once(etcd: EtcdServer) -> None:
    async with etcd_world(etcd) as world:
        a, b, c = await world.join_all("a", "b", "c")
        names = await world.create("orders", 30)
        await world.served(names, WAIT_SECONDS)
        started = time.monotonic()
        await b.stop()
        await world.served(names, WAIT_SECONDS)
        assert time.monotonic() - started < OPTIONS.lease_seconds, "nobody waited for a lease"
        await c.kill()
        await world.until(lambda: set(a.owner.mine) == set(names), WAIT_SECONDS)
        types = a.event_types()
        assert types.index("broker_left") < types.index("broker_unreachable")


async def test_f6_on_etcd_a_thousand_partitions_of_three_brokers(etcd: EtcdServer) -> None:
    """A third of them loses its owner, and all are served again. How long that takes is in benchmarks/cluster.py."""
    async with etcd_world(etcd) as world:
        a, _, c = await world.join_all("a", "b", "c")
        names = await world.create("orders", 999)
        await world.served(names, WAIT_SECONDS)
        await c.kill()
        assert await a.view.wait_for(lambda view: "c" not in view.registrations, WAIT_SECONDS)
        await world.served(names, WAIT_SECONDS)


async def test_while_etcd_does_not_answer_nobody_acknowledges_and_then_everybody_does_again(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, arguments=ALONE) as server:
        async with etcd_world(server) as world:
            await world.join_all("a", "b")
            names = await world.create("orders", 6)
            await world.served(names, WAIT_SECONDS)
            server.pause()
            try:
                await world.until(lambda: not any(world.serving(name) for name in names), WAIT_SECONDS)
            finally:
                server.resume()
            await world.served(names, WAIT_SECONDS)


async def test_brokers_outlive_a_restart_of_etcd(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, arguments=ALONE) as server:
        async with etcd_world(server) as world:
            await world.join_all("a", "b")
            names = await world.create("orders", 6)
            await world.served(names, WAIT_SECONDS)
            await asyncio.to_thread(server.restart)
            more = await world.create("more", 4)
            await world.served([*names, *more], WAIT_SECONDS)
