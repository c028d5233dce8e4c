"""The HTTP server: uvicorn, with bounds on what strangers can do to a connection.

- A connection past the limit is told so and closed at once.
- A head that does not come, a body that trickles, an answer that nobody reads: one sweep a second over all connections
  finds them, so that a request costs no timers of its own.
- A WebSocket's half messages count against a byte budget that all share.

Uvicorn has no settings for these bounds, so its protocols are extended in places that it does not promise to keep.
pyproject.toml therefore allows one minor version of it; before another one is allowed, compare this list with its
source, and run tests/listeners/test_http_protocol.py and tests/blackbox/test_abuse.py.

- `HttpToolsProtocol`: `connection_made`, `data_received`, `on_message_begin`, `on_header`, `on_headers_complete`,
  `on_body` and `on_message_complete` note which part of a request a connection waits for, and how many bytes came.
  `on_response_complete` and `_start_asgi_task` start pipelined requests (`pipeline`, `cycle`), within a bound and
  without a timer for each. `connection_lost`: uvicorn tells only the newest request that the client has gone.
  `handle_websocket_upgrade` does not begin in the middle of an answer. `send_400_response` answers problem+json.
  `flow`, `server_state` and `connections` are read to find clients that do not read, and to count connections.
- `RequestResponseCycle`: `response_started`, `response_complete`, `disconnected` and `message_event` are set to answer
  in place of the application when a body does not come.
- `WebSocketsSansIOProtocol`: `data_received` and `handle_cont` count and bound messages that have not come whole
  (`frames`, `conn.reader.buffer`). `send_receive_event_to_app` refuses text that is not UTF-8. `send_500_response` and
  `connection_lost` end connections in time, also while uvicorn stops (`writable`, `close_timeout`).
- `Server`: `serve`, `capture_signals` and `on_tick`, over `startup`, `main_loop` and `shutdown`: the node binds the
  socket, handles signals and stops the server; connections are swept once a second.
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, cast

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sulina.byte_budget import ByteBudget
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_problem import (
    HTTP_CODES,
    PROBLEM_JSON,
    RETRY_AFTER_SECONDS,
    RETRY_AFTER_STATUSES,
    http_problem,
)
from sulina.listeners.listening_socket import bound_socket

OPEN_FILES_RESERVED = 1024  # for the logs and the metadata store
TICKS_OF_A_SWEEP = 10  # of a tenth of a second

_logger: structlog.stdlib.BoundLogger = structlog.get_logger("sulina.http")


class _Phase(Enum):
    """What a connection is waiting for."""

    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"
    NEXT = "next request"


class _Stall:
    """Notices when a client takes nothing of what waits for it."""

    __slots__ = ("since", "size_bytes")

    def __init__(self) -> None:
        self.since: float | None = None
        self.size_bytes = 0

    def seconds(self, transport: Any, is_waiting: bool, now: float) -> float:
        """Return for how long nothing has moved, though something should."""
        size_bytes: int = transport.get_write_buffer_size()
        if not size_bytes or not is_waiting:
            self.since = None
            return 0.0
        if self.since is None or size_bytes < self.size_bytes:
            self.since = now
        self.size_bytes = size_bytes
        return now - self.since


class HttpProtocol(HttpToolsProtocol):
    """One connection. `limits` and `connections_max` are set on the class that `make_server` makes of it."""

    limits: HttpLimits
    connections_max: int

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._phase = _Phase.HEAD
        self._since = self.loop.time()
        self._head_bytes = self._body_bytes = self._trailer_bytes = 0
        self._is_begun = self._is_long = False
        self._running: RequestResponseCycle | None = None  # the newest request, `cycle`, may have to wait for it
        self._stall = _Stall()
        if len(self.connections) > self.connections_max:
            self._close_with("too_many_connections", f"connection limit of {self.connections_max} reached; retry later")

    def data_received(self, data: bytes) -> None:
        if self._phase is _Phase.HEAD or self._phase is _Phase.NEXT:
            self._head_bytes += len(data)
            self._is_long = self._head_bytes > self.limits.head_bytes_max
        before_bytes = self._body_bytes
        super().data_received(data)
        if self._is_long and self._phase is _Phase.HEAD:
            self._refuse_head()
        elif self._phase is _Phase.BODY and self._body_bytes == before_bytes:
            self._trailer_bytes += len(data)  # or it is about a chunk to come: then `on_body` starts again
            if self._trailer_bytes > self.limits.head_bytes_max:
                self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        # Uvicorn tells only the newest request.
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_begun = True
        self._phase, self._since = _Phase.HEAD, self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is _Phase.HEAD:  # what comes behind a body is no header, and nobody here needs it
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.transport.is_closing():
            return  # nobody would hear the answer
        if self._is_long and self._head_size() > self.limits.head_bytes_max:
            self._refuse_head()
            return
        if [name for name, _ in self.headers].count(b"host") != 1 and self.parser.get_http_version() == "1.1":
            self._close_with("malformed_request", "a request has one Host header")
            return
        self._head_bytes = self._body_bytes = self._trailer_bytes = 0
        self._is_long = False
        self._phase, self._since = _Phase.BODY, self.loop.time()
        super().on_headers_complete()
        if not self.pipeline:
            self._running = self.cycle
        if len(self.pipeline) > self.limits.pipelined_requests_max:
            self.transport.abort()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._trailer_bytes = 0
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._phase, self._since = _Phase.NEXT, self.loop.time()
        else:
            self._phase = _Phase.ANSWER
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._running, app = self.pipeline.pop()
            self._start_asgi_task(self._running, app)
        elif self._phase is _Phase.ANSWER:
            self._phase, self._since = _Phase.NEXT, self.loop.time()

    def handle_websocket_upgrade(self) -> None:
        if self._is_answering():
            self.transport.abort()  # it would begin in the middle of an answer
        if not self.transport.is_closing():
            super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP."""
        self._close_with("malformed_request", msg)

    def sweep(self, now: float) -> None:
        """Close what has waited too long."""
        limits, waited = self.limits, now - self._since
        if self._stall.seconds(self.transport, self.flow.write_paused or self.transport.is_closing(), now) > (
            limits.send_timeout_seconds
        ):
            self.transport.abort()
        elif self.transport.is_closing():
            return
        elif self._phase is _Phase.HEAD and waited > limits.head_timeout_seconds:
            if self._is_answering():
                return  # somebody waits for an answer, and has begun to ask the next
            if self._is_begun:
                self._close_with("request_timeout", f"the head did not come in {limits.head_timeout_seconds} s")
            else:
                self.transport.close()  # who says nothing is not waiting for an answer
        elif self._phase is _Phase.NEXT and waited > limits.keep_alive_seconds:
            self.transport.close()
        elif self._phase is _Phase.BODY and self.flow.read_paused:
            self._since = now  # it is not the client that we wait for
        elif self._phase is _Phase.BODY:
            allowed = limits.body_timeout_seconds + self._body_bytes / limits.body_bytes_per_second_min
            if waited > allowed:
                self._time_out_body(waited)

    def _is_answering(self) -> bool:
        return bool(self.pipeline) or (self.cycle is not None and not self.cycle.response_complete)

    def _time_out_body(self, waited: float) -> None:
        if self.pipeline or self.cycle is None or self.cycle.response_started:
            self.transport.abort()
        else:
            self.cycle.response_started = self.cycle.response_complete = True  # this is it
            self._close_with("request_timeout", f"of the body only {self._body_bytes} bytes came in {waited:.0f} s")

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse_head(self) -> None:
        self._is_long = False
        self._close_with("head_too_large", f"the head is over the limit of {self.limits.head_bytes_max} bytes")

    def _close_with(self, code: str, detail: str) -> None:
        """Answer without the application, and close. In the middle of another answer, it would be part of that."""
        if self._is_answering():
            self.transport.abort()
        if self.transport.is_closing():
            return
        status, _ = HTTP_CODES[code]
        body = http_problem(code, detail)
        retry = f"retry-after: {RETRY_AFTER_SECONDS}\r\n" if status in RETRY_AFTER_STATUSES else ""
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {PROBLEM_JSON.decode()}\r\n"
            f"content-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket. `limits` and `budget` are set on the class that `make_server` makes of it."""

    limits: HttpLimits
    budget: ByteBudget

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.close_timeout = self.limits.linger_seconds
        self._stall = _Stall()
        self._held_bytes = 0  # of a message that has not come whole

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._hold(len(self.conn.reader.buffer) + sum(map(len, self.frames)))
        if self.budget.used_bytes > self.budget.bytes_max and self._held_bytes > self.limits.small_body_bytes:
            _logger.warning("websocket_refused", reason="too many half messages", bytes=self.budget.used_bytes)
            self.transport.abort()

    def handle_cont(self, event: Any) -> None:
        if len(self.frames) < self.limits.fragments_max:
            super().handle_cont(event)
        else:
            self._fail(1009, "too many fragments")

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not _is_utf8(self.frames):
            self._fail(1007, "not UTF-8")
        else:
            super().send_receive_event_to_app()

    def _fail(self, code: int, reason: str) -> None:
        self.frames = []
        if not self.close_sent:
            self.conn.send_close(code, reason)
            self.handle_parser_exception()

    def send_500_response(self) -> None:
        # Uvicorn also does this when it stops during a handshake: what the application says then comes too late.
        is_refused = not (self.initial_response or self.handshake_complete)
        super().send_500_response()
        self.disconnected = self.disconnected or is_refused

    def connection_lost(self, exc: Exception | None) -> None:
        self._hold(0)
        super().connection_lost(exc)

    def sweep(self, now: float) -> None:
        """Cut off a client that takes nothing of what waits for it."""
        is_waiting = not self.writable.is_set() or self.transport.is_closing()
        if self._stall.seconds(self.transport, is_waiting, now) > self.limits.send_timeout_seconds:
            self.transport.abort()

    def _hold(self, size_bytes: int) -> None:
        self.budget.used_bytes += size_bytes - self._held_bytes
        self._held_bytes = size_bytes


