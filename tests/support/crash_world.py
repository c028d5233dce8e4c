"""A partition log in a simulated world: a seeded workload, a crash somewhere in it, and what a disk may hold then.

`crash_images(seed)` runs one workload and yields logs' file systems as crashes may leave them, each with what must be
found in it. `broken_promises` opens an image and says what is wrong with it.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sulina.core.log.log_state import Appended, MemoryLimits
from sulina.core.log.retention import Retention, expired
from sulina.core.log.segment import SegmentLimits
from sulina.core.log.txn_memory import TxnLimits
from sulina.errors import Corrupt
from sulina.storage.commit_store import DirectoryCommits
from sulina.storage.directory_log import COMMITS_DIRECTORY, DirectoryLog, LogOptions
from sulina.testing.clock import VirtualClock
from sulina.testing.files import Crashed, SimulatedFiles
from sulina.types import Epoch, Offset
from tests.support.ledger import Ledger, append_of, contents

DIRECTORY = "/data/topic=default.orders-part=0"
PADDING_BYTES = 150
ACTIONS_MAX = 60
OPTIONS = LogOptions(
    writer_id="simulated",
    segments=SegmentLimits(segment_bytes_max=2500, index_interval_bytes=400),
    spare_segments_max=1,
    versions_kept=5,
    memory=MemoryLimits(txns=TxnLimits(run_txn_ids_max=3)),
)

Prepare = Callable[[SimulatedFiles], None]


@dataclass(slots=True)
class Promises:
    """What was promised up to the crash."""

    ledger: Ledger = field(default_factory=lambda: Ledger(padding_bytes=PADDING_BYTES))
    start_max: Offset = Offset(0)  # the log may have been cut up to here
    version_min: int = -1
    twice: list[str] = field(default_factory=list)  # what went wrong before the crash


class World:
    """One workload on one file system."""

    def __init__(self, seed: int, prepare: Prepare | None = None, files: SimulatedFiles | None = None) -> None:
        self.rng = random.Random(seed)
        self.files = files or SimulatedFiles()
        self.clock = VirtualClock()
        self.promises = Promises()
        self.numbers = iter(range(1_000_000))
        self.epoch = 0
        if prepare is not None:
            prepare(self.files)

    def run(self) -> None:
        """Open the log and do things to it, until the world stops or there is nothing more to do."""
        log = self.opened(self.files)
        for _ in range(ACTIONS_MAX):
            self.clock.advance(1.0)
            action = self.rng.choices(
                [self.append, self.rotate, self.retain, self.claim, self.rival, self.reopen],
                weights=[30, 1, 2, 1, 2, 1],
            )[0]
            log = action(log) or log
            log.checkpoint()

    def opened(self, files: SimulatedFiles) -> DirectoryLog:
        log = DirectoryLog(DIRECTORY, files=files, clock=self.clock, options=OPTIONS)
        log.open()
        return log

    def append(self, log: DirectoryLog) -> None:
        ledger = self.promises.ledger
        numbers = [next(self.numbers) for _ in range(self.rng.randint(1, 4))]
        ledger.sent.update(numbers)
        appends = [append_of(number, txn_id=f"t{number}", padding_bytes=PADDING_BYTES) for number in numbers]
        if ledger.acked and self.rng.random() < 0.2:
            known = self.rng.choice(list(ledger.acked))
            appends.append(append_of(known, txn_id=f"t{known}", padding_bytes=PADDING_BYTES))
            numbers.append(known)
        for number, answer in zip(numbers, log.append(appends), strict=True):
            assert isinstance(answer, Appended), answer
            if ledger.acked.setdefault(number, answer) != answer:
                self.promises.twice.append(f"{number} was answered {ledger.acked[number]}, then {answer}")
        self.promises.version_min = log.view.version

    def rotate(self, log: DirectoryLog) -> None:
        log.rotate()

    def retain(self, log: DirectoryLog) -> None:
        retention = Retention(bytes_max=self.rng.randint(0, 9000), keep_from=log.view.next_offset)
        removals = expired(log.view.segments, retention, self.clock.now())
        end = removals[-1].offset_end if removals else Offset(0)
        if len(removals) >= len(log.view.segments) - 1:
            end = log.view.next_offset  # the newest may be sealed and go too
        self.promises.start_max = max(self.promises.start_max, end)
        log.retain(retention)

    def claim(self, log: DirectoryLog) -> None:
        log.claim(Epoch(log.epoch + 1))

    def rival(self, log: DirectoryLog) -> None:
        """Somebody who thinks that the version is still free."""
        store = DirectoryCommits(self.files, f"{DIRECTORY}/{COMMITS_DIRECTORY}")
        if store.put_if_absent(f"{log.view.version:020d}.json", b"{}\n"):
            self.promises.twice.append(f"version {log.view.version} was won twice")

    def reopen(self, log: DirectoryLog) -> DirectoryLog:
        log.close()
        return self.opened(self.files)


def crash_images(seed: int, images: int, prepare: Prepare | None = None) -> Iterator[tuple[SimulatedFiles, Promises]]:
    """Crash one workload at some operation, and yield what the disk may hold."""
    whole = World(seed, prepare)
    whole.run()
    rng = random.Random(seed)
    world = World(seed, prepare)
    world.files.stop_after(rng.randint(1, whole.files.operations), rng)
    try:
        world.run()
    except Crashed:
        pass
    else:
        raise AssertionError("the world did not stop")
    yield world.files.kill(), world.promises
    for _ in range(images - 1):
        yield world.files.crash(rng), world.promises


def broken_promises(files: SimulatedFiles, promises: Promises, seed: int) -> list[str]:
    """What is wrong with an image; nothing, if the log keeps its promises and goes on."""
    world = World(seed)
    world.numbers = iter(range(1_000_000, 2_000_000))
    ledger = promises.ledger
    wrong = list(promises.twice)
    try:
        log = world.opened(files)
        wrong += _look(log, promises)
        after = Ledger(set(ledger.sent), dict(ledger.acked), PADDING_BYTES)
        # What was in flight is sent again. Once it is acknowledged it must survive, although nothing new was written.
        wrong += _sent_again(log, after, sorted(ledger.sent - ledger.acked.keys()) + list(ledger.acked)[-1:])
        image = world.opened(files.crash(world.rng))
        wrong += _look(image, Promises(after, promises.start_max, promises.version_min))
        # It goes on with something new.
        number = next(world.numbers)
        after.sent.add(number)
        wrong += _sent_again(log, after, [number])
        log.checkpoint()
        log.close()
        log = world.opened(files.crash(world.rng))
        return wrong + _look(log, Promises(after, promises.start_max, promises.version_min))
    except Corrupt as error:
        return [*wrong, f"{type(error).__name__}: {error}"]


def _sent_again(log: DirectoryLog, ledger: Ledger, numbers: list[int]) -> list[str]:
    wrong: list[str] = []
    for number in numbers:
        (answer,) = log.append([append_of(number, txn_id=f"t{number}", padding_bytes=PADDING_BYTES)])
        assert isinstance(answer, Appended), answer
        if ledger.acked.setdefault(number, answer) != answer:
            wrong.append(f"{number} was answered {ledger.acked[number]}, after the crash {answer}")
    return wrong


def _look(log: DirectoryLog, promises: Promises) -> list[str]:
    wrong = promises.ledger.violations(contents(log), log.view.start_offset)
    if log.view.start_offset > promises.start_max:
        wrong.append(f"the log starts at {log.view.start_offset}, only {promises.start_max} may be gone")
    if log.view.version < promises.version_min:
        wrong.append(f"the log is at version {log.view.version}, {promises.version_min} was acknowledged")
    return wrong
