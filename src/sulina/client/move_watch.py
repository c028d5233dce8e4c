"""Progress of moves that a client has asked for, until other brokers serve the partitions.

A move goes through the steps of `UnloadStep`, and ends with one of `MoveEnd`.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from sulina.client.placements import is_served
from sulina.client.route import PAUSE_SECONDS_MIN
from sulina.core.backoff import ElapsedBackoff
from sulina.core.cluster.entries import MoveEnd, UnloadStep
from sulina.errors import Disconnected, NotServing, TopicNotFound
from sulina.wire.messages import PartitionPlacement, Placement, UnloadInfo

POLL_SECONDS_MAX = 0.5
LATE_SECONDS = 3.0  # a move that is no longer listed, with its partition where it was, then counts as refused

ENDS = frozenset(MoveEnd)

OnProgress = Callable[[list[UnloadInfo]], None]


class MoveReports(Protocol):
    """What brokers report of moves: the part of `Admin` that is needed here."""

    async def moves(self, topic: str) -> list[UnloadInfo]:
        """Return the moves of a topic that are under way."""
        ...

    async def placement(self, topic: str) -> Placement:
        """Return where the partitions of a topic are served."""
        ...


class MoveWatch:
    """Compares what was asked for with where partitions are served now."""

    def __init__(
        self, topic: str, asked: Sequence[UnloadInfo], before: Placement, on_progress: OnProgress | None
    ) -> None:
        self._topic = topic
        self._topic_id = before.topic_id
        self._epochs = {at.partition: at.epoch for at in before.partitions}
        self._on_progress = on_progress
        self._steps = {info.partition: info for info in asked}
        self._gone_since: dict[int, float] = {}  # moves that are no longer listed
        if on_progress is not None:
            on_progress(self.moves)

    @property
    def moves(self) -> list[UnloadInfo]:
        """Return the moves with the steps that they have reached, by partition."""
        return [self._steps[number] for number in sorted(self._steps)]

    async def run(
        self, reports: MoveReports, seconds: float, is_closed: Callable[[], bool] = lambda: False
    ) -> list[UnloadInfo]:
        """Follow the moves until each has ended; brokers that are away are asked again, unless the client is closed.

        Raises:
            TopicNotFound: there is another topic with this name, whose epochs cannot be compared.
            NotServing: it takes longer than `seconds`; the moves go on.
        """
        time = asyncio.get_running_loop().time
        backoff = ElapsedBackoff(PAUSE_SECONDS_MIN, POLL_SECONDS_MAX, random.random)
        try:
            async with asyncio.timeout(seconds):
                while any(info.step not in ENDS for info in self._steps.values()):
                    await asyncio.sleep(backoff.next(time()))
                    try:
                        # In this order: what is not under way any more has moved by then.
                        under_way = await reports.moves(self._topic)
                        place = await reports.placement(self._topic)
                    except (Disconnected, NotServing):
                        if is_closed():
                            raise
                    else:
                        self.see(under_way, place, time())
        except TimeoutError:
            waiting = "; ".join(
                f"partition {info.partition} is {info.step}" + (f" ({info.error})" if info.error else "")
                for info in self.moves
                if info.step not in ENDS
            )
            reason = f"{self._topic} has not moved within {seconds:g} seconds, and goes on: {waiting}"
            raise NotServing(reason=reason) from None
        return self.moves

    def see(self, under_way: Sequence[UnloadInfo], place: Placement, now: float) -> None:
        """Take in what brokers report, and tell `on_progress` if a step or an error has changed.

        Raises:
            TopicNotFound: the place is that of another topic with this name, whose epochs cannot be compared.
        """
        if place.topic_id != self._topic_id:
            raise TopicNotFound(topic=self._topic)
        before = self.moves
        listed = {info.partition: info for info in under_way}
        places = {at.partition: at for at in place.partitions}
        for number, info in self._steps.items():
            if info.step not in ENDS and (at := places.get(number)) is not None:
                self._steps[number] = self._next(info, listed.get(number), at, now)
        if self._on_progress is not None and self.moves != before:
            self._on_progress(self.moves)

    def _next(self, info: UnloadInfo, listed: UnloadInfo | None, at: PartitionPlacement, now: float) -> UnloadInfo:
        """Return how far a move is, of which this is listed and whose partition is there."""
        if is_served(at) and at.epoch > self._epochs.get(info.partition, -1):  # perhaps by the same owner
            return replace(info, step=MoveEnd.MOVED, to_broker=at.broker_id, error=None)
        if listed is not None:
            self._gone_since.pop(info.partition, None)
            # What was given up is only reported in the answer to the request.
            error, given_up = listed.error, info.given_up or listed.given_up
            if listed.step == MoveEnd.RECOVERING:
                error = f"broker {listed.from_broker} died, and only its disk has {_only_there(listed)}"
            return replace(info, step=listed.step, error=error, given_up=given_up)
        if at.broker_id is None:
            self._gone_since.pop(info.partition, None)
            return replace(info, step=UnloadStep.UNASSIGNED)
        if now - self._gone_since.setdefault(info.partition, now) > LATE_SECONDS:
            error = f"broker {at.broker_id} keeps it; if consumers are attached, force the move"
            return replace(info, step=MoveEnd.REFUSED, error=error)
        return info


def _only_there(info: UnloadInfo) -> str:
    if info.given_up is None:
        return "records that are not archived"
    start, end = info.given_up
    return f"the records from offset {start} on (its last report: up to {end})"
