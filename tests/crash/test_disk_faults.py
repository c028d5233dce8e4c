"""L9: a disk that fails or is full stops the partition, loses nothing that was acknowledged, and goes on once repaired.

Real calls of a real process are made to fail by strace; a real file system is filled; and every single write and sync
of a workload fails once in a simulated one.
"""

import asyncio
import errno
import functools
import os
import random
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from sulina.core.log.log_state import Appended
from sulina.core.log.plan import Append
from sulina.core.log.publish_request import PublishRequest
from sulina.core.log.retention import Retention
from sulina.core.records.batch import split
from sulina.errors import LogStopped
from sulina.storage.directory_log import DirectoryLog
from sulina.storage.partition_log import PartitionLog
from sulina.testing import SimulatedFile, SimulatedFiles, VirtualClock
from sulina.types import Offset
from tests.support.children import SMALL, Numbers, Report, check, check_recovery, data_of, run_child, txn_of
from tests.support.ledger import records_in

APPENDS = 24
NO_SPACE = os.strerror(errno.ENOSPC)
IO_ERROR = os.strerror(errno.EIO)


@functools.cache
def why_no_strace() -> str | None:
    """Why calls of a child cannot be made to fail here; None when they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-qq", "-o", os.devnull, "true"], capture_output=True, text=True, timeout=30)
    return None if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()}"


def failing(calls: str, error: str, when: str) -> list[str]:
    """To run a process in which a call fails: the N-th of each thread, or `N+`, all from then on."""
    inject = f"inject={calls}:error={error}:when={when}"
    return ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={calls}", "-e", inject]


@pytest.fixture
def strace() -> None:
    if (reason := why_no_strace()) is not None:
        pytest.skip(f"{reason}; the simulated disk below covers it")


@pytest.mark.parametrize(
    ("calls", "error", "when", "says"),
    [
        pytest.param("fdatasync", "EIO", "2", IO_ERROR, id="EIO-on-the-first-sync-of-data"),
        pytest.param("fdatasync", "EIO", "3", IO_ERROR, id="EIO-on-the-first-sync-of-a-commit"),
        pytest.param("fdatasync", "EIO", "13", IO_ERROR, id="EIO-on-a-later-sync"),
        pytest.param("fdatasync", "EIO", "24", IO_ERROR, id="EIO-on-the-sync-of-a-checkpoint"),
        pytest.param("fsync", "EIO", "12", IO_ERROR, id="EIO-on-the-sync-of-the-commits-directory"),
        pytest.param("pwritev,pwritev2", "ENOSPC", "2", NO_SPACE, id="ENOSPC-on-data"),
        pytest.param("pwritev,pwritev2", "ENOSPC", "3", NO_SPACE, id="ENOSPC-on-a-commit"),
        pytest.param("pwritev,pwritev2", "ENOSPC", "4", NO_SPACE, id="ENOSPC-on-an-index"),
        pytest.param("link,linkat", "EIO", "9", IO_ERROR, id="EIO-on-the-link-of-a-commit"),
        pytest.param("unlink,unlinkat", "EIO", "9", IO_ERROR, id="EIO-on-removing-what-was-written-aside"),
    ],
)
def test_l9_a_call_that_fails_once_stops_the_partition_and_it_goes_on_when_reopened(
    strace: None, calls: str, error: str, when: str, says: str, tmp_path: Path
) -> None:
    report = Report()
    code, words = run_child("until_stopped", tmp_path / "log", report, under=failing(calls, error, when), count=APPENDS)
    assert code == 0, words
    check_stopped(report, says)
    assert report.event("reopened") is not None
    assert report.event("failed") is None
    assert not report.in_flight  # it was retried, and answered
    check_recovery(tmp_path / "log", report)


def test_l9_a_disk_that_fails_for_good_keeps_the_partition_stopped_until_it_is_repaired(
    strace: None, tmp_path: Path
) -> None:
    report = Report()
    under = failing("fdatasync", "EIO", "17+")
    code, words = run_child("until_stopped", tmp_path / "log", report, under=under, count=APPENDS)
    assert code == 0, words
    check_stopped(report, IO_ERROR)
    failed = report.event("failed")
    assert failed is not None, "it went on with a disk that fails"
    assert IO_ERROR in failed[1]
    assert len(report.ledger.acked) == 7
    check_recovery(tmp_path / "log", report)  # without strace: repaired


def check_stopped(report: Report, says: str) -> None:
    """The child's log said clearly why it stopped, refused everything after that, and still could be read."""
    stopped = report.event("stopped")
    assert stopped is not None, "the fault was not met"
    assert says in stopped[0]
    assert "open it again" in stopped[0]
    assert [event[1] for event in report.events if event[0] == "refused"] == [stopped[0]] * 3
    assert report.event("read") is not None


