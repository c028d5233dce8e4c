"""What a leader does: every partition has one owner that is there (F1, F2, F6, F7; seed 004)."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from sulina.broker.cluster import ClusterOptions
from sulina.broker.cluster.changes import LeaderWriter, NotLeading, OwnershipChange, grouped
from sulina.core.cluster import keys
from sulina.core.cluster.entries import FIRST_EPOCH, BrokerMode, Reason, Sealed, Unassigned
from sulina.failpoints import Failpoint
from sulina.metadata import MemoryMetadata
from sulina.ports import NO_REVISION, TXN_OPERATIONS_MAX, Compare, Put
from sulina.types import PartitionName
from tests.support.control_plane import GIVEN_UP, TTL_SECONDS, Member, World, in_virtual_time


async def local_only(member: Member, names: Sequence[PartitionName]) -> None:
    """As an owner does before it acknowledges what only its disk has."""
    for name in names:
        await member.cluster.set_archived(name, member.owner.mine[name][1], False)


async def snapshot(world: World, *prefixes: str) -> list[tuple[str, bytes, int]]:
    listings = [await world.store.list(prefix) for prefix in prefixes]
    return [(entry.key, entry.value, entry.revision) for listing in listings for entry in listing.entries]


@in_virtual_time
async def test_f2_a_new_topic_gets_its_owners_at_once_and_evenly() -> None:
    async with World() as world:
        await world.join_all("a", "b", "c")
        names = await world.create("orders", 30)
        assert await world.served(names) < 0.5
        assert set(world.owners(names).values()) == {10}


@in_virtual_time
async def test_f2_a_topic_that_nobody_told_the_leader_of_is_found_by_the_next_look() -> None:
    async with World() as world:
        await world.join_all("a", "b")
        await asyncio.sleep(1)
        names = await world.topics.create("orders", 4)  # and nobody says so
        assert await world.served(names) <= world.options.rescan_seconds + 0.5


@in_virtual_time
async def test_f2_a_partition_whose_entry_vanished_is_found_and_does_not_start_at_0_again() -> None:
    """What only a dead broker has is not forgotten with the entry that said so."""
    async with World() as world:
        a, b = await world.join_all("a", "b")
        names = await world.create("orders", 2)
        await world.served(names)
        await local_only(b, list(b.owner.mine))
        (lost,) = b.owner.mine
        await b.kill()
        await world.until(lambda: lost in a.view.unassigned)
        await world.store.txn(deletes=[keys.unassigned(lost)])
        await world.until(lambda: lost in a.view.unassigned and a.view.unassigned[lost].value.is_recovering)
        assert a.view.unassigned[lost].value.from_broker == "b"


@in_virtual_time
async def test_f1_f6_a_dead_broker_loses_its_assignments_only_and_others_take_over() -> None:
    async with World() as world:
        _a, _b, c = await world.join_all("a", "b", "c")
        names = await world.create("orders", 30)
        await world.served(names)
        before = await snapshot(world, keys.TOPICS, keys.NAMESPACES)
        epochs = {name: world.store.highest[name] for name in names}
        mine = set(c.owner.mine)
        await c.kill()
        taken = await world.served(names)
        assert taken <= TTL_SECONDS + 0.5
        assert await snapshot(world, keys.TOPICS, keys.NAMESPACES) == before
        assert sorted(world.owners(names).items()) == [("a", 15), ("b", 15)]
        for name in names:
            assert world.store.highest[name] == epochs[name] + (name in mine)


@in_virtual_time
async def test_f1_what_a_dead_broker_had_waits_with_reason_and_origin() -> None:
    async with World() as world:
        a, b = await world.join_all("a", "b")
        names = await world.create("orders", 2)
        await world.served(names)
        (lost,) = b.owner.mine
        seen: list[Unassigned] = []
        a.view.listen(
            lambda touched: seen.extend(
                a.view.unassigned[name].value for name in touched.partitions if name in a.view.unassigned
            )
        )
        nowhere: list[PartitionName] = []
        a.view.listen(
            lambda touched: nowhere.extend(touched.partitions - set(a.view.assignments) - set(a.view.unassigned))
        )
        await b.kill()
        await world.until(lambda: set(a.owner.mine) == set(names))
        assert nowhere == [], "it is taken and waits in one transaction"
        assert [(one.reason, one.from_broker, one.from_store) for one in seen] == [(Reason.DEAD, "b", "store-b")]
        assert lost in a.owner.mine


@in_virtual_time
async def test_what_a_broker_left_behind_was_stopped_not_dead() -> None:
    async with World() as world:
        a, b = await world.join_all("a", "b")
        names = await world.create("orders", 2)
        await world.served(names)
        await local_only(b, list(b.owner.mine))
        await b.stop()
        await world.until(lambda: len(a.view.unassigned) == 1)
        (held,) = a.view.unassigned.values()
        assert (held.value.reason, held.value.is_recovering) == (Reason.STOPPED, True)


@in_virtual_time
async def test_f6_what_only_a_dead_broker_has_waits_for_that_broker_and_no_other() -> None:
    async with World() as world:
        a, _b, c = await world.join_all("a", "b", "c")
        names = await world.create("orders", 9)
        await world.served(names)
        await local_only(c, list(c.owner.mine))
        mine = set(c.owner.mine)
        await c.kill()
        await world.until(lambda: set(a.view.unassigned) == mine)
        await asyncio.sleep(30)
        assert set(a.view.unassigned) == mine
        assert {a.view.placement(name).waits_for for name in mine} == {"c"}
        await world.join("d")
        await asyncio.sleep(10)
        assert set(a.view.unassigned) == mine
        c = await world.join("c")
        await world.served(names, seconds=1)
        assert set(c.owner.mine) == mine
        assert not any(epoch.is_archived for epoch, _ in c.owner.mine.values()), "it still is on that disk alone"


@in_virtual_time
async def test_what_is_archived_sealed_or_not_reliable_waits_for_nobody() -> None:
    async with World() as world:
        a, b = await world.join_all("a", "b")
        archived = await world.create("archived", 2)
        sealed = await world.create("sealed", 2)
        passing = await world.create("passing", 2, is_reliable=False)
        names = [*archived, *sealed, *passing]
        await world.served(names)
        for name in set(b.owner.mine) - set(archived):
            await local_only(b, [name])
        for name in set(b.owner.mine) & set(sealed):
            state = Sealed(
                last_committed_offset=4,
                next_offset=5,
                version=2,
                epoch=b.owner.mine[name][0].epoch,
                broker_id="b",
                ts="",
            )
            await world.store.txn(puts=[Put(keys.sealed_state(name), msgspec.json.encode(state))])
        await b.kill()
        await world.served(names)
        assert set(a.owner.mine) == set(names)
        assert all(epoch.is_archived for epoch, _ in a.owner.mine.values()), "nothing of it is anywhere else"


@in_virtual_time
@pytest.mark.parametrize("state", [b"{", b'{"state": "sealed", "epoch": -1}'], ids=["torn", "of another epoch"])
async def test_u7_a_sealed_state_that_proves_nothing_starts_no_new_log(state: bytes) -> None:
    async with World() as world:
        a, b = await world.join_all("a", "b")
        names = await world.create("orders", 2)
        await world.served(names)
        (lost,) = b.owner.mine
        await local_only(b, [lost])
        await world.store.txn(puts=[Put(keys.sealed_state(lost), state)])
        await b.kill()
        await world.until(lambda: lost in a.view.unassigned)
        assert a.view.unassigned[lost].value.is_recovering


@in_virtual_time
async def test_an_operator_may_give_up_what_only_a_dead_broker_has() -> None:
    async with World() as world:
        a, _b, c = await world.join_all("a", "b", "c")
        names = await world.create("orders", 3)
        await world.served(names)
        (lost,) = c.owner.mine
        await local_only(c, [lost])
        await c.kill()
        await world.until(lambda: lost in a.view.unassigned)
        await a.cluster.force_recovery(lost, "b", GIVEN_UP)
        await world.served(names, seconds=1)
        assert world.store.owners[lost] == "b"
        c = await world.join("c")
        await asyncio.sleep(10)
        assert lost not in c.owner.mine, "it came too late"


@in_virtual_time
async def test_f7_where_a_move_is_wanted_to_it_goes() -> None:
    async with World() as world:
        a, b, c = await world.join_all("a", "b", "c")
        names = await world.create("orders", 3)
        await world.served(names)
        (name,) = a.owner.mine
        await b.cluster.request_unload(name, force=False, to="c", requested_by="test")
        await world.until(lambda: name in c.owner.mine)
        assert world.store.changes_of_owner[name] == 2


@in_virtual_time
async def test_f7_what_is_moved_goes_to_another_broker_if_there_is_one() -> None:
    """Seed 000, integration 3: unassigned, then reassigned to a different broker."""
    async with World() as world:
        (a,) = await world.join_all("a")
        (name,) = await world.create("orders")
        await world.served([name])
        await a.cluster.request_unload(name, force=False, to=None, requested_by="test")
        await world.until(lambda: world.store.changes_of_owner[name] == 2)
        await world.served([name])
        b = await world.join("b")
        await a.cluster.request_unload(name, force=False, to=None, requested_by="test")
        await world.until(lambda: name in b.owner.mine)


@in_virtual_time
async def test_f7_a_draining_broker_gives_away_everything_a_few_at_a_time() -> None:
    async with World() as world:
        a, b, c = await world.join_all("a", "b", "c")
        names = await world.create("orders", 60)
        await world.served(names)
        under_way: list[int] = []
        c.view.listen(lambda _: under_way.append(len(c.view.unloads)))
        await c.cluster.set_mode("a", BrokerMode.DRAINING)
        await world.until(lambda: not a.owner.mine)
        await world.served(names)
        assert 0 < max(under_way) <= world.options.moves_at_once
        assert sorted(world.owners(names).items()) == [("b", 30), ("c", 30)]
        more = await world.create("more", 6)
        await world.served(more)
        assert not a.owner.mine, "it is given nothing"
        await b.cluster.set_mode("a", BrokerMode.ACTIVE)
        last = await world.create("last", 6)
        await world.served(last)
        assert set(world.owners(last)) == {"a"}


@in_virtual_time
async def test_f7_the_only_broker_goes_on_serving_while_it_drains() -> None:
    async with World() as world:
        (a,) = await world.join_all("a")
        names = await world.create("orders", 6)
        await world.served(names)
        await a.cluster.set_mode("a", BrokerMode.DRAINING)
        await asyncio.sleep(20)
        assert not a.view.unloads
        more = await world.create("more", 2)
        await world.served([*names, *more])
        b = await world.join("b")
        await world.until(lambda: set(b.owner.mine) == {*names, *more})
        await b.kill()
        await world.served([*names, *more])


@in_virtual_time
async def test_f7_a_draining_broker_that_dies_loses_nothing() -> None:
    async with World() as world:
        a, _b, c = await world.join_all("a", "b", "c")
        names = await world.create("orders", 30)
        await world.served(names)
        c.owner.unloads_at_once = False
        await a.cluster.set_mode("c", BrokerMode.DRAINING)
        await world.until(lambda: len(c.owner.unload_requests) == world.options.moves_at_once)
        await c.kill()
        await world.served(names)
        assert not a.view.unloads
        assert not world.store.unassigned


@in_virtual_time
async def test_f7_a_rebalance_that_is_asked_for_evens_everything_out() -> None:
    async with World() as world:
        (_a,) = await world.join_all("a")
        names = await world.create("orders", 30)
        await world.served(names)
        b, c = await world.join("b"), await world.join("c")
        await asyncio.sleep(20)
        assert set(world.owners(names)) == {"a"}, "nothing moves by itself unless it is wanted"
        requested = await b.cluster.rebalance()
        assert len(requested) == 20
        assert {unload.to for _, unload in requested} == {"b", "c"}
        await world.until(lambda: not c.view.unloads and set(world.owners(names).values()) == {10})
        assert await c.cluster.rebalance() == []


@in_virtual_time
async def test_f7_an_automatic_rebalance_is_slow_and_ends() -> None:
    options = ClusterOptions(lease_seconds=TTL_SECONDS, rebalance_seconds=10.0, moves_at_once=3)
    async with World(options) as world:
        (_a,) = await world.join_all("a")
        names = await world.create("orders", 24)
        await world.served(names)
        b = await world.join("b")
        under_way: list[int] = []
        b.view.listen(lambda _: under_way.append(len(b.view.unloads)))
        await asyncio.sleep(25)
        assert 3 <= len(b.owner.mine) <= 9, "three in ten seconds"
        await asyncio.sleep(300)
        assert max(under_way) <= 3
        assert max(world.owners(names).values()) <= 14
        before = world.store.changes_of_owner.total()
        await asyncio.sleep(300)
        assert world.store.changes_of_owner.total() == before, "and then nothing moves any more"


@in_virtual_time
async def test_what_a_deleted_topic_left_behind_goes() -> None:
    async with World() as world:
        a, b = await world.join_all("a", "b")
        names = await world.create("orders", 40)
        kept = await world.create("kept", 3)
        await world.served([*names, *kept])
        await world.topics.delete("orders")
        await world.until(lambda: not set(names) & {*a.view.epochs, *a.view.assignments, *a.view.unassigned})
        assert {*a.owner.mine, *b.owner.mine} == set(kept)
        again = await world.create("orders", 40)
        await world.served(again)
        assert all(world.store.changes_of_owner[name] == 2 for name in names)
        assert {epoch.value.epoch for name in names if (epoch := a.view.epochs[name])} == {FIRST_EPOCH}


@in_virtual_time
async def test_a_leader_whose_knowledge_of_topics_is_old_deletes_nothing() -> None:
    async with World() as world:
        a, _b = await world.join_all("a", "b")
        names = await world.create("orders", 4)
        await world.served(names)
        known, world.topics.known = world.topics.known, {}
        await asyncio.sleep(30)
        assert set(a.view.epochs) == set(names)
        assert sum(world.store.changes_of_owner.values()) == 4
        world.topics.known = known
        await world.served(names)


@pytest.mark.parametrize("is_id_stored", [True, False], ids=["", "as older releases stored it"])
@in_virtual_time
async def test_r10_the_delete_mark_of_a_former_topic_sweeps_nothing_of_one_that_vanished(is_id_stored: bool) -> None:
    """R10: the later topic of that name has no mark, and may return: its epochs must not be given twice."""
    async with World() as world:
        if not is_id_stored:
            world.topics.topic_id = lambda _: None  # type: ignore[method-assign, assignment]
        a, _b = await world.join_all("a", "b")
        names = await world.create("orders", 4)
        await world.served(names)
        await world.topics.delete("orders")
        await world.until(lambda: not a.view.epochs)
        await world.served(await world.create("orders", 4))
        topic = names[0].topic
        await world.topics.edit([], [keys.delivery(topic), keys.namespace_topic(topic)])
        del world.topics.known[topic]
        await asyncio.sleep(30)
        assert set(a.view.epochs) == set(names)


@in_virtual_time
async def test_r10_a_deleted_topic_that_a_late_leader_assigned_once_more_is_swept() -> None:
    """R10: its epochs are newer than its delete mark then, but they name the topic that the mark is of."""
    async with World() as world:
        a, _b = await world.join_all("a", "b")
        names = await world.create("orders", 4)
        await world.served(names)
        topic = names[0].topic
        known = world.topics.known[topic]
        await world.topics.delete("orders")
        await a.cluster.delete_topic(topic, 4, Compare(keys.delivery(topic), NO_REVISION))
        world.topics.known[topic] = known  # no leader has heard of the delete yet
        a.cluster.topics_changed(names)
        await world.until(lambda: set(a.view.epochs) == set(names))
        (mark,) = a.view.deleted.values()
        assert all(epoch.revision > mark.revision for epoch in a.view.epochs.values())
        del world.topics.known[topic]  # now they have
        await world.until(lambda: not (a.view.epochs or a.view.assignments or a.view.unassigned))


@in_virtual_time
async def test_r10_what_a_deleted_topic_has_left_is_not_taken_for_the_id_of_the_next_of_its_name() -> None:
    """R10: else its epochs would be swept with those of the deleted one when the metadata store loses it."""
    async with World() as world:
        (a,) = await world.join_all("a")
        names = await world.create("orders", 1)
        await world.served(names)
        left = a.view.epochs[names[0]].value
        await world.topics.delete("orders")
        await a.cluster.delete_topic(names[0].topic, 1, Compare(keys.delivery(names[0].topic), NO_REVISION))
        await world.store.txn(puts=[Put(keys.epoch(names[0]), msgspec.json.encode(left))])  # not swept yet
        await world.until(lambda: names[0] in a.view.epochs)
        await world.create("orders", 1)
        await world.until(lambda: names[0] in a.owner.mine)
        assert a.view.epochs[names[0]].value.topic_id == world.topics.topic_id(names[0])


@in_virtual_time
async def test_nothing_of_a_deleted_topic_reaches_one_created_again() -> None:
    """Also when what was there waits for a broker that never returns."""
    async with World() as world:
        a, b = await world.join_all("a", "b")
        names = await world.create("orders", 40)
        await world.served(names)
        await local_only(b, list(b.owner.mine))
        lost = set(b.owner.mine)
        await b.kill()
        await world.until(lambda: set(a.view.unassigned) == lost)
        known = world.topics.known.pop(names[0].topic)  # it is being deleted
        await a.cluster.delete_topic(names[0].topic, 40, await world.topics.mark(names[0].topic))
        assert not a.view.epochs
        assert not a.owner.mine
        world.topics.known[names[0].topic] = known
        a.cluster.topics_changed(names)
        await world.served(names, seconds=1)


@in_virtual_time
async def test_a_broker_that_is_gone_for_long_is_shown_no_more() -> None:
    options = ClusterOptions(lease_seconds=TTL_SECONDS, unreachable_seconds=60.0)
    async with World(options) as world:
        a, b = await world.join_all("a", "b")
        await b.kill()
        await world.until(lambda: len(a.view.registrations) == 1)
        await asyncio.sleep(30)
        assert [info.state for info in a.view.brokers()] == ["active", "unreachable"]
        await world.until(lambda: [info.broker_id for info in a.view.brokers()] == ["a"], seconds=60)


@in_virtual_time
async def test_a_leader_that_was_cut_off_writes_nothing_more() -> None:
    """Its lease ends, another is elected; whatever it still sends fails (`WatchedStore` watches)."""
    async with World() as world:
        a, b, c = await world.join_all("a", "b", "c")
        names = await world.create("orders", 12, is_reliable=False)
        await world.served(names)
        revision = a.cluster.election.revision
        assert revision is not None
        a.line.cut()
        await world.until(lambda: b.cluster.election.revision is not None or c.cluster.election.revision is not None)
        assert a.cluster.election.revision is None
        await world.served(names)
        a.line.heal()
        await world.until(a.cluster.membership.may_ack)
        await asyncio.sleep(10)
        await world.served(names)
        assert a.cluster.election.revision is None
        assert len({member.view.leader for member in world.members.values()}) == 1


@in_virtual_time
async def test_two_leaders_never_write_even_when_the_first_does_not_know() -> None:
    """The key is taken away by hand: the one who held it finds out by its first transaction that fails."""
    async with World() as world:
        _a, _b = await world.join_all("a", "b")
        names = await world.create("orders", 4)
        await world.served(names)
        for _ in range(20):
            await world.store.txn(deletes=[keys.LEADER])
            more = await world.create(f"more-{world.clock.monotonic():.3f}".replace(".", "-"), 2)
            await world.served(more, seconds=10)
        assert len({member.view.leader for member in world.members.values()}) == 1


@in_virtual_time
async def test_u14_nothing_is_taken_from_a_broker_that_returned_while_the_leader_thought_it_dead() -> None:
    """The leader's transaction is on its way when the broker registers again, and goes on serving."""
    async with World() as world:
        a, b = await world.join_all("a", "b")
        names = await world.create("orders", 6)
        await world.served(names)
        mine = dict(b.owner.mine)
        a.line.held_up = keys.UNASSIGNED
        b.line.cut()
        await a.line.is_held_up.wait()
        b.line.heal()
        await world.until(b.cluster.membership.may_ack)
        before = world.store.changes_of_owner.total()
        a.line.held_up = None
        a.line.let_through.set()
        await asyncio.sleep(10)
        await world.served(names)
        assert b.owner.mine == mine
        assert world.store.changes_of_owner.total() == before


