"""What is remembered of txn_ids is stored once, beside the checkpoints that name it, and with the archive's states."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c

from sulina.core.log.commit import Checkpoint, checkpoint_version, decode, encode
from sulina.core.log.log_state import Appended, MemoryLimits
from sulina.core.log.publish_request import PublishRequest
from sulina.core.log.resume import Stamp
from sulina.core.log.txn_memory import TxnLimits
from sulina.core.log.txn_run import is_run_name
from sulina.errors import CorruptCommit, CorruptLog, QueueFull, SulinaError, TxnMemoryFull
from sulina.failpoints import no_failpoints
from sulina.storage.archive import ORPHAN_SECONDS, Archive, NewSlice
from sulina.storage.directory_log import DirectoryLog, LogOptions
from sulina.storage.files import VolatileFiles
from sulina.storage.partition_directory import seed
from sulina.storage.partition_log import PartitionLog
from sulina.storage.slicing import next_slice
from sulina.testing.clock import VirtualClock
from sulina.testing.files import SimulatedFiles
from sulina.types import Epoch
from tests.support.crash_world import DIRECTORY, OPTIONS
from tests.support.ledger import append_of, batch
from tests.support.objects import MemoryObjects

COMMITS = f"{DIRECTORY}/_delta_log"
RUN = 10
TXNS = TxnLimits(run_txn_ids_max=RUN)
SMALL = replace(OPTIONS, memory=MemoryLimits(txns=TXNS), epoch=Epoch(1))
DAY = 24 * 3600.0


class Counted(SimulatedFiles):
    """Knows how often each name was given."""

    def __init__(self) -> None:
        super().__init__()
        self.linked: list[str] = []

    def link(self, source: str, target: str) -> None:
        super().link(source, target)
        self.linked.append(target.rpartition("/")[2])


def opened(files: SimulatedFiles, clock: VirtualClock, options: LogOptions = SMALL) -> DirectoryLog:
    log = DirectoryLog(DIRECTORY, files=files, clock=clock, options=options)
    log.open()
    return log


def published(log: DirectoryLog, number: int) -> Appended | SulinaError:
    [answer] = log.append([append_of(number, txn_id=f"t{number}")])
    return answer


def filled(log: DirectoryLog, numbers: range) -> list[Appended | SulinaError]:
    answers = []
    for number in numbers:
        answers.append(published(log, number))
        log.checkpoint()
    return answers


def runs(files: SimulatedFiles) -> list[str]:
    names = (path.rpartition("/")[2] for path in files.paths())
    return sorted(name for name in names if is_run_name(name))


def newest_checkpoint(files: SimulatedFiles) -> str:
    return max(path for path in files.paths() if checkpoint_version(path.rpartition("/")[2]) is not None)


# In a directory


def test_every_txn_id_is_known_after_the_log_was_opened_again_l13() -> None:
    files, clock = Counted(), VirtualClock()
    log = opened(files, clock)
    answers = filled(log, range(95))
    log.close()
    again = opened(files, clock)
    assert [published(again, number) for number in range(95)] == answers
    assert again.commits.state.txns.count == 95


def test_a_run_is_stored_once_whatever_checkpoints_name_it_l13() -> None:
    files = Counted()
    filled(opened(files, VirtualClock()), range(200))
    stored = [name for name in files.linked if is_run_name(name)]
    assert len(stored) == len(set(stored)) == len(runs(files)) == 20


def test_a_checkpoint_does_not_grow_with_what_is_remembered_l11_l13() -> None:
    files = Counted()
    log = opened(files, VirtualClock(), replace(SMALL, memory=MemoryLimits(txns=TxnLimits(run_txn_ids_max=100))))
    sizes = []
    for first in range(0, 2000, 500):
        for number in range(first, first + 500):
            published(log, number)
        checkpoint = msgspec.structs.replace(log.commits.take_checkpoint(), segments=())
        sizes.append(len(encode(checkpoint)))
    assert sizes[-1] - sizes[0] < 15 * 100, "a name for each run of 100"


def test_runs_whose_time_is_over_are_removed_l13() -> None:
    files, clock = Counted(), VirtualClock()
    log = opened(files, clock)
    filled(log, range(95))
    assert len(runs(files)) == 9
    clock.advance(901)
    filled(log, range(100, 135))
    assert len(runs(files)) == 3
    assert log.commits.state.txns.count == 35
    answer = published(log, 0)
    assert isinstance(answer, Appended)
    assert answer.version > 100, "it is written again"


def test_what_another_writer_left_is_removed_with_the_first_clean_up_l13() -> None:
    files, clock = Counted(), VirtualClock()
    log = opened(files, clock)
    filled(log, range(95))
    log.close()
    clock.advance(901)
    log = opened(files, clock)
    published(log, 95)  # which counts a minute, and measures from here on
    clock.advance(901)
    filled(log, range(200, 225))
    assert len(runs(files)) == 2


def test_a_clock_that_is_two_days_ahead_makes_no_log_forget_l13() -> None:
    files = Counted()
    log = opened(files, VirtualClock())
    answers = filled(log, range(20))
    log.close()
    ahead = VirtualClock(VirtualClock().now() + 2 * DAY)
    log = opened(files, ahead)
    assert filled(log, range(20, 25))
    assert [published(log, number) for number in range(20)] == answers
    ahead.advance(838)  # what is measured counts, and a minute for the time between
    assert published(log, 0) == answers[0]
    ahead.advance(3)
    assert published(log, 0) != answers[0]


@pytest.mark.parametrize("damage", ["flipped", "removed"])
def test_a_log_whose_txn_ids_are_damaged_does_not_open_and_says_which_file_l11(damage: str) -> None:
    files, clock = Counted(), VirtualClock()
    log = opened(files, clock)
    filled(log, range(95))
    log.close()
    name = runs(files)[3]
    if damage == "flipped":
        files.flip_bit(f"{COMMITS}/{name}", 100)
    else:
        files.remove(f"{COMMITS}/{name}")
    with pytest.raises((CorruptCommit, CorruptLog), match=name):
        opened(files, clock)


def test_a_run_that_only_the_newest_checkpoint_names_may_be_damaged_l11() -> None:
    """L11: the checkpoint before it opens the log."""
    files, clock = Counted(), VirtualClock()
    log = opened(files, clock)
    answers = filled(log, range(95))
    answers += [published(log, number) for number in range(95, 104)]
    log.commits.write_checkpoint(log.commits.take_checkpoint())
    log.close()
    files.flip_bit(f"{COMMITS}/{runs(files)[-1]}", 100)
    again = opened(files, clock)
    assert [published(again, number) for number in range(104)] == answers


def test_a_full_memory_of_txn_ids_has_room_again_though_nothing_was_committed_since_the_log_was_opened_l13() -> None:
    """L13: the log's time goes on from when it was opened, so no txn_id is refused for ever."""
    files, clock = Counted(), VirtualClock()
    options = replace(SMALL, memory=MemoryLimits(txns=TxnLimits(txn_ids_max=5)))
    log = opened(files, clock, options)
    assert all(isinstance(published(log, number), Appended) for number in range(5))
    log.close()
    log = opened(files, clock, options)
    assert not log.commits.state.txns.has_room(0, log.commits.log_ms(), options.memory.txns)
    clock.advance(901)
    assert log.commits.state.txns.has_room(0, log.commits.log_ms(), options.memory.txns)


