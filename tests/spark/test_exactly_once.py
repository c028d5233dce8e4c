"""kill -9 of a driver at every named step, and of Python workers at random, while topics move between brokers.

Then tables = log, row by row: bronze has every record once, silver and quarantine share them, gold is the answer to its
question, and a topic that Spark writes has every record once. `SULINA_SPARK_KILLS=20` is the long form: every step, of
the first batch and of later ones. A step that is not reached is a failure.
"""

import asyncio
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sulina.failpoints import SPARK_FAILPOINTS
from tests.support.cluster_world import World, cluster, until
from tests.support.etcd import EtcdServer, etcd
from tests.support.spark_kills import (
    SCHEMA,
    Driver,
    Log,
    Made,
    Orders,
    differences,
    expected,
    read_log,
    read_made,
    version_of,
    violations,
    write_pipeline,
)

__all__ = ["etcd"]  # a fixture

KILLS = int(os.environ.get("SULINA_SPARK_KILLS", "0"))
TOPIC, COPY = "/default/orders", "/default/copy"
PARTITIONS = 3
RECORDS_PER_SECOND = 50
RECORDS_BETWEEN_MOVES = 100
WORKERS_KILLED = 3  # of one driver
ATTEMPTS_MAX = 4
LATER_AT_ONCE = 3
WORKERS = "workers"  # instead of a step
SHORT = ["commit.done@orders_quarantine"]  # between the two commits of one batch
FIRST = {  # of tables that are not made yet, in the order in which a first batch comes there
    "topic": ["source.planned", "publish.done@copy", "publish.all_done@copy"],
    "bronze": ["files.written@raw", "commit.begun@raw", "commit.done@raw", "commit.found@raw"],
    "silver": ["files.written@orders", "commit.begun@orders_quarantine", "commit.done@orders_quarantine"],
    "silver and gold": ["commit.begun@orders", "commit.done@orders", "commit.begun@revenue", "commit.done@revenue"],
}
LATER = [
    WORKERS,
    "commit.done@raw:3",
    "commit.done@orders_quarantine:3",
    "publish.all_done@copy:3",
    "source.ended:6",
    WORKERS,
    "commit.done@orders:2=stop",
    "commit.begun@raw:2",
    "publish.done@copy:5",
    "commit.done@revenue:2",
]


def runs(number: int) -> dict[str, list[str]]:
    """At what drivers are killed, one life after the other, each run on tables of its own; 0 is the short form."""
    if not number:
        return {"short": SHORT}
    later = [LATER[index % len(LATER)] for index in range(number - sum(map(len, FIRST.values())))]
    return FIRST | {f"later {at}": later[at : at + LATER_AT_ONCE] for at in range(0, len(later), LATER_AT_ONCE)}


@dataclass(slots=True)
class Moving:
    """Both topics go from broker to broker for as long as it runs."""

    world: World
    orders: Orders
    moves: int = 0

    async def run(self) -> None:
        while True:
            for topic in (TOPIC, COPY):
                owner = await self.world.owner_of(topic)
                await self.world.move(topic, self.world.other(owner))
                self.moves += 1
            await self.orders.wait_acked(RECORDS_BETWEEN_MOVES)


async def kill_workers(driver: Driver, tables: Path, chance: random.Random) -> str | None:
    """Some workers, one after the other, each after the tables have grown. None: it ended before the first."""
    for number in range(WORKERS_KILLED):
        before = version_of(tables, "raw")

        async def is_at_work(before: int = before) -> bool:
            return driver.exit_code is not None or (version_of(tables, "raw") > before and bool(driver.workers()))

        await until("the tables grow", is_at_work, seconds=120)
        await asyncio.sleep(chance.random() * 0.5)  # so that it is anything that the worker does
        if driver.exit_code is not None and not number:
            assert driver.was_too_slow, f"it ended by itself:\n{driver.last_words()}"
            return None
        if driver.exit_code is not None:
            return f"Spark gave up after {number} workers, with exit code {driver.exit_code}"
        driver.kill_worker(chance)
    return f"Spark went on after {WORKERS_KILLED} workers; then the driver"


async def drive_to(driver: Driver, at: str, tables: Path, chance: random.Random) -> str:
    """Start it until it comes to a step: once, but for a machine that is too slow for Spark."""
    for _ in range(ATTEMPTS_MAX):
        driver.start(stop_at=None if at == WORKERS else at)
        if at == WORKERS:
            if (seen := await kill_workers(driver, tables, chance)) is not None:
                return seen
        elif await driver.wait_stopped(at):
            return "the driver was there"
        driver.kill()
    raise AssertionError(f"the machine is too slow for Spark: {ATTEMPTS_MAX} drivers did not start")


