"""The effects that the fan-out of a partition asks for, and its counts."""

from dataclasses import dataclass, field

from msgspec import Struct

from sulina.core.delivery.pubsub import DeliveryStatus, PubSubEventType, SubscriberId


class Payload(Struct, frozen=True):
    """Stored batches of offsets [start, end). A best-effort topic numbers its records itself."""

    start: int
    end: int
    data: memoryview  # the rules never look into it

    @property
    def size_bytes(self) -> int:
        """Size of the batches as they are sent."""
        return self.data.nbytes


class Send(Struct, frozen=True):
    """Send a payload to a node, once, for the subscribers with these handles."""

    node: str
    attempt: int
    payload: Payload
    handles: tuple[int, ...]


class ResumeAt(Struct, frozen=True):
    """Tell a node that these subscribers are sent to again, before anything is sent to them."""

    node: str
    handles: tuple[int, ...]


class RemoveSubscriber(Struct, frozen=True):
    """Tell a node that this subscriber was removed."""

    member: SubscriberId
    reason: str
    status: DeliveryStatus  # of its last delivery


class EmitEvent(Struct, frozen=True):
    """Emit an event; the caller adds topic and partition."""

    type: PubSubEventType
    fields: dict[str, object]


Effect = Send | ResumeAt | RemoveSubscriber | EmitEvent


@dataclass(slots=True)
class FanOutCounts:
    """Counts since the fan-out was created. A record that three subscribers acked counts as delivered three times."""

    delivered_records: int = 0
    failed_records: dict[DeliveryStatus, int] = field(
        default_factory=lambda: {status: 0 for status in DeliveryStatus if status != DeliveryStatus.DELIVERED}
    )
    reported_batches: dict[DeliveryStatus, int] = field(  # sent to a node, by the status of their reports
        default_factory=lambda: dict.fromkeys(DeliveryStatus, 0)
    )
    queued_batches: int = 0  # had to wait for a node
    queued_records: int = 0
    dropped_batches: int = 0  # for a node, and not sent
    dropped_records: int = 0
    redelivered_batches: int = 0  # sent a second time, to a node that reconnected
    redelivered_records: int = 0  # in these batches, and read again from the log of a reliable topic
    missed_records: int = 0  # published while a subscriber was suspended
    skipped_records: int = 0  # removed by retention before they were sent
