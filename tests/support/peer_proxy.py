"""A proxy before the port on which a broker listens for others. It knows who calls, so that one pair can be parted."""

from asyncio import StreamReader

from sulina.wire.peer import LENGTH, Hello, decode_peer
from tests.support.fault_proxy import FaultProxy, Link


class PeerProxy(FaultProxy):
    """Besides what every proxy can break, the connections of single callers."""

    def __init__(self, target: str) -> None:
        self._parted: set[str] = set()
        self._callers: dict[Link, str] = {}
        super().__init__(target)

    def part(self, broker_id: str) -> None:
        """Reset its connections, and every new one."""

        def switch() -> None:
            self._parted.add(broker_id)
            for link in [link for link, caller in self._callers.items() if caller == broker_id]:
                link.reset()

        self._do(switch)

    def join(self, broker_id: str) -> None:
        """Let it through again."""
        self._do(lambda: self._parted.discard(broker_id))

    async def _forward(self, link: Link, reader: StreamReader, server_reader: StreamReader) -> None:
        assert link.server is not None
        length = await reader.readexactly(LENGTH.size)
        body = await reader.readexactly(LENGTH.unpack(length)[0])
        hello = decode_peer(body)
        assert isinstance(hello, Hello), "whoever calls says hello first"
        await self._passing()
        if hello.broker_id in self._parted:
            return
        self._callers[link] = hello.broker_id
        try:
            link.server.write(length + body)
            await super()._forward(link, reader, server_reader)
        finally:
            del self._callers[link]
