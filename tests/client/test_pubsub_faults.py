"""P2: every fault of the system that publish/subscribe raises is a PubSubError, for tasks and for threads."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sulina.client import Client, ClientOptions, Message
from sulina.config import Settings
from sulina.core.delivery.pubsub import PubSubConfig
from sulina.errors import (
    ArchiveFailed,
    Corrupt,
    CorruptLog,
    Disconnected,
    InvalidInput,
    LeaseExpired,
    LimitReached,
    LogStopped,
    MetadataFailed,
    NotFound,
    NotOwner,
    NotServing,
    NotStarted,
    ProducerStopped,
    ProtocolError,
    PubSubError,
    QueueFull,
    SubscriberRemoved,
    SulinaError,
    TopicNotFound,
)
from sulina.listeners.http_problem import status_of
from sulina.node import Node
from sulina.wire.frames import Join, Publish
from tests.client.fake_node import TOPIC, URL, FakeNode
from tests.client.fake_sync import in_loop
from tests.client.inbox import Inbox, handle

UNKNOWN = "/default/there-is-none"
SECONDS_MAX = 10.0


@pytest.mark.parametrize(
    ("kind", "status", "retryable"),
    [
        (TopicNotFound, 404, False),
        (Disconnected, 503, True),
        (NotServing, 503, True),
        (NotOwner, 307, True),
        (LeaseExpired, 503, True),
        (LimitReached, 429, False),
        (ProducerStopped, 503, False),
        (ProtocolError, 400, False),
        (LogStopped, 503, True),
        (MetadataFailed, 503, True),
        (ArchiveFailed, 503, True),
        (Corrupt, 500, False),
        (CorruptLog, 500, False),
        (SubscriberRemoved, 409, False),
        (NotStarted, 503, False),
    ],
)
def test_p2_a_fault_of_the_system_is_a_pubsub_error_with_its_own_status(
    kind: type[SulinaError], status: int, retryable: bool
) -> None:
    assert issubclass(kind, PubSubError)
    assert (int(status_of(kind)), kind.retryable) == (status, retryable)


def test_p2_a_fault_of_a_message_is_not_a_pubsub_error() -> None:
    assert not any(issubclass(kind, PubSubError) for kind in (InvalidInput, QueueFull, NotFound))
    assert issubclass(TopicNotFound, NotFound)


# For tasks


def refuse_with(node: FakeNode, error: SulinaError) -> None:
    for kind in (Publish, Join):
        node.scripts[kind] = lambda connection, frame: connection.refuse(frame, error)


async def _publish(client: Client) -> object:
    return await client.publish(TOPIC, 1, timeout_seconds=1.0)


async def _produce(client: Client) -> object:
    async with client.producer(TOPIC, publish_timeout_seconds=1.0) as producer:
        receipt = producer.produce(1)
    return await receipt


async def _subscribe(client: Client) -> object:
    return await client.subscribe(TOPIC, Inbox())


@pytest.mark.parametrize("call", [_publish, _produce, _subscribe])
@pytest.mark.parametrize("error", [NotServing(reason="it is stopping"), LimitReached(kind="subscribers", limit=1)])
async def test_p2_what_the_node_refuses_is_a_pubsub_error(
    node: FakeNode, call: Callable[[Client], Awaitable[object]], error: SulinaError
) -> None:
    refuse_with(node, error)
    async with node.client(ClientOptions(timeout_seconds=1.0)) as client:
        with pytest.raises(PubSubError) as raised:
            await call(client)
        assert isinstance(raised.value, type(error) | Disconnected)


@pytest.mark.parametrize("call", [_publish, _produce])
async def test_p2_a_publish_without_an_answer_in_time_is_a_pubsub_error(
    node: FakeNode, call: Callable[[Client], Awaitable[object]]
) -> None:
    async with node.client(ClientOptions(timeout_seconds=1.0)) as client:
        with pytest.raises(PubSubError, match="no answer within 1 seconds") as raised:
            await call(client)
        assert raised.value.retryable


async def test_p2_a_connection_that_cannot_be_made_is_a_pubsub_error(node: FakeNode) -> None:
    node.refusals.extend([Disconnected(url=URL, reason="refused")] * 1000)
    with pytest.raises(PubSubError):
        async with node.client(ClientOptions(timeout_seconds=1.0)) as client:
            await client.publish(TOPIC, 1)


async def test_p2_an_unknown_topic_is_a_pubsub_error(node: FakeNode) -> None:
    node.join_subscribers()
    async with node.client(ClientOptions()) as client:
        for call in (client.publish(UNKNOWN, 1), client.subscribe(UNKNOWN, Inbox())):
            with pytest.raises(PubSubError) as raised:
                await call
            assert isinstance(raised.value, TopicNotFound)


@pytest.mark.real_time
async def test_p2_deliveries_that_time_out_end_as_a_pubsub_error_that_says_so() -> None:
    settings = Settings(pubsub=PubSubConfig(subscriber_timeout_seconds=0.05, suspended_ttl_seconds=0.05))
    node = await Node.start(settings, listen=False, volatile=True)
    told: asyncio.Future[SulinaError] = asyncio.get_running_loop().create_future()
    try:
        async with Client(node.connector) as client:
            await client.admin.create_topic(TOPIC)
            inbox = Inbox()
            inbox.gate.clear()
            await client.subscribe(TOPIC, inbox, on_removed=told.set_result)
            await client.publish(TOPIC, 1)
            async with asyncio.timeout(SECONDS_MAX):
                error = await told
            inbox.gate.set()
    finally:
        await node.stop()
    assert isinstance(error, PubSubError)
    assert isinstance(error, SubscriberRemoved)
    assert error.status == "Timeout"


# For threads


def test_p2_faults_are_pubsub_errors_for_threads_too() -> None:
    with in_loop(ClientOptions(timeout_seconds=0.2)) as (client, node):
        del node.scripts[Publish]
        with pytest.raises(PubSubError) as raised:
            client.publish(UNKNOWN, 1)
        assert isinstance(raised.value, TopicNotFound)
        with pytest.raises(PubSubError, match="no answer within"):
            client.publish(TOPIC, 1, timeout_seconds=0.05)
        with pytest.raises(PubSubError), client.producer(TOPIC, publish_timeout_seconds=0.05) as producer:
            producer.produce(1).ack()
        subscriber = client.subscribe(TOPIC, _handler)

        error = SubscriberRemoved(topic=TOPIC, reason="late", status="Timeout")
        node.do(lambda: node.connection.detach(handle(node), error))
        removed = subscriber.wait_removed(SECONDS_MAX)
        assert isinstance(removed, SubscriberRemoved)
        assert removed.status == "Timeout"
        refuse_with(node, NotServing(reason="it is stopping"))
        with pytest.raises(PubSubError):
            client.subscribe(TOPIC, _handler)
    with pytest.raises(PubSubError):
        client.publish(TOPIC, 1)


def _handler(_message: Message) -> None:
    return None
