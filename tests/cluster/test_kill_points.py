"""SIGKILL at every named step of an unload, on the broker that gives, on the one that takes, and on the leader.

The process kills itself when it reaches the point (`SULINA_FAILPOINTS`). Then everything converges: nothing acked is
lost, no offset is there twice, the topic is served again, within a bound that is printed, and the broker returns.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable

import msgspec
import pytest

from sulina.core.cluster import keys
from sulina.core.cluster.entries import DeleteMark, EpochEntry
from sulina.types import PartitionName, TopicName
from tests.support.cluster_clients import Application, Load
from tests.support.cluster_world import World, cluster, until
from tests.support.etcd import EtcdServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

BOUND_SECONDS = 20.0  # beyond the lease, on a machine that has more to do
RATE = int(os.environ.get("SULINA_RATE", "100"))  # records a second, of each application
BATCH = RATE // 3
LOAD = Load(records_per_second=RATE)

SOURCE = [
    "unload.quiesced",
    "unload.paused",
    "unload.sealed_archive",
    "unload.sealed_state",
    "unload.unassigned",
    "unload.local_removed",
]
OWNER = ["archive.object_put:6", "archive.commits_put:6", "archive.committed:6"]
TARGET = [
    "owner.assigned",
    "owner.served",
    "resume.seeded",
    "resume.renamed",
    "resume.durable",
    "archive.claimed",
    "owner.opened",
]
LEADER = {  # what makes the leader come there
    "leader.created": "adopt",
    "leader.before_assign:3": "move",  # the first two are those of the topics' creation
    "leader.assigned:3": "move",
    "leader.dead_found": "kill",
    "leader.unassigned": "kill",
    "leader.unloads_requested": "drain",
    "leader.swept": "sweep",
}


class Topics:
    """Two topics with applications: one whose acks need the archive, one whose acks need only the owner's disk."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        prefix = f"/default/kill-{name.replace('.', '-').replace('_', '-').replace(':', '-')}"
        self.applications = [Application(world, f"{prefix}-{ack}", LOAD) for ack in ("archived", "local")]

    async def create(self) -> None:
        for application in self.applications:
            await self.world.create_topic(application.topic, ack=application.topic.rsplit("-", 1)[1])

    async def move(self, to: str) -> None:
        await asyncio.gather(*(self.world.move(each.topic, to) for each in self.applications))

    async def unload(self, to: str) -> None:
        """Asked for; whether it is heard is another matter."""
        asked = (self.world.unload(each.topic, to=to) for each in self.applications)
        await asyncio.gather(*asked, return_exceptions=True)

    async def wait_acked(self) -> None:
        await asyncio.gather(*(each.wait_acked(BATCH) for each in self.applications))

    async def finish(self) -> list[str]:
        found = await asyncio.gather(*(each.finish() for each in self.applications))
        return [line for wrong in found for line in wrong]


async def converged(topics: Topics, since: float, record: Callable[[str, object], None]) -> None:
    """All is served, no unload is left, and it did not take too long."""
    world = topics.world
    await topics.wait_acked()
    seconds = time.monotonic() - since
    await until("no unload is under way", lambda: no_unloads(world))
    for application in topics.applications:
        await world.wait_served(application.topic)
    print(f"served again after {seconds:.2f} s")
    record("seconds", round(seconds, 2))
    assert seconds <= world.lease_seconds + BOUND_SECONDS


async def no_unloads(world: World) -> bool:
    return not await asyncio.to_thread(world.keys, keys.UNLOADS)


@pytest.mark.parametrize("point", SOURCE)
async def test_u2_the_owner_is_killed_while_it_moves_a_partition(
    world: World, point: str, record_property: Callable[[str, object], None]
) -> None:
    """U2, U4, U5, U14: whatever it had done, the next to own the topic goes on where it was."""
    topics = Topics(world, point)
    victim = world.add("victim")
    await victim.start(kill_at=point)
    await world.wait_brokers("a", "b", "c", "victim")
    await topics.create()
    await topics.move("victim")
    async with topics.applications[0].running(), topics.applications[1].running():
        await topics.wait_acked()
        await topics.unload("a")
        await victim.wait_killed()
        killed_at = time.monotonic()
        await victim.start()
        await converged(topics, killed_at, record_property)
        wrong = await topics.finish()
    assert not wrong, "\n".join(wrong[:40])


