"""Spark drivers that are killed while they make tables of a topic, and what the tables must hold in the end.

- `Driver` is one process tree over many lives: `kill -9` takes the Python driver, its JVM and all their workers.
- `Orders` publishes for as long as it is wanted, good records and bad ones, each with an id of its own.
- `violations` says what is wrong with tables, given the log. It knows nothing of how either was made.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from sulina.client import Client, Record
from sulina.failpoints import FAILPOINTS, MARKS
from tests.support.cluster_world import WAIT_SECONDS_MAX, until
from tests.support.ledger import records_in

ROOT = Path(__file__).parent.parent.parent
DRIVER = Path(__file__).parent / "spark_driver.py"
DAEMONS = (b"sulina.spark.daemon", b"pyspark.daemon")
ALONE = b"python_streaming_source_runner"  # a worker that no daemon starts
DRIVER_SECONDS_MAX = 400.0  # to a step, or to its end
MASTER = "local[2,4]"  # a task is tried four times
LAST_WORDS = 4000
LIFE = "--- life "
TOO_SLOW = "Timed out while waiting for the Python worker to connect back"
SHOWN_MAX = 5  # of what is wrong in one way
COUNTRIES = ("RO", "BG", "UA", "RS")
SCHEMA = {
    "kind": "json",
    "definition": {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "country": {"type": "string"},
            "amount": {"type": "number"},
        },
        "required": ["id", "country", "amount"],
        "additionalProperties": False,
    },
}

Place = tuple[int, int]  # partition, offset
KeyValue = tuple[bytes | None, bytes | None]  # key, value
Log = Mapping[Place, KeyValue]
Row = tuple[Any, ...]


# What must be there


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Everything that was made of a topic, as rows in any order."""

    bronze: list[Row]  # partition, offset, key, value
    silver: list[Row]  # partition, offset, id, country, amount
    quarantine: list[Row]  # partition, offset, key, value
    gold: list[Row]  # country, orders, revenue
    copy: list[Row]  # key, value


def expected(log: Log) -> Made:
    """What a log becomes. An order is good when it can be read and its amount is positive."""
    silver: list[Row] = []
    quarantine: list[Row] = []
    for place, (key, value) in log.items():
        order = _order(value)
        if order is None:
            quarantine.append((*place, key, value))
        else:
            silver.append((*place, *order))
    by_country: dict[str, list[float]] = {}
    for *_, country, amount in silver:
        by_country.setdefault(country, []).append(amount)
    return Made(
        bronze=[(*place, *record) for place, record in log.items()],
        silver=silver,
        quarantine=quarantine,
        gold=[(country, len(amounts), sum(amounts)) for country, amounts in by_country.items()],
        copy=list(log.values()),
    )


def _order(value: bytes | None) -> tuple[int, str, float] | None:
    try:
        found = json.loads(value or b"")
    except ValueError:
        return None
    return (found["id"], found["country"], found["amount"]) if found["amount"] > 0 else None


def violations(log: Log, made: Made) -> list[str]:
    """What is missing, what is there too often, and what is of no record of the log, table by table."""
    wanted = expected(log)
    return [line for name in Made.__slots__ for line in differences(name, getattr(wanted, name), getattr(made, name))]


def differences(name: str, wanted: Iterable[Row], found: Iterable[Row]) -> list[str]:
    """Row by row, whatever their order; the first few of each kind, and how many more there are."""
    should, does = Counter(wanted), Counter(found)
    missing = sorted(map(repr, (should - does).elements()))
    repeated = sorted(repr(row) for row in (does - should).elements() if row in should)
    unknown = sorted(repr(row) for row in (does - should).elements() if row not in should)
    lines = []
    for rows, what in ((missing, "is missing"), (repeated, "is there too often"), (unknown, "is of no record")):
        lines += [f"{name}: {row} {what}" for row in rows[:SHOWN_MAX]]
        lines += [f"{name}: {len(rows) - SHOWN_MAX} more rows: {what}"] if len(rows) > SHOWN_MAX else []
    return lines


