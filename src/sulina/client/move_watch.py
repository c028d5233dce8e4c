"""Progress of moves that a client has asked for, until other brokers serve the partitions."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sulina.client.placements import TopicPlacement, is_served
from sulina.errors import NotServing, TopicNotFound
from sulina.wire.messages import PartitionPlacement, Placement, UnloadInfo

MOVED = "moved"

OnProgress = Callable[[list[UnloadInfo]], None]


def has_moved(now: PartitionPlacement, epoch_before: int) -> bool:
    """Return whether a partition is served in a higher epoch than before the move, also by the same owner."""
    return is_served(now) and now.epoch > epoch_before


class MoveWatch:
    """Compares what was asked for with where partitions are served now."""

    def __init__(
        self, topic: str, asked: Sequence[UnloadInfo], before: Placement, on_progress: OnProgress | None
    ) -> None:
        self._topic = topic
        self._topic_id = before.topic_id
        self._before = {at.partition: at.epoch for at in before.partitions}
        self._on_progress = on_progress
        self._steps = {info.partition: info for info in asked}
        if on_progress is not None:
            on_progress(self.moves)

    @property
    def moves(self) -> list[UnloadInfo]:
        """Return the moves with the steps that they have reached, by partition."""
        return [self._steps[number] for number in sorted(self._steps)]

    def see(self, under_way: Sequence[UnloadInfo], place: TopicPlacement) -> bool:
        """Take in what brokers report, and return whether all partitions have moved.

        Raises:
            TopicNotFound: the place is that of another topic with this name, whose epochs cannot be compared.
        """
        if place.topic_id != self._topic_id:
            raise TopicNotFound(topic=self._topic)
        before = self.moves
        now = {info.partition: info for info in under_way}
        for number, info in list(self._steps.items()):
            if info.step == MOVED:
                continue
            at = next((at for at in place.partitions if at.partition == number), None)
            if at is not None and has_moved(at, self._before.get(number, -1)):
                self._steps[number] = replace(info, step=MOVED, to_broker=at.broker_id, error=None)
            elif number in now:
                # What was given up is only reported in the answer to the request.
                self._steps[number] = replace(now[number], given_up=info.given_up)
        if self._on_progress is not None and self.moves != before:
            self._on_progress(self.moves)
        return all(info.step == MOVED for info in self._steps.values())

    def timed_out(self, seconds: float) -> NotServing:
        """Return the error for moves that have not ended in time."""
        waiting = [info for info in self.moves if info.step != MOVED]
        said = "; ".join(
            f"partition {info.partition} is {info.step}" + (f" ({info.error})" if info.error else "")
            for info in waiting
        )
        return NotServing(reason=f"{self._topic} has not moved within {seconds:g} seconds, and goes on: {said}")
