"""Brokers with a disk each, a store that they share, and time that moves when everybody waits."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from sulina.core.cluster.entries import Sealed
from sulina.core.log.commit import SegmentRef
from sulina.core.log.log_state import Appended
from sulina.core.log.resume import witnesses
from sulina.core.log.segment import SegmentLimits
from sulina.failpoints import FailpointHook, no_failpoints
from sulina.storage.archive import Archive
from sulina.storage.directory_log import LogOptions
from sulina.storage.files import VolatileFiles
from sulina.storage.partition_directory import Fate, release_directory
from sulina.storage.partition_log import LogThreads
from sulina.storage.tiered_log import Archiving, TieredLog
from sulina.types import Epoch, Offset
from tests.client.virtual_time import VirtualTimeLoop
from tests.support.ledger import batch, records_in, records_of
from tests.support.objects import FaultyObjects, MemoryObjects
from tests.support.takeover_world import Inline, LoopClock

PARTITION = "topic=default.orders-part=0"
SMALL = LogOptions(segments=SegmentLimits(segment_bytes_max=1500, index_interval_bytes=300), versions_kept=3)
ARCHIVED = Archiving(ack_archived=True)
LOCAL = Archiving(archive_bytes=10_000, archive_seconds=5.0)


class Told:
    """Hooks that remember."""

    def __init__(self) -> None:
        self.added: list[SegmentRef] = []
        self.gone: list[SegmentRef] = []
        self.failures: list[Exception] = []

    def archived(self, added: SegmentRef) -> None:
        self.added.append(added)

    def removed(self, removed: Sequence[SegmentRef]) -> None:
        self.gone += removed

    def failed(self, error: Exception) -> None:
        self.failures.append(error)
        raise RuntimeError("whoever is told must not be able to stop the log")

    async def settle(self) -> None:
        pass


class World:
    """Brokers with a disk each, one store, and a clock that moves when everybody waits."""

    def __init__(self, home: Path, loop: VirtualTimeLoop) -> None:
        self.home = home
        self.clock = LoopClock(loop)
        self.store = MemoryObjects(self.clock)
        self.objects: dict[str, FaultyObjects] = {}
        self.may_ack = True
        self.archive_readers: Executor = Inline()
        self.told = Told()
        self.opened: list[TieredLog] = []

    def directory(self, broker: str) -> str:
        (self.home / broker).mkdir(exist_ok=True)
        return str(self.home / broker / PARTITION)

    def archive(self, broker: str = "reader", topic_id: str = "t1") -> Archive:
        objects = self.objects.setdefault(broker, FaultyObjects(self.store, random.Random(1), []))
        return Archive(objects, f"{PARTITION}/{topic_id}", clock=self.clock)

    async def open(
        self,
        broker: str,
        epoch: int,
        archiving: Archiving = ARCHIVED,
        *,
        topic_id: str = "t1",
        options: LogOptions = SMALL,
        sealed: Sealed | None = None,
        must_resume: bool = False,
        is_adopted: bool = False,
        failpoints: FailpointHook = no_failpoints,
    ) -> TieredLog:
        log = await TieredLog.open(
            self.directory(broker),
            self.archive(broker, topic_id),
            topic_id=topic_id,
            epoch=Epoch(epoch),
            broker_id=broker,
            options=options,
            archiving=archiving,
            may_ack=lambda: self.may_ack,
            partition="/ns/t/0",
            heard=witnesses(sealed, None, is_only_here=must_resume),
            must_resume=must_resume,
            is_adopted=is_adopted,
            files=VolatileFiles(),
            clock=self.clock,
            threads=LogThreads(Inline(), Inline(), None, Inline(), self.archive_readers),
            hooks=self.told,
            failpoints=failpoints,
        )
        self.opened.append(log)
        return log

    def release(self, broker: str, topic_id: str = "t1") -> tuple[Fate, tuple[tuple[Offset, Offset], ...]]:
        left = release_directory(
            self.directory(broker), self.archive(broker, topic_id), topic_id=topic_id, files=VolatileFiles()
        )
        return left.fate, left.only_here


Story = Callable[[World], Awaitable[None]]


def told(story: Story) -> Callable[[Path], None]:
    """A test in a world of its own, whose logs are closed at the end."""

    def run(tmp_path: Path) -> None:
        loop = VirtualTimeLoop()

        async def whole() -> None:
            world = World(tmp_path, loop)
            try:
                await story(world)
            finally:
                for objects in world.objects.values():
                    objects.is_cut = False
                for log in world.opened:
                    await log.close()

        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(whole())

    run.__name__, run.__doc__ = story.__name__, story.__doc__
    return run


async def appended(log: TieredLog, *numbers: int) -> list[Appended]:
    return [await log.append(batch(number), txn_id=f"t{number}") for number in numbers]


async def offsets_in(log: TieredLog, start: int = 0) -> list[int]:
    found: list[int] = []
    offset = Offset(start)
    while offset < log.view.next_offset:
        read = await log.read(offset, max_bytes=2000)
        found += [record.offset for record in records_in(read.data, from_offset=offset)]
        offset = read.next_offset
    return found


def end_of(*numbers: int) -> int:
    return sum(map(records_of, numbers))


def sealed_at(next_offset: int, version: int) -> Sealed:
    return Sealed(
        last_committed_offset=next_offset - 1,
        next_offset=next_offset,
        version=version,
        epoch=1,
        broker_id="a",
        ts="2026-01-01T00:00:00Z",
    )
