"""R10: what one broker remembers of the metadata store, and when it says that the store went back."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace

from sulina.broker.archives import MEMORY_FOLDER, SEEN_FOLDER, Archives
from sulina.broker.cluster.memory import MEMORY_FILE, SOON_SECONDS, ClusterMemory
from sulina.broker.events import EventStream
from sulina.broker.options import BrokerOptions
from sulina.clock import SystemClock
from sulina.core.cluster import keys
from sulina.core.cluster.recovery import Identity, Memory, plan_recovery
from sulina.errors import ArchiveFailed, CorruptCommit, MetadataFailed
from sulina.metadata.memory import MemoryMetadata
from sulina.ports import Bytes, Entry, Put
from sulina.storage.files import OsFiles
from sulina.types import TopicName
from tests.support.brokers import until
from tests.support.objects import MemoryObjects

TOPIC = "/topics/default/orders/delivery"


class SlowAnswers(MemoryMetadata):
    """Holds back one answer about a key, while others are given."""

    def __init__(self) -> None:
        super().__init__()
        self.held_key: str | None = None
        self.is_away = False
        self.asks_again = False  # when it may go on, as a client of etcd does after a recovery
        self.is_held = asyncio.Event()
        self.go_on = asyncio.Event()

    async def peek(self, key: str) -> Entry | None:
        if self.is_away:
            raise MetadataFailed(path="etcd", cause=ConnectionError("it is away"))
        entry = await super().peek(key)
        if key == self.held_key:
            self.held_key = None
            self.is_held.set()
            await self.go_on.wait()
            if self.asks_again:
                entry = await super().peek(key)
        return entry


class HardObjects(MemoryObjects):
    """Takes no object while it is away, and none before `go_on` while it is slow."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.is_asked = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def put(self, path: str, data: Sequence[Bytes]) -> None:
        self.is_asked.set()
        self.go_on.wait()
        if self.is_away:
            raise ArchiveFailed(path=path, cause=ConnectionError("it is away"))
        super().put(path, data)


class World:
    """The memory of one broker, over a metadata store and an archive."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.metadata = SlowAnswers()
        self.objects = HardObjects()
        self.archives = Archives(self.objects, BrokerOptions(data=str(directory), broker_id="a"))
        self.entries = {TOPIC: b'"first"'}
        self.memory = self.memory_of(self.metadata)

    def memory_of(self, metadata: MemoryMetadata) -> ClusterMemory:
        """Return a broker's memory of a store."""
        return ClusterMemory(
            metadata,
            broker_id="a",
            store_id="store",
            files=OsFiles(),
            data=str(self.directory),
            archives=self.archives,
            entries=lambda: self.entries,
            events=EventStream(SystemClock()),
        )

    def remembered(self) -> dict[str, str]:
        """Return what is on disk."""
        return msgspec.json.decode((self.directory / MEMORY_FILE).read_bytes(), type=Memory).entries


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_r10_a_mark_that_is_written_while_an_older_one_is_looked_at_raises_no_alarm(world: World) -> None:
    await world.memory.join([])
    world.metadata.held_key = keys.mark("a")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(world.memory.verify(), name="verify")
        await world.metadata.is_held.wait()
        await world.memory.close()  # which writes the next mark
        world.metadata.go_on.set()
    assert world.metadata.history.went_back is None


@pytest.mark.parametrize("held_key", [keys.IDENTITY, keys.mark("a")])
async def test_r10_an_answer_that_outlives_a_recovery_raises_no_second_alarm(world: World, held_key: str) -> None:
    """R10: nobody would recover the cluster once more, and the broker would wait for ever."""
    await world.memory.join([])
    await world.memory.close()  # which writes a mark
    world.metadata.held_key, world.metadata.asks_again = held_key, True
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(world.memory.verify(), name="verify")
        await world.metadata.is_held.wait()
        entry = await world.metadata.get(keys.IDENTITY)
        assert entry is not None
        identity = msgspec.json.decode(entry.value, type=Identity)
        recovered = Put(keys.IDENTITY, msgspec.json.encode(replace(identity, generation=identity.generation + 1)))
        await world.metadata.txn(puts=[recovered], deletes=[keys.mark("a")])
        world.metadata.history.declare("it went back")
        await world.memory.wait_recovered()
        world.metadata.go_on.set()
    assert world.metadata.history.went_back is None


async def test_r10_a_topic_that_was_made_again_is_on_disk_before_it_is_served(world: World) -> None:
    await world.memory.join([])
    assert world.remembered() == {TOPIC: '"first"'}
    world.entries = {TOPIC: b'"second"'}
    await world.memory.ensure(TOPIC, '"second"')
    assert world.remembered() == {TOPIC: '"second"'}


