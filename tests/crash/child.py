"""A process that writes a log, tells what it does, and dies where it is told to. See `tests/support/children.py`."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sulina.clock import SystemClock
from sulina.core.log.commit import CHECKPOINT_EVERY, Claim
from sulina.core.log.retention import Retention
from sulina.errors import LogStopped, SulinaError, VersionConflict
from sulina.failpoints import Failpoint
from sulina.storage.commit_log import CommitLog
from sulina.storage.commit_store import DirectoryCommits
from sulina.storage.directory_log import COMMITS_DIRECTORY, NoMetrics
from sulina.storage.files import OsFiles
from sulina.storage.partition_log import LogThreads, PartitionLog
from sulina.types import Epoch, Version
from tests.support.children import SMALL, data_of, txn_of
from tests.support.ledger import records_in

CHECKPOINT_SECONDS_MAX = 30.0
WRITERS = 6


def say(*event: Any) -> None:
    """One line, in one write: whole, or not there."""
    os.write(1, json.dumps(event).encode() + b"\n")


class Hook:
    """Counts the steps, ends the process at one of them, and lets a rival commit in between when told to."""

    def __init__(self, directory: str, kill: list[Any] | None) -> None:
        self.counts: Counter[Failpoint] = Counter()
        self.has_rival = False  # before the next commit
        self._kill = (Failpoint(kill[0]), int(kill[1])) if kill else None
        self._lock = threading.Lock()
        self._directory = directory

    def __call__(self, step: Failpoint) -> None:
        with self._lock:
            self.counts[step] += 1
            if (step, self.counts[step]) == self._kill:
                say("killed", *self._kill)
                os.kill(os.getpid(), signal.SIGKILL)
        if step is Failpoint.APPEND_SYNCED and self.has_rival:
            self.has_rival = False
            rival = commit_log(self._directory, "rival")
            rival.commit([], epoch=rival.state.epoch)


def commit_log(directory: str, writer: str) -> CommitLog:
    commits = DirectoryCommits(OsFiles(), f"{directory}/{COMMITS_DIRECTORY}")
    log = CommitLog(commits, clock=SystemClock(), writer=writer)
    log.load()
    return log


class Restless(SystemClock):
    """By this clock a checkpoint takes no time, so a log does not rest from it: we want many."""

    __slots__ = ()

    def monotonic(self) -> float:
        return 0.0


class Checkpoints(NoMetrics):
    """Tells when a checkpoint is complete."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        self._version = 0

    def checkpointed(self, *, seconds: float, files_removed: int) -> None:
        self._loop.call_soon_threadsafe(self._done.set)

    async def wait(self, version: Version) -> None:
        """Wait for the checkpoint of a version that we have just committed, if it has one."""
        if version % CHECKPOINT_EVERY == 0 and version > self._version:
            await asyncio.wait_for(self._done.wait(), CHECKPOINT_SECONDS_MAX)
            self._done.clear()
            self._version = version


def check_abort(log: PartitionLog) -> None:
    """L6: nothing of an append that lost its commit is left, and nothing else is gone."""
    segments = log.view.segments
    names = {
        name
        for name in os.listdir(log.directory_log.directory)
        if name.endswith(".log") and not name.startswith("spare-")
    }
    assert names == {segment.name for segment in segments}, names
    if not segments[-1].sealed:
        size = os.stat(f"{log.directory_log.directory}/{segments[-1].name}").st_size
        assert size == segments[-1].size, f"{segments[-1]} has {size} bytes"


async def append(log: PartitionLog, *numbers: int) -> Version:
    """Append, retry on conflict, and tell of it."""
    data = data_of(numbers)
    say("sent", numbers)
    while True:
        try:
            appended = await log.append(data, txn_id=txn_of(numbers))
        except VersionConflict:
            say("conflict")
            check_abort(log)
            continue
        say("acked", numbers, appended.offset_start, appended.offset_end, appended.version)
        return appended.version


async def retain(log: PartitionLog, bytes_max: int) -> Version:
    say("retaining")
    await log.retain(Retention(bytes_max=bytes_max))
    say("retained", log.view.start_offset)
    return log.view.version


