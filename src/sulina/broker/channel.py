"""A best-effort topic: what is published goes once to the consumers that are attached and have room, or is dropped.

A subscription of such a topic is only a name under which consumers share records by its kind; it goes with its last
consumer.
"""

import struct
from typing import Protocol

from sulina.broker.consumer import ConsumerConnection, ConsumerDelivery, connections_to_replace, replaced_error
from sulina.broker.metrics import TopicMetrics
from sulina.core.delivery.fan_out import Payload
from sulina.core.delivery.members import Members, SubscriptionKind, slot_of
from sulina.core.delivery.pubsub import TopicOptions
from sulina.core.delivery.ranges import Range
from sulina.core.records.batch import BatchLimits, split, validate
from sulina.core.records.record import decode
from sulina.errors import InvalidBatch, NoSubscribers, PartitionDropped, SulinaError
from sulina.ports import Bytes
from sulina.types import TopicName
from sulina.wire.messages import SubscriptionSettings

_OFFSET = struct.Struct(">q")


class Feeds(Protocol):
    """Passes a batch on to subscribers at every node."""

    def publish(self, payload: Payload, options: TopicOptions) -> None:
        """Pass a batch on.

        Raises:
            NoSubscribers, PartitionDropped, DelayQueueFull: nobody is sent anything.
        """
        ...


class Channel:
    """Passes on what is published to one partition of a best-effort topic. Offsets count from 0 at every start."""

    def __init__(self, topic: TopicName, partition: int, metrics: TopicMetrics) -> None:
        self._topic = topic
        self._partition = partition
        self._metrics = metrics
        self._next_offset = 0

    def publish(
        self, data: Bytes, limits: BatchLimits, groups: list[Members], feed: Feeds | None, options: TopicOptions
    ) -> tuple[int, int]:
        """Pass batches on; return the offsets that they got.

        Raises:
            NoSubscribers, PartitionDropped, DelayQueueFull, InvalidBatch: nobody is sent anything.
        """
        headers = validate(data, limits)
        if not headers:
            raise InvalidBatch("there is no record batch to publish")
        has_consumers = any(group.present for group in groups)
        if not has_consumers and feed is None:
            raise NoSubscribers(topic=str(self._topic))
        stamped = bytearray(data)
        first = offset = self._next_offset
        position = 0
        for header in headers:
            _OFFSET.pack_into(stamped, position, offset)
            position += header.size_bytes
            offset += header.record_count
        view = memoryview(bytes(stamped))
        if feed is not None:
            try:
                feed.publish(Payload(first, offset, view), options)
            except (NoSubscribers, PartitionDropped):
                if not has_consumers:
                    raise
        self._next_offset = offset
        for group in groups:
            self._pass_on(group, view, (first, offset))
        return first, offset

    def _pass_on(self, group: Members, data: memoryview, whole: Range) -> None:
        count = whole[1] - whole[0]
        if group.kind == SubscriptionKind.KEY_SHARED and group.present:
            self._pass_on_by_key(group, data)
            return
        member = group.next_able()
        if member is None:
            self._metrics.dropped_records.inc(count)
            return
        self._send(member, data, [whole], count)

    def _pass_on_by_key(self, group: Members, data: memoryview) -> None:
        ranges: dict[ConsumerConnection, list[Range]] = {}
        position = 0
        for header in split(data, check_crc=False):
            for record in decode(data, header, position):
                owner = group.owner_of(slot_of(record.key))
                if owner is None or not owner.is_able:
                    self._metrics.dropped_records.inc()
                    continue
                assert isinstance(owner, ConsumerConnection)
                ranges.setdefault(owner, []).append((record.offset, record.offset + 1))
            position += header.size_bytes
        for consumer, mine in ranges.items():
            self._send(consumer, data, mine, len(mine))

    def _send(self, member: object, data: memoryview, ranges: list[Range], count: int) -> None:
        assert isinstance(member, ConsumerConnection)
        member.credit -= count
        self._metrics.delivered_records.inc(count)
        member.deliver(ConsumerDelivery(self._partition, 1, data, ranges))


class BestEffortSubscription:
    """The consumers of a best-effort topic that share records under one name.

    Exclusive and failover hold for the partitions that this broker serves: nothing is stored, so there is no holder
    that all owners know (`core.delivery.holder`).
    """

    def __init__(self, topic: TopicName, name: str, settings: SubscriptionSettings) -> None:
        self.name = name
        self.settings = settings
        self.members = Members(settings.mode)
        self._topic = topic

    def attach(self, consumer: ConsumerConnection, settings: SubscriptionSettings) -> None:
        """Attach a consumer.

        Raises:
            SubscriptionBusy: another consumer has an exclusive subscription.
            AlreadyExists: the subscription is of another kind.
        """
        topic = str(self._topic)
        for older in connections_to_replace(self.members, consumer, settings.mode, topic=topic, name=self.name):
            self.members.detach(older)
            older.detached(replaced_error(topic, self.name))
        self.members.attach(consumer)

    def detach(self, consumer: ConsumerConnection) -> None:
        """Detach a consumer."""
        if consumer in self.members.present:
            self.members.detach(consumer)

    def close(self, error: SulinaError) -> None:
        """Detach every consumer, and tell them the error."""
        for consumer in list(self.members.present):
            assert isinstance(consumer, ConsumerConnection)
            self.members.detach(consumer)
            consumer.detached(error)
