"""Namespaces, topics, partitions and subscriptions by HTTP: each method of a path is one function here.

PUT creates (201), or leaves or changes what exists by the broker's rules (200). An empty body means the defaults.
"""

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from sulina.core.delivery.members import SubscriptionKind
from sulina.core.log.commit import Commit
from sulina.core.log.position import Position
from sulina.core.topic import Policy, TopicSettings
from sulina.errors import InvalidInput
from sulina.listeners.http_exchange import Exchange
from sulina.listeners.http_parameters import Reader, flag, number, read_partition, text_up_to
from sulina.listeners.http_resource import Bodies, Handler, query_of, show, topic_of
from sulina.types import PARTITIONS_MAX
from sulina.wire.messages import Name, NamespaceInfo, SubscriptionInfo, SubscriptionSettings

if TYPE_CHECKING:
    from sulina.broker.broker import Broker

COMMITS_MAX = 1000
COMMITS = 100  # the newest, unless asked otherwise
TOPICS_MAX = 1000
NESTING_MAX = 64


class NamespacesOut(Struct, frozen=True, kw_only=True):
    """All namespaces, in the order of their names."""

    namespaces: list[NamespaceInfo]


class SubscriptionsOut(Struct, frozen=True, kw_only=True):
    """The subscriptions of a topic."""

    subscriptions: list[SubscriptionInfo]


class CommitsOut(Struct, frozen=True, kw_only=True):
    """Some commits of a partition; go on at `next_version`."""

    commits: list[Commit]
    next_version: int


class SubscriptionIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either what to create (`kind`, `start`), or where an existing one is to go on (`seek`, and `partition` if only
    one is meant)."""

    kind: SubscriptionKind | UnsetType = UNSET
    start: Name | UnsetType = UNSET
    seek: Name | UnsetType = UNSET
    partition: Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)] | UnsetType = UNSET


STALE_QUERY: dict[str, Reader] = {"stale": flag}
TOPICS_QUERY: dict[str, Reader] = {
    "namespace": text_up_to(200),
    "after": text_up_to(500),
    "limit": number(1, TOPICS_MAX),
}
COMMITS_QUERY: dict[str, Reader] = {"from": number(), "to": number()}
FORCE_QUERY: dict[str, Reader] = {"force": flag}


class Admin:
    """The functions, by path and method."""

    def __init__(self, broker: "Broker", bodies: Bodies) -> None:
        self._broker, self._bodies = broker, bodies

    def routes(self) -> dict[str, dict[str, Handler]]:
        """What answers which method of which path."""
        topic = "/v1/topics/{ns}/{topic}"
        return {
            "/v1/namespaces": {"GET": self.list_namespaces},
            "/v1/namespaces/{ns}": {
                "GET": self.get_namespace,
                "PUT": self.put_namespace,
                "DELETE": self.delete_namespace,
            },
            "/v1/topics": {"GET": self.list_topics},
            topic: {"GET": self.get_topic, "PUT": self.put_topic, "DELETE": self.delete_topic},
            f"{topic}/partitions/{{p}}": {"GET": self.get_partition},
            f"{topic}/partitions/{{p}}/commits": {"GET": self.list_commits},
            f"{topic}/subscriptions": {"GET": self.list_subscriptions},
            f"{topic}/subscriptions/{{sub}}": {
                "GET": self.get_subscription,
                "PUT": self.put_subscription,
                "DELETE": self.delete_subscription,
            },
            "/v1/node": {"GET": self.get_node},
        }

    # Namespaces

    async def list_namespaces(self, exchange: Exchange) -> None:
        """GET /v1/namespaces"""
        query_of(exchange, {})
        await show(exchange, NamespacesOut(namespaces=await self._broker.namespaces()))

    async def get_namespace(self, exchange: Exchange) -> None:
        """GET /v1/namespaces/{ns}"""
        query_of(exchange, {})
        await show(exchange, await self._broker.namespace(exchange.path["ns"]))

    async def put_namespace(self, exchange: Exchange) -> None:
        """PUT /v1/namespaces/{ns}"""
        query_of(exchange, {})
        policy = await self._bodies.read(exchange, Policy)
        info, is_new = await self._broker.put_namespace(exchange.path["ns"], policy)
        await show(exchange, info, status=201 if is_new else 200)

    async def delete_namespace(self, exchange: Exchange) -> None:
        """DELETE /v1/namespaces/{ns}"""
        query_of(exchange, {})
        await self._broker.delete_namespace(exchange.path["ns"])
        await exchange.answer_nothing()

    # Topics

    async def list_topics(self, exchange: Exchange) -> None:
        """GET /v1/topics"""
        await show(exchange, await self._broker.topics(**query_of(exchange, TOPICS_QUERY)))

    async def get_topic(self, exchange: Exchange) -> None:
        """GET /v1/topics/{ns}/{topic}"""
        query_of(exchange, {})
        await show(exchange, await self._broker.topic(topic_of(exchange)))

    async def put_topic(self, exchange: Exchange) -> None:
        """PUT /v1/topics/{ns}/{topic}"""
        query_of(exchange, {})
        name = topic_of(exchange)
        settings = await self._bodies.read(exchange, TopicSettings)
        _check_nesting(settings.value_schema.definition)
        info, is_new = await self._broker.put_topic(name, settings)
        await show(exchange, info, status=201 if is_new else 200)

    async def delete_topic(self, exchange: Exchange) -> None:
        """DELETE /v1/topics/{ns}/{topic}"""
        await self._broker.delete_topic(topic_of(exchange), **query_of(exchange, FORCE_QUERY))
        await exchange.answer_nothing()

    async def get_partition(self, exchange: Exchange) -> None:
        """GET …/partitions/{p}"""
        query = query_of(exchange, STALE_QUERY)
        number = read_partition(exchange.path["p"])
        await show(exchange, await self._broker.partition(topic_of(exchange), number, **query))

    async def list_commits(self, exchange: Exchange) -> None:
        """GET …/partitions/{p}/commits"""
        query = query_of(exchange, COMMITS_QUERY)
        name, partition = topic_of(exchange), read_partition(exchange.path["p"])
        end = query.get("to")
        if end is None:
            newest = (await self._broker.partition(name, partition)).version
            end = min(query["from"] + COMMITS_MAX, newest + 1) if "from" in query else newest + 1
        start = query.get("from", max(end - COMMITS, 0))
        if "from" in query and "to" in query and not start <= end:
            raise InvalidInput(f"versions from {start} to {end} are no range")
        commits = await self._broker.commits(name, partition, start, min(max(start, end), start + COMMITS_MAX))
        next_version = commits[-1].version + 1 if commits else start
        await show(exchange, CommitsOut(commits=commits, next_version=next_version))

    # Subscriptions

    async def list_subscriptions(self, exchange: Exchange) -> None:
        """GET …/subscriptions"""
        query_of(exchange, {})
        await show(exchange, SubscriptionsOut(subscriptions=await self._broker.subscriptions(topic_of(exchange))))

    async def get_subscription(self, exchange: Exchange) -> None:
        """GET …/subscriptions/{sub}"""
        query_of(exchange, {})
        await show(exchange, await self._broker.subscription(topic_of(exchange), exchange.path["sub"]))

    async def put_subscription(self, exchange: Exchange) -> None:
        """PUT …/subscriptions/{sub}"""
        query_of(exchange, {})
        name = topic_of(exchange)
        asked = await self._bodies.read(exchange, SubscriptionIn)
        if asked.seek is UNSET:
            if asked.partition is not UNSET:
                raise InvalidInput("partition says where to seek, and there is no seek")
            given = {field: value for field in ("kind", "start") if (value := getattr(asked, field)) is not UNSET}
            settings = SubscriptionSettings(**given)
            Position.parse(settings.start)
            info, is_new = await self._broker.put_subscription(name, exchange.path["sub"], settings)
            await show(exchange, info, status=201 if is_new else 200)
            return
        if asked.kind is not UNSET or asked.start is not UNSET:
            raise InvalidInput("a body has either seek, for what exists, or kind and start, to create it")
        position, subscription = Position.parse(asked.seek), exchange.path["sub"]
        if asked.partition is UNSET:
            info = await self._broker.seek_everywhere(name, subscription, position)
        else:
            info = await self._broker.seek(name, subscription, position, partition=asked.partition)
        await show(exchange, info)

    async def delete_subscription(self, exchange: Exchange) -> None:
        """DELETE …/subscriptions/{sub}"""
        await self._broker.delete_subscription(
            topic_of(exchange), exchange.path["sub"], **query_of(exchange, FORCE_QUERY)
        )
        await exchange.answer_nothing()

    async def get_node(self, exchange: Exchange) -> None:
        """GET /v1/node"""
        query_of(exchange, {})
        await show(exchange, await self._broker.inspect())


def _check_nesting(value: Any) -> None:
    """InvalidInput for what would later be too deep for a reader with less of a stack left."""
    level = [value]
    for _ in range(NESTING_MAX):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise InvalidInput(f"the definition of a schema may be nested {NESTING_MAX} deep, not more")
