"""How soon a cluster goes on, and what it costs: moves, failovers, a thousand topics, acks that wait for the archive.

Three brokers, an etcd and an object store (SeaweedFS, by S3) as real processes of this machine, which share its cores
with the load. Applications are those of the tests (`tests/support/cluster_clients.py`): every record is followed, and
a run that loses, repeats or reorders one fails. Each claim is one function; what it compares with is in its docstring.
"""

import sys

if __name__ == "__main__":
    sys.path.append(f"{sys.path.pop(0)}/..")  # not this directory: its http.py is not what others mean by http

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from obstore.store import S3Store

from benchmarks.measure import MIB, Result, Setup, at_most, interleaved, main, percentile, ratio
from benchmarks.serving.processes import Load as LoadProcess
from benchmarks.serving.processes import load
from sulina.core.delivery.members import SubscriptionKind
from tests.support.cluster_clients import Application, Load
from tests.support.cluster_world import POLL_SECONDS, World, cluster, until
from tests.support.etcd import ALONE, EtcdServer
from tests.support.s3 import S3Server, s3_server

BROKERS = ("a", "b", "c")
LEASE_SECONDS = 3.0
PAUSE_SECONDS_GOAL = 1.0
FAILOVER_SECONDS_GOAL = LEASE_SECONDS + 2.0
CREATE_AT_ONCE = 16
CROWDS, CROWDS_QUICK = (250, 500, 1000), (50, 100, 200)
LIVE_RECORDS_PER_SECOND = 5000
LIVE = Load(
    partitions=2,
    producers=2,
    records_per_second=LIVE_RECORDS_PER_SECOND,
    batch_records=50,
    subscriptions=(("billing", SubscriptionKind.EXCLUSIVE, 1),),
)
QUIET = Load(records_per_second=500)
REASSIGN_SECONDS_MAX = 300.0
PUT_BYTES = 100_000  # about what one batch of 1,000 records takes
VALUE_BYTES = 100


def benchmark(setup: Setup) -> Iterator[Result]:
    """Every claim about clusters."""
    home = Path(setup.directory)
    with EtcdServer(home / "etcd", arguments=ALONE) as etcd, s3_server(home_of(home, "s3")) as s3:
        for number, claim in enumerate(CLAIMS):
            yield from asyncio.run(measured(setup, home_of(home, str(number)), etcd, s3, claim))


def home_of(home: Path, name: str) -> Path:
    """A folder for one part."""
    folder = (home / name).resolve()
    folder.mkdir()
    return folder


async def measured(
    setup: Setup,
    folder: Path,
    etcd: EtcdServer,
    s3: S3Server,
    claim: Callable[[Setup, World, S3Server], AsyncIterator[Result]],
) -> list[Result]:
    """What a claim yields on a new cluster."""
    async with cluster(folder, etcd, *BROKERS, lease_seconds=LEASE_SECONDS, s3=s3) as world:
        return [result async for result in claim(setup, world, s3)]


# Moves and failovers


