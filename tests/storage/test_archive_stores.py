"""The log with an archive on real stores: a directory and an S3 server, also one that fails in every way."""

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from sulina.core.log.log_state import Appended
from sulina.core.log.publish_request import PublishRequest
from sulina.core.log.retention import Retention
from sulina.core.log.segment import SegmentLimits
from sulina.storage.archive import Archive
from sulina.storage.directory_log import LogOptions
from sulina.storage.objects import Objects, open_objects
from sulina.storage.tiered_log import Archiving, TieredLog
from sulina.types import Epoch, Offset
from tests.support.ledger import Ledger, batch, records_in
from tests.support.s3 import S3Server, s3
from tests.support.s3_proxy import Fault, s3_proxy

__all__ = ["s3"]  # a fixture

PATH = "topic=default.orders-part=0/t1"
SMALL = LogOptions(segments=SegmentLimits(segment_bytes_max=4000, index_interval_bytes=500))


def in_a_directory(request: pytest.FixtureRequest) -> Objects:
    return open_objects(f"file://{request.getfixturevalue('tmp_path')}/objects")


def on_s3(request: pytest.FixtureRequest) -> Objects:
    server: S3Server = request.getfixturevalue("s3")
    request.getfixturevalue("monkeypatch").setenv("AWS_SKIP_SIGNATURE", "true")
    return open_objects(f"s3://sulina/{uuid4().hex}", endpoint=server.endpoint)


@pytest.fixture(params=[in_a_directory, on_s3], ids=lambda make: make.__name__)
def objects(request: pytest.FixtureRequest) -> Objects:
    make: Callable[[pytest.FixtureRequest], Objects] = request.param
    return make(request)


async def opened(home: Path, broker: str, epoch: int, objects: Objects, *, is_local: bool = False) -> TieredLog:
    (home / broker).mkdir(exist_ok=True)
    return await TieredLog.open(
        str(home / broker / "partition"),
        Archive(objects, PATH),
        topic_id="t1",
        epoch=Epoch(epoch),
        broker_id=broker,
        options=SMALL,
        archiving=Archiving(ack_archived=not is_local, archive_bytes=5000, archive_seconds=0.2),
    )


async def append(log: TieredLog, ledger: Ledger, numbers: range) -> None:
    async def one(number: int) -> None:
        ledger.sent.add(number)
        answer = await log.append(batch(number), txn_id=f"t{number}")
        assert ledger.acked.setdefault(number, answer) == answer

    await asyncio.gather(*(one(number) for number in numbers))


async def check(log: TieredLog, ledger: Ledger) -> None:
    records = []
    offset = log.view.start_offset
    while offset < log.view.next_offset:
        found = await log.read(offset, max_bytes=3000)
        records += records_in(found.data, from_offset=offset)
        offset = found.next_offset
    wrong = ledger.violations(records, log.view.start_offset)
    assert not wrong, wrong


async def test_u6_owners_take_over_from_each_other_on_a_real_store(objects: Objects, tmp_path: Path) -> None:
    """L13, U4: in good order and without; by age, by size, by drain; then retention."""
    ledger = Ledger()
    numbers = itertools.count(0, 20)
    for epoch, broker in enumerate("abac", 1):
        log = await opened(tmp_path, broker, epoch, objects, is_local=epoch == 3)
        await check(log, ledger)
        for _ in range(3):
            await append(log, ledger, range(first := next(numbers), first + 20))
        if ledger.acked:
            number, answer = next(iter(ledger.acked.items()))
            assert await log.append(batch(number), txn_id=f"t{number}") == answer
        if epoch > 1:
            await log.drain()
        await log.close()
    log = await opened(tmp_path, "d", 9, objects)
    await check(log, ledger)
    assert log.local.view.start_offset == log.view.next_offset, "all of it came from the archive"
    end = log.view.next_offset
    await log.retain(Retention(bytes_max=0))
    assert log.view.start_offset == end
    assert await log.append(batch(5), txn_id="t5") == ledger.acked[5]
    await log.close()
    log.archive.delete_all()
    assert objects.list(PATH) == []


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.LOST_REPLY, Fault.TWICE, Fault.SLOW])
async def test_a_store_that_answers_wrongly_now_and_then_loses_nothing(
    fault: Fault, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2, L3: 5xx, lost replies, doubled and slow puts: every ack holds, and whoever takes over has all of it."""
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    prefix = f"s3://sulina/{uuid4().hex}"
    ledger = Ledger()
    with s3_proxy(s3.endpoint) as proxy:
        counts = itertools.count()
        proxy.fault = lambda method, _: fault if method == "PUT" and next(counts) % 3 == 1 else Fault.NONE
        log = await opened(tmp_path, "a", 1, open_objects(prefix, endpoint=proxy.url))
        for first in range(0, 60, 10):
            await append(log, ledger, range(first, first + 10))
        assert sum(seen[2] is fault for seen in proxy.seen) >= 4
        other = await opened(tmp_path, "b", 2, open_objects(prefix, endpoint=s3.endpoint))
        await check(other, ledger)
        assert [slice_.base for slice_ in other.archived.slices if slice_.size] == sorted(
            {slice_.base for slice_ in other.archived.slices if slice_.size}
        )
        await other.close()
        await log.close()


async def test_a_store_that_is_away_for_a_while_keeps_appends_waiting_and_loses_none(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    prefix = f"s3://sulina/{uuid4().hex}"
    ledger = Ledger()
    with s3_proxy(s3.endpoint) as proxy:
        log = await opened(tmp_path, "a", 1, open_objects(prefix, endpoint=proxy.url))
        await append(log, ledger, range(10))
        away = asyncio.Event()

        def unavailable(_method: str, _path: str) -> Fault:
            loop.call_soon_threadsafe(away.set)
            return Fault.UNAVAILABLE

        loop = asyncio.get_running_loop()
        proxy.fault = unavailable
        before = log.view.next_offset
        waiting: list[asyncio.Future[Appended]] = []
        for number in range(10, 20):
            ledger.sent.add(number)
            waiting.append(log.append_nowait(PublishRequest(batch(number), txn_id=f"t{number}")))
        await asyncio.wait_for(away.wait(), 30)
        assert log.view.next_offset == before
        assert not any(future.done() for future in waiting)
        proxy.fault = lambda _method, _path: Fault.NONE
        started = time.monotonic()
        answers = await asyncio.wait_for(asyncio.gather(*waiting), 30)
        print(f"acknowledged {time.monotonic() - started:.1f} s after the store was back")
        ledger.acked |= dict(zip(range(10, 20), answers, strict=True))
        await check(log, ledger)
        await log.close()
    other = await opened(tmp_path, "b", 2, open_objects(prefix, endpoint=s3.endpoint))
    await check(other, ledger)
    assert (await other.read(Offset(0))).data
    await other.close()
