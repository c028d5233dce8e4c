"""A node in a process of its own that is killed and started again under load, its clients, and what they may find.

`Run` is one such run: publishers over HTTP and WebSocket, consumers of subscriptions of every kind, somebody who looks
at cursors and commits all the time. At the end the log is read in every form, for the rules of `kill_history`.
"""

import asyncio
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sulina.core.delivery.members import SubscriptionKind
from tests.support.fork_server import Forked, ForkServer
from tests.support.kill_clients import (
    PARTITIONS,
    REQUEST_SECONDS,
    TOPIC_PATH,
    Consumer,
    HttpPublisher,
    PipelinedPublisher,
)
from tests.support.kill_history import (
    Added,
    Committed,
    CursorAsked,
    CursorShown,
    Event,
    History,
    Stored,
    violations,
)
from tests.support.ledger import records_in

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0
DRAIN_SECONDS_MAX = 180.0
READ_BYTES = 50_000  # several reads for each partition
LOOK_SECONDS = 0.1
LOADED_SECONDS = (0.0, 1.2)  # how long a node works before it is killed
IN_START_SHARE = 0.15  # of the kills
HTTP_PUBLISHERS, PIPELINED_PUBLISHERS = 2, 2
CONSUMERS = {
    SubscriptionKind.EXCLUSIVE: 1,
    SubscriptionKind.SHARED: 2,
    SubscriptionKind.KEY_SHARED: 2,
    SubscriptionKind.FAILOVER: 2,
}
# Everything is small, so that a short run rolls segments; no ack is ever too late.
SETTINGS = {
    "partitions": PARTITIONS,
    "policy": {
        "segment_bytes": 1 << 16,
        "batch_bytes_max": 1 << 15,
        "ack_timeout_seconds": 3600,
        "redelivery_delay_seconds": 0.1,
    },
}


