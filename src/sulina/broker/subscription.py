"""A subscription of a reliable topic: its consumers here, and a cursor in every partition that is served here.

A cursor is created with the subscription, and from then on moves only by acks or a seek. While consumers are attached,
a dispatcher runs for each partition; when the last one is detached, only the cursors remain. When a partition moves to
another broker its cursor moves too; its consumers are detached here, and attach there.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog

from sulina.broker.catalogue import StoredSubscription
from sulina.broker.consumer import ConsumerConnection, connections_to_replace, replaced_error
from sulina.broker.cursors import CursorWriter
from sulina.broker.dispatcher import Dispatcher, DispatcherContext
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
SETTLE_SECONDS = 3.0  # how long a holder may take to follow a partition that was moved
CLAIM_SECONDS = 0.5  # between two attempts to claim the subscription

_logger = structlog.get_logger("sulina.subscription")


class PublishDeadLetters(Protocol):
    """Publishes records of a subscription to the dead-letter topic."""

    async def __call__(
        self, subscription: str, partition: int, records: Sequence[StoredRecord], attempts: int
    ) -> None: ...


class ClaimSubscription(Protocol):
    """Makes a consumer the only one in the cluster that a subscription delivers to.

    Raises:
        SubscriptionBusy: another consumer holds it.
        NotServing: it is not known whether the holder is still attached.
    """

    async def __call__(self, subscription: "Subscription", consumer: ConsumerConnection) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicContext:
    """What a subscription needs from its topic and node."""

    topic: TopicName
    partitions: Sequence[Partition]
    writer: CursorWriter
    clock: Clock
    metrics: TopicMetrics
    dead_letter: PublishDeadLetters
    claim: ClaimSubscription | None = None  # None: there are no other brokers


class Subscription:
    """One lock covers everything that changes which consumers are attached."""

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
        self.cursors: dict[int, Cursor] = {}  # of the partitions that are served here
        self._released: dict[int, Cursor] = {}  # of partitions that were released, as they were then
        self._context = context
        self._cursor_keys = [keys.cursor(context.topic, name, p.name.partition) for p in context.partitions]
        self._rules = rules
        self._dispatchers: dict[int, Dispatcher] = {}
        self._lock = asyncio.Lock()
        self._is_closed = False
        self._holder: Holder | None = None
        self._holder_revision = NO_REVISION
        self._moved_at = -math.inf  # when a partition was acquired that the holder has not followed yet
        self._claiming: asyncio.Task[None] | None = None
        self.members.is_held = context.claim is not None and stored.settings.mode in HELD_KINDS

    @property
    def rules(self) -> DispatchRules:
        """The part of the topic's policy that concerns deliveries."""
        return self._rules

    @rules.setter
    def rules(self, rules: DispatchRules) -> None:
        self._rules = rules
        for dispatcher in self._dispatchers.values():
            dispatcher.change_rules(rules)

    # Consumers

    async def attach(self, consumer: ConsumerConnection, settings: SubscriptionSettings) -> None:
        """Attach a consumer. It replaces an attached one of the same name, whose client has reconnected.

        Raises:
            SubscriptionBusy: another consumer holds the subscription.
            AlreadyExists: the subscription is of another kind.
            NotServing: the subscription is being deleted or closed.
        """
        claim, kind = self._context.claim, self.members.kind
        if claim is not None and kind == settings.mode == SubscriptionKind.EXCLUSIVE:
            await claim(self, consumer)
        async with self._lock:
            self._check_open()
            topic = str(self._context.topic)
            if self.members.is_held and kind == SubscriptionKind.EXCLUSIVE and self._holder != consumer.holder:
                raise self.busy("another consumer holds it")
            for older in connections_to_replace(self.members, consumer, settings.mode, topic=topic, name=self.name):
                self._remove(older)
                older.detached(replaced_error(topic, self.name))
            try:
                await self._start()
            except BaseException:
                if not self.members.present:
                    await self._stop()
                raise
            self.members.attach(consumer)
            self._activate()
            self.wake()

    # The holder of an exclusive or failover subscription

    def busy(self, reason: str) -> SubscriptionBusy:
        """Return the error for a consumer that cannot be attached, or not any more."""
        return SubscriptionBusy(topic=str(self._context.topic), subscription=self.name, reason=reason)

    @property
    def exists(self) -> Compare:
        """Holds while this subscription exists, not one of the same name that was created later."""
        return Compare(keys.subscription(self._context.topic, self.name), self.revision)

    def check_settled(self) -> None:
        """Check that the holder is not about to follow a partition that was just acquired.

        Raises:
            NotServing: it may be.
        """
        seconds = self._context.clock.monotonic() - self._moved_at
        if self.members.kind == SubscriptionKind.EXCLUSIVE and seconds < SETTLE_SECONDS:
            raise NotServing(reason=f"the consumer of subscription {self.name} may be about to follow a move")

    async def set_holder(self, holder: Holder, revision: int) -> None:
        """Deliver to this consumer alone from now on; other consumers of an exclusive subscription are detached."""
        if not self.members.is_held or revision <= self._holder_revision:
            return
        async with self._lock:
            if revision <= self._holder_revision:
                return
            self._holder, self._holder_revision = holder, revision
            for member in list(self.members.present):
                assert isinstance(member, ConsumerConnection)
                if member.holder == holder:
                    continue
                for dispatcher in self._dispatchers.values():
                    dispatcher.detach(member)
                if self.members.kind == SubscriptionKind.EXCLUSIVE:
                    self.members.detach(member)
                    member.detached(self.busy("another consumer holds it now"))
            if self.members.present:
                self._activate()
            else:
                await self._stop()

    def _activate(self) -> None:
        if not self.members.is_held:
            return
        active = next(
            (m for m in self.members.present if isinstance(m, ConsumerConnection) and m.holder == self._holder), None
        )
        if active is not None:
            self._moved_at = -math.inf
        if self.members.active is not active:
            self.members.activate(active)
        self.wake()
        is_idle = self._claiming is None or self._claiming.done()
        if active is None and self.members.present and is_idle and not self._is_closed:
            self._claiming = asyncio.create_task(self._claim_until_held(), name=f"claim {self.name}")

    async def _claim_until_held(self) -> None:
        """Try to make the next consumer the holder, until one is; for a failover subscription without a holder."""
        while self.members.present and self.members.active is None and not self._is_closed:
            first = self.members.present[0]
            assert isinstance(first, ConsumerConnection)
            assert self._context.claim is not None
            try:
                await self._context.claim(self, first)
            except (SulinaError, OSError) as error:
                _logger.debug("subscription_not_claimed", subscription=self.name, error=str(error))
            if self.members.active is None:
                await asyncio.sleep(CLAIM_SECONDS)

    async def detach(self, consumer: ConsumerConnection) -> None:
        """Detach a consumer; records that it has not acked go to others."""
        async with self._lock:
            if consumer in self.members.present:
                self._remove(consumer)
                if not self.members.present:
                    await self._stop()
                else:
                    self._activate()

    async def close(self, error: SulinaError) -> None:
        """Detach all consumers and refuse new ones."""
        async with self._lock:
            self._is_closed = True
            if self._claiming is not None:
                self._claiming.cancel()
            await self._detach_all(error)

    async def seek(self, position: Position, partition: int | None) -> None:
        """Move the cursors, durably. Consumers are detached, and go on at the new position when they attach again.

        Raises:
            PartitionNotFound: the topic has no such partition.
        """
        if partition is not None and not 0 <= partition < len(self._context.partitions):
            raise PartitionNotFound(
                topic=str(self._context.topic), partition=partition, partitions=len(self._context.partitions)
            )
        async with self._lock:
            self._check_open()
            chosen = [p for p in self._context.partitions if self._is_sought(p, partition)]
            moved = {p.name.partition: Cursor(*await p.locate_with_epoch(position)) for p in chosen}
            await self._detach_all(CursorMoved(topic=str(self._context.topic), subscription=self.name))
            former = {number: self.cursors[number] for number in moved}
            self.cursors.update(moved)
            try:
                await asyncio.gather(*(self._durable(number) for number in moved))
            except BaseException:
                # It is not known what was stored: the former cursors are used, and written again.
                self.cursors.update(former)
                for number, cursor in former.items():
                    self._write(number, cursor)
                raise

    def _is_sought(self, partition: Partition, wanted: int | None) -> bool:
        if wanted is None:
            return partition.name.partition in self.cursors
        if wanted == partition.name.partition:
            partition.ownership.check()
        return wanted == partition.name.partition

    def _check_open(self) -> None:
        if self._is_closed:
            raise NotServing(reason=f"subscription {self.name} of {self._context.topic} is being closed")

    def _remove(self, consumer: ConsumerConnection) -> None:
        self.members.detach(consumer)
        for dispatcher in self._dispatchers.values():
            dispatcher.detach(consumer)

    async def _detach_all(self, error: SulinaError) -> None:
        for consumer in list(self.members.present):
            assert isinstance(consumer, ConsumerConnection)
            self._remove(consumer)
            consumer.detached(error)
        await self._stop()

    # Partitions that are acquired and released

    def lacks(self, number: int) -> bool:
        """Return whether the subscription has no cursor in a partition."""
        return number not in self.cursors

    async def acquire(self, number: int, cursor: Cursor, *, is_moved: bool) -> None:
        """Serve a partition from now on; with `is_moved` its consumers were attached to another broker."""
        async with self._lock:
            self.cursors[number] = cursor
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
                    self.cursors.pop(
                        number, None
                    )  # the partition is acquired again, and the dispatchers are started then
                    raise

    async def pause(self, number: int, grace_seconds: float) -> None:
        """Stop sending records of a partition; return when those that were sent are acked, or after `grace_seconds`."""
        dispatcher = self._dispatchers.get(number)
        if dispatcher is not None:
            await dispatcher.pause(grace_seconds)

    def resume(self, number: int) -> None:
        """Send records of a partition again after a pause."""
        if (dispatcher := self._dispatchers.get(number)) is not None:
            dispatcher.resume()

    def follow(self, number: int, log: Log) -> None:
        """Use this log from now on. Offsets that were given up after their ack have other records, to be delivered."""
        cursor = self.cursors.get(number)
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
        """Stop serving a partition. Consumers are detached, and attach at the next owner."""
        async with self._lock:
            if (cursor := self.cursors.pop(number, None)) is not None:
                self._released[number] = cursor
                if self.members.present:
                    await self._detach_all(error)

    async def detach_all(self, error: SulinaError) -> None:
        """Detach all consumers: this broker may not deliver any more, and another one may."""
        if self.members.present:
            async with self._lock:
                await self._detach_all(error)

    async def flush(self, number: int) -> None:
        """Wait until the cursor of a partition is durable as it is now.

        Raises:
            NotServing: it cannot be written.
        """
        if number in self.cursors:
            await self._durable(number)

    async def _start(self) -> None:
        for partition in self._context.partitions:
            number = partition.name.partition
            if number in self._dispatchers or number not in self.cursors:
                continue
            async with partition.using() as log:
                self.follow(number, log)
                cursor = self.cursors[number]
                dispatcher = Dispatcher(
                    partition.name, log, cursor, self.members, self._rules, self._dispatcher_context(number)
                )
                self._dispatchers[number] = dispatcher  # it watches the log, which keeps it open

    async def _stop(self) -> None:
        dispatchers, self._dispatchers = self._dispatchers, {}
        # All at once: none may go on if this call is cancelled.
        tasks = [task for dispatcher in dispatchers.values() for task in dispatcher.stop()]
        if tasks:
            await asyncio.wait(tasks)

    def _dispatcher_context(self, number: int) -> DispatcherContext:
        cursor, ownership = self.cursors[number], self._context.partitions[number].ownership

        async def dead_letter(records: Sequence[StoredRecord], attempts: int) -> None:
            await self._context.dead_letter(self.name, number, records, attempts)

        return DispatcherContext(
            clock=self._context.clock,
            metrics=self._context.metrics,
            dead_letter=dead_letter,
            changed=lambda: self._write(number, cursor),
            may_send=partial(ownership.may_ack, ownership.revision),
            members_changed=self.wake,
        )

    # Acks

    def wake(self) -> None:
        """Wake the dispatchers of all partitions."""
        for dispatcher in self._dispatchers.values():
            dispatcher.wake()

    def ack(self, consumer: ConsumerConnection, partition: int, ranges: Sequence[Range]) -> int:
        """Ack records; return how many of them the consumer held. The cursor is written soon."""
        dispatcher = self._dispatcher(partition, ranges)
        count = dispatcher.ack(consumer, ranges)
        if count:
            self._write(partition, dispatcher.dispatch.cursor)
        return count

    def ack_durably(
        self, consumer: ConsumerConnection, partition: int, ranges: Sequence[Range]
    ) -> tuple[int, asyncio.Future[None]]:
        """Ack records; return how many of them the consumer held, and a future for the cursor to be durable."""
        return self._dispatcher(partition, ranges).ack(consumer, ranges), self._durable(partition)

    def nack(
        self, consumer: ConsumerConnection, partition: int, ranges: Sequence[Range], delay_seconds: float | None
    ) -> int:
        """Have records delivered again; return how many of them the consumer held."""
        return self._dispatcher(partition, ranges).nack(consumer, ranges, delay_seconds)

    def _write(self, number: int, cursor: Cursor) -> None:
        self._context.writer.changed(self._cursor_keys[number], cursor.stored, self.fences(number))

    def _durable(self, partition: int) -> asyncio.Future[None]:
        key, stored = self._cursor_keys[partition], self.cursors[partition].stored
        return self._context.writer.durable(key, stored, self.fences(partition))

    def fences(self, number: int) -> list[Compare]:
        """Return what must hold for this node to write the cursor of a partition.

        The node owns the partition, the subscription exists, and the consumer that it delivers to holds it.
        """
        fences = self._context.partitions[number].ownership.fences
        if not fences:
            return []
        held = self._holder_revision != NO_REVISION
        key = keys.holder(self._context.topic, self.name)
        return [*fences, self.exists, *([Compare(key, self._holder_revision)] if held else [])]

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

    # State

    def stored_cursors(self) -> dict[str, bytes]:
        """Return the stored form of the cursors here, by key, with the last ones of released partitions.

        When the metadata store is lost, the next owner may not have its cursor yet.
        """
        known = {**self._released, **self.cursors}
        return {self._cursor_keys[number]: cursor.stored() for number, cursor in known.items()}

    def cursor_keys(self) -> list[str]:
        """Return the keys under which the cursors are stored."""
        return [self._cursor_keys[number] for number in self.cursors]

    def lag(self) -> int | None:
        """Return the number of records that are not acked; None: the log of a partition is not open."""
        total = 0
        for number, cursor in list(self.cursors.items()):
            log = self._context.partitions[number].log_if_open
            if log is None:
                return None
            total += cursor.lag(log.view.next_offset)
        return total

    async def info(self) -> SubscriptionInfo:
        """Return the consumers and cursors as they are now."""
        cursors = []
        for number in sorted(self.cursors):
            async with self._context.partitions[number].using() as log:
                end_offset = log.view.next_offset
            cursor, dispatcher = self.cursors.get(number), self._dispatchers.get(number)
            if cursor is None:  # the partition was released meanwhile
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
