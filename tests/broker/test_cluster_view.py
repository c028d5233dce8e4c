"""The cluster as one broker sees it: whole revisions, in order, whatever happens to the watch."""

import asyncio
from typing import Any

import msgspec
import pytest

from sulina.broker.cluster.view import ClusterView, Touched
from sulina.broker.events import EventStream
from sulina.core.cluster import keys
from sulina.core.cluster.entries import (
    Assignment,
    BrokerMode,
    BrokerState,
    EpochEntry,
    Leader,
    LoadReport,
    Reason,
    Registration,
    Unassigned,
    UnloadRequest,
    UnloadStep,
)
from sulina.errors import LimitReached, NewerFormat
from sulina.metadata import MemoryMetadata
from sulina.ports import Change, Put
from sulina.wire.messages import TopicState
from tests.support.control_plane import Line, LoopClock, in_virtual_time, partition_names

P0, P1, P2 = partition_names("orders", 3)


def put(key: str, value: msgspec.Struct) -> Put:
    return Put(key, msgspec.json.encode(value))


def registration(broker_id: str, started_ms: int = 0) -> Put:
    value = Registration(broker_id=broker_id, url=f"http://{broker_id}", store_id="s", started_ms=started_ms)
    return put(keys.register(broker_id), value)


def load(broker_id: str) -> Put:
    value = LoadReport(broker_id=broker_id, at_ms=0, partitions=1, topics=1, connections=7, consumers=0)
    return put(keys.load(broker_id), value)


def owned(broker_id: str, epoch: int = 5) -> list[Put]:
    return [
        put(keys.assignment(broker_id, P0), Assignment(epoch=epoch, since_ms=0)),
        put(keys.epoch(P0), EpochEntry(epoch=epoch, broker_id=broker_id, store_id="s", is_archived=True)),
    ]


def unload_request(step: UnloadStep) -> Put:
    return put(keys.unload(P0), UnloadRequest(unload_id="u", force=True, requested_ms=0, requested_by="t", step=step))


class _Told(EventStream):
    def __init__(self, events: list[tuple[str, str]]) -> None:
        super().__init__(LoopClock())
        self._told = events

    def emit(self, type_: str, topic: object = None, **fields: Any) -> None:
        self._told.append((type_, fields["broker_id"]))


