"""Registered readers by HTTP: where they are, how far behind, and that they are done. Any broker answers."""

from typing import TYPE_CHECKING

from sulina.listeners.http_exchange import Exchange
from sulina.listeners.http_openapi_paths import READER, READERS, READERS_MAX
from sulina.listeners.http_parameters import Reader, number, text_up_to
from sulina.listeners.http_resource import Bodies, Handler, query_of, show, topic_of
from sulina.types import TopicName
from sulina.wire.messages import ReaderSettings

if TYPE_CHECKING:
    from sulina.broker.broker import Broker

READERS_QUERY: dict[str, Reader] = {
    "topic": text_up_to(500),
    "after": text_up_to(500),
    "limit": number(1, READERS_MAX),
}


class Readers:
    """The functions, by path and method."""

    def __init__(self, broker: "Broker", bodies: Bodies) -> None:
        self._broker, self._bodies = broker, bodies

    def routes(self) -> dict[str, dict[str, Handler]]:
        """What answers which method of which path."""
        return {
            READERS: {"GET": self.list_readers},
            READER: {"GET": self.get_reader, "PUT": self.put_reader, "DELETE": self.delete_reader},
        }

    async def list_readers(self, exchange: Exchange) -> None:
        """GET /v1/readers"""
        query = query_of(exchange, READERS_QUERY)
        if "topic" in query:
            query["topic"] = TopicName.parse(query["topic"])
        await show(exchange, await self._broker.readers(**query))

    async def get_reader(self, exchange: Exchange) -> None:
        """GET /v1/readers/{name}/{ns}/{topic}"""
        query_of(exchange, {})
        await show(exchange, await self._broker.reader(exchange.path["name"], topic_of(exchange)))

    async def put_reader(self, exchange: Exchange) -> None:
        """PUT /v1/readers/{name}/{ns}/{topic}"""
        query_of(exchange, {})
        topic = topic_of(exchange)
        settings = await self._bodies.read(exchange, ReaderSettings)
        info, is_new = await self._broker.put_reader(exchange.path["name"], topic, settings)
        await show(exchange, info, status=201 if is_new else 200)

    async def delete_reader(self, exchange: Exchange) -> None:
        """DELETE /v1/readers/{name}/{ns}/{topic}"""
        query_of(exchange, {})
        await self._broker.delete_reader(exchange.path["name"], topic_of(exchange))
        await exchange.answer_nothing()
