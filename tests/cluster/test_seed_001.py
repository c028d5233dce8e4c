"""Seed 001, its testing plan: a reliable topic that moves goes on where it was. Real brokers, a real etcd."""

import asyncio
import contextlib

import pytest

from sulina.client import Client
from sulina.core.cluster import keys
from sulina.errors import Corrupt, Disconnected, LogIncomplete, SulinaError
from sulina.types import PartitionName, TopicName
from tests.support.cluster_record import recording, value_of
from tests.support.cluster_world import World

REFUSED_SECONDS = 5.0  # a client asks again until its time is up, then says why it was refused

pytestmark = pytest.mark.asyncio(loop_scope="session")


def state_key(topic: str) -> str:
    return keys.sealed_state(PartitionName(TopicName.parse(topic), 0))


async def produce(client: Client, topic: str, numbers: range) -> list[int | None]:
    """One record each; their offsets."""
    return [(await client.publish(topic, str(number))).raise_for_status().offset for number in numbers]


async def consume(client: Client, topic: str, count: int) -> list[int]:
    """Take and ack so many; their values, which say their offsets."""
    values: list[int] = []
    async with client.consumer(topic, "reader", start="earliest") as messages:
        while len(values) < count:
            message = await anext(messages)
            assert message.value is not None
            assert int(message.value) == message.offset
            values.append(message.offset)
            assert await messages.ack(message)
    return values


async def cursor_of(client: Client, topic: str) -> int:
    return (await client.admin.subscription(topic, "reader")).cursors[0].offset


async def test_1_basic_topic_move(world: World) -> None:
    """U4, U6, U10, U12: the sealed state says 9, the new owner goes on at 10, the consumer at its cursor."""
    topic = "/default/seed-001-1"
    await world.create_topic(topic)
    await world.move(topic, "a")
    async with world.client() as client, recording(world) as record:
        assert await produce(client, topic, range(10)) == list(range(10))
        assert await consume(client, topic, 5) == [0, 1, 2, 3, 4]
        assert await cursor_of(client, topic) == 5
        await world.move(topic, "b")
        (state,) = [value_of(change) for change in await record.of(state_key(topic)) if change.value]
        assert (state["state"], state["last_committed_offset"], state["next_offset"]) == ("sealed", 9, 10)
        assert state["broker_id"] == "a"
        assert await produce(client, topic, range(10, 13)) == [10, 11, 12]
        assert await consume(client, topic, 8) == [5, 6, 7, 8, 9, 10, 11, 12]
        assert await world.owner_of(topic) == "b"
    *_, told = [line for line in world.brokers["b"].events("log_resumed") if line["topic"] == topic]
    assert (told["sealed_offset"], told["resuming_from"]) == (9, 10)


async def test_2_multiple_moves(world: World) -> None:
    """U6: A to B to C and back to A, with records on each; epochs only rise."""
    topic = "/default/seed-001-2"
    await world.create_topic(topic)
    epochs: list[int] = []
    async with world.client() as client, recording(world) as record:
        for number, broker_id in enumerate(["a", "b", "c", "a"]):
            if await world.owner_of(topic) != broker_id:
                await world.move(topic, broker_id)
            placed = await world.partition(topic)
            assert placed is not None
            epochs.append(placed.epoch)
            begin = number * 10
            assert await produce(client, topic, range(begin, begin + 10)) == list(range(begin, begin + 10))
        states = [value_of(change) for change in await record.of(state_key(topic)) if change.value]
        assert [s["last_committed_offset"] for s in states if s["next_offset"]] == [9, 19, 29]
        assert await consume(client, topic, 40) == list(range(40))
    assert epochs == sorted(set(epochs))


