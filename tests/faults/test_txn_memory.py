"""Issue 13, finding 11: a publish that comes again is written once, however much was published in between.

A txn_id is remembered for a time, not for a number of publishes; at the bound a new one is refused, and no older one is
forgotten for it. A client's own retries need none: the log knows them by producer and number.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import pytest_asyncio

import sulina
from sulina.client import Client, ClientOptions, PublishAck
from tests.support.cluster_world import World, cluster
from tests.support.etcd import EtcdServer, etcd
from tests.support.fault_proxy import FaultProxy
from tests.support.serving import serving

__all__ = ["etcd"]  # a fixture

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

OTHERS = 12_000  # more than were ever remembered by number
AT_ONCE = 500
BOUND = 20
SECONDS = 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory, etcd: EtcdServer) -> AsyncIterator[World]:
    async with cluster(tmp_path_factory.mktemp("txns"), etcd, "a", "b") as world:
        yield world


async def publish_others(client: Client, topic: str, txn_ids: Iterable[str | None]) -> None:
    """Publish single records, many at a time."""
    waiting = list(txn_ids)
    while waiting:
        now, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        await asyncio.gather(*(client.publish(topic, b"other", txn_id=txn_id) for txn_id in now))


def places(acks: Iterable[PublishAck]) -> set[tuple[int | None, int | None]]:
    return {(ack.offset, ack.version) for ack in acks}


async def test_l13_a_txn_id_gets_its_first_answer_after_12000_others_a_restart_and_a_move(world: World) -> None:
    topic = "/default/remembered"
    await world.create_topic(topic, ack="local")
    async with world.client() as client:
        owner = await world.owner_of(topic)

        async def again() -> PublishAck:
            return await client.publish(topic, b"first", txn_id="order-1")

        acks = [await again()]
        await publish_others(client, topic, (f"other-{number}" for number in range(OTHERS)))
        end = (await client.admin.partition(topic)).end_offset
        acks.append(await again())

        await world.brokers[owner].kill()
        await world.brokers[owner].start()
        acks.append(await again())

        await world.move(topic, world.other(owner))
        acks.append(await again())
        for number in (0, OTHERS // 2, OTHERS - 1):
            other = await client.publish(topic, b"other", txn_id=f"other-{number}")
            assert other.offset is not None
            assert other.offset < end

        await world.move(topic, owner)
        acks.append(await again())
        assert places(acks) == {(0, acks[0].version)}
        assert end == (await client.admin.partition(topic)).end_offset == OTHERS + 1


async def test_l13_at_the_bound_a_new_txn_id_has_to_wait_and_no_older_one_is_forgotten(world: World) -> None:
    topic = "/default/bounded"
    await world.create_topic(topic, ack="local", txn_ids_max=BOUND, txn_id_seconds=SECONDS)
    owner = await world.owner_of(topic)
    path = f"{world.brokers[owner].url}/v1/topics{topic}/records"

    async def publish(txn_id: str | None) -> tuple[int, str, bool]:
        record = {"records": [{"value": "x"}]} | ({"txn_id": txn_id} if txn_id else {})
        answer = (await world.http.post(path, json=record)).json()
        return answer.get("base_offset", -1), answer.get("code", ""), answer.get("retryable", False)

    assert [(await publish(f"t{number}"))[0] for number in range(BOUND)] == [*range(BOUND)]
    assert await publish("new") == (-1, "txn_memory_full", True)
    assert (await publish("t0"))[0] == 0
    assert (await publish(None))[0] == BOUND
    async with world.client() as client:
        ack = await client.publish(topic, b"x", txn_id="new")  # which tries again until there is room
    assert ack.offset == BOUND + 1
    assert (await publish("new"))[0] == BOUND + 1


async def test_l13_a_clients_retry_after_a_cut_is_written_once_though_12000_others_came_between(tmp_path: Path) -> None:
    topic = "/default/cut"
    with serving(tmp_path) as node, FaultProxy(f"{node.host}:{node.port}") as proxy:
        async with (
            sulina.connect(node.url) as others,
            sulina.connect(f"http://{proxy.address}", options=ClientOptions(timeout_seconds=60)) as client,
        ):
            await others.admin.create_topic(topic)
            await client.publish(topic, b"before")
            proxy.drop_replies()
            publishing = [asyncio.create_task(client.publish(topic, b"cut")) for _ in range(20)]
            await written(others, topic, 21)
            await publish_others(others, topic, [None] * OTHERS)
            proxy.heal()  # which resets what has lost an answer
            acks = await asyncio.gather(*publishing)
            assert [ack.offset for ack in acks] == [*range(1, 21)]
            assert await written(others, topic, 21 + OTHERS) == 21 + OTHERS
            assert (await client.publish(topic, b"after")).offset == 21 + OTHERS


async def written(client: Client, topic: str, count: int) -> int:
    """Return when there are so many; how many there are."""
    async with asyncio.timeout(30):
        while (end := (await client.admin.partition(topic)).end_offset) < count:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
    return end
