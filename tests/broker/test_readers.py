"""S7: queries are readers that a broker knows. Their positions and lag are visible; what they need is kept."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sulina.broker.archives import Archives
from sulina.broker.broker import Broker
from sulina.broker.options import BrokerLimits, BrokerOptions
from sulina.core.cluster import keys
from sulina.core.delivery.readers import EXPIRES_SECONDS, SHOWN_SECONDS
from sulina.core.log.epochs import EpochHistory
from sulina.core.records.record import StoredRecord
from sulina.core.topic import DeliveryGuarantee, Policy, TopicSettings
from sulina.errors import (
    CorruptCommit,
    InvalidInput,
    InvalidName,
    LimitReached,
    MetadataFailed,
    NotReliable,
    NotServing,
    PartitionNotFound,
    ReaderAhead,
    ReaderNotFound,
    TopicNotFound,
)
from sulina.metadata.memory import MemoryMetadata
from sulina.ports import Compare, Listing, Put, TxnResult
from sulina.storage.objects import open_objects
from sulina.storage.partition_log import LogThreads, PartitionLog
from sulina.testing import VirtualClock
from sulina.types import Epoch, Offset, PartitionName, TopicName
from sulina.wire.messages import ReaderSettings
from tests.support.brokers import brokers, until

ORDERS = TopicName.parse("/default/orders")
FIRST = PartitionName(ORDERS, 0)
BY_SIZE = Policy(segment_bytes=1 << 16, batch_bytes_max=1 << 16, retention_bytes=1 << 17)
BY_AGE = Policy(segment_bytes=1 << 16, batch_bytes_max=1 << 16, retention_seconds=3600.0)
COUNT = 20


class Store(MemoryMetadata):
    """Counts the listings of readers, may be away for them, and lets others in before a transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.listings = 0
        self.is_away = False
        self.before_txn: list[Put] = []

    async def list(self, prefix: str) -> Listing:
        if prefix == keys.READERS:
            self.listings += 1
            if self.is_away:
                raise MetadataFailed(path="memory", cause=OSError("it is away"))
        return await super().list(prefix)

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        if self.before_txn:
            await super().txn(puts=[self.before_txn.pop(0)])
        return await super().txn(compares=compares, puts=puts, deletes=deletes)


class World:
    """One broker, its metadata and its clock."""

    def __init__(self, broker: Broker, store: Store, clock: VirtualClock) -> None:
        self.broker, self.store, self.clock = broker, store, clock

    async def fill(self, policy: Policy, *, partitions: int = 1) -> None:
        """A topic whose first segments may go at once, by the policy."""
        await self.broker.put_topic(ORDERS, TopicSettings(partitions=partitions, policy=policy))
        for number in range(partitions):
            for _ in range(COUNT):
                await self.broker.publish_records(ORDERS, [StoredRecord(value=b"x" * 30_000)], partition=number)
        self.clock.advance(2 * 3600)

    async def put(self, name: str = "nightly", *, force: bool = False, **positions: int) -> bool:
        """`p0=17`: at 17 in partition 0."""
        given = {int(partition[1:]): offset for partition, offset in positions.items()}
        return (await self.broker.put_reader(name, ORDERS, ReaderSettings(positions=given, force=force)))[1]

    async def start(self, partition: int = 0) -> int:
        return (await self.broker.partition(ORDERS, partition)).start_offset

    async def position(self, name: str = "nightly", partition: int = 0) -> int:
        return (await self.broker.reader(name, ORDERS)).positions[partition].offset


@asynccontextmanager
async def a_world(path: Path, *, is_archiving: bool = False, **limits: int) -> AsyncIterator[World]:
    store, clock = Store(), VirtualClock()
    threads = LogThreads.of(writers=2, readers=2, archivers=4)
    options = BrokerOptions(data=str(path), limits=BrokerLimits(**limits))
    archives = Archives(open_objects(f"file://{path}/objects"), options) if is_archiving else None
    broker = Broker(store, options, threads=threads, clock=clock, archives=archives)
    await broker.start()
    try:
        yield World(broker, store, clock)
    finally:
        await broker.stop()
        await store.close()
        threads.shutdown()


