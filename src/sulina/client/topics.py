"""What the client knows of topics: how many partitions they have, and whether they remember what they were sent."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sulina.core.topic import Ack, Delivery
from sulina.types import TopicName
from sulina.wire.messages import TopicInfo

TOPICS_KNOWN_MAX = 10_000

Ask = Callable[[TopicName, float | None], Awaitable[TopicInfo]]


@dataclass(slots=True)
class KnownTopic:
    """A topic as it was when the node was asked."""

    name: str
    partitions: int
    is_reliable: bool
    remembers: bool  # a txn_id: it keeps records, and acks them once they are written
    expires_at: float
    turn: int

    def next_turn(self) -> int:
        """The partition for records without a key."""
        self.turn = (self.turn + 1) % self.partitions
        return self.turn


class Topics:
    """Asks once for all who want to know, and again after some time, or when something shows that it has changed."""

    def __init__(self, ask: Ask, *, seconds: float, first_turn: Callable[[int], int]) -> None:
        self._ask = ask
        self._seconds = seconds
        self._first_turn = first_turn
        self._known: dict[TopicName, KnownTopic] = {}
        self._asking: dict[TopicName, asyncio.Lock] = {}

    async def get(self, name: TopicName, timeout_seconds: float | None = None) -> KnownTopic:
        """TopicNotFound, Disconnected."""
        known = self._fresh(name)
        if known is not None:
            return known
        lock = self._asking.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                return self._fresh(name) or self._remember(name, await self._ask(name, timeout_seconds))
        finally:
            if not lock.locked():
                self._asking.pop(name, None)

    async def refresh(self, name: TopicName, timeout_seconds: float | None = None) -> KnownTopic:
        """Ask again. TopicNotFound when it is gone."""
        self._known.pop(name, None)
        return await self.get(name, timeout_seconds)

    def _fresh(self, name: TopicName) -> KnownTopic | None:
        known = self._known.get(name)
        if known is None or asyncio.get_running_loop().time() >= known.expires_at:
            return None
        return known

    def _remember(self, name: TopicName, info: TopicInfo) -> KnownTopic:
        while len(self._known) >= TOPICS_KNOWN_MAX:
            del self._known[next(iter(self._known))]
        partitions = info.settings.partitions
        is_reliable = info.settings.delivery == Delivery.RELIABLE
        older = self._known.get(name)
        known = self._known[name] = KnownTopic(
            name=str(name),
            partitions=partitions,
            is_reliable=is_reliable,
            remembers=is_reliable and info.policy.ack != Ack.MEMORY,
            expires_at=asyncio.get_running_loop().time() + self._seconds,
            turn=older.turn % partitions if older else self._first_turn(partitions),
        )
        return known
