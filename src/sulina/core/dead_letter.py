"""Records that were delivered too often: where they go, and what they say about where they came from."""

import hashlib

from sulina.core.records import Record
from sulina.core.topic import Policy
from sulina.types import PartitionName, TopicName

DEAD_LETTER_SUFFIX = ".dead-letter"


def dead_letter_topic(topic: TopicName, policy: Policy) -> TopicName:
    """Where the policy says, or beside the topic."""
    if policy.dead_letter is not None:
        return TopicName.parse(policy.dead_letter)
    return TopicName(topic.namespace, topic.topic + DEAD_LETTER_SUFFIX)


def dead_letter(record: Record, source: PartitionName, subscription: str, attempts: int) -> Record:
    """The record as it was, with its original coordinates as headers."""
    coordinates = {
        "sulina-topic": str(source.topic),
        "sulina-partition": str(source.partition),
        "sulina-offset": str(record.offset),
        "sulina-subscription": subscription,
        "sulina-deliveries": str(attempts),
    }
    return Record(
        value=record.value,
        key=record.key,
        timestamp_ms=record.timestamp_ms,
        headers=(*record.headers, *((name, text.encode()) for name, text in coordinates.items())),
    )


def txn_id_of(topic_id: str, partition: int, subscription: str, offset: int) -> str:
    """So that a record gets there once, however often it is tried. A topic that is made anew has another id."""
    source = f"{topic_id}/{partition}/{subscription}/{offset}"
    return "dead-letter-" + hashlib.sha256(source.encode()).hexdigest()[:40]
