"""Producers and consumers at work while their topic moves from broker to broker.

`SULINA_MOVES=50 pytest tests/cluster/test_live_move.py` is the long form.
"""

import os
import time
from collections.abc import Callable
from statistics import quantiles

import pytest

from sulina.core.delivery.members import SubscriptionKind
from tests.support.cluster_clients import Application, Load
from tests.support.cluster_world import World

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOVES = int(os.environ.get("SULINA_MOVES", "6"))
RECORDS_PER_SECOND = 5000
PAUSE_SECONDS_GOAL = 1.0  # of most moves; benchmarks/cluster.py measures it
PAUSE_SECONDS_MAX = 5.0  # of any, on a machine that has more to do
LOAD = Load(
    partitions=2,
    records_per_second=RECORDS_PER_SECOND,
    producers=2,
    batch_records=50,
    subscriptions=(("billing", SubscriptionKind.EXCLUSIVE, 1), ("mail", SubscriptionKind.SHARED, 2)),
)


@pytest.mark.timeout(120 + 10 * MOVES)
@pytest.mark.parametrize("ack", ["local", "archived"])
async def test_u13_applications_keep_running_through_moves_and_see_only_a_short_pause(
    world: World, ack: str, record_property: Callable[[str, object], None]
) -> None:
    """U6, U10, U13: no error, no loss, no gap, no offset twice, no reorder, nothing again after a durable ack."""
    topic = f"/default/live-{ack}"
    await world.create_topic(topic, LOAD.partitions, ack=ack)
    application = Application(world, topic, LOAD)
    pauses: list[float] = []
    async with application.running():
        await application.wait_acked(RECORDS_PER_SECOND // 2)
        began, before = time.monotonic(), application.acked_records
        for number in range(MOVES):
            started = time.monotonic()
            await world.move(topic, "abc"[number % 3])
            await application.wait_acked(RECORDS_PER_SECOND // 2)
            pauses += application.pauses(started, time.monotonic())
        rate = (application.acked_records - before) / (time.monotonic() - began)
        wrong = await application.finish()
    figures = {
        "moves": MOVES,
        "records/s meanwhile": round(rate),
        "pause p50, s": round(percentile(pauses, 50), 3),
        "pause p99, s": round(percentile(pauses, 99), 3),
        **application.counts(),
    }
    for name, figure in figures.items():
        print(f"{ack}: {name}: {figure}")
        record_property(name, figure)
    assert not wrong, "\n".join(wrong[:40])
    assert application.errors == []
    assert percentile(pauses, 50) <= PAUSE_SECONDS_GOAL, pauses
    assert max(pauses) <= PAUSE_SECONDS_MAX, pauses


def percentile(values: list[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else values[0]
