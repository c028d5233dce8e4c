"""Many brokers over one store, for hours, in a world where everything fails: seeded, so that a failure can be replayed.

Brokers die, return, lose their disks, are cut off, stop, drain; leaders change; transactions fail before or after they
were carried out; history is forgotten; operators move, rebalance, give up, delete and create. After every revision:
one owner at most, epochs that rise, `/topics/**` and `/namespaces/**` as they were (`WatchedStore`), and never two
brokers that would acknowledge. Whoever gets a partition has everything that was ever acknowledged, in the archive or on
its own disk, unless an operator gave it up. In the end everything is served.

`SULINA_SEEDS=0:1000` runs others, and `SULINA_SEEDS=17:18` one again.
"""

import asyncio
import os
import random
from collections import defaultdict

import pytest

from sulina.broker.cluster import ClusterOptions
from sulina.core.cluster import keys
from sulina.core.cluster.entries import BrokerMode, EpochEntry, Reason, UnloadRequest, UnloadStep
from sulina.errors import SulinaError
from sulina.types import PartitionName
from tests.support.control_plane import (
    GIVEN_UP,
    TTL_SECONDS,
    Line,
    Member,
    Serving,
    WatchedStore,
    World,
    in_virtual_time,
)

FIRST, LAST = (int(part) for part in os.environ.get("SULINA_SEEDS", "0:16").split(":"))
BROKERS = ["a", "b", "c", "d"]
SIMULATED_SECONDS = 90.0
CALM_SECONDS = 40.0  # in which everything must be served again


