"""The log that spans a directory and an archive, and the brokers that take it over from each other."""

import asyncio
import contextlib
import random
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sulina.core.cluster import Sealed
from sulina.core.commit import SegmentRef
from sulina.core.log_state import Appended
from sulina.core.resume import How
from sulina.core.retention import Retention
from sulina.core.segment import SegmentLimits
from sulina.errors import (
    ArchiveFailed,
    CorruptLog,
    LeaseExpired,
    LogClosed,
    LogLocked,
    LogStopped,
    NotYet,
    OffsetOutOfRange,
    QueueFull,
    StaleEpoch,
    VersionConflict,
    VersionNotRetained,
)
from sulina.storage.acks import ACK_SECONDS_MAX
from sulina.storage.archive import Archive
from sulina.storage.directory_log import LogOptions
from sulina.storage.files import VolatileFiles
from sulina.storage.leftovers import Fate, let_go
from sulina.storage.partition_log import LogThreads, PartitionLog
from sulina.storage.tiered_log import Archiving, TieredLog
from sulina.types import Epoch, Offset, Version
from tests.client.virtual_time import VirtualTimeLoop
from tests.support.ledger import batch, records_in, records_of
from tests.support.objects import FaultyObjects, MemoryObjects
from tests.support.takeover_world import Inline, LoopClock

PARTITION = "topic=default.orders-part=0"
SMALL = LogOptions(segments=SegmentLimits(segment_bytes_max=1500, index_interval_bytes=300), versions_kept=3)
ARCHIVED = Archiving(ack_archived=True)
LOCAL = Archiving(archive_bytes=10_000, archive_seconds=5.0)


class Told:
    """Hooks that remember."""

    def __init__(self) -> None:
        self.added: list[SegmentRef] = []
        self.gone: list[SegmentRef] = []
        self.failures: list[Exception] = []

    def archived(self, added: SegmentRef) -> None:
        self.added.append(added)

    def removed(self, removed: Sequence[SegmentRef]) -> None:
        self.gone += removed

    def failed(self, error: Exception) -> None:
        self.failures.append(error)
        raise RuntimeError("whoever is told must not be able to stop the log")


class World:
    """Brokers with a disk each, one store, and a clock that moves when everybody waits."""

    def __init__(self, home: Path, loop: VirtualTimeLoop) -> None:
        self.home = home
        self.clock = LoopClock(loop)
        self.store = MemoryObjects(self.clock)
        self.objects: dict[str, FaultyObjects] = {}
        self.may_ack = True
        self.told = Told()
        self.opened: list[TieredLog] = []

    def directory(self, broker: str) -> str:
        (self.home / broker).mkdir(exist_ok=True)
        return str(self.home / broker / PARTITION)

    def archive(self, broker: str = "reader", topic_id: str = "t1") -> Archive:
        objects = self.objects.setdefault(broker, FaultyObjects(self.store, random.Random(1), []))
        return Archive(objects, f"{PARTITION}/{topic_id}", clock=self.clock)

    async def open(
        self,
        broker: str,
        epoch: int,
        archiving: Archiving = ARCHIVED,
        *,
        topic_id: str = "t1",
        options: LogOptions = SMALL,
        sealed: Sealed | None = None,
        must_resume: bool = False,
        is_adopted: bool = False,
    ) -> TieredLog:
        log = await TieredLog.open(
            self.directory(broker),
            self.archive(broker, topic_id),
            topic_id=topic_id,
            epoch=Epoch(epoch),
            broker_id=broker,
            options=options,
            archiving=archiving,
            may_ack=lambda: self.may_ack,
            sealed=sealed,
            must_resume=must_resume,
            is_adopted=is_adopted,
            files=VolatileFiles(),
            clock=self.clock,
            threads=LogThreads(Inline(), Inline(), None, Inline(), Inline()),
            hooks=self.told,
        )
        self.opened.append(log)
        return log

    def let_go(self, broker: str, topic_id: str = "t1") -> tuple[Fate, tuple[tuple[Offset, Offset], ...]]:
        left = let_go(self.directory(broker), self.archive(broker, topic_id), topic_id=topic_id, files=VolatileFiles())
        return left.fate, left.only_here


Story = Callable[[World], Awaitable[None]]


