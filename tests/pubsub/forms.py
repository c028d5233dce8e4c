"""What the tests of publish/subscribe run in: a node in this process, or a cluster; and a handler that takes notes."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

import sulina
from sulina.client import (
    Client,
    ClientOptions,
    Connection,
    Connector,
    Message,
    SerializationRegistry,
    WebSocketConnector,
)
from sulina.core.delivery.pubsub import SubscriberStatus
from sulina.errors import Disconnected
from sulina.node import Node
from sulina.wire.messages import PubSubEvent, PubSubMetrics
from tests.support.cluster_world import World, until

WAIT_SECONDS_MAX = 30.0


@dataclass(slots=True)
class Times:
    """As nodes are told."""

    subscriber_timeout: float
    suspended_ttl: float


@dataclass(slots=True)
class Form:
    """Nodes are known by their names. In this process there is one, which is every node."""

    name: str
    times: Times
    node: Node | None = None
    world: World | None = None
    exits: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    _at: dict[str, Client] = field(default_factory=dict)

    async def topic(self, partitions: int = 1, *, delivery: str = "reliable", **settings: Any) -> str:
        """A new one, served and known everywhere."""
        name = f"/default/topic-{uuid.uuid4().hex[:12]}"
        client = await self.at(self.nodes[0])
        await client.admin.create_topic(name, partitions, delivery=delivery, **settings)
        if self.world is not None:
            await self.world.wait_served(name)
        return name

    @property
    def nodes(self) -> list[str]:
        return ["local"] if self.world is None else sorted(broker.broker_id for broker in self.world.running)

    async def owner(self, topic: str, partition: int = 0) -> str:
        """The node that serves it."""
        return "local" if self.world is None else await self.world.owner_of(topic, partition)

    async def others(self, topic: str) -> list[str]:
        """Two nodes that do not own it, where there are."""
        if self.world is None:
            return ["local", "local"]
        owner = await self.owner(topic)
        return [node for node in self.nodes if node != owner]

    async def open(self, at: str, registry: SerializationRegistry | None = None, **options: Any) -> Client:
        """One more, attached to that node; it ends with the test."""
        chosen = ClientOptions(**options)
        if self.node is not None:
            made = Client(self.node.connector, options=chosen, registry=registry, url="memory")
            return await self.exits.enter_async_context(made)
        assert self.world is not None
        url = self.world.brokers[at].url
        return await self.exits.enter_async_context(sulina.connect(url, options=chosen, registry=registry))

    async def open_wire(self, at: str) -> tuple[Client, "Wire"]:
        """One more, whose connections can be cut."""
        wire = Wire()
        if self.node is not None:
            client = Client(wire.to(self.node.connector), url="memory")
        else:
            assert self.world is not None
            client = Client(url=self.world.brokers[at].url, reach=lambda url: wire.to(WebSocketConnector(url)))
        return await self.exits.enter_async_context(client), wire

    async def at(self, node: str) -> Client:
        """The one that all parts of a test share, at that node."""
        if node not in self._at:
            self._at[node] = await self.open(node)
        return self._at[node]

    def url(self, at: str) -> str:
        """What `sulina.connect` takes."""
        return "memory:" if self.world is None else self.world.brokers[at].url

    async def metrics(self, topic: str | None, at: str | None = None) -> PubSubMetrics:
        """As the owner of the topic, or that node, has them."""
        assert topic is not None or at is not None
        return await (await self.at(at or await self.owner(topic or ""))).metrics(topic)

    async def wait_metrics(self, topic: str, what: str, holds: Callable[[PubSubMetrics], bool]) -> PubSubMetrics:
        """As soon as it holds at the topic's owner."""

        async def ask() -> PubSubMetrics | None:
            found = await self.metrics(topic)
            return found if holds(found) else None

        return await until(what, ask, WAIT_SECONDS_MAX)

    async def statuses(self, topic: str) -> dict[str, SubscriberStatus]:
        """Of its subscribers, by their names, as the owner sees them."""
        client = await self.at(await self.owner(topic))
        return {info.name: info.status for info in await client.admin.subscribers(topic)}

    async def wait_suspended(self, topic: str, count: int) -> PubSubMetrics:
        return await self.wait_metrics(topic, f"{count} are suspended", lambda found: found.suspended == count)

    async def batches_sent(self, by: str) -> dict[str, int]:
        """By the node to which they were sent."""
        if self.node is not None:
            text = self.node.broker.metrics.render().decode()
        else:
            assert self.world is not None
            async with httpx.AsyncClient() as http:
                text = (await http.get(self.world.brokers[by].url + "/metrics")).text
        name = "sulina_pubsub_batches_sent_total{node="
        lines = [line.removeprefix(name) for line in text.splitlines() if line.startswith(name)]
        return {line.split('"')[1]: int(float(line.split()[-1])) for line in lines}

    @contextlib.asynccontextmanager
    async def hearing(self, topic: str, *types: str, at: str | None = None) -> AsyncIterator["Heard"]:
        """What is told of a topic at its owner, or at that node."""
        client = await self.at(at or await self.owner(topic))
        async with client.events(types) as events:
            heard = Heard(topic)
            task = asyncio.create_task(heard.listen(events))
            try:
                yield heard
            finally:
                task.cancel()
                await asyncio.wait([task])


