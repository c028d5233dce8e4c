"""Unloads that race, and everything around brokers that fails: etcd, the object store, the networks to both.

Each scenario has producers and consumers at work. In the end all invariants hold, and service has returned by itself.
`SULINA_FAULTS=200 SULINA_RACES=20 pytest tests/cluster/test_races.py` is the long form; `SULINA_SEED` gives the faults.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from functools import partial

import httpx
import pytest
import pytest_asyncio

from sulina.core.cluster import keys
from sulina.core.delivery.members import SubscriptionKind
from tests.support.cluster_clients import Application, Load
from tests.support.cluster_world import LEASE_SECONDS, World, cluster, until
from tests.support.etcd import ALONE, EtcdCluster, EtcdServer
from tests.support.nemesis import Nemesis
from tests.support.s3 import S3Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

RACES = int(os.environ.get("SULINA_RACES", "2"))
FAULTS = int(os.environ.get("SULINA_FAULTS", "5"))
SEED = int(os.environ.get("SULINA_SEED", "7"))
RATE = int(os.environ.get("SULINA_RATE", "150"))  # records a second, of each application
LOAD = Load(records_per_second=RATE)
LOAD_OF_ALL = Load(
    partitions=2,
    records_per_second=RATE,
    subscriptions=(("billing", SubscriptionKind.EXCLUSIVE, 1), ("mail", SubscriptionKind.SHARED, 2)),
    tolerates_errors=True,
)
BATCH = RATE // 2
SLOW_BATCH = RATE // 6  # of which each has to wait for several slow requests
FAULT_SECONDS = 1.5  # shorter than a lease
SLOW_SECONDS = 0.04


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def proxied(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> AsyncIterator[World]:
    """Brokers that reach etcd, and S3, through a proxy each; the etcd is theirs alone."""
    folder = tmp_path_factory.mktemp("races")
    server = EtcdServer(folder / "etcd", arguments=ALONE)
    with server:
        async with cluster(folder, server, "a", "b", "c", s3=s3, is_proxied=True) as world:
            yield world


@pytest_asyncio.fixture(loop_scope="session")
async def faulty(proxied: World) -> World:
    """The same, whole."""
    await proxied.restore("a", "b", "c")
    return proxied


@contextlib.asynccontextmanager
async def at_work(world: World, topic: str, ack: str = "archived") -> AsyncIterator[tuple[Application, str]]:
    """An application whose topic is served, and its owner; afterwards it is served again, and nothing is wrong."""
    await world.create_topic(topic, ack=ack)
    application = Application(world, topic, LOAD)
    async with application.running():
        await application.wait_acked(BATCH)
        yield application, await world.owner_of(topic)
        healed_at = time.monotonic()
        await application.wait_acked(BATCH)
        print(f"{topic}: served {time.monotonic() - healed_at:.2f} s after the end of the fault")
        wrong = await application.finish()
    assert not wrong, "\n".join(wrong[:40])
    assert application.errors == []


async def wait_no_unloads(world: World) -> None:
    async def none() -> bool:
        return not await asyncio.to_thread(world.keys, keys.UNLOADS)

    await until("no unload is under way", none)


# Unloads


async def test_u14_of_two_racing_moves_one_decides_and_nothing_is_lost(world: World) -> None:
    """U2, U14: wherever it goes, it has one owner, and no unload is left over."""
    topic = "/default/race-unloads"
    async with at_work(world, topic):
        for _ in range(RACES):
            asked = await asyncio.gather(
                world.unload(topic, to="a"), world.unload(topic, to="b"), world.unload(topic), return_exceptions=True
            )
            assert any(not isinstance(answer, BaseException) for answer in asked), asked
            await wait_no_unloads(world)
            await world.wait_served(topic)


async def test_u14_a_move_during_a_failover_ends_with_one_owner(world: World) -> None:
    """U14, F1: the owner dies while it is asked to unload, and before anybody knows that it has died."""
    topic = "/default/race-failover"
    async with at_work(world, topic) as (application, owner):
        other = world.other(owner)
        await asyncio.gather(world.unload(topic, to=other, via=other), world.brokers[owner].kill())
        await world.wait_served(topic, not_by=owner)
        await application.wait_acked(BATCH)
        owner = await world.owner_of(topic)
        await world.restore("a", "b", "c")
        await world.brokers[owner].kill()
        with contextlib.suppress(AssertionError):  # nobody may know yet who could do it
            await world.unload(topic, to=world.other(owner))
        await world.wait_served(topic, not_by=owner)
        await wait_no_unloads(world)


# etcd


async def test_u14_a_restart_of_etcd_costs_no_record_and_no_owner(faulty: World) -> None:
    """F2 too: watches and leases go on; the outage is shorter than a lease."""
    async with at_work(faulty, "/default/etcd-restart"):
        assert isinstance(faulty.etcd, EtcdServer)
        await asyncio.to_thread(faulty.etcd.restart)
        await faulty.wait_brokers("a", "b", "c")


async def test_f2_a_broker_that_missed_changes_and_their_compaction_lists_again(faulty: World) -> None:
    """F2, F3: what happened while it was cut off is gone from etcd's history, and it knows it all the same."""
    async with at_work(faulty, "/default/etcd-compaction") as (_, owner):
        blind = faulty.brokers[faulty.other(owner)]
        assert blind.etcd_proxy is not None
        blind.etcd_proxy.cut()
        topics = [f"/default/etcd-compaction-{number}" for number in range(3)]
        settings = {"policy": {"ack": "archived"}, "schema": {"kind": "json", "definition": {"type": "object"}}}
        for topic in topics:
            await faulty.tell(f"/v1/topics{topic}", settings, method="PUT", via=owner)
        assert isinstance(faulty.etcd, EtcdServer)
        status = await asyncio.to_thread(faulty.etcd.status)
        await asyncio.to_thread(faulty.etcd.compact, int(status["header"]["revision"]))
        blind.etcd_proxy.heal()
        await faulty.wait_brokers("a", "b", "c")
        for topic in topics:
            await faulty.wait_served(topic)
            await until(f"{blind.broker_id} knows {topic}", partial(faulty.partition, topic, via=blind.broker_id))
            await faulty.move(topic, blind.broker_id)
            found = await faulty.ask(f"/v1/topics{topic}", via=blind.broker_id)
            assert found["settings"]["schema"] == settings["schema"]
            assert found["settings"]["policy"] == settings["policy"]


