"""A consumer as the broker sees it: a member of a subscription, and how to reach it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sulina.core.delivery.holder import Holder
from sulina.core.delivery.members import Member, Members, SubscriptionKind
from sulina.core.delivery.ranges import Range
from sulina.errors import AlreadyExists, SubscriptionBusy, SulinaError

if TYPE_CHECKING:
    from sulina.broker.subscription import Subscription


@dataclass(frozen=True, slots=True)
class ConsumerDelivery:
    """Whole batches for one consumer; only the records in `ranges` are for it."""

    partition: int
    attempt: int
    data: memoryview
    ranges: list[Range]


@dataclass(slots=True, eq=False)
class ConsumerConnection(Member):
    """One consumer of one client connection.

    `deliver` is called with each delivery and must not wait. `detached` is called with the reason when the broker
    detaches the consumer.
    """

    id: str = ""  # unique among consumers of the same name; empty: the name identifies it
    deliver: Callable[[ConsumerDelivery], None] = lambda _delivery: None
    detached: Callable[[SulinaError], None] = lambda _error: None

    @property
    def holder(self) -> Holder:
        """This consumer, as the holder of a subscription."""
        return Holder(consumer=self.name, id=self.id or self.name)


@dataclass(frozen=True, slots=True)
class ConsumerAttachment:
    """A consumer and its subscription; no subscription on a best-effort topic, where there is nothing to ack."""

    consumer: ConsumerConnection
    subscription: "Subscription | None"
    detach: Callable[[], Awaitable[None]]


def connections_to_replace(
    members: Members, consumer: ConsumerConnection, kind: SubscriptionKind, *, topic: str, name: str
) -> list[ConsumerConnection]:
    """Return the attached consumers that a new one replaces: those of the same name, whose client has reconnected.

    Raises:
        AlreadyExists: the subscription is of another kind.
        SubscriptionBusy: it is exclusive, and a consumer of another name is attached.
    """
    if kind != members.kind:
        raise AlreadyExists(kind="subscription", name=name, difference=f"it is {members.kind}, not {kind}")
    older = [
        member for member in members.present if isinstance(member, ConsumerConnection) and member.name == consumer.name
    ]
    if not members.is_free and not older:
        raise SubscriptionBusy(topic=topic, subscription=name, reason="it is exclusive, and a consumer is attached")
    return older


def replaced_error(topic: str, name: str) -> SubscriptionBusy:
    """Return the error for a consumer that another one of the same name has replaced."""
    return SubscriptionBusy(topic=topic, subscription=name, reason="a consumer of the same name has replaced it")
