"""A subscription as an application sees it: messages that come by themselves, through every reconnect.

- Messages are taken from a buffer in this process; only when it is empty is anything waited for.
- Credit goes back to the node as messages are taken, so that it sends no faster than they are.
- When the attachment is lost, what was not taken yet is forgotten, because the node delivers it again.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from types import TracebackType
from typing import Self

import msgspec

from sulina.client.attachment import Attachment
from sulina.client.backoff import Backoff
from sulina.client.batches import BatchCodec, take_from, within
from sulina.client.checks import checked_text
from sulina.client.message import Delivered
from sulina.client.session import Session
from sulina.core.members import SubscriptionKind
from sulina.errors import (
    Conflict,
    ConsumerNotFound,
    Corrupt,
    Disconnected,
    InvalidInput,
    InvalidSettings,
    LimitReached,
    LogStopped,
    NotFound,
    SubscriptionBusy,
    SulinaError,
)
from sulina.wire.frames import Deliver, FromClient, Subscribe
from sulina.wire.messages import Subscribed

CREDIT_MAX = 1_000_000

_attachment = attrgetter("attachment")

# Trying again would not help, or would make anew what somebody has deleted.
_FINAL = (Conflict, Corrupt, InvalidInput, LimitReached, LogStopped, NotFound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is subscribed to, and how. The same terms hold after every reconnect."""

    topic: str
    subscription: str
    kind: SubscriptionKind
    start: str
    credit: int
    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.credit, int) or not 1 <= self.credit <= CREDIT_MAX:
            raise InvalidSettings(f"credit {self.credit} is not in 1 to {CREDIT_MAX}")
        checked_text("subscription", self.subscription)
        checked_text("name", self.name)


