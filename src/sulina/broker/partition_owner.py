"""The owner's side of the cluster: acquires the partitions that are assigned to this broker, and releases the others.

For each partition one task at a time makes what is here what the cluster wants, however often that changes meanwhile.
A partition is served only when its topic is known and every subscription has its cursor in it; its log is opened when
it is first used, which claims its epoch in the archive. From the moment when it is lost nothing is acknowledged.
"""

import asyncio
import os
from collections.abc import Awaitable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import structlog

from sulina.broker.cluster.assignee import OwnAssignment
from sulina.broker.cluster.cluster import Cluster
from sulina.broker.cluster.memory import ClusterMemory
from sulina.broker.cluster_handle import ClusterHandle
from sulina.broker.events import EventStream
from sulina.broker.options import BrokerOptions
from sulina.broker.partition_logs import PartitionLogs
from sulina.broker.topic import Topic
from sulina.broker.topic_registry import TopicRegistry
from sulina.broker.unloading import Unloading, UnloadOutcome
from sulina.core.cluster import keys
from sulina.core.cluster.entries import EpochEntry, UnloadRequest
from sulina.core.formats import METADATA
from sulina.errors import NotServing, SulinaError
from sulina.failpoints import Failpoint
from sulina.ports import Clock
from sulina.types import PartitionName
from sulina.waiting import wait_or_timeout
from sulina.wire.messages import TopicState

AT_ONCE = 16  # partitions that are acquired or released
OPEN_AT_ONCE = 2  # logs that are opened because they may have something to archive
TOPIC_SECONDS = 1.0  # to wait for what a watch should bring, before it is fetched
RETRY_SECONDS = 1.0
UNLOAD_RETRY_SECONDS = 2.0

_logger = structlog.get_logger("sulina.owner")


