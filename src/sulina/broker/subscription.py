"""A subscription of a reliable topic: its consumers here, and a cursor in every partition that is served here.

A cursor is fixed when the subscription is made, and from then on moves by acks or a seek only. While consumers are
attached, a dispatcher works for each partition; when the last has left, only the cursors remain. A partition that is
given to another broker takes its cursor along; its consumers are let go, and find it there.
"""

import asyncio
import math
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
from sulina.broker.partition import Log, Partition
from sulina.core.cluster import keys
from sulina.core.delivery.cursor import Cursor
from sulina.core.delivery.dispatch import DispatchRules
from sulina.core.delivery.holder import Holder
from sulina.core.delivery.members import Members, SubscriptionKind
from sulina.core.delivery.ranges import Range
from sulina.core.log.position import Position
from sulina.core.records.record import StoredRecord
from sulina.errors import (
    CursorMoved,
    InvalidInput,
    NotServing,
    PartitionNotFound,
    SubscriptionBusy,
    SulinaError,
)
from sulina.ports import NO_REVISION, Clock, Compare
from sulina.types import TopicName
from sulina.wire.messages import CursorInfo, SubscriptionInfo, SubscriptionSettings

ACKED_RANGES_SHOWN = 1000
HELD_KINDS = (SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER)
SETTLE_SECONDS = 3.0  # for the holder to follow a partition that has moved
CLAIM_SECONDS = 0.5  # between two attempts to find out whether the holder has gone

_logger = structlog.get_logger("sulina.subscription")


class Buries(Protocol):
    """Puts records into the dead-letter topic."""

    async def __call__(
        self, subscription: str, partition: int, records: Sequence[StoredRecord], attempts: int
    ) -> None: ...


