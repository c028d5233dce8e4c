"""Cursors on their way to the store: grouped, durable when somebody waits, never lost, never brought back."""

import asyncio
from collections.abc import Sequence

import pytest

from sulina.broker.cursors import CursorWriter
from sulina.errors import NotServing
from sulina.metadata.memory import MemoryMetadata
from sulina.ports import Compare, Put, TxnResult


class Store(MemoryMetadata):
    """A store that counts, can be held up, and can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.txns = 0
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        self.txns += 1
        self.asked.set()
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return await super().txn(compares=compares, puts=puts, deletes=deletes)


async def stored(store: Store, key: str) -> bytes | None:
    entry = await store.get(key)
    return entry.value if entry else None


async def written(store: Store, key: str) -> None:
    async for _ in store.watch(key, after=0):
        return


async def test_whoever_waits_is_answered_when_it_is_durable() -> None:
    store = Store()
    writer = CursorWriter(store, delay_seconds=1000)
    writer.start()
    await writer.durable("/a", lambda: b"1")
    assert await stored(store, "/a") == b"1"
    await writer.close()


async def test_many_that_wait_share_a_transaction() -> None:
    store = Store()
    writer = CursorWriter(store, delay_seconds=1000)
    writer.start()
    store.gate.clear()
    first = writer.durable("/a", lambda: b"1")
    await store.asked.wait()
    others = [writer.durable(f"/k{number}", lambda: b"x") for number in range(60)]
    store.gate.set()
    await asyncio.gather(first, *others)
    assert store.txns == 2
    await writer.close()


async def test_what_nobody_waits_for_is_written_later_as_it_is_then_and_at_the_end() -> None:
    store = Store()
    writer = CursorWriter(store, delay_seconds=0.01)
    writer.start()
    value = [b"1"]
    writer.changed("/a", lambda: value[0])
    value[0] = b"2"
    await written(store, "/a")
    assert await stored(store, "/a") == b"2"
    slow = CursorWriter(store, delay_seconds=1000)
    slow.start()
    slow.changed("/b", lambda: b"3")
    await slow.close()
    assert await stored(store, "/b") == b"3"
    await writer.close()


async def test_a_store_that_fails_is_told_to_whoever_waits_and_tried_again() -> None:
    store = Store()
    writer = CursorWriter(store, delay_seconds=0.01)
    writer.start()
    store.failure = OSError("disk full")
    with pytest.raises(OSError, match="disk full"):
        await writer.durable("/a", lambda: b"1")
    store.failure = None
    await written(store, "/a")
    await writer.close()


async def test_what_is_forgotten_does_not_come_back_even_when_its_write_fails() -> None:
    store = Store()
    writer = CursorWriter(store, delay_seconds=0.01)
    writer.start()
    store.gate.clear()
    store.failure = OSError("disk full")
    waiting = writer.durable("/a", lambda: b"1")
    await store.asked.wait()
    forgetting = asyncio.create_task(writer.forget(["/a"]))
    await asyncio.sleep(0)
    store.gate.set()
    await forgetting
    store.failure = None
    with pytest.raises((OSError, NotServing)):
        await waiting
    await writer.durable("/b", lambda: b"2")
    await writer.close()
    assert await stored(store, "/a") is None


async def test_a_store_that_stays_broken_does_not_hold_up_the_end() -> None:
    store = Store()
    writer = CursorWriter(store, delay_seconds=0.01)
    writer.start()
    store.failure = OSError("gone")
    writer.changed("/a", lambda: b"1")
    async with asyncio.timeout(10):
        await writer.close()


async def test_forgetting_does_not_wait_for_the_cursors_of_others() -> None:
    store = Store()
    writer = CursorWriter(store, delay_seconds=0.001)
    writer.start()
    is_over = False

    async def ack() -> None:
        number = 0
        while not is_over:
            number += 1
            await writer.durable(f"/busy/{number % 5}", lambda: b"x")

    acking = [asyncio.create_task(ack()) for _ in range(8)]
    await store.asked.wait()
    async with asyncio.timeout(30):
        for number in range(100):
            await writer.forget([f"/gone/{number}"])
    is_over = True
    await asyncio.gather(*acking)
    await writer.close()
