"""A TCP proxy that breaks the network between two processes on command, and one for HTTP that breaks single requests.

Each runs in a thread of its own, so that a test may block, on a port that was free. What is switched holds when the
call returns, for connections that exist and for new ones.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

CHUNK_BYTES = 1 << 16
MESSAGE_BYTES_MAX = 64 << 20  # of one HTTP message
START_SECONDS_MAX = 30.0
BROKEN = (OSError, EOFError, IncompleteReadError, LimitOverrunError)


class Flow(StrEnum):
    """What the network does."""

    PASS = "pass"
    CUT = "cut"  # connections are reset, and so is every new one
    BLACKHOLE = "blackhole"  # connections are made, and nothing comes through until it is healed
    DROP_REPLIES = "drop_replies"  # what is asked arrives, what is answered does not


@dataclass(eq=False, slots=True)
class Link:
    """One connection through the proxy."""

    client: StreamWriter
    server: StreamWriter | None = None
    is_torn: bool = False  # bytes are missing: it cannot go on when the network is whole again

    def reset(self) -> None:
        """End it at once, so that both sides see it."""
        for writer in (self.client, self.server):
            if writer is not None and not writer.transport.is_closing():
                connection = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()


class FaultProxy:
    """Between whoever connects to `address` and the server at `target`, both `host:port`. Close it."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self.connections = 0  # that were ever made
        self._flow = Flow.PASS
        self._delay_seconds = 0.0
        self._links: set[Link] = set()
        self._switched = asyncio.Event()
        self._over = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name=f"proxy-{target}", daemon=True)
        self._thread.start()
        assert self._started.wait(START_SECONDS_MAX), "the proxy did not start"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_whole(self) -> bool:
        """Whether everything comes through."""
        return self._flow == Flow.PASS

    # Faults

    def heal(self) -> None:
        """Let everything through again. What a black hole held back arrives late, as it would."""
        self._do(lambda: self._switch(Flow.PASS, 0.0))

    def cut(self) -> None:
        """Reset what there is, and what comes."""
        self._do(lambda: self._switch(Flow.CUT, 0.0))

    def blackhole(self) -> None:
        """Forward nothing, say nothing."""
        self._do(lambda: self._switch(Flow.BLACKHOLE, 0.0))

    def drop_replies(self) -> None:
        """Forward what is asked, and nothing of the answers."""
        self._do(lambda: self._switch(Flow.DROP_REPLIES, 0.0))

    def delay(self, seconds: float) -> None:
        """Forward everything so much later, in each direction."""
        self._do(lambda: self._switch(Flow.PASS, seconds))

    def close(self) -> None:
        """Nothing is left of it."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(START_SECONDS_MAX)
        assert not self._thread.is_alive(), "the proxy did not stop"

    # In the thread of the proxy

    def _do(self, work: Callable[[], None]) -> None:
        """In the loop, and wait for it."""
        assert self._loop is not None

        async def run() -> None:
            work()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(START_SECONDS_MAX)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=CHUNK_BYTES)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._started.set()
        try:
            await self._over.wait()
        finally:
            server.close()
            for link in list(self._links):
                link.reset()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _switch(self, flow: Flow, delay_seconds: float) -> None:
        self._flow, self._delay_seconds = flow, delay_seconds
        for link in list(self._links):
            if flow == Flow.CUT or (link.is_torn and flow != Flow.DROP_REPLIES):
                link.reset()
        self._switched.set()
        self._switched = asyncio.Event()

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        link = Link(writer)
        self._links.add(link)
        self.connections += 1
        try:
            await self._passing()
            if self._flow != Flow.CUT:
                server_reader, link.server = await asyncio.open_connection(*self.target.rsplit(":", 1))
                await self._forward(link, reader, server_reader)
        except BROKEN:
            pass
        except asyncio.CancelledError:
            pass  # the proxy is being closed; asyncio would log it as an error
        finally:
            link.reset()
            self._links.discard(link)

    async def _forward(self, link: Link, reader: StreamReader, server_reader: StreamReader) -> None:
        """Until one of the sides is gone, or both have said that they are done."""
        assert link.server is not None
        tasks = [
            asyncio.create_task(self._pump(link, reader, link.server, is_reply=False)),
            asyncio.create_task(self._pump(link, server_reader, link.client, is_reply=True)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for writer in (link.server, link.client):
            writer.close()
            await writer.wait_closed()

    async def _pump(self, link: Link, reader: StreamReader, writer: StreamWriter, *, is_reply: bool) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._passing()
            if is_reply and self._flow == Flow.DROP_REPLIES:
                link.is_torn = True
                continue
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    async def _passing(self) -> None:
        """Return when something may come through."""
        if self._delay_seconds:
            await asyncio.sleep(self._delay_seconds)
        while self._flow == Flow.BLACKHOLE:
            await self._switched.wait()


class HttpFaultProxy(FaultProxy):
    """For HTTP/1.1 in clear text. It takes requests apart, so that single ones can go wrong."""

    def __init__(self, target: str) -> None:
        self.counts: Counter[str] = Counter()  # requests by method, and faults by name
        self._failures = 0
        self._status = 503
        self._lost_replies = 0
        self._duplicates = 0
        super().__init__(target)

    def fail_next(self, count: int, status: int = 503) -> None:
        """Answer so many requests with this status, without asking the server."""

        def switch() -> None:
            self._failures, self._status = count, status

        self._do(switch)

    def lose_replies(self, count: int) -> None:
        """Have so many changes (PUT, POST, DELETE) done, and reset the connection instead of the answer."""

        def switch() -> None:
            self._lost_replies = count

        self._do(switch)

    def duplicate_puts(self, count: int) -> None:
        """Send so many PUTs twice, as a network that repeats itself; the second answer counts."""

        def switch() -> None:
            self._duplicates = count

        self._do(switch)

    async def _forward(self, link: Link, reader: StreamReader, server_reader: StreamReader) -> None:
        assert link.server is not None
        while request := await read_message(reader):
            method = request.partition(b" ")[0].decode()
            self.counts[method] += 1
            await self._passing()
            if self._failures > 0:
                self._failures -= 1
                self.counts["failed"] += 1
                reply = failure(self._status)
            else:
                is_twice = method == "PUT" and self._duplicates > 0
                self._duplicates -= is_twice
                self.counts["duplicated"] += is_twice
                for _ in range(1 + is_twice):
                    link.server.write(request)
                    await link.server.drain()
                    reply = await read_message(server_reader, of=method)
                    if not reply:  # it has let go of a connection that was idle
                        return
            await self._passing()
            if self._lost_replies > 0 and method in ("PUT", "POST", "DELETE"):
                self._lost_replies -= 1
                self.counts["lost"] += 1
                return
            if self._flow == Flow.DROP_REPLIES:
                link.is_torn = True
                continue
            link.client.write(reply)
            await link.client.drain()


def failure(status: int) -> bytes:
    """What an object store says when it cannot."""
    body = b"<Error><Code>ServiceUnavailable</Code><Message>by order of a test</Message></Error>"
    head = f"HTTP/1.1 {status} Failed\r\ncontent-type: application/xml\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def read_message(reader: StreamReader, of: str | None = None) -> bytes:
    """A whole request, or the reply `of` a method; nothing at the end. One of BROKEN."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except IncompleteReadError as error:
        if error.partial:
            raise
        return b""
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if of is not None:
        status = int(first.split()[1])
        if status == 100:  # the real one follows
            return await read_message(reader, of)
        if of == "HEAD" or status in (204, 304):
            return head
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return head + await _read_chunks(reader)
    size_bytes = int(headers.get("content-length", "0"))
    assert size_bytes <= MESSAGE_BYTES_MAX, f"{size_bytes} bytes in one message"
    return head + await reader.readexactly(size_bytes)


async def _read_chunks(reader: StreamReader) -> bytes:
    """A body in chunks, as it came."""
    body = b""
    while len(body) <= MESSAGE_BYTES_MAX:
        line = await reader.readuntil(b"\r\n")
        size_bytes = int(line.split(b";")[0], 16)
        body += line
        if size_bytes == 0:
            while (trailer := await reader.readuntil(b"\r\n")) != b"\r\n":
                body += trailer
            return body + b"\r\n"
        body += await reader.readexactly(size_bytes + 2)
    raise AssertionError("a message without end")
