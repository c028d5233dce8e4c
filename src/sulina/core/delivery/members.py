"""The consumers of one subscription, and which of them a record goes to.

A consumer is sent records while it has credit and its connection can take more. Completing a batch may overdraw its
credit, never begin one.

A consumer that is late with an ack is given no keys and no turn while there are others that are not, until it acks
something or its time is over; each time that it is late again, that is twice as long.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from sulina.core.records.routing import murmur2

SLOTS = 4096  # keys are spread over slots, and slots over consumers
LATE_DOUBLINGS_MAX = 6


class SubscriptionKind(StrEnum):
    """Who among the consumers of a subscription gets a record."""

    EXCLUSIVE = "exclusive"  # the only one
    FAILOVER = "failover"  # the one that came first
    SHARED = "shared"  # any
    KEY_SHARED = "key_shared"  # always the same one for a key


def slot_of(key: bytes | None) -> int:
    """Where a key belongs; records without one are spread by nobody, they share a slot."""
    return 0 if key is None else murmur2(key) % SLOTS


@dataclass(slots=True, eq=False)
class Member:
    """One attached consumer."""

    name: str
    credit: int = 0
    is_blocked: bool = False  # its connection cannot take more for now
    late_until: float | None = None
    late_count: int = 0  # since its last ack

    @property
    def is_able(self) -> bool:
        """Whether it may be sent something."""
        return self.credit > 0 and not self.is_blocked


def _is_able(member: Member) -> bool:
    return member.is_able


@dataclass(slots=True)
class Members:
    """In the order in which they came."""

    kind: SubscriptionKind
    present: list[Member] = field(default_factory=list)
    version: int = 0  # of who is present, who is late and who is active
    is_held: bool = False  # exclusive and failover: `active` is chosen for the whole cluster, not who came first here
    active: Member | None = None
    _turn: int = 0
    _owners: dict[int, Member] = field(default_factory=dict)

    def attach(self, member: Member) -> None:
        """Another consumer. Whether it may come is for the caller to say: see `is_free`."""
        self.present.append(member)
        self._changed()

    def detach(self, member: Member) -> None:
        """It has gone."""
        self.present.remove(member)
        if self.active is member:
            self.active = None
        self._changed()

    def activate(self, member: Member | None) -> None:
        """Deliver to this one from now on."""
        self.active = member
        self._changed()

    @property
    def first(self) -> Member | None:
        """Who gets all there is of an exclusive or failover subscription."""
        if self.is_held:
            return self.active
        return self.present[0] if self.present else None

    def _changed(self) -> None:
        self.version += 1
        self._owners.clear()

    # Those who are late

    @property
    def timely(self) -> list[Member]:
        """Who may be given something: all but those who are late, or all when all are."""
        return [member for member in self.present if member.late_until is None] or self.present

    def is_late(self, member: Member, now: float, seconds: float) -> None:
        """Give a member nothing new for so long, and twice as long each time until it acks something."""
        if member.late_until is None:
            member.late_until = now + seconds * 2 ** min(member.late_count, LATE_DOUBLINGS_MAX)
            member.late_count += 1
            self._changed()

    def has_acked(self, member: Member) -> None:
        """Give a member its keys and turns again."""
        member.late_count = 0
        if member.late_until is not None:
            member.late_until = None
            self._changed()

    def pass_time(self, now: float) -> None:
        """Try those again whose time is over."""
        for member in self.present:
            if member.late_until is not None and member.late_until <= now:
                member.late_until = None
                self._changed()

    @property
    def next_try(self) -> float | None:
        """When `pass_time` will have something to do."""
        return min((member.late_until for member in self.present if member.late_until is not None), default=None)

    # Who gets a record

    @property
    def is_free(self) -> bool:
        """Whether another consumer may attach."""
        return self.kind != SubscriptionKind.EXCLUSIVE or not self.present

    def owner_of(self, slot: int) -> Member | None:
        """Who gets the records of a slot: the highest hash of name and slot, so that few slots move when one comes."""
        owner = self._owners.get(slot)
        if owner is None and self.present:
            owner = max(self.timely, key=lambda member: murmur2(b"%d/%s" % (slot, member.name.encode())))
            self._owners[slot] = owner
        return owner

    def next_able(self, is_able: Callable[[Member], bool] = _is_able) -> Member | None:
        """Who gets the next batch, when its keys do not matter."""
        if self.kind == SubscriptionKind.SHARED:
            timely = self.timely
            for _ in timely:
                self._turn = (self._turn + 1) % len(timely)
                if is_able(timely[self._turn]):
                    return timely[self._turn]
            return None
        return self.first if self.first is not None and is_able(self.first) else None
