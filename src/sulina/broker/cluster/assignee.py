"""What the control plane needs from its broker."""

from collections.abc import Iterable
from typing import Protocol

from sulina.core.cluster.entries import EpochEntry, UnloadRequest
from sulina.types import PartitionName


class PartitionAssignee(Protocol):
    """Serves the partitions that it is assigned. Called on the event loop, in order of revisions; must not wait."""

    def assigned(self, partition: PartitionName, epoch: EpochEntry, revision: int) -> None:
        """Called when a partition is assigned to this broker; it is, until `lost`.

        `revision` is that of the assignment, and fences what the owner writes. Called only while this broker may
        acknowledge, and never for an assignment that was made for another data directory, which had the records.
        """
        ...

    def lost(self, partition: PartitionName) -> None:
        """Called when the assignment is gone: the broker gave it back, or the leader reassigned the partition."""
        ...

    def unload_requested(self, partition: PartitionName, unload: UnloadRequest, revision: int) -> None:
        """Called when a partition is to be unloaded; after `assigned`, and again whenever the request changes."""
        ...


class ExistingTopics(Protocol):
    """The topics that this broker knows, whichever broker owns them."""

    def is_reliable(self, partition: PartitionName) -> bool | None:
        """Return whether the topic of a partition is reliable; None: the topic is not known here."""
        ...

    def topic_id(self, partition: PartitionName) -> str | None:
        """Return the id of the topic of a partition; None: the topic is not known here."""
        ...

    def partitions(self) -> Iterable[PartitionName]:
        """Return the partitions of all topics that exist and are not being deleted."""
        ...
