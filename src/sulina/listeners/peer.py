"""The connections to the other brokers of the cluster, over TCP or TLS.

- There is one connection for each pair. The broker whose name sorts first dials, for as long as the other is a member.
- A connection counts from a hello that fits, both ways. A newer one of the same broker replaces the one before.
- A connection that is silent, or does not take what it is sent, is ended. The side that dialled dials again.
- One sweep over all of them, a few times a second, keeps the times: a frame costs no timer.
"""

import asyncio
import random
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from sulina.broker.pubsub.peers import Loopback, PeerListener
from sulina.core.backoff import Backoff
from sulina.core.formats import PEER
from sulina.errors import NewerFormat, ProtocolError
from sulina.listeners.listening_socket import bound_socket
from sulina.listeners.peer_link import PeerLimits, PeerLink, PeerStats
from sulina.listeners.peer_requests import Answers, PeerRequests, refuse_requests
from sulina.wire.peer import PROTOCOL, AnyPeerFrame, Hello, PeerAnswer, PeerCall, PeerFailed, PeerPublish, PeerRequest

BACKLOG = 128
SWEEPS = 4  # in the shortest of the times that are kept

_logger: structlog.stdlib.BoundLogger = structlog.get_logger("sulina.peer")

__all__ = ["PeerLimits", "PeerNetwork", "PeerStats"]


