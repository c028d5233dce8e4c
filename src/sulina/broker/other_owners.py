"""The port to the owners of partitions that this broker does not serve; `listeners/peer_owners.py` implements it."""

from collections.abc import Mapping
from typing import Protocol

from sulina.core.log.position import Position
from sulina.core.records.record import StoredRecord
from sulina.errors import NotServing
from sulina.types import PartitionName
from sulina.wire.messages import SubscriptionInfo


class OtherOwners(Protocol):
    """Asks the owner that a partition has at that moment.

    Every method raises NotServing or Disconnected when no owner has answered in a few seconds, and else the error of
    the owner.
    """

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


class NoOtherOwners:
    """A cluster of one, or a broker that cannot reach the others: nobody can be asked."""

    async def publish(self, partition: PartitionName, record: StoredRecord, txn_id: str, schema_id: str) -> None:  # noqa: ARG002
        """Raise NotServing."""
        raise _nobody(partition)

    async def consumers(self, partition: PartitionName) -> Mapping[str, list[str]]:
        """Raise NotServing."""
        raise _nobody(partition)

    async def locate(self, partition: PartitionName, position: Position) -> int:  # noqa: ARG002
        """Raise NotServing."""
        raise _nobody(partition)

    async def seek(self, partition: PartitionName, subscription: str, position: Position) -> SubscriptionInfo:  # noqa: ARG002
        """Raise NotServing."""
        raise _nobody(partition)


def _nobody(partition: PartitionName) -> NotServing:
    return NotServing(reason=f"{partition} is not served here, and no other broker can be asked")
