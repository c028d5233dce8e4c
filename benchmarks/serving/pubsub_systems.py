"""Publish/subscribe by the Python clients of Sulina, NATS and Redis, each as its users would, behind one set of calls.

A subscriber takes payloads of bytes and looks at each. A batch is what a publisher has confirmed together: by one ack
(Sulina), by one flush after messages sent one by one (NATS), by one pipeline of them (Redis). Subscribers that share a
connection do so only where a client can.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import sulina
from sulina import BatchingRules

if TYPE_CHECKING:
    from nats.aio.client import Client as NatsClient
    from nats.aio.msg import Msg
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub as RedisPubSub

ATTACH_AT_ONCE = 32

Take = Callable[[Sequence[bytes]], None]  # on the event loop; the payloads of one delivery


class System(Protocol):
    """One process's connections. Each call is made with a topic that is new."""

    async def create(self, topic: str) -> None:
        """Where topics are to be made before they are used."""
        ...

    async def publish(self, topic: str, payloads: Sequence[bytes]) -> None:
        """Return when the server has them."""
        ...

    async def subscribe(self, url: str, topic: str, takes: Sequence[Take]) -> None:
        """One more connection, with a subscriber for each of `takes`. Return when the server knows of them."""
        ...

    async def leave(self) -> None:
        """No subscriber is left."""
        ...

    async def close(self) -> None:
        """No connection is left."""
        ...


class Sulina:
    """`settings` are of the topics that are made."""

    def __init__(self, url: str, settings: dict[str, Any]) -> None:
        self._url = url
        self._settings = settings
        self._publisher: sulina.Client | None = None
        self._subscribers: list[sulina.Client] = []
        self._names = count()

    async def create(self, topic: str) -> None:
        """With one partition."""
        client = await self._connected()
        await client.admin.create_topic(topic, partitions=1, **self._settings)

    async def publish(self, topic: str, payloads: Sequence[bytes]) -> None:
        """One ack for all of them."""
        client = await self._connected()
        if len(payloads) == 1:
            ack = await client.publish(topic, payloads[0])
        else:
            ack = await client.publish_batch(topic, payloads)
        ack.raise_for_status()

    async def produce(self, topic: str, payload: bytes, messages: int, batch: int, room: "Room") -> None:
        """One by one, through a batching producer."""
        client = await self._connected()
        rules = BatchingRules(records_max=batch, queue_records_max=max(1000, 10 * batch))
        async with client.producer(topic, rules=rules) as producer:
            for number in range(messages):
                if number % batch == 0:
                    await room(number + batch)
                await producer.wait_room()
                producer.produce(payload)
        report = producer.report()
        assert report.accepted == messages, report

    async def subscribe(self, url: str, topic: str, takes: Sequence[Take]) -> None:
        """Whole batches are handed over; returning acks them."""
        client = await sulina.connect(url)
        self._subscribers.append(client)
        for take in takes:

            async def handle(messages: "Sequence[sulina.Message]", take: Take = take) -> None:
                take([message.value or b"" for message in messages])

            await client.subscribe(topic, handle, name=f"bench-{id(self)}-{next(self._names)}", batches=True)

    async def leave(self) -> None:
        """They go with their connections."""
        leaving, self._subscribers = self._subscribers, []
        await at_once(client.close for client in leaving)

    async def close(self) -> None:
        """The publisher's too."""
        await self.leave()
        if self._publisher is not None:
            await self._publisher.close()

    async def _connected(self) -> "sulina.Client":
        if self._publisher is None:
            self._publisher = await sulina.connect(self._url)
        return self._publisher


