"""The partition log as an application uses it, on the real disk."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from crc32c import crc32c

from sulina.core.log.log_state import Appended
from sulina.core.log.retention import Retention
from sulina.core.log.segment import SegmentLimits
from sulina.core.records.batch import BatchLimits, write_header
from sulina.core.records.compression import Codec, compress
from sulina.core.records.record import StoredRecord, encode
from sulina.errors import (
    BatchTooLarge,
    CorruptBatch,
    CorruptSegment,
    DecompressedTooLarge,
    InvalidBatch,
    InvalidInput,
    LogClosed,
    LogLocked,
    NotYet,
    OffsetOutOfRange,
    QueueFull,
    SequenceGap,
    VersionConflict,
    VersionNotRetained,
)
from sulina.storage.directory_log import LogOptions
from sulina.storage.partition_log import LogThreads, PartitionLog
from sulina.storage.waiters import ViewWaiters
from sulina.types import Epoch, Offset, Version
from tests.support.ledger import batch, records_in

SMALL = LogOptions(segments=SegmentLimits(segment_bytes_max=4000, index_interval_bytes=500), versions_kept=20)


class Counting:
    """Metrics that remember."""

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.conflicts = 0
        self.checkpoints = 0
        self.seconds: list[float] = []

    def committed(self, *, appends: int, size_bytes: int, sync_seconds: float, commit_seconds: float) -> None:
        assert size_bytes > 0
        self.groups.append(appends)
        self.seconds += [sync_seconds, commit_seconds]

    def conflicted(self) -> None:
        self.conflicts += 1

    def checkpointed(self, *, seconds: float, files_removed: int) -> None:
        self.checkpoints += 1
        self.seconds.append(seconds)


@pytest.fixture
def metrics() -> Counting:
    return Counting()


@pytest.fixture
async def log(tmp_path: Path, metrics: Counting) -> AsyncIterator[PartitionLog]:
    async with await PartitionLog.open(str(tmp_path / "log"), options=SMALL, metrics=metrics) as log:
        yield log


async def values(log: PartitionLog, version: Version | None = None, max_bytes: int = 700) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = log.view.start_offset
    while True:
        part = await log.read(offset, max_bytes=max_bytes, version=version)
        if part.next_offset == offset:
            return found
        found += [record.value for record in records_in(part.data, from_offset=offset)]
        offset = part.next_offset


async def test_an_append_answers_offsets_and_version_l16(log: PartitionLog) -> None:
    assert await log.append(batch(3)) == Appended(Offset(0), Offset(4), Version(1))
    assert await log.append(batch(0) + batch(1)) == Appended(Offset(4), Offset(7), Version(2))
    assert await values(log) == [b"3/0/4/", b"3/1/4/", b"3/2/4/", b"3/3/4/", b"0/0/1/", b"1/0/2/", b"1/1/2/"]


async def test_concurrent_appends_share_commits_l17(log: PartitionLog, metrics: Counting) -> None:
    answers = await asyncio.gather(*(log.append(batch(number)) for number in range(400)))
    assert [answer.offset_start for answer in answers] == sorted(answer.offset_start for answer in answers)
    assert sum(metrics.groups) == 400
    assert len(metrics.groups) < 40
    assert log.view.version == len(metrics.groups)
    assert all(seconds >= 0 for seconds in metrics.seconds)


async def test_readers_never_see_part_of_a_batch_l1(log: PartitionLog) -> None:
    writing = asyncio.gather(*(log.append(batch(number) + batch(number)) for number in range(200)))
    seen = 0
    while not writing.done():
        view = log.view
        assert view.next_offset >= seen
        seen = view.next_offset
        found = await values(log, view.version)
        assert len(found) == view.next_offset
        halves = [value for value in found if value and value.endswith(b"/0/4/")]
        assert len(halves) % 2 == 0
    await writing


async def test_a_read_begins_with_the_batch_that_holds_the_offset(log: PartitionLog) -> None:
    for number in range(40):
        await log.append(batch(number))
    for offset in range(log.view.next_offset):
        part = await log.read(Offset(offset), max_bytes=1)
        assert part.start_offset <= offset < part.next_offset
        assert len({record.value.split(b"/")[0] for record in records_in(part.data) if record.value}) == 1


async def test_a_read_is_bounded_by_bytes(log: PartitionLog) -> None:
    for number in range(40):
        await log.append(batch(number))
    part = await log.read(Offset(0), max_bytes=600)
    assert 300 < len(part.data) <= 600
    assert (part.version, part.end_offset) == (40, 100)


async def test_reading_at_the_end_gives_nothing_and_past_it_an_error(log: PartitionLog) -> None:
    await log.append(batch(0))
    assert len((await log.read(Offset(1))).data) == 0
    for offset in (2, -1):
        with pytest.raises(OffsetOutOfRange, match=r"\[0, 1\)"):
            await log.read(Offset(offset))


async def test_a_read_at_a_version_gives_the_log_as_of_then_l14(log: PartitionLog) -> None:
    expected: dict[Version, list[bytes | None]] = {}
    for number in range(25):
        await log.append(batch(number))
        expected[log.view.version] = await values(log)
    for version, then in expected.items():
        if version >= 10:
            assert await values(log, version) == then


async def test_versions_that_were_cleaned_up_or_never_were_are_an_error_l14(log: PartitionLog) -> None:
    for number in range(60):
        await log.append(batch(number))
    await log.close()
    for version in (1, -1):
        with pytest.raises(VersionNotRetained):
            log.directory_log.read(Offset(0), version=Version(version))


async def test_waiting_for_an_offset_or_version_l14(log: PartitionLog) -> None:
    offset = asyncio.create_task(log.wait_for(offset=Offset(5), timeout_seconds=30))
    version = asyncio.create_task(log.wait_for(version=Version(4), timeout_seconds=30))
    for number in range(4):
        await log.append(batch(number))
    assert (await offset).next_offset > 5
    assert (await version).version >= 4
    assert (await log.wait_for(offset=Offset(0), timeout_seconds=0)).version == 4
    with pytest.raises(NotYet, match="offset 99 is not there"):
        await log.wait_for(offset=Offset(99), timeout_seconds=0.01)


async def test_the_next_offset_and_version_are_not_there_yet_l14(log: PartitionLog) -> None:
    await log.append(batch(3))
    assert await log.wait_for(offset=Offset(3), version=Version(1), timeout_seconds=0) == log.view
    with pytest.raises(NotYet, match="offset 4 is not there"):
        await log.wait_for(offset=Offset(4), timeout_seconds=0.01)
    with pytest.raises(NotYet, match="version 2 is not there"):
        await log.wait_for(version=Version(2), timeout_seconds=0.01)


async def test_waits_that_timed_out_are_removed(log: PartitionLog) -> None:
    waiters = ViewWaiters()
    for _ in range(300):
        with pytest.raises(NotYet):
            await waiters.wait(lambda: log.view, None, Version(99), timeout_seconds=0)
    assert len(waiters) < 150


async def test_of_two_transactions_one_wins_and_the_other_can_retry_l3(log: PartitionLog, metrics: Counting) -> None:
    one, two = log.append_transactional(batch(1)), log.append_transactional(batch(2))
    results = await asyncio.gather(one.commit(), two.commit(), return_exceptions=True)
    assert results[0] == Appended(Offset(0), Offset(2), Version(1))
    assert isinstance(results[1], VersionConflict)
    assert results[1].retryable
    assert metrics.conflicts == 1
    retry = log.append_transactional(batch(2))
    assert await retry.commit() == Appended(Offset(2), Offset(5), Version(2))


async def test_an_aborted_transaction_leaves_nothing_l6(log: PartitionLog, tmp_path: Path) -> None:
    await log.append(batch(0))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    transaction = log.append_transactional(batch(1))
    transaction.add(batch(2))
    transaction.abort()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    with pytest.raises(InvalidInput):
        await transaction.commit()
    assert (await log.append(batch(3))).offset_start == 1


async def test_a_txn_id_is_answered_once_also_after_restart_l13(log: PartitionLog, tmp_path: Path) -> None:
    first = await log.append(batch(1), txn_id="a")
    produced = await log.append(batch(2, producer_id=7, producer_epoch=0, base_sequence=0))
    for number in range(40):
        await log.append(batch(number))
    end = log.view.next_offset
    await log.close()
    async with await PartitionLog.open(str(tmp_path / "log"), options=SMALL) as again:
        assert await again.append(batch(1), txn_id="a") == first
        assert await again.append(batch(2, producer_id=7, producer_epoch=0, base_sequence=0)) == produced
        assert again.view.next_offset == end
        with pytest.raises(SequenceGap):
            await again.append(batch(2, producer_id=7, producer_epoch=0, base_sequence=99))


async def test_retention_removes_segments_through_a_commit_l15(log: PartitionLog, tmp_path: Path) -> None:
    for number in range(200):
        await log.append(batch(number))
    removals = await log.retain(Retention(bytes_max=8000))
    assert removals
    assert log.view.start_offset == removals[-1].offset_end
    with pytest.raises(OffsetOutOfRange):
        await log.read(Offset(0))
    (commit,) = await log.commits(log.view.version, Version(log.view.version + 1))
    assert list(commit.operations) == removals
    files = {path.name for path in (tmp_path / "log").glob("[0-9]*.log")}
    assert files == {segment.name for segment in log.view.segments}
    assert len(await values(log)) == log.view.next_offset - log.view.start_offset


async def test_retention_may_empty_the_log_and_offsets_go_on_l2(log: PartitionLog, tmp_path: Path) -> None:
    await log.append(batch(3))
    await log.retain(Retention(bytes_max=0))
    assert (log.view.start_offset, log.view.next_offset, log.view.segments) == (4, 4, ())
    await log.close()
    async with await PartitionLog.open(str(tmp_path / "log")) as again:
        assert await again.append(batch(0)) == Appended(Offset(4), Offset(5), Version(4))


async def test_a_reader_of_a_removed_segment_is_told_so(log: PartitionLog) -> None:
    for number in range(200):
        await log.append(batch(number))
    old = log.view
    await log.retain(Retention(bytes_max=0))
    for number in range(200):
        await log.append(batch(number))  # into the recycled file
    log.directory_log.view, new = old, log.directory_log.view
    found = asyncio.create_task(log.read(Offset(0)))
    log.directory_log.view = new
    with pytest.raises(OffsetOutOfRange):
        await found


async def test_rotation_seals_the_segment_and_says_where_the_log_is(log: PartitionLog) -> None:
    await log.append(batch(3))
    view = await log.fsync_and_rotate()
    assert (view.next_offset, view.segments[-1].sealed) == (4, True)
    assert (await log.fsync_and_rotate()).version == view.version  # nothing to do
    await log.append(batch(0))
    assert [segment.base for segment in log.view.segments] == [0, 4]


async def test_offsets_are_found_by_time(log: PartitionLog) -> None:
    for number in range(100):
        await log.append(batch(number))
    for number in range(100):
        offset = await log.offset_for_timestamp(1_000 + number)
        assert offset is not None
        part = await log.read(offset, max_bytes=1)
        assert records_in(part.data, from_offset=offset)[0].timestamp_ms == 1_000 + number
    assert await log.offset_for_timestamp(0) == 0
    assert await log.offset_for_timestamp(9_999) is None


async def test_checkpoints_and_clean_up_bound_the_commit_files_l11_l12(
    log: PartitionLog, tmp_path: Path, metrics: Counting
) -> None:
    for number in range(95):
        await log.append(batch(number))
    await log.close()
    names = {path.name for path in (tmp_path / "log" / "_delta_log").iterdir()}
    assert "00000000000000000090.checkpoint.json" in names
    assert metrics.checkpoints >= 2
    checkpoints = sorted(int(name[:20]) for name in names if "checkpoint.json" in name)
    assert len(checkpoints) == 2
    commits = sorted(int(name[:20]) for name in names if name.endswith(".json") and "checkpoint" not in name)
    assert commits == list(range(min(checkpoints[0], 90 - SMALL.versions_kept), 96))


async def test_pinned_commits_stay_l12(log: PartitionLog, tmp_path: Path) -> None:
    log.pin("follower", Version(3))
    for number in range(80):
        await log.append(batch(number))
    await log.close()  # when the checkpoints are written, and what is needless is gone
    assert [log.directory_log.commits.entry(Version(version)).version for version in (3, 4, 5)] == [3, 4, 5]
    async with await PartitionLog.open(str(tmp_path / "log"), options=SMALL) as again:
        for number in range(30):
            await again.append(batch(number))
    with pytest.raises(VersionNotRetained):
        again.directory_log.commits.entry(Version(3))


async def test_a_claim_fences_by_epoch(log: PartitionLog, tmp_path: Path) -> None:
    await log.append(batch(0))
    await log.claim(Epoch(4))
    await log.append(batch(1))
    assert [(segment.base, segment.epoch) for segment in log.view.segments] == [(0, 0), (1, 4)]
    assert await values(log) == [b"0/0/1/", b"1/0/2/", b"1/1/2/"]


async def test_a_directory_has_one_writer_l3(log: PartitionLog, tmp_path: Path) -> None:
    with pytest.raises(LogLocked, match="one writer"):
        await PartitionLog.open(str(tmp_path / "log"))


async def test_a_closed_log_says_so(log: PartitionLog) -> None:
    waiting = asyncio.create_task(log.wait_for(version=Version(9), timeout_seconds=30))
    await asyncio.sleep(0)
    pending = [asyncio.create_task(log.append(batch(number))) for number in range(50)]
    await asyncio.sleep(0)
    await log.close()
    assert all(isinstance(answer, Appended) for answer in await asyncio.gather(*pending))
    with pytest.raises(LogClosed):
        await waiting
    with pytest.raises(LogClosed):
        await log.append(batch(0))


async def test_too_much_waiting_is_refused_and_later_taken(tmp_path: Path) -> None:
    options = LogOptions(waiting_bytes_max=1000)
    async with await PartitionLog.open(str(tmp_path), options=options) as log:
        results = await asyncio.gather(*(log.append(batch(3)) for _ in range(50)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, QueueFull)]
        assert refused
        assert all(error.retryable for error in refused)
        assert (await log.append(batch(3))).offset_end == 4 * (51 - len(refused))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", InvalidBatch),
        (b"x" * 61, InvalidBatch),
        (batch(3)[:-1], InvalidBatch),
        (batch(3) + b"trailing", InvalidBatch),
        (batch(3)[:70] + b"!" + batch(3)[71:], CorruptBatch),
        (batch(3, padding_bytes=5000), BatchTooLarge),
    ],
)
async def test_bad_batches_are_refused_and_nothing_is_written(
    tmp_path: Path, data: bytes, error: type[InvalidInput]
) -> None:
    options = LogOptions(batches=BatchLimits(batch_bytes_max=4096))
    async with await PartitionLog.open(str(tmp_path), options=options) as log:
        before = sorted(path.name for path in tmp_path.rglob("*"))
        with pytest.raises(error):
            await log.append(data)
        with pytest.raises(error):
            await log.append_transactional(data).commit()
        assert sorted(path.name for path in tmp_path.rglob("*")) == before
        assert log.view.version == 0


@pytest.mark.parametrize("txn_id", ["", "x" * 201, "\ud800"])
async def test_bad_txn_ids_are_refused(log: PartitionLog, txn_id: str) -> None:
    with pytest.raises(InvalidInput, match="txn_id"):
        await log.append(batch(0), txn_id=txn_id)


async def test_a_cancelled_append_is_withdrawn_or_waited_for(log: PartitionLog) -> None:
    buffers = [bytearray(batch(number)) for number in range(100)]
    tasks = [asyncio.create_task(log.append(buffer)) for buffer in buffers]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for buffer in buffers:
        buffer[:] = bytes(len(buffer))  # ours again
    count = log.view.next_offset
    assert (await log.append(batch(0))).offset_start == count
    assert len(await values(log)) == count + 1
    assert log.is_quiet


async def test_a_batch_that_lies_about_its_newest_time_is_refused(log: PartitionLog) -> None:
    for lie in (9_999, 0):
        liar = bytearray(batch(0))
        liar[35:43] = lie.to_bytes(8)
        liar[17:21] = crc32c(bytes(liar[21:])).to_bytes(4)
        with pytest.raises(InvalidBatch, match="newest timestamp"):
            await log.append(liar)


async def test_closing_does_not_wait_for_a_resting_checkpoint(tmp_path: Path) -> None:
    async with asyncio.timeout(60):
        for number in range(20):
            log = await PartitionLog.open(str(tmp_path / str(number)))
            for _ in range(10 + number):
                await log.append(batch(0))
            await log.close()
            assert (tmp_path / str(number) / "_delta_log" / "00000000000000000010.checkpoint.json").exists()


async def test_logs_share_threads(tmp_path: Path) -> None:
    threads = LogThreads.of(writers=2, readers=1)
    logs = [await PartitionLog.open(str(tmp_path / str(n)), threads=threads) for n in range(8)]
    answers = await asyncio.gather(*(log.append(batch(number)) for number in range(100) for log in logs))
    assert len(answers) == 800
    assert {log.view.next_offset for log in logs} == {250}
    for log in logs:
        await log.close()
    threads.shutdown()


async def test_readers_do_not_keep_writers_waiting(tmp_path: Path) -> None:
    threads = LogThreads.of(writers=2, readers=1)
    log = await PartitionLog.open(str(tmp_path), threads=threads)
    held = threading.Event()
    slow = asyncio.get_running_loop().run_in_executor(threads.readers, held.wait)
    reading = asyncio.create_task(log.read(Offset(0)))
    assert (await log.append(batch(0))).offset_end == 1
    assert not reading.done()
    held.set()
    await asyncio.gather(slow, reading)
    await log.close()
    threads.shutdown()


async def test_a_cancelled_close_or_open_leaves_no_lock(tmp_path: Path) -> None:
    log = await PartitionLog.open(str(tmp_path))
    pending = [asyncio.create_task(log.append(batch(number))) for number in range(50)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(log.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, *pending, return_exceptions=True)
    await log.close()
    with pytest.raises(LogClosed):
        await log.read(Offset(0))
    threads = LogThreads.of(writers=1, readers=1)
    opening = asyncio.create_task(PartitionLog.open(str(tmp_path), threads=threads))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    threads.writers.shutdown(wait=True)
    await asyncio.sleep(0)  # for the callback of the thread that has ended
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(LogLocked):
                await (await PartitionLog.open(str(tmp_path))).close()
                return


async def test_a_metrics_hook_that_raises_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Counting):
        def committed(self, *, appends: int, size_bytes: int, sync_seconds: float, commit_seconds: float) -> None:
            raise ValueError

        def conflicted(self) -> None:
            raise ValueError

    async with await PartitionLog.open(str(tmp_path), metrics=Broken()) as log:
        appends = [log.append(batch(n), expected_version=Version(0)) for n in range(4)]
        results = await asyncio.gather(*appends, return_exceptions=True)
        assert [type(result) for result in results] == [Appended, VersionConflict, VersionConflict, VersionConflict]
        assert (await log.append(batch(5))).version == 2
    assert "metrics hook failed" in caplog.text


async def test_compressed_batches_are_checked_off_the_loop_and_refused_alone(log: PartitionLog) -> None:
    good = encode([StoredRecord(value=b"v", timestamp_ms=1)] * 100, codec=Codec.ZSTD)
    records = encode([StoredRecord(value=b"v", timestamp_ms=1)] * 3)
    body = compress(Codec.ZSTD, bytes(records[61:]) + b"more")
    bad = records[:61] + body
    write_header(bad, codec=Codec.ZSTD, record_count=3, base_timestamp=1, max_timestamp=1)
    bombs = b"".join(encode([StoredRecord(value=bytes(30 << 20), timestamp_ms=1)], codec=Codec.ZSTD) for _ in range(3))
    results = await asyncio.gather(*(log.append(x) for x in (good, bad, bombs, good)), return_exceptions=True)
    assert [type(result) for result in results] == [Appended, InvalidBatch, DecompressedTooLarge, Appended]
    assert log.view.next_offset == 200


async def test_too_many_batches_at_once_and_control_batches_are_refused(log: PartitionLog) -> None:
    with pytest.raises(InvalidBatch, match="1025 record batches at once"):
        await log.append(batch(0) * 1025)
    control = bytearray(batch(0))
    control[22] |= 0x20
    control[17:21] = crc32c(bytes(control[21:])).to_bytes(4)
    with pytest.raises(InvalidBatch, match="control"):
        await log.append(control)
    assert log.view.version == 0


async def test_a_transaction_can_be_tried_again_and_is_bounded(tmp_path: Path) -> None:
    options = LogOptions(waiting_bytes_max=2000)
    async with await PartitionLog.open(str(tmp_path), options=options) as log:
        transaction = log.append_transactional(batch(1))
        await log.append(batch(0))
        with pytest.raises(VersionConflict):
            await transaction.commit()
        assert (await transaction.commit(log.view.version)).offset_start == 1
        with pytest.raises(BatchTooLarge):
            log.append_transactional(*[batch(3)] * 20)
        with pytest.raises(BatchTooLarge):
            await log.append(batch(3) * 20)


async def test_a_version_that_is_not_there_yet_is_said_to_be_so_l14(log: PartitionLog) -> None:
    await log.append(batch(0))
    with pytest.raises(NotYet, match="version 2"):
        await log.read(Offset(0), version=Version(2))


async def test_what_lies_before_damage_is_served_l8(log: PartitionLog, tmp_path: Path) -> None:
    for number in range(20):
        await log.append(batch(number))
    segment = tmp_path / "log" / log.view.segments[0].name
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    part = await log.read(Offset(0), max_bytes=1 << 20)
    assert part.next_offset > 30
    with pytest.raises(CorruptSegment):
        await log.read(part.next_offset)
