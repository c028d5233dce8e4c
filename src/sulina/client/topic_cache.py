"""What the client knows of topics: how many partitions they have, and whether they remember what they were sent."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sulina.core.topic import Ack, DeliveryGuarantee
from sulina.types import TopicName
from sulina.wire.messages import TopicInfo

TOPICS_KNOWN_MAX = 10_000

Ask = Callable[[TopicName, float | None], Awaitable[TopicInfo]]


@dataclass(slots=True)
class KnownTopic:
    """A topic as it was when the node was asked."""

    name: str
    topic_id: str
    partitions: int
    is_reliable: bool
    remembers: bool  # a txn_id: it keeps records, and acks them once they are written
    expires_at: float
    turn: int

    def next_turn(self) -> int:
        """Return the partition for records without a key."""
        self.turn = (self.turn + 1) % self.partitions
        return self.turn


class _Lookup:
    """A question that is under way, and who waits for the answer."""

    def __init__(self) -> None:
        self.task: asyncio.Task[KnownTopic]
        self.turns: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        """Wake all that wait: the task is done."""
        for turn in self.turns:
            _set(turn)
        if not self.turns and not self.task.cancelled():
            self.task.exception()  # nobody is left to hear of it


def _set(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


class TopicCache:
    """Asks once for all who want to know, and again after some time, or when something shows that it has changed."""

    def __init__(self, ask: Ask, *, seconds: float, first_turn: Callable[[int], int]) -> None:
        self._ask = ask
        self._seconds = seconds
        self._first_turn = first_turn
        self._known: dict[TopicName, KnownTopic] = {}
        self._lookups: dict[TopicName, _Lookup] = {}

    async def get(self, name: TopicName, timeout_seconds: float | None = None) -> KnownTopic:
        """Return what is known of a topic; callers that wait go on in the order in which they came.

        Raises:
            TopicNotFound: there is no such topic.
            Disconnected: no broker answers.
            TimeoutError: the answer takes longer than `timeout_seconds`.
        """
        lookup = self._lookups.get(name)
        if lookup is None or (lookup.task.done() and not lookup.turns):
            known = self._known.get(name)
            if known is not None and asyncio.get_running_loop().time() < known.expires_at:
                return known
            lookup = self._lookups[name] = _Lookup()
            lookup.task = asyncio.create_task(self._look_up(name, lookup), name=f"sulina-topic {name}")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if lookup.task.done():
            asyncio.get_running_loop().call_soon(_set, turn)  # behind those who were woken before
        lookup.turns.append(turn)
        try:
            async with asyncio.timeout(timeout_seconds):
                await turn
            return lookup.task.result()
        finally:
            lookup.turns.remove(turn)
            if not lookup.turns and self._lookups.get(name) is lookup and lookup.task.done():
                del self._lookups[name]

    async def _look_up(self, name: TopicName, lookup: "_Lookup") -> KnownTopic:
        try:
            return self._remember(name, await self._ask(name, None))
        finally:
            asyncio.get_running_loop().call_soon(lookup.wake)

    async def refresh(self, name: TopicName, known: KnownTopic, timeout_seconds: float | None = None) -> KnownTopic:
        """Ask again, unless others have learned more since then. As `get`."""
        if self._known.get(name) is known:
            del self._known[name]
        return await self.get(name, timeout_seconds)

    def _remember(self, name: TopicName, info: TopicInfo) -> KnownTopic:
        while len(self._known) >= TOPICS_KNOWN_MAX:
            del self._known[next(iter(self._known))]
        partitions = info.settings.partitions
        is_reliable = info.settings.delivery == DeliveryGuarantee.RELIABLE
        older = self._known.get(name)
        known = self._known[name] = KnownTopic(
            name=str(name),
            topic_id=info.topic_id,
            partitions=partitions,
            is_reliable=is_reliable,
            remembers=is_reliable and info.policy.ack != Ack.MEMORY,
            expires_at=asyncio.get_running_loop().time() + self._seconds,
            turn=older.turn % partitions if older else self._first_turn(partitions),
        )
        return known
