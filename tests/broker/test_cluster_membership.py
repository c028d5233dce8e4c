"""Joining, staying and leaving: what a lease allows, and what the others see (issue 4, Build 2)."""

import asyncio

import msgspec
import pytest

from sulina.broker.cluster.membership import margin_seconds
from sulina.core.cluster import keys
from sulina.core.cluster.entries import Registration
from sulina.errors import InvalidName, InvalidSettings
from sulina.ports import Put
from tests.support.control_plane import TTL_SECONDS, World, in_virtual_time


@in_virtual_time
async def test_a_broker_that_has_joined_is_seen_and_may_acknowledge() -> None:
    async with World() as world:
        a, b = await world.join_all("a", "b")
        assert a.cluster.membership.may_ack()
        assert b.cluster.membership.may_ack()
        await world.until(lambda: sorted(a.view.registrations) == ["a", "b"])
        assert [info.broker_id for info in b.view.brokers()] == ["a", "b"]
        assert a.view.url("b") == "http://b:80"
        assert "broker_joined" in a.event_types()


@in_virtual_time
async def test_a_lease_is_kept_alive_for_as_long_as_it_is_wanted() -> None:
    async with World() as world:
        (a,) = await world.join_all("a")
        for _ in range(200):
            await asyncio.sleep(TTL_SECONDS / 10)
            assert a.cluster.membership.may_ack()
        assert "lease_lost" not in a.event_types()


@in_virtual_time
async def test_u14_a_broker_that_is_cut_off_stops_to_acknowledge_before_its_lease_can_end() -> None:
    """By its own clock alone: nobody can tell it."""
    async with World() as world:
        a, b = await world.join_all("a", "b")
        await asyncio.sleep(1.7)
        a.line.cut()
        was_there_when_it_stopped = None
        while a.cluster.membership.may_ack() or "a" in b.view.registrations:
            if not a.cluster.membership.may_ack() and was_there_when_it_stopped is None:
                was_there_when_it_stopped = await world.store.get(keys.register("a")) is not None
            await asyncio.sleep(0.01)
        assert was_there_when_it_stopped
        assert await world.store.get(keys.register("a")) is None
        await world.until(lambda: "broker_unreachable" in b.event_types())


@in_virtual_time
async def test_the_margin_lies_between_the_last_answer_and_the_end_of_the_lease() -> None:
    async with World() as world:
        (a,) = await world.join_all("a")
        await asyncio.sleep(1.5)
        membership = a.cluster.membership
        a.line.cut()
        cut_at = world.clock.monotonic()
        await world.until(lambda: not membership.may_ack())
        assert world.clock.monotonic() - cut_at <= TTL_SECONDS - margin_seconds(TTL_SECONDS) + 0.02
    assert margin_seconds(1.0) == pytest.approx(0.2)
    assert margin_seconds(10.0) == pytest.approx(1.0)


@in_virtual_time
async def test_an_answer_that_was_long_on_its_way_counts_from_when_it_was_asked_for() -> None:
    """SIGSTOP between question and answer: the lease's time had begun to run before."""
    async with World() as world:
        (a,) = await world.join_all("a")
        membership = a.cluster.membership
        lease = membership.lease
        assert lease is not None
        asked = world.clock.monotonic()
        held_up = asyncio.Event()
        keep_alive = lease.keep_alive

        async def slow() -> float:
            ttl = await keep_alive()
            await held_up.wait()
            return ttl

        lease.keep_alive = slow  # type: ignore[method-assign]
        call = asyncio.ensure_future(membership.keep_alive(lease))
        await asyncio.sleep(0.9)
        held_up.set()
        await call
        assert membership.valid_until == pytest.approx(asked + TTL_SECONDS - margin_seconds(TTL_SECONDS))