async def test_l15_a_broker_that_has_not_looked_at_the_time_keeps_what_its_former_life_knew_of_it(
    world: World, tmp_path: Path
) -> None:
    await world.memory.join([])
    world.entries[keys.SHOWN_TIME] = b'{"shown_ms":5}'
    await world.memory.close()
    again = World(tmp_path)
    memory = again.memory_of(world.metadata)
    await memory.join([])
    await memory.close()
    assert again.remembered()[keys.SHOWN_TIME] == '{"shown_ms":5}'


async def test_r10_the_disk_remembers_the_newest_also_while_the_store_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10: the store may not come back as it was, and this broker may be killed before that."""
    await world.memory.join([])
    world.entries = {TOPIC: b'"second"'}
    world.metadata.is_away = True
    now, pauses = iter([0.0, 100.0, 100.0]), []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr("sulina.broker.cluster.memory.time", SimpleNamespace(monotonic=lambda: next(now)))
    with pytest.raises(asyncio.CancelledError):
        await world.memory.run()
    assert world.remembered() == {TOPIC: '"second"'}
    assert pauses == [SOON_SECONDS], "a round that only waited must not put off the next one"


async def test_f6_a_slow_archive_holds_up_nobody_who_takes_a_topic_over(world: World) -> None:
    """F6: what the disk remembers is enough to serve; the copy in the archive comes when it comes."""
    await world.memory.join([])
    world.entries = {TOPIC: b'"second"'}
    world.objects.is_asked.clear()
    world.objects.go_on.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(world.memory.close(), name="round")
        try:
            await asyncio.to_thread(world.objects.is_asked.wait)
            world.entries = {TOPIC: b'"third"'}
            async with asyncio.timeout(5):
                await world.memory.ensure(TOPIC, '"third"')
        finally:
            world.objects.go_on.set()
    assert world.remembered() == {TOPIC: '"third"'}


async def test_r10_a_damaged_witness_in_the_archive_keeps_nobody_from_starting(world: World) -> None:
    """R10: the others are heard; only a recovery, which needs all that is remembered, names the damaged object."""
    await world.memory.join([])
    world.objects.put(f"{SEEN_FOLDER}/b.json", [b"{"])
    world.objects.put(f"{MEMORY_FOLDER}/b.json", [b"{"])
    assert [seen.broker_id for seen in world.archives.seen()] == ["a"]
    with pytest.raises(CorruptCommit, match=r"cluster/memory/b\.json"):
        world.archives.memories()


async def test_r10_a_subscription_that_was_deleted_in_the_last_seconds_is_not_put_back_by_a_recovery(
    world: World,
) -> None:
    """R10: the broker has heard of the delete, and has not written it down when the store goes back."""
    orders = TopicName("default", "orders")
    gone = keys.subscription(orders, "gone")
    kept = {
        TOPIC: b'{"delivery": "reliable", "partitions": 1, "topic_id": "t1"}',
        keys.subscription(orders, "kept"): b"{}",
    }
    world.entries = {**kept, gone: b"{}"}
    await world.metadata.txn(puts=[Put(gone, b"{}")])
    await world.memory.join([])
    older = world.archives.memories()  # what another broker knew that ended before the delete
    deleted = await world.metadata.txn(deletes=[gone])
    world.metadata.history.expect(deleted.revision)
    world.entries = kept
    world.metadata.history.declare("its revision is older")
    world.entries = {}  # what a store says that went back
    running = asyncio.create_task(world.memory.run(), name="memory")
    try:
        await until(lambda: world.archives.memories() != older, seconds=5)
    finally:
        running.cancel()
        await asyncio.wait([running])
    planned = plan_recovery(None, {}, [*world.archives.memories(), *older], {}, now_ms=1)
    assert {key: value for key, value in planned.puts.items() if key.startswith(keys.TOPICS)} == kept


async def test_r10_a_broker_goes_on_after_a_recovery_while_the_archive_is_away(world: World) -> None:
    await world.memory.join([])
    world.objects.is_away = True
    entry = await world.metadata.get(keys.IDENTITY)
    assert entry is not None
    before = msgspec.json.decode(entry.value, type=Identity)
    after = Identity(cluster_id=before.cluster_id, generation=before.generation + 1)
    await world.metadata.txn(puts=[Put(keys.IDENTITY, msgspec.json.encode(after))])
    world.metadata.history.declare("its revision is older")
    running = asyncio.create_task(world.memory.run(), name="memory")
    try:
        await until(lambda: world.metadata.history.went_back is None, seconds=5)
    finally:
        running.cancel()
        await asyncio.wait([running])
