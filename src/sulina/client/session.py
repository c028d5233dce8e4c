"""One session with a node that outlives its connections.

- A request waits for its answer until its time is over. What the node refuses for the moment (QueueFull, NotServing,
  Draining) is asked again; what was under way when the connection broke is asked again only if it may be done twice,
  and never if the node broke it off because of what it was sent.
- Requests that wait for a connection are sent in the order in which they came.
- An attachment belongs to one connection: when that is lost, so is the attachment, and its handle is never used again.
"""

import asyncio
import random
from typing import Any, Protocol

from sulina.client.connection import Connection, Connector
from sulina.client.in_flight import InFlight, Rooms
from sulina.client.options import ClientOptions
from sulina.client.retries import Make, RetryState, send_with_retry
from sulina.core.backoff import Backoff
from sulina.errors import Disconnected, NewerFormat, ProtocolError, SulinaError, from_code
from sulina.wire.frames import Answer, Deliver, Detached, Failed, FromClient, FromNode, Happened


class FrameReceiver(Protocol):
    """A consumer on this connection: what the session tells it, and what it has to say."""

    def deliver(self, frame: Deliver) -> None:
        """Take records that have come."""
        ...

    def lose(self, error: SulinaError) -> None:
        """End: the node or the connection has detached it."""
        ...

    def drain(self) -> list[FromClient]:
        """Return the frames that wait to be sent, none of which is answered."""
        ...


class EventReceiver(Protocol):
    """Who is told what happens on the node, on this connection."""

    def happened(self, frame: Happened) -> None:
        """Take an event frame of this connection."""
        ...

    def lose(self, error: SulinaError) -> None:
        """End: no more events come over this connection."""
        ...


class AnswerReceiver(Protocol):
    """Who waits for an answer: a future, or something that does as if."""

    def done(self) -> bool:
        """Return whether it needs no answer any more."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Take the answer."""
        ...

    def set_exception(self, error: SulinaError, /) -> None:
        """Take the error that came instead of an answer."""
        ...


