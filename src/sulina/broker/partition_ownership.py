"""The right by which a partition is served on this node: an assignment, while the broker may speak for it.

- A record is written only after `check`, and acknowledged only while `may_ack` of the same assignment holds.
- What is assigned is known by its revision in the metadata store; an assignment that was lost never counts again.
- A broker that does not own a partition says who does.
"""

import asyncio
from typing import Protocol

from sulina.core.cluster.entries import EpochEntry
from sulina.errors import Draining, LeaseExpired, LogClosed, LogStopped, NotServing, StaleEpoch, SulinaError
from sulina.ports import Compare
from sulina.types import PartitionName
from sulina.wire.messages import TopicState

NOT_OURS = (1 << 63) - 1  # a revision that no key ever has, so that no transaction that compares it is done


class OwnershipRights(Protocol):
    """The part of `ClusterHandle` that says what is assigned to whom."""

    first_revision: int  # of the assignment that a partition has from the start; NOT_OURS: it waits for an owner

    def may_ack(self) -> bool:
        """Return whether this broker may still speak for what is assigned to it."""
        ...

    def lapsed(self) -> NotServing:
        """Return why nothing is acknowledged at this moment."""
        ...

    def elsewhere(self, partition: PartitionName) -> NotServing:
        """Return why a partition is not served here, and where it is."""
        ...

    def overtaken(self, partition: PartitionName, stale: StaleEpoch) -> SulinaError:
        """Return what to tell a client whose partition was claimed in a newer epoch."""
        ...

    def fences(self, partition: PartitionName, revision: int) -> list[Compare]:
        """Return what must hold in the metadata store for as long as the partition is ours."""
        ...


class PartitionOwnership:
    """The right to serve one partition: `check` before a record is written, `may_ack` before it is acknowledged."""

    __slots__ = ("archived_flag_lock", "epoch", "is_archived", "is_closing", "name", "revision", "rights", "state")

    def __init__(self, name: PartitionName, rights: OwnershipRights) -> None:
        self.name = name
        self.rights = rights
        self.revision = rights.first_revision  # of the assignment
        self.state = TopicState.CLOSED if self.revision == NOT_OURS else TopicState.ACTIVE
        self.epoch: EpochEntry | None = None  # under which it was assigned
        self.is_closing = False  # its log is being closed, and not opened again under this assignment
        self.is_archived: bool | None = None  # what the cluster was told of it; None: it may know either
        self.archived_flag_lock = asyncio.Lock()  # while the cluster is told, and the log goes on by what it was told

    @property
    def is_here(self) -> bool:
        """Return whether the partition is served here, and takes records."""
        return self.state is TopicState.ACTIVE

    @property
    def broker_id(self) -> str:
        """Return the name under which it was served here last."""
        return self.epoch.broker_id if self.epoch is not None else "this one"

    def may_ack(self, revision: int) -> bool:
        """Return whether what was taken under the assignment of `revision` may be acknowledged now."""
        return revision != NOT_OURS and self.revision == revision and self.rights.may_ack()

    def check(self) -> None:
        """Check that the partition is served here, and takes records.

        Raises:
            NotOwner, Draining, Recovering, LeaseExpired: it is not, or not now.
        """
        if self.state is not TopicState.ACTIVE or not self.rights.may_ack():
            raise self.refusal()

    def check_held(self, revision: int) -> None:
        """Check that what was read under the assignment of `revision` is ours to tell.

        Raises:
            LeaseExpired, NotOwner: another broker may own the partition, and have more.
        """
        if not self.may_ack(revision):
            is_still_ours = self.is_ours and self.revision == revision
            raise self.rights.lapsed() if is_still_ours else self.refusal()

    def refusal(self) -> NotServing:
        """Return why the partition is not served here, and where it is, if that is known."""
        if self.state is TopicState.DRAINING:
            return Draining(topic=str(self.name.topic))
        if self.state is TopicState.ACTIVE:
            return self.rights.lapsed()
        return self.rights.elsewhere(self.name)

    def explained(self, error: LogClosed | LogStopped, *, is_taken: bool = True) -> SulinaError:
        """Return what the end of the log means to a publisher; `is_taken`: its records may be in the log.

        If the partition was lost, a publisher that asks the new owner again, under the same origin or txn_id, gets
        the first answer.
        """
        is_fenced = isinstance(error, LogStopped) and isinstance(error.cause, StaleEpoch)
        if self.is_here and not is_fenced:
            return error
        return LeaseExpired(broker=self.broker_id) if is_taken else self.refusal()

    def overtaken(self, stale: StaleEpoch) -> SulinaError:
        """Return what to tell a client when the log was claimed in a newer epoch."""
        return self.rights.overtaken(self.name, stale)

    @property
    def fences(self) -> list[Compare]:
        """Return what must hold for this node to write on behalf of the partition; nothing: nobody else could."""
        return self.rights.fences(self.name, self.revision)

    @property
    def is_ours(self) -> bool:
        """Return whether its log may be opened here."""
        return self.revision != NOT_OURS and not self.is_closing

    def acquire(self, epoch: EpochEntry, revision: int) -> None:
        """Acquire the partition under an assignment. It is served once it is made ready, and its state is ACTIVE."""
        self.epoch, self.revision, self.state = epoch, revision, TopicState.CLOSED
        self.is_closing = False
        self.is_archived = epoch.is_archived

    def release(self) -> None:
        """Release the partition: nothing that was taken may be acknowledged any more."""
        self.revision, self.state = NOT_OURS, TopicState.CLOSED
