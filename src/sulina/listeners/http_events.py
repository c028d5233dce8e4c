"""What happens on the node, as server-sent events: one JSON object each. Comments in between keep the line alive, and
show when nobody is there any more.

A listener may ask for some types, and for one topic. That it missed events it is told whatever it asked for.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_openapi_paths import EVENT_TYPE_LENGTH_MAX, EVENT_TYPES_MAX
from sulina.listeners.http_parameters import ParameterReader, read_query, text_up_to, texts_up_to
from sulina.listeners.http_request import HttpRequest
from sulina.types import TopicName

if TYPE_CHECKING:
    from sulina.broker.broker import Broker
    from sulina.broker.events import Event

EVENT_STREAM = b"text/event-stream; charset=utf-8"
_encoder = msgspec.json.Encoder(enc_hook=str)
_HEARTBEAT = b": still here\n\n"
_MISSED = "events_missed"

EVENTS_QUERY: dict[str, ParameterReader] = {
    "types": texts_up_to(EVENT_TYPES_MAX, EVENT_TYPE_LENGTH_MAX),
    "topic": text_up_to(500),
}


class EventFeed:
    """Answers GET /v1/events."""

    def __init__(self, broker: "Broker", limits: HttpLimits) -> None:
        self._broker, self._limits = broker, limits
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """End all streams."""
        self._stopped.set()

    async def get_events(self, exchange: HttpRequest) -> None:
        """GET /v1/events"""
        query = read_query(exchange.scope["query_string"], EVENTS_QUERY)
        topic = None if (given := query.get("topic")) is None else str(TopicName.parse(given))
        with self._broker.events.listen(query.get("types", ())) as events:
            await exchange.start_stream(EVENT_STREAM, [(b"cache-control", b"no-store")])
            if exchange.scope["method"] == "HEAD":
                await exchange.stream(b"", is_last=True)
                return
            await exchange.stream(_HEARTBEAT)
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send(events, topic, exchange), name="events-send")
                endings = {
                    tasks.create_task(exchange.wait_gone(), name="events-gone"),
                    tasks.create_task(self._stopped.wait(), name="events-stop"),
                }
                await asyncio.wait({sending, *endings}, return_when=asyncio.FIRST_COMPLETED)
                for task in (sending, *endings):
                    task.cancel()
            await exchange.stream(b"", is_last=True)

    async def _send(self, events: "AsyncIterator[Event]", topic: str | None, exchange: HttpRequest) -> None:
        """Send the events of one topic, or all, until there are no more."""
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
                    if topic in (None, event.topic) or event.type == _MISSED:
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