@in_virtual_time
async def test_nothing_is_assigned_that_does_not_wait_any_more() -> None:
    """The topic is being deleted while the leader's transaction is on its way."""
    async with World() as world:
        a, b = await world.join_all("a", "b")
        a.line.held_up = "/cluster/brokers/"
        names = await world.create("orders", 6)
        await a.line.is_held_up.wait()
        world.topics.known.clear()
        await b.cluster.delete_topic(names[0].topic, 6, await world.topics.mark(names[0].topic))
        a.line.held_up = None
        a.line.let_through.set()
        await asyncio.sleep(1)
        assert not world.store.owners
        assert not world.store.epochs


@in_virtual_time
async def test_nothing_is_assigned_to_a_broker_that_is_not_the_one_that_was_chosen() -> None:
    """It has left, and returned with another data directory, while the leader's transaction was on its way."""
    async with World() as world:
        a = await world.join("a")
        b = await world.join("b")
        await a.cluster.set_mode("a", BrokerMode.DRAINING)
        a.line.held_up = "/cluster/brokers/b/"
        names = await world.create("orders", 2)
        await a.line.is_held_up.wait()
        await b.stop()
        b = await world.join("b", store_id="another")
        a.line.held_up = None
        a.line.let_through.set()
        await world.served(names)
        assert {epoch.store_id for epoch, _ in b.owner.mine.values()} == {"another"}
        assert {epoch.store_id for epoch in world.store.epochs.values()} == {"another"}
        assert world.store.changes_of_owner.total() == 2


