"""The work of the leader: every partition of every topic gets an owner that is registered, by load.

It reacts to changes, and regularly looks at everything, so that a missed change does not matter. It never acts on a
view that lacks its own writes. Every transaction compares the leader's key and the entries on which it is based: if
they have changed, it fails, and the leader decides again.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import structlog

from sulina.broker.cluster import changes
from sulina.broker.cluster.assignee import ExistingTopics
from sulina.broker.cluster.changes import LeaderWriter, NotLeading, OwnershipChange
from sulina.broker.cluster.election import Election
from sulina.broker.cluster.view import ClusterView, Touched
from sulina.broker.options import ClusterOptions
from sulina.core.cluster import balance, keys
from sulina.core.cluster.balance import Load, PlannedMove, UnownedPartition
from sulina.core.cluster.entries import BrokerMode, Current, LoadReport, Reason, Sealed, Unassigned
from sulina.core.formats import METADATA
from sulina.failpoints import Failpoint, FailpointHook, no_failpoints
from sulina.ports import NO_REVISION, TXN_OPERATIONS_MAX, Clock, Entry, MetadataStore
from sulina.types import PartitionName, TopicName
from sulina.waiting import wait_or_timeout

HINTS_MAX = 10_000  # partitions to look at; for more, look at everything
READS_AT_ONCE = 32
SWEPT_PARTITIONS_MAX = 1_000  # in one look at everything
SWEEP_GROUP_PARTITIONS = TXN_OPERATIONS_MAX // 4  # a partition has at most four keys
VIEW_SECONDS = 5.0  # how long to wait for the view to show what was written
RETRY_SECONDS = 0.5

_logger = structlog.get_logger("sulina.cluster")


class LoadManager:
    """Runs on every broker, and works while its broker leads."""

    def __init__(
        self,
        metadata: MetadataStore,
        view: ClusterView,
        election: Election,
        topics: ExistingTopics,
        *,
        broker_id: str,
        clock: Clock,
        options: ClusterOptions,
        failpoints: FailpointHook = no_failpoints,
    ) -> None:
        self._metadata = metadata
        self._view = view
        self._election = election
        self._topics = topics
        self._broker_id = broker_id
        self._clock = clock
        self._options = options
        self._reach = failpoints
        self._wake = asyncio.Event()
        self._hints: set[PartitionName] = set()  # partitions that were created or deleted
        self._returned: set[str] = set()  # brokers that may have another data directory now
        self._led = NO_REVISION  # the election for which everything was looked at
        self._is_all_due = False
        self._rescan_at = 0.0
        self._rebalance_at = 0.0

    def look(self, touched: Touched) -> None:
        """Wake up if a change of the view concerns the leader."""
        self._returned |= touched.brokers
        if touched.is_leader or touched.brokers or any(self._is_work(one) for one in touched.partitions):
            self._wake.set()

    def topics_changed(self, partitions: Iterable[PartitionName]) -> None:
        """Look at partitions that were created or deleted."""
        self._hints.update(partitions)
        if self._election.revision is None or len(self._hints) > HINTS_MAX:
            self._hints.clear()
            self._is_all_due = True
        self._wake.set()

    def wake(self) -> None:
        """Wake up: this broker may lead now."""
        self._wake.set()

    async def run(self) -> None:
        """Do the work of the leader, while this broker leads."""
        while True:
            revision = self._election.revision
            if revision is None:
                self._returned.clear()
                self._is_all_due = True  # a new leader looks at everything
                await self._pause(None)
                continue
            try:
                await self._round(revision)
            except NotLeading:
                _logger.info("leader_deposed", broker_id=self._broker_id)
                await self._pause(RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001
                # Whatever the error is, try again: partitions may have no owner.
                _logger.warning("load_manager_failed", error=str(error) or type(error).__name__)
                self._is_all_due = True
                await asyncio.sleep(RETRY_SECONDS)
            else:
                await self._pause(self._seconds_left())

    # Rounds

    async def _pause(self, seconds: float | None) -> None:
        await wait_or_timeout(self._wake, seconds)
        self._wake.clear()

    def _seconds_left(self) -> float:
        due = self._rescan_at
        if self._options.rebalance_seconds is not None:
            due = min(due, self._rebalance_at)
        return max(0.0, due - self._clock.monotonic())

    async def _round(self, revision: int) -> None:
        now = self._clock.monotonic()
        if self._led != revision:
            self._rebalance_at = now + (self._options.rebalance_seconds or 0.0)
        is_all = self._is_all_due or self._led != revision or now >= self._rescan_at
        hints, returned = self._hints, self._returned
        self._hints, self._returned = set(), set()
        if is_all:
            self._rescan_at = now + self._options.rescan_seconds
            self._is_all_due = False
        self._led = revision
        existing = set(self._topics.partitions()) if is_all else None
        await self._add_unknown(existing if existing is not None else hints)
        await self._unassign_from_dead(set(self._view.registrations) if is_all else returned)
        await self.assign()
        await self._drain()
        if self._options.rebalance_seconds is not None and now >= self._rebalance_at:
            self._rebalance_at = now + self._options.rebalance_seconds
            await self._rebalance()
        if existing is not None:
            await self._sweep(existing)

    async def _write(self, wanted: Sequence[OwnershipChange], step: Failpoint, *, is_split: bool = True) -> None:
        """Write changes in groups, and wait for the view to show them.

        Raises:
            NotLeading: this broker does not lead any more.
        """
        newest = NO_REVISION
        for group in changes.grouped(wanted):
            if self._election.revision != self._led:
                raise NotLeading
            written = await LeaderWriter(self._metadata, self._led).write(group, is_split=is_split)
            if written != NO_REVISION:
                self._reach(step)
            newest = max(newest, written)
        puts = [put for change in wanted for put in change.puts]
        deletes = [key for change in wanted for key in change.deletes]
        if newest == NO_REVISION:
            return
        if not await self._view.wait_for(lambda view: view.shows(puts, deletes, newest), VIEW_SECONDS):
            raise TimeoutError(f"the view has not reached revision {newest} in {VIEW_SECONDS:g} s")

    # Parts of a round

    async def _add_unknown(self, partitions: set[PartitionName]) -> None:
        """Let partitions wait for an owner that are neither assigned nor waiting."""
        if not partitions:
            return
        unknown = partitions - set(self._view.assignments) - set(self._view.unassigned)
        wanted = [
            changes.add_unassigned(
                partition, await self._entry_without_owner(partition), self._view.epochs.get(partition)
            )
            for partition in sorted(unknown)
            if self._topics.is_reliable(partition) is not None
        ]
        if wanted:
            await self._write(wanted, Failpoint.LEADER_CREATED)

    async def _entry_without_owner(self, partition: PartitionName) -> Unassigned:
        """Return the entry for a partition without an owner: a new one, or one whose owner is dead."""
        epoch = self._view.epochs.get(partition)
        if epoch is None:
            known = self._topics.topic_id(partition)
            return Unassigned(reason=Reason.CREATED, since_ms=self._now_ms(), topic_id=known)
        sealed = (await self._sealed([partition])).get(partition)
        return self._entry(partition, Reason.DEAD, sealed)

    async def _unassign_from_dead(self, returned: set[str]) -> None:
        """Unassign the partitions of brokers that are not registered, or that have another data directory now."""
        for broker in sorted(self._view.assigned_to):
            is_there = broker in self._view.registrations
            lost = sorted(self._lost_with(broker)) if not is_there or broker in returned else []
            if not lost:
                continue
            self._reach(Failpoint.LEADER_DEAD_FOUND)
            _logger.info("broker_dead", broker_id=broker, partitions=len(lost))
            local_only = [partition for partition in lost if self._is_local_only(partition)]
            sealed, reported = await self._sealed(local_only), await self._reported(local_only)
            reason = Reason.DEAD if broker in self._view.loads else Reason.STOPPED
            registration = self._view.registrations.get(broker)
            wanted = [
                changes.unassign(
                    partition,
                    owned,
                    self._entry(partition, reason, sealed.get(partition), reported.get(partition)),
                    epoch=self._view.epochs.get(partition),
                    registration=registration,
                    sealed_revision=_revision(sealed[partition]) if partition in sealed else None,
                    has_unload=partition in self._view.unloads,
                )
                for partition in lost
                if (owned := self._view.assignments.get(partition)) is not None and owned.broker_id == broker
            ]
            await self._write(wanted, Failpoint.LEADER_UNASSIGNED)

    def _lost_with(self, broker: str) -> list[PartitionName]:
        """Return the partitions that a broker cannot serve: all, or those of another data directory."""
        held = self._view.registrations.get(broker)
        mine = self._view.assigned_to.get(broker, set())
        if held is None:
            return list(mine)
        epochs, store_id = self._view.epochs, held.value.store_id
        return [one for one in mine if (epoch := epochs.get(one)) is not None and epoch.value.store_id != store_id]

    def _is_local_only(self, partition: PartitionName) -> bool:
        epoch = self._view.epochs.get(partition)
        return changes.may_recover_only(
            epoch.value if epoch else None, is_reliable=self._is_reliable(partition), sealed_epoch=None
        )

    def _is_reliable(self, partition: PartitionName) -> bool:
        return self._topics.is_reliable(partition) is not False  # a topic that is not known here may be

    def _entry(
        self, partition: PartitionName, reason: Reason, sealed: Entry | None, reported: tuple[int, int] | None = None
    ) -> Unassigned:
        epoch = self._view.epochs.get(partition)
        newest, unload = epoch.value if epoch else None, self._view.unloads.get(partition)
        return Unassigned(
            reason=reason,
            since_ms=self._now_ms(),
            from_broker=newest.broker_id if newest else None,
            from_store=newest.store_id if newest else None,
            to=unload.value.to if unload else None,
            is_recovering=changes.may_recover_only(
                newest, is_reliable=self._is_reliable(partition), sealed_epoch=_sealed_epoch(sealed)
            ),
            only_there=reported,
        )

    async def _reported(self, partitions: Sequence[PartitionName]) -> dict[PartitionName, tuple[int, int]]:
        """Return the ends of archive and log of partitions as their owners last reported them; they are only shown."""
        found: dict[PartitionName, tuple[int, int]] = {}
        for partition, entry in (await self._read(partitions, keys.archive_current)).items():
            if entry is not None:
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                    current = METADATA.decode(entry.value, Current, entry.key)
                    found[partition] = (current.archived_offset, current.end_offset)
        return found

    async def _sealed(self, partitions: Sequence[PartitionName]) -> dict[PartitionName, Entry | None]:
        return await self._read(partitions, keys.sealed_state)

    async def _read(
        self, partitions: Sequence[PartitionName], key_of: Callable[[PartitionName], str]
    ) -> dict[PartitionName, Entry | None]:
        found: dict[PartitionName, Entry | None] = {}
        for first in range(0, len(partitions), READS_AT_ONCE):
            some = partitions[first : first + READS_AT_ONCE]
            entries = await asyncio.gather(*(self._metadata.get(key_of(partition)) for partition in some))
            found.update(zip(some, entries, strict=True))
        return found

    async def assign(self) -> None:
        """Assign every waiting partition that a registered broker may get."""
        view = self._view
        active = view.active()
        takers = active or view.staying()  # a draining broker is better than none
        targets: dict[PartitionName, str] = {}
        anywhere: list[UnownedPartition] = []
        deleted_at = self._deleted_at()
        for partition, held in view.unassigned.items():
            waiting = held.value
            if self._topics.is_reliable(partition) is None and self._is_left_over(partition, deleted_at):
                continue  # it is about to be deleted; a newer epoch would prevent that
            if waiting.is_recovering:
                there = view.registrations.get(waiting.from_broker or "")
                if there and there.value.store_id == waiting.from_store and not there.value.is_leaving:
                    targets[partition] = there.value.broker_id
            elif waiting.to is not None and waiting.to in active:
                targets[partition] = waiting.to
            else:
                is_sent_away = waiting.reason in (Reason.UNLOADED, Reason.STOPPED)
                anywhere.append(UnownedPartition(partition, waiting.from_broker if is_sent_away else None))
        coming: dict[str, int] = {}
        for broker in targets.values():
            coming[broker] = coming.get(broker, 0) + 1
        loads = [
            Load(load.partitions + coming.get(load.broker_id, 0), load.bytes_per_second, load.broker_id)
            for load in broker_loads(view, takers)
        ]
        targets |= balance.spread(anywhere, loads)
        wanted = [
            changes.assign(
                partition,
                view.unassigned[partition],
                view.epochs.get(partition),
                view.registrations[target],
                topic_id=self._topics.topic_id(partition),
                deleted=view.deleted,
                now_ms=self._now_ms(),
            )
            for partition, target in sorted(targets.items())
        ]
        if wanted:
            self._reach(Failpoint.LEADER_BEFORE_ASSIGN)
            await self._write(wanted, Failpoint.LEADER_ASSIGNED)

    async def _drain(self) -> None:
        """Request some more unloads of draining brokers, if another broker can get the partitions."""
        view = self._view
        wanted = []
        for broker, mode in sorted(view.modes.items()):
            if mode != BrokerMode.DRAINING or broker not in view.registrations or not view.active():
                continue
            mine = view.assigned_to.get(broker, set())
            room = self._options.moves_at_once - sum(partition in view.unloads for partition in mine)
            chosen = sorted(partition for partition in mine if partition not in view.unloads)[: max(0, room)]
            wanted += [self._unload_change(partition, None, "drain") for partition in chosen]
        if wanted:
            await self._write(wanted, Failpoint.LEADER_UNLOADS_REQUESTED)

    async def _rebalance(self) -> None:
        """Request a few moves if brokers differ much, unless a partition waits for an owner."""
        if any(not held.value.is_recovering for held in self._view.unassigned.values()):
            return
        room = self._options.moves_at_once - len(self._view.unloads)
        moves = plan_rebalance(self._view, moves_max=room, only_if_uneven=True)
        if moves:
            wanted = [self._unload_change(move.partition, move.target, "rebalance") for move in moves]
            await self._write(wanted, Failpoint.LEADER_UNLOADS_REQUESTED)

    def _unload_change(self, partition: PartitionName, to: str | None, why: str) -> OwnershipChange:
        owned = self._view.assignments[partition]
        by = f"leader {self._broker_id}: {why}"
        unload = changes.unload_request(partition, None, now_ms=self._now_ms(), force=True, to=to, requested_by=by)
        return changes.put_unload_request(partition, owned, unload, None)

    async def _sweep(self, existing: set[PartitionName]) -> None:
        """Delete what is left of deleted topics, a bounded part at a time, and of brokers that are long gone.

        A topic that is missing but has no delete mark may return: its epochs stay.
        """
        view = self._view
        gone: dict[TopicName, list[PartitionName]] = {}
        known = set(view.epochs).union(view.unassigned, view.assignments, view.unloads)
        deleted_at = self._deleted_at()
        left_over = [one for one in sorted(known - existing) if self._is_left_over(one, deleted_at)]
        for partition in left_over[:SWEPT_PARTITIONS_MAX]:
            gone.setdefault(partition.topic, []).append(partition)
        for topic, partitions in gone.items():
            for first in range(0, len(partitions), SWEEP_GROUP_PARTITIONS):
                some = partitions[first : first + SWEEP_GROUP_PARTITIONS]
                left = [key for partition in some for key in changes.keys_of(view, partition)]
                await self._write([changes.delete_leftovers(topic, left)], Failpoint.LEADER_SWEPT, is_split=False)
        before_ms = self._now_ms() - int(self._options.unreachable_seconds * 1000)
        for broker, load in list(view.loads.items()):
            if broker not in view.registrations and broker not in view.assigned_to and load.at_ms < before_ms:
                await self._write([changes.delete_load_report(broker)], Failpoint.LEADER_SWEPT)

    def _deleted_at(self) -> dict[str, int]:
        """Return for each name the revision at which its last topic was deleted."""
        found: dict[str, int] = {}
        for mark in self._view.deleted.values():
            found[mark.value.topic] = max(mark.revision, found.get(mark.value.topic, NO_REVISION))
        return found

    def _is_left_over(self, partition: PartitionName, deleted_at: Mapping[str, int]) -> bool:
        """Return whether a partition belongs to a deleted topic, and not to a later one of the same name.

        The topic id decides. A leader that did not know of the delete may have assigned the partition once more since.
        """
        epoch, waiting = self._view.epochs.get(partition), self._view.unassigned.get(partition)
        held = epoch if epoch is not None else waiting
        if held is not None and (topic_id := held.value.topic_id) is not None:
            return topic_id in self._view.deleted
        mark = deleted_at.get(str(partition.topic))
        return mark is not None and (epoch is None or epoch.revision < mark)

    def _is_work(self, partition: PartitionName) -> bool:
        """Return whether the leader may have to act on a partition: no owner, or one that is draining or dead."""
        owned = self._view.assignments.get(partition)
        if owned is None:
            return True
        return (
            self._view.mode(owned.broker_id) == BrokerMode.DRAINING or owned.broker_id not in self._view.registrations
        )

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


def broker_loads(view: ClusterView, brokers: Iterable[str]) -> list[Load]:
    """Return the loads of brokers; partitions that are being moved count where they go."""
    counts = {broker: len(view.assigned_to.get(broker, ())) for broker in brokers}
    for partition, held in view.unloads.items():
        owned = view.assignments.get(partition)
        if owned is not None and owned.broker_id in counts:
            counts[owned.broker_id] -= 1
        if held.value.to in counts:
            counts[held.value.to] += 1
    reports = view.loads
    return [
        Load(count, _bytes_per_second(reports[broker]) if broker in reports else 0.0, broker)
        for broker, count in sorted(counts.items())
    ]


def plan_rebalance(view: ClusterView, *, moves_max: int, only_if_uneven: bool) -> list[PlannedMove]:
    """Return the moves between active brokers that make them even."""
    active = view.active()
    movable = {
        broker: [partition for partition in view.assigned_to.get(broker, ()) if partition not in view.unloads]
        for broker in active
    }
    return balance.plan_moves(
        movable, broker_loads(view, active), moves_max=max(0, moves_max), only_if_uneven=only_if_uneven
    )


def _revision(entry: Entry | None) -> int:
    return entry.revision if entry else NO_REVISION


def _sealed_epoch(entry: Entry | None) -> int | None:
    """Return the sealed epoch; None: there is no entry, or it is unreadable."""
    if entry is None:
        return None
    try:
        return METADATA.decode(entry.value, Sealed, entry.key).epoch
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _logger.error("sealed_state_damaged", key=entry.key, error=str(error))
        return None


def _bytes_per_second(report: LoadReport) -> float:
    return report.published_bytes_per_second + report.delivered_bytes_per_second
