"""One contract for every `MetadataStore`: in memory, in SQLite, in etcd.

The tests of the contract see the port only. What differs is in a `World`: how a store is made, how time passes (a real
etcd has to be waited for), how history is forgotten, whether anybody else raises the revision. What only a file can do
is in tests/metadata/test_sqlite.py; what only servers can do, in tests/metadata/test_etcd*.py.
"""

import asyncio
import contextlib
import itertools
import random
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sulina.clock import SystemClock
from sulina.errors import Compacted, InvalidInput, LeaseLost, LogClosed
from sulina.metadata.checks import KEY_BYTES_MAX
from sulina.ports import (
    NO_REVISION,
    TXN_OPERATIONS_MAX,
    VALUE_BYTES_MAX,
    Change,
    Compare,
    Entry,
    Lease,
    MetadataStore,
    Put,
    TxnResult,
)
from tests.support.etcd import etcd
from tests.support.metadata_worlds import (
    HISTORY_CHANGES,
    QUEUE_CHANGES,
    WAIT_SECONDS,
    EtcdWorld,
    Model,
    SqliteWorld,
    World,
    add_one,
    keys,
    next_of,
    put,
    take,
    take_until,
    value_of,
)

__all__ = ["etcd"]  # a fixture

HIGHEST = "\U0010ffff"


