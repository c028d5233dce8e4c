"""What an archive costs: bringing a log into it, acks that wait for it, reading from it.

On a directory of the disk under test and on an S3 server (SeaweedFS) on this machine. Each is compared with what the
same store takes for the same bytes without a log: puts for uploads, one after the other; the puts of one slice for an
ack; whole objects for reads. Records have values of 1,000 bytes, 1,000 to a batch.
"""

import sys

if __name__ == "__main__":
    sys.path.append(f"{sys.path.pop(0)}/..")  # not this directory: its http.py is not what others mean by http

import asyncio
import os
import random
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.measure import MIB, Result, Setup, main, percentile, ratio
from sulina.core.log.archive import SLICE_BYTES_MAX
from sulina.core.records.record import StoredRecord, encode
from sulina.storage.archive import Archive
from sulina.storage.archive_cache import ArchiveCache
from sulina.storage.objects import Objects, open_objects
from sulina.storage.partition_log import LogThreads
from sulina.storage.tiered_log import Archiving, TieredLog
from sulina.types import Epoch, Offset
from tests.support.s3 import s3_server

ROUNDS = 3
WRITERS = 64


class Bench:
    """Logs with an archive in one store."""

    def __init__(self, home: str, objects: Objects) -> None:
        self.home = home
        self.objects = objects
        self.threads = LogThreads.of(writers=2, readers=2, archivers=4)

    async def opened(self, broker: str, topic_id: str, epoch: int, archiving: Archiving) -> TieredLog:
        return await TieredLog.open(
            f"{self.home}/{broker}-{topic_id}",
            Archive(self.objects, f"logs/{topic_id}", cache=ArchiveCache(64 * MIB)),
            topic_id=topic_id,
            epoch=Epoch(epoch),
            broker_id=broker,
            archiving=archiving,
            threads=self.threads,
        )

    async def round(self, size: int, acks: int, results: dict[str, list[float]]) -> None:
        """One log: filled, drained, taken over, read, written with acks that wait."""
        topic_id = secrets.token_hex(4)
        log = await self.opened("a", topic_id, 1, Archiving(archive_bytes=1 << 30, archive_seconds=3600.0))
        rng = random.Random(7)
        batch = bytes(encode([StoredRecord(value=rng.randbytes(1000)) for _ in range(1000)]))
        for _ in range(size // len(batch)):
            await log.append(batch)
        written = len(batch) * (size // len(batch))

        def note(name: str, seconds: float, amount: float = 1.0) -> None:
            results.setdefault(name, []).append(amount / seconds)

        started = time.perf_counter()
        await log.drain()
        note("upload", time.perf_counter() - started, written / 1e6)
        slices = log.archived.slices
        await log.close()
        started = time.perf_counter()
        for number, slice_ in enumerate(slices):
            self.objects.put(f"raw/{topic_id}/{number}", [bytes(slice_.size)])
        note("raw put", time.perf_counter() - started, written / 1e6)

        started = time.perf_counter()
        log = await self.opened("b", topic_id, 2, Archiving(ack_archived=True))
        note("takeover", time.perf_counter() - started)
        started = time.perf_counter()
        offset = Offset(0)
        while offset < log.view.next_offset:
            offset = (await log.read(offset)).next_offset
        note("cold read", time.perf_counter() - started, written / 1e6)
        started = time.perf_counter()
        for number in range(len(slices)):
            self.objects.get(f"raw/{topic_id}/{number}")
        note("raw get", time.perf_counter() - started, written / 1e6)

        small = bytes(encode([StoredRecord(value=rng.randbytes(100))]))
        results.setdefault("ack", []).extend(await self._acks(log, small, acks))
        started = time.perf_counter()
        await asyncio.gather(*(self._acks(log, small, acks // 10) for _ in range(WRITERS)))
        note("acks at once", time.perf_counter() - started, WRITERS * (acks // 10))
        await log.close()
        results.setdefault("raw ack", []).extend(self._raw_acks(topic_id, acks, len(small)))
        self.objects.delete_all("logs")
        self.objects.delete_all("raw")

    async def _acks(self, log: TieredLog, data: bytes, count: int) -> list[float]:
        seconds: list[float] = []
        for _ in range(count):
            started = time.perf_counter()
            await log.append(data)
            seconds.append(time.perf_counter() - started)
        return seconds

    def _raw_acks(self, topic_id: str, count: int, size: int) -> list[float]:
        """Batches and commits beside each other, then the commit that makes them count."""
        seconds: list[float] = []
        with ThreadPoolExecutor(max_workers=2) as threads:
            for number in range(count):
                started = time.perf_counter()
                list(
                    threads.map(lambda n: self.objects.put(f"raw/{topic_id}/{n}", [bytes(size)]), (2 * number, -number))
                )
                self.objects.put_if_absent(f"raw/{topic_id}/commits/{number}", bytes(500))
                seconds.append(time.perf_counter() - started)
        return seconds


def benchmark(setup: Setup) -> Iterator[Result]:
    """On both stores."""
    yield from measured(setup, "a directory", open_objects(f"file://{os.path.abspath(setup.directory)}/objects"))
    os.environ.setdefault("AWS_SKIP_SIGNATURE", "true")
    folder = Path(setup.directory, "s3")
    folder.mkdir()
    with s3_server(folder) as server:
        yield from measured(setup, "S3", open_objects("s3://sulina/bench", endpoint=server.endpoint))


def measured(setup: Setup, store: str, objects: Objects) -> Iterator[Result]:
    results: dict[str, list[float]] = {}

    async def rounds() -> None:
        bench = Bench(setup.directory, objects)
        try:
            for _ in range(setup.choose(1, ROUNDS)):
                await bench.round(setup.choose(2, 8) * SLICE_BYTES_MAX, setup.choose(50, 200), results)
        finally:
            bench.threads.shutdown()

    asyncio.run(rounds())
    for name, peer, goal in (("upload", "raw put", 0.7), ("cold read", "raw get", 0.5)):
        yield Result(f"archive in {store}: {name}", percentile(results[name], 50), "MB/s")
        yield Result(f"archive in {store}: {peer}", percentile(results[peer], 50), "MB/s")
        share = ratio(results[name], results[peer])
        yield Result(f"archive in {store}: {name} / {peer}", share, "ratio", f">= {goal:g}", share >= goal)
    yield Result(f"archive in {store}: taking over", 1000 / percentile(results["takeover"], 50), "ms")
    for name in ("ack", "raw ack"):
        yield Result(f"archive in {store}: {name}, p50", 1000 * percentile(results[name], 50), "ms")
        yield Result(f"archive in {store}: {name}, p99", 1000 * percentile(results[name], 99), "ms")
    yield Result(f"archive in {store}: acks, {WRITERS} at once", percentile(results["acks at once"], 50), "acks/s")


if __name__ == "__main__":
    main(__doc__ or "", benchmark)
