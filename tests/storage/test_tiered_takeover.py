"""Who goes on with a log, and from where: the directory, the archive, or nothing at all."""

import shutil
from pathlib import Path

import pytest

from sulina.core.log.log_state import Appended
from sulina.core.log.resume import How
from sulina.core.log.retention import Retention
from sulina.errors import (
    ArchiveFailed,
    CorruptLog,
    LogIncomplete,
    LogLocked,
    SequenceGap,
    StaleEpoch,
    StaleOrigin,
    VersionNotRetained,
)
from sulina.failpoints import Failpoint
from sulina.ports import Clock
from sulina.storage.partition_directory import Fate
from sulina.storage.partition_log import PartitionLog
from sulina.storage.tiered_log import TieredLog
from sulina.types import Epoch, Version
from tests.support.ledger import batch
from tests.support.tiered_world import LOCAL, PARTITION, SMALL, World, appended, end_of, offsets_in, sealed_at, told

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
        assert world.release(broker) == (Fate.REMOVED, ())
    versions = [answer.version for answer in answers]
    assert versions == sorted(set(versions))


# A producer's batches, of one record each: (producer id, its epoch, sequence)
FIRST = [(7, 0, 0), (7, 0, 1), (8, 2, 0), (7, 0, 2)]


async def produced(log: TieredLog, *batches: tuple[int, int, int]) -> list[Appended]:
    return [
        await log.append(batch(0, producer_id=producer, producer_epoch=epoch, base_sequence=sequence))
        for producer, epoch, sequence in batches
    ]


async def check_knows_producers(log: TieredLog, answers: list[Appended]) -> None:
    """The owner answers repeats as its predecessors did, and refuses what they would have refused."""
    end = log.view.next_offset
    assert await produced(log, *FIRST) == answers[:4]
    assert await log.append(batch(0), txn_id="a") == answers[4]
    assert log.view.next_offset == end
    with pytest.raises(SequenceGap):
        await produced(log, (7, 0, 4))
    with pytest.raises(StaleOrigin):
        await produced(log, (8, 1, 0))
    assert log.view.next_offset == end


@told
async def test_l13_a_producer_gets_its_first_answers_after_its_topic_has_moved(world: World) -> None:
    a = await world.open("a", 1)
    answers = await produced(a, *FIRST) + [await a.append(batch(0), txn_id="a")]
    assert [answer.offset_start for answer in answers] == list(range(5))
    await a.drain()
    await a.close()
    b = await world.open("b", 2)
    assert b.resumed.how is How.FROM_ARCHIVE
    await check_knows_producers(b, answers)
    [following] = await produced(b, (8, 2, 1))
    assert following.offset_start == 5
    await b.drain()
    await b.close()
    c = await world.open("c", 3)
    await check_knows_producers(c, answers)
    assert await produced(c, (8, 2, 1)) == [following]
    [last] = await produced(c, (7, 0, 3))
    assert last.offset_start == 6


@told
async def test_l13_a_producer_gets_its_first_answers_after_its_owner_has_died(world: World) -> None:
    """Nothing was drained: the new owner learns of producers from the commits in the archive, after its last state."""
    a = await world.open("a", 1)
    answers = await produced(a, *FIRST[:2])
    await a.drain()  # a state, and more after it
    answers += await produced(a, *FIRST[2:]) + [await a.append(batch(0), txn_id="a")]
    # It dies here: it is not closed, and another claims the partition.
    b = await world.open("b", 2)
    assert b.resumed.how is How.FROM_ARCHIVE
    await check_knows_producers(b, answers)
    [following] = await produced(b, (7, 0, 3))
    assert following.offset_start == 5
    await b.close()  # and dies: what it knew from others must be in the archive still
    c = await world.open("c", 3)
    assert await produced(c, *FIRST, (7, 0, 3)) == [*answers[:4], following]


class SetBack:
    """A clock that shows an hour less than the one that it is made of."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> float:
        return self._clock.now() - 3600.0

    def monotonic(self) -> float:
        return self._clock.monotonic()


@pytest.mark.parametrize("is_drained", [True, False], ids=["moved", "died"])
def test_l15_a_new_owner_whose_clock_is_behind_makes_no_record_older_than_those_before(
    tmp_path: Path, is_drained: bool
) -> None:
    """L15: retention goes by when a segment was written. The new owner learns the newest time from the archive."""

    async def story(world: World) -> None:
        a = await world.open("a", 1)
        await appended(a, 0)
        await a.drain()
        if not is_drained:
            await appended(a, 1)  # after the newest state of the log that the archive has
        newest_ms = a.local.directory_log.commits.state.newest_ms
        assert newest_ms == int(world.clock.now() * 1000)
        world.clock = SetBack(world.clock)  # type: ignore[assignment]
        b = await world.open("b", 2)
        assert b.resumed.how is How.FROM_ARCHIVE
        await appended(b, 2)
        (segment,) = b.local.view.segments
        assert segment.written_ms == newest_ms

    told(story)(tmp_path)


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
    assert sorted(path.name for path in Path(world.directory("a")).parent.glob("topic=*")) == [PARTITION]


@told
async def test_r10_records_of_an_epoch_that_another_directory_has_are_not_the_same(world: World) -> None:
    """R10: metadata store and archive were both restored, so one epoch was used twice: nothing is thrown away."""
    a = await world.open("a", 1, LOCAL)
    await appended(a, *range(6))
    mine = a.view.next_offset
    await a.close()
    world.store.delete_all(f"{PARTITION}/t1")
    b = await world.open("b", 1)
    await appended(b, *range(20, 30))
    left = world.release("a")
    assert left == (Fate.SET_ASIDE, ((0, mine),))


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
        with pytest.raises(LogIncomplete, match="sealed it at offset"):
            await world.open(broker, 2, sealed=sealed_at(drained.next_offset + 1, drained.version))
    assert world.archive().load().epoch == 1, "nobody is fenced by one that cannot serve"
    b = await world.open("b", 2, sealed=sealed_at(drained.next_offset, drained.version))
    assert b.view.next_offset == drained.next_offset


@told
async def test_u7_a_topic_whose_only_complete_copy_is_gone_stays_closed(world: World) -> None:
    a = await world.open("a", 1, LOCAL)
    await appended(a, *range(4))
    await a.close()
    with pytest.raises(LogIncomplete, match="only the disk of broker"):
        await world.open("b", 2, LOCAL, must_resume=True)
    shutil.rmtree(world.directory("a"))
    for epoch in (1, 2):
        with pytest.raises(LogIncomplete, match="only the disk of broker"):
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
        with pytest.raises(CorruptLog, match="move the directory away"):
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
async def test_u7_a_directory_that_is_taken_away_while_it_is_opened_is_not_started_again(world: World) -> None:
    a = await world.open("a", 1)
    await appended(a, *range(4))
    await a.drain()
    await a.close()

    def take_away(step: Failpoint) -> None:
        if step is Failpoint.RESUME_DURABLE:
            assert world.release("b") == (Fate.REMOVED, ())  # by mistake: nobody else has it yet

    with pytest.raises(CorruptLog, match="begins at offset 0"):
        await world.open("b", 2, failpoints=take_away)
    b = await world.open("b", 3)
    assert (b.resumed.leftover.fate, b.view.next_offset) == (Fate.SET_ASIDE, end_of(*range(4)))


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
