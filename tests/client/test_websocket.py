"""Frames over a real WebSocket, against a server that does what it is told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from sulina.client import Client, WebSocketConnector
from sulina.errors import Disconnected, InvalidSettings, ProtocolError
from sulina.wire.frames import FRAME_BYTES_MAX, Answer, Call, Publish, decode_from_client, encode_frame
from sulina.wire.messages import NodeInfo

pytestmark = pytest.mark.real_time
INFO = NodeInfo(broker_id="a", version="1", is_ready=True, topics=0, connections=1, uptime_seconds=1.0)

Handler = Callable[[ServerConnection], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    async def quiet(socket: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await handler(socket)

    async with serve(quiet, "127.0.0.1", 0, max_size=FRAME_BYTES_MAX, close_timeout=1) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"http://127.0.0.1:{port}"


async def answer(socket: ServerConnection) -> None:
    """Answer every call with INFO."""
    assert socket.request is not None
    assert socket.request.path == "/v1/ws?protocol=1"
    async for data in socket:
        assert isinstance(data, bytes)
        await socket.send(encode_frame(Answer(decode_from_client(data).id, INFO)))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("url", "websocket_url"),
    [
        ("http://127.0.0.1:8080", "ws://127.0.0.1:8080/v1/ws?protocol=1"),
        ("https://node.example/", "wss://node.example/v1/ws?protocol=1"),
        ("http://[::1]:80", "ws://[::1]:80/v1/ws?protocol=1"),
        ("https://proxy.example/sulina", "wss://proxy.example/sulina/v1/ws?protocol=1"),
        ("ws://a/v1/ws", "ws://a/v1/ws?protocol=1"),
    ],
)
def test_a_url_of_a_node_is_that_of_its_websocket(url: str, websocket_url: str) -> None:
    assert WebSocketConnector(url).websocket_url == websocket_url


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://a", "http://", "memory:"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidSettings, match="must be like http"):
        WebSocketConnector(url)


async def test_requests_and_answers_pass(socket_answers: str) -> None:
    async with Client(WebSocketConnector(socket_answers), url=socket_answers) as client:
        assert await asyncio.gather(*(client.admin.info() for _ in range(100))) == [INFO] * 100


@pytest.fixture
async def socket_answers() -> AsyncIterator[str]:
    async with serving(answer) as url:
        yield url


async def test_frames_of_every_size_pass(socket_answers: str) -> None:
    connection = await WebSocketConnector(socket_answers)()
    for size in (0, 1 << 10, 1 << 20, 20 << 20):
        await connection.send(Publish(7, "/a/b", memoryview(bytes(size))))
        frame = await connection.receive()
        assert isinstance(frame, Answer)
        assert frame.id == 7
    await connection.close()
    with pytest.raises(Disconnected):
        await connection.send(Call(1, "info"))
    with pytest.raises(Disconnected):
        await connection.receive()


async def test_nobody_there_is_disconnected_with_the_reason() -> None:
    async with serving(answer) as url:
        pass
    with pytest.raises(Disconnected, match=url):
        await Client(WebSocketConnector(url), url=url)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (200, "is not a node"),
        (404, "is not a node"),
        (403, "takes no connections now"),
        (429, "takes no connections now"),
        (502, "takes no connections now"),
    ],
)
async def test_a_server_that_answers_in_http_is_told_by_its_status(status: int, told: str) -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d So\r\ncontent-length: 0\r\n\r\n" % status)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Disconnected, match=rf"{told}.*\(HTTP {status}\)"):
            await WebSocketConnector(url)()


async def test_a_node_that_hangs_up_is_come_back_to() -> None:
    connections = 0

    async def once(socket: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        if connections < 3:
            await socket.recv()
            await socket.close(1001, "going away")
        else:
            await answer(socket)

    async with serving(once) as url, Client(WebSocketConnector(url), url=url) as client:
        assert await client.admin.info() == INFO
        assert connections == 3


async def test_what_is_not_a_frame_is_a_protocol_error() -> None:
    async def nonsense(socket: ServerConnection) -> None:
        await socket.send("text")
        await socket.send(b"\xc1")
        await socket.wait_closed()

    async with serving(nonsense) as url:
        connection = await WebSocketConnector(url)()
        for _ in range(2):
            with pytest.raises(ProtocolError):
                await connection.receive()
        await connection.close()


async def test_a_protocol_error_is_not_repeated() -> None:
    connections = 0

    async def refuse(socket: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await socket.recv()
        await socket.close(1002, "not a frame")

    async with serving(refuse) as url, Client(WebSocketConnector(url), url=url) as client:
        with pytest.raises(ProtocolError, match="not a frame"):
            await client.admin.info()
        assert connections == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://[::1", "http://h:8x", "http://h:0", "http://"])
def test_a_text_that_is_not_a_url_is_said(url: str) -> None:
    with pytest.raises(InvalidSettings, match="is not the URL of a node"):
        WebSocketConnector(url)
