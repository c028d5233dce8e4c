"""Finding 6: what is refused while consumers are attached is refused by every broker, wherever they are attached."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from sulina.client.consumer import Consumer
from sulina.client.websocket import WebSocketConnector
from sulina.core.delivery.members import SubscriptionKind
from sulina.wire.frames import Answer, Subscribe
from tests.support.cluster_world import World, cluster, until
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd"]  # a fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory, etcd: EtcdServer) -> AsyncIterator[World]:
    folder: Path = tmp_path_factory.mktemp("guards")
    async with cluster(folder, etcd, "a", "b", lease_seconds=30) as world:
        yield world


async def delete(world: World, path: str, *, via: str, force: bool = False) -> httpx.Response:
    query = "?force=true" if force else ""
    return await world.http.delete(f"{world.brokers[via].url}/v1/topics{path}{query}", follow_redirects=False)


async def consumed(subscription: Consumer, value: bytes) -> None:
    message = await subscription.get(10)
    assert message is not None
    assert message.value == value
    assert await subscription.ack(message)


@pytest.mark.parametrize("delivery", ["reliable", "non_reliable"])
async def test_u3_a_topic_with_a_consumer_at_its_owner_is_deleted_by_no_other_broker_either(
    world: World, delivery: str
) -> None:
    topic = f"/default/guarded-{delivery}"
    await world.tell(f"/v1/topics{topic}", {"delivery": delivery}, method="PUT")
    owner = (await world.wait_served(topic)).partitions[0].broker_id
    assert owner is not None
    other = world.other(owner)
    async with world.client() as client:
        async with client.consumer(topic, "s") as messages:
            refused = await delete(world, topic, via=other)
            assert (refused.status_code, refused.json()["code"]) == (409, "subscription_busy"), refused.text
            await client.publish(topic, b"still here")
            if delivery == "reliable":
                await consumed(messages, b"still here")
        gone = await delete(world, topic, via=other)
        assert gone.status_code == 204, gone.text


async def test_u3_a_subscription_with_a_consumer_at_one_owner_is_not_deleted_by_another(world: World) -> None:
    topic = "/default/guarded-partitions"
    await world.create_topic(topic, 2)
    for number, to in enumerate("ab"):
        await world.tell(f"/v1/topics{topic}/moves", {"force": True, "to": to, "partition": number})
        await until(f"{to} has {number}", partial(owns, world, topic, number, to))
    connection = await WebSocketConnector(world.brokers["b"].url)()  # it attaches nowhere else
    try:
        await connection.send(Subscribe(1, 1, topic, "s", SubscriptionKind.SHARED, "earliest"))
        assert isinstance(await connection.receive(), Answer)
        for path in (f"{topic}/subscriptions/s", topic):
            for via in "ab":
                refused = await delete(world, path, via=via)
                assert refused.status_code == 409, f"{path} by {via}: {refused.status_code} {refused.text}"
    finally:
        await connection.close()
    await until("it is deleted", partial(deleted, world, f"{topic}/subscriptions/s", via="a"))


async def owns(world: World, topic: str, number: int, broker_id: str) -> bool:
    await world.wait_served(topic)
    return await world.owner_of(topic, number) == broker_id


async def deleted(world: World, path: str, *, via: str) -> bool:
    return (await delete(world, path, via=via)).status_code == 204


async def test_u3_when_the_owner_does_not_answer_nothing_is_deleted_unless_forced(world: World) -> None:
    topic = "/default/guarded-silent"
    await world.create_topic(topic)
    owner = await world.owner_of(topic)
    other = world.other(owner)
    world.brokers[owner].pause()
    try:
        refused = await delete(world, topic, via=other)
        assert (refused.status_code, refused.json()["code"]) == (503, "owners_not_reached"), refused.text
    finally:
        world.brokers[owner].resume()
    found = await world.ask(f"/v1/topics{topic}", via=other)
    assert found is not None, "it was deleted all the same"
    world.brokers[owner].pause()
    try:
        forced = await delete(world, topic, via=other, force=True)
        assert forced.status_code == 204, forced.text
    finally:
        world.brokers[owner].resume()