# What is there


async def read_log(client: Client, topic: str, partitions: int) -> dict[Place, KeyValue]:
    """Every record of a topic, from whoever owns it now."""
    log: dict[Place, KeyValue] = {}
    for partition in range(partitions):
        offset = 0
        while True:
            found = await client.admin.fetch(topic, partition, offset)
            for record in records_in(memoryview(found.data)):
                log[partition, record.offset] = (record.key, record.value)
            if found.next_offset == offset:
                break
            offset = found.next_offset
    return log


def read_table(folder: Path, *columns: str) -> list[Row]:
    """Every row of a Delta table, as another engine reads it."""
    rows = DeltaTable(folder).to_pyarrow_table(columns=list(columns)).to_pylist()
    return [tuple(row[name] for name in columns) for row in rows]


def read_made(tables: Path, copy: Log) -> Made:
    """The tables of the pipeline, and the records of the copy."""
    place = ("_partition", "_offset")
    return Made(
        bronze=read_table(tables / "raw", "partition", "offset", "key", "value"),
        silver=read_table(tables / "orders", *place, "id", "country", "amount"),
        quarantine=read_table(tables / "orders_quarantine", "partition", "offset", "key", "value"),
        gold=read_table(tables / "revenue", "country", "orders", "revenue"),
        copy=list(copy.values()),
    )


def version_of(tables: Path, table: str) -> int:
    """The newest version of a table; -1 before its first. By its files: nothing of ours is asked."""
    names = [path.stem for path in (tables / table / "_delta_log").glob("*.json")]
    return max((int(name) for name in names if name.isdecimal()), default=-1)


# Who publishes


