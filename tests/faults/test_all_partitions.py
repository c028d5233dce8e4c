"""Finding 12: a seek and a new `latest` subscription reach all partitions, or say which they did not."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.cluster_world import World, cluster, until
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd"]  # a fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory, etcd: EtcdServer) -> AsyncIterator[World]:
    folder: Path = tmp_path_factory.mktemp("partitions")
    async with cluster(folder, etcd, "a", "b", lease_seconds=30) as world:
        yield world


async def make_topic(world: World, topic: str) -> None:
    """Partition 0 at a, partition 1 at b, five records in each."""
    await world.create_topic(topic, 2)
    for number, to in enumerate("ab"):

        async def moved(number: int = number, to: str = to) -> bool:
            await world.wait_served(topic)
            return await world.owner_of(topic, number) == to

        await world.tell(f"/v1/topics{topic}/moves", {"force": True, "to": to, "partition": number})
        await until(f"{to} has {number}", moved)
    async with world.client() as client:
        for partition in (0, 1):
            await client.publish_batch(topic, [b"x"] * 5, partition=partition)


async def put(world: World, topic: str, body: dict[str, Any]) -> httpx.Response:
    return await world.http.put(f"{world.brokers['a'].url}/v1/topics{topic}/subscriptions/s", json=body)


async def seek(world: World, topic: str, position: str) -> httpx.Response:
    url = f"{world.brokers['a'].url}/v1/topics{topic}/subscriptions/s/seek"
    return await world.http.post(url, json={"position": position})


def offsets(world: World, topic: str) -> dict[str, int]:
    """The cursors that etcd has, by partition."""
    found = world.keys(f"/topics{topic}/subscriptions/s/cursor/")
    return {key.rsplit("/", 1)[1]: value["offset"] for key, value in found.items()}


async def test_p12_a_seek_by_http_moves_all_partitions_or_names_those_that_it_did_not(world: World) -> None:
    topic = "/default/sought"
    await make_topic(world, topic)
    assert (await put(world, topic, {"start": "earliest"})).status_code == 201
    moved = await seek(world, topic, "offset:3")
    assert moved.status_code == 200, moved.text
    assert offsets(world, topic) == {"0": 3, "1": 3}
    assert [cursor["offset"] for cursor in moved.json()["cursors"]] == [3, 3]
    world.brokers["b"].pause()
    try:
        refused = await seek(world, topic, "earliest")
    finally:
        world.brokers["b"].resume()
    assert (refused.status_code, refused.json()["code"]) == (503, "owners_not_reached"), refused.text
    assert refused.json()["partitions"] == "1"
    assert offsets(world, topic)["0"] == 0


async def test_p12_a_subscription_to_what_comes_has_all_its_cursors_when_it_is_answered(world: World) -> None:
    topic = "/default/latest"
    await make_topic(world, topic)
    world.brokers["b"].pause()
    try:
        answer = await put(world, topic, {"start": "latest"})
        found = offsets(world, topic)
    finally:
        world.brokers["b"].resume()
    is_whole = found == {"0": 5, "1": 5}
    assert answer.status_code != 201 or is_whole, f"answered with the cursors {found}: what b takes next may be skipped"
    assert (answer.status_code, answer.json()["code"]) == (503, "owners_not_reached"), answer.text
    assert found == {}
    assert (await put(world, topic, {"start": "latest"})).status_code == 201
    assert offsets(world, topic) == {"0": 5, "1": 5}
