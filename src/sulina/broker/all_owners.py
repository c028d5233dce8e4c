"""Questions that every owner of a topic must answer, because its partitions may be served by several brokers.

An answer is complete, or it is an error: an owner does not answer, or partitions move meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from sulina.broker.catalogue import Catalogue, Outdated
from sulina.broker.cluster.view import Ownership
from sulina.broker.cluster_handle import ClusterHandle
from sulina.broker.consumer import ConsumerConnection
from sulina.broker.other_owners import OtherOwners
from sulina.broker.subscription import Subscription
from sulina.broker.topic import Topic, refuse_consumers
from sulina.broker.topic_table import TopicTable
from sulina.core.delivery.holder import Admission, Holder, admit
from sulina.core.log.position import LATEST, Position
from sulina.errors import Disconnected, NotServing, OwnersNotReached, TopicNotFound
from sulina.types import PartitionName, TopicName
from sulina.wire.messages import SubscriptionInfo

OWNERS_TRIES = 3  # to ask owners that are the same before and after
CLAIM_TRIES = 10

Answer = TypeVar("Answer")


class AllOwners:
    """Asks the owners of a topic's partitions, this broker among them."""

    def __init__(
        self, topics: TopicTable, catalogue: Catalogue, *, cluster: ClusterHandle, others: OtherOwners
    ) -> None:
        self._topics = topics
        self._catalogue = catalogue
        self._cluster = cluster
        self._others = others

    async def check_idle(self, name: TopicName, subscription: str | None = None) -> None:
        """Check that a topic, or one subscription of it, has no consumers at any broker.

        Raises:
            SubscriptionBusy: consumers are attached.
            OwnersNotReached: a broker that may have consumers does not answer.
        """
        refuse_consumers(name, self._topic(name).consumers(), subscription)
        what = "whether consumers are attached is not known, so nothing was deleted; try again, or force it"
        refuse_consumers(name, await self._consumers_elsewhere(name, what), subscription)

    async def _consumers_elsewhere(self, name: TopicName, what: str) -> dict[str, list[str]]:
        """Return the ids of consumers that are attached at other owners, by subscription; `what` if that fails."""
        owners: dict[int, Ownership] = {}
        for _ in range(OWNERS_TRIES):
            topic, owners = self._topic(name), await self._owners(name)
            asked = {at.broker_id: number for number, at in owners.items() if at.broker_id != self._cluster.broker_id}
            found = await self._ask(topic, asked.values(), self._others.consumers, what)
            if owners == await self._owners(name):
                together: dict[str, list[str]] = {}
                for consumers in found.values():
                    for subscription, attached in consumers.items():
                        together[subscription] = [*together.get(subscription, ()), *attached]
                return together
            # A consumer may have moved along, from a broker that had not been asked to one that had.
        raise OwnersNotReached(topic=str(name), partitions=owners, what=what, reason="they keep moving")

    async def end_offsets(self, topic: Topic) -> dict[int, int]:
        """Return where the partitions of a topic end now, for a subscription to what comes.

        A partition that waits for a broker is left out: it takes nothing before its owner has made the cursors.

        Raises:
            OwnersNotReached: some did not answer.
        """
        owners = await self._owners(topic.name)
        here = [number for number in owners if topic.ownerships[number].is_here]
        what = "where its partitions end is not known, so the subscription was not made; try again"
        ends = await self._ask(
            topic, owners.keys() - here, lambda partition: self._others.locate(partition, LATEST), what
        )
        return ends | {number: await topic.partition(number).locate(LATEST) for number in here}

    async def seek_elsewhere(
        self, topic: Topic, here: Iterable[int], subscription: str, position: Position
    ) -> dict[int, SubscriptionInfo]:
        """Move a subscription in all partitions but those that are `here`; return the answers by partition.

        Raises:
            OwnersNotReached: it names the partitions in which it was not moved.
        """
        elsewhere = {ownership.name.partition for ownership in topic.ownerships} - set(here)
        what = f"subscription {subscription} was moved in other partitions only; seek again"
        return await self._ask(
            topic, elsewhere, lambda partition: self._others.seek(partition, subscription, position), what
        )

    async def claim(self, topic: Topic, subscription: Subscription, consumer: ConsumerConnection) -> None:
        """Make a consumer the holder of a subscription, unless the present holder is attached at any owner.

        Raises:
            SubscriptionBusy: the present holder is attached.
            NotServing: that is not known.
        """
        comer = consumer.holder
        attached: set[str] | None = None
        asked_of: Holder | None = None
        for _ in range(CLAIM_TRIES):
            holder, unchanged = await self._catalogue.read_holder(topic.name, subscription.name)
            verdict = admit(holder, comer, attached if asked_of == holder else None)
            if verdict is Admission.MUST_ASK:
                what = f"whether subscription {subscription.name} is held is not known"
                elsewhere = await self._consumers_elsewhere(topic.name, what)
                asked_of, attached = (
                    holder,
                    {*elsewhere.get(subscription.name, ()), *topic.consumers().get(subscription.name, ())},
                )
                continue
            if verdict is Admission.REFUSED:
                assert holder is not None
                raise subscription.busy(f"consumer {holder.consumer} is attached")
            revision = unchanged.revision
            if verdict is Admission.MAY_TAKE:
                if holder is not None and holder.consumer != comer.consumer:
                    subscription.check_settled()
                try:
                    fences = [unchanged, subscription.exists]
                    revision = await self._catalogue.put_holder(topic.name, subscription.name, comer, fences)
                except Outdated:
                    asked_of = None
                    continue
            await subscription.set_holder(comer, revision)
            return
        raise NotServing(reason=f"others keep claiming subscription {subscription.name} of {topic.name}")

    def _topic(self, name: TopicName) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(topic=str(name))
        return topic

    async def _owners(self, name: TopicName) -> dict[int, Ownership]:
        return await self._cluster.owners([ownership.name for ownership in self._topic(name).ownerships])

    async def _ask(
        self,
        topic: Topic,
        numbers: Iterable[int],
        question: Callable[[PartitionName], Awaitable[Answer]],
        what: str,
    ) -> dict[int, Answer]:
        """Ask the owners of partitions that are not served here, all at once; return the answers by partition."""
        asked = sorted(numbers)
        found = await asyncio.gather(
            *(question(PartitionName(topic.name, number)) for number in asked), return_exceptions=True
        )
        answers = dict(zip(asked, found, strict=True))
        silent = {number: each for number, each in answers.items() if isinstance(each, NotServing | Disconnected)}
        for each in found:
            if isinstance(each, BaseException) and each not in silent.values():
                raise each
        if silent:
            reason = str(next(iter(silent.values())))
            raise OwnersNotReached(topic=str(topic.name), partitions=silent.keys(), what=what, reason=reason)
        return {number: each for number, each in answers.items() if not isinstance(each, BaseException)}
