"""What happens on the node, as server-sent events: one JSON object each. Comments in between keep the line alive, and
show when nobody is there any more.

A listener may ask for some types, and for one topic. That it missed events it is told whatever it asked for.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from sulina.listeners.http_exchange import Exchange
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_openapi_paths import EVENT_TYPE_LENGTH_MAX, EVENT_TYPES_MAX
from sulina.listeners.http_parameters import Reader, read_query, text_up_to, texts_up_to
from sulina.types import TopicName

if TYPE_CHECKING:
    from sulina.broker.broker import Broker
    from sulina.broker.events import Event

EVENT_STREAM = b"text/event-stream; charset=utf-8"
_encoder = msgspec.json.Encoder(enc_hook=str)
_HEARTBEAT = b": still here\n\n"
_MISSED = "events_missed"

EVENTS_QUERY: dict[str, Reader] = {
    "types": texts_up_to(EVENT_TYPES_MAX, EVENT_TYPE_LENGTH_MAX),
    "topic": text_up_to(500),
}


class EventFeed:
    """Answers GET /v1/events."""

    def __init__(self, broker: "Broker", limits: HttpLimits) -> None:
        self._broker, self._limits = broker, limits
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """All streams end."""
        self._stopped.set()

    async def get_events(self, exchange: Exchange) -> None:
        """GET /v1/events"""
        is_wanted = _chosen(**read_query(exchange.scope["query_string"], EVENTS_QUERY))
        with self._broker.events.listen() as events:
            await exchange.start_stream(EVENT_STREAM, [(b"cache-control", b"no-store")])
            if exchange.scope["method"] == "HEAD":
                await exchange.stream(b"", is_last=True)
                return
            await exchange.stream(_HEARTBEAT)
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send(events, is_wanted, exchange), name="events-send")
                endings = {
                    tasks.create_task(exchange.wait_gone(), name="events-gone"),
                    tasks.create_task(self._stopped.wait(), name="events-stop"),
                }
                await asyncio.wait({sending, *endings}, return_when=asyncio.FIRST_COMPLETED)
                for task in (sending, *endings):
                    task.cancel()
            await exchange.stream(b"", is_last=True)

    async def _send(
        self, events: "AsyncIterator[Event]", is_wanted: "Callable[[Event], bool]", exchange: Exchange
    ) -> None:
        """Until there are no more events."""
        following: asyncio.Future[Event] = asyncio.ensure_future(anext(events))
        now = asyncio.get_running_loop().time
        heartbeat_at = now() + self._limits.heartbeat_seconds
        try:
            while True:
                done, _ = await asyncio.wait({following}, timeout=max(0.0, heartbeat_at - now()))
                part = b""
                if done:
                    event = following.result()
                    following = asyncio.ensure_future(anext(events))
                    if is_wanted(event):
                        part = b"data: " + _encoder.encode(event) + b"\n\n"
                if not part and now() >= heartbeat_at:  # also where much happens that nobody asked for
                    part = _HEARTBEAT
                if part:
                    await exchange.stream(part)
                    heartbeat_at = now() + self._limits.heartbeat_seconds
        except StopAsyncIteration:
            return
        finally:
            following.cancel()


def _chosen(*, types: frozenset[str] = frozenset(), topic: str | None = None) -> "Callable[[Event], bool]":
    """Whether an event is one of those that were asked for. InvalidName."""
    return partial(_is_wanted, types, None if topic is None else str(TopicName.parse(topic)))


def _is_wanted(types: frozenset[str], topic: str | None, event: "Event") -> bool:
    if event.type == _MISSED:
        return True
    return (not types or event.type in types) and topic in (None, event.topic)
