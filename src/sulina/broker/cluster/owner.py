"""What the cluster needs of the broker that it is a part of."""

from collections.abc import Iterable
from typing import Protocol

from sulina.core.cluster.entries import Epoch, Unload
from sulina.types import PartitionName


class Owner(Protocol):
    """Serves what it is assigned. Called on the event loop, in the order of the store's revisions; must not wait."""

    def assigned(self, partition: PartitionName, epoch: Epoch, revision: int) -> None:
        """The partition is this broker's, until `lost`. `revision` of the assignment fences what the owner writes.

        Told only while we may acknowledge: what was ours before we were cut off may be another's by now. An assignment
        that was made for another data directory is never told: that one had the records.
        """
        ...

    def lost(self, partition: PartitionName) -> None:
        """The assignment is gone: we gave it back, or the leader took it while we were away."""
        ...

    def unload_wanted(self, partition: PartitionName, unload: Unload, revision: int) -> None:
        """The partition is to leave. Told after `assigned`, and again whenever the record changes."""
        ...


class TopicsThatExist(Protocol):
    """What this broker knows of all topics, its own or not."""

    def is_reliable(self, partition: PartitionName) -> bool | None:
        """Whether its topic is a log; None when there is no such topic, as far as is known here."""
        ...

    def topic_id(self, partition: PartitionName) -> str | None:
        """Return the id of its topic; None when there is no such topic, as far as is known here."""
        ...

    def partitions(self) -> Iterable[PartitionName]:
        """Of all topics that exist and are not being deleted."""
        ...
