"""A process that is several brokers, one after the other, over one archive, and dies where it is told to.

It tells on its standard output what it is about to do, and what was acknowledged; see `test_archive_kills.py`.
"""

import asyncio
import itertools
import json
import os
import signal
import sys
import threading
from collections import Counter
from typing import Any

from sulina.core.log.retention import Retention
from sulina.core.log.segment import SegmentLimits
from sulina.failpoints import ARCHIVE_FAILPOINTS, Failpoint, FailpointHook
from sulina.storage.archive import Archive
from sulina.storage.directory_log import LogOptions
from sulina.storage.objects import open_objects
from sulina.storage.partition_directory import release_directory
from sulina.storage.tiered_log import Archiving, TieredLog
from sulina.types import Epoch
from tests.support.ledger import batch

PARTITION = "topic=default.orders-part=0"
PADDING_BYTES = 80
SMALL = LogOptions(segments=SegmentLimits(segment_bytes_max=2048, index_interval_bytes=256), versions_kept=5)
TIDY_SECONDS_MAX = 30.0


def say(*event: Any) -> None:
    """One line, in one write: whole, or not there."""
    os.write(1, json.dumps(event).encode() + b"\n")


class Hook:
    """Counts how often each failpoint is reached, and ends the process at one of them."""

    def __init__(self, kill: list[Any] | None) -> None:
        self.counts: Counter[Failpoint] = Counter()
        self._kill = (Failpoint(kill[0]), int(kill[1])) if kill else None
        self._lock = threading.Lock()

    def __call__(self, step: Failpoint) -> None:
        with self._lock:
            self.counts[step] += 1
            if (step, self.counts[step]) == self._kill:
                say("killed", *self._kill)
                os.kill(os.getpid(), signal.SIGKILL)


def archive_in(home: str, failpoints: FailpointHook, topic_id: str = "t1") -> Archive:
    return Archive(open_objects(f"file://{home}/objects"), f"{PARTITION}/{topic_id}", failpoints=failpoints)


async def opened(home: str, broker: str, epoch: int, failpoints: FailpointHook, topic_id: str = "t1") -> TieredLog:
    """The log as a broker opens it that has just been given the partition."""
    say("opening", broker, epoch)
    os.makedirs(f"{home}/{broker}", exist_ok=True)
    log = await TieredLog.open(
        f"{home}/{broker}/{PARTITION}",
        archive_in(home, failpoints, topic_id),
        topic_id=topic_id,
        epoch=Epoch(epoch),
        broker_id=broker,
        options=SMALL,
        archiving=Archiving(ack_archived=True),
        failpoints=failpoints,
    )
    say("opened", log.resumed.how, log.resumed.leftover.fate)
    return log


async def every_step(home: str, first: int, kill: list[Any] | None = None) -> None:
    """Every step of an archive, always in the same order: one thing after the other."""
    hook = Hook(kill)
    numbers = itertools.count(first)

    async def append(log: TieredLog, count: int) -> None:
        for number in itertools.islice(numbers, count):
            say("sent", number)
            appended = await log.append(batch(number, padding_bytes=PADDING_BYTES), txn_id=f"t{number}")
            say("acked", number, appended.offset_start, appended.offset_end, appended.version)

    async def tidied(log: TieredLog) -> None:
        for tidying in log.uploader.tasks[1:]:
            await asyncio.wait_for(asyncio.shield(tidying), TIDY_SECONDS_MAX)

    # A directory of another topic stands in C's way.
    foreign = await opened(home, "C", 1, lambda _: None, topic_id="t0")
    await foreign.close()
    a = await opened(home, "A", 2, hook)
    for _ in range(4):
        await append(a, 8)
        await tidied(a)  # merges, checkpoints
    say("retaining")
    await a.retain(Retention(bytes_max=3000), Retention(bytes_max=1000))
    say("retained", a.view.start_offset)
    await append(a, 3)
    await a.drain()
    await a.close()
    b = await opened(home, "B", 3, hook)  # from the archive
    await append(b, 5)
    await b.close()
    a = await opened(home, "A", 4, hook)  # its old directory was overtaken
    await append(a, 3)
    await a.close()
    c = await opened(home, "C", 5, hook)  # sets the other topic's directory aside
    await append(c, 3)
    await c.close()
    c = await opened(home, "C", 6, hook)  # goes on from its own
    await append(c, 2)
    await c.drain()
    await c.close()
    release_directory(f"{home}/A/{PARTITION}", archive_in(home, hook), topic_id="t1", failpoints=hook)
    say("done", {step: hook.counts[step] for step in ARCHIVE_FAILPOINTS})


def main() -> None:
    """Do what the first argument orders."""
    asyncio.run(every_step(**json.loads(sys.argv[1])))
