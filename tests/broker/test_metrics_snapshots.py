"""P10, seed 002: snapshots of metrics on the stream of events, of all topics and of each, at a bounded rate."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sulina.broker.events import Event, EventStream
from sulina.broker.pubsub.snapshots import LOOKED_AT_A_TICK, TOLD_A_TICK, MetricsSnapshots
from sulina.client import Client
from sulina.config import Settings
from sulina.core.delivery.pubsub import PubSubConfig, PubSubEventType
from sulina.errors import TopicNotFound
from sulina.node import Node
from sulina.testing import VirtualClock
from sulina.types import TopicName
from sulina.wire.messages import PubSubEvent, PubSubMetrics

SNAPSHOT = PubSubEventType.METRICS_SNAPSHOT
SECONDS = 10.0


class World:
    """Topics with counts, and a clock."""

    def __init__(self) -> None:
        self.accepted: dict[TopicName, int] = {}
        self.now = 100.0
        self.looked_at: list[TopicName | None] = []
        self.events = EventStream(VirtualClock())
        self.snapshots = MetricsSnapshots(self.metrics_of, lambda: self.accepted, seconds=SECONDS, events=self.events)

    def metrics_of(self, name: TopicName | None) -> PubSubMetrics:
        self.looked_at.append(name)
        if name is None:
            return PubSubMetrics(accepted=sum(self.accepted.values()))
        if name not in self.accepted:
            raise TopicNotFound(topic=str(name))
        return PubSubMetrics(topic=str(name), accepted=self.accepted[name])

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.snapshots.tick(self.now)

    @contextmanager
    def listening(self, *types: str) -> Iterator["Listener"]:
        with self.events.listen(types) as events:
            yield Listener(events)


class Listener:
    def __init__(self, events: AsyncIterator[Event]) -> None:
        self._events = events

    async def told(self) -> dict[str | None, int]:
        """What has come by now, by topic."""
        found: dict[str | None, int] = {}
        while True:
            try:
                async with asyncio.timeout(0.001):
                    event = await anext(self._events)
            except TimeoutError:
                return found
            assert event.type == SNAPSHOT
            assert event.topic not in found
            found[event.topic] = event.fields["accepted"]


def topic(number: int) -> TopicName:
    return TopicName("default", f"t{number}")


async def test_p10_every_topic_is_told_though_a_round_takes_longer_than_the_interval() -> None:
    world = World()
    world.accepted = {topic(number): 1 for number in range(5 * TOLD_A_TICK)}
    with world.listening(SNAPSHOT) as listener:
        told: set[str | None] = set()
        for _ in range(7):
            world.tick(SECONDS)
            told |= set(await listener.told())
        assert told >= {str(name) for name in world.accepted}


async def test_a_tick_looks_at_few_topics_however_many_have_nothing_to_tell() -> None:
    world = World()
    world.accepted = {topic(number): 0 for number in range(3 * LOOKED_AT_A_TICK)}
    with world.listening(SNAPSHOT):
        world.tick()
        assert len(world.looked_at) == LOOKED_AT_A_TICK


async def test_p10_who_asks_for_snapshots_is_told_at_once_of_all_and_of_each_topic() -> None:
    world = World()
    world.accepted = {topic(1): 3, topic(2): 0}
    world.tick()
    with world.listening(SNAPSHOT) as listener:
        world.tick()
        assert await listener.told() == {None: 3, "/default/t1": 3}  # of t2 there is nothing to tell


async def test_p10_at_each_interval_what_has_changed_is_told() -> None:
    world = World()
    world.accepted = {topic(1): 1, topic(2): 1}
    with world.listening() as listener:
        world.tick()
        assert await listener.told() == {}
        world.tick(SECONDS)
        assert await listener.told() == {None: 2, "/default/t1": 1, "/default/t2": 1}
        world.accepted[topic(2)] = 5
        world.tick(SECONDS - 0.1)
        assert await listener.told() == {}
        world.tick(0.1)
        assert await listener.told() == {None: 6, "/default/t2": 5}
        world.tick(SECONDS)
        assert await listener.told() == {}


async def test_p10_snapshots_of_many_topics_are_spread_over_ticks() -> None:
    world = World()
    world.accepted = {topic(number): 1 for number in range(2 * TOLD_A_TICK)}
    with world.listening(SNAPSHOT) as listener:
        counts = []
        for _ in range(4):
            world.tick()
            counts.append(len(await listener.told()))
        assert counts == [TOLD_A_TICK, TOLD_A_TICK, 1, 0]


async def test_p10_a_topic_that_is_deleted_meanwhile_holds_up_no_other() -> None:
    world = World()
    world.accepted = {topic(number): 1 for number in range(TOLD_A_TICK + 2)}
    with world.listening(SNAPSHOT) as listener:
        world.tick()
        del world.accepted[topic(TOLD_A_TICK - 1)]
        world.tick()
        assert len(await listener.told()) == TOLD_A_TICK + 2  # all topics, one without, and the whole


async def test_p10_while_nobody_listens_nothing_is_counted_and_who_comes_later_is_told_all() -> None:
    world = World()
    world.accepted = {topic(1): 1}
    for _ in range(2):
        with world.listening() as listener:
            world.tick()
            world.tick(SECONDS)
            assert await listener.told() == {None: 1, "/default/t1": 1}
        world.tick()


async def test_a_listener_to_some_types_is_not_filled_up_by_others() -> None:
    stream = EventStream(VirtualClock())
    with stream.listen(["wanted"]) as events:
        for _ in range(2000):
            stream.emit_unlogged("other", None)
        stream.emit_unlogged("wanted", "/default/t1")
        assert (await anext(events)).type == "wanted"


# A real node


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = await Node.start(Settings(pubsub=PubSubConfig(metrics_event_seconds=0.05)), listen=False, volatile=True)
    yield made
    await made.stop()


async def test_p10_snapshots_come_in_process_and_in_frames_of_sessions(node: Node) -> None:
    handled = asyncio.Event()

    async def handle(_message: object) -> None:
        handled.set()

    async with Client(node.connector) as client:
        await client.admin.create_topic("/default/t1")
        await client.subscribe("/default/t1", handle)
        async with asyncio.timeout(10):
            with node.broker.events.listen([SNAPSHOT]) as here:
                async with client.events([SNAPSHOT]) as there:
                    await client.publish("/default/t1", "x")
                    await handled.wait()
                    for events in (here, there):
                        found = await _delivered(events)
                        assert [(one["accepted"], one["active"]) for one in found.values()] == [(1, 1)] * 2


async def _delivered(events: AsyncIterator[Event] | AsyncIterator[PubSubEvent]) -> dict[str | None, dict[str, Any]]:
    """The newest snapshots of all topics and of one, once a batch is reported as delivered."""
    found: dict[str | None, dict[str, Any]] = {}
    async for event in events:
        found[event.topic] = event.fields
        reported = [one["batches"] for one in found.values()]
        if reported == [{"Delivered": 1}] * 2:
            assert sorted(one["delivered"] for one in found.values()) == [1, 1]
            return found
    raise AssertionError("the stream ended")