@pytest.mark.parametrize("point", OWNER)
async def test_u4_the_owner_is_killed_while_it_archives(
    world: World, point: str, record_property: Callable[[str, object], None]
) -> None:
    """U4, U7, U8: an object without its commit is nothing; a commit without its ack may be found, once."""
    topics = Topics(world, point)
    victim = world.add("victim")
    await victim.start(kill_at=point)
    await world.wait_brokers("a", "b", "c", "victim")
    await topics.create()
    await topics.move("victim")
    async with topics.applications[0].running(), topics.applications[1].running():
        await victim.wait_killed()
        killed_at = time.monotonic()
        await victim.start()
        await converged(topics, killed_at, record_property)
        wrong = await topics.finish()
    assert not wrong, "\n".join(wrong[:40])


@pytest.mark.parametrize("point", TARGET)
async def test_u6_the_new_owner_is_killed_while_it_takes_over(
    world: World, point: str, record_property: Callable[[str, object], None]
) -> None:
    """U6, U7, F2: somebody else, or the same broker again, takes over."""
    topics = Topics(world, point)
    await topics.create()
    victim = world.add("victim")
    async with topics.applications[0].running(), topics.applications[1].running():
        await topics.wait_acked()
        await victim.start(kill_at=point)
        await world.wait_brokers("a", "b", "c", "victim")
        await topics.unload("victim")
        await victim.wait_killed()
        killed_at = time.monotonic()
        await victim.start()
        await converged(topics, killed_at, record_property)
        wrong = await topics.finish()
    assert not wrong, "\n".join(wrong[:40])


@pytest.mark.parametrize("point", LEADER)
async def test_f2_the_leader_is_killed_while_it_assigns(
    tmp_path_factory: pytest.TempPathFactory,
    etcd: EtcdServer,
    point: str,
    record_property: Callable[[str, object], None],
) -> None:
    """F1, F2, F7, U14: the next leader finds what is left to do, by itself."""
    async with cluster(tmp_path_factory.mktemp("leader"), etcd) as world:
        leader = world.add("leader")
        await leader.start(kill_at=point)
        assert await world.leader() == "leader"
        await world.start("a", "b")
        topics = Topics(world, point)
        await topics.create()
        async with topics.applications[0].running(), topics.applications[1].running():
            await topics.wait_acked()
            await provoke(topics, LEADER[point])
            await leader.wait_killed()
            killed_at = time.monotonic()
            await world.restore("a", "b", "leader")
            await converged(topics, killed_at, record_property)
            wrong = await topics.finish()
    assert not wrong, "\n".join(wrong[:40])


async def provoke(topics: Topics, what: str) -> None:
    """Give the leader something to do."""
    world = topics.world
    match what:
        case "move":
            owners = {await world.owner_of(each.topic) for each in topics.applications}
            await topics.unload("b" if owners == {"a"} else "a")
        case "kill":
            await topics.move("a")
            await world.brokers["a"].kill()
        case "drain":
            await topics.move("a")
            await world.tell("/v1/cluster/brokers/a/drain")
        case "sweep":  # as if somebody had died while a topic was deleted
            ghost = PartitionName(TopicName("default", "ghost"), 0)
            epoch = EpochEntry(epoch=1, broker_id="a", store_id="none", is_archived=True)
            mark = DeleteMark(topic=str(ghost.topic), at_ms=int(time.time() * 1000))
            world.write_key(keys.epoch(ghost), msgspec.json.encode(epoch))
            world.write_key(keys.deleted("ghost"), msgspec.json.encode(mark))
        case "adopt":  # as if somebody had lost the entries of a topic that nobody uses
            await world.create_topic("/default/orphan", 3)
            for key in world.keys("/cluster/brokers/"):
                if "/default/orphan/" in key:
                    world.delete_key(key)


async def test_f1_a_broker_that_dies_while_it_comes_or_goes_leaves_nothing_behind_that_matters(
    tmp_path_factory: pytest.TempPathFactory, etcd: EtcdServer
) -> None:
    """F1, F2: at its registration, at its election, and on its way out."""
    async with cluster(tmp_path_factory.mktemp("coming"), etcd) as world:
        victim = world.add("victim")
        for point in ("member.registered", "leader.elected"):
            await victim.start_killed(point)
        await victim.start(kill_at="member.leaving")
        topics = Topics(world, "coming")
        await topics.create()
        await world.start("a")
        async with topics.applications[0].running(), topics.applications[1].running():
            await topics.wait_acked()
            assert await victim.stop() == -signal.SIGKILL
            await topics.wait_acked()
            wrong = await topics.finish()
    assert not wrong, "\n".join(wrong[:40])