async def test_a_leader_writes_only_while_it_leads() -> None:
    store = MemoryMetadata()
    first = await store.txn(puts=[Put(keys.LEADER, b"first")])
    writer = LeaderWriter(store, first.revision)
    change = OwnershipChange(compares=(Compare("/x", 0),), puts=(Put("/x", b""),))
    outrun = OwnershipChange(compares=(Compare("/y", 7),), puts=(Put("/y", b""),))
    assert await writer.write([change, outrun]) == first.revision + 1, "what was outrun is left out"
    assert await writer.write([change, outrun]) == NO_REVISION
    await store.txn(puts=[Put(keys.LEADER, b"second")])
    other = OwnershipChange(compares=(), puts=(Put("/z", b""),))
    with pytest.raises(NotLeading):
        await writer.write([other])
    assert await store.get("/z") is None
    assert await store.get("/y") is None


@in_virtual_time
async def test_growth_is_linear_and_groups_are_full() -> None:
    """A thousand partitions of a dead broker: some fifty transactions, not two thousand."""
    async with World() as world:
        a, _b, c = await world.join_all("a", "b", "c")
        names = await world.create("orders", 999)
        await world.served(names)
        await c.kill()
        await world.until(lambda: "c" not in a.view.registrations)
        world.store.txn_sizes.clear()
        assert await world.served(names) < 2.0
        big = [size for size in world.store.txn_sizes if size > 10]
        assert len(big) <= 20, "333 taken away, 333 given, 40 or more in each transaction"


