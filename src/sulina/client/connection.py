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
        """Return the next frame; one task calls it.

        Raises:
            Disconnected: the connection has ended.
            ProtocolError: something came that is not a frame.
        """
        ...

    async def close(self) -> None:
        """Close it, also if it is lost. It raises nothing."""
        ...


# Called again after every loss. It raises an error of the tree when there is no connection to be had.
Connector = Callable[[], Awaitable[Connection]]
