"""What a broker does with a log whose disk takes no more: it waits, opens it again, and does not wear itself out."""

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sulina.broker import logs
from sulina.broker.broker import Broker
from sulina.core.records import Record
from sulina.core.topic import TopicSettings
from sulina.errors import LogStopped
from sulina.storage.directory_log import DirectoryLog
from sulina.storage.segments import Segments
from sulina.types import PartitionName, TopicName
from tests.support.brokers import Brokers, brokers

ORDERS = TopicName.parse("/default/orders")
FULL = OSError(errno.ENOSPC, "No space left on device")


class Disk:
    """Fails all writes of all logs while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.probes = 0
        write, probe = Segments.write, DirectoryLog.probe

        def checked_write(segments: Segments, *arguments: object) -> None:
            if self.is_full:
                raise FULL
            write(segments, *arguments)  # type: ignore[arg-type]

        def checked_probe(log: DirectoryLog) -> None:
            self.probes += 1
            if self.is_full:
                raise FULL
            probe(log)

        monkeypatch.setattr(Segments, "write", checked_write)
        monkeypatch.setattr(DirectoryLog, "probe", checked_probe)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(logs, "REOPEN_SECONDS", 0.0)
    return Disk(monkeypatch)


@pytest_asyncio.fixture
async def world(tmp_path: Path, disk: Disk) -> AsyncIterator[Brokers]:
    async with brokers(tmp_path, "a") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings())
        await world.publish(ORDERS, b"0")
        yield world


async def stopped(broker: Broker, disk: Disk) -> None:
    disk.is_full = True
    with pytest.raises(LogStopped):
        await broker.publish_records(ORDERS, [Record(value=b"lost")])


async def test_l9_a_log_is_opened_again_when_the_disk_takes_writes_and_not_before(world: Brokers, disk: Disk) -> None:
    a = world.running["a"]
    await stopped(a, disk)
    await a._logs.reopen_stopped()
    assert a._logs.stopped() == {PartitionName(ORDERS, 0): str(FULL)}
    assert "No space left" in (a.unready or "")
    assert await world.values(ORDERS) == [b"0"], "what is there is read all the while"
    disk.is_full = False
    a._logs._troubles[a._topics[ORDERS].partitions[0]].due = 0.0
    await a._logs.reopen_stopped()
    assert a._logs.stopped() == {}
    assert a.info().is_ready
    await world.publish(ORDERS, b"1")
    assert await world.values(ORDERS) == [b"0", b"1"]
    segments = (await a.partition(ORDERS, 0)).segments
    assert [(each.start_offset, each.is_sealed) for each in segments] == [(0, True), (1, False)], "in a new file"


async def test_a_log_that_stops_again_and_again_is_opened_less_and_less_often(world: Brokers, disk: Disk) -> None:
    a = world.running["a"]
    partition = a._topics[ORDERS].partitions[0]
    pauses = []
    for _ in range(8):
        await stopped(a, disk)
        await a._logs.reopen_stopped()
        disk.is_full = False
        a._logs._troubles[partition].due = 0.0
        await a._logs.reopen_stopped()
        pauses.append(a._logs._troubles[partition].pause_seconds)
    assert pauses == sorted(pauses)
    assert pauses[-1] == logs.REOPEN_SECONDS_MAX