@in_virtual_time
async def test_a_broker_whose_lease_ended_registers_again_and_keeps_what_nobody_took() -> None:
    """It is alone, so nobody took anything."""
    async with World() as world:
        (a,) = await world.join_all("a")
        names = await world.create("orders", 4)
        await world.served(names)
        a.line.cut()
        await asyncio.sleep(TTL_SECONDS * 2)
        assert not any(world.serving(name) for name in names)
        a.line.heal()
        await world.served(names)
        assert {"lease_lost", "lease_renewed"} <= set(a.event_types())


@in_virtual_time
async def test_u14_what_was_taken_while_away_is_lost_before_anything_may_be_acknowledged_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with World() as world:
        a, b = await world.join_all("a", "b")
        names = await world.create("orders", 6, is_reliable=False)
        await world.served(names)
        held = set(a.owner.mine)
        assert held
        a.line.cut()
        await world.until(lambda: set(b.owner.mine) == set(names))
        assert set(a.owner.mine) == held, "nobody could tell it"
        assert not a.cluster.membership.may_ack()
        seen: list[bool] = []
        monkeypatch.setattr(a.owner, "lost", lambda _: seen.append(a.cluster.membership.may_ack()))
        a.line.heal()
        await world.until(a.cluster.membership.may_ack)
        assert seen == [False] * len(held)


@in_virtual_time
async def test_u14_what_was_given_and_taken_while_away_is_never_told() -> None:
    """A watch that comes back tells all of the past, also that of an owner that never was."""
    async with World() as world:
        a, b = await world.join_all("a", "b")
        b.line.cut()
        names = await world.create("orders", 4)
        await world.until(lambda: set(world.store.owners.values()) == {"a", "b"})
        await world.until(lambda: set(a.owner.mine) == set(names))
        b.line.heal()
        await world.until(b.cluster.membership.may_ack)
        await world.until(lambda: set(b.view.assignments) == set(names))
        assert b.owner.told == []


@in_virtual_time
async def test_a_name_that_another_data_directory_has_is_refused() -> None:
    async with World() as world:
        await world.join("a", store_id="one")
        with pytest.raises(InvalidSettings, match="broker id a is in use by http://a:80"):
            await world.join("a", store_id="two")


@in_virtual_time
async def test_a_name_that_is_no_name_is_refused() -> None:
    async with World() as world:
        with pytest.raises(InvalidName):
            await world.join("a/b")


@in_virtual_time
async def test_u8_a_broker_that_is_started_again_replaces_its_former_self_at_once() -> None:
    """The same data directory: its lock proves that the former is dead. It goes on under the same epoch."""
    async with World() as world:
        (a,) = await world.join_all("a")
        names = await world.create("orders", 3)
        await world.served(names)
        before = {name: a.owner.mine[name][0].epoch for name in names}
        await a.kill()
        started = world.clock.monotonic()
        again = await world.join("a")
        assert world.clock.monotonic() - started < 0.1
        assert {name: epoch.epoch for name, (epoch, _) in again.owner.mine.items()} == before
        await world.until(lambda: again.cluster.election.revision is not None, seconds=0.5)


@in_virtual_time
async def test_a_process_that_was_replaced_never_serves_again() -> None:
    """Two processes with copies of one data directory: the younger wins, the older stops for good."""
    async with World() as world:
        old = await world.join("a")
        names = await world.create("orders", 2)
        await world.served(names)
        await asyncio.sleep(0.5)
        await world.join("a")
        await world.until(lambda: old.cluster.membership.is_replaced)
        await asyncio.sleep(TTL_SECONDS * 3)
        assert not old.cluster.membership.may_ack()
        assert "broker_replaced" in old.event_types()
        assert world.serving(names[0]) == ["a"]


@in_virtual_time
async def test_f1_a_broker_that_returns_with_another_data_directory_is_another_one() -> None:
    """It is not told of what its namesake had, and what only that one had waits for it."""
    async with World() as world:
        a = await world.join("a", store_id="one")
        names = await world.create("orders", 2)
        await world.served(names)
        for name in names:
            await a.cluster.set_archived(name, a.owner.mine[name][1], False)
        await a.kill()
        await asyncio.sleep(TTL_SECONDS + 1)
        other = await world.join("a", store_id="two")
        await world.until(lambda: len(other.view.unassigned) == 2)
        assert other.owner.told == []
        assert {held.value.from_store for held in other.view.unassigned.values()} == {"one"}
        assert all(held.value.is_recovering for held in other.view.unassigned.values())
        await other.stop()
        returned = await world.join("a", store_id="one")
        await world.served(names)
        assert set(returned.owner.mine) == set(names)


