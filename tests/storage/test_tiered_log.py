"""The log that spans a directory and an archive, and the brokers that take it over from each other."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sulina.core.log.commit import Commit
from sulina.core.log.log_state import Appended
from sulina.core.log.publish_request import PublishRequest
from sulina.core.log.retention import Retention
from sulina.errors import (
    ArchiveFailed,
    CorruptSegment,
    LeaseExpired,
    LogClosed,
    LogStopped,
    NotYet,
    OffsetOutOfRange,
    QueueFull,
    StaleEpoch,
    VersionConflict,
)
from sulina.storage.acks import ACK_SECONDS_MAX
from sulina.storage.partition_directory import Fate
from sulina.storage.tiered_log import Archiving
from sulina.types import Offset, Version
from tests.support.ledger import batch
from tests.support.takeover_world import Inline
from tests.support.tiered_world import (
    ARCHIVED,
    LOCAL,
    SMALL,
    World,
    appended,
    end_of,
    offsets_in,
    told,
)

# Acks that wait for the archive


@told
async def test_an_archived_append_is_answered_and_seen_when_the_archive_has_it(world: World) -> None:
    a = await world.open("a", 1)
    calls: list[int] = []
    a.watchers.add(lambda: calls.append(a.view.next_offset))
    await appended(a, 0)
    world.objects["a"].is_cut = True
    before = a.view
    waiting = a.append_nowait(PublishRequest(batch(1), txn_id="t1"))
    await asyncio.sleep(1.0)
    assert a.local.view.next_offset == end_of(0, 1), "it is on disk"
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
    waiting = a.append_nowait(PublishRequest(batch(0), txn_id="t0"))
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
            waiting.append(a.append_nowait(PublishRequest(batch(len(waiting), padding_bytes=50))))
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
            await log.append_nowait(PublishRequest(batch(2)))
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
    assert world.release("a")[0] == Fate.SET_ASIDE


@told
async def test_another_ack_level_takes_nothing_back(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    world.objects["a"].is_cut = True
    await appended(a, 0, 1)
    seen = a.view
    a.reconfigure(SMALL, ARCHIVED)
    assert (a.view.version, a.view.next_offset) == (seen.version, seen.next_offset)
    waiting = a.append_nowait(PublishRequest(batch(2)))
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
    assert world.release("b") == (Fate.NOTHING, ())
    await a.close()
    assert world.release("a") == (Fate.REMOVED, ())


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
async def test_u4_a_commit_whose_reply_was_lost_is_told_to_those_who_wait_for_it(world: World) -> None:
    """Nobody appends again: whoever looks at the archive next must tell them."""
    a = await world.open("a", 1, ARCHIVED)
    await appended(a, 0)
    a.archive.commit_log.commit = lost_reply(a.archive.commit_log.commit)  # type: ignore[method-assign]
    async with asyncio.timeout(10.0):
        await appended(a, 1)
    assert len(world.told.failures) == 1
    assert a.view.next_offset == a.archived.next_offset == end_of(0, 1)
    assert [slice_.object for slice_ in world.told.added] == [slice_.object for slice_ in a.archived.slices]


def lost_reply(commit: Callable[..., Commit]) -> Callable[..., Commit]:
    """It is done once, and its caller is told otherwise."""
    lost: list[Commit] = []

    def commits(*arguments: Any, **named: Any) -> Commit:
        done = commit(*arguments, **named)
        if not lost:
            lost.append(done)
            raise ArchiveFailed(path="here", cause=OSError("no reply"))
        return done

    return commits


@told
async def test_l12_the_disk_keeps_what_the_archive_has_not(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    world.objects["a"].is_cut = True
    for number in range(80):
        await a.append(batch(number, padding_bytes=60), txn_id=f"t{number}")
        await a.retain(Retention(bytes_max=0), Retention(bytes_max=0))
        await asyncio.sleep(0.01)
    assert a.local.view.start_offset == a.view.start_offset == 0
    world.objects["a"].is_cut = False
    await a.drain()
    await a.retain(Retention(), Retention(bytes_max=0))
    assert a.local.view.start_offset == a.view.next_offset
    assert await offsets_in(a) == list(range(a.view.next_offset))


@told
async def test_a_directory_with_what_is_nowhere_else_is_kept_when_it_is_released(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    await appended(a, 0, 1)
    await a.close()
    assert world.release("a") == (Fate.KEPT, ((0, end_of(0, 1)),))
    assert Path(world.directory("a")).exists()
    b = await world.open("b", 2)
    await appended(b, 5)
    assert world.release("a") == (Fate.SET_ASIDE, ((0, end_of(0, 1)),))
    assert world.release("a") == (Fate.NOTHING, ())


# Reading across both


@told
async def test_what_the_disk_no_longer_has_is_read_from_the_archive(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    for number in range(60):
        await a.append(batch(number, padding_bytes=60), txn_id=f"t{number}")
    await a.drain()
    await a.retain(Retention(), Retention(bytes_max=3000))
    await appended(a, *range(60, 63))
    local = a.local.view.start_offset
    assert 0 < local < a.view.next_offset
    assert (a.view.start_offset, await offsets_in(a)) == (0, list(range(a.view.next_offset)))
    with pytest.raises(OffsetOutOfRange):
        await a.read(Offset(a.view.next_offset + 1))
    for number in (0, 5, 59, 62):
        first = end_of(*range(number))
        assert await a.offset_for_timestamp(1000 + number) == first
    assert await a.offset_for_timestamp(9999) is None


@told
async def test_u10_the_epochs_of_a_log_are_known_across_owners_disks_and_what_was_given_up(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    await appended(a, *range(4))
    await a.drain()
    kept = a.view.next_offset
    await appended(a, *range(4, 9))
    lost = a.view.next_offset
    assert a.epochs.continuation(lost, 1) is None
    b = await world.open("b", 3, LOCAL)  # a is gone, and what it had not archived is given up
    assert [b.epochs.continuation(offset, 1) for offset in (kept, kept + 1, lost)] == [None, kept, kept]
    await appended(b, *range(10, 30))
    grown = b.view.next_offset
    assert grown > lost
    assert [b.epochs.continuation(offset, 1) for offset in (kept, kept + 1, lost, grown)] == [None, kept, kept, kept]
    assert b.epochs.continuation(grown, 3) is None
    await b.drain()
    await b.retain(Retention(), Retention(bytes_max=0))
    c = await world.open("c", 4, LOCAL)
    assert [c.epochs.continuation(lost, 1), c.epochs.continuation(grown, 3)] == [kept, None]


@told
async def test_l8_what_the_disk_has_lost_is_read_from_the_archive(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    await appended(a, *range(4))
    await a.drain()
    await appended(a, 4)
    end = a.view.next_offset
    path = Path(world.directory("a"), a.view.segments[0].name)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert (await a.read(Offset(0))).start_offset == 0
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptSegment):
        await a.read(Offset(end - 1))


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


class SlowReaders(Inline):
    """Let others work on the loop before the first reads of an archive."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.calls = self.slow_calls = 0
        self._work = work

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        answer: Future[Any] = Future()

        async def run() -> None:
            await self._work()
            answer.set_result(function(*arguments, **named))

        self.calls += 1
        if self.calls > self.slow_calls:
            return super().submit(function, *arguments, **named)
        self._running = asyncio.get_running_loop().create_task(run())
        return answer


