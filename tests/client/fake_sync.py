"""A client for threads over a node by script, which lives in the client's loop."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from sulina.client import Client, ClientOptions, SyncClient
from sulina.wire.frames import AddCredit
from tests.client.fake_node import URL, FakeNode

T = TypeVar("T")


class LoopNode(FakeNode):
    """A node that says yes to publishes, consumers and subscribers. Tests reach it through its loop."""

    def __init__(self) -> None:
        super().__init__()
        self.append_publishes()
        self.attach_consumers()
        self.settle_records()
        self.join_subscribers()
        self.scripts[AddCredit] = lambda *_: None
        self.loop = asyncio.get_running_loop()
        self.threads = [threading.current_thread()]  # in which it was started and stopped

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def do(self, work: Callable[[], object]) -> None:
        async def done() -> None:
            work()

        self.run(done())

    async def on_close(self) -> None:
        self.threads.append(threading.current_thread())


@contextlib.contextmanager
def in_loop(options: ClientOptions | None = None) -> Iterator[tuple[SyncClient, LoopNode]]:
    nodes: list[LoopNode] = []

    async def open_client() -> Client:
        nodes.append(LoopNode())
        return await Client(nodes[0].connect, options=options, url=URL, on_close=nodes[0].on_close)

    with SyncClient(open_client) as client:
        yield client, nodes[0]
