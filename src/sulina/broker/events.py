"""Events of a node, for all that listen. A listener that is too slow misses events, and gets their number."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import structlog

from sulina.core.delivery.pubsub import PubSubEventType
from sulina.errors import LimitReached
from sulina.ports import Clock

QUEUE_EVENTS_MAX = 1000
LISTENERS_MAX = 100

_logger = structlog.get_logger("sulina.events")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened."""

    at: float  # seconds since 1970
    type: str
    topic: str | None = None
    fields: dict[str, Any] = {}


class EventStream:
    """Passes events to the current listeners; all events but those about single batches are logged."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listeners: set[EventListener] = set()
        self.snapshots_asked = 0  # number of listeners so far that asked for metrics_snapshot

    def emit(self, type_: str, topic: object = None, **fields: Any) -> None:
        """Log an event, and pass it to all listeners."""
        name = None if topic is None else str(topic)
        _logger.info(type_, **(fields if name is None else {"topic": name, **fields}))
        self.emit_unlogged(type_, name, **fields)

    @property
    def listeners(self) -> int:
        """Number of listeners."""
        return len(self._listeners)

    def emit_unlogged(self, type_: str, name: str | None, **fields: Any) -> None:
        """Pass an event to all listeners without logging it: it may happen with every batch."""
        if self._listeners:
            event = Event(at=self._clock.now(), type=type_, topic=name, fields=fields)
            for listener in self._listeners:
                if not listener.types or type_ in listener.types:
                    listener.put(event)

    @contextmanager
    def listen(self, types: Collection[str] = ()) -> Iterator["EventListener"]:
        """Listen to events from now on: to all, or to those of these types. `events_missed` is always included.

        Raises:
            LimitReached: there are `LISTENERS_MAX` listeners.
        """
        if len(self._listeners) >= LISTENERS_MAX:
            raise LimitReached(kind="listeners to events", limit=LISTENERS_MAX)
        listener = EventListener(self._clock, frozenset(types))
        self._listeners.add(listener)
        self.snapshots_asked += PubSubEventType.METRICS_SNAPSHOT in listener.types
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def close(self) -> None:
        """End the iteration of all listeners."""
        for listener in self._listeners:
            listener.close()


class EventListener:
    """A bounded queue of events, which counts those that do not fit."""

    def __init__(self, clock: Clock, types: frozenset[str]) -> None:
        self.types = types  # empty: all
        self._clock = clock
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue(maxsize=QUEUE_EVENTS_MAX)
        self._missed = 0
        self._is_closed = False

    def put(self, event: Event) -> None:
        """Add an event, or count it as missed."""
        if self._queue.full():
            self._missed += 1
        else:
            self._queue.put_nowait(event)

    def take_nowait(self) -> list[Event]:
        """Return the events that wait, without those that were missed."""
        waiting = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        return [event for event in waiting if event is not None]

    def close(self) -> None:
        """End the iteration after the events that wait."""
        self._is_closed = True
        if not self._queue.full():
            self._queue.put_nowait(None)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._missed and self._queue.empty():
            missed, self._missed = self._missed, 0
            return Event(at=self._clock.now(), type="events_missed", fields={"count": missed})
        if self._is_closed and self._queue.empty():
            raise StopAsyncIteration
        event = await self._queue.get()
        if event is None:
            raise StopAsyncIteration
        return event