async def moves(setup: Setup, world: World, __: S3Server) -> AsyncIterator[Result]:
    """A topic of two partitions moves while it takes 5,000 records a second: the longest time without an ack, of each
    partition and move."""
    for ack in ("local", "archived"):
        topic, pauses = f"/default/move-{ack}", []
        await world.create_topic(topic, LIVE.partitions, ack=ack)
        application = Application(world, topic, LIVE)
        async with application.running():
            await application.wait_acked(LIVE_RECORDS_PER_SECOND)
            began, before = time.monotonic(), application.acked_records
            for number in range(setup.choose(6, 50)):
                started = time.monotonic()
                await world.move(topic, BROKERS[number % len(BROKERS)])
                await application.wait_acked(LIVE_RECORDS_PER_SECOND // 2)
                pauses += application.pauses(started, time.monotonic())
            rate = (application.acked_records - before) / (time.monotonic() - began)
            check(await application.finish())
        name = f"live move under load, ack {ack}"
        yield Result(f"{name}: acknowledged meanwhile", rate, "records/s")
        yield Result(f"{name}: pause of its applications, p50", percentile(pauses, 50), "s")
        yield at_most(f"{name}: pause of its applications, p99", percentile(pauses, 99), "s", PAUSE_SECONDS_GOAL)


async def failovers(setup: Setup, world: World, __: S3Server) -> AsyncIterator[Result]:
    """SIGKILL of the owner of a topic with ack archived, at a lease of 3 s: the time without an ack."""
    topic, waits = "/default/failover", []
    await world.create_topic(topic, ack="archived")
    application = Application(world, topic, QUIET)
    async with application.running():
        for _ in range(setup.choose(3, 20)):
            await application.wait_acked(200)
            owner = await world.owner_of(topic)
            killed_at = time.monotonic()
            await world.brokers[owner].kill()
            await application.wait_acked(200)
            waits += application.pauses(killed_at, time.monotonic())
            await world.brokers[owner].start()
            await world.wait_brokers(*BROKERS)
        check(await application.finish())
    name = f"failover, lease {LEASE_SECONDS:g} s"
    yield Result(f"{name}: first ack p50", percentile(waits, 50), "s")
    yield at_most(f"{name}: first ack p99", percentile(waits, 99), "s", FAILOVER_SECONDS_GOAL)


def check(wrong: list[str]) -> None:
    """A figure of a run that broke a promise is no figure."""
    if wrong:
        raise AssertionError("\n".join(wrong[:20]))


# Many topics


async def crowd(setup: Setup, world: World, __: S3Server) -> AsyncIterator[Result]:
    """A third of so many topics loses its owner by SIGKILL: from then until all of them have another one. Four times
    as many topics may take four times as long, from the moment when the others know that it is dead."""
    sizes = CROWDS_QUICK if setup.quick else CROWDS
    beyond: dict[int, float] = {}
    others, made = sum((await partitions_of(world)).values()), 0
    for size in sizes:
        started = time.monotonic()
        await create(world, range(made, size))
        yield Result(f"{size - made:,} topics created and served", time.monotonic() - started, "s")
        made = size
        await wait_all_served(world, others + size, BROKERS)
        victim = BROKERS[0] if await world.leader() != BROKERS[0] else BROKERS[1]
        lost = (await partitions_of(world))[victim]
        killed_at = time.monotonic()
        await world.brokers[victim].kill()
        await wait_known_dead(world, victim)
        known_at = time.monotonic()
        await wait_all_served(world, others + size, [each for each in BROKERS if each != victim])
        seconds = time.monotonic() - killed_at
        beyond[size] = max(time.monotonic() - known_at, POLL_SECONDS)
        name = f"{size:,} topics on 3 brokers, {lost:,} of them on the one that dies"
        yield Result(f"{name}: death to all reassigned", seconds, "s")
        yield Result(f"{name}: known to be dead to all reassigned", beyond[size], "s")
        await world.brokers[victim].start()
        await world.wait_brokers(*BROKERS)
        await balance(world, size)
    growth = beyond[sizes[-1]] / beyond[sizes[0]]
    goal = sizes[-1] / sizes[0]
    yield at_most(f"growth from {sizes[0]:,} to {sizes[-1]:,} topics, once it is known", growth, "times", goal)


async def create(world: World, numbers: range) -> None:
    """Topics that nobody uses, several at once."""
    turns = asyncio.Semaphore(CREATE_AT_ONCE)

    async def one(number: int) -> None:
        async with turns:
            await world.tell(f"/v1/topics/default/crowd-{number}", method="PUT", via=BROKERS[0])

    await asyncio.gather(*(one(number) for number in numbers))


async def partitions_of(world: World) -> dict[str, int]:
    """How many each broker has."""
    found = await world.cluster()
    assert found is not None
    return {broker.broker_id: broker.partitions for broker in found.brokers}


async def wait_known_dead(world: World, victim: str) -> None:
    """Its lease has run out."""

    async def is_known() -> bool:
        found = await world.cluster()
        return found is not None and any(b.broker_id == victim and b.state == "unreachable" for b in found.brokers)

    await until(f"{victim} is known to be dead", is_known)


async def wait_all_served(world: World, count: int, brokers: Sequence[str]) -> None:
    """All partitions are assigned to these brokers."""

    async def all_served() -> bool:
        found = await world.cluster(via=brokers[0])
        if found is None or found.unassigned:
            return False
        return sum(each.partitions for each in found.brokers if each.broker_id in brokers) == count

    await until(f"{count} topics are served", all_served, REASSIGN_SECONDS_MAX)


async def balance(world: World, count: int) -> None:
    """Until everybody has a fair share again; one rebalance moves a bounded number."""

    async def is_balanced() -> bool:
        found = await world.cluster()
        assert found is not None
        if min(broker.partitions for broker in found.brokers) >= count // (2 * len(BROKERS)):
            return True
        if not found.unloads and not found.unassigned:
            await world.tell("/v1/cluster/rebalance")
        return False

    await until("the topics are spread", is_balanced, REASSIGN_SECONDS_MAX)


# Acks


async def throughput(setup: Setup, world: World, s3: S3Server) -> AsyncIterator[Result]:
    """Batches of 1,000 records of 100 B over one WebSocket, 32 under way, acked by the owner's disk or by the archive;
    against objects of 100 kB put by eight tasks at once, which is the most that the store could take from anybody."""
    ports = {}
    for ack in ("local", "archived"):
        topic = f"/default/throughput-{ack}"
        await world.create_topic(topic, ack=ack)
        ports[topic] = int(world.brokers[await world.owner_of(topic)].url.rpartition(":")[2])
    seconds = setup.choose(2, 5)
    store = s3.store()
    with load() as loading:
        works: list[Callable[[], float]] = [
            *(publishing(loading, topic, port, seconds) for topic, port in ports.items()),
            lambda: asyncio.run(raw_puts(store, seconds)),
        ]
        local, archived, raw = await asyncio.to_thread(interleaved, setup.choose(2, 5), *works)
    yield Result("publish, ack local", median(local) / MIB, "MiB/s")
    yield Result("publish, ack archived", median(archived) / MIB, "MiB/s")
    yield Result("object store, raw puts of 100 kB", median(raw) / MIB, "MiB/s")
    yield Result("publish, ack archived / raw puts", ratio(archived, raw), "ratio")
    yield Result("publish, ack archived", median(archived) / VALUE_BYTES, "records/s")


def publishing(loading: LoadProcess, topic: str, port: int, seconds: float) -> Callable[[], float]:
    """Bytes of values a second."""

    def publish() -> float:
        result = loading("publish", port=port, topic=topic, batch=1000, connections=1, window=32, seconds=seconds)
        return float(result["rate"]) * VALUE_BYTES

    return publish


async def raw_puts(store: S3Store, seconds: float) -> float:
    """Bytes a second."""
    body, until_time, put = os.urandom(PUT_BYTES), time.perf_counter() + seconds, 0
    started = time.perf_counter()

    async def one(number: int) -> None:
        nonlocal put
        while time.perf_counter() < until_time:
            await store.put_async(f"raw/{started}-{number}-{put}", body)
            put += 1

    await asyncio.gather(*(one(number) for number in range(8)))
    return put * PUT_BYTES / (time.perf_counter() - started)


CLAIMS: tuple[Callable[[Setup, World, S3Server], AsyncIterator[Result]], ...] = (moves, failovers, crowd, throughput)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what was started must be ended
    main(__doc__.splitlines()[0], benchmark)