# A real file system that is full.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "sulina-test", str(place)], capture_output=True, text=True, timeout=30
    )
    if mounted.returncode != 0:
        pytest.skip(f"mount is not permitted here: {mounted.stderr.strip()}; the simulated disk below covers it")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=30)


def fill(place: Path, *, left_bytes: int) -> Path:
    """A file that takes all space but a little."""
    ballast = place / "ballast"
    with ballast.open("ab") as file:
        file.write(bytes(shutil.disk_usage(place).free - left_bytes))
    return ballast


@asynccontextmanager
async def opened_partition(directory: Path) -> AsyncIterator[PartitionLog]:
    # Commits are kept, so that they fill the disk.
    async with await PartitionLog.open(str(directory), options=replace(SMALL, versions_kept=10_000)) as log:
        yield log


async def append(log: PartitionLog, report: Report, numbers: Numbers) -> Appended:
    report.sent(numbers)
    appended = await log.append(data_of(numbers), txn_id=txn_of(numbers))
    report.acked(numbers, appended)
    return appended


async def test_l9_a_full_disk_stops_the_partition_and_it_goes_on_when_there_is_space(small_disk: Path) -> None:
    """L2, L5: nothing acknowledged is lost, reads go on, and the offsets continue where they were."""
    directory = small_disk / "log"
    report = Report()
    async with opened_partition(directory) as log:
        for number in range(10):
            await append(log, report, (number,))
        ballast = fill(small_disk, left_bytes=64 << 10)
        with suppress(LogStopped):
            for number in range(10, 200):
                await append(log, report, (number,))
        assert log.stopped is not None
        assert NO_SPACE in str(log.stopped)
        await refuse(log, 1000)
        await read_all(log, report)
    fill(small_disk, left_bytes=0)
    with pytest.raises(OSError, match=NO_SPACE):
        await PartitionLog.open(str(directory), options=SMALL)
    ballast.unlink()
    async with opened_partition(directory) as log:
        await read_all(log, report)
        for numbers in list(report.in_flight):
            await append(log, report, numbers)
        end = log.view.next_offset
        assert (await append(log, report, (300,))).offset_start == end
        await read_all(log, report)
    check_recovery(directory, report)


async def test_l9_many_at_once_on_a_full_disk_all_get_an_answer(small_disk: Path) -> None:
    """L17: a group shares the failure too. What was refused may be retried, and is there once (L13)."""
    directory = small_disk / "log"
    report = Report()
    async with opened_partition(directory) as log:
        await append(log, report, (0,))
        fill(small_disk, left_bytes=48 << 10)

        async def write(numbers: Numbers) -> None:
            with suppress(LogStopped):
                await append(log, report, numbers)

        for start in range(1, 400, 20):
            writes = [write((number,)) for number in range(start, start + 20)]
            async with asyncio.timeout(30):
                await asyncio.gather(*writes)
        assert log.stopped is not None
        assert NO_SPACE in str(log.stopped)
        assert report.in_flight
        await read_all(log, report)
    (small_disk / "ballast").unlink()
    check_recovery(directory, report)


async def refuse(log: PartitionLog, number: int) -> None:
    """At once, and again and again: the log does not try the disk any more."""
    for later in range(number, number + 5):
        with pytest.raises(LogStopped):
            async with asyncio.timeout(5):
                await log.append(data_of([later]))


async def read_all(log: PartitionLog, report: Report) -> None:
    records = []
    offset = log.view.start_offset
    while offset < log.view.next_offset:
        found = await log.read(offset, max_bytes=4096)
        records += records_in(found.data, from_offset=offset)
        offset = found.next_offset
    violations = report.ledger.violations(records, log.view.start_offset)
    assert not violations, violations


# A simulated disk, where every single call may be the one that fails.


