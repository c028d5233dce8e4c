"""What operators request and owners write: each is one transaction, which compares what it is based on."""

import asyncio

import pytest

from sulina.core.cluster import keys
from sulina.core.cluster.entries import BrokerMode, Reason, UnloadRequest, UnloadStep
from sulina.errors import AlreadyExists, BrokerNotFound, InvalidSettings, NotOwner, VersionConflict
from sulina.types import PartitionName
from tests.support.control_plane import GIVEN_UP, TTL_SECONDS, Member, World, in_virtual_time


async def one_served(world: World) -> tuple[Member, Member, PartitionName]:
    """A partition that `a` has, and leaves alone when it is asked to let go."""
    a, b = await world.join_all("a", "b")
    (name,) = await world.create("orders")
    await world.served([name])
    assert name in a.owner.mine
    a.owner.unloads_at_once = b.owner.unloads_at_once = False
    return a, b, name


@in_virtual_time
async def test_the_same_wish_again_is_the_same_wish() -> None:
    async with World() as world:
        a, b, name = await one_served(world)
        first = await b.cluster.request_unload(name, force=False, to=None, requested_by="x")
        again = await b.cluster.request_unload(name, force=False, to=None, requested_by="y")
        assert again == first
        assert [unload for _, unload, _ in a.owner.unload_requests] == [first]


@in_virtual_time
async def test_a_wish_may_become_firmer_and_the_owner_hears_of_it() -> None:
    async with World() as world:
        a, b, name = await one_served(world)
        await b.cluster.request_unload(name, force=False, to=None, requested_by="x")
        await b.cluster.request_unload(name, force=True, to=None, requested_by="x")
        await a.cluster.request_unload(name, force=False, to="b", requested_by="x")
        await world.until(lambda: len(a.owner.unload_requests) == 3)
        assert [(unload.force, unload.to) for _, unload, _ in a.owner.unload_requests] == [
            (False, None),
            (True, None),
            (True, "b"),
        ]
        assert len({unload.unload_id for _, unload, _ in a.owner.unload_requests}) == 1


@in_virtual_time
async def test_u14_of_two_moves_that_race_one_is_refused() -> None:
    async with World() as world:
        a, b, name = await one_served(world)
        await world.join("c")
        requests = await asyncio.gather(
            a.cluster.request_unload(name, force=True, to="b", requested_by="x"),
            b.cluster.request_unload(name, force=True, to="c", requested_by="y"),
            return_exceptions=True,
        )
        granted = [request for request in requests if isinstance(request, UnloadRequest)]
        refused = [request for request in requests if isinstance(request, AlreadyExists)]
        assert (len(granted), len(refused)) == (1, 1)
        assert f"it is being moved to {granted[0].to}" in str(refused[0])


@in_virtual_time
async def test_who_takes_no_partitions_is_no_target() -> None:
    async with World() as world:
        a, b, name = await one_served(world)
        with pytest.raises(InvalidSettings, match="active brokers: a, b"):
            await a.cluster.request_unload(name, force=True, to="z", requested_by="x")
        await a.cluster.set_mode("b", BrokerMode.DRAINING)
        with pytest.raises(InvalidSettings, match="broker b is not active"):
            await a.cluster.request_unload(name, force=True, to="b", requested_by="x")
        with pytest.raises(BrokerNotFound):
            await b.cluster.set_mode("z", BrokerMode.DRAINING)


@in_virtual_time
async def test_what_nobody_has_cannot_be_moved_and_what_nobody_waits_for_not_forced() -> None:
    async with World() as world:
        a, b, name = await one_served(world)
        with pytest.raises(InvalidSettings, match="is not recovering, so there is nothing to force"):
            await b.cluster.force_recovery(name, None, GIVEN_UP)
        nobodys = PartitionName(name.topic, 7)
        with pytest.raises(NotOwner):
            await a.cluster.request_unload(nobodys, force=True, to=None, requested_by="x")


@in_virtual_time
async def test_a_wish_that_is_refused_is_gone() -> None:
    async with World() as world:
        a, b, name = await one_served(world)
        await b.cluster.request_unload(name, force=False, to=None, requested_by="x")
        await world.until(lambda: bool(a.owner.unload_requests))
        _, _, revision = a.owner.unload_requests[0]
        await b.cluster.request_unload(name, force=True, to=None, requested_by="x")
        await a.cluster.refuse_unload(name, revision, "consumers are attached")
        await world.until(lambda: len(a.owner.unload_requests) == 2)
        assert name in a.view.unloads, "it became another one"
        await a.cluster.refuse_unload(name, a.owner.unload_requests[1][2], "consumers are attached")
        await world.until(lambda: name not in b.view.unloads)
        assert a.event_types().count("unload_refused") == 1


@in_virtual_time
async def test_u2_how_far_a_move_has_come_outlives_its_owners_process() -> None:
    async with World() as world:
        a, b, name = await one_served(world)
        await b.cluster.request_unload(name, force=True, to="b", requested_by="x")
        await world.until(lambda: bool(a.owner.unload_requests))
        _, unload, revision = a.owner.unload_requests[0]
        revision = await a.cluster.advance_unload(name, unload, revision, UnloadStep.QUIESCED)
        revision = await a.cluster.advance_unload(
            name, unload, revision, UnloadStep.QUIESCED, error="the store is slow"
        )
        await a.kill()
        a = await world.join("a")
        a.owner.unloads_at_once = False
        (told,) = a.owner.unload_requests
        assert (told[1].step, told[1].error, told[2]) == (UnloadStep.QUIESCED, "the store is slow", revision)
        await a.cluster.advance_unload(name, told[1], told[2], UnloadStep.SEALED)
        assert await a.cluster.unassign(name, a.owner.mine[name][1], reason=Reason.UNLOADED, to=None)
        await world.until(lambda: name in b.owner.mine)
        assert not b.view.unloads


