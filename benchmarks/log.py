"""How near the log of one partition comes to what disk, memory and CPU allow.

Records have values of 100 random bytes and keys of 8, from a fixed seed, in batches of about 64 KiB (550 records),
and for appending also of about 1 MiB (8,700 records), which is what librdkafka sends by default when it is busy.
Each claim is one function; what it compares with is in its docstring.
"""

import sys

if __name__ == "__main__":
    sys.path.append(f"{sys.path.pop(0)}/..")  # not this directory: its http.py is not what others mean by http

import asyncio
import io
import itertools
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from msgspec.structs import replace

from benchmarks.measure import (
    MIB,
    Result,
    Setup,
    at_least,
    at_most,
    commit_raw,
    interleaved,
    main,
    percentile,
    ratio,
    scratch,
    seconds_of,
)
from sulina.clock import SystemClock
from sulina.core.log.commit import Checkpoint
from sulina.core.log.commit import decode as decode_commit
from sulina.core.log.commit import encode as encode_commit
from sulina.core.log.plan import Append
from sulina.core.log.publish_request import PublishRequest
from sulina.core.log.segment import SegmentLimits
from sulina.core.log.txn_run import TxnRef
from sulina.core.records.batch import split
from sulina.core.records.columns import decode_columns
from sulina.core.records.record import StoredRecord, encode
from sulina.storage.directory_log import COMMITS_DIRECTORY, DirectoryLog, LogOptions, NoMetrics
from sulina.storage.files import OsFile, OsFiles
from sulina.storage.partition_log import PartitionLog
from sulina.types import Offset, Version

SMALL, LARGE = 64 << 10, MIB  # batches, at most
RECORDS = {SMALL: 550, LARGE: 8_700}
GROUPS = ((64 << 10, SMALL), (MIB, SMALL), (4 * MIB, SMALL), (MIB, LARGE), (4 * MIB, LARGE))
LABELS = {64 << 10: "64 KiB", MIB: "1 MiB", 4 * MIB: "4 MiB"}
GROUPS_IN_FLIGHT = 3  # one is being committed, one waits, one is being made
SEGMENT_BYTES = 256 * MIB
SPARE = "spare-0.log"
RATIO_GOAL = 0.8
DECODE_GOAL_MB = 800.0


def benchmark(setup: Setup) -> Iterator[Result]:
    """Every claim about the log."""
    batches = make_batches(64, SMALL)
    made = {SMALL: batches, LARGE: make_batches(8, LARGE)}
    asyncio.run(append_all(f"{setup.directory}/warm", batches[:1], 1, SMALL, SMALL))  # compiles the kernels
    for recycled in (False, True):
        for group_bytes, batch_bytes in GROUPS:
            yield from append_speed(setup, made[batch_bytes], group_bytes, batch_bytes, recycled=recycled)
    yield from commit_latency(setup)
    yield from read_speed(setup, batches)
    yield from decode_speed(setup, batches)
    yield from open_time(setup)
    yield from checkpoint_cost(setup)


def make_batches(count: int, batch_bytes: int) -> list[bytearray]:
    """The same ones each time."""
    rng = random.Random(42)
    made: list[bytearray] = []
    for number in range(count):
        timestamp_ms = 1_700_000_000_000 + number
        records = [
            StoredRecord(rng.randbytes(100), rng.randbytes(8), timestamp_ms) for _ in range(RECORDS[batch_bytes])
        ]
        made.append(encode(records))
        assert 0.95 * batch_bytes < len(made[-1]) <= batch_bytes
    return made


# Appending


class GroupSizes(NoMetrics):
    """Remembers how large the groups were."""

    def __init__(self) -> None:
        self.sizes_bytes: list[int] = []

    def committed(self, *, appends: int, size_bytes: int, sync_seconds: float, commit_seconds: float) -> None:  # noqa: ARG002
        self.sizes_bytes.append(size_bytes)