async def test_u14_without_a_quorum_of_etcd_nobody_acks_beyond_its_lease_and_all_return(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """U14: two of three members are away for longer than the lease."""
    folder, topic = tmp_path_factory.mktemp("quorum"), "/default/quorum"
    with EtcdCluster(folder / "etcd", 3) as etcd:
        async with cluster(folder, etcd, "a", "b") as world, at_work(world, topic) as (application, _):
            gone = etcd.followers()
            for member in gone:
                await asyncio.to_thread(member.kill)
            await asyncio.sleep(1.25 * LEASE_SECONDS)  # the fault itself
            acked = application.acked_records
            await asyncio.sleep(FAULT_SECONDS)
            assert application.acked_records == acked, "somebody acks without a lease"
            for member in gone:
                await asyncio.to_thread(member.launch)
            for member in gone:
                await asyncio.to_thread(member.wait_ready)
            await world.wait_brokers("a", "b")


# The object store


async def test_u4_an_object_store_that_fails_is_asked_again(faulty: World) -> None:
    """U4: 503 and 500 for many requests, through publishes and a move."""
    topic = "/default/store-5xx"
    async with at_work(faulty, topic) as (application, owner):
        proxy = faulty.brokers[owner].store_proxy
        assert proxy is not None
        before = proxy.counts["failed"]
        for status in (503, 500):
            proxy.fail_next(5, status)
            await application.wait_acked(BATCH)
        proxy.fail_next(5, 503)
        await faulty.move(topic, faulty.other(owner))
        assert proxy.counts["failed"] > before


async def test_u4_a_slow_object_store_slows_everything_down_and_nothing_else(faulty: World) -> None:
    """U4: every request takes longer, also those of a move."""
    topic = "/default/store-slow"
    async with at_work(faulty, topic) as (application, owner):
        for broker in faulty.brokers.values():
            assert broker.store_proxy is not None
            broker.store_proxy.delay(SLOW_SECONDS)
        await application.wait_acked(SLOW_BATCH)
        await faulty.move(topic, faulty.other(owner))
        await application.wait_acked(SLOW_BATCH)
        await faulty.restore("a", "b", "c")


async def test_u4_a_put_whose_reply_is_lost_is_not_taken_for_anothers(faulty: World) -> None:
    """U4: the store has it, the broker does not know; a conditional put that meets itself has succeeded."""
    topic = "/default/store-lost"
    async with at_work(faulty, topic) as (application, owner):
        proxy = faulty.brokers[owner].store_proxy
        assert proxy is not None
        for _ in range(3):
            proxy.lose_replies(2)
            await application.wait_acked(BATCH)
        proxy.lose_replies(3)
        await faulty.move(topic, faulty.other(owner))
        assert proxy.counts["lost"] >= 6


async def test_u4_a_put_that_arrives_twice_is_one(faulty: World) -> None:
    """U4: the second says that the name is taken, and it was ourselves."""
    topic = "/default/store-twice"
    async with at_work(faulty, topic) as (application, owner):
        proxy = faulty.brokers[owner].store_proxy
        assert proxy is not None
        proxy.duplicate_puts(6)
        await application.wait_acked(BATCH)
        proxy.duplicate_puts(6)
        await faulty.move(topic, faulty.other(owner))
        assert proxy.counts["duplicated"] >= 6


# Networks


async def test_u1_while_a_topic_leaves_publishes_are_told_to_come_again_and_then_where_to_go(faulty: World) -> None:
    """U1: ACTIVE, DRAINING, CLOSED: first a retriable refusal, then the new owner's name."""
    topic = "/default/told"
    await faulty.create_topic(topic)
    source = faulty.brokers[await faulty.owner_of(topic)]
    target = faulty.brokers[faulty.other(source.broker_id)]
    assert source.store_proxy is not None
    records = f"{source.url}/v1/topics{topic}/records"

    async def publish() -> httpx.Response:
        return await faulty.http.post(records, json={"records": [{"value": "x"}]}, follow_redirects=False)

    assert (await publish()).status_code == 200
    source.store_proxy.delay(0.2)  # every request, so that it takes its time
    await faulty.unload(topic, to=target.broker_id)

    async def is_draining() -> httpx.Response | None:
        response = await publish()
        return None if response.status_code == 200 else response

    refused = await until("it drains", is_draining)
    assert (refused.status_code, refused.json()["code"]) == (503, "draining")
    assert "retry-after" in refused.headers
    source.store_proxy.heal()
    await faulty.wait_served(topic, by=target.broker_id)
    moved = await publish()
    assert moved.status_code == 307
    assert moved.headers["location"] == f"{target.url}/v1/topics{topic}/partitions/0/records"


@pytest.mark.parametrize("fault", ["cut", "blackhole", "drop_replies"])
async def test_u14_a_broker_cut_off_from_etcd_loses_its_topics_and_comes_back(faulty: World, fault: str) -> None:
    """U14, F1: longer than its lease; another goes on, the old one acks nothing and is a member again."""
    topic = f"/default/cut-etcd-{fault.replace('_', '-')}"
    async with at_work(faulty, topic) as (application, owner):
        proxy = faulty.brokers[owner].etcd_proxy
        assert proxy is not None
        getattr(proxy, fault)()
        await faulty.wait_served(topic, not_by=owner)
        await application.wait_acked(BATCH)
        proxy.heal()
        await faulty.wait_brokers("a", "b", "c")


@pytest.mark.parametrize("ack", ["archived", "local"])
async def test_u4_a_broker_cut_off_from_the_store_goes_on_when_it_is_back(faulty: World, ack: str) -> None:
    """U4: `archived` waits, `local` goes on; an unload asked for meanwhile is finished afterwards."""
    topic = f"/default/cut-store-{ack}"
    async with at_work(faulty, topic, ack) as (application, owner):
        proxy = faulty.brokers[owner].store_proxy
        assert proxy is not None
        proxy.cut()
        await faulty.unload(topic, to=faulty.other(owner))
        await asyncio.sleep(FAULT_SECONDS)  # the fault itself
        proxy.heal()
        await faulty.wait_served(topic, not_by=owner)
        await application.wait_acked(BATCH)


# Everything


@pytest.mark.timeout(120 + 20 * FAULTS)
@pytest.mark.parametrize("ack", ["archived", "local"])
async def test_u14_whatever_happens_in_whatever_order_nothing_that_was_acked_is_lost(faulty: World, ack: str) -> None:
    """F4, U6, U10: moves, kills, sleeps, cuts and faults of etcd and the store, as a seed says, under load."""
    topic = f"/default/nemesis-{ack}"
    print(f"SULINA_SEED={SEED} SULINA_FAULTS={FAULTS}")
    await faulty.create_topic(topic, LOAD_OF_ALL.partitions, ack=ack)
    application = Application(faulty, topic, LOAD_OF_ALL)
    nemesis = Nemesis(faulty, [topic], SEED)
    async with application.running():
        await application.wait_acked(BATCH)
        await nemesis.run(FAULTS)
        await faulty.restore("a", "b", "c")
        began = time.monotonic()
        await application.wait_acked(BATCH)
        print(f"served {time.monotonic() - began:.2f} s after the last fault; {dict(nemesis.counts)}")
        wrong = await application.finish()
    print(application.counts())
    assert not wrong, "\n".join([f"seed {SEED}", *wrong[:40]])
