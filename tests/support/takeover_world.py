"""Brokers that take one partition over from each other, in a world that is seeded: its time, its faults, its threads.

Everything is real but the object store, the threads and the clock: each broker has a directory, opens logs, appends,
reads, drains, dies. Those that lost the partition go on as if they had not. `World.run` raises AssertionError with
what went wrong.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sulina.core.log.log_state import Appended, MemoryLimits
from sulina.core.log.publish_request import PublishRequest
from sulina.core.log.retention import Retention
from sulina.core.log.segment import SegmentLimits
from sulina.core.log.txn_memory import TxnLimits
from sulina.errors import ArchiveFailed, LogClosed, LogStopped, OffsetOutOfRange, QueueFull, StaleEpoch, SulinaError
from sulina.storage.archive import Archive
from sulina.storage.directory_log import LogOptions
from sulina.storage.files import VolatileFiles
from sulina.storage.partition_directory import Fate, release_directory
from sulina.storage.partition_log import LogThreads
from sulina.storage.tiered_log import Archiving, TieredLog
from sulina.types import Epoch, Version
from tests.client.virtual_time import VirtualTimeLoop
from tests.support.ledger import Ledger, batch, records_in
from tests.support.objects import FaultyObjects, MemoryObjects

TOPIC_ID = "t1"
PATH = "topic=default.orders-part=0/t1"
PADDING_BYTES = 60
BROKERS = ("A", "B", "C")
OPTIONS = LogOptions(
    segments=SegmentLimits(segment_bytes_max=1500, index_interval_bytes=300),
    memory=MemoryLimits(txns=TxnLimits(run_txn_ids_max=16)),
    versions_kept=3,
)


class LoopClock:
    """The time of a virtual loop."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return 1_700_000_000.0 + self._loop.now

    def monotonic(self) -> float:
        return self._loop.now


