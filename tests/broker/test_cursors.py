"""Cursors on their way to the store: grouped, durable when somebody waits, never lost, never brought back."""

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from sulina.broker import cursors
from sulina.broker.cursors import CursorWriter
from sulina.errors import MetadataFull, NotServing
from sulina.metadata.memory import MemoryMetadata
from sulina.ports import Compare, Put, TxnResult
from tests.support.control_plane import in_virtual_time


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


async def test_those_who_wait_are_answered_when_it_is_durable() -> None:
    store = Store()
    writer = CursorWriter(store, delay_seconds=1000)
    writer.start()
    await writer.durable("/a", lambda: b"1")
    assert await stored(store, "/a") == b"1"
    await writer.stop()


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
    await writer.stop()


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
    await slow.stop()
    assert await stored(store, "/b") == b"3"
    await writer.stop()


async def test_a_store_that_fails_is_told_to_those_who_wait_and_tried_again() -> None:
    store = Store()
    writer = CursorWriter(store, delay_seconds=0.01)
    writer.start()
    store.failure = OSError("disk full")
    with pytest.raises(OSError, match="disk full"):
        await writer.durable("/a", lambda: b"1")
    store.failure = None
    await written(store, "/a")
    await writer.stop()


async def test_what_is_forgotten_does_not_come_back_even_when_its_write_fails() -> None:
    store = Store()
    writer = CursorWriter(store, delay_seconds=0.01)
    writer.start()
    store.gate.clear()
    store.failure = OSError("disk full")
    waiting = writer.durable("/a", lambda: b"1")
    await store.asked.wait()
    forgetting = asyncio.create_task(writer.discard(["/a"]))
    await asyncio.sleep(0)
    store.gate.set()
    await forgetting
    store.failure = None
    with pytest.raises((OSError, NotServing)):
        await waiting
    await writer.durable("/b", lambda: b"2")
    await writer.stop()
    assert await stored(store, "/a") is None


async def test_a_store_that_stays_broken_does_not_hold_up_the_end() -> None:
    store = Store()
    writer = CursorWriter(store, delay_seconds=0.01)
    writer.start()
    store.failure = OSError("gone")
    writer.changed("/a", lambda: b"1")
    async with asyncio.timeout(10):
        await writer.stop()


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
            await writer.discard([f"/gone/{number}"])
    is_over = True
    await asyncio.gather(*acking)
    await writer.stop()


async def test_one_fence_that_does_not_hold_costs_the_others_nothing() -> None:
    """Its owner alone is told; nobody else fails, waits for longer or is written twice."""
    store = Store()
    revisions = {number: (await store.txn(puts=[Put(f"/fence/{number}", b"")])).revision for number in range(40)}
    await store.txn(deletes=["/fence/7"])
    await store.txn(puts=[Put("/fence/9", b"another's")])
    writer = CursorWriter(store, delay_seconds=1000)
    writer.start()
    store.txns = 0
    waiting = {
        number: writer.durable(f"/k/{number}", lambda: b"x", [Compare(f"/fence/{number}", revision)])
        for number, revision in revisions.items()
    }
    answers = dict(zip(waiting, await asyncio.gather(*waiting.values(), return_exceptions=True), strict=True))
    assert [number for number, answer in answers.items() if isinstance(answer, NotServing)] == [7, 9]
    assert all(answer is None for number, answer in answers.items() if number not in (7, 9))
    stored_keys = [entry.key for entry in (await store.list("/k/")).entries]
    assert stored_keys == sorted(f"/k/{number}" for number in revisions if number not in (7, 9))
    assert store.txns == 2
    await writer.stop()


async def test_one_that_cannot_be_written_does_not_keep_the_others_from_it() -> None:
    store = Store()
    writer = CursorWriter(store, delay_seconds=0.01)
    writer.start()
    waiting = [writer.durable(f"/k/{number}", lambda: b"x") for number in range(20)]

    def broken() -> bytes:
        raise ValueError("no such cursor")

    bad = writer.durable("/k/bad", broken)
    await asyncio.gather(*waiting)
    with pytest.raises(ValueError, match="no such cursor"):
        await bad
    await writer.discard(["/k/bad"])
    await writer.stop()


async def test_a_store_that_is_away_is_asked_once_for_all_who_wait() -> None:
    """Not once for each: it would only take longer to say no to everybody."""
    store = Store()
    writer = CursorWriter(store, delay_seconds=1000)
    writer.start()
    store.failure = MetadataFull(path="etcd://nowhere")
    waiting = [writer.durable(f"/k/{number}", lambda: b"x") for number in range(50)]
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(answer, MetadataFull) for answer in answers)
    assert store.txns == 1
    store.failure = None
    await writer.stop()
    assert len((await store.list("/k/")).entries) == 50


@in_virtual_time
async def test_notes_are_written_together_once_a_second_as_they_are_then() -> None:
    """However often they change, however many transactions others cause; and at the end."""
    store = Store()
    writer = CursorWriter(store)
    writer.start()
    for value in range(1, 501):  # five seconds
        for number in range(100):
            writer.note(f"/note/{number}", partial(b"%d".__mod__, value))
        await writer.durable("/cursor", partial(b"%d".__mod__, value))
        await asyncio.sleep(0.01)
    changes = await _history(store, "/note/")
    assert 5 <= len(changes) <= 6
    assert store.txns <= 500 + 6
    await writer.stop()
    assert await stored(store, "/note/99") == b"500"


