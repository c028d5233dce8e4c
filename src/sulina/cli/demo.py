"""`sulina demo`: the partition log at work, in a quarter of a minute.

It appends, is killed, recovers, looks back in time, is damaged, and ends as a table. Every figure is measured.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sulina.core.columns import decode_columns
from sulina.core.records import Record, encode
from sulina.errors import CorruptSegment
from sulina.storage.partition_log import PartitionLog
from sulina.types import Offset, PartitionName, TopicName, Version

PRODUCERS = 64
RECORDS_A_BATCH = 50
APPEND_SECONDS = 3.0
ACKS_BEFORE_KILL = 300

console = Console(highlight=False)


def demo(*, keep: bool = False) -> None:
    """Show the log of one partition: append, kill -9, recovery, time travel, damage, table.

    Parameters
    ----------
    keep
        Leave the files for you to look at.
    """
    partition = PartitionName(TopicName.parse("/default/orders"), 0)
    root = tempfile.mkdtemp(prefix="sulina-demo-")
    directory = f"{root}/{partition.directory}"
    try:
        console.print(f"\n[bold]Sulina[/bold]  a log of record batches for [cyan]{partition}[/cyan]\n")
        asyncio.run(_show(directory))
        kept = f"  The files are in [cyan]{directory}[/cyan]." if keep else "  `sulina demo --keep` leaves the files."
        console.print(f"\n{kept}\n  Next: [bold]make test[/bold], README.md, docs/architecture.md\n")
    finally:
        if not keep:
            shutil.rmtree(root)


async def _show(directory: str) -> None:
    with console.status("Numba compiles the decoder, the first time …"):
        await asyncio.to_thread(decode_columns, _batch(0))
    version = await _append(directory)
    await _kill(directory)
    await _look_back(directory, version)
    await _damage(directory)
    await _tabulate(directory)


def _step(title: str, *facts: str) -> None:
    console.print(f"[bold green]✓[/bold green] [bold]{title}[/bold]")
    for fact in facts:
        console.print(f"  {fact}")


def _batch(number: int) -> bytearray:
    now_ms = int(time.time() * 1000)
    return encode(
        [
            Record(
                key=b"customer-%d" % (place % 7),
                value=b'{"order": %d, "line": %d}' % (number, place),
                timestamp_ms=now_ms,
            )
            for place in range(RECORDS_A_BATCH)
        ]
    )


async def _append(directory: str) -> Version:
    latencies: list[float] = []
    async with await PartitionLog.open(directory) as log:
        end = time.monotonic() + APPEND_SECONDS

        async def produce(number: int) -> None:
            batch = _batch(number)
            while time.monotonic() < end:
                started = time.perf_counter()
                await log.append(batch)
                latencies.append(time.perf_counter() - started)

        with console.status(f"{PRODUCERS} producers append, each waits for its batch to be durable …"):
            await asyncio.gather(*(produce(number) for number in range(PRODUCERS)))
        view = log.view
    latencies.sort()
    rate = view.next_offset / APPEND_SECONDS
    _step(
        f"{view.next_offset:,} records, durable before their ack: {rate:,.0f} a second",
        f"{len(latencies):,} appends in {view.version:,} commits: concurrent ones share a commit and its syncs",
        f"an append took {1000 * latencies[len(latencies) // 2]:.1f} ms in the middle, "
        f"{1000 * latencies[int(len(latencies) * 0.99)]:.1f} ms at the 99th percentile",
    )
    return view.version


async def _kill(directory: str) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sulina.cli.demo", directory, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    acked: list[int] = []
    with console.status("another process appends, until kill -9 …"):
        while len(acked) < ACKS_BEFORE_KILL:
            acked.append(int(await child.stdout.readline()))
        child.send_signal(signal.SIGKILL)
        acked += [int(line) for line in (await child.stdout.read()).split(b"\n")[:-1] if line]
        await child.wait()
    started = time.perf_counter()
    async with await PartitionLog.open(directory) as log:
        seconds = time.perf_counter() - started
        found = {record async for record in _offsets(log)}
        lost = [offset for offset in acked if offset not in found]
        assert len(found) == log.view.next_offset
        _step(
            f"kill -9, open again in {1000 * seconds:.0f} ms: {len(acked)} acknowledged, {len(lost)} lost",
            f"offsets 0 to {log.view.next_offset - 1:,} without a gap, at version {log.view.version:,}",
        )


async def _offsets(log: PartitionLog) -> AsyncIterator[int]:
    offset = Offset(0)
    while offset < log.view.next_offset:
        part = await log.read(offset)
        for number in range(offset, part.next_offset):
            yield number
        offset = part.next_offset


async def _look_back(directory: str, version: Version) -> None:
    async with await PartitionLog.open(directory) as log:
        then = await log.read(Offset(0), version=version)
        _step(f"read as of version {version:,}: {then.end_offset:,} records then, {log.view.next_offset:,} now")


async def _damage(directory: str) -> None:
    async with await PartitionLog.open(directory) as log:
        segment = Path(directory) / log.view.segments[0].name
        restore = _flip(segment, 1000)
        try:
            await log.read(Offset(0))
        except CorruptSegment as error:
            _step("one flipped bit on the disk: detected, named, never served", f"[dim]{error.reason}[/dim]")
        finally:
            restore()


def _flip(path: Path, position: int) -> Callable[[], None]:
    def flip() -> None:
        with path.open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 1]))

    flip()
    return flip


async def _tabulate(directory: str) -> None:
    async with await PartitionLog.open(directory) as log:
        started = time.perf_counter()
        part = await log.read(Offset(0), max_bytes=64 << 20)
        columns = decode_columns(part.data)
        seconds = time.perf_counter() - started
    table = Table("offset", "timestamp", "key", "value", box=None, padding=(0, 2))
    for row in columns.slice(0, 3).to_pylist():
        table.add_row(
            str(row["offset"]), f"{row['timestamp']:%H:%M:%S.%f}"[:-3], row["key"].decode(), row["value"].decode()
        )
    _step(f"every log is a table: {columns.num_rows:,} rows in Arrow in {1000 * seconds:.0f} ms")
    console.print(table)


async def _append_until_killed(directory: str) -> None:
    async with await PartitionLog.open(directory) as log:
        while True:
            answer = await log.append(_batch(1))
            os.write(1, b"%d\n" % (answer.offset_end - 1))


if __name__ == "__main__":
    asyncio.run(_append_until_killed(sys.argv[1]))
