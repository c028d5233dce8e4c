"""A consumer as the broker sees it: a member of a subscription, with a way to reach it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sulina.core.members import Member
from sulina.core.ranges import Range
from sulina.errors import SulinaError

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

    deliver: Callable[[Delivery], None] = lambda _delivery: None
    dismissed: Callable[[SulinaError], None] = lambda _error: None


@dataclass(frozen=True, slots=True)
class Attachment:
    """A consumer at its subscription; None: the topic keeps nothing, and there is nothing to ack."""

    consumer: Consumer
    subscription: "Subscription | None"
    leave: Callable[[], Awaitable[None]]
