"""A node that is killed, then stopped, under a client that need not know: its calls go on, nothing is there twice."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import sulina
from sulina.client import Client, ClientOptions, Consumer, WebSocketConnector
from sulina.config import Settings
from sulina.node import Node
from tests.support.kill_world import NodeProcess

TOPIC = "/default/orders"
RECORDS_BETWEEN = 30
SECONDS_MAX = 120.0


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeProcess]:
    node = NodeProcess(tmp_path)
    await node.start()
    try:
        await node.wait_ready()
        yield node
    finally:
        await node.close()


class Load:
    """One publisher and one consumer that never handle an error."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.acked: dict[str, int | None] = {}
        self.seen: list[str] = []
        self.acks_kept: set[str] = set()
        self.changed = asyncio.Event()
        self.is_stopping = False

    async def publish(self) -> None:
        number = 0
        while not self.is_stopping:
            ack = await self._client.publish(TOPIC, f"{number}", timeout_seconds=SECONDS_MAX)
            self.acked[f"{number}"] = ack.raise_for_status().offset
            self.changed.set()
            number += 1

    async def consume(self, messages: Consumer) -> None:
        async for message in messages:
            assert message.text is not None
            assert message.text not in self.acks_kept, "an ack that was answered is never delivered again"
            self.seen.append(message.text)
            if await messages.ack(message):
                self.acks_kept.add(message.text)
            self.changed.set()

    async def wait_more(self) -> None:
        """So many records pass from one end to the other."""
        target = len(self.acks_kept) + RECORDS_BETWEEN
        async with asyncio.timeout(SECONDS_MAX):
            while len(self.acks_kept) < target:
                self.changed.clear()
                await self.changed.wait()


async def test_a_client_lives_through_the_deaths_of_its_node_l13_p1(node: NodeProcess) -> None:
    options = ClientOptions(timeout_seconds=SECONDS_MAX, backoff_seconds_max=0.2)
    async with sulina.connect(f"http://{node.host}", options=options) as client:
        await client.admin.create_topic(TOPIC)
        load = Load(client)
        async with client.consumer(TOPIC, "s", start="earliest", credit=8, name="me") as messages:
            tasks = [asyncio.create_task(load.publish()), asyncio.create_task(load.consume(messages))]
            await load.wait_more()
            await node.kill()
            await node.start()
            await load.wait_more()
            assert await node.stop() == 0
            await node.start()
            await load.wait_more()
            load.is_stopping = True
            await tasks[0]
            # Not by counting acks: one whose answer was lost is done all the same.
            async with asyncio.timeout(SECONDS_MAX):
                while (await client.admin.subscription(TOPIC, "s")).lag:
                    await load.changed.wait()
                    load.changed.clear()
            tasks[1].cancel()
        stored = {record.text: record.offset async for record in client.read(TOPIC, follow=False)}
        assert stored == load.acked, "every record is there once, where its ack said"
        assert list(stored.values()) == list(range(len(stored)))
        assert set(load.seen) == set(load.acked)
        info = await client.admin.subscription(TOPIC, "s")
        assert (info.lag, info.consumers) == (0, [])


async def test_a_node_stops_at_once_although_readers_wait() -> None:
    node = await Node.start(Settings(http="127.0.0.1:0"), volatile=True)
    try:
        async with Client(WebSocketConnector(node.url), url=node.url) as client:
            await client.admin.create_topic(TOPIC)
            waiting = asyncio.create_task(anext(client.read(TOPIC)))
            await client.publish(TOPIC, b"x")
            await waiting  # from here on the next fetch waits for what never comes
            async with asyncio.timeout(4):
                await node.stop()
    finally:
        await node.stop()
