"""The cluster as one broker sees it: everything under `/cluster/`, as of one revision of the store.

Changes are applied one revision at a time, so entries that were written together are seen together. If changes were
missed, everything is listed again, and the difference is applied as one change. A broker that is stopped deletes its
registration and its load report in one transaction; when its lease expires, the report stays. This is how a stopped
broker is told from a dead one.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, TypeVar

import msgspec
import structlog

from sulina.broker.events import EventStream
from sulina.core.cluster import keys
from sulina.core.cluster.entries import (
    Assignment,
    BrokerMode,
    BrokerState,
    DeleteMark,
    EpochEntry,
    Leader,
    LoadReport,
    Registration,
    Unassigned,
    UnloadRequest,
    UnloadStep,
)
from sulina.core.formats import METADATA
from sulina.errors import Compacted, InvalidName, LimitReached, MetadataWentBack
from sulina.ports import NO_REVISION, Change, Clock, MetadataStore, Put
from sulina.types import PartitionName
from sulina.wire.messages import (
    BrokerInfo,
    ClusterInfo,
    MetadataInfo,
    PartitionPlacement,
    TopicState,
    UnloadInfo,
    WaitingPartition,
)

WAITING_MAX = 100  # partitions without an owner that `info` lists
RETRY_SECONDS = 0.2  # before a failed watch is tried again

_logger = structlog.get_logger("sulina.cluster")

Value = TypeVar("Value")
Read = TypeVar("Read", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Versioned(Generic[Value]):
    """A value with the revision that last changed it."""

    value: Value
    revision: int


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owner of a partition; the revision is that of the assignment."""

    broker_id: str
    epoch: int
    revision: int


@dataclass(slots=True)
class Touched:
    """The brokers and partitions that a change of the view concerns."""

    brokers: set[str] = field(default_factory=set)  # whose registration or state changed
    partitions: set[PartitionName] = field(default_factory=set)
    is_leader: bool = False


Listener = Callable[[Touched], None]


