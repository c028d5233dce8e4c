"""The kind of a topic, as the metadata store has it."""

import msgspec

from sulina.core.topic import DeliveryGuarantee


class StoredTopic(msgspec.Struct, frozen=True):
    """Under the topic's `delivery` key. A topic that is being deleted is served no more."""

    delivery: DeliveryGuarantee
    partitions: int
    created_ms: int
    topic_id: str  # no other topic's, also not of one of the same name
    is_deleting: bool = False
