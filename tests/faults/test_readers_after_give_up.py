"""Issue 13, finding 10: a broker is lost with its disk, what only it had is given up, and its offsets are used again.

Everybody who had read what was given up is told, and goes on where the log does: no new record is passed over.
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

import sulina
from sulina.client import Client, Message
from sulina.errors import PositionDiverged
from sulina.wire.messages import TopicState
from tests.support.cluster_world import World, cluster, until
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd"]  # a fixture

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

TOPIC = "/default/given-up"
READ = f"/v1/topics{TOPIC}/partitions/0/records"
KEPT = [f"kept-{number}" for number in range(100)]
LOST = [f"lost-{number}" for number in range(50)]
NEW = [f"new-{number}" for number in range(150)]


@dataclass(slots=True)
class Watched:
    """Readers that had everything before it was given up, and what they have had by now."""

    world: World
    client: Client
    epoch: int = 0  # that the lost broker served in
    reader_got: list[str] = field(default_factory=list)
    divergences: list[PositionDiverged] = field(default_factory=list)
    told_before_it_grew: int = 0
    consumer_got: list[str] = field(default_factory=list)
    subscriber_got: list[str] = field(default_factory=list)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def after(tmp_path_factory: pytest.TempPathFactory, etcd: EtcdServer) -> AsyncIterator[Watched]:
    """The owner is killed, its disk is lost, the partition is forced away, and 150 records are published there."""
    folder = tmp_path_factory.mktemp("give-up")
    async with contextlib.AsyncExitStack() as exits:
        world = await exits.enter_async_context(cluster(folder, etcd, "a", "b", "c", is_peer_proxied=True))
        client = await exits.enter_async_context(world.client())
        watched = Watched(world, client)
        await world.create_topic(TOPIC, ack="local", archive_bytes=1 << 30, archive_seconds=3600)
        await client.publish_batch(TOPIC, KEPT)
        await world.move(TOPIC, world.other(await world.owner_of(TOPIC)))  # which archives them
        owner = await world.owner_of(TOPIC)
        home = world.other(owner)
        survivor = world.other(owner, home)
        watched.epoch = (await client.admin.partition(TOPIC)).epoch
        pubsub = await exits.enter_async_context(sulina.connect(world.brokers[home].url))
        await pubsub.subscribe(TOPIC, lambda message: watched.subscriber_got.append(_text(message)), start="earliest")
        reader = client.read(TOPIC)
        tasks = [asyncio.create_task(_read(reader, watched)), asyncio.create_task(_consume(client, watched))]
        exits.push_async_callback(_cancelled, tasks)
        await client.publish_batch(TOPIC, LOST)
        await _has(watched, KEPT + LOST)

        world.cut_peers(home)  # its subscriber comes back only when the log is longer than it was
        await world.brokers[owner].kill()
        shutil.rmtree(world.brokers[owner].data)
        await until("the partition waits for its broker", _is(world, TopicState.RECOVERING))
        await world.unload(TOPIC, to=survivor, force=True, via=survivor)
        await world.wait_served(TOPIC, by=survivor)
        with contextlib.suppress(AssertionError):  # a test says so
            await until("the reader that waits is told", _grown(lambda: len(reader.divergences)), 5)
            watched.told_before_it_grew = len(reader.divergences)
        assert (await client.publish_batch(TOPIC, NEW)).offset == len(KEPT)
        world.heal_peers(home)
        with contextlib.suppress(AssertionError):  # whoever lacks something has a test that says so
            await _has(watched, KEPT + LOST + NEW, 15)
        watched.divergences = list(reader.divergences)
        yield watched


def _text(message: Message) -> str:
    return (message.value or b"").decode()


def _is(world: World, state: TopicState) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        placed = await world.partition(TOPIC)
        return placed is not None and placed.state == state

    return ask


def _grown(count: Callable[[], int]) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return count() > 0

    return ask


async def _has(watched: Watched, expected: list[str], seconds: float = 20) -> None:
    async def ask() -> bool:
        got = (watched.reader_got, watched.consumer_got, watched.subscriber_got)
        return all(expected[-1] in each for each in got)

    await until(f"everybody has {expected[-1]}", ask, seconds)


async def _read(reader: sulina.client.Reader, watched: Watched) -> None:
    async for record in reader:
        watched.reader_got.append(record.text or "")


async def _consume(client: Client, watched: Watched) -> None:
    async with client.consumer(TOPIC, "billing", start="earliest") as messages:
        async for message in messages:
            watched.consumer_got.append((message.value or b"").decode())
            await messages.ack(message)


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_u10_a_reader_that_waits_is_told_before_the_log_reaches_its_offset(after: Watched) -> None:
    assert after.told_before_it_grew == 1
    (told,) = after.divergences
    assert (told.topic, told.partition, told.offset, told.continues_at) == (TOPIC, 0, 150, 100)
    assert told.epoch == after.epoch


async def test_u10_a_reader_passes_over_no_new_record(after: Watched) -> None:
    assert after.reader_got == KEPT + LOST + NEW


async def test_u10_a_consumer_gets_every_new_record_although_its_offset_was_acked(after: Watched) -> None:
    assert [value for value in after.consumer_got if value in NEW] == NEW


async def test_u10_a_subscriber_gets_every_new_record_also_when_it_comes_back_late(after: Watched) -> None:
    assert [value for value in after.subscriber_got if value in NEW] == NEW


async def test_u10_http_says_where_the_log_goes_on(after: Watched) -> None:
    owner = after.world.brokers[await after.world.owner_of(TOPIC)]
    http = after.world.http
    asked = {"offset": 150, "epoch": after.epoch}
    response = await http.get(owner.url + READ, params=asked)
    assert response.status_code == 416, response.text
    problem = response.json()
    assert (problem["code"], problem["offset"], problem["continues_at"]) == ("position_diverged", 150, 100)
    page = (await http.get(owner.url + READ, params=asked | {"offset": problem["continues_at"]})).json()
    assert page["records"][0]["value"] == NEW[0]
    assert page["epoch"] > after.epoch
    there = await http.get(owner.url + READ, params={"offset": 150, "epoch": page["epoch"]})
    assert there.json()["records"][0]["value"] == NEW[50], "who has read the new records goes on"


async def test_u10_a_stored_position_goes_on_where_the_log_does(after: Watched) -> None:
    stored = f"offset:150@{after.epoch}"
    assert await after.client.admin.locate(TOPIC, stored) == 100
    reader = after.client.read(TOPIC, start=stored, follow=False)
    assert [record.text async for record in reader] == NEW
    assert [told.continues_at for told in reader.divergences] == [100]
