"""Publish/subscribe for threads, over a node by script."""

import contextlib
import inspect
import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from sulina.client import Connecting, PubSub, PubSubMessage, RejectReason, SyncPubSub
from sulina.client.connection import Connector
from sulina.errors import DuplicateSubscriber, InvalidSettings, NotStarted, SubscriberNotFound, SubscriberRemoved
from sulina.wire.frames import AckBatch, Detach, Happened, Listen
from tests.client.fake_node import TOPIC, URL, FakeNode, own_threads
from tests.client.inbox import handle

WAIT_SECONDS = 10


def source() -> tuple[Connecting, list[FakeNode]]:
    """The node lives where its client does."""
    nodes: list[FakeNode] = []

    async def factory() -> tuple[Connector, None]:
        node = FakeNode()
        node.append_publishes()
        node.join_subscribers()
        nodes.append(node)
        return node.connect, None

    return Connecting(factory, url=URL), nodes


@contextlib.contextmanager
def opened() -> Iterator[tuple[SyncPubSub, FakeNode]]:
    connecting, nodes = source()
    with PubSub(connecting) as pubsub:
        yield pubsub, nodes[0]


def do(pubsub: SyncPubSub, work: Callable[[], object]) -> None:
    """In the loop of the node."""

    async def done() -> None:
        work()

    pubsub.client.run(done())


def test_p1_the_same_for_threads() -> None:
    before = own_threads()
    seen: queue.Queue[tuple[int, threading.Thread]] = queue.Queue()

    def handler(message: PubSubMessage) -> None:
        assert pubsub.publish(TOPIC, {"from": "within"}).is_accepted
        seen.put((message.offset, threading.current_thread()))

    with opened() as (pubsub, node):
        subscriber = pubsub.subscribe(TOPIC, handler, name="me")
        assert (subscriber.name, subscriber.topic, subscriber.is_attached) == ("me", TOPIC, True)
        do(pubsub, lambda: node.connection.deliver(handle(node), 0, 3, attempt=9))
        found = [seen.get(timeout=WAIT_SECONDS) for _ in range(3)]
        assert [offset for offset, _ in found] == [0, 1, 2]
        [thread] = {thread for _, thread in found}
        assert thread is not threading.current_thread()
        pubsub.client.run(node.wait_sent(AckBatch, 1))
        assert node.sent(AckBatch)[0].attempt == 9
        assert subscriber.delivered == 3
        assert pubsub.publish(TOPIC, object()).reason == RejectReason.NOT_SERIALIZABLE
        assert pubsub.publish_batch(TOPIC, [b"x", "y"]).count == 2
        assert pubsub.publisher(TOPIC).publish(b"x").is_accepted
        with pubsub.batching_producer(TOPIC) as producer:
            receipt = producer.produce({"a": 1})
        assert receipt.ack().is_accepted
        with pytest.raises(DuplicateSubscriber):
            pubsub.subscribe(TOPIC, handler)
        [same] = pubsub.subscribers
        pubsub.unsubscribe(TOPIC, same)
        assert subscriber.wait_removed(WAIT_SECONDS) is None
        with pytest.raises(SubscriberNotFound):
            pubsub.unsubscribe(TOPIC, "me")
    assert len(node.sent(Detach)) == 1
    assert own_threads() <= before
    for call in (lambda: pubsub.publish(TOPIC, b"x"), lambda: pubsub.publisher(TOPIC), lambda: pubsub.client):
        with pytest.raises(NotStarted):
            call()
    pubsub.stop()


def test_a_handler_may_unsubscribe_itself_and_stop_everything() -> None:
    done = threading.Event()

    def handler(_message: PubSubMessage) -> None:
        subscriber.unsubscribe()
        pubsub.stop()
        done.set()

    with opened() as (pubsub, node):
        subscriber = pubsub.subscribe(TOPIC, handler)
        do(pubsub, lambda: node.connection.deliver(handle(node), 0, 2))
        assert done.wait(WAIT_SECONDS)
        assert not pubsub.is_started


def test_who_is_removed_can_be_waited_for() -> None:
    with opened() as (pubsub, node):
        subscriber = pubsub.subscribe(TOPIC, print)
        with pytest.raises(TimeoutError):
            subscriber.wait_removed(0.01)
        do(
            pubsub,
            lambda: node.connection.detach(
                handle(node), SubscriberRemoved(topic=TOPIC, reason="late", status="Timeout")
            ),
        )
        assert isinstance(subscriber.wait_removed(WAIT_SECONDS), SubscriberRemoved)


def test_events_are_iterated() -> None:
    with opened() as (pubsub, node), pubsub.events() as events:
        number = node.sent(Listen)[0].id
        do(pubsub, lambda: node.connection.push(Happened(number, 1.0, "x")))
        assert next(events).type == "x"
        events.close()
        assert list(events) == []


def test_over_a_client_for_threads_which_stays_open() -> None:
    connecting, _ = source()
    with connecting as client:
        with PubSub(client) as pubsub:
            assert pubsub.client is client
            assert pubsub.publish(TOPIC, "x").is_accepted
        assert client.publish(TOPIC, "x").is_accepted
        with pytest.raises(InvalidSettings):
            client.run(PubSub(client).start())


@pytest.mark.parametrize(("own", "theirs"), [(SyncPubSub, PubSub)])
def test_every_method_is_here_with_the_same_parameters(own: type, theirs: type) -> None:
    def methods(kind: type) -> dict[str, inspect.Signature]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(method) for name, method in found if not name.startswith("_")}

    ours, asynchronous = methods(own), methods(theirs)
    assert asynchronous.keys() - ours.keys() == {"start", "sync"}
    for name in ours.keys() & asynchronous.keys() - {"unsubscribe"}:
        assert list(ours[name].parameters.values()) == list(asynchronous[name].parameters.values()), name
