"""Several brokers' parts in one cluster, in one process: without logs and listeners, over a store that is watched.

The store checks after every revision what must never be otherwise; each broker reaches it by a line of its own, which
can be cut, lose answers, or fail. Time is virtual: `in_virtual_time` runs a test on a loop where waiting costs nothing.
"""

import asyncio
import functools
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

import msgspec

from sulina.broker.cluster import Cluster, ClusterOptions, ClusterView, OwnAssignment
from sulina.broker.events import Event, EventStream
from sulina.core.cluster import keys
from sulina.core.cluster.entries import (
    Assignment,
    DeleteMark,
    EpochEntry,
    GivenUp,
    LoadReport,
    Reason,
    Registration,
    UnloadRequest,
    UnloadStep,
)
from sulina.errors import MetadataFailed, SulinaError
from sulina.failpoints import FailpointHook, no_failpoints
from sulina.metadata import MemoryMetadata
from sulina.ports import (
    NO_REVISION,
    Change,
    Clock,
    Compare,
    Entry,
    Lease,
    Listing,
    MetadataStore,
    Put,
    StoreHistory,
    StoreSpace,
    TxnResult,
)
from sulina.types import PartitionName, TopicName
from tests.client.virtual_time import VirtualTimeLoop

WAIT_SECONDS = 60.0  # for what must come
TTL_SECONDS = 3.0
GIVEN_UP = GivenUp(start=0, end=None, reason="a test", at_ms=0)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def in_virtual_time(
    test: Callable[Parameters, Coroutine[Any, Any, Result]],
) -> Callable[Parameters, Result]:
    """A test whose time passes only when everybody waits for it."""

    @functools.wraps(test)
    def run(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(test(*arguments, **named))

    return run


class LoopClock:
    """The time of the running loop."""

    def now(self) -> float:
        return 1_700_000_000.0 + self.monotonic()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


def partition_names(topic: str, count: int) -> list[PartitionName]:
    return [PartitionName(TopicName("default", topic), number) for number in range(count)]


class _InOrder(dict[Any, None]):
    """A set whose order does not depend on where things are in memory: a seed gives the same run, always."""

    def add(self, one: object) -> None:
        self[one] = None

    def discard(self, one: object) -> None:
        self.pop(one, None)


class WatchedStore(MemoryMetadata):
    """Notes the very revision that breaks a rule of ownership."""

    def __init__(self, clock: Clock, history_changes_max: int = 10_000) -> None:
        super().__init__(clock, history_changes_max=history_changes_max)
        self.watches.watchers = _InOrder()  # type: ignore[assignment]
        self.owners: dict[PartitionName, str] = {}
        self.epochs: dict[PartitionName, EpochEntry] = {}
        self.unassigned: set[PartitionName] = set()
        self.highest: dict[PartitionName, int] = {}  # the epoch of any owner so far
        self.changes_of_owner: Counter[PartitionName] = Counter()
        self.txn_sizes: list[int] = []
        self.broken: list[str] = []  # rules: whoever wrote it may survive its own failure, the test does not
        self.is_editing = False  # the test writes topics; the cluster never does
        self.watch_revision: Callable[[], None] = lambda: None

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        self.txn_sizes.append(len(puts) + len(deletes))
        return await super().txn(compares=compares, puts=puts, deletes=deletes)

    def require(self, holds: bool, rule: str) -> None:
        """What must never be otherwise."""
        if not holds:
            self.broken.append(f"at revision {self._revision}: {rule}")

    def apply_now(self, puts: Sequence[Put], deletes: Sequence[str]) -> None:
        """Write as another broker would, without a transaction."""
        self._apply(puts, deletes)

    def _apply(self, puts: Sequence[Put], deletes: Sequence[str]) -> None:
        super()._apply(puts, deletes)
        for key in deletes:
            self._changed(key, None)
        for put in puts:
            self._changed(put.key, put.value)
        for partition in {keys.partition_of(key) for key in [*deletes, *(put.key for put in puts)] if _is_of_one(key)}:
            self._check(partition)
        self.watch_revision()

    def _changed(self, key: str, value: bytes | None) -> None:
        parts = key.split("/")
        if parts[1] in ("topics", "namespaces"):
            self.require(self.is_editing, f"{key} was touched")
        if not _is_of_one(key):
            return
        partition, kind = keys.partition_of(key), parts[2]
        if kind == "brokers":
            self._owner_changed(partition, parts[3], value)
        elif kind == "unassigned":
            (self.unassigned.discard if value is None else self.unassigned.add)(partition)
        elif kind == "epochs" and value is None:
            self.epochs.pop(partition, None)
            self.highest.pop(partition, None)  # the topic is gone: the next one of its name counts for itself
        elif kind == "epochs" and value is not None:
            self.epochs[partition] = msgspec.json.decode(value, type=EpochEntry)

    def _owner_changed(self, partition: PartitionName, broker: str, value: bytes | None) -> None:
        if value is None:
            self.require(self.owners.pop(partition, broker) == broker, f"{partition} had two owners")
            return
        self.require(partition not in self.owners, f"{partition} has two owners")
        epoch = msgspec.json.decode(value, type=Assignment).epoch
        self.require(epoch > self.highest.get(partition, 0), f"the epoch of {partition} does not rise")
        self.owners[partition], self.highest[partition] = broker, epoch
        self.changes_of_owner[partition] += 1

    def _check(self, partition: PartitionName) -> None:
        owner = self.owners.get(partition)
        if owner is None:
            return
        self.require(partition not in self.unassigned, f"{partition} has an owner and waits for one")
        epoch = self.epochs.get(partition)
        is_told = epoch is not None and (epoch.broker_id, epoch.epoch) == (owner, self.highest[partition])
        self.require(is_told, f"the epoch of {partition} is not its owner's")


def _is_of_one(key: str) -> bool:
    parts = key.split("/")
    return parts[1] == "cluster" and len(parts) == (7 if parts[2] == "brokers" else 6)


class Topics:
    """What all brokers know of topics; the store knows it first."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.known: dict[TopicName, tuple[int, bool]] = {}
        self._ids: dict[TopicName, str] = {}
        self._made = itertools.count()

    async def create(self, name: str, partitions: int = 1, *, is_reliable: bool = True) -> list[PartitionName]:
        topic = TopicName("default", name)
        await self.edit([Put(keys.delivery(topic), b"{}"), Put(keys.namespace_topic(topic), b"{}")], [])
        self.known[topic], self._ids[topic] = (partitions, is_reliable), f"{name}-{next(self._made)}"
        return partition_names(name, partitions)

    async def mark(self, topic: TopicName) -> Compare:
        """That the topic is as it is now."""
        entry = await self.store.get(keys.delivery(topic))
        return Compare(keys.delivery(topic), entry.revision if entry else NO_REVISION)

    async def delete(self, name: str) -> None:
        topic = TopicName("default", name)
        mark = msgspec.json.encode(DeleteMark(topic=str(topic), at_ms=0))
        await self.edit(
            [Put(keys.deleted(self._ids[topic]), mark)], [keys.delivery(topic), keys.namespace_topic(topic)]
        )
        del self.known[topic]

    async def edit(self, puts: list[Put], deletes: list[str]) -> None:
        if not isinstance(self.store, WatchedStore):
            await self.store.txn(puts=puts, deletes=deletes)
            return
        self.store.is_editing = True
        try:
            await self.store.txn(puts=puts, deletes=deletes)
        finally:
            self.store.is_editing = False

    def is_reliable(self, partition: PartitionName) -> bool | None:
        partitions, is_reliable = self.known.get(partition.topic, (0, None))
        return is_reliable if partition.partition < partitions else None

    def topic_id(self, partition: PartitionName) -> str | None:
        return self._ids[partition.topic] if self.is_reliable(partition) is not None else None

    def partitions(self) -> Iterable[PartitionName]:
        return [PartitionName(topic, number) for topic, (count, _) in self.known.items() for number in range(count)]


class Line:
    """A broker's way to the store. A `ports.MetadataStore`."""

    def __init__(self, store: MetadataStore, chance: random.Random | None = None, failures: float = 0.0) -> None:
        self._store = store
        self._chance = chance or random.Random(0)
        self.failures = failures  # how likely a call fails, half of them after it was carried out
        self._is_cut = asyncio.Event()
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self.held_up: str | None = None  # transactions that write a key with this in it wait on the line
        self.is_held_up = asyncio.Event()  # one does
        self.let_through = asyncio.Event()

    def cut(self) -> None:
        self._is_cut.set()
        self._is_whole.clear()

    def heal(self) -> None:
        self._is_cut.clear()
        self._is_whole.set()

    @property
    def history(self) -> StoreHistory:
        return self._store.history

    async def peek(self, key: str) -> Entry | None:
        return await self._store.peek(key)

    async def _pass(self) -> None:
        """Nothing gets through a line that is cut, and nobody says so."""
        if not self._is_whole.is_set():
            try:
                async with asyncio.timeout(5):
                    await self._is_whole.wait()
            except TimeoutError:
                raise _failed("no answer") from None

    async def call(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        await asyncio.sleep(self._chance.random() * 0.002)
        await self._pass()
        is_failing = self._chance.random() < self.failures
        if is_failing and self._chance.random() < 0.5:
            raise _failed("refused")
        answer = await call()
        if is_failing:
            raise _failed("the answer was lost")
        await self._pass()
        return answer

    async def get(self, key: str) -> Entry | None:
        return await self.call(lambda: self._store.get(key))

    async def list(self, prefix: str) -> Listing:
        return await self.call(lambda: self._store.list(prefix))

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        if self.held_up is not None and any(self.held_up in key for key in [*(put.key for put in puts), *deletes]):
            self.is_held_up.set()
            await self.let_through.wait()
        return await self.call(lambda: self._store.txn(compares=compares, puts=puts, deletes=deletes))

    async def watch(self, prefix: str, *, after: int) -> AsyncIterator[Sequence[Change]]:
        await self._pass()
        inner = aiter(self._store.watch(prefix, after=after))
        while True:
            coming = asyncio.ensure_future(anext(inner))
            cut = asyncio.ensure_future(self._is_cut.wait())
            try:
                await asyncio.wait([coming, cut], return_when=asyncio.FIRST_COMPLETED)
                if cut.done():
                    raise _failed("the watch broke")
                try:
                    changes = coming.result()
                except StopAsyncIteration:
                    return
            finally:
                for task in (coming, cut):
                    task.cancel()
                await asyncio.gather(coming, cut, return_exceptions=True)
            yield changes

    async def lease(self, ttl_seconds: float) -> Lease:
        return _LineLease(self, await self.call(lambda: self._store.lease(ttl_seconds)))

    async def compact(self, revision: int) -> None:
        await self.call(lambda: self._store.compact(revision))

    async def space(self) -> StoreSpace:
        return await self.call(self._store.space)

    async def close(self) -> None:
        pass


class _LineLease:
    def __init__(self, line: Line, lease: Lease) -> None:
        self._line = line
        self._lease = lease

    @property
    def lease_id(self) -> int:
        return self._lease.lease_id

    async def keep_alive(self) -> float:
        return await self._line.call(self._lease.keep_alive)

    async def revoke(self) -> None:
        await self._line.call(self._lease.revoke)


def _failed(reason: str) -> MetadataFailed:
    return MetadataFailed(path="line:", cause=OSError(reason))


class Serving:
    """An `Owner` that serves nothing, and carries out what it is asked at once, unless told not to."""

    def __init__(self, broker_id: str) -> None:
        self._broker_id = broker_id
        self._tasks = _InOrder()
        self.cluster: Cluster | None = None
        self.unloads_at_once = True
        self.mine: dict[PartitionName, tuple[EpochEntry, int]] = {}
        self.serving: set[PartitionName] = set()
        self.unload_requests: list[tuple[PartitionName, UnloadRequest, int]] = []
        self.told: list[tuple[str, PartitionName]] = []
        self.broken: list[str] = []

    def changed(self, partition: PartitionName, assigned: OwnAssignment | None) -> None:
        if assigned is None:
            self.lost(partition)
            return
        unload = assigned.unload
        if unload is None or partition not in self.mine or self.mine[partition][1] != assigned.revision:
            self.assigned(partition, assigned.epoch, assigned.revision)
        if unload is not None:
            self.unload_requested(partition, unload.value, unload.revision)

    def assigned(self, partition: PartitionName, epoch: EpochEntry, revision: int) -> None:
        self.broken += ["told twice"] if partition in self.mine else []
        self.told.append(("assigned", partition))
        self.mine[partition] = (epoch, revision)
        self.serving.add(partition)

    def lost(self, partition: PartitionName) -> None:
        self.told.append(("lost", partition))
        del self.mine[partition]
        self.serving.discard(partition)

    def unload_requested(self, partition: PartitionName, unload: UnloadRequest, revision: int) -> None:
        self.broken += ["told before it was assigned"] if partition not in self.mine else []
        self.unload_requests.append((partition, unload, revision))
        if self.unloads_at_once and unload.step == UnloadStep.REQUESTED:
            self.background(self.unload(partition, unload, revision))

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """For as long as the broker lives. What the store refuses is nobody's fault."""
        task = asyncio.create_task(self._quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, work: Coroutine[Any, Any, None]) -> None:
        with suppress(SulinaError):
            await work

    def load(self) -> LoadReport:
        count = len(self.serving)
        return LoadReport(
            broker_id=self._broker_id,
            at_ms=int(LoopClock().now() * 1000),
            partitions=count,
            topics=count,
            connections=0,
            consumers=0,
        )

    async def unload(self, partition: PartitionName, unload: UnloadRequest, revision: int) -> None:
        """What a broker does, without the records."""
        assert self.cluster is not None
        for _ in range(100):
            if partition not in self.mine:
                return
            assigned = self.mine[partition][1]
            self.serving.discard(partition)
            try:
                revision = await self.cluster.advance_unload(partition, unload, revision, UnloadStep.SEALED)
                await self.cluster.unassign(partition, assigned, reason=Reason.UNLOADED, to=unload.to)
                return
            except SulinaError:
                await asyncio.sleep(0.1)

    def end(self) -> None:
        for task in list(self._tasks):
            task.cancel()


class Member:
    """One broker."""

    def __init__(
        self, world: "World", broker_id: str, store_id: str, line: Line, owner: Serving, failpoints: FailpointHook
    ) -> None:
        self.owner = owner
        self.line = line
        self.events: list[Event] = []
        stream = EventStream(world.clock)
        self._listening = stream.listen()
        self._stream = self._listening.__enter__()
        self.cluster = Cluster(
            line,
            registration=Registration(
                broker_id=broker_id,
                url=f"http://{broker_id}:80",
                store_id=store_id,
                started_ms=int(world.clock.now() * 1000),
            ),
            view=ClusterView(line, events=stream, clock=world.clock, waiters_max=world.options.waiters_max),
            topics=world.topics,
            load=self.owner.load,
            events=stream,
            clock=world.clock,
            options=world.options,
            failpoints=failpoints,
        )
        self.owner.cluster = self.cluster

    @property
    def view(self) -> Any:
        return self.cluster.view

    def is_serving(self, partition: PartitionName) -> bool:
        return partition in self.owner.serving and self.cluster.membership.may_ack()

    def event_types(self) -> list[str]:
        """All that happened so far."""
        self.events += self._stream.take_nowait()
        return [event.type for event in self.events]

    def stop_listening(self) -> None:
        self._listening.__exit__(None, None, None)

    async def kill(self) -> None:
        """As a crash does: nothing is said, the lease runs out."""
        self.owner.end()
        self.owner.serving.clear()
        self.owner.mine.clear()
        await self.cluster.stop_tasks()

    async def stop(self) -> None:
        self.owner.serving.clear()
        await self.cluster.stop()
        self.owner.end()


class World:
    """`async with World() as world`, then `await world.join("a")`."""

    def __init__(
        self,
        options: ClusterOptions | None = None,
        store: MetadataStore | None = None,
        history_changes_max: int = 10_000,
    ) -> None:
        self.clock = LoopClock()
        self.store = WatchedStore(self.clock, history_changes_max)
        self.shared: MetadataStore = store or self.store
        self.topics = Topics(self.shared)
        self.options = options or ClusterOptions(lease_seconds=TTL_SECONDS)
        self.members: dict[str, Member] = {}
        self._left: list[Member] = []

    async def __aenter__(self) -> "World":
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in [*self.members.values(), *self._left]:
            self.store.broken += member.owner.broken
            await member.kill()
            member.stop_listening()
        await self.store.close()
        assert not self.store.broken, self.store.broken[:10]

    async def join(
        self,
        broker_id: str,
        *,
        store_id: str | None = None,
        line: Line | None = None,
        owner: Serving | None = None,
        failpoints: FailpointHook = no_failpoints,
    ) -> Member:
        if broker_id in self.members:
            self._left.append(self.members[broker_id])
        member = Member(
            self,
            broker_id,
            store_id or f"store-{broker_id}",
            line or Line(self.shared),
            owner or Serving(broker_id),
            failpoints,
        )
        self.members[broker_id] = member
        await member.cluster.start(member.owner)
        return member

    async def join_all(self, *broker_ids: str) -> list[Member]:
        return [await self.join(broker_id) for broker_id in broker_ids]

    def serving(self, partition: PartitionName) -> list[str]:
        """Who would acknowledge a record of it at this moment."""
        return [broker_id for broker_id, member in self.members.items() if member.is_serving(partition)]

    async def create(self, name: str, partitions: int = 1, *, is_reliable: bool = True) -> list[PartitionName]:
        names = await self.topics.create(name, partitions, is_reliable=is_reliable)
        for member in self.members.values():
            member.cluster.topics_changed(names)
        return names

    async def until(self, holds: Callable[[], bool], seconds: float = WAIT_SECONDS) -> float:
        """Wait until it holds, looking after every revision and every little while; how long that was."""
        start = self.clock.monotonic()
        while not holds():
            assert self.clock.monotonic() - start < seconds, "it did not come"
            await asyncio.sleep(0.01)
        return self.clock.monotonic() - start

    async def served(self, partitions: Iterable[PartitionName], seconds: float = WAIT_SECONDS) -> float:
        names = list(partitions)
        return await self.until(lambda: all(len(self.serving(name)) == 1 for name in names), seconds)

    def owners(self, partitions: Iterable[PartitionName]) -> Counter[str]:
        return Counter(self.store.owners[name] for name in partitions)