async def live(driver: Driver, at: str, tables: Path, chance: random.Random) -> str:
    """One life of a driver, to its kill. What was seen."""
    began = time.monotonic()
    seen = await drive_to(driver, at, tables, chance)
    processes = driver.kill()
    versions = {name: version_of(tables, name) for name in ("raw", "orders", "orders_quarantine", "revenue")}
    return f"{at}: {seen}; {processes} processes killed after {time.monotonic() - began:.1f} s; versions {versions}"


async def finish(driver: Driver) -> None:
    """Through all there is, to the end."""
    for _ in range(ATTEMPTS_MAX):
        driver.start(once=True, audit=bool(KILLS))
        code = await driver.wait_ended()
        if not code or not driver.was_too_slow:
            break
    assert not code, driver.last_words()


@pytest.mark.needs("java")
@pytest.mark.timeout(600 + 120 * KILLS)
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("run", runs(KILLS))
async def test_s3_tables_equal_the_log_whatever_was_killed_while_topics_moved(
    tmp_path: Path, etcd: EtcdServer, run: str
) -> None:
    """S2, S3: no record is lost and none is there twice."""
    seed = int(os.environ.get("SULINA_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    chance, kills = random.Random(seed), runs(KILLS)[run]
    brokers = ("a", "b", "c") if KILLS else ("a", "b")
    async with cluster(tmp_path, etcd, *brokers) as world, world.client() as client:
        for topic, schema in ((TOPIC, SCHEMA), (COPY, None)):
            await client.admin.create_topic(
                topic, PARTITIONS, policy={"ack": "archived", "validate": False}, schema=schema
            )
            await world.wait_served(topic)
        orders = Orders(client, TOPIC, RECORDS_PER_SECOND)
        pipeline = write_pipeline(tmp_path, ",".join(broker.url for broker in world.brokers.values()), TOPIC)
        driver, moving, tables = Driver(tmp_path, pipeline, COPY), Moving(world, orders), tmp_path / "tables"
        try:
            async with asyncio.TaskGroup() as tasks:
                producing = tasks.create_task(orders.run())
                move = tasks.create_task(moving.run())
                for number, at in enumerate(kills, 1):
                    print(f"seed {seed}, kill {number}, {await live(driver, at, tables, chance)}", flush=True)
                orders.is_ending = True
                await producing
                move.cancel()
            for topic in (TOPIC, COPY):
                await world.wait_served(topic)
            await finish(driver)
        finally:
            driver.kill()
        log = await read_log(client, TOPIC, PARTITIONS)
        made = read_made(tables, await read_log(client, COPY, PARTITIONS))
    print(f"{len(log)} records, {moving.moves} moves, {len(kills)} kills: comparing", flush=True)
    assert moving.moves >= 2
    wrong = differences("log", orders.acked, log.values()) + violations(log, made)
    assert not wrong, "\n".join([f"seed {seed}", *wrong])


# The checker itself


LOG: Log = {
    (0, 0): (b"k", b'{"id": 1, "country": "RO", "amount": 2.0}'),
    (0, 1): (b"k", b"{"),
    (1, 0): (b"l", b'{"id": 2, "country": "BG", "amount": -1.0}'),
    (1, 1): (b"l", b'{"id": 3, "country": "RO", "amount": 5.0}'),
}


def test_a_log_becomes_these_rows() -> None:
    made = expected(LOG)
    assert made.silver == [(0, 0, 1, "RO", 2.0), (1, 1, 3, "RO", 5.0)]
    assert made.quarantine == [(0, 1, b"k", b"{"), (1, 0, *LOG[1, 0])]
    assert made.gold == [("RO", 2, 7.0)]
    assert Counter(made.copy) == Counter(LOG.values())
    shuffled = replace(made, bronze=made.bronze[::-1])
    assert violations(LOG, shuffled) == []


@pytest.mark.parametrize("table", Made.__slots__)
def test_a_row_that_is_missing_doubled_or_changed_is_seen(table: str) -> None:
    made = expected(LOG)
    first, *others = getattr(made, table)
    assert violations(LOG, replace(made, **{table: others})) == [f"{table}: {first} is missing"]
    assert violations(LOG, replace(made, **{table: [first, first, *others]})) == [
        f"{table}: {first} is there too often"
    ]
    changed = (*first[:-1], b"other")
    assert violations(LOG, replace(made, **{table: [changed, *others]})) == [
        f"{table}: {first} is missing",
        f"{table}: {changed} is of no record",
    ]


def test_every_step_has_its_kill() -> None:
    assert sum(map(len, runs(20).values())) == 20
    named = {at.partition("@")[0].partition(":")[0] for kills in runs(20).values() for at in kills}
    assert named == {*SPARK_FAILPOINTS, WORKERS}
