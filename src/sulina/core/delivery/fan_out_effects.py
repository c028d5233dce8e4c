"""What the fan-out of a partition says is to be done, and what it counts."""

from dataclasses import dataclass, field

from msgspec import Struct

from sulina.core.delivery.pubsub import DeliveryStatus, PubSubEventType, SubscriberId


class Payload(Struct, frozen=True):
    """Stored batches of offsets [start, end). A topic that keeps nothing counts its own offsets."""

    start: int
    end: int
    data: memoryview  # the rules never look into it

    @property
    def size_bytes(self) -> int:
        """As it is sent."""
        return self.data.nbytes


class Send(Struct, frozen=True):
    """Send a payload to a node, once, for the subscribers with these handles."""

    node: str
    attempt: int
    payload: Payload
    handles: tuple[int, ...]


class ResumeAt(Struct, frozen=True):
    """Say to a node that these subscribers are sent to again, before anything that is sent to them."""

    node: str
    handles: tuple[int, ...]


class RemoveSubscriber(Struct, frozen=True):
    """Say to a node that the topic has let this subscriber go."""

    member: SubscriberId
    reason: str
    status: DeliveryStatus  # of its last delivery


class Tell(Struct, frozen=True):
    """Say it on the stream of events. Topic and partition are for the caller to add."""

    type: PubSubEventType
    fields: dict[str, object]


Effect = Send | ResumeAt | RemoveSubscriber | Tell


@dataclass(slots=True)
class FanOutCounts:
    """Since the beginning. A record that three subscribers took was delivered three times."""

    delivered_records: int = 0
    failed_records: dict[DeliveryStatus, int] = field(
        default_factory=lambda: {status: 0 for status in DeliveryStatus if status != DeliveryStatus.DELIVERED}
    )
    reported_batches: dict[DeliveryStatus, int] = field(  # sent to a node, by the status of their reports
        default_factory=lambda: dict.fromkeys(DeliveryStatus, 0)
    )
    queued_batches: int = 0  # that had to wait for a node
    queued_records: int = 0
    dropped_batches: int = 0  # that were for a node, and were given up
    dropped_records: int = 0
    redelivered_batches: int = 0  # that were sent a second time to a node that came back
    redelivered_records: int = 0  # those, and what subscribers of a reliable topic went back
    missed_records: int = 0  # published while a subscriber was suspended
    skipped_records: int = 0  # that retention took before a subscriber had them