@pytest.mark.parametrize("policy", [BY_SIZE, BY_AGE], ids=["by size", "by age"])
async def test_s7_retention_keeps_what_a_registered_reader_still_needs(tmp_path: Path, policy: Policy) -> None:
    async with a_world(tmp_path) as world:
        await world.fill(policy)
        assert await world.put(p0=7)
        await world.put("quick", p0=COUNT)
        await world.broker.retain()
        assert 0 < await world.start() <= 7, "what lies before goes"
        assert (await world.broker.fetch(ORDERS, 0, 7)).next_offset > 7
        assert not await world.put(p0=13)
        await world.broker.retain()
        assert 7 < await world.start() <= 13
        await world.broker.delete_reader("nightly", ORDERS)
        await world.broker.retain()
        assert await world.start() > 13


async def test_s7_retention_of_the_archive_keeps_what_a_registered_reader_still_needs(tmp_path: Path) -> None:
    policy = Policy(
        segment_bytes=1 << 16, batch_bytes_max=1 << 16, retention_bytes=1 << 17, archive_bytes=1 << 10,
        local_retention_bytes=0,
    )  # fmt: skip
    async with a_world(tmp_path, is_archiving=True) as world:
        await world.fill(policy)
        await until(lambda: _archived(world.broker))
        await world.put(p0=7)
        await world.broker.retain()
        info = await world.broker.partition(ORDERS, 0)
        assert 0 < info.start_offset <= 7
        assert all(segment.start_offset > 7 for segment in info.segments), "from the disk it may go: the archive has it"
        assert (await world.broker.fetch(ORDERS, 0, 7)).next_offset > 7
        await world.broker.delete_reader("nightly", ORDERS)
        await world.broker.retain()
        assert await world.start() > 7


async def _archived(broker: Broker) -> bool:
    """Whether all but the last few records are in the archive."""
    return (await broker.partition(ORDERS, 0)).archived_offset == COUNT