def test_a_checkpoint_of_before_there_were_runs_is_opened_and_its_txn_ids_are_known_l11_l13() -> None:
    files, clock = Counted(), VirtualClock()
    log = opened(files, clock, replace(SMALL, memory=MemoryLimits()))
    answers = filled(log, range(50))
    log.close()
    path = newest_checkpoint(files)
    fields = msgspec.json.decode(files.read(path))
    for name in ("txn_runs", "log_ms", "crc"):
        fields.pop(name, None)
    fields["txns"] = [txn[:4] for txn in fields["txns"]]
    for origin in fields["origins"]:
        del origin["log_ms"]
    body = msgspec.json.encode(fields)[:-1]
    files.remove(path)
    file = files.create(path)
    file.write(0, [b'%b,"crc":%d}\n' % (body, crc32c(body))])
    file.sync()
    assert decode("c", files.read(path), Checkpoint).log_ms == 0
    again = opened(files, clock)
    assert [published(again, number) for number in range(50)] == answers


# In an archive


class SlowDeletes(MemoryObjects):
    """Lets something happen just before objects are deleted."""

    before_delete: Callable[[], object] | None = None

    def delete(self, paths: Sequence[str]) -> None:
        before, self.before_delete = self.before_delete, None
        if before is not None:
            before()
        super().delete(paths)


