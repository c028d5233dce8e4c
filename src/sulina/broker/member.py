"""A broker among others: how it joins and leaves, what it says of the cluster, and what an operator may ask of it."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TypeVar

import msgspec
import structlog

from sulina.broker.archives import Archives
from sulina.broker.catalogue import Outdated
from sulina.broker.cluster.cluster import Cluster
from sulina.broker.cluster.memory import ClusterMemory
from sulina.broker.cluster.options import ClusterOptions
from sulina.broker.cluster.view import Ownership
from sulina.broker.consumer import ConsumerConnection
from sulina.broker.known_topics import AGREE_TRIES
from sulina.broker.options import BrokerOptions
from sulina.broker.other_owners import OtherOwners
from sulina.broker.owner import Owner
from sulina.broker.standing import Standing
from sulina.broker.stored_topic import StoredTopic
from sulina.broker.subscription import Subscription
from sulina.broker.timekeeper import Timekeeper
from sulina.broker.topic import Topic, refuse_consumers
from sulina.broker.topics import Topics
from sulina.core.cluster import keys
from sulina.core.cluster.entries import BrokerMode, GivenUp, LoadReport, Registration, UnloadStep
from sulina.core.delivery.holder import Admission, Holder, admit
from sulina.core.log.position import LATEST
from sulina.core.topic import DeliveryGuarantee, TopicSettings
from sulina.errors import (
    ArchiveFailed,
    BrokerNotFound,
    Disconnected,
    InvalidSettings,
    NotServing,
    OwnersNotReached,
    SubscriptionBusy,
    SulinaError,
)
from sulina.ports import NO_REVISION, Clock, Compare, Files, MetadataStore, Put, StoreSpace
from sulina.storage.partition_log import LogThreads
from sulina.types import PartitionName, TopicName
from sulina.wire.messages import (
    BrokerInfo,
    ClusterInfo,
    MetadataInfo,
    PartitionPlacement,
    Placement,
    Rebalanced,
    TopicState,
    UnloadInfo,
)

PLACED_SECONDS = 10.0  # to wait for owners of partitions that are about to have one
REFUSED_SECONDS = 2.0  # to hear whether another owner refuses an unload
OBJECTS_SECONDS, OBJECTS_PAUSE_SECONDS = 20.0, 0.5  # for the object store to answer when a broker starts
REPORT_SECONDS = 1.0  # between two words on how far the logs have come
TIDY_EVERY, LEFTOVERS_EVERY = 5, 300  # such rounds
UNHEARD_SECONDS, UNHEARD_MAX = 0.05, 1000  # that a topic is known not to exist; how many such
LOOKUPS_MAX = 16  # of topics that are not known here, at a time; whoever comes then is told that there is none
NEWS_SECONDS = 0.5  # for a watch to bring a topic that exists, before it is fetched
CURSORS_LOOKS, CURSORS_SECONDS = 100, 0.02  # whether others have made theirs, and between two looks
OWNERS_TRIES = 3  # to ask owners that are the same before and after

Answer = TypeVar("Answer")

_logger = structlog.get_logger("sulina.member")


class ClusterMember(Topics):
    """Everything here works on a node that is alone too, which is then the only broker."""

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
        self._owner: Owner | None = None
        self._memory: ClusterMemory | None = None
        self._timekeeper = Timekeeper(metadata, clock=self._clock, events=self.events, others=self._other_clocks)
        self.metrics.collect_clock(lambda: self._timekeeper.ahead_seconds)
        self._lookups = 0
        self._unheard: dict[TopicName, float] = {}  # topics that there are not, and until when nobody looks again
        self._news = asyncio.Event()  # set, and replaced, when a topic has come or changed
        self._sampled = (0.0, 0, 0.0)  # when, the bytes published until then, and the rate before

    @property
    def _cluster(self) -> Cluster:
        if self._standing is None or self._standing.cluster is None:
            raise InvalidSettings("this node is not part of a cluster: start it with --metadata etcd://…")
        return self._standing.cluster

    def _other_clocks(self) -> list[float]:
        if self._standing is None or self._standing.cluster is None:
            return []
        return self._standing.cluster.view.clocks(but=self.options.broker_id)

    # Joining and leaving

    async def _join(self, registration: Registration, options: ClusterOptions) -> list[asyncio.Task[None]]:
        """Become a member; the tasks that follow what others do."""
        assert self._standing is not None
        memory = ClusterMemory(
            self._metadata,
            broker_id=registration.broker_id,
            store_id=registration.store_id,
            files=self._files,
            data=self.options.data,
            archives=self._archives,
            entries=self._remembered,
            events=self.events,
        )
        await memory.join(await self._patiently(self._archives.seen) if self._archives is not None else [])
        await self._check_objects()
        self._catalogue.is_followed = True
        namespaces, topics = await self._load()
        tasks = [
            asyncio.create_task(self._follow(keys.NAMESPACES, namespaces), name="follow namespaces"),
            asyncio.create_task(self._follow(keys.TOPICS, topics), name="follow topics"),
        ]
        self._owner = Owner(
            standing=self._standing,
            catalogue=self,
            logs=self._logs,
            options=self.options,
            events=self.events,
            clock=self._clock,
            metadata=self._metadata,
        )
        cluster = Cluster(
            self._metadata,
            registration=registration,
            assignee=self._owner,
            topics=self,
            events=self.events,
            clock=self._clock,
            options=options,
            verify=memory.verify,
            failpoints=self.options.failpoints,
        )
        self._standing.cluster = cluster
        self._memory = memory
        cluster.view.listen(lambda touched: memory.changed() if touched.partitions else None)
        try:
            await cluster.start()
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
        tasks.append(asyncio.create_task(memory.run(), name="cluster memory"))
        tasks.append(asyncio.create_task(self._tidy_regularly(), name="tidy"))
        tasks.append(asyncio.create_task(self._let_go_of_leftovers(), name="leftovers"))
        return tasks

    def _remembered(self) -> dict[str, bytes] | None:
        """Return what must outlive the metadata store, by key: topics and their cursors here, epochs, delete marks, and
        the time that has been shown."""
        if self._standing is None or self._standing.cluster is None:
            return None
        view = self._standing.cluster.view
        entries = self._catalogue.entries()
        for topic in self._topics.values():
            for subscription in topic.subscriptions.values():
                entries |= subscription.stored_cursors()
        if self._timekeeper.stored is not None:
            entries[keys.SHOWN_TIME] = self._timekeeper.stored
        entries |= {keys.epoch(name): msgspec.json.encode(held.value) for name, held in view.epochs.items()}
        entries |= {keys.deleted(topic_id): msgspec.json.encode(mark.value) for topic_id, mark in view.deleted.items()}
        return entries

    async def _check_objects(self) -> None:
        """A broker with another object store would not find what the others have archived. InvalidSettings."""
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
        """Ask the object store, which may be away for a moment just now. ArchiveFailed."""
        deadline = self._clock.monotonic() + OBJECTS_SECONDS
        while True:
            try:
                return await asyncio.to_thread(ask)
            except ArchiveFailed as error:
                if self._clock.monotonic() > deadline:
                    raise
                _logger.warning("object_store_away", error=str(error))
                await asyncio.sleep(OBJECTS_PAUSE_SECONDS)

    def _present(self) -> Collection[str]:
        """Return the names of the brokers that are there."""
        if self._standing is None:
            return (self.options.broker_id,)
        return self._cluster.view.registrations

    async def _leave(self) -> None:
        """Give back what is ours in good order, as far as there is time, and be gone."""
        if self._standing is not None and self._standing.cluster is not None:
            await self._standing.cluster.announce_leaving()
        if self._owner is not None:
            await self._owner.stop(self.options.stop_seconds)
        if self._memory is not None:
            try:
                async with asyncio.timeout(self.options.stop_seconds):
                    await self._memory.close()
            except (SulinaError, OSError, TimeoutError) as error:
                _logger.warning("cluster_not_remembered", error=str(error) or "no answer in time")
        if self._standing is not None and self._standing.cluster is not None:
            await self._standing.cluster.stop()

    async def _delete_remains(self, name: TopicName, stored: StoredTopic, mark: Compare) -> None:
        if self._standing is not None:
            await self._cluster.delete_topic(name, stored.partitions, mark)  # its owners let go
        await self._logs.delete_archives(name, stored)
        await super()._delete_remains(name, stored, mark)

    async def _create_topic(self, name: TopicName, settings: TopicSettings) -> None:
        if self._standing is not None:
            # A leader that had not heard of a delete may have given what is gone to somebody.
            gone = Compare(keys.delivery(name), NO_REVISION)
            await self._cluster.delete_topic(name, settings.partitions, gone)
        await super()._create_topic(name, settings)

    async def _tidy_regularly(self) -> None:
        """Say how far the logs have come. The leader finishes what others began to delete, and could not."""
        for number in itertools.count(1):
            await asyncio.sleep(REPORT_SECONDS)
            if not self._cluster.membership.may_ack():
                await self._dismiss_clients()
            self._logs.report()
            if number % LEFTOVERS_EVERY == 0:
                await self._let_go_of_leftovers()
            if number % TIDY_EVERY or self._cluster.election.revision is None:
                continue
            for name in list(self._deleting):
                try:
                    await self._finish_delete(name)
                except (SulinaError, OSError) as error:
                    self.events.emit("topic_not_deleted", name, reason=str(error))

    async def _dismiss_clients(self) -> None:
        """While others may own what is ours, nothing is delivered here: whoever waits for records looks elsewhere."""
        assert self._standing is not None
        error = self._standing.lapsed()
        for topic in list(self._topics.values()):
            await topic.dismiss(error)

    async def _sync_topic(self, name: TopicName) -> None:
        before = self._topics.get(name)
        await super()._sync_topic(name)
        after = self._topics.get(name)
        news, self._news = self._news, asyncio.Event()
        news.set()
        if before is not after and self._memory is not None:
            self._memory.changed()
        if before is not after and self._standing is not None and self._standing.cluster is not None:
            self._standing.cluster.topics_changed(
                [place.name for topic in (before, after) if topic is not None for place in topic.places]
            )
            if self._owner is not None and after is not None:
                self._owner.topic_came(after)

    async def _let_go_of_leftovers(self) -> None:
        """Directories of partitions that others serve by now."""
        view = self._cluster.view
        for partition in await self._logs.found():
            topic, owned = self._topics.get(partition.topic), view.owner(partition)
            if topic is not None and owned is not None and owned.broker_id != self.options.broker_id:
                try:
                    await self._logs.let_go(partition, topic.stored.topic_id)
                except (SulinaError, OSError) as error:
                    _logger.warning("leftover_not_let_go", partition=str(partition), error=str(error))
        await self._remove_deleted()
        if self._cluster.election.revision is not None:
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
                _logger.warning("leftover_not_let_go", partition=str(partition), error=str(error))

    # What the cluster and the owner ask

    def is_reliable(self, partition: PartitionName) -> bool | None:
        """Whether its topic is a log; None when there is no such topic."""
        topic = self._topics.get(partition.topic)
        if topic is None or partition.partition >= topic.stored.partitions:
            return None
        return topic.stored.delivery == DeliveryGuarantee.RELIABLE

    def topic_id(self, partition: PartitionName) -> str | None:
        """Return the id of its topic; None when there is no such topic."""
        topic = self._topics.get(partition.topic)
        return topic.stored.topic_id if topic is not None and partition.partition < topic.stored.partitions else None

    def partitions(self) -> Iterable[PartitionName]:
        """Of all topics that exist and are not being deleted."""
        return [place.name for topic in self._topics.values() for place in topic.places]

    def owner_of(self, partition: PartitionName) -> str | None:
        """The broker that serves it, if it is there."""
        if self._standing is None or self._standing.cluster is None:
            return self.options.broker_id
        owned = self._standing.cluster.view.owner(partition)
        return None if owned is None else owned.broker_id

    def known_topics(self) -> Iterable[Topic]:
        """All of them, as far as they are known here."""
        return list(self._topics.values())

    def topic_if_known(self, name: TopicName) -> Topic | None:
        """None: there is none, as far as is known here."""
        return self._topics.get(name)

    async def topic_when_known(self, name: TopicName, seconds: float) -> Topic | None:
        """As soon as it is known here; None: it is not in so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while name not in self._topics:
                    await self._news.wait()
        return self._topics.get(name)

    async def fetch_topic(self, name: TopicName) -> Topic | None:
        """As the metadata store has it now."""
        await self._fetch(name)
        return self._topics.get(name)

    async def remember_topic(self, topic: Topic) -> None:
        """Return when the disk of this broker remembers the topic, so that it outlives the metadata store."""
        if self._memory is not None:
            await self._memory.ensure(keys.delivery(topic.name), msgspec.json.encode(topic.stored).decode())

    async def hear_of(self, name: TopicName) -> None:
        """See to it that a topic is known here if it exists: another broker may have made it a moment ago."""
        if name in self._topics or self._standing is None or self._state != "ready":
            return
        now = self._clock.monotonic()
        if now < self._unheard.get(name, 0.0) or self._lookups >= LOOKUPS_MAX:
            return  # it was looked up just now, and there was none
        self._lookups += 1
        try:
            entry = await self._metadata.get(keys.delivery(name))
            if entry is not None and not msgspec.json.decode(entry.value, type=StoredTopic).is_deleting:
                await self.topic_when_known(name, NEWS_SECONDS) or await self.fetch_topic(name)
                return
        except (SulinaError, OSError, msgspec.DecodeError) as error:
            _logger.warning("topic_not_looked_up", topic=str(name), error=str(error))
        finally:
            self._lookups -= 1
        if len(self._unheard) >= UNHEARD_MAX:
            self._unheard.clear()
        self._unheard[name] = now + UNHEARD_SECONDS

    async def take_cursors(self, topic: Topic, partition: int) -> None:
        """Give every subscription its cursor in a partition that has become ours."""
        await self._make_cursors(topic, only=partition)

    def load_report(self) -> LoadReport:
        """How much there is to do."""
        here = [(topic, sum(place.is_here for place in topic.places)) for topic in self._topics.values()]
        return LoadReport(
            broker_id=self.options.broker_id,
            at_ms=int(self._clock.now() * 1000),
            partitions=sum(count for _, count in here),
            topics=sum(1 for _, count in here if count),
            connections=self.counts.connections,
            consumers=self.counts.consumers,
            published_bytes_per_second=self._published_rate(),
            clock_ahead_seconds=round(self._timekeeper.ahead_seconds, 1),
        )

    def _published_rate(self) -> float:
        """Bytes a second since it was last asked for, a second ago or longer."""
        now, count = self._clock.monotonic(), self.counts.published_bytes
        since, before, _ = self._sampled
        if now - since >= 1:
            self._sampled = (now, count, (count - before) / (now - since))
        return self._sampled[2]

    async def _placed(self, topic: Topic) -> None:
        if self._standing is not None:
            names = [place.name for place in topic.places]
            await self._cluster.view.wait_for(
                lambda view: all(view.placement(name).url is not None for name in names), PLACED_SECONDS
            )

    async def _cursors_made(self, topic: Topic, subscription: str) -> None:
        """Return when the owners of all partitions have made the cursors of a new subscription, if they do soon."""
        if self._standing is None:
            return
        for _ in range(CURSORS_LOOKS):
            if len(await self._catalogue.cursors(topic.name, subscription)) == topic.stored.partitions:
                return
            await asyncio.sleep(CURSORS_SECONDS)

    # What needs every owner

    async def _check_idle(self, name: TopicName, subscription: str | None = None) -> None:
        await super()._check_idle(name, subscription)
        if self._standing is not None:
            what = "whether consumers are attached is not known, so nothing was deleted; try again, or force it"
            refuse_consumers(name, await self._consumers_elsewhere(name, what), subscription)

    async def _consumers_elsewhere(self, name: TopicName, what: str) -> dict[str, list[str]]:
        """Return the ids of consumers that are attached at other owners, by subscription.

        Raises:
            OwnersNotReached: some did not answer; `what` says what that is to whoever asks.
        """
        owners: dict[int, Ownership] = {}
        for _ in range(OWNERS_TRIES):
            topic, owners = self._topic(name), await self._owners(name)
            asked = {at.broker_id: number for number, at in owners.items() if at.broker_id != self.options.broker_id}
            found = await self._ask_owners(topic, asked.values(), lambda others: others.consumers, what)
            if owners == await self._owners(name):
                together: dict[str, list[str]] = {}
                for consumers in found.values():
                    for subscription, attached in consumers.items():
                        together[subscription] = [*together.get(subscription, ()), *attached]
                return together
            # A consumer may have moved along, from who had not been asked to who had.
        raise OwnersNotReached(topic=str(name), partitions=owners, what=what, reason="they keep moving")

    async def _claim(self, topic: Topic, subscription: Subscription, consumer: ConsumerConnection) -> None:
        """Make a consumer the holder of a subscription, unless the one that there is is attached at any owner.

        SubscriptionBusy when it is, NotServing while that is not known.
        """
        comer = consumer.holder
        attached: set[str] | None = None
        asked_of: Holder | None = None
        for _ in range(AGREE_TRIES):
            holder, unchanged = await self._catalogue.read_holder(topic.name, subscription.name)
            verdict = admit(holder, comer, attached if asked_of == holder else None)
            if verdict is Admission.MUST_ASK:
                what = f"whether subscription {subscription.name} is held is not known"
                elsewhere = await self._consumers_elsewhere(topic.name, what)
                asked_of, attached = (
                    holder,
                    {*elsewhere.get(subscription.name, ()), *topic.consumers().get(subscription.name, ())},
                )
                continue
            if verdict is Admission.REFUSED:
                assert holder is not None
                raise subscription.busy(f"consumer {holder.consumer} is attached")
            revision = unchanged.revision
            if verdict is Admission.MAY_TAKE:
                if holder is not None and holder.consumer != comer.consumer:
                    subscription.check_settled()
                try:
                    fences = [unchanged, subscription.exists]
                    revision = await self._catalogue.put_holder(topic.name, subscription.name, comer, fences)
                except Outdated:
                    asked_of = None
                    continue
            await subscription.set_holder(comer, revision)
            return
        raise NotServing(reason=f"others keep claiming subscription {subscription.name} of {topic.name}")

    async def _end_offsets(self, topic: Topic) -> dict[int, int]:
        """Return where the partitions of a topic end now, for a subscription to what comes.

        A partition that waits for a broker is left out: it takes nothing before its owner has made the cursors.

        Raises:
            OwnersNotReached: some did not answer.
        """
        if self._standing is None:
            return {}
        owners = await self._owners(topic.name)
        here = [number for number, at in owners.items() if topic.places[number].is_here]
        what = "where its partitions end is not known, so the subscription was not made; try again"
        ends = await self._ask_owners(
            topic,
            owners.keys() - here,
            lambda others: lambda partition: others.locate(partition, LATEST),
            what,
        )
        return ends | {number: await topic.partition(number).locate(LATEST) for number in here}

    async def _owners(self, name: TopicName) -> dict[int, Ownership]:
        """Return who owns the partitions of a topic, but those that wait for a broker that is away. NotServing."""
        names = [place.name for place in self._topic(name).places]
        await self._homed(names)
        view = self._cluster.view
        return {each.partition: owned for each in names if (owned := view.owner(each)) is not None}

    async def _ask_owners(
        self,
        topic: Topic,
        numbers: Iterable[int],
        question: Callable[[OtherOwners], Callable[[PartitionName], Awaitable[Answer]]],
        what: str,
    ) -> dict[int, Answer]:
        """Ask the owners of partitions that are not served here, all at once; the answers by partition.

        Raises:
            OwnersNotReached: some did not answer.
        """
        asked = sorted(numbers)
        if self.others is None and asked:
            raise OwnersNotReached(topic=str(topic.name), partitions=asked, what=what, reason="nobody can be asked")
        if self.others is None:
            return {}
        ask = question(self.others)
        found = await asyncio.gather(
            *(ask(PartitionName(topic.name, number)) for number in asked), return_exceptions=True
        )
        answers = dict(zip(asked, found, strict=True))
        silent = {number: each for number, each in answers.items() if isinstance(each, NotServing | Disconnected)}
        for each in found:
            if isinstance(each, BaseException) and each not in silent.values():
                raise each
        if silent:
            reason = str(next(iter(silent.values())))
            raise OwnersNotReached(topic=str(topic.name), partitions=silent.keys(), what=what, reason=reason)
        return {number: each for number, each in answers.items() if not isinstance(each, BaseException)}

    # What clients and operators ask

    async def lookup(self, name: TopicName) -> Placement:
        """Where the partitions of a topic are served. TopicNotFound."""
        topic = self._topic(name)
        if self._standing is None or self._standing.cluster is None:
            alone = [
                PartitionPlacement(partition=p, state=TopicState.ACTIVE, broker_id=self.options.broker_id)
                for p in range(topic.stored.partitions)
            ]
            return Placement(topic=str(name), topic_id=topic.stored.topic_id, partitions=alone, brokers=[])
        if not self._standing.may_ack():
            raise self._standing.lapsed()  # what it knows may be old: ask another
        view = self._standing.cluster.view
        return Placement(
            topic=str(name),
            topic_id=topic.stored.topic_id,
            partitions=[view.placement(place.name) for place in topic.places],
            brokers=[held.value.url for _, held in sorted(view.registrations.items())],
        )

    async def cluster(self) -> ClusterInfo:
        """The cluster as this broker sees it."""
        partitions = sum(topic.stored.partitions for topic in self._topics.values())
        if self._standing is None or self._standing.cluster is None:
            return ClusterInfo(
                brokers=[self._alone(partitions)],
                leader=self.options.broker_id,
                topics=len(self._topics),
                partitions=partitions,
                unassigned=0,
                recovering=0,
                unloads=[],
            )
        return self._standing.cluster.view.info(
            topics=len(self._topics),
            partitions=partitions,
            metadata=self._metadata_info(self._standing.cluster.upkeep.space),
            is_stale=not self._standing.may_ack(),
        )

    def _metadata_info(self, space: StoreSpace | None) -> MetadataInfo | None:
        if space is None:
            return None
        return MetadataInfo(
            is_full=space.is_full,
            size_bytes=space.size_bytes,
            used_bytes=space.used_bytes,
            quota_bytes=space.quota_bytes,
        )

    def _alone(self, partitions: int) -> BrokerInfo:
        return BrokerInfo(
            broker_id=self.options.broker_id,
            url=None,
            state="active",
            is_leader=True,
            partitions=partitions,
            topics=len(self._topics),
            connections=self.counts.connections,
            published_bytes_per_second=self._published_rate(),
            uptime_seconds=None,
            clock_ahead_seconds=round(self._timekeeper.ahead_seconds, 1),
        )

    async def unload(
        self,
        name: TopicName,
        *,
        force: bool = False,
        to: str | None = None,
        partition: int | None = None,
        give_up: bool = False,
    ) -> list[UnloadInfo]:
        """Ask that partitions leave their owners, for `to` or for whom the leader chooses. Returns at once.

        A partition that waits for a broker that is away is given up as far as only that one has it, if forced. One
        that is closed because records are missing goes on without them, with `give_up`.
        SubscriptionBusy when consumers are attached, unless forced; BrokerNotFound, InvalidSettings, NotServing.
        """
        cluster, topic = self._cluster, self._topic(name)
        if to is not None and to not in cluster.view.registrations:
            raise BrokerNotFound(broker=to, brokers=", ".join(sorted(cluster.view.registrations)))
        if partition is not None:
            topic.check_number(partition)
        places = [place for place in topic.places if partition in (None, place.name.partition)]
        await self._homed([place.name for place in places])
        waiting = {place.name for place in places if self._is_recovering(place.name)}
        if not force and waiting:
            raise await self._only_there(topic, min(waiting))
        if not force and any(place.is_here for place in places):
            topic.check_idle()
        asked = []
        owners: dict[PartitionName, Ownership] = {}
        for place in places:
            if place.name in waiting:
                asked.append(await self._give_up(topic, place.name, to))
            elif (owned := cluster.view.owner(place.name)) is not None and (owned.broker_id != to or give_up):
                by = self.options.broker_id
                wish = await cluster.request_unload(place.name, force=force, to=to, requested_by=by, give_up=give_up)
                asked.append(cluster.view.unload_info(place.name, wish))
                owners[place.name] = owned
        if not force:
            await self._heard(owners)
        return asked

    async def cancel_unloads(self, name: TopicName, *, partition: int | None = None) -> list[UnloadInfo]:
        """Take back the wishes that partitions leave their owners; which. One that is carried out stays as it is.

        A broker that drains wishes again, and is to be activated instead.
        """
        topic = self._topic(name)
        if partition is not None:
            topic.check_number(partition)
        places = [place for place in topic.places if partition in (None, place.name.partition)]
        wishes = {place.name: await self._cluster.cancel_unload(place.name) for place in places}
        return [self._cluster.view.unload_info(place, wish) for place, wish in wishes.items() if wish is not None]

    async def _homed(self, partitions: Sequence[PartitionName]) -> None:
        """Each has an owner, or waits for the one that alone has its records. NotServing: not even after a while."""
        view = self._cluster.view

        def homeless() -> list[PartitionName]:
            return [name for name in partitions if view.owner(name) is None and not self._is_recovering(name)]

        if not await view.wait_for(lambda _: not homeless(), PLACED_SECONDS):
            raise NotServing(reason=f"{min(homeless())} has no owner yet")

    async def _heard(self, owners: dict[PartitionName, Ownership]) -> None:
        """Another owner may have consumers attached, and refuse."""
        view = self._cluster.view

        def is_heard(name: PartitionName) -> bool:
            held = view.unloads.get(name)
            return held is None or held.value.step != UnloadStep.REQUESTED

        await view.wait_for(lambda _: all(is_heard(name) for name in owners), REFUSED_SECONDS)
        for name, owner in owners.items():
            if name not in view.unloads and view.owner(name) == owner:
                raise SubscriptionBusy(
                    topic=str(name.topic),
                    subscription="*",
                    reason=f"consumers are attached at broker {owner.broker_id}; force lets them go",
                )

    def _is_recovering(self, partition: PartitionName) -> bool:
        waiting = self._cluster.view.unassigned.get(partition)
        return waiting is not None and waiting.value.is_recovering

    async def _only_there(self, topic: Topic, partition: PartitionName) -> InvalidSettings:
        info = await self._recovering_info(topic, partition)
        given_up = f"offsets {info.given_up[0]} to {info.given_up[1]}" if info.given_up else "what only it has"
        return InvalidSettings(
            f"partition {partition.partition} of {topic.name} waits for broker {info.from_broker}, which alone has "
            f"{given_up}; force gives that up"
        )

    async def _give_up(self, topic: Topic, partition: PartitionName, to: str | None) -> UnloadInfo:
        info = await self._recovering_info(topic, partition)
        given_up = GivenUp(
            start=info.given_up[0] if info.given_up else 0,
            end=None,
            reason=f"only broker {info.from_broker} had them",
            at_ms=int(self._clock.now() * 1000),
        )
        await self._cluster.force_recovery(partition, to, given_up)
        self.events.emit(
            "range_given_up",
            topic.name,
            partition=partition.partition,
            from_broker=info.from_broker,
            start=info.given_up[0] if info.given_up else None,
            end=info.given_up[1] if info.given_up else None,
        )
        return UnloadInfo(
            topic=info.topic,
            partition=info.partition,
            step=UnloadStep.UNASSIGNED,
            from_broker=info.from_broker,
            to_broker=to,
            given_up=info.given_up,
        )

    async def _recovering_info(self, topic: Topic, partition: PartitionName) -> UnloadInfo:
        waiting = self._cluster.view.unassigned.get(partition)
        reported_ms = await self._logs.reported_ms(partition)
        return UnloadInfo(
            topic=str(topic.name),
            partition=partition.partition,
            step=TopicState.RECOVERING,
            from_broker=waiting.value.from_broker if waiting is not None else None,
            to_broker=None,
            given_up=await self._logs.only_there(partition, topic.stored.topic_id),
            reported_seconds=None if reported_ms is None else max(0.0, self._clock.now() - reported_ms / 1000),
            lease_seconds=self._cluster.membership.ttl,
        )

    async def unloads(self, name: TopicName) -> list[UnloadInfo]:
        """What is under way for a topic, and what waits for a broker that is away; empty when all is served."""
        topic = self._topic(name)
        if self._standing is None or self._standing.cluster is None:
            return []
        view = self._standing.cluster.view
        under_way = []
        for place in topic.places:
            held, waiting = view.unloads.get(place.name), view.unassigned.get(place.name)
            if held is not None:
                under_way.append(view.unload_info(place.name, held.value))
            elif self._is_recovering(place.name):
                under_way.append(await self._recovering_info(topic, place.name))
            elif waiting is not None:
                under_way.append(
                    UnloadInfo(
                        topic=str(name),
                        partition=place.name.partition,
                        step=UnloadStep.UNASSIGNED,
                        from_broker=waiting.value.from_broker,
                        to_broker=waiting.value.to,
                    )
                )
        return under_way

    async def drain_broker(self, broker_id: str) -> BrokerInfo:
        """It is given no more partitions, and gives away those that it has."""
        return await self._set_mode(broker_id, BrokerMode.DRAINING)

    async def activate_broker(self, broker_id: str) -> BrokerInfo:
        """It takes partitions again."""
        return await self._set_mode(broker_id, BrokerMode.ACTIVE)

    async def _set_mode(self, broker_id: str, mode: BrokerMode) -> BrokerInfo:
        view = self._cluster.view
        known = {info.broker_id for info in view.brokers()}
        if broker_id not in known:
            raise BrokerNotFound(broker=broker_id, brokers=", ".join(sorted(known)))
        await self._cluster.set_mode(broker_id, mode)
        await view.wait_for(lambda view: view.mode(broker_id) == mode, PLACED_SECONDS)
        return next(info for info in view.brokers() if info.broker_id == broker_id)

    async def rebalance(self) -> Rebalanced:
        """Ask for the moves that spread the load; they are carried out one after the other."""
        view = self._cluster.view
        moves = [view.unload_info(partition, unload) for partition, unload in await self._cluster.rebalance()]
        return Rebalanced(moves=moves)
