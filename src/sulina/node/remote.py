"""How a broker publishes a record of its own to a partition that another broker serves."""

import asyncio

from sulina.client.client import Client
from sulina.client.connection import Connector
from sulina.client.message import Message
from sulina.client.options import ClientOptions
from sulina.core.records import Record
from sulina.types import TopicName


class Remote:
    """A client of this node, made when it is first needed: it finds the other brokers by itself."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._client: Client | None = None
        self._lock = asyncio.Lock()

    async def publish(self, topic: TopicName, record: Record, partition: int, txn_id: str, schema_id: str) -> None:
        """Return when it is what the topic's ack level says."""
        async with self._lock:
            if self._client is None:
                self._client = await Client(self._connector, options=ClientOptions(name="broker")).open()
        message = Message(record.value, record.key, record.headers, record.timestamp_ms)
        ack = await self._client.publish(topic, message, partition=partition, txn_id=txn_id, schema=schema_id)
        if ack.error is not None:
            raise ack.error

    async def close(self) -> None:
        """Let go."""
        if self._client is not None:
            await self._client.close()
