"""Applications of a cluster: producers, consumers and readers that know nothing of brokers, and note what they see.

They use the Python client as anybody would. Whatever it does not deal with by itself is a fault: a broker that moves
topics or dies is no error that an application must handle.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count, groupby, pairwise
from operator import attrgetter

import httpx

from sulina.client import Client, Consumer, Message, Record
from sulina.core.delivery.members import SubscriptionKind
from sulina.core.log.commit import Add, Commit
from sulina.errors import SulinaError
from tests.support.cluster_history import ClusterHistory, cluster_violations
from tests.support.cluster_world import BrokerProcess, World, until
from tests.support.kill_history import (
    AckAnswered,
    AckSent,
    Added,
    Answer,
    Committed,
    CursorAsked,
    CursorShown,
    Delivered,
    Ended,
    Stored,
    Txn,
)
from tests.support.ledger import records_in

FINISH_SECONDS_MAX = 60.0
TAKE_RECORDS_MAX = 2000
COMMITS_MAX = 1000
READ_BYTES = 1 << 20
RETRY_SECONDS = 0.05
LOOK_SECONDS_MAX = 2.0
LOOK_BACK_RECORDS = 20
CLOSED = ("log_incomplete", "corrupt_log")  # codes of a partition that does not open by itself


@dataclass(frozen=True, slots=True)
class Load:
    """Who is there, and how much they do."""

    partitions: int = 1
    producers: int = 1  # of each partition
    records_per_second: int = 500  # of all producers together
    batch_records: int = 10
    subscriptions: tuple[tuple[str, SubscriptionKind, int], ...] = (("billing", SubscriptionKind.EXCLUSIVE, 1),)
    readers: int = 1
    tolerates_errors: bool = False  # of producers: they send again, under the same txn_id
    every_nth_has_txn_id: int = 1  # the other producers rely on the client, and send nothing again themselves
    looks_per_second: float = 0.0  # at partitions and cursors, at every broker


@dataclass(slots=True)
class Application:
    """One topic with its producers, consumers and readers."""

    world: World
    topic: str
    load: Load
    ack: str = "archived"
    history: ClusterHistory = field(default_factory=ClusterHistory)
    acked_at: dict[int, list[float]] = field(default_factory=dict)  # by partition: when a publish was answered
    acked_records: int = 0
    errors: list[str] = field(default_factory=list)  # that producers were given
    looks: Counter[str] = field(default_factory=Counter)  # by what a broker answered
    journal: list[str] = field(default_factory=list)  # what consumers saw, and when, for whoever looks into a failure
    _reading: dict[int, str] = field(default_factory=dict)  # the names of those that read now
    is_ending: bool = False  # nothing new is published
    _producing: list[asyncio.Task[None]] = field(default_factory=list)
    _following: list[asyncio.Task[None]] = field(default_factory=list)
    _clients: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everybody is at work; the topic must exist. A fault of a task is one of the history."""
        async with self._clients:
            producers = await self._clients.enter_async_context(self.world.client())
            consumers = await self._clients.enter_async_context(self.world.client())
            for name, kind, number in self.load.subscriptions:
                self.history.kinds[name] = kind
                self.history.events[name] = []
                self._following += [
                    asyncio.create_task(self._again(partial(self._consume, consumers, name, kind, i)))
                    for i in range(number)
                ]
            for number in range(self.load.readers):
                self._following.append(asyncio.create_task(self._again(partial(self._read, consumers, number))))
            if self.load.looks_per_second:
                self._following.append(asyncio.create_task(self._look(consumers)))
            for number in range(self.load.partitions * self.load.producers):
                producing = self._produce(producers, f"p{number}", number % self.load.partitions)
                self._producing.append(asyncio.create_task(producing))
            try:
                yield
            finally:
                for task in [*self._producing, *self._following]:
                    task.cancel()
                await asyncio.gather(*self._producing, *self._following, return_exceptions=True)

    # Producers

    async def _produce(self, client: Client, name: str, partition: int) -> None:
        """One publish at a time, into one partition, at a steady rate."""
        load = self.load
        every_seconds = load.batch_records * load.partitions * load.producers / load.records_per_second
        due = time.monotonic()
        for number in count():
            if self.is_ending:
                return
            keys = [None] * self.load.batch_records
            txn = Txn.of(f"{name}-{number}", name, keys, partition=partition, at=self.history.now())
            self.history.txns[txn.txn_id] = txn
            await self._publish(client, txn, partition)
            due = max(due + every_seconds, time.monotonic() - 1.0)  # after a pause it catches up a little
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _publish(self, client: Client, txn: Txn, partition: int) -> None:
        messages = [Record(value, key) for key, value in txn.records]
        has_txn_id = int(txn.publisher[1:]) // self.load.partitions % self.load.every_nth_has_txn_id == 0
        txn_id = txn.txn_id if has_txn_id else None
        while True:
            txn.sends += 1
            try:
                ack = await client.publish_batch(self.topic, messages, partition=partition, txn_id=txn_id)
                ack.raise_for_status()
                break
            except SulinaError as error:
                self.errors.append(f"{txn.txn_id}: {error!r}")
                if not self._is_tolerated(error, partition):
                    self.history.faults.append(f"{txn.txn_id} had to deal with {error!r}")
                    return
                txn.unknowns += 1
                await asyncio.sleep(RETRY_SECONDS)
                if not has_txn_id:
                    return  # it may be there or not; to send it again would be another publish
        part = ack.parts[0]
        assert part.base_offset is not None
        assert part.version is not None
        txn.answers.append(Answer(self.history.now(), part.partition, part.base_offset, part.count, part.version))
        self.acked_at.setdefault(partition, []).append(time.monotonic())
        self.acked_records += part.count
        self.history.was_acked(partition, part.base_offset + part.count)

    def _is_tolerated(self, error: SulinaError, partition: int) -> bool:
        if not self.load.tolerates_errors:
            return False
        return error.retryable or error.code in self.history.may_close.get(partition, ())

    # Those who look

    async def _look(self, client: Client) -> None:
        """Ask every broker, which may own nothing, about every partition, and look at the cursors."""
        every_seconds = 1.0 / self.load.looks_per_second
        for number in count():
            await asyncio.sleep(every_seconds)
            self.history.moments.append((time.monotonic(), self.history.now()))
            partition = number % self.load.partitions
            for broker in self.world.running:
                with contextlib.suppress(httpx.HTTPError):
                    await self._look_at(broker, partition)
            for subscription in self.load.subscriptions if number % 5 == 0 else ():
                await self._look_at_cursors(client, subscription[0])

    async def _look_at(self, broker: BrokerProcess, partition: int) -> None:
        history, path = self.history, f"{broker.url}/v1/topics{self.topic}/partitions/{partition}"
        before, offset = history.before(partition), max(0, history.acked_ends.get(partition, 0) - LOOK_BACK_RECORDS)
        info = await self.world.http.get(path, follow_redirects=False, timeout=LOOK_SECONDS_MAX)
        self.looks["200" if info.status_code == 200 else _code(info)] += 1
        if _code(info) in CLOSED:
            history.saw_closed(broker.broker_id, partition, _code(info), info.json()["detail"])
        if info.status_code != 200:
            return
        told = info.json()
        at = {"epoch": told["epoch"], "start": told["start_offset"], "end": told["end_offset"]}
        history.saw_partition(before, broker.broker_id, partition, **at)
        records = await self.world.http.get(
            f"{path}/records?offset={offset}", follow_redirects=False, timeout=LOOK_SECONDS_MAX
        )
        if records.status_code == 200 and history.before(partition).times_given_up == before.times_given_up:
            for record in records.json()["records"]:
                history.saw((partition, record["offset"]), (None, record["value"].encode()))

    async def _look_at_cursors(self, client: Client, subscription: str) -> None:
        events, number = self.history.events[subscription], self.history.now()
        events.append(CursorAsked(number))
        try:
            found = await client.admin.subscription(self.topic, subscription)
        except SulinaError as error:
            self.looks[f"cursors: {error.code}"] += 1
            return
        for cursor in found.cursors:
            events.append(
                CursorShown(number, cursor.partition, cursor.offset, cursor.acked, cursor.end_offset, cursor.lag)
            )

    # Consumers

    async def _consume(
        self, client: Client, subscription: str, kind: SubscriptionKind, number: int, attempt: int
    ) -> None:
        name = f"{subscription}-{number}" + (f".{attempt}" if attempt else "")
        with self._noting(name):
            async with client.consumer(self.topic, subscription, mode=kind, start="earliest", name=name) as messages:
                async for batch in messages.batches(TAKE_RECORDS_MAX):
                    # All that came is noted at once: while one ack is waited for, others may get the rest and ack it.
                    deliveries = [
                        self._note(subscription, f"{name}/{delivery_id}", list(group))
                        for (delivery_id, _), group in groupby(batch, key=attrgetter("delivery_id", "partition"))
                    ]
                    for delivery, taken in deliveries:
                        await self._ack(messages, subscription, delivery, taken)

    def _note(self, subscription: str, session: str, messages: list[Message]) -> tuple[Delivered, list[Message]]:
        """What was delivered."""
        partition, offsets = messages[0].partition, tuple(message.offset for message in messages)
        for message in messages:
            self.history.saw((partition, message.offset), (message.key, message.value))
        delivery = Delivered(session, partition, messages[0].attempt, offsets)
        self.history.events[subscription].append(delivery)
        self._tell(f"{session}: partition {partition}, {offsets[0]} to {offsets[-1]}")
        return delivery, messages

    async def _ack(self, messages: Consumer, subscription: str, delivery: Delivered, taken: list[Message]) -> None:
        events, acking = self.history.events[subscription], self.history.now()
        events.append(AckSent(delivery.session, delivery.partition, delivery.offsets, acking))
        is_durable = await messages.ack(*taken)
        self._tell(f"{delivery.session}: ack {acking} up to {delivery.offsets[-1]} is durable: {is_durable}")
        if is_durable:
            events.append(AckAnswered(acking))

    def _tell(self, what: str) -> None:
        self.journal.append(f"{datetime.now(UTC):%H:%M:%S.%f} {what}")

    async def _read(self, client: Client, number: int, attempt: int) -> None:
        """From the beginning, under a name of its own each time."""
        name = f"reader-{number}" + (f".{attempt}" if attempt else "")
        self._reading[number] = name
        with self._noting(name):
            async for record in client.read(self.topic, start="earliest"):
                self.history.was_read(name, (record.partition, record.offset), (record.key, record.value))

    @contextlib.contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        try:
            yield
        except SulinaError as error:
            if any(error.code in codes for codes in self.history.may_close.values()):
                self.looks[f"{name} began again: {error.code}"] += 1
                for events in self.history.events.values():
                    events.append(Ended(name))
            else:
                self.history.faults.append(f"{name} had to deal with {error!r}")
                raise

    async def _again(self, work: Callable[[int], Awaitable[None]]) -> None:
        """Begin again whenever a partition is closed for a cause; end with any other fault, which is noted."""
        for attempt in count():
            with contextlib.suppress(SulinaError):
                await work(attempt)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            return

    # In the end

    async def wait_acked(self, records: int, seconds: float = FINISH_SECONDS_MAX) -> None:
        """Return when so many more records were acknowledged."""
        goal = self.acked_records + records

        async def reached() -> bool:
            return self.acked_records >= goal or bool(self.history.faults)

        await until(f"{records} more records are acknowledged", reached, seconds)

    async def wait_producers(self) -> None:
        """Let producers finish what they have begun."""
        self.is_ending = True
        async with asyncio.timeout(FINISH_SECONDS_MAX):
            await asyncio.wait(self._producing)

    async def finish(self) -> list[str]:
        """Let everybody finish, read all there is, and see what is wrong."""
        await self.wait_producers()
        async with self.world.client() as client:
            log = {partition: await self._stored(client, partition) for partition in range(self.load.partitions)}
            feed = {p: await self._commits(client, p) for p in log if p not in self.history.lost_commits}
            ends = {partition: len(records) for partition, records in log.items()}
            with contextlib.suppress(AssertionError):  # the rules say what is missing
                await until("everything is consumed", partial(self._is_consumed, client, ends), FINISH_SECONDS_MAX)
        wrong = cluster_violations(self.history, log, feed)
        if wrong:
            path = self.world.folder / f"journal-{self.topic.replace('/', '-')}.txt"
            path.write_text("\n".join(self.journal))
            wrong.append(f"what consumers saw is in {path}")
        return wrong

    async def _is_consumed(self, client: Client, ends: dict[int, int]) -> bool:
        """Every reader is at the end, and so is every cursor."""
        history = self.history
        for name in history.events:
            found = await client.admin.subscription(self.topic, name)
            history.cursors[name] = {cursor.partition: cursor.offset for cursor in found.cursors}
        read = all(history.read_end(reader, p) >= ends[p] for reader in self._reading.values() for p in ends)
        return bool(history.faults) or (read and all(cursors == ends for cursors in history.cursors.values()))

    async def _stored(self, client: Client, partition: int) -> list[Stored]:
        records: list[Stored] = []
        offset = 0
        while True:
            found = await client.admin.fetch(self.topic, partition, offset, max_bytes=READ_BYTES)
            records += [
                Stored(r.offset, r.key, r.value) for r in records_in(memoryview(found.data)) if r.offset >= offset
            ]
            if found.next_offset == offset:
                return records
            offset = found.next_offset

    async def _commits(self, client: Client, partition: int) -> list[Committed]:
        commits: list[Committed] = []
        while True:
            first = len(commits)
            found = await client.admin.commits(self.topic, partition, start=first, end=first + COMMITS_MAX)
            if not found:
                return commits
            commits += [_committed(commit) for commit in found]

    def pauses(self, began: float, ended: float) -> list[float]:
        """Of each partition, the longest time without an ack that touches this span."""
        longest = []
        for times in self.acked_at.values():
            gaps = [b - a for a, b in pairwise(times) if b >= began and a <= ended]
            longest.append(max(gaps, default=0.0))
        return longest

    def counts(self) -> dict[str, int]:
        """How much there was."""
        return {
            "publishes": len(self.history.txns),
            "records acknowledged": self.acked_records,
            "records delivered": sum(
                len(event.offsets)
                for events in self.history.events.values()
                for event in events
                if isinstance(event, Delivered)
            ),
            "errors that producers dealt with": len(self.errors),
        }


def _code(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["code"])
    except (ValueError, KeyError):
        return str(answer.status_code)


def _committed(commit: Commit) -> Committed:
    added = [operation for operation in commit.operations if isinstance(operation, Add)]
    return Committed(
        commit.version,
        commit.next_offset,
        tuple(Added(add.txn_id, add.offset_start, add.offset_end) for add in added),
    )
