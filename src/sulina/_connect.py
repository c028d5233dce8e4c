"""How a URL becomes a client: over the network, or with a node in this process."""

from typing import TYPE_CHECKING

from sulina.client import Client, ClientOptions, Connection, SerializationRegistry, SyncClient, WebSocketConnector
from sulina.client.websocket import split_urls
from sulina.config import Settings
from sulina.errors import InvalidSettings

if TYPE_CHECKING:
    from sulina.node import Node

MEMORY = "memory:"
_REMOTE = ("http://", "https://", "ws://", "wss://")


def connect(url: str, options: ClientOptions | None, registry: SerializationRegistry | None) -> Client:
    """Make a client for an event loop.

    Raises:
        InvalidSettings: the URL is not valid.
    """
    if url.startswith(_REMOTE):
        for each in split_urls(url):
            WebSocketConnector(each)  # checks it
        return Client(url=url, options=options, registry=registry)
    if not url or ("://" in url) or (":" in url.split("/")[0] and url != MEMORY):
        near = f"; did you mean http://{url}?" if url and "://" not in url else ""
        raise InvalidSettings(
            f"cannot connect to {url!r}: use http://HOST:PORT or https://HOST:PORT (several with commas between them), "
            f"memory:, or a path such as ./data{near}"
        )
    local = _LocalNode(url)
    return Client(local.connect, options=options, registry=registry, url=url, on_close=local.stop)


def connect_sync(url: str, options: ClientOptions | None, registry: SerializationRegistry | None) -> SyncClient:
    """Make a client for threads.

    Raises:
        InvalidSettings: the URL is not valid.
        Disconnected: the node does not answer.
    """

    async def open_client() -> Client:
        return await connect(url, options, registry)

    return SyncClient(open_client)


class _LocalNode:
    """A node in this process, started by the first connection to it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._node: Node | None = None

    async def connect(self) -> Connection:
        if self._node is None:
            from sulina.node import Node  # clients of nodes elsewhere do without
            from sulina.node.logs import configure_for_a_library

            configure_for_a_library()
            is_volatile = self._url == MEMORY
            settings = Settings() if is_volatile else Settings(data=self._url)
            self._node = await Node.start(settings, listen=False, volatile=is_volatile)
        return await self._node.connector()

    async def stop(self) -> None:
        if self._node is not None:
            await self._node.stop()
