"""Frames over a WebSocket: the connection to a node elsewhere."""

import errno
import socket
import ssl
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus, InvalidURI, WebSocketException
from websockets.frames import CloseCode

from sulina.client.connection import Connection
from sulina.core.formats import SESSION
from sulina.errors import Disconnected, InvalidSettings, ProtocolError
from sulina.wire.frames import FRAME_BYTES_MAX, Failed, FromClient, FromNode, decode_from_node, encode_frame

PATH: Final = "/v1/ws"
PROTOCOL: Final = f"protocol={SESSION.number}"  # how the node learns which frames we speak
OPEN_SECONDS: Final = 10.0
PING_SECONDS: Final = 20.0  # a half-open connection is noticed within twice this
CLOSE_SECONDS: Final = 2.0
FRAMES_WAITING_MAX: Final = 64  # received and not yet looked at: then the node is no longer read
WRITE_BYTES_WAITING_MAX: Final = 1 << 20  # sent and not yet taken by the network: then `send` waits

_NO_TLS: Final = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}  # how OpenSSL says it
_NOT_NOW: Final = {HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}  # a node that starts or stops answers 403
_TAKES_NONE: Final = "the node, or a proxy before it, takes no connections now"
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


def split_urls(urls: str) -> list[str]:
    """Return one or several URLs that are separated by commas.

    Raises:
        InvalidSettings: there is no URL.
    """
    found = list(dict.fromkeys(url.strip() for url in urls.split(",") if url.strip()))
    if not found:
        raise InvalidSettings(f"{urls!r} is not the URL of a node: it must be like http://127.0.0.1:8080")
    return found


class WebSocketConnector:
    """Connects to the node at an HTTP URL."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            is_good = parts.scheme in _SCHEMES and parts.hostname and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good:
            near = f"; did you mean http://{url}?" if url and "://" not in url else ""
            raise InvalidSettings(f"{url!r} is not the URL of a node: it must be like http://127.0.0.1:8080{near}")
        self.url = url
        path = parts.path.rstrip("/").removesuffix(PATH) + PATH
        self.websocket_url = urlunsplit((_SCHEMES[parts.scheme], parts.netloc, path, PROTOCOL, ""))

    async def __call__(self) -> Connection:
        """Open a connection.

        Raises:
            Disconnected: the node cannot be reached.
        """
        try:
            connection = await connect(
                self.websocket_url,
                max_size=FRAME_BYTES_MAX,
                max_queue=FRAMES_WAITING_MAX,
                write_limit=WRITE_BYTES_WAITING_MAX,
                compression=None,
                open_timeout=OPEN_SECONDS,
                ping_interval=PING_SECONDS,
                ping_timeout=PING_SECONDS,
                close_timeout=CLOSE_SECONDS,
                proxy=None,
            )
        except InvalidURI as error:
            raise InvalidSettings(f"{self.url!r} is not the URL of a node: {error}") from None
        except ssl.SSLError as error:
            if error.reason in _NO_TLS:
                plain = "http" + self.url.removeprefix("https").removeprefix("wss")
                raise InvalidSettings(f"{self.url} answers without TLS: it speaks http, so use {plain}") from None
            raise Disconnected(url=self.url, reason=str(error)) from error
        except InvalidStatus as error:
            raise Disconnected(url=self.url, reason=_refusal(error.response.status_code)) from None
        except InvalidMessage as error:
            raise Disconnected(url=self.url, reason=f"what listens there is not a node ({error})") from None
        except AssertionError:
            # websockets asserts that nobody answers and hangs up before it has asked, as a node with too many
            # connections does.
            raise Disconnected(url=self.url, reason=f"{_TAKES_NONE}: it hung up at once") from None
        except (OSError, TimeoutError, EOFError, WebSocketException) as error:
            raise Disconnected(url=self.url, reason=_reason(error)) from None
        return WebSocketConnection(connection, self.url)


def _refusal(status: int) -> str:
    """Return why there is no WebSocket, by the HTTP status of the answer."""
    if status in _NOT_NOW or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return f"{_TAKES_NONE} (HTTP {status})"
    return f"what listens there is not a node, or the URL has a path (HTTP {status})"


def _reason(error: Exception) -> str:
    """Return why there is no connection. Where a host has several addresses, only the text has the error's number."""
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return "nobody listens there"
    if isinstance(error, socket.gaierror):
        return "there is no host of that name"
    return str(error) or type(error).__name__


class WebSocketConnection:
    """A `Connection` over one WebSocket."""

    def __init__(self, socket: ClientConnection, url: str) -> None:
        self._socket = socket
        self._url = url

    async def send(self, frame: FromClient) -> None:
        """Send one binary message."""
        try:
            await self._socket.send(encode_frame(frame))
        except ConnectionClosed as error:
            raise self._lost(error) from error

    async def receive(self) -> FromNode:
        """Return one binary message.

        Raises:
            Disconnected: the connection has ended.
            ProtocolError: it is not a frame.
        """
        try:
            data = await self._socket.recv()
        except ConnectionClosed as error:
            if error.rcvd is not None and error.rcvd.code == CloseCode.PROTOCOL_ERROR:
                return Failed(0, ProtocolError.code, f"{self._url} hung up: {error.rcvd.reason}")
            raise self._lost(error) from error
        if not isinstance(data, bytes):
            raise ProtocolError(f"{self._url} sent text instead of a frame")
        return decode_from_node(data)

    async def close(self) -> None:
        """Say goodbye, for a moment; then drop it."""
        await self._socket.close()

    def _lost(self, error: ConnectionClosed) -> Disconnected:
        return Disconnected(url=self._url, reason=str(error))
