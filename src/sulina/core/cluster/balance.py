"""Which broker gets a partition, and which partitions move: by how many each has, then by how many bytes pass.

All of it is deterministic, so that whoever plans from the same view plans the same. A plan that is carried out leaves
nothing to plan: every move makes the fullest broker emptier by one, and never fuller than the one it came from.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sulina.types import PartitionName

UNEVEN_RATIO = 1.2  # the fullest broker has more than this times the mean, before anything moves by itself
UNEVEN_PARTITIONS = 2  # and so many more than the emptiest: moving one then helps for sure


@dataclass(frozen=True, slots=True, order=True)
class Load:
    """What a broker has to do. Less is smaller."""

    partitions: int
    bytes_per_second: float
    broker_id: str  # so that no two are equal


@dataclass(frozen=True, slots=True)
class UnownedPartition:
    """A partition without an owner, that anybody may have."""

    partition: PartitionName
    avoid: str | None = None  # who gave it away: only if there is nobody else


@dataclass(frozen=True, slots=True, order=True)
class PlannedMove:
    """A partition that is to leave one broker for another."""

    partition: PartitionName
    source: str
    target: str


def spread(waiting: Iterable[UnownedPartition], loads: Iterable[Load]) -> dict[PartitionName, str]:
    """A broker for each, so that their counts end as even as may be. Empty when there is nobody."""
    heap = sorted(loads)
    placed: dict[PartitionName, str] = {}
    if not heap:
        return placed
    for one in sorted(waiting, key=lambda one: one.partition):
        avoided = heapq.heappop(heap) if heap[0].broker_id == one.avoid and len(heap) > 1 else None
        best = heap[0]
        placed[one.partition] = best.broker_id
        heapq.heapreplace(heap, Load(best.partitions + 1, best.bytes_per_second, best.broker_id))
        if avoided is not None:
            heapq.heappush(heap, avoided)
    return placed


def is_uneven(counts: Sequence[int]) -> bool:
    """Whether brokers differ so much that it is worth to move something without being asked."""
    if len(counts) < 2:
        return False
    fullest, mean = max(counts), sum(counts) / len(counts)
    return fullest > UNEVEN_RATIO * mean and fullest - min(counts) >= UNEVEN_PARTITIONS


def plan_moves(
    movable: Mapping[str, Sequence[PartitionName]],
    loads: Iterable[Load],
    *,
    moves_max: int,
    only_if_uneven: bool = False,
) -> list[PlannedMove]:
    """The moves that make the brokers of `loads` even, at most so many, from the fullest to the emptiest.

    `loads` count what is under way already as if it had arrived, and `movable` leaves it out. With `only_if_uneven`
    the plan ends as soon as the difference is not worth a move; else when no move would help.
    """
    by_broker = {load.broker_id: load for load in loads}
    left = {broker: sorted(movable.get(broker, ()), reverse=True) for broker in by_broker}
    moves: list[PlannedMove] = []
    while len(moves) < moves_max and len(by_broker) > 1:
        if only_if_uneven and not is_uneven([load.partitions for load in by_broker.values()]):
            break
        target = min(by_broker.values())
        givers = [load for load in by_broker.values() if left[load.broker_id]]
        if not givers:
            break
        source = max(givers)
        if source.partitions - target.partitions < UNEVEN_PARTITIONS:
            break
        moves.append(PlannedMove(left[source.broker_id].pop(), source.broker_id, target.broker_id))
        for load, change in ((source, -1), (target, 1)):
            by_broker[load.broker_id] = Load(load.partitions + change, load.bytes_per_second, load.broker_id)
    return moves
