"""Processes that write a log and die, and what must hold in the directory they leave.

`crash/child.py` is the process. It tells on its standard output, one line of JSON each, what it is about to do and what
was acknowledged; a line is one write to a pipe, so it is whole even if the process is killed right after it.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from sulina.clock import SystemClock
from sulina.core.log.commit import commit_version
from sulina.core.log.log_state import Appended, MemoryLimits
from sulina.core.log.plan import Append
from sulina.core.log.publish_request import PublishRequest
from sulina.core.log.segment import SegmentLimits, index_name
from sulina.core.log.txn_memory import TxnLimits
from sulina.core.records.batch import split
from sulina.storage.directory_log import COMMITS_DIRECTORY, LOCK_FILE, DirectoryLog, LogOptions
from sulina.storage.files import OsFiles
from sulina.types import Offset, Version
from tests.support.fork_server import ForkServer
from tests.support.ledger import Ledger, batch, contents, records_of

ROOT = Path(__file__).parent.parent.parent
CHILD = ROOT / "tests" / "crash" / "child.py"
TIMEOUT_SECONDS = 60.0
PADDING_BYTES = 80
REPEATS = 40  # appends that are sent once more after a crash

# Everything is small, so that a short run rolls, recycles, checkpoints and cleans up.
SMALL = LogOptions(
    broker_id="crash",
    segments=SegmentLimits(segment_bytes_max=2048, index_interval_bytes=256),
    memory=MemoryLimits(txns=TxnLimits(run_txn_ids_max=16)),
    spare_segments_max=1,
    versions_kept=5,
)

Numbers = tuple[int, ...]  # of the batches of one append


def data_of(numbers: Sequence[int]) -> bytes:
    """The batches of one append, end to end."""
    return b"".join(batch(number, padding_bytes=PADDING_BYTES) for number in numbers)


def txn_of(numbers: Sequence[int]) -> str:
    """Every append has a txn_id, so that it can be retried after a crash."""
    return f"append-{numbers[0]}"


@dataclass(slots=True)
class Report:
    """What processes told about one directory, over all their lives."""

    ledger: Ledger = field(default_factory=lambda: Ledger(padding_bytes=PADDING_BYTES))
    appends: list[Numbers] = field(default_factory=list)  # as they were sent
    in_flight: list[Numbers] = field(default_factory=list)  # sent, and never answered
    start_offset: Offset = Offset(0)
    is_retaining: bool = False
    version: Version = Version(-1)  # acknowledged
    conflicts: int = 0
    events: list[list[Any]] = field(default_factory=list)  # all that is not told by the above

    def read(self, line: str) -> None:
        """One line of a child."""
        match json.loads(line):
            case ["sent", numbers]:
                self.sent(tuple(numbers))
            case ["acked", numbers, start, end, version]:
                self.acked(tuple(numbers), Appended(Offset(start), Offset(end), Version(version)))
            case ["conflict"]:
                self.conflicts += 1
            case ["retaining"]:
                self.is_retaining = True
            case ["retained", start]:
                self.start_offset, self.is_retaining = Offset(start), False
            case event:
                self.events.append(event)

    def sent(self, numbers: Numbers) -> None:
        self.ledger.sent.update(numbers)
        if numbers not in self.in_flight:
            self.appends.append(numbers)
            self.in_flight.append(numbers)

    def acked(self, numbers: Numbers, appended: Appended) -> None:
        self.in_flight.remove(numbers)
        start = appended.offset_start
        for number in numbers:
            end = Offset(start + records_of(number))
            self.ledger.acked[number] = Appended(start, end, appended.version)
            start = end
        assert start == appended.offset_end, f"{numbers} were acknowledged as {appended}"
        self.version = max(self.version, appended.version)

    def event(self, kind: str) -> list[Any] | None:
        """The last event of a kind, without its name."""
        return next((event[1:] for event in reversed(self.events) if event[0] == kind), None)

    def copy(self) -> "Report":
        ledger = Ledger(set(self.ledger.sent), dict(self.ledger.acked), PADDING_BYTES)
        return Report(ledger, list(self.appends), list(self.in_flight), self.start_offset, False, self.version)


def start_child(work: str, directory: Path, *, under: Sequence[str] = (), **arguments: Any) -> subprocess.Popen[str]:
    """A process that does `work` in `directory`; it tells on its stdout, and fails on its stderr."""
    order = json.dumps({"work": work, "directory": str(directory), **arguments})
    paths = [str(ROOT), *(path for path in [os.environ.get("PYTHONPATH")] if path)]
    return subprocess.Popen(
        [*under, sys.executable, str(CHILD), order],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )


def run_child(
    work: str, directory: Path, report: Report, *, under: Sequence[str] = (), **arguments: Any
) -> tuple[int, str]:
    """Let a child work until it ends; its return code and its last words. Under a tool it is no fork."""
    if under:
        process = start_child(work, directory, under=under, **arguments)
        try:
            told, error = process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            end(process)
        code = process.returncode
    else:
        order = json.dumps({"work": work, "directory": str(directory), **arguments})
        code, told, error = ForkServer.shared().run("tests.crash.child", order, seconds_max=TIMEOUT_SECONDS)
    for line in told.splitlines():
        report.read(line)
    return code, error


def end(process: subprocess.Popen[str]) -> None:
    """Kill a child that still lives, and let go of its pipes."""
    if process.poll() is None:
        process.kill()
    process.wait(TIMEOUT_SECONDS)
    pipes: list[IO[str] | None] = [process.stdin, process.stdout, process.stderr]
    for pipe in pipes:
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def opened(directory: Path, options: LogOptions = SMALL) -> Iterator[DirectoryLog]:
    """The log in a directory, in this process."""
    log = DirectoryLog(str(directory), files=OsFiles(), clock=SystemClock(), options=options)
    log.open()
    try:
        yield log
    finally:
        log.close()


def check_repeats(log: DirectoryLog, report: Report) -> None:
    """L13: whoever sends again what was acknowledged gets the first answer, and nothing is written."""
    before = log.view
    for numbers in report.appends[-REPEATS:]:
        if numbers[0] not in report.ledger.acked:
            continue
        data = data_of(numbers)
        [answer] = log.append([Append(PublishRequest(data, txn_id=txn_of(numbers)), split(data))])
        first, last = report.ledger.acked[numbers[0]], report.ledger.acked[numbers[-1]]
        assert answer == Appended(first.offset_start, last.offset_end, first.version), f"{numbers}: {answer}"
    assert log.view == before


def append(log: DirectoryLog, report: Report, numbers: Numbers) -> Appended:
    """Append as a child does, and note it. The txn_id makes it a retry where it has been sent before."""
    data = data_of(numbers)
    report.sent(numbers)
    [answer] = log.append([Append(PublishRequest(data, txn_id=txn_of(numbers)), split(data))])
    assert isinstance(answer, Appended), answer
    report.acked(numbers, answer)
    log.checkpoint()
    return answer


def check(log: DirectoryLog, report: Report) -> None:
    """L1, L2, L7, L16: an opened log holds all that was acknowledged, whole, once, in order, and nothing else."""
    view = log.view
    records = contents(log)
    violations = report.ledger.violations(records, view.start_offset)
    assert not violations, violations
    assert log.damage is None
    assert view.next_offset == view.start_offset + len(records)
    assert view.version >= report.version
    assert view.start_offset >= report.start_offset
    if not report.is_retaining:
        assert view.start_offset == report.start_offset, "something was removed that nobody wanted removed"
    present = numbers_in(log)
    for numbers in report.appends:
        there = [number for number in numbers if number in present]
        acked = [report.ledger.acked[number] for number in numbers if number in report.ledger.acked]
        is_retained = not acked or acked[0].offset_start >= view.start_offset
        assert not is_retained or len(there) in (0, len(numbers)), f"only {there} of {numbers} are there"
    if log.stopped is None:  # else the outcome of a removal is still unknown
        report.start_offset, report.is_retaining = view.start_offset, False


def check_files(log: DirectoryLog) -> None:
    """L4, L7, L8, L12: an opened directory holds the log, nothing that a crash left behind, and no gap."""
    directory = Path(log.directory)
    names = {path.name for path in directory.iterdir()}
    segments = log.view.segments
    known = {segment.name for segment in segments} | {index_name(segment.base) for segment in segments}
    spares = {name for name in names if name.startswith("spare-")}
    assert names - known - spares == {COMMITS_DIRECTORY, LOCK_FILE}
    assert len(spares) <= log.options.spare_segments_max
    if segments and not segments[-1].sealed:
        assert (directory / segments[-1].name).stat().st_size == segments[-1].size
    commits = sorted(path.name for path in (directory / COMMITS_DIRECTORY).iterdir())
    assert not [name for name in commits if name.endswith(".aside")]
    versions = [version for name in commits if (version := commit_version(name)) is not None]
    assert versions == list(range(versions[0], log.view.version + 1))
    entries = log.commits.entries(versions[0], Version(log.view.version + 1))
    assert [entry.version for entry in entries] == versions


def check_recovery(directory: Path, report: Report, *, more: int = 4) -> None:
    """Open what a dead process left, retry what it did not live to see answered, go on, and open again."""
    with opened(directory) as log:
        check(log, report)
        check_files(log)
        check_repeats(log, report)
        end_offset = log.view.next_offset
        held = numbers_in(log)
        for numbers in list(report.in_flight):
            answer = append(log, report, numbers)
            is_repeat = numbers[0] in held
            # L13: what is there already gets its first answer, what is not there comes at the end.
            assert is_repeat == (answer.offset_start < end_offset), f"{numbers} retried: {answer}"
        first = max(report.ledger.sent, default=-1) + 1
        for number in range(first, first + more):
            before = log.view.next_offset
            assert append(log, report, (number,)).offset_start == before
        check(log, report)
    with opened(directory) as log:
        check(log, report)
        check_files(log)


def numbers_in(log: DirectoryLog) -> dict[int, Offset]:
    """The batches that readers of a log see, and where each begins."""
    first: dict[int, Offset] = {}
    for record in contents(log):
        assert record.value is not None
        first.setdefault(int(record.value.split(b"/")[0]), Offset(record.offset))
    return first