@in_virtual_time
async def test_a_single_note_is_written_soon_and_the_next_a_second_later() -> None:
    store = Store()
    writer = CursorWriter(store)
    writer.start()
    loop = asyncio.get_running_loop()
    began, times = loop.time(), []
    for value in (b"1", b"2", b"3"):
        writer.note("/note", partial(bytes, value))
        async for changes in store.watch("/note", after=0):
            if changes[-1].value == value:
                break
        times.append(round(loop.time() - began, 2))
    assert times == [0.2, 1.2, 2.2]
    await writer.stop()


async def test_a_note_that_says_nothing_deletes_and_the_newest_word_counts() -> None:
    store = Store()
    await store.txn(puts=[Put("/note/a", b""), Put("/note/b", b"")])
    writer = CursorWriter(store, delay_seconds=1000)
    writer.start()
    writer.note("/note/a", lambda: None)
    writer.note("/note/b", lambda: None)
    writer.note("/note/b", lambda: b"merged")
    writer.note("/note/c", lambda: b"new")
    writer.note("/note/c", lambda: None)
    await writer.stop()
    assert [(entry.key, entry.value) for entry in (await store.list("/note/")).entries] == [("/note/b", b"merged")]


async def test_notes_of_a_topic_that_is_deleted_are_forgotten() -> None:
    store = Store()
    writer = CursorWriter(store, delay_seconds=1000)
    writer.start()
    writer.note("/storage/a/1", lambda: b"")
    writer.note("/storage/b/1", lambda: b"")
    await writer.discard_notes("/storage/a/")
    await writer.stop()
    assert [entry.key for entry in (await store.list("/")).entries] == ["/storage/b/1"]


@in_virtual_time
async def test_consumers_share_transactions_and_none_waits_for_others() -> None:
    """Each waits for its ack, then acks again, a little earlier or later than the others."""
    store = Store()
    took_seconds = 0.003

    async def txn(**operations: Sequence[object]) -> TxnResult:
        await asyncio.sleep(took_seconds)
        return await MemoryMetadata.txn(store, **operations)  # type: ignore[arg-type]

    calls = 0

    async def counted(**operations: Sequence[object]) -> TxnResult:
        nonlocal calls
        calls += 1
        return await txn(**operations)

    store.txn = counted  # type: ignore[method-assign]
    writer = CursorWriter(store)
    writer.start()
    loop = asyncio.get_running_loop()
    waits: list[float] = []

    async def consume(number: int, acks: int) -> None:
        for _ in range(acks):
            await asyncio.sleep(0.0001 * (number % 10))
            began = loop.time()
            await writer.durable(f"/k/{number}", lambda: b"x")
            waits.append(loop.time() - began)

    await consume(0, 100)
    assert max(waits) < took_seconds * 1.01
    assert calls == 100
    waits, calls = [], 0
    await asyncio.gather(*(consume(number, 100) for number in range(50)))
    assert calls <= 210
    assert max(waits) < took_seconds * 2.01
    await writer.stop()


async def _history(store: Store, prefix: str) -> list[list[str]]:
    """The keys under a prefix of each revision so far."""
    newest, found = (await store.txn(puts=[Put(prefix + "last", b"")])).revision, list[list[str]]()
    async for changes in store.watch(prefix, after=0):
        if changes[0].revision == newest:
            return found
        found.append([change.key for change in changes])
    raise AssertionError("the store was closed")


async def test_notes_that_nobody_can_write_are_bounded_and_the_rest_is_written_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursors, "WAITING_MAX", 50)
    store = Store()
    writer = CursorWriter(store, delay_seconds=0.001, notes_seconds=0.002)
    writer.start()
    store.failure = MetadataFull(path="etcd://nowhere")
    for number in range(300):
        writer.note(f"/note/{number:03d}", lambda: b"x")
        await asyncio.sleep(0.001)
    assert writer.pending <= 60
    await asyncio.gather(writer.durable("/cursor", lambda: b"1"), return_exceptions=True)
    store.failure = None
    await writer.stop()
    assert 50 <= len((await store.list("/note/")).entries) <= 60
    assert await stored(store, "/cursor") == b"1"


async def test_notes_of_a_partition_that_is_about_to_leave_are_written_at_once() -> None:
    """Those of others wait; and one that is under way is waited for."""
    store = Store()
    writer = CursorWriter(store, delay_seconds=1000)
    writer.start()
    writer.note("/storage/a/0/cur", lambda: b"1")
    writer.note("/storage/b/0/cur", lambda: b"1")
    await writer.write_notes("/storage/a/0/")
    assert [entry.key for entry in (await store.list("/storage/")).entries] == ["/storage/a/0/cur"]
    await writer.write_notes("/storage/a/0/")
    store.gate.clear()
    store.asked.clear()
    writer.note("/storage/a/0/cur", lambda: b"2")
    first = asyncio.create_task(writer.write_notes("/storage/a/0/"))
    await store.asked.wait()
    second = asyncio.create_task(writer.write_notes("/storage/a/0/"))
    await asyncio.sleep(0)
    assert not second.done()
    store.gate.set()
    await asyncio.gather(first, second)
    assert await stored(store, "/storage/a/0/cur") == b"2"
    await writer.stop()