class Nats:
    """A subject is there when it is used."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._publisher: NatsClient | None = None
        self._subscribers: list[NatsClient] = []

    async def create(self, topic: str) -> None:
        """Nothing to do."""

    async def publish(self, topic: str, payloads: Sequence[bytes]) -> None:
        """One by one; one flush, which the server answers."""
        import nats

        if self._publisher is None:
            self._publisher = await nats.connect(self._url)
        subject = _subject(topic)
        for payload in payloads:
            await self._publisher.publish(subject, payload)
        await self._publisher.flush()

    async def subscribe(self, url: str, topic: str, takes: Sequence[Take]) -> None:
        """Messages come one by one."""
        import nats

        client = await nats.connect(url)
        self._subscribers.append(client)
        for take in takes:

            async def handle(message: "Msg", take: Take = take) -> None:
                take((message.data,))

            await client.subscribe(_subject(topic), cb=handle)
        await client.flush()

    async def leave(self) -> None:
        """They go with their connections."""
        leaving, self._subscribers = self._subscribers, []
        await at_once(client.close for client in leaving)

    async def close(self) -> None:
        """The publisher's too."""
        await self.leave()
        if self._publisher is not None:
            await self._publisher.close()


class RedisChannels:
    """A connection is one subscriber of a channel, never two."""

    def __init__(self, url: str) -> None:
        from redis.asyncio import Redis

        self._publisher: Redis = Redis.from_url(url)
        self._subscribers: list[tuple[Redis, RedisPubSub, asyncio.Task[None]]] = []

    async def create(self, topic: str) -> None:
        """Nothing to do."""

    async def publish(self, topic: str, payloads: Sequence[bytes]) -> None:
        """Several as one pipeline."""
        if len(payloads) == 1:
            await self._publisher.publish(topic, payloads[0])
            return
        async with self._publisher.pipeline(transaction=False) as pipeline:
            for payload in payloads:
                pipeline.publish(topic, payload)
            await pipeline.execute()

    async def subscribe(self, url: str, topic: str, takes: Sequence[Take]) -> None:
        """Messages come one by one, to a task that listens."""
        from redis.asyncio import Redis

        (take,) = takes
        client: Redis = Redis.from_url(url)
        pubsub = client.pubsub()
        await pubsub.subscribe(topic)
        messages = pubsub.listen()
        assert (await anext(messages))["type"] == "subscribe"

        async def listen() -> None:
            async for message in messages:
                take((message["data"],))

        task = asyncio.create_task(listen(), name="redis-listen")
        self._subscribers.append((client, pubsub, task))

    async def leave(self) -> None:
        """They go with their connections."""
        leaving, self._subscribers = self._subscribers, []
        for _, _, task in leaving:
            task.cancel()
        if leaving:
            await asyncio.wait([task for _, _, task in leaving])

        async def close(client: "Redis", pubsub: "RedisPubSub") -> None:
            await pubsub.aclose()  # type: ignore[no-untyped-call]
            await client.aclose()

        await at_once(partial(close, client, pubsub) for client, pubsub, _ in leaving)

    async def close(self) -> None:
        """The publisher's too."""
        await self.leave()
        await self._publisher.aclose()


class Room(Protocol):
    """Waits until so many messages may have been published."""

    async def __call__(self, messages: int) -> None: ...


@asynccontextmanager
async def connected(system: str, url: str, settings: dict[str, Any]) -> AsyncIterator[System]:
    """By its name."""
    made: System
    match system:
        case "sulina":
            made = Sulina(url, settings)
        case "nats":
            made = Nats(url)
        case "redis":
            made = RedisChannels(url)
        case _:
            raise ValueError(f"there is no client for {system}")
    try:
        yield made
    finally:
        await made.close()


async def at_once(calls: Iterable[Callable[[], Awaitable[object]]]) -> None:
    """All of them, a bounded number at the same time."""
    turns = asyncio.Semaphore(ATTACH_AT_ONCE)

    async def one(call: Callable[[], Awaitable[object]]) -> None:
        async with turns:
            await call()

    async with asyncio.TaskGroup() as tasks:
        for call in calls:
            tasks.create_task(one(call))


def _subject(topic: str) -> str:
    return topic.strip("/").replace("/", ".")
