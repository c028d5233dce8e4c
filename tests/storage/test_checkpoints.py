"""Checkpoints: nothing older is needed, none is indispensable, writers do not wait for them; compression."""

import asyncio
import gzip
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sulina.core.log.commit import Checkpoint, checkpoint_name, checkpoint_version, commit_version, decode, encode
from sulina.core.log.log_state import Appended, LogState
from sulina.core.log.plan import Append
from sulina.errors import CorruptCommit
from sulina.failpoints import Failpoint
from sulina.storage.directory_log import DirectoryLog
from sulina.storage.files import VolatileFiles
from sulina.storage.partition_log import LogThreads, PartitionLog
from sulina.testing.clock import VirtualClock
from sulina.testing.files import SimulatedFiles
from sulina.types import Offset, Version
from tests.support.crash_world import DIRECTORY, OPTIONS
from tests.support.ledger import append_of, batch, contents

COMMITS = f"{DIRECTORY}/_delta_log"


def opened(files: SimulatedFiles, *, compress: bool = False) -> DirectoryLog:
    options = replace(OPTIONS, compress_checkpoints=compress)
    log = DirectoryLog(DIRECTORY, files=files, clock=VirtualClock(), options=options)
    log.open()
    return log


def written(files: SimulatedFiles, numbers: range, *, compress: bool = False) -> tuple[LogState, list[Appended]]:
    """Append batches of producers, with txn_ids and checkpoints; return the log's state and the answers."""
    log = opened(files, compress=compress)
    answers: list[Appended] = []
    for number in numbers:
        [answer] = log.append([of_producer(number)])
        assert isinstance(answer, Appended), answer
        answers.append(answer)
        log.checkpoint()
    log.close()
    return log.commits.state, answers


def of_producer(number: int) -> Append:
    """A batch of one record, the next of one of three producers."""
    return append_of(number - number % 4, txn_id=f"t{number}", producer_id=number % 3, base_sequence=number // 3)


def names(files: SimulatedFiles) -> list[str]:
    return sorted(path.removeprefix(f"{COMMITS}/") for path in files.paths() if path.startswith(COMMITS))


def newest_checkpoint(files: SimulatedFiles) -> str:
    return max(name for name in names(files) if checkpoint_version(name) is not None)


def test_l11_recovery_needs_nothing_older_than_the_newest_checkpoint() -> None:
    files = SimulatedFiles()
    state, answers = written(files, range(24))
    newest = newest_checkpoint(files)
    assert newest == checkpoint_name(20)
    for name in names(files):
        version = commit_version(name) if commit_version(name) is not None else checkpoint_version(name)
        if name != newest and version is not None and version <= 20:
            files.remove(f"{COMMITS}/{name}")
    again = opened(files)
    assert again.commits.state == state
    assert len(contents(again)) == state.next_offset
    # Segments, origins and transactions are all there: a repeat is known, and the log goes on at its next offset.
    assert again.append([of_producer(5), of_producer(23)]) == [answers[5], answers[23]]
    [new] = again.append([append_of(0)])
    assert new == Appended(state.next_offset, Offset(state.next_offset + 1), Version(state.version + 1))


def test_l11_without_the_newest_checkpoint_the_log_is_the_same() -> None:
    files = SimulatedFiles()
    state, answers = written(files, range(24))
    files.remove(f"{COMMITS}/{newest_checkpoint(files)}")
    again = opened(files)
    assert again.commits.state == state
    assert again.append([of_producer(23)]) == [answers[23]]


async def test_l11_slow_checkpoints_of_many_logs_do_not_keep_appends_waiting(tmp_path: Path) -> None:
    """One thread writes for three logs, and every one of them has a checkpoint that does not come to an end."""
    released = threading.Event()
    held = threading.Semaphore(0)

    def failpoints(step: Failpoint) -> None:
        if step is Failpoint.CHECKPOINT_ASIDE_CREATED:
            held.release()
            assert released.wait(60)

    threads = LogThreads.of(writers=1, readers=1)
    logs = [
        await PartitionLog.open(str(tmp_path / str(n)), files=VolatileFiles(), threads=threads, failpoints=failpoints)
        for n in range(3)
    ]
    try:
        async with asyncio.timeout(5):
            for log in logs:
                for number in range(10):
                    await log.append(batch(number))
            await asyncio.to_thread(held.acquire)
            for log in logs:
                for number in range(10, 35):
                    answer = await log.append(batch(number))
                    assert answer.version == number + 1
                assert log.view.version == 35
            assert not list(tmp_path.rglob("*.checkpoint.json"))
    finally:
        released.set()
    for log in logs:
        await log.close()
    threads.shutdown()
    # Those that became due meanwhile were not forgotten: the newest is there.
    assert len(list(tmp_path.rglob(checkpoint_name(30)))) == 3


# Compression


def test_a_compressed_checkpoint_is_the_same_line_as_gzip_under_the_same_name() -> None:
    plain, compressed = SimulatedFiles(), SimulatedFiles()
    written(plain, range(24))
    written(compressed, range(24), compress=True)
    assert names(plain) == names(compressed)
    line = plain.read(f"{COMMITS}/{checkpoint_name(20)}")
    packed = compressed.read(f"{COMMITS}/{checkpoint_name(20)}")
    assert gzip.decompress(packed) == line
    assert len(packed) < len(line) / 2
    assert json.loads(line)["version"] == 20


@pytest.mark.parametrize("before", [True, False], ids=["compressed", "plain"])
def test_l11_a_log_goes_on_when_the_compression_of_checkpoints_is_turned_on_or_off(before: bool) -> None:
    files = SimulatedFiles()
    written(files, range(24), compress=before)
    only_checkpoint_left(files)
    state, _ = written(files, range(24, 36), compress=not before)
    only_checkpoint_left(files)
    assert newest_checkpoint(files) == checkpoint_name(30)
    for compress in (True, False):
        log = opened(files, compress=compress)
        assert log.commits.state == state
        log.close()


def only_checkpoint_left(files: SimulatedFiles) -> None:
    """Remove every commit that the newest checkpoint covers: what follows has to read it."""
    newest = checkpoint_version(newest_checkpoint(files))
    assert newest is not None
    for name in names(files):
        version = commit_version(name)
        if version is not None and version <= newest:
            files.remove(f"{COMMITS}/{name}")


@pytest.mark.parametrize("damage", ["torn", "empty", "flipped", "garbage behind the first bytes"])
def test_l8_a_torn_or_damaged_compressed_checkpoint_is_no_loss(damage: str) -> None:
    files = SimulatedFiles()
    state, answers = written(files, range(24), compress=True)
    path = f"{COMMITS}/{newest_checkpoint(files)}"
    size = files.size(path)
    if damage == "flipped":
        files.flip_bit(path, 8 * (size // 2))
    elif damage.startswith("garbage"):
        files.open(path).write(2, [b"x" * (size - 2)])
    else:
        files.open(path).truncate(size // 2 if damage == "torn" else 0)
    again = opened(files, compress=True)
    assert again.commits.state == state
    assert again.append([of_producer(23)]) == [answers[23]]


def test_l8_every_torn_compressed_checkpoint_is_detected() -> None:
    state, _ = written(SimulatedFiles(), range(3))
    data = encode(state.checkpoint("now"), compress=True)
    assert decode("x", data, Checkpoint) == state.checkpoint("now")
    for length in range(len(data)):
        with pytest.raises(CorruptCommit):
            decode("x", data[:length], Checkpoint)
