"""The HTTP server over real sockets: what strangers can do to a connection is bounded, and others do not notice."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sulina.broker.broker import Broker
from sulina.client import WebSocketConnector
from sulina.errors import Disconnected
from sulina.listeners.http import make_app
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_protocol import HttpProtocol, HttpServer, make_server
from sulina.listeners.websocket import WebSocketListener
from tests.listeners.conftest import no_websocket

LIMITS = HttpLimits(
    head_timeout_seconds=0.2,
    body_timeout_seconds=0.2,
    body_bytes_per_second_min=1 << 30,
    send_timeout_seconds=0.3,
    linger_seconds=0.5,
    head_bytes_max=4096,
    body_bytes_max=1 << 20,
    heartbeat_seconds=0.05,
    shutdown_seconds=2,
)
SECONDS_MAX = 20.0  # for whatever is expected to happen
TOPIC = "/v1/topics/default/orders"


@contextlib.asynccontextmanager
async def served(
    broker: Broker, limits: HttpLimits = LIMITS, websocket: Any = no_websocket
) -> AsyncIterator[HttpServer]:
    app = make_app(broker, limits, websocket=websocket)
    server = make_server(app, "127.0.0.1", 0, limits, before_shutdown=app.stop_waiting)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class Raw:
    """A client that speaks bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def send_for_ever(self, data: bytes) -> None:
        """ConnectionError when the server closes."""
        while True:
            self.writer.write(data)
            await self.writer.drain()
            await asyncio.sleep(0.001)

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        with contextlib.suppress(ConnectionResetError):
            return await asyncio.wait_for(self.reader.read(), SECONDS_MAX)
        return b""

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of one answer."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), SECONDS_MAX)
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        return int(head.split()[1]), await asyncio.wait_for(self.reader.readexactly(length), SECONDS_MAX)


@contextlib.asynccontextmanager
async def raw(server: HttpServer, receive_bytes: int | None = None) -> AsyncIterator[Raw]:
    sock = socket.socket()
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def problem(answer: bytes) -> Any:
    head, _, body = answer.partition(b"\r\n\r\n")
    return {**json.loads(body), "status_line": int(head.split()[1])}


GET = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
HANDSHAKE = (
    b"GET /v1/ws HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


async def test_it_serves_on_any_free_port_and_says_which(broker: Broker) -> None:
    async with served(broker) as server, httpx.AsyncClient() as http:
        answer = await http.get(f"http://127.0.0.1:{server.port}/health")
        assert (answer.status_code, answer.headers.get("server")) == (200, None)


async def test_an_address_that_is_taken_is_an_error(broker: Broker) -> None:
    async with served(broker) as server:
        other = make_server(make_app(broker, LIMITS, websocket=no_websocket), "127.0.0.1", server.port, LIMITS)
        with pytest.raises(OSError, match="in use"):
            await other.start()


async def test_a_connection_that_says_nothing_is_closed(broker: Broker) -> None:
    async with served(broker) as server, raw(server) as silent:
        assert await silent.rest() == b""


async def test_half_a_head_is_answered_408(broker: Broker) -> None:
    async with served(broker) as server, raw(server) as slow:
        slow.send(b"GET /health HTTP/1.1\r\nhost:")
        assert problem(await slow.rest())["code"] == "request_timeout"


async def test_half_a_body_is_answered_408(broker: Broker) -> None:
    async with served(broker) as server, raw(server) as slow:
        slow.send(f"POST {TOPIC}/records HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode())
        slow.send(b'content-length: 100\r\n\r\n{"records"')
        answer = problem(await slow.rest())
        assert (answer["code"], answer["status_line"]) == ("request_timeout", 408)


async def test_a_body_that_keeps_coming_may_take_longer(broker: Broker) -> None:
    limits = replace(LIMITS, body_bytes_per_second_min=1)
    async with served(broker, limits) as server, raw(server) as slow:
        slow.send(f"PUT {TOPIC} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode())
        slow.send(b"content-length: 102\r\n\r\n" + b" " * 100)
        async with raw(server) as other:
            assert await other.rest() == b"", "this one is let go in the meantime"
        slow.send(b"{}")
        assert (await slow.answer())[0] == 201


async def test_a_head_without_end_is_refused(broker: Broker) -> None:
    async with served(broker) as server:
        for filler in (b"a: " + b"x" * 5000, b"a: b\r\n" * 1000):
            async with raw(server) as client:
                client.send(b"GET /health HTTP/1.1\r\n" + filler)
                assert problem(await client.rest())["code"] == "head_too_large"
        async with raw(server) as client:
            client.send(b"GET /health HTTP/1.1\r\na: " + b"x" * 5000 + b"\r\n\r\n")
            assert problem(await client.rest())["code"] == "head_too_large"


async def test_what_is_no_http_is_refused(broker: Broker) -> None:
    async with served(broker) as server, raw(server) as client:
        client.send(b"\x16\x03\x01 hello\r\n\r\n")
        assert problem(await client.rest())["code"] == "malformed_request"


async def test_connections_past_the_limit_are_told_so(broker: Broker) -> None:
    async with served(broker, replace(LIMITS, connections_max=3, head_timeout_seconds=60)) as server:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(raw(server)) for _ in range(3)]
            for client in clients:
                client.send(GET)
                assert (await client.answer())[0] == 200
            async with raw(server) as fourth:
                answer = problem(await fourth.rest())
                assert (answer["status_line"], answer["code"]) == (503, "too_many_connections")
            clients[0].send(GET)
            assert (await clients[0].answer())[0] == 200, "those who are in stay in"
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"http://127.0.0.1:{server.port}/health")).status_code == 200