async def every_step(directory: str, first: int, kill: list[Any] | None = None) -> None:
    """Every step of an open log, more than once, always in the same order: one thing after the other."""
    hook, checkpoints = Hook(directory, kill), Checkpoints()
    log = await PartitionLog.open(directory, options=SMALL, clock=Restless(), metrics=checkpoints, failpoints=hook)
    numbers = itertools.count(first)

    async def singles(count: int) -> None:
        for _ in range(count):
            await checkpoints.wait(await append(log, next(numbers)))

    async def rotate() -> None:
        await checkpoints.wait((await log.fsync_and_rotate()).version)

    async def spanning() -> None:
        """More than two segments hold, all in one append."""
        await checkpoints.wait(await append(log, *itertools.islice(numbers, 12)))

    await singles(8)
    await rotate()
    await singles(1)
    await checkpoints.wait(await retain(log, 1500))  # some files are deleted, one becomes a spare
    await singles(6)
    hook.has_rival = True
    await singles(1)  # loses its commit inside of a segment
    hook.has_rival = True
    await spanning()  # inside of one, and in two new ones
    await rotate()
    hook.has_rival = True
    await singles(1)  # in a new one
    await singles(8)
    await checkpoints.wait(await retain(log, 3000))
    await singles(6)
    await spanning()
    await log.close()
    say("done", hook.counts)


async def torn(directory: str, first: int) -> None:
    """Dies with bytes past the last commit, two segments without a commit, and a commit aside."""
    hook = Hook(directory, [Failpoint.COMMIT_ASIDE_SYNCED, 2])
    # One after the other, so that the data is there when the commit is.
    threads = LogThreads(ThreadPoolExecutor(2), ThreadPoolExecutor(1))
    log = await PartitionLog.open(directory, options=SMALL, threads=threads, failpoints=hook)
    await append(log, first)
    await append(log, *range(first + 1, first + 13))


async def under_load(directory: str, first: int, retry: list[list[int]]) -> None:
    """Many appends at once, retention and checkpoints beside them, until somebody kills us."""
    say("begun")
    log = await PartitionLog.open(directory, options=SMALL, clock=Restless())
    numbers = itertools.count(first)

    async def write() -> None:
        while True:
            await append(log, *itertools.islice(numbers, 1 + next(lengths) % 3))

    async def remove() -> None:
        while True:
            await retain(log, 40_000)
            await asyncio.sleep(0.005)

    lengths = itertools.count()
    async with asyncio.TaskGroup() as tasks:
        for old in retry:
            tasks.create_task(append(log, *old))
    say("retried", log.view.version)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(WRITERS):
            tasks.create_task(write())
        tasks.create_task(remove())


async def until_stopped(directory: str, count: int) -> None:
    """Append until the disk fails; see that the log has stopped and still can be read; open it again and go on."""
    # One thread: strace counts the calls of each thread.
    one = ThreadPoolExecutor(max_workers=1)
    threads = LogThreads(one, one)
    log = await PartitionLog.open(directory, options=SMALL, threads=threads)
    number = 0
    with contextlib.suppress(LogStopped):
        while number < count:
            await append(log, number)
            number += 1
    if log.stopped is not None:
        say("stopped", str(log.stopped), str(log.stopped.cause))
    for later in range(3 if log.stopped is not None else 0):
        try:
            await log.append(data_of([count + later]))
        except LogStopped as stopped:
            say("refused", str(stopped))
    read, offset = 0, log.view.start_offset
    while offset < log.view.next_offset:
        found = await log.read(offset)
        read, offset = read + len(records_in(found.data)), found.next_offset
    say("read", read)
    await log.close()
    try:
        log = await PartitionLog.open(directory, options=SMALL, threads=threads)
        say("reopened", log.view.version, log.view.next_offset)
        for again in range(number, number + 12):  # the first is a retry
            await append(log, again)
        await log.close()
    except (OSError, SulinaError) as error:
        say("failed", type(error).__name__, str(error))
    say("done", {})


async def race(directory: str, versions: int) -> None:
    """Win as many versions of a commit log as we can, up to the last one."""
    log = commit_log(directory, f"racer-{os.getpid()}")
    say("ready")
    sys.stdin.readline()
    won: list[int] = []
    conflicts = 0
    while log.state.version < versions:
        epoch = log.state.epoch
        claim = Claim(epoch=Epoch(epoch + 1), broker_id=str(os.getpid()))
        try:
            # Now and then a new owner, so that a winner's commit is not what the losers would have written.
            is_claim = log.state.version % 3 == 0
            commit = log.commit([claim] if is_claim else [], epoch=claim.epoch if is_claim else epoch)
        except VersionConflict:
            conflicts += 1
            continue
        won.append(commit.version)
        if commit.checkpoint_hint:
            log.write_checkpoint(log.take_checkpoint())
    say("won", won, conflicts)


WORK = {work.__name__: work for work in (every_step, torn, under_load, until_stopped, race)}


def main() -> None:
    """Do the work that the first argument orders."""
    order = json.loads(sys.argv[1])
    asyncio.run(WORK[order.pop("work")](**order))


if __name__ == "__main__":
    main()
