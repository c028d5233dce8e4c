"""A cluster of one: the broker owns every partition from the start, and nobody can take one from it.

It implements `ClusterHandle` without a lease, an election or an assignment, so a node without other brokers writes
nothing about a cluster to its metadata store.
"""

# ruff: noqa: ARG002 (a cluster of one answers without looking)

from collections.abc import Callable, Collection, Mapping, Sequence

from sulina.broker.cluster.view import Ownership
from sulina.broker.node_load import NodeLoad
from sulina.broker.partition_ownership import PartitionOwnership
from sulina.broker.topic_admin import TopicAdmin
from sulina.broker.topic_registry import TopicRegistry
from sulina.core.cluster.entries import ALONE_EPOCH
from sulina.errors import Draining, InvalidSettings, LeaseExpired, NotServing, StaleEpoch, SulinaError
from sulina.ports import Compare, Put
from sulina.types import PartitionName, TopicName
from sulina.wire.messages import (
    BrokerInfo,
    ClusterInfo,
    PartitionPlacement,
    Placement,
    Rebalanced,
    TopicState,
    Trouble,
    UnloadInfo,
)


class SoleBroker:
    """The only broker of its cluster."""

    shares_metadata = False
    adopts_unstamped = True
    first_revision = 0

    def __init__(self, broker_id: str) -> None:
        self.broker_id = broker_id
        self.troubles: dict[PartitionName, str] = {}  # every partition is served

    def may_ack(self) -> bool:
        """Return that nobody else can own what is here."""
        return True

    def lapsed(self) -> NotServing:
        """Return what a broker says whose right has ended; this one's never does."""
        return LeaseExpired(broker=self.broker_id)

    def elsewhere(self, partition: PartitionName) -> NotServing:
        """Return that a partition is being closed: it is served nowhere else."""
        return Draining(topic=str(partition.topic))

    def overtaken(self, partition: PartitionName, stale: StaleEpoch) -> SulinaError:
        """Return the error as it is: somebody else writes to the archive of this broker."""
        return stale

    def fences(self, partition: PartitionName, revision: int) -> list[Compare]:
        """Return nothing: no other broker writes about the partition."""
        return []

    def cut_off(self) -> Trouble | None:
        """Return that it may always speak for what it has."""
        return None

    def must_set_archived(self, ownership: PartitionOwnership, is_archived: bool) -> bool:
        """Return that no other broker has to know."""
        return False

    async def set_archived(
        self,
        ownership: PartitionOwnership,
        revision: int,
        is_archived: bool,
        *,
        puts: tuple[Put, ...] = (),
        deletes: tuple[str, ...] = (),
    ) -> None:
        """Tell nobody."""

    async def check_assigned(self, partition: PartitionName, revision: int, stale: StaleEpoch) -> None:
        """Accept that the epoch is stale: the metadata store does not assign epochs."""

    async def prepare_topic(self, name: TopicName, partitions: int, now_ms: int) -> int | None:
        """Return that partitions have their owner as soon as the topic exists."""
        return None

    async def forget_topic(self, name: TopicName, partitions: int, mark: Compare) -> None:
        """Take partitions from nobody."""

    async def wait_placed(self, partitions: Collection[PartitionName]) -> None:
        """Return at once."""

    async def owners(self, partitions: Sequence[PartitionName]) -> dict[int, Ownership]:
        """Return that all partitions are owned here."""
        return {each.partition: Ownership(self.broker_id, ALONE_EPOCH, self.first_revision) for each in partitions}

    def owner_of(self, partition: PartitionName) -> str | None:
        """Return this broker."""
        return self.broker_id

    def present(self) -> Collection[str]:
        """Return this broker."""
        return (self.broker_id,)


class SoleMember:
    """The life of a broker in a cluster of one, and what its operator may ask of the cluster."""

    store_id = None  # no other broker has to know its data directory

    def __init__(self, registry: TopicRegistry, admin: TopicAdmin, load: NodeLoad, broker_id: str) -> None:
        self._registry = registry
        self._admin = admin
        self._load = load
        self._broker_id = broker_id

    async def start(self, *, url: str | None = None, peer: str | None = None) -> None:
        """Load what exists, and finish the deletes that were cut short."""
        await self._registry.load()
        await self._admin.finish_deletes()

    async def leave(self) -> None:
        """Return at once: there is nobody to give anything back to."""

    def follow_peers(self, tell: Callable[[Mapping[str, str]], None]) -> None:
        """Tell nothing: there are no peers."""

    def follow_owners(self, changed: Callable[[], None]) -> None:
        """Tell nothing: owners do not change."""

    async def lookup(self, name: TopicName) -> Placement:
        """Return that all partitions of a topic are served here.

        Raises:
            TopicNotFound: there is no such topic.
        """
        topic = self._registry.topic(name)
        here = [
            PartitionPlacement(partition=number, state=TopicState.ACTIVE, broker_id=self._broker_id)
            for number in range(topic.stored.partitions)
        ]
        return Placement(topic=str(name), topic_id=topic.stored.topic_id, partitions=here, brokers=[])

    async def cluster(self) -> ClusterInfo:
        """Return a cluster that has this broker only."""
        report = self._load.report()
        return ClusterInfo(
            brokers=[
                BrokerInfo(
                    broker_id=self._broker_id,
                    url=None,
                    state="active",
                    is_leader=True,
                    partitions=report.partitions,
                    topics=report.topics,
                    connections=report.connections,
                    published_bytes_per_second=report.published_bytes_per_second,
                    uptime_seconds=None,
                    clock_ahead_seconds=report.clock_ahead_seconds,
                )
            ],
            leader=self._broker_id,
            topics=report.topics,
            partitions=report.partitions,
            unassigned=0,
            recovering=0,
            unloads=[],
        )

    async def unloads(self, name: TopicName) -> list[UnloadInfo]:
        """Return that nothing moves.

        Raises:
            TopicNotFound: there is no such topic.
        """
        self._registry.topic(name)
        return []

    async def unload(
        self,
        name: TopicName,
        *,
        force: bool = False,
        to: str | None = None,
        partition: int | None = None,
        give_up: bool = False,
    ) -> list[UnloadInfo]:
        """Raise InvalidSettings: there is no other broker to move to."""
        raise _no_cluster()

    async def cancel_unloads(self, name: TopicName, *, partition: int | None = None) -> list[UnloadInfo]:
        """Raise InvalidSettings: nothing moves."""
        raise _no_cluster()

    async def drain_broker(self, broker_id: str) -> BrokerInfo:
        """Raise InvalidSettings: there is no other broker to move to."""
        raise _no_cluster()

    async def activate_broker(self, broker_id: str) -> BrokerInfo:
        """Raise InvalidSettings: the only broker is always active."""
        raise _no_cluster()

    async def rebalance(self) -> Rebalanced:
        """Raise InvalidSettings: there is no other broker to move to."""
        raise _no_cluster()


def _no_cluster() -> InvalidSettings:
    return InvalidSettings("this node is not part of a cluster: start it with --metadata etcd://…")
