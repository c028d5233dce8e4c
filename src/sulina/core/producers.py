"""Registered producers: who publishes to a topic, by name, and at which broker.

An entry is written by the broker that a producer is connected to, once, and deleted by it when the producer leaves. The
entries of a broker that is gone stay, as everything about a topic does, until their producers are connected elsewhere,
that broker is back, or they are old.
"""

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

PRODUCERS_OF_A_TOPIC_MAX = 1000
KEPT_MS = 24 * 3600 * 1000  # of a broker that does not come back

ProducerKey = tuple[str, str]  # producer, broker


class StoredProducer(Struct, frozen=True, kw_only=True):
    """When a producer was first accepted by a broker."""

    since_ms: int


def outdated(
    stored: Mapping[ProducerKey, StoredProducer],
    attached: Collection[str],
    *,
    broker_id: str,
    present: Collection[str],
    now_ms: int,
) -> list[ProducerKey]:
    """Return the entries that the broker `broker_id` should delete; the producers `attached` are connected to it."""
    gone = []
    for (producer, broker), entry in stored.items():
        if broker == broker_id:
            is_over = producer not in attached
        else:
            is_over = broker not in present and (producer in attached or now_ms - entry.since_ms > KEPT_MS)
        if is_over:
            gone.append((producer, broker))
    return gone


def missing(
    stored: Collection[ProducerKey], attached: Iterable[str], *, broker_id: str, others: int
) -> list[ProducerKey]:
    """Return the entries to write, as far as there is room beside `others` that stay."""
    wanted = [(producer, broker_id) for producer in sorted(attached) if (producer, broker_id) not in stored]
    return wanted[: max(0, PRODUCERS_OF_A_TOPIC_MAX - others)]
