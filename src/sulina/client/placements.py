"""Where topics are served, as far as this client has heard.

It may be wrong at any time: a caller that is refused looks again, and then all who were told the same know better. One
question for each topic is under way at a time. What was heard of a partition is never replaced by something older.
"""

import asyncio

from sulina.client.brokers import Brokers
from sulina.errors import Disconnected, NotOwner, NotServing, Recovering, SulinaError
from sulina.json_values import convert_to
from sulina.types import TopicName
from sulina.wire.frames import Call
from sulina.wire.messages import PartitionPlacement, Placement, TopicState
from sulina.wire.operations import PLACEMENT

PLACES_KNOWN_MAX = 10_000
LOOKUP_SECONDS = 3.0  # then another broker is asked


class TopicPlacement:
    """Where the partitions of one topic were, when a broker was last asked."""

    __slots__ = ("is_alone", "partitions", "topic_id")

    def __init__(self, topic_id: str, partitions: list[PartitionPlacement]) -> None:
        self.topic_id = topic_id
        self.partitions = partitions
        # A node without a name that others could use is the only one.
        self.is_alone = all(at.url is None and at.broker_id is not None for at in partitions)

    def at(self, partition: int) -> PartitionPlacement | None:
        """Return where a partition is served; None: there is no such partition, as far as is known."""
        return self.partitions[partition] if 0 <= partition < len(self.partitions) else None

    def owners(self) -> dict[str | None, int]:
        """Return the URLs of the owners, each with the lowest of its partitions, in the order of these."""
        owners: dict[str | None, int] = {}
        for at in self.partitions:
            if is_served(at):
                owners.setdefault(at.url, at.partition)
        return owners

    @property
    def is_whole(self) -> bool:
        """Whether all of it is served."""
        return all(map(is_served, self.partitions))


def is_served(at: PartitionPlacement) -> bool:
    """Return whether a broker serves the partition."""
    return at.broker_id is not None and at.state is TopicState.ACTIVE


def unowned(name: TopicName, at: PartitionPlacement) -> NotServing:
    """Return the error for a partition that no broker serves."""
    if at.state is TopicState.RECOVERING and at.waits_for is not None:
        return Recovering(topic=str(name), partition=at.partition, broker=at.waits_for)
    return NotOwner(topic=str(name), partition=at.partition)


class TopicPlacements:
    """Where the partitions of the topics are that the client uses."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._known: dict[TopicName, TopicPlacement] = {}
        self._asking: dict[TopicName, asyncio.Task[TopicPlacement]] = {}
        self.lookups = 0

    def known(self, name: TopicName) -> TopicPlacement | None:
        """Return what was heard last."""
        return self._known.get(name)

    async def get(self, name: TopicName, than: TopicPlacement | None = None) -> TopicPlacement:
        """Return something newer than `than`, which turned out to be wrong.

        Raises:
            TopicNotFound: there is no such topic.
            Disconnected: no broker answers.
        """
        known = self._known.get(name)
        if known is not None and known is not than:
            return known
        return await self.look_up(name)

    async def look_up(self, name: TopicName) -> TopicPlacement:
        """Return where a topic is served now.

        Raises:
            TopicNotFound: there is no such topic.
            Disconnected: no broker answers.
        """
        lookup = self._asked(name)
        await asyncio.wait([lookup])
        if lookup.cancelled():
            raise Disconnected(url="anywhere", reason="the client is closed")
        return lookup.result()

    def look_up_soon(self, name: TopicName, than: TopicPlacement | None) -> None:
        """Look up a topic without waiting for it, if `than` is still what is known."""
        if self._known.get(name) is than:
            self._asked(name)

    def _asked(self, name: TopicName) -> asyncio.Task[TopicPlacement]:
        lookup = self._asking.get(name)
        if lookup is None:
            lookup = self._asking[name] = asyncio.create_task(self._look_up(name), name=f"sulina-lookup {name}")
            lookup.add_done_callback(_seen)
        return lookup

    async def close(self) -> None:
        """Cancel all lookups."""
        lookups = list(self._asking.values())
        for task in lookups:
            task.cancel()
        if lookups:
            await asyncio.wait(lookups)

    async def ask(self, name: TopicName) -> Placement:
        """Return the answer of any broker.

        Raises:
            TopicNotFound: there is no such topic.
            Disconnected: no broker answers.
        """
        brokers = self._brokers
        answer = await brokers.read(
            lambda number: Call(number, PLACEMENT.name, {"topic": str(name)}),
            room=brokers.rooms.lookups,
            answer_seconds=LOOKUP_SECONDS,
        )
        placement = convert_to(answer, Placement, from_attributes=True)
        brokers.learn(placement.brokers)
        return placement

    async def _look_up(self, name: TopicName) -> TopicPlacement:
        try:
            self.lookups += 1
            placement = await self.ask(name)
        except SulinaError as error:
            if not error.retryable:
                self._known.pop(name, None)
            raise
        finally:
            del self._asking[name]
        partitions = sorted(placement.partitions, key=lambda at: at.partition)
        older = self._known.pop(name, None)
        if older is not None and older.topic_id == placement.topic_id:
            partitions = [
                known if (known := older.at(at.partition)) is not None and known.epoch > at.epoch else at
                for at in partitions
            ]
        while len(self._known) >= PLACES_KNOWN_MAX:
            del self._known[next(iter(self._known))]
        place = self._known[name] = TopicPlacement(placement.topic_id, partitions)
        return place


def _seen(task: asyncio.Task[TopicPlacement]) -> None:
    """Mark the error of a lookup as seen: its callers have been told."""
    if not task.cancelled():
        task.exception()