@in_virtual_time
async def test_a_request_that_changed_while_it_was_carried_out_is_heard() -> None:
    async with World() as world:
        a, b, name = await one_served(world)
        await world.join("c")
        await b.cluster.request_unload(name, force=False, to=None, requested_by="x")
        await world.until(lambda: bool(a.owner.unload_requests))
        _, unload, revision = a.owner.unload_requests[0]
        await b.cluster.request_unload(name, force=True, to="c", requested_by="x")
        await a.cluster.advance_unload(name, unload, revision, UnloadStep.SEALED)
        await world.until(lambda: a.view.unloads[name].value.step == UnloadStep.SEALED)
        stored = a.view.unloads[name].value
        assert (stored.force, stored.to) == (True, "c")
        assert await a.cluster.unassign(name, a.owner.mine[name][1], reason=Reason.UNLOADED, to=unload.to)
        await world.until(lambda: world.serving(name) == ["c"])


@in_virtual_time
async def test_u14_an_owner_that_has_lost_its_partition_can_write_nothing_about_it() -> None:
    async with World() as world:
        a, b, name = await one_served(world)
        await b.cluster.request_unload(name, force=True, to=None, requested_by="x")
        await world.until(lambda: bool(a.owner.unload_requests))
        _, unload, revision = a.owner.unload_requests[0]
        (_, assigned) = a.owner.mine[name]
        a.line.cut()
        await world.until(lambda: name in b.owner.mine)
        before = await world.store.get(keys.epoch(name))
        a.line.heal()
        with pytest.raises(NotOwner):
            await a.cluster.set_archived(name, assigned, False)
        with pytest.raises(NotOwner):
            await a.cluster.advance_unload(name, unload, revision, UnloadStep.SEALED)
        assert not await a.cluster.unassign(name, assigned, reason=Reason.UNLOADED, to=None)
        assert await world.store.get(keys.epoch(name)) == before
        assert world.store.owners[name] == "b"


@in_virtual_time
async def test_a_move_that_is_gone_cannot_advance() -> None:
    async with World() as world:
        a, b, name = await one_served(world)
        await b.cluster.request_unload(name, force=True, to=None, requested_by="x")
        await world.until(lambda: bool(a.owner.unload_requests))
        _, unload, revision = a.owner.unload_requests[0]
        await world.store.txn(deletes=[keys.unload(name)])
        with pytest.raises(VersionConflict):
            await a.cluster.advance_unload(name, unload, revision, UnloadStep.SEALED)


@in_virtual_time
async def test_what_is_archived_is_said_in_the_order_in_which_it_was_asked() -> None:
    """Also while the view is behind: what it shows is never taken for what was written."""
    async with World() as world:
        a, b, name = await one_served(world)
        (_, assigned) = a.owner.mine[name]
        for is_archived in (False, True, False, False, True, False):
            await a.cluster.set_archived(name, assigned, is_archived)
            assert world.store.epochs[name].is_archived == is_archived
        assert world.store.highest[name] == world.store.epochs[name].epoch
        await world.until(lambda: not b.view.epochs[name].value.is_archived)


@in_virtual_time
async def test_u14_what_an_owner_says_too_late_is_not_heard() -> None:
    """It gave the partition back while its word was on its way; nobody has it yet, so its epoch is the newest."""
    async with World() as world:
        b, a = await world.join_all("b", "a")
        names = await world.create("orders", 2)
        await world.served(names)
        ((name, (_, assigned)),) = a.owner.mine.items()
        b.line.held_up = "/cluster/brokers/"  # the leader
        a.line.held_up = keys.EPOCHS
        late = asyncio.ensure_future(a.cluster.set_archived(name, assigned, False))
        await a.line.is_held_up.wait()
        assert await a.cluster.unassign(name, assigned, reason=Reason.UNLOADED, to=None)
        a.line.let_through.set()
        with pytest.raises(NotOwner):
            await late
        assert world.store.epochs[name].is_archived
        b.line.held_up = None
        b.line.let_through.set()
        await world.served(names)


@in_virtual_time
async def test_u4_what_is_on_its_disk_alone_returns_to_a_broker_that_stopped_without_sealing_it() -> None:
    async with World() as world:
        a, b, name = await one_served(world)
        (_, assigned) = a.owner.mine[name]
        await a.cluster.set_archived(name, assigned, False)
        assert await a.cluster.unassign(name, assigned, reason=Reason.STOPPED, to=None)
        await world.until(lambda: world.store.changes_of_owner[name] == 2)
        assert world.store.owners[name] == "a"
        (_, assigned) = a.owner.mine[name]
        await a.cluster.announce_leaving()
        await a.cluster.set_archived(name, assigned, True)
        assert await a.cluster.unassign(name, assigned, reason=Reason.STOPPED, to=None)
        await world.until(lambda: name in b.owner.mine)


@in_virtual_time
async def test_u14_a_move_during_a_failover_ends_with_one_owner() -> None:
    async with World() as world:
        a, b, name = await one_served(world)
        await world.join("c")
        await b.cluster.request_unload(name, force=True, to="c", requested_by="x")
        await world.until(lambda: bool(a.owner.unload_requests))
        await a.kill()
        assert await world.served([name]) <= TTL_SECONDS + 0.5
        assert world.store.owners[name] == "c", "where it was wanted"
        assert not b.view.unloads
