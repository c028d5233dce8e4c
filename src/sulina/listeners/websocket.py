"""Sessions over WebSocket, as an ASGI application: one binary message is one frame."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

import structlog

from sulina.broker.broker import Broker
from sulina.core.formats import SESSION
from sulina.errors import LimitReached, NewerFormat, NotServing, ProtocolError, SulinaError
from sulina.listeners.session import ServerSession, SessionLimits
from sulina.wire.frames import Failed, decode_from_client, encode_frame

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

GOING_AWAY, PROTOCOL_ERROR, TRY_AGAIN = 1001, 1002, 1013
FINISH_SECONDS = 5.0  # to answer what was asked for before the node stopped

_logger = structlog.get_logger("sulina.websocket")


class WebSocketListener:
    """Serves `/v1/ws`. `close` ends all sessions when the node stops."""

    def __init__(self, broker: Broker, *, sessions_max: int = 10_000, limits: SessionLimits | None = None) -> None:
        self._broker = broker
        self._sessions_max = sessions_max
        self._limits = limits
        self._open: dict[ServerSession, asyncio.Task[Any]] = {}
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._is_closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, from its handshake to its end."""
        message = await receive()
        if message["type"] != "websocket.connect":
            return
        refusal = self._refusal()
        if refusal is not None:
            await send({"type": "websocket.close", "code": TRY_AGAIN, "reason": str(refusal)[:120]})
            return
        await send({"type": "websocket.accept"})
        client = scope.get("client")
        session_name = f"{client[0]}:{client[1]}" if client else "?"
        session = ServerSession(self._broker, self._limits, name=session_name)
        refusal = session_objection(scope.get("query_string", b""), session_name)
        reading = asyncio.create_task(self._read(session, receive, send, refusal))
        sending = asyncio.create_task(self._send(session, send))
        self._open[session] = reading
        self._all_closed.clear()
        try:
            await asyncio.wait([reading, sending], return_when=asyncio.FIRST_COMPLETED)
            if self._is_closing and not sending.done():
                # What was taken is answered before the node goes.
                await session.finish(FINISH_SECONDS)
                await asyncio.wait([sending], timeout=FINISH_SECONDS)
                await send({"type": "websocket.close", "code": GOING_AWAY, "reason": "the node is stopping"})
        finally:
            for task in (reading, sending):
                task.cancel()
            await asyncio.wait([reading, sending])
            del self._open[session]
            if not self._open:
                self._all_closed.set()
            # Also when this task is being cancelled, the consumers must leave.
            await asyncio.shield(session.close())

    def _refusal(self) -> SulinaError | None:
        if self._is_closing or not self._broker.is_ready:
            return NotServing(reason="it is starting or stopping")
        if len(self._open) >= self._sessions_max:
            return LimitReached(kind="sessions", limit=self._sessions_max)
        return None

    async def _read(self, session: ServerSession, receive: Receive, send: Send, objection: SulinaError | None) -> None:
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            try:
                if objection is not None:  # the first request gets it as its answer
                    raise objection
                data = message.get("bytes")
                if data is None:
                    raise ProtocolError("frames are binary messages; this one is text")
                frame = decode_from_client(data)
            except (ProtocolError, NewerFormat) as error:
                # What follows cannot be trusted either.
                refused = Failed(0, error.code, str(error), error.details())
                await send({"type": "websocket.send", "bytes": encode_frame(refused)})
                await send({"type": "websocket.close", "code": PROTOCOL_ERROR, "reason": str(error)[:120]})
                return
            await session.handle(frame)

    async def _send(self, session: ServerSession, send: Send) -> None:
        outbox = session.outbox
        while (frame := await outbox.take()) is not None:
            await send({"type": "websocket.send", "bytes": encode_frame(frame)})

    async def close(self) -> None:
        """End every session when it has been answered; clients come back elsewhere, or later."""
        self._is_closing = True
        for reading in self._open.values():
            reading.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3 * FINISH_SECONDS):
                await self._all_closed.wait()


def session_objection(query: bytes, client: str) -> SulinaError | None:
    """Return why a client cannot be served by the protocol that its URL states; without one it speaks the first."""
    stated = parse_qs(query.decode("latin-1")).get("protocol", ["1"])[-1]
    try:
        SESSION.check(int(stated), f"client {client}")
    except NewerFormat as error:
        _logger.warning("session_refused", client=client, error=str(error))
        return error
    except ValueError:
        return ProtocolError(f"protocol={stated} is not a number")
    return None
