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

from sulina.broker.channel import BestEffortSubscription, Channel
from sulina.broker.consumer import ConsumerConnection
from sulina.broker.events import EventStream
from sulina.broker.metrics import TopicMetrics
from sulina.broker.options import BrokerOptions, NodeCounts
from sulina.broker.partition import Log, Opener, Partition
from sulina.broker.partition_ownership import OwnershipRights, PartitionOwnership
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
    """Check that a subscription has no consumers; None: that no subscription has.

    Raises:
        SubscriptionBusy: consumers are attached.
    """
    for each, attached in consumers.items():
        if subscription in (None, each):
            reason = f"{len(attached)} consumers are attached; detach them, or force it"
            raise SubscriptionBusy(topic=str(name), subscription=each, reason=reason)


@dataclass(slots=True)
class Accepted:
    """A publish that a partition has taken. `pending` is done when it is as durable as its topic wants, or failed."""

    ownership: PartitionOwnership
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
                raise self.ownership.explained(error) from None
            start, count, version = appended.offset_start, appended.offset_end - appended.offset_start, appended.version
        return Published(
            partition=self.ownership.name.partition, base_offset=start, count=count, version=version, ack=self.ack
        )


FixSchema = Callable[["Topic"], Awaitable[None]]


class Topic:
    """A topic as this broker serves it. The registry makes it, from what the metadata store has."""

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
        counts: NodeCounts,
        opener: Opener,
        rights: OwnershipRights,
        is_fixed: bool,
        fix_schema: FixSchema,
        events: EventStream,
    ) -> None:
        self.name = name
        self._events = events
        self.stored = stored
        self.is_fixed = is_fixed  # a record was accepted: its schema is for ever
        self._fix_schema = fix_schema
        self.ownerships = [
            PartitionOwnership(PartitionName(name, number), rights) for number in range(stored.partitions)
        ]
        self.lock = asyncio.Lock()  # for partitions that come and go
        self.fixing = asyncio.Lock()  # of the schema, by the first record
        self._set(policy, namespace_policy, schema)
        self.metrics = metrics
        self._options = options
        self._counts = counts
        self.state = TopicState.ACTIVE
        self.partitions: list[Partition] = []
        self.channels: list[Channel] = []
        self.subscriptions: dict[str, Subscription] = {}
        self.best_effort: dict[str, BestEffortSubscription] = {}  # of a best-effort topic
        self.publish_counts = PublishCounts()
        self.feeds: dict[int, PartitionFeed] = {}  # by partition, of those that have had subscribers here
        self._turns = itertools.cycle(range(stored.partitions))
        if stored.delivery == DeliveryGuarantee.RELIABLE:
            self.partitions = [Partition(ownership, opener) for ownership in self.ownerships]
        else:
            self.channels = [Channel(name, p, metrics) for p in range(stored.partitions)]

    @property
    def is_reliable(self) -> bool:
        """Return whether the topic is a log."""
        return self.stored.delivery == DeliveryGuarantee.RELIABLE

    def partition(self, number: int) -> Partition:
        """Return a partition of a reliable topic.

        Raises:
            PartitionNotFound: it has no such partition.
            NotReliable: the topic is a best-effort topic.
        """
        self.check_number(number)
        if not self.is_reliable:
            raise NotReliable(topic=str(self.name))
        return self.partitions[number]

    def check_number(self, number: int) -> None:
        """Check that the topic has a partition of this number.

        Raises:
            PartitionNotFound: it has not.
        """
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
        ownership = self.ownerships[number]
        has_values_to_check = self._checks_values and not request.is_dead_letter
        while True:
            # The check before the write: a broker that has lost the partition must not append to its log. Whatever is
            # awaited below is followed by another turn, so nothing is awaited between the last check and the append.
            # The other check is before the ack (`storage.acks`): the partition may be lost while a record is written.
            ownership.check()
            if self.schema_id != checked_id:  # it changed meanwhile
                raise SchemaConflict(topic=str(self.name), ours=checked_id, current=self.schema_id)
            if has_values_to_check:
                await self._check(request.data)
                has_values_to_check = False
            elif not self.is_reliable:
                return self._deliver_best_effort(request, ownership)
            elif not self.is_fixed:
                await self._fix_schema(self)
            elif (log := self.partitions[number].log_if_open) is None:
                await self.partitions[number].open()
            else:
                return self._append(request, ownership, log)

    def _append(self, request: PublishRequest, ownership: PartitionOwnership, log: Log) -> Accepted:
        if log.stopped is not None:
            raise ownership.explained(log.stopped, is_taken=False)
        pending = log.append_nowait(request)
        pending.add_done_callback(partial(self._count_answer, len(request.data), ownership))
        if log.is_ack_archived:
            return Accepted(ownership, Ack.ARCHIVED, pending)
        if self.policy.ack == Ack.MEMORY and self._only_disk_can_refuse(request):
            pending.add_done_callback(self._report_loss)
            return Accepted(ownership, Ack.MEMORY, None, count=sum(h.record_count for h in self._headers(request.data)))
        return Accepted(ownership, Ack.LOCAL, pending)

    def _only_disk_can_refuse(self, request: PublishRequest) -> bool:
        """Return whether only the disk can still keep the records from the log, so that a memory ack is honest."""
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
            if self.ownerships[number].is_here:
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
        check_values(self.check_value, (record.value for record in decode_rows(data, limits=self.batch_limits)))

    def _headers(self, data: Bytes) -> list[BatchHeader]:
        return split(data, self.batch_limits, check_crc=False)

    def _deliver_best_effort(self, request: PublishRequest, ownership: PartitionOwnership) -> Accepted:
        if request.expected_version is not None:
            raise NotReliable(topic=str(self.name))
        number = ownership.name.partition
        start, end = self.channels[number].publish(
            request.data,
            self.batch_limits,
            [group.members for group in self.best_effort.values()],
            self.feeds.get(number),
            self.options.with_publish(request.options),
        )
        self._count_published(end - start, len(request.data), ownership)
        return Accepted(ownership, Ack.MEMORY, None, count=end - start, base_offset=start)

    def _count_answer(self, size_bytes: int, ownership: PartitionOwnership, done: asyncio.Future[Appended]) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is None:
            answer = done.result()
            self._count_published(answer.offset_end - answer.offset_start, size_bytes, ownership)
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

    def _count_published(self, records: int, size_bytes: int, ownership: PartitionOwnership) -> None:
        if self._events.listeners:
            self._events.emit_unlogged(
                PubSubEventType.PUBLISH_ACCEPTED, str(self.name), partition=ownership.name.partition, count=records
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
        """Go on with another policy and schema. The logs are told by `PartitionLogs.reconfigure`."""
        self._set(policy, namespace_policy, schema)
        for subscription in self.subscriptions.values():
            subscription.rules = self.rules

    def _set(self, policy: Policy, namespace_policy: Policy, schema: Schema) -> None:
        self.own_policy, self.policy = policy, resolved(policy, namespace_policy)
        self.schema, self.schema_id, self.check_value = schema, schema.fingerprint, checker(schema)
        self._checks_values = needs_check(schema, self.policy)

    @property
    def rules(self) -> DispatchRules:
        """Return how deliveries go by the policy."""
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
        """Return how deliveries to subscribers go by the policy."""
        policy = self.policy
        assert policy.delivery_policy is not None
        assert policy.partition_behavior is not None
        return TopicOptions(delivery_policy=policy.delivery_policy, partition_behavior=policy.partition_behavior)

    @property
    def batch_limits(self) -> BatchLimits:
        """Return what a batch may hold by the policy."""
        assert self.policy.batch_bytes_max is not None
        return BatchLimits(batch_bytes_max=self.policy.batch_bytes_max, records_max=BATCH_RECORDS_MAX)

    def check_served(self) -> None:
        """Check that a partition of the topic is served here.

        Raises:
            NotOwner, Draining, Recovering, LeaseExpired: none is, or that is not sure.
        """
        served = next((ownership for ownership in self.ownerships if ownership.is_here), None)
        if served is None:
            raise self.ownerships[0].refusal()
        served.check()

    async def dismiss(self, error: SulinaError) -> None:
        """Detach all consumers and subscribers, which look for another broker; cursors stay as they are."""
        for subscription in list(self.subscriptions.values()):
            await subscription.detach_all(error)
        self.dismiss_best_effort(error)
        for number in list(self.feeds):
            self.release_feed(number, error)

    def info(self) -> TopicInfo:
        """Return the settings and the state of the topic."""
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
            subscriptions=sorted([*self.subscriptions, *self.best_effort]),
        )

    # Consumers of a best-effort topic

    def attach_best_effort(self, name: str, settings: SubscriptionSettings, consumer: ConsumerConnection) -> None:
        """Attach a consumer to a best-effort subscription, which exists from its first consumer on."""
        best_effort = self.best_effort.get(name) or BestEffortSubscription(self.name, name, settings)
        best_effort.attach(consumer, settings)
        self.best_effort[name] = best_effort

    async def detach_best_effort(self, name: str, consumer: ConsumerConnection) -> None:
        """Detach a consumer from a best-effort subscription, which goes with its last consumer."""
        best_effort = self.best_effort.get(name)
        if best_effort is not None:
            best_effort.detach(consumer)
            if not best_effort.members.present:
                del self.best_effort[name]

    def release_feed(self, number: int, error: SulinaError) -> None:
        """Detach the subscribers of a partition that is served elsewhere: they look for it."""
        feed = self.feeds.pop(number, None)
        if feed is not None:
            feed.close(error)

    def dismiss_best_effort(self, error: SulinaError) -> None:
        """Detach the consumers of a best-effort topic, of which a partition is served elsewhere: they look for it."""
        best_effort, self.best_effort = self.best_effort, {}
        for group in best_effort.values():
            group.close(error)

    # The end

    def cursor_keys(self) -> list[str]:
        """Return where the cursors of its subscriptions are stored."""
        return [key for subscription in self.subscriptions.values() for key in subscription.cursor_keys()]

    def consumers(self) -> dict[str, list[str]]:
        """Return the ids of consumers that are attached here, by subscription."""
        groups = {name: sub.members for name, sub in self.subscriptions.items()}
        groups |= {name: sub.members for name, sub in self.best_effort.items()}
        return {
            name: [member.holder.id for member in members.present if isinstance(member, ConsumerConnection)]
            for name, members in groups.items()
            if members.present
        }

    def check_idle(self) -> None:
        """Check that no consumer is attached here.

        Raises:
            SubscriptionBusy: one is.
        """
        refuse_consumers(self.name, self.consumers())

    async def stop_subscriptions(self, error: SulinaError) -> None:
        """Refuse new records and detach all consumers: no cursor moves any more."""
        self.state = TopicState.DRAINING
        for subscription in self.subscriptions.values():
            await subscription.close(error)
        for best_effort in self.best_effort.values():
            best_effort.close(error)
        for number in list(self.feeds):
            self.release_feed(number, error)

    async def close(self, error: SulinaError) -> None:
        """Refuse new records, detach all consumers, finish what was taken, and close the logs."""
        await self.stop_subscriptions(error)
        await asyncio.gather(*(partition.close() for partition in self.partitions))
        self.state = TopicState.CLOSED
