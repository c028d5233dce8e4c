"""Values of publish/subscribe across nodes: options, reports, subscribers, events.

The rules that use them are in `fan_out` (at the owner of a partition) and `attempts` (at the node of a subscriber).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from sulina.errors import InvalidSettings
from sulina.setting import SecondsBetween, Setting


class DeliveryPolicy(StrEnum):
    """What a best-effort topic does with a batch whose delivery is not confirmed."""

    AT_LEAST_ONCE = "at_least_once"  # it is sent again
    AT_MOST_ONCE = "at_most_once"  # it is not


class PartitionBehavior(StrEnum):
    """What happens to a batch for a node that cannot be reached."""

    DELAY_QUEUE = "delay_queue"  # it waits, within bounds, and is sent when the node is back
    DROP = "drop"  # it is dropped, and counted


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """Options of one publish. For None the option of the topic holds, then of its namespace, then of the system."""

    delivery_policy: DeliveryPolicy | None = None
    partition_behavior: PartitionBehavior | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """The options that hold for a topic, or for one publish."""

    delivery_policy: DeliveryPolicy = DeliveryPolicy.AT_LEAST_ONCE
    partition_behavior: PartitionBehavior = PartitionBehavior.DELAY_QUEUE

    def with_publish(self, options: PublishOptions) -> "TopicOptions":
        """Return the options for one publish: its own where it has some, else these."""
        return TopicOptions(
            delivery_policy=options.delivery_policy or self.delivery_policy,
            partition_behavior=options.partition_behavior or self.partition_behavior,
        )

    @property
    def keeps_for_unreachable(self) -> bool:
        """Whether batches wait for a node that cannot be reached."""
        return (
            self.delivery_policy == DeliveryPolicy.AT_LEAST_ONCE
            and self.partition_behavior == PartitionBehavior.DELAY_QUEUE
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PubSubConfig:
    """Times and bounds of deliveries to subscribers."""

    subscriber_timeout_seconds: Annotated[
        float,
        Setting(SecondsBetween(0.05, 3600), "Suspend a subscriber that does not ack a batch within this time."),
    ] = 5.0
    suspended_ttl_seconds: Annotated[
        float,
        Setting(SecondsBetween(0.05, 86400), "Remove a suspended subscriber that does not recover within this time."),
    ] = 60.0
    metrics_event_seconds: Annotated[
        float,
        Setting(SecondsBetween(0.05, 86400), "Interval of metrics events, sent only while a client listens to events."),
    ] = 10.0
    backoff_seconds: float = 0.5  # until a suspended subscriber is tried again; doubles with each failure
    backoff_seconds_max: float = 15.0
    delay_queue_bytes_max: int = 64 << 20  # of one partition, for one node
    delay_queue_batches_max: int = 10_000
    unacked_bytes_max: int = 16 << 20  # that one subscriber may have
    unacked_batches_max: int = 1_000
    subscribers_max: int = 100_000  # of one partition

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if not getattr(self, name) > 0:
                raise InvalidSettings(f"{name} is {getattr(self, name)}: it must be greater than 0")


class Envelope(Struct, frozen=True):
    """A serialized message: the serializer that can read it, its type, its bytes."""

    serializer_id: int
    type_name: str
    data: bytes


class DeliveryStatus(StrEnum):
    """The result of a batch, for one subscriber or for all subscribers of a node."""

    DELIVERED = "Delivered"
    TIMEOUT = "Timeout"
    SUBSCRIBER_UNREACHABLE = "SubscriberUnreachable"
    OTHER_ERROR = "OtherError"


class SubscriberFailure(Struct, frozen=True, array_like=True):
    """A subscriber that failed to handle a batch, by its handle at its node."""

    handle: int
    status: DeliveryStatus
    reason: str = ""


class DeliveryReport(Struct, frozen=True, array_like=True):
    """The report of a node on one attempt: all subscribers acked it, except those in `failed`.

    With attempt 0 it is about no attempt, and `slow` has the subscribers that are far behind the others of the node.
    """

    attempt: int
    failed: tuple[SubscriberFailure, ...] = ()
    slow: tuple[int, ...] = ()  # handles; only with attempt 0

    @property
    def status(self) -> DeliveryStatus:
        """Status of the batch: Delivered, the status that all failures share, or OtherError."""
        statuses = {failure.status for failure in self.failed} or {DeliveryStatus.DELIVERED}
        return statuses.pop() if len(statuses) == 1 else DeliveryStatus.OTHER_ERROR


class SubscriberStatus(StrEnum):
    """Whether a subscriber is sent batches."""

    ACTIVE = "active"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True, order=True)
class SubscriberId:
    """A subscriber as an owner knows it: its node, and its handle there, which is never used again."""

    node: str
    handle: int


class SubscriberInfo(Struct, frozen=True, kw_only=True):
    """A subscriber of one partition, as its owner sees it."""

    node: Annotated[str, Meta(description="The broker that the subscriber is attached to.")]
    handle: Annotated[int, Meta(description="The subscriber's number at that broker; it is never used again.")]
    name: Annotated[str, Meta(description="The name that the subscriber gave.")]
    status: Annotated[
        SubscriberStatus, Meta(description="`suspended`: the subscriber is sent nothing until the next attempt.")
    ]
    reason: Annotated[str, Meta(description="Why the subscriber is suspended.")] = ""
    partition: Annotated[int, Meta(description="The partition whose owner reports this.")] = 0
    offset: Annotated[
        int | None, Meta(description="The offset that it is sent next; null: the topic does not store records.")
    ] = None


class PubSubEventType(StrEnum):
    """Types of events about publish/subscribe, with their fields."""

    PUBLISH_ACCEPTED = "publish_accepted"  # count, partition
    PUBLISH_REJECTED = "publish_rejected"  # reason
    DELIVERY_SUCCEEDED = "delivery_succeeded"  # partition, node, attempt, subscribers, count
    DELIVERY_FAILED = "delivery_failed"  # partition, node, attempt, subscriber, status, reason
    SUBSCRIBER_ADDED = "subscriber_added"  # partition, node, subscriber
    SUBSCRIBER_REMOVED = "subscriber_removed"  # partition, node, subscriber, reason
    SUBSCRIBER_SUSPENDED = "subscriber_suspended"  # partition, node, subscriber, reason
    SUBSCRIBER_RESUMED = "subscriber_resumed"  # partition, node, subscriber
    BATCH_QUEUED = "batch_queued"  # partition, node, count: it waits for a node
    BATCH_DROPPED = "batch_dropped"  # partition, node, count
    QUEUE_FLUSHED = "queue_flushed"  # partition, node, batches
    METRICS_SNAPSHOT = "metrics_snapshot"  # the fields of PubSubMetrics; without a topic: of all topics