class Truth:
    """What was acknowledged, and where it is: on disks, and in the archive, which knows the newest claim."""

    def __init__(self, store: WatchedStore) -> None:
        self.store = store
        self.acked: dict[PartitionName, set[int]] = defaultdict(set)
        self.archive: dict[PartitionName, set[int]] = defaultdict(set)
        self.claims: dict[PartitionName, int] = defaultdict(int)
        self.disks: dict[str, dict[PartitionName, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.given_up: set[PartitionName] = set()
        self.count = 0

    def claim(self, partition: PartitionName, epoch: EpochEntry) -> None:
        """An owner begins: nothing may be missing."""
        self.claims[partition] = max(self.claims[partition], epoch.epoch)
        there = self.archive[partition] | self.disks[epoch.store_id][partition]
        if partition in self.given_up:
            self.given_up.discard(partition)
            self.acked[partition] &= there
        missing = self.acked[partition] - there
        self.store.require(not missing, f"{partition} was given to {epoch.broker_id} without {len(missing)} records")

    def seal(self, partition: PartitionName, epoch: EpochEntry) -> bool:
        """Everything on this disk goes to the archive; False when a newer owner has claimed it."""
        if epoch.epoch < self.claims[partition]:
            return False
        self.archive[partition] |= self.disks[epoch.store_id][partition]
        return True

    def forget(self, partition: PartitionName) -> None:
        for known in (self.acked, self.archive, self.claims, *self.disks.values()):
            known.pop(partition, None)  # type: ignore[attr-defined]


class TruthfulOwner(Serving):
    """Acknowledges, seals and lets go as a broker does."""

    def __init__(self, broker_id: str, truth: Truth) -> None:
        super().__init__(broker_id)
        self._truth = truth
        self._local: dict[PartitionName, int] = {}  # the assignments under which it is said that our disk matters

    def assigned(self, partition: PartitionName, epoch: EpochEntry, revision: int) -> None:
        super().assigned(partition, epoch, revision)
        self._truth.claim(partition, epoch)

    async def ack(self, partition: PartitionName) -> None:
        """A record that only our disk has."""
        assert self.cluster is not None
        epoch, revision = self.mine[partition]
        if self._local.get(partition) != revision:
            await self.cluster.set_archived(partition, revision, False)
            self._local[partition] = revision
        is_ours = self.mine.get(partition, (None, 0))[1] == revision and partition in self.serving
        if is_ours and self.cluster.membership.may_ack():
            self._truth.count += 1
            self._truth.disks[epoch.store_id][partition].add(self._truth.count)
            self._truth.acked[partition].add(self._truth.count)

    async def unload(self, partition: PartitionName, unload: UnloadRequest, revision: int) -> None:
        assert self.cluster is not None
        while partition in self.mine and not (self.cluster.membership.is_replaced):
            try:
                revision = await self.cluster.advance_unload(partition, unload, revision, UnloadStep.QUIESCED)
                await self.let_go(partition, Reason.UNLOADED, unload.to)
                return
            except SulinaError:
                await asyncio.sleep(0.2)

    async def let_go(self, partition: PartitionName, reason: Reason, to: str | None = None) -> None:
        assert self.cluster is not None
        if partition not in self.mine:
            return
        epoch, revision = self.mine[partition]
        self.serving.discard(partition)
        if self._truth.seal(partition, epoch):
            self._local.pop(partition, None)
            await self.cluster.set_archived(partition, revision, True)
            await self.cluster.unassign(partition, revision, reason=reason, to=to)


class Simulation:
    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.truth = Truth(world.store)
        self.stores = {broker: f"store-{broker}" for broker in BROKERS}
        self.lost_stores: set[str] = set()
        self.alive: dict[str, Member] = {}
        self.names: list[PartitionName] = []
        self.failures = 0.0
        self.done: dict[str, int] = defaultdict(int)
        world.store.watch_revision = self.check

    def check(self) -> None:
        for name in self.names:
            serving = self.world.serving(name)
            self.world.store.require(len(serving) <= 1, f"{name} is served by {serving}")

    async def run(self) -> None:
        for broker in BROKERS[:3]:
            await self.start(broker)
        self.names += await self.world.create("one", 8)
        self.names += await self.world.create("two", 4, is_reliable=True)
        await self.world.served(self.names)
        self.failures = 0.03
        actions = [
            self.ack, self.ack, self.ack, self.ack, self.kill, self.revive, self.revive, self.wipe, self.cut, self.heal,
            self.heal, self.leave, self.move, self.move, self.drain, self.rebalance, self.depose, self.recreate,
            self.give_up,
        ]  # fmt: skip
        end = self.world.clock.monotonic() + SIMULATED_SECONDS
        while self.world.clock.monotonic() < end:
            for member in self.alive.values():
                member.line.failures = self.failures
            action = self.chance.choice(actions)
            try:
                await action()
                self.done[action.__name__] += 1
            except SulinaError:
                pass  # the store failed, or somebody else was first
            self.check()
            assert not self.world.store.broken, self.world.store.broken
            await asyncio.sleep(self.chance.choice([0.0, 0.01, 0.1, 0.5, 2.0]))
        await self.calm()

    async def calm(self) -> None:
        """Everything is whole again, and everybody returns who can."""
        for member in self.alive.values():
            member.line.failures = 0.0
            member.line.heal()
        self.failures = 0.0
        for broker in BROKERS:
            if broker not in self.alive:
                await self.start(broker)
            await self.alive[broker].cluster.set_mode(broker, BrokerMode.ACTIVE)
        start = self.world.clock.monotonic()
        while not all(len(self.world.serving(name)) == 1 for name in self.names):
            assert self.world.clock.monotonic() - start < CALM_SECONDS, self.unserved()
            await asyncio.sleep(0.5)
            await self.give_up()
        self.check()
        views = [member.view for member in self.alive.values()]
        await asyncio.sleep(1)
        assert len({str(sorted(view.assignments.items())) for view in views}) == 1
        assert not views[0].unassigned

    def unserved(self) -> str:
        view = next(iter(self.alive.values())).view
        return "\n".join(
            f"{name}: {view.placement(name)} {view.unassigned.get(name)} {view.unloads.get(name)}"
            for name in self.names
            if len(self.world.serving(name)) != 1
        )

    # What happens

    async def start(self, broker: str) -> None:
        line = Line(self.world.shared, random.Random(self.chance.random()))
        while True:
            owner = TruthfulOwner(broker, self.truth)
            try:
                member = await self.world.join(broker, store_id=self.stores[broker], line=line, owner=owner)
            except SulinaError:  # its namesake with another disk is not gone yet
                await asyncio.sleep(1)
            else:
                break
        self.alive[broker] = member

    def some(self) -> Member | None:
        return self.chance.choice(list(self.alive.values())) if self.alive else None

    async def ack(self) -> None:
        for member in list(self.alive.values()):
            for name in sorted(member.owner.serving):
                if self.chance.random() < 0.3 and isinstance(member.owner, TruthfulOwner):
                    member.owner.background(member.owner.ack(name))

    async def kill(self) -> None:
        if len(self.alive) > 1:
            broker = self.chance.choice(list(self.alive))
            await self.alive.pop(broker).kill()

    async def revive(self) -> None:
        gone = [broker for broker in BROKERS if broker not in self.alive]
        if gone:
            await self.start(self.chance.choice(gone))

    async def wipe(self) -> None:
        """A broker that is down loses its disk, and everything that was on it alone."""
        gone = [broker for broker in BROKERS if broker not in self.alive]
        if gone and self.chance.random() < 0.3:
            broker = self.chance.choice(gone)
            self.lost_stores.add(self.stores[broker])
            self.truth.disks.pop(self.stores[broker], None)
            self.stores[broker] = f"store-{broker}-{self.world.clock.monotonic():.2f}"

    async def cut(self) -> None:
        if member := self.some():
            member.line.cut()

    async def heal(self) -> None:
        for member in self.alive.values():
            member.line.heal()

    async def leave(self) -> None:
        if len(self.alive) < 2:
            return
        broker = self.chance.choice(list(self.alive))
        member = self.alive.pop(broker)
        await member.cluster.announce_leaving()
        if isinstance(member.owner, TruthfulOwner) and self.chance.random() < 0.7:
            for name in list(member.owner.mine):
                try:
                    await member.owner.let_go(name, Reason.STOPPED)
                except SulinaError:
                    continue
        await member.stop()

    async def move(self) -> None:
        if member := self.some():
            to = self.chance.choice([None, *BROKERS])
            name = self.chance.choice(self.names)
            await member.cluster.request_unload(name, force=True, to=to, requested_by="simulation")

    async def drain(self) -> None:
        if member := self.some():
            mode = self.chance.choice([BrokerMode.DRAINING, BrokerMode.ACTIVE, BrokerMode.ACTIVE])
            await member.cluster.set_mode(self.chance.choice(list(self.alive)), mode)

    async def rebalance(self) -> None:
        if member := self.some():
            await member.cluster.rebalance()

    async def depose(self) -> None:
        await self.world.store.txn(deletes=[keys.LEADER])

    async def recreate(self) -> None:
        """A topic is deleted and made anew."""
        if self.chance.random() < 0.7 or not (member := self.some()):
            return
        names = [name for name in self.names if name.topic.topic == "two"]
        self.names = [name for name in self.names if name not in names]
        for one in self.alive.values():
            one.owner.serving.difference_update(names)
        stored = self.world.topics._topics.pop(names[0].topic)
        await asyncio.sleep(self.chance.random() * 2)
        while True:
            try:
                mark = await self.world.topics.mark(names[0].topic)
                await member.cluster.delete_topic(names[0].topic, len(names), mark)
                break
            except SulinaError:
                member = self.some() or member
                member.line.heal()
                await asyncio.sleep(1)
        self.world.topics._topics[names[0].topic] = stored
        await self.world.topics.delete("two")
        for name in names:
            self.truth.forget(name)
        await asyncio.sleep(self.chance.random() * 2)
        self.names += await self.world.create("two", len(names))

    async def give_up(self) -> None:
        """Only what a disk had that is no more."""
        member = self.some()
        if member is None:
            return
        for name, held in list(member.view.unassigned.items()):
            if held.value.is_recovering and held.value.from_store in self.lost_stores and name in self.names:
                self.truth.given_up.add(name)
                await member.cluster.force_recovery(name, None, GIVEN_UP)


@pytest.mark.parametrize("seed", range(FIRST, LAST))
@in_virtual_time
async def test_u14_f1_f2_f6_f7_nothing_is_ever_owned_twice_or_lost(seed: int) -> None:
    options = ClusterOptions(
        lease_seconds=TTL_SECONDS, rebalance_seconds=7.0 if seed % 2 else None, moves_at_once=2, stop_seconds=2.0
    )
    async with World(options, history_changes_max=60) as world:
        simulation = Simulation(world, seed)
        await simulation.run()
        assert simulation.truth.count > 10
        assert world.store.changes_of_owner.total() > 20
