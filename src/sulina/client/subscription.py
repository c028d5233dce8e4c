"""A subscription as an application sees it: messages that come by themselves, through every reconnect and move.

- Messages are taken from a buffer in this process; only when it is empty is anything waited for.
- Credit goes back to the node as messages are taken, so that it sends no faster than they are.
- When an attachment is lost, what it delivered and was not taken yet is forgotten, because it is delivered again.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable
from itertools import groupby
from operator import attrgetter
from types import TracebackType
from typing import Self

from sulina.client.attachment import Attachment
from sulina.client.attachments import Attachments, Listener, Terms
from sulina.client.batches import BatchCodec, take_from, within
from sulina.client.brokers import Brokers
from sulina.client.message import Delivered
from sulina.client.places import Places
from sulina.errors import SulinaError
from sulina.wire.frames import Deliver

_attachment = attrgetter("attachment")


class Subscription:
    """`async with client.subscribe(…) as messages:` and `async for message in messages:`.

    Without `async with` it attaches when the first message is asked for, and stays so until `close`. Any number of
    tasks may take messages from it; each gets others.
    """

    def __init__(
        self, brokers: Brokers, places: Places, codec: BatchCodec, terms: Terms, opened: set["Subscription"]
    ) -> None:
        self.terms = terms
        self._codec = codec
        self._opened = opened  # all of the client's, as long as they are attached
        self._buffer: deque[Delivered] = deque()
        self._deliveries: deque[tuple[Attachment, Deliver]] = deque()
        self._filled = asyncio.Event()
        self._attachments = Attachments(brokers, places, terms, Listener(self._take_delivery, self._forget, self._fail))
        self._opening = asyncio.Lock()
        self._is_open = False
        self._error: SulinaError | None = None
        self._closed = asyncio.Event()

    @property
    def is_attached(self) -> bool:
        """Whether any node sends to it at this moment."""
        return bool(self._attachments.live)

    async def open(self) -> None:
        """Attach, and stay attached. The node's errors, such as SubscriptionBusy."""
        async with self._opening:
            if self._is_open or self._closed.is_set():
                return
            await self._attachments.open()
            if self._closed.is_set():  # meanwhile
                return
            self._is_open = True
            self._opened.add(self)

    async def close(self) -> None:
        """Make acks durable and detach; what was delivered and not acked goes to others. Iteration ends."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._filled.set()
        await self._attachments.close()
        self._deliveries.clear()
        self._buffer.clear()
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
        message = buffer.popleft()
        attachment = message.attachment
        attachment.taken += 1
        if attachment.taken >= attachment.refill:
            attachment.give_credit()
        return message

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
        if len(self._attachments.live) == 1:  # whose messages they all are
            counts = {messages[0].attachment: len(messages)}
        else:
            counts = Counter(map(_attachment, messages))
        for attachment, count in counts.items():
            attachment.taken += count
            if attachment.taken >= attachment.refill:
                attachment.give_credit()
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
        if len(groups) == 1:
            return all([await attachment.ack(group) for attachment, group in groups.items()])
        return all(await asyncio.gather(*(attachment.ack(group) for attachment, group in groups.items())))

    async def _fill(self) -> bool:
        """Return when the buffer may have messages; False when there will be none."""
        if not self._is_open:
            await self.open()
        while self._error is not None or not self._deliveries:
            if self._error is not None:
                raise self._error
            if self._closed.is_set():
                return False
            self._filled.clear()
            await self._filled.wait()
        try:
            self._decode(*self._deliveries.popleft())
        except SulinaError as error:
            self._attachments.abandon()  # what cannot be read here goes to others
            self._fail(error)
        return True

    def _decode(self, attachment: Attachment, frame: Deliver) -> None:
        topic, partition, attempt = self.terms.topic, frame.partition, frame.attempt
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

    # What the attachments say

    def _take_delivery(self, attachment: Attachment, frame: Deliver) -> None:
        if attachment in self._attachments.live and self._error is None:
            self._deliveries.append((attachment, frame))
            self._filled.set()

    def _forget(self, attachment: Attachment) -> None:
        """What it delivered and was not taken yet will come again."""
        if self._deliveries:
            self._deliveries = deque(each for each in self._deliveries if each[0] is not attachment)
        if self._buffer:
            kept = [message for message in self._buffer if message.attachment is not attachment]
            self._buffer.clear()
            self._buffer.extend(kept)

    def _fail(self, error: SulinaError) -> None:
        self._deliveries.clear()
        self._buffer.clear()
        self._error = error
        self._filled.set()
