"""The answers to the operations of `wire.operations`: one call of the broker for each, for sessions and HTTP alike."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from sulina.broker.broker import Broker
from sulina.core.log.position import Position
from sulina.errors import InvalidInput, InvalidSettings
from sulina.json_values import convert_to
from sulina.types import TopicName, checked_broker
from sulina.wire import operations
from sulina.wire.messages import (
    BrokerList,
    CommitPage,
    MoveList,
    NamespaceList,
    ProducerList,
    PubSubMetrics,
    ReaderPage,
    SubscriberList,
    SubscriptionInfo,
    SubscriptionList,
    TopicInfo,
)
from sulina.wire.operations import BY_NAME, COMMITS_DEFAULT, COMMITS_MAX, Operation

NESTING_MAX = 64  # of a schema's definition

AnyOperation = Operation[..., Any]
_Answer = Callable[[Broker, Any], Awaitable[Any]]


async def call(broker: Broker, method: str, arguments: dict[str, Any]) -> Any:
    """Return the broker's answer to a call of a session.

    Raises:
        InvalidInput: there is no such operation.
        InvalidSettings: the arguments do not fit the operation.
    """
    operation = BY_NAME.get(method)
    if operation is None:
        raise InvalidInput(f"there is no method {method[:60]!r}; there are {', '.join(sorted(BY_NAME))}")
    try:
        typed = convert_to(arguments, operation.shape)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"{method}: {error}") from None
    result, _ = await answer(broker, operation, typed)
    return result


async def answer(
    broker: Broker, operation: AnyOperation, arguments: Struct, *, for_all_owners: bool = False
) -> tuple[Any, bool]:
    """Return the broker's answer, and whether something was created.

    `for_all_owners`: the caller cannot ask the other owners itself; a change at every owner is passed on to them.
    """
    topic = getattr(arguments, "topic", None)
    if topic is not None:
        await broker.hear_of(_name(topic))
    if for_all_owners and operation is operations.SEEK:
        return await _seek_everywhere(broker, arguments), False
    result = await _ANSWERS[operation](broker, arguments)
    if operation.route is not None and operation.route.created is not None:
        info, is_new = result
        return info, is_new
    return result, False


def _name(topic: str | TopicName) -> TopicName:
    return topic if isinstance(topic, TopicName) else TopicName.parse(topic)


def _position(position: str | Position) -> Position:
    return position if isinstance(position, Position) else Position.parse(position)


async def _namespaces(broker: Broker, _: operations.NoArguments) -> NamespaceList:
    return NamespaceList(namespaces=await broker.namespaces())


async def _create_topic(broker: Broker, asked: operations.CreateTopicRequest) -> tuple[TopicInfo, bool]:
    _check_nesting(asked.settings.value_schema.definition)
    return await broker.put_topic(_name(asked.topic), asked.settings)


def _check_nesting(value: Any) -> None:
    """Check that a definition can be read by a caller with less of a stack left.

    Raises:
        InvalidInput: it is nested too deep.
    """
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


async def _commits(broker: Broker, asked: operations.CommitsRequest) -> CommitPage:
    name, start, end = _name(asked.topic), asked.start, asked.end
    if end is None:
        newest = (await broker.partition(name, asked.partition)).version
        end = newest + 1 if start is None else max(start, min(start + COMMITS_MAX, newest + 1))
    if start is None:
        start = max(end - COMMITS_DEFAULT, 0)
    commits = await broker.commits(name, asked.partition, start, min(end, start + COMMITS_MAX))
    return CommitPage(commits=commits, next_version=commits[-1].version + 1 if commits else start)


async def _subscriptions(broker: Broker, asked: operations.TopicRequest) -> SubscriptionList:
    return SubscriptionList(subscriptions=await broker.subscriptions(_name(asked.topic)))


async def _create_subscription(
    broker: Broker, asked: operations.CreateSubscriptionRequest
) -> tuple[SubscriptionInfo, bool]:
    Position.parse(asked.settings.start)
    return await broker.put_subscription(_name(asked.topic), asked.subscription, asked.settings)


async def _seek(broker: Broker, asked: operations.SeekRequest) -> SubscriptionInfo:
    position = _position(asked.position)
    return await broker.seek(_name(asked.topic), asked.subscription, position, partition=asked.partition)


async def _seek_everywhere(broker: Broker, asked: Any) -> SubscriptionInfo:
    if asked.partition is not None:
        return await _seek(broker, asked)
    return await broker.seek_everywhere(_name(asked.topic), asked.subscription, _position(asked.position))


async def _producers(broker: Broker, asked: operations.TopicRequest) -> ProducerList:
    return ProducerList(producers=await broker.producers_of(_name(asked.topic)))


async def _subscribers(broker: Broker, asked: operations.TopicRequest) -> SubscriberList:
    return SubscriberList(subscribers=broker.subscribers(_name(asked.topic)))


async def _pubsub_metrics(broker: Broker, asked: operations.PubSubMetricsRequest) -> PubSubMetrics:
    return broker.pubsub_metrics(None if asked.topic is None else _name(asked.topic))


async def _readers(broker: Broker, asked: operations.ReadersRequest) -> ReaderPage:
    topic = None if asked.topic is None else _name(asked.topic)
    return await broker.readers(topic=topic, after=asked.after, limit=asked.limit)


async def _move_topic(broker: Broker, asked: operations.MoveTopicRequest) -> MoveList:
    to = None if asked.to is None else checked_broker(asked.to)
    begun = await broker.unload(
        _name(asked.topic), force=asked.force, to=to, partition=asked.partition, give_up=asked.give_up
    )
    return MoveList(moves=begun)


async def _moves(broker: Broker, asked: operations.TopicRequest) -> MoveList:
    return MoveList(moves=await broker.unloads(_name(asked.topic)))


async def _cancel_moves(broker: Broker, asked: operations.CancelMovesRequest) -> MoveList:
    return MoveList(moves=await broker.cancel_unloads(_name(asked.topic), partition=asked.partition))


async def _brokers(broker: Broker, _: operations.NoArguments) -> BrokerList:
    return BrokerList(brokers=(await broker.cluster()).brokers)


_ANSWERS: dict[AnyOperation, _Answer] = {
    operations.NAMESPACES: _namespaces,
    operations.NAMESPACE: lambda broker, a: broker.namespace(a.namespace),
    operations.CREATE_NAMESPACE: lambda broker, a: broker.put_namespace(a.namespace, a.policy),
    operations.DELETE_NAMESPACE: lambda broker, a: broker.delete_namespace(a.namespace),
    operations.TOPICS: lambda broker, a: broker.topics(namespace=a.namespace, after=a.after, limit=a.limit),
    operations.TOPIC: lambda broker, a: broker.topic(_name(a.topic)),
    operations.CREATE_TOPIC: _create_topic,
    operations.DELETE_TOPIC: lambda broker, a: broker.delete_topic(_name(a.topic), force=a.force),
    operations.PARTITION: lambda broker, a: broker.partition(_name(a.topic), a.partition, stale=a.stale),
    operations.COMMITS: _commits,
    operations.LOCATE: lambda broker, a: broker.locate(_name(a.topic), a.partition, _position(a.position)),
    operations.SUBSCRIPTIONS: _subscriptions,
    operations.SUBSCRIPTION: lambda broker, a: broker.subscription(_name(a.topic), a.subscription),
    operations.CREATE_SUBSCRIPTION: _create_subscription,
    operations.DELETE_SUBSCRIPTION: lambda broker, a: broker.delete_subscription(
        _name(a.topic), a.subscription, force=a.force
    ),
    operations.SEEK: _seek,
    operations.CONSUMERS: lambda broker, a: broker.consumers(_name(a.topic), a.partition),
    operations.PRODUCERS: _producers,
    operations.SUBSCRIBERS: _subscribers,
    operations.PUBSUB_METRICS: _pubsub_metrics,
    operations.READERS: _readers,
    operations.READER: lambda broker, a: broker.reader(a.reader, _name(a.topic)),
    operations.REGISTER_READER: lambda broker, a: broker.put_reader(a.reader, _name(a.topic), a.settings),
    operations.DELETE_READER: lambda broker, a: broker.delete_reader(a.reader, _name(a.topic)),
    operations.PLACEMENT: lambda broker, a: broker.lookup(_name(a.topic)),
    operations.MOVE_TOPIC: _move_topic,
    operations.MOVES: _moves,
    operations.CANCEL_MOVES: _cancel_moves,
    operations.CLUSTER: lambda broker, _: broker.cluster(),
    operations.BROKERS: _brokers,
    operations.DRAIN_BROKER: lambda broker, a: broker.drain_broker(checked_broker(a.broker_id)),
    operations.ACTIVATE_BROKER: lambda broker, a: broker.activate_broker(checked_broker(a.broker_id)),
    operations.REBALANCE: lambda broker, _: broker.rebalance(),
    operations.INFO: lambda broker, _: broker.inspect(),
}
assert set(_ANSWERS) == set(operations.OPERATIONS)
