"""The broker of one node: what every listener, and the node itself, asks for.

`Broker` is where the parts of a broker are put together. It has them, and does nothing for them: what exists is the
registry's, how it changes is the admins', who owns what is the cluster's.
Each part gets what it needs when it is made.

Whether there are other brokers is decided here, and nowhere else: with a registration the broker is a member of a
cluster that shares the metadata store, without one it is a cluster of one (`sole_broker.py`).
"""

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from msgspec.structs import replace

from sulina.broker.all_owners import AllOwners
from sulina.broker.archived_log_opener import ArchivedLogOpener
from sulina.broker.archives import Archives
from sulina.broker.catalogue import Catalogue
from sulina.broker.cluster.cluster import Cluster
from sulina.broker.cluster.memory import ClusterMemory
from sulina.broker.cluster.view import ClusterView
from sulina.broker.cluster_control import ClusterControl
from sulina.broker.cluster_handle import ClusterHandle, SharedCluster
from sulina.broker.cluster_member import ClusterMember, entries_to_remember
from sulina.broker.cursors import CursorWriter
from sulina.broker.events import EventStream
from sulina.broker.metrics import Metrics
from sulina.broker.node_load import NodeLoad
from sulina.broker.options import BrokerOptions, ClusterOptions, NodeCounts
from sulina.broker.other_owners import NoOtherOwners, OtherOwners
from sulina.broker.partition import Log
from sulina.broker.partition_logs import LocalLogOpener, LogOpener, PartitionLogs
from sulina.broker.partition_owner import PartitionOwner
from sulina.broker.producers import Producers
from sulina.broker.pubsub.node_pubsub import NodePubSub
from sulina.broker.pubsub.peers import PeerConnections
from sulina.broker.readers import Readers
from sulina.broker.run_to_completion import run_to_completion
from sulina.broker.serving_state import ServingState
from sulina.broker.sole_broker import SoleBroker, SoleMember
from sulina.broker.subscription_admin import SubscriptionAdmin
from sulina.broker.timekeeper import Timekeeper
from sulina.broker.topic import Accepted, Topic
from sulina.broker.topic_admin import TopicAdmin
from sulina.broker.topic_registry import ClaimHolder, TopicRegistry
from sulina.broker.topic_table import TopicTable
from sulina.broker.troubles import first_of_each_kind, late_consumers, partition_troubles, put_aside_troubles
from sulina.clock import SystemClock
from sulina.core.cluster.entries import Registration
from sulina.core.delivery.pubsub import SubscriberInfo
from sulina.core.delivery.rejects import reject_reason
from sulina.core.log.commit import Commit
from sulina.core.log.position import Position
from sulina.core.log.publish_request import PublishRequest
from sulina.core.records.record import StoredRecord, encode
from sulina.errors import InvalidInput, NotServing, NotYet, PositionDiverged, SulinaError
from sulina.ports import Clock, Files, MetadataStore
from sulina.storage.files import OsFiles
from sulina.storage.partition_log import LogThreads
from sulina.types import Offset, TopicName, Version
from sulina.wire.messages import (
    Fetched,
    NodeInfo,
    PartitionInfo,
    ProducerInfo,
    Published,
    PubSubMetrics,
    ReaderInfo,
    ReaderPage,
    ReaderSettings,
    Trouble,
    TroubleKind,
)
from sulina.wire.operations import COMMITS_MAX

FETCH_BYTES_MAX = 16 << 20
REOPEN_LOOK_SECONDS = 1.0  # between two looks at logs that have stopped

_logger = structlog.get_logger("sulina.broker")


@dataclass(frozen=True, slots=True)
class _Shared:
    """What a broker has of a cluster that it shares with others."""

    cluster: Cluster
    memory: ClusterMemory
    handle: SharedCluster


