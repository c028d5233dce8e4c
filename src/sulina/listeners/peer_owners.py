"""How a broker asks the owners of partitions that other brokers serve, and how it answers them."""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sulina.broker.broker import Broker
from sulina.core.backoff import Backoff
from sulina.core.log.position import Position
from sulina.core.log.publish_request import PublishRequest
from sulina.core.records.record import StoredRecord, encode
from sulina.errors import Disconnected, NotOwner, NotServing, QueueFull
from sulina.json_values import convert_to
from sulina.listeners.calls import call
from sulina.listeners.peer import PeerNetwork
from sulina.listeners.peer_requests import Answers
from sulina.types import PartitionName, TopicName
from sulina.wire.messages import SubscriptionInfo
from sulina.wire.operations import CONSUMERS, LOCATE, SEEK
from sulina.wire.peer import PeerCall, PeerPublish, PeerRequest

ANSWER_SECONDS = 5.0  # a client waits for it: it is told that an owner does not answer
PUBLISH_SECONDS = 30.0  # for a dead letter, which is tried again later
PAUSE_SECONDS_MIN = 0.02  # before an owner is looked up and asked again
PAUSE_SECONDS_MAX = 0.5


async def answer_peer(broker: Broker, request: PeerRequest) -> Any:
    """Return the broker's answer to a request of another one.

    Raises:
        SulinaError: the broker refused; NotOwner if it does not own the partition.
    """
    if isinstance(request, PeerCall):
        return await call(broker, request.operation, request.arguments)
    publish = PublishRequest(  # brokers publish nothing but dead letters at each other
        request.data,
        partition=request.partition,
        txn_id=request.txn_id,
        schema_id=request.schema_id,
        is_dead_letter=True,
    )
    await broker.publish(TopicName.parse(request.topic), publish)
    return None


class PeerOwners:
    """`sulina.broker.other_owners.OtherOwners` over the peer connections."""

    def __init__(
        self, network: PeerNetwork, *, owner_of: Callable[[PartitionName], str | None], answer: Answers
    ) -> None:
        """Ask over `network`. `answer` is this broker's own, for a partition that has come to it meanwhile."""
        self._network = network
        self._owner_of = owner_of
        self._answer = answer

    async def publish(self, partition: PartitionName, record: StoredRecord, txn_id: str, schema_id: str) -> None:
        """Publish a record, once for its txn_id; return when it is as durable as the topic wants."""
        data = memoryview(encode([record]))

        def request(number: int) -> PeerRequest:
            return PeerPublish(number, str(partition.topic), partition.partition, data, txn_id, schema_id)

        await self._ask(partition, request, PUBLISH_SECONDS)

    async def consumers(self, partition: PartitionName) -> Mapping[str, list[str]]:
        """Return the ids of consumers of the topic that are attached at the owner, by subscription."""
        answer = await self._ask(partition, _call(CONSUMERS.name, partition), ANSWER_SECONDS)
        return convert_to(answer, dict[str, list[str]])

    async def locate(self, partition: PartitionName, position: Position) -> int:
        """Return the offset that a position means now."""
        answer = await self._ask(partition, _call(LOCATE.name, partition, position=str(position)), ANSWER_SECONDS)
        return convert_to(answer, int)

    async def seek(self, partition: PartitionName, subscription: str, position: Position) -> SubscriptionInfo:
        """Move a subscription in the partition."""
        request = _call(SEEK.name, partition, subscription=subscription, position=str(position))
        answer = await self._ask(partition, request, ANSWER_SECONDS, may_repeat=False)
        return convert_to(answer, SubscriptionInfo)

    async def _ask(
        self,
        partition: PartitionName,
        request: Callable[[int], PeerRequest],
        seconds: float,
        *,
        may_repeat: bool = True,  # after its outcome became unknown
    ) -> Any:
        """Ask the owner, whichever broker that is by then, until one has answered.

        Raises:
            NotServing: none has in this time.
            Disconnected: the outcome is unknown, and the request may not be repeated.
            SulinaError: the owner refused.
        """
        backoff, reason = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, random.random), "it is silent"
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        return await self._ask_owner(partition, request)
                    except Disconnected as error:
                        if not may_repeat:
                            raise
                        reason = str(error)
                    except (NotServing, QueueFull) as error:
                        reason = str(error)
                    await asyncio.sleep(backoff.next())
        except TimeoutError:
            text = f"the owner of {partition} has not answered in {seconds:g} seconds: {reason}"
            raise NotServing(reason=text) from None

    async def _ask_owner(self, partition: PartitionName, request: Callable[[int], PeerRequest]) -> Any:
        owner = self._owner_of(partition)
        if owner is None:
            raise NotOwner(topic=str(partition.topic), partition=partition.partition)
        if owner == self._network.broker_id:  # since the caller looked
            return msgspec.to_builtins(await self._answer(request(0)))
        return await self._network.ask(owner, request)


def _call(operation: str, partition: PartitionName, **arguments: str) -> Callable[[int], PeerRequest]:
    where = {"topic": str(partition.topic), "partition": partition.partition}
    return lambda number: PeerCall(number, operation, {**where, **arguments})
