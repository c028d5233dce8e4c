"""What topics at work write into etcd, what a durable ack costs by it, and whether a day of that fits into its quota.

One broker, an etcd and a folder of objects, as real processes of this machine. Every topic has ack archived and a
consumer that is behind and waits for each ack: the most that it can ask of etcd. Some have a producer that waits for
each record too. Revisions are counted by etcd itself. A day is replayed with as much of its revisions, history and
quota as a scale allows, by the rule that leaders compact by.
"""

import sys

if __name__ == "__main__":
    sys.path.append(f"{sys.path.pop(0)}/..")  # not this directory: its http.py is not what others mean by http

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import MIB, Result, Setup, at_most, main, percentile
from sulina.client import Client
from sulina.errors import MetadataFailed
from tests.support.cluster_world import World, cluster
from tests.support.etcd import ALONE, EtcdServer

CROWDS = (1, 10, 100)
# A broker has one transaction under way at a time: more topics must not mean more revisions than that allows.
REVISIONS_PER_ACK_GOAL = {1: 1.1, 10: 0.35, 100: 0.1}
WARM_SECONDS = 1.0
PRODUCERS_MAX = 4
BACKLOG_RECORDS_MIN = 1000
DAY_SECONDS = 86_400
QUOTA_BYTES = 2 << 30  # etcd's default
HISTORY_SECONDS = 300.0  # the default of brokers
COMPACTIONS = 5  # in that time
REVISIONS_PER_SECOND = 290.0  # as one topic with one consumer wrote them when this was found
PUTS_AT_ONCE = 64
FULL_SHARE_GOAL = 0.5


def benchmark(setup: Setup) -> Iterator[Result]:
    """Every claim about what is in etcd."""
    home = Path(setup.directory).resolve()
    for topics in CROWDS:
        (home / f"world-{topics}").mkdir()
        with EtcdServer(home / f"etcd-{topics}", arguments=ALONE) as etcd:
            yield from asyncio.run(written(setup, home / f"world-{topics}", etcd, topics))
    yield from asyncio.run(day(home, setup.choose(2400, 240)))


# What topics write


@dataclass(slots=True)
class Counts:
    """What consumers have done."""

    acks: int = 0
    ack_seconds: list[float] = field(default_factory=list)


async def written(setup: Setup, folder: Path, etcd: EtcdServer, topics: int) -> list[Result]:
    """Revisions a second, and how long a consumer waits for an ack that is durable."""
    async with cluster(folder, etcd, "a") as world:
        names = [f"/default/t{number}" for number in range(topics)]
        for name in names:
            await world.create_topic(name, ack="archived")
        await fill(world, names, setup.choose(10_000, 40_000))
        async with at_work(world, names) as counts:
            await asyncio.sleep(WARM_SECONDS)
            counts.acks, counts.ack_seconds = 0, []
            first, began = measure(etcd), time.monotonic()
            await asyncio.sleep(setup.choose(4, 15))
            seconds, last = time.monotonic() - began, measure(etcd)
            acks, waits = counts.acks, list(counts.ack_seconds)
    revisions, grown_bytes = last[0] - first[0], last[1] - first[1]
    name = f"{topics} archived topic{'s' if topics > 1 else ''} with a consumer each"
    return [
        Result(f"{name}: records acked", acks / seconds, "1/s"),
        Result(f"{name}: etcd revisions", revisions / seconds, "1/s"),
        at_most(f"{name}: etcd revisions for a durable ack", revisions / acks, "", REVISIONS_PER_ACK_GOAL[topics]),
        Result(f"{name}: bytes of etcd for a durable ack", grown_bytes / acks, "B"),
        Result(f"{name}: durable ack p50", 1000 * percentile(waits, 50), "ms"),
        Result(f"{name}: durable ack p99", 1000 * percentile(waits, 99), "ms"),
    ]


@contextlib.asynccontextmanager
async def at_work(world: World, topics: list[str]) -> AsyncIterator[Counts]:
    """Producers and consumers of all topics."""
    counts = Counts()
    async with world.client() as client:
        working = [asyncio.create_task(produce(client, topic)) for topic in topics[:PRODUCERS_MAX]]
        working += [asyncio.create_task(consume(client, topic, counts)) for topic in topics]
        try:
            yield counts
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)


