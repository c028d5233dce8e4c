"""Registered producers: which producers publish to a topic, by name, and at which broker.

The broker that a producer is connected to writes its entry, and deletes it when the producer disconnects. The entries
of a broker that is not registered stay until their producers connect elsewhere, the broker is back, or room is needed.
"""

from collections.abc import Collection, Mapping

from msgspec import Struct

PRODUCERS_OF_A_TOPIC_MAX = 1000

ProducerKey = tuple[str, str]  # producer, broker


class StoredProducer(Struct, frozen=True, kw_only=True):
    """When a producer was first accepted by a broker."""

    since_ms: int


def reconcile(
    stored: Mapping[ProducerKey, StoredProducer],
    attached: Collection[str],
    *,
    broker_id: str,
    present: Collection[str],
) -> tuple[list[ProducerKey], list[ProducerKey]]:
    """Return the entries that a broker should delete and write; the producers `attached` are connected to it."""

    def is_over(producer: str, broker: str) -> bool:
        return producer not in attached if broker == broker_id else broker not in present and producer in attached

    gone = [key for key in stored if is_over(*key)]
    new = [(producer, broker_id) for producer in sorted(attached) if (producer, broker_id) not in stored]
    excess = len(stored) - len(gone) + len(new) - PRODUCERS_OF_A_TOPIC_MAX
    if excess > 0:
        absent = [key for key in stored if key[1] not in present and key not in gone]
        made_room = sorted(absent, key=lambda key: stored[key].since_ms)[:excess]
        gone += made_room
        new = new[: max(0, len(new) - (excess - len(made_room)))]
    return gone, new
