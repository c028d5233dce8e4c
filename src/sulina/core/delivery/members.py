"""The consumers of one subscription, and which of them a record goes to.

A consumer is sent records while it has credit and its connection can take more. A batch that was begun may be completed
beyond the credit.

A consumer that is late with an ack gets no keys and no turn while others are not late, until it acks something or its
penalty is over. The penalty doubles each time that it is late again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from sulina.core.records.routing import murmur2

SLOTS = 4096  # keys are spread over slots, and slots over consumers
LATE_DOUBLINGS_MAX = 6


class SubscriptionKind(StrEnum):
    """Which consumer of a subscription gets a record."""

    EXCLUSIVE = "exclusive"  # the only one
    FAILOVER = "failover"  # the one that was attached first
    SHARED = "shared"  # any
    KEY_SHARED = "key_shared"  # always the same one for a key


def slot_of(key: bytes | None) -> int:
    """Return the slot of a key; all records without a key share one."""
    return 0 if key is None else murmur2(key) % SLOTS


@dataclass(slots=True, eq=False)
class Member:
    """One attached consumer."""

    name: str
    credit: int = 0
    is_blocked: bool = False  # its connection takes no more for now
    late_until: float | None = None
    late_count: int = 0  # since its last ack

    @property
    def is_able(self) -> bool:
        """Whether it may be sent records."""
        return self.credit > 0 and not self.is_blocked


def _is_able(member: Member) -> bool:
    return member.is_able


@dataclass(slots=True)
class Members:
    """The attached consumers, in the order in which they were attached."""

    kind: SubscriptionKind
    present: list[Member] = field(default_factory=list)
    version: int = 0  # changes with `present`, `active` and which members are late
    is_held: bool = False  # exclusive and failover: `active` is chosen for the whole cluster, not here
    active: Member | None = None
    _turn: int = 0
    _owners: dict[int, Member] = field(default_factory=dict)

    def attach(self, member: Member) -> None:
        """Attach a consumer; the caller has checked `is_free`."""
        self.present.append(member)
        self._changed()

    def detach(self, member: Member) -> None:
        """Detach a consumer."""
        self.present.remove(member)
        if self.active is member:
            self.active = None
        self._changed()

    def activate(self, member: Member | None) -> None:
        """Deliver to this consumer from now on."""
        self.active = member
        self._changed()

    @property
    def first(self) -> Member | None:
        """The consumer that gets all records of an exclusive or failover subscription."""
        if self.is_held:
            return self.active
        return self.present[0] if self.present else None

    def _changed(self) -> None:
        self.version += 1
        self._owners.clear()

    # Late consumers

    @property
    def timely(self) -> list[Member]:
        """Consumers that are not late, or all consumers if all are late."""
        return [member for member in self.present if member.late_until is None] or self.present

    def set_late(self, member: Member, now: float, seconds: float) -> None:
        """Give a consumer nothing new for `seconds`, doubled each time until it acks something."""
        if member.late_until is None:
            member.late_until = now + seconds * 2 ** min(member.late_count, LATE_DOUBLINGS_MAX)
            member.late_count += 1
            self._changed()

    def has_acked(self, member: Member) -> None:
        """Give a consumer its keys and turns again: it has acked something."""
        member.late_count = 0
        if member.late_until is not None:
            member.late_until = None
            self._changed()

    def pass_time(self, now: float) -> None:
        """Give keys and turns again to consumers whose penalty is over."""
        for member in self.present:
            if member.late_until is not None and member.late_until <= now:
                member.late_until = None
                self._changed()

    @property
    def next_try(self) -> float | None:
        """When `pass_time` has something to do; None: never, as things are."""
        return min((member.late_until for member in self.present if member.late_until is not None), default=None)

    # Choosing a consumer

    @property
    def is_free(self) -> bool:
        """Whether another consumer may attach."""
        return self.kind != SubscriptionKind.EXCLUSIVE or not self.present

    def owner_of(self, slot: int) -> Member | None:
        """Return the consumer with the highest hash of name and slot, so that few slots move for a new consumer."""
        owner = self._owners.get(slot)
        if owner is None and self.present:
            owner = max(self.timely, key=lambda member: murmur2(b"%d/%s" % (slot, member.name.encode())))
            self._owners[slot] = owner
        return owner

    def next_able(self, is_able: Callable[[Member], bool] = _is_able) -> Member | None:
        """Return the consumer that gets the next batch, when keys do not matter; None: none can take it."""
        if self.kind == SubscriptionKind.SHARED:
            timely = self.timely
            for _ in timely:
                self._turn = (self._turn + 1) % len(timely)
                if is_able(timely[self._turn]):
                    return timely[self._turn]
            return None
        return self.first if self.first is not None and is_able(self.first) else None