async def test_a_giant_body_is_refused_and_the_client_can_read_why(broker: Broker) -> None:
    head = f"POST {TOPIC}/records HTTP/1.1\r\nhost: x\r\ncontent-type: application/octet-stream\r\n".encode()
    async with served(broker) as server:
        async with raw(server) as client:
            client.send(head + b"content-length: 1000000000000\r\n\r\n" + b"x" * 10_000_000)
            assert problem(await client.rest())["code"] == "body_too_large"
        async with raw(server) as client:
            client.send(head + b"transfer-encoding: chunked\r\n\r\n" + (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 40)
            assert problem(await client.rest())["code"] == "body_too_large"


async def test_expect_100_is_refused_before_the_body(broker: Broker) -> None:
    async with served(broker) as server, raw(server) as client:
        client.send(f"POST {TOPIC}/records HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n".encode())
        client.send(b"content-type: application/json\r\ncontent-length: 9999999999\r\n\r\n")
        status, _ = await client.answer()
        assert status == 413


async def test_pipelined_requests_are_answered_in_order(broker: Broker) -> None:
    async with served(broker) as server, raw(server) as client:
        client.send(GET * 20 + b"GET /v1/nothing HTTP/1.1\r\nhost: x\r\n\r\n")
        assert [(await client.answer())[0] for _ in range(21)] == [200] * 20 + [404]
        client.send(GET * 5000)
        await client.rest()  # too many at once: the connection is cut


async def test_an_answer_is_never_mixed_with_another(broker: Broker) -> None:
    async with served(broker) as server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
        await http.put(TOPIC)
        await http.post(f"{TOPIC}/records", json={"records": [{"value": "v"}]})
        wait = f"GET {TOPIC}/partitions/0/records?offset=1&wait_ms=1500 HTTP/1.1\r\nhost: x\r\n\r\n".encode()
        async with raw(server) as client:
            client.send(wait + b"GET /health HTTP/1.1\r\nx-sl")
            assert (await client.answer())[0] == 200, "the half head that follows has time until here"
            assert problem(await client.rest())["code"] == "request_timeout"
        async with raw(server) as client:
            client.send(wait + b"GARBAGE\r\n\r\n")
            assert await client.rest() == b"", "cut off, rather than answered out of turn"


async def test_a_body_that_nobody_wants_is_passed_over(broker: Broker) -> None:
    async with served(broker, replace(LIMITS, keep_alive_seconds=0.1)) as server, raw(server) as client:
        client.send(b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
        assert (await client.answer())[0] == 200
        client.send(b"xxxxx" + GET)
        assert (await client.answer())[0] == 200
        assert await client.rest() == b"", "and the connection has an end all the same"


async def test_keep_alive_has_an_end(broker: Broker) -> None:
    async with served(broker, replace(LIMITS, keep_alive_seconds=0.1)) as server, raw(server) as client:
        client.send(GET)
        assert (await client.answer())[0] == 200
        assert await client.rest() == b""


async def test_who_reads_nothing_of_an_answer_is_cut_off(broker: Broker) -> None:
    async with served(broker) as server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
        await http.put(TOPIC)
        records = [{"value": "x" * 100_000}] * 9
        for _ in range(10):
            assert (await http.post(f"{TOPIC}/records", json={"records": records})).status_code == 200
        async with raw(server, receive_bytes=4096) as client:
            client.send(f"GET {TOPIC}/partitions/0/records?max_bytes=16777216 HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            await asyncio.wait_for(gone(server, client), SECONDS_MAX)
        assert (await http.get("/health")).status_code == 200


async def gone(server: HttpServer, client: Raw) -> None:
    """Return when the server has let go of this client, who does not read."""
    address = client.writer.get_extra_info("sockname")
    present = False
    while True:
        found = any(getattr(connection, "client", None) == address for connection in server.server_state.connections)
        if present and not found:
            return
        present = present or found
        await asyncio.sleep(0.01)


async def test_stopping_ends_streams_and_waits(broker: Broker) -> None:
    async with httpx.AsyncClient() as http:
        async with served(broker) as server:
            url = f"http://127.0.0.1:{server.port}"
            await http.put(f"{url}{TOPIC}")
            await http.post(f"{url}{TOPIC}/records", json={"records": [{"value": "v"}]})
            waiting = asyncio.create_task(
                http.get(f"{url}{TOPIC}/partitions/0/records", params={"offset": 1, "wait_ms": 30000}, timeout=60)
            )
            events = await http.send(http.build_request("GET", f"{url}/v1/events"), stream=True)
            lines = events.aiter_lines()
            assert (await anext(lines)).startswith(":")
            started = asyncio.get_running_loop().time()
        assert (await waiting).status_code == 503
        assert [line async for line in lines if line.startswith("data")] == []
        assert asyncio.get_running_loop().time() - started < LIMITS.shutdown_seconds


async def test_dead_clients_of_events_are_noticed(broker: Broker) -> None:
    async with served(broker) as server:
        async with raw(server) as client:
            client.send(b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n")
            await client.reader.readuntil(b": still here\n\n")
            await client.reader.readuntil(b": still here\n\n")
            assert broker.events.listeners == 1
        async with asyncio.timeout(SECONDS_MAX):
            while broker.events.listeners:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_all_requests_of_a_connection_that_is_lost_end(broker: Broker) -> None:
    async with served(broker, replace(LIMITS, heartbeat_seconds=60)) as server, raw(server) as client:
        client.send(b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n")
        await client.reader.readuntil(b": still here\n\n")
        client.send(GET)
        [connection] = cast(set[HttpProtocol], server.server_state.connections)
        async with asyncio.timeout(SECONDS_MAX):
            while not connection.pipeline:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            connection.transport.abort()
            while broker.events.listeners or server.server_state.tasks:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_who_leaves_waits_no_longer(broker: Broker) -> None:
    async with served(broker) as server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
        await http.put(TOPIC)
        async with raw(server) as client:
            client.send(f"GET {TOPIC}/partitions/0/records?wait_ms=30000 HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            async with asyncio.timeout(SECONDS_MAX):
                while not server.server_state.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(SECONDS_MAX):
            while server.server_state.tasks:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


CHUNKED = (
    f"POST {TOPIC}/records HTTP/1.1\r\nhost: x\r\ncontent-type: application/octet-stream\r\n"
    "transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
).encode()


async def test_trailers_are_no_headers(broker: Broker) -> None:
    async with served(broker) as server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
        await http.put(TOPIC)
        async with raw(server) as client:
            offsets = []
            for _ in range(2):
                client.send(CHUNKED + b"Sulina-Txn-Id: once\r\n\r\n")
                offsets.append(json.loads((await client.answer())[1])["base_offset"])
            assert offsets == [0, 1]


@pytest.mark.parametrize("part", [b"a: b\r\n" * 100, b"x" * 600], ids=["many", "one without end"])
async def test_trailers_without_end_are_cut_off(broker: Broker, part: bytes) -> None:
    limits = replace(LIMITS, body_timeout_seconds=60)
    async with served(broker, limits) as server, raw(server) as client:
        client.send(CHUNKED + b"a: ")
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(client.send_for_ever(part), SECONDS_MAX)


async def test_a_body_may_come_in_very_small_chunks(broker: Broker) -> None:
    limits = replace(LIMITS, head_bytes_max=200, body_timeout_seconds=60)
    async with served(broker, limits) as server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
        await http.put(TOPIC)
        async with raw(server) as client:
            client.send(CHUNKED.removesuffix(b"0\r\n"))
            for _ in range(100):
                for part in (b"1\r\n", b"a\r\n"):
                    client.send(part)
                    await asyncio.sleep(0.001)
            client.send(b"0\r\n\r\n")
            assert (await client.answer())[0] == 200


@pytest.mark.parametrize("hosts", [b"", b"host: x\r\nhost: y\r\n"], ids=["none", "two"])
async def test_a_request_has_one_host(broker: Broker, hosts: bytes) -> None:
    put = f"PUT {TOPIC} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    async with served(broker) as server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
        for request in (b"GET /health HTTP/1.1\r\n" + hosts + b"\r\n", HANDSHAKE.replace(b"host: x\r\n", hosts)):
            async with raw(server) as client:
                client.send(request + put)
                answer = problem(await client.rest())
                assert (answer["status_line"], answer["code"]) == (400, "malformed_request")
        assert (await http.get(TOPIC)).status_code == 404, "nothing is done for who was sent away"
        async with raw(server) as client:
            client.send(b"GET /health HTTP/1.0\r\n\r\n")
            assert (await client.rest()).startswith(b"HTTP/1.1 200")


async def test_only_who_may_come_again_is_told_when(broker: Broker) -> None:
    async with served(broker, replace(LIMITS, connections_max=1)) as server, raw(server) as first:
        async with raw(server) as second:
            assert b"\r\nretry-after: 1\r\n" in await second.rest()
        first.send(b"GET /health HTTP/1.1\r\na: " + b"x" * 5000)
        answer = await first.rest()
        assert answer.startswith(b"HTTP/1.1 431")
        assert b"retry-after" not in answer


async def test_no_websocket_begins_in_the_middle_of_an_answer(broker: Broker) -> None:
    wait = f"GET {TOPIC}/partitions/0/records?offset=0&wait_ms=1000 HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    async with (
        served(broker, websocket=WebSocketListener(broker)) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http,
        raw(server) as client,
    ):
        await http.put(TOPIC)
        client.send(wait + HANDSHAKE)
        assert await client.rest() == b""


async def test_a_client_of_a_node_that_is_full_or_stops_is_told_that_it_takes_no_connections_now(
    broker: Broker,
) -> None:
    listener = WebSocketListener(broker, sessions_max=1)
    async with served(broker, websocket=listener) as server:
        connect = WebSocketConnector(f"http://127.0.0.1:{server.port}")
        first = await connect()
        with pytest.raises(Disconnected, match=r"takes no connections now \(HTTP 403\)") as refused:
            await connect()
        assert refused.value.retryable
        await listener.close()
        with pytest.raises(Disconnected):
            await first.receive()
        with pytest.raises(Disconnected, match=r"takes no connections now \(HTTP 403\)"):
            await connect()
    async with served(broker, replace(LIMITS, connections_max=1)) as server, raw(server):
        with pytest.raises(Disconnected, match=r"takes no connections now( \(HTTP 503\)|: it hung up at once)"):
            await WebSocketConnector(f"http://127.0.0.1:{server.port}")()


async def test_websockets_are_served_on_the_same_port_and_path(broker: Broker) -> None:
    async with served(broker, websocket=WebSocketListener(broker)) as server:
        async with connect(f"ws://127.0.0.1:{server.port}/v1/ws") as session:
            await session.send("text")
            assert isinstance(await session.recv(), bytes), "a frame says what was wrong"
            with pytest.raises(ConnectionClosed) as closed:
                await session.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1002
        with pytest.raises(Exception, match="403"):
            await connect(f"ws://127.0.0.1:{server.port}/v1/other")


@pytest.mark.parametrize("word", ["websocket.close", "websocket.accept"])
async def test_a_handshake_that_meets_the_end_of_the_server_is_no_fault(
    broker: Broker, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    has_come, may_answer = asyncio.Event(), asyncio.Event()

    async def late(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        has_come.set()
        await may_answer.wait()
        await send({"type": word})

    async with served(broker, websocket=late) as server, asyncio.TaskGroup() as tasks:
        handshake = tasks.create_task(_handshake(server))
        await has_come.wait()
        [connection] = server.server_state.connections
        may_answer.set()
        connection.shutdown()  # as when the server stops; the application answers after it
        assert await handshake == 500
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def _handshake(server: HttpServer) -> int:
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"ws://127.0.0.1:{server.port}/v1/ws", proxy=None)
    return refused.value.response.status_code


async def test_half_messages_of_websockets_are_bounded_together(broker: Broker) -> None:
    limits = replace(LIMITS, in_flight_frame_bytes_max=1 << 20, small_body_bytes=1000)
    half = b"\x82\xff" + (8 << 20).to_bytes(8, "big") + b"\0\0\0\0" + b"x" * (600 << 10)
    async with (
        served(broker, limits, WebSocketListener(broker)) as server,
        raw(server) as first,
        raw(server) as second,
        connect(f"ws://127.0.0.1:{server.port}/v1/ws") as third,
    ):
        first.send(HANDSHAKE)
        await first.reader.readuntil(b"\r\n\r\n")
        first.send(half)
        await first.writer.drain()
        second.send(HANDSHAKE)
        await second.reader.readuntil(b"\r\n\r\n")
        second.send(half)
        done, _ = await asyncio.wait(
            [asyncio.create_task(first.rest()), asyncio.create_task(second.rest())],
            timeout=SECONDS_MAX,
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert done, "one of the two is cut off"
        await (await third.ping())


async def test_an_application_that_fails_in_the_middle_is_cut_off(broker: Broker) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("in the middle")

    server = make_server(broken, "127.0.0.1", 0, LIMITS)
    await server.start()
    try:
        async with raw(server) as client:
            client.send(GET)
            assert (await client.rest()).endswith(b"half")
    finally:
        await server.stop()