def _is_utf8(parts: list[bytes]) -> bool:
    try:
        b"".join(parts).decode()
    except UnicodeDecodeError:
        return False
    return True


class HttpServer(uvicorn.Server):
    """`start` it, and `stop` it. Signals are left to the node that runs it."""

    def __init__(self, config: uvicorn.Config, before_shutdown: Callable[[], None] | None = None) -> None:
        super().__init__(config)
        self._before_shutdown = before_shutdown
        self._socket: socket.socket | None = None
        self._ticking: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Return the port it listens on, once it has started."""
        assert self._socket is not None
        port: int = self._socket.getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address is taken, or does not belong to this machine.
        """
        if not self.config.loaded:
            self.config.load()
        self._socket = await bound_socket(self.config.host, self.config.port)
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup(sockets=[self._socket])
        self._ticking = asyncio.create_task(self.main_loop(), name="http-ticks")

    async def stop(self) -> None:
        """Accept nothing more, let requests under way finish for a while, then close all connections."""
        self.should_exit = True
        if self._ticking is not None:
            await self._ticking
            await self._end()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and stop once `should_exit` is set."""
        assert sockets is None, "it binds its own"
        await self.start()
        assert self._ticking is not None
        try:
            await self._ticking
        finally:
            await self._end()

    async def _end(self) -> None:
        if self._before_shutdown is not None:
            self._before_shutdown()
        await self.shutdown(sockets=[self._socket] if self._socket else [])
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are not this server's business."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Sweep over the connections once a second; called every tenth of it."""
        if counter % TICKS_OF_A_SWEEP == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                try:
                    cast(HttpProtocol | WebSocketProtocol, connection).sweep(now)
                except Exception:
                    # Whatever is wrong with one connection, the others are served.
                    _logger.exception("http_sweep_failed")
        return await super().on_tick(counter)


