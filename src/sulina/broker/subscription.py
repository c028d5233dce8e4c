"""A subscription of a reliable topic: its consumers, and a cursor in every partition.

A cursor is fixed when the subscription is made, and from then on moves by acks or a seek only. While consumers are
attached, a dispatcher works for each partition; when the last has left, only the cursors remain.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sulina.broker.consumer import Consumer
from sulina.broker.cursors import CursorWriter
from sulina.broker.dispatcher import Dispatcher, Surroundings
from sulina.broker.metrics import TopicMetrics
from sulina.broker.partition import Partition
from sulina.core import keys
from sulina.core.cursor import Cursor
from sulina.core.dispatch import DispatchRules
from sulina.core.members import Members
from sulina.core.position import Position
from sulina.core.ranges import Range
from sulina.core.records import Record
from sulina.errors import (
    AlreadyExists,
    ConsumerNotFound,
    CursorMoved,
    InvalidInput,
    NotServing,
    PartitionNotFound,
    SubscriptionBusy,
    SulinaError,
)
from sulina.ports import Clock
from sulina.types import TopicName
from sulina.wire.messages import CursorInfo, SubscriptionInfo, SubscriptionSettings

ACKED_RANGES_SHOWN = 1000


class Buries(Protocol):
    """Puts records into the dead-letter topic."""

    async def __call__(self, subscription: str, partition: int, records: Sequence[Record], attempts: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicContext:
    """What a subscription needs of its topic and node."""

    topic: TopicName
    partitions: Sequence[Partition]
    writer: CursorWriter
    clock: Clock
    metrics: TopicMetrics
    bury: Buries


class Subscription:
    """All that changes who is attached runs under one lock."""

    def __init__(
        self,
        name: str,
        settings: SubscriptionSettings,
        cursors: Mapping[int, Cursor],
        context: TopicContext,
        rules: DispatchRules,
    ) -> None:
        self.name = name
        self.settings = settings
        self.members = Members(settings.kind)
        self._cursors = dict(cursors)
        self._context = context
        self._rules = rules
        self._dispatchers: dict[int, Dispatcher] = {}
        self._lock = asyncio.Lock()
        self._is_closed = False

    @property
    def rules(self) -> DispatchRules:
        """The topic's policy, as far as it matters to deliveries."""
        return self._rules

    @rules.setter
    def rules(self, rules: DispatchRules) -> None:
        self._rules = rules
        for dispatcher in self._dispatchers.values():
            dispatcher.dispatch.rules = rules
            dispatcher.wake()

    # Who is attached

    async def attach(self, consumer: Consumer, settings: SubscriptionSettings) -> None:
        """Send records to this consumer too. One of the same name is replaced: it is the same, come back.

        SubscriptionBusy, AlreadyExists when the subscription is of another kind.
        """
        async with self._lock:
            self._check_open()
            if settings.kind != self.settings.kind:
                raise AlreadyExists(
                    kind="subscription", name=self.name, difference=f"it is {self.settings.kind}, not {settings.kind}"
                )
            for older in [member for member in self.members.present if member.name == consumer.name]:
                assert isinstance(older, Consumer)
                self._remove(older)
                older.dismissed(self._busy("a consumer of the same name has taken its place"))
            if not self.members.is_free:
                raise self._busy("it is exclusive, and a consumer is attached")
            await self._start()
            self.members.attach(consumer)
            self.wake()

    async def detach(self, consumer: Consumer) -> None:
        """Send it no more; what it has not acked goes to others."""
        async with self._lock:
            if consumer in self.members.present:
                self._remove(consumer)
                if not self.members.present:
                    await self._stop()

    async def close(self, error: SulinaError) -> None:
        """Let every consumer go, for good."""
        async with self._lock:
            self._is_closed = True
            await self._dismiss(error)

    async def seek(self, position: Position, partition: int | None) -> None:
        """Move the cursors, durably. Consumers are let go, and come back to what lies there."""
        if partition is not None and not 0 <= partition < len(self._context.partitions):
            raise PartitionNotFound(
                topic=str(self._context.topic), partition=partition, partitions=len(self._context.partitions)
            )
        async with self._lock:
            self._check_open()
            chosen = [p for p in self._context.partitions if partition in (None, p.name.partition)]
            moved = {p.name.partition: Cursor(await p.locate(position)) for p in chosen}
            await self._dismiss(CursorMoved(topic=str(self._context.topic), subscription=self.name))
            self._cursors.update(moved)
            await asyncio.gather(*(self._durable(number) for number in moved))

    def _check_open(self) -> None:
        if self._is_closed:
            raise NotServing(reason=f"subscription {self.name} of {self._context.topic} is going")

    def _busy(self, reason: str) -> SubscriptionBusy:
        return SubscriptionBusy(topic=str(self._context.topic), subscription=self.name, reason=reason)

    def _remove(self, consumer: Consumer) -> None:
        self.members.detach(consumer)
        for dispatcher in self._dispatchers.values():
            dispatcher.detach(consumer)

    async def _dismiss(self, error: SulinaError) -> None:
        for consumer in list(self.members.present):
            assert isinstance(consumer, Consumer)
            self._remove(consumer)
            consumer.dismissed(error)
        await self._stop()

    async def _start(self) -> None:
        if self._dispatchers:
            return
        for partition in self._context.partitions:
            log = await partition.log()
            number = partition.name.partition
            dispatcher = Dispatcher(partition, log, self._cursors[number], self.members, self._surroundings(number))
            dispatcher.dispatch.rules = self._rules
            self._dispatchers[number] = dispatcher

    async def _stop(self) -> None:
        dispatchers, self._dispatchers = self._dispatchers, {}
        for dispatcher in dispatchers.values():
            await dispatcher.close()

    def _surroundings(self, number: int) -> Surroundings:
        key = keys.cursor(self._context.topic, self.name, number)
        cursor = self._cursors[number]

        async def bury(records: Sequence[Record], attempts: int) -> None:
            await self._context.bury(self.name, number, records, attempts)

        return Surroundings(
            clock=self._context.clock,
            metrics=self._context.metrics,
            bury=bury,
            changed=lambda: self._context.writer.changed(key, cursor.stored),
        )

    # What consumers say

    def add_credit(self, consumer: Consumer, records: int) -> None:
        """The consumer can take so many more."""
        consumer.credit += records
        self.wake()

    def wake(self) -> None:
        """Something that matters to every partition has changed."""
        for dispatcher in self._dispatchers.values():
            dispatcher.wake()

    def ack(self, consumer: Consumer, partition: int, ranges: Sequence[Range]) -> None:
        """These are done; the cursor is written soon."""
        self._dispatcher(consumer, partition, ranges).ack(consumer, ranges)

    def ack_durably(self, consumer: Consumer, partition: int, ranges: Sequence[Range]) -> asyncio.Future[None]:
        """These are done; the future is done when the cursor is durable."""
        self.ack(consumer, partition, ranges)
        return self._durable(partition)

    def nack(self, consumer: Consumer, partition: int, ranges: Sequence[Range], delay_seconds: float | None) -> None:
        """These are to be delivered again."""
        self._dispatcher(consumer, partition, ranges).nack(consumer, ranges, delay_seconds)

    def _durable(self, partition: int) -> asyncio.Future[None]:
        key = keys.cursor(self._context.topic, self.name, partition)
        return self._context.writer.durable(key, self._cursors[partition].stored)

    def _dispatcher(self, consumer: Consumer, partition: int, ranges: Sequence[Range]) -> Dispatcher:
        if consumer not in self.members.present:
            raise ConsumerNotFound(consumer=0)
        dispatcher = self._dispatchers.get(partition)
        if dispatcher is None:
            raise PartitionNotFound(
                topic=str(self._context.topic), partition=partition, partitions=len(self._context.partitions)
            )
        for start, end in ranges:
            if not 0 <= start < end:
                raise InvalidInput(f"[{start}, {end}) is not a range of offsets")
        return dispatcher

    # What it looks like

    def cursor_keys(self) -> list[str]:
        """Where its cursors are stored."""
        return [keys.cursor(self._context.topic, self.name, number) for number in self._cursors]

    def lag(self) -> int | None:
        """Records that are not acked; None when a partition's log is not open."""
        total = 0
        for partition in self._context.partitions:
            log = partition.log_if_open
            if log is None:
                return None
            total += self._cursors[partition.name.partition].lag(log.view.next_offset)
        return total

    async def info(self) -> SubscriptionInfo:
        """Its consumers and cursors now."""
        cursors = []
        for partition in self._context.partitions:
            log = await partition.log()
            number = partition.name.partition
            cursor, dispatcher = self._cursors[number], self._dispatchers.get(number)
            end_offset = log.view.next_offset
            cursors.append(
                CursorInfo(
                    partition=number,
                    offset=cursor.offset,
                    acked=[r for _, r in zip(range(ACKED_RANGES_SHOWN), cursor.acked, strict=False)],
                    end_offset=end_offset,
                    lag=cursor.lag(end_offset),
                    in_flight=dispatcher.dispatch.in_flight if dispatcher is not None else 0,
                )
            )
        return SubscriptionInfo(
            topic=str(self._context.topic),
            subscription=self.name,
            kind=self.settings.kind,
            start=self.settings.start,
            consumers=[member.name for member in self.members.present],
            cursors=cursors,
            lag=sum(cursor.lag for cursor in cursors),
        )
