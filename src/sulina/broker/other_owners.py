"""The port to the owners of partitions that this broker does not serve. `node/remote.py` is it on a network."""

from collections.abc import Mapping
from typing import Protocol

from sulina.core.log.position import Position
from sulina.core.records.record import StoredRecord
from sulina.types import PartitionName
from sulina.wire.messages import SubscriptionInfo


class OtherOwners(Protocol):
    """Asks whoever owns a partition at that moment, for a few seconds. NotServing, Disconnected when nobody answers."""

    async def publish(self, partition: PartitionName, record: StoredRecord, txn_id: str, schema_id: str) -> None:
        """Publish a record of ours under the topic's schema, once for its txn_id."""
        ...

    async def consumers(self, partition: PartitionName) -> Mapping[str, list[str]]:
        """Return the ids of consumers of the topic that are attached at the owner, by subscription."""
        ...

    async def locate(self, partition: PartitionName, position: Position) -> int:
        """Return the offset that a position means now."""
        ...

    async def seek(self, partition: PartitionName, subscription: str, position: Position) -> SubscriptionInfo:
        """Move a subscription in the partition."""
        ...