class NodeProcess:
    """`sulina serve` on one port and one directory, over many lives."""

    def __init__(self, directory: Path) -> None:
        # Kept for the whole run, without listening: no client can be given the port while the node is down.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._reserved.getsockname()[1]}"
        self.life = 0
        self.start_seconds: list[float] = []  # until it was ready
        self._data = directory / "data"
        self._log = directory / "node.log"
        self._process: Forked | None = None
        self._started_at = 0.0
        self._is_ready = False

    async def start(self) -> None:
        """There is a process; see `wait_ready`."""
        assert self._process is None
        self._is_ready = False
        self._started_at = time.monotonic()
        command = ["serve", "--http", self.host, "--data", str(self._data), "--log-format", "json"]
        with self._log.open("ab") as log:
            self._process = await asyncio.to_thread(
                ForkServer.shared().start,
                command,
                environment=os.environ,
                cwd=str(self._log.parent),
                stderr=log.fileno(),
            )

    async def wait_ready(self) -> None:
        """It has said that it serves."""
        if self._is_ready:
            return
        assert self._process is not None
        async with asyncio.timeout(START_SECONDS_MAX):
            line = await asyncio.to_thread(self._process.stdout.readline)
        assert self.host.encode() in line, f"the node did not start: {self.last_words()}"
        self._is_ready = True
        self.start_seconds.append(time.monotonic() - self._started_at)

    async def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        assert self._process.returncode is None, f"the node ended by itself: {self.last_words()}"
        self.life += 1
        self._process.kill()
        await self._wait_gone()

    async def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self.life += 1
        self._process.terminate()
        return await self._wait_gone()

    async def _wait_gone(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        with process.stdout:
            return await asyncio.to_thread(process.wait, STOP_SECONDS_MAX)

    async def close(self) -> None:
        """Whatever has happened, nothing is left of it."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._wait_gone()
        self._reserved.close()

    def errors(self) -> list[str]:
        """What it logged, over all its lives, that should never happen."""
        levels = ('"level":"error"', '"level":"critical"', "Traceback")
        return [line for line in self._log.read_text().splitlines() if any(level in line for level in levels)]

    def last_words(self) -> str:
        """The end of its log."""
        return self._log.read_text()[-4000:]


@dataclass(slots=True)
class Tally:
    """How much a run has done."""

    kills: int = 0
    kills_in_start: int = 0
    kills_with_publishes_under_way: int = 0
    seconds: float = 0.0
    start_seconds: float = 0.0  # on average

    def counts(self) -> dict[str, float]:
        """As a report."""
        return {name.replace("_", " "): round(getattr(self, name), 1) for name in self.__slots__}


class Run:
    """Enter `running`, `kill` as often as you like, then `finish`."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.node = NodeProcess(directory)
        self.history = History()
        self.host = self.node.host
        self.is_ending = False
        self.is_over = False
        self.under_way: set[str] = set()
        self.tally = Tally()
        self._seed = seed
        self._rng = random.Random(seed)
        self._attached = 0
        self._nobody = asyncio.Event()
        self._nobody.set()
        self._publishing: list[asyncio.Task[None]] = []
        self._consuming: list[asyncio.Task[None]] = []
        self._auditor: Auditor | None = None

    def consumer_came(self) -> None:
        self._attached += 1
        self._nobody.clear()

    def consumer_went(self) -> None:
        self._attached -= 1
        if not self._attached:
            self._nobody.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """A node with a topic, and everybody at work."""
        seed = self._seed
        began = time.monotonic()
        async with httpx.AsyncClient(base_url=f"http://{self.host}", timeout=REQUEST_SECONDS) as client:
            try:
                await self.node.start()
                await self.node.wait_ready()
                (await client.put(TOPIC_PATH, json=SETTINGS)).raise_for_status()
                self._auditor = Auditor(client, self.history, self.node)
                publishers: list[HttpPublisher | PipelinedPublisher] = [
                    *(HttpPublisher(self, f"http-{number}", seed) for number in range(HTTP_PUBLISHERS)),
                    HttpPublisher(self, "raw", seed, is_raw=True),
                    *(PipelinedPublisher(self, f"ws-{number}", seed) for number in range(PIPELINED_PUBLISHERS)),
                ]
                consumers = [
                    Consumer(self, str(kind), kind, number, seed)
                    for kind, count in CONSUMERS.items()
                    for number in range(count)
                ]
                async with asyncio.TaskGroup() as tasks:
                    self._publishing = [tasks.create_task(publisher.run()) for publisher in publishers]
                    self._consuming = [tasks.create_task(consumer.run()) for consumer in consumers]
                    looking = tasks.create_task(self._look())
                    yield
                    self.is_ending = self.is_over = True
                    await asyncio.wait([looking, *self._publishing, *self._consuming])
            finally:
                await self.node.close()
        self.tally.seconds = time.monotonic() - began
        self.tally.start_seconds = sum(self.node.start_seconds) / len(self.node.start_seconds)

    async def _look(self) -> None:
        assert self._auditor is not None
        while not self.is_over:
            await self._auditor.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def kill(self) -> None:
        """Once, at a random moment of its life or of its start, and start it again."""
        if self._rng.random() < IN_START_SHARE and self.node.start_seconds:
            await asyncio.sleep(self._rng.uniform(0, self.node.start_seconds[-1]))
            self.tally.kills_in_start += 1
        else:
            await self.node.wait_ready()
            await asyncio.sleep(self._rng.uniform(*LOADED_SECONDS))
            self.tally.kills_with_publishes_under_way += bool(self.under_way)
        await self.node.kill()
        self.tally.kills += 1
        await self._restarted()

    async def _restarted(self, *, is_graceful: bool = False) -> None:
        # What consumers were sent before is noted before what they are sent now.
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await self._nobody.wait()
        self.history.restarted(is_graceful=is_graceful)
        await self.node.start()

    async def finish(self) -> list[str]:
        """Let everybody finish, restart the node gracefully, and see what is wrong."""
        auditor = self._auditor
        assert auditor is not None
        await self.node.wait_ready()
        self.is_ending = True
        async with asyncio.timeout(DRAIN_SECONDS_MAX):
            await asyncio.wait(self._publishing)
            await auditor.wait_no_lag()
        code = await self.node.stop()
        if code != 0:
            self.history.faults.append(f"the node ended with {code} after SIGTERM")
        await self._restarted(is_graceful=True)
        await self.node.wait_ready()
        # If anything is delivered again, it comes before these.
        last = HttpPublisher(self, "last", self._seed)
        async with httpx.AsyncClient(base_url=f"http://{self.host}", timeout=REQUEST_SECONDS) as client:
            for _ in range(PARTITIONS * 3):
                await last.publish(client, last.next_txn())
        async with asyncio.timeout(DRAIN_SECONDS_MAX):
            await auditor.wait_no_lag()
        self.is_over = True
        await asyncio.wait(self._consuming)
        log = {partition: await auditor.read(partition) for partition in range(PARTITIONS)}
        feed = {partition: await auditor.feed(partition) for partition in range(PARTITIONS)}
        wrong = violations(self.history, log, feed)
        return wrong + [f"the node's log: {line}" for line in self.node.errors()]


class Auditor:
    """Looks at subscriptions and commits while all goes on, and reads everything in the end."""

    def __init__(self, client: httpx.AsyncClient, history: History, node: NodeProcess) -> None:
        self._client = client
        self._history = history
        self._node = node
        self._feeds: dict[int, list[Committed]] = {partition: [] for partition in range(PARTITIONS)}

    async def look(self) -> None:
        """At everything once, if the node is there."""
        try:
            for subscription, events in self._history.events.items():
                await self._look_at(subscription, events)
            for partition in range(PARTITIONS):
                await self._follow(partition)
        except httpx.TransportError:
            pass

    async def wait_no_lag(self) -> None:
        """Return when every subscription has acked everything."""
        lags: list[int | None] = [None]
        while any(lag != 0 for lag in lags):
            await asyncio.sleep(LOOK_SECONDS)
            lags = [await self._look_at(subscription, events) for subscription, events in self._history.events.items()]

    async def _look_at(self, subscription: str, events: list[Event]) -> int | None:
        """Its lag; None when there is no answer."""
        number, life = self._history.now(), self._node.life
        events.append(CursorAsked(number))
        response = await self._client.get(f"{TOPIC_PATH}/subscriptions/{subscription}")
        if life != self._node.life or response.status_code in (404, 503):  # it may not have been made yet
            return None
        info = response.raise_for_status().json()
        for cursor in info["cursors"]:
            acked = [(start, end) for start, end in cursor["acked"]]
            events.append(
                CursorShown(number, cursor["partition"], cursor["offset"], acked, cursor["end_offset"], cursor["lag"])
            )
        lag: int = info["lag"]
        return lag

    async def _follow(self, partition: int) -> None:
        """Take what is new of the commit feed: old versions are not kept for ever."""
        feed = self._feeds[partition]
        commits = await self._commits(partition, len(feed))
        feed += commits

    async def _commits(self, partition: int, first: int) -> list[Committed]:
        response = await self._client.get(f"{TOPIC_PATH}/partitions/{partition}/commits", params={"start": first})
        if response.status_code == 503:
            return []
        if response.status_code != 200:
            self._history.faults.append(f"commits of {partition} from {first}: {response.text}")
            return []
        return [_committed(commit) for commit in response.json()["commits"]]

    async def feed(self, partition: int) -> list[Committed]:
        """All commits. What was seen of them before has not changed."""
        await self._follow(partition)
        seen = self._feeds[partition]
        first = max(0, len(seen) - 900)
        now = await self._commits(partition, first)
        if now != seen[first:]:
            changed = [commit.version for commit, before in zip(now, seen[first:], strict=False) if commit != before]
            self._history.faults.append(f"partition {partition}: commits {changed} are not what they were")
        return seen

    async def read(self, partition: int) -> list[Stored]:
        """All records, once as JSON and once as batches: they are the same."""
        as_json = await self._read_json(partition)
        as_batches = await self._read_batches(partition)
        if as_json != as_batches:
            self._history.faults.append(f"partition {partition} as JSON is not what it is as batches")
        return as_batches

    async def _read_json(self, partition: int) -> list[Stored]:
        records: list[Stored] = []
        path, offset = f"{TOPIC_PATH}/partitions/{partition}/records", 0
        while True:
            response = await self._client.get(path, params={"offset": offset, "max_bytes": READ_BYTES})
            page = response.raise_for_status().json()
            records += [Stored(record["offset"], *_content(record)) for record in page["records"]]
            if page["next_offset"] == page["end_offset"] or not page["records"]:
                return records
            offset = page["next_offset"]

    async def _read_batches(self, partition: int) -> list[Stored]:
        records: list[Stored] = []
        path, offset = f"{TOPIC_PATH}/partitions/{partition}/records", 0
        accept = {"Accept": "application/vnd.sulina.batch"}
        while True:
            response = await self._client.get(path, params={"offset": offset, "max_bytes": READ_BYTES}, headers=accept)
            found = records_in(memoryview(response.raise_for_status().content))
            records += [Stored(record.offset, record.key, record.value) for record in found if record.offset >= offset]
            if response.headers["sulina-next-offset"] == response.headers["sulina-end-offset"] or not found:
                return records
            offset = int(response.headers["sulina-next-offset"])


def _content(record: dict[str, Any]) -> Sequence[bytes | None]:
    return [None if text is None else text.encode() for text in (record["key"], record["value"])]


def _committed(commit: dict[str, Any]) -> Committed:
    added = [operation for operation in commit["operations"] if operation["type"] == "add"]
    return Committed(
        commit["version"],
        commit["next_offset"],
        tuple(Added(add.get("txn_id"), add["offset_start"], add["offset_end"]) for add in added),
    )
