"""The part of a broker in a cluster: its membership, its view of the others, its assignments, and perhaps the lead.

This module writes what owners and operators change: each change is one transaction that compares the entries on which
it is based. What the leader writes is in `load_manager`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from sulina.broker.cluster import changes
from sulina.broker.cluster.assignee import ExistingTopics, OwnAssignment, PartitionAssignee
from sulina.broker.cluster.changes import OwnershipChange
from sulina.broker.cluster.election import Election
from sulina.broker.cluster.load_manager import LoadManager, plan_rebalance
from sulina.broker.cluster.membership import Membership, nothing_to_verify
from sulina.broker.cluster.upkeep import MetadataUpkeep
from sulina.broker.cluster.view import ClusterView, Ownership, Touched, Versioned
from sulina.broker.events import EventStream
from sulina.broker.options import ClusterOptions
from sulina.core.cluster import keys
from sulina.core.cluster.entries import (
    BrokerMode,
    BrokerState,
    EpochEntry,
    GivenUp,
    LoadReport,
    Reason,
    Registration,
    Unassigned,
    UnloadRequest,
    UnloadStep,
)
from sulina.core.formats import METADATA
from sulina.errors import BrokerNotFound, InvalidSettings, NotOwner, NotServing, VersionConflict
from sulina.failpoints import FailpointHook, no_failpoints
from sulina.ports import NO_REVISION, TXN_OPERATIONS_MAX, Clock, Compare, MetadataStore, Put, StoreHistory
from sulina.types import PartitionName, TopicName
from sulina.waiting import wait_or_timeout

CONFLICTS_MAX = 10  # attempts of a transaction while others change the same entries
VIEW_SECONDS = 5.0  # how long to wait for the view to show what was written
CONFLICT_SECONDS = 0.5  # how long to wait for the view to show what others wrote

_logger = structlog.get_logger("sulina.cluster")


class Cluster:
    """`start` it, then `stop` it. `view` can be read at any time; `membership.may_ack` is asked before each ack."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        registration: Registration,
        view: ClusterView,
        topics: ExistingTopics,
        load: Callable[[], LoadReport],
        events: EventStream,
        clock: Clock,
        options: ClusterOptions,
        verify: Callable[[], Awaitable[None]] = nothing_to_verify,
        failpoints: FailpointHook = no_failpoints,
    ) -> None:
        """Connect the parts.

        `load` makes load reports; `verify` is called before each registration, and raises if the store went back.
        """
        self._metadata = metadata
        self._load = load
        self._events = events
        self._topics = topics
        self._clock = clock
        self._options = options
        self._tasks: list[asyncio.Task[None]] = []
        self._report = asyncio.Event()
        self._assignee: PartitionAssignee | None = None  # from `start` to `stop`
        self._mine: dict[PartitionName, Ownership] = {}  # assignments that the assignee knows
        self._told: dict[PartitionName, int] = {}  # revisions of the unload requests that it knows
        self.view = view
        self.membership = Membership(
            metadata,
            registration,
            self.view,
            load=load,
            events=events,
            clock=clock,
            options=options,
            verify=verify,
            changed=self._membership_changed,
            failpoints=failpoints,
        )
        self.election = Election(metadata, self.membership, self.view, won=self._won, failpoints=failpoints)
        self._load_manager = LoadManager(
            metadata,
            self.view,
            self.election,
            topics,
            broker_id=registration.broker_id,
            clock=clock,
            options=options,
            failpoints=failpoints,
        )
        self.upkeep = MetadataUpkeep(metadata, self.view, self.election, events=events, clock=clock, options=options)
        self.view.listen(self._view_changed)
        metadata.history.listen(self._history_changed)

    @property
    def history(self) -> StoreHistory:
        """Whether the metadata store still has everything that it had before."""
        return self._metadata.history

    @property
    def broker_id(self) -> str:
        """The id of this broker."""
        return self.membership.broker_id

    async def start(self, assignee: PartitionAssignee, *, url: str | None = None, peer: str | None = None) -> None:
        """Join the cluster: load the view, register, and pass the assignments of this broker to the assignee.

        `url` and `peer` are where this broker takes connections, if the registration does not say so.

        Raises:
            InvalidSettings: another broker has the same id.
            MetadataFailed: the metadata store cannot be reached.
            NotServing: the metadata store does not deliver changes.
        """
        self.membership.announce(url=url, peer=peer)
        try:
            await self.view.load()
            self._run(self.view.follow(), "cluster-view")
            await self.membership.register()
            self._run(self.membership.run(), "cluster-membership")
            if not await self.view.wait_for(lambda _: self.membership.may_ack(), self.membership.ttl):
                raise NotServing(reason="the metadata store does not deliver changes")
        except BaseException:
            await self.stop_tasks()
            raise
        self._assignee = assignee
        self._tell_assignee(assignee, self.view.assigned_to.get(self.broker_id, set()))
        self._run(self.election.run(), "cluster-election")
        self._run(self._load_manager.run(), "cluster-load-manager")
        self._run(self._report_load(), "cluster-load-report")
        self._run(self.upkeep.run(), "cluster-metadata-upkeep")

    async def announce_leaving(self) -> None:
        """Announce that this broker will `stop`: it is assigned nothing more, and keeps what it has until then."""
        try:
            async with asyncio.timeout(self._options.stop_seconds):
                await self.membership.announce_leaving()
        except Exception as error:  # noqa: BLE001
            _logger.warning("leaving_not_announced", broker_id=self.broker_id, error=str(error) or "no answer in time")

    async def stop(self) -> None:
        """Leave the cluster: others notice at once, and partitions that are still assigned here go to them."""
        leads_by = self.election.revision
        await self.stop_tasks()
        try:
            async with asyncio.timeout(self._options.stop_seconds):
                await self.membership.unregister(leads_by)
        except Exception as error:  # noqa: BLE001
            _logger.warning(
                "broker_not_unregistered", broker_id=self.broker_id, error=str(error) or "no answer in time"
            )

    async def stop_tasks(self) -> None:
        """Stop all tasks, and call the assignee no more; the registration stays until its lease expires."""
        self._assignee = None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def report_load_soon(self) -> None:
        """Write the load report at once: a partition was acquired or released."""
        self._report.set()

    def topics_changed(self, partitions: Iterable[PartitionName]) -> None:
        """Have the leader look at once at partitions that were created or deleted."""
        self._load_manager.topics_changed(partitions)

    # Requests of operators

    async def request_unload(
        self, partition: PartitionName, *, force: bool, to: str | None, requested_by: str, give_up: bool = False
    ) -> UnloadRequest:
        """Request that the owner of a partition unloads it. A request that is there already is returned or extended.

        Raises:
            InvalidSettings: `to` is not an active broker.
            NotOwner: the partition has no owner.
            AlreadyExists: it is being moved to another broker.
        """
        self._check_target(to)
        for _ in range(CONFLICTS_MAX):
            owned, before = self.view.assignments.get(partition), self.view.unloads.get(partition)
            if owned is None:
                raise self._not_owner(partition)
            unload = changes.unload_request(
                partition,
                None if before is None else before.value,
                now_ms=self._now_ms(),
                force=force,
                to=to,
                requested_by=requested_by,
                give_up=give_up,
            )
            if before is not None and unload == before.value:
                return unload
            if await self._write(changes.put_unload_request(partition, owned, unload, before)):
                return unload
            await self._wait_past(partition)
        raise self._too_many_conflicts(partition)

    async def force_recovery(self, partition: PartitionName, to: str | None, given_up: GivenUp) -> None:
        """Give up the records that only a lost broker has, so that the partition can be assigned to any broker or `to`.

        Raises:
            InvalidSettings: the partition is not recovering, or `to` is not an active broker.
        """
        self._check_target(to)
        for _ in range(CONFLICTS_MAX):
            waiting = self.view.unassigned.get(partition)
            if waiting is None:
                raise InvalidSettings(f"partition {partition} is not recovering, so there is nothing to force")
            forced = replace(waiting.value, reason=Reason.FORCED, since_ms=self._now_ms(), to=to, is_recovering=False)
            change = OwnershipChange(
                compares=(Compare(keys.unassigned(partition), waiting.revision),),
                puts=(
                    Put(keys.unassigned(partition), METADATA.encode(forced)),
                    Put(self._given_up_key(partition), METADATA.encode(given_up)),
                ),
            )
            if await self._write(change):
                return
            await self._wait_past(partition)
        raise self._too_many_conflicts(partition)

    async def set_mode(self, broker_id: str, mode: BrokerMode) -> None:
        """Set whether a broker gets partitions, or is drained.

        Raises:
            BrokerNotFound: there is no such broker.
            NewerFormat: a newer version has set its mode.
            NotServing: others keep changing it.
        """
        names = [broker.broker_id for broker in self.view.brokers()]
        if broker_id not in names and broker_id not in self.view.modes:
            raise BrokerNotFound(broker=broker_id, brokers=", ".join(names))
        key = keys.broker_state(broker_id)
        put = Put(key, METADATA.encode(BrokerState(state=mode)))
        for _ in range(CONFLICTS_MAX):
            entry = await self._metadata.get(key)
            if entry is not None:
                with contextlib.suppress(msgspec.DecodeError):  # a damaged one is written over
                    METADATA.decode(entry.value, BrokerState, key)
            unchanged = Compare(key, entry.revision if entry is not None else NO_REVISION)
            if await self._write(OwnershipChange(compares=(unchanged,), puts=(put,))):
                return
        raise NotServing(reason=f"others keep changing the mode of broker {broker_id}")

    async def rebalance(self) -> list[tuple[PartitionName, UnloadRequest]]:
        """Request the moves that make the active brokers even; return the requests."""
        requested = []
        by = f"broker {self.broker_id}: rebalance"
        for move in plan_rebalance(self.view, moves_max=self._options.rebalance_moves_max, only_if_uneven=False):
            owned = self.view.assignments.get(move.partition)
            unload = changes.unload_request(
                move.partition, None, now_ms=self._now_ms(), force=True, to=move.target, requested_by=by
            )
            if owned is not None and await self._write(changes.put_unload_request(move.partition, owned, unload, None)):
                requested.append((move.partition, unload))
        return requested

    async def delete_topic(self, topic: TopicName, partitions: int, mark: Compare) -> None:
        """Delete everything about a topic under `/cluster/`, so that a later topic of the same name finds nothing.

        `mark` holds while the topic is being deleted. If it does not hold any more, another broker was faster.
        """
        names = [PartitionName(topic, number) for number in range(partitions)]
        together = TXN_OPERATIONS_MAX // 4
        for first in range(0, partitions, together):
            await self._delete_partitions(names[first : first + together], mark)

    # Changes by owners

    async def advance_unload(
        self,
        partition: PartitionName,
        unload: UnloadRequest,
        revision: int,
        step: UnloadStep | None = None,
        *,
        error: str | None = None,
    ) -> int:
        """Write the step that an unload has reached, or its error; return the new revision of the request.

        Only step and error are replaced: other changes of the request since then are kept.

        Raises:
            NotOwner: the partition is not assigned to this broker any more.
            VersionConflict: the request was deleted.
        """
        mine = self._mine.get(partition)
        for _ in range(CONFLICTS_MAX):
            if mine is None:
                break
            advanced = replace(unload, step=step or unload.step, error=error)
            change = changes.put_unload_request(partition, mine, advanced, Versioned(unload, revision))
            done = await self._metadata.txn(compares=change.compares, puts=change.puts)
            if done.is_done:
                return done.revision
            assignment = await self._metadata.get(keys.assignment(self.broker_id, partition))
            entry = await self._metadata.get(keys.unload(partition))
            if assignment is None or assignment.revision != mine.revision:
                break
            if entry is None:
                raise VersionConflict(expected=revision, current=NO_REVISION)
            unload, revision = METADATA.decode(entry.value, UnloadRequest, entry.key), entry.revision
        raise self._not_owner(partition)

    async def fail_unload(self, partition: PartitionName, error: str) -> None:
        """Write the error of an unload that is tried again later; the partition is served meanwhile."""
        entry = await self._metadata.get(keys.unload(partition))
        if entry is None:
            return
        unload = METADATA.decode(entry.value, UnloadRequest, entry.key)
        if (unload.error, unload.step) != (error, UnloadStep.REQUESTED):
            await self.advance_unload(partition, unload, entry.revision, step=UnloadStep.REQUESTED, error=error)

    async def cancel_unload(self, partition: PartitionName) -> UnloadRequest | None:
        """Delete an unload request and return it; None: there is no request, perhaps because it was carried out."""
        for _ in range(CONFLICTS_MAX):
            held = self.view.unloads.get(partition)
            if held is None:
                return None
            key = keys.unload(partition)
            if await self._write(OwnershipChange(compares=(Compare(key, held.revision),), deletes=(key,))):
                self._events.emit("unload_cancelled", partition.topic, partition=partition.partition)
                return held.value
            await self._wait_past(partition)
        raise self._too_many_conflicts(partition)

    async def refuse_unload(self, partition: PartitionName, revision: int, reason: str) -> None:
        """Delete an unload request that the owner refuses, unless it was changed meanwhile."""
        key = keys.unload(partition)
        done = await self._metadata.txn(compares=[Compare(key, revision)], deletes=[key])
        if done.is_done:
            self._events.emit("unload_refused", partition.topic, partition=partition.partition, reason=reason)

    async def unassign(
        self,
        partition: PartitionName,
        assignment_revision: int,
        *,
        reason: Reason,
        to: str | None,
        is_on_disk: bool | None = None,
        puts: Sequence[Put] = (),
        deletes: Sequence[str] = (),
    ) -> bool:
        """Give a partition back; False: it is not assigned to this broker, perhaps because it was given back before.

        The reason `unloaded` promises that everything is archived. With other reasons the partition can only return to
        this broker while records are on its disk alone; `is_on_disk` says whether some are, None: decide by the epoch.
        """
        epoch = await self._metadata.get(keys.epoch(partition))
        if is_on_disk is None and reason != Reason.UNLOADED:
            newest = METADATA.decode(epoch.value, EpochEntry, epoch.key) if epoch else None
            is_reliable = self._topics.is_reliable(partition) is not False
            is_on_disk = changes.may_recover_only(newest, is_reliable=is_reliable, sealed_epoch=None)
        request = self.view.unloads.get(partition)
        entry = Unassigned(
            reason=reason,
            since_ms=self._now_ms(),
            from_broker=self.broker_id,
            from_store=self.membership.store_id,
            to=to or (request.value.to if request else None),
            is_recovering=is_on_disk is True,
        )
        compares = [Compare(keys.assignment(self.broker_id, partition), assignment_revision)]
        if epoch is not None:
            compares.append(Compare(epoch.key, epoch.revision))
        done = await self._metadata.txn(
            compares=compares,
            puts=(Put(keys.unassigned(partition), METADATA.encode(entry)), *puts),
            deletes=(keys.assignment(self.broker_id, partition), keys.unload(partition), *deletes),
        )
        return done.is_done

    async def set_archived(
        self,
        partition: PartitionName,
        assignment_revision: int,
        is_archived: bool,
        *,
        puts: tuple[Put, ...] = (),
        deletes: tuple[str, ...] = (),
    ) -> None:
        """Write whether everything acknowledged is archived, with `puts` and `deletes` in the same transaction.

        Earlier writes of this flag that are still on their way fail after it.

        Raises:
            NotOwner: the partition is not assigned to this broker any more.
        """
        assignment, key = keys.assignment(self.broker_id, partition), keys.epoch(partition)
        held = self.view.epochs.get(partition)
        for _ in range(CONFLICTS_MAX):
            if held is not None:
                changed = replace(held.value, is_archived=is_archived)
                done = await self._metadata.txn(
                    compares=(Compare(assignment, assignment_revision), Compare(key, held.revision)),
                    puts=(Put(key, METADATA.encode(changed)), *puts),
                    deletes=deletes,
                )
                if done.is_done:
                    return
            # The view was behind, or the partition is not assigned to this broker.
            owned = await self._metadata.get(assignment)
            entry = await self._metadata.get(key)
            if owned is None or owned.revision != assignment_revision or entry is None:
                break
            held = Versioned(METADATA.decode(entry.value, EpochEntry, entry.key), entry.revision)
        raise self._not_owner(partition)

    # Internals

    def _run(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(coroutine, name=name))

    def _view_changed(self, touched: Touched) -> None:
        # Lost assignments first: the membership may make the other ones valid again.
        if self._assignee is not None:
            self._tell_assignee(self._assignee, touched.partitions)
        self.membership.look()
        if touched.is_leader or self.broker_id in touched.brokers:
            self.election.look()
        self._load_manager.look(touched)

    def _history_changed(self) -> None:
        """Stop acknowledging at once when the store went back; load everything again when it was recovered."""
        if (error := self._metadata.history.went_back) is not None:
            self._events.emit("metadata_went_back", broker_id=self.broker_id, reason=str(error))
            self.membership.lost("the metadata store went back")
        else:
            self.view.expect_other_history()

    def _won(self) -> None:
        self._load_manager.wake()

    def _membership_changed(self) -> None:
        if self._assignee is not None:
            self._tell_assignee(self._assignee, self.view.assigned_to.get(self.broker_id, set()))
        self.election.look()
        self._load_manager.wake()

    def _tell_assignee(self, assignee: PartitionAssignee, partitions: Iterable[PartitionName]) -> None:
        for partition in sorted(partitions):
            try:
                self._tell(assignee, partition)
            except Exception:
                _logger.exception("assignee_failed", partition=str(partition))

    def _tell(self, assignee: PartitionAssignee, partition: PartitionName) -> None:
        owned, epoch = self.view.assignments.get(partition), self.view.epochs.get(partition)
        if owned is not None and epoch is not None:
            # An assignment for another data directory is not ours either; the leader removes it.
            for_us = (owned.broker_id, epoch.value.store_id) == (self.broker_id, self.membership.store_id)
            if not for_us or owned.epoch != epoch.value.epoch:
                owned = epoch = None
        told = self._mine.get(partition)
        if told is not None and told != owned:
            del self._mine[partition]
            self._told.pop(partition, None)
            self._report.set()
            assignee.changed(partition, None)
        if owned is None or epoch is None:
            return
        is_new, unload = partition not in self._mine, self.view.unloads.get(partition)
        if is_new:
            if not self.membership.may_ack():
                return  # the assignment may be old; `_membership_changed` passes it on when the lease is valid again
            self._mine[partition] = owned
            self._report.set()
        if is_new or (unload is not None and self._told.get(partition) != unload.revision):
            if unload is not None:
                self._told[partition] = unload.revision
            assignee.changed(partition, OwnAssignment(epoch.value, owned.revision, unload))

    async def _report_load(self) -> None:
        while True:
            await wait_or_timeout(self._report, self._options.load_seconds)
            self._report.clear()
            revision = self.membership.revision
            if revision == NO_REVISION:
                continue
            put = Put(keys.load(self.broker_id), METADATA.encode(self._load()))
            try:
                # A report without a registration would show this broker as unreachable.
                await self._metadata.txn(compares=[Compare(keys.register(self.broker_id), revision)], puts=[put])
            except Exception as error:  # noqa: BLE001
                _logger.warning("load_not_reported", broker_id=self.broker_id, error=str(error))

    async def _write(self, change: OwnershipChange) -> bool:
        """Write a change and wait for the view to show it; return whether it was written."""
        done = await self._metadata.txn(compares=change.compares, puts=change.puts, deletes=change.deletes)
        if done.is_done:
            await self.view.wait_for(lambda view: view.shows(change.puts, change.deletes, done.revision), VIEW_SECONDS)
        return done.is_done

    async def _delete_partitions(self, partitions: list[PartitionName], mark: Compare) -> None:
        for _ in range(CONFLICTS_MAX):
            epochs = {partition: self.view.epochs.get(partition) for partition in partitions}
            compares = [
                mark,
                *(Compare(keys.epoch(one), held.revision if held else NO_REVISION) for one, held in epochs.items()),
            ]
            gone = [key for partition in partitions for key in changes.keys_of(self.view, partition)]
            if not gone or await self._write(OwnershipChange(compares=tuple(compares), deletes=tuple(gone))):
                return
            marked = await self._metadata.get(mark.key)
            if (marked.revision if marked else NO_REVISION) != mark.revision:
                return
            await self._wait_past(*partitions)
        raise NotServing(reason=f"the owners of {partitions[0].topic} keep changing: try again")

    async def _wait_past(self, *partitions: PartitionName) -> None:
        """Wait until the view shows a change of these partitions: another broker has written one."""
        seen = self._seen(partitions)
        await self.view.wait_for(lambda _: self._seen(partitions) != seen, CONFLICT_SECONDS)

    def _seen(self, partitions: Sequence[PartitionName]) -> list[object]:
        view = self.view
        known = (view.assignments, view.unassigned, view.epochs, view.unloads)
        return [values.get(partition) for values in known for partition in partitions]

    def _given_up_key(self, partition: PartitionName) -> str:
        epoch = self.view.epochs.get(partition)
        return keys.given_up(partition, epoch.value.epoch if epoch is not None else 0)

    def _check_target(self, to: str | None) -> None:
        if to is not None and to not in self.view.active():
            active = ", ".join(self.view.active()) or "none"
            raise InvalidSettings(f"broker {to} is not active, so it gets no partitions; active brokers: {active}")

    def _not_owner(self, partition: PartitionName) -> NotOwner:
        owned = self.view.assignments.get(partition)
        is_other = owned is not None and owned.broker_id != self.broker_id
        owner = owned.broker_id if owned is not None and is_other else None
        return NotOwner(
            topic=str(partition.topic), partition=partition.partition, owner=owner, url=self.view.url(owner)
        )

    def _too_many_conflicts(self, partition: PartitionName) -> NotServing:
        return NotServing(reason=f"the owner of {partition} keeps changing: try again")

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)