class Session:
    """Requests, answers and attachments over one connection after another."""

    def __init__(
        self,
        connector: Connector,
        options: ClientOptions,
        *,
        url: str,
        rng: random.Random,
        rooms: Rooms,
        backoff_seconds_max: float | None = None,
    ) -> None:
        self.options = options
        self.url = url
        self.rng = rng
        self.rooms = rooms
        self.connection: Connection | None = None  # at this moment
        self.pending: dict[int, AnswerReceiver] = {}  # what was sent over it and is not answered
        self.reconnects = 0
        self.last_id = 0
        self.is_closed = False
        self._connector = connector
        self._backoff_seconds_max = options.backoff_seconds_max if backoff_seconds_max is None else backoff_seconds_max
        self._connected = asyncio.Event()  # or closed: nothing waits for a connection any longer
        self._reaching: list[asyncio.Future[None]] = []  # who wants to know how the next attempt to connect ends
        self._attached: dict[int, FrameReceiver] = {}
        self._listening: dict[int, EventReceiver] = {}
        self._outbox: dict[int, FrameReceiver] = {}  # handles of attachments that have something to say
        self._outbox_filled = asyncio.Event()
        self._reason = "not connected yet"
        self._runner: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self.connection is not None

    @property
    def is_unused(self) -> bool:
        """Whether nobody would miss it now."""
        return not self.pending and not self._attached and not self._listening and not self._reaching

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
        self._start(connection)

    def start(self) -> None:
        """Connect, without waiting for it."""
        self._start(None)

    def _start(self, connection: Connection | None) -> None:
        self._runner = asyncio.create_task(self._run(connection), name="sulina-session")
        self._runner.add_done_callback(self._ended)

    async def close(self, reason: str = "the client is closed") -> None:
        """Close the connection; calls that wait get Disconnected."""
        self.is_closed = True
        self._reason = reason
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.wait([self._runner])

    def _ended(self, runner: asyncio.Task[None]) -> None:
        """Tell all that wait that the session has ended, also if that is our own bug."""
        if not runner.cancelled() and (error := runner.exception()) is not None:
            self._reason = f"the session failed: {error!r}"
        self.is_closed = True
        self._lose()
        self._tell_reaching()
        self._connected.set()

    def backoff(self) -> Backoff:
        """Pauses between attempts."""
        return Backoff(self.options.backoff_seconds_min, self._backoff_seconds_max, self.rng.random)

    def next_id(self) -> int:
        """Return a number that was not given out before, for requests and for handles."""
        self.last_id += 1
        return self.last_id

    async def wait_connected(self) -> None:
        """Return when there is a connection, however long that takes. Disconnected when there will be none."""
        while self.connection is None:
            if self.is_closed:
                raise self.disconnected()
            await self._connected.wait()

    async def reach(self, seconds: float) -> None:
        """Return when there is a connection.

        Raises:
            Disconnected: an attempt to connect failed, or none succeeded within `seconds`.
        """
        if self.connection is not None:
            return
        if self.is_closed:
            raise self.disconnected()
        attempt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reaching.append(attempt)
        try:
            async with asyncio.timeout(seconds):
                await attempt
        except TimeoutError:
            raise self.disconnected() from None
        finally:
            if attempt in self._reaching:
                self._reaching.remove(attempt)

    def _tell_reaching(self) -> None:
        reaching, self._reaching = self._reaching, []
        for attempt in reaching:
            if attempt.done():
                continue
            if self.connection is not None:
                attempt.set_result(None)
            else:
                attempt.set_exception(self.disconnected())

    # Requests

    async def request(
        self,
        make: Make,
        *,
        is_repeatable: bool,
        size_bytes: int = 0,
        timeout_seconds: float | None = None,
        room: InFlight | None = None,
        is_patient: bool = True,
    ) -> Any:
        """Return the node's answer to the frame that `make` gives for an id; it is called once for each attempt.

        There is one attempt only if it is not patient. Errors of the node; Disconnected; QueueFull when there is no
        room in flight in time.
        """
        room = room or self.rooms.requests
        seconds = self.options.timeout_seconds if timeout_seconds is None else timeout_seconds
        if is_patient:
            return await send_with_retry(
                _Here(self), make, room=room, is_repeatable=is_repeatable, size_bytes=size_bytes, seconds=seconds
            )
        state = RetryState(room)
        try:
            async with asyncio.timeout(seconds):
                return await self.send_once(make, state, size_bytes)
        except TimeoutError:
            raise room.full() if state.is_entering else self.late(seconds) from None

    async def send_once(
        self, make: Make, state: RetryState, size_bytes: int, answer_seconds: float | None = None
    ) -> Any:
        """Send a request over the connection that there is, when there is room, and wait for the answer.

        Raises:
            Disconnected: there is no connection, or no answer within `answer_seconds`.
        """
        if not state.room.try_enter(size_bytes):
            state.is_entering = True
            await state.room.enter(size_bytes)
            state.is_entering = False
        self.last_id = number = self.last_id + 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            connection = self.connection
            if connection is None:
                raise self.disconnected()
            self.pending[number] = answer
            state.is_sent = True
            async with asyncio.timeout(answer_seconds):
                await self.send(connection, make(number))
                return await answer
        except TimeoutError:
            assert answer_seconds is not None
            raise self.late(answer_seconds) from None
        finally:
            state.room.leave(size_bytes)
            self.pending.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen: `send` may have failed first

    async def send(self, connection: Connection, frame: FromClient) -> None:
        """Send a frame over a connection that was there a moment ago.

        Raises:
            Disconnected: it is gone.
        """
        try:
            await connection.send(frame)
        except Disconnected:
            if self.connection is connection:  # the reader will see it too: until then nobody else need try
                self.connection = None
                self._connected.clear()
            raise

    def late(self, seconds: float) -> Disconnected:
        """Return the error of a request that has waited `seconds` for an answer, or for a connection."""
        if not self.is_connected:
            return self.disconnected()
        return Disconnected(url=self.url, reason=f"no answer within {seconds:g} seconds")

    def disconnected(self) -> Disconnected:
        """Return the error that says why there is no connection."""
        return Disconnected(url=self.url, reason=self._reason)

    # Attachments

    def attach(self, handle: int, attached: FrameReceiver) -> None:
        """Pass deliveries to `handle` on this connection on to `attached`."""
        self._attached[handle] = attached

    def detach(self, handle: int) -> None:
        """Remove an attachment."""
        self._attached.pop(handle, None)

    def post(self, handle: int, attached: FrameReceiver) -> None:
        """Send what an attachment has to say, soon. Nothing is sent for one that is lost."""
        if handle in self._attached:
            self._outbox[handle] = attached
            self._outbox_filled.set()

    def listen(self, number: int, listening: EventReceiver) -> None:
        """Pass events of this connection on to `listening`, by the id of its request."""
        self._listening[number] = listening

    def unlisten(self, number: int) -> None:
        """Remove a listener."""
        self._listening.pop(number, None)

    # The connection

    async def _run(self, connection: Connection | None) -> None:
        backoff = self.backoff()
        if connection is None:
            connection = await self._connect(backoff, pause=0)
        while True:
            if await self._serve(connection):
                backoff.reset()
            connection = await self._connect(backoff, pause=backoff.next())
            self.reconnects += 1

    async def _connect(self, backoff: Backoff, pause: float) -> Connection:
        while True:
            await asyncio.sleep(pause)
            try:
                return await self._connector()
            except SulinaError as error:
                self._reason = _reason(error)
                self._tell_reaching()
                pause = backoff.next()

    async def _serve(self, connection: Connection) -> bool:
        """Read until the connection ends, then tell everybody; return whether the node did what it was asked."""
        is_working = False
        self.connection = connection
        self._connected.set()
        self._tell_reaching()
        writer = asyncio.create_task(self._write(connection), name="sulina-session-outbox")
        try:
            while True:
                is_working |= self._take(await connection.receive())
        except SulinaError as error:
            self._reason = _reason(error)
        finally:
            self._lose()
            writer.cancel()
            await asyncio.wait([writer])
            await connection.close()
        return is_working

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
        """Take a frame; return whether it shows that the node does what it is asked.

        Raises:
            Disconnected: the node breaks off.
        """
        kind = type(frame)
        if kind is Deliver:
            if (attached := self._attached.get(frame.consumer)) is not None:  # type: ignore[union-attr]
                attached.deliver(frame)  # type: ignore[arg-type]
        elif isinstance(frame, Answer):
            awaiting = self.pending.pop(frame.id, None)
            if awaiting is not None and not awaiting.done():
                awaiting.set_result(frame.result)
                return True
        elif isinstance(frame, Failed):
            if not frame.id and frame.code in (ProtocolError.code, NewerFormat.code):
                # One of the requests is to blame; whichever it is, it would break the next connection too.
                self._fail_pending(frame.error())
                raise Disconnected(url=self.url, reason=frame.message)
            awaiting = self.pending.pop(frame.id, None)
            if awaiting is not None and not awaiting.done():
                awaiting.set_exception(frame.error())
        elif isinstance(frame, Detached):
            if (attached := self._attached.pop(frame.consumer, None)) is not None:
                attached.lose(frame.error())
        elif isinstance(frame, Happened) and (listening := self._listening.get(frame.listener)) is not None:
            listening.happened(frame)
        return False

    def _lose(self) -> None:
        """Tell everybody, in the order in which they asked."""
        self.connection = None
        self._connected.clear()
        attached, self._attached = self._attached, {}
        listening, self._listening = self._listening, {}
        self._outbox.clear()
        self._fail_pending(self.disconnected())
        for each in attached.values():
            each.lose(self.disconnected())
        for listener in listening.values():
            listener.lose(self.disconnected())

    def _fail_pending(self, error: SulinaError) -> None:
        pending, self.pending = self.pending, {}
        for awaiting in pending.values():
            if not awaiting.done():
                awaiting.set_exception(from_code(error.code, str(error), error.details()))


class _Here:
    """The way of a request that is for this node, and no other."""

    answer_seconds = None

    def __init__(self, session: Session) -> None:
        self._session = session
        self._backoff = session.backoff()

    @property
    def is_closed(self) -> bool:
        return self._session.is_closed

    @property
    def reason(self) -> SulinaError | None:
        return None if self._session.is_connected else self._session.disconnected()

    async def session(self) -> Session:
        await self._session.wait_connected()
        return self._session

    async def refused(self, error: SulinaError) -> None:
        if not isinstance(error, Disconnected):
            await asyncio.sleep(self._backoff.next())


def _reason(error: SulinaError) -> str:
    return error.reason if isinstance(error, Disconnected) else str(error)
