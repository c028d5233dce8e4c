"""A broker's part in a cluster: it is a member, sees what the others do, may lead, and hears what it is to serve.

What is written here is written in the owner's or an operator's name: each change is one transaction that compares what
it was decided by. What the leader writes is in `load_manager`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from sulina.broker.cluster import changes
from sulina.broker.cluster.changes import OwnershipChange
from sulina.broker.cluster.election import Election
from sulina.broker.cluster.load_manager import LoadManager, plan_rebalance
from sulina.broker.cluster.membership import Membership, nothing_to_verify
from sulina.broker.cluster.options import ClusterOptions
from sulina.broker.cluster.owner import Owner, TopicsThatExist
from sulina.broker.cluster.upkeep import MetadataUpkeep
from sulina.broker.cluster.view import ClusterView, Held, Ownership, Touched
from sulina.broker.events import EventStream
from sulina.core.cluster import keys
from sulina.core.cluster.entries import (
    BrokerMode,
    BrokerState,
    Epoch,
    GivenUp,
    LoadReport,
    Reason,
    Registration,
    Step,
    Unassigned,
    Unload,
)
from sulina.errors import AlreadyExists, BrokerNotFound, InvalidSettings, NotOwner, NotServing, VersionConflict
from sulina.failpoints import FailpointHook, no_failpoints
from sulina.ports import NO_REVISION, TXN_OPERATIONS_MAX, Clock, Compare, MetadataStore, Put, StoreHistory, TxnResult
from sulina.types import PartitionName, TopicName
from sulina.waiting import wait_or_timeout

CONFLICTS_MAX = 10  # how often others may be first before it is told
VIEW_SECONDS = 5.0  # for the view to show what was written
OUTRUN_SECONDS = 0.5  # for it to show what others wrote

_logger = structlog.get_logger("sulina.cluster")


class Cluster:
    """`start` it, then `stop` it. `view` may be read at any time; `membership.may_ack` says what may be answered."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        registration: Registration,
        view: ClusterView,
        topics: TopicsThatExist,
        load: Callable[[], LoadReport],
        events: EventStream,
        clock: Clock,
        options: ClusterOptions,
        verify: Callable[[], Awaitable[None]] = nothing_to_verify,
        failpoints: FailpointHook = no_failpoints,
    ) -> None:
        """`load` says how much there is to do; `verify` checks before a registration that the store did not go back."""
        self._metadata = metadata
        self._load = load
        self._events = events
        self._topics = topics
        self._clock = clock
        self._options = options
        self._tasks: list[asyncio.Task[None]] = []
        self._report = asyncio.Event()
        self._owner: Owner | None = None  # who is told of assignments, from `start` to `stop`
        self._mine: dict[PartitionName, Ownership] = {}  # what the owner was told
        self._told: dict[PartitionName, int] = {}  # the unloads that it was told of, by their revision
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
        """Tell whether the metadata store still has what it once had."""
        return self._metadata.history

    @property
    def broker_id(self) -> str:
        """Who we are."""
        return self.membership.broker_id

    async def start(self, owner: Owner, *, url: str | None = None, peer: str | None = None) -> None:
        """Join the cluster. On return the view is loaded, we are registered, and the owner knows what it has.

        `url` and `peer` are where this broker takes connections, if that was not known before.

        Raises:
            InvalidSettings: the broker id is another's.
            MetadataFailed, NotServing: the metadata store does not answer.
        """
        self.membership.announce(url=url, peer=peer)
        try:
            await self.view.load()
            self._run(self.view.follow(), "cluster-view")
            await self.membership.register()
            self._run(self.membership.run(), "cluster-membership")
            if not await self.view.wait_for(lambda _: self.membership.may_ack(), self.membership.ttl):
                raise NotServing(reason="the metadata store does not tell what changes")
        except BaseException:
            await self._end_tasks()
            raise
        self._owner = owner
        self._tell_owner(self._owner, self.view.assigned_to.get(self.broker_id, set()))
        self._run(self.election.run(), "cluster-election")
        self._run(self._load_manager.run(), "cluster-load-manager")
        self._run(self._report_load(), "cluster-load-report")
        self._run(self.upkeep.run(), "cluster-metadata-upkeep")

    async def leaving(self) -> None:
        """From now on nothing is assigned to us; what we have is ours until we give it back. Then `stop`."""
        try:
            async with asyncio.timeout(self._options.stop_seconds):
                await self.membership.announce_leaving()
        except Exception as error:  # noqa: BLE001
            _logger.warning("leaving_not_announced", broker_id=self.broker_id, error=str(error) or "no answer in time")

    async def stop(self) -> None:
        """Leave: the others see it at once, and what is still assigned here goes to them. Nothing is told any more."""
        self._owner = None
        leads_by = self.election.revision
        await self._end_tasks()
        try:
            async with asyncio.timeout(self._options.stop_seconds):
                await self.membership.leave(leads_by)
        except Exception as error:  # noqa: BLE001
            _logger.warning("not_left", broker_id=self.broker_id, error=str(error) or "no answer in time")

    def report_load_soon(self) -> None:
        """Write the load report at once: something was gained or lost."""
        self._report.set()

    def topics_changed(self, partitions: Iterable[PartitionName]) -> None:
        """These are new, or gone: a leader looks at once, and not only when it next looks at everything."""
        self._load_manager.topics_changed(partitions)

    # Wishes of operators

    async def request_unload(
        self, partition: PartitionName, *, force: bool, to: str | None, requested_by: str, give_up: bool = False
    ) -> Unload:
        """Wish that a partition leaves its owner, who carries it out. The same wish again is the same wish.

        InvalidSettings (`to` takes no partitions), NotOwner (nobody has it), AlreadyExists (it is going elsewhere).
        """
        self._check_target(to)
        for _ in range(CONFLICTS_MAX):
            owned, before = self._owned(partition), self.view.unloads.get(partition)
            unload = self._wish(partition, before, force=force, to=to, requested_by=requested_by)
            unload = replace(unload, give_up=unload.give_up or give_up)
            if before is not None and unload == before.value:
                return unload
            if await self._write(changes.want_unload(partition, owned, unload, before)):
                return unload
            await self._wait_past(partition)
        raise self._outrun(partition)

    async def force(self, partition: PartitionName, to: str | None, given_up: GivenUp) -> None:
        """Give up what only a lost broker has: anybody may have the partition, or `to`. InvalidSettings."""
        self._check_target(to)
        for _ in range(CONFLICTS_MAX):
            waiting = self.view.unassigned.get(partition)
            if waiting is None:
                raise InvalidSettings(f"{partition} waits for no broker")
            forced = replace(waiting.value, reason=Reason.FORCED, since_ms=self._now_ms(), to=to, is_recovering=False)
            change = OwnershipChange(
                compares=(Compare(keys.unassigned(partition), waiting.revision),),
                puts=(
                    Put(keys.unassigned(partition), msgspec.json.encode(forced)),
                    Put(self._given_up_key(partition), msgspec.json.encode(given_up)),
                ),
            )
            if await self._write(change):
                return
            await self._wait_past(partition)
        raise self._outrun(partition)

    async def set_mode(self, broker_id: str, mode: BrokerMode) -> None:
        """Drain a broker, or let it take partitions again. BrokerNotFound."""
        names = [broker.broker_id for broker in self.view.brokers()]
        if broker_id not in names and broker_id not in self.view.modes:
            raise BrokerNotFound(broker=broker_id, brokers=", ".join(names))
        put = Put(keys.broker_state(broker_id), msgspec.json.encode(BrokerState(state=mode)))
        await self._write(OwnershipChange(compares=(), puts=(put,)))

    async def rebalance(self) -> list[tuple[PartitionName, Unload]]:
        """Wish for the moves that make the active brokers even; what was wished for."""
        wished = []
        by = f"broker {self.broker_id}: rebalance"
        for move in plan_rebalance(self.view, moves_max=self._options.rebalance_moves_max, only_if_uneven=False):
            owned = self.view.owner(move.partition)
            unload = changes.new_unload(self._now_ms(), force=True, to=move.target, requested_by=by)
            if owned is not None and await self._write(changes.want_unload(move.partition, owned, unload, None)):
                wished.append((move.partition, unload))
        return wished

    async def forget(self, topic: TopicName, partitions: int, mark: Compare) -> None:
        """Nothing about a topic that is being deleted stays here: one made anew begins with nothing.

        `mark` says that it is being deleted. Where that no longer holds, somebody else was quicker.
        """
        names = [PartitionName(topic, number) for number in range(partitions)]
        together = TXN_OPERATIONS_MAX // 4
        for first in range(0, partitions, together):
            await self._forget(names[first : first + together], mark)

    # What an owner writes

    async def advance_unload(
        self,
        partition: PartitionName,
        unload: Unload,
        revision: int,
        step: Step | None = None,
        *,
        error: str | None = None,
    ) -> int:
        """How far an unload has come, or what went wrong with it; its new revision.

        Whoever changed the wish meanwhile is heard: only step and error are replaced. NotOwner, VersionConflict.
        """
        mine = self._mine.get(partition)
        for _ in range(CONFLICTS_MAX):
            if mine is None:
                break
            advanced = replace(unload, step=step or unload.step, error=error)
            before = Held(unload, revision)
            done = await self._txn(changes.want_unload(partition, mine, advanced, before))
            if done.is_done:
                return done.revision
            assignment = await self._metadata.get(keys.assignment(self.broker_id, partition))
            entry = await self._metadata.get(keys.unload(partition))
            if assignment is None or assignment.revision != mine.revision:
                break
            if entry is None:
                raise VersionConflict(expected=revision, current=NO_REVISION)
            unload, revision = msgspec.json.decode(entry.value, type=Unload), entry.revision
        raise self._not_owner(partition)

    async def fail_unload(self, partition: PartitionName, error: str) -> None:
        """Say what went wrong with an unload that is tried again; the partition is served meanwhile."""
        entry = await self._metadata.get(keys.unload(partition))
        if entry is None:
            return
        unload = msgspec.json.decode(entry.value, type=Unload)
        if (unload.error, unload.step) != (error, Step.REQUESTED):
            await self.advance_unload(partition, unload, entry.revision, step=Step.REQUESTED, error=error)

    async def cancel_unload(self, partition: PartitionName) -> Unload | None:
        """Take a wish back; None: there is none, because it was carried out, or never was. The owner serves on."""
        for _ in range(CONFLICTS_MAX):
            held = self.view.unloads.get(partition)
            if held is None:
                return None
            key = keys.unload(partition)
            if await self._write(OwnershipChange(compares=(Compare(key, held.revision),), deletes=(key,))):
                self._events.emit("unload_cancelled", partition.topic, partition=partition.partition)
                return held.value
            await self._wait_past(partition)
        raise self._outrun(partition)

    async def refuse_unload(self, partition: PartitionName, revision: int, reason: str) -> None:
        """Take a wish back that cannot be granted as it is; nothing happens when it was changed meanwhile."""
        key = keys.unload(partition)
        if (await self._txn(OwnershipChange(compares=(Compare(key, revision),), deletes=(key,)))).is_done:
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
        """Give a partition back; False when it is not ours any more, also when it was we who gave it back before.

        With any reason but `unloaded`, which promises that everything is in the archive, it can only return to this
        broker as long as something is on its disk alone. `is_on_disk` says whether something is; None: as is known.
        """
        epoch = await self._metadata.get(keys.epoch(partition))
        newest = msgspec.json.decode(epoch.value, type=Epoch) if epoch and reason != Reason.UNLOADED else None
        wish = self.view.unloads.get(partition)
        is_reliable = self._topics.is_reliable(partition) is not False
        entry = Unassigned(
            reason=reason,
            since_ms=self._now_ms(),
            from_broker=self.broker_id,
            from_store=self.membership.store_id,
            to=to or (wish.value.to if wish else None),
            is_recovering=changes.may_recover_only(newest, is_reliable=is_reliable, sealed_epoch=None)
            if is_on_disk is None
            else is_on_disk,
        )
        compares = [Compare(keys.assignment(self.broker_id, partition), assignment_revision)]
        if epoch is not None:
            compares.append(Compare(epoch.key, epoch.revision))
        done = await self._txn(
            OwnershipChange(
                compares=tuple(compares),
                puts=(Put(keys.unassigned(partition), msgspec.json.encode(entry)), *puts),
                deletes=(keys.assignment(self.broker_id, partition), keys.unload(partition), *deletes),
            )
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
        """Say whether everything acknowledged is in the archive, and write what belongs to that together with it.

        Whatever was said or given back before, and has not come yet, cannot come after it. NotOwner when it is not ours
        any more.
        """
        assignment, key = keys.assignment(self.broker_id, partition), keys.epoch(partition)
        held = self.view.epochs.get(partition)
        for _ in range(CONFLICTS_MAX):
            if held is not None:
                said = replace(held.value, is_archived=is_archived)
                change = OwnershipChange(
                    compares=(Compare(assignment, assignment_revision), Compare(key, held.revision)),
                    puts=(Put(key, msgspec.json.encode(said)), *puts),
                    deletes=deletes,
                )
                if (await self._txn(change)).is_done:
                    return
            # Our view of it was old, or it is not ours.
            owned = await self._metadata.get(assignment)
            entry = await self._metadata.get(key)
            if owned is None or owned.revision != assignment_revision or entry is None:
                break
            held = Held(msgspec.json.decode(entry.value, type=Epoch), entry.revision)
        raise self._not_owner(partition)

    # Inside

    def _run(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(coroutine, name=name))

    async def _end_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _view_changed(self, touched: Touched) -> None:
        # First what was lost: the membership may say that the rest is ours again.
        if self._owner is not None:
            self._tell_owner(self._owner, touched.partitions)
        self.membership.look()
        if touched.is_leader or self.broker_id in touched.brokers:
            self.election.look()
        self._load_manager.look(touched)

    def _history_changed(self) -> None:
        """Stop acknowledging at once when the store went back; look at everything when it was recovered."""
        if (error := self._metadata.history.went_back) is not None:
            self._events.emit("metadata_went_back", broker_id=self.broker_id, reason=str(error))
            self.membership.lost("the metadata store went back")
        else:
            self.view.begin_again()

    def _won(self) -> None:
        self._load_manager.wake()

    def _membership_changed(self) -> None:
        if self._owner is not None:
            self._tell_owner(self._owner, self.view.assigned_to.get(self.broker_id, set()))
        self.election.look()
        self._load_manager.wake()

    def _tell_owner(self, owner: Owner, partitions: Iterable[PartitionName]) -> None:
        for partition in sorted(partitions):
            try:
                self._tell(owner, partition)
            except Exception:
                _logger.exception("owner_failed", partition=str(partition))

    def _tell(self, owner: Owner, partition: PartitionName) -> None:
        owned, epoch = self.view.assignments.get(partition), self.view.epochs.get(partition)
        if owned is None or epoch is None or not self._is_ours(owned, epoch.value):
            owned = epoch = None
        told = self._mine.get(partition)
        if told is not None and told != owned:
            del self._mine[partition]
            self._told.pop(partition, None)
            self._report.set()
            owner.lost(partition)
        if owned is None or epoch is None:
            return
        if partition not in self._mine:
            if not self.membership.may_ack():
                return  # what was assigned before we were cut off may be another's by now; told once we know
            self._mine[partition] = owned
            self._report.set()
            owner.assigned(partition, epoch.value, owned.revision)
        unload = self.view.unloads.get(partition)
        if unload is not None and self._told.get(partition) != unload.revision:
            self._told[partition] = unload.revision
            owner.unload_wanted(partition, unload.value, unload.revision)

    def _is_ours(self, owned: Ownership, epoch: Epoch) -> bool:
        """An assignment that was made for another data directory is not: the leader takes it away."""
        is_for_us = owned.broker_id == self.broker_id and epoch.store_id == self.membership.store_id
        return is_for_us and owned.epoch == epoch.epoch

    async def _report_load(self) -> None:
        while True:
            await wait_or_timeout(self._report, self._options.load_seconds)
            self._report.clear()
            revision = self.membership.revision
            if revision == NO_REVISION:
                continue
            put = Put(keys.load(self.broker_id), msgspec.json.encode(self._load()))
            try:
                # A report without a registration would say that we are unreachable.
                await self._metadata.txn(compares=[Compare(keys.register(self.broker_id), revision)], puts=[put])
            except Exception as error:  # noqa: BLE001
                _logger.warning("load_not_reported", broker_id=self.broker_id, error=str(error))

    async def _txn(self, change: OwnershipChange) -> TxnResult:
        return await self._metadata.txn(compares=change.compares, puts=change.puts, deletes=change.deletes)

    async def _write(self, change: OwnershipChange) -> bool:
        """Whether it was done; then the view shows it, unless it is far behind."""
        done = await self._txn(change)
        if done.is_done:
            await self.view.wait_for(lambda view: view.shows(change.puts, change.deletes, done.revision), VIEW_SECONDS)
        return done.is_done

    async def _forget(self, partitions: list[PartitionName], mark: Compare) -> None:
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
        raise NotServing(reason=f"the owners of {partitions[0].topic} change all the time")

    async def _wait_past(self, *partitions: PartitionName) -> None:
        """Until the view shows something new of them: we were outrun, so it will."""
        seen = self._seen(partitions)
        await self.view.wait_for(lambda _: self._seen(partitions) != seen, OUTRUN_SECONDS)

    def _seen(self, partitions: Sequence[PartitionName]) -> list[object]:
        view = self.view
        known = (view.assignments, view.unassigned, view.epochs, view.unloads)
        return [values.get(partition) for values in known for partition in partitions]

    def _given_up_key(self, partition: PartitionName) -> str:
        epoch = self.view.epochs.get(partition)
        return keys.given_up(partition, epoch.value.epoch if epoch is not None else 0)

    def _wish(
        self, partition: PartitionName, before: Held[Unload] | None, *, force: bool, to: str | None, requested_by: str
    ) -> Unload:
        if before is None:
            return changes.new_unload(self._now_ms(), force=force, to=to, requested_by=requested_by)
        under_way = before.value
        if to is not None and under_way.to not in (None, to):
            raise AlreadyExists(
                kind="unload", name=str(partition), difference=f"it goes to {under_way.to}, not to {to}"
            )
        return replace(under_way, force=under_way.force or force, to=under_way.to or to)

    def _check_target(self, to: str | None) -> None:
        if to is not None and to not in self.view.active():
            active = ", ".join(self.view.active()) or "none"
            raise InvalidSettings(f"broker {to} takes no partitions; those that do: {active}")

    def _owned(self, partition: PartitionName) -> Ownership:
        owned = self.view.owner(partition)
        if owned is None:
            raise self._not_owner(partition)
        return owned

    def _not_owner(self, partition: PartitionName) -> NotOwner:
        owned = self.view.owner(partition)
        is_other = owned is not None and owned.broker_id != self.broker_id
        owner = owned.broker_id if owned is not None and is_other else None
        return NotOwner(
            topic=str(partition.topic), partition=partition.partition, owner=owner, url=self.view.url(owner)
        )

    def _outrun(self, partition: PartitionName) -> NotServing:
        return NotServing(reason=f"the owner of {partition} changes all the time")

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)
