"""A disk that fills up under a broker: nothing acked is lost, it can be moved away, and it goes on when there is room.

The disk is made full for the broker's process alone, by the limit that the system has on the sizes of its files.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio

from tests.support.cluster_world import BrokerProcess, World, cluster, until
from tests.support.doctor import wait_diagnosed
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd"]  # a fixture

TOPIC = "/default/full"


@pytest_asyncio.fixture
async def world(tmp_path: Path, etcd: EtcdServer) -> AsyncIterator[World]:
    async with cluster(tmp_path, etcd, "a", "b") as world:
        yield world


async def publish(world: World, url: str, value: str) -> httpx.Response:
    body = {"records": [{"value": value}], "txn_id": value[:20]}
    return await world.http.post(f"{url}/v1/topics{TOPIC}/records", json=body)


async def filled(world: World, ack: str) -> tuple[BrokerProcess, list[str]]:
    """A broker whose disk is full, and the values that it has acked."""
    await world.create_topic(TOPIC, ack=ack)
    if await world.owner_of(TOPIC) != "a":
        await world.move(TOPIC, "a")
    a = world.brokers["a"]
    acked = []
    for number in range(8):
        value = f"{number:020d}" + "x" * 100_000
        assert (await publish(world, a.url, value)).status_code == 200
        acked.append(value[:20])
    a.set_disk_full(True)
    failed = await publish(world, a.url, f"{99:020d}" + "y" * 100_000)
    assert failed.status_code == 503, failed.text
    return a, acked


async def values(world: World) -> list[str]:
    async with world.client() as client:
        return [(record.text or "")[:20] async for record in client.read(TOPIC, follow=False)]


async def ready(world: World, broker: BrokerProcess) -> dict[str, Any]:
    response = await world.http.get(f"{broker.url}/ready")
    return {"status": response.status_code, "text": response.text}


async def test_l9_a_log_that_stopped_goes_on_by_itself_when_there_is_room_again(world: World) -> None:
    a, acked = await filled(world, "local")

    async def is_told() -> bool:
        told = await ready(world, a)
        return told["status"] == 503 and "take no records" in told["text"]

    await until("/ready says that the disk is full", is_told, 15.0)
    await wait_diagnosed(world, "fail partitions", f"{TOPIC}/0 at a", "free space on that disk", is_etcd_asked=False)
    refused = await publish(world, a.url, "no room")
    assert refused.json()["retryable"], refused.text
    assert await values(world) == acked, "it is read all the while"
    a.set_disk_full(False)
    value = f"{99:020d}" + "y" * 100_000

    async def is_taken() -> bool:
        return (await publish(world, a.url, value)).status_code == 200

    await until("it takes records again", is_taken, 20.0)
    assert await values(world) == [*acked, value[:20]], "what was in doubt is there once"
    assert (await ready(world, a))["status"] == 200
    assert [event["topic"] for event in a.events("log_reopened")] == [TOPIC]


async def test_u2_a_partition_whose_log_has_stopped_can_be_moved_away(world: World) -> None:
    _, acked = await filled(world, "archived")
    async with asyncio.timeout(20):
        await world.move(TOPIC, "b")
    assert await values(world) == acked
    value = f"{100:020d}" + "z"
    assert (await publish(world, world.brokers["b"].url, value)).status_code == 200


async def test_u2_a_move_that_fails_says_why_and_can_be_cancelled(world: World) -> None:
    _, acked = await filled(world, "local")
    await world.unload(TOPIC, to="b")

    async def error() -> str | None:
        found = await world.ask(f"/v1/topics{TOPIC}/moves")
        return found["moves"][0]["error"] if found and found["moves"] else None

    print(f"the move says: {await until('the move says why it fails', error, 20.0)}")
    await wait_diagnosed(world, "warn moves", f"{TOPIC}/0 is leaving a to b", f"sulina topic cancel-move {TOPIC}")
    answer = await world.tell(f"/v1/topics{TOPIC}/moves", method="DELETE")
    assert len(answer["moves"]) == 1
    objects = Path(world.objects.removeprefix("file://"))

    async def is_clean() -> bool:
        return not [path for path in objects.rglob("topic=*/*/*.*") if path.is_file()]

    await until("what was put in vain is gone", is_clean, 10.0)
    found = await world.ask(f"/v1/topics{TOPIC}/moves")
    assert found["moves"] == []
    assert await world.owner_of(TOPIC) == "a"
    assert await values(world) == acked