def append_speed(
    setup: Setup, batches: Sequence[bytearray], group_bytes: int, batch_bytes: int, *, recycled: bool
) -> Iterator[Result]:
    """PartitionLog.append of one batch at a time by many appenders, against a loop of pwritev and fdatasync of whole
    groups, with a commit file of the same size after each. Recycled: both write over blocks that are allocated."""
    per_group = group_bytes // batch_bytes
    total = per_group * max(8, min(setup.choose(100, 400), setup.choose(48, 192) * MIB // group_bytes))
    groups = GroupSizes()
    numbers = itertools.count()
    kind = "recycled" if recycled else "fresh"
    place = f"{setup.directory}/{kind}-{group_bytes}-{batch_bytes}"
    spares = [f"{place}-spare-ours", f"{place}-spare-raw"]
    for spare in spares if recycled else []:
        write_through(spare, SEGMENT_BYTES)

    def ours() -> float:
        directory = f"{place}-ours-{next(numbers)}"
        asyncio.run(append_all(directory, batches, 0, group_bytes, batch_bytes))  # a new log takes no spare file
        if recycled:
            os.rename(spares[0], f"{directory}/{SPARE}")
        seconds = asyncio.run(append_all(directory, batches, total, group_bytes, batch_bytes, groups))
        if recycled:
            os.rename(f"{directory}/{0:020d}.log", spares[0])
        return sum_bytes / seconds / 1e6

    def raw() -> float:
        directory = f"{place}-raw-{next(numbers)}"
        os.mkdir(directory)
        path = spares[1] if recycled else f"{directory}/data"
        return sum_bytes / write_raw(directory, path, batches, total, per_group, commit_bytes) / 1e6

    sum_bytes = sum(len(batches[number % len(batches)]) for number in range(total))
    commit_bytes = commit_size(f"{setup.directory}/warm")
    mine, limit = interleaved(setup.choose(5, 9), ours, raw)
    for spare in spares if recycled else []:
        os.unlink(spare)
    name = f"append, {LABELS[group_bytes]} groups of {LABELS[batch_bytes]} batches, {kind} segment"
    yield Result(f"{name}: ours", median(mine), "MB/s")
    yield Result(f"{name}: raw limit", median(limit), "MB/s")
    yield Result(f"{name}: group reached (median)", median(groups.sizes_bytes) / 1024, "KiB")
    yield at_least(f"{name}: ours / raw", ratio(mine, limit), "ratio", RATIO_GOAL)


async def append_all(
    directory: str,
    batches: Sequence[bytearray],
    total: int,
    group_bytes: int,
    batch_bytes: int,
    groups: GroupSizes | None = None,
) -> float:
    """The seconds that `total` appends take, with enough at once to fill the groups."""
    options = LogOptions(group_bytes_max=group_bytes, segments=SegmentLimits(segment_bytes_max=SEGMENT_BYTES))
    numbers = iter(range(total))
    async with await PartitionLog.open(directory, options=options, metrics=groups) as log:

        async def appender() -> None:
            for number in numbers:
                await log.append(batches[number % len(batches)])

        started = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(GROUPS_IN_FLIGHT * group_bytes // batch_bytes):
                tasks.create_task(appender())
        return time.perf_counter() - started


def write_raw(
    directory: str, path: str, batches: Sequence[bytearray], total: int, per_group: int, commit_bytes: int
) -> float:
    """The seconds that the system calls alone take."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    position = 0
    started = time.perf_counter()
    for version, first in enumerate(range(0, total, per_group)):
        group = [batches[number % len(batches)] for number in range(first, min(first + per_group, total))]
        position += os.pwritev(file, group, position)
        os.fdatasync(file)
        commit_raw(directory, version, bytes(commit_bytes))
    seconds = time.perf_counter() - started
    os.close(file)
    return seconds


def commit_size(directory: str) -> int:
    """Of the newest commit of a log."""
    commits = f"{directory}/{COMMITS_DIRECTORY}"
    return os.path.getsize(f"{commits}/{max(os.listdir(commits))}")


def write_through(path: str, size_bytes: int) -> None:
    """A file whose blocks are allocated and written."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    for position in range(0, size_bytes, MIB):
        os.pwrite(file, b"\xa5" * MIB, position)
    os.fsync(file)
    os.close(file)


def commit_latency(setup: Setup) -> Iterator[Result]:
    """One append of one record at a time, against the same bytes by pwrite and fdatasync, and a commit file."""
    batch = encode([StoredRecord(bytes(100), b"key", 1_700_000_000_000)])
    mine: list[float] = []
    limit: list[float] = []
    log_directory, raw_directory = f"{setup.directory}/latency-ours", f"{setup.directory}/latency-raw"
    os.mkdir(raw_directory)
    file = os.open(f"{raw_directory}/data", os.O_RDWR | os.O_CREAT, 0o644)
    versions = itertools.count()
    commit_bytes = commit_size(f"{setup.directory}/warm")

    async def ours(log: PartitionLog) -> None:
        started = time.perf_counter()
        await log.append(batch)
        mine.append(time.perf_counter() - started)

    def raw() -> None:
        version = next(versions)
        os.pwrite(file, batch, version * len(batch))
        os.fdatasync(file)
        commit_raw(raw_directory, version, bytes(commit_bytes))

    async def rounds() -> None:
        async with await PartitionLog.open(log_directory) as log:
            for _ in range(setup.choose(20, 60)):
                for _ in range(50):
                    await ours(log)
                limit.extend(seconds_of(raw) for _ in range(50))

    asyncio.run(rounds())
    os.close(file)
    for percent in (50, 99):
        ms, raw_ms = percentile(mine, percent) * 1e3, percentile(limit, percent) * 1e3
        yield Result(f"commit of 100 B, p{percent}: ours", ms, "ms")
        yield Result(f"commit of 100 B, p{percent}: raw limit", raw_ms, "ms")
        yield Result(f"commit of 100 B, p{percent}: raw / ours", raw_ms / ms, "ratio")


# Reading


def read_speed(setup: Setup, batches: Sequence[bytearray]) -> Iterator[Result]:
    """All of a log that is in the page cache, by reads of some size, against pread of the same file by that size.
    Ours checks the CRC of every byte; how long that takes alone, over bytes in memory, is a line of its own."""
    size_bytes = 288 * MIB
    directory = f"{setup.directory}/read"
    log = DirectoryLog(directory, files=UnsyncedFiles(), clock=SystemClock())
    log.open()
    appends = [Append(PublishRequest(batch), split(batch)) for batch in batches]
    for _ in range(-(-size_bytes // sum(len(batch) for batch in batches))):
        log.append(appends)
    files = [(f"{directory}/{segment.name}", segment.size) for segment in log.view.segments]
    total_bytes = sum(size for _, size in files)
    log.close()

    for chunk_bytes, label in ((MIB, "1 MiB"), (4 * MIB, "4 MiB")):
        rounds = interleaved(
            setup.choose(7, 15),
            lambda size=chunk_bytes: read_log(directory, size),  # type: ignore[misc]
            lambda size=chunk_bytes: asyncio.run(read_partition(directory, size)),  # type: ignore[misc]
            lambda size=chunk_bytes: read_raw(files, size),  # type: ignore[misc]
            lambda: check_raw(batches, total_bytes),
        )
        by_log, by_loop, raw, crc = ([total_bytes / seconds / 1e6 for seconds in times] for times in rounds)
        name = f"read, {label} chunks"
        yield Result(f"{name}: pread alone", median(raw), "MB/s")
        yield Result(f"{name}: DirectoryLog.read", median(by_log), "MB/s")
        yield at_least(f"{name}: DirectoryLog.read / pread", ratio(by_log, raw), "ratio", RATIO_GOAL)
        yield Result(f"{name}: PartitionLog.read", median(by_loop), "MB/s")
        yield at_least(f"{name}: PartitionLog.read / pread", ratio(by_loop, raw), "ratio", RATIO_GOAL)
        yield Result(f"{name}: CRC alone", median(crc), "MB/s")
        yield Result(f"{name}: CRC alone, share of DirectoryLog.read's time", ratio(by_log, crc), "ratio")


def read_log(directory: str, chunk_bytes: int) -> float:
    """The seconds from the first record to the last."""
    log = DirectoryLog(directory, files=OsFiles(), clock=SystemClock())
    log.open()
    offset, end = log.view.start_offset, log.view.next_offset
    started = time.perf_counter()
    while offset < end:
        offset = log.read(offset, chunk_bytes).next_offset
    seconds = time.perf_counter() - started
    log.close()
    return seconds


async def read_partition(directory: str, chunk_bytes: int) -> float:
    """The seconds from the first record to the last, on an event loop."""
    async with await PartitionLog.open(directory) as log:
        offset, end = log.view.start_offset, log.view.next_offset
        started = time.perf_counter()
        while offset < end:
            offset = (await log.read(offset, max_bytes=chunk_bytes)).next_offset
        return time.perf_counter() - started


def read_raw(files: Sequence[tuple[str, int]], chunk_bytes: int) -> float:
    """The seconds that every byte of the files takes."""
    started = time.perf_counter()
    for path, size in files:
        file = os.open(path, os.O_RDONLY)
        for position in range(0, size, chunk_bytes):
            os.pread(file, chunk_bytes, position)
        os.close(file)
    return time.perf_counter() - started


def check_raw(batches: Sequence[bytearray], total_bytes: int) -> float:
    """The seconds that the CRC of so many bytes takes, batch by batch, when they are in the CPU's cache."""
    started = time.perf_counter()
    for number in range(total_bytes // len(batches[0])):
        crc32c(batches[number % 16])
    return time.perf_counter() - started


# Decoding


def decode_speed(setup: Setup, batches: Sequence[bytearray]) -> Iterator[Result]:
    """Stored batches to Arrow by one core, against pyarrow reading the same rows from an IPC stream in memory.

    IPC is zero-copy: it only finds the columns. So the second peer copies every buffer once into memory that has
    been used before, which is the least that any decoder of rows must do. Speeds are in bytes of our batches.
    """
    stored = b"".join(batches)
    rows = decode_columns(stored)
    ipc = io.BytesIO()
    with pa.ipc.new_stream(ipc, rows.schema) as writer:
        writer.write_batch(rows)
    stream = pa.py_buffer(ipc.getvalue())
    arena = np.ones(2 * len(stored), np.uint8)
    rounds_each = setup.choose(5, 20)

    def copied() -> None:
        for column in pa.ipc.open_stream(stream).read_next_batch().columns:
            for buffer in column.buffers():
                if buffer is not None:
                    np.copyto(arena[: buffer.size], np.frombuffer(buffer, np.uint8))

    def rate(work: Callable[[], object]) -> Callable[[], float]:
        return lambda: rounds_each * len(stored) / seconds_of(lambda: [work() for _ in range(rounds_each)]) / 1e6

    ours, values, found, moved = interleaved(
        setup.choose(9, 25),
        rate(lambda: decode_columns(stored)),
        rate(lambda: decode_columns(stored, columns=["value"])),
        rate(lambda: pa.ipc.open_stream(stream).read_next_batch()),
        rate(copied),
    )
    name = "decode to Arrow"
    yield at_least(f"{name}, all columns", median(ours), "MB/s", DECODE_GOAL_MB)
    yield Result(f"{name}, all columns", median(ours) * 1e6 / len(stored) * rows.num_rows / 1e6, "M rows/s")
    yield Result(f"{name}, values only", median(values), "MB/s")
    yield Result(f"{name}: IPC stream, zero-copy", median(found), "MB/s")
    yield Result(f"{name}: IPC stream, every buffer copied once", median(moved), "MB/s")
    yield Result(f"{name}: ours / IPC copied", ratio(ours, moved), "ratio")


# Opening


class UnsyncedFile(OsFile):
    """For making logs to measure: nothing is made durable."""

    __slots__ = ()

    def sync(self) -> None:
        pass


class UnsyncedFiles(OsFiles):
    """For making logs to measure: nothing is made durable."""

    __slots__ = ()

    def open(self, path: str) -> UnsyncedFile:
        return UnsyncedFile(super().open(path).fileno())

    def create(self, path: str) -> UnsyncedFile:
        return UnsyncedFile(super().create(path).fileno())

    def sync_directory(self, path: str) -> None:
        pass


def open_time(setup: Setup) -> Iterator[Result]:
    """DirectoryLog.open of logs that differ in how many commits they have had, one record of 100 B each. The history
    is made for real, but in memory and unsynced, then copied to the disk. It must not matter how long it is: the
    longest may take twice as long as the shortest and 5 ms more. Damaged: without index and newest checkpoint."""
    counts = (1_000, 20_000) if setup.quick else (1_000, 100_000, 1_000_000)
    directories = [f"{setup.directory}/open-{count}" for count in counts]
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else setup.directory
    with scratch(memory) as made:
        for count, directory in zip(counts, directories, strict=True):
            make_history(f"{made}/{count}", count)
            shutil.copytree(f"{made}/{count}", directory)
    whole = interleaved(setup.choose(9, 25), *(lambda at=at: open_ms(at) for at in directories))
    damaged = interleaved(setup.choose(3, 5), *(lambda at=at: open_damaged_ms(at) for at in directories))
    first = median(whole[0])
    for count, times in zip(counts[:-1], whole[:-1], strict=True):
        yield Result(f"open after {count:,} commits", median(times), "ms")
    yield at_most(f"open after {counts[-1]:,} commits", median(whole[-1]), "ms", 2 * first + 5)
    for count, times in zip(counts, damaged, strict=True):
        yield Result(f"open after {count:,} commits, index and newest checkpoint missing", median(times), "ms")


def checkpoint_cost(setup: Setup) -> Iterator[Result]:
    """CommitLog.take_checkpoint and write_checkpoint of a log that remembers so many txn_ids of 36 characters, with 100
    new ones since the last; against one file that holds all of them, written and read back, as it was once. It must not
    matter how many there are: the most may take twice as long as none and 5 ms more."""
    counts = (0, 10_000) if setup.quick else (0, 10_000, 100_000, 1_000_000)
    logs = [remembering(f"{setup.directory}/txns-{count}", count) for count in counts]
    works = [lambda log=log, kind=kind: kind(log) for log in logs for kind in (checkpoint_ms, whole_checkpoint_ms)]
    measured = interleaved(setup.choose(5, 15), *works)
    first = median(measured[0])
    for at, (count, log) in enumerate(zip(counts, logs, strict=True)):
        name = f"checkpoint, {count:,} txn_ids remembered"
        ours, whole = median(measured[2 * at]), median(measured[2 * at + 1])
        yield at_most(name, ours, "ms", 2 * first + 5) if count else Result(name, ours, "ms")
        yield Result(f"{name}: size", len(encode_commit(log.commits.take_checkpoint())) / 1024, "KiB")
        yield Result(f"{name}: all of them in it", whole, "ms")
        log.close()
        yield Result(f"open, {count:,} txn_ids remembered", open_ms(log.directory), "ms")


def remembering(directory: str, count: int) -> DirectoryLog:
    """A log that knows so many txn_ids, most of them in runs that are stored."""
    log = DirectoryLog(directory, files=OsFiles(), clock=SystemClock())
    log.open()
    state = log.commits.state
    for number in range(count):
        state.txns.remember(TxnRef(f"{number:036d}", Offset(number), Offset(number + 1), Version(number // 10)))
        state.txns.seal(state.limits.txns)
    checkpoint_ms(log)
    return log


def checkpoint_ms(log: DirectoryLog) -> float:
    """How long a checkpoint takes after ten commits with ten new txn_ids each."""
    batch = encode([StoredRecord(bytes(100), b"key", 1_700_000_000_000)])
    for _ in range(10):
        version = log.view.version
        log.append([Append(PublishRequest(batch, txn_id=f"{version}-{n:030d}"), split(batch)) for n in range(10)])
    return 1e3 * seconds_of(lambda: log.commits.write_checkpoint(log.commits.take_checkpoint()))


def whole_checkpoint_ms(log: DirectoryLog) -> float:
    """How long it takes where the checkpoint holds every txn_id itself."""
    taken = log.commits.take_checkpoint()
    txns = tuple(txn for run in taken.txn_runs for txn in run.refs()) + taken.txns
    whole = replace(taken, txns=txns, txn_runs=())
    store = log.commits.store

    def write() -> None:
        store.put_if_absent("whole", encode_commit(whole))
        decode_commit("whole", store.get("whole") or b"", Checkpoint)

    seconds = seconds_of(write)
    store.delete("whole")
    return 1e3 * seconds


def make_history(directory: str, commits: int) -> None:
    """A log with so many commits."""
    log = DirectoryLog(directory, files=UnsyncedFiles(), clock=SystemClock())
    log.open()
    batch = encode([StoredRecord(bytes(100), b"key", 1_700_000_000_000)])
    appends = [Append(PublishRequest(batch), split(batch))]
    for _ in range(commits):
        log.append(appends)
        if log.is_checkpoint_due:
            log.checkpoint()
    assert log.stopped is None
    log.close()


def open_ms(directory: str) -> float:
    """How long it takes to have the log ready."""
    log = DirectoryLog(directory, files=OsFiles(), clock=SystemClock())
    seconds = seconds_of(log.open)
    log.close()
    return seconds * 1e3


def open_damaged_ms(directory: str) -> float:
    """The same without the files that make it quick; the checkpoint comes back afterwards."""
    commits = f"{directory}/{COMMITS_DIRECTORY}"
    newest = max(name for name in os.listdir(commits) if name.endswith(".checkpoint.json"))
    os.rename(f"{commits}/{newest}", f"{directory}/kept")
    for name in os.listdir(directory):
        if name.endswith(".index"):
            os.unlink(f"{directory}/{name}")
    milliseconds = open_ms(directory)
    os.rename(f"{directory}/kept", f"{commits}/{newest}")
    return milliseconds


if __name__ == "__main__":
    main(__doc__.splitlines()[0], benchmark)
