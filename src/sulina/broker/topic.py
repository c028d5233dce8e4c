"""A topic on a node: accepts records into the partitions that are served here, and knows its subscriptions.

A publish goes to one partition, all or nothing. What a topic accepts is decided here: name of the partition, schema,
state; what the log accepts is the log's to say.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from sulina.broker.channel import Channel, PassingSubscription
from sulina.broker.consumer import ConsumerConnection
from sulina.broker.events import EventStream
from sulina.broker.metrics import TopicMetrics
from sulina.broker.options import BrokerOptions, Counts
from sulina.broker.partition import Log, Opener, Partition
from sulina.broker.place import Place, Rights
from sulina.broker.pubsub.feed import PartitionFeed
from sulina.broker.pubsub.totals import PublishCounts
from sulina.broker.stored_topic import StoredTopic
from sulina.broker.subscription import Subscription
from sulina.core.delivery.dead_letter import is_end
from sulina.core.delivery.dispatch import DispatchRules
from sulina.core.delivery.pubsub import PubSubEventType, TopicOptions
from sulina.core.delivery.rejects import reject_reason
from sulina.core.log.log_state import Appended
from sulina.core.log.publish_request import PublishRequest
from sulina.core.records.batch import NO_PRODUCER, BatchHeader, BatchLimits, split
from sulina.core.records.compression import Bytes, Codec
from sulina.core.records.routing import chosen_partition
from sulina.core.records.rows import decode_rows
from sulina.core.records.values import check_values, checker
from sulina.core.topic import Ack, DeliveryGuarantee, Policy, Schema, TopicSettings, needs_check, resolved
from sulina.errors import (
    Draining,
    LogClosed,
    LogStopped,
    NotReliable,
    PartitionNotFound,
    SchemaConflict,
    SubscriptionBusy,
    SulinaError,
    TopicNotFound,
)
from sulina.types import PartitionName, TopicName
from sulina.wire.messages import Published, SubscriptionSettings, TopicInfo, TopicState

CHOOSE_BYTES_MAX = 32 << 10  # looking for the keys of more would hold up everybody else
CHECK_BYTES_MAX = 4 << 10  # checking the values of more would hold up everybody else
BATCH_RECORDS_MAX = 65_536  # so that a cursor within a batch stays small

_logger = structlog.get_logger("sulina.topic")


def refuse_consumers(name: TopicName, consumers: Mapping[str, Sequence[str]], subscription: str | None = None) -> None:
    """Raise SubscriptionBusy when a subscription has consumers; None: when any has."""
    for each, attached in consumers.items():
        if subscription in (None, each):
            reason = f"{len(attached)} consumers are attached; force lets them go"
            raise SubscriptionBusy(topic=str(name), subscription=each, reason=reason)


@dataclass(slots=True)
class Accepted:
    """A publish that a partition has taken. `pending` is done when it is as durable as its topic wants, or failed."""

    place: Place
    ack: Ack
    pending: asyncio.Future[Appended] | None  # None: it is acknowledged already
    count: int = 0
    base_offset: int | None = None

    async def wait(self) -> Published:
        """Return the answer when it is acknowledged.

        Raises:
            LeaseExpired: the partition was lost meanwhile, and the outcome is unknown.
            SulinaError: it was not appended.
        """
        if self.pending is not None:
            with contextlib.suppress(LogClosed, LogStopped):  # `published` says what that means
                await self.pending
        return self.published()

    def published(self) -> Published:
        """Return the answer, once `pending` is done.

        Raises:
            LeaseExpired: the partition was lost meanwhile, and the outcome is unknown.
            SulinaError: it was not appended.
        """
        start, count, version = self.base_offset, self.count, None
        if self.pending is not None:
            try:
                appended = self.pending.result()
            except (LogClosed, LogStopped) as error:
                raise self.place.explained(error) from None
            start, count, version = appended.offset_start, appended.offset_end - appended.offset_start, appended.version
        return Published(
            partition=self.place.name.partition, base_offset=start, count=count, version=version, ack=self.ack
        )


FixSchema = Callable[["Topic"], Awaitable[None]]


class Topic:
    """Made by the broker, which keeps its settings in the metadata store."""

    def __init__(
        self,
        name: TopicName,
        stored: StoredTopic,
        *,
        policy: Policy,
        namespace_policy: Policy,
        schema: Schema,
        metrics: TopicMetrics,
        options: BrokerOptions,
        counts: Counts,
        opener: Opener,
        rights: Rights | None,
        is_fixed: bool,
        fix_schema: FixSchema,
        events: EventStream,
    ) -> None:
        self.name = name
        self._events = events
        self.stored = stored
        self.is_fixed = is_fixed  # a record was accepted: its schema is for ever
        self._fix_schema = fix_schema
        self.places = [Place(PartitionName(name, number), rights) for number in range(stored.partitions)]
        self.lock = asyncio.Lock()  # for partitions that come and go
        self.fixing = asyncio.Lock()  # of the schema, by the first record
        self.own_policy = policy
        self.policy = resolved(policy, namespace_policy)
        self.schema = schema
        self.schema_id = schema.fingerprint
        self._check_value = checker(schema)
        self.metrics = metrics
        self._options = options
        self._counts = counts
        self.state = TopicState.ACTIVE
        self.partitions: list[Partition] = []
        self.channels: list[Channel] = []
        self.subscriptions: dict[str, Subscription] = {}
        self.passing: dict[str, PassingSubscription] = {}  # of a topic that keeps nothing
        self.publish_counts = PublishCounts()
        self.feeds: dict[int, PartitionFeed] = {}  # by partition, of those that have had subscribers here
        self._turns = itertools.cycle(range(stored.partitions))
        if stored.delivery == DeliveryGuarantee.RELIABLE:
            self.partitions = [Partition(place, opener) for place in self.places]
        else:
            self.channels = [Channel(name, p, metrics) for p in range(stored.partitions)]

    @property
    def is_reliable(self) -> bool:
        """Whether it is a log."""
        return self.stored.delivery == DeliveryGuarantee.RELIABLE

    def partition(self, number: int) -> Partition:
        """PartitionNotFound, NotReliable."""
        self.check_number(number)
        if not self.is_reliable:
            raise NotReliable(topic=str(self.name))
        return self.partitions[number]

    def check_number(self, number: int) -> None:
        """PartitionNotFound."""
        if not 0 <= number < self.stored.partitions:
            raise PartitionNotFound(topic=str(self.name), partition=number, partitions=self.stored.partitions)

    # Publishing

    async def accept(self, request: PublishRequest) -> Accepted:
        """Take batches for one partition. A call that is made when another has returned is appended after it.

        Raises:
            NotServing: the partition is not served here, or not now.
            SulinaError: nothing was appended.
        """
        if self.state != TopicState.ACTIVE:
            raise Draining(topic=str(self.name))
        if request.topic_id is not None and request.topic_id != self.stored.topic_id:
            raise TopicNotFound(topic=str(self.name))
        checked_id = self.schema_id
        if request.schema_id is not None and request.schema_id != checked_id:
            raise SchemaConflict(topic=str(self.name), ours=request.schema_id, current=checked_id)
        number = request.partition
        if number is not None:
            self.check_number(number)
        elif self.stored.partitions == 1:
            number = 0
        elif len(request.data) <= CHOOSE_BYTES_MAX or request.keys == ():
            number = self._choose(request)
        else:
            number = await asyncio.to_thread(self._choose, request)
        place = self.places[number]
        has_values_to_check = needs_check(self.schema, self.policy, request.schema_id)
        while True:
            # The check before the append. Whatever is awaited below is followed by another turn, so nothing is
            # awaited between the last check and the append.
            place.check()
            if self.schema_id != checked_id:  # it changed meanwhile
                raise SchemaConflict(topic=str(self.name), ours=checked_id, current=self.schema_id)
            if has_values_to_check:
                await self._check(request.data)
                has_values_to_check = False
            elif not self.is_reliable:
                return self._deliver_best_effort(request, place)
            elif not self.is_fixed:
                await self._fix_schema(self)
            elif (log := self.partitions[number].log_if_open) is None:
                await self.partitions[number].open()
            else:
                return self._append(request, place, log)

    def _append(self, request: PublishRequest, place: Place, log: Log) -> Accepted:
        if log.stopped is not None:
            raise place.explained(log.stopped, is_taken=False)
        pending = log.append_nowait(request)
        pending.add_done_callback(partial(self._count_answer, len(request.data), place))
        if log.is_ack_archived:
            return Accepted(place, Ack.ARCHIVED, pending)
        if self.policy.ack == Ack.MEMORY and self._only_disk_can_refuse(request):
            pending.add_done_callback(self._report_loss)
            return Accepted(place, Ack.MEMORY, None, count=sum(h.record_count for h in self._headers(request.data)))
        return Accepted(place, Ack.LOCAL, pending)

    def _only_disk_can_refuse(self, request: PublishRequest) -> bool:
        """Whether only the disk can still keep the records from the log, so that a memory ack is no lie."""
        return (
            request.txn_id is None
            and request.expected_version is None
            and all(h.codec == Codec.NONE and h.producer_id == NO_PRODUCER for h in self._headers(request.data))
        )

    def _choose(self, request: PublishRequest) -> int:
        """Return the partition that the keys or the txn_id name; else the next in turn that is served here.

        Raises:
            KeysSpanPartitions: the keys name several.
        """
        count, keys = self.stored.partitions, request.keys
        if keys is None:
            keys = [record.key for record in decode_rows(request.data, limits=self.batch_limits)]
        number = chosen_partition(keys, request.txn_id, count, topic=str(self.name))
        if number is not None:
            return number
        number = next(self._turns)
        for _ in range(count):
            if self.places[number].is_here:
                break
            number = next(self._turns)
        return number

    async def _check(self, data: Bytes) -> None:
        """Check values by the schema: a few at once, more in a thread. InvalidRecord, InvalidBatch."""
        if len(data) <= CHECK_BYTES_MAX and all(header.codec == Codec.NONE for header in self._headers(data)):
            self._check_values(data)
        else:
            await asyncio.to_thread(self._check_values, data)

    def _check_values(self, data: Bytes) -> None:
        check_values(self._check_value, (record.value for record in decode_rows(data, limits=self.batch_limits)))

    def _headers(self, data: Bytes) -> list[BatchHeader]:
        return split(data, self.batch_limits, check_crc=False)

    def _deliver_best_effort(self, request: PublishRequest, place: Place) -> Accepted:
        if request.expected_version is not None:
            raise NotReliable(topic=str(self.name))
        number = place.name.partition
        start, end = self.channels[number].publish(
            request.data,
            self.batch_limits,
            [group.members for group in self.passing.values()],
            self.feeds.get(number),
            self.options.with_publish(request.options),
        )
        self._count_published(end - start, len(request.data), place)
        return Accepted(place, Ack.MEMORY, None, count=end - start, base_offset=start)

    def _count_answer(self, size_bytes: int, place: Place, done: asyncio.Future[Appended]) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is None:
            answer = done.result()
            self._count_published(answer.offset_end - answer.offset_start, size_bytes, place)
        elif isinstance(error, SulinaError):
            self.rejected(error)

    def rejected(self, error: SulinaError) -> None:
        """Count and tell a publish that was not taken, if the fault is the message's or the moment's."""
        reason = reject_reason(error)
        if reason is not None:
            self.publish_counts.rejected[reason] += 1
            self._events.emit_unlogged(
                PubSubEventType.PUBLISH_REJECTED, str(self.name), reason=str(reason), message=str(error)
            )

    def _count_published(self, records: int, size_bytes: int, place: Place) -> None:
        if self._events.listeners:
            self._events.emit_unlogged(
                PubSubEventType.PUBLISH_ACCEPTED, str(self.name), partition=place.name.partition, count=records
            )
        self.metrics.publishes.inc()
        self.publish_counts.accepted += records
        self.metrics.published_records.inc(records)
        self.metrics.published_bytes.inc(size_bytes)
        self._counts.published_bytes += size_bytes

    def _report_loss(self, done: asyncio.Future[Appended]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            _logger.error("memory_ack_lost", topic=str(self.name), error=str(error))

    # Settings

    def change(self, policy: Policy, namespace_policy: Policy, schema: Schema) -> None:
        """Go on by other rules. What the logs need to know is theirs to be told."""
        self.own_policy, self.policy = policy, resolved(policy, namespace_policy)
        self.schema, self.schema_id, self._check_value = schema, schema.fingerprint, checker(schema)
        for subscription in self.subscriptions.values():
            subscription.rules = self.rules

    @property
    def rules(self) -> DispatchRules:
        """How deliveries go by the policy."""
        policy = self.policy
        assert policy.ack_timeout_seconds is not None
        assert policy.redelivery_delay_seconds is not None
        return DispatchRules(
            ack_timeout_seconds=policy.ack_timeout_seconds,
            redelivery_delay_seconds=policy.redelivery_delay_seconds,
            deliveries_max=None if is_end(self.name, policy) else policy.deliveries_max,
        )

    @property
    def options(self) -> TopicOptions:
        """How deliveries to subscribers go by the policy."""
        policy = self.policy
        assert policy.delivery_policy is not None
        assert policy.partition_behavior is not None
        return TopicOptions(delivery_policy=policy.delivery_policy, partition_behavior=policy.partition_behavior)

    @property
    def batch_limits(self) -> BatchLimits:
        """What a batch may hold by the policy."""
        assert self.policy.batch_bytes_max is not None
        return BatchLimits(batch_bytes_max=self.policy.batch_bytes_max, records_max=BATCH_RECORDS_MAX)

    def check_served(self) -> None:
        """NotOwner and the like, when none of its partitions is served here; LeaseExpired when that is not sure."""
        served = next((place for place in self.places if place.is_here), None)
        if served is None:
            raise self.places[0].refusal()
        served.check()

    async def dismiss(self, error: SulinaError) -> None:
        """Let all consumers and subscribers go, who look for another broker; cursors stay as they are."""
        for subscription in list(self.subscriptions.values()):
            await subscription.detach_all(error)
        self.dismiss_passing(error)
        for number in list(self.feeds):
            self.release_feed(number, error)

    def info(self) -> TopicInfo:
        """Its settings and state."""
        return TopicInfo(
            topic=str(self.name),
            settings=TopicSettings(
                partitions=self.stored.partitions,
                delivery=self.stored.delivery,
                policy=self.own_policy,
                value_schema=self.schema,
            ),
            policy=self.policy,
            schema_id=self.schema_id,
            topic_id=self.stored.topic_id,
            state=self.state,
            subscriptions=sorted([*self.subscriptions, *self.passing]),
        )

    # Consumers of a topic that keeps nothing

    def attach_passing(self, name: str, settings: SubscriptionSettings, consumer: ConsumerConnection) -> None:
        """The subscription comes with its first consumer."""
        passing = self.passing.get(name) or PassingSubscription(self.name, name, settings)
        passing.attach(consumer, settings)
        self.passing[name] = passing

    async def detach_passing(self, name: str, consumer: ConsumerConnection) -> None:
        """The subscription goes with its last consumer."""
        passing = self.passing.get(name)
        if passing is not None:
            passing.detach(consumer)
            if not passing.members.present:
                del self.passing[name]

    def release_feed(self, number: int, error: SulinaError) -> None:
        """A partition is served elsewhere: its subscribers are let go, and look for it."""
        feed = self.feeds.pop(number, None)
        if feed is not None:
            feed.close(error)

    def dismiss_passing(self, error: SulinaError) -> None:
        """A partition is served elsewhere: let consumers go, who look for it."""
        passing, self.passing = self.passing, {}
        for group in passing.values():
            group.close(error)

    # The end

    def cursor_keys(self) -> list[str]:
        """Where the cursors of its subscriptions are stored."""
        return [key for subscription in self.subscriptions.values() for key in subscription.cursor_keys()]

    def consumers(self) -> dict[str, list[str]]:
        """Return the ids of consumers that are attached here, by subscription."""
        groups = {name: sub.members for name, sub in self.subscriptions.items()}
        groups |= {name: sub.members for name, sub in self.passing.items()}
        return {
            name: [member.holder.id for member in members.present if isinstance(member, ConsumerConnection)]
            for name, members in groups.items()
            if members.present
        }

    def check_idle(self) -> None:
        """SubscriptionBusy when a consumer is attached here."""
        refuse_consumers(self.name, self.consumers())

    async def stop_subscriptions(self, error: SulinaError) -> None:
        """Refuse more, let consumers go: no cursor moves any more."""
        self.state = TopicState.DRAINING
        for subscription in self.subscriptions.values():
            await subscription.close(error)
        for passing in self.passing.values():
            passing.close(error)
        for number in list(self.feeds):
            self.release_feed(number, error)

    async def close(self, error: SulinaError) -> None:
        """Refuse more, let consumers go, finish what was taken, let go of the logs."""
        await self.stop_subscriptions(error)
        await asyncio.gather(*(partition.close() for partition in self.partitions))
        self.state = TopicState.CLOSED
