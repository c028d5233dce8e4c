"""Metadata stores of each kind, and what a test of their contract can do to them besides calling the port."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from sulina.metadata import MemoryMetadata, SqliteMetadata
from sulina.metadata.etcd import EtcdMetadata
from sulina.ports import NO_REVISION, TXN_OPERATIONS_MAX, Change, Clock, Compare, Entry, Listing, MetadataStore, Put
from sulina.testing import VirtualClock
from tests.support.etcd import EtcdServer

HISTORY_CHANGES = 3_000
QUEUE_CHANGES = 600
WAIT_SECONDS = 20.0  # for what must come


class World:
    """A store of one kind, and what a test can do to it besides calling the port."""

    ttl_seconds = 10.0
    short_seconds = (0.5, 0.8)  # leases that end soon, one after the other
    owns_time = True
    lasts = False  # the store can be closed and opened again
    counts_changes = True  # the revision begins at 0, and rises by 1 with each change and with nothing else

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "metadata.db")
        self.clock = VirtualClock()
        self._opened: list[MemoryMetadata | SqliteMetadata] = []

    async def open(self, clock: Clock | None = None) -> MetadataStore:
        store = await self.make(clock or self.clock)
        self._opened.append(store)
        return store

    async def make(self, clock: Clock) -> MemoryMetadata | SqliteMetadata:
        return MemoryMetadata(clock, history_changes_max=HISTORY_CHANGES, watch_queue_changes_max=QUEUE_CHANGES)

    async def pass_time(self, seconds: float) -> None:
        """Where time is real: sleep for so long."""
        self.clock.advance(seconds)
        await self._opened[-1].expire()

    async def forget_history(self, store: MetadataStore) -> None:
        """Where there is a call for it: call it."""
        for _ in range(HISTORY_CHANGES // TXN_OPERATIONS_MAX + 1):
            await store.txn(puts=[Put(f"/history/{number}", b"") for number in range(TXN_OPERATIONS_MAX)])

    def watches(self) -> int:
        return len(self._opened[-1].watches)

    def is_at(self, listing: Listing, revision: int) -> bool:
        """Nothing has changed since `revision`, as far as that can be told."""
        return listing.revision == revision if self.counts_changes else listing.revision >= revision

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


class SqliteWorld(World):
    lasts = True

    async def make(self, clock: Clock) -> MemoryMetadata | SqliteMetadata:
        return await SqliteMetadata.open(
            self.path, clock=clock, history_changes_max=HISTORY_CHANGES, watch_queue_changes_max=QUEUE_CHANGES
        )


class EtcdWorld(World):
    """A prefix of its own on a real server, whose revision others raise too."""

    ttl_seconds = 1.0  # the shortest that there is
    short_seconds = (1.0, 2.0)
    owns_time = False
    lasts = True
    counts_changes = False

    def __init__(self, server: EtcdServer) -> None:
        self._server = server
        self._prefix = server.new_prefix()
        self._stores: list[EtcdMetadata] = []

    async def open(self, clock: Clock | None = None) -> MetadataStore:
        store = await EtcdMetadata.open(
            self._server.endpoints, prefix=self._prefix, watch_queue_changes_max=QUEUE_CHANGES
        )
        self._stores.append(store)
        return store

    async def pass_time(self, seconds: float) -> None:
        """etcd looks for leases that have ended twice a second."""
        await asyncio.sleep(seconds + (1.0 if seconds > self.ttl_seconds else 0.0))

    async def forget_history(self, store: MetadataStore) -> None:
        await asyncio.to_thread(self._server.compact, await put(store, "/history"))
        await put(store, "/history")

    def watches(self) -> int:
        return len(self._stores[-1].watches)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


class Model:
    """A dictionary that does what a store should."""

    def __init__(self) -> None:
        self._stored: dict[str, tuple[Entry, int]] = {}  # with its lease

    def revision_of(self, key: str) -> int:
        return self._stored[key][0].revision if key in self._stored else NO_REVISION

    def holds(self, compares: Sequence[Compare]) -> bool:
        return all(self.revision_of(compare.key) == compare.revision for compare in compares)

    def apply(self, puts: Sequence[Put], deletes: Sequence[str], revision: int) -> bool:
        """Whether anything has changed."""
        gone = [key for key in deletes if self._stored.pop(key, None)]
        self._stored.update((put.key, (Entry(put.key, put.value, revision), put.lease_id)) for put in puts)
        return bool(puts or gone)

    def end(self, lease_id: int) -> bool:
        """Whether the lease had keys."""
        return self.apply((), [key for key, (_, lease) in self._stored.items() if lease == lease_id], NO_REVISION)

    def entries(self, prefix: str) -> list[Entry]:
        return [self._stored[key][0] for key in sorted(self._stored) if key.startswith(prefix)]


async def put(store: MetadataStore, key: str, value: bytes = b"", lease_id: int = 0) -> int:
    return (await store.txn(puts=[Put(key, value, lease_id)])).revision


async def value_of(store: MetadataStore, key: str) -> bytes | None:
    entry = await store.get(key)
    return entry.value if entry else None


async def keys(store: MetadataStore, prefix: str = "/") -> list[str]:
    return [entry.key for entry in (await store.list(prefix)).entries]


async def take(watch: AsyncIterator[Sequence[Change]], revisions: int) -> list[list[Change]]:
    """The next so many. Cancelling would end the watch, so a test that waits for ever ends by its own time limit."""
    async with asyncio.timeout(WAIT_SECONDS):
        return [list(await anext(watch)) for _ in range(revisions)]


async def take_until(watch: AsyncIterator[Sequence[Change]], key: str) -> list[list[Change]]:
    """The next ones, up to the one that changes `key`."""
    taken: list[list[Change]] = []
    while not taken or key not in [change.key for change in taken[-1]]:
        taken += await take(watch, 1)
    return taken


async def next_of(watch: AsyncIterator[Sequence[Change]]) -> Sequence[Change]:
    return await anext(watch)


async def add_one(store: MetadataStore, key: str) -> int:
    """Compare and swap until it works; how often it did not."""
    for lost in range(10_000):
        entry = await store.get(key)
        old, revision = (int(entry.value), entry.revision) if entry else (0, NO_REVISION)
        done = await store.txn(compares=[Compare(key, revision)], puts=[Put(key, b"%d" % (old + 1))])
        if done.is_done:
            return lost
    raise AssertionError("never won")
