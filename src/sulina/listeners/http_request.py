"""One request and its answer, within limits.

A body that is too large is refused before it is read, by its declared length or as soon as it gets too long. A client
that is refused while it is still sending has a moment to read why before the connection is closed.
"""

import asyncio
import contextlib
from collections.abc import Sequence

from starlette.types import Message, Receive, Scope, Send

from sulina.byte_budget import ByteBudget, ByteReservation
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_problem import ClientGone, bad_parameter, body_too_large, busy, described

JSON = b"application/json"
SEND_BYTES = 256 << 10  # at once: the next part waits until the client has taken most of this one

HeaderPairs = Sequence[tuple[bytes, bytes]]


def grow(reservation: ByteReservation, size_bytes: int) -> None:
    """Hold this many bytes in all.

    Raises:
        HttpError: 429, all requests together hold as much as they may.
    """
    if not reservation.try_grow_to(size_bytes):
        raise busy(reservation.budget.used_bytes, reservation.budget.bytes_max)


class HttpRequest:
    """One request and its answer."""

    __slots__ = ("_limits", "_receive", "_send", "body_bytes", "headers", "is_answered", "is_read", "scope")

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: HttpLimits) -> None:
        self.scope = scope
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self._receive, self._send, self._limits = receive, send, limits
        self.is_read = False  # all of the body has come
        self.is_answered = False  # at least the head of the answer has gone
        self.body_bytes: ByteReservation | None = None  # of a body that comes in parts; released after the answer

    @property
    def path(self) -> dict[str, str]:
        """Return the variable parts of the path, by their names."""
        path: dict[str, str] = self.scope["path_params"]
        return path

    async def read_body(self, budget: ByteBudget) -> bytes:
        """Return all of the body, within what the budget of all bodies under way allows.

        Raises:
            HttpError: 413, it is too large; 429, bodies under way hold as much as they may.
            ClientGone: the client has closed the connection.
        """
        limit = self._limits.body_bytes_max
        declared = self.headers.get(b"content-length")
        if declared is not None:
            if not declared.isdigit():
                raise bad_parameter("content-length", "Content-Length must be a number")
            if len(declared) > 18 or int(declared) > limit:
                raise body_too_large(limit)
        message = await self._receive()
        if message["type"] != "http.request":
            raise ClientGone
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            body = await self._read_on(body, budget)
        if len(body) > limit:
            raise body_too_large(limit)
        self.is_read = True
        return body

    async def _read_on(self, first: bytes, budget: ByteBudget) -> bytes:
        limits = self._limits
        self.body_bytes = reservation = ByteReservation(budget)
        body = bytearray(first)
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientGone
            body += message.get("body", b"")
            if len(body) > limits.body_bytes_max:
                raise body_too_large(limits.body_bytes_max)
            if len(body) > limits.small_body_bytes:
                grow(reservation, len(body))
            if not message.get("more_body", False):
                return bytes(body)

    def release_body(self) -> None:
        """Give back what the body had of the budget of all bodies."""
        if self.body_bytes is not None:
            self.body_bytes.release()

    async def answer(
        self, body: bytes | memoryview, *, status: int = 200, content_type: bytes = JSON, headers: HeaderPairs = ()
    ) -> None:
        """Send the whole answer; of a long one, the client takes a part before the connection gets the next."""
        self.is_answered = True
        size = len(body)
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", content_type), (b"content-length", b"%d" % size), *headers],
            }
        )
        if size <= SEND_BYTES:
            await self._send({"type": "http.response.body", "body": body})
            return
        view = memoryview(body)
        for start in range(0, size, SEND_BYTES):
            part = bytes(view[start : start + SEND_BYTES])
            await self._send({"type": "http.response.body", "body": part, "more_body": start + SEND_BYTES < size})

    async def answer_nothing(self, status: int = 204) -> None:
        """Send an answer without a body."""
        self.is_answered = True
        await self._send({"type": "http.response.start", "status": status, "headers": []})
        await self._send({"type": "http.response.body", "body": b""})

    async def start_stream(self, content_type: bytes, headers: HeaderPairs = ()) -> None:
        """Send the head of an answer that is streamed."""
        self.is_answered = True
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", content_type), *headers]}
        await self._send(start)

    async def stream(self, part: bytes, *, is_last: bool = False) -> None:
        """Send a part of a streamed answer; return when the connection has room for more."""
        await self._send({"type": "http.response.body", "body": part, "more_body": not is_last})

    async def wait_gone(self) -> None:
        """Return when the client has left."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def refuse(self, error: BaseException) -> str:
        """Answer with a problem, and return its code."""
        self.release_body()  # others may have the room while the rest of this one is read and dropped
        problem = described(error, self.scope)
        headers = problem.headers
        start: Message = {"type": "http.response.start", "status": problem.status, "headers": headers}
        self.is_answered = True
        if self.is_read or not self._has_body():
            await self._send(start)
            await self._send({"type": "http.response.body", "body": problem.body})
            return problem.code
        # Closing while bytes are on their way resets the connection, and the client may never see the answer: so
        # they are read and dropped for a while.
        headers.append((b"connection", b"close"))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": problem.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.linger_seconds):
                while (await self._receive()).get("more_body", False):
                    pass
        await self._send({"type": "http.response.body", "body": b""})
        return problem.code

    def _has_body(self) -> bool:
        return b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"
