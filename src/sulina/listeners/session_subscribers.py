"""The subscribers and the listeners to events of one session: at home at this node, whoever owns the partitions."""

import asyncio
from functools import partial
from typing import Protocol

from sulina.broker.broker import Broker
from sulina.broker.pubsub.node_subscribers import LocalSubscriber, SubscriberDelivery
from sulina.core.log.position import Position
from sulina.errors import LimitReached, SulinaError
from sulina.types import TopicName
from sulina.wire.frames import (
    AckBatch,
    Answer,
    Deliver,
    Detached,
    FailBatch,
    FromNode,
    Happened,
    Join,
    Listen,
    Unlisten,
)
from sulina.wire.messages import JoinedTopic

LISTENERS_MAX = 4  # of one connection


class Sends(Protocol):
    """The outbox of the session."""

    def put(self, frame: FromNode, size_bytes: int = 100) -> None:
        """Add a frame; never waits."""
        ...

    async def wait_room(self) -> None:
        """Return when it is not full."""
        ...


class SessionSubscribers:
    """By the handles that the client chose."""

    def __init__(self, broker: Broker, outbox: Sends, client: str) -> None:
        self._broker = broker
        self._outbox = outbox
        self._client = client
        self._here: dict[int, LocalSubscriber] = {}
        self._coming: dict[int, bool] = {}  # that are being attached; False: they have left meanwhile

    def __len__(self) -> int:
        return len(self._here) + len(self._coming)

    def __contains__(self, number: int) -> bool:
        return number in self._here or number in self._coming

    async def join(self, frame: Join) -> None:
        """Attach one; answered when every owner sends to it."""
        number, pubsub = frame.consumer, self._broker.pubsub
        topic = TopicName.parse(frame.topic)
        self._coming[number] = True
        try:
            subscriber = await pubsub.attach(
                topic,
                frame.name or f"{self._client}/{number}",
                start=frame.start,
                deliver=partial(self._deliver, number),
                removed=partial(self._removed, number),
            )
        finally:
            stays = self._coming.pop(number)
        if not stays:
            pubsub.detach(subscriber)
            return
        self._here[number] = subscriber  # it may ack before all owners have answered
        try:
            begun = await pubsub.join(
                subscriber,
                {
                    number: Position.at_offset(offset, frame.epochs.get(number))
                    for number, offset in frame.positions.items()
                },
            )
        except BaseException:
            if self._here.get(number) is subscriber:
                del self._here[number]
            raise
        if number in self._here:
            known = self._broker.topic_named(frame.topic)
            joined = JoinedTopic(
                is_reliable=known.is_reliable,
                positions={number: position.value for number, position in begun.items()},
                epochs={number: position.epoch for number, position in begun.items() if position.epoch is not None},
            )
            self._outbox.put(Answer(frame.id, joined))

    def settle(self, frame: AckBatch | FailBatch) -> None:
        """One that is not attached any more has nothing to ack."""
        subscriber = self._here.get(frame.consumer)
        if subscriber is None:
            return
        if isinstance(frame, AckBatch):
            self._broker.pubsub.local_subscribers.acked(subscriber, frame.attempt)
        else:
            self._broker.pubsub.local_subscribers.failed(subscriber, frame.attempt, frame.reason)

    def leave(self, number: int) -> bool:
        """Whether it was here."""
        if number in self._coming:
            self._coming[number] = False
            return True
        subscriber = self._here.pop(number, None)
        if subscriber is None:
            return False
        self._broker.pubsub.detach(subscriber)
        return True

    def close(self) -> None:
        """The connection is lost."""
        while self._here:
            self._broker.pubsub.detach(self._here.popitem()[1], is_lost=True)

    def _deliver(self, number: int, given: SubscriberDelivery) -> None:
        frame = Deliver(number, given.partition, given.number, given.data, given.ranges, given.epoch)
        self._outbox.put(frame, 100 + len(given.data))

    def _removed(self, number: int, error: SulinaError) -> None:
        """The topic has let the subscriber go."""
        if self._here.pop(number, None) is not None:
            self._outbox.put(Detached(number, error.code, str(error), error.details()))


class SessionListeners:
    """Who is told what happens on the node."""

    def __init__(self, broker: Broker, outbox: Sends) -> None:
        self._broker = broker
        self._outbox = outbox
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def listen(self, frame: Listen) -> None:
        """Tell it from now on. LimitReached."""
        if len(self._tasks) >= LISTENERS_MAX:
            raise LimitReached(kind="listeners of one connection", limit=LISTENERS_MAX)
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._tell(frame.id, frozenset(frame.types), begun), name="listen")
        self._tasks[frame.id] = task
        try:
            await begun
        except LimitReached:
            del self._tasks[frame.id]
            raise
        self._outbox.put(Answer(frame.id))

    async def unlisten(self, frame: Unlisten) -> None:
        """Tell it no more."""
        task = self._tasks.pop(frame.listener, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._outbox.put(Answer(frame.id))

    async def close(self) -> None:
        """The client has gone."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _tell(self, listener: int, types: frozenset[str], begun: "asyncio.Future[None]") -> None:
        try:
            with self._broker.events.listen(types) as events:
                begun.set_result(None)
                async for event in events:
                    await self._outbox.wait_room()  # who reads slowly misses events, and is told how many
                    self._outbox.put(Happened(listener, event.at, str(event.type), event.topic, event.fields), 200)
        except LimitReached as error:
            begun.set_exception(error)
