"""Publish/subscribe by HTTP: who publishes, who is subscribed, and what became of messages.

Any broker knows all producers; of the rest it answers for what it serves.
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from sulina.core.delivery.pubsub import SubscriberInfo
from sulina.listeners.http_exchange import Exchange
from sulina.listeners.http_openapi_paths import PRODUCERS, PUBSUB_METRICS, SUBSCRIBERS
from sulina.listeners.http_parameters import Reader, text_up_to
from sulina.listeners.http_resource import Bodies, Handler, query_of, show, topic_of
from sulina.types import TopicName
from sulina.wire.messages import ProducerInfo

if TYPE_CHECKING:
    from sulina.broker.broker import Broker

METRICS_QUERY: dict[str, Reader] = {"topic": text_up_to(500)}


class SubscribersOut(Struct, frozen=True, kw_only=True):
    """The subscribers of the partitions that the broker serves."""

    subscribers: list[SubscriberInfo]


class ProducersOut(Struct, frozen=True, kw_only=True):
    """The producers of a topic, at all brokers."""

    producers: list[ProducerInfo]


class PubSub:
    """The functions, by path and method."""

    def __init__(self, broker: "Broker", _bodies: Bodies) -> None:
        self._broker = broker

    def routes(self) -> dict[str, dict[str, Handler]]:
        """What answers which method of which path."""
        return {
            PRODUCERS: {"GET": self.list_producers},
            SUBSCRIBERS: {"GET": self.list_subscribers},
            PUBSUB_METRICS: {"GET": self.get_metrics},
        }

    async def list_producers(self, exchange: Exchange) -> None:
        """GET …/producers"""
        query_of(exchange, {})
        await show(exchange, ProducersOut(producers=await self._broker.producers_of(topic_of(exchange))))

    async def list_subscribers(self, exchange: Exchange) -> None:
        """GET …/subscribers"""
        query_of(exchange, {})
        await show(exchange, SubscribersOut(subscribers=self._broker.subscribers(topic_of(exchange))))

    async def get_metrics(self, exchange: Exchange) -> None:
        """GET /v1/pubsub/metrics"""
        query = query_of(exchange, METRICS_QUERY)
        name = TopicName.parse(query["topic"]) if "topic" in query else None
        await show(exchange, self._broker.pubsub_metrics(name))