class Claims(Protocol):
    """Makes a consumer the one in the cluster that a subscription delivers to. SubscriptionBusy, NotServing."""

    async def __call__(self, subscription: "Subscription", consumer: Consumer) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicContext:
    """What a subscription needs of its topic and node."""

    topic: TopicName
    partitions: Sequence[Partition]
    writer: CursorWriter
    clock: Clock
    metrics: TopicMetrics
    bury: Buries
    claim: "Claims | None" = None  # None: the node is alone


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
        self.members = Members(stored.settings.mode)
        self.revision = stored.revision
        self._cursors: dict[int, Cursor] = {}  # of the partitions that are served here
        self._released: dict[int, Cursor] = {}  # of those that were served here before, as they were then
        self._context = context
        self._rules = rules
        self._dispatchers: dict[int, Dispatcher] = {}
        self._lock = asyncio.Lock()
        self._is_closed = False
        self._holder: Holder | None = None
        self._holder_revision = NO_REVISION
        self._moved_at = -math.inf  # when a partition came that the holder has not followed yet
        self._claiming: asyncio.Task[None] | None = None
        self.members.is_held = context.claim is not None and stored.settings.mode in HELD_KINDS

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
        claim, kind = self._context.claim, self.members.kind
        if claim is not None and kind == settings.mode == SubscriptionKind.EXCLUSIVE:
            await claim(self, consumer)
        async with self._lock:
            self._check_open()
            topic = str(self._context.topic)
            if self.members.is_held and kind == SubscriptionKind.EXCLUSIVE and self._holder != consumer.holder:
                raise self.busy("another consumer has taken it")
            for older in replaced_by(self.members, consumer, settings.mode, topic=topic, name=self.name):
                self._remove(older)
                older.dismissed(taken_over(topic, self.name))
            try:
                await self._start()
            except BaseException:
                if not self.members.present:
                    await self._stop()
                raise
            self.members.attach(consumer)
            self._activate()
            self.wake()

    # The one that it delivers to

    def busy(self, reason: str) -> SubscriptionBusy:
        """Return what a consumer is told for which there is no room."""
        return SubscriptionBusy(topic=str(self._context.topic), subscription=self.name, reason=reason)

    @property
    def exists(self) -> Compare:
        """What holds while this very subscription does."""
        return Compare(keys.subscription(self._context.topic, self.name), self.revision)

    def check_settled(self) -> None:
        """NotServing while the holder may be on its way here, after a partition that came."""
        seconds = self._context.clock.monotonic() - self._moved_at
        if self.members.kind == SubscriptionKind.EXCLUSIVE and seconds < SETTLE_SECONDS:
            raise NotServing(reason=f"the consumer of subscription {self.name} may be about to follow a move")

    async def set_holder(self, holder: Holder, revision: int) -> None:
        """Deliver to this consumer alone from now on; of an exclusive subscription the others are let go."""
        if not self.members.is_held or revision <= self._holder_revision:
            return
        async with self._lock:
            if revision <= self._holder_revision:
                return
            self._holder, self._holder_revision = holder, revision
            for member in list(self.members.present):
                assert isinstance(member, Consumer)
                if member.holder == holder:
                    continue
                for dispatcher in self._dispatchers.values():
                    dispatcher.detach(member)
                if self.members.kind == SubscriptionKind.EXCLUSIVE:
                    self.members.detach(member)
                    member.dismissed(self.busy("another consumer has taken its place"))
            if self.members.present:
                self._activate()
            else:
                await self._stop()

    def _activate(self) -> None:
        if not self.members.is_held:
            return
        active = next((m for m in self.members.present if isinstance(m, Consumer) and m.holder == self._holder), None)
        if active is not None:
            self._moved_at = -math.inf
        if self.members.active is not active:
            self.members.activate(active)
        self.wake()
        is_idle = self._claiming is None or self._claiming.done()
        if active is None and self.members.present and is_idle and not self._is_closed:
            self._claiming = asyncio.create_task(self._claim_until_one_is(), name=f"claim {self.name}")

    async def _claim_until_one_is(self) -> None:
        """Let the next consumer of a failover subscription take the place of a holder that has gone."""
        while self.members.present and self.members.active is None and not self._is_closed:
            first = self.members.present[0]
            assert isinstance(first, Consumer)
            assert self._context.claim is not None
            try:
                await self._context.claim(self, first)
            except (SulinaError, OSError) as error:
                _logger.debug("subscription_not_claimed", subscription=self.name, error=str(error))
            if self.members.active is None:
                await asyncio.sleep(CLAIM_SECONDS)

    async def detach(self, consumer: Consumer) -> None:
        """Send it no more; what it has not acked goes to others."""
        async with self._lock:
            if consumer in self.members.present:
                self._remove(consumer)
                if not self.members.present:
                    await self._stop()
                else:
                    self._activate()

    async def close(self, error: SulinaError) -> None:
        """Let every consumer go, for good."""
        async with self._lock:
            self._is_closed = True
            if self._claiming is not None:
                self._claiming.cancel()
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
            moved = {p.name.partition: Cursor(*await p.locate_with_epoch(position)) for p in chosen}
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

    async def adopt(self, number: int, cursor: Cursor, *, is_moved: bool) -> None:
        """The partition is served here from now on; `is_moved`: its consumers were elsewhere."""
        async with self._lock:
            self._cursors[number] = cursor
            self._released.pop(number, None)
            if is_moved:
                self._moved_at = self._context.clock.monotonic()
            log = self._context.partitions[number].log_if_open
            if log is not None:
                self.follow(number, log)
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

    def follow(self, number: int, log: Log) -> None:
        """Go on in this log. What was acked and given up since is not acked in it, and is to be delivered."""
        cursor = self._cursors.get(number)
        if cursor is None:
            return
        former = cursor.offset
        if cursor.follow(log.epochs):
            _logger.error(
                "cursor_diverged",
                topic=str(self._context.topic),
                partition=number,
                subscription=self.name,
                offset=former,
                continues_at=cursor.offset,
            )
            self._write(number, cursor)

    async def release(self, number: int, error: SulinaError) -> None:
        """The partition is served here no more. Consumers are let go, and look for it."""
        async with self._lock:
            if (cursor := self._cursors.pop(number, None)) is not None:
                self._released[number] = cursor
                if self.members.present:
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
                self.follow(number, log)
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

        async def bury(records: Sequence[StoredRecord], attempts: int) -> None:
            await self._context.bury(self.name, number, records, attempts)

        return Surroundings(
            clock=self._context.clock,
            metrics=self._context.metrics,
            bury=bury,
            changed=lambda: self._write(number, cursor),
            may_send=partial(place.may_ack, place.revision),
            members_changed=self.wake,
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
        """What must hold for this node to write the cursor of a partition: it is ours, this subscription exists, and
        the consumer that it delivers to holds it."""
        fence = self._context.partitions[number].place.fence
        if fence is None:
            return []
        held = self._holder_revision != NO_REVISION
        key = keys.holder(self._context.topic, self.name)
        return [fence, self.exists, *([Compare(key, self._holder_revision)] if held else [])]

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

    def stored_cursors(self) -> dict[str, bytes]:
        """Return its cursors here as they are stored, by key; also the last of partitions that were released.

        The next owner may not have one yet when the metadata store is lost.
        """
        topic, known = self._context.topic, {**self._released, **self._cursors}
        return {keys.cursor(topic, self.name, number): cursor.stored() for number, cursor in known.items()}

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
            mode=self.settings.mode,
            start=self.settings.start,
            consumers=[member.name for member in self.members.present],
            cursors=cursors,
            lag=sum(cursor.lag for cursor in cursors),
        )
