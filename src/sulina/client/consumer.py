"""A consumer of a durable subscription: messages come by themselves, through every reconnect and move.

- Messages are taken from a buffer in this process; a consumer waits only when it is empty.
- Credit goes back to the node as messages are taken, so that the node sends no faster than that.
- When an attachment is lost, what it delivered and was not taken yet is dropped, because it is delivered again.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from operator import attrgetter
from types import TracebackType
from typing import Self

from sulina.client.batches import BatchCodec, take_from
from sulina.client.brokers import Brokers
from sulina.client.consumer_attachment import SessionAttachment
from sulina.client.consumer_attachments import AttachmentListener, ConsumerAttachments, ConsumerTerms
from sulina.client.message import Message
from sulina.client.placements import TopicPlacements
from sulina.client.serialization import SerializationRegistry
from sulina.errors import SulinaError
from sulina.wire.frames import Deliver

_delivery_id = attrgetter("delivery_id")


class Consumer:
    """`async with client.consumer(…) as messages:` and `async for message in messages:`.

    Without `async with` it attaches when the first message is asked for, and stays so until `close`. Any number of
    tasks may take messages from it; each gets others.
    """

    def __init__(
        self,
        brokers: Brokers,
        placements: TopicPlacements,
        codec: BatchCodec,
        registry: SerializationRegistry,
        terms: ConsumerTerms,
        opened: set["Consumer"],
    ) -> None:
        self.terms = terms
        self._codec = codec
        self._opened = opened  # all of the client's, as long as they are attached
        self._registry = registry
        self._buffer: deque[Message] = deque()
        self._by_id: dict[int, SessionAttachment] = {}  # attachments that have delivered and are not lost
        self._deliveries: deque[tuple[SessionAttachment, Deliver]] = deque()
        self._filled = asyncio.Event()
        self._attachments = ConsumerAttachments(
            brokers, placements, terms, AttachmentListener(self._take_delivery, self._forget, self._fail)
        )
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

    async def __anext__(self) -> Message:
        buffer = self._buffer
        while not buffer:
            if not await self._fill():
                raise StopAsyncIteration
        message = buffer.popleft()
        self._taken(message.delivery_id, 1)
        return message

    async def get(self, timeout_seconds: float | None = None) -> Message | None:
        """Return the next message; None: there was none for `timeout_seconds`, or the consumer was closed."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await anext(self, None)
        except TimeoutError:
            return None

    async def take(self, records_max: int | None = None) -> list[Message]:
        """Return the messages that are here, at least one; none only when the consumer was closed."""
        buffer = self._buffer
        while not buffer:
            if not await self._fill():
                return []
        messages = take_from(buffer, records_max)
        if len(self._attachments.live) == 1:  # all of them came by it
            self._taken(messages[0].delivery_id, len(messages))
        else:
            for delivery_id, count in Counter(map(_delivery_id, messages)).items():
                self._taken(delivery_id, count)
        return messages

    async def batches(self, records_max: int | None = None) -> AsyncIterator[list[Message]]:
        """Iterate over messages in lists, as they come: the fastest way to read many."""
        while messages := await self.take(records_max):
            yield messages

    def _taken(self, delivery_id: int, count: int) -> None:
        attachment = self._by_id.get(delivery_id)
        if attachment is not None:
            attachment.taken += count
            if attachment.taken >= attachment.refill:
                attachment.give_credit()

    # Acks

    async def ack(self, *messages: Message) -> bool:
        """Return when the cursors are durable: these messages are done.

        False: a delivery had expired, was acked before or is not this consumer's. Where it was not acked, it will be
        delivered again.
        """
        groups = self._by_attachment(messages)
        if len(groups) == 1:
            [(attachment, group)] = groups
            return attachment is not None and await attachment.ack(group)
        acked = await asyncio.gather(*(known.ack(group) for known, group in groups if known is not None))
        return all(acked) and len(acked) == len(groups)

    def ack_soon(self, message: Message) -> None:
        """Ack without waiting: many become one request. An ack that is lost means another delivery."""
        attachment = self._by_id.get(message.delivery_id)
        if attachment is not None:
            attachment.ack_soon(message)

    async def nack(self, *messages: Message, delay_seconds: float | None = None) -> bool:
        """Have messages delivered again, after `delay_seconds` or else the topic's own delay. False as with `ack`.

        Raises:
            InvalidSettings: the delay is negative, or longer than a day.
        """
        groups = self._by_attachment(messages)
        nacks = (known.nack(group, delay_seconds) for known, group in groups if known is not None)
        nacked = await asyncio.gather(*nacks)
        return all(nacked) and len(nacked) == len(groups)

    def is_own(self, message: Message) -> bool:
        """Return whether a message is still this consumer's to handle, as far as is known here."""
        attachment = self._by_id.get(message.delivery_id)
        return attachment is not None and (not attachment.is_reliable or attachment.is_own(message))

    def _by_attachment(self, messages: Sequence[Message]) -> list[tuple[SessionAttachment | None, list[Message]]]:
        groups: dict[int, list[Message]] = {}
        for delivery_id, some in groupby(messages, key=_delivery_id):
            groups.setdefault(delivery_id, []).extend(some)
        return [(self._by_id.get(delivery_id), group) for delivery_id, group in groups.items()]

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
        attachment, frame = self._deliveries.popleft()
        try:
            self._buffer += self._codec.messages(
                frame.data,
                frame.ranges,
                topic=self.terms.topic,
                partition=frame.partition,
                registry=self._registry,
                attempt=frame.attempt,
                delivery_id=attachment.delivery_id,
            )
        except SulinaError as error:
            self._attachments.abandon()  # what cannot be read here goes to others
            self._fail(error)
        return True

    # What the attachments say

    def _take_delivery(self, attachment: SessionAttachment, frame: Deliver) -> None:
        if attachment in self._attachments.live and self._error is None:
            self._by_id[attachment.delivery_id] = attachment
            self._deliveries.append((attachment, frame))
            self._filled.set()

    def _forget(self, attachment: SessionAttachment) -> None:
        """Drop what an attachment delivered and was not taken yet: it will come again."""
        self._by_id.pop(attachment.delivery_id, None)
        if self._deliveries:
            self._deliveries = deque(each for each in self._deliveries if each[0] is not attachment)
        if self._buffer:
            kept = [message for message in self._buffer if message.delivery_id != attachment.delivery_id]
            self._buffer.clear()
            self._buffer.extend(kept)

    def _fail(self, error: SulinaError) -> None:
        self._deliveries.clear()
        self._buffer.clear()
        self._error = error
        self._filled.set()
