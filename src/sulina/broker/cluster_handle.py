"""What a broker may do by its standing in the cluster, and what it asks of the cluster.

`ClusterHandle` is the port. A broker that shares its metadata store with others has a `SharedCluster`; one that is the
only broker has a `SoleBroker` (`sole_broker.py`), for which every answer is known. No other code asks which it is.

- Nothing is acknowledged unless `may_ack` holds at that moment.
- What an owner writes about a partition is written in a transaction that compares the fences of its assignment.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from sulina.broker.cluster.cluster import Cluster
from sulina.broker.cluster.view import Ownership
from sulina.broker.partition_ownership import NOT_OURS, PartitionOwnership
from sulina.core.cluster import keys
from sulina.errors import LeaseExpired, MetadataWentBack, NotOwner, NotServing, Recovering, StaleEpoch, SulinaError
from sulina.ports import NO_REVISION, Compare, MetadataStore, Put
from sulina.types import PartitionName, TopicName
from sulina.wire.messages import TopicState, Trouble, TroubleKind

PLACED_SECONDS = 10.0  # to wait for owners of partitions that are about to have one


class ClusterHandle(Protocol):
    """The cluster, as the parts of a broker see it."""

    broker_id: str
    first_revision: int  # of the assignment that a partition has from the start; NOT_OURS: it waits for an owner
    shares_metadata: bool  # whether other brokers may create topics that are not known here yet
    adopts_unstamped: bool  # whether a directory without a stamp can only be this broker's
    troubles: dict[PartitionName, str]  # why partitions that are assigned to this broker are not served

    # The right to serve (`ownership.OwnershipRights`)

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

    def cut_off(self) -> Trouble | None:
        """Return why this broker may not speak for what is assigned to it; None: it may."""
        ...

    # What the others must know of the archive, so that a lost broker costs nothing

    def must_set_archived(self, ownership: PartitionOwnership, is_archived: bool) -> bool:
        """Return whether the cluster has to be told this before it is relied on."""
        ...

    async def set_archived(
        self,
        ownership: PartitionOwnership,
        revision: int,
        is_archived: bool,
        *,
        puts: tuple[Put, ...] = (),
        deletes: tuple[str, ...] = (),
    ) -> None:
        """Tell the cluster whether all that is acknowledged is in the archive. The caller has the archived_flag_lock.

        Raises:
            NotOwner: the partition is not ours any more.
        """
        ...

    async def check_assigned(self, partition: PartitionName, revision: int, stale: StaleEpoch) -> None:
        """Check that the metadata store has heard of the newer owner.

        Raises:
            MetadataWentBack: it says that the partition is ours, with an epoch that was used before.
        """
        ...

    # Topics that come and go

    async def prepare_topic(self, name: TopicName, partitions: int, now_ms: int) -> int | None:
        """Remove what an earlier topic of this name has left in the cluster.

        Returns since when its partitions wait for an owner; None: they have one as soon as the topic exists.
        """
        ...

    async def forget_topic(self, name: TopicName, partitions: int, mark: Compare) -> None:
        """Take the partitions of a topic from their owners while `mark` holds, by which it is being deleted."""
        ...

    async def wait_placed(self, partitions: Collection[PartitionName]) -> None:
        """Return when the partitions of a new topic have owners, or have had time enough to get them."""
        ...

    # Who is there

    async def owners(self, partitions: Sequence[PartitionName]) -> dict[int, Ownership]:
        """Return who owns partitions, by number, but those that wait for a broker that is away.

        Raises:
            NotServing: some have no owner, not even after a while.
        """
        ...

    def owner_of(self, partition: PartitionName) -> str | None:
        """Return the broker that serves a partition, if there is one."""
        ...

    def present(self) -> Collection[str]:
        """Return the names of the brokers that are there."""
        ...


class SharedCluster:
    """A cluster whose brokers share a metadata store. Before this broker has joined it, it may acknowledge nothing."""

    shares_metadata = True
    adopts_unstamped = False
    first_revision = NOT_OURS

    def __init__(self, cluster: Cluster, metadata: MetadataStore) -> None:
        self.broker_id = cluster.broker_id
        self.troubles: dict[PartitionName, str] = {}
        self._cluster = cluster
        self._metadata = metadata
        self.may_ack = cluster.membership.may_ack

    # The right to serve

    def lapsed(self) -> NotServing:
        """Return why nothing is acknowledged at this moment."""
        went_back = self._cluster.history.went_back
        return went_back if isinstance(went_back, NotServing) else LeaseExpired(broker=self.broker_id)

    def elsewhere(self, partition: PartitionName) -> NotServing:
        """Return why a partition is not served here, and where it is."""
        if not self._cluster.view.is_loaded:
            return NotServing(reason="it has not joined its cluster yet")
        at = self._cluster.view.placement(partition)
        topic = str(partition.topic)
        if at.broker_id == self.broker_id:
            why = self.troubles.get(partition, "it is being opened")
            return NotServing(
                reason=f"partition {partition.partition} of {topic} is assigned to this broker, but {why}"
            )
        if at.state == TopicState.RECOVERING:
            waiting = self._cluster.view.unassigned.get(partition)
            return Recovering(
                topic=topic,
                partition=partition.partition,
                broker=at.waits_for or "?",
                only_there=waiting.value.only_there if waiting is not None else None,
            )
        return NotOwner(topic=topic, partition=partition.partition, owner=at.broker_id, url=at.url)

    def overtaken(self, partition: PartitionName, stale: StaleEpoch) -> SulinaError:  # noqa: ARG002
        """Return that there is a newer owner, of which this broker has not heard yet."""
        return NotOwner(topic=str(partition.topic), partition=partition.partition)

    def fences(self, partition: PartitionName, revision: int) -> list[Compare]:
        """Return what must hold in the metadata store for as long as the partition is ours."""
        return [Compare(keys.assignment(self.broker_id, partition), revision)]

    def cut_off(self) -> Trouble | None:
        """Return why this broker may not speak for what is assigned to it; None: it may."""
        if not self._cluster.view.is_loaded:
            return Trouble(kind=TroubleKind.NOT_SERVING, what="it has not joined its cluster yet")
        if isinstance(went_back := self._cluster.history.went_back, NotServing):
            return Trouble(kind=went_back.code, what=went_back.reason)
        if self._cluster.membership.is_replaced:
            what = f"another process serves as broker {self.broker_id}, with a copy of its data directory"
            return Trouble(kind=TroubleKind.REPLACED, what=f"{what}: end one of them")
        if not self.may_ack():
            what = "it has lost touch with the metadata store: what it owned may be another's by now"
            return Trouble(kind=TroubleKind.CUT_OFF, what=what)
        return None

    # What the others must know of the archive

    def must_set_archived(self, ownership: PartitionOwnership, is_archived: bool) -> bool:
        """Return whether the cluster was told otherwise, or may have been."""
        return ownership.is_archived is not is_archived

    async def set_archived(
        self,
        ownership: PartitionOwnership,
        revision: int,
        is_archived: bool,
        *,
        puts: tuple[Put, ...] = (),
        deletes: tuple[str, ...] = (),
    ) -> None:
        """Tell the cluster whether all that is acknowledged is in the archive. The caller has the archived_flag_lock.

        Raises:
            NotOwner: the partition is not ours any more.
        """
        ownership.is_archived = None  # until we know that it was heard
        await self._cluster.set_archived(ownership.name, revision, is_archived, puts=puts, deletes=deletes)
        if ownership.revision == revision:
            ownership.is_archived = is_archived

    async def check_assigned(self, partition: PartitionName, revision: int, stale: StaleEpoch) -> None:
        """Check that the metadata store has heard of the newer owner.

        Raises:
            MetadataWentBack: it says that the partition is ours, with an epoch that was used before.
        """
        entry = await self._metadata.get(keys.assignment(self.broker_id, partition))
        if entry is not None and entry.revision == revision:
            raise MetadataWentBack(
                evidence=f"it gave epoch {stale.ours} of {partition} to this broker, but {stale.current} was in use"
            ) from stale

    # Topics that come and go

    async def prepare_topic(self, name: TopicName, partitions: int, now_ms: int) -> int | None:
        """Remove what an earlier topic of this name has left; return since when its partitions wait for an owner."""
        # A leader that had not heard of a delete may have given what is gone to somebody.
        await self._cluster.delete_topic(name, partitions, Compare(keys.delivery(name), NO_REVISION))
        return now_ms

    async def forget_topic(self, name: TopicName, partitions: int, mark: Compare) -> None:
        """Take the partitions of a topic from their owners while `mark` holds, by which it is being deleted."""
        await self._cluster.delete_topic(name, partitions, mark)

    async def wait_placed(self, partitions: Collection[PartitionName]) -> None:
        """Return when partitions have owners that are there, or have had time enough to get them."""
        await self._cluster.view.wait_for(
            lambda view: all(view.placement(name).url is not None for name in partitions), PLACED_SECONDS
        )

    # Who is there

    async def owners(self, partitions: Sequence[PartitionName]) -> dict[int, Ownership]:
        """Return who owns partitions, by number, but those that wait for a broker that is away.

        Raises:
            NotServing: some have no owner, not even after a while.
        """
        await self.wait_owned(partitions)
        view = self._cluster.view
        return {each.partition: owned for each in partitions if (owned := view.assignments.get(each)) is not None}

    async def wait_owned(self, partitions: Sequence[PartitionName]) -> None:
        """Return when each partition has an owner, or waits for the broker that alone has its records.

        Raises:
            NotServing: some have no owner, not even after a while.
        """
        view = self._cluster.view

        def ownerless() -> list[PartitionName]:
            return [name for name in partitions if view.assignments.get(name) is None and not self.is_recovering(name)]

        if not await view.wait_for(lambda _: not ownerless(), PLACED_SECONDS):
            raise NotServing(reason=f"{min(ownerless())} has no owner yet")

    def is_recovering(self, partition: PartitionName) -> bool:
        """Return whether a partition waits for the broker that alone has its records."""
        waiting = self._cluster.view.unassigned.get(partition)
        return waiting is not None and waiting.value.is_recovering

    def owner_of(self, partition: PartitionName) -> str | None:
        """Return the broker that serves a partition, if there is one."""
        owned = self._cluster.view.assignments.get(partition)
        return None if owned is None else owned.broker_id

    def present(self) -> Collection[str]:
        """Return the names of the brokers that are there."""
        return self._cluster.view.registrations
