"""The one consumer in the cluster that an exclusive or failover subscription delivers to.

It is an entry in the metadata store that is replaced by compare-and-swap: by a later self of the consumer, or when no
owner of a partition has the consumer attached. Owners deliver to it alone, and write cursors only while the entry is
what they deliver by.
"""

from collections.abc import Collection
from enum import Enum, auto

from msgspec import Struct


class Holder(Struct, frozen=True, kw_only=True):
    """Who holds a subscription: the consumer's name, and an id that no other of the same name has."""

    consumer: str
    id: str


class Admission(Enum):
    """What a consumer that comes may do."""

    HOLDS = auto()  # it is the one already, attached elsewhere or come back
    MAY_TAKE = auto()
    MUST_ASK = auto()  # whether the holder is still attached anywhere
    REFUSED = auto()


def admit(holder: Holder | None, comer: Holder, attached: Collection[str] | None) -> Admission:
    """Judge a consumer that comes; `attached` are the ids of those who are attached at any owner, None: not known."""
    if holder == comer:
        return Admission.HOLDS
    if holder is None or holder.consumer == comer.consumer:
        return Admission.MAY_TAKE  # the same, come back before anybody noticed that it had gone
    if attached is None:
        return Admission.MUST_ASK
    return Admission.REFUSED if holder.id in attached else Admission.MAY_TAKE
