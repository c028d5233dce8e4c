"""A producer: records are produced one by one, and published in batches.

- `produce` accepts or rejects a record at once; its receipt tells what became of it.
- A record that cannot be written, or that the topic rejects, is rejected alone: its batch goes on without it.
- Batches are sent in the order of their records. The user chooses what happens when one cannot be published: the batch
  fails and the next one is sent, it is retried until it is published, or the producer stops.
- `stop` says what became of the rest. After a cancellation, a close or a failure too, every receipt is settled.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from sulina.client.batching_rules import Batching, BatchingRules, OnItsWay
from sulina.client.message import HeadersLike, Record, header_pairs, key_bytes, stamp_ms
from sulina.client.numbering import Attempts
from sulina.client.publish_ack import PublishAck
from sulina.client.serialization import SerializationRegistry
from sulina.core.delivery.rejects import RejectReason
from sulina.errors import InvalidRecord, InvalidSettings, ProducerFull, ProducerStopped, SchemaConflict, SulinaError
from sulina.waiting import wait_or_timeout

RECORD_BYTES = 32  # around a key and a value


class OnFailure(StrEnum):
    """What to do when a batch cannot be published."""

    FAIL = "fail"  # its messages fail, the next batch is sent
    RETRY = "retry"  # after a while, as long as that may help; later ones wait
    STOP = "stop"  # its messages fail, and so do all that wait; nothing more is taken


class Rest(StrEnum):
    """What to do with messages that wait when a producer stops."""

    SEND = "send"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingOptions:
    """How one producer batches and retries."""

    rules: BatchingRules = field(default_factory=BatchingRules)
    publish_timeout_seconds: float | None = None  # None: the client's
    on_failure: OnFailure = OnFailure.FAIL
    retry_seconds: float = 1.0

    def __post_init__(self) -> None:
        for name in ("publish_timeout_seconds", "retry_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
                raise InvalidSettings(f"{name} is more than 0, not {seconds!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerReport:
    """What became of the messages of a producer, from its start on."""

    accepted: int
    rejected: int  # by the topic, or because they could not be written or had no room
    failed: int  # their outcome is unknown, or nobody took them
    cancelled: int
    discarded: int  # by `stop`


class Receipt:
    """For one message. Await it for its ack; rejects are acks, faults of the system raise."""

    __slots__ = ("_answer", "_leave", "record")

    def __init__(self, record: Record, leave: "Callable[[Receipt], bool]") -> None:
        self.record = record  # as it is stored, where it can be
        self._leave = leave
        self._answer: asyncio.Future[PublishAck] = asyncio.get_running_loop().create_future()

    def __await__(self) -> Generator[None, None, PublishAck]:
        return asyncio.shield(self._answer).__await__()

    @property
    def is_done(self) -> bool:
        """Whether its outcome is known."""
        return self._answer.done()

    def result(self) -> PublishAck:
        """Return the ack, once it is done.

        Raises:
            SulinaError: a fault of the system.
            CancelledError: it was cancelled.
        """
        return self._answer.result()

    async def wait(self) -> None:
        """Return when it is done, whatever its outcome is."""
        await asyncio.wait([self._answer])

    def cancel(self) -> bool:
        """Do not publish it. False: it is on its way, or its outcome is known."""
        return self._leave(self)

    def settle(self, request_outcome: PublishAck | BaseException | None) -> None:
        """Note, for the producer, what became of the record; None: it was cancelled."""
        if request_outcome is None:
            self._answer.cancel()
        elif isinstance(request_outcome, BaseException):
            self._answer.set_exception(request_outcome)
            self._answer.exception()  # seen: the report counts it, also if nobody awaits it
        else:
            self._answer.set_result(request_outcome)


class PublishesEach(Protocol):
    """How a producer gets a batch to a topic; what became of each message. A batch sent again has the same attempts."""

    def __call__(
        self, topic: str, records: Sequence[object], *, attempts: Attempts, timeout_seconds: float | None
    ) -> Awaitable[list[PublishAck | SulinaError]]: ...


class Producer:
    """`async with client.producer(topic) as producer:`. It belongs to the event loop that it was made in."""

    def __init__(
        self, publish: PublishesEach, topic: str, options: BatchingOptions, registry: SerializationRegistry
    ) -> None:
        self.topic = topic
        self.options = options
        self._publish = publish
        self._registry = registry
        # While one is tried again, no other may pass it.
        rules = replace(options.rules, in_flight_max=1) if options.on_failure == OnFailure.RETRY else options.rules
        self._batching: Batching[Receipt] = Batching(rules)
        self._under_way: set[asyncio.Task[None]] = set()
        self._unsettled: set[Receipt] = set()
        self._wake = asyncio.Event()  # for who sends
        self._room = asyncio.Event()  # for who waits for some
        self._giving_up = asyncio.Event()  # nothing is tried again
        self._task: asyncio.Task[None] | None = None
        self._stopped_by: str | None = None
        self._has_failed = False  # and stopped for that
        self._counts = dict.fromkeys(("accepted", "rejected", "failed", "cancelled", "discarded"), 0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(Rest.SEND if error is None else Rest.DISCARD)

    @property
    def waiting(self) -> int:
        """Messages that are not on their way yet."""
        return self._batching.waiting

    @property
    def is_stopped(self) -> bool:
        """Whether it takes no more."""
        return self._stopped_by is not None

    def report(self) -> ProducerReport:
        """Return what became of all records so far."""
        return ProducerReport(**self._counts)

    def produce(
        self,
        value: object,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp_ms: int | None = None,
    ) -> Receipt:
        """Take a message, or a value, to be published with others. ProducerStopped.

        The receipt of one that cannot be written, or for which there is no room, says so at once.
        """
        self._check_running()
        given = value if isinstance(value, Record) else Record(value, key, headers, timestamp_ms)
        receipt = Receipt(given, self._cancel)
        now = self._now()
        try:
            receipt.record = self._stored(given)
            if not self._batching.add(receipt, _size(receipt.record), now):
                raise self._full()
        except SulinaError as error:
            self._settle(receipt, PublishAck.rejected(error, self.topic))
            return receipt
        self._unsettled.add(receipt)
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name=f"batching-producer-{self.topic}")
        due_at = self._batching.due_at()
        if self._batching.waiting == 1 or (due_at is not None and due_at <= now):
            self._wake.set()
        return receipt

    async def wait_room(self) -> None:
        """Return when there is room for a message. ProducerStopped."""
        rules = self._batching.rules
        while (
            self._batching.records >= rules.queue_records_max or self._batching.size_bytes >= rules.queue_bytes_max
        ) and not self.is_stopped:
            self._room.clear()
            await self._room.wait()
        self._check_running()

    async def flush(self) -> None:
        """Send what waits now; return when the outcome of everything that was produced before is known."""
        self._batching.hurry()
        self._wake.set()
        for receipt in list(self._unsettled):
            await receipt.wait()

    async def stop(self, rest: Rest = Rest.SEND) -> ProducerReport:
        """Take no more; send what waits, or discard it. Return when the outcome of all of it is known.

        What is on its way is waited for; where it fails, and the rest is to be discarded, it is not tried again.
        """
        self._stopped_by = self._stopped_by or "it was told to"
        self._room.set()
        if rest == Rest.DISCARD:
            self._giving_up.set()
            self._drop()
        try:
            await self.flush()
        finally:
            tasks = [task for task in (self._task, *self._under_way) if task is not None]
            for task in tasks:
                task.cancel()
            self._drop()  # nothing, unless this was cut short
            if tasks:
                await asyncio.wait(tasks)
        return self.report()

    def _stored(self, record: Record) -> Record:
        value, headers = self._registry.write(record.value, header_pairs(record.headers))
        stamp = stamp_ms(record.timestamp_ms, int(time.time() * 1000))
        return Record(value, key_bytes(record.key), headers, stamp)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _check_running(self) -> None:
        if self._stopped_by is not None:
            raise ProducerStopped(topic=self.topic, reason=self._stopped_by)

    def _full(self) -> ProducerFull:
        rules = self._batching.rules
        return ProducerFull(
            waiting=self._batching.records,
            limit=rules.queue_records_max,
            waiting_bytes=self._batching.size_bytes,
            limit_bytes=rules.queue_bytes_max,
        )

    # Sending

    async def _work(self) -> None:
        while True:
            while batch := self._batching.take(self._now()):
                task = asyncio.create_task(self._send_all(batch.messages), name=f"batch-of-{self.topic}")
                self._under_way.add(task)
                task.add_done_callback(partial(self._landed, batch))
            due_at = self._batching.due_at()
            self._wake.clear()
            await wait_or_timeout(self._wake, None if due_at is None else max(0.0, due_at - self._now()))

    def _landed(self, batch: OnItsWay[Receipt], task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._batching.arrived(batch)
        error: BaseException | None = None
        if task.cancelled():
            error = ProducerStopped(topic=self.topic, reason="it was stopped while they were on their way")
        else:
            error = task.exception()
        for receipt in batch.messages:  # none, unless it was cut short
            if error is not None:
                self._settle(receipt, error)
        self._wake.set()
        self._room.set()

    async def _send_all(self, receipts: list[Receipt]) -> None:
        """Publish these, and settle each of them."""
        groups = [receipts]
        while groups:
            groups[:0] = await self._send(groups.pop(0))

    async def _send(self, receipts: list[Receipt]) -> list[list[Receipt]]:
        """Publish these together; those of them that are to be sent once more, apart."""
        attempts = Attempts()
        apart: list[list[Receipt]] = []
        while receipts and not self._has_failed:
            records = [receipt.record for receipt in receipts]
            seconds = self.options.publish_timeout_seconds
            answers = await self._publish(self.topic, records, attempts=attempts, timeout_seconds=seconds)
            told = dict(zip(receipts, answers, strict=True))
            # Those of one partition fail together or not: what comes again under its number is the same.
            again = {receipt: answer for receipt, answer in told.items() if self._may_pass(answer)}
            apart += self._take_in({receipt: answer for receipt, answer in told.items() if receipt not in again})
            receipts = list(again)
            if receipts and await self._pause():
                return apart + self._take_in(again)
        for receipt in receipts:
            self._settle(receipt, ProducerStopped(topic=self.topic, reason=self._stopped_by or ""))
        return apart

    def _may_pass(self, answer: PublishAck | SulinaError) -> bool:
        """Return whether a record is to be sent again as it is."""
        if self.options.on_failure != OnFailure.RETRY or self._giving_up.is_set():
            return False
        return answer.retryable if isinstance(answer, SulinaError) else answer.reason == RejectReason.QUEUE_FULL

    async def _pause(self) -> bool:
        """Wait before something is sent again; True: it is not to be."""
        return await wait_or_timeout(self._giving_up, self.options.retry_seconds)

    def _take_in(self, told: dict[Receipt, PublishAck | SulinaError]) -> list[list[Receipt]]:
        """Settle these, but for those that were refused together: they are to be sent apart."""
        together: dict[int, list[Receipt]] = {}  # those of one partition were told the same
        for receipt, answer in told.items():
            if isinstance(answer, PublishAck) and answer.reason == RejectReason.INVALID_PAYLOAD:
                together.setdefault(id(answer), []).append(receipt)
                continue
            self._settle(receipt, answer)
            if self.options.on_failure == OnFailure.STOP and _is_fault(answer) and not self._has_failed:
                self._has_failed = True
                reason = answer.message if isinstance(answer, PublishAck) else str(answer)
                self._stopped_by = f"a batch could not be published: {reason}"
                self._drop()
        return [group for refused in together.values() for group in self._apart(refused, told[refused[0]])]

    def _apart(self, refused: list[Receipt], answer: PublishAck | SulinaError) -> list[list[Receipt]]:
        """Split records that were refused together: one of them is bad, and the others can be published."""
        assert isinstance(answer, PublishAck)
        if len(refused) == 1 or isinstance(answer.error, SchemaConflict):  # which all of them have
            for receipt in refused:
                self._settle(receipt, answer)
            return []
        if isinstance(answer.error, InvalidRecord):
            self._settle(refused.pop(answer.error.index), answer)
            return [refused]
        half = len(refused) // 2
        return [refused[:half], refused[half:]]

    # Outcomes

    def _cancel(self, receipt: Receipt) -> bool:
        if not self._batching.remove(receipt):
            return False
        self._settle(receipt, None)
        self._room.set()
        return True

    def _drop(self) -> None:
        """Discard what waits."""
        for receipt in self._batching.clear():
            if self._has_failed:
                self._settle(receipt, ProducerStopped(topic=self.topic, reason=self._stopped_by or ""))
            else:
                reason = "what was waiting was discarded"
                self._settle(receipt, ProducerStopped(topic=self.topic, reason=reason), "discarded")
        self._room.set()

    def _settle(
        self, receipt: Receipt, request_outcome: PublishAck | BaseException | None, kind: str = "failed"
    ) -> None:
        if receipt.is_done:
            return
        if request_outcome is None:
            kind = "cancelled"
        elif isinstance(request_outcome, PublishAck):
            kind = "accepted" if request_outcome.is_accepted else "rejected"
        self._counts[kind] += 1
        self._unsettled.discard(receipt)
        receipt.settle(request_outcome)


def _is_fault(answer: PublishAck | SulinaError) -> bool:
    """Return whether the system is at fault, not the record."""
    return isinstance(answer, SulinaError) or answer.reason == RejectReason.QUEUE_FULL


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in header_pairs(record.headers))
    return RECORD_BYTES + len(record.value or b"") + len(record.key or b"") + headers
