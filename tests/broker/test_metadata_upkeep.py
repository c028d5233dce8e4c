"""The upkeep of the metadata store: history goes in time and never too early; that it is full is told and survived."""

import asyncio
from collections.abc import Sequence

from sulina.broker.cluster import ClusterOptions
from sulina.errors import Compacted, MetadataFull
from sulina.ports import Compare, Lease, Put, StoreSpace, TxnResult
from tests.support.control_plane import TTL_SECONDS, LoopClock, Member, WatchedStore, World, in_virtual_time

HISTORY_SECONDS = 60.0
OPTIONS = ClusterOptions(lease_seconds=TTL_SECONDS, metadata_history_seconds=HISTORY_SECONDS)


class SmallStore(WatchedStore):
    """A store with a quota on its history: past it, it refuses writes until that is compacted."""

    def __init__(self, quota_revisions: int) -> None:
        super().__init__(LoopClock(), history_changes_max=1_000_000)
        self.quota_revisions = quota_revisions
        self.is_full = False
        self.compactions: list[tuple[float, int]] = []
        self._compacted = 0

    @property
    def history_revisions(self) -> int:
        return self._revision - self._compacted

    def check_room(self) -> None:
        self.is_full = self.is_full or self.history_revisions >= self.quota_revisions
        if self.is_full:
            raise MetadataFull(path="small:")

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        if puts or deletes:
            self.check_room()
        return await super().txn(compares=compares, puts=puts, deletes=deletes)

    async def lease(self, ttl_seconds: float) -> Lease:  # type: ignore[override]
        self.check_room()
        return await super().lease(ttl_seconds)

    async def compact(self, revision: int) -> None:
        self.compactions.append((asyncio.get_running_loop().time(), revision))
        await super().compact(revision)
        self._compacted = max(self._compacted, revision)
        self.is_full = self.is_full and self.history_revisions >= self.quota_revisions

    async def space(self) -> StoreSpace:
        return StoreSpace(revision=self._revision, is_full=self.is_full)


def small_world(quota_revisions: int = 1_000_000) -> tuple[World, SmallStore]:
    store = SmallStore(quota_revisions)
    world = World(OPTIONS)
    world.store = world.shared = store
    world.topics.store = store
    return world, store


async def write(store: SmallStore, seconds: float, per_second: int) -> list[tuple[float, int]]:
    """When which revision was made."""
    made = []
    for _ in range(int(seconds * per_second)):
        made.append((asyncio.get_running_loop().time(), (await store.txn(puts=[Put("/busy", b"")])).revision))
        await asyncio.sleep(1 / per_second)
    return made


@in_virtual_time
async def test_f2_the_leader_alone_compacts_and_history_stays_bounded() -> None:
    world, store = small_world()
    async with world:
        await world.join_all("a", "b")
        await write(store, 10 * HISTORY_SECONDS, per_second=5)
        assert store.history_revisions < 5 * HISTORY_SECONDS * 1.6
        assert len({revision for _, revision in store.compactions}) == len(store.compactions)


@in_virtual_time
async def test_f2_nothing_younger_than_the_history_that_is_kept_is_ever_compacted() -> None:
    """A watch that begins anywhere in it misses nothing, through changes of the leader too."""
    world, store = small_world()
    async with world:
        a, *_ = await world.join_all("a", "b", "c")
        made = await write(store, 3 * HISTORY_SECONDS, per_second=5)
        await a.kill()
        made += await write(store, 3 * HISTORY_SECONDS, per_second=5)
        assert len(store.compactions) >= 20
        for at, revision in store.compactions:
            young = [when for when, made_revision in made if made_revision <= revision and when > at - HISTORY_SECONDS]
            assert not young, f"revision {revision}, compacted at {at}, had changes of {at - max(young)} s ago"
        at, newest = made[-1]
        start = next(revision for when, revision in made if when > at - HISTORY_SECONDS)
        seen = []
        async for changes in store.watch("/busy", after=start):
            seen.append(changes[0].revision)
            if seen[-1] == newest:
                break
        assert seen == [revision for _, revision in made if revision > start]


@in_virtual_time
async def test_f2_a_broker_that_comes_to_lead_compacts_at_once_by_what_it_saw_as_a_follower() -> None:
    world, store = small_world()
    async with world:
        a, b = await world.join_all("a", "b")
        await world.until(lambda: a.cluster.election.revision is not None or b.cluster.election.revision is not None)
        leader = a if a.cluster.election.revision is not None else b
        await write(store, 2 * HISTORY_SECONDS, per_second=5)
        await leader.kill()
        store.compactions.clear()
        killed_at = asyncio.get_running_loop().time()
        await write(store, HISTORY_SECONDS / 2, per_second=5)
        assert store.compactions
        assert store.compactions[0][0] - killed_at < TTL_SECONDS + HISTORY_SECONDS / 4


@in_virtual_time
async def test_f2_a_full_store_is_told_and_makes_room_and_leases_live_through_it() -> None:
    world, store = small_world(quota_revisions=200)
    async with world:
        a, b = await world.join_all("a", "b")
        names = await world.create("orders", 4)
        await world.served(names)
        try:
            await write(store, 30, per_second=20)
        except MetadataFull:
            pass
        else:
            raise AssertionError("it was never full")
        leader = a if _leads(a) else b
        await world.until(lambda: "metadata_full" in leader.event_types())
        await world.until(lambda: "metadata_has_room" in leader.event_types())
        assert "lease_lost" not in a.event_types() + b.event_types()
        assert not store.is_full
        await a.kill()
        await world.served(names)


@in_virtual_time
async def test_f2_without_a_leader_others_make_room_so_that_one_can_be_elected() -> None:
    world, store = small_world(quota_revisions=200)
    async with world:
        a, b = await world.join_all("a", "b")
        names = await world.create("orders", 4)
        await world.served(names)
        leader, other = (a, b) if a.cluster.election.revision is not None else (b, a)
        store.is_full = True
        await leader.kill()
        await world.served(names)
        assert _leads(other)


@in_virtual_time
async def test_f2_a_follower_that_was_away_for_longer_than_history_is_kept_sees_everything_again() -> None:
    world, store = small_world()
    async with world:
        a, b = await world.join_all("a", "b")
        names = await world.create("orders", 4)
        await world.served(names)
        follower = b if _leads(a) else a
        follower.line.cut()
        await write(store, 4 * HISTORY_SECONDS, per_second=2)
        behind = follower.view.revision
        try:
            await anext(aiter(store.watch("/", after=behind)))
        except Compacted:
            pass
        else:
            raise AssertionError("its history is still there")
        follower.line.heal()
        await world.served(names)
        await world.until(lambda: follower.view.revision > behind and follower.cluster.membership.may_ack())


def _leads(member: Member) -> bool:
    return member.cluster.election.revision is not None