@in_virtual_time
async def test_one_that_was_outrun_does_not_keep_the_others_of_its_group_waiting() -> None:
    async with World() as world:
        taken: list[PartitionName] = []
        is_first = True

        def race(point: Failpoint) -> None:
            nonlocal is_first
            if point == Failpoint.LEADER_DEAD_FOUND and is_first:
                is_first = False
                for name in taken:  # as if their owner had given them back in this very moment
                    if name in b.owner.mine or world.store.owners[name] == "b":
                        world.store.apply_now([Put(keys.unassigned(name), _waiting())], [keys.assignment("b", name)])

        a = await world.join("a", failpoints=race)
        b = await world.join("b")
        names = await world.create("orders", 40)
        await world.served(names)
        taken += names[:3]
        await b.kill()
        assert await world.served(names) < TTL_SECONDS + 1
        assert set(a.owner.mine) == set(names)


def test_groups_are_never_larger_than_a_transaction() -> None:
    changes = [
        OwnershipChange(
            compares=tuple(Compare(f"/c/{number}/{one}", 1) for one in range(number % 4)),
            puts=tuple(Put(f"/p/{number}/{one}", b"") for one in range(1 + number % 3)),
            deletes=(f"/d/{number}",) * (number % 2),
        )
        for number in range(1000)
    ]
    groups = list(grouped(changes))
    assert [change for group in groups for change in group] == changes
    for group in groups:
        assert sum(len(change.puts) + len(change.deletes) for change in group) <= TXN_OPERATIONS_MAX
        assert sum(len(change.compares) for change in group) < TXN_OPERATIONS_MAX


def _waiting() -> bytes:
    return msgspec.json.encode(Unassigned(reason=Reason.UNLOADED, since_ms=0, from_broker="b", from_store="store-b"))
