"""Records that were delivered too often: where they go, and what they say about where they came from.

- A topic's dead letters go where its policy says, or beside it. A topic of that suffix, or one that names itself, is an
  end: what fails there is delivered again and goes nowhere.
- The way from a topic to its end has no circle and at most `HOPS_MAX` topics. Policies that would make another are
  refused; a record that has come so far all the same, by policies of older times, stays where it is.
- A dead letter carries the coordinates of its last topic only, so its headers do not grow.
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
    """Where the policy says, or beside the topic."""
    if policy.dead_letter is not None:
        return TopicName.parse(policy.dead_letter)
    return TopicName(topic.namespace, topic.topic + DEAD_LETTER_SUFFIX)


def is_end(topic: TopicName, policy: Policy) -> bool:
    """Return whether dead letters go no further than this topic."""
    return topic.topic.endswith(DEAD_LETTER_SUFFIX) or dead_letter_topic(topic, policy) == topic


def check_way(way: Sequence[TopicName]) -> None:
    """Check the topics that dead letters pass through, as far as they are known. InvalidSettings for a circle."""
    if way[-1] in way[:-1]:
        shown = " → ".join(map(str, way))
        raise InvalidSettings(f"dead letters would go in a circle, {shown}: name another dead_letter for one of these")
    if len(way) > HOPS_MAX + 1:
        raise InvalidSettings(
            f"dead letters of {way[0]} would pass through more than {HOPS_MAX} topics: name another dead_letter"
        )


def hops_of(record: StoredRecord) -> int:
    """Return how many topics a dead letter has come from; 0 for a record that is none."""
    text = next((value for name, value in reversed(record.headers) if name == HOPS_HEADER), None)
    return int(text) if text is not None and text.isdigit() and len(text) <= 9 else 0


def dead_letter(record: StoredRecord, source: PartitionName, subscription: str, attempts: int) -> StoredRecord:
    """The record as it was, with the coordinates that it had last, and how many topics it has come from, as headers."""
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
    """So that a record gets there once, however often it is tried. A topic that is made anew has another id."""
    source = f"{topic_id}/{partition}/{subscription}/{offset}"
    return "dead-letter-" + hashlib.sha256(source.encode()).hexdigest()[:40]
