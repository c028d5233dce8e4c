"""A consumer as one connection knows it: its credit, its acks, and which deliveries are still its own.

An attachment ends with its connection, by a seek, when its node loses a partition, or when it is closed. What it
delivered can then no longer be acked, because it is delivered again. Nor can an earlier delivery of a record that the
same attachment delivered once more.
"""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from sulina.client.message import Message
from sulina.client.session import Session
from sulina.errors import (
    ConsumerNotFound,
    Disconnected,
    InvalidSettings,
    MetadataFailed,
    NotServing,
    PartitionNotFound,
    ProtocolError,
    SulinaError,
)
from sulina.wire.frames import CREDIT_MAX, RANGES_MAX, AckRecords, AddCredit, Deliver, Detach, FromClient, NackRecords

REDELIVERIES_NOTED_MAX = 10_000
LEAVE_SECONDS = 5.0
DELAY_SECONDS_MAX = 24 * 3600

Ranges = list[tuple[int, int]]

_partition = attrgetter("partition")
_delivery_ids = itertools.count(1)


class SessionAttachment:
    """Made for a subscription, which gets what is delivered."""

    def __init__(
        self,
        session: Session,
        credit: int,
        on_delivery: Callable[["SessionAttachment", Deliver], None],
        on_trouble: Callable[[], None] | None = None,
    ) -> None:
        """Make an attachment; `on_trouble` is called when acks fail as if another broker owned the partition."""
        self.handle = session.next_id()
        self.delivery_id = next(_delivery_ids)  # by which messages name it, in the whole process
        self.credit = credit  # that it begins with
        self.taken = 0  # by the application, whose credit has not been given back
        self.refill = max(1, credit // 2)  # taken messages, then credit is given back
        self.is_reliable = True  # else there are neither cursors nor anything to deliver again; the node says so
        self.is_gone = False
        self.has_delivered = False
        self.gone: asyncio.Future[SulinaError] = asyncio.get_running_loop().create_future()
        self.session = session  # whose connection it is on
        self._loop = asyncio.get_running_loop()
        self._on_delivery = on_delivery
        self._on_trouble = on_trouble
        self._surplus = 0  # credit that it has and should not have
        self._credit = 0  # to give back
        self._acks: dict[int, deque[int]] = {}  # to send: offsets by partition
        self._is_armed = False  # they will be sent
        self._attempts: dict[tuple[int, int], int] = {}  # the newest, of redelivered records, by partition and offset

    # What the session calls

    def deliver(self, frame: Deliver) -> None:
        """Pass records on to the consumer."""
        self.has_delivered = True
        if frame.attempt > 1:
            for start, end in frame.ranges:
                for offset in range(start, end):
                    self._attempts[frame.partition, offset] = frame.attempt
            while len(self._attempts) > REDELIVERIES_NOTED_MAX:
                del self._attempts[next(iter(self._attempts))]
        self._on_delivery(self, frame)

    def lose(self, error: SulinaError) -> None:
        """End: nothing that was delivered can be acked any more."""
        self.is_gone = True
        self.session.detach(self.handle)
        if not self.gone.done():
            self.gone.set_result(error)

    def drain(self) -> list[FromClient]:
        """Credit and acks that wait to be sent."""
        frames: list[FromClient] = []
        while self._credit and not self.is_gone:
            records = min(self._credit, CREDIT_MAX)
            self._credit -= records
            frames.append(AddCredit(self.handle, records))
        frames += (AckRecords(0, self.handle, partition, ranges) for partition, ranges in self._waiting_acks())
        if self.is_gone:
            self.session.detach(self.handle)
            frames.append(Detach(0, self.handle))
        return frames

    # What the application calls

    def is_own(self, message: Message) -> bool:
        """Return whether a delivery is still this consumer's to ack, as far as is known here."""
        if self.is_gone or not self.is_reliable:
            return False
        attempts = self._attempts
        return not attempts or attempts.get((message.partition, message.offset), message.attempt) == message.attempt

    def _own_ranges(self, messages: Sequence[Message]) -> tuple[bool, list[tuple[int, Ranges]]]:
        """Return whether all messages are still this consumer's to ack, and the ranges of those that are."""
        own = messages
        if self.is_gone or self._attempts:
            own = [message for message in messages if self.is_own(message)]
        offsets: dict[int, list[int]] = {}
        for partition, some in groupby(own, key=_partition):
            offsets.setdefault(partition, []).extend([message.offset for message in some])
        found = ((partition, ranges_of(all_of_it)) for partition, all_of_it in offsets.items())
        return len(own) == len(messages), [
            (partition, ranges[start : start + RANGES_MAX])
            for partition, ranges in found
            for start in range(0, len(ranges), RANGES_MAX)
        ]

    async def ack(self, messages: Sequence[Message]) -> bool:
        """Return when the cursors are durable; False when any of the deliveries was not ours any more."""
        if not self.is_reliable:
            return True
        is_own, parts = self._own_ranges(messages)
        if len(parts) == 1:
            is_known = await self._settled(AckRecords, *parts[0])
        else:
            is_known = all(await asyncio.gather(*(self._settled(AckRecords, *part) for part in parts)))
        return is_known and is_own

    async def nack(self, messages: Sequence[Message], delay_seconds: float | None) -> bool:
        """Return when the node knows; False when any of the deliveries was not ours any more.

        Raises:
            InvalidSettings: the delay is negative, or longer than a day.
        """
        if not self.is_reliable:
            return False
        is_own, parts = self._own_ranges(messages)
        if delay_seconds is not None and not 0 <= delay_seconds <= DELAY_SECONDS_MAX:
            raise InvalidSettings(f"a delay of {delay_seconds} seconds is not in 0 to {DELAY_SECONDS_MAX}")
        delay_ms = None if delay_seconds is None else round(delay_seconds * 1000)
        answers = await asyncio.gather(*(self._settled(NackRecords, *part, delay_ms) for part in parts))
        return all(answers) and is_own

    def ack_soon(self, message: Message) -> None:
        """Called by any thread."""
        if (self.is_gone or self._attempts or not self.is_reliable) and not self.is_own(message):
            return
        acks = self._acks.get(message.partition)
        if acks is None:
            acks = self._acks.setdefault(message.partition, deque())
        acks.append(message.offset)
        if not self._is_armed:  # asked after the append: `_send_acks` disarms first, then drains
            self._is_armed = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the connection
                self._loop.call_soon_threadsafe(self._send_acks_later)

    def give_credit(self) -> None:
        """Give back credit for what the application has taken, unless the consumer has too much of it."""
        kept = min(self.taken, self._surplus)
        self._surplus -= kept
        self._credit += self.taken - kept
        self.taken = 0
        self.session.post(self.handle, self)

    def change_credit(self, credit: int) -> None:
        """Have so much from now on. What is too much is not taken back, but given back no more."""
        self._surplus -= credit - self.credit
        self.credit, self.refill = credit, max(1, credit // 2)
        if self._surplus < 0:
            self._credit -= self._surplus
            self._surplus = 0
            self.session.post(self.handle, self)
        if self.taken >= self.refill:
            self.give_credit()

    def abandon(self) -> None:
        """End without waiting; if it is attached all the same, the node is told, after the acks."""
        self.is_gone = True
        self.session.post(self.handle, self)

    async def leave(self) -> None:
        """Make the acks durable, then detach. Nothing is raised: what was not acked comes again."""
        with contextlib.suppress(SulinaError):
            await asyncio.gather(*(self._settled(AckRecords, *part) for part in self._waiting_acks()))
            if not self.is_gone:
                await self.session.request(
                    lambda number: Detach(number, self.handle),
                    is_repeatable=False,
                    timeout_seconds=LEAVE_SECONDS,
                    is_patient=False,
                )
        self.session.detach(self.handle)
        self.is_gone = True

    def _send_acks_later(self) -> None:
        self._loop.call_later(self.session.options.ack_delay_seconds, self._send_acks)

    def _send_acks(self) -> None:
        self._is_armed = False
        self.session.post(self.handle, self)

    def _waiting_acks(self) -> Iterator[tuple[int, Ranges]]:
        for partition, offsets in list(self._acks.items()):
            # One by one: another thread may be appending.
            taken = [offsets.popleft() for _ in range(len(offsets))]
            ranges = ranges_of(taken)
            for start in range(0, len(ranges), RANGES_MAX):
                yield partition, ranges[start : start + RANGES_MAX]

    async def _settled(
        self, frame: Callable[..., AckRecords | NackRecords], partition: int, ranges: Ranges, *more: int | None
    ) -> bool:
        """Ack or nack; return whether the consumer still held all of these."""
        if self.is_gone:
            return False
        try:
            held = await self.session.request(
                lambda number: frame(number, self.handle, partition, ranges, *more),
                is_repeatable=False,
                is_patient=False,
            )
        except (ConsumerNotFound, Disconnected, PartitionNotFound, ProtocolError):
            return False
        except (MetadataFailed, NotServing) as error:
            if self._on_trouble is not None:
                self._on_trouble()
            elif isinstance(error, MetadataFailed):
                raise
            return False
        return bool(held == sum(end - start for start, end in ranges))


def ranges_of(offsets: list[int]) -> Ranges:
    """Return offsets as half-open ranges, sorted, as few as possible."""
    if not offsets:
        return []
    first, end = offsets[0], offsets[-1] + 1
    if end - first == len(offsets) and offsets == list(range(first, end)):  # as they mostly are
        return [(first, end)]
    ordered = sorted(set(offsets))
    ranges: Ranges = []
    start = end = ordered[0]
    for offset in ordered:
        if offset != end:
            ranges.append((start, end))
            start = offset
        end = offset + 1
    ranges.append((start, end))
    return ranges
