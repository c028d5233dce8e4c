"""One session with a node that outlives its connections.

- A request waits for its answer until its time is over. What the node refuses for the moment (QueueFull, NotServing,
  Draining) is asked again; what was under way when the connection broke is asked again only if it may be done twice,
  and never if the node broke it off because of what it was sent.
- Requests that wait for a connection are sent in the order in which they came.
- An attachment belongs to one connection: when that is lost, so is the attachment, and its handle is never used again.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Protocol

from sulina.client.backoff import Backoff
from sulina.client.connection import Connection, Connector
from sulina.client.in_flight import InFlight
from sulina.client.options import ClientOptions
from sulina.errors import Disconnected, NotServing, ProtocolError, QueueFull, SulinaError, from_code
from sulina.wire.frames import Answer, Deliver, Detached, Failed, FromClient, FromNode


class Attached(Protocol):
    """A consumer on this connection: what the session tells it, and what it has to say."""

    def deliver(self, frame: Deliver) -> None:
        """Records have come."""
        ...

    def lose(self, error: SulinaError) -> None:
        """The node or the connection has let it go."""
        ...

    def drain(self) -> list[FromClient]:
        """The frames that wait to be sent, none of which is answered."""
        ...


class Session:
    """Requests, answers and attachments over one connection after another."""

    def __init__(self, connector: Connector, options: ClientOptions, *, url: str, rng: random.Random) -> None:
        self.options = options
        self.url = url
        self.rng = rng
        self.in_flight = InFlight(requests_max=options.requests_in_flight_max, bytes_max=options.bytes_in_flight_max)
        self.fetches = InFlight(requests_max=options.fetches_in_flight_max, bytes_max=options.bytes_in_flight_max)
        self.reconnects = 0
        self._connector = connector
        self._connection: Connection | None = None
        self._connected = asyncio.Event()  # or closed: whoever waits for a connection need wait no longer
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._attached: dict[int, Attached] = {}
        self._outbox: dict[int, Attached] = {}  # handles of attachments that have something to say
        self._outbox_filled = asyncio.Event()
        self._last_id = 0
        self._reason = "not connected yet"
        self.is_closed = False
        self._runner: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    async def open(self) -> None:
        """Connect for the first time. Disconnected when that does not succeed in time."""
        deadline = asyncio.get_running_loop().time() + self.options.wait_seconds
        backoff = self.backoff()
        while True:
            try:
                connection = await self._connector()
                break
            except SulinaError:
                pause = backoff.next()
                if asyncio.get_running_loop().time() + pause > deadline:
                    raise
                await asyncio.sleep(pause)
        self._runner = asyncio.create_task(self._run(connection), name="sulina-session")
        self._runner.add_done_callback(self._ended)

    async def close(self) -> None:
        """Let go of the connection; whoever waits gets Disconnected."""
        self.is_closed = True
        self._reason = "the client is closed"
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.wait([self._runner])

    def _ended(self, runner: asyncio.Task[None]) -> None:
        """Nobody reads any more: whoever waits must hear of it, also if it is our own bug."""
        if not runner.cancelled() and (error := runner.exception()) is not None:
            self._reason = f"the session failed: {error!r}"
        self.is_closed = True
        self._lose()
        self._connected.set()

    def backoff(self) -> Backoff:
        """Pauses between attempts."""
        return Backoff(self.options.backoff_seconds_min, self.options.backoff_seconds_max, self.rng)

    def next_id(self) -> int:
        """A number that was not given out before, for requests and for handles."""
        self._last_id += 1
        return self._last_id

    # Requests

    async def request(
        self,
        make: Callable[[int], FromClient],
        *,
        is_repeatable: bool,
        size_bytes: int = 0,
        timeout_seconds: float | None = None,
        room: InFlight | None = None,
    ) -> Any:
        """The node's answer to the frame that `make` gives for an id; it is called once for each attempt.

        Errors of the node; Disconnected; QueueFull when there is no room in flight for so long.
        """
        seconds = self.options.timeout_seconds if timeout_seconds is None else timeout_seconds
        asking = _Asking(room or self.in_flight)
        try:
            async with asyncio.timeout(seconds):
                await asking.enter(size_bytes)
                return await self._answered(asking, make, is_repeatable)
        except TimeoutError:
            raise self._why_late(asking, seconds) from None
        finally:
            asking.leave(size_bytes)

    async def _answered(self, asking: "_Asking", make: Callable[[int], FromClient], is_repeatable: bool) -> Any:
        backoff = self.backoff()
        while True:
            asking.is_sent = False
            try:
                return await self._ask_once(asking, make)
            except (QueueFull, NotServing) as error:
                asking.refusal = error
                asking.is_sent = False
                await asyncio.sleep(backoff.next())
            except Disconnected:
                asking.refusal = None
                asking.is_unknown |= asking.is_sent
                if self.is_closed or (asking.is_sent and not is_repeatable):
                    raise

    async def _ask_once(self, asking: "_Asking", make: Callable[[int], FromClient]) -> Any:
        """Send when there is a connection, and wait for the answer."""
        while (connection := self._connection) is None:
            if self.is_closed:
                raise self.disconnected()
            await self._connected.wait()
        number = self.next_id()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        try:
            asking.is_sent = True
            await connection.send(make(number))
            return await answer
        except Disconnected:
            if self._connection is connection:  # the reader will see it too: until then nobody else need try
                self._connection = None
                self._connected.clear()
            raise
        finally:
            self._pending.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen: `send` may have failed first

    def _why_late(self, asking: "_Asking", seconds: float) -> SulinaError:
        if not asking.has_room:
            return QueueFull(waiting_bytes=asking.room.size_bytes, limit_bytes=asking.room.bytes_max)
        if asking.is_sent:
            return self.late(seconds)
        if asking.refusal is None:
            return self.disconnected()
        if asking.is_unknown:
            return Disconnected(url=self.url, reason=f"it was lost before the answer came; since then {asking.refusal}")
        return asking.refusal

    def late(self, seconds: float) -> Disconnected:
        """The error of whoever has waited so long for an answer, or for a connection."""
        if not self.is_connected:
            return self.disconnected()
        return Disconnected(url=self.url, reason=f"no answer within {seconds:g} seconds")

    def disconnected(self) -> Disconnected:
        """Why there is no connection, or was none when it was last looked for."""
        return Disconnected(url=self.url, reason=self._reason)

    # Attachments

    def attach(self, handle: int, attached: Attached) -> None:
        """Deliveries to `handle` on this connection are for `attached`."""
        self._attached[handle] = attached

    def detach(self, handle: int) -> None:
        """Nothing more for it."""
        self._attached.pop(handle, None)

    def post(self, handle: int, attached: Attached) -> None:
        """The attachment has something to say. Nothing is sent for one that is lost."""
        if handle in self._attached:
            self._outbox[handle] = attached
            self._outbox_filled.set()

    # The connection

    async def _run(self, connection: Connection | None) -> None:
        backoff = self.backoff()
        while True:
            if connection is None:
                await asyncio.sleep(backoff.next())
                try:
                    connection = await self._connector()
                except SulinaError as error:
                    self._reason = _reason(error)
                    continue
                self.reconnects += 1
            await self._serve(connection, backoff)
            connection = None

    async def _serve(self, connection: Connection, backoff: Backoff) -> None:
        """Read until the connection ends, then tell everybody."""
        self._connection = connection
        self._connected.set()
        writer = asyncio.create_task(self._write(connection), name="sulina-session-outbox")
        try:
            while True:
                if self._take(await connection.receive()):
                    backoff.reset()
        except SulinaError as error:
            self._reason = _reason(error)
        finally:
            self._lose()
            writer.cancel()
            await asyncio.wait([writer])
            await connection.close()

    async def _write(self, connection: Connection) -> None:
        try:
            while True:
                await self._outbox_filled.wait()
                self._outbox_filled.clear()
                while self._outbox:
                    handle = next(iter(self._outbox))
                    for frame in self._outbox.pop(handle).drain():
                        await connection.send(frame)
        except Disconnected:
            return  # the reader will see it too

    def _take(self, frame: FromNode) -> bool:
        """Whether it shows that the node does what it is asked. Disconnected when the node breaks off."""
        kind = type(frame)
        if kind is Deliver:
            if (attached := self._attached.get(frame.consumer)) is not None:  # type: ignore[union-attr]
                attached.deliver(frame)  # type: ignore[arg-type]
        elif isinstance(frame, Answer):
            answer = self._pending.get(frame.id)
            if answer is not None and not answer.done():
                answer.set_result(frame.result)
                return True
        elif isinstance(frame, Failed):
            if not frame.id and frame.code == ProtocolError.code:
                # One of the requests is to blame; whichever it is, it would break the next connection too.
                self._fail_pending(frame.error())
                raise Disconnected(url=self.url, reason=frame.message)
            answer = self._pending.get(frame.id)
            if answer is not None and not answer.done():
                answer.set_exception(frame.error())
        elif isinstance(frame, Detached) and (attached := self._attached.pop(frame.consumer, None)) is not None:
            attached.lose(frame.error())
        return False

    def _lose(self) -> None:
        """Tell everybody, in the order in which they asked."""
        self._connection = None
        self._connected.clear()
        attached, self._attached = self._attached, {}
        self._outbox.clear()
        self._fail_pending(self.disconnected())
        for each in attached.values():
            each.lose(self.disconnected())

    def _fail_pending(self, error: SulinaError) -> None:
        pending, self._pending = self._pending, {}
        for answer in pending.values():
            if not answer.done():
                answer.set_exception(from_code(error.code, str(error), error.details()))


class _Asking:
    """One request with its retries: how far it has come."""

    __slots__ = ("has_room", "is_sent", "is_unknown", "refusal", "room")

    def __init__(self, room: InFlight) -> None:
        self.room = room
        self.has_room = False
        self.is_sent = False  # in this attempt
        self.is_unknown = False  # an earlier attempt may have been done
        self.refusal: SulinaError | None = None  # the node's, of the last attempt

    async def enter(self, size_bytes: int) -> None:
        await self.room.enter(size_bytes)
        self.has_room = True

    def leave(self, size_bytes: int) -> None:
        if self.has_room:
            self.room.leave(size_bytes)


def _reason(error: SulinaError) -> str:
    return error.reason if isinstance(error, Disconnected) else str(error)
