"""A handler for tests of subscribers."""

import asyncio

from sulina.client import Message
from sulina.wire.frames import Join
from tests.client.fake_node import FakeNode


class Inbox:
    """A handler that notes what it is called with, and waits, or fails, when it is told to."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.started: asyncio.Queue[int] = asyncio.Queue()
        self.gate = asyncio.Event()
        self.gate.set()
        self.failing: set[int] = set()

    async def __call__(self, message: Message) -> None:
        self.started.put_nowait(message.offset)
        await self.gate.wait()
        if message.offset in self.failing:
            raise ValueError(f"not {message.offset}")
        self.offsets.append(message.offset)


def handle(node: FakeNode) -> int:
    """Of the newest attachment."""
    return node.sent(Join)[-1].consumer
