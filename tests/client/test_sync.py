"""The client for threads over a node by script: threads, interrupts, ends."""

import asyncio
import contextlib
import gc
import inspect
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from sulina.client import Client, Connecting, SyncClient
from sulina.client.connection import Connector
from sulina.client.loop_thread import LoopThread
from sulina.errors import Disconnected, TopicNotFound
from sulina.wire.frames import AckRecords, AddCredit, Call, Subscribe
from tests.client.fake_node import TOPIC, URL, FakeNode, own_threads


@contextlib.contextmanager
def opened() -> Iterator[tuple[SyncClient, FakeNode, list[threading.Thread]]]:
    """The node lives where its client does; and in which threads it was started and stopped."""
    threads: list[threading.Thread] = []
    nodes: list[FakeNode] = []

    async def factory() -> tuple[Connector, object]:
        threads.append(threading.current_thread())
        node = FakeNode()
        node.append_publishes()
        node.attach_consumers()
        node.settle_records()
        node.scripts[AddCredit] = lambda *_: None
        nodes.append(node)

        async def on_close() -> None:
            threads.append(threading.current_thread())

        return node.connect, on_close

    with Connecting(factory, url=URL) as client:  # type: ignore[arg-type]
        yield client, nodes[0], threads


def test_the_factory_runs_in_the_thread_of_the_client() -> None:
    before = own_threads()
    with opened() as (client, node, threads):
        assert client.publish(TOPIC, b"x").offset == 0
        assert client.url == URL
        assert client.is_connected
    started, stopped = threads
    assert started is stopped
    assert started is not threading.current_thread()
    assert not started.is_alive()
    assert own_threads() <= before
    client.close()
    assert node.connection.is_closed
    with pytest.raises(Disconnected, match="the client is closed"):
        client.info()


def test_a_client_that_does_not_connect_leaves_no_thread() -> None:
    async def factory() -> tuple[Connector, None]:
        node = FakeNode()
        node.refusals.append(Disconnected(url=URL, reason="refused"))
        return node.connect, None

    before = own_threads()
    with pytest.raises(Disconnected):
        Connecting(factory, url=URL).sync()
    assert own_threads() <= before


def test_errors_pass_to_the_caller() -> None:
    with opened() as (client, _, _), pytest.raises(TopicNotFound):
        client.topic("/default/none")


def test_messages_are_iterated_and_acked_by_any_thread() -> None:
    with opened() as (client, node, _), client.subscribe(TOPIC, "s", credit=10) as messages:
        consumer = node.sent(Subscribe)[0].consumer
        client._run(_call(node.connection.deliver, consumer, 0, 10))
        got = [next(messages) for _ in range(10)]
        assert [message.offset for message in got] == list(range(10))
        assert got[0].ack()
        for message in got[1:]:
            message.ack_soon()
        messages.close()
        acked = {offset for frame in node.sent(AckRecords) for r in frame.ranges for offset in range(*r)}
        assert acked == set(range(10))
        assert next(messages, None) is None


async def _call(function: object, *arguments: object) -> None:
    function(*arguments)  # type: ignore[operator]


def test_an_interrupted_wait_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as (client, node, _):
        cancelled = threading.Event()

        async def work() -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        monkeypatch.setattr("concurrent.futures.Future.result", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            client._run(work())
        monkeypatch.undo()
        assert cancelled.wait(10)
        assert not node.sent(Call)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_every_method_of_the_client_is_here_with_the_same_signature() -> None:
    own = {name for name, _ in inspect.getmembers(SyncClient, inspect.isfunction) if not name.startswith("_")}
    asynchronous = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert asynchronous - own == {"open"}
    for name in own & asynchronous - {"topic"}:
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (SyncClient, Client))
        assert list(ours.parameters.values()) == list(theirs.parameters.values()), name


def test_batches_begin_with_what_iteration_had_taken_ahead() -> None:
    with opened() as (client, node, _), client.subscribe(TOPIC, "s", credit=100) as messages:
        client._run(_call(node.connection.deliver, node.sent(Subscribe)[0].consumer, 0, 10))
        assert next(messages).offset == 0
        batches = messages.batches(4)
        assert [[message.offset for message in next(batches)] for _ in range(3)] == [[1, 2, 3, 4], [5, 6, 7, 8], [9]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("moment", ["before the loop is closed", "afterwards"])
def test_work_that_comes_as_the_loop_ends_is_disconnected(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
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
    with pytest.raises(Disconnected, match="the client is closed"):
        thread.run(asyncio.sleep(0))
    gc.collect()