async def test_s7_each_partition_has_its_own_positions_and_one_listing_serves_a_round(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        await world.fill(BY_SIZE, partitions=3)
        await world.put(p0=3, p1=9)
        before = world.store.listings
        await world.broker.retain()
        assert world.store.listings == before + 1
        starts = [await world.start(number) for number in range(3)]
        assert starts[0] <= 3 < starts[1] <= 9 < starts[2]


async def test_s7_nothing_is_removed_while_the_metadata_store_cannot_be_read(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        await world.fill(BY_SIZE)
        world.store.is_away = True
        assert await world.broker.retain() == 0
        world.store.is_away = False
        assert await world.broker.retain() > 0


async def test_s7_what_registers_while_a_round_is_under_way_counts(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        await world.fill(BY_SIZE)
        readers = world.broker.registered_readers
        log = EpochHistory(Epoch(0), Offset(100), ())
        await readers.look()
        assert readers.keep_from(FIRST, log) is None
        await world.put(p0=5)
        assert readers.keep_from(FIRST, log) == 5
        await world.put(p0=9)
        assert readers.keep_from(FIRST, log) == 5, "in this round"
        await readers.look()
        assert readers.keep_from(FIRST, log) == 9


@pytest.mark.parametrize("epochs", [{}, {0: 0}, {0: 4}])
async def test_u10_what_a_reader_of_given_up_records_needs_is_not_removed(
    tmp_path: Path, epochs: dict[int, int]
) -> None:
    """Epoch 0 wrote offsets up to COUNT and more that was given up; epoch 4 has used those again."""
    async with a_world(tmp_path) as world:
        await world.fill(BY_SIZE)
        log = world.broker.topic_named(str(ORDERS)).partitions[0].log_if_open
        assert isinstance(log, PartitionLog)
        await log.claim(Epoch(4))
        for _ in range(2 * COUNT):
            await world.broker.publish_records(ORDERS, [StoredRecord(value=b"x" * 30_000)])
        settings = ReaderSettings(positions={0: 2 * COUNT}, epochs=epochs)
        await world.broker.put_reader("nightly", ORDERS, settings)
        await world.broker.retain()
        assert (await world.start() <= COUNT) is (epochs == {0: 0})
        back = ReaderSettings(positions={0: COUNT}, epochs={0: 4})
        if epochs == {0: 0}:
            await world.broker.put_reader("nightly", ORDERS, back)
            assert await world.position() == COUNT
        else:
            with pytest.raises(ReaderAhead):
                await world.broker.put_reader("nightly", ORDERS, back)


async def test_s7_a_reader_of_which_nothing_is_heard_expires_is_shown_and_is_swept_away(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        await world.fill(BY_SIZE)
        await world.put(p0=2)
        brief = ReaderSettings(positions={0: 1}, expires_seconds=60)
        await world.broker.put_reader("brief", ORDERS, brief)
        world.clock.advance(61)
        assert [info.is_expired for info in (await world.broker.readers()).readers] == [True, False]
        await world.broker.retain()
        assert 0 < await world.start() <= 2, "the other still holds"
        world.clock.advance(EXPIRES_SECONDS - 61)
        await world.put(p0=2)  # heard of just in time
        world.clock.advance(EXPIRES_SECONDS)
        assert not (await world.broker.reader("nightly", ORDERS)).is_expired
        world.clock.advance(1)
        assert (await world.broker.reader("nightly", ORDERS)).is_expired
        await world.broker.retain()
        assert await world.start() > 2
        assert [info.reader for info in (await world.broker.readers()).readers] == ["nightly"], "brief is forgotten"
        world.clock.advance(SHOWN_SECONDS)
        await world.broker.retain()
        assert (await world.broker.readers()).readers == []
        with pytest.raises(ReaderNotFound):
            await world.broker.reader("nightly", ORDERS)


async def test_s7_a_reader_that_comes_back_is_live_again(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        await world.fill(BY_SIZE, partitions=2)
        await world.put(p0=2, p1=3)
        world.clock.advance(EXPIRES_SECONDS + 1)
        assert not await world.put(p1=3)
        info = await world.broker.reader("nightly", ORDERS)
        assert (info.is_expired, [at.offset for at in info.positions]) == (False, [2, 3])
        await world.broker.retain()
        assert await world.start(0) <= 2


async def test_s7_positions_do_not_go_back_unless_forced(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        await world.fill(BY_SIZE, partitions=2)
        await world.put(p0=9, p1=5)
        with pytest.raises(ReaderAhead, match="offset 5 in partition 1") as refused:
            await world.put(p0=10, p1=4)
        assert refused.value.details()["current"] == 5
        assert await world.position() == 9, "nothing was written"
        await world.put(p0=9)
        await world.put(p1=0, force=True)
        assert [await world.position(partition=number) for number in (0, 1)] == [9, 0]
        await world.broker.retain()
        assert await world.start(1) == 0


async def test_s7_positions_and_lag_are_shown(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        await world.fill(BY_SIZE, partitions=2)
        settings = ReaderSettings(positions={0: 17, 1: 20}, expires_seconds=60, kind="spark", description="by day")
        made, is_new = await world.broker.put_reader("nightly", ORDERS, settings)
        assert is_new
        assert made == await world.broker.reader("nightly", ORDERS)
        assert (made.reader, made.topic, made.kind, made.description) == ("nightly", str(ORDERS), "spark", "by day")
        assert (made.expires_seconds, made.is_expired, made.lag) == (60, False, 3)
        assert [(at.start_offset, at.end_offset, at.lag) for at in made.positions] == [(0, COUNT, 3), (0, COUNT, 0)]
        world.clock.advance(5)
        moved, _ = await world.broker.put_reader("nightly", ORDERS, ReaderSettings(positions={0: 30}))
        assert (moved.kind, moved.description, moved.expires_seconds) == ("spark", "by day", 60), "it stays as it was"
        assert (moved.updated_ms - made.updated_ms, moved.positions[1].updated_ms) == (5000, made.updated_ms)
        assert moved.lag == 0, "it may wait for what is not there yet"


async def test_s7_readers_are_listed_by_pages_and_by_topic(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        carts = TopicName.parse("/default/carts")
        for name in (ORDERS, carts):
            await world.broker.put_topic(name, TopicSettings())
            for reader in ("b", "a", "c"):
                await world.broker.put_reader(reader, name, ReaderSettings(positions={0: 0}))
        page = await world.broker.readers(limit=4)
        shown = [(info.reader, info.topic.rpartition("/")[2]) for info in page.readers]
        assert shown == [("a", "carts"), ("a", "orders"), ("b", "carts"), ("b", "orders")]
        rest = await world.broker.readers(limit=4, after=page.next)
        assert ([info.reader for info in rest.readers], rest.next) == (["c", "c"], None)
        assert [info.reader for info in (await world.broker.readers(topic=carts)).readers] == ["a", "b", "c"]
        with pytest.raises(TopicNotFound):
            await world.broker.readers(topic=TopicName.parse("/default/nothing"))
        for limit in (0, 1001):
            with pytest.raises(InvalidInput, match="1 to 1000"):
                await world.broker.readers(limit=limit)


async def test_s7_what_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        with pytest.raises(TopicNotFound):
            await world.put(p0=0)
        await world.broker.put_topic(ORDERS, TopicSettings(partitions=2))
        with pytest.raises(PartitionNotFound, match="0 to 1"):
            await world.put(p0=0, p2=0)
        for asked in (world.broker.reader("nightly", ORDERS), world.broker.delete_reader("nightly", ORDERS)):
            with pytest.raises(ReaderNotFound):
                await asked
        with pytest.raises(InvalidInput, match="name a partition"):
            await world.put()
        passing = TopicName.parse("/default/passing")
        await world.broker.put_topic(passing, TopicSettings(delivery=DeliveryGuarantee.BEST_EFFORT))
        with pytest.raises(NotReliable):
            await world.broker.put_reader("nightly", passing, ReaderSettings(positions={0: 0}))
        assert (await world.store.list(keys.READERS)).entries == []


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "a\0b", "x" * 201])
async def test_s7_names_are_checked_before_anything_is_asked(tmp_path: Path, name: str) -> None:
    async with a_world(tmp_path) as world:
        await world.broker.put_topic(ORDERS, TopicSettings())
        for asked in (
            world.put(name, p0=0),
            world.broker.reader(name, ORDERS),
            world.broker.delete_reader(name, ORDERS),
        ):
            with pytest.raises(InvalidName):
                await asked


async def test_s7_a_topic_takes_its_readers_along(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        other = TopicName.parse("/default/orders-2")
        for name in (ORDERS, other):
            await world.broker.put_topic(name, TopicSettings(partitions=2))
            await world.broker.put_reader("nightly", name, ReaderSettings(positions={0: 5, 1: 5}))
        await world.broker.delete_topic(ORDERS)
        left = [entry.key for entry in (await world.store.list(keys.READERS)).entries]
        assert left == [keys.reader_position("nightly", PartitionName(other, number)) for number in (0, 1)]
        with pytest.raises(TopicNotFound):
            await world.broker.reader("nightly", ORDERS)
        await world.broker.put_topic(ORDERS, TopicSettings(partitions=2))
        assert await world.put(p0=0), "it begins anew"


async def test_s7_a_topic_that_is_being_deleted_takes_no_positions(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        await world.broker.put_topic(ORDERS, TopicSettings())
        stored = world.broker.registry.topics[ORDERS].stored
        await world.broker.registry.catalogue.mark_deleting(ORDERS, stored)
        with pytest.raises(TopicNotFound):
            await world.put(p0=0)


async def test_s7_there_are_as_many_positions_as_there_may_be(tmp_path: Path) -> None:
    async with a_world(tmp_path, reader_positions_max=3) as world:
        await world.broker.put_topic(ORDERS, TopicSettings(partitions=4))
        with pytest.raises(LimitReached, match="3 positions"):
            await world.put(p0=0, p1=0, p2=0, p3=0)
        await world.put(p0=0, p1=0)
        await world.put("other", p0=0)
        with pytest.raises(LimitReached):
            await world.put("third", p0=0)
        await world.put(p0=1, p1=1)  # those that are there go on
        world.clock.advance(EXPIRES_SECONDS + 1)
        await world.put("other", p0=0)
        await world.put("third", p0=0)
        assert [info.reader for info in (await world.broker.readers()).readers] == ["other", "third"]


async def test_s7_many_partitions_are_written_together(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        await world.broker.put_topic(ORDERS, TopicSettings(partitions=300))
        given = {number: number for number in range(300)}
        await world.broker.put_reader("nightly", ORDERS, ReaderSettings(positions=given))
        found = {at.partition: at.offset for at in (await world.broker.reader("nightly", ORDERS)).positions}
        assert found == given
        await world.broker.delete_reader("nightly", ORDERS)
        assert (await world.store.list(keys.READERS)).entries == []


async def test_s7_a_position_that_cannot_be_read_is_named_and_holds_its_partition(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        await world.fill(BY_SIZE, partitions=2)
        key = keys.reader_position("nightly", FIRST)
        await world.store.txn(puts=[Put(key, b"{"), Put("/readers/nonsense", b"")])
        await world.broker.retain()
        assert (await world.start(0), await world.start(1) > 0) == (0, True)
        for asked in (world.broker.reader("nightly", ORDERS), world.broker.readers(), world.put(p0=9)):
            with pytest.raises(CorruptCommit, match=key):
                await asked
        await world.put(p0=9, force=True)
        assert await world.position() == 9
        await world.store.txn(puts=[Put(key, b"{")])
        await world.broker.delete_reader("nightly", ORDERS)


async def test_s7_two_who_write_at_once_do_not_go_back(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        await world.broker.put_topic(ORDERS, TopicSettings())
        await world.put(p0=3)
        ahead = (await world.store.get(keys.reader_position("nightly", FIRST))).value.replace(b":3,", b":8,")  # type: ignore[union-attr]
        world.store.before_txn.append(Put(keys.reader_position("nightly", FIRST), ahead))
        with pytest.raises(ReaderAhead):
            await world.put(p0=5)
        world.store.before_txn.append(Put(keys.reader_position("nightly", FIRST), ahead))
        await world.put(p0=9)
        assert await world.position() == 9
        world.store.before_txn += [Put(keys.reader_position("nightly", FIRST), ahead)] * 20
        with pytest.raises(NotServing, match="others keep changing"):
            await world.put(p0=10)


async def test_s7_any_broker_takes_positions_and_the_owner_respects_them(tmp_path: Path) -> None:
    policy = Policy(
        segment_bytes=1 << 16, batch_bytes_max=1 << 16, retention_bytes=1 << 17, archive_bytes=60_000,
        local_retention_bytes=0,
    )  # fmt: skip
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings(policy=policy))
        owner = await world.owner(ORDERS)
        asked = next(broker for broker in world.running.values() if broker is not owner)
        for _ in range(COUNT):
            await world.publish(ORDERS, b"x" * 30_000)
        await until(lambda: _archived(owner))
        _, is_new = await asked.put_reader("nightly", ORDERS, ReaderSettings(positions={0: 7}))
        assert is_new
        assert [found.reader for found in (await owner.readers(topic=ORDERS)).readers] == ["nightly"]
        await owner.retain()
        assert 0 < (await owner.partition(ORDERS, 0)).start_offset <= 7
        shown = (await owner.reader("nightly", ORDERS)).positions[0]
        assert (shown.offset, shown.end_offset, shown.lag) == (7, COUNT, COUNT - 7)

        async def told() -> bool:
            return (await asked.reader("nightly", ORDERS)).lag == COUNT - 7

        await until(told)  # as the owner said, which it does every second
        assert (await asked.reader("nightly", ORDERS)).positions[0].start_offset is None
        await asked.delete_topic(ORDERS)
        assert await world.keys(keys.READERS) == []


async def test_s7_what_happens_to_readers_is_told(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        await world.broker.put_topic(ORDERS, TopicSettings())
        with world.broker.events.listen() as events:
            await world.put(p0=3)
            await world.put(p0=4)
            await world.put(p0=1, force=True)
            await world.broker.delete_reader("nightly", ORDERS)
            async with asyncio.timeout(5):
                told = [(await anext(events)).type for _ in range(3)]
        assert told == ["reader_registered", "reader_moved_back", "reader_deleted"]


async def test_s7_a_broker_that_stops_takes_no_positions(tmp_path: Path) -> None:
    async with a_world(tmp_path) as world:
        await world.broker.put_topic(ORDERS, TopicSettings())
        await world.put(p0=3)
        world.broker.drain()
        for asked in (world.put(p0=4), world.broker.delete_reader("nightly", ORDERS)):
            with pytest.raises(NotServing):
                await asked
        assert await world.position() == 3
