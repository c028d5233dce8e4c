"""A connection in the making: awaited, entered with `async with`, or entered with `with` for the client for threads."""

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any

from sulina.client.client import Client
from sulina.client.connection import Connector
from sulina.client.options import ClientOptions
from sulina.client.sync import SyncClient

OnClose = Callable[[], Awaitable[None]]
# Runs in the loop where the client lives: it may start a node there, which `OnClose` stops again.
# No connector: the client finds its way by the URL.
Factory = Callable[[], Awaitable[tuple[Connector | None, OnClose | None]]]


class Connecting:
    """Nothing happens until it is used, and each use is a client of its own.

    ```python
    async with sulina.connect(url) as client:
        ...
    client = await sulina.connect(url)  # to be closed by `await client.close()`
    with sulina.connect(url) as client:
        ...  # a SyncClient
    client = sulina.connect(url).sync()  # to be closed by `client.close()`
    ```
    """

    def __init__(self, factory: Factory, *, url: str, options: ClientOptions | None = None) -> None:
        self._factory = factory
        self._url = url
        self._options = options
        self._entered: list[Client | SyncClient] = []

    async def open(self) -> Client:
        """A client that is connected. Disconnected, and whatever the factory raises."""
        connector, on_close = await self._factory()
        client = Client(connector, options=self._options, url=self._url, on_close=on_close)
        try:
            return await client.open()
        except BaseException:
            await client.close()
            raise

    def sync(self) -> SyncClient:
        """The client for threads, connected."""
        return SyncClient(self.open)

    def __await__(self) -> Generator[Any, None, Client]:
        return self.open().__await__()

    async def __aenter__(self) -> Client:
        client = await self.open()
        self._entered.append(client)
        return client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client = self._entered.pop()
        assert isinstance(client, Client)
        await client.close()

    def __enter__(self) -> SyncClient:
        client = self.sync()
        self._entered.append(client)
        return client

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client = self._entered.pop()
        assert isinstance(client, SyncClient)
        client.close()


def connecting(connector: Connector | None, *, url: str, options: ClientOptions | None = None) -> Connecting:
    """For a connector that needs nothing to be started or stopped, such as a WebSocketConnector.

    Without one, `url` is where brokers are, with commas between them.
    """

    async def factory() -> tuple[Connector | None, OnClose | None]:
        return connector, None

    return Connecting(factory, url=url, options=options)
