"""etcd has a quota, and takes no writes once it is used up: history must go in time, and a full etcd be survived."""

import asyncio
import base64
import contextlib
import itertools
import urllib.error
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path

import pytest

from sulina.client import Client
from tests.cli.conftest import ended
from tests.support.cluster_world import LEASE_SECONDS, World, cluster, until
from tests.support.doctor import diagnosis, wait_diagnosed
from tests.support.etcd import ALONE, EtcdServer

QUOTA_BYTES = 1 << 19
ACKS = 2500  # each is some 300 bytes of etcd's history: more than its quota
CONSUMERS = 4
PARTITIONS = 4
BACKLOG = 2000  # records of each partition
# Of each consumer after an ack, and each producer after a publish: a second or two of history, for which nobody
# compacts while a new leader is elected, stays far below the quota also on a fast machine.
PAUSE_SECONDS = 0.01
VALUE_BYTES = 20_000
TOPIC = "/default/orders"


@pytest.fixture
def small_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path / "etcd", arguments=[*ALONE, f"--quota-backend-bytes={QUOTA_BYTES}"]) as server:
        yield server


@contextlib.asynccontextmanager
async def two_brokers(folder: Path, etcd: EtcdServer) -> AsyncIterator[World]:
    folder.mkdir()
    async with cluster(folder, etcd) as world:
        for broker_id in ("a", "b"):
            world.add(broker_id, SULINA_METADATA_HISTORY_SECONDS="1")
        await world.start("a", "b")
        yield world


def is_full(etcd: EtcdServer) -> bool:
    """By etcd's own word."""
    return any("NOSPACE" in error for error in etcd.status().get("errors", []))


async def publish(client: Client, partition: int, counts: list[int]) -> None:
    while True:
        await client.publish(TOPIC, b"x" * 100, partition=partition)
        counts[partition] += 1
        await asyncio.sleep(2 * PAUSE_SECONDS)


async def consume(client: Client, name: str, acked: list[int]) -> None:
    messages = client.consumer(TOPIC, name, start="earliest")
    async for message in messages:
        await messages.ack(message)
        acked.append(message.offset)
        await asyncio.sleep(PAUSE_SECONDS)


@contextlib.asynccontextmanager
async def at_work(*work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Applications that end with the test, however that ends."""
    working = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


async def fails_over(world: World, counts: list[int]) -> None:
    """The owner of a partition dies, and its records are taken again by the other broker."""
    owner = await world.owner_of(TOPIC)
    await world.brokers[owner].kill()
    await world.wait_served(TOPIC, by=world.other(owner), seconds=10 * LEASE_SECONDS)
    before = list(counts)

    async def acked() -> bool:
        return all(now > then for now, then in zip(counts, before, strict=True))

    await until("records are acknowledged again", acked, 10 * LEASE_SECONDS)


@pytest.mark.timeout(120)
async def test_f2_an_archived_topic_at_work_never_fills_etcd_and_fails_over(
    tmp_path: Path, small_etcd: EtcdServer
) -> None:
    """More than the quota is written; without compaction etcd is full by then for good, and nothing fails over."""
    counts, acked = [0] * PARTITIONS, list[int]()
    async with two_brokers(tmp_path / "world", small_etcd) as world, world.client() as client:
        await world.create_topic(TOPIC, PARTITIONS, ack="archived")
        for partition in range(PARTITIONS):
            await client.publish_batch(TOPIC, [b"x" * 100] * BACKLOG, partition=partition)
        producers = [publish(client, partition, counts) for partition in range(PARTITIONS)]
        consumers = [consume(client, f"s{number}", acked) for number in range(CONSUMERS)]

        async def is_written() -> bool:
            assert not is_full(small_etcd), f"etcd is full after {len(acked)} acks"
            return len(acked) >= ACKS

        async with at_work(*producers, *consumers):
            await until(f"{ACKS} acks are durable", is_written, 80)
            found = await diagnosis(world, "--data", str(world.brokers["a"].data))
            late = "warn consumers"  # which these are where the machine is slow: they hold more than they ack in time
            assert [each for each in found if late not in each] == [], "whatever is written while it is looked at"
            await fails_over(world, counts)
            assert not is_full(small_etcd)
            assert int(small_etcd.status()["dbSize"]) < QUOTA_BYTES


@pytest.mark.timeout(120)
async def test_f2_a_full_etcd_is_shown_and_survived_and_takes_writes_again(
    tmp_path: Path, small_etcd: EtcdServer
) -> None:
    """Somebody else has filled it. Records go on, nobody loses its lease, and when it can be mended it is."""
    async with two_brokers(tmp_path / "world", small_etcd) as world:
        await world.create_topic(TOPIC, PARTITIONS, ack="archived")
        url = next(iter(world.brokers.values())).url
        assert "full" not in ended("cluster", "status", "--url", url).out.lower()
        counts = [0] * PARTITIONS

        async def told() -> bool:
            found = await world.cluster()
            return found is not None and found.metadata is not None and found.metadata.is_full

        async with world.client() as client, at_work(*(publish(client, each, counts) for each in range(PARTITIONS))):
            await asyncio.to_thread(fill, small_etcd)
            await until("the cluster knows that etcd is full", told)
            assert "FULL" in ended("cluster", "status", "--url", url).out
            etcd = ["--metadata", f"{small_etcd.url}{world.prefix}", "--objects", world.objects]
            doctor = ended("doctor", *etcd, "--data", str(tmp_path / "doctor"), "--json", SULINA_BROKER_ID="d")
            assert "NOSPACE" in doctor.out
            assert doctor.code != 0
            await wait_diagnosed(world, "fail etcd", "NOSPACE", "operations.md")
            await wait_diagnosed(world, "fail etcd", "FULL", "operations.md", is_etcd_asked=False)
            assert any(broker.events("metadata_full") for broker in world.brokers.values())
            before = list(counts)
            await asyncio.sleep(2 * LEASE_SECONDS)  # no lease would outlive that
            assert all(now > then + 10 for now, then in zip(counts, before, strict=True))
            assert [broker.events("lease_lost") for broker in world.brokers.values()] == [[], []]
            small_etcd.call("kv/deleterange", {"key": _text("/other/"), "range_end": _text("/other0")})
            await until("etcd takes writes again", lambda: asyncio.to_thread(lambda: not is_full(small_etcd)))
            await fails_over(world, counts)
        events = [event for broker in world.brokers.values() for event in broker.events("metadata_has_room")]
        assert events


def fill(etcd: EtcdServer) -> None:
    """Until it takes no more: with keys that are not ours, and next to no history, so that no compaction helps."""
    numbers = itertools.count()
    for is_again in (False, True):
        if is_again:
            etcd.compact(int(etcd.status()["header"]["revision"]))
            etcd.call("maintenance/defragment")
            etcd.call("maintenance/alarm", {"action": "DEACTIVATE", "alarm": "NOSPACE"})
        with contextlib.suppress(urllib.error.HTTPError):
            while True:
                etcd.call("kv/put", {"key": _text(f"/other/{next(numbers)}"), "value": _text("x" * VALUE_BYTES)})
    assert is_full(etcd)


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
