"""The broker of one node: what every listener, and the node itself, asks for."""

import asyncio
import contextlib
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial

import structlog
from msgspec.structs import replace

from sulina.broker.archives import Archives
from sulina.broker.catalogue import Outdated
from sulina.broker.cluster.options import ClusterOptions
from sulina.broker.cluster.view import Touched
from sulina.broker.consumer import Attachment, Consumer
from sulina.broker.member import ClusterMember
from sulina.broker.options import BrokerOptions
from sulina.broker.other_owners import OtherOwners
from sulina.broker.partition import Log
from sulina.broker.producers import Producers
from sulina.broker.pubsub.hub import Hub
from sulina.broker.pubsub.totals import Taken
from sulina.broker.readers import Readers
from sulina.broker.standing import Standing
from sulina.broker.subscription import Subscription
from sulina.broker.topic import Accepted, Topic, refuse_consumers
from sulina.broker.troubles import first_of_each_kind, late_consumers, partition_troubles, put_aside_troubles
from sulina.broker.whole import whole
from sulina.core.cluster.entries import Registration
from sulina.core.delivery.cursor import Cursor
from sulina.core.delivery.pubsub import SubscriberInfo
from sulina.core.delivery.rejects import reject_reason
from sulina.core.log.commit import Commit
from sulina.core.log.position import LATEST, Position
from sulina.core.log.publish_request import PublishRequest
from sulina.core.records.record import StoredRecord, encode
from sulina.errors import (
    AlreadyExists,
    InvalidInput,
    LimitReached,
    NotReliable,
    NotServing,
    NotYet,
    PositionDiverged,
    SubscriptionNotFound,
    SulinaError,
    TopicNotFound,
)
from sulina.ports import Clock, Files, MetadataStore
from sulina.storage.partition_log import LogThreads
from sulina.types import Offset, PartitionName, TopicName, Version, checked_subscription
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
    SubscriptionInfo,
    SubscriptionSettings,
    Trouble,
    TroubleKind,
)

COMMITS_MAX = 1000
FETCH_BYTES_MAX = 16 << 20
REOPEN_LOOK_SECONDS = 1.0  # between two looks at logs that have stopped

_logger = structlog.get_logger("sulina.broker")