@pytest.fixture(params=["in_memory", "in_sqlite", "in_etcd"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    match request.param:
        case "in_memory":
            world = World(tmp_path)
        case "in_sqlite":
            world = SqliteWorld(tmp_path)
        case _:
            world = EtcdWorld(request.getfixturevalue("etcd"))
    yield world
    await world.close()


@pytest.fixture
async def store(world: World) -> MetadataStore:
    return await world.open()


# Entries, transactions, revisions.


async def test_what_was_put_is_got_back_with_its_revision(store: MetadataStore) -> None:
    assert await store.get("/a") is None
    first = await store.txn(puts=[Put("/a", b"1"), Put("/b", bytes(range(256)))])
    assert first.is_done
    second = await put(store, "/a", b"")
    assert second > first.revision
    assert await store.get("/a") == Entry("/a", b"", second)
    assert await store.get("/b") == Entry("/b", bytes(range(256)), first.revision)


@pytest.mark.parametrize("world", ["in_memory", "in_sqlite"], indirect=True)  # others raise etcd's revision too
async def test_only_what_changes_something_raises_the_revision(store: MetadataStore) -> None:
    assert await store.txn() == TxnResult(True, 0)
    assert await store.txn(deletes=["/none"]) == TxnResult(True, 0)
    assert await put(store, "/a", b"same") == 1
    assert await put(store, "/a", b"same") == 2
    assert await store.txn(compares=[Compare("/a", 2)]) == TxnResult(True, 2)
    assert await store.txn(compares=[Compare("/a", 1)], puts=[Put("/a", b"other")]) == TxnResult(False, 2)
    assert await store.txn(deletes=["/a", "/none"]) == TxnResult(True, 3)
    assert await store.get("/a") is None
    assert (await store.list("/")).revision == 3


async def test_a_transaction_is_done_whole_or_not_at_all(store: MetadataStore) -> None:
    a, b = await put(store, "/a", b"a"), await put(store, "/b", b"b")
    compares = [Compare("/a", a), Compare("/b", a), Compare("/c", NO_REVISION)]
    failed = await store.txn(compares=compares, puts=[Put("/c", b"")], deletes=["/a"])
    assert not failed.is_done
    assert failed.revision >= b
    assert await keys(store) == ["/a", "/b"]
    compares[1] = Compare("/b", b)
    done = await store.txn(compares=compares, puts=[Put("/c", b"")], deletes=["/a"])
    assert done.is_done
    assert [(entry.key, entry.revision) for entry in (await store.list("/")).entries] == [
        ("/b", b),
        ("/c", done.revision),
    ]


async def test_compares_can_be_checked_without_a_change(store: MetadataStore) -> None:
    a = await put(store, "/a")
    assert (await store.txn(compares=[Compare("/a", a), Compare("/b", NO_REVISION)])).is_done
    assert not (await store.txn(compares=[Compare("/a", a), Compare("/b", a)])).is_done
    assert (await store.txn()).is_done
    assert (await store.txn(deletes=["/none"])).is_done


async def test_a_key_that_must_not_exist_is_created_once(store: MetadataStore) -> None:
    create = [Compare("/leader", NO_REVISION)]
    assert (await store.txn(compares=create, puts=[Put("/leader", b"one")])).is_done
    assert not (await store.txn(compares=create, puts=[Put("/leader", b"two")])).is_done
    assert await value_of(store, "/leader") == b"one"
    await store.txn(deletes=["/leader"])
    assert (await store.txn(compares=create, puts=[Put("/leader", b"three")])).is_done


@pytest.mark.parametrize("key", ["", "a", "a/b", "/" + "x" * KEY_BYTES_MAX, "/" + "é" * 512, "/\ud800"])
async def test_a_key_outside_the_rules_is_refused(store: MetadataStore, key: str) -> None:
    with pytest.raises(InvalidInput):
        await store.get(key)
    for wrong in ({"puts": [Put(key, b"")]}, {"deletes": [key]}, {"compares": [Compare(key, 0)]}):
        with pytest.raises(InvalidInput):
            await store.txn(**wrong)
    if key:
        with pytest.raises(InvalidInput):
            await store.list(key)
        with pytest.raises(InvalidInput):
            await anext(store.watch(key, after=0))
    assert await keys(store) == []


async def test_what_is_too_much_is_refused_and_the_most_is_taken(store: MetadataStore) -> None:
    many = [f"/{number}" for number in range(TXN_OPERATIONS_MAX + 1)]
    for wrong in (
        {"puts": [Put(key, b"") for key in many]},
        {"deletes": many},
        {"puts": [Put(key, b"") for key in many[1:]], "deletes": many[:1]},
        {"compares": [Compare(key, 0) for key in many]},
        {"puts": [Put("/a", b""), Put("/a", b"")]},
        {"puts": [Put("/a", b"")], "deletes": ["/a"]},
        {"deletes": ["/a", "/a"]},
        {"puts": [Put("/a", bytes(VALUE_BYTES_MAX + 1))]},
        {"compares": [Compare("/a", -1)]},
        {"puts": [Put("/a", b"", -1)]},
    ):
        with pytest.raises(InvalidInput):
            await store.txn(**wrong)
    for ttl_seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInput):
            await store.lease(ttl_seconds)
    with pytest.raises(InvalidInput):
        await anext(store.watch("/", after=-1))
    assert await keys(store) == []
    longest = "/" + "x" * (KEY_BYTES_MAX - 1)
    await put(store, longest, bytes(VALUE_BYTES_MAX))
    assert await value_of(store, longest) == bytes(VALUE_BYTES_MAX)
    puts = [Put(key, b"") for key in many[2:]]
    compares = [Compare(key, NO_REVISION) for key in many[1:]]
    assert (await store.txn(compares=compares, puts=puts, deletes=[longest])).is_done
    assert await keys(store) == sorted(many[2:])


async def test_a_listing_is_by_the_exact_prefix_in_order_of_code_points(world: World, store: MetadataStore) -> None:
    names = ["/a", "/a%", "/a_", "/aXb", "/a/", "/a/b", "/A", "/é", "/\uffff", "/\U00010000", "/a\0", "/a\0b"]
    names += [f"/{HIGHEST}", f"/{HIGHEST}{HIGHEST}", f"/{HIGHEST}x", "/a'; DROP TABLE entries; --", "/[a]*?"]
    random.Random(1).shuffle(names)
    revision = (await store.txn(puts=[Put(name, name.encode()) for name in names])).revision
    for prefix in ["", "/", *names, "/b", "/%", "/_", "/a%%", f"/a{HIGHEST}"]:
        listing = await store.list(prefix)
        assert [entry.key for entry in listing.entries] == sorted(name for name in names if name.startswith(prefix))
        assert all(entry.value == entry.key.encode() and entry.revision == revision for entry in listing.entries)
        assert world.is_at(listing, revision)


# At the same time.


async def test_of_fifty_who_swap_one_value_each_wins_once(world: World, store: MetadataStore) -> None:
    await asyncio.gather(*(add_one(store, "/counter") for _ in range(50)))
    assert await value_of(store, "/counter") == b"50"
    listing = await store.list("/")
    assert world.is_at(listing, 50)  # exactly one winner for each
    before = Compare("/counter", listing.entries[0].revision)
    rivals = [store.txn(compares=[before], puts=[Put("/counter", b"%d" % n)]) for n in range(50)]
    results = await asyncio.gather(*rivals)
    (winner,) = [number for number, result in enumerate(results) if result.is_done]
    assert await store.get("/counter") == Entry("/counter", b"%d" % winner, results[winner].revision)


async def test_a_listing_never_sees_half_of_a_transaction(world: World, store: MetadataStore) -> None:
    rounds = 40

    async def write(writer: int) -> None:
        for number in range(rounds):
            await store.txn(puts=[Put(f"/pair/{writer}/{side}", b"%d" % number) for side in "ab"])

    async def read() -> None:
        revision = -1
        values: list[bytes] = []
        while values != [b"%d" % (rounds - 1)] * 8:
            listing = await store.list("/pair/")
            assert listing.revision >= revision  # nor does time go back
            assert world.is_at(listing, max((entry.revision for entry in listing.entries), default=0))
            revision = listing.revision
            values = [entry.value for entry in listing.entries]
            assert values[::2] == values[1::2]
            await asyncio.sleep(0)

    async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as tasks:
        for writer in range(4):
            tasks.create_task(write(writer))
            tasks.create_task(read())


async def test_a_cancelled_call_leaves_the_store_whole(world: World, store: MetadataStore) -> None:
    chance = random.Random(5)
    before = (await store.list("/")).revision
    watch = store.watch("/", after=before)
    for number in range(60):
        tasks = [
            asyncio.create_task(store.txn(puts=[Put(f"/{task}/{side}", b"%d" % number) for side in "ab"]))
            for task in range(5)
        ]
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        for task in chance.sample(tasks, 3):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(task.cancelled() for task in tasks) <= 3
        values = [entry.value for entry in (await store.list("/")).entries]
        assert values[::2] == values[1::2]
    await add_one(store, "/after")
    listing = await store.list("/")
    seen = await take_until(watch, "/after")
    revisions = [changes[0].revision for changes in seen]
    assert before < revisions[0]
    assert all(earlier < later for earlier, later in itertools.pairwise(revisions))
    if world.counts_changes:
        assert revisions == list(range(1, listing.revision + 1))
    replayed = {change.key: change.value for changes in seen for change in changes}
    assert replayed == {entry.key: entry.value for entry in listing.entries}


# Watches.


async def test_a_watch_gets_history_then_what_comes_whole_and_in_order(store: MetadataStore) -> None:
    first = await put(store, "/w/a", b"1")
    second = (await store.txn(puts=[Put("/w/b", b"2"), Put("/other", b"")], deletes=["/w/a"])).revision
    watch = store.watch("/w/", after=first - 1)
    assert await take(watch, 1) == [[Change("/w/a", b"1", first)]]
    await put(store, "/other")
    third = (await store.txn(puts=[Put("/w/c", b"4"), Put("/w/b", b"5")])).revision
    seen = [sorted(changes, key=lambda change: change.key) for changes in await take(watch, 2)]
    assert seen == [
        [Change("/w/a", None, second), Change("/w/b", b"2", second)],
        [Change("/w/b", b"5", third), Change("/w/c", b"4", third)],
    ]
    waiting = asyncio.ensure_future(next_of(watch))
    fourth = (await store.txn(deletes=["/w/c"])).revision
    assert list(await waiting) == [Change("/w/c", None, fourth)]


async def test_a_watch_from_a_listing_misses_nothing(store: MetadataStore) -> None:
    await put(store, "/a", b"1")
    listing = await store.list("/")
    revision = await put(store, "/b", b"2")
    assert await take(store.watch("/", after=listing.revision), 1) == [[Change("/b", b"2", revision)]]


async def test_a_watch_that_begins_in_the_future_waits_for_it(store: MetadataStore) -> None:
    after = await put(store, "/a") + 3
    watch = store.watch("/", after=after)
    waiting = asyncio.ensure_future(next_of(watch))
    puts = [Change("/a", b"%d" % number, await put(store, "/a", b"%d" % number)) for number in range(6)]
    wanted = [[change] for change in puts if change.revision > after]
    assert len(wanted) >= 2
    assert [list(await waiting), *await take(watch, len(wanted) - 1)] == wanted


async def test_watches_that_begin_in_the_middle_have_no_gap_and_no_repeat(store: MetadataStore) -> None:
    writes, chance = 200, random.Random(3)
    base = await put(store, "/before")
    revisions: list[int] = []

    async def write() -> None:
        for _ in range(writes // 10):
            revisions.append(await put(store, f"/{chance.randrange(5)}"))  # noqa: PERF401 while others do, too

    async def read(after: int) -> list[int]:
        for _ in range(chance.randrange(60)):
            await asyncio.sleep(0)
        return [changes[0].revision for changes in await take_until(store.watch("/", after=after), "/last")]

    starts = [base + after for after in (0, 1, 50, 100, 190) for _ in range(4)]
    watches = [asyncio.create_task(read(after)) for after in starts]
    await asyncio.gather(*(write() for _ in range(10)))
    revisions.append(await put(store, "/last"))
    for task, after in zip(watches, starts, strict=True):
        assert await task == [revision for revision in sorted(revisions) if revision > after]


async def test_a_watch_from_before_the_history_is_told_so(world: World, store: MetadataStore) -> None:
    before = await put(store, "/first")
    await world.forget_history(store)
    with pytest.raises(Compacted) as told:
        await take(store.watch("/", after=before - 1), 1)
    assert told.value.after == before - 1
    listing = await store.list("/")
    assert told.value.oldest <= listing.revision
    watch = store.watch("/", after=listing.revision)  # what the error tells to do
    revision = await put(store, "/next")
    assert await take(watch, 1) == [[Change("/next", b"", revision)]]


async def test_a_reader_too_slow_loses_its_own_watch_only(world: World, store: MetadataStore) -> None:
    before = (await store.list("/")).revision
    slow, quick, elsewhere = (store.watch(prefix, after=before) for prefix in ("/", "/", "/quiet"))
    first = await put(store, "/a", b"first")
    assert await take(slow, 1) == await take(quick, 1)
    waiting = asyncio.ensure_future(next_of(elsewhere))
    for number in range(QUEUE_CHANGES + 1):
        await put(store, "/a", b"%d" % number)
        await take(quick, 1)
    with pytest.raises(Compacted) as told:
        await take(slow, 1)
    assert told.value.after == first
    with pytest.raises(StopAsyncIteration):
        await anext(slow)
    await store.txn(puts=[Put("/a", b"last"), Put("/quiet", b"")])
    assert len((await take(quick, 1))[0]) == 2
    assert [change.key for change in await waiting] == ["/quiet"]


async def test_a_watch_that_is_closed_or_cancelled_is_freed(world: World, store: MetadataStore) -> None:
    before = await put(store, "/a") - 1
    closed, cancelled = store.watch("/", after=before), store.watch("/", after=before)
    await take(closed, 1)
    assert world.watches() == 1
    async with contextlib.aclosing(closed):  # type: ignore[type-var]
        pass
    assert world.watches() == 0
    await take(cancelled, 1)
    waiting = asyncio.ensure_future(next_of(cancelled))
    await asyncio.sleep(0)
    assert world.watches() == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert world.watches() == 0
    for watch in (closed, cancelled):
        with pytest.raises(StopAsyncIteration):
            await anext(watch)


async def test_closing_the_store_ends_watches_and_refuses_calls(store: MetadataStore) -> None:
    lease = await store.lease(10)
    before = await put(store, "/c") - 1
    watches = [asyncio.ensure_future(next_of(store.watch(prefix, after=before))) for prefix in ("/", "/a", "/b")]
    unread = store.watch("/", after=before)
    await take(unread, 1)
    last = await put(store, "/c")
    await asyncio.wait(watches[:1])
    waiting = [asyncio.ensure_future(put(store, f"/{number}")) for number in range(5)]
    await asyncio.sleep(0)
    await asyncio.gather(store.close(), store.close())
    done = sorted(await asyncio.gather(*waiting))  # what was asked for before is done
    assert done == sorted(set(done))
    assert last < done[0]
    await asyncio.wait(watches[1:])
    assert [type(watch.exception()) for watch in watches[1:]] == [StopAsyncIteration] * 2
    with pytest.raises(StopAsyncIteration):
        await anext(unread)
    calls = store.get("/c"), store.list("/"), store.txn(), store.lease(1), store.compact(1), store.space()
    for call in (*calls, anext(store.watch("/", after=0))):
        with pytest.raises(LogClosed):
            await call
    for end in (lease.keep_alive(), lease.revoke()):
        with pytest.raises(LogClosed):
            await end
    await store.close()


# Leases.


async def test_a_lease_takes_its_keys_with_it_in_one_revision(world: World, store: MetadataStore) -> None:
    lease, other = await store.lease(world.ttl_seconds), await store.lease(world.ttl_seconds * 100)
    assert 0 < lease.lease_id != other.lease_id > 0
    await store.txn(puts=[Put(f"/l/{number}", b"", lease.lease_id) for number in range(3)])
    revision = (await store.txn(puts=[Put("/l/other", b"", other.lease_id), Put("/l/none", b"")])).revision
    await world.pass_time(world.ttl_seconds * 1.5)
    assert await keys(store) == ["/l/none", "/l/other"]
    (ended,) = await take(store.watch("/", after=revision), 1)
    assert sorted(change.key for change in ended) == ["/l/0", "/l/1", "/l/2"]
    ((value, ended_at),) = {(change.value, change.revision) for change in ended}
    assert value is None
    assert ended_at > revision
    assert world.is_at(await store.list("/"), ended_at)
    with pytest.raises(LeaseLost):
        await lease.keep_alive()
    with pytest.raises(LeaseLost) as lost:
        await put(store, "/l/0", b"", lease.lease_id)
    assert lost.value.lease_id == lease.lease_id
    await lease.revoke()
    assert world.is_at(await store.list("/"), ended_at)


async def test_the_end_of_a_large_lease_comes_whole_whatever_the_bounds(world: World, store: MetadataStore) -> None:
    lease = await store.lease(world.ttl_seconds)
    names = [f"/l/{number:05d}" for number in range(HISTORY_CHANGES + 100)]
    for first in range(0, len(names), TXN_OPERATIONS_MAX):
        some = names[first : first + TXN_OPERATIONS_MAX]
        revision = (await store.txn(puts=[Put(name, b"", lease.lease_id) for name in some])).revision
    live = asyncio.ensure_future(next_of(store.watch("/", after=revision)))
    await store.list("/")
    await lease.revoke()
    for changes in (await live, *await take(store.watch("/", after=revision), 1)):
        assert sorted(change.key for change in changes) == names


async def test_a_lease_that_is_kept_alive_stays(world: World, store: MetadataStore) -> None:
    lease = await store.lease(world.ttl_seconds)
    await put(store, "/a", b"", lease.lease_id)
    for _ in range(4 if world.owns_time else 2):
        await world.pass_time(world.ttl_seconds * 0.6)
        assert await lease.keep_alive() == pytest.approx(world.ttl_seconds)
    assert await keys(store) == ["/a"]
    await world.pass_time(world.ttl_seconds * 1.5)
    assert await keys(store) == []


async def test_a_lease_can_be_ended_early_and_twice(world: World, store: MetadataStore) -> None:
    empty, lease = await store.lease(world.ttl_seconds), await store.lease(world.ttl_seconds)
    revision = (await store.txn(puts=[Put("/a", b"", lease.lease_id), Put("/b", b"", lease.lease_id)])).revision
    await empty.revoke()
    assert world.is_at(await store.list("/"), revision)  # nothing went
    await lease.revoke()
    await lease.revoke()
    (ended,) = await take(store.watch("/", after=revision), 1)
    assert [(change.key, change.value) for change in ended] == [("/a", None), ("/b", None)]
    assert revision < ended[0].revision == ended[1].revision
    with pytest.raises(LeaseLost):
        await lease.keep_alive()
    with pytest.raises(LeaseLost):
        await put(store, "/a", b"", 1 << 40)  # never was


async def test_a_key_belongs_to_the_lease_of_its_last_put(world: World, store: MetadataStore) -> None:
    short, long = await store.lease(world.ttl_seconds), await store.lease(world.ttl_seconds * 100)
    for key in ("/detached", "/moved", "/deleted", "/stays"):
        await put(store, key, b"", short.lease_id)
    await put(store, "/detached", b"")
    await put(store, "/moved", b"", long.lease_id)
    await store.txn(deletes=["/deleted"])
    await put(store, "/deleted", b"")
    await world.pass_time(world.ttl_seconds * 1.5)
    assert await keys(store) == ["/deleted", "/detached", "/moved"]
    await long.revoke()
    assert await keys(store) == ["/deleted", "/detached"]


async def test_a_lost_compare_comes_before_a_lost_lease_and_neither_writes(store: MetadataStore) -> None:
    lease = await store.lease(10)
    await lease.revoke()
    wrong = await store.txn(compares=[Compare("/a", 5)], puts=[Put("/a", b"", lease.lease_id)])
    assert not wrong.is_done
    with pytest.raises(LeaseLost):
        await store.txn(puts=[Put("/b", b""), Put("/a", b"", lease.lease_id)])
    assert (await store.list("/")).entries == []


@pytest.mark.parametrize("world", ["in_memory", "in_sqlite"], indirect=True)  # time passes in etcd by itself
async def test_an_ended_lease_is_seen_by_nobody_before_any_timer(world: World, store: MetadataStore) -> None:
    for call in range(4):
        lease = await store.lease(world.ttl_seconds)
        await put(store, "/a", b"", lease.lease_id)
        world.clock.advance(world.ttl_seconds)  # and nothing else happens
        if call == 0:
            assert await store.get("/a") is None
        elif call == 1:
            assert await keys(store) == []
        elif call == 2:
            assert (await store.txn(compares=[Compare("/a", NO_REVISION)], puts=[Put("/a", b"")])).is_done
        with pytest.raises(LeaseLost):
            await lease.keep_alive()


async def test_a_lease_ends_by_itself(world: World) -> None:
    store = await world.open(SystemClock())
    await store.lease(3600)
    shorter, lease = [await store.lease(seconds) for seconds in world.short_seconds]
    revision = await put(store, "/a", b"", lease.lease_id)
    await put(store, "/b", b"", shorter.lease_id)
    ended = await take(store.watch("/", after=revision + 1), 2)
    assert [[(change.key, change.value) for change in changes] for changes in ended] == [[("/b", None)], [("/a", None)]]


# All of it against a model.


@pytest.mark.parametrize("seed", range(4))
async def test_any_history_is_that_of_a_dictionary(world: World, store: MetadataStore, seed: int) -> None:
    chance, model = random.Random(seed), Model()
    leases: dict[int, tuple[Lease, float]] = {}
    replayed: dict[str, bytes] = {}
    revision = seen = (await store.list("/")).revision
    unseen: deque[int] = deque()  # revisions that the watch must still show
    names = [f"/{folder}/{name}" for folder in ("a", "a_", "b%") for name in range(4)]
    watch = store.watch("/", after=seen)
    for _ in range(300 if world.owns_time else 100):
        step = chance.random()
        if step < 0.6:
            picked = chance.sample(names, chance.randrange(5))
            cut = chance.randrange(len(picked) + 1)
            puts = [Put(key, chance.randbytes(3), chance.choice([0, 0, *leases])) for key in picked[:cut]]
            compares = [Compare(key, model.revision_of(key)) for key in chance.sample(names, chance.randrange(3))]
            if chance.random() < 0.2:
                compares.append(Compare(chance.choice(names), chance.randrange(revision + 1)))
            done = await store.txn(compares=compares, puts=puts, deletes=picked[cut:])
            assert done.is_done == model.holds(compares), seed
            is_change = done.is_done and model.apply(puts, picked[cut:], done.revision)
            if is_change:
                unseen.append(done.revision)
            if world.counts_changes:
                assert done.revision == revision + is_change, seed
            assert done.revision >= revision + is_change, seed
            revision = done.revision
        elif step < 0.7:
            ttl_seconds = chance.choice([2.0, 5.0, 9.0]) if world.owns_time else 3600.0
            lease = await store.lease(ttl_seconds)
            leases[lease.lease_id] = (lease, world.clock.monotonic() + ttl_seconds if world.owns_time else 0.0)
        elif step < 0.8 and world.owns_time:
            await world.pass_time(chance.choice([0.5, 3.0]))
            for lease_id in [lease for lease, (_, over) in leases.items() if over <= world.clock.monotonic()]:
                del leases[lease_id]
                if model.end(lease_id):
                    revision += 1
                    unseen.append(revision)
        elif step < 0.8 and leases:
            lease_id = chance.choice([*leases])
            await leases.pop(lease_id)[0].revoke()
            if model.end(lease_id):
                unseen.append(0)  # whatever it is
        elif step < 0.82 and world.lasts and not leases:
            await store.close()
            store = await world.open()
            watch = store.watch("/", after=seen)
        prefix = chance.choice(["", "/", "/a", "/a/", "/a_", "/b%/", "/a/1"])
        listing = await store.list(prefix)
        assert listing.entries == model.entries(prefix), seed
        assert world.is_at(listing, revision), seed
        while unseen and chance.random() < 0.9:
            (changes,) = await take(watch, 1)
            assert changes[0].revision == (unseen.popleft() or changes[0].revision) > seen, seed
            seen = changes[0].revision
            for change in changes:
                assert change.revision == seen, seed
                replayed[change.key] = change.value or b""
                if change.value is None:
                    del replayed[change.key]
        if not unseen:
            assert replayed == {entry.key: entry.value for entry in model.entries("")}, seed


# History and room.


async def test_history_is_forgotten_up_to_a_revision_and_nothing_else_is(store: MetadataStore) -> None:
    """A watch from there on misses nothing, one from before is told so; entries and compares do not change."""
    first, second, third = [await put(store, f"/{number}", b"%d" % number) for number in range(3)]
    running = store.watch("/", after=first)
    assert await take(running, 1) == [[Change("/1", b"1", second)]]
    await store.compact(second)
    assert await take(running, 1) == [[Change("/2", b"2", third)]]
    assert await take(store.watch("/", after=second), 1) == [[Change("/2", b"2", third)]]
    with pytest.raises(Compacted):
        await take(store.watch("/", after=first - 1), 1)
    assert [entry.revision for entry in (await store.list("/")).entries] == [first, second, third]
    assert (await store.txn(compares=[Compare("/0", first)], puts=[Put("/0", b"again")])).is_done
    await take(running, 1)


async def test_what_is_forgotten_already_may_be_forgotten_again_but_not_what_is_to_come(store: MetadataStore) -> None:
    newest = await put(store, "/a")
    await store.compact(0)
    for revision in (newest, newest, newest - 1):
        await store.compact(revision)
    with pytest.raises(InvalidInput, match="revision"):
        await store.compact(newest + 1_000_000)
    watch = store.watch("/", after=newest)
    next_revision = await put(store, "/b")
    assert await take(watch, 1) == [[Change("/b", b"", next_revision)]]


async def test_a_store_says_whether_there_is_room(store: MetadataStore) -> None:
    await put(store, "/a", b"x" * 1000)
    space = await store.space()
    assert not space.is_full
    assert space.used_bytes is None or 1000 < space.used_bytes <= (space.size_bytes or 0)
