"""One append and one open, cut at every single operation: quick, and the same each time.

`tests/crash` does the same to long random workloads, and to real processes.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from sulina.core.log.commit import commit_name, commit_version
from sulina.core.log.log_state import Appended
from sulina.failpoints import Failpoint, FailpointHook, no_failpoints
from sulina.storage.directory_log import DirectoryLog
from sulina.testing.clock import VirtualClock
from sulina.testing.files import Crashed, SimulatedFiles
from sulina.types import Version
from tests.support.crash_world import DIRECTORY, OPTIONS, PADDING_BYTES
from tests.support.ledger import Ledger, append_of, contents
from tests.support.takeover_world import Inline

COMMITS = f"{DIRECTORY}/_delta_log"
BEFORE = range(4)  # batches that were acknowledged long ago
GROUP = range(4, 12)  # appended together: one commit, of batches in three segments
IMAGES = 4  # of what a power cut may leave


def opened(files: SimulatedFiles, *, is_staged: bool = False) -> DirectoryLog:
    log = closed(files, is_staged=is_staged)
    log.open()
    return log


def closed(
    files: SimulatedFiles, *, failpoints: FailpointHook = no_failpoints, is_staged: bool = False
) -> DirectoryLog:
    """A log that has yet to be opened."""
    stager = Inline() if is_staged else None
    return DirectoryLog(
        DIRECTORY, files=files, clock=VirtualClock(), options=OPTIONS, stager=stager, failpoints=failpoints
    )


def append(log: DirectoryLog, numbers: range) -> list[Appended]:
    answers = log.append([append_of(n, txn_id=f"t{n}", padding_bytes=PADDING_BYTES) for n in numbers])
    assert all(isinstance(answer, Appended) for answer in answers), answers
    return [answer for answer in answers if isinstance(answer, Appended)]


def begun(*, is_staged: bool = False) -> tuple[SimulatedFiles, DirectoryLog]:
    files = SimulatedFiles()
    log = opened(files, is_staged=is_staged)
    append(log, BEFORE)
    return files, log


def cut_at_every_operation(
    make: Callable[[], tuple[SimulatedFiles, Callable[[], object]]],
) -> Iterator[tuple[SimulatedFiles, bool]]:
    """Do the same work again and again, each time up to one operation more; yield the files and whether it ended."""
    for operation in range(1, 200):
        files, work = make()
        files.stop_after(operation, random.Random(operation))
        try:
            work()
        except Crashed:
            yield files, False
        else:
            yield files, True
            return
    raise AssertionError("the work never came to its end")


def images(files: SimulatedFiles) -> list[SimulatedFiles]:
    """What the next process may find: after the death of the last one, or after a power cut."""
    return [files.kill(), *(files.crash(random.Random(seed)) for seed in range(IMAGES))]


def check(files: SimulatedFiles, *, has_group: bool | None) -> None:
    """The log holds all of the group or none of it, and goes on; `has_group`: which, where it must be one."""
    names = [path.rpartition("/")[2] for path in files.paths() if path.startswith(COMMITS)]
    for name in names:
        if commit_version(name) is not None:
            json.loads(files.read(f"{COMMITS}/{name}"))  # L4: whole, never empty or torn
    log = opened(files)
    records = contents(log)
    found = [int(record.value.split(b"/")[0]) for record in records if record.value and b"/0/" in record.value]
    whole = [*BEFORE, *GROUP]
    assert found in ([whole] if has_group else [[*BEFORE], whole])
    ledger = Ledger(set(whole), padding_bytes=PADDING_BYTES)
    assert ledger.violations(records) == []
    assert log.view.next_offset == len(records)
    for segment in log.view.segments:
        assert files.size(f"{DIRECTORY}/{segment.name}") == segment.size  # L7: what is past the last commit is cut
    on_disk = {path.rpartition("/")[2] for path in files.paths() if path.endswith(".log")}
    assert on_disk == {segment.name for segment in log.view.segments}
    # L2, L13: what is sent again is answered, at the offsets that it has or gets.
    again = append(log, range(12))
    assert again[0].offset_start == 0
    assert again[-1].offset_end == log.view.next_offset
    after = [int(record.value.split(b"/")[0]) for record in contents(log) if record.value and b"/0/" in record.value]
    assert after == whole
    log.close()


@pytest.mark.parametrize("is_staged", [False, True], ids=["one by one", "staged beside the data"])
def test_a_group_is_there_whole_or_not_at_all_wherever_it_is_cut_l1_l4_l7(is_staged: bool) -> None:
    """L5: and when it was acknowledged, it is there."""

    def make() -> tuple[SimulatedFiles, Callable[[], object]]:
        files, log = begun(is_staged=is_staged)
        return files, lambda: append(log, GROUP)

    for files, is_acked in cut_at_every_operation(make):
        for image in images(files):
            check(image, has_group=is_acked or None)


def test_a_commit_that_an_open_has_shown_stays_whenever_the_power_goes_l4_l5() -> None:
    """Its writer died after giving it its name and before that was durable; who opens the log must see to it."""

    def make() -> tuple[SimulatedFiles, Callable[[], object]]:
        def die(step: Failpoint) -> None:
            if step is Failpoint.COMMIT_LINKED and log.view.version == 1:
                files.stop_after(1)

        files = SimulatedFiles()
        log = closed(files, failpoints=die)
        log.open()
        append(log, BEFORE)
        with pytest.raises(Crashed):
            append(log, GROUP)
        left = files.kill()
        return left, lambda: opened(left)

    for files, is_open in cut_at_every_operation(make):
        for image in images(files):
            check(image, has_group=is_open or None)


@pytest.mark.parametrize("is_staged", [False, True], ids=["one by one", "staged beside the data"])
def test_data_is_durable_before_its_commit_has_a_name_and_that_before_the_ack_l5(is_staged: bool) -> None:
    files, log = begun(is_staged=is_staged)
    files.trace.clear()
    append(log, GROUP)
    done = list(files.trace)
    name = commit_name(log.view.version)
    named = done.index(("link", f"{COMMITS}/{name}"))
    written = {path for operation, path in done if operation == "write" and path.endswith(".log")}
    assert len(written) == 3
    for path in written:
        assert done.index(("sync", path)) < named
    assert done.index(("sync_directory", DIRECTORY)) < named  # for the names of new segments
    [aside] = [path for operation, path in done if operation == "create" and path.endswith(".aside")]
    assert done.index(("write", aside)) < done.index(("sync", aside)) < named
    assert ("sync_directory", COMMITS) in done[named:]


def test_a_group_has_one_commit_and_one_round_of_syncs_l17() -> None:
    files, log = begun()
    files.trace.clear()
    append(log, GROUP)
    done = Counter((operation, path.rpartition(".")[2]) for operation, path in files.trace)
    assert (done["link", "json"], done["sync", "aside"]) == (1, 1)
    assert done["sync", "log"] == 3  # one for each segment that the group has touched
    assert sum(operation == "sync_directory" for operation, _ in files.trace) == 2


def test_nothing_is_seen_before_its_commit_has_a_name_l1() -> None:
    seen: list[tuple[Failpoint, Version, int]] = []

    def look(step: Failpoint) -> None:
        if log.view.version > 0:
            seen.append((step, log.view.version, len(contents(log))))

    log = closed(SimulatedFiles(), failpoints=look)
    log.open()
    append(log, BEFORE)
    before = (log.view.version, len(contents(log)))
    seen.clear()
    append(log, GROUP)
    linked = next(at for at, (step, *_) in enumerate(seen) if step is Failpoint.COMMIT_LINKED)
    assert linked > 3
    assert {entry[1:] for entry in seen[:linked]} == {before}
    assert (log.view.version, len(contents(log))) == (before[0] + 1, log.view.next_offset)
