"""What the control plane needs from its broker."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from sulina.broker.cluster.view import Versioned
from sulina.core.cluster.entries import EpochEntry, UnloadRequest
from sulina.types import PartitionName


@dataclass(frozen=True, slots=True)
class OwnAssignment:
    """The assignment of a partition to this broker, with the request to unload the partition, if there is one."""

    epoch: EpochEntry
    revision: int  # of the assignment; it fences what the owner writes
    unload: Versioned[UnloadRequest] | None = None


class PartitionAssignee(Protocol):
    """Serves the partitions that it is assigned. Called on the event loop, in order of revisions; must not wait."""

    def changed(self, partition: PartitionName, assigned: OwnAssignment | None) -> None:
        """Called when a partition is assigned to this broker, and again whenever a request to unload it changes.

        None: the assignment is gone; the broker gave it back, or the leader reassigned the partition. Called with a new
        assignment only after that, only while this broker may acknowledge, and never with one that was made for another
        data directory, which had the records.
        """
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
