"""R10, U7: etcd comes back empty, or as it was before; nothing is removed, nothing is acknowledged twice."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.cluster_world import World, cluster, until
from tests.support.doctor import diagnosis, wait_diagnosed
from tests.support.etcd import ALONE, EtcdServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOPIC = "/default/goes-back"
COUNT = 50


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """Start a server that no other test uses."""
    with EtcdServer(tmp_path / "etcd", arguments=ALONE) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def world(tmp_path: Path, own_etcd: EtcdServer) -> AsyncIterator[World]:
    async with cluster(tmp_path, own_etcd, "a", "b") as made:
        yield made


async def publish(world: World, first: int, count: int = COUNT) -> None:
    async with world.client() as client:
        ack = await client.publish_batch(TOPIC, [f"v{number}" for number in range(first, first + count)])
        assert ack.offset == first


async def values(world: World) -> list[str | None]:
    async with world.client() as client:
        return [record.text async for record in client.read(TOPIC, start="earliest", follow=False)]


async def refused(world: World) -> set[str]:
    """Publish to every broker, which must refuse; return the codes of their answers."""
    codes = set()
    for broker in world.running:
        answer = await world.http.post(
            f"{broker.url}/v1/topics{TOPIC}/records", json={"records": [{"value": "never"}]}, follow_redirects=False
        )
        assert answer.status_code >= 300, answer.text
        codes.add(answer.json()["code"])
    return codes


async def save_then_move(world: World, etcd: EtcdServer, copy: Path) -> None:
    """Publish, keep a copy of etcd, then move the topic and publish more."""
    await world.create_topic(TOPIC, ack="local")
    await publish(world, 0)
    first = await world.owner_of(TOPIC)
    await asyncio.to_thread(etcd.save, copy)
    await world.wait_brokers("a", "b")
    await world.move(TOPIC, world.other(first))
    await publish(world, COUNT)


async def wait_noticed(world: World) -> None:
    async def is_noticed() -> bool:
        return all(
            broker.events("metadata_went_back") and broker.events("cluster_memory_copied") for broker in world.running
        )

    await until("all brokers have noticed, and the archive has what they remember", is_noticed)


async def consume(world: World, count: int) -> None:
    """Ack so many records of the subscription `billing`, durably."""
    async with world.client() as client, client.consumer(TOPIC, "billing", start="earliest") as messages:
        for _ in range(count):
            assert await messages.ack(await anext(messages))


async def cursor(world: World) -> int:
    async with world.client() as client:
        return (await client.admin.subscription(TOPIC, "billing")).cursors[0].offset


async def test_r10_an_emptied_etcd_takes_nothing_away_and_the_cluster_is_recovered(
    world: World, own_etcd: EtcdServer
) -> None:
    """R10, U7: the only copy of acknowledged records stays, and is served again when the topic is back."""
    await world.create_topic(TOPIC, ack="local")
    await publish(world, 0)
    owner = await world.owner_of(TOPIC)
    directory = world.brokers[owner].data / "topic=default.goes-back-part=0"
    assert directory.is_dir()
    await consume(world, COUNT // 2)  # since the broker last remembered its cursors

    await asyncio.to_thread(own_etcd.go_back, None)
    await wait_noticed(world)
    assert "metadata_went_back" in await refused(world)
    kept = list(directory.parent.glob("topic=default.goes-back-part=0*"))
    assert any(path.is_dir() for path in kept)
    await wait_diagnosed(
        world, "fail history", f"it lacks 1 topic ({TOPIC})", "sulina cluster recover --metadata etcd:"
    )
    await wait_diagnosed(world, "fail history", "went back", is_etcd_asked=False)

    assert "goes-back" in await world.recover()
    await world.wait_served(TOPIC, by=owner)
    assert await values(world) == [f"v{number}" for number in range(COUNT)]
    assert await cursor(world) == COUNT // 2
    await publish(world, COUNT)


async def test_r10_an_etcd_of_before_a_move_gives_no_epoch_and_no_offset_twice(
    world: World, own_etcd: EtcdServer, tmp_path: Path
) -> None:
    """R10: running brokers notice, and go on above every epoch that was used."""
    await save_then_move(world, own_etcd, tmp_path / "copy")
    placed = await world.partition(TOPIC)
    assert placed is not None

    await asyncio.to_thread(own_etcd.go_back, tmp_path / "copy")
    await wait_noticed(world)
    assert "metadata_went_back" in await refused(world)
    await wait_diagnosed(world, "fail epochs", f"{TOPIC}/0", "was claimed by", "sulina cluster recover")

    await world.recover()
    served = await world.wait_served(TOPIC)
    assert served.partitions[0].epoch > placed.epoch
    assert await values(world) == [f"v{number}" for number in range(2 * COUNT)]
    await publish(world, 2 * COUNT)


async def test_r10_brokers_that_start_with_an_older_etcd_do_not_join(
    world: World, own_etcd: EtcdServer, tmp_path: Path
) -> None:
    """R10: nobody saw it happen; the disks of the brokers and the archive remember."""
    await save_then_move(world, own_etcd, tmp_path / "copy")
    for broker in world.brokers.values():
        await broker.stop()
    await asyncio.to_thread(own_etcd.go_back, tmp_path / "copy")
    for broker in world.brokers.values():
        with pytest.raises(AssertionError, match="sulina cluster recover"):
            await broker.start()
    with pytest.raises(AssertionError, match="sulina cluster recover"):
        await world.add("fresh").start()  # which has seen nothing itself
    found = await diagnosis(world, "--data", str(world.brokers["a"].data))  # no broker answers
    assert any("fail history: etcd went back" in each and "had newer owners" in each for each in found), found
    await world.recover()
    for name in ("a", "b"):
        await world.brokers[name].close_process()
        await world.brokers[name].start()
    await world.wait_served(TOPIC)
    assert await values(world) == [f"v{number}" for number in range(2 * COUNT)]
    await publish(world, 2 * COUNT)