class Seen:
    """A store, a view of it, and what the view said."""

    def __init__(self, store: MemoryMetadata | None = None) -> None:
        self.clock = LoopClock()
        self.store = store or MemoryMetadata(self.clock)
        self.line = Line(self.store)
        self.events: list[tuple[str, str]] = []
        self.view = ClusterView(self.line, events=_Told(self.events), clock=self.clock, waiters_max=3)

    async def __aenter__(self) -> "Seen":
        await self.view.load()
        self._task = asyncio.create_task(self.view.follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def write(self, *puts: Put, deletes: list[str] | None = None) -> None:
        done = await self.store.txn(puts=puts, deletes=deletes or [])
        assert await self.view.wait_for(lambda view: view.revision >= done.revision, 60)


@in_virtual_time
async def test_where_a_partition_is_served() -> None:
    async with Seen() as seen:
        assert seen.view.placement(P0).state == TopicState.CLOSED
        await seen.write(*owned("a"))
        placed = seen.view.placement(P0)
        assert (placed.state, placed.epoch, placed.url) == (TopicState.CLOSED, 5, None), "its owner is not there"
        await seen.write(registration("a"))
        placed = seen.view.placement(P0)
        assert (placed.state, placed.broker_id, placed.url) == (TopicState.ACTIVE, "a", "http://a")
        await seen.write(unload_request(UnloadStep.REQUESTED))
        assert seen.view.placement(P0).state == TopicState.ACTIVE
        await seen.write(unload_request(UnloadStep.QUIESCED))
        assert seen.view.placement(P0).state == TopicState.DRAINING
        waiting = Unassigned(reason=Reason.DEAD, since_ms=0, from_broker="a", from_store="s", is_recovering=True)
        await seen.write(put(keys.unassigned(P0), waiting), deletes=[keys.assignment("a", P0), keys.unload(P0)])
        placed = seen.view.placement(P0)
        assert (placed.state, placed.waits_for, placed.broker_id) == (TopicState.RECOVERING, "a", None)
        assert seen.view.assigned_to == {}


@in_virtual_time
async def test_what_brokers_are_there_and_what_is_wanted_of_them() -> None:
    async with Seen() as seen:
        await seen.write(registration("a"), load("a"), registration("b"), load("b"), *owned("a"))
        await seen.write(put(keys.broker_state("b"), BrokerState(state=BrokerMode.DRAINING)))
        await seen.write(put(keys.LEADER, Leader(broker_id="b")))
        assert seen.view.active() == ["a"]
        a, b = seen.view.brokers()
        assert (a.broker_id, a.state, a.partitions, a.topics, a.connections, a.is_leader) == (
            "a", "active", 1, 1, 7, False,
        )  # fmt: skip
        assert (b.broker_id, b.state, b.partitions, b.is_leader) == ("b", "draining", 0, True)
        assert ("leader_elected", "b") in seen.events


@in_virtual_time
async def test_leaving_and_dying_look_different_also_when_the_moment_was_missed() -> None:
    async with Seen() as seen:
        await seen.write(*(one for name in "abcd" for one in (registration(name), load(name))))
        await seen.write(deletes=[keys.register("a"), keys.load("a")])
        await seen.write(deletes=[keys.register("b")])
        assert seen.events[-2:] == [("broker_left", "a"), ("broker_unreachable", "b")]
        seen.line.cut()
        await asyncio.sleep(1)
        await seen.store.txn(deletes=[keys.register("c"), keys.load("c")])
        await seen.store.txn(deletes=[keys.register("d")])
        for number in range(12_000):  # more than the store remembers
            await seen.store.txn(puts=[Put("/other", b"%d" % number)])
        seen.line.heal()
        assert await seen.view.wait_for(lambda view: not view.registrations, 60)
        assert seen.events[-2:] == [("broker_left", "c"), ("broker_unreachable", "d")]


@in_virtual_time
async def test_f2_changes_that_were_missed_are_made_up_for() -> None:
    """The watch was too slow, and its history is gone: everything is listed again, the difference is one change."""
    store = MemoryMetadata(LoopClock(), history_changes_max=10, watch_queue_changes_max=10)
    async with Seen(store) as seen:
        await seen.write(registration("a"), load("a"), *owned("a"))
        touched = []
        seen.view.listen(lambda one: touched.append((one.partitions, one.brokers)))
        seen.line.cut()
        await asyncio.sleep(0.1)
        await store.txn(puts=owned("b", epoch=6), deletes=[keys.assignment("a", P0)])
        for number in range(100):
            await store.txn(puts=[registration("c", number), load("c")])
        await store.txn(deletes=[keys.register("a")])
        seen.line.heal()
        assert await seen.view.wait_for(lambda view: "c" in view.registrations, 60)
        assert touched == [({P0}, {"a", "c"})]
        assert seen.view.assignments.get(P0) is not None
        assert seen.view.assignments.get(P0).broker_id == "b"  # type: ignore[union-attr]
        assert seen.view.assigned_to == {"b": {P0}}
        await seen.write(deletes=[keys.register("c")])
        assert not seen.view.registrations


@in_virtual_time
async def test_a_broker_that_was_started_again_has_joined_again() -> None:
    async with Seen() as seen:
        await seen.write(registration("a", 1), load("a"))
        await seen.write(registration("a", 1))
        await seen.write(registration("a", 2))
        assert seen.events == [("broker_joined", "a"), ("broker_joined", "a")]


@in_virtual_time
async def test_what_cannot_be_read_counts_as_absent_and_hurts_nothing_else() -> None:
    async with Seen() as seen:
        damaged = [
            keys.LEADER, keys.register("x"), keys.load("x"), keys.broker_state("x"), keys.assignment("x", P1),
            keys.unassigned(P1), keys.epoch(P1), keys.unload(P1), "/cluster/epochs/a/b/c",
            "/cluster/epochs/a/b/99999999", "/cluster/later/a/b/0", "/cluster/later", "/cluster/epochs/!/b/0",
        ]  # fmt: skip
        await seen.write(registration("a"), *owned("a"), *(Put(key, b"\xff{") for key in damaged))
        assert list(seen.view.assignments) == [P0]
        assert list(seen.view.registrations) == ["a"]
        assert seen.view.leader is None
        assert not seen.view.unassigned
        await seen.write(deletes=damaged)
        assert list(seen.view.assignments) == [P0]


@in_virtual_time
async def test_those_who_wait_are_woken_by_what_holds_only_for_a_moment() -> None:
    async with Seen() as seen:
        waiting = asyncio.create_task(seen.view.wait_for(lambda view: "a" in view.registrations, 60))
        await asyncio.sleep(0)
        await seen.store.txn(puts=[registration("a")])
        await seen.store.txn(deletes=[keys.register("a")])
        assert await waiting
        assert await seen.view.wait_for(lambda view: "a" not in view.registrations, 60)


@in_virtual_time
async def test_those_who_wait_in_vain_are_told_so_and_nobody_waits_without_end() -> None:
    async with Seen() as seen:
        assert not await seen.view.wait_for(lambda view: "a" in view.registrations, 1.5)
        assert seen.clock.monotonic() == pytest.approx(1.5, abs=0.1)
        assert not seen.view.waiters
        three = [asyncio.create_task(seen.view.wait_for(lambda view: bool(view.loads), 5)) for _ in range(3)]
        await asyncio.sleep(0.1)
        with pytest.raises(LimitReached):
            await seen.view.wait_for(lambda view: bool(view.loads), 5)
        for task in three:
            task.cancel()
        await asyncio.gather(*three, return_exceptions=True)
        assert not seen.view.waiters


@in_virtual_time
async def test_a_question_that_fails_is_its_askers_only() -> None:
    async with Seen() as seen:

        def is_odd(view: ClusterView) -> bool:
            if view.registrations:
                raise ZeroDivisionError
            return False

        failing = asyncio.create_task(seen.view.wait_for(is_odd, 60))
        await asyncio.sleep(0)
        await seen.write(registration("a"))
        with pytest.raises(ZeroDivisionError):
            await failing
        await seen.write(registration("b"))
        assert sorted(seen.view.registrations) == ["a", "b"]


async def test_l18_a_newer_key_is_refused_again_after_a_compaction() -> None:
    clock = LoopClock()
    store = MemoryMetadata(clock)
    view = ClusterView(store, events=EventStream(clock), clock=clock)
    await store.txn(puts=owned("a"))
    await view.load()
    before = view.revision
    newer = Put(keys.epoch(P0), b'{"format":2,"all":"is different"}')
    done = await store.txn(puts=[registration("b"), newer])
    with pytest.raises(NewerFormat):
        view.apply([Change(put.key, put.value, done.revision) for put in (registration("b"), newer)], done.revision)
    await store.compact(done.revision)
    for _ in range(2):
        with pytest.raises(NewerFormat):
            await view.load()
    assert view.revision == before
    touched: list[Touched] = []
    view.listen(touched.append)
    await store.txn(puts=owned("a", epoch=6))
    await view.load()
    assert view.epochs[P0].value.epoch == 6
    assert touched[0].brokers == {"b"}, "what came with the newer key is told, too"
