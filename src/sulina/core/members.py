"""The consumers of one subscription, and which of them a record goes to.

A consumer is sent records while it has credit and its connection can take more. Completing a batch may overdraw its
credit, never begin one.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from sulina.core.routing import murmur2

SLOTS = 4096  # keys are spread over slots, and slots over consumers


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

    @property
    def is_able(self) -> bool:
        """Whether it may be sent something."""
        return self.credit > 0 and not self.is_blocked


@dataclass(slots=True)
class Members:
    """In the order in which they came."""

    kind: SubscriptionKind
    present: list[Member] = field(default_factory=list)
    _turn: int = 0
    _owners: dict[int, Member] = field(default_factory=dict)

    def attach(self, member: Member) -> None:
        """Another consumer. Whether it may come is for the caller to say: see `is_free`."""
        self.present.append(member)
        self._owners.clear()

    def detach(self, member: Member) -> None:
        """It has gone."""
        self.present.remove(member)
        self._owners.clear()

    @property
    def is_free(self) -> bool:
        """Whether another consumer may attach."""
        return self.kind != SubscriptionKind.EXCLUSIVE or not self.present

    def owner_of(self, slot: int) -> Member | None:
        """Who gets the records of a slot: the highest hash of name and slot, so that few slots move when one comes."""
        owner = self._owners.get(slot)
        if owner is None and self.present:
            owner = max(self.present, key=lambda member: murmur2(b"%d/%s" % (slot, member.name.encode())))
            self._owners[slot] = owner
        return owner

    def next_able(self) -> Member | None:
        """Who gets the next batch, when its keys do not matter."""
        if self.kind == SubscriptionKind.SHARED:
            for _ in self.present:
                self._turn = (self._turn + 1) % len(self.present)
                if self.present[self._turn].is_able:
                    return self.present[self._turn]
            return None
        return self.present[0] if self.present and self.present[0].is_able else None
