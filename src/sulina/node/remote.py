"""How a broker asks the owners of partitions that other brokers serve."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from sulina.client.client import Client
from sulina.client.connection import Connector
from sulina.client.message import Record
from sulina.client.options import ClientOptions
from sulina.core.log.position import Position
from sulina.core.records.record import StoredRecord
from sulina.errors import NotServing
from sulina.types import PartitionName
from sulina.wire.messages import SubscriptionInfo

ANSWER_SECONDS = 5.0  # somebody waits: it is told that an owner does not answer


class RemoteOwners:
    """A client of this node, made when it is first needed: it finds the other brokers by itself."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._client: Client | None = None
        self._lock = asyncio.Lock()

    async def publish(self, partition: PartitionName, record: StoredRecord, txn_id: str, schema_id: str) -> None:
        """Return when it is what the topic's ack level says."""
        client = await self._opened()
        to_publish = Record(record.value, record.key, record.headers, record.timestamp_ms)
        ack = await client.publish(
            partition.topic, to_publish, partition=partition.partition, txn_id=txn_id, schema=schema_id
        )
        if ack.error is not None:
            raise ack.error

    async def consumers(self, partition: PartitionName) -> Mapping[str, list[str]]:
        """Return the ids of consumers of the topic that are attached at the owner, by subscription."""
        client = await self._opened()
        async with _answered(partition):
            return await client.admin.consumers(partition.topic, partition.partition)

    async def locate(self, partition: PartitionName, position: Position) -> int:
        """Return the offset that a position means now."""
        client = await self._opened()
        async with _answered(partition):
            return await client.admin.locate(partition.topic, str(position), partition.partition)

    async def seek(self, partition: PartitionName, subscription: str, position: Position) -> SubscriptionInfo:
        """Move a subscription in the partition."""
        client = await self._opened()
        async with _answered(partition):
            return await client.admin.seek(partition.topic, subscription, str(position), partition.partition)

    async def close(self) -> None:
        """Close the client, if there is one."""
        if self._client is not None:
            await self._client.close()

    async def _opened(self) -> Client:
        async with self._lock:
            if self._client is None:
                self._client = await Client(self._connector, options=ClientOptions(name="broker"))
        return self._client


@asynccontextmanager
async def _answered(partition: PartitionName) -> AsyncIterator[None]:
    """Give an owner so long to answer. NotServing."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            yield
    except TimeoutError:
        raise NotServing(reason=f"the owner of {partition} has not answered in {ANSWER_SECONDS:g} seconds") from None
