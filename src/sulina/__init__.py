"""Publish/subscribe where every topic is an ACID log and every log is a table.

```python
import sulina

async with sulina.connect("http://127.0.0.1:8080") as client:
    await client.publish("/default/orders", {"order": 1})
```
"""

from typing import TYPE_CHECKING, Any

from sulina.errors import SulinaError

if TYPE_CHECKING:
    from sulina._connect import PubSub
    from sulina.client import (
        Client,
        ClientOptions,
        Connecting,
        Delivered,
        DeliveryPolicy,
        IdentitySubscriber,
        Message,
        PartitionBehavior,
        PublishAck,
        PublishOptions,
        PublishPart,
        PublishStatus,
        PubSubMessage,
        Received,
        RejectReason,
        SerializationRegistry,
        SplitFailed,
        Subscriber,
        SyncClient,
        SyncPubSub,
    )

__all__ = [
    "Client",
    "ClientOptions",
    "Connecting",
    "Delivered",
    "DeliveryPolicy",
    "IdentitySubscriber",
    "Message",
    "PartitionBehavior",
    "PubSub",
    "PubSubMessage",
    "PublishAck",
    "PublishOptions",
    "PublishPart",
    "PublishStatus",
    "Received",
    "RejectReason",
    "SerializationRegistry",
    "SplitFailed",
    "Subscriber",
    "SulinaError",
    "SyncClient",
    "SyncPubSub",
    "connect",
]


def connect(url: str, *, options: "ClientOptions | None" = None) -> "Connecting":
    """A client for the node at `url`, to be awaited, or entered with `async with` or with `with` (for threads).

    `http://host:port` is a node elsewhere; of a cluster name one broker or several, with commas between them. `memory:`
    is a node in this process that keeps its data while it lives, and a path (`./data`) one that keeps it there.
    InvalidSettings for anything else.
    """
    from sulina._connect import connect as make

    return make(url, options)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """The rest is loaded when it is first used: whoever asks for help must not wait for all of it."""
    if name == "__version__":
        from importlib.metadata import version

        return version("sulina")
    if name == "PubSub":
        from sulina._connect import PubSub

        return PubSub
    if name in __all__:
        from sulina import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