class ClusterView:
    """`load` it once, then `follow`. Its attributes are read on the event loop, and must not be changed."""

    def __init__(
        self, metadata: MetadataStore, *, events: EventStream, clock: Clock, waiters_max: int = 100_000
    ) -> None:
        self._metadata = metadata
        self._events = events
        self._clock = clock
        self._waiters_max = waiters_max
        self._waiters: dict[asyncio.Future[None], Callable[[ClusterView], bool]] = {}
        self._listeners: list[Listener] = []
        self._known: dict[str, int] = {}  # every key under the prefix, with its revision
        self._is_loaded = False
        self._is_other_history = False  # former revisions cannot be compared with those of the store now
        self.revision = NO_REVISION
        self.leader: Versioned[Leader] | None = None
        self.registrations: dict[str, Versioned[Registration]] = {}
        self.modes: dict[str, BrokerMode] = {}
        self.loads: dict[str, LoadReport] = {}
        self._reported_at: dict[str, float] = {}  # when the loads were seen, by the monotonic clock
        self.assignments: dict[PartitionName, Ownership] = {}  # to brokers that may be unreachable
        self.assigned_to: dict[str, set[PartitionName]] = {}  # the same by broker, registered or not
        self.unassigned: dict[PartitionName, Versioned[Unassigned]] = {}
        self.epochs: dict[PartitionName, Versioned[EpochEntry]] = {}
        self.unloads: dict[PartitionName, Versioned[UnloadRequest]] = {}
        self.deleted: dict[str, Versioned[DeleteMark]] = {}  # topics, by their ids

    @property
    def waiters(self) -> int:
        """Number of callers of `wait_for` that are waiting."""
        return len(self._waiters)

    # Queries

    @property
    def is_loaded(self) -> bool:
        """Whether it was ever read from the metadata store."""
        return self._is_loaded

    def url(self, broker_id: str | None) -> str | None:
        """Return the URL of a broker; None: it is not registered."""
        held = self.registrations.get(broker_id) if broker_id is not None else None
        return held.value.url if held else None

    def mode(self, broker_id: str) -> BrokerMode:
        """Return the mode that an operator has set for a broker."""
        return self.modes.get(broker_id, BrokerMode.ACTIVE)

    def active(self) -> list[str]:
        """Return the registered brokers that get partitions, sorted."""
        return [broker for broker in self.staying() if self.mode(broker) == BrokerMode.ACTIVE]

    def staying(self) -> list[str]:
        """Return the registered brokers that are not stopping, sorted."""
        return sorted(broker for broker, held in self.registrations.items() if not held.value.is_leaving)

    def placement(self, partition: PartitionName) -> PartitionPlacement:
        """Return where a partition is served; it is closed while it has no owner, or its owner is not registered."""
        epoch = self.epochs.get(partition)
        number, newest = partition.partition, epoch.value.epoch if epoch else -1
        owned = self.assignments.get(partition)
        if owned is not None and (broker := self.registrations.get(owned.broker_id)) is not None:
            unload = self.unloads.get(partition)
            is_leaving = unload is not None and unload.value.step != UnloadStep.REQUESTED
            return PartitionPlacement(
                partition=number,
                state=TopicState.DRAINING if is_leaving else TopicState.ACTIVE,
                epoch=newest,
                broker_id=owned.broker_id,
                url=broker.value.url,
            )
        waiting = self.unassigned.get(partition)
        if waiting is not None and waiting.value.is_recovering:
            return PartitionPlacement(
                partition=number, state=TopicState.RECOVERING, epoch=newest, waits_for=waiting.value.from_broker
            )
        return PartitionPlacement(partition=number, state=TopicState.CLOSED, epoch=newest)

    def clocks(self, *, but: str) -> list[float]:
        """Return the wall clocks of the other brokers by their load reports; they may be a little behind."""
        now = self._clock.monotonic()
        there = [name for name in self.loads if name in self.registrations and name != but]
        return [self.loads[name].at_ms / 1000 + now - self._reported_at[name] for name in there]

    def brokers(self) -> list[BrokerInfo]:
        """Return the registered and the unreachable brokers, sorted by name."""
        names = sorted({*self.registrations, *self.loads, *(name for name, has in self.assigned_to.items() if has)})
        return [self._broker(name) for name in names]

    def info(
        self, *, topics: int, partitions: int, metadata: MetadataInfo | None = None, is_stale: bool = False
    ) -> ClusterInfo:
        """Return the state of the cluster as clients see it; the caller knows the numbers of topics and partitions."""
        return ClusterInfo(
            brokers=self.brokers(),
            leader=self.leader.value.broker_id if self.leader is not None else None,
            topics=topics,
            partitions=partitions,
            unassigned=len(self.unassigned),
            recovering=sum(held.value.is_recovering for held in self.unassigned.values()),
            unloads=[self.unload_info(name, held.value) for name, held in sorted(self.unloads.items())],
            metadata=metadata,
            is_stale=is_stale,
            waiting=[self._waiting(name) for name in sorted(self.unassigned)[:WAITING_MAX]],
        )

    def unload_info(self, partition: PartitionName, unload: UnloadRequest) -> UnloadInfo:
        """Return the state of an unload as clients see it."""
        owned = self.assignments.get(partition)
        return UnloadInfo(
            topic=str(partition.topic),
            partition=partition.partition,
            step=unload.step,
            from_broker=owned.broker_id if owned is not None else None,
            to_broker=unload.to,
            error=unload.error,
            since_seconds=self._since(unload.requested_ms),
        )

    def shows(self, puts: Sequence[Put], deletes: Sequence[str], revision: int) -> bool:
        """Return whether the view has what a transaction wrote; one that only deletes may not change the revision."""
        return self.revision >= revision or (not puts and not any(key in self._known for key in deletes))

    async def wait_for(self, predicate: "Callable[[ClusterView], bool]", timeout_seconds: float) -> bool:
        """Wait until a predicate holds; return whether it did in time. It is called after every change of the view.

        Raises:
            LimitReached: too many callers are waiting.
        """
        if predicate(self):
            return True
        if len(self._waiters) >= self._waiters_max:
            raise LimitReached(kind="waiters for the cluster", limit=self._waiters_max)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = predicate
        try:
            async with asyncio.timeout(timeout_seconds):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.pop(waiter, None)
        return True

    # Following the store

    def listen(self, listener: Listener) -> None:
        """Call a listener after every change, before waiting callers are woken."""
        self._listeners.append(listener)

    async def load(self) -> None:
        """List everything, and apply the differences."""
        listing = await self._metadata.list(keys.CLUSTER)
        there = {entry.key for entry in listing.entries}
        changes = [Change(key, None, listing.revision) for key in self._known if key not in there]
        changes += [
            Change(entry.key, entry.value, entry.revision)
            for entry in listing.entries
            if self._is_other_history or self._known.get(entry.key) != entry.revision
        ]
        if self._is_other_history:
            self._is_other_history, self.revision = False, NO_REVISION
        self.apply(changes, listing.revision)
        self._is_loaded = True

    def expect_other_history(self) -> None:
        """Compare no revisions in the next `load`: the store was recovered and has another history."""
        self._is_other_history = True

    async def follow(self) -> None:
        """Apply changes while the store is open; after a failure go on where it stopped."""
        is_behind = False
        while True:
            try:
                if is_behind or self._is_other_history:
                    await self.load()
                    is_behind = False
                async for changes in self._metadata.watch(keys.CLUSTER, after=self.revision):
                    self.apply(changes, changes[0].revision)
                return
            except Compacted:
                is_behind = True
            except MetadataWentBack:
                is_behind = True
                await asyncio.sleep(RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001
                # Whatever the error is, try again: a broker with an old view is of no use.
                _logger.warning("cluster_watch_failed", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    def apply(self, changes: Iterable[Change], revision: int) -> None:
        """Apply changes together; then the view is as of `revision`.

        Raises:
            NewerFormat: a newer version wrote one of them; the view stays as of the revision before.
        """
        touched, leader = Touched(), self.leader
        before = dict(self.registrations)
        changes = list(changes)
        for change in changes:
            self._apply(change, touched)
        for change in changes:  # only now: what was not applied, because a newer version wrote it, stays unknown
            if change.value is None:
                self._known.pop(change.key, None)
            else:
                self._known[change.key] = change.revision
        self.revision = max(self.revision, revision)
        if self._is_loaded:
            self._emit_events(touched.brokers, before, leader)
        for listener in self._listeners:
            listener(touched)
        self._wake()

    # Internals

    def _since(self, ms: int) -> float:
        return max(0.0, round(self._clock.now() - ms / 1000, 1))

    def _waiting(self, partition: PartitionName) -> WaitingPartition:
        entry = self.unassigned[partition].value
        return WaitingPartition(
            topic=str(partition.topic),
            partition=partition.partition,
            since_seconds=self._since(entry.since_ms),
            waits_for=entry.from_broker if entry.is_recovering else None,
        )

    def _broker(self, name: str) -> BrokerInfo:
        held, load = self.registrations.get(name), self.loads.get(name)
        mine = self.assigned_to.get(name, set())
        return BrokerInfo(
            broker_id=name,
            url=held.value.url if held else None,
            state=self.mode(name).value if held else "unreachable",
            is_leader=self.leader is not None and self.leader.value.broker_id == name,
            partitions=len(mine),
            topics=len({partition.topic for partition in mine}),
            connections=load.connections if load and held else 0,
            published_bytes_per_second=load.published_bytes_per_second if load and held else 0.0,
            uptime_seconds=max(0.0, self._clock.now() - held.value.started_ms / 1000) if held else None,
            clock_ahead_seconds=load.clock_ahead_seconds if load and held else 0.0,
        )

    def _wake(self) -> None:
        for waiter, predicate in list(self._waiters.items()):
            if waiter.done():
                continue
            try:
                if predicate(self):
                    waiter.set_result(None)
            except Exception as error:  # noqa: BLE001
                waiter.set_exception(error)  # only this waiter gets the error of its predicate

    def _emit_events(
        self, brokers: set[str], before: dict[str, Versioned[Registration]], leader: Versioned[Leader] | None
    ) -> None:
        for name in sorted(brokers):
            old, new = before.get(name), self.registrations.get(name)
            if new is not None and (old is None or old.value.started_ms != new.value.started_ms):
                self._events.emit("broker_joined", broker_id=name, url=new.value.url)
            elif old is not None and new is None:
                has_left = name not in self.loads
                self._events.emit("broker_left" if has_left else "broker_unreachable", broker_id=name)
        if self.leader is not None and self.leader != leader:
            self._events.emit("leader_elected", broker_id=self.leader.value.broker_id)

    def _apply(self, change: Change, touched: Touched) -> None:
        match change.key.split("/")[2:]:
            case ["leader"]:
                self.leader = _read(change, Leader)
                touched.is_leader = True
            case ["register", broker]:
                _keep(self.registrations, broker, _read(change, Registration))
                touched.brokers.add(broker)
            case ["deleted", topic_id]:
                _keep(self.deleted, topic_id, _read(change, DeleteMark))
            case ["load", broker]:
                load = _read(change, LoadReport)
                _keep(self.loads, broker, load.value if load else None)
                _keep(self._reported_at, broker, self._clock.monotonic() if load else None)
            case ["brokers", broker, "state"]:
                state = _read(change, BrokerState)
                _keep(self.modes, broker, state.value.state if state else None)
                touched.brokers.add(broker)
            case [*kind, namespace, topic, number]:
                partition = _partition(namespace, topic, number)
                if partition is None:
                    return
                match kind:
                    case ["brokers", broker]:
                        self._assign(partition, broker, _read(change, Assignment))
                    case ["unassigned"]:
                        _keep(self.unassigned, partition, _read(change, Unassigned))
                    case ["epochs"]:
                        _keep(self.epochs, partition, _read(change, EpochEntry))
                    case ["unloads"]:
                        _keep(self.unloads, partition, _read(change, UnloadRequest))
                    case _:
                        return
                touched.partitions.add(partition)

    def _assign(self, partition: PartitionName, broker: str, held: Versioned[Assignment] | None) -> None:
        owned = self.assignments.get(partition)
        if held is None:
            self.assigned_to.get(broker, set()).discard(partition)
            if owned is not None and owned.broker_id == broker:
                del self.assignments[partition]
            if not self.assigned_to.get(broker):
                self.assigned_to.pop(broker, None)
            return
        if owned is not None and owned.broker_id != broker and owned.epoch > held.value.epoch:
            return  # there should never be two; if there are, the newer epoch counts
        if owned is not None and owned.broker_id != broker:
            self._assign(partition, owned.broker_id, None)
        self.assignments[partition] = Ownership(broker, held.value.epoch, held.revision)
        self.assigned_to.setdefault(broker, set()).add(partition)


Key = TypeVar("Key")


def _keep(values: dict[Key, Value], key: Key, value: Value | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


def _read(change: Change, kind: type[Read]) -> Versioned[Read] | None:
    """Read the value of a change; an unreadable one counts as absent, so no transaction based on it succeeds."""
    if change.value is None:
        return None
    try:
        return Versioned(METADATA.decode(change.value, kind, change.key), change.revision)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _logger.error("cluster_key_damaged", key=change.key, error=str(error))
        return None


@lru_cache(maxsize=65_536)
def _partition(namespace: str, topic: str, number: str) -> PartitionName | None:
    try:
        return keys.partition_of(f"/{namespace}/{topic}/{number}")
    except (ValueError, InvalidName):
        return None