class Inline(Executor):
    """A thread that is always free: what is submitted is done at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - it is the future's
            future.set_exception(error)
        return future


@dataclass(slots=True)
class Owner:
    """A broker that has, or believes to have, the partition."""

    broker: str
    epoch: int
    log: TieredLog
    objects: FaultyObjects
    appends: dict[int, asyncio.Future[Appended]] = field(default_factory=dict)


class World:
    """One seed. Where acks do not wait for the archive (`is_local`), the partition goes to others only in good order,
    or back to the broker whose disk has all of it; and the ack level changes now and then."""

    def __init__(self, seed: int, home: Path) -> None:
        self.rng = random.Random(seed)
        self.loop = VirtualTimeLoop()
        self.clock = LoopClock(self.loop)
        self.home = home
        self.late: list[Callable[[], object]] = []
        self.store = MemoryObjects(self.clock)
        self.rate = self.rng.choice([0.0, 0.02, 0.1])
        self.owners: dict[str, Owner] = {}
        self.is_local = self.rng.random() < 0.4
        self.ack_archived = not self.is_local
        self.is_archived = True  # everything acknowledged
        self.broker = ""  # the last to have it
        self.epoch = 0
        self.number = 0
        self.ledger = Ledger(padding_bytes=PADDING_BYTES)
        self.unknown: list[int] = []
        self.start_max = 0  # the log may have been cut up to here
        self.values: dict[int, bytes] = {}  # seen by readers, by offset
        self.commits: dict[int, str] = {}  # seen by readers, by version
        self.version_seen = -1
        self.counts: dict[str, int] = {}
        for broker in BROKERS:
            (home / broker).mkdir()

    def run(self, steps: int) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._run(steps))

    async def _run(self, steps: int) -> None:
        actions = [self.append, self.append_many, self.take_over, self.die, self.move, self.read, self.retain]
        actions += [self.deliver, self.wait, self.reopen, self.cut, self.switch]
        weights = [30, 10, 4, 3, 3, 8, 2, 6, 15, 2, 2, 2]
        for _ in range(steps):
            action = self.rng.choices(actions, weights)[0]
            self.counts[action.__name__] = self.counts.get(action.__name__, 0) + 1
            await action()
            await self._settle()
        await self._finish()

    # What may happen

    async def append(self, count: int = 1) -> None:
        owner = self._any()
        if owner is None:
            return
        for _ in range(count):
            if self.unknown and self.rng.random() < 0.4:
                number = self.unknown.pop(self.rng.randrange(len(self.unknown)))
            else:
                number = self.number
                self.number += 1
                self.ledger.sent.add(number)
            try:
                data = batch(number, padding_bytes=PADDING_BYTES)
                owner.appends[number] = owner.log.append_nowait(PublishRequest(data, txn_id=f"t{number}"))
            except (LogStopped, LogClosed, QueueFull):
                self.unknown.append(number)

    async def append_many(self) -> None:
        await self.append(self.rng.randint(2, 12))

    async def take_over(self) -> None:
        """The partition is given to somebody, whatever the others think."""
        broker = self.rng.choice(BROKERS)
        if self.is_local:
            broker = broker if self.is_archived else self.broker
            self._forget(self.broker)
        self._forget(broker)
        self.epoch += self.rng.randint(1, 2)
        await self._open(broker, self.epoch)

    async def reopen(self) -> None:
        """A broker closes its log and opens it again with the same epoch."""
        owner = self._any()
        if owner is None:
            return
        await owner.log.close()
        await self._settle()
        self._forget(owner.broker)
        await self._open(owner.broker, owner.epoch)

    async def move(self) -> None:
        """In good order: everything to the archive, then another broker."""
        owner = self._any()
        if owner is None:
            return
        try:
            drained = await owner.log.drain()
        except (ArchiveFailed, StaleEpoch, LogStopped):
            return
        assert drained.next_offset == owner.log.archived.next_offset
        self._collect(owner)
        await owner.log.close()
        self.is_archived = True
        await self._settle()
        self._forget(owner.broker)
        with contextlib.suppress(ArchiveFailed):
            left = release_directory(self._directory(owner.broker), self._archive(owner.objects), topic_id=TOPIC_ID)
            assert left.fate in (Fate.REMOVED, Fate.SET_ASIDE), left
        await self.take_over()

    async def die(self) -> None:
        """A broker is gone from one moment to the next."""
        owner = self._any()
        if owner is not None:
            self._forget(owner.broker)

    async def cut(self) -> None:
        """A broker cannot reach the store, for a while."""
        owner = self._any()
        if owner is not None:
            owner.objects.is_cut = not owner.objects.is_cut

    async def switch(self) -> None:
        """The topic gets another ack level."""
        if self.is_local:
            self.ack_archived = not self.ack_archived
            for owner in self.owners.values():
                before = owner.log.view
                owner.log.reconfigure(OPTIONS, Archiving(ack_archived=self.ack_archived, archive_seconds=5.0))
                assert owner.log.view.next_offset >= before.next_offset
                assert owner.log.view.version >= before.version

    async def deliver(self) -> None:
        """What was on its way to the store for long gets there."""
        for _ in range(self.rng.randint(0, len(self.late))):
            self.late.pop(self.rng.randrange(len(self.late)))()

    async def wait(self) -> None:
        await asyncio.sleep(self.rng.choice([0.01, 0.3, 3.0, 70.0]))

    async def retain(self) -> None:
        owner = self._any()
        if owner is None:
            return
        local = Retention(bytes_max=self.rng.randint(0, 4000))
        whole = Retention(bytes_max=self.rng.randint(500, 20_000)) if self.rng.random() < 0.3 else Retention()
        if whole.bytes_max is not None:
            self.start_max = max(self.start_max, owner.log.local.view.next_offset)
        with contextlib.suppress(ArchiveFailed, StaleEpoch, LogStopped):
            await owner.log.retain(whole, local)

    async def read(self) -> None:
        """Somebody reads everything, from somebody who believes to own it."""
        owner = self._any()
        if owner is None:
            return
        view = owner.log.view
        offset = view.start_offset
        with contextlib.suppress(ArchiveFailed, OffsetOutOfRange):
            while offset < view.next_offset:
                found = await owner.log.read(offset, max_bytes=self.rng.choice([1, 700, 1 << 20]))
                assert found.next_offset > offset
                for record in records_in(found.data, from_offset=offset):
                    self._saw(owner, record.offset, record.value or b"")
                offset = found.next_offset
            low = Version(max(0, view.version - self.rng.randint(0, 60)))
            with contextlib.suppress(SulinaError):
                for commit in await owner.log.commits(low, Version(view.version + 1)):
                    txn_id = self.commits.setdefault(commit.version, commit.txn_id)
                    assert txn_id == commit.txn_id, f"version {commit.version} has two contents"

    def _saw(self, owner: Owner, offset: int, value: bytes) -> None:
        before = self.values.setdefault(offset, value)
        assert before == value, f"offset {offset} had {before[:20]!r}, {owner.broker}/{owner.epoch} has {value[:20]!r}"

    # How it happens

    def _any(self) -> Owner | None:
        return self.rng.choice(list(self.owners.values())) if self.owners else None

    def _directory(self, broker: str) -> str:
        return str(self.home / broker / "topic=default.orders-part=0")

    def _archive(self, objects: FaultyObjects) -> Archive:
        return Archive(objects, PATH, clock=self.clock)

    async def _open(self, broker: str, epoch: int) -> Owner | None:
        objects = FaultyObjects(self.store, self.rng, self.late)
        objects.rate = self.rate
        try:
            log = await TieredLog.open(
                self._directory(broker),
                self._archive(objects),
                topic_id=TOPIC_ID,
                epoch=Epoch(epoch),
                broker_id=broker,
                options=OPTIONS,
                archiving=Archiving(ack_archived=self.ack_archived, archive_seconds=5.0),
                must_resume=self.is_local and not self.is_archived,
                files=VolatileFiles(),
                clock=self.clock,
                threads=LogThreads(Inline(), Inline(), None, Inline(), Inline()),
            )
        except (ArchiveFailed, StaleEpoch):
            if self.is_archived:
                self.broker = broker  # it may have claimed it
            return None
        owner = Owner(broker, epoch, log, objects)
        self.owners[broker] = owner
        self.broker, self.is_archived = broker, not self.is_local
        assert log.view.next_offset >= max(self.values, default=-1) + 1, "records that were seen are gone"
        return owner

    def _forget(self, broker: str) -> None:
        """The broker's process is gone: nothing more of it happens, and what it has not answered stays unknown."""
        owner = self.owners.pop(broker, None)
        if owner is None:
            return
        self._collect(owner)
        owner.objects.is_dead = True
        for task in (*owner.log.uploader.tasks, owner.log.local.checkpointing):
            if task is not None:
                task.cancel()
        directory = owner.log.local.directory_log
        directory.stop(OSError("dead"))
        directory.close()
        for number, future in owner.appends.items():
            future.cancel()
            self.unknown.append(number)

    async def _settle(self) -> None:
        for _ in range(self.rng.choice([0, 3, 30])):
            await asyncio.sleep(0)
        for owner in list(self.owners.values()):
            self._collect(owner)

    def _collect(self, owner: Owner) -> None:
        for number, future in list(owner.appends.items()):
            if not future.done():
                continue
            del owner.appends[number]
            if future.cancelled() or future.exception() is not None:
                self.unknown.append(number)
                continue
            appended = future.result()
            before = self.ledger.acked.setdefault(number, appended)
            assert before == appended, f"{number} was answered {before}, then {appended}"
            view = owner.log.view
            assert appended.offset_end <= view.next_offset, "acknowledged, and not to be seen"

    async def _finish(self) -> None:
        """The world gets well; the last owner has everything that was ever acknowledged or seen."""
        self.rate = 0.0
        for owner in self.owners.values():
            owner.objects.rate, owner.objects.is_cut = 0.0, False
        await asyncio.sleep(60.0)
        while self.late:
            self.late.pop()()
        self.epoch += 1
        broker = "A" if not self.is_local or self.is_archived else self.broker
        self._forget(broker)
        last = await self._open(broker, self.epoch)
        assert last is not None
        for owner in list(self.owners.values()):
            self._collect(owner)
        await asyncio.sleep(60.0)  # those that lost the partition learn it
        for owner in list(self.owners.values()):
            self._collect(owner)
            if owner is not last:
                with contextlib.suppress(SulinaError):
                    await owner.log.append(batch(self.number, padding_bytes=PADDING_BYTES))
                    raise AssertionError(f"{owner.broker} of epoch {owner.epoch} acknowledged after {self.epoch}")
        await self._check(last)
        for broker in list(self.owners):
            self._forget(broker)

    async def _check(self, last: Owner) -> None:
        view = last.log.view
        records = []
        offset = view.start_offset
        while offset < view.next_offset:
            found = await last.log.read(offset, max_bytes=3000)
            records += records_in(found.data, from_offset=offset)
            offset = found.next_offset
        assert view.start_offset <= self.start_max
        wrong = self.ledger.violations(records, view.start_offset)
        assert not wrong, wrong
        for record in records:
            self._saw(last, record.offset, record.value or b"")
        assert view.next_offset > max(self.values, default=-1)
        oldest = next((s.version_start for s in last.log.archived.slices if s.commits_size), Version(0))
        versions = [commit.version for commit in await last.log.commits(oldest, Version(view.version + 1))]
        assert versions == list(range(oldest, view.version + 1))
        # L13: whoever sends again gets the first answer.
        for number in list(self.ledger.acked)[-50:]:
            data = batch(number, padding_bytes=PADDING_BYTES)
            assert await last.log.append(data, txn_id=f"t{number}") == self.ledger.acked[number]
        self.counts["acked"] = len(self.ledger.acked)
        self.counts["slices"] = len(last.log.archived.slices)
        await self._check_objects(last)

    async def _check_objects(self, last: Owner) -> None:
        """Nothing is left in the store for ever that nobody needs."""
        for _ in range(2):
            await asyncio.sleep(2 * 3600.0)
            await last.log.append(batch(self.number, padding_bytes=PADDING_BYTES))
        await asyncio.sleep(120.0)
        slices = last.log.archived.slices
        named = {slice_.object for slice_ in slices if slice_.size} | {s.state for s in slices if s.state}
        kept = {name.rpartition("/")[2] for name in self.store.names(".log") + self.store.names(".state")}
        assert named <= kept
        assert len(kept - named) <= 40, kept - named  # merged a moment ago
