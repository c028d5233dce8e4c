"""Somebody who breaks a cluster in every way that there is, one after the other or at once, as a seed says."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import httpx

from sulina.wire.messages import TopicState
from tests.support.cluster_world import World
from tests.support.etcd import EtcdServer
from tests.support.fault_proxy import FaultProxy

NETWORK_FAULTS = ("cut", "blackhole", "drop_replies")


class Nemesis:
    """At most one broker at a time is killed, asleep or cut off; everything else may come together."""

    def __init__(self, world: World, topics: list[str], seed: int) -> None:
        self._world = world
        self._topics = topics
        self._rng = random.Random(f"{seed}/nemesis")
        self._down = asyncio.Lock()
        self.counts: Counter[str] = Counter()

    async def run(self, faults: int) -> None:
        """So many faults, some of them at the same time; all of them over when it returns."""
        kinds: list[Callable[[], Awaitable[None]]] = [
            self.move,
            self.move,
            self.kill,
            self.sleep,
            self.cut_etcd,
            self.cut_store,
            self.trouble_store,
            self.restart_etcd,
        ]
        async with asyncio.TaskGroup() as tasks:
            for _ in range(faults):
                kind = self._rng.choice(kinds)
                self.counts[kind.__name__] += 1
                tasks.create_task(kind())  # type: ignore[arg-type]
                await self._pause(0.2, 1.5)

    async def move(self) -> None:
        """A topic, to anybody. Not while it waits for a broker: to force it gives up what only that one has."""
        topic, to = self._rng.choice(self._topics), self._rng.choice(["a", "b", "c"])
        try:
            found = await self._world.placement(topic)
            if found is None or any(each.state == TopicState.RECOVERING for each in found.partitions):
                self.counts["moves that had to wait"] += 1
                return
            await self._world.unload(topic, to=to)
        except (AssertionError, IndexError, httpx.TransportError):
            self.counts["moves that were refused"] += 1

    async def kill(self) -> None:
        """And start again, before its lease is over or after."""
        async with self._down:
            broker = self._world.brokers[self._victim()]
            await broker.kill()
            await self._pause(0.0, 1.5 * self._world.lease_seconds)
            await broker.start()

    async def sleep(self) -> None:
        """A process that stands still, and does not know it."""
        async with self._down:
            broker = self._world.brokers[self._victim()]
            broker.pause()
            await self._pause(0.1, 2 * self._world.lease_seconds)
            broker.resume()

    async def cut_etcd(self) -> None:
        """For less than a lease, or more."""
        async with self._down:
            await self._break(self._world.brokers[self._victim()].etcd_proxy)

    async def cut_store(self) -> None:
        """For a while."""
        await self._break(self._world.brokers[self._victim()].store_proxy)

    async def trouble_store(self) -> None:
        """Requests that fail, replies that are lost, puts that come twice."""
        proxy = self._world.brokers[self._victim()].store_proxy
        if proxy is not None:
            proxy.fail_next(self._rng.randrange(8), self._rng.choice([500, 503]))
            proxy.lose_replies(self._rng.randrange(4))
            proxy.duplicate_puts(self._rng.randrange(4))

    async def restart_etcd(self) -> None:
        """kill -9, and at once again."""
        async with self._down:
            if isinstance(self._world.etcd, EtcdServer):
                await asyncio.to_thread(self._world.etcd.restart)

    async def _break(self, proxy: FaultProxy | None) -> None:
        if proxy is not None:
            getattr(proxy, self._rng.choice(NETWORK_FAULTS))()
            await self._pause(0.1, 2 * self._world.lease_seconds)
            proxy.heal()

    def _victim(self) -> str:
        return self._rng.choice(sorted(self._world.brokers))

    async def _pause(self, seconds_min: float, seconds_max: float) -> None:
        await asyncio.sleep(self._rng.uniform(seconds_min, seconds_max))