class Wire:
    """The connections of one client; once they are cut there are no others."""

    def __init__(self) -> None:
        self._is_cut = False
        self._connections: list[Connection] = []

    def to(self, connector: Connector) -> Connector:
        async def connect() -> Connection:
            if self._is_cut:
                raise Disconnected(url="anywhere", reason="cut")
            self._connections.append(await connector())
            return self._connections[-1]

        return connect

    async def cut(self) -> None:
        self._is_cut = True
        for connection in self._connections:
            await connection.close()


class Heard:
    """Events of one topic, as they come."""

    def __init__(self, topic: str) -> None:
        self.events: list[PubSubEvent] = []
        self._topic = topic
        self._changed = asyncio.Event()

    async def listen(self, events: AsyncIterator[PubSubEvent]) -> None:
        async for event in events:
            if event.topic == self._topic:
                self.events.append(event)
                self._changed.set()

    async def wait(self, type_: str, count: int = 1, **fields: object) -> list[PubSubEvent]:
        """So many of a type with these fields, once they have come."""
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while len(found := self.of(type_, **fields)) < count:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{count} × {type_} {fields} never came; there was {self.events}") from None
        return found

    def of(self, type_: str, **fields: object) -> list[PubSubEvent]:
        """Those that have come."""
        return [
            event
            for event in self.events
            if event.type == type_ and all(event.fields.get(name) == value for name, value in fields.items())
        ]


class Inbox:
    """A handler that notes what it is called with; it waits at its gate, and fails when it is told to."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.times: list[float] = []
        self.calls = 0
        self.failing: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self._changed = asyncio.Event()

    async def __call__(self, message: Message | list[Message]) -> None:
        self.calls += 1
        self._changed.set()
        await self.gate.wait()
        if self.failing is not None:
            raise self.failing
        taken = message if isinstance(message, list) else [message]
        self.messages += taken
        self.times += [time.monotonic()] * len(taken)
        self._changed.set()

    @property
    def payloads(self) -> list[Any]:
        return [message.payload for message in self.messages]

    async def wait(self, count: int, seconds: float = WAIT_SECONDS_MAX) -> list[Any]:
        """The payloads, once there are so many."""
        await self.wait_messages(count, seconds)
        return self.payloads

    async def wait_messages(self, count: int, seconds: float = WAIT_SECONDS_MAX) -> list[Message]:
        """The same, unread."""
        await self._wait(f"{count} messages", lambda: len(self.messages) >= count, seconds)
        return self.messages

    async def wait_called(self, calls: int = 1) -> None:
        """Return when it has been called so often, whatever became of that."""
        await self._wait(f"{calls} calls", lambda: self.calls >= calls, WAIT_SECONDS_MAX)

    async def _wait(self, what: str, holds: Callable[[], bool], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"in {seconds} s there never were {what}, but {len(self.messages)} messages") from None