def told(story: Story) -> Callable[[Path], None]:
    """A test in a world of its own, whose logs are closed at the end."""

    def run(tmp_path: Path) -> None:
        loop = VirtualTimeLoop()

        async def whole() -> None:
            world = World(tmp_path, loop)
            try:
                await story(world)
            finally:
                for objects in world.objects.values():
                    objects.is_cut = False
                for log in world.opened:
                    await log.close()

        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(whole())

    run.__name__, run.__doc__ = story.__name__, story.__doc__
    return run


async def appended(log: TieredLog, *numbers: int) -> list[Appended]:
    return [await log.append(batch(number), txn_id=f"t{number}") for number in numbers]


async def offsets_in(log: TieredLog, start: int = 0) -> list[int]:
    found: list[int] = []
    offset = Offset(start)
    while offset < log.view.next_offset:
        read = await log.read(offset, max_bytes=2000)
        found += [record.offset for record in records_in(read.data, from_offset=offset)]
        offset = read.next_offset
    return found


def end_of(*numbers: int) -> int:
    return sum(map(records_of, numbers))


def sealed_at(next_offset: int, version: int) -> Sealed:
    return Sealed(
        last_committed_offset=next_offset - 1,
        next_offset=next_offset,
        version=version,
        epoch=1,
        broker_id="a",
        ts="2026-01-01T00:00:00Z",
    )


# Who goes on, and from where


@told
async def test_u9_a_new_topic_and_an_empty_one_that_moves_start_at_0(world: World) -> None:
    a = await world.open("a", 5)
    assert (a.resumed.how, a.view.start_offset, a.view.next_offset) == (How.NEW, 0, 0)
    assert (await a.drain()).next_offset == 0
    await a.close()
    b = await world.open("b", 6)
    assert (b.resumed.how, b.view.next_offset) == (How.FROM_ARCHIVE, 0)
    [first] = await appended(b, 0)
    assert first.offset_start == 0


@told
async def test_u6_a_topic_that_moves_from_broker_to_broker_and_back_goes_on_without_collision_or_gap(
    world: World,
) -> None:
    """L13: and whoever sends again gets its first answer, wherever that was."""
    answers: list[Appended] = []
    for epoch, broker in enumerate("abcabba", 1):
        log = await world.open(broker, epoch)
        assert log.view.next_offset == end_of(*range(len(answers)))
        assert await offsets_in(log) == list(range(log.view.next_offset))
        for number, answer in enumerate(answers):
            assert await appended(log, number) == [answer]
        answers += await appended(log, *range(len(answers), len(answers) + 5))
        drained = await log.drain()
        assert (drained.next_offset, drained.version) == (log.view.next_offset, log.view.version)
        await log.close()
        assert world.let_go(broker) == (Fate.REMOVED, ())
    versions = [answer.version for answer in answers]
    assert versions == sorted(set(versions))


