"""Records that were delivered too often: the topic they go to, and the headers that name where they come from.

- The dead-letter topic is named by the policy; the default is the topic's name with a suffix. A topic with that suffix,
  or one that names itself, is an end: a record that fails there is delivered again.
- The chain of topics up to an end has no circle and at most `HOPS_MAX` hops; other policies are refused. A record that
  has passed through as many topics, because policies were changed, stays where it is.
- A dead letter has the coordinates of its last topic only, so its headers do not grow.
"""

import hashlib
from collections.abc import Sequence

from sulina.core.records.record import StoredRecord
from sulina.core.topic import Policy
from sulina.errors import InvalidSettings
from sulina.types import PartitionName, TopicName

DEAD_LETTER_SUFFIX = ".dead-letter"
HOPS_MAX = 8  # from one dead-letter topic to the next
HOPS_HEADER = "sulina-hops"
COORDINATES = ("sulina-topic", "sulina-partition", "sulina-offset", "sulina-subscription", "sulina-deliveries")


def dead_letter_topic(topic: TopicName, policy: Policy) -> TopicName:
    """Return the dead-letter topic of a topic."""
    if policy.dead_letter is not None:
        return TopicName.parse(policy.dead_letter)
    return TopicName(topic.namespace, topic.topic + DEAD_LETTER_SUFFIX)


def is_end(topic: TopicName, policy: Policy) -> bool:
    """Return whether dead letters go no further than this topic."""
    return topic.topic.endswith(DEAD_LETTER_SUFFIX) or dead_letter_topic(topic, policy) == topic


def check_way(way: Sequence[TopicName]) -> None:
    """Check the chain of topics that dead letters pass through, as far as it is known.

    Raises:
        InvalidSettings: it is a circle, or has more than `HOPS_MAX` hops.
    """
    if way[-1] in way[:-1]:
        shown = " → ".join(map(str, way))
        raise InvalidSettings(f"dead letters would go in a circle, {shown}: name another dead_letter for one of these")
    if len(way) > HOPS_MAX + 1:
        raise InvalidSettings(
            f"dead letters of {way[0]} would pass through more than {HOPS_MAX} topics: name another dead_letter"
        )


def hops_of(record: StoredRecord) -> int:
    """Return how many topics a dead letter has passed through; 0 for any other record."""
    text = next((value for name, value in reversed(record.headers) if name == HOPS_HEADER), None)
    return int(text) if text is not None and text.isdigit() and len(text) <= 9 else 0


def dead_letter(record: StoredRecord, source: PartitionName, subscription: str, attempts: int) -> StoredRecord:
    """Return a record with headers for its last coordinates and for the number of topics that it has passed through."""
    values = (source.topic, source.partition, record.offset, subscription, attempts)
    own = {**dict(zip(COORDINATES, map(str, values), strict=True)), HOPS_HEADER: str(hops_of(record) + 1)}
    return StoredRecord(
        value=record.value,
        key=record.key,
        timestamp_ms=record.timestamp_ms,
        headers=(
            *((name, value) for name, value in record.headers if name not in own),
            *((name, text.encode()) for name, text in own.items()),
        ),
    )


def txn_id_of(topic_id: str, partition: int, subscription: str, offset: int) -> str:
    """Return a txn_id for a dead letter, so that retries publish it once. `topic_id` is unique to this topic."""
    source = f"{topic_id}/{partition}/{subscription}/{offset}"
    return "dead-letter-" + hashlib.sha256(source.encode()).hexdigest()[:40]
