"""Sends the records of one partition to the consumers of one subscription, by the rules of `core.delivery.dispatch`.

One task reads, shares out and waits: for records, for credit, for acks, for time. Nothing else touches the rules' state
but the short calls below, which run between its steps.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from sulina.broker.consumer import Consumer, Delivery
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
from sulina.storage.directory_log import Slice
from sulina.types import Offset, PartitionName
from sulina.waiting import wait_or_timeout

READ_BYTES = 256 << 10
FAILURE_PAUSE_SECONDS = 1.0
UNSURE_PAUSE_SECONDS = 0.05

_logger = structlog.get_logger("sulina.dispatcher")

Bury = Callable[[Sequence[StoredRecord], int], Awaitable[None]]  # the records, and how often each was delivered


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a dispatcher needs beside its partition."""

    clock: Clock
    metrics: TopicMetrics
    bury: Bury  # puts records into the dead-letter topic
    changed: Callable[[], None]  # the cursor is to be written
    may_send: Callable[[], bool]  # whether the partition is surely ours at this moment
    members_changed: Callable[[], None]  # what waits for one consumer may go to another, in every partition


class Dispatcher:
    """Lives while its subscription has consumers here; its cursor survives it."""

    def __init__(
        self,
        partition: PartitionName,
        log: Log,
        cursor: Cursor,
        members: Members,
        rules: DispatchRules,
        around: Surroundings,
    ) -> None:
        self.dispatch = Dispatch(cursor, members, rules)
        self._partition = partition
        self._log = log
        self._members = members
        self._around = around
        self._wake = asyncio.Event()
        self._is_paused = False
        self._settled = asyncio.Event()  # something that was sent has been acked, or given back
        self._burying: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run(), name=f"dispatch {partition}")
        log.watchers.add(self.wake)

    def cancel(self) -> list[asyncio.Task[None]]:
        """Stop. Records that are with consumers stay unacked. Wait for these tasks to be sure."""
        self._log.watchers.discard(self.wake)
        tasks = [task for task in (self._task, self._burying) if task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    async def pause(self, grace_seconds: float) -> None:
        """Send nothing more; return when all that was sent is acked, or the time is over."""
        self._is_paused = True
        try:
            async with asyncio.timeout(grace_seconds):
                while self.dispatch.in_flight:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            pass  # those records are delivered again by whoever comes next

    def resume(self) -> None:
        """After a pause: the partition stays after all."""
        self._is_paused = False
        self.wake()

    def change_rules(self, rules: DispatchRules) -> None:
        """The topic's policy has changed."""
        self.dispatch.change_rules(rules, self._around.clock.monotonic())
        self.wake()

    def wake(self) -> None:
        """Something has changed: records, credit, consumers, acks, rules."""
        self._wake.set()
        self._settled.set()

    # Short calls, between the steps of the task

    def ack(self, consumer: Consumer, ranges: Sequence[Range]) -> int:
        """These are done; how many of them the consumer held."""
        count = self.dispatch.ack(consumer, ranges)
        if count:
            self._around.metrics.acked_records.inc(count)
            self._around.changed()
            self.wake()
        return count

    def nack(self, consumer: Consumer, ranges: Sequence[Range], delay_seconds: float | None) -> int:
        """These are to be delivered again; how many of them the consumer held."""
        delay = self.dispatch.rules.redelivery_delay_seconds if delay_seconds is None else delay_seconds
        count = self.dispatch.nack(consumer, ranges, self._around.clock.monotonic() + delay)
        if count:
            self._around.metrics.nacked_records.inc(count)
            self._around.changed()
            self.wake()
        return count

    def detach(self, consumer: Consumer) -> None:
        """The consumer has left."""
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
                # Damage, or a bug: say so, and go on trying. One that ended in silence would look idle.
                _logger.exception("dispatch_failed", partition=str(self._partition))
                await asyncio.sleep(FAILURE_PAUSE_SECONDS)

    async def _step(self) -> None:
        self._wake.clear()
        now = self._around.clock.monotonic()
        known = self._members.version
        late = self.dispatch.tick(now)
        if late:
            self._around.metrics.timed_out_records.inc(late)
            self._around.changed()
        if self._members.version != known:
            self._around.members_changed()
        if self.dispatch.dying and (self._burying is None or self._burying.done()):
            self._burying = asyncio.create_task(self._bury_dying(), name=f"bury {self._partition}")
        if self._log.view.start_offset > self.dispatch.cursor.offset:
            self._skip()
        wanted = None if self._is_paused else self.dispatch.want(self._log.view.next_offset)
        if wanted is None:
            await self._pause(now)
            return
        found = await self._log.read(Offset(wanted[0]), max_bytes=READ_BYTES)
        if self._is_paused or not self._members.present:
            return
        if not self._around.may_send():
            # Another may have sent these, and had them acked, while we slept.
            await asyncio.sleep(UNSURE_PAUSE_SECONDS)
            return
        places = bounds(found.data)
        batches = self._batches(found, places)
        # Somebody may have come, gone or acked while we read.
        for sending in self.dispatch.take(wanted, batches, self._around.clock.monotonic()):
            self._deliver(sending, found.data, places)

    def _batches(self, found: Slice, places: Sequence[tuple[int, int, int, int]]) -> list[Batch]:
        if not places or self._members.kind != SubscriptionKind.KEY_SHARED:
            return [Batch(start, end) for _, _, start, end in places]
        slots = [slot_of(record.key) for record in decode_rows(found.data)]
        first = places[0][2]
        return [Batch(start, end, slots[start - first : end - first]) for _, _, start, end in places]

    def _deliver(self, sending: PlannedDelivery, data: memoryview, places: Sequence[tuple[int, int, int, int]]) -> None:
        numbers = sending.batches
        if numbers[-1] - numbers[0] + 1 == len(numbers):
            data = data[places[numbers[0]][0] : places[numbers[-1]][1]]
        else:
            data = memoryview(b"".join(data[places[number][0] : places[number][1]] for number in numbers))
        self._around.metrics.delivered_records.inc(sum(end - start for start, end in sending.ranges))
        assert isinstance(sending.member, Consumer)
        sending.member.deliver(Delivery(self._partition.partition, sending.attempt, data, sending.ranges))

    async def _pause(self, now: float) -> None:
        due = self.dispatch.next_tick()
        await wait_or_timeout(self._wake, None if due is None else max(0.0, due - now))

    def _skip(self) -> None:
        """Retention has overtaken the subscription."""
        lost = self.dispatch.skip_to(self._log.view.start_offset)
        if lost:
            self._around.metrics.skipped_records.inc(lost)
            _logger.warning("records_skipped", partition=str(self._partition), count=lost)
        self._around.changed()

    # Dead letters

    async def _bury_dying(self) -> None:
        """Records that were delivered too often go to the dead-letter topic; only then are they acked here."""
        for start, end in list(self.dispatch.dying):
            for low, high, attempts in self.dispatch.cursor.attempts.pieces(start, end, 0):
                due = self._around.clock.monotonic() + max(1.0, self.dispatch.rules.redelivery_delay_seconds)
                try:
                    records = await self._records(low, high)
                    going = [record for record in records if hops_of(record) < HOPS_MAX]
                    if going:
                        await self._around.bury(going, attempts)
                except Exception as error:  # noqa: BLE001
                    # Whatever it is, the record must not be forgotten between here and there.
                    _logger.error("dead_letter_failed", partition=str(self._partition), offset=low, error=str(error))
                    self.dispatch.spared(low, high, due)
                else:
                    self._settle_dying(low, high, records, due)
                self._around.changed()
                self.wake()

    def _settle_dying(self, start: int, end: int, records: Sequence[StoredRecord], due: float) -> None:
        """Ack what is in the dead-letter topic; what has come through too many of those stays here."""
        for record in records:
            if hops_of(record) >= HOPS_MAX:
                _logger.error("dead_letter_stays", partition=str(self._partition), offset=record.offset, hops=HOPS_MAX)
                self.dispatch.spared(record.offset, record.offset + 1, due)
        for low, high in self.dispatch.dying.within(start, end):
            self._around.metrics.dead_lettered_records.inc(high - low)
            self.dispatch.buried(low, high)

    async def _records(self, start: int, end: int) -> list[StoredRecord]:
        records: list[StoredRecord] = []
        offset = start
        while offset < end:
            found = await self._log.read(Offset(offset), max_bytes=READ_BYTES)
            records += [record for record in decode_rows(found.data, offset) if record.offset < end]
            offset = found.next_offset
        return records