async def fill(world: World, topics: list[str], records: int) -> None:
    """Let there be so many records in all topics together, but never few in one."""
    async with world.client() as client:
        for topic in topics:
            await client.publish_batch(topic, [b"x" * 100] * max(BACKLOG_RECORDS_MIN, records // len(topics)))


async def produce(client: Client, topic: str) -> None:
    """One record after the other."""
    while True:
        await client.publish(topic, b"x" * 100)


async def consume(client: Client, topic: str, counts: Counts) -> None:
    """Ack each record, and wait until that is durable."""
    messages = client.consumer(topic, "s", start="earliest")
    async for message in messages:
        began = time.perf_counter()
        await messages.ack(message)
        counts.ack_seconds.append(time.perf_counter() - began)
        counts.acks += 1


def measure(etcd: EtcdServer) -> tuple[int, int]:
    """The revision of etcd, and how many bytes it has in use."""
    status = etcd.status()
    return int(status["header"]["revision"]), int(status["dbSizeInUse"])


# A day


async def day(home: Path, scale: int) -> list[Result]:
    """The revisions of 24 hours at 290 a second, with history, quota and time divided by `scale`: first without
    compaction until etcd is full, then with it."""
    arguments = [*ALONE, f"--quota-backend-bytes={QUOTA_BYTES // scale}"]
    with EtcdServer(home / "etcd-grows", arguments=arguments) as etcd:
        full_after = await replay(etcd, scale, is_compacted=False)
    with EtcdServer(home / "etcd-day", arguments=arguments) as etcd:
        lasted = await replay(etcd, scale, is_compacted=True)
        size_bytes = int(etcd.status()["dbSize"])
    name = f"24 hours at {REVISIONS_PER_SECOND:.0f} revisions/s, 1:{scale}"
    return [
        Result(f"{name}: hours until etcd is full, without compaction", full_after / 3600, "h"),
        Result(f"{name}: hours replayed with compaction", lasted / 3600, "h", ">= 24", lasted >= DAY_SECONDS),
        at_most(f"{name}: share of the quota that was used", size_bytes * scale / QUOTA_BYTES, "", FULL_SHARE_GOAL),
        Result(f"{name}: size of etcd's file", size_bytes / MIB, "MiB"),
    ]


async def replay(etcd: EtcdServer, scale: int, *, is_compacted: bool) -> float:
    """The seconds of the day after which etcd was full; all of it when it never was."""
    from sulina.core.cluster.history import NOTHING, SeenRevisions
    from sulina.metadata.etcd import EtcdMetadata
    from sulina.ports import Put

    store = await EtcdMetadata.open(etcd.endpoints, prefix="/day")
    per_second = REVISIONS_PER_SECOND / scale
    seen, compacted = SeenRevisions(HISTORY_SECONDS), 0.0
    cursor, current = b'{"offset":123456789,"acked":[],"attempts":[]}', b"x" * 110
    count, now = 0, 0.0
    try:
        while now < DAY_SECONDS:
            together = min(PUTS_AT_ONCE, max(1, int(HISTORY_SECONDS / 60 * per_second)))
            puts = [Put(f"/topics/default/t{each}/subscriptions/s/cursor/0", cursor) for each in range(together)]
            notes = [Put(f"/storage/topics/default/t{each}/0/cur", current) for each in range(together)]
            done = await asyncio.gather(*(store.txn(puts=pair) for pair in zip(puts, notes, strict=True)))
            count += together
            now = count / per_second
            seen.saw(max(each.revision for each in done), now)
            old = seen.older_than(HISTORY_SECONDS, now)
            if is_compacted and old != NOTHING and now - compacted >= HISTORY_SECONDS / COMPACTIONS:
                await store.compact(old)
                compacted = now
    except MetadataFailed:
        assert (await store.space()).is_full
    finally:
        await store.close()
    return now


if __name__ == "__main__":
    main(__doc__.splitlines()[0], benchmark)
