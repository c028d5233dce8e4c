"""What the client needs of a connection: frames out, frames in. A WebSocket is one, a node in this process another."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from sulina.wire.frames import FromClient, FromNode


class Connection(Protocol):
    """One session with a node, until it is lost or closed. Frames arrive in the order in which they were sent."""

    async def send(self, frame: FromClient) -> None:
        """Return when the frame is on its way; waits under back-pressure. Any task may call it. Disconnected."""
        ...

    async def receive(self) -> FromNode:
        """The next frame; one task calls it. Disconnected at the end, ProtocolError for what is not a frame."""
        ...

    async def close(self) -> None:
        """Let go, also of a connection that is lost. No error."""
        ...


# Called again after every loss. It raises an error of the tree when there is no connection to be had.
Connector = Callable[[], Awaitable[Connection]]
