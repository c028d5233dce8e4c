"""From a URL to a client, or to publish/subscribe: over the network, or with a node in this process."""

import sulina.client
from sulina.client import (
    Client,
    ClientOptions,
    Connecting,
    Connector,
    SerializationRegistry,
    SyncClient,
    WebSocketConnector,
    connecting,
)
from sulina.client.connect import OnClose
from sulina.client.websocket import split_urls
from sulina.config import Settings
from sulina.errors import InvalidSettings

MEMORY = "memory:"
_REMOTE = ("http://", "https://", "ws://", "wss://")


def connect(url: str, options: ClientOptions | None) -> Connecting:
    """See `sulina.connect`."""
    if url.startswith(_REMOTE):
        for each in split_urls(url):
            WebSocketConnector(each)  # InvalidSettings at once, not when it is used
        return connecting(None, url=url, options=options)
    if not url or ("://" in url) or (":" in url.split("/")[0] and url != MEMORY):
        raise InvalidSettings(
            f"{url!r} is none of http://HOST:PORT, https://HOST:PORT (or several, with commas between them), memory: "
            f"and a path such as ./data"
        )
    return Connecting(lambda: _start_node(url), url=url, options=options)


class PubSub(sulina.client.PubSub):
    """Publish/subscribe at a URL as `sulina.connect` takes it, or over a client that there is already."""

    def __init__(
        self,
        source: str | Connecting | Client | SyncClient,
        *,
        options: ClientOptions | None = None,
        registry: SerializationRegistry | None = None,
    ) -> None:
        """`options` are those of the client that is made. InvalidSettings when a URL is none."""
        if options is not None and not isinstance(source, str):
            raise InvalidSettings("the client that is given has options of its own")
        super().__init__(connect(source, options) if isinstance(source, str) else source, registry=registry)


async def _start_node(url: str) -> tuple[Connector, OnClose | None]:
    from sulina.node import Node
    from sulina.node.logs import configure_for_a_library

    configure_for_a_library()
    settings = Settings() if url == MEMORY else Settings(data=url)
    node = await Node.start(settings, listen=False, volatile=url == MEMORY)
    return node.connector, node.stop