class Subscription:
    """`async with client.subscribe(…) as messages:` and `async for message in messages:`.

    Without `async with` it attaches when the first message is asked for, and stays so until `close`. Any number of
    tasks may take messages from it; each gets others.
    """

    def __init__(self, session: Session, codec: BatchCodec, terms: Terms, opened: set["Subscription"]) -> None:
        self.terms = terms
        self._session = session
        self._codec = codec
        self._opened = opened  # all of the client's, as long as they are attached
        self._buffer: deque[Delivered] = deque()
        self._deliveries: deque[Deliver] = deque()
        self._filled = asyncio.Event()
        self._taken = 0  # whose credit has not been given back
        self._refill = max(1, terms.credit // 2)
        self._attachment: Attachment | None = None
        self._attaching: asyncio.Task[None] | None = None  # for the first time
        self._keeper: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._error: SulinaError | None = None
        self._closed = asyncio.Event()

    async def open(self) -> None:
        """Attach, and stay attached. The node's errors, such as SubscriptionBusy."""
        async with self._opening:
            if self._keeper is not None or self._closed.is_set():
                return
            self._attaching = asyncio.create_task(self._attach_first(), name="sulina-subscribe")
            try:
                await asyncio.wait([self._attaching])
            finally:
                self._attaching.cancel()
            if self._closed.is_set():  # meanwhile
                return
            self._attaching.result()
            self._opened.add(self)
            self._keeper = asyncio.create_task(self._keep_attached(), name="sulina-subscription")

    async def close(self) -> None:
        """Make acks durable and detach; what was delivered and not acked goes to others. Iteration ends."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._filled.set()
        for task in (self._attaching, self._keeper):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._attachment is not None:
            await self._attachment.leave()
        self._forget()
        self._opened.discard(self)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivered:
        buffer = self._buffer
        while not buffer:
            if not await self._fill():
                raise StopAsyncIteration
        self._taken += 1
        if self._taken >= self._refill:
            self._give_credit()
        return buffer.popleft()

    async def get(self, timeout_seconds: float | None = None) -> Delivered | None:
        """The next message; None when there is none for so long, or the subscription was closed."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await anext(self, None)
        except TimeoutError:
            return None

    async def take(self, records_max: int | None = None) -> list[Delivered]:
        """What is here, at least one message; none only when the subscription was closed."""
        buffer = self._buffer
        while not buffer:
            if not await self._fill():
                return []
        messages = take_from(buffer, records_max)
        self._taken += len(messages)
        if self._taken >= self._refill:
            self._give_credit()
        return messages

    async def batches(self, records_max: int | None = None) -> AsyncIterator[list[Delivered]]:
        """Messages in lists, as they come: the quickest way to take many."""
        while messages := await self.take(records_max):
            yield messages

    async def ack(self, messages: Iterable[Delivered]) -> bool:
        """Return when the cursors are durable; False when any of the deliveries had been taken back."""
        groups: dict[Attachment, list[Delivered]] = {}
        for attachment, some in groupby(messages, key=_attachment):
            groups.setdefault(attachment, []).extend(some)
        answers = [await attachment.ack(group) for attachment, group in groups.items()]  # all but one of them are gone
        return all(answers)

    async def _fill(self) -> bool:
        """Return when the buffer may have messages; False when there will be none."""
        if self._keeper is None:
            await self.open()
        while self._error is not None or not self._deliveries:
            if self._error is not None:
                raise self._error
            if self._closed.is_set():
                return False
            self._filled.clear()
            await self._filled.wait()
        try:
            self._decode(self._deliveries.popleft())
        except SulinaError as error:
            self._fail(error)
            if self._keeper is not None and self._attachment is not None:
                self._keeper.cancel()
                self._attachment.abandon()  # what cannot be read here goes to others
        return True

    def _decode(self, frame: Deliver) -> None:
        attachment, topic = self._attachment, self.terms.topic
        assert attachment is not None
        partition, attempt = frame.partition, frame.attempt
        records = self._codec.decode(frame.data)
        for start, end in frame.ranges:
            self._buffer.extend(
                [
                    Delivered(
                        record.value, record.key, record.timestamp_ms, record.headers, record.offset,
                        partition, topic, attempt, attachment,
                    )
                    for record in within(records, start, end)
                ]
            )  # fmt: skip

    def _give_credit(self) -> None:
        if self._attachment is not None:
            self._attachment.give_credit(self._taken)
        self._taken = 0

    # The attachment

    def _take_delivery(self, attachment: Attachment, frame: Deliver) -> None:
        if attachment is self._attachment and self._error is None:
            self._deliveries.append(frame)
            self._filled.set()

    async def _attach_first(self) -> None:
        time = asyncio.get_running_loop().time
        deadline = time() + self._session.options.timeout_seconds
        while True:
            try:
                return await self._attach(deadline - time())
            except Disconnected:
                if self._session.is_closed or time() >= deadline:
                    raise

    async def _attach(self, timeout_seconds: float) -> None:
        terms = self.terms
        attachment = Attachment(self._session, self._take_delivery)

        def make(number: int) -> FromClient:
            # Only now is it known over which connection it goes.
            self._session.attach(attachment.handle, attachment)
            self._attachment = attachment
            return Subscribe(
                number, attachment.handle, terms.topic, terms.subscription,
                terms.kind, terms.start, terms.credit, terms.name,
            )  # fmt: skip

        self._forget()
        try:
            answer = await self._session.request(make, is_repeatable=False, timeout_seconds=timeout_seconds)
        except (Disconnected, asyncio.CancelledError):
            attachment.abandon()  # it may be attached nevertheless
            raise
        except SulinaError as error:
            attachment.lose(error)
            raise
        if answer is not None:
            attachment.is_reliable = msgspec.convert(answer, Subscribed, from_attributes=True).is_reliable

    async def _keep_attached(self) -> None:
        backoff = self._session.backoff()
        while True:
            assert self._attachment is not None
            error = await self._attachment.gone
            if self._attachment.has_delivered:
                backoff.reset()
            self._forget()
            if is_final(error):
                self._fail(error)
                return
            try:
                await self._reattach(backoff)
            except SulinaError as refused:
                self._fail(refused)
                return

    async def _reattach(self, backoff: Backoff) -> None:
        """Until it succeeds, or the node says that it never will."""
        time = asyncio.get_running_loop().time
        busy_until: float | None = None
        while True:
            await asyncio.sleep(backoff.next())
            try:
                return await self._attach(self._session.options.timeout_seconds)
            except SubscriptionBusy:
                # It may be ourselves: the node has not noticed yet that the old connection is gone.
                busy_until = busy_until or time() + self._session.options.timeout_seconds
                if time() >= busy_until:
                    raise
            except SulinaError as error:
                if is_final(error) or self._session.is_closed:
                    raise

    def _fail(self, error: SulinaError) -> None:
        self._forget()
        self._error = error
        self._filled.set()

    def _forget(self) -> None:
        """What has not been taken yet will come again."""
        self._deliveries.clear()
        self._buffer.clear()
        self._taken = 0


def is_final(error: SulinaError) -> bool:
    """Whether an attachment that ended so is not to be made again."""
    return isinstance(error, _FINAL) and not isinstance(error, ConsumerNotFound) and not error.retryable