class Interrupting(VirtualClock):
    """Lets something happen when a sweep asks for the time: it has seen what is there, and has deleted nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupt: Callable[[], None] | None = None

    def monotonic(self) -> float:
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            interrupt()
        return super().monotonic()


class World:
    """A log in a directory, and its archive."""

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = clock or VirtualClock()
        self.store = SlowDeletes(self.clock)
        self.log = opened(SimulatedFiles(), self.clock)
        self.archive = self.opened()
        self.archive.claim(Epoch(1), "a", lambda _: "holder")
        self.number = 0

    def opened(self) -> Archive:
        archive = Archive(self.store, "topic", clock=self.clock)
        archive.load()
        return archive

    def archived(self, count: int, *, state: bool = True) -> None:
        for _ in range(count):
            published(self.log, self.number)
            self.number += 1
        new = next_slice(self.log, self.archive.view, state=self.log.commits.take_checkpoint() if state else None)
        assert new is not None
        self.archive.store(new)

    def runs(self) -> list[str]:
        return sorted(found.name for found in self.store.list("topic") if is_run_name(found.name))


def test_the_next_owner_knows_the_txn_ids_of_runs_too_l13() -> None:
    world = World()
    world.archived(35)
    world.archived(20, state=False)
    seed = world.opened().log_checkpoint(SMALL.memory)
    mine = world.log.commits.take_checkpoint()
    assert (seed.txns, seed.txn_runs, seed.log_ms) == (mine.txns, mine.txn_runs, mine.log_ms)
    assert sum(run.count for run in seed.txn_runs) + len(seed.txns) == 55


def test_the_archive_gets_a_run_once_also_from_an_owner_that_started_again_l13() -> None:
    world = World()
    world.archived(35)
    before = {name: world.store.held[f"topic/{name}"] for name in world.runs()}
    assert len(before) == 3
    world.clock.advance(1)
    world.archived(10)
    world.archive = world.opened()
    world.archive.claim(Epoch(1), "a", lambda _: "holder")
    world.archived(10)
    assert len(world.runs()) == 5
    assert {name: world.store.held[f"topic/{name}"] for name in before} == before, "put at another time"


def test_runs_that_the_newest_state_names_stay_and_the_others_are_swept_l13() -> None:
    world = World()
    world.archived(35)
    assert world.archive.sweep() == 0
    world.clock.advance(ORPHAN_SECONDS + 1)
    world.archived(25)  # which makes the log forget those before
    kept = {run.name for run in world.log.commits.take_checkpoint().txn_runs}
    assert not kept & set(world.runs()[:3])
    assert world.archive.sweep() == 0, "their hour begins when they are first seen and needed by nobody"
    world.clock.advance(ORPHAN_SECONDS + 1)
    assert world.archive.sweep() == 3
    assert set(world.runs()) == kept
    world.clock.advance(ORPHAN_SECONDS + 1)
    assert world.archive.sweep() == 0, "the newest state names them"
    assert world.opened().log_checkpoint(SMALL.memory).txn_runs == world.log.commits.take_checkpoint().txn_runs


@pytest.mark.parametrize("moment", ["put after the look", "added after the look", "put while others are deleted"])
def test_a_sweep_deletes_no_run_that_a_slice_counts_on_l13(moment: str) -> None:
    """L13: a run that was put for a slice that failed is an orphan, until the next state names it."""
    clock = Interrupting()
    world = World(clock)
    world.archived(5)
    for number in range(5, 25):
        published(world.log, number)

    def made() -> NewSlice:
        new = next_slice(world.log, world.archive.view, state=world.log.commits.take_checkpoint())
        assert new is not None
        return new

    failed = made()
    world.archive.put_state(failed)
    world.archive.end_upload(failed)
    assert world.archive.sweep() == 0, "its hour begins when it is first seen"
    clock.advance(ORPHAN_SECONDS + 1)
    new = made()

    def come() -> None:
        world.archive.put_data(new)
        world.archive.put_commits(new)
        world.archive.put_state(new)
        if moment == "added after the look":
            world.archive.add(new)

    other = threading.Thread(target=come)

    def come_beside() -> None:
        other.start()
        other.join(0.1)  # it waits for the sweep, or is through by then

    if moment == "put while others are deleted":
        world.store.before_delete = come_beside
    else:
        clock.interrupt = come
    world.archive.sweep()
    if other.ident is not None:
        other.join()
    if moment != "added after the look":
        world.archive.add(new)
    assert sum(run.count for run in world.opened().log_checkpoint(SMALL.memory).txn_runs) == 20


def test_without_a_run_an_archive_is_not_taken_over_l11() -> None:
    world = World()
    world.archived(35)
    name = world.runs()[1]
    world.store.delete([f"topic/{name}"])
    with pytest.raises(CorruptLog, match=name):
        world.opened().log_checkpoint()


def test_a_directory_that_begins_with_a_state_has_its_txn_ids_l13(tmp_path: Path) -> None:
    world = World()
    world.archived(35)
    directory, files = str(tmp_path / "log"), VolatileFiles()
    state = world.opened().log_checkpoint(SMALL.memory)
    seed(directory, Stamp(topic_id="t", holder="holder"), state, files=files, failpoints=no_failpoints)
    log = DirectoryLog(directory, files=files, clock=world.clock, options=SMALL)
    log.open()
    assert [published(log, number) for number in range(35)] == [published(world.log, number) for number in range(35)]
    assert log.view.next_offset == world.log.view.next_offset


# At the bound


async def test_a_new_txn_id_is_refused_at_once_so_that_nobody_passes_it_l13(tmp_path: Path) -> None:
    options = LogOptions(memory=MemoryLimits(txns=TxnLimits(txn_ids_max=3)))
    async with await PartitionLog.open(str(tmp_path / "log"), options=options) as log:
        waiting = [log.append_nowait(PublishRequest(batch(0), txn_id=f"t{number}")) for number in range(3)]
        with pytest.raises(TxnMemoryFull, match="the limit is 3: retry later"):
            log.append_nowait(PublishRequest(batch(0), txn_id="new"))
        answers = await asyncio.gather(*waiting)
        with pytest.raises(QueueFull) as refused:
            await log.append(batch(0), txn_id="new")
        assert refused.value.retryable
        assert await log.append(batch(0), txn_id="t0") == answers[0]
        assert (await log.append(batch(0))).offset_start == 3
        log.reconfigure(LogOptions(memory=MemoryLimits(txns=TxnLimits(txn_ids_max=4))))
        assert (await log.append(batch(0), txn_id="new")).offset_start == 4
