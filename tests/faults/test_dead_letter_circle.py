"""Finding 14: dead letters come to an end. A circle is refused, and one of older times does not multiply a record."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from sulina.client import Client
from sulina.core.cluster import keys
from sulina.types import TopicName
from tests.support.cluster_world import World, cluster, until
from tests.support.doctor import diagnosis
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd"]  # a fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

A, B, C = "/default/circle-a", "/default/circle-b", "/default/circle-c"
QUICK: dict[str, Any] = {"deliveries_max": 1, "redelivery_delay_seconds": 0}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory, etcd: EtcdServer) -> AsyncIterator[World]:
    folder: Path = tmp_path_factory.mktemp("circle")
    async with cluster(folder, etcd, "a", "b") as world:
        yield world


async def put(world: World, topic: str, policy: dict[str, Any], via: str) -> httpx.Response:
    return await world.http.put(f"{world.brokers[via].url}/v1/topics{topic}", json={"policy": policy})


async def test_p12_a_circle_of_dead_letter_topics_is_refused_by_every_broker_at_any_time(world: World) -> None:
    for topic, target in ((A, B), (B, C)):
        assert (await put(world, topic, QUICK | {"dead_letter": target}, "a")).status_code == 201
    refused = await put(world, C, QUICK | {"dead_letter": A}, "b")
    assert refused.status_code == 422, refused.text
    assert f"{C} → {A} → {B} → {C}" in refused.json()["detail"]
    # Two brokers are asked at once for the halves of a circle: one of them says no, in every round.
    for number in range(10):
        one, two = f"/default/half-{number}-one", f"/default/half-{number}-two"
        answers = await asyncio.gather(
            put(world, one, QUICK | {"dead_letter": two}, "a"), put(world, two, QUICK | {"dead_letter": one}, "b")
        )
        assert sorted(answer.status_code for answer in answers) == [201, 422], [each.text for each in answers]


async def test_p12_a_namespace_cannot_close_a_circle_either(world: World) -> None:
    for namespace in ("east", "west"):
        await world.tell(f"/v1/namespaces/{namespace}", {}, method="PUT")
    await world.tell("/v1/namespaces/east", {"dead_letter": "/west/late"}, method="PUT", via="a")
    refused = await world.http.put(f"{world.brokers['b'].url}/v1/namespaces/west", json={"dead_letter": "/east/late"})
    assert refused.status_code == 422, refused.text


async def test_p12_a_record_in_a_circle_of_older_times_is_not_multiplied_without_end(world: World) -> None:
    """The circle is written into etcd, as a cluster of before the check may have it."""
    old = {"/default/old-a": "/default/old-b", "/default/old-b": "/default/old-a"}
    for topic in old:
        await world.create_topic(topic, **QUICK)
    for topic, target in old.items():
        key = keys.policy(TopicName.parse(topic))
        await asyncio.to_thread(world.write_key, key, json.dumps(QUICK | {"dead_letter": target}).encode())
    async with world.client() as client:
        for topic in old:
            await client.admin.create_subscription(topic, "s", mode="shared", start="earliest")
        nackers = [asyncio.create_task(nack_all(client, topic)) for topic in old]
        try:
            for topic, target in old.items():

                async def known(topic: str = topic, target: str = target) -> bool:
                    found = await world.ask(f"/v1/topics{topic}", via=await world.owner_of(topic))
                    return bool(found["policy"].get("dead_letter") == target)

                await until(f"{topic} has the policy", known)
            await client.publish("/default/old-a", b"x" * 1000, headers={"mine": b"1"})

            async def stays() -> bool:
                return any(broker.events("dead_letter_stays") for broker in world.brokers.values())

            await until("the record stays where it is", stays, 15)
            for is_etcd_asked in (True, False):
                found = await diagnosis(world, is_etcd_asked=is_etcd_asked)
                way = "/default/old-a → /default/old-b → /default/old-a"
                assert any("fail dead letters" in each and way in each for each in found), found
        finally:
            for nacker in nackers:
                nacker.cancel()
            await asyncio.gather(*nackers, return_exceptions=True)
        records = [r for topic in old async for r in client.read(topic, follow=False)]
        assert len(records) == 9, "the record, and eight hops"
        longest = max(records, key=lambda record: len(record.headers))
        assert [name for name, _ in longest.headers] == [
            "mine", "sulina-topic", "sulina-partition", "sulina-offset", "sulina-subscription", "sulina-deliveries",
            "sulina-hops",
        ]  # fmt: skip


async def nack_all(client: Client, topic: str) -> None:
    async with client.consumer(topic, "s", mode="shared") as messages:
        async for message in messages:
            await messages.nack(message, delay_seconds=0)
