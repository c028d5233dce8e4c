"""Publish/subscribe by HTTP: who is subscribed, and what became of messages. A broker answers for what it serves."""

from typing import TYPE_CHECKING

from msgspec import Struct

from sulina.core.pubsub import SubscriberInfo
from sulina.listeners.http_exchange import Exchange
from sulina.listeners.http_openapi_paths import PUBSUB_METRICS, SUBSCRIBERS
from sulina.listeners.http_parameters import Reader, text_up_to
from sulina.listeners.http_resource import Bodies, Handler, query_of, show, topic_of
from sulina.types import TopicName

if TYPE_CHECKING:
    from sulina.broker.broker import Broker

METRICS_QUERY: dict[str, Reader] = {"topic": text_up_to(500)}


class SubscribersOut(Struct, frozen=True, kw_only=True):
    """The subscribers of the partitions that the broker serves."""

    subscribers: list[SubscriberInfo]


class PubSub:
    """The functions, by path and method."""

    def __init__(self, broker: "Broker", _bodies: Bodies) -> None:
        self._broker = broker

    def routes(self) -> dict[str, dict[str, Handler]]:
        """What answers which method of which path."""
        return {SUBSCRIBERS: {"GET": self.list_subscribers}, PUBSUB_METRICS: {"GET": self.get_metrics}}

    async def list_subscribers(self, exchange: Exchange) -> None:
        """GET …/subscribers"""
        query_of(exchange, {})
        await show(exchange, SubscribersOut(subscribers=self._broker.subscribers(topic_of(exchange))))

    async def get_metrics(self, exchange: Exchange) -> None:
        """GET /v1/pubsub/metrics"""
        query = query_of(exchange, METRICS_QUERY)
        name = TopicName.parse(query["topic"]) if "topic" in query else None
        await show(exchange, self._broker.pubsub_metrics(name))