def make_server(
    app: ASGIApp, host: str, port: int, limits: HttpLimits, *, before_shutdown: Callable[[], None] | None = None
) -> HttpServer:
    """Return a server for the application; port 0 is any that is free. `before_shutdown` is called when it stops."""
    http = type(
        "BoundHttpProtocol",
        (HttpProtocol,),
        {"limits": limits, "connections_max": min(limits.connections_max, _connections_possible())},
    )
    websocket = type(
        "BoundWebSocketProtocol",
        (WebSocketProtocol,),
        {"limits": limits, "budget": ByteBudget(limits.in_flight_frame_bytes_max)},
    )
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="none",
        http=http,
        ws=websocket,
        ws_max_size=limits.frame_bytes_max,
        ws_ping_interval=limits.ping_seconds,
        ws_ping_timeout=limits.pong_seconds,
        ws_per_message_deflate=False,
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",  # what strangers do wrong is told to them
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=limits.backlog,
        timeout_graceful_shutdown=limits.shutdown_seconds,
    )
    return HttpServer(config, before_shutdown)


def _connections_possible() -> int:
    """Return how many connections the system's limit on open files leaves room for."""
    if sys.platform == "win32":
        return 1 << 30
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else max(soft - OPEN_FILES_RESERVED, soft // 2)