@dataclass(slots=True)
class _Wanted:
    """What the cluster wants of a partition."""

    epoch: EpochEntry | None = None  # None: nothing, it is another's
    revision: int = 0  # of the assignment
    unload: UnloadRequest | None = None
    unload_revision: int = 0
    task: asyncio.Task[None] | None = None
    held: int | None = None  # the revision under which it was taken
    ready: int | None = None  # the revision under which it is served
    topic: Topic | None = None  # that it belongs to: one of the same name that was created again is another
    unloaded: int | None = None  # the revision of the assignment that was given back
    departure: Unloading | None = None  # that gave it back, until what is here is cleaned up
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class PartitionOwner:
    """Acquires what is assigned to this broker. The cluster calls it on its loop; it works in tasks of its own."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        handle: ClusterHandle,
        registry: TopicRegistry,
        memory: ClusterMemory,
        logs: PartitionLogs,
        options: BrokerOptions,
        events: EventStream,
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._handle = handle
        self._registry = registry
        self._topics = registry.topics
        self._memory = memory
        self._logs = logs
        self._options = options
        self._events = events
        self._unloading = partial(
            Unloading, cluster=cluster, handle=handle, events=events, options=options, clock=clock, logs=logs
        )
        self._partitions: dict[PartitionName, _Wanted] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._openings = asyncio.Semaphore(OPEN_AT_ONCE)
        self._background: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    # What the cluster says

    def changed(self, partition: PartitionName, assigned: OwnAssignment | None) -> None:
        """Acquire a partition, or unload it as requested; without an assignment, release it."""
        wanted = self._partitions.get(partition)
        if assigned is not None:
            wanted = wanted or self._partitions.setdefault(partition, _Wanted())
            if wanted.epoch is None or wanted.revision != assigned.revision:
                wanted.epoch, wanted.revision = assigned.epoch, assigned.revision
            if assigned.unload is not None:
                wanted.unload, wanted.unload_revision = assigned.unload.value, assigned.unload.revision
        elif wanted is not None:
            wanted.epoch, wanted.unload = None, None
            topic = self._topics.get(partition.topic)
            if topic is not None and partition.partition < len(topic.ownerships):
                topic.ownerships[partition.partition].release()  # at once: nothing more is acknowledged
        if wanted is not None:
            self._converge_soon(partition, wanted)

    def topic_came(self, topic: Topic) -> None:
        """Acquire the partitions of a topic again, if they are ours: it is new, or another of the same name."""
        for ownership in topic.ownerships:
            if (wanted := self._partitions.get(ownership.name)) is not None:
                self._converge_soon(ownership.name, wanted)

    # Making it so

    def _converge_soon(self, partition: PartitionName, wanted: _Wanted) -> None:
        wanted.wake.set()
        if (wanted.task is None or wanted.task.done()) and not self._is_stopping:
            wanted.task = asyncio.create_task(self._converge(partition, wanted), name=f"own {partition}")

    async def _converge(self, partition: PartitionName, wanted: _Wanted) -> None:
        while True:
            wanted.wake.clear()
            try:
                if wanted.held is not None and (wanted.epoch is None or wanted.held != wanted.revision):
                    async with self._turns:
                        await self._release(partition, wanted)
                elif wanted.epoch is None:
                    self._partitions.pop(partition, None)
                    return
                elif wanted.unload is not None and self._cannot_be_ready(partition, wanted):
                    await self._unload(partition, wanted, wanted.unload)
                elif wanted.ready is None or self._has_other_topic(partition, wanted):
                    async with self._turns:
                        await self._acquire(partition, wanted)
                elif wanted.unload is not None and wanted.unloaded != wanted.held:
                    await self._unload(partition, wanted, wanted.unload)
                elif not wanted.wake.is_set():
                    return
            except Exception as error:  # noqa: BLE001
                # Whatever it is: what is ours must be served, so it is tried again, and said.
                self._handle.troubles[partition] = str(error)
                _logger.error("partition_not_converged", partition=str(partition), error=str(error), kind=type(error))
                await wait_or_timeout(wanted.wake, RETRY_SECONDS)

    def _cannot_be_ready(self, partition: PartitionName, wanted: _Wanted) -> bool:
        """Return whether a partition can only leave: something is missing, or making it ready has failed."""
        if wanted.ready is not None or wanted.held is None or wanted.unload is None:
            return False
        return wanted.unload.give_up or partition in self._handle.troubles

    async def _acquire(self, partition: PartitionName, wanted: _Wanted) -> None:
        self._options.failpoints(Failpoint.OWNER_ASSIGNED)
        # The watch should bring the topic in a moment; else it is fetched.
        topic = await self._topics.when_known(partition.topic, TOPIC_SECONDS)
        topic = topic or await self._registry.fetch(partition.topic)
        epoch, revision = wanted.epoch, wanted.revision
        if epoch is None:
            return  # lost meanwhile
        if topic is None or partition.partition >= len(topic.ownerships):
            raise NotServing(reason=f"there is no topic {partition.topic} any more")
        ownership = topic.ownerships[partition.partition]
        if ownership.revision != revision:
            ownership.acquire(epoch, revision)
        wanted.held, wanted.ready, wanted.topic = revision, None, topic
        # The disk of this broker has the topic before it is served, so that it outlives the metadata store.
        await self._memory.ensure(keys.delivery(topic.name), METADATA.encode(topic.stored).decode())
        if topic.is_reliable:
            await self._registry.make_cursors(topic, only=partition.partition)
        if wanted.epoch is None or wanted.revision != revision or self._has_other_topic(partition, wanted):
            return  # lost while it was made ready
        ownership.state = TopicState.ACTIVE
        wanted.ready = revision
        self._handle.troubles.pop(partition, None)
        self._options.failpoints(Failpoint.OWNER_SERVED)
        self._events.emit("partition_served", partition.topic, partition=partition.partition, epoch=epoch.epoch)
        self._cluster.report_load_soon()
        if topic.is_reliable and await asyncio.to_thread(os.path.isdir, self._logs.directory(partition)):
            self._in_background(self._open(topic, partition))

    def _has_other_topic(self, partition: PartitionName, wanted: _Wanted) -> bool:
        topic = self._topics.get(partition.topic)
        return topic is not None and topic is not wanted.topic

    async def _open(self, topic: Topic, partition: PartitionName) -> None:
        """Open a log that was left here: it may have something that is not archived yet."""
        async with self._openings:
            try:
                async with topic.partition(partition.partition).using():
                    pass
            except (SulinaError, OSError) as error:
                _logger.warning("partition_not_opened", partition=str(partition), error=str(error))

    async def _release(self, partition: PartitionName, wanted: _Wanted) -> None:
        departure = wanted.departure
        with departure.span("cleanup") if departure is not None else nullcontext():
            await self._clean_up(partition)
        wanted.held = wanted.ready = wanted.unloaded = wanted.topic = wanted.departure = None
        self._handle.troubles.pop(partition, None)
        self._events.emit("partition_released", partition.topic, partition=partition.partition)
        self._cluster.report_load_soon()
        if departure is not None:
            departure.tell_unloaded()

    async def _clean_up(self, partition: PartitionName) -> None:
        """Detach consumers, close the log, and remove what is here of a partition that another broker owns."""
        topic = self._topics.get(partition.topic)
        if topic is not None and partition.partition < len(topic.ownerships):
            ownership = topic.ownerships[partition.partition]
            ownership.release()
            refusal = ownership.refusal()
            topic.release_feed(partition.partition, refusal)
            if topic.is_reliable:
                async with topic.lock:
                    for subscription in list(topic.subscriptions.values()):
                        await subscription.release(partition.partition, refusal)
                    await topic.partitions[partition.partition].close()
                    self._logs.closed(topic.partitions[partition.partition])
                    is_known = self._topics.get(partition.topic) is topic  # else it goes with the topic
                    if is_known and not self._comes_back(partition):
                        try:
                            directory = self._logs.directory(partition)
                            await self._logs.opener.release(partition, directory, topic.stored.topic_id)
                        except (SulinaError, OSError) as error:
                            # It stays until somebody looks for leftovers: what is ours again must not wait for that.
                            _logger.warning("directory_not_released", partition=str(partition), error=str(error))
                self._options.failpoints(Failpoint.UNLOAD_LOCAL_REMOVED)
            else:
                topic.dismiss_best_effort(refusal)

    def _comes_back(self, partition: PartitionName) -> bool:
        """Return whether only this broker may own a partition next: then its directory must stay."""
        view, broker_id = self._cluster.view, self._options.broker_id
        owned, waiting = view.assignments.get(partition), view.unassigned.get(partition)
        if owned is not None:
            return owned.broker_id == broker_id
        return waiting is not None and waiting.value.is_recovering and waiting.value.from_broker == broker_id

    async def _unload(self, partition: PartitionName, wanted: _Wanted, unload: UnloadRequest) -> None:
        topic = self._topics.get(partition.topic)
        if topic is None or wanted.held is None:
            raise NotServing(reason=f"there is no topic {partition.topic} any more")
        wanted.unload = None  # it is told again when the record changes
        revision = wanted.held
        work = self._unloading(topic, partition.partition, revision=revision)
        outcome = await work.run(unload, wanted.unload_revision)
        if outcome is UnloadOutcome.DONE:
            wanted.unloaded, wanted.departure = revision, work
        elif outcome is UnloadOutcome.LATER:
            if wanted.ready is None:
                self._handle.troubles.pop(partition, None)  # try to make it ready before it is to leave again
            await asyncio.sleep(UNLOAD_RETRY_SECONDS)
            # The wish may have changed while we were at it, or be gone.
            wish = self._cluster.view.unloads.get(partition)
            if wish is not None and wanted.held == revision:
                wanted.unload, wanted.unload_revision = wish.value, wish.revision

    def _in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # The end

    async def stop(self, seconds: float) -> None:
        """Give back every partition in good order, and stop after `seconds` at the latest."""
        self._is_stopping = True
        tasks = [wanted.task for wanted in self._partitions.values() if wanted.task is not None]
        for task in [*tasks, *self._background]:
            task.cancel()
        if tasks or self._background:
            await asyncio.wait([*tasks, *self._background])
        leaving = [asyncio.ensure_future(self._leave(name, wanted)) for name, wanted in self._partitions.items()]
        if leaving:
            _, late = await asyncio.wait(leaving, timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
                _logger.warning("partitions_not_given_back", count=len(late))

    async def _leave(self, partition: PartitionName, wanted: _Wanted) -> None:
        topic = self._topics.get(partition.topic)
        if wanted.departure is not None:  # it was given back before we were told to stop
            wanted.departure.tell_unloaded()
            return
        if topic is None or wanted.held is None:
            return
        async with self._turns:
            try:
                await self._unloading(topic, partition.partition, revision=wanted.held).leave()
            except (SulinaError, OSError) as error:
                _logger.warning("partition_not_given_back", partition=str(partition), error=str(error))
