"""Publish/subscribe where every topic is an ACID log and every log is a table.

```python
import sulina

with sulina.connect_sync("memory:") as client:  # or sulina.connect("http://127.0.0.1:8080"), in a coroutine
    client.admin.create_topic("/default/orders")
    client.publish("/default/orders", {"order": 1}).raise_for_status()
```
"""

from typing import TYPE_CHECKING, Any

from sulina.errors import SulinaError

if TYPE_CHECKING:
    from sulina.client import (
        Admin,
        BatchingRules,
        Client,
        ClientOptions,
        Consumer,
        DeliveryPolicy,
        Events,
        Handler,
        IdentitySubscriber,
        Message,
        OnFailure,
        PartitionBehavior,
        Producer,
        ProducerReport,
        PublishAck,
        PublishOptions,
        PublishPart,
        PublishStatus,
        Reader,
        Receipt,
        Record,
        RejectedPublishWarning,
        RejectReason,
        Rest,
        SerializationRegistry,
        SplitFailed,
        Subscriber,
        SyncAdmin,
        SyncClient,
        SyncConsumer,
        SyncEvents,
        SyncProducer,
        SyncReader,
        SyncReceipt,
        SyncSubscriber,
    )

__all__ = [
    "Admin",
    "BatchingRules",
    "Client",
    "ClientOptions",
    "Consumer",
    "DeliveryPolicy",
    "Events",
    "Handler",
    "IdentitySubscriber",
    "Message",
    "OnFailure",
    "PartitionBehavior",
    "Producer",
    "ProducerReport",
    "PublishAck",
    "PublishOptions",
    "PublishPart",
    "PublishStatus",
    "Reader",
    "Receipt",
    "Record",
    "RejectReason",
    "RejectedPublishWarning",
    "Rest",
    "SerializationRegistry",
    "SplitFailed",
    "Subscriber",
    "SulinaError",
    "SyncAdmin",
    "SyncClient",
    "SyncConsumer",
    "SyncEvents",
    "SyncProducer",
    "SyncReader",
    "SyncReceipt",
    "SyncSubscriber",
    "connect",
    "connect_sync",
]


def connect(
    url: str, *, options: "ClientOptions | None" = None, registry: "SerializationRegistry | None" = None
) -> "Client":
    """Return the client for a node, to be entered (`async with sulina.connect(url) as client:`) or awaited.

    `http://host:port` is a node elsewhere; of a cluster, name one broker or several with commas between them. `memory:`
    runs a node in this process that stores its data in memory, and a path (`./data`) one that stores it there.
    `registry` writes and reads payloads of your own types.

    Raises:
        InvalidSettings: the URL is not valid.
    """
    from sulina._connect import connect

    return connect(url, options, registry)


def connect_sync(
    url: str, *, options: "ClientOptions | None" = None, registry: "SerializationRegistry | None" = None
) -> "SyncClient":
    """Connect to a node as `connect` does, and return a client whose methods wait; any thread may call them.

    Use it with `with`, or call its `close`.

    Raises:
        InvalidSettings: the URL is not valid.
        Disconnected: the node does not answer.
    """
    from sulina._connect import connect_sync

    return connect_sync(url, options, registry)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """Load the rest when it is first used: `sulina --help` does not need all of it."""
    if name == "__version__":
        from importlib.metadata import version

        return version("sulina")
    if name in __all__:
        from sulina import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
