"""The sessions of a client: its home, and one with each broker that it has something to ask.

- The home is whichever broker answers, of those that were named and those that were heard of since. Whatever any broker
  can do goes there; a node that is alone is the home, and there is nothing else.
- The others are opened when they are needed, shared by all who need them, and closed when nobody has for a while.
- What may be under way is bounded over all of them together.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sulina.client.asking import Make, ask
from sulina.client.connection import Connection, Connector
from sulina.client.in_flight import InFlight, Rooms
from sulina.client.options import ClientOptions
from sulina.client.session import Session
from sulina.errors import Disconnected, InvalidSettings, LimitReached, QueueFull, SulinaError

HOME_SECONDS = 3.0  # to wait for a connection to one of several
ANSWER_SECONDS = 5.0  # to wait for its answer, before another is asked
SWEEP_SECONDS = 30.0  # unused for so long, a session is closed
SESSIONS_MAX = 256
URLS_MAX = 256
BACKOFF_SECONDS_MAX = 1.0  # somebody waits for this broker, and for no other

Reach = Callable[[str], Connector]


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
        self.home = Session(self._connect_home, options, url=url, rng=rng, rooms=self.rooms)
        self._sessions: dict[str, Session] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def is_closed(self) -> bool:
        """Whether nobody is asked any more."""
        return self.home.is_closed

    @property
    def has_others(self) -> bool:
        """Whether another than the home could be asked."""
        return len(self._given) + len(self._learned) > 1

    async def open(self) -> None:
        """Disconnected when nobody answers in time."""
        await self.home.open()

    async def close(self) -> None:
        """Let go of all of them; whoever waits gets Disconnected."""
        sessions, self._sessions = list(self._sessions.values()), {}
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.gather(self.home.close(), *(session.close() for session in sessions), *self._closing)

    def session(self, url: str | None) -> Session:
        """With the broker at `url`; perhaps not connected yet. InvalidSettings, LimitReached."""
        if url is None or self.home.is_closed:
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
                raise LimitReached(kind="sessions with brokers", limit=SESSIONS_MAX)
            self._close(unused)
        session = self._sessions[url] = Session(
            self._reach(url),
            self.options,
            url=url,
            rng=self.rng,
            rooms=self.rooms,
            backoff_seconds_max=min(BACKOFF_SECONDS_MAX, self.options.backoff_seconds_max),
        )
        session.start()
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="sulina-sessions")
        return session

    def _close(self, url: str) -> None:
        """Without waiting for it: nobody is left who would."""
        closing = asyncio.create_task(self._sessions.pop(url).close("it was not used"), name="sulina-session-close")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _sweep(self) -> None:
        """Close what was not used since the last time."""
        used: dict[str, int] = {}
        while self._sessions:
            used = {url: session.last_id for url, session in self._sessions.items()}
            await asyncio.sleep(SWEEP_SECONDS)
            for url, session in list(self._sessions.items()):
                if session.is_unused and used.get(url) == session.last_id:
                    self._close(url)
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
        """What any broker can answer, and may be asked twice. If the home does not for so long, another is."""
        return await self._ask(make, timeout_seconds, room, answer_seconds if self.has_others else None)

    async def change(self, make: Make) -> Any:
        """What any broker can do. It is not sent again when its outcome is unknown."""
        return await self._ask(make, None, None, None, is_repeatable=False)

    async def _ask(
        self,
        make: Make,
        timeout_seconds: float | None,
        room: InFlight | None,
        answer_seconds: float | None,
        *,
        is_repeatable: bool = True,
    ) -> Any:
        return await ask(
            _AtHome(self, answer_seconds),
            make,
            room=room or self.rooms.requests,
            is_repeatable=is_repeatable,
            seconds=self.options.timeout_seconds if timeout_seconds is None else timeout_seconds,
        )

    def learn(self, urls: Iterable[str]) -> None:
        """These brokers are there now."""
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

    def leave_home(self, reason: str) -> None:
        """It does not do what it is asked: another is taken, if there are others."""
        if self.has_others and self.home.is_connected:
            self._last_home = None
            self.home.drop(reason)

    async def _connect_home(self) -> Connection:
        doors = {**self._given, **self._learned}
        if len(doors) == 1:
            return await next(iter(doors.values()))()
        error: SulinaError | None = None
        for url in self._in_turn(doors):
            try:
                async with asyncio.timeout(HOME_SECONDS):
                    connection = await doors[url]()
            except TimeoutError:
                error = Disconnected(url=url, reason=f"no answer within {HOME_SECONDS:g} seconds")
            except SulinaError as refused:
                error = refused
            else:
                self._last_home = self.home.url = url
                return connection
        assert error is not None
        raise error

    def _in_turn(self, urls: Iterable[str]) -> list[str]:
        """As they were given, at first. Then the last one first, and after that by chance: not all on one."""
        known = list(urls)
        if self.home.reconnects or self.home.last_id:
            self.rng.shuffle(known)
            # The one that was left, or whose connection broke, may not be the best choice.
            known.sort(key=lambda url: 0 if url == self._last_home else 2 if url == self.home.url else 1)
        return known


class _AtHome:
    """The way of a request that any broker can answer."""

    def __init__(self, brokers: Brokers, answer_seconds: float | None) -> None:
        self.answer_seconds = answer_seconds
        self._brokers = brokers
        self._backoff = brokers.home.backoff()

    @property
    def is_closed(self) -> bool:
        return self._brokers.is_closed

    @property
    def reason(self) -> SulinaError | None:
        home = self._brokers.home
        return None if home.is_connected else home.disconnected()

    async def session(self) -> Session:
        await self._brokers.home.wait_connected()
        return self._brokers.home

    async def refused(self, error: SulinaError) -> None:
        if not isinstance(error, QueueFull):
            self._brokers.leave_home(str(error))
        if not isinstance(error, Disconnected):
            await asyncio.sleep(self._backoff.next())