class PeerNetwork:
    """`broker.pubsub.peers.PeerConnections` on a network. `listen`, `start`, `set_members` as they change, `close`."""

    def __init__(
        self,
        broker_id: str,
        started_ms: int,
        *,
        limits: PeerLimits | None = None,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        rng: random.Random | None = None,
        answer: Answers = refuse_requests,
    ) -> None:
        """Prepare connections; nothing is opened yet.

        `server_tls` is for brokers that dial this one, `client_tls` for those that it dials; None: in clear text.
        `answer` returns the results of requests of other brokers.
        """
        self.broker_id = broker_id
        self.started_ms = started_ms
        self.limits = limits or PeerLimits()
        self.port = 0  # known once it has started
        self._server_tls, self._client_tls = server_tls, client_tls
        self._rng = rng or random.Random()
        self._loopback = Loopback(broker_id)
        self._listener: PeerListener | None = None
        self._server: asyncio.Server | None = None
        self._members: dict[str, tuple[str, int]] = {}
        self._stats: dict[str, PeerStats] = {}  # of the members
        self._dials: dict[str, asyncio.Task[None]] = {}  # of those whom we dial
        self._tasks: set[asyncio.Task[None]] = set()  # all that dial, also brokers that are not members any more
        self._links: set[PeerLink] = set()  # all that are connected
        self._strangers: set[PeerLink] = set()  # of them, those who called and have not said hello
        self._up: dict[str, PeerLink] = {}
        self._requests = PeerRequests(self, answer, first_id=started_ms << 20)  # not ids of this broker's life before
        self._turned_away = 0  # strangers, since the last sweep
        self._sweeping: asyncio.TimerHandle | None = None
        self._swept_at = 0.0
        self._is_closed = False

    # For those who use it

    def listen(self, listener: PeerListener) -> None:
        """Set who is told of frames and connections; called before anything is connected."""
        self._listener = listener
        self._loopback.listen(listener)

    async def start(self, host: str, port: int) -> None:
        """Listen for connections; port 0 is any that is free.

        Raises:
            OSError: the address is taken, or does not belong to this machine.
        """
        assert self._listener is not None, "nobody listens"
        loop = asyncio.get_running_loop()
        listener = await bound_socket(host, port)
        try:
            self._server = await loop.create_server(
                lambda: PeerLink(self, dialled=None),
                sock=listener,
                ssl=self._server_tls,
                ssl_handshake_timeout=None if self._server_tls is None else self.limits.hello_seconds,
                backlog=BACKLOG,
            )
        except BaseException:
            listener.close()
            raise
        self.port = listener.getsockname()[1]
        self._swept_at = loop.time()
        self._sweep_later()

    def set_members(self, urls: Mapping[str, tuple[str, int]]) -> None:
        """Set the brokers that are members now, each with the host and port where it listens for others.

        Who is gone is disconnected; who has another address is dialled there. This broker itself may be among them.
        """
        assert self._server is not None, "it has not started"
        if self._is_closed:
            return
        for broker_id in [*self._members]:
            if broker_id not in urls:
                del self._members[broker_id]
                self._hang_up(broker_id, "it is not a member any more")
                del self._stats[broker_id]
        for broker_id, address in urls.items():
            if broker_id == self.broker_id or self._members.get(broker_id) == address:
                continue
            self._members[broker_id] = address
            self._stats.setdefault(broker_id, PeerStats())
            if self.broker_id < broker_id:
                self._hang_up(broker_id, "its address has changed")
                task = asyncio.get_running_loop().create_task(self._dial(broker_id, address), name=f"dial-{broker_id}")
                self._dials[broker_id] = task
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def is_up(self, broker_id: str) -> bool:
        """Return whether there is a connection, as far as is known; with this broker itself there always is."""
        link = self._up.get(broker_id)
        return broker_id == self.broker_id if link is None else not link.is_over

    def has_room(self, broker_id: str) -> bool:
        """Return whether a broker is connected and little enough waits. Once False, it is so until `room` is told."""
        link = self._up.get(broker_id)
        return broker_id == self.broker_id if link is None else not link.is_over and not link.is_full

    def send(self, broker_id: str, frame: AnyPeerFrame) -> bool:
        """Send a frame without waiting; return False if there is no connection. It may be lost with the connection."""
        link = self._up.get(broker_id)
        return self._loopback.send(broker_id, frame) if link is None else link.send(frame)

    async def ask(self, broker_id: str, request: Callable[[int], PeerRequest]) -> Any:
        """Send a request, made with the number that it gets, and return its result. The caller bounds the time.

        Raises:
            NotServing: there is no connection, or too much waits to be sent. Nothing was sent.
            Disconnected: the connection was lost before the answer came, so the outcome is unknown.
            SulinaError: the other broker refused.
        """
        assert broker_id != self.broker_id, "a broker answers itself without a connection"
        return await self._requests.ask(broker_id, request)

    def stats(self, broker_id: str) -> PeerStats:
        """Return the counts of a broker; all are zero for one that is not a member."""
        link = self._up.get(broker_id)
        return replace(
            self._stats.get(broker_id) or PeerStats(), waiting_bytes=0 if link is None else link.waiting_bytes
        )

    async def close(self) -> None:
        """Close all connections; for a moment, frames that wait are still sent. A second call does nothing."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._server is not None:
            self._server.close()
        links = list(self._links)
        for link in links:
            link.finish("this broker is closing")
            self._down(link)
        for task in self._dials.values():
            task.cancel()
        try:
            async with asyncio.timeout(self.limits.close_seconds):
                for link in links:
                    await link.lost.wait()
        except TimeoutError:
            for link in links:
                link.abort()
        await asyncio.gather(*self._tasks, *(link.lost.wait() for link in links), return_exceptions=True)
        await self._requests.close()
        if self._server is not None:
            await self._server.wait_closed()

    # Dialling

    async def _dial(self, broker_id: str, address: tuple[str, int]) -> None:
        """Connect to a broker again and again, for as long as it is a member."""
        limits = self.limits
        loop = asyncio.get_running_loop()
        backoff, told = Backoff(limits.redial_seconds_min, limits.redial_seconds_max, self._rng.random), ""
        while True:
            link = PeerLink(self, dialled=broker_id)
            begun = loop.time()
            reason = await self._call(link, address)
            if link.is_up:
                told = ""
                if loop.time() - begun > limits.redial_seconds_max:
                    backoff.reset()
            elif reason != told:  # once, not every time
                told = reason
                _logger.warning("peer_unreachable", peer=broker_id, host=address[0], port=address[1], reason=reason)
            await asyncio.sleep(backoff.next())

    async def _call(self, link: PeerLink, address: tuple[str, int]) -> str:
        """Open one connection, wait for its end, and return why it ended."""
        host, port = address
        try:
            async with asyncio.timeout(self.limits.hello_seconds):
                await asyncio.get_running_loop().create_connection(
                    lambda: link,
                    host,
                    port,
                    ssl=self._client_tls,
                    server_hostname=None if self._client_tls is None else host,
                )
            await link.lost.wait()
        except TimeoutError:
            return f"no connection in {self.limits.hello_seconds:g} s"
        except (OSError, OverflowError, UnicodeError) as error:  # the last two: it is no address at all
            return str(error)
        except Exception as error:
            # Nobody waits for this task: it has to go on.
            _logger.exception("peer_dial_failed", host=host, port=port)
            return repr(error)
        finally:
            link.end("it is not wanted any more")
        return link.reason

    def _hang_up(self, broker_id: str, reason: str) -> None:
        """Stop dialling a broker, and end its connections."""
        for link in [link for link in self._links if link.broker_id == broker_id]:
            link.end(reason)
            self._down(link)
        task = self._dials.pop(broker_id, None)
        if task is not None:
            task.cancel()

    # What links tell

    def link_made(self, link: PeerLink) -> None:
        """Send the hello of the side that dials; of connections without a hello, accept up to a number."""
        if self._is_closed:
            link.end("this broker is closing")
        elif link.dialled is not None:
            self._links.add(link)
            link.send_control(self._hello(link.dialled))
        elif len(self._strangers) >= self.limits.strangers_max:
            self._turned_away += 1
            link.end("there are too many strangers")
        else:
            self._links.add(link)
            self._strangers.add(link)

    def link_hello(self, link: PeerLink, hello: Hello) -> None:
        """Take a link for connected, if its hello fits.

        Raises:
            ProtocolError: it does not; it says why.
        """
        assert self._listener is not None
        if hello.protocol != PROTOCOL:
            if link.dialled is None:  # it has to hear our number, or it would only see that we hang up
                link.send_control(self._hello(hello.broker_id))
            older, newer = sorted([(hello.protocol, hello.broker_id), (PROTOCOL, self.broker_id)])
            name, reader = f"broker {newer[1]}", f"broker {older[1]}"
            error = NewerFormat(family=PEER.family, name=name, format=newer[0], newest=older[0], reader=reader)
            link.finish(str(error))
            return
        objection = self._objection(link, hello)
        if objection is not None:
            raise ProtocolError(objection)
        broker_id = hello.broker_id
        before = self._up.get(broker_id)
        if before is not None:
            before.end("a newer connection has replaced it")
            self._down(before)
        if link.dialled is None:
            self._strangers.discard(link)
            link.send_control(self._hello(broker_id))
        link.open(broker_id, self._stats[broker_id])
        link.stats.ups += 1
        self._up[broker_id] = link
        _logger.info("peer_up", peer=broker_id, address=link.address, started_ms=hello.started_ms)
        self._listener.peer_up(broker_id, hello.started_ms)

    def link_frame(self, link: PeerLink, frame: AnyPeerFrame) -> None:
        """Pass a frame on. An error ends the link."""
        if isinstance(frame, PeerCall | PeerPublish):
            self._requests.serve(link.broker_id, frame)
        elif isinstance(frame, PeerAnswer | PeerFailed):
            self._requests.answered(frame)
        else:
            assert self._listener is not None
            self._listener.peer_frame(link.broker_id, frame)

    def link_room(self, link: PeerLink) -> None:
        """Tell that a link takes more again. An error ends the link."""
        assert self._listener is not None
        try:
            self._listener.peer_room(link.broker_id)
        except Exception as error:
            _logger.exception("peer_room_failed", peer=link.broker_id)
            link.end(f"room for it could not be used: {error!r}")

    def link_lost(self, link: PeerLink) -> None:
        """Tell that a link is lost, if it was told to be up."""
        self._down(link)
        self._strangers.discard(link)
        if link in self._links:
            self._links.discard(link)
            if not link.is_up and link.dialled is None and not self._is_closed:
                _logger.warning("peer_refused", address=link.address, reason=link.reason)

    def _hello(self, to: str) -> Hello:
        return Hello(broker_id=self.broker_id, started_ms=self.started_ms, to=to)

    def _objection(self, link: PeerLink, hello: Hello) -> str | None:
        """Return why a hello does not fit; None: it does."""
        who = hello.broker_id
        if hello.to != self.broker_id:
            return f"{who} means {hello.to}, and this is {self.broker_id}"
        if link.dialled is not None:
            return f"{link.dialled} was dialled, and {who} answers" if who != link.dialled else None
        if who not in self._members:
            return f"{who} is not a member"
        if who > self.broker_id:
            return f"{who} is to be dialled by {self.broker_id}, not the other way round"
        return None

    def _down(self, link: PeerLink) -> None:
        """Tell that a link is down, once, if it was told to be up."""
        if self._up.get(link.broker_id) is not link:
            return
        assert self._listener is not None
        del self._up[link.broker_id]
        _logger.info("peer_down", peer=link.broker_id, reason=link.reason)
        self._requests.lost(link.broker_id, link.reason)
        try:
            self._listener.peer_down(link.broker_id, link.reason)
        except Exception:
            # The connection is gone all the same.
            _logger.exception("peer_down_failed", peer=link.broker_id)

    # Time

    def _sweep_later(self) -> None:
        limits = self.limits
        seconds = min(limits.heartbeat_seconds, limits.silence_seconds, limits.hello_seconds) / SWEEPS
        self._sweeping = asyncio.get_running_loop().call_later(seconds, self._sweep, seconds)

    def _sweep(self, planned_seconds: float) -> None:
        self._sweep_later()
        now = asyncio.get_running_loop().time()
        # When this process was held up, what others said meanwhile has yet to be read: that time was not their silence.
        seconds = min(now - self._swept_at, 2 * planned_seconds)
        self._swept_at = now
        for link in list(self._links):
            link.sweep(seconds)
        if self._turned_away:
            _logger.warning("peer_strangers_turned_away", count=self._turned_away, limit=self.limits.strangers_max)
            self._turned_away = 0
