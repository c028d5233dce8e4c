"""What a broker does with a log whose disk takes no more: it waits, opens it again, and does not wear itself out."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sulina.broker import broker, partition_logs
from sulina.broker.broker import Broker
from sulina.broker.partition import Partition
from sulina.cli.doctor.diagnosis import BrokerAnswer, ClusterFacts, check_partitions
from sulina.core.records.record import StoredRecord
from sulina.core.topic import TopicSettings
from sulina.errors import LogStopped, NotServing
from sulina.storage.commit_store import DirectoryCommits
from sulina.storage.directory_log import DirectoryLog
from sulina.storage.segments import Segments
from sulina.storage.tiered_log import TieredLog
from sulina.types import PartitionName, TopicName
from tests.support.brokers import Brokers, brokers

ORDERS = TopicName.parse("/default/orders")
FULL = OSError(errno.ENOSPC, "No space left on device")


class Disk:
    """Fails all writes of all logs while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.probes = 0
        write, probe, stage = Segments.write, DirectoryLog.probe, DirectoryCommits.stage

        def checked_write(segments: Segments, *arguments: object) -> None:
            if self.is_full:
                raise FULL
            write(segments, *arguments)  # type: ignore[arg-type]

        def checked_probe(log: DirectoryLog) -> None:
            self.probes += 1
            if self.is_full:
                raise FULL
            probe(log)

        def checked_stage(commits: DirectoryCommits, name: str, data: bytes) -> str:
            if self.is_full and "/objects/" not in commits.location:  # the archive is elsewhere
                raise FULL
            return stage(commits, name, data)

        monkeypatch.setattr(DirectoryCommits, "stage", checked_stage)
        monkeypatch.setattr(Segments, "write", checked_write)
        monkeypatch.setattr(DirectoryLog, "probe", checked_probe)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(partition_logs, "REOPEN_SECONDS", 0.0)
    monkeypatch.setattr(broker, "REOPEN_LOOK_SECONDS", 3600.0)  # the tests look themselves
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
        await broker.publish_records(ORDERS, [StoredRecord(value=b"lost")])


async def test_l9_a_log_is_opened_again_when_the_disk_takes_writes_and_not_before(world: Brokers, disk: Disk) -> None:
    a = world.running["a"]
    await stopped(a, disk)
    await a.logs.reopen_stopped()
    assert a.logs.stopped() == {PartitionName(ORDERS, 0): str(FULL)}
    assert "No space left" in (a.unready or "")
    assert await world.values(ORDERS) == [b"0"], "what is there is read all the while"
    disk.is_full = False
    await a.logs.reopen_stopped(at_once=True)
    assert a.logs.stopped() == {}
    assert a.info().is_ready
    await world.publish(ORDERS, b"1")
    assert await world.values(ORDERS) == [b"0", b"1"]
    segments = (await a.partition(ORDERS, 0)).segments
    assert [(each.start_offset, each.is_sealed) for each in segments] == [(0, True), (1, False)], "in a new file"


async def test_l9_a_log_that_a_full_disk_keeps_from_opening_is_opened_when_there_is_room(
    world: Brokers, disk: Disk
) -> None:
    a, new = world.running["a"], TopicName.parse("/default/new")
    await a.put_topic(new, TopicSettings())
    assert await world.owner(new) is a
    disk.is_full = True
    with pytest.raises(NotServing, match="No space left"):  # which clients wait for
        await a.publish_records(new, [StoredRecord(value=b"0")])
    assert a.logs.stopped() == {PartitionName(new, 0): str(FULL)}
    assert "No space left" in (a.unready or "")
    disk.is_full = False
    await a.logs.reopen_stopped()
    assert a.logs.stopped() == {}
    assert await world.publish(new, b"0") == 0


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (errno.ENOSPC, "disk_full", "free space on that disk"),
        (errno.EDQUOT, "disk_full", "free space on that disk"),
        (errno.EFBIG, "disk_full", "free space on that disk"),
        (errno.EIO, "log_stopped", "correct that fault"),
        (errno.EACCES, "log_stopped", "correct that fault"),
    ],
    ids=errno.errorcode.get,
)
async def test_r11_a_full_disk_is_named_only_where_the_disk_is_full(
    world: Brokers, monkeypatch: pytest.MonkeyPatch, code: int, kind: str, advice: str
) -> None:
    """R11: other faults keep a log from opening too, and room helps against none of them."""
    a, new = world.running["a"], TopicName.parse("/default/new")
    await a.put_topic(new, TopicSettings())
    assert await world.owner(new) is a

    async def fail(*_arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(a.logs.opener, "open", fail)
    for _ in range(2):  # when it is wanted, and when it is tried again
        with pytest.raises(NotServing):
            await a.publish_records(new, [StoredRecord(value=b"0")])
        node = await a.inspect()
        assert node.trouble_counts == {kind: 1}
        facts = ClusterFacts(now_ms=0, brokers=[BrokerAnswer(url="http://a", node=node)])
        (finding,) = check_partitions(facts)
        assert os.strerror(code) in finding.found
        assert advice in (finding.advice or "")
        await a.logs.reopen_stopped()


async def test_l9_a_log_that_opens_and_then_fails_again_is_not_locked_for_ever(
    world: Brokers, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = world.running["a"]
    await stopped(a, disk)
    await a.logs.reopen_stopped()
    rotate, failures = TieredLog.fsync_and_rotate, [FULL]

    async def fail_once(log: TieredLog) -> None:
        if failures:
            raise failures.pop()
        await rotate(log)

    monkeypatch.setattr(TieredLog, "fsync_and_rotate", fail_once)
    disk.is_full = False
    for reason in (str(FULL), None):
        await a.logs.reopen_stopped(at_once=True)
        assert a.logs.stopped().get(PartitionName(ORDERS, 0)) == reason
    assert await world.publish(ORDERS, b"1") == 1


async def test_l9_logs_are_opened_again_side_by_side_so_that_a_slow_one_holds_up_no_other(
    world: Brokers, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, many = world.running["a"], TopicName.parse("/default/many")
    await a.put_topic(many, TopicSettings(partitions=4))
    for number in range(4):
        await world.publish(many, b"0", partition=number)
    disk.is_full = True
    for number in range(4):
        with pytest.raises(LogStopped):
            await a.publish_records(many, [StoredRecord(value=b"lost")], partition=number)
    reopen, together = Partition.reopen, asyncio.Barrier(4)

    async def reopen_slowly(partition: Partition) -> None:
        await together.wait()
        await reopen(partition)

    monkeypatch.setattr(Partition, "reopen", reopen_slowly)
    disk.is_full = False
    async with asyncio.timeout(5):
        await a.logs.reopen_stopped()
    assert a.logs.stopped() == {}


async def test_a_log_that_stops_again_and_again_is_opened_less_and_less_often(world: Brokers, disk: Disk) -> None:
    a = world.running["a"]
    pauses = []
    for _ in range(8):
        await stopped(a, disk)
        await a.logs.reopen_stopped()
        disk.is_full = False
        await a.logs.reopen_stopped(at_once=True)
        pauses.append(a.logs.reopen_pause_seconds(PartitionName(ORDERS, 0)) or 0.0)
    assert pauses == sorted(pauses)
    assert pauses[-1] == partition_logs.REOPEN_SECONDS_MAX
