"""A real node under abuse: clear errors, bounded memory, other clients unaffected, nothing outside its directory."""

import asyncio
import contextlib
import json
import resource
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from sulina.core.delivery.members import SubscriptionKind
from sulina.core.records.rows import decode_rows
from sulina.wire.frames import (
    AddCredit,
    Answer,
    Call,
    Deliver,
    Failed,
    Fetch,
    FromClient,
    Publish,
    Subscribe,
    decode_from_node,
    encode_frame,
)
from tests.support.serving import Serving, serving
from tests.support.witness import witness

CONNECTIONS = 5000
RSS_BYTES_MAX = 900 << 20  # a quarter of it is what a node holds when nobody asks for anything
SECONDS_MAX = 60.0
BODY_SECONDS = 3.0
HURRIED = {
    "SULINA_LIMITS_HEAD_TIMEOUT_SECONDS": "1",
    "SULINA_LIMITS_BODY_TIMEOUT_SECONDS": str(BODY_SECONDS),
}
TOPIC = "/v1/topics/default/orders"
HEAD = f"POST {TOPIC}/records HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode()
HANDSHAKE = (
    b"GET /v1/ws HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    directory = tmp_path_factory.mktemp("abuse")
    with serving(directory / "data", is_forked=False) as node:
        with httpx.Client(base_url=node.url) as http:
            assert http.put(TOPIC).status_code == 201
        yield node
        assert node.stop() == 0, "it did not stop gracefully"
    assert node.errors() == []
    assert {path.name for path in directory.iterdir()} == {"data", "data.log"}, "something lies outside the data"
    strangers = [path.name for path in node.data.iterdir() if not path.name.startswith(("topic=default.", "metadata."))]
    assert strangers == []


@pytest.fixture(autouse=True)
def unharmed(node: Serving) -> Iterator[None]:
    """Around every test: another client is served all the time, and the node stays within its memory."""
    with witness(node):
        yield
    assert node.process.poll() is None, "the node has died"
    assert node.rss_bytes_max() < RSS_BYTES_MAX, f"it has held {node.rss_bytes_max() >> 20} MiB"


class Raw:
    """A client that speaks bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        """As much of it as the node takes."""
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def rest(self) -> bytes:
        """All that comes until the node closes."""
        data = bytearray()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(SECONDS_MAX):
                while part := await self.reader.read(1 << 16):
                    data += part
        return bytes(data)

    async def answer(self) -> bytes:
        """One answer, of a connection that may stay open."""
        head = await self.head()
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        return head + await self.reader.readexactly(length)

    async def head(self) -> bytes:
        async with asyncio.timeout(SECONDS_MAX):
            return await self.reader.readuntil(b"\r\n\r\n")


@contextlib.asynccontextmanager
async def raw(node: Serving, receive_bytes: int | None = None) -> AsyncIterator[Raw]:
    sock = socket.socket()
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (node.host, node.port))
    reader, writer = await asyncio.open_connection(sock=sock)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def ask(node: Serving, request: bytes) -> tuple[int, Any]:
    """Status and problem of the one answer to some bytes."""
    async with raw(node) as client:
        await client.send(request)
        return read_problem(await client.rest())


def read_problem(answer: bytes) -> tuple[int, Any]:
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head, head
    problem = json.loads(body)
    assert problem["detail"]
    return int(head.split()[1]), problem


# Bodies


async def test_a_giant_body_that_is_declared_is_refused_unread(node: Serving) -> None:
    status, problem = await ask(node, HEAD + b"content-length: 100000000000\r\n\r\n" + b"x" * 100_000)
    assert (status, problem["code"]) == (413, "body_too_large")


async def test_a_giant_body_in_chunks_is_refused_when_it_gets_too_long(node: Serving) -> None:
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    async with raw(node) as client:
        await client.send(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(40):
            await client.send(chunk)
        status, problem = read_problem(await client.rest())
    assert (status, problem["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("part", [b"a: b\r\n" * 10_000, b"x" * 60_000], ids=["many", "one without end"])
async def test_trailers_without_end_are_cut_off(node: Serving, part: bytes) -> None:
    async with raw(node) as client:
        await client.send(HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\na: ")
        async with asyncio.timeout(SECONDS_MAX):
            while not client.writer.transport.is_closing():
                await client.send(part)
                await asyncio.sleep(0.001)
        assert await client.rest() == b""


async def test_many_large_bodies_at_once_are_refused_before_memory_is(node: Serving) -> None:
    size = 30 << 20

    async def send() -> bytes:
        async with raw(node) as client:
            await client.send(HEAD + b"content-length: %d\r\n\r\n" % size)
            for _ in range(0, size, 1 << 20):
                await client.send(b" " * (1 << 20))
            return await client.answer()

    answers = await asyncio.gather(*(send() for _ in range(16)))
    statuses = [read_problem(answer)[0] for answer in answers]
    assert set(statuses) == {400, 429}, "blanks are no JSON; and not all of them fit at once"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nonsense", b"\x00\xff\xfe", b'{"records": [{"value": "\xff"}]}', b"[" * 1_000_000,
        b'{"a":' * 200_000, b'{"records":[{"value":' + b"[" * 1_000_000, b'{"records": [{"value": "a"}]} trailing',
        b'{"records": [' + b'{"value": "a"},' * 100_001 + b'{"value": "a"}]}', b'{"records": [{"timestamp": 1e999}]}',
    ],
    ids=range(11),
)  # fmt: skip
async def test_malformed_json_is_said_to_be_so(node: Serving, body: bytes) -> None:
    request = HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    status, problem = await ask(node, request)
    assert status in (400, 422)
    assert problem["code"] in ("malformed_body", "invalid_input")


# WebSockets


def frame(opcode: int, payload: bytes, *, flags: int = 0x80, is_masked: bool = True, size: int | None = None) -> bytes:
    """A frame of RFC 6455, right or wrong."""
    length = len(payload) if size is None else size
    head = bytes([flags | opcode])
    mask = 0x80 if is_masked else 0
    if length < 126:
        head += bytes([mask | length])
    else:
        head += bytes([mask | 127]) + struct.pack(">Q", length)
    return head + (b"\0\0\0\0" if is_masked else b"") + payload


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(2, b"", is_masked=False), 1002),
        (frame(3, b"x"), 1002),
        (frame(2, b"x", flags=0xF0), 1002),
        (frame(9, b"x" * 126), 1002),
        (frame(0, b"x"), 1002),
        (frame(1, b"\xff\xfe"), 1007),
        (frame(2, b"", size=1 << 40), 1009),
        (frame(1, b'{"type": "pub"}'), 1002),
        (frame(2, b"garbage"), 1002),
        (frame(2, b"\x93\xa3pub\x01"), 1002),
        (frame(2, b"\x91" * 200_000), 1002),
        (frame(2, b"\x93\xa4call\x01\xa4info" + b"\x81\xa1a" * 100_000 + b"\x01"), 1002),
        (frame(2, b"\xdd\xff\xff\xff\xff"), 1002),
        (frame(2, b"", flags=0) + frame(0, b"", flags=0) * 20_000, 1009),
    ],
    ids=range(14),
)
async def test_malformed_frames_end_their_session_only(node: Serving, data: bytes, code: int) -> None:
    async with raw(node) as client:
        await client.send(HANDSHAKE)
        assert b" 101 " in await client.head()
        await client.send(data)
        # What comes is a frame that says why, perhaps, and a frame that closes with the code.
        async with asyncio.timeout(SECONDS_MAX):
            seen = b""
            while not (b"\x88" in seen and struct.pack(">H", code) in seen):
                part = await client.reader.read(1 << 16)
                assert part, f"it ended with {seen!r}"
                seen += part


async def call(session: ClientConnection, request: FromClient) -> object:
    """The answer to a request; deliveries in between are passed over."""
    await session.send(encode_frame(request))
    while True:
        message = await asyncio.wait_for(session.recv(), SECONDS_MAX)
        assert isinstance(message, bytes)
        answer = decode_from_node(message)
        if isinstance(answer, Answer | Failed):
            return answer


async def test_a_consumer_that_never_reads_holds_up_nobody(node: Serving) -> None:
    count, size = 400, 256 << 10  # 100 MiB: much more than any queue
    topic = "/default/fast"
    async with httpx.AsyncClient(base_url=node.url, timeout=SECONDS_MAX) as http:
        assert (await http.put(f"/v1/topics{topic}")).status_code == 201
        before = node.rss_bytes()
        async with raw(node, receive_bytes=4096) as slow, connect(node.websocket_url, max_size=None) as quick:
            await slow.send(HANDSHAKE)
            assert b" 101 " in await slow.head()
            greedy = Subscribe(1, 1, topic, "slow", start="earliest", credit=1_000_000)
            await slow.send(frame(2, encode_frame(greedy)))
            mine = Subscribe(1, 1, topic, "quick", kind=SubscriptionKind.SHARED, start="earliest", credit=1000)
            assert isinstance(await call(quick, mine), Answer)
            reading = asyncio.create_task(consume(quick, count))
            headers = {"content-type": "application/octet-stream"}
            for number in range(count):
                body = str(number).encode().ljust(size, b".")
                assert (await http.post(f"/v1/topics{topic}/records", content=body, headers=headers)).status_code == 200
            assert await asyncio.wait_for(reading, SECONDS_MAX) == list(range(count))
            grown = node.rss_bytes() - before
            assert grown < 200 << 20, f"it holds {grown >> 20} MiB more"
            lag = (await http.get(f"/v1/topics{topic}/subscriptions/slow")).json()["lag"]
            assert lag == count, "nothing was acked by the one that does not read"
        assert (await http.delete(f"/v1/topics{topic}", params={"force": "true"})).status_code == 204


async def consume(session: ClientConnection, count: int) -> list[int]:
    """The numbers of so many records, as they come."""
    found: list[int] = []
    while len(found) < count:
        message = await session.recv()
        assert isinstance(message, bytes)
        delivery = decode_from_node(message)
        assert isinstance(delivery, Deliver), delivery
        records = decode_rows(delivery.data)
        wanted = [r for r in records if any(start <= r.offset < end for start, end in delivery.ranges)]
        found += [int((record.value or b"").rstrip(b".")) for record in wanted]
        await session.send(encode_frame(AddCredit(1, len(wanted))))
    return found


# Connections


async def test_half_open_connections_are_closed(tmp_path: Path) -> None:
    """By a node of its own, with limits that nobody has to wait for; another client is served meanwhile."""
    with serving(tmp_path / "data", environment=HURRIED, is_forked=False) as node, witness(node):

        async def silent() -> bytes:
            async with raw(node) as client:
                return await client.rest()

        async def half(data: bytes) -> tuple[int, Any]:
            return await ask(node, data)

        started = asyncio.get_running_loop().time()
        silence = asyncio.gather(*(silent() for _ in range(200)))
        heads = asyncio.gather(*(half(b"GET /health HTTP/1.1\r\nhost: x\r\nx-slow:") for _ in range(200)))
        bodies = asyncio.gather(*(half(HEAD + b'content-length: 1000\r\n\r\n{"rec') for _ in range(100)))
        assert set(await silence) == {b""}
        assert {(status, problem["code"]) for status, problem in await heads} == {(408, "request_timeout")}
        assert {(status, problem["code"]) for status, problem in await bodies} == {(408, "request_timeout")}
        assert BODY_SECONDS <= asyncio.get_running_loop().time() - started < BODY_SECONDS + 20
    assert node.errors() == []


async def test_five_thousand_connections_at_once_are_served(node: Serving) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        count = min(CONNECTIONS, hard - 2000)
        before = node.rss_bytes()
        loop = asyncio.get_running_loop()
        waiting = [_Asking(loop) for _ in range(count)]
        for first in range(0, count, 500):
            group = waiting[first : first + 500]
            await asyncio.gather(*(loop.create_connection(one.itself, node.host, node.port) for one in group))
        try:
            async with asyncio.timeout(SECONDS_MAX):
                for _ in range(2):  # all of them are open at the same time
                    for one in waiting:
                        one.ask()
                    answers = await asyncio.gather(*(one.answer for one in waiting))
                    assert {answer.split(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 200 OK"}
            grown = node.rss_bytes() - before
            print(f"{count} of {CONNECTIONS} connections, {grown / count:.0f} bytes each")
            assert grown < 300 << 20
        finally:
            for one in waiting:
                one.transport.abort()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class _Asking(asyncio.Protocol):
    """A connection that asks for its health."""

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._data = b""
        self.answer: asyncio.Future[bytes] = loop.create_future()

    def itself(self) -> "_Asking":
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self) -> None:
        self._data = b""
        self.answer = self._loop.create_future()
        self.transport.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._data.endswith(b"}") and not self.answer.done():
            self.answer.set_result(self._data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_result(b"lost")


# Names

NAMES = [
    "..", "../..", "../../etc/passwd", "%2e%2e", "%2e%2e%2f%2e%2e", "..%2f..%2fescaped", "%252e%252e%252fescaped",
    "..%5c..%5cescaped", "%00", "a%00b", ".", "%2e", ".hidden", "a%2f..%2fb", "%c0%ae%c0%ae", "~", "$HOME", "a%0d%0ab",
]  # fmt: skip


async def test_no_name_in_a_url_leaves_its_place(node: Serving) -> None:
    async with httpx.AsyncClient(base_url=node.url) as http:
        for name in NAMES:
            await check_name(node, http, name)


async def check_name(node: Serving, http: httpx.AsyncClient, name: str) -> None:
    """Wherever it stands, it is refused."""
    places = [
        f"/v1/namespaces/{name}", f"/v1/topics/{name}/x", f"/v1/topics/default/{name}", f"{TOPIC}/subscriptions/{name}",
        f"{TOPIC}/partitions/{name}",
    ]  # fmt: skip
    for place in places:
        for method in ("PUT", "GET", "DELETE"):
            request = f"{method} {place} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            status, problem = await ask(node, request.encode())
            assert status in (400, 404, 405, 422), (method, place, problem)
            assert status != 404 or problem["code"] == "no_such_path", (method, place, problem)
    body = b'{"records": [{"value": "v"}]}'
    for place in (f"/v1/topics/{name}/x", f"/v1/topics/default/{name}", f"{TOPIC}/partitions/{name}"):
        head = f"POST {place}/records HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
        status, problem = await ask(node, head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert status in (400, 404, 405, 422), (place, problem)
    for query in ("namespace", "after"):
        answer = await http.get("/v1/topics", params={query: name})
        assert answer.status_code in (200, 404, 422)


async def test_no_name_in_a_body_or_a_frame_leaves_its_place(node: Serving) -> None:
    async with httpx.AsyncClient(base_url=node.url) as http:
        for name in ("/../../x", "../../x", "/default/../../x", "/default/..", "x"):
            refusal = await http.put("/v1/topics/default/letters", json={"policy": {"dead_letter": name}})
            assert (refusal.status_code, refusal.json()["code"]) == (422, "invalid_name")
    batch = b"\0" * 61
    async with connect(node.websocket_url) as session:
        for topic in ("/../x", "/default/..", "/default/../../x", "../../x", "/default/a/b", "", "/default/\0"):
            requests: list[FromClient] = [
                Publish(1, topic, memoryview(batch)),
                Fetch(1, topic, 0, 0),
                Subscribe(1, 1, topic, "s"),
                Call(1, "create_topic", {"topic": topic, "settings": {}}),
                Call(1, "delete_topic", {"topic": topic}),
            ]
            for request in requests:
                answer = await call(session, request)
                assert isinstance(answer, Failed), request
                assert answer.code == "invalid_name", (request, answer)
        for name in ("..", "../../x", "a/b", "", ".x"):
            for request in (
                Subscribe(1, 1, "/default/orders", name),
                Call(1, "create_subscription", {"topic": "/default/orders", "subscription": name, "settings": {}}),
                Call(1, "create_namespace", {"namespace": name, "policy": {}}),
            ):
                answer = await call(session, request)
                assert isinstance(answer, Failed), request
                assert answer.code == "invalid_name", (request, answer)


async def test_a_session_that_is_gone_in_the_middle_leaves_nothing(node: Serving) -> None:
    for _ in range(20):
        async with raw(node) as client:
            await client.send(HANDSHAKE)
            await client.head()
            await client.send(frame(2, encode_frame(Subscribe(1, 1, "/default/orders", "left", credit=10))))
            await client.send(frame(2, b"x" * 1000, size=1 << 20))
            client.writer.transport.abort()
    async with connect(node.websocket_url) as session:
        # Exclusive: it would be busy if one of them were still there.
        async with asyncio.timeout(SECONDS_MAX):
            while isinstance(await call(session, Subscribe(2, 1, "/default/orders", "left", credit=1)), Failed):
                pass
        with contextlib.suppress(ConnectionClosed):
            await session.close()
