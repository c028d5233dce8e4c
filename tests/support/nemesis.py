"""Somebody who breaks a cluster in every way that there is, one after the other or at once, as a seed says."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import httpx

from sulina.wire.messages import TopicState
from tests.support.cluster_world import World, until
from tests.support.etcd import EtcdServer
from tests.support.fault_proxy import FaultProxy

Fault = Callable[[], Coroutine[Any, Any, None]]

AT_ONCE_MAX = 4  # faults, of which those that hold `down` come one after the other
NETWORK_FAULTS = ("cut", "blackhole", "drop_replies")


class Nemesis:
    """At most one broker at a time is killed, asleep or cut off; everything else may come together."""

    def __init__(self, world: World, topics: list[str], seed: int) -> None:
        self._world = world
        self._topics = topics
        self.rng = random.Random(f"{seed}/nemesis")
        self.down = asyncio.Lock()  # who holds it may have a broker down
        self._began = time.monotonic()
        self.counts: Counter[str] = Counter()

    @property
    def kinds(self) -> list[Fault]:
        """The faults of processes, networks and stores that come back as they were."""
        return [
            self.move,
            self.move,
            self.kill,
            self.sleep,
            self.cut_etcd,
            self.cut_store,
            self.trouble_store,
            self.restart_etcd,
        ]

    async def run(self, faults: int, kinds: Sequence[Fault] | None = None, pause_seconds_max: float = 1.5) -> None:
        """So many faults, some of them at the same time; all of them over when it returns."""
        deck: list[Fault] = []
        slots = asyncio.Semaphore(AT_ONCE_MAX)

        async def take(kind: Fault) -> None:
            try:
                await kind()
            finally:
                slots.release()

        async with asyncio.TaskGroup() as tasks:
            for number in range(faults):
                await slots.acquire()
                if not deck:  # every kind comes before one comes again
                    deck = list(kinds or self.kinds)
                    self.rng.shuffle(deck)
                kind = deck.pop()
                self.counts[kind.__name__] += 1
                self.tell(f"fault {number}", kind.__name__)
                tasks.create_task(take(kind))
                await self.pause(0.2, pause_seconds_max)

    def tell(self, *drawn: object) -> None:
        """Print what was drawn, and when."""
        print(f"{time.monotonic() - self._began:7.1f} s", *drawn)

    async def move(self) -> None:
        """A topic, to anybody. Not while it waits for a broker: to force it gives up what only that one has."""
        topic, to = self.rng.choice(self._topics), self.rng.choice(["a", "b", "c"])
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
        async with self.down:
            broker = self._world.brokers[self.victim()]
            await broker.kill()
            await self.pause(0.0, 1.5 * self._world.lease_seconds)
            await broker.start()

    async def sleep(self) -> None:
        """A process that stands still, and does not know it."""
        async with self.down:
            broker = self._world.brokers[self.victim()]
            broker.pause()
            await self.pause(0.1, 2 * self._world.lease_seconds)
            broker.resume()

    async def drain(self) -> None:
        """A broker gives away what it owns, and may have it again a little later."""
        victim = self.victim()
        try:
            await self._world.drain(victim)
            await self.pause(0.5, 1.5 * self._world.lease_seconds)
        except (AssertionError, IndexError, httpx.TransportError):
            self.counts["drains that were refused"] += 1
        await until(f"{victim} may own partitions again", lambda: self._is_active(victim))

    async def cut_etcd_past_lease(self) -> None:
        """A broker reaches everything but etcd, for longer than its lease."""
        async with self.down:
            proxy = self._world.brokers[self.victim()].etcd_proxy
            assert proxy is not None
            getattr(proxy, self.rng.choice(NETWORK_FAULTS))()
            await self.pause(1.2 * self._world.lease_seconds, 2.5 * self._world.lease_seconds)
            proxy.heal()

    async def cut_etcd(self) -> None:
        """For less than a lease, or more."""
        async with self.down:
            await self._break(self._world.brokers[self.victim()].etcd_proxy)

    async def cut_store(self) -> None:
        """For a while."""
        await self._break(self._world.brokers[self.victim()].store_proxy)

    async def trouble_store(self) -> None:
        """Requests that fail, replies that are lost, puts that come twice."""
        proxy = self._world.brokers[self.victim()].store_proxy
        if proxy is not None:
            proxy.fail_next(self.rng.randrange(8), self.rng.choice([500, 503]))
            proxy.lose_replies(self.rng.randrange(4))
            proxy.duplicate_puts(self.rng.randrange(4))

    async def restart_etcd(self) -> None:
        """kill -9, and at once again."""
        async with self.down:
            if isinstance(self._world.etcd, EtcdServer):
                await asyncio.to_thread(self._world.etcd.restart)

    async def _break(self, proxy: FaultProxy | None) -> None:
        if proxy is not None:
            getattr(proxy, self.rng.choice(NETWORK_FAULTS))()
            await self.pause(0.1, 2 * self._world.lease_seconds)
            proxy.heal()

    async def _is_active(self, broker_id: str) -> bool:
        try:
            await self._world.activate(broker_id)
        except (AssertionError, IndexError, httpx.TransportError):
            return False
        return True

    def victim(self) -> str:
        """Return the broker that it happens to."""
        return self.rng.choice(sorted(self._world.brokers))

    async def pause(self, seconds_min: float, seconds_max: float) -> None:
        """Let that fault last."""
        await asyncio.sleep(self.rng.uniform(seconds_min, seconds_max))
