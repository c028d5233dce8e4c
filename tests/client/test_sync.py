"""The client for threads over a node by script: threads, interrupts, ends."""

import asyncio
import gc
import inspect
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from sulina.client import (
    Admin,
    Client,
    Consumer,
    Events,
    Producer,
    Reader,
    Subscriber,
    SyncAdmin,
    SyncClient,
    SyncConsumer,
    SyncEvents,
    SyncProducer,
    SyncReader,
    SyncSubscriber,
)
from sulina.client.loop_thread import LoopThread
from sulina.errors import Disconnected, NotStarted, TopicNotFound
from sulina.wire import operations
from sulina.wire.frames import AckRecords, Subscribe
from tests.client.fake_node import TOPIC, URL, FakeNode, own_threads
from tests.client.fake_sync import in_loop


def test_the_client_lives_in_a_thread_of_its_own() -> None:
    before = own_threads()
    with in_loop() as (client, node):
        assert client.publish(TOPIC, b"x").offset == 0
        assert client.url == URL
        assert client.name.startswith("client-")
        assert client.is_connected
    started, stopped = node.threads
    assert started is stopped
    assert started is not threading.current_thread()
    assert not started.is_alive()
    assert own_threads() <= before
    client.close()
    assert node.connection.is_closed
    for call in (lambda: client.publish(TOPIC, b"x"), lambda: client.admin, lambda: client.read(TOPIC)):
        with pytest.raises(NotStarted, match="the client was closed"):
            call()


def test_a_client_that_does_not_connect_leaves_no_thread() -> None:
    async def open_client() -> Client:
        node = FakeNode()
        node.refusals.append(Disconnected(url=URL, reason="refused"))
        return await Client(node.connect, url=URL)

    before = own_threads()
    with pytest.raises(Disconnected):
        SyncClient(open_client)
    assert own_threads() <= before


def test_errors_pass_to_the_caller() -> None:
    with in_loop() as (client, _), pytest.raises(TopicNotFound):
        client.admin.topic("/default/none")


def test_messages_are_iterated_and_acked_by_any_thread() -> None:
    with in_loop() as (client, node), client.consumer(TOPIC, "s", credit=10) as messages:
        consumer = node.sent(Subscribe)[0].consumer
        node.do(lambda: node.connection.deliver(consumer, 0, 10))
        got = [next(messages) for _ in range(10)]
        assert [message.offset for message in got] == list(range(10))
        assert messages.ack(got[0])
        for message in got[1:]:
            messages.ack_soon(message)
        messages.close()
        acked = {offset for frame in node.sent(AckRecords) for r in frame.ranges for offset in range(*r)}
        assert acked == set(range(10))
        assert next(messages, None) is None


def test_an_interrupted_wait_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = LoopThread()
    cancelled = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with monkeypatch.context() as patches:
        patches.setattr("concurrent.futures.Future.result", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            thread.run(work())
    assert cancelled.wait(10)
    thread.stop()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("own", "asynchronous"),
    [
        (SyncClient, Client), (SyncAdmin, Admin), (SyncConsumer, Consumer), (SyncReader, Reader),
        (SyncProducer, Producer), (SyncEvents, Events), (SyncSubscriber, Subscriber),
    ],
)  # fmt: skip
def test_p1_every_method_is_here_with_the_same_signature(own: type, asynchronous: type) -> None:
    ours, theirs = public(own), public(asynchronous)
    inside = {"open", "take", "is_own", "leave", "positions", "happened", "rejected", "lose", "is_stopped"}
    assert theirs.keys() - ours.keys() <= inside
    for name in ours.keys() & theirs.keys() - {"unsubscribe"}:
        if callable(ours[name]):
            signatures = [inspect.signature(method).parameters for method in (ours[name], theirs[name])]
            assert list(signatures[0].values()) == list(signatures[1].values()), name


def test_p1_the_client_has_one_word_for_each_thing() -> None:
    assert public(Client).keys() | {"registry", "name"} == {
        "publish", "publish_batch", "producer", "read", "consumer", "subscribe", "unsubscribe", "subscribers",
        "events", "metrics", "admin", "registry", "close", "name", "url", "is_connected",
    }  # fmt: skip
    assert public(SyncClient).keys() == public(Client).keys() | {"registry", "name"}


def test_the_operations_have_the_same_names_everywhere() -> None:
    table = {value.name for value in vars(operations).values() if isinstance(value, operations.Operation)}
    assert public(Admin).keys() == public(SyncAdmin).keys() == table | {"fetch"}


def public(kind: type) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers(kind) if not name.startswith("_")}


def test_batches_begin_with_what_iteration_had_taken_ahead() -> None:
    with in_loop() as (client, node), client.consumer(TOPIC, "s", credit=100) as messages:
        consumer = node.sent(Subscribe)[0].consumer
        node.do(lambda: node.connection.deliver(consumer, 0, 10))
        assert next(messages).offset == 0
        batches = messages.batches(4)
        assert [[message.offset for message in next(batches)] for _ in range(3)] == [[1, 2, 3, 4], [5, 6, 7, 8], [9]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("moment", ["before the loop is closed", "afterwards"])
def test_work_that_comes_as_the_loop_ends_is_refused(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    thread = LoopThread()
    submit = asyncio.run_coroutine_threadsafe

    def late(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> object:
        if moment == "afterwards":
            thread.stop()
            return submit(work, loop)
        with monkeypatch.context() as patch:  # the loop has cancelled its tasks, and is not closed yet
            patch.setattr(loop, "call_soon_threadsafe", lambda *_: None)
            future = submit(work, loop)
        thread.stop()
        return future

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", late)
    with pytest.raises(NotStarted, match="the client was closed"):
        thread.run(asyncio.sleep(0))
    gc.collect()
