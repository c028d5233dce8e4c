"""Answers that said the wrong thing: of a topic that is new, of a copied data directory, of a dead broker's records."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.support.cluster_world import World, cluster, until
from tests.support.doctor import wait_diagnosed
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd"]  # a fixture


@pytest_asyncio.fixture
async def world(tmp_path: Path, etcd: EtcdServer) -> AsyncIterator[World]:
    async with cluster(tmp_path, etcd, "a", "b") as world:
        yield world


async def test_f3_a_topic_that_was_made_a_moment_ago_is_known_at_every_broker(world: World) -> None:
    a, b = world.brokers["a"], world.brokers["b"]
    wrong = []
    for number in range(25):
        path = f"/v1/topics/default/new-{number}"
        made = asyncio.create_task(world.http.put(f"{a.url}{path}", json={}))
        while not made.done():
            shown = await world.http.get(f"{b.url}{path}")
        assert (await made).status_code == 201
        shown = await world.http.get(f"{b.url}{path}")
        sent = await world.http.post(f"{b.url}{path}/records", json={"records": [{"value": "1"}]})
        if 404 in (shown.status_code, sent.status_code):
            wrong.append((shown.text, sent.text))
    assert wrong == []
    assert (await world.http.get(f"{b.url}/v1/topics/default/never")).status_code == 404


async def test_f1_the_process_whose_copied_directory_serves_elsewhere_says_that_it_is_not_ready(world: World) -> None:
    a = world.brokers["a"]
    assert (await world.http.get(f"{a.url}/ready")).status_code == 200
    copied = world.add("copy", serves_as="a")
    shutil.copytree(a.data, copied.data, ignore=shutil.ignore_patterns("*.lock", "*.aside"))
    await copied.start()

    async def is_told() -> bool:
        ready = await world.http.get(f"{a.url}/ready")
        return ready.status_code == 503 and "another process serves as broker a" in ready.text

    await until("the first one says that it was replaced", is_told, 15.0)
    await wait_diagnosed(world, "fail brokers", "another process serves as broker a", "end one", is_etcd_asked=False)
    assert (await world.http.get(f"{copied.url}/ready")).status_code == 200


async def test_f1_who_waits_for_a_dead_broker_is_told_which_records_only_it_has(world: World) -> None:
    topic = "/default/mostly-archived"
    await world.create_topic(topic, ack="local", archive_seconds=0.1)
    a = world.brokers["a"]
    if await world.owner_of(topic) != "a":
        await world.move(topic, "a")
    body = {"records": [{"value": f"{number}"} for number in range(20)]}
    assert (await world.http.post(f"{a.url}/v1/topics{topic}/records", json=body)).status_code == 200

    async def is_archived() -> bool:
        reported = world.keys(f"/storage/topics{topic}/0/cur")
        return any(each["archived_offset"] == 20 for each in reported.values())

    await until("all of it is archived, and that is known", is_archived)
    await a.kill()

    async def refusal() -> str | None:
        url = f"{world.brokers['b'].url}/v1/topics{topic}/partitions/0"
        response = await world.http.get(url, follow_redirects=False)
        return response.text if response.status_code == 503 and "waits for" in response.text else None

    said = await until("the partition waits for its broker", refusal)
    print(said)
    assert "alone has everything from offset 20 on" in said
