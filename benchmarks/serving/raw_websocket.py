"""The least that speaks WebSocket: frames in, frames out, nothing else, so that a load costs less than its server.

Its mask is all zeros, which leaves the bytes as they are. Not for use among strangers.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from sulina.wire.frames import Failed, FromClient, FromNode, decode_from_node, encode_frame

_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10
_NO_MASK = bytes(4)


def message(payload: bytes, opcode: int = _BINARY) -> bytes:
    """A payload as it goes over the wire."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | opcode, 0x80 | size))
    elif size < 1 << 16:
        head = bytes((0x80 | opcode, 0x80 | 126)) + size.to_bytes(2)
    else:
        head = bytes((0x80 | opcode, 0x80 | 127)) + size.to_bytes(8)
    return head + _NO_MASK + payload


class RawWebSocket(asyncio.Protocol):
    """One connection. `on_frame` is called for every frame that comes."""

    transport: asyncio.Transport

    def __init__(self, on_frame: Callable[[FromNode], None]) -> None:
        self.on_frame = on_frame
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._buffer = bytearray()
        self._needed = 2

    @classmethod
    async def connect(cls, host: str, port: int, on_frame: Callable[[FromNode], None]) -> "RawWebSocket":
        """With the handshake done."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(on_frame), host, port)
        await connection.opened
        return connection

    def send(self, *frames: FromClient) -> None:
        """Never waits: whoever sends counts what is under way."""
        self.transport.write(b"".join(message(encode_frame(frame)) for frame in frames))

    async def close(self) -> None:
        """Without a goodbye."""
        self.transport.abort()
        await self.lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(
            b"GET /v1/ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )

    def connection_lost(self, error: Exception | None) -> None:
        """Whoever waits for an answer must not wait for ever."""
        if not self.opened.done():
            self.opened.set_exception(error or ConnectionResetError("closed before the handshake"))
        self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Frames, or parts of them."""
        buffer = self._buffer
        buffer += data
        if not self.opened.done():
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            assert buffer.startswith(b"HTTP/1.1 101"), bytes(buffer[:200])
            del buffer[: end + 4]
            self.opened.set_result(None)
        position = 0
        while len(buffer) - position >= self._needed:
            start, size = _measured(buffer, position)
            self._needed = start - position + size
            if len(buffer) - position < self._needed:
                break
            payload = bytes(memoryview(buffer)[start : start + size])
            opcode = buffer[position] & 0x0F
            position, self._needed = start + size, 2
            self._take(opcode, payload)
        del buffer[:position]

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == _BINARY:
            frame = decode_from_node(payload)
            if isinstance(frame, Failed):
                raise frame.error()
            self.on_frame(frame)
        elif opcode == _PING:
            self.transport.write(message(payload, _PONG))
        else:
            assert opcode == _CLOSE, opcode
            self.transport.abort()


def _measured(buffer: bytearray, position: int) -> tuple[int, int]:
    """Where the payload starts, and its size. A head that has not come whole counts as one of ten bytes."""
    size = buffer[position + 1]
    if size < 126:
        return position + 2, size
    extra = 2 if size == 126 else 8
    start = position + 2 + extra
    return start, int.from_bytes(buffer[position + 2 : start]) if len(buffer) >= start else 8
