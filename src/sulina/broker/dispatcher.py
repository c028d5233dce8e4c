"""Sends the records of one partition to the consumers of one subscription, by the rules of `core.delivery.dispatch`.

One task reads records, assigns them to consumers, and waits for records, credit, acks or time. The short calls below
change the state of the rules between the steps of that task.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from sulina.broker.consumer import ConsumerConnection, ConsumerDelivery
from sulina.broker.log_reading import FAILURE_PAUSE_SECONDS, READ_BYTES, read_while_owned
from sulina.broker.metrics import TopicMetrics
from sulina.broker.partition import Log
from sulina.core.delivery.cursor import Cursor
from sulina.core.delivery.dead_letter import HOPS_MAX, hops_of
from sulina.core.delivery.dispatch import Batch, Dispatch, DispatchRules, PlannedDelivery
from sulina.core.delivery.members import Members, SubscriptionKind, slot_of
from sulina.core.delivery.ranges import Range
from sulina.core.log.stored import bounds
from sulina.core.records.record import StoredRecord
from sulina.core.records.rows import decode_rows
from sulina.errors import LogClosed, OffsetOutOfRange
from sulina.ports import Clock
from sulina.types import Offset, PartitionName
from sulina.waiting import wait_or_timeout

_logger = structlog.get_logger("sulina.dispatcher")

# Publishes records to the dead-letter topic; the number says how often each was delivered.
DeadLetter = Callable[[Sequence[StoredRecord], int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class DispatcherContext:
    """What a dispatcher needs besides its partition."""

    clock: Clock
    metrics: TopicMetrics
    dead_letter: DeadLetter
    changed: Callable[[], None]  # called when the cursor has to be written
    may_send: Callable[[], bool]  # whether this broker certainly owns the partition now
    members_changed: Callable[[], None]  # called when records of one consumer may go to another, in every partition


class Dispatcher:
    """Runs while its subscription has consumers here; the cursor outlives it."""

    def __init__(
        self,
        partition: PartitionName,
        log: Log,
        cursor: Cursor,
        members: Members,
        rules: DispatchRules,
        context: DispatcherContext,
    ) -> None:
        self.dispatch = Dispatch(cursor, members, rules)
        self._partition = partition
        self._log = log
        self._members = members
        self._context = context
        self._wake = asyncio.Event()
        self._is_paused = False
        self._settled = asyncio.Event()  # records that were sent have been acked or nacked
        self._dead_lettering: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run(), name=f"dispatch {partition}")
        log.watchers.add(self.wake)

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop; records that consumers have stay unacked. Return the tasks that are ending, to wait for."""
        self._log.watchers.discard(self.wake)
        tasks = [task for task in (self._task, self._dead_lettering) if task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    async def pause(self, grace_seconds: float) -> None:
        """Stop delivery; return when everything that was sent is acked, or after `grace_seconds`."""
        self._is_paused = True
        try:
            async with asyncio.timeout(grace_seconds):
                while self.dispatch.in_flight:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            pass  # the next owner delivers those records again

    def resume(self) -> None:
        """Send again after a pause: the partition was not moved."""
        self._is_paused = False
        self.wake()

    def change_rules(self, rules: DispatchRules) -> None:
        """Use other rules: the policy of the topic has changed."""
        self.dispatch.change_rules(rules, self._context.clock.monotonic())
        self.wake()

    def wake(self) -> None:
        """Wake the task: records, credit, consumers, acks or rules have changed."""
        self._wake.set()
        self._settled.set()

    # Short calls, between the steps of the task

    def ack(self, consumer: ConsumerConnection, ranges: Sequence[Range]) -> int:
        """Ack records; return how many of them the consumer held. The caller has the cursor written."""
        count = self.dispatch.ack(consumer, ranges)
        if count:
            self._context.metrics.acked_records.inc(count)
            self.wake()
        return count

    def nack(self, consumer: ConsumerConnection, ranges: Sequence[Range], delay_seconds: float | None) -> int:
        """Have records delivered again; return how many of them the consumer held."""
        delay = self.dispatch.rules.redelivery_delay_seconds if delay_seconds is None else delay_seconds
        count = self.dispatch.nack(consumer, ranges, self._context.clock.monotonic() + delay)
        if count:
            self._context.metrics.nacked_records.inc(count)
            self._context.changed()
            self.wake()
        return count

    def detach(self, consumer: ConsumerConnection) -> None:
        """Give the records of a consumer to others: it was detached."""
        self.dispatch.detach(consumer)
        self.wake()

    # The task

    async def _run(self) -> None:
        while True:
            try:
                await self._step()
            except LogClosed:
                return
            except OffsetOutOfRange:
                self._skip()
            except Exception:
                # Damage, or a bug: log it and try again. A task that ended silently would look idle.
                _logger.exception("dispatch_failed", partition=str(self._partition))
                await asyncio.sleep(FAILURE_PAUSE_SECONDS)

    async def _step(self) -> None:
        self._wake.clear()
        now = self._context.clock.monotonic()
        known = self._members.version
        late = self.dispatch.tick(now)
        if late:
            self._context.metrics.timed_out_records.inc(late)
            self._context.changed()
        if self._members.version != known:
            self._context.members_changed()
        if self.dispatch.dying and (self._dead_lettering is None or self._dead_lettering.done()):
            self._dead_lettering = asyncio.create_task(self._dead_letter_dying(), name=f"dead-letter {self._partition}")
        if self._log.view.start_offset > self.dispatch.cursor.offset:
            self._skip()
        wanted = None if self._is_paused else self.dispatch.want(self._log.view.next_offset)
        if wanted is None:
            due = self.dispatch.next_tick()
            await wait_or_timeout(self._wake, None if due is None else max(0.0, due - now))
            return
        found = await read_while_owned(self._log, Offset(wanted[0]), self._context.may_send)
        if found is None or self._is_paused or not self._members.present:
            return
        places = bounds(found.data)
        batches = [Batch(start, end) for _, _, start, end in places]
        if places and self._members.kind == SubscriptionKind.KEY_SHARED:
            slots, first = [slot_of(record.key) for record in decode_rows(found.data)], places[0][2]
            batches = [Batch(start, end, slots[start - first : end - first]) for _, _, start, end in places]
        # Consumers may have been attached or detached, or have acked, during the read.
        for delivery in self.dispatch.take(wanted, batches, self._context.clock.monotonic()):
            self._deliver(delivery, found.data, places)

    def _deliver(
        self, delivery: PlannedDelivery, data: memoryview, places: Sequence[tuple[int, int, int, int]]
    ) -> None:
        numbers = delivery.batches
        if numbers[-1] - numbers[0] + 1 == len(numbers):
            data = data[places[numbers[0]][0] : places[numbers[-1]][1]]
        else:
            data = memoryview(b"".join(data[places[number][0] : places[number][1]] for number in numbers))
        self._context.metrics.delivered_records.inc(sum(end - start for start, end in delivery.ranges))
        assert isinstance(delivery.member, ConsumerConnection)
        delivery.member.deliver(ConsumerDelivery(self._partition.partition, delivery.attempt, data, delivery.ranges))

    def _skip(self) -> None:
        """Move the cursor past records that retention has removed."""
        lost = self.dispatch.skip_to(self._log.view.start_offset)
        if lost:
            self._context.metrics.skipped_records.inc(lost)
            _logger.warning("records_skipped", partition=str(self._partition), count=lost)
        self._context.changed()

    # Dead letters

    async def _dead_letter_dying(self) -> None:
        """Publish records that were delivered too often to the dead-letter topic; only then ack them here."""
        for start, end in list(self.dispatch.dying):
            for low, high, attempts in self.dispatch.cursor.attempts.pieces(start, end, 0):
                due = self._context.clock.monotonic() + max(1.0, self.dispatch.rules.redelivery_delay_seconds)
                try:
                    records = await self._records(low, high)
                    going = [record for record in records if hops_of(record) < HOPS_MAX]
                    if going:
                        await self._context.dead_letter(going, attempts)
                except Exception as error:  # noqa: BLE001
                    # Whatever the error is, the record must not be lost between here and the dead-letter topic.
                    _logger.error("dead_letter_failed", partition=str(self._partition), offset=low, error=str(error))
                    self.dispatch.dead_letter_failed(low, high, due)
                else:
                    self._settle_dying(low, high, records, due)
                self._context.changed()
                self.wake()

    def _settle_dying(self, start: int, end: int, records: Sequence[StoredRecord], due: float) -> None:
        """Ack records that are in the dead-letter topic now; those that passed through too many of them stay here."""
        for record in records:
            if hops_of(record) >= HOPS_MAX:
                _logger.error("dead_letter_stays", partition=str(self._partition), offset=record.offset, hops=HOPS_MAX)
                self.dispatch.dead_letter_failed(record.offset, record.offset + 1, due)
        for low, high in self.dispatch.dying.within(start, end):
            self._context.metrics.dead_lettered_records.inc(high - low)
            self.dispatch.dead_lettered(low, high)

    async def _records(self, start: int, end: int) -> list[StoredRecord]:
        records: list[StoredRecord] = []
        offset = start
        while offset < end:
            found = await self._log.read(Offset(offset), max_bytes=READ_BYTES)
            records += [record for record in decode_rows(found.data, offset) if record.offset < end]
            offset = found.next_offset
        return records
