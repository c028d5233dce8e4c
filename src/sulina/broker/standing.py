"""What this broker may do by its standing in the cluster, and where everything is that it does not serve."""

from sulina.broker.cluster.cluster import Cluster
from sulina.broker.place import Place
from sulina.core.cluster import keys
from sulina.errors import LeaseExpired, NotOwner, NotServing, Recovering
from sulina.ports import Compare, Put
from sulina.types import PartitionName
from sulina.wire.messages import TopicState, Trouble, TroubleKind


class Standing:
    """Before the broker has joined, nothing is its own."""

    def __init__(self, broker_id: str) -> None:
        self.broker_id = broker_id
        self.cluster: Cluster | None = None
        self.troubles: dict[PartitionName, str] = {}  # why what is assigned to us is not served

    def may_ack(self) -> bool:
        return self.cluster is not None and self.cluster.membership.may_ack()

    def lapsed(self) -> NotServing:
        """Return why nothing is acknowledged at this moment."""
        went_back = self.cluster.history.went_back if self.cluster is not None else None
        return went_back if isinstance(went_back, NotServing) else LeaseExpired(broker=self.broker_id)

    def cut_off(self) -> Trouble | None:
        """Return why this broker may not speak for what is assigned to it; None: it may."""
        if self.cluster is None:
            return Trouble(kind=TroubleKind.NOT_SERVING, what="it has not joined its cluster yet")
        if isinstance(went_back := self.cluster.history.went_back, NotServing):
            return Trouble(kind=went_back.code, what=went_back.reason)
        member = self.cluster.membership
        if member.is_replaced:
            what = f"another process serves as broker {self.broker_id}, with a copy of its data directory"
            return Trouble(kind=TroubleKind.REPLACED, what=f"{what}: end one of them")
        if not member.may_ack():
            what = "it has lost touch with the metadata store: what it owned may be another's by now"
            return Trouble(kind=TroubleKind.CUT_OFF, what=what)
        return None

    def elsewhere(self, partition: PartitionName) -> NotServing:
        if self.cluster is None:
            return NotServing(reason="it has not joined its cluster yet")
        at = self.cluster.view.placement(partition)
        topic = str(partition.topic)
        if at.broker_id == self.broker_id:
            why = self.troubles.get(partition, "it is being opened")
            return NotServing(
                reason=f"partition {partition.partition} of {topic} is assigned to this broker, but {why}"
            )
        if at.state == TopicState.RECOVERING:
            waiting = self.cluster.view.unassigned.get(partition)
            return Recovering(
                topic=topic,
                partition=partition.partition,
                broker=at.waits_for or "?",
                only_there=waiting.value.only_there if waiting is not None else None,
            )
        return NotOwner(topic=topic, partition=partition.partition, owner=at.broker_id, url=at.url)

    def fence(self, partition: PartitionName, revision: int) -> Compare:
        return Compare(keys.assignment(self.broker_id, partition), revision)

    async def say_archived(
        self,
        place: Place,
        revision: int,
        is_archived: bool,
        *,
        puts: tuple[Put, ...] = (),
        deletes: tuple[str, ...] = (),
    ) -> None:
        """Tell the cluster whether all that is acknowledged is in the archive. Called with `place.saying`. NotOwner."""
        assert self.cluster is not None
        place.is_archived = None  # until we know that it was heard
        await self.cluster.set_archived(place.name, revision, is_archived, puts=puts, deletes=deletes)
        if place.revision == revision:
            place.is_archived = is_archived
