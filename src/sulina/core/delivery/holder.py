"""The one consumer in the cluster that an exclusive or failover subscription delivers to.

It is an entry in the metadata store, replaced by compare-and-swap: by the same consumer when it has reconnected, or by
another one when the holder is not attached to any owner. Owners deliver to the holder alone, and write cursors only
while the entry is the one that they deliver by.
"""

from collections.abc import Collection
from enum import Enum, auto

from msgspec import Struct


class Holder(Struct, frozen=True, kw_only=True):
    """The consumer that holds a subscription: its name, and an id that is unique among consumers of that name."""

    consumer: str
    id: str


class Admission(Enum):
    """What a consumer that wants to hold a subscription may do."""

    HOLDS = auto()  # it is the holder already
    MAY_TAKE = auto()
    MUST_ASK = auto()  # it has to find out whether the holder is attached to any owner
    REFUSED = auto()


def admit(holder: Holder | None, candidate: Holder, attached: Collection[str] | None) -> Admission:
    """Decide about a candidate. `attached`: the ids of the consumers that are attached to any owner; None: unknown."""
    if holder == candidate:
        return Admission.HOLDS
    if holder is None or holder.consumer == candidate.consumer:
        return Admission.MAY_TAKE  # it reconnected before its former connection was noticed to be lost
    if attached is None:
        return Admission.MUST_ASK
    return Admission.REFUSED if holder.id in attached else Admission.MAY_TAKE