async def test_3_broker_restart_without_a_move(world: World) -> None:
    """U8: a broker that comes back goes on with its own log, which nobody has sealed."""
    topic = "/default/seed-001-3"
    await world.create_topic(topic)
    await world.move(topic, "c")
    async with world.client() as client, recording(world) as record:
        assert await produce(client, topic, range(10)) == list(range(10))
        await world.brokers["c"].kill()
        await world.brokers["c"].start()
        await world.wait_served(topic, by="c")
        assert await produce(client, topic, range(10, 13)) == [10, 11, 12]
        assert await consume(client, topic, 13) == list(range(13))
        assert await record.of(state_key(topic)) == []
    await world.wait_brokers("a", "b", "c")


async def test_4_new_topic(world: World) -> None:
    """U9: a new topic has no sealed state and starts at 0, and so does one that moves before it has a record."""
    topic = "/default/seed-001-4"
    await world.create_topic(topic)
    assert world.keys(state_key(topic)) == {}
    await world.move(topic, world.other(await world.owner_of(topic)))
    async with world.client() as client:
        assert await produce(client, topic, range(3)) == [0, 1, 2]


STATES: dict[str, bytes | None] = {
    "missing": None,
    "older than the log": b'{"state":"sealed","last_committed_offset":3,"next_offset":4,"version":2,"epoch":1,'
    b'"broker_id":"a","ts":"2026-01-01T00:00:00.000Z"}',
    "corrupt": b"\x00\xff not JSON",
    "not sealed": b'{"state":"open"}',
}
BEYOND_THE_LOG = (
    b'{"state":"sealed","last_committed_offset":99,"next_offset":100,"version":90,"epoch":1,"broker_id":"a",'
    b'"ts":"2026-01-01T00:00:00.000Z"}'
)


def write_state(world: World, topic: str, state: bytes | None) -> None:
    if state is None:
        world.delete_key(state_key(topic))
    else:
        world.write_key(state_key(topic), state)


async def test_5_edge_cases_of_the_sealed_state(world: World) -> None:
    """U7: whatever the sealed state says, the log decides; nothing restarts at 0 while there is data. Where the log
    cannot be read, or has less than was sealed, the topic stays closed and says why."""
    topics = {f"/default/seed-001-5-{number}": state for number, state in enumerate(STATES.values())}
    unreadable, short = "/default/seed-001-5-unreadable", "/default/seed-001-5-short"
    async with world.client() as client:

        async def begin(topic: str) -> None:
            await world.create_topic(topic, ack="archived")
            await world.move(topic, "b")
            assert await produce(client, topic, range(10)) == list(range(10))

        await asyncio.gather(*map(begin, [*topics, unreadable, short]))
        for topic, state in {**topics, short: BEYOND_THE_LOG}.items():
            write_state(world, topic, state)
        damaged = damage_archive(world, unreadable)
        await world.brokers["b"].kill()
        for topic in topics:
            await world.wait_served(topic, not_by="b")
            assert await produce(client, topic, range(10, 12)) == [10, 11]
            assert await consume(client, topic, 12) == list(range(12))
        async with world.client(timeout_seconds=REFUSED_SECONDS) as hasty:

            async def publish(topic: str) -> None:
                while True:
                    with contextlib.suppress(Disconnected):  # on a busy machine the log is still being opened
                        (await hasty.publish(topic, "10")).raise_for_status()
                        return

            async def refused(topic: str, error: type[SulinaError]) -> None:
                await world.owner_of(topic)
                with pytest.raises(error):
                    await publish(topic)

            await asyncio.gather(refused(unreadable, Corrupt), refused(short, LogIncomplete))
        for path, data in damaged.items():
            world.write_object(path, data)
        write_state(world, short, None)
        for topic in (unreadable, short):
            await world.wait_served(topic)
            assert await produce(client, topic, range(10, 12)) == [10, 11]
            assert await consume(client, topic, 12) == list(range(12))


def damage_archive(world: World, topic: str) -> dict[str, bytes]:
    """Every commit of its archive; what they were."""
    name = topic.strip("/").replace("/", ".")
    before = {p: world.read_object(p) for p in world.stored(f"topic={name}-part=0") if p.endswith(".json")}
    assert before
    for path in before:
        world.write_object(path, b"{}")
    return before