class Broker:
    """`start` it, serve, then `stop` it."""

    def __init__(
        self,
        metadata: MetadataStore,
        options: BrokerOptions,
        *,
        threads: LogThreads,
        files: Files | None = None,
        clock: Clock | None = None,
        archives: Archives | None = None,
        registration: Registration | None = None,
        cluster_options: ClusterOptions | None = None,
        others: OtherOwners | None = None,
        peers: PeerConnections | None = None,
    ) -> None:
        """Put a broker together.

        `registration` is how the brokers of its cluster see it, who share the metadata store; None: it is the only one.
        `others` asks the owners of partitions that are not served here, `peers` sends to subscribers at other brokers.
        """
        self.options = options
        self.counts = NodeCounts()
        self.metrics = Metrics()
        self.metadata = metadata
        self.archives = archives
        self._files = files or OsFiles()
        self._clock = clock or SystemClock()
        self._started_at = self._clock.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._serving = ServingState()
        self._topics = TopicTable()
        self._catalogue = Catalogue(metadata, is_followed=registration is not None)
        self.events = EventStream(self._clock)
        self.cursor_writer = CursorWriter(metadata)
        cluster_options, others = cluster_options or ClusterOptions(), others or NoOtherOwners()
        view = ClusterView(  # of a cluster of one it stays empty
            metadata, events=self.events, clock=self._clock, waiters_max=cluster_options.waiters_max
        )
        self.timekeeper = Timekeeper(
            metadata, clock=self._clock, events=self.events, others=partial(view.clocks, but=options.broker_id)
        )
        load = NodeLoad(options.broker_id, self._topics, self.counts, timekeeper=self.timekeeper, clock=self._clock)
        shared = None if registration is None else self._shared(registration, cluster_options, view, load)
        self.cluster_handle: ClusterHandle = SoleBroker(options.broker_id) if shared is None else shared.handle
        self.logs = self._logs(threads)
        self.all_owners = AllOwners(self._topics, self._catalogue, cluster=self.cluster_handle, others=others)
        self.registry = self._registry(others, None if shared is None else self.all_owners.claim)
        self.changes: set[asyncio.Task[Any]] = self.registry.changes
        self.admin = self._admin()
        self.member: ClusterMember | SoleMember
        if shared is None:
            self.member = control = SoleMember(self.registry, self.admin, load, options.broker_id)
            self._offer_control(control)
        else:
            self.member = self._member(shared)
            self._offer_control(self._control(shared))
        self._offer_topics()
        self._offer_subscriptions()
        self.registered_readers = self._readers()
        self.producers = Producers(metadata, self._catalogue, cluster=self.cluster_handle, clock=self._clock)
        self.pubsub = self._pubsub(peers)
        self.registry.listen(self._topic_changed)
        self._collect_metrics()

    # How its parts are made

    def _shared(
        self, registration: Registration, options: ClusterOptions, view: ClusterView, load: NodeLoad
    ) -> "_Shared":
        memory = ClusterMemory(
            self.metadata,
            broker_id=registration.broker_id,
            store_id=registration.store_id,
            files=self._files,
            data=self.options.data,
            archives=self.archives,
            entries=partial(entries_to_remember, view, self._catalogue, self._topics, self.timekeeper),
            events=self.events,
        )
        cluster = Cluster(
            self.metadata,
            registration=registration,
            view=view,
            topics=self._topics,
            load=load.report,
            events=self.events,
            clock=self._clock,
            options=options,
            verify=memory.verify,
            failpoints=self.options.failpoints,
        )
        return _Shared(cluster, memory, SharedCluster(cluster, self.metadata))

    def _logs(self, threads: LogThreads) -> PartitionLogs:
        return PartitionLogs(
            self.options,
            self._topics,
            self._log_opener(threads),
            files=self._files,
            clock=self._clock,
            events=self.events,
        )

    def _log_opener(self, threads: LogThreads) -> LogOpener:
        if self.archives is None:
            return LocalLogOpener(threads=threads, files=self._files, clock=self._clock, metrics=self.metrics)
        return ArchivedLogOpener(
            self.archives,
            metadata=self.metadata,
            writer=self.cursor_writer,
            cluster=self.cluster_handle,
            options=self.options,
            files=self._files,
            clock=self._clock,
            threads=threads,
            metrics=self.metrics,
            events=self.events,
        )

    def _registry(self, others: OtherOwners, claim: ClaimHolder | None) -> TopicRegistry:
        return TopicRegistry(
            self.metadata,
            self.options,
            catalogue=self._catalogue,
            topics=self._topics,
            logs=self.logs,
            cursor_writer=self.cursor_writer,
            cluster=self.cluster_handle,
            others=others,
            claim=claim,
            serving=self._serving,
            counts=self.counts,
            clock=self._clock,
            metrics=self.metrics,
            events=self.events,
            is_archiving=self.archives is not None,
        )

    def _admin(self) -> TopicAdmin:
        return TopicAdmin(
            self.registry,
            cluster=self.cluster_handle,
            owners=self.all_owners,
            logs=self.logs,
            options=self.options,
            clock=self._clock,
            events=self.events,
        )

    def _member(self, shared: "_Shared") -> ClusterMember:
        owner = PartitionOwner(
            cluster=shared.cluster,
            handle=shared.handle,
            registry=self.registry,
            memory=shared.memory,
            logs=self.logs,
            options=self.options,
            events=self.events,
            clock=self._clock,
        )
        return ClusterMember(
            self.metadata,
            self.options,
            cluster=shared.cluster,
            handle=shared.handle,
            memory=shared.memory,
            owner=owner,
            registry=self.registry,
            admin=self.admin,
            logs=self.logs,
            archives=self.archives,
            clock=self._clock,
        )

    def _control(self, shared: "_Shared") -> ClusterControl:
        return ClusterControl(
            shared.cluster,
            handle=shared.handle,
            registry=self.registry,
            logs=self.logs,
            clock=self._clock,
            events=self.events,
        )

    def _readers(self) -> Readers:
        return Readers(
            self.metadata,
            self._catalogue,
            self.options,
            self._topics.get,
            clock=self._clock,
            shown_time=self.timekeeper.now,
            events=self.events,
        )

    def _pubsub(self, peers: PeerConnections | None) -> NodePubSub:
        return NodePubSub(
            self.options.broker_id,
            self._topics,
            owner_of=self.cluster_handle.owner_of,
            config=self.options.pubsub,
            clock=self._clock,
            events=self.events,
            peers=peers,
        )

    def _collect_metrics(self) -> None:
        self.metrics.collect_clock(self._clock_ahead)
        self.metrics.collect_lag(self._lags)
        self.metrics.collect_deliveries(self.pubsub.delivered)
        self.metrics.collect_batches(lambda: list(self.pubsub.batches_sent.items()))

    # What listeners ask of a part is the part's own method

    def _offer_topics(self) -> None:
        registry, admin = self.registry, self.admin
        self.hear_of, self.topic_named = registry.hear_of, registry.topic_named
        self.put_namespace, self.delete_namespace = admin.put_namespace, admin.delete_namespace
        self.namespace, self.namespaces = admin.namespace, admin.namespaces
        self.put_topic, self.delete_topic = admin.put_topic, admin.delete_topic
        self.topic, self.topics = admin.topic, admin.topics

    def _offer_subscriptions(self) -> None:
        part = SubscriptionAdmin(
            self.registry,
            owners=self.all_owners,
            serving=self._serving,
            counts=self.counts,
            options=self.options,
            metrics=self.metrics,
            events=self.events,
        )
        self.put_subscription, self.delete_subscription = part.put_subscription, part.delete_subscription
        self.subscription, self.subscriptions = part.subscription, part.subscriptions
        self.seek, self.seek_everywhere = part.seek, part.seek_everywhere
        self.attach, self.detach, self.consumers = part.attach, part.detach, part.consumers

    def _offer_control(self, control: ClusterControl | SoleMember) -> None:
        self.lookup, self.cluster, self.rebalance = control.lookup, control.cluster, control.rebalance
        self.unload, self.cancel_unloads, self.unloads = control.unload, control.cancel_unloads, control.unloads
        self.drain_broker, self.activate_broker = control.drain_broker, control.activate_broker
        self.follow_peers = self.member.follow_peers

    # Its life

    @property
    def is_ready(self) -> bool:
        """Return whether it takes requests: it neither starts nor stops."""
        return self._serving.is_ready

    @property
    def unready(self) -> str | None:
        """Return why it does not serve what it should; None: it does."""
        if not self.is_ready:
            return f"it is {self._serving.phase}"
        if (cut_off := self.cluster_handle.cut_off()) is not None:
            return cut_off.what
        if not (stopped := self.logs.stopped()):
            return None
        name, reason = min(stopped.items())
        return f"{len(stopped)} of its partitions take no records, among them {name}: {reason}"

    async def start(self, *, url: str | None = None, peer: str | None = None) -> None:
        """Load what exists, join the cluster, and serve. Logs are opened when they are first used.

        `url` and `peer` are where clients and other brokers reach it, if its registration did not say so.

        Raises:
            InvalidSettings: another broker has this one's name, or the object store is another cluster's.
            MetadataWentBack: the metadata store has lost what this broker has seen of it.
        """
        await self.member.start(url=url, peer=peer)
        self.member.follow_owners(self.pubsub.topics_changed)
        self.cursor_writer.start()
        self.producers.start()
        self.pubsub.start()
        self._tasks.append(asyncio.create_task(self._retain_regularly(), name="retention"))
        self._tasks.append(asyncio.create_task(self._reopen_regularly(), name="reopen-logs"))
        self._serving.begin()
        self.events.emit("broker_started", broker_id=self.options.broker_id, topics=len(self._topics))

    def drain(self) -> None:
        """Refuse what is new, while what was taken is being finished."""
        self._serving.end()

    async def stop(self) -> None:
        """Finish what was taken, write the cursors, and close the logs."""
        self.drain()
        if self.changes:
            await asyncio.wait(set(self.changes))
        await self.producers.stop()
        await self.member.leave()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        error = NotServing(reason="the node is stopping")
        async with self.registry.lock:
            await self.pubsub.stop()
            for topic in self._topics:
                await topic.stop_subscriptions(error)
            await self.cursor_writer.stop()
            await asyncio.gather(*(topic.close(error) for topic in self._topics))
        self.events.emit("broker_stopped", broker_id=self.options.broker_id)
        self.events.close()

    def _topic_changed(self, before: Topic | None, after: Topic | None) -> None:
        if before is not None and after is not before:
            self.pubsub.unplaced.add(before.publish_counts)  # of a topic that is gone
        self.pubsub.topics_changed()

    def _clock_ahead(self) -> float:
        return self.timekeeper.ahead_seconds

    def info(self) -> NodeInfo:
        """Return what this node is."""
        return NodeInfo(
            broker_id=self.options.broker_id,
            version=self.options.software,
            is_ready=self.unready is None,
            topics=len(self._topics),
            connections=self.counts.connections,
            uptime_seconds=round(self._clock.monotonic() - self._started_at, 3),
            objects=self.archives.location if self.archives is not None else None,
            objects_endpoint=self.archives.endpoint if self.archives is not None else None,
        )

    async def inspect(self) -> NodeInfo:
        """Return what this node is, with its disk and everything that is not as it should be."""
        orphaned, aside = await self.logs.put_aside()
        disk = await asyncio.to_thread(shutil.disk_usage, self.options.data)
        found = [*self._troubles(), *put_aside_troubles(orphaned, aside)]
        counts = Counter(trouble.kind for trouble in found)
        return replace(
            self.info(),
            store_id=self.member.store_id,
            disk_bytes=disk.total,
            disk_free_bytes=disk.free,
            troubles=first_of_each_kind(found),
            trouble_counts=dict(counts),
        )

    def _troubles(self) -> list[Trouble]:
        """Return what is not as it should be, as far as the node knows without looking at its disk."""
        found = []
        if not self.is_ready:
            found.append(Trouble(kind=TroubleKind.NOT_SERVING, what=f"it is {self._serving.phase}"))
        elif (cut_off := self.cluster_handle.cut_off()) is not None:
            found.append(cut_off)
        found += partition_troubles(
            self.logs.refused(), self.logs.stopped(), self.cluster_handle.troubles, full=self.logs.without_room()
        )
        for topic in sorted(self._topics, key=_name_of):
            for name, subscription in sorted(topic.subscriptions.items()):
                found += late_consumers(str(topic.name), name, subscription.members.present)
        return found

    async def _retain_regularly(self) -> None:
        await self.timekeeper.look()
        while True:
            await asyncio.sleep(self.options.storage.retention_interval_seconds)
            await self.retain()

    async def _reopen_regularly(self) -> None:
        while True:
            await asyncio.sleep(REOPEN_LOOK_SECONDS)
            try:
                await self.logs.reopen_stopped()
            except Exception:
                _logger.exception("logs_not_reopened")  # whatever it is: the others must be looked at again

    async def retain(self) -> int:
        """Remove what policies no longer keep and no registered reader needs; return how many segments went."""
        shown = await self.timekeeper.look()
        await self.registered_readers.look()
        removed = await self.logs.retain(list(self._topics), self.registered_readers.keep_from, shown)
        self.metrics.retention_rounds.inc()
        return removed

    # Records

    async def accept(self, topic: str, request: PublishRequest) -> Accepted:
        """Take batches without waiting for them to be durable: the answer's future says when they are.

        Raises:
            SulinaError: nothing was appended.
        """
        if not self.is_ready:
            self._serving.check()
        if topic not in self._topics.by_text:
            await self.hear_of(TopicName.parse(topic))
        try:
            known = self._topics.by_text.get(topic)
            return await (self.topic_named(topic) if known is None else known).accept(request)
        except SulinaError as error:
            known = self._topics.by_text.get(topic)
            if known is not None:
                known.rejected(error)
            elif (reason := reject_reason(error)) is not None:
                self.pubsub.unplaced.rejected[reason] += 1
            raise

    async def publish(self, name: TopicName, request: PublishRequest) -> Published:
        """Append batches to one partition, all or none; return when they are as durable as the topic wants.

        Raises:
            LeaseExpired: the partition was lost meanwhile, and the outcome is unknown.
            SulinaError: nothing was appended.
        """
        accepted = await self.accept(str(name), request)
        return await accepted.wait()

    async def publish_records(
        self,
        name: TopicName,
        records: Sequence[StoredRecord],
        *,
        partition: int | None = None,
        txn_id: str | None = None,
        expected_version: int | None = None,
        schema_id: str | None = None,
    ) -> Published:
        """Append records in one batch. A record without a timestamp gets the time of now."""
        now_ms = int(self._clock.now() * 1000)
        stamped = [record if record.timestamp_ms >= 0 else replace(record, timestamp_ms=now_ms) for record in records]
        request = PublishRequest(
            encode(stamped),
            partition=partition,
            txn_id=txn_id,
            expected_version=expected_version,
            schema_id=schema_id,
            is_trusted=True,
        )
        return await self.publish(name, request)

    async def fetch(
        self,
        name: TopicName,
        partition: int,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        version: int | None = None,
        min_version: int | None = None,
        min_offset: int | None = None,
        wait_seconds: float = 0,
        epoch: int | None = None,
        stale: bool = False,
    ) -> Fetched:
        """Read batches from `offset` on, and wait for the first if the log ends there.

        `epoch` is that of the log in which everything before `offset` was read, if the reader knows it. `stale`: the
        reader takes what is here, also while another broker may own the partition, and have more.

        Raises:
            NotYet: `min_version`, or a record at `min_offset`, cannot be read within `wait_seconds`.
            PositionDiverged: something of what was read in that epoch was given up since.
            LeaseExpired: this broker has lost touch with the metadata store, and `stale` was not asked for.
        """
        await self.wait_for(
            name,
            partition,
            offset,
            version=version,
            min_version=min_version,
            min_offset=min_offset,
            wait_seconds=wait_seconds,
            epoch=epoch,
        )
        read = self.registry.topic(name).partition(partition)
        async with read.reading(stale=stale) as log:
            _check_position(log, name, partition, offset, epoch)
            found = await log.read(
                Offset(offset),
                max_bytes=min(max(max_bytes, 0), FETCH_BYTES_MAX),
                version=None if version is None else Version(version),
            )
        return Fetched(
            data=found.data,
            offset=offset,
            next_offset=found.next_offset,
            version=found.version,
            end_offset=found.end_offset,
            epoch=log.view.epoch,
            is_stale=read.is_stale,
        )

    async def wait_for(
        self,
        name: TopicName,
        partition: int,
        offset: int,
        *,
        version: int | None,
        min_version: int | None,
        min_offset: int | None,
        wait_seconds: float,
        epoch: int | None = None,
    ) -> None:
        """Wait for `min_version` and for a record at `min_offset`, then for one at `offset`, or until the time is over.

        Raises:
            NotYet: `min_version` or `min_offset` is not there when the time is over.
            PositionDiverged: something of what was read before `offset` in `epoch` was given up since.
        """
        self._serving.check()
        async with self.registry.topic(name).partition(partition).using() as log:
            _check_position(log, name, partition, offset, epoch)
            until = asyncio.get_running_loop().time() + wait_seconds
            if min_version is not None or min_offset is not None:
                await log.wait_for(
                    offset=None if min_offset is None else Offset(min_offset),
                    version=None if min_version is None else Version(min_version),
                    timeout_seconds=wait_seconds,
                )
            left_seconds = until - asyncio.get_running_loop().time()
            if left_seconds > 0 and version is None and offset == log.view.next_offset:
                try:
                    await log.wait_for(offset=Offset(offset), timeout_seconds=left_seconds)
                except NotYet:
                    self._serving.check()

    async def commits(self, name: TopicName, partition: int, start: int, end: int) -> list[Commit]:
        """Return the commits of versions [start, end), a thousand at most.

        Raises:
            InvalidInput: that is not a range of versions.
            LeaseExpired, NotOwner: another broker may own the partition, and have more.
        """
        if start < 0 or end < start:
            raise InvalidInput(f"[{start}, {end}) is not a range of versions")
        async with self.registry.topic(name).partition(partition).reading() as log:
            return await log.commits(Version(start), Version(min(end, start + COMMITS_MAX)))

    async def partition(self, name: TopicName, partition: int, *, stale: bool = False) -> PartitionInfo:
        """Return the offsets, version and segments of a partition.

        Raises:
            LeaseExpired: another broker may own the partition, and `stale` was not asked for.
        """
        return await self.registry.topic(name).partition(partition).info(stale=stale)

    async def locate(self, name: TopicName, partition: int, position: Position, *, stale: bool = False) -> int:
        """Return the offset that a position means now.

        Raises:
            LeaseExpired: another broker may own the partition, and `stale` was not asked for.
        """
        return await self.registry.topic(name).partition(partition).locate(position, stale=stale)

    # Subscribers

    def pubsub_metrics(self, name: TopicName | None) -> PubSubMetrics:
        """Return what became of messages on this node, of one topic or of all.

        Raises:
            TopicNotFound: there is no such topic.
        """
        return self.pubsub.metrics(None if name is None else self.registry.topic(name))

    def subscribers(self, name: TopicName) -> list[SubscriberInfo]:
        """Return the subscribers of the partitions that are served here.

        Raises:
            TopicNotFound, NotOwner: there is no such topic, or it is served elsewhere.
        """
        topic = self.registry.topic(name)
        topic.check_served()
        return self.pubsub.subscribers(topic)

    # Producers

    async def producers_of(self, name: TopicName) -> list[ProducerInfo]:
        """Return who publishes to a topic over a connection, at all brokers.

        Raises:
            TopicNotFound: there is no such topic.
        """
        self.registry.topic(name)
        return await self.producers.list(name)

    # Registered readers

    @run_to_completion
    async def put_reader(self, reader: str, name: TopicName, settings: ReaderSettings) -> tuple[ReaderInfo, bool]:
        """Register a reader, or store where it is now; return it, and whether it is new.

        Raises:
            ReaderAhead: it would go back, and it was not forced.
        """
        self._serving.check()
        return await self.registered_readers.put(reader, name, settings)

    async def reader(self, reader: str, name: TopicName) -> ReaderInfo:
        """Return the positions and the lag of a reader, as far as they are known here.

        Raises:
            ReaderNotFound: there is no such reader.
        """
        return await self.registered_readers.get(reader, name)

    async def readers(
        self, *, topic: TopicName | None = None, after: str | None = None, limit: int = 100
    ) -> ReaderPage:
        """Return a page of the readers of one topic, or of all, by name."""
        return await self.registered_readers.page(topic=topic, after=after, limit=limit)

    @run_to_completion
    async def delete_reader(self, reader: str, name: TopicName) -> None:
        """Delete a reader: it holds back nothing any more.

        Raises:
            ReaderNotFound: there is no such reader.
        """
        self._serving.check()
        await self.registered_readers.delete(reader, name)

    def _lags(self) -> Iterator[tuple[str, str, int]]:
        # Asked for in a thread, while others come and go.
        for topic in self._topics:
            for name, subscription in list(topic.subscriptions.items()):
                lag = subscription.lag()
                if lag is not None:
                    yield str(topic.name), name, lag


def _check_position(log: Log, topic: TopicName, partition: int, offset: int, epoch: int | None) -> None:
    """Check that a reader that has read everything before `offset` in `epoch` has read what is still in the log.

    Raises:
        PositionDiverged: some of that was given up since.
    """
    continues_at = None if epoch is None else log.epochs.continuation(offset, epoch)
    if epoch is not None and continues_at is not None:
        raise PositionDiverged(
            topic=str(topic), partition=partition, offset=offset, epoch=epoch, continues_at=continues_at
        )


def _name_of(topic: Topic) -> str:
    return str(topic.name)
