"""How a request finds the broker that owns a partition now.

Who owns it is looked up, and believed until a refusal or a lost connection shows that it is wrong. A refusal that names
the owner is followed at once, as it may be right; otherwise it is looked up again, with pauses that grow as the trouble
lasts. Where a node is alone, nothing is looked up: it will come back.
"""

import asyncio
from typing import Any

from sulina.client.brokers import Brokers
from sulina.client.in_flight import InFlight
from sulina.client.placements import TopicPlacement, TopicPlacements, unowned
from sulina.client.retries import Make, send_with_retry
from sulina.client.session import Session
from sulina.core.backoff import ElapsedBackoff
from sulina.errors import (
    Disconnected,
    NotOwner,
    NotServing,
    QueueFull,
    SulinaError,
    TopicNotFound,
)
from sulina.types import TopicName

REACH_SECONDS = 1.0  # to wait for a connection before it is looked up again who owns the partition
HOPS_MAX = 3  # from one broker that names another to the next
ANSWER_SECONDS = 5.0  # of reads, beyond what they are told to wait
PAUSE_SECONDS_MIN = 0.05
PAUSE_SECONDS_MAX = 5.0


class Route:
    """Finds the current owner of one partition, for one request or for all requests of a queue."""

    def __init__(
        self,
        brokers: Brokers,
        placements: TopicPlacements,
        name: TopicName,
        partition: int,
        *,
        topic_id: str | None = None,
        answer_seconds: float | None = None,
    ) -> None:
        self.name = name
        self.partition = partition
        self.url: str | None = None  # of the session that was given out last
        self.reason: SulinaError | None = None  # why the partition has no owner to ask
        self._brokers = brokers
        self._places = placements
        self._answer_seconds = answer_seconds
        self._topic_id = topic_id  # a newer topic of this name is another topic
        self._place: TopicPlacement | None = None  # that was believed
        self._hint: str | None = None  # where the last refusal said that it is
        self._hops = 0
        self._backoff = brokers.home.backoff()
        self._patience = ElapsedBackoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, brokers.rng.random)

    @property
    def is_closed(self) -> bool:
        """Whether nobody will be asked any more."""
        return self._brokers.is_closed

    @property
    def is_alone(self) -> bool:
        """Whether there is one node, and no other to look for."""
        return self._place is not None and self._place.is_alone

    @property
    def answer_seconds(self) -> float | None:
        """How long to wait for an answer before it is looked up whether the owner is another by now."""
        return None if self.is_alone else self._answer_seconds

    def now(self) -> Session | None:
        """Return the owner's session, if it is known and connected."""
        place = self._places.known(self.name)
        at = None if place is None else place.at(self.partition)
        if at is None or at.broker_id is None or (self._topic_id and place and place.topic_id != self._topic_id):
            return None
        self._place, self.url = place, at.url
        session = self._brokers.session(at.url)
        return session if session.is_connected else None

    async def session(self) -> Session:
        """Return the owner's session, connected.

        Raises:
            TopicNotFound: there is no such topic.
            Disconnected: the client is closed.
        """
        while True:
            place = self._place = await self._known()
            at = place.at(self.partition)
            if at is None and not place.is_alone:  # what is known may be of the topic's past; else the broker says so
                place = self._place = await self._known(place)
                at = place.at(self.partition)
            if self._hint is None and at is not None and at.broker_id is None:
                self.reason = unowned(self.name, at)
                await self._look_again(place)
                continue
            self.url = self._hint if self._hint is not None else None if at is None else at.url
            session = self._brokers.session(self.url)
            if session.is_connected:
                return session
            self.reason = session.disconnected()
            try:
                if self.url is None:
                    await session.wait_connected()
                else:
                    await session.reach(REACH_SECONDS)
                return session
            except Disconnected as error:
                if self.is_closed:
                    raise
                await self.refused(error)

    async def refused(self, error: SulinaError) -> None:
        """Wait, or learn, before the next is asked."""
        self.reason, former = error, self.url
        hint = getattr(error, "url", None) if isinstance(error, NotOwner) else None
        if isinstance(error, QueueFull):
            await asyncio.sleep(self._backoff.next())
        elif hint and hint != former and self._hops < HOPS_MAX:
            self._hint = hint
            self._hops += 1
            self._places.look_up_soon(self.name, self._place)  # for the others
        elif self._place is not None and (not self._place.is_alone or isinstance(error, NotOwner | TopicNotFound)):
            self._hint = None
            await self._look_again(self._place)
        elif not isinstance(error, Disconnected):
            await asyncio.sleep(self._backoff.next())

    def worked(self) -> None:
        """Note that the partition is served: the next error is another trouble."""
        self.reason = None
        self._hops = 0
        self._backoff.reset()
        self._patience.reset()

    async def has_moved(self) -> bool:
        """Ask whether the owner is another than the one that was given out last."""
        try:
            at = (await self._places.look_up(self.name)).at(self.partition)
        except SulinaError:
            return False
        return at is not None and at.url is not None and at.url != self.url

    async def _known(self, than: TopicPlacement | None = None) -> TopicPlacement:
        """Return something newer than `than`; waits until there is a broker to ask."""
        while True:
            try:
                place = await self._places.get(self.name, than)
            except (Disconnected, NotServing) as error:
                if self.is_closed:
                    raise
                self.reason = error
                await self._pause()
                continue
            if self._topic_id is not None and place.topic_id != self._topic_id:
                raise TopicNotFound(topic=str(self.name))
            return place

    async def _look_again(self, than: TopicPlacement) -> None:
        await self._pause()
        self._place = await self._known(than)
        if self._place.at(self.partition) == than.at(self.partition):
            self._brokers.doubt_home()

    async def _pause(self) -> None:
        await asyncio.sleep(self._patience.next(asyncio.get_running_loop().time()))


class Routes:
    """Requests to the owners of partitions."""

    def __init__(self, brokers: Brokers, placements: TopicPlacements) -> None:
        self.brokers = brokers
        self.placements = placements

    def route(self, name: TopicName, partition: int, wait_seconds: float = 0) -> Route:
        """Return the route for reads that the broker is told to answer within `wait_seconds`."""
        return Route(self.brokers, self.placements, name, partition, answer_seconds=wait_seconds + ANSWER_SECONDS)

    async def read(
        self, route: Route, make: Make, *, timeout_seconds: float | None = None, room: InFlight | None = None
    ) -> Any:
        """Return the owner's answer to what may be asked twice."""
        seconds = self.brokers.options.timeout_seconds if timeout_seconds is None else timeout_seconds
        room = self.brokers.rooms.requests if room is None else room
        answer = await send_with_retry(route, make, room=room, is_repeatable=True, seconds=seconds)
        route.worked()
        return answer

    async def change(self, name: TopicName, partition: int, make: Make, *, size_bytes: int = 0) -> Any:
        """Return the owner's answer to what is not sent again when its outcome is unknown."""
        route = Route(self.brokers, self.placements, name, partition)
        room, seconds = self.brokers.rooms.requests, self.brokers.options.timeout_seconds
        return await send_with_retry(
            route, make, room=room, is_repeatable=False, seconds=seconds, size_bytes=size_bytes
        )
