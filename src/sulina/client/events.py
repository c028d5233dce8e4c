"""What happens on the node that the client is connected to, as it happens.

A listener that is too slow misses events, and so does one whose connection is lost: it is told so by an event.
"""

import asyncio
import contextlib
import time
from collections import deque
from types import TracebackType
from typing import Self

from sulina.client.brokers import Brokers
from sulina.client.session import Session
from sulina.core.delivery.pubsub import PubSubEventType
from sulina.errors import Disconnected, SulinaError
from sulina.wire.frames import FromClient, Happened, Listen, Unlisten
from sulina.wire.messages import PubSubEvent

EVENTS_MAX = 1000  # that wait to be taken
CLOSE_SECONDS = 5.0
MISSED = "events_missed"  # with a count, where that is known, or a reason


class Events:
    """`async with pubsub.events() as events:` and `async for event in events:`.

    Without `async with`, it listens from the first event that is asked for, until `close`.
    """

    def __init__(self, brokers: Brokers, types: list[str], opened: set["Events"]) -> None:
        self._brokers = brokers
        self._types = types
        self._opened = opened  # all of them, as long as they listen
        self._waiting: deque[PubSubEvent] = deque()
        self._missed = 0
        self._changed = asyncio.Event()
        self._session: Session | None = None  # with which it listens, under this number
        self._number = 0
        self._lost: asyncio.Future[SulinaError] | None = None
        self._opening = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self._error: SulinaError | None = None
        self._is_closed = False

    async def open(self) -> None:
        """Listen from now on. LimitReached, Disconnected."""
        async with self._opening:
            if self._keeper is not None or self._is_closed:
                return
            lost = await self._brokers.at_home(self._listen, self._brokers.options.timeout_seconds)
            self._keeper = asyncio.create_task(self._keep(lost), name="sulina-events")
            self._opened.add(self)

    async def close(self) -> None:
        """Listen no more. Iteration ends."""
        async with self._opening:
            if self._is_closed:
                return
            self._is_closed = True
        self._opened.discard(self)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        self._waiting.clear()
        self._changed.set()
        session, number = self._session, self._number
        if session is not None and session.is_connected:
            session.unlisten(number)
            with contextlib.suppress(SulinaError):  # what still comes is for nobody
                await session.request(
                    lambda own: Unlisten(own, number),
                    is_repeatable=False,
                    timeout_seconds=CLOSE_SECONDS,
                    is_patient=False,
                )

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PubSubEvent:
        await self.open()
        while not self._waiting:
            if self._missed:
                missed, self._missed = self._missed, 0
                return PubSubEvent(at=time.time(), type=MISSED, fields={"count": missed})
            if self._is_closed:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

    # What the session calls

    def happened(self, frame: Happened) -> None:
        """Take an event."""
        self._put(PubSubEvent(at=frame.at, type=frame.type, topic=frame.topic, fields=frame.fields))

    def rejected(self, topic: str, reason: str, message: str) -> None:
        """Take the event of a publish that was rejected before it was sent."""
        if not self._types or PubSubEventType.PUBLISH_REJECTED in self._types:
            fields = {"reason": reason, "message": message}
            self._put(
                PubSubEvent(at=time.time(), type=str(PubSubEventType.PUBLISH_REJECTED), topic=topic, fields=fields)
            )

    def lose(self, error: SulinaError) -> None:
        """Note that nothing more comes over this connection."""
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(error)

    def _put(self, event: PubSubEvent) -> None:
        if len(self._waiting) >= EVENTS_MAX:
            self._missed += 1
        else:
            self._waiting.append(event)
            self._changed.set()

    async def _listen(self, session: Session) -> asyncio.Future[SulinaError]:
        """Listen at a session; return the future that is done when it is lost."""
        lost = self._lost = asyncio.get_running_loop().create_future()

        def make(number: int) -> FromClient:
            self._session, self._number = session, number
            session.listen(number, self)
            return Listen(number, self._types)

        try:
            await session.request(make, is_repeatable=False, is_patient=False)
        except BaseException:
            session.unlisten(self._number)
            raise
        return lost

    async def _keep(self, lost: asyncio.Future[SulinaError]) -> None:
        try:
            while True:
                reason = await lost
                self._put(PubSubEvent(at=time.time(), type=MISSED, fields={"reason": str(reason)}))
                lost = await self._brokers.at_home(self._listen)
        except SulinaError as error:
            self._error = error
        except Exception as error:  # our own bug: tell all that wait
            self._error = Disconnected(url="anywhere", reason=f"listening failed: {error!r}")
            raise
        finally:
            self._changed.set()