class Broker(ClusterMember):
    """`start` it, serve, then `stop` it."""

    def __init__(
        self,
        metadata: MetadataStore,
        options: BrokerOptions,
        *,
        threads: LogThreads,
        files: Files | None = None,
        clock: Clock | None = None,
        standing: Standing | None = None,
        archives: Archives | None = None,
    ) -> None:
        super().__init__(
            metadata, options, threads=threads, files=files, clock=clock, standing=standing, archives=archives
        )
        self._readers = Readers(
            metadata,
            self._catalogue,
            options,
            self._topics.get,
            clock=self._clock,
            shown_time=self._timekeeper.now,
            events=self.events,
        )
        self.producers = Producers(
            metadata, self._catalogue, broker_id=options.broker_id, present=self._present, clock=self._clock
        )
        self.hub = Hub(options.broker_id, self, config=options.pubsub, clock=self._clock, events=self.events)
        self._unplaced = Taken()  # rejects that are of no topic
        self._tasks: list[asyncio.Task[None]] = []
        self._started_at = self._clock.monotonic()
        self.metrics.collect_lag(self._lags)
        self.metrics.collect_deliveries(self.hub.delivered)
        self.metrics.collect_batches(lambda: list(self.hub.batches_sent.items()))

    # Its life

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests: it neither starts nor stops."""
        return self._state == "ready"

    @property
    def unready(self) -> str | None:
        """Why it does not serve what it should; None: it does."""
        if not self.is_ready:
            return f"it is {self._state}"
        cut_off = None if self._standing is None else self._standing.cut_off()
        if cut_off is not None:
            return cut_off.what
        if not (stopped := self._logs.stopped()):
            return None
        name, reason = min(stopped.items())
        return f"{len(stopped)} of its partitions take no records, among them {name}: {reason}"

    async def start(self) -> None:
        """Load what exists. Logs are opened when they are first used."""
        await self._load()
        self._begin()

    async def join(self, registration: Registration, options: ClusterOptions) -> None:
        """Instead of `start`: be one of several brokers. InvalidSettings when another has this one's name."""
        self._tasks += await self._join(registration, options)
        self._begin()
        self._cluster.view.listen(self._owners_changed)

    def _owners_changed(self, touched: Touched) -> None:
        if touched.partitions or touched.brokers:
            self.hub.topics_changed()

    async def _sync_topic(self, name: TopicName) -> None:
        before = self._topics.get(name)
        await super()._sync_topic(name)
        if before is not None and self._topics.get(name) is not before:
            self._unplaced.add(before.taken)  # of a topic that is gone
        self.hub.topics_changed()

    def follow_peers(self, tell: Callable[[Mapping[str, str]], None]) -> None:
        """Tell where the brokers of the cluster take connections of others, now and whenever that changes."""
        view = self._cluster.view

        def changed(touched: Touched | None = None) -> None:
            if touched is None or touched.brokers:
                tell({name: held.value.peer for name, held in view.registrations.items() if held.value.peer})

        view.listen(changed)
        changed()

    def _begin(self) -> None:
        self._writer.start()
        self.producers.start()
        self.hub.start()
        self._tasks.append(asyncio.create_task(self._retain_regularly(), name="retention"))
        self._tasks.append(asyncio.create_task(self._reopen_regularly(), name="reopen-logs"))
        self._state = "ready"
        self.events.emit("broker_started", broker_id=self.options.broker_id, topics=len(self._topics))

    def drain(self) -> None:
        """Refuse what is new, while what was taken is being finished."""
        self._state = "stopping"

    async def stop(self) -> None:
        """Finish what was taken, write the cursors, let go of the logs."""
        self.drain()
        if self.changes:
            await asyncio.wait(set(self.changes))
        await self.producers.stop()
        await self._leave()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        error = NotServing(reason="the node is stopping")
        async with self._lock:
            await self.hub.close()
            for topic in self._topics.values():
                await topic.stop_subscriptions(error)
            await self._writer.close()
            await asyncio.gather(*(topic.close(error) for topic in self._topics.values()))
        self.events.emit("broker_stopped", broker_id=self.options.broker_id)
        self.events.close()

    def info(self) -> NodeInfo:
        """This node."""
        return NodeInfo(
            broker_id=self.options.broker_id,
            version=self.options.software,
            is_ready=self.unready is None,
            topics=len(self._topics),
            connections=self.counts.connections,
            uptime_seconds=round(self._clock.monotonic() - self._started_at, 3),
            objects=self._archives.location if self._archives is not None else None,
            objects_endpoint=self._archives.endpoint if self._archives is not None else None,
        )

    async def inspect(self) -> NodeInfo:
        """This node, with its disk and all that is not as it should be."""
        orphaned, aside = await self._logs.put_aside()
        disk = await asyncio.to_thread(shutil.disk_usage, self.options.data)
        cluster = None if self._standing is None else self._standing.cluster
        found = [*self._troubles(), *put_aside_troubles(orphaned, aside)]
        counts = Counter(trouble.kind for trouble in found)
        return replace(
            self.info(),
            store_id=None if cluster is None else cluster.membership.store_id,
            disk_bytes=disk.total,
            disk_free_bytes=disk.free,
            troubles=first_of_each_kind(found),
            trouble_counts=dict(counts),
        )

    def _troubles(self) -> list[Trouble]:
        """What is not as it should be, as far as the node knows without looking at its disk."""
        found = []
        if not self.is_ready:
            found.append(Trouble(kind=TroubleKind.NOT_SERVING, what=f"it is {self._state}"))
        elif self._standing is not None and (cut_off := self._standing.cut_off()) is not None:
            found.append(cut_off)
        not_served = {} if self._standing is None else self._standing.troubles
        found += partition_troubles(
            self._logs.refused(), self._logs.stopped(), not_served, full=self._logs.without_room()
        )
        for text, topic in sorted(self._by_text.items()):
            for name, subscription in sorted(topic.subscriptions.items()):
                found += late_consumers(text, name, subscription.members.present)
        return found

    async def _retain_regularly(self) -> None:
        await self._timekeeper.look()
        while True:
            await asyncio.sleep(self.options.retention_interval_seconds)
            await self.retain()

    async def _reopen_regularly(self) -> None:
        while True:
            await asyncio.sleep(REOPEN_LOOK_SECONDS)
            try:
                await self._logs.reopen_stopped()
            except Exception:
                _logger.exception("logs_not_reopened")  # whatever it is: the others must be looked at again

    async def retain(self) -> int:
        """Let topics forget what their policies say and no registered reader needs; how many segments went."""
        shown = await self._timekeeper.look()
        await self._readers.look()
        removed = await self._logs.retain(list(self._topics.values()), self._readers.keep_from, shown)
        self.metrics.retention_rounds.inc()
        return removed

    # Records

    async def accept(self, topic: str, request: PublishRequest) -> Accepted:
        """Take batches without waiting for them to be durable: the answer's future says when they are.

        Raises:
            SulinaError: nothing was appended.
        """
        self._check_serving()
        if topic not in self._by_text:
            await self.hear_of(TopicName.parse(topic))
        try:
            return await self.topic_named(topic).accept(request)
        except SulinaError as error:
            known = self._by_text.get(topic)
            if known is not None:
                known.rejected(error)
            elif (reason := reject_reason(error)) is not None:
                self._unplaced.rejected[reason] += 1
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
        """Append records, in one batch. Those without a timestamp get the time of now."""
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
        """Read batches from `offset` on, waiting for the first if there is none yet.

        `epoch` is that of the log in which everything before `offset` was read, if the reader knows it. `stale`: what
        is here will do, also while another broker may own the partition, and have more.

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
        read = self._topic(name).partition(partition)
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
        self._check_serving()
        async with self._topic(name).partition(partition).using() as log:
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
                    self._check_serving()

    async def commits(self, name: TopicName, partition: int, start: int, end: int) -> list[Commit]:
        """The commits of versions [start, end), a thousand at most."""
        if start < 0 or end < start:
            raise InvalidInput(f"[{start}, {end}) is not a range of versions")
        async with self._topic(name).partition(partition).reading() as log:
            return await log.commits(Version(start), Version(min(end, start + COMMITS_MAX)))

    async def partition(self, name: TopicName, partition: int, *, stale: bool = False) -> PartitionInfo:
        """Its offsets, version and segments. LeaseExpired, unless what is `stale` will do."""
        return await self._topic(name).partition(partition).info(stale=stale)

    async def locate(self, name: TopicName, partition: int, position: Position, *, stale: bool = False) -> int:
        """The offset that a position means now. LeaseExpired, unless what is `stale` will do."""
        return await self._topic(name).partition(partition).locate(position, stale=stale)

    # Subscriptions

    async def put_subscription(
        self, name: TopicName, subscription: str, settings: SubscriptionSettings
    ) -> tuple[SubscriptionInfo, bool]:
        """Create it, its cursors where `start` says; whether it is new. AlreadyExists when it is of another kind."""
        topic = self._topic(name)
        topic.check_served()
        made, is_new = await self._subscription(topic, checked_subscription(subscription), settings)
        if is_new:
            await self._cursors_made(topic, subscription)
        if made.settings.mode != settings.mode:
            raise AlreadyExists(
                kind="subscription", name=subscription, difference=f"it is {made.settings.mode}, not {settings.mode}"
            )
        return await made.info(), is_new

    @whole
    async def _subscription(
        self, topic: Topic, subscription: str, settings: SubscriptionSettings
    ) -> tuple[Subscription, bool]:
        """The subscription, made if there is none; whether it is new."""
        if not topic.is_reliable:
            raise NotReliable(topic=str(topic.name))
        known = topic.subscriptions.get(subscription)
        is_new = False
        if known is None:
            # What is new from now on is decided now, not when an owner hears of it.
            is_latest = Position.parse(settings.start) == LATEST
            ends = await self._end_offsets(topic) if is_latest else {}
            async with self._changing():
                make = partial(
                    self._create_subscription, topic.stored.topic_id, topic.name, subscription, settings, ends
                )
                is_new = await self._agreed(topic.name, make)
                await self._sync_topic(topic.name)
                topic, known = self._topic(topic.name), self._known(topic.name, subscription)
        await self._make_cursors(topic)
        if is_new:
            self.events.emit("subscription_added", topic.name, subscription=subscription, mode=str(settings.mode))
        return known, is_new

    async def _create_subscription(
        self,
        topic_id: str,
        name: TopicName,
        subscription: str,
        settings: SubscriptionSettings,
        starts: Mapping[int, int],
    ) -> bool:
        topic = self._topic(name)
        if topic.stored.topic_id != topic_id:
            raise TopicNotFound(topic=str(name))
        if subscription in topic.subscriptions:
            return False
        if self.counts.subscriptions >= self.options.subscriptions_max:
            raise LimitReached(kind="subscriptions", limit=self.options.subscriptions_max)
        if self.counts.cursors + len(topic.partitions) > self.options.cursors_max:
            raise LimitReached(kind="cursors", limit=self.options.cursors_max)
        cursors = {number: Cursor(offset) for number, offset in starts.items()}
        await self._catalogue.create_subscription(name, subscription, settings, topic.stored.partitions, cursors)
        return True

    async def subscription(self, name: TopicName, subscription: str) -> SubscriptionInfo:
        """As far as its partitions are served here. SubscriptionNotFound, NotOwner."""
        self._topic(name).check_served()
        return await self._known(name, subscription).info()

    async def subscriptions(self, name: TopicName) -> list[SubscriptionInfo]:
        """All of a topic, by name."""
        self._topic(name).check_served()
        known = sorted(self._topic(name).subscriptions.items())
        return [await subscription.info() for _, subscription in known]

    @whole
    async def delete_subscription(self, name: TopicName, subscription: str, *, force: bool = False) -> None:
        """With its cursors. SubscriptionBusy when consumers are attached at any broker, unless forced.

        OwnersNotReached when a broker that may have consumers does not answer.
        """
        self._known(name, subscription)
        self._topic(name).check_served()
        if not force:
            await self._check_idle(name, subscription)
        async with self._changing():
            topic = self._topic(name)
            if not force:
                refuse_consumers(name, topic.consumers(), subscription)  # one may have come while others were asked
            await self._agreed(name, partial(self._delete_subscription, name, subscription))
            await self._sync_topic(name)
            with contextlib.suppress(Outdated):
                await self._catalogue.delete_cursors(name, subscription, topic.stored.partitions)
        self.events.emit("subscription_removed", name, subscription=subscription)

    async def _delete_subscription(self, name: TopicName, subscription: str) -> None:
        self._known(name, subscription)
        await self._catalogue.delete_subscription(name, subscription)

    @whole
    async def seek(
        self, name: TopicName, subscription: str, position: Position, *, partition: int | None = None
    ) -> SubscriptionInfo:
        """Move it, in one partition or in all; its consumers are let go and come back."""
        self._check_serving()
        self._topic(name).check_served()
        known = self._known(name, subscription)
        await known.seek(position, partition)
        self.events.emit("subscription_moved", name, subscription=subscription, position=str(position))
        return await known.info()

    async def seek_everywhere(self, name: TopicName, subscription: str, position: Position) -> SubscriptionInfo:
        """Move it in all partitions, at whichever brokers they are.

        Raises:
            OwnersNotReached: it names the partitions in which it was not moved.
        """
        topic = self._topic(name)
        info = await self.seek(name, subscription, position)
        here = {cursor.partition for cursor in info.cursors}
        elsewhere = [place.name.partition for place in topic.places if place.name.partition not in here]
        what = f"subscription {subscription} was moved in other partitions only; seek again"

        def ask(others: OtherOwners) -> Callable[[PartitionName], Awaitable[SubscriptionInfo]]:
            return lambda partition: others.seek(partition, subscription, position)

        infos = await self._ask_owners(topic, elsewhere, ask, what)
        moved = [cursor for number, each in infos.items() for cursor in each.cursors if cursor.partition == number]
        cursors = sorted([*info.cursors, *moved], key=lambda cursor: cursor.partition)
        return replace(info, cursors=cursors, lag=sum(cursor.lag for cursor in cursors))

    async def consumers(self, name: TopicName, partition: int) -> dict[str, list[str]]:
        """Return the ids of consumers that are attached here, by subscription. NotOwner of the partition."""
        topic = self._topic(name)
        topic.check_number(partition)
        topic.places[partition].check()
        return topic.consumers()

    def _known(self, name: TopicName, subscription: str) -> Subscription:
        known = self._topic(name).subscriptions.get(checked_subscription(subscription))
        if known is None:
            raise SubscriptionNotFound(topic=str(name), subscription=subscription)
        return known

    async def attach(
        self, name: TopicName, subscription: str, settings: SubscriptionSettings, consumer: Consumer
    ) -> Attachment:
        """Send records to a consumer from now on; the subscription is made if there is none."""
        self._check_serving()
        topic = self._topic(name)
        topic.check_served()
        checked_subscription(subscription)
        if self.counts.consumers >= self.options.consumers_max:
            raise LimitReached(kind="consumers", limit=self.options.consumers_max)
        if topic.is_reliable:
            known, _ = await self._subscription(topic, subscription, settings)
            await known.attach(consumer, settings)
            attachment = Attachment(consumer, known, partial(known.detach, consumer))
        else:
            topic.attach_passing(subscription, settings, consumer)
            attachment = Attachment(consumer, None, partial(topic.detach_passing, subscription, consumer))
        self.counts.consumers += 1
        self.metrics.consumers.set(self.counts.consumers)
        self.events.emit("consumer_attached", name, subscription=subscription, consumer=consumer.name)
        return attachment

    @whole
    async def detach(self, name: TopicName, attachment: Attachment) -> None:
        """The consumer's connection has ended, or it has had enough."""
        self.counts.consumers -= 1
        self.metrics.consumers.set(self.counts.consumers)
        await attachment.leave()
        self.events.emit("consumer_detached", name, consumer=attachment.consumer.name)

    # Subscribers

    def pubsub_metrics(self, name: TopicName | None) -> PubSubMetrics:
        """What became of messages, of one topic or of all, on this node. TopicNotFound."""
        return self.hub.metrics(None if name is None else self._topic(name), self._unplaced)

    def subscribers(self, name: TopicName) -> list[SubscriberInfo]:
        """Of the partitions that are served here. TopicNotFound, NotOwner."""
        topic = self._topic(name)
        topic.check_served()
        return self.hub.subscribers(topic)

    # Producers

    async def producers_of(self, name: TopicName) -> list[ProducerInfo]:
        """Return who publishes to a topic over a connection, at all brokers. TopicNotFound."""
        self._topic(name)
        return await self.producers.list(name)

    # Registered readers

    @whole
    async def put_reader(self, reader: str, name: TopicName, settings: ReaderSettings) -> tuple[ReaderInfo, bool]:
        """Register it, or say where it is now; whether it is new. ReaderAhead when it would go back, unless forced."""
        self._check_serving()
        return await self._readers.put(reader, name, settings)

    async def reader(self, reader: str, name: TopicName) -> ReaderInfo:
        """Its positions and lag, as far as they are known here. ReaderNotFound."""
        return await self._readers.get(reader, name)

    async def readers(
        self, *, topic: TopicName | None = None, after: str | None = None, limit: int = 100
    ) -> ReaderPage:
        """Of one topic or of all, by name, some at a time."""
        return await self._readers.page(topic=topic, after=after, limit=limit)

    @whole
    async def delete_reader(self, reader: str, name: TopicName) -> None:
        """It holds nothing back any more. ReaderNotFound."""
        self._check_serving()
        await self._readers.delete(reader, name)

    def _lags(self) -> Iterator[tuple[str, str, int]]:
        # Asked for in a thread, while others come and go.
        for text, topic in list(self._by_text.items()):
            for name, subscription in list(topic.subscriptions.items()):
                lag = subscription.lag()
                if lag is not None:
                    yield text, name, lag


def _check_position(log: Log, topic: TopicName, partition: int, offset: int, epoch: int | None) -> None:
    """PositionDiverged, if a reader that has read everything before `offset` in `epoch` has read what is not there."""
    continues_at = None if epoch is None else log.epochs.continuation(offset, epoch)
    if epoch is not None and continues_at is not None:
        raise PositionDiverged(
            topic=str(topic), partition=partition, offset=offset, epoch=epoch, continues_at=continues_at
        )
