"""A broker as a member of a cluster: how it joins, what it looks after while it is there, and how it leaves.

- Nothing is believed of the metadata store before `ClusterMemory.join` has found it at least as new as this broker's
  disk and the archive remember it.
- Nothing is assigned to this broker before the topics are loaded.
- When it leaves, what it owns is given back in good order, as far as there is time, and its lease ends last.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import structlog

from sulina.broker.archives import Archives
from sulina.broker.catalogue import Catalogue
from sulina.broker.cluster.cluster import Cluster
from sulina.broker.cluster.memory import ClusterMemory
from sulina.broker.cluster.view import ClusterView, Touched
from sulina.broker.cluster_handle import ClusterHandle
from sulina.broker.options import BrokerOptions
from sulina.broker.partition_logs import PartitionLogs
from sulina.broker.partition_owner import PartitionOwner
from sulina.broker.timekeeper import Timekeeper
from sulina.broker.topic import Topic
from sulina.broker.topic_admin import TopicAdmin
from sulina.broker.topic_registry import TopicRegistry
from sulina.broker.topic_table import TopicTable
from sulina.core.cluster import keys
from sulina.core.formats import METADATA
from sulina.errors import ArchiveFailed, InvalidSettings, SulinaError
from sulina.ports import NO_REVISION, Clock, Compare, MetadataStore, Put

OBJECTS_SECONDS, OBJECTS_PAUSE_SECONDS = 20.0, 0.5  # for the object store to answer when a broker starts
REPORT_SECONDS = 1.0  # between two reports on how far the logs have come
TIDY_EVERY, LEFTOVERS_EVERY = 5, 300  # such rounds

Answer = TypeVar("Answer")

_logger = structlog.get_logger("sulina.member")


class ClusterMember:
    """`start` it once, then `stop` it."""

    def __init__(
        self,
        metadata: MetadataStore,
        options: BrokerOptions,
        *,
        cluster: Cluster,
        handle: ClusterHandle,
        memory: ClusterMemory,
        owner: PartitionOwner,
        registry: TopicRegistry,
        admin: TopicAdmin,
        logs: PartitionLogs,
        archives: Archives | None,
        clock: Clock,
    ) -> None:
        self.cluster = cluster
        self.owner = owner
        self._metadata = metadata
        self._options = options
        self._handle = handle
        self.memory = memory
        self._registry = registry
        self._catalogue = registry.catalogue
        self._topics = registry.topics
        self._admin = admin
        self._logs = logs
        self._archives = archives
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def store_id(self) -> str:
        """Return the id of this broker's data directory."""
        return self.cluster.membership.store_id

    async def start(self, *, url: str | None = None, peer: str | None = None) -> None:
        """Load what exists, and become a member that takes connections at `url` and `peer`.

        Raises:
            InvalidSettings: another broker has this one's name, or the object store is another cluster's.
            MetadataWentBack: the metadata store has lost what this broker has seen of it.
        """
        await self.memory.join(await self._patiently(self._archives.seen) if self._archives is not None else [])
        await self._check_objects()
        namespaces, topics = await self._registry.load()
        self._run(self._registry.follow(keys.NAMESPACES, namespaces), "follow namespaces")
        self._run(self._registry.follow(keys.TOPICS, topics), "follow topics")
        self._registry.listen(self._topic_changed)
        self.cluster.view.listen(self._view_changed)
        try:
            await self.cluster.start(self.owner, url=url, peer=peer)
        except BaseException:
            await self._cancel_tasks()
            raise
        self._run(self.memory.run(), "cluster memory")
        self._run(self._tidy_regularly(), "tidy")
        self._run(self.release_leftovers(), "leftovers")

    async def leave(self) -> None:
        """Give back what is ours in good order, as far as there is time, and leave the cluster."""
        await self.cluster.announce_leaving()
        await self.owner.stop(self._options.stop_seconds)
        try:
            async with asyncio.timeout(self._options.stop_seconds):
                await self.memory.close()
        except (SulinaError, OSError, TimeoutError) as error:
            _logger.warning("cluster_not_remembered", error=str(error) or "no answer in time")
        await self.cluster.stop()
        await self._cancel_tasks()

    def follow_peers(self, tell: Callable[[Mapping[str, str]], None]) -> None:
        """Tell where the brokers of the cluster take connections of others, now and whenever that changes."""
        view = self.cluster.view

        def changed(touched: Touched | None = None) -> None:
            if touched is None or touched.brokers:
                tell({name: held.value.peer for name, held in view.registrations.items() if held.value.peer})

        view.listen(changed)
        changed()

    def follow_owners(self, changed: Callable[[], None]) -> None:
        """Call back whenever partitions have other owners, or brokers come and go."""

        def look(touched: Touched) -> None:
            if touched.partitions or touched.brokers:
                changed()

        self.cluster.view.listen(look)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _cancel_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _view_changed(self, touched: Touched) -> None:
        if touched.partitions:
            self.memory.changed()

    def _topic_changed(self, before: Topic | None, after: Topic | None) -> None:
        if before is after:
            return
        self.memory.changed()
        self.cluster.topics_changed(
            [ownership.name for topic in (before, after) if topic is not None for ownership in topic.ownerships]
        )
        if after is not None:
            self.owner.topic_came(after)

    async def _check_objects(self) -> None:
        """Check that this broker has the object store of the others: else it would not find what they have archived."""
        if self._archives is None:
            return
        ours = (await self._patiently(self._archives.identity)).encode()
        await self._metadata.txn(compares=[Compare(keys.OBJECTS, NO_REVISION)], puts=[Put(keys.OBJECTS, ours)])
        agreed = await self._metadata.get(keys.OBJECTS)
        if agreed is None or agreed.value != ours:
            raise InvalidSettings(
                f"{self._archives.location} is not the object store of this cluster: all its brokers must share one"
            )

    async def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Ask the object store, and ask again for a while if it does not answer."""
        deadline = self._clock.monotonic() + OBJECTS_SECONDS
        while True:
            try:
                return await asyncio.to_thread(ask)
            except ArchiveFailed as error:
                if self._clock.monotonic() > deadline:
                    raise
                _logger.warning("object_store_away", error=str(error))
                await asyncio.sleep(OBJECTS_PAUSE_SECONDS)

    # What a member looks after

    async def _tidy_regularly(self) -> None:
        """Report how far the logs have come. The leader finishes deletes that others began, and could not finish."""
        for number in itertools.count(1):
            await asyncio.sleep(REPORT_SECONDS)
            if not self.cluster.membership.may_ack():
                await self._dismiss_clients()
            self._logs.report()
            if number % LEFTOVERS_EVERY == 0:
                await self.release_leftovers()
            if number % TIDY_EVERY or self.cluster.election.revision is None:
                continue
            await self._admin.finish_deletes()

    async def _dismiss_clients(self) -> None:
        """Detach all clients: while others may own what is ours nothing is delivered here, so they look elsewhere."""
        error = self._handle.lapsed()
        for topic in self._topics:
            await topic.dismiss(error)

    async def release_leftovers(self) -> None:
        """Release the directories of partitions that others serve by now, and remove those of deleted topics."""
        view = self.cluster.view
        for partition in await self._logs.found():
            topic, owned = self._topics.get(partition.topic), view.assignments.get(partition)
            if topic is not None and owned is not None and owned.broker_id != self._options.broker_id:
                try:
                    directory = self._logs.directory(partition)
                    await self._logs.opener.release(partition, directory, topic.stored.topic_id)
                except (SulinaError, OSError) as error:
                    _logger.warning("leftover_not_released", partition=str(partition), error=str(error))
        await self._remove_deleted()
        if self.cluster.election.revision is not None:
            await self._catalogue.forget_delete_marks(int(self._clock.now() * 1000))

    async def _remove_deleted(self) -> None:
        """Remove what is here of topics that were deleted while this broker was away. What has no mark stays."""
        for partition, topic_id, path in await self._logs.kept():
            topic = self._topics.get(partition.topic)
            if topic is not None and topic.stored.topic_id == topic_id:
                continue
            try:
                if await self._catalogue.is_deleted(topic_id):
                    await self._logs.remove_deleted(partition, topic_id)
                else:
                    _logger.warning("directory_without_topic", partition=str(partition), path=path)
            except (SulinaError, OSError) as error:
                _logger.warning("leftover_not_released", partition=str(partition), error=str(error))


def entries_to_remember(
    view: ClusterView, catalogue: Catalogue, topics: TopicTable, timekeeper: Timekeeper
) -> dict[str, bytes] | None:
    """Return what must outlive the metadata store, by key; None before the cluster was seen.

    These are topics and their cursors here, epochs, delete marks, and the time that has been shown.
    """
    if not view.is_loaded:
        return None
    entries = catalogue.entries()
    for topic in topics:
        for subscription in topic.subscriptions.values():
            entries |= subscription.stored_cursors()
    if timekeeper.stored is not None:
        entries[keys.SHOWN_TIME] = timekeeper.stored
    entries |= {keys.epoch(name): METADATA.encode(held.value) for name, held in view.epochs.items()}
    entries |= {keys.deleted(topic_id): METADATA.encode(mark.value) for topic_id, mark in view.deleted.items()}
    return entries
