"""A subscription of a reliable topic: its consumers here, and a cursor in every partition that is served here.

A cursor is fixed when the subscription is made, and from then on moves by acks or a seek only. While consumers are
attached, a dispatcher works for each partition; when the last has left, only the cursors remain. A partition that is
given to another broker takes its cursor along; its consumers are let go, and find it there.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog

from sulina.broker.catalogue import StoredSubscription
from sulina.broker.consumer import Consumer, replaced_by, taken_over
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
    CursorMoved,
    InvalidInput,
    NotServing,
    PartitionNotFound,
    SulinaError,
)
from sulina.ports import Clock, Compare
from sulina.types import TopicName
from sulina.wire.messages import CursorInfo, SubscriptionInfo, SubscriptionSettings

ACKED_RANGES_SHOWN = 1000

_logger = structlog.get_logger("sulina.subscription")


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
        stored: StoredSubscription,
        context: TopicContext,
        rules: DispatchRules,
    ) -> None:
        self.name = name
        self.settings = stored.settings
        self.members = Members(stored.settings.kind)
        self.revision = stored.revision
        self._cursors: dict[int, Cursor] = {}  # of the partitions that are served here
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
            dispatcher.change_rules(rules)

    # Who is attached

    async def attach(self, consumer: Consumer, settings: SubscriptionSettings) -> None:
        """Send records to this consumer too. One of the same name is replaced: it is the same, come back.

        SubscriptionBusy, AlreadyExists when the subscription is of another kind.
        """
        async with self._lock:
            self._check_open()
            topic = str(self._context.topic)
            for older in replaced_by(self.members, consumer, settings.kind, topic=topic, name=self.name):
                self._remove(older)
                older.dismissed(taken_over(topic, self.name))
            try:
                await self._start()
            except BaseException:
                if not self.members.present:
                    await self._stop()
                raise
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
            chosen = [p for p in self._context.partitions if self._is_sought(p, partition)]
            moved = {p.name.partition: Cursor(await p.locate(position)) for p in chosen}
            await self._dismiss(CursorMoved(topic=str(self._context.topic), subscription=self.name))
            former = {number: self._cursors[number] for number in moved}
            self._cursors.update(moved)
            try:
                await asyncio.gather(*(self._durable(number) for number in moved))
            except BaseException:
                # What is stored is unknown; what is here is as it was, and is written again.
                self._cursors.update(former)
                for number, cursor in former.items():
                    self._write(number, cursor)
                raise

    def _is_sought(self, partition: Partition, wanted: int | None) -> bool:
        if wanted is None:
            return partition.name.partition in self._cursors
        if wanted == partition.name.partition:
            partition.place.check()
        return wanted == partition.name.partition

    def _check_open(self) -> None:
        if self._is_closed:
            raise NotServing(reason=f"subscription {self.name} of {self._context.topic} is going")

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

    # Partitions that come and go

    def lacks(self, number: int) -> bool:
        """Whether it has no cursor in the partition."""
        return number not in self._cursors

    async def adopt(self, number: int, cursor: Cursor) -> None:
        """The partition is served here from now on."""
        async with self._lock:
            self._cursors[number] = cursor
            log = self._context.partitions[number].log_if_open
            if log is not None:
                self.clamp(number, log.view.next_offset)
            if self.members.present and not self._is_closed:
                try:
                    await self._start()
                except BaseException:
                    self._cursors.pop(number, None)  # it is adopted again, and then there are dispatchers
                    raise

    async def pause(self, number: int, grace_seconds: float) -> None:
        """Send nothing more of a partition; return when what was sent is acked, or the time is over."""
        dispatcher = self._dispatchers.get(number)
        if dispatcher is not None:
            await dispatcher.pause(grace_seconds)

    def resume(self, number: int) -> None:
        """After a pause: the partition stays after all."""
        if (dispatcher := self._dispatchers.get(number)) is not None:
            dispatcher.resume()

    def clamp(self, number: int, end_offset: int) -> None:
        """The log ends here. Where it was given up beyond, others will have those offsets, and are to be delivered."""
        cursor = self._cursors.get(number)
        if cursor is not None and cursor.clamp(end_offset):
            _logger.error("cursor_beyond_log", topic=str(self._context.topic), partition=number, subscription=self.name)
            self._write(number, cursor)

    async def release(self, number: int, error: SulinaError) -> None:
        """The partition is served here no more. Consumers are let go, and look for it."""
        async with self._lock:
            if self._cursors.pop(number, None) is not None and self.members.present:
                await self._dismiss(error)

    async def dismiss(self, error: SulinaError) -> None:
        """Let all consumers go: this broker may not deliver, and another may."""
        if self.members.present:
            async with self._lock:
                await self._dismiss(error)

    async def flush(self, number: int) -> None:
        """Return when the cursor of a partition is durable as it is now. NotServing."""
        if number in self._cursors:
            await self._durable(number)

    async def _start(self) -> None:
        for partition in self._context.partitions:
            number = partition.name.partition
            if number in self._dispatchers or number not in self._cursors:
                continue
            async with partition.using() as log:
                self.clamp(number, log.view.next_offset)
                cursor = self._cursors[number]
                around = self._surroundings(number)
                dispatcher = Dispatcher(partition.name, log, cursor, self.members, self._rules, around)
                self._dispatchers[number] = dispatcher  # it watches the log, which stays open for that

    async def _stop(self) -> None:
        dispatchers, self._dispatchers = self._dispatchers, {}
        # All of them at once: none may go on if this is cut short.
        tasks = [task for dispatcher in dispatchers.values() for task in dispatcher.cancel()]
        if tasks:
            await asyncio.wait(tasks)

    def _surroundings(self, number: int) -> Surroundings:
        cursor, place = self._cursors[number], self._context.partitions[number].place

        async def bury(records: Sequence[Record], attempts: int) -> None:
            await self._context.bury(self.name, number, records, attempts)

        return Surroundings(
            clock=self._context.clock,
            metrics=self._context.metrics,
            bury=bury,
            changed=lambda: self._write(number, cursor),
            may_send=partial(place.may_ack, place.revision),
        )

    # What consumers say

    def wake(self) -> None:
        """Something that matters to every partition has changed."""
        for dispatcher in self._dispatchers.values():
            dispatcher.wake()

    def ack(self, consumer: Consumer, partition: int, ranges: Sequence[Range]) -> int:
        """These are done, and the cursor is written soon; how many of them the consumer held."""
        return self._dispatcher(partition, ranges).ack(consumer, ranges)

    def ack_durably(
        self, consumer: Consumer, partition: int, ranges: Sequence[Range]
    ) -> tuple[int, asyncio.Future[None]]:
        """These are done; how many of them the consumer held, and a future that is done when the cursor is durable."""
        return self.ack(consumer, partition, ranges), self._durable(partition)

    def nack(self, consumer: Consumer, partition: int, ranges: Sequence[Range], delay_seconds: float | None) -> int:
        """These are to be delivered again; how many of them the consumer held."""
        return self._dispatcher(partition, ranges).nack(consumer, ranges, delay_seconds)

    def _write(self, number: int, cursor: Cursor) -> None:
        key = keys.cursor(self._context.topic, self.name, number)
        self._context.writer.changed(key, cursor.stored, self.fences(number))

    def _durable(self, partition: int) -> asyncio.Future[None]:
        key = keys.cursor(self._context.topic, self.name, partition)
        return self._context.writer.durable(key, self._cursors[partition].stored, self.fences(partition))

    def fences(self, number: int) -> list[Compare]:
        """What must hold for this node to write the cursor of a partition: it is ours, and this subscription exists."""
        fence = self._context.partitions[number].place.fence
        key = keys.subscription(self._context.topic, self.name)
        return [] if fence is None else [fence, Compare(key, self.revision)]

    def _dispatcher(self, partition: int, ranges: Sequence[Range]) -> Dispatcher:
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
        for number, cursor in list(self._cursors.items()):
            log = self._context.partitions[number].log_if_open
            if log is None:
                return None
            total += cursor.lag(log.view.next_offset)
        return total

    async def info(self) -> SubscriptionInfo:
        """Its consumers and cursors now."""
        cursors = []
        for number in sorted(self._cursors):
            async with self._context.partitions[number].using() as log:
                end_offset = log.view.next_offset
            cursor, dispatcher = self._cursors.get(number), self._dispatchers.get(number)
            if cursor is None:  # it has gone to another broker meanwhile
                continue
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