class SimulatedRun:
    """A workload on a simulated disk, up to the end or to LogStopped."""

    def __init__(self, files: SimulatedFiles) -> None:
        self.files = files
        self.report = Report()
        self.log = DirectoryLog("/log", files=files, clock=VirtualClock(), options=SMALL)

    def run(self) -> LogStopped | OSError | None:
        """How it ended: None is well; OSError where it could not be opened."""
        try:
            self.work()
        except (LogStopped, OSError) as failure:
            return failure
        return self.log.stopped  # by a checkpoint: the next append would notice

    def work(self) -> None:
        self.log.open()
        for number in range(22):
            self.append((number,))
            if number == 15:
                self.log.rotate()
            if number in (8, 18):
                self.report.is_retaining = True
                self.log.retain(Retention(bytes_max=2500))
                self.report.start_offset, self.report.is_retaining = self.log.view.start_offset, False
        self.append(tuple(range(22, 34)))

    def append(self, numbers: Numbers) -> None:
        data = data_of(numbers)
        self.report.sent(numbers)
        [answer] = self.log.append([Append(PublishRequest(data, txn_id=txn_of(numbers)), split(data))])
        if not isinstance(answer, Appended):
            raise answer
        self.report.acked(numbers, answer)
        self.log.checkpoint()

    def check_stopped(self) -> None:
        """It refuses at once, without a call to the disk, and what was visible can still be read."""
        before = self.files.operations
        for numbers in ((900,), (901,)):
            data = data_of(numbers)
            [answer] = self.log.append([Append(PublishRequest(data), split(data))])
            assert isinstance(answer, LogStopped)
        with suppress(LogStopped):
            self.log.retain(Retention(before_offset=Offset(10_000)))
        self.log.checkpoint()
        assert self.files.operations == before
        check(self.log, self.report)

    def check_reopened(self, files: SimulatedFiles) -> None:
        report = self.report.copy()
        report.is_retaining = self.report.is_retaining
        again = SimulatedRun(files)
        again.report = report
        again.log.open()
        check(again.log, report)
        for numbers in [*report.in_flight, (800,), (801,)]:
            again.append(numbers)
        check(again.log, report)
        again.log.close()


def nth(number: int) -> Callable[[str], bool]:
    """Picks the N-th path that it is asked about."""
    seen = iter(range(1, number + 1))
    return lambda _: next(seen, None) == number


def fail_once(prepare: Callable[[SimulatedFiles, int], None]) -> int:
    """Run with the first call failing, then with the second, ... until none fails; how many did."""
    for number in range(1, 2000):
        files = SimulatedFiles()
        prepare(files, number)
        run = SimulatedRun(files)
        failure = run.run()
        if failure is None:
            return number - 1
        if isinstance(failure, OSError):
            assert run.log.view.version < 0, "only a log that is not open yet may raise it"
        else:
            assert run.log.stopped is not None
            assert failure.cause is run.log.stopped.cause
            run.check_stopped()
        run.log.close()
        run.check_reopened(files.kill())
        run.check_reopened(files.crash(random.Random(number)))
    raise AssertionError("the workload never came to its end")


def test_l9_whichever_sync_fails_the_partition_stops_and_nothing_acknowledged_is_lost() -> None:
    """Also after a power cut that follows: a failed sync is not retried as if it could succeed."""
    assert fail_once(lambda files, number: files.fail_sync(nth(number))) > 60


def test_l9_whichever_write_fails_the_partition_stops_and_nothing_acknowledged_is_lost() -> None:
    assert fail_once(lambda files, number: files.fail_write(nth(number), errno=errno.ENOSPC)) > 40


def test_l9_wherever_the_disk_is_full_the_partition_stops_and_goes_on_when_there_is_space() -> None:
    """The write that meets the limit is done in part."""
    stopped = 0
    for capacity_bytes in range(0, 40_000, 331):
        files = SimulatedFiles(capacity_bytes=capacity_bytes)
        run = SimulatedRun(files)
        failure = run.run()
        assert failure is None or NO_SPACE in str(failure)
        if isinstance(failure, LogStopped):
            stopped += 1
            run.check_stopped()
        run.log.close()
        files.capacity_bytes = None
        run.check_reopened(files.crash(random.Random(capacity_bytes)))
        run.check_reopened(files)
    assert stopped > 20


class CountedFiles(SimulatedFiles):
    """Remembers what it has opened."""

    def __init__(self) -> None:
        super().__init__()
        self.handles: list[SimulatedFile] = []

    def open(self, path: str) -> SimulatedFile:
        self.handles.append(super().open(path))
        return self.handles[-1]

    def create(self, path: str) -> SimulatedFile:
        self.handles.append(super().create(path))
        return self.handles[-1]

    def lock(self, path: str) -> SimulatedFile | None:
        if (handle := super().lock(path)) is not None:
            self.handles.append(handle)
        return handle

    def left_open(self) -> list[str]:
        return [handle.path for handle in self.handles if handle.is_open]


def test_l9_a_log_that_stopped_and_is_closed_holds_no_file() -> None:
    """Else a partition that is reopened until the disk is repaired uses up the descriptors of the process."""
    for number in range(1, 60):
        files = CountedFiles()
        files.fail_sync(nth(number))
        run = SimulatedRun(files)
        run.run()
        run.log.close()
        assert files.left_open() == [], f"sync {number}"


def test_l9_a_log_that_cannot_be_opened_holds_no_file() -> None:
    files = CountedFiles()
    run = SimulatedRun(files)
    assert run.run() is None
    run.log.close()
    files.fail_write(lambda path: path.endswith(".aside"), errno=errno.ENOSPC)
    with pytest.raises(OSError, match=NO_SPACE):
        SimulatedRun(files).log.open()
    assert files.left_open() == []
