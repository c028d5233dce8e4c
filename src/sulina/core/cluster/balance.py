"""Which broker gets a partition, and which partitions move: by number of partitions, then by bytes per second.

Plans are deterministic: the same view gives the same plan. When a plan has been carried out, there is nothing more to
plan: every move takes one partition from the fullest broker, and never makes its target fuller than its source.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sulina.types import PartitionName

UNEVEN_RATIO = 1.2  # automatic moves: the fullest broker has more than this times the mean
UNEVEN_PARTITIONS = 2  # and this many more than the emptiest: then moving one certainly helps


@dataclass(frozen=True, slots=True, order=True)
class Load:
    """The load of a broker; loads are ordered from low to high."""

    partitions: int
    bytes_per_second: float
    broker_id: str  # so that no two are equal


@dataclass(frozen=True, slots=True)
class UnownedPartition:
    """A partition without an owner, which any broker may get."""

    partition: PartitionName
    avoid: str | None = None  # the broker that gave it away; gets it only if there is no other


@dataclass(frozen=True, slots=True, order=True)
class PlannedMove:
    """A partition to move from one broker to another."""

    partition: PartitionName
    source: str
    target: str


def spread(waiting: Iterable[UnownedPartition], loads: Iterable[Load]) -> dict[PartitionName, str]:
    """Return a broker for each partition, so that the numbers are as even as possible; empty without brokers."""
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
    """Return whether brokers differ enough for an automatic move."""
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
    """Return at most `moves_max` moves that make the brokers of `loads` even, from the fullest to the emptiest.

    `loads` count partitions that are being moved where they go, and `movable` leaves them out. With `only_if_uneven`
    the plan ends when the difference is too small for an automatic move; else when no move would help.
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
