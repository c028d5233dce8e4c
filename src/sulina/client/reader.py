"""Reading a topic from anywhere, without a subscription: the partitions as they come, each in its order.

Each partition has one fetch under way while what came before is being taken. It goes to the owner of the partition, and
when that is another, on at the same offset. Nothing else runs: a reader that is dropped leaves fetches that end by
themselves.

A reader knows the epoch of the log that it has read, and says it with every fetch. When the owner answers that
something of it was given up (PositionDiverged), the reader notes that in `divergences`, logs a warning, and goes on
where the log does: no record is passed over because another one had its offset before.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec

from sulina.client.batches import BatchCodec, take_from
from sulina.client.message import Message
from sulina.client.route import Route, Routes
from sulina.client.serialization import SerializationRegistry
from sulina.core.log.log_state import NO_EPOCH
from sulina.errors import ArchiveFailed, Disconnected, InvalidSettings, NotServing, PositionDiverged, QueueFull
from sulina.types import TopicName
from sulina.wire.frames import Fetch
from sulina.wire.messages import Fetched

WAIT_MS = 10_000
WAIT_OF_MANY_MS = 500
BUFFER_BYTES_MAX = 32 << 20  # of all partitions together
FETCH_BYTES_MIN = 64 << 10
DIVERGENCES_KEPT_MAX = 100
END_OF_TIME = 2**63 - 1

_logger = logging.getLogger("sulina.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """What is to be read of one partition."""

    partition: int
    start: int
    end: int | None  # None: on and on, or up to the end of a version
    epoch: int | None = None  # in which everything before `start` was read; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is to be read, and how."""

    topic: TopicName
    version: int | None = None
    max_bytes: int = 1 << 20


@dataclass(slots=True)
class _ReaderPosition:
    """Where the reader is in one partition."""

    partition: int
    offset: int
    end: int | None
    route: Route
    epoch: int | None  # of the log that was read so far; None: nothing was


class Reader:
    """`async for record in client.read(…)`; `async with` it to begin before the first record is asked for."""

    def __init__(
        self,
        routes: Routes,
        codec: BatchCodec,
        registry: SerializationRegistry,
        reading: Reading,
        locate: Callable[[], Awaitable[Sequence[ReadRange]]],
        background: Callable[[Awaitable[Fetched], str], "asyncio.Task[Fetched]"],
    ) -> None:
        self._routes = routes
        self._topic = str(reading.topic)
        self._codec = codec
        self._registry = registry
        self._reading = reading
        self._locate = locate
        self._background = background
        self._buffer: deque[Message] = deque()
        self._fetches: dict[asyncio.Task[Fetched], _ReaderPosition] = {}
        self._opening = asyncio.Lock()
        self._is_open = False
        self._is_closed = False
        self._wait_ms = self._fetch_bytes = 0
        self.divergences: deque[PositionDiverged] = deque(maxlen=DIVERGENCES_KEPT_MAX)  # the newest last

    async def open(self) -> None:
        """Look up where to begin.

        Raises:
            TopicNotFound: there is no such topic.
            NotReliable: the topic stores no records.
            VersionNotRetained: the version is gone.
            InvalidSettings: there is no partition to read.
        """
        async with self._opening:
            if self._is_open:
                return
            ranges = await self._locate()
            if self._is_closed:
                return
            if not ranges:
                raise InvalidSettings("there is no partition to read")
            many = len(ranges) > self._routes.brokers.options.fetches_in_flight_max // 2
            self._wait_ms = WAIT_OF_MANY_MS if many else WAIT_MS
            self._fetch_bytes = max(FETCH_BYTES_MIN, min(self._reading.max_bytes, BUFFER_BYTES_MAX // len(ranges)))
            self._is_open = True
            for each in ranges:
                route = self._routes.route(self._reading.topic, each.partition, self._wait_ms / 1000)
                self._fetch(_ReaderPosition(each.partition, each.start, each.end, route, each.epoch))

    async def close(self) -> None:
        """Read no more. Iteration ends."""
        self._is_open = self._is_closed = True
        for fetch in self._fetches:
            fetch.cancel()
        if self._fetches:
            await asyncio.wait(self._fetches)
        self._fetches.clear()
        self._buffer.clear()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        buffer = self._buffer
        while not buffer:
            if not await self._fill():
                raise StopAsyncIteration
        return buffer.popleft()

    async def take(self, records_max: int | None = None) -> list[Message]:
        """Return the messages that are here, at least one; none only at the end."""
        buffer = self._buffer
        while not buffer:
            if not await self._fill():
                return []
        return take_from(buffer, records_max)

    async def batches(self, records_max: int | None = None) -> AsyncIterator[list[Message]]:
        """Iterate over messages in lists, as they come: the fastest way to read many."""
        while records := await self.take(records_max):
            yield records

    async def _fill(self) -> bool:
        """Return when the buffer may have records; False at the end."""
        if not self._is_open:
            await self.open()
        if not self._fetches:
            return False
        done, _ = await asyncio.wait(self._fetches, return_when=asyncio.FIRST_COMPLETED)
        if self._is_closed:
            return False
        if self._routes.brokers.is_closed:  # the fetches were cancelled
            raise self._routes.brokers.home.disconnected()
        for fetch in done:
            # Another task that reads from here may have been quicker.
            place = self._fetches.pop(fetch, None)
            if place is not None:
                self._take(place, fetch.result())
        return True

    def _take(self, place: _ReaderPosition, fetched: Fetched) -> None:
        end = END_OF_TIME if place.end is None else place.end
        self._buffer += self._codec.messages(
            fetched.data,
            [(place.offset, end)],
            topic=self._topic,
            partition=place.partition,
            registry=self._registry,
        )
        if self._reading.version is not None:
            end = place.end = fetched.end_offset
        elif place.end is not None:
            end = place.end = min(end, fetched.end_offset)  # what lay beyond may have been given up
        place.offset, place.epoch = fetched.next_offset, fetched.epoch
        if place.offset < end:
            self._fetch(place)

    def _fetch(self, place: _ReaderPosition) -> None:
        if place.end is not None and place.offset >= place.end:
            return
        fetch = self._background(self._fetched(place), "sulina-fetch")
        self._fetches[fetch] = place

    async def _fetched(self, place: _ReaderPosition) -> Fetched:
        reading, topic, partition = self._reading, self._topic, place.partition
        is_endless = place.end is None and reading.version is None
        # The first answer comes at once: who waits must be able to say in which epoch it began to.
        wait_ms = self._wait_ms if is_endless and place.epoch is not None else 0
        brokers = self._routes.brokers
        while True:
            try:
                answer = await self._routes.read(
                    place.route,
                    lambda number: Fetch(
                        number,
                        topic,
                        partition,
                        place.offset,
                        self._fetch_bytes,
                        reading.version,
                        wait_ms=wait_ms,
                        epoch=place.epoch if place.epoch != NO_EPOCH else None,
                    ),
                    timeout_seconds=brokers.options.timeout_seconds + wait_ms / 1000,
                    room=brokers.rooms.fetches,
                )
            except PositionDiverged as diverged:
                self._diverged(place, diverged)
            except (ArchiveFailed, Disconnected, NotServing, QueueFull):
                if not is_endless or brokers.is_closed:
                    raise
            else:
                return answer if isinstance(answer, Fetched) else msgspec.convert(answer, Fetched)

    def _diverged(self, place: _ReaderPosition, diverged: PositionDiverged) -> None:
        """Go on where the log does. The epoch stays: the log has no record of it, or of an older one, from there on."""
        _logger.warning("%s", diverged)
        self.divergences.append(diverged)
        place.offset = diverged.continues_at
