"""The log in its directory: what it does when the disk misbehaves."""

import errno

import pytest

from sulina.core.log.commit import Claim, Seal
from sulina.core.log.log_state import Appended
from sulina.core.log.plan import Plan
from sulina.core.log.retention import Retention
from sulina.errors import CorruptCommit, CorruptLog, CorruptSegment, LogStopped, StaleEpoch, VersionConflict
from sulina.failpoints import Failpoint, FailpointHook, no_failpoints
from sulina.storage.commit_log import CommitLog
from sulina.storage.commit_store import DirectoryCommits
from sulina.storage.directory_log import DirectoryLog, LogOptions, placed_batches
from sulina.testing.clock import VirtualClock
from sulina.testing.files import SimulatedFiles
from sulina.types import Epoch, Offset
from tests.support.crash_world import DIRECTORY, OPTIONS
from tests.support.ledger import append_of, contents

COMMITS = f"{DIRECTORY}/_delta_log"


def opened(
    files: SimulatedFiles, *, failpoints: FailpointHook = no_failpoints, options: LogOptions = OPTIONS
) -> DirectoryLog:
    log = DirectoryLog(DIRECTORY, files=files, clock=VirtualClock(), options=options, failpoints=failpoints)
    log.open()
    return log


def filled(files: SimulatedFiles, count: int = 5) -> DirectoryLog:
    log = opened(files)
    for number in range(count):
        append(log, number)
        log.checkpoint()
    return log


def append(log: DirectoryLog, number: int) -> Appended | Exception:
    (answer,) = log.append([append_of(number)])
    return answer


def numbers(log: DirectoryLog) -> list[int]:
    """The batches that readers see."""
    firsts = [record.value for record in contents(log) if record.value and record.value.split(b"/")[1] == b"0"]
    return [int(value.split(b"/")[0]) for value in firsts]


@pytest.mark.parametrize("victim", [".log", ".aside", "_delta_log"])
def test_a_failed_sync_stops_the_log_for_good_l9(victim: str) -> None:
    files = SimulatedFiles()
    log = filled(files)
    files.fail_sync(lambda path: path.endswith(victim))
    failed = append(log, 5)
    assert isinstance(failed, LogStopped)
    assert isinstance(failed.cause, OSError)
    assert "stopped" in str(failed)
    assert "open it again" in str(failed)
    # Never tried again as if it could succeed.
    operations = files.operations
    assert isinstance(append(log, 6), LogStopped)
    with pytest.raises(LogStopped):
        log.rotate()
    with pytest.raises(LogStopped):
        log.retain(Retention(bytes_max=0))
    assert files.operations == operations
    assert numbers(log) == [0, 1, 2, 3, 4]
    log.close()
    again = opened(files)
    # A commit that was linked may be there, whole; what never was committed is not.
    assert numbers(again) in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5])
    assert isinstance(append(again, 7), Appended)


def test_a_checkpoint_that_cannot_be_synced_stops_the_log_l9() -> None:
    files = SimulatedFiles()
    log = filled(files, 9)
    files.fail_sync(lambda path: "checkpoint" in path)
    assert isinstance(append(log, 9), Appended)
    log.checkpoint()
    assert isinstance(append(log, 10), LogStopped)
    log.close()
    assert numbers(opened(files)) == list(range(10))


@pytest.mark.parametrize("change", ["rotate", "retain", "claim"])
def test_a_failed_sync_of_any_commit_stops_the_log_l9(change: str) -> None:
    files = SimulatedFiles()
    log = filled(files, 40)
    files.fail_sync(lambda path: path.endswith(".aside"))
    with pytest.raises(LogStopped):
        do(log, change)
    operations = files.operations
    with pytest.raises(LogStopped):
        do(log, change)
    assert isinstance(append(log, 41), LogStopped)
    assert files.operations == operations
    log.close()
    assert numbers(opened(files)) == list(range(40))


def do(log: DirectoryLog, change: str) -> None:
    if change == "rotate":
        log.rotate()
    elif change == "retain":
        log.retain(Retention(bytes_max=100))
    else:
        log.claim(Epoch(9))


def test_a_full_disk_stops_the_log_and_freed_space_lets_it_go_on() -> None:
    files = SimulatedFiles()
    log = filled(files)
    used = sum(files.size(path) for path in files.paths())
    acked = list(range(5))
    files.capacity_bytes = used + 3000
    answer: Appended | Exception | None = None
    for number in range(5, 100):
        answer = append(log, number)
        if isinstance(answer, LogStopped):
            break
        acked.append(number)
    assert isinstance(answer, LogStopped)
    assert isinstance(answer.cause, OSError)
    assert answer.cause.errno == errno.ENOSPC
    assert numbers(log) == acked
    log.close()
    files.capacity_bytes = None
    again = opened(files)
    assert numbers(again) == acked
    assert isinstance(append(again, 200), Appended)


