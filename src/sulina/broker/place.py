"""By which right a partition is served on this node.

A node that is alone serves everything. In a cluster a partition is served by the broker to which it is assigned, while
that broker's lease holds; everybody else says where to go.
"""

import asyncio
from typing import Protocol

from sulina.core.cluster.entries import EpochEntry
from sulina.errors import Draining, LeaseExpired, LogClosed, LogStopped, NotServing, StaleEpoch, SulinaError
from sulina.ports import Compare
from sulina.types import PartitionName
from sulina.wire.messages import TopicState

NOT_OURS = (1 << 63) - 1  # a revision that no key ever has, so that no transaction that compares it is done


class Rights(Protocol):
    """Who knows what is assigned to whom."""

    def may_ack(self) -> bool:
        """Whether this node may still speak for what is assigned to it."""
        ...

    def lapsed(self) -> NotServing:
        """Return why nothing is acknowledged at this moment."""
        ...

    def elsewhere(self, partition: PartitionName) -> NotServing:
        """Why a partition is not served here, and where it is."""
        ...

    def fence(self, partition: PartitionName, revision: int) -> Compare:
        """What must hold in the metadata store for as long as the partition is ours."""
        ...


class Place:
    """One partition's. `check` it before anything is promised."""

    __slots__ = ("epoch", "is_archived", "name", "revision", "rights", "saying", "state")

    def __init__(self, name: PartitionName, rights: Rights | None) -> None:
        self.name = name
        self.rights = rights  # None: the node is alone
        self.state = TopicState.ACTIVE if rights is None else TopicState.CLOSED
        self.epoch: EpochEntry | None = None  # under which it is ours
        self.revision = NOT_OURS  # of the assignment
        self.is_archived: bool | None = None  # what the cluster was told of it; None: it may know either
        self.saying = asyncio.Lock()  # while the cluster is told, and the log goes on by what it was told

    @property
    def is_here(self) -> bool:
        """Whether it is served here, and takes records."""
        return self.state is TopicState.ACTIVE

    @property
    def broker_id(self) -> str:
        """Under whose name it was served here last."""
        return self.epoch.broker_id if self.epoch is not None else "this one"

    def may_ack(self, revision: int) -> bool:
        """Whether what was taken under the assignment of `revision` may be acknowledged now."""
        return self.rights is None or (revision != NOT_OURS and self.revision == revision and self.rights.may_ack())

    def check(self) -> None:
        """NotOwner, Draining, Recovering, LeaseExpired."""
        if self.state is not TopicState.ACTIVE or (self.rights is not None and not self.rights.may_ack()):
            raise self.refusal()

    def check_held(self, revision: int) -> None:
        """Raise unless what was read under the assignment of `revision` is ours to tell. LeaseExpired, NotOwner."""
        if not self.may_ack(revision):
            is_still_ours = self.is_ours and self.revision == revision
            raise self.rights.lapsed() if self.rights is not None and is_still_ours else self.refusal()

    def refusal(self) -> NotServing:
        """Why it is not served, and where it is, if that is known."""
        if self.rights is None or self.state is TopicState.DRAINING:
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

    @property
    def fence(self) -> Compare | None:
        """What must hold for this node to write on behalf of the partition; None: nobody else could."""
        return None if self.rights is None else self.rights.fence(self.name, self.revision)

    @property
    def is_ours(self) -> bool:
        """Whether its log may be opened here."""
        return self.state is TopicState.ACTIVE if self.rights is None else self.revision != NOT_OURS

    def take(self, epoch: EpochEntry, revision: int) -> None:
        """It is ours from now on, and made ready to be served."""
        self.epoch, self.revision, self.state = epoch, revision, TopicState.CLOSED
        self.is_archived = epoch.is_archived

    def serve(self) -> None:
        """It takes records from now on."""
        self.state = TopicState.ACTIVE

    def lose(self) -> None:
        """It is ours no more: nothing that was taken may be acknowledged."""
        self.revision, self.state = NOT_OURS, TopicState.CLOSED