@told
async def test_l14_the_commit_feed_is_whole_also_if_the_disk_cleans_up_while_the_archive_is_asked(world: World) -> None:
    async def publish(count: int) -> None:
        for number in range(count):
            await log.append(batch(number))
            await asyncio.sleep(0.01)  # checkpoints and clean-up have their turn

    readers = SlowReaders(lambda: publish(30))
    world.archive_readers = readers
    log = await world.open("a", 1)
    await publish(60)
    end = Version(log.view.version + 1)
    readers.calls, readers.slow_calls = 0, 3
    commits = await log.commits(Version(0), end)
    assert readers.calls > 1, "the disk has cleaned up meanwhile"
    assert [commit.version for commit in commits] == list(range(end))


@told
async def test_l15_retention_takes_from_archive_and_disk_what_the_policy_no_longer_keeps(world: World) -> None:
    a = await world.open("a", 1)
    for number in range(30):
        await a.append(batch(number, padding_bytes=60), txn_id=f"t{number}")
    await asyncio.sleep(7 * 3600.0)
    await appended(a, *range(30, 33))
    await a.retain(Retention(age_seconds_max=3600.0))
    assert a.view.start_offset == a.archived.start_offset == end_of(*range(30))
    assert a.local.view.start_offset > 0
    assert sum(slice_.size > 0 for slice_ in world.told.gone) >= 1
    with pytest.raises(OffsetOutOfRange):
        await a.read(Offset(0))
    await a.close()
    b = await world.open("b", 2)
    assert (b.view.start_offset, b.view.next_offset) == (end_of(*range(30)), end_of(*range(33)))
    assert (await appended(b, 31))[0].offset_start == end_of(*range(31)), "it remembers what it no longer has"


@told
async def test_l15_retention_takes_no_more_than_the_policy_says(world: World) -> None:
    """Also where much of the log waits to be archived, and nothing in the archive may go before that."""
    a = await world.open("a", 1, LOCAL)
    for number in range(8):
        await a.append(batch(number, padding_bytes=60))
        await a.catch_up()
    for number in range(8, 30):
        await a.append(batch(number, padding_bytes=60))
    total = sum(segment.size for segment in a.view.segments)
    await a.retain(Retention(bytes_max=total - 500))
    kept = sum(slice_.size for slice_ in a.archived.slices)
    assert kept + a.uploader.waiting_bytes <= total - 500
    [*_, last] = world.told.gone
    assert kept + a.uploader.waiting_bytes + last.size > total - 500


@told
async def test_an_archive_that_is_asked_for_what_is_gone_from_disk_that_very_moment_has_it(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    for number in range(40):
        await a.append(batch(number, padding_bytes=60))
    await a.drain()
    read = a.local.read

    async def gone_meanwhile(offset: Offset, **options: object) -> object:
        a.local.read = read  # type: ignore[method-assign]
        await a.retain(Retention(), Retention(bytes_max=0))
        return await read(offset, **options)  # type: ignore[arg-type]

    a.local.read = gone_meanwhile  # type: ignore[method-assign, assignment]
    assert (await a.read(Offset(0))).start_offset == 0


# Ends


@told
async def test_l3_transactions_lose_to_the_first_commit(world: World) -> None:
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
    waiting = [a.append_nowait(PublishRequest(batch(number))) for number in range(3)]
    await a.close()
    assert [(await future).offset_start for future in waiting] == [0, 1, 3]
    with pytest.raises(LogClosed):
        await a.append(batch(3))
    with pytest.raises(LogClosed):
        await a.wait_for(offset=Offset(99), timeout_seconds=1)
    b = await world.open("b", 2)
    world.objects["b"].is_cut = True
    lost = b.append_nowait(PublishRequest(batch(3)))
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
