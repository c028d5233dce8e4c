"""The sessions of a client: its home, and one with each broker that it has something to ask.

- The home is whichever broker answers, of those that were named and those that were heard of since. Whatever any broker
  can do goes there; a node that is alone is the home, and there is nothing else. A home that does not do as it is asked
  is replaced, and stays for those who have something under way with it.
- The others are opened when they are needed, shared by all who need them, and closed when nobody has for a while.
- What may be under way is bounded over all of them together.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from sulina.client.connection import Connection, Connector
from sulina.client.in_flight import InFlight, Rooms
from sulina.client.options import ClientOptions
from sulina.client.retries import Make, send_with_retry
from sulina.client.session import Session
from sulina.errors import Disconnected, InvalidSettings, LimitReached, QueueFull, SulinaError

HOME_SECONDS = 3.0  # to wait for a connection to one of several
ANSWER_SECONDS = 5.0  # to wait for its answer, before another is asked
DOUBT_SECONDS = 3.0  # that what it says may prove wrong before it is doubted
SWEEP_SECONDS = 30.0  # without use, then a session is closed
SESSIONS_MAX = 256
FORMER_MAX = 8
URLS_MAX = 256
BACKOFF_SECONDS_MAX = 1.0  # somebody waits for this broker, and for no other

Reach = Callable[[str], Connector]
T = TypeVar("T")


class Brokers:
    """`open` connects the home. Sessions are given out by URL, None for the home."""

    def __init__(
        self,
        connector: Connector,
        *,
        url: str,
        others: Sequence[str] = (),
        reach: Reach,
        options: ClientOptions,
        rng: random.Random,
    ) -> None:
        self.options = options
        self.rng = rng
        self.rooms = Rooms.of(options)
        self._reach = reach
        self._given: dict[str, Connector] = {url: connector}
        self._given.update({other: reach(other) for other in others if other != url})
        self._learned: dict[str, Connector] = {}
        self._last_home: str | None = None  # that answered
        self._has_had_home = False
        self._home_since = 0.0
        self.home = self._make_home(url)
        self._former: list[Session] = []  # homes
        self._sessions: dict[str, Session] = {}
        self._is_closed = False
        self._sweeper: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def is_closed(self) -> bool:
        """Whether nobody is asked any more."""
        return self._is_closed or self.home.is_closed

    @property
    def has_others(self) -> bool:
        """Whether another than the home could be asked."""
        return len(self._given) + len(self._learned) > 1

    async def close(self) -> None:
        """Close all sessions; calls that wait get Disconnected."""
        self._is_closed = True
        sessions = [self.home, *self._former, *self._sessions.values()]
        self._sessions, self._former = {}, []
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.gather(*(session.close() for session in sessions), *self._closing)

    def session(self, url: str | None) -> Session:
        """Return the session with the broker at `url`, perhaps not connected yet.

        Raises:
            InvalidSettings: the URL is not valid.
            LimitReached: there are too many sessions.
        """
        if url is None or self.is_closed:
            return self.home
        known = self._sessions.get(url)
        if known is not None and not known.is_closed:
            return known
        if self.home.is_connected and self.home.url.rstrip("/") == url.rstrip("/"):
            return self.home
        return self._open(url)

    def _open(self, url: str) -> Session:
        if len(self._sessions) >= SESSIONS_MAX:
            unused = next((known for known, session in self._sessions.items() if session.is_unused), None)
            if unused is None:
                raise LimitReached(kind="sessions with brokers", limit=SESSIONS_MAX, allowed_by="this client")
            self._close(self._sessions.pop(unused))
        session = self._sessions[url] = Session(
            self._reach(url),
            self.options,
            url=url,
            rng=self.rng,
            rooms=self.rooms,
            backoff_seconds_max=min(BACKOFF_SECONDS_MAX, self.options.backoff_seconds_max),
        )
        session.start()
        self._sweep_later()
        return session

    def _close(self, session: Session) -> None:
        """Close a session without waiting for it."""
        closing = asyncio.create_task(session.close("it was not used"), name="sulina-session-close")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _sweep_later(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="sulina-sessions")

    async def _sweep(self) -> None:
        """Close what was not used since the last time."""
        while self._sessions or self._former:
            used = {session: session.last_id for session in (*self._sessions.values(), *self._former)}
            await asyncio.sleep(SWEEP_SECONDS)
            unused = {session for session, last_id in used.items() if session.is_unused and session.last_id == last_id}
            self._sessions = {url: session for url, session in self._sessions.items() if session not in unused}
            self._former = [session for session in self._former if session not in unused]
            for session in unused:
                if not session.is_closed:
                    self._close(session)
        self._sweeper = None

    # The home

    async def read(
        self,
        make: Make,
        *,
        timeout_seconds: float | None = None,
        room: InFlight | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> Any:
        """Return any broker's answer to what may be asked twice; a home that is silent for too long is replaced."""
        return await send_with_retry(
            _AtHome(self, answer_seconds if self.has_others else None),
            make,
            room=room or self.rooms.requests,
            is_repeatable=True,
            seconds=self.options.timeout_seconds if timeout_seconds is None else timeout_seconds,
        )

    async def change(self, make: Make) -> Any:
        """Return the answer of any broker to a change, which is not sent again when its outcome is unknown."""
        target, seconds = _AtHome(self, None), self.options.timeout_seconds
        return await send_with_retry(target, make, room=self.rooms.requests, is_repeatable=False, seconds=seconds)

    async def at_home(self, attempt: Callable[[Session], Awaitable[T]], seconds: float | None = None) -> T:
        """Return the result of an attempt with the home, which then stays with that connection.

        It is tried until it succeeds, or for `seconds`. Errors that would come again are raised at once.
        """
        backoff = self.home.backoff()
        reason: SulinaError | None = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    home = self.home
                    try:
                        await home.wait_connected()
                        return await attempt(home)
                    except SulinaError as error:
                        if self.is_closed or not error.retryable:
                            raise
                        reason = error
                        if not isinstance(error, QueueFull):
                            self.leave_home(home)
                    await asyncio.sleep(backoff.next())
        except TimeoutError:
            assert seconds is not None
            raise reason or self.home.late(seconds) from None

    def learn(self, urls: Iterable[str]) -> None:
        """Note the URLs of the brokers that there are now."""
        learned: dict[str, Connector] = {}
        for url in urls:
            if url in self._given or len(learned) >= URLS_MAX:
                continue
            try:
                learned[url] = self._learned.get(url) or self._reach(url)
            except InvalidSettings:
                continue  # of no use to us
        if learned:
            self._learned = learned

    def leave_home(self, home: Session) -> None:
        """Take another home, if there are others: this one does not do what it is asked."""
        if home is not self.home or not self.has_others or not home.is_connected or self.is_closed:
            return
        self._last_home = None
        self.home = self._make_home(home.url)
        self.home.start()
        self._former.append(home)
        if len(self._former) > FORMER_MAX:
            self._close(self._former.pop(0))
        self._sweep_later()

    def doubt_home(self) -> None:
        """Take another home now and then: what this one says has proved wrong, and it may be cut off."""
        if asyncio.get_running_loop().time() - self._home_since >= DOUBT_SECONDS:
            self.leave_home(self.home)

    def _make_home(self, url: str) -> Session:
        home = Session(lambda: self._connect_home(home), self.options, url=url, rng=self.rng, rooms=self.rooms)
        return home

    async def _connect_home(self, home: Session) -> Connection:
        if home is not self.home:  # a former one: what it had under way is over
            raise Disconnected(url=home.url, reason="another broker is asked by now")
        doors = {**self._given, **self._learned}
        seconds = HOME_SECONDS if len(doors) > 1 else None
        error: SulinaError | None = None
        for url in self._in_turn(doors, home.url):
            try:
                async with asyncio.timeout(seconds):
                    connection = await doors[url]()
            except TimeoutError:
                error = Disconnected(url=url, reason=f"no answer within {HOME_SECONDS:g} seconds")
            except SulinaError as refused:
                error = refused
            else:
                self._last_home = home.url = url
                self._has_had_home = True
                self._home_since = asyncio.get_running_loop().time()
                return connection
        assert error is not None
        raise error

    def _in_turn(self, urls: Iterable[str], former: str) -> list[str]:
        """Return URLs in the order to try: at first as given, later the last home, then at random to spread clients."""
        known = list(urls)
        if self._has_had_home:
            self.rng.shuffle(known)
            # One that was left comes last.
            known.sort(key=lambda url: 0 if url == self._last_home else 2 if url == former else 1)
        return known


class _AtHome:
    """The way of a request that any broker can answer."""

    def __init__(self, brokers: Brokers, answer_seconds: float | None) -> None:
        self.answer_seconds = answer_seconds
        self._brokers = brokers
        self._backoff = brokers.home.backoff()
        self._asked = brokers.home

    @property
    def is_closed(self) -> bool:
        return self._brokers.is_closed

    @property
    def reason(self) -> SulinaError | None:
        home = self._brokers.home
        return None if home.is_connected else home.disconnected()

    async def session(self) -> Session:
        self._asked = self._brokers.home
        await self._asked.wait_connected()
        return self._asked

    async def refused(self, error: SulinaError) -> None:
        if not isinstance(error, QueueFull):
            self._brokers.leave_home(self._asked)
        if not isinstance(error, Disconnected):
            await asyncio.sleep(self._backoff.next())
