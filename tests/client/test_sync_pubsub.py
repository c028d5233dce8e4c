"""Publish/subscribe for threads, over a node by script."""

import queue
import threading

import pytest

from sulina.client import Message, RejectReason
from sulina.errors import DuplicateSubscriber, NotStarted, SubscriberNotFound, SubscriberRemoved
from sulina.wire.frames import AckBatch, Detach, Happened, Listen
from tests.client.fake_node import TOPIC, own_threads
from tests.client.fake_sync import in_loop
from tests.client.inbox import handle

WAIT_SECONDS = 10


def test_p1_the_same_for_threads() -> None:
    before = own_threads()
    seen: queue.Queue[tuple[int, threading.Thread]] = queue.Queue()

    def handler(message: Message) -> None:
        assert client.publish(TOPIC, {"from": "within"}).is_accepted
        seen.put((message.offset, threading.current_thread()))

    with in_loop() as (client, node):
        subscriber = client.subscribe(TOPIC, handler, name="me")
        assert (subscriber.name, subscriber.topic, subscriber.is_attached) == ("me", TOPIC, True)
        node.do(lambda: node.connection.deliver(handle(node), 0, 3, attempt=9))
        found = [seen.get(timeout=WAIT_SECONDS) for _ in range(3)]
        assert [offset for offset, _ in found] == [0, 1, 2]
        [thread] = {thread for _, thread in found}
        assert thread is not threading.current_thread()
        node.run(node.wait_sent(AckBatch, 1))
        assert node.sent(AckBatch)[0].attempt == 9
        assert subscriber.delivered == 3
        assert client.publish(TOPIC, object()).reason == RejectReason.NOT_SERIALIZABLE
        assert client.publish_batch(TOPIC, [b"x", "y"]).count == 2
        with client.producer(TOPIC) as producer:
            receipt = producer.produce({"a": 1})
        assert receipt.ack().is_accepted
        with pytest.raises(DuplicateSubscriber):
            client.subscribe(TOPIC, handler)
        [same] = client.subscribers
        client.unsubscribe(TOPIC, same)
        assert subscriber.wait_removed(WAIT_SECONDS) is None
        with pytest.raises(SubscriberNotFound):
            client.unsubscribe(TOPIC, "me")
    assert len(node.sent(Detach)) == 1
    for thread in own_threads() - before:
        thread.join(WAIT_SECONDS)
    assert own_threads() <= before
    for call in (lambda: client.publish(TOPIC, b"x"), lambda: client.producer(TOPIC), lambda: client.metrics()):
        with pytest.raises(NotStarted):
            call()
    client.close()


def test_a_handler_may_unsubscribe_itself_and_stop_everything() -> None:
    done = threading.Event()

    def handler(_message: Message) -> None:
        subscriber.unsubscribe()
        client.close()
        done.set()

    with in_loop() as (client, node):
        subscriber = client.subscribe(TOPIC, handler)
        node.do(lambda: node.connection.deliver(handle(node), 0, 2))
        assert done.wait(WAIT_SECONDS)
        with pytest.raises(NotStarted):
            client.publish(TOPIC, b"x")


def test_who_is_removed_can_be_waited_for() -> None:
    with in_loop() as (client, node):
        subscriber = client.subscribe(TOPIC, print)
        with pytest.raises(TimeoutError):
            subscriber.wait_removed(0.01)
        node.do(
            lambda: node.connection.detach(
                handle(node), SubscriberRemoved(topic=TOPIC, reason="late", status="Timeout")
            ),
        )
        assert isinstance(subscriber.wait_removed(WAIT_SECONDS), SubscriberRemoved)


def test_events_are_iterated() -> None:
    with in_loop() as (client, node), client.events() as events:
        number = node.sent(Listen)[0].id
        node.do(lambda: node.connection.push(Happened(number, 1.0, "x")))
        assert next(events).type == "x"
        events.close()
        assert list(events) == []