@in_virtual_time
async def test_who_leaves_has_left_and_who_dies_is_unreachable() -> None:
    async with World() as world:
        a, b, c = await world.join_all("a", "b", "c")
        await b.stop()
        await c.kill()
        await world.until(lambda: sorted(a.view.registrations) == ["a"])
        a.event_types()
        told = [(event.type, event.fields.get("broker_id")) for event in a.events]
        assert ("broker_left", "b") in told
        assert ("broker_unreachable", "c") in told
        assert {info.broker_id: info.state for info in a.view.brokers()} == {"a": "active", "c": "unreachable"}


@in_virtual_time
async def test_leaving_takes_no_time_and_the_lead_is_free_at_once() -> None:
    async with World() as world:
        a, b = await world.join_all("a", "b")
        assert a.view.leader.value.broker_id == "a"
        started = world.clock.monotonic()
        await a.stop()
        await world.until(lambda: b.cluster.election.revision is not None)
        assert world.clock.monotonic() - started < 0.5
        assert b.event_types().count("leader_elected") == 1


@in_virtual_time
async def test_stopping_ends_also_when_the_store_cannot_be_reached() -> None:
    async with World() as world:
        (a,) = await world.join_all("a")
        a.line.cut()
        started = world.clock.monotonic()
        await a.stop()
        assert world.clock.monotonic() - started <= world.options.stop_seconds + 0.1


@in_virtual_time
async def test_a_registration_that_was_deleted_by_hand_is_made_again() -> None:
    async with World() as world:
        (a,) = await world.join_all("a")
        await world.store.txn(deletes=[keys.register("a")])
        await world.until(lambda: not a.cluster.membership.may_ack(), seconds=1)
        await world.until(a.cluster.membership.may_ack, seconds=1)


@in_virtual_time
async def test_a_registration_that_cannot_be_read_is_in_nobodys_way_for_long() -> None:
    async with World() as world:
        await world.store.txn(puts=[Put(keys.register("a"), b"{")])
        with pytest.raises(InvalidSettings, match="cannot be read"):
            await world.join("a")
        registration = Registration(broker_id="b", url="", store_id="x", started_ms=0)
        await world.store.txn(puts=[Put(keys.register("b"), msgspec.json.encode(registration))])
        with pytest.raises(InvalidSettings, match="another data directory"):
            await world.join("b")


@in_virtual_time
async def test_who_is_leaving_keeps_what_it_has_and_gets_nothing_more() -> None:
    async with World() as world:
        a, b = await world.join_all("a", "b")
        first = await world.create("orders", 4)
        await world.served(first)
        mine = set(a.owner.mine)
        await a.cluster.announce_leaving()
        assert a.cluster.membership.may_ack()
        second = await world.create("more", 4)
        await world.served(second)
        assert set(a.owner.mine) == mine
        assert a.cluster.membership.may_ack()
        assert "lease_lost" not in a.event_types()
        await a.stop()
        await world.served([*first, *second])
        assert set(b.owner.mine) == {*first, *second}


@in_virtual_time
async def test_u12_a_load_report_is_written_at_once_when_something_was_gained_or_lost() -> None:
    async with World() as world:
        a, b = await world.join_all("a", "b")
        names = await world.create("orders", 4)
        await world.served(names)
        await world.until(lambda: b.view.loads["a"].partitions == 2, seconds=0.5)
        await a.cluster.request_unload(names[0], force=True, to=None, requested_by="test")
        await world.until(lambda: (a.view.loads["a"].partitions, a.view.loads["b"].partitions) in ((1, 3), (3, 1)))
        assert world.clock.monotonic() < world.options.load_seconds