@told
async def test_u8_a_broker_that_restarts_goes_on_from_its_own_disk(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    await appended(a, *range(10))
    end = a.view.next_offset
    assert a.archived.next_offset == 0
    await a.close()
    for epoch in (1, 2):  # its assignment outlived it, or it was assigned again
        a = await world.open("a", epoch, LOCAL, must_resume=True)
        assert (a.resumed.how, a.view.next_offset) == (How.CONTINUED, end)
        await a.close()


@told
async def test_u8_a_broker_that_died_after_its_claim_goes_on_from_its_own_disk(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    await appended(a, *range(10))
    end = a.view.next_offset
    await a.close()
    archive = world.archive()
    archive.load()
    holder = archive.view.holder or ""
    archive.claim(Epoch(2), "a", lambda _: holder)  # and no more: it dies here
    a = await world.open("a", 3, LOCAL, must_resume=True)
    assert (a.resumed.how, a.view.next_offset) == (How.CONTINUED, end)


@told
async def test_u14_a_directory_that_was_overtaken_is_set_aside_with_what_only_it_has(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    await appended(a, *range(6))
    await a.drain()
    archived = a.view.next_offset
    await appended(a, *range(6, 9))
    mine = a.view.next_offset
    await a.close()
    b = await world.open("b", 2)
    await appended(b, *range(20, 25))
    a = await world.open("a", 3)
    left = a.resumed.leftover
    assert (a.resumed.how, left.fate) == (How.FROM_ARCHIVE, Fate.SET_ASIDE)
    assert left.only_here == ((archived, mine),)
    assert left.path == f"{world.directory('a')}.set-aside-1-0"
    assert Path(left.path, "00000000000000000000.log").exists()
    assert await offsets_in(a) == list(range(b.view.next_offset))
    await a.close()


@told
async def test_u14_a_directory_that_was_overtaken_is_removed_when_the_archive_has_all_of_it(world: World) -> None:
    a = await world.open("a", 1)
    await appended(a, *range(6))
    await a.close()
    b = await world.open("b", 2)
    await appended(b, *range(6, 9))
    a = await world.open("a", 3)
    assert a.resumed.leftover.fate == Fate.REMOVED
    assert sorted(path.name for path in Path(world.directory("a")).parent.iterdir()) == [PARTITION]


@told
async def test_a_directory_of_another_topic_or_without_a_stamp_is_set_aside(world: World) -> None:
    old = await world.open("a", 1, topic_id="t0")
    await appended(old, 0, 1)
    await old.close()
    new = await world.open("a", 2)
    assert (new.resumed.how, new.resumed.leftover.fate) == (How.NEW, Fate.SET_ASIDE)
    assert new.resumed.leftover.only_here == ((0, end_of(0, 1)),)
    await new.close()
    plain = await PartitionLog.open(world.directory("b"), options=SMALL)
    await plain.append(batch(0))
    await plain.close()
    b = await world.open("b", 3)
    assert b.resumed.leftover.fate == Fate.SET_ASIDE


@told
async def test_u7_a_witness_who_saw_more_than_there_is_keeps_the_topic_closed(world: World) -> None:
    a = await world.open("a", 1)
    await appended(a, *range(4))
    drained = await a.drain()
    await a.close()
    for broker in ("a", "b"):
        with pytest.raises(CorruptLog, match="sealed it at offset"):
            await world.open(broker, 2, sealed=sealed_at(drained.next_offset + 1, drained.version))
    assert world.archive().load().epoch == 1, "nobody is fenced by one that cannot serve"
    b = await world.open("b", 2, sealed=sealed_at(drained.next_offset, drained.version))
    assert b.view.next_offset == drained.next_offset


@told
async def test_u7_a_topic_whose_only_complete_copy_is_gone_stays_closed(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    await appended(a, *range(4))
    await a.close()
    with pytest.raises(CorruptLog, match="only this disk has all of it"):
        await world.open("b", 2, LOCAL, must_resume=True)
    shutil.rmtree(world.directory("a"))
    for epoch in (1, 2):
        with pytest.raises(CorruptLog, match="only this disk has all of it"):
            await world.open("a", epoch, LOCAL, must_resume=True)
    assert world.archive().load().epoch == 1
    given_up = await world.open("a", 3, LOCAL)  # an operator says so
    assert given_up.view.next_offset == 0


@told
async def test_u7_a_disk_that_has_less_than_it_had_archived_never_goes_on(world: World) -> None:
    a = await world.open("a", 1)
    await appended(a, 0, 1)
    await a.close()
    shutil.copytree(world.directory("a"), world.home / "copy")
    a = await world.open("a", 1)
    await appended(a, 2, 3)
    await a.close()
    shutil.rmtree(world.directory("a"))
    shutil.copytree(world.home / "copy", world.directory("a"))
    for epoch in (1, 2):
        with pytest.raises(CorruptLog, match="move it away"):
            await world.open("a", epoch)
    shutil.rmtree(world.directory("a"))
    a = await world.open("a", 2)
    assert a.view.next_offset == end_of(0, 1, 2, 3)


@told
async def test_u7_an_archive_that_cannot_be_read_leaves_everything_as_it_is(world: World) -> None:
    a = await world.open("a", 1)
    await appended(a, *range(4))
    await a.drain()
    await a.close()
    world.archive("b")
    world.objects["b"].is_cut = True
    with pytest.raises(ArchiveFailed):
        await world.open("b", 2)
    assert not Path(world.directory("b")).exists()
    world.objects["b"].is_cut = False
    state = world.store.names(".state")
    held = dict(world.store.held)
    world.store.delete(state)
    with pytest.raises(CorruptLog):
        await world.open("b", 2)
    assert not Path(world.directory("b")).exists(), "it never starts at 0"
    world.store.held |= held
    b = await world.open("b", 2)
    assert b.view.next_offset == end_of(*range(4))


@told
async def test_u14_a_stale_epoch_does_not_even_open(world: World) -> None:
    a = await world.open("a", 1)
    await a.close()
    b = await world.open("b", 5)
    with pytest.raises(StaleEpoch):
        await world.open("a", 4)
    with pytest.raises(LogLocked):
        await world.open("b", 6)
    assert (await appended(b, 0))[0].offset_start == 0


@told
async def test_u4_a_node_that_had_no_archive_before_brings_into_it_what_it_has(world: World) -> None:
    plain = await PartitionLog.open(world.directory("a"), options=SMALL)
    for number in range(60):
        await plain.append(batch(number, padding_bytes=60), txn_id=f"t{number}")
    await plain.retain(Retention(bytes_max=4000))
    start, end, version = plain.view.start_offset, plain.view.next_offset, plain.view.version
    assert start > 0
    await plain.close()
    assert min(path.name for path in Path(world.directory("a"), "_delta_log").iterdir()) > "00000000000000000001"
    a = await world.open("a", 3, LOCAL, is_adopted=True)
    assert (a.resumed.how, a.view.start_offset, a.view.next_offset) == (How.CONTINUED, start, end)
    await a.append(batch(60, padding_bytes=60), txn_id="t60")
    drained = await a.drain()
    assert (a.archived.start_offset, drained.next_offset) == (start, a.view.next_offset)
    await a.close()
    b = await world.open("b", 4)
    assert (b.view.start_offset, b.view.next_offset) == (start, drained.next_offset)
    assert await offsets_in(b, start) == list(range(start, drained.next_offset))
    again = await b.append(batch(59, padding_bytes=60), txn_id="t59")
    assert again.offset_end == end
    oldest = next(slice_.version_start for slice_ in b.archived.slices if slice_.commits_size)
    assert oldest > version, "what was committed before is there, how is not known any more"
    commits = await b.commits(oldest, Version(b.view.version + 1))
    assert [commit.version for commit in commits] == list(range(oldest, b.view.version + 1))
    with pytest.raises(VersionNotRetained):
        await b.commits(Version(0), Version(1))


# Acks that wait for the archive


@told
async def test_an_archived_append_is_answered_and_seen_when_the_archive_has_it(world: World) -> None:
    a = await world.open("a", 1)
    calls: list[int] = []
    a.watchers.add(lambda: calls.append(a.view.next_offset))
    await appended(a, 0)
    world.objects["a"].is_cut = True
    before = a.view
    waiting = a.append_nowait(batch(1), txn_id="t1")
    await asyncio.sleep(1.0)
    assert a._log.view.next_offset == end_of(0, 1), "it is on disk"
    assert not waiting.done()
    assert (a.view.version, a.view.next_offset) == (before.version, before.next_offset)
    with pytest.raises(OffsetOutOfRange):
        await a.read(Offset(end_of(0) + 1))
    assert not (await a.read(Offset(end_of(0)))).data
    with pytest.raises(NotYet):
        await a.read(Offset(0), version=Version(before.version + 1))
    with pytest.raises(NotYet):
        await a.wait_for(offset=Offset(end_of(0)), timeout_seconds=0.1)
    assert await a.offset_for_timestamp(1001) is None
    assert len(await a.commits(Version(0), Version(100))) == before.version + 1
    assert not a.is_archived
    assert not a.is_idle
    world.objects["a"].is_cut = False
    assert (await waiting).offset_end == end_of(0, 1)
    assert calls[-1] == end_of(0, 1)
    assert (await a.wait_for(offset=Offset(end_of(0)), timeout_seconds=0)).next_offset == end_of(0, 1)
    assert world.archive().load().next_offset == end_of(0, 1)
    assert world.told.failures


@told
async def test_appends_that_come_together_share_a_slice(world: World) -> None:
    """L17 holds for the archive too."""
    a = await world.open("a", 1)
    await a.drain()
    slices = len(a.archived.slices)
    await asyncio.gather(*(a.append(batch(number)) for number in range(50)))
    assert len(a.archived.slices) - slices <= 2


@told
async def test_an_append_that_waits_too_long_for_the_archive_is_told_and_can_be_retried(world: World) -> None:
    """L13: the retry gets the place that the first one got."""
    a = await world.open("a", 1)
    world.objects["a"].is_cut = True
    started = world.clock.monotonic()
    with pytest.raises(ArchiveFailed):
        await a.append(batch(0), txn_id="t0")
    assert ACK_SECONDS_MAX <= world.clock.monotonic() - started < ACK_SECONDS_MAX + 10
    waiting = a.append_nowait(batch(0), txn_id="t0")
    await asyncio.sleep(0.1)
    world.objects["a"].is_cut = False
    assert (await waiting).offset_start == 0
    assert a.view.next_offset == end_of(0)


@told
async def test_what_waits_for_the_archive_is_bounded(world: World) -> None:
    a = await world.open("a", 1, options=replace(SMALL, waiting_bytes_max=3000))
    world.objects["a"].is_cut = True
    waiting: list[asyncio.Future[Appended]] = []
    with contextlib.suppress(QueueFull):
        while len(waiting) < 100:
            waiting.append(a.append_nowait(batch(len(waiting), padding_bytes=50)))
            await asyncio.sleep(0.01)
    assert 5 < len(waiting) < 40
    world.objects["a"].is_cut = False
    await asyncio.gather(*waiting)
    await a.append(batch(100))


@told
async def test_u14_an_owner_that_may_not_ack_acks_nothing(world: World) -> None:
    for broker, archiving in (("a", ARCHIVED), ("b", LOCAL)):
        world.may_ack = True
        log = await world.open(broker, 1 if broker == "a" else 2, archiving)
        await appended(log, 0)
        world.may_ack = False
        with pytest.raises(LeaseExpired, match=f"broker {broker}"):
            await log.append(batch(1), txn_id="t1")
        with pytest.raises(LeaseExpired):
            await log.append_nowait(batch(2))
        world.may_ack = True
        [again] = await appended(log, 1)
        assert again.offset_start == end_of(0)
        await log.drain()


@told
async def test_u14_an_owner_that_was_overtaken_stops_for_good_and_shows_nothing_new(world: World) -> None:
    a = await world.open("a", 1)
    await appended(a, 0)
    seen = a.view.next_offset
    b = await world.open("b", 2)
    [theirs] = await appended(b, 10)
    await appended(b, 11, 12)
    with pytest.raises(LogStopped) as stopped:
        await a.append(batch(1), txn_id="t1")
    assert isinstance(stopped.value.cause, StaleEpoch)
    assert isinstance(a.stopped and a.stopped.cause, StaleEpoch)
    with pytest.raises(LogStopped):
        await a.append(batch(2))
    with pytest.raises(LogStopped):
        await a.drain()
    with pytest.raises(LogStopped):
        await a.retain(Retention(bytes_max=0), Retention(bytes_max=0))
    assert a.view.next_offset == seen == theirs.offset_start, "what it has is not what the others have"
    assert await offsets_in(a) == list(range(seen))
    assert not a.is_archived
    await a.close()
    assert world.let_go("a")[0] == Fate.SET_ASIDE


@told
async def test_another_ack_level_takes_nothing_back(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    world.objects["a"].is_cut = True
    await appended(a, 0, 1)
    seen = a.view
    a.reconfigure(SMALL, ARCHIVED)
    assert (a.view.version, a.view.next_offset) == (seen.version, seen.next_offset)
    waiting = a.append_nowait(batch(2))
    await asyncio.sleep(0.5)
    assert (a.view.next_offset, waiting.done()) == (seen.next_offset, False)
    a.reconfigure(SMALL, LOCAL)
    assert a.view.next_offset == end_of(0, 1, 2), "readers need not wait any more"
    await appended(a, 3)
    world.objects["a"].is_cut = False
    await waiting
    a.reconfigure(SMALL, ARCHIVED)
    await appended(a, 4)
    assert a.is_archived


@told
async def test_u8_what_a_directory_has_beyond_the_archive_is_archived_before_it_is_opened(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    await appended(a, *range(5))
    seen = a.view
    await a.close()
    a = await world.open("a", 2, ARCHIVED)
    assert a.view.version >= seen.version
    assert a.view.next_offset == seen.next_offset
    assert world.archive().load().next_offset == seen.next_offset


# When the log goes to its archive


@told
async def test_slices_go_by_size_and_by_age_and_each_is_told(world: World) -> None:
    a = await world.open("a", 1, Archiving(archive_bytes=3000, archive_seconds=60.0))
    for number in range(4):
        await a.append(batch(number, padding_bytes=50))
    await asyncio.sleep(30.0)
    assert a.archived.is_empty
    await asyncio.sleep(31.0)
    assert a.archived.next_offset == a.view.next_offset == end_of(*range(4)), "it was old enough"
    number = 4
    while a.archived.next_offset == end_of(*range(4)):
        await a.append(batch(number, padding_bytes=50))
        number += 1
    assert 5 < number < 40, "it was large enough"
    await a.close()
    assert [slice_.base for slice_ in world.told.added] == [slice_.base for slice_ in a.archived.slices]
    assert {slice_.object for slice_ in world.told.added} == {slice_.object for slice_ in a.archived.slices}


@told
async def test_u4_a_drained_log_is_whole_in_the_archive_with_its_state(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    for number in range(40):
        await a.append(batch(number, padding_bytes=60), txn_id=f"t{number}")
    await a.fsync_and_rotate()
    drained = await a.drain()
    assert (drained.next_offset, drained.version) == (a.view.next_offset, a.view.version)
    assert a.archived.slices[-1].state is not None
    assert a.is_archived
    version = a.archived.version
    assert await a.drain() == drained
    assert a.archived.version == version, "once is enough"
    assert world.let_go("b") == (Fate.NOTHING, ())
    await a.close()
    assert world.let_go("a") == (Fate.REMOVED, ())


@told
async def test_u4_a_drain_that_fails_says_so_and_is_done_by_the_next(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    await appended(a, *range(3))
    world.objects["a"].is_cut = True
    with pytest.raises(ArchiveFailed):
        await a.drain()
    assert not a.is_archived
    world.objects["a"].is_cut = False
    assert (await a.drain()).next_offset == end_of(*range(3))


@told
async def test_l12_the_disk_keeps_what_the_archive_has_not(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    world.objects["a"].is_cut = True
    for number in range(80):
        await a.append(batch(number, padding_bytes=60), txn_id=f"t{number}")
        await a.retain(Retention(bytes_max=0), Retention(bytes_max=0))
        await asyncio.sleep(0.01)
    assert a._log.view.start_offset == a.view.start_offset == 0
    world.objects["a"].is_cut = False
    await a.drain()
    await a.retain(Retention(), Retention(bytes_max=0))
    assert a._log.view.start_offset == a.view.next_offset
    assert await offsets_in(a) == list(range(a.view.next_offset))


@told
async def test_a_directory_with_what_is_nowhere_else_is_kept_when_it_is_let_go(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    await appended(a, 0, 1)
    await a.close()
    assert world.let_go("a") == (Fate.KEPT, ((0, end_of(0, 1)),))
    assert Path(world.directory("a")).exists()
    b = await world.open("b", 2)
    await appended(b, 5)
    assert world.let_go("a") == (Fate.SET_ASIDE, ((0, end_of(0, 1)),))
    assert world.let_go("a") == (Fate.NOTHING, ())


# Reading across both


@told
async def test_what_the_disk_no_longer_has_is_read_from_the_archive(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    for number in range(60):
        await a.append(batch(number, padding_bytes=60), txn_id=f"t{number}")
    await a.drain()
    await a.retain(Retention(), Retention(bytes_max=3000))
    await appended(a, *range(60, 63))
    local = a._log.view.start_offset
    assert 0 < local < a.view.next_offset
    assert (a.view.start_offset, await offsets_in(a)) == (0, list(range(a.view.next_offset)))
    with pytest.raises(OffsetOutOfRange):
        await a.read(Offset(a.view.next_offset + 1))
    for number in (0, 5, 59, 62):
        first = end_of(*range(number))
        assert await a.offset_for_timestamp(1000 + number) == first
    assert await a.offset_for_timestamp(9999) is None


@told
async def test_l14_old_versions_and_the_commit_feed_go_on_across_owners(world: World) -> None:
    ends: dict[int, int] = {}
    for epoch, broker in enumerate("aba", 1):
        log = await world.open(broker, epoch)
        for number in range(12):
            answer = await log.append(batch(number))
            ends[answer.version] = answer.offset_end
            await asyncio.sleep(0.01)  # checkpoints and clean-up have their turn
        await log.drain()
        await log.close()
    log = await world.open("c", 9)
    await log.drain()
    version = log.view.version
    commits = await log.commits(Version(0), Version(version + 1))
    assert [commit.version for commit in commits] == list(range(version + 1))
    for at, end in ends.items():
        found = await log.read(Offset(end), version=Version(at))
        assert (bytes(found.data), found.end_offset, found.version) == (b"", end, at)
        with pytest.raises(OffsetOutOfRange):
            await log.read(Offset(end + 1), version=Version(at))
        assert (await log.read(Offset(end - 1), version=Version(at))).next_offset == end
    with pytest.raises(NotYet):
        await log.read(Offset(0), version=Version(version + 1))


@told
async def test_l15_retention_takes_from_archive_and_disk_what_the_policy_no_longer_keeps(world: World) -> None:
    a = await world.open("a", 1)
    for number in range(30):
        await a.append(batch(number, padding_bytes=60), txn_id=f"t{number}")
    await asyncio.sleep(7 * 3600.0)
    await appended(a, *range(30, 33))
    await a.retain(Retention(age_seconds_max=3600.0))
    assert a.view.start_offset == a.archived.start_offset == end_of(*range(30))
    assert a._log.view.start_offset > 0
    assert sum(slice_.size > 0 for slice_ in world.told.gone) >= 1
    with pytest.raises(OffsetOutOfRange):
        await a.read(Offset(0))
    await a.close()
    b = await world.open("b", 2)
    assert (b.view.start_offset, b.view.next_offset) == (end_of(*range(30)), end_of(*range(33)))
    assert (await appended(b, 31))[0].offset_start == end_of(*range(31)), "it remembers what it no longer has"


@told
async def test_an_archive_that_is_asked_for_what_is_gone_from_disk_that_very_moment_has_it(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    for number in range(40):
        await a.append(batch(number, padding_bytes=60))
    await a.drain()
    read = a._log.read

    async def gone_meanwhile(offset: Offset, **options: object) -> object:
        a._log.read = read  # type: ignore[method-assign]
        await a.retain(Retention(), Retention(bytes_max=0))
        return await read(offset, **options)  # type: ignore[arg-type]

    a._log.read = gone_meanwhile  # type: ignore[method-assign, assignment]
    assert (await a.read(Offset(0))).start_offset == 0


# Ends


@told
async def test_l3_transactions_lose_to_whoever_commits_first(world: World) -> None:
    a = await world.open("a", 1)
    await appended(a, 0)
    one, other = a.append_transactional(batch(1)), a.append_transactional(batch(2))
    await one.commit()
    with pytest.raises(VersionConflict):
        await other.commit()
    assert (await other.commit(a.view.version)).offset_start == end_of(0, 1)


@told
async def test_a_log_that_is_closed_answers_those_who_wait(world: World) -> None:
    a = await world.open("a", 1)
    waiting = [a.append_nowait(batch(number)) for number in range(3)]
    await a.close()
    assert [(await future).offset_start for future in waiting] == [0, 1, 3]
    with pytest.raises(LogClosed):
        await a.append(batch(3))
    with pytest.raises(LogClosed):
        await a.wait_for(offset=Offset(99), timeout_seconds=1)
    b = await world.open("b", 2)
    world.objects["b"].is_cut = True
    lost = b.append_nowait(batch(3))
    until = asyncio.create_task(b.wait_for(offset=Offset(99), timeout_seconds=1000))
    await asyncio.sleep(0)
    await b.close()
    await b.close()
    with pytest.raises(LogClosed):
        await lost
    with pytest.raises(LogClosed):
        await until


@told
async def test_an_open_that_is_cancelled_leaves_a_log_that_can_be_opened(world: World) -> None:
    opening = asyncio.create_task(world.open("a", 1))
    for _ in range(3):
        await asyncio.sleep(0)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await asyncio.sleep(1.0)
    a = await world.open("a", 2)
    assert (await appended(a, 0))[0].offset_start == 0