def test_bytes_past_the_last_commit_are_cut_l7() -> None:
    files = SimulatedFiles()
    log = filled(files)
    log.close()
    segment = f"{DIRECTORY}/{log.view.segments[-1].name}"
    size = files.size(segment)
    files.open(segment).write(size, [bytes(append_of(9).request.data)])
    again = opened(files)
    assert files.size(segment) == size
    assert numbers(again) == [0, 1, 2, 3, 4]


def test_leftovers_of_a_dead_writer_are_swept_l8() -> None:
    files = SimulatedFiles()
    filled(files).close()
    leftovers = [f"{COMMITS}/00000000000000000099.json.1.2.aside", f"{DIRECTORY}/00000000000000000099.log"]
    for path in leftovers:
        files.create(path).write(0, [b"torn"])
    opened(files)
    assert not set(leftovers) & set(files.paths())


@pytest.mark.parametrize("what", ["missing", "garbage", "half"])
def test_a_missing_or_torn_index_is_rebuilt_l8(what: str) -> None:
    files = SimulatedFiles()
    log = filled(files, 60)
    log.close()
    expected = numbers(log)
    for path in [path for path in files.paths() if path.endswith(".index")]:
        if what == "missing":
            files.remove(path)
        elif what == "half":
            files.open(path).truncate(files.size(path) // 2)
        else:
            files.open(path).write(0, [b"x" * files.size(path)])
    assert numbers(opened(files)) == expected


def test_damage_at_the_end_is_named_and_the_log_goes_on_behind_it_l8() -> None:
    files = SimulatedFiles()
    log = filled(files)
    log.close()
    newest = log.view.segments[-1]
    files.flip_bit(f"{DIRECTORY}/{newest.name}", 8 * newest.size - 1)
    again = opened(files)
    assert isinstance(again.damage, CorruptSegment)
    assert newest.name in str(again.damage)
    start = again.view.next_offset
    assert isinstance(append(again, 7), Appended)
    with pytest.raises(CorruptSegment):
        contents(again)
    assert len(again.read(start).data) > 0


def test_a_lost_end_of_a_file_is_named_too_l8() -> None:
    files = SimulatedFiles()
    log = filled(files)
    log.close()
    newest = log.view.segments[-1]
    files.open(f"{DIRECTORY}/{newest.name}").truncate(newest.size - 10)
    again = opened(files)
    assert isinstance(again.damage, CorruptSegment)
    assert isinstance(append(again, 7), Appended)
    assert numbers_until_damage(again) == [0, 1, 2, 3]
    files.remove(f"{DIRECTORY}/{newest.name}")
    again.close()
    with pytest.raises(CorruptSegment, match="missing"):
        contents(opened(files))


def numbers_until_damage(log: DirectoryLog) -> list[int]:
    found: list[int] = []
    offset = log.view.start_offset
    while True:
        try:
            part = log.read(offset, 1)
        except CorruptSegment:
            return found
        found.append(len(found))
        offset = part.next_offset


def test_a_damaged_commit_keeps_the_log_closed_and_is_named_l8() -> None:
    files = SimulatedFiles()
    filled(files).close()
    files.flip_bit(f"{COMMITS}/00000000000000000003.json", 77)
    with pytest.raises(CorruptCommit, match=r"00000000000000000003\.json"):
        opened(files)


def test_records_without_commits_never_start_at_0_again_l2() -> None:
    files = SimulatedFiles()
    filled(files).close()
    for path in [path for path in files.paths() if path.startswith(COMMITS)]:
        files.remove(path)
    before = files.paths()
    with pytest.raises(CorruptLog, match="there are no commits"):
        opened(files)
    assert [path for path in before if path.endswith(".log")] == [
        path for path in files.paths() if path.endswith(".log")
    ]


def rival_at(files: SimulatedFiles, at: Failpoint, claim: bool) -> FailpointHook:
    """Somebody who commits in our directory at a step of ours, once."""
    waiting = [True]

    def failpoints(step: Failpoint) -> None:
        if step is at and waiting:
            waiting.clear()
            rival = CommitLog(DirectoryCommits(files, COMMITS), clock=VirtualClock(), writer="rival")
            state = rival.load()
            epoch = Epoch(state.epoch + claim)
            newest = state.segments[-1]
            seal = Seal(segment=newest.name, offset_end=newest.next_offset, size=newest.size)
            rival.commit([Claim(epoch=epoch, broker_id="rival") if claim else seal], epoch=epoch)

    return failpoints


def test_a_lost_commit_is_taken_back_and_a_retry_succeeds_l3_l6() -> None:
    files = SimulatedFiles()
    filled(files).close()
    log = opened(files, failpoints=rival_at(files, Failpoint.APPEND_SYNCED, claim=False))
    lost = append(log, 5)
    assert isinstance(lost, VersionConflict)
    assert numbers(log) == [0, 1, 2, 3, 4]
    assert append(log, 5) == Appended(Offset(11), Offset(13), log.view.version)
    log.close()
    assert numbers(opened(files)) == [0, 1, 2, 3, 4, 5]


def test_a_lost_commit_with_new_segments_is_taken_back_l6() -> None:
    files = SimulatedFiles()
    filled(files).close()
    log = opened(files, failpoints=rival_at(files, Failpoint.APPEND_DIRECTORY_SYNCED, claim=False))
    answers = log.append([append_of(number, padding_bytes=500) for number in range(5, 12)])
    assert all(isinstance(answer, VersionConflict) for answer in answers)
    known = {segment.name for segment in log.view.segments}
    assert {path.rpartition("/")[2] for path in files.paths() if path.endswith(".log")} == known
    assert isinstance(append(log, 12), Appended)
    log.close()
    assert numbers(opened(files)) == [0, 1, 2, 3, 4, 12]


def test_what_a_winner_has_written_where_we_wrote_is_not_touched_l6() -> None:
    """A rival appends at the same byte of the same segment, and commits first: its bytes stay, ours go."""
    files = SimulatedFiles()
    filled(files).close()
    winner = append_of(7, padding_bytes=100)

    def failpoints(step: Failpoint) -> None:
        if step is Failpoint.APPEND_SYNCED and len(rivals) == 0:
            rivals.append(CommitLog(DirectoryCommits(files, COMMITS), clock=VirtualClock(), writer="rival"))
            state = rivals[0].load()
            plan = Plan(state, OPTIONS.segments, VirtualClock().now())
            plan.admit(winner)
            file = files.open(f"{DIRECTORY}/{state.segments[-1].name}")
            for placed in placed_batches(plan, [winner], state.epoch):
                file.write(placed.position, placed.parts)
            file.sync()
            rivals[0].commit(plan.operations, epoch=state.epoch)

    rivals: list[CommitLog] = []
    log = opened(files, failpoints=failpoints)
    assert isinstance(append(log, 5), VersionConflict)
    assert numbers(log) == [0, 1, 2, 3, 4, 7]
    assert isinstance(append(log, 6), Appended)
    log.close()
    assert numbers(opened(files)) == [0, 1, 2, 3, 4, 7, 6]


def test_a_claim_by_another_stops_the_old_owner() -> None:
    files = SimulatedFiles()
    filled(files).close()
    log = opened(files, failpoints=rival_at(files, Failpoint.APPEND_SYNCED, claim=True))
    stopped = append(log, 5)
    assert isinstance(stopped, LogStopped)
    assert isinstance(stopped.cause, StaleEpoch)
    assert isinstance(append(log, 6), LogStopped)
    log.close()
    assert numbers(opened(files)) == [0, 1, 2, 3, 4]


def test_a_log_is_opened_with_an_epoch_that_is_not_stale() -> None:
    files = SimulatedFiles()
    filled(files).close()
    opened(files, options=LogOptions(epoch=Epoch(3))).close()
    with pytest.raises(StaleEpoch):
        opened(files, options=LogOptions(epoch=Epoch(2)))
    log = opened(files)
    assert log.epoch == 3
    assert isinstance(append(log, 5), Appended)
    assert numbers(log) == [0, 1, 2, 3, 4, 5]


def test_stale_bytes_of_a_recycled_file_are_never_read() -> None:
    files = SimulatedFiles()
    log = filled(files, 120)
    log.rotate()
    before = files.paths()
    log.retain(Retention(bytes_max=0))
    spare = [path for path in files.paths() if "spare" in path]
    assert len(spare) == 1, before
    append(log, 500)
    assert not [path for path in files.paths() if "spare" in path]
    segment = log.view.segments[-1]
    assert files.size(f"{DIRECTORY}/{segment.name}") > segment.size
    assert numbers(log) == [500]
    log.close()
    assert numbers(opened(files)) == [500]
