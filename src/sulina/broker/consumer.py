"""A consumer as the broker sees it: a member of a subscription, with a way to reach it."""

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
class Delivery:
    """Whole batches, of which `ranges` are the consumer's."""

    partition: int
    attempt: int
    data: memoryview
    ranges: list[Range]


@dataclass(slots=True, eq=False)
class Consumer(Member):
    """Deliveries go to `deliver`, which must not wait; when the broker lets it go, `dismissed` is told why."""

    id: str = ""  # that no other of its name has; none: its name has to do
    deliver: Callable[[Delivery], None] = lambda _delivery: None
    dismissed: Callable[[SulinaError], None] = lambda _error: None

    @property
    def holder(self) -> Holder:
        """Return it as the holder of a subscription."""
        return Holder(consumer=self.name, id=self.id or self.name)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A consumer at its subscription; None: the topic keeps nothing, and there is nothing to ack."""

    consumer: Consumer
    subscription: "Subscription | None"
    leave: Callable[[], Awaitable[None]]


def replaced_by(
    members: Members, consumer: Consumer, kind: SubscriptionKind, *, topic: str, name: str
) -> list[Consumer]:
    """Who must go when this consumer comes: one of the same name is the same, come back.

    AlreadyExists when the subscription is of another kind, SubscriptionBusy when it has no room.
    """
    if kind != members.kind:
        raise AlreadyExists(kind="subscription", name=name, difference=f"it is {members.kind}, not {kind}")
    older = [member for member in members.present if isinstance(member, Consumer) and member.name == consumer.name]
    if not members.is_free and not older:
        raise SubscriptionBusy(topic=topic, subscription=name, reason="it is exclusive, and a consumer is attached")
    return older


def taken_over(topic: str, name: str) -> SubscriptionBusy:
    """What a consumer is told whose place another of its name has taken."""
    return SubscriptionBusy(topic=topic, subscription=name, reason="a consumer of the same name has taken its place")
