"""What operators and clients ask of a cluster: where partitions are served, and that they move.

Everything here is a wish that is stored, and an answer from the view. The owner of a partition carries a move out
(`unloading.py`), the leader chooses who gets it (`cluster/load_manager.py`).
"""

from sulina.broker.cluster.cluster import Cluster
from sulina.broker.cluster.view import Ownership
from sulina.broker.cluster_handle import PLACED_SECONDS, SharedCluster
from sulina.broker.events import EventStream
from sulina.broker.partition_logs import PartitionLogs
from sulina.broker.topic import Topic
from sulina.broker.topic_registry import TopicRegistry
from sulina.core.cluster.entries import BrokerMode, GivenUp, UnloadStep
from sulina.errors import BrokerNotFound, InvalidSettings, SubscriptionBusy
from sulina.ports import Clock, StoreSpace
from sulina.types import PartitionName, TopicName
from sulina.wire.messages import (
    BrokerInfo,
    ClusterInfo,
    MetadataInfo,
    Placement,
    Rebalanced,
    TopicState,
    UnloadInfo,
)

REFUSED_SECONDS = 2.0  # to hear whether another owner refuses an unload


class ClusterControl:
    """Looks partitions up, and moves them."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        handle: SharedCluster,
        registry: TopicRegistry,
        logs: PartitionLogs,
        clock: Clock,
        events: EventStream,
    ) -> None:
        self._cluster = cluster
        self._handle = handle
        self._registry = registry
        self._logs = logs
        self._clock = clock
        self._events = events

    async def lookup(self, name: TopicName) -> Placement:
        """Return where the partitions of a topic are served.

        Raises:
            TopicNotFound: there is no such topic.
            LeaseExpired: what this broker knows may be old; ask another.
        """
        topic = self._registry.topic(name)
        if not self._handle.may_ack():
            raise self._handle.lapsed()
        view = self._cluster.view
        return Placement(
            topic=str(name),
            topic_id=topic.stored.topic_id,
            partitions=[view.placement(ownership.name) for ownership in topic.ownerships],
            brokers=[held.value.url for _, held in sorted(view.registrations.items())],
        )

    async def cluster(self) -> ClusterInfo:
        """Return the cluster as this broker sees it."""
        topics = self._registry.topics
        return self._cluster.view.info(
            topics=len(topics),
            partitions=sum(topic.stored.partitions for topic in topics),
            metadata=_metadata_info(self._cluster.upkeep.space),
            is_stale=not self._handle.may_ack(),
        )

    async def unload(
        self,
        name: TopicName,
        *,
        force: bool = False,
        to: str | None = None,
        partition: int | None = None,
        give_up: bool = False,
    ) -> list[UnloadInfo]:
        """Ask that partitions leave their owners, for `to` or for the broker that the leader chooses. Returns at once.

        A partition that waits for a broker that is away is given up as far as only that one has it, if forced. One that
        is closed because records are missing goes on without them, with `give_up`.

        Raises:
            SubscriptionBusy: consumers are attached, and it was not forced.
            BrokerNotFound: there is no broker `to`.
            InvalidSettings: only a broker that is away has the newest records, and it was not forced.
            NotServing: a partition has no owner yet.
        """
        cluster, topic = self._cluster, self._registry.topic(name)
        if to is not None and to not in cluster.view.registrations and to not in cluster.view.loads:
            raise BrokerNotFound(broker=to, brokers=", ".join(sorted(cluster.view.registrations)))
        if partition is not None:
            topic.check_number(partition)
        ownerships = [ownership for ownership in topic.ownerships if partition in (None, ownership.name.partition)]
        await self._handle.wait_owned([ownership.name for ownership in ownerships])
        waiting = {ownership.name for ownership in ownerships if self._handle.is_recovering(ownership.name)}
        if not force and waiting:
            raise await self._only_there(topic, min(waiting))
        if not force and any(ownership.is_here for ownership in ownerships):
            topic.check_idle()
        asked = []
        owners: dict[PartitionName, Ownership] = {}
        for at in [ownership.name for ownership in ownerships]:
            owned = cluster.view.assignments.get(at)
            if at in waiting:
                asked.append(await self._give_up(topic, at, to))
            elif owned is not None and (owned.broker_id != to or give_up):
                by = self._handle.broker_id
                wish = await cluster.request_unload(at, force=force, to=to, requested_by=by, give_up=give_up)
                asked.append(cluster.view.unload_info(at, wish))
                owners[at] = owned
        if not force:
            await self._heard(owners)
        return asked

    async def cancel_unloads(self, name: TopicName, *, partition: int | None = None) -> list[UnloadInfo]:
        """Take back requests that partitions leave their owners; return those that were. One that is done stays done.

        A broker that drains asks again: activate it instead.
        """
        topic = self._registry.topic(name)
        if partition is not None:
            topic.check_number(partition)
        ownerships = [ownership for ownership in topic.ownerships if partition in (None, ownership.name.partition)]
        wishes = {ownership.name: await self._cluster.cancel_unload(ownership.name) for ownership in ownerships}
        return [
            self._cluster.view.unload_info(ownership, wish) for ownership, wish in wishes.items() if wish is not None
        ]

    async def _heard(self, owners: dict[PartitionName, Ownership]) -> None:
        """Wait until other owners have heard of an unload, and raise if one refuses because consumers are attached."""
        view = self._cluster.view
        await view.wait_for(
            lambda view: (
                not any(
                    held is not None and held.value.step == UnloadStep.REQUESTED
                    for held in map(view.unloads.get, owners)
                )
            ),
            REFUSED_SECONDS,
        )
        for name, owner in owners.items():
            if name not in view.unloads and view.assignments.get(name) == owner:
                raise SubscriptionBusy(
                    topic=str(name.topic),
                    subscription="*",
                    reason=f"consumers are attached at broker {owner.broker_id}; detach them, or force it",
                )

    async def _only_there(self, topic: Topic, partition: PartitionName) -> InvalidSettings:
        info = await self._recovering_info(topic, partition)
        given_up = f"offsets {info.given_up[0]} to {info.given_up[1]}" if info.given_up else "what only it has"
        return InvalidSettings(
            f"partition {partition.partition} of {topic.name} waits for broker {info.from_broker}, which alone has "
            f"{given_up}; force gives that up"
        )

    async def _give_up(self, topic: Topic, partition: PartitionName, to: str | None) -> UnloadInfo:
        info = await self._recovering_info(topic, partition)
        given_up = GivenUp(
            start=info.given_up[0] if info.given_up else 0,
            end=None,
            reason=f"only broker {info.from_broker} had them",
            at_ms=int(self._clock.now() * 1000),
        )
        await self._cluster.force_recovery(partition, to, given_up)
        self._events.emit(
            "range_given_up",
            topic.name,
            partition=partition.partition,
            from_broker=info.from_broker,
            start=info.given_up[0] if info.given_up else None,
            end=info.given_up[1] if info.given_up else None,
        )
        return UnloadInfo(
            topic=info.topic,
            partition=info.partition,
            step=UnloadStep.UNASSIGNED,
            from_broker=info.from_broker,
            to_broker=to,
            given_up=info.given_up,
        )

    async def _recovering_info(self, topic: Topic, partition: PartitionName) -> UnloadInfo:
        waiting = self._cluster.view.unassigned.get(partition)
        reported_ms = await self._logs.opener.reported_ms(partition)
        return UnloadInfo(
            topic=str(topic.name),
            partition=partition.partition,
            step=TopicState.RECOVERING,
            from_broker=waiting.value.from_broker if waiting is not None else None,
            to_broker=None,
            given_up=await self._logs.opener.only_there(partition, topic.stored.topic_id),
            reported_seconds=None if reported_ms is None else max(0.0, self._clock.now() - reported_ms / 1000),
            lease_seconds=self._cluster.membership.ttl,
        )

    async def unloads(self, name: TopicName) -> list[UnloadInfo]:
        """Return what is under way for a topic, and what waits for a broker that is away; empty when all is served."""
        topic = self._registry.topic(name)
        view = self._cluster.view
        under_way = []
        for ownership in topic.ownerships:
            held, waiting = view.unloads.get(ownership.name), view.unassigned.get(ownership.name)
            if held is not None:
                under_way.append(view.unload_info(ownership.name, held.value))
            elif self._handle.is_recovering(ownership.name):
                under_way.append(await self._recovering_info(topic, ownership.name))
            elif waiting is not None:
                under_way.append(
                    UnloadInfo(
                        topic=str(name),
                        partition=ownership.name.partition,
                        step=UnloadStep.UNASSIGNED,
                        from_broker=waiting.value.from_broker,
                        to_broker=waiting.value.to,
                    )
                )
        return under_way

    async def drain_broker(self, broker_id: str) -> BrokerInfo:
        """Give a broker no more partitions, and move away those that it has.

        Raises:
            BrokerNotFound: there is no such broker.
        """
        return await self._set_mode(broker_id, BrokerMode.DRAINING)

    async def activate_broker(self, broker_id: str) -> BrokerInfo:
        """Give partitions to a broker again.

        Raises:
            BrokerNotFound: there is no such broker.
        """
        return await self._set_mode(broker_id, BrokerMode.ACTIVE)

    async def _set_mode(self, broker_id: str, mode: BrokerMode) -> BrokerInfo:
        view = self._cluster.view
        known = {info.broker_id for info in view.brokers()}
        if broker_id not in known:
            raise BrokerNotFound(broker=broker_id, brokers=", ".join(sorted(known)))
        await self._cluster.set_mode(broker_id, mode)
        await view.wait_for(lambda view: view.mode(broker_id) == mode, PLACED_SECONDS)
        return next(info for info in view.brokers() if info.broker_id == broker_id)

    async def rebalance(self) -> Rebalanced:
        """Ask for the moves that spread the load, and return them; they are carried out one after the other."""
        view = self._cluster.view
        moves = [view.unload_info(partition, unload) for partition, unload in await self._cluster.rebalance()]
        return Rebalanced(moves=moves)


def _metadata_info(space: StoreSpace | None) -> MetadataInfo | None:
    if space is None:
        return None
    return MetadataInfo(
        is_full=space.is_full,
        size_bytes=space.size_bytes,
        used_bytes=space.used_bytes,
        quota_bytes=space.quota_bytes,
    )
