"""The small rules: room in flight, batches."""

import asyncio
import random
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sulina.client import batches
from sulina.client.batches import BatchCodec, within
from sulina.client.in_flight import InFlight
from sulina.core.records.batch import split
from sulina.core.records.record import StoredRecord, encode


async def test_room_is_given_in_turn_and_counted_exactly() -> None:
    room = InFlight(requests_max=3, bytes_max=100)
    rng = random.Random(7)
    let_in: list[int] = []
    most = 0

    async def work(number: int, size: int) -> None:
        nonlocal most
        await room.enter(size)
        let_in.append(number)
        most = max(most, room.requests)
        assert room.requests <= 3
        assert room.size_bytes <= 100 or room.requests == 1
        try:
            await asyncio.sleep(rng.random())
        finally:
            room.leave(size)

    tasks = [asyncio.create_task(work(number, rng.randrange(150))) for number in range(200)]
    for task in rng.sample(tasks, 50):
        asyncio.get_running_loop().call_later(rng.random() * 20, task.cancel)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert let_in == sorted(let_in)
    assert (room.requests, room.size_bytes, most) == (0, 0, 3)


@given(st.lists(st.integers(0, 30), unique=True).map(sorted), st.integers(0, 31), st.integers(0, 31))
def test_within_keeps_what_is_in_the_range(offsets: list[int], start: int, end: int) -> None:
    records = [StoredRecord(b"", offset=offset) for offset in offsets]
    assert within(records, start, end) == [record for record in records if start <= record.offset < end]


@pytest.mark.real_time
async def test_python_and_the_kernels_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [None if n % 7 == 0 else b"v%d" % n for n in range(300)]
    keys = [None if n % 3 else b"k%d" % n for n in range(300)]
    headers = [(("h", b"%d" % n),) if n % 11 == 0 else () for n in range(300)]
    codec, ready = BatchCodec(), threading.Event()
    monkeypatch.setattr(batches, "kernels_ready", ready)
    found = []
    for has_kernels in (False, True):
        if has_kernels:
            ready.set()
        for with_headers in (headers, None):
            for stamps in (5, list(range(300))):
                one = codec.encode(values, keys, stamps, with_headers)
                several = bytes(one) + bytes(encode([StoredRecord(b"last")], base_offset=300))
                assert len(split(several)) == 2
                found.append((one, codec.decode(several)))
        assert ready.is_set() == has_kernels
    assert found[:4] == found[4:]
    await codec.close()


@pytest.mark.real_time
async def test_the_kernels_come_in_when_there_is_much_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "RECORDS_BEFORE_KERNELS", 1000)
    monkeypatch.setattr(batches, "kernels_ready", threading.Event())
    codec = BatchCodec()
    data = codec.encode([b"x"] * 500, None, 0, None)
    for _ in range(3):
        assert len(codec.decode(data)) == 500
    await codec.close()
    assert batches.kernels_ready.is_set()
    assert len(codec.decode(data)) == 500


def test_importing_the_client_is_light() -> None:
    code = "import sys, sulina.client; print([m for m in ('numba', 'numpy', 'pyarrow', 'uvicorn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
