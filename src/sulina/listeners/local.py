"""A connection within the process: the same session, without bytes in between."""

import asyncio
import itertools

from sulina.broker.broker import Broker
from sulina.errors import Disconnected
from sulina.listeners.session import ServerSession
from sulina.wire.frames import FromClient, FromNode

URL = "in-process"
_numbers = itertools.count(1)


class LocalConnection:
    """What `client.Connection` asks for."""

    def __init__(self, broker: Broker) -> None:
        self._session = ServerSession(broker, name=f"local-{next(_numbers)}")
        self._turn = asyncio.Lock()
        self._is_closed = False

    async def send(self, frame: FromClient) -> None:
        """Hand over a frame, after those before it; wait while the session has too much under way.

        Raises:
            Disconnected: the connection is closed.
        """
        async with self._turn:
            if self._is_closed:
                raise Disconnected(url=URL, reason="the connection was closed")
            await self._session.handle(frame)

    async def receive(self) -> FromNode:
        """Return the next frame from the node.

        Raises:
            Disconnected: the connection is closed.
        """
        frame = await self._session.outbox.take()
        if frame is None:
            raise Disconnected(url=URL, reason="the connection was closed")
        return frame

    async def close(self) -> None:
        """Leave."""
        self._is_closed = True
        await asyncio.shield(self._session.close())
