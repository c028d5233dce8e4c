"""What a session can be asked by name: one shape of arguments and one call of the broker for each method."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from sulina.broker.broker import Broker
from sulina.core.log.position import Position
from sulina.core.topic import Policy, TopicSettings
from sulina.errors import InvalidInput, InvalidSettings
from sulina.types import TopicName, checked_broker
from sulina.wire.messages import Name, ReaderSettings, SubscriptionSettings


class _Nothing(Struct, forbid_unknown_fields=True):
    pass


class _Namespace(Struct, forbid_unknown_fields=True):
    namespace: Name


class _PutNamespace(Struct, forbid_unknown_fields=True):
    namespace: Name
    policy: Policy = Policy()


class _Topic(Struct, forbid_unknown_fields=True):
    topic: Name


class _PutTopic(Struct, forbid_unknown_fields=True):
    topic: Name
    settings: TopicSettings = TopicSettings()


class _Topics(Struct, forbid_unknown_fields=True):
    namespace: Name | None = None
    after: Name | None = None
    limit: int = 100


class _DeleteTopic(Struct, forbid_unknown_fields=True):
    topic: Name
    force: bool = False


class _Partition(Struct, forbid_unknown_fields=True):
    topic: Name
    partition: int


class _Commits(Struct, forbid_unknown_fields=True):
    topic: Name
    partition: int
    start: int
    end: int


class _Locate(Struct, forbid_unknown_fields=True):
    topic: Name
    partition: int
    position: Name


class _Subscription(Struct, forbid_unknown_fields=True):
    topic: Name
    subscription: Name


class _PutSubscription(Struct, forbid_unknown_fields=True):
    topic: Name
    subscription: Name
    settings: SubscriptionSettings = SubscriptionSettings()


class _DeleteSubscription(Struct, forbid_unknown_fields=True):
    topic: Name
    subscription: Name
    force: bool = False


class _Seek(Struct, forbid_unknown_fields=True):
    topic: Name
    subscription: Name
    position: Name
    partition: int | None = None


class _Reader(Struct, forbid_unknown_fields=True):
    reader: Name
    topic: Name


class _PutReader(Struct, forbid_unknown_fields=True):
    reader: Name
    topic: Name
    settings: ReaderSettings


class _Readers(Struct, forbid_unknown_fields=True):
    topic: Name | None = None
    after: Name | None = None
    limit: int = 100


class _Unload(Struct, forbid_unknown_fields=True):
    topic: Name
    force: bool = False
    to: Name | None = None
    partition: int | None = None
    give_up: bool = False


class _CancelUnloads(Struct, forbid_unknown_fields=True):
    topic: Name
    partition: int | None = None


class _Broker(Struct, forbid_unknown_fields=True):
    broker_id: Name


class _PubSubMetrics(Struct, forbid_unknown_fields=True):
    topic: Name | None = None


async def _pubsub_metrics(broker: Broker, arguments: _PubSubMetrics) -> Any:
    return broker.pubsub_metrics(None if arguments.topic is None else TopicName.parse(arguments.topic))


async def _subscribers(broker: Broker, arguments: _Topic) -> Any:
    return broker.subscribers(TopicName.parse(arguments.topic))


async def _info(broker: Broker, _arguments: _Nothing) -> Any:
    return await broker.inspect()


async def _unload(broker: Broker, arguments: _Unload) -> Any:
    to = None if arguments.to is None else checked_broker(arguments.to)
    name = TopicName.parse(arguments.topic)
    return await broker.unload(
        name, force=arguments.force, to=to, partition=arguments.partition, give_up=arguments.give_up
    )


async def _readers(broker: Broker, arguments: _Readers) -> Any:
    topic = None if arguments.topic is None else TopicName.parse(arguments.topic)
    return await broker.readers(topic=topic, after=arguments.after, limit=arguments.limit)


_name = TopicName.parse
_Method = tuple[type[Struct], Callable[[Broker, Any], Awaitable[Any]]]

METHODS: dict[str, _Method] = {
    "info": (_Nothing, _info),
    "namespaces": (_Nothing, lambda broker, _: broker.namespaces()),
    "namespace": (_Namespace, lambda broker, a: broker.namespace(a.namespace)),
    "put_namespace": (_PutNamespace, lambda broker, a: broker.put_namespace(a.namespace, a.policy)),
    "delete_namespace": (_Namespace, lambda broker, a: broker.delete_namespace(a.namespace)),
    "topics": (_Topics, lambda broker, a: broker.topics(namespace=a.namespace, after=a.after, limit=a.limit)),
    "topic": (_Topic, lambda broker, a: broker.topic(_name(a.topic))),
    "put_topic": (_PutTopic, lambda broker, a: broker.put_topic(_name(a.topic), a.settings)),
    "delete_topic": (_DeleteTopic, lambda broker, a: broker.delete_topic(_name(a.topic), force=a.force)),
    "partition": (_Partition, lambda broker, a: broker.partition(_name(a.topic), a.partition)),
    "commits": (_Commits, lambda broker, a: broker.commits(_name(a.topic), a.partition, a.start, a.end)),
    "locate": (
        _Locate,
        lambda broker, a: broker.locate(_name(a.topic), a.partition, Position.parse(a.position)),
    ),
    "subscriptions": (_Topic, lambda broker, a: broker.subscriptions(_name(a.topic))),
    "subscription": (_Subscription, lambda broker, a: broker.subscription(_name(a.topic), a.subscription)),
    "put_subscription": (
        _PutSubscription,
        lambda broker, a: broker.put_subscription(_name(a.topic), a.subscription, a.settings),
    ),
    "delete_subscription": (
        _DeleteSubscription,
        lambda broker, a: broker.delete_subscription(_name(a.topic), a.subscription, force=a.force),
    ),
    "seek": (
        _Seek,
        lambda broker, a: broker.seek(
            _name(a.topic), a.subscription, Position.parse(a.position), partition=a.partition
        ),
    ),
    "consumers": (_Partition, lambda broker, a: broker.consumers(_name(a.topic), a.partition)),
    "subscribers": (_Topic, _subscribers),
    "producers": (_Topic, lambda broker, a: broker.producers_of(_name(a.topic))),
    "pubsub_metrics": (_PubSubMetrics, _pubsub_metrics),
    "readers": (_Readers, _readers),
    "reader": (_Reader, lambda broker, a: broker.reader(a.reader, _name(a.topic))),
    "put_reader": (_PutReader, lambda broker, a: broker.put_reader(a.reader, _name(a.topic), a.settings)),
    "delete_reader": (_Reader, lambda broker, a: broker.delete_reader(a.reader, _name(a.topic))),
    "lookup": (_Topic, lambda broker, a: broker.lookup(_name(a.topic))),
    "cluster": (_Nothing, lambda broker, _: broker.cluster()),
    "unload": (_Unload, _unload),
    "cancel_unloads": (_CancelUnloads, lambda broker, a: broker.cancel_unloads(_name(a.topic), partition=a.partition)),
    "unloads": (_Topic, lambda broker, a: broker.unloads(_name(a.topic))),
    "drain_broker": (_Broker, lambda broker, a: broker.drain_broker(checked_broker(a.broker_id))),
    "activate_broker": (_Broker, lambda broker, a: broker.activate_broker(checked_broker(a.broker_id))),
    "rebalance": (_Nothing, lambda broker, _: broker.rebalance()),
}


async def call(broker: Broker, method: str, arguments: dict[str, Any]) -> Any:
    """The broker's answer. InvalidInput for an unknown method, InvalidSettings for arguments of another shape."""
    known = METHODS.get(method)
    if known is None:
        raise InvalidInput(f"there is no method {method[:60]!r}; there are {', '.join(sorted(METHODS))}")
    shape, ask = known
    try:
        typed = msgspec.convert(arguments, shape)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"{method}: {error}") from None
    if isinstance(topic := getattr(typed, "topic", None), str):
        await broker.hear_of(_name(topic))
    return await ask(broker, typed)
