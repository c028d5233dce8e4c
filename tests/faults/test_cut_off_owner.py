"""An owner that is cut off from etcd, and from nothing else: it must not tell anybody what may be old.

Another broker owns its partitions once its lease has ended, and takes records that the old owner never hears of.
"""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio

from tests.support.cluster_world import World, cluster, until
from tests.support.doctor import wait_diagnosed
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd"]  # a fixture

TOPIC = "/default/cut-off"
READS = (
    f"/v1/topics{TOPIC}/partitions/0/records?offset=0",
    f"/v1/topics{TOPIC}/partitions/0/records",
    f"/v1/topics{TOPIC}/partitions/0",
    f"/v1/topics{TOPIC}/partitions/0/commits",
    f"/v1/topics{TOPIC}/subscriptions/billing",
)


@pytest_asyncio.fixture
async def world(tmp_path: Path, etcd: EtcdServer) -> Any:
    async with cluster(tmp_path, etcd, "a", "b", is_proxied=True) as world:
        yield world


async def publish(world: World, value: str) -> None:
    async def is_taken() -> bool:
        for broker in world.informed:
            body = {"records": [{"value": value}], "txn_id": value}
            try:
                response = await world.http.post(f"{broker.url}/v1/topics{TOPIC}/records", json=body)
            except httpx.HTTPError:
                continue
            if response.status_code == 200:
                return True
        return False

    await until(f"{value} is taken", is_taken)


async def test_u14_an_owner_cut_off_from_etcd_serves_no_stale_reads_and_says_that_it_is_not_ready(world: World) -> None:
    await world.create_topic(TOPIC, ack="archived")
    if await world.owner_of(TOPIC) != "a":
        await world.move(TOPIC, "a")
    a, b = world.brokers["a"], world.brokers["b"]
    assert a.etcd_proxy is not None
    settings = {"mode": "exclusive", "start": "earliest"}
    await world.tell(f"/v1/topics{TOPIC}/subscriptions/billing", settings, method="PUT", via="a")
    await publish(world, "old")
    async with world.client() as client, client.consumer(TOPIC, "billing") as messages:
        reader = aiter(client.read(TOPIC))
        consumed = aiter(messages)
        got = [(await anext(reader)).text, (message := await anext(consumed)).text]
        await messages.ack(message)
        a.etcd_proxy.cut()
        await world.wait_served(TOPIC, by="b")
        await publish(world, "new")
        answers = {path: (await world.http.get(a.url + path, follow_redirects=False)).status_code for path in READS}
        ready = await world.http.get(f"{a.url}/ready")
        print(f"a answers {answers}, /ready {ready.status_code}: {ready.text}")
        assert set(answers.values()) == {503}
        assert ready.status_code == 503
        assert "metadata store" in ready.text
        await wait_diagnosed(world, "fail brokers", "a is not ready: it has lost touch", is_etcd_asked=False)
        old = await world.http.get(f"{a.url}{READS[0]}&stale=true")
        assert (old.status_code, old.headers["sulina-stale"], old.json()["end_offset"]) == (200, "true", 1)
        assert (await world.http.get(f"{a.url}/v1/topics{TOPIC}/partitions/0?stale=true")).json()["is_stale"]
        late = await world.http.post(f"{a.url}/v1/topics{TOPIC}/records", json={"records": [{"value": "late"}]})
        assert late.json()["retryable"], late.text
        # Clients that read and consume through it find the new owner by themselves.
        async with asyncio.timeout(20):
            got += [(await anext(reader)).text, (await anext(consumed)).text]
        assert got == ["old", "old", "new", "new"]
        fresh = await world.http.get(f"{b.url}/v1/topics{TOPIC}/partitions/0/records?offset=1")
        assert [record["value"] for record in fresh.json()["records"]] == ["new"]
        a.etcd_proxy.heal()

        async def is_ready() -> bool:
            return (await world.http.get(f"{a.url}/ready")).status_code == 200

        await until("it is ready again", is_ready)