@dataclass(slots=True)
class Orders:
    """A producer that notes what was acknowledged."""

    client: Client
    topic: str
    records_per_second: int
    batch_records: int = 10
    acked: list[KeyValue] = field(default_factory=list)
    is_ending: bool = False

    async def run(self) -> None:
        """At a steady rate, until it is to end. In every batch one record is no JSON, and one has a bad amount."""
        due = time.monotonic()
        for number in count():
            if self.is_ending:
                return
            records = [self._record(number * self.batch_records + index, index) for index in range(self.batch_records)]
            messages = [Record(value, key) for key, value in records]
            ack = await self.client.publish_batch(self.topic, messages, txn_id=f"orders-{number}", split=True)
            ack.raise_for_status()
            self.acked += records
            due = max(due + self.batch_records / self.records_per_second, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def _record(self, order: int, index: int) -> KeyValue:
        key = str(order).encode()
        if index == 0:
            return key, b"{%d" % order
        amount = -1.0 if index == 1 else order % 97 + 1.0
        return key, json.dumps({"id": order, "country": COUNTRIES[order % 4], "amount": amount}).encode()

    async def wait_acked(self, records: int) -> None:
        """Return when so many more were acknowledged."""
        goal = len(self.acked) + records
        await until(f"{records} more records are acknowledged", lambda: _now(len(self.acked) >= goal))


async def _now(answer: bool) -> bool:
    return answer


# Drivers


def write_pipeline(folder: Path, url: str, topic: str) -> Path:
    """A definition with a table of each kind."""
    path = folder / "pipeline.toml"
    path.write_text(f"""
name = "killed"
url = "{url}"
tables = "{folder}/tables"
trigger_seconds = 0.5
progress_topic = "/default/progress"

[[bronze]]
table = "raw"
topic = "{topic}"

[[silver]]
table = "orders"
from = "raw"

[[silver.expect]]
name = "positive"
that = "amount > 0"

[[gold]]
table = "revenue"
sql = "select country, count(*) as orders, sum(amount) as revenue from orders group by country"
""")
    return path


class Driver:
    """One driver at a time, in a session of its own."""

    def __init__(self, folder: Path, pipeline: Path, copy: str) -> None:
        self._folder, self._log = folder, folder / "driver.log"
        self._given = {"pipeline": str(pipeline), "copy": copy, "master": MASTER}
        self._process: subprocess.Popen[bytes] | None = None
        self._lives = 0

    def start(self, *, stop_at: str | None = None, once: bool = False, audit: bool = False) -> None:
        """Return at once. `stop_at` names the step at which it leaves a mark and goes no further."""
        assert self._process is None
        self._lives += 1
        self._marks.mkdir()
        environment = {
            **os.environ,
            MARKS: str(self._marks),
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,  # without forks: what is killed is found by its name
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "TMPDIR": str(self._folder),
        }
        given = json.dumps({**self._given, "once": once, "audit": audit})
        with self._log.open("ab") as sink:
            sink.write(f"{LIFE}{self._lives}, to {stop_at or 'its end'}\n".encode())
            sink.flush()
            self._process = subprocess.Popen(
                [sys.executable, str(DRIVER), given],
                stdin=subprocess.PIPE,  # held open: it ends when we do
                stdout=sink,
                stderr=sink,
                env=environment | ({FAILPOINTS: f"{stop_at}=stop"} if stop_at else {}),
                cwd=self._folder,
                start_new_session=True,
            )

    @property
    def _marks(self) -> Path:
        return self._folder / f"marks-{self._lives}"

    @property
    def exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    async def wait_stopped(self, stop_at: str) -> bool:
        """Whether the step was reached; False: Spark found the machine too slow. Any other end is a failure."""
        mark = self._marks / (stop_at.partition(":")[2] or "1")

        await self._until(f"the driver is at {stop_at}", lambda: _now(mark.exists() or self.exit_code is not None))
        if mark.exists():
            return True
        assert self.was_too_slow, f"it ended before {stop_at}:\n{self.last_words()}"
        return False

    @property
    def was_too_slow(self) -> bool:
        """Spark gives a Python worker of its driver 10 seconds to start, and no setting changes that."""
        return TOO_SLOW in self._log.read_text(errors="replace").rpartition(LIFE)[2]

    async def wait_ended(self) -> int:
        """Its exit code."""
        await self._until("the driver ends", lambda: _now(self.exit_code is not None))
        code = self.exit_code
        assert code is not None
        self.kill()
        return code

    async def _until(self, what: str, ask: Any) -> None:
        try:
            await until(what, ask, DRIVER_SECONDS_MAX)
        except AssertionError as failure:
            raise AssertionError(f"{failure}\n{self.last_words()}") from None

    def kill(self) -> int:
        """SIGKILL to all that is left of its session, until nothing is; how many that were."""
        if self._process is None:
            return 0
        killed: set[int] = set()
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while alive := [process.pid for process in processes() if process.session == self._process.pid]:
            assert time.monotonic() < deadline, f"{alive} cannot be killed"
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(alive)
            self._process.poll()
        self._process.wait(WAIT_SECONDS_MAX)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process = None
        return len(killed)

    def workers(self) -> list[int]:
        """Spark's Python workers: the forks of its daemons, and those that read where topics end."""
        assert self._process is not None
        mine = {process.pid: process for process in processes() if process.session == self._process.pid}
        daemons = {pid for pid, process in mine.items() if any(name in process.command for name in DAEMONS)}
        return sorted(pid for pid, one in mine.items() if one.parent in daemons or ALONE in one.command)

    def kill_worker(self, chance: random.Random) -> bool:
        """SIGKILL to one of them; False: there is none now."""
        workers = self.workers()
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
        return bool(workers)

    def last_words(self) -> str:
        """The end of what all lives said."""
        return self._log.read_text(errors="replace")[-LAST_WORDS:] if self._log.exists() else ""


@dataclass(frozen=True, slots=True)
class Process:
    """One that runs, or is stopped."""

    pid: int
    parent: int
    session: int
    command: bytes


def processes() -> Iterator[Process]:
    """All of this machine, but for those that have ended and wait to be noticed."""
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The name is in brackets and may hold anything; then come state, parent, group and session.
            state, parent, _, session, *_ = (path / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                yield Process(int(path.name), int(parent), int(session), (path / "cmdline").read_bytes())
