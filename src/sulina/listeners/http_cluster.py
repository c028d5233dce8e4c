"""The cluster by HTTP: where topics are served, how they are moved, and which brokers there are.

Any broker answers, and what is asked for here is done by whoever has to: an answer 202 says that it has been asked for.
"""

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from sulina.listeners.http_exchange import Exchange
from sulina.listeners.http_openapi_paths import BROKER, BROKERS, CLUSTER, TOPIC
from sulina.listeners.http_parameters import Reader, number
from sulina.listeners.http_resource import Bodies, Handler, query_of, show, topic_of
from sulina.types import PARTITIONS_MAX, checked_broker
from sulina.wire.messages import BrokerInfo, UnloadInfo

if TYPE_CHECKING:
    from sulina.broker.broker import Broker


BrokerName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,199}$", max_length=200)]


CANCEL_QUERY: dict[str, Reader] = {"partition": number(0, PARTITIONS_MAX - 1)}


class UnloadIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a topic is to leave its owners."""

    force: bool = False
    to: BrokerName | None = None
    partition: Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)] | None = None
    give_up: bool = False


class UnloadsOut(Struct, frozen=True, kw_only=True):
    """What of a topic is on its way from one broker to another."""

    unloads: list[UnloadInfo]


class BrokersOut(Struct, frozen=True, kw_only=True):
    """All brokers, in the order of their names."""

    brokers: list[BrokerInfo]


class Cluster:
    """The functions, by path and method."""

    def __init__(self, broker: "Broker", bodies: Bodies) -> None:
        self._broker, self._bodies = broker, bodies

    def routes(self) -> dict[str, dict[str, Handler]]:
        """What answers which method of which path."""
        return {
            f"{TOPIC}/placement": {"GET": self.get_placement},
            f"{TOPIC}/unload": {"POST": self.unload},
            f"{TOPIC}/unloads": {"GET": self.list_unloads, "DELETE": self.cancel_unloads},
            CLUSTER: {"GET": self.get_cluster},
            BROKERS: {"GET": self.list_brokers},
            f"{BROKER}/drain": {"POST": self.drain},
            f"{BROKER}/activate": {"POST": self.activate},
            f"{CLUSTER}/rebalance": {"POST": self.rebalance},
        }

    async def get_placement(self, exchange: Exchange) -> None:
        """GET …/placement"""
        query_of(exchange, {})
        await show(exchange, await self._broker.lookup(topic_of(exchange)))

    async def unload(self, exchange: Exchange) -> None:
        """POST …/unload"""
        query_of(exchange, {})
        name = topic_of(exchange)
        asked = await self._bodies.read(exchange, UnloadIn)
        begun = await self._broker.unload(
            name, force=asked.force, to=asked.to, partition=asked.partition, give_up=asked.give_up
        )
        await show(exchange, UnloadsOut(unloads=begun), status=202)

    async def list_unloads(self, exchange: Exchange) -> None:
        """GET …/unloads"""
        query_of(exchange, {})
        await show(exchange, UnloadsOut(unloads=await self._broker.unloads(topic_of(exchange))))

    async def cancel_unloads(self, exchange: Exchange) -> None:
        """DELETE …/unloads"""
        query = query_of(exchange, CANCEL_QUERY)
        await show(exchange, UnloadsOut(unloads=await self._broker.cancel_unloads(topic_of(exchange), **query)))

    async def get_cluster(self, exchange: Exchange) -> None:
        """GET /v1/cluster"""
        query_of(exchange, {})
        await show(exchange, await self._broker.cluster())

    async def list_brokers(self, exchange: Exchange) -> None:
        """GET /v1/cluster/brokers"""
        query_of(exchange, {})
        await show(exchange, BrokersOut(brokers=(await self._broker.cluster()).brokers))

    async def drain(self, exchange: Exchange) -> None:
        """POST /v1/cluster/brokers/{broker}/drain"""
        query_of(exchange, {})
        await show(exchange, await self._broker.drain_broker(_broker_of(exchange)), status=202)

    async def activate(self, exchange: Exchange) -> None:
        """POST /v1/cluster/brokers/{broker}/activate"""
        query_of(exchange, {})
        await show(exchange, await self._broker.activate_broker(_broker_of(exchange)))

    async def rebalance(self, exchange: Exchange) -> None:
        """POST /v1/cluster/rebalance"""
        query_of(exchange, {})
        await show(exchange, await self._broker.rebalance(), status=202)


def _broker_of(exchange: Exchange) -> str:
    return checked_broker(exchange.path["broker"])
