"""A broker looks at all clocks before it deletes, says when its own is off, and remembers how far the time has come."""

from pathlib import Path

import msgspec
import pytest

from sulina.broker.events import EventStream
from sulina.broker.timekeeper import Timekeeper
from sulina.core.cluster import keys
from sulina.core.cluster.entries import RememberedTime
from sulina.core.cluster.shown_time import REMEMBER_SECONDS
from sulina.errors import MetadataFailed
from sulina.metadata.memory import MemoryMetadata
from sulina.ports import Entry, Put
from sulina.testing import VirtualClock
from tests.support.brokers import brokers, remembered_by

DAY = 24 * 3600.0


class JumpingClock(VirtualClock):
    """A wall clock that can be set apart from the monotonic one."""

    __slots__ = ("ahead",)

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


class World:
    def __init__(self, metadata: MemoryMetadata | None = None) -> None:
        self.clock = JumpingClock()
        self.metadata = metadata or MemoryMetadata()
        self.events = EventStream(self.clock)
        self.others: list[float] = []
        self.keeper = Timekeeper(self.metadata, clock=self.clock, events=self.events, others=lambda: self.others)

    async def remembered(self) -> float | None:
        entry = await self.metadata.get(keys.SHOWN_TIME)
        return None if entry is None else msgspec.json.decode(entry.value, type=RememberedTime).shown_ms / 1000


async def test_a_jump_is_said_once_and_shows_nothing_l15() -> None:
    world = World()
    noon = world.clock.now()
    assert await world.keeper.look() == noon
    world.clock.ahead = 2 * DAY
    world.clock.advance(60)
    shown = await world.keeper.look()
    assert shown is not None
    assert shown < noon + 61
    assert world.keeper.ahead_seconds == pytest.approx(2 * DAY, abs=61)
    assert world.keeper.now() < noon + 61
    world.clock.ahead = 0.0
    world.clock.advance(60)
    assert await world.keeper.look() == noon + 120
    assert world.keeper.ahead_seconds == 0


async def test_what_is_remembered_holds_a_broker_that_starts_later_l15() -> None:
    first = World()
    noon = first.clock.now()
    await first.keeper.look()
    later = World(first.metadata)
    later.clock.ahead = 2 * DAY
    assert await later.keeper.look() == noon


async def test_the_memory_is_written_once_a_minute_and_never_goes_back() -> None:
    world = World()
    noon = world.clock.now()
    await world.keeper.look()
    assert await world.remembered() == noon
    world.clock.advance(REMEMBER_SECONDS - 1)
    await world.keeper.look()
    assert await world.remembered() == noon
    world.clock.advance(1)
    await world.keeper.look()
    assert await world.remembered() == noon + REMEMBER_SECONDS
    world.clock.ahead = -DAY
    await world.keeper.look()
    assert await world.remembered() == noon + REMEMBER_SECONDS


async def test_what_cannot_be_read_is_as_if_it_was_never_written() -> None:
    world = World()
    await world.metadata.txn(puts=[Put(keys.SHOWN_TIME, b"?")])
    assert await world.keeper.look() == world.clock.now()


class Away(MemoryMetadata):
    """Cannot be read."""

    async def get(self, key: str) -> Entry | None:
        raise MetadataFailed(path="memory", cause=OSError(f"{key}: it is away"))


async def test_without_the_metadata_store_no_time_is_known_l15() -> None:
    assert await World(Away()).keeper.look() is None


async def test_l15_brokers_remember_the_time_that_had_been_shown(tmp_path: Path) -> None:
    """L15: a store that was emptied gets it back from them, before anybody deletes by a clock of its own."""
    async with brokers(tmp_path, "a") as world:
        broker = world.running["a"]
        await broker.retain()  # stores it
        await broker.retain()
        entry = await world.metadata.get(keys.SHOWN_TIME)
        assert entry is not None
        remembered = remembered_by(broker)
        assert remembered is not None
        assert remembered[keys.SHOWN_TIME] == entry.value
