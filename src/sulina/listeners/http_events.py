"""What happens on the node, as server-sent events: one JSON object each. Comments in between keep the line alive, and
show when nobody is there any more."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from sulina.listeners.http_exchange import Exchange
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_parameters import read_query

if TYPE_CHECKING:
    from sulina.broker.broker import Broker
    from sulina.broker.events import Event

EVENT_STREAM = b"text/event-stream; charset=utf-8"
_encoder = msgspec.json.Encoder(enc_hook=str)
_HEARTBEAT = b": still here\n\n"


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
        read_query(exchange.scope["query_string"], {})
        with self._broker.events.listen() as events:
            await exchange.start_stream(EVENT_STREAM, [(b"cache-control", b"no-store")])
            if exchange.scope["method"] == "HEAD":
                await exchange.stream(b"", is_last=True)
                return
            await exchange.stream(_HEARTBEAT)
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send(events, exchange), name="events-send")
                endings = {
                    tasks.create_task(exchange.wait_gone(), name="events-gone"),
                    tasks.create_task(self._stopped.wait(), name="events-stop"),
                }
                await asyncio.wait({sending, *endings}, return_when=asyncio.FIRST_COMPLETED)
                for task in (sending, *endings):
                    task.cancel()
            await exchange.stream(b"", is_last=True)

    async def _send(self, events: "AsyncIterator[Event]", exchange: Exchange) -> None:
        """Until there are no more events."""
        following: asyncio.Future[Event] = asyncio.ensure_future(anext(events))
        try:
            while True:
                done, _ = await asyncio.wait({following}, timeout=self._limits.heartbeat_seconds)
                if not done:
                    await exchange.stream(_HEARTBEAT)
                    continue
                event = following.result()
                following = asyncio.ensure_future(anext(events))
                await exchange.stream(b"data: " + _encoder.encode(event) + b"\n\n")
        except StopAsyncIteration:
            return
        finally:
            following.cancel()
