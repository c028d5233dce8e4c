"""A clock that jumps two days ahead, on one broker or on a node that is alone: nothing goes before its time.

Retention keeps a day. What is published here is seconds old, so all of it must stay, on disk and in the shared archive.
"""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import serving
from tests.support.cluster_world import World, cluster, until
from tests.support.doctor import wait_diagnosed
from tests.support.etcd import EtcdServer, etcd
from tests.support.skewed_clock import SkewedClock

__all__ = ["etcd"]  # a fixture

DAY = 24 * 3600
COUNT = 40
ROUNDS = 4  # of retention, after the jump
POLICY: dict[str, Any] = {
    "retention_seconds": DAY,
    "segment_bytes": 1 << 16,
    "batch_bytes_max": 1 << 16,
    "archive_bytes": 1 << 16,
}
QUICK = {"SULINA_RETENTION_INTERVAL_SECONDS": "0.25"}
TOPIC = "/default/minutes-old"


async def publish(http: httpx.AsyncClient, url: str) -> None:
    """Enough for many segments and slices."""
    for number in range(COUNT):
        body = {"records": [{"value": f"{number:04d}" + "x" * 20_000}]}
        response = await http.post(f"{url}/v1/topics{TOPIC}/records", json=body)
        assert response.status_code == 200, response.text


async def metric(http: httpx.AsyncClient, url: str, name: str) -> float:
    found = re.search(rf"^{name}(?:_total)? (\S+)$", (await http.get(f"{url}/metrics")).text, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def offsets(http: httpx.AsyncClient, url: str) -> tuple[int, int]:
    info = (await http.get(f"{url}/v1/topics{TOPIC}/partitions/0")).json()
    return info["start_offset"], info["end_offset"]


async def outlives_rounds(http: httpx.AsyncClient, url: str) -> None:
    """Nothing has gone when retention has run a few times."""
    before = await metric(http, url, "sulina_retention_rounds")

    async def is_told() -> bool:
        rounds = await metric(http, url, "sulina_retention_rounds")
        return await offsets(http, url) != (0, COUNT) or rounds >= before + ROUNDS

    await until("retention has run", is_told, 90.0)
    assert await offsets(http, url) == (0, COUNT), "records that are seconds old have gone"


async def clock_ahead(world: World, broker_id: str) -> float:
    seen = await world.ask("/v1/cluster")
    return next(float(each["clock_ahead_seconds"]) for each in seen["brokers"] if each["broker_id"] == broker_id)


def records_stored(world: World) -> set[str]:
    """Return the objects with records; others come and go (uploads under way, commits before a checkpoint)."""
    return {name for name in world.stored("minutes-old") if name.endswith((".log", ".commits"))}


@pytest.mark.parametrize("ack", ["archived", "local"])
async def test_l15_a_broker_whose_clock_jumps_two_days_ahead_deletes_nothing(
    tmp_path: Path, etcd: EtcdServer, ack: str
) -> None:
    clock = SkewedClock(tmp_path, "a")
    async with cluster(tmp_path, etcd) as world:
        world.add("a", **QUICK, **clock.environment).is_forked = False
        world.add("b", **QUICK)
        await world.start("a", "b")
        await world.create_topic(TOPIC, ack=ack, **POLICY)
        if await world.owner_of(TOPIC) != "a":
            await world.move(TOPIC, "a")
        url = world.brokers["a"].url
        await publish(world.http, url)
        stored = records_stored(world)
        assert stored or ack == "local"  # those are uploaded later
        clock.move(2 * DAY)
        await outlives_rounds(world.http, url)
        assert stored <= records_stored(world)
        assert await metric(world.http, url, "sulina_clock_ahead_seconds") > DAY

        async def is_known_elsewhere() -> bool:
            return await clock_ahead(world, "a") > DAY

        await until("the others know that its clock is off", is_known_elsewhere)
        assert world.brokers["a"].events("clock_off")
        await wait_diagnosed(world, "warn clocks", "the clock of a is ", "ahead", is_etcd_asked=False)
        await world.move(TOPIC, "b")
        assert await offsets(world.http, world.brokers["b"].url) == (0, COUNT)
        clock.move(0)

        async def is_right_again() -> bool:
            return bool(world.brokers["a"].events("clock_right_again"))

        await until("its clock is right again", is_right_again)


async def test_l15_a_node_alone_that_starts_with_a_clock_two_days_ahead_deletes_nothing(tmp_path: Path) -> None:
    clock = SkewedClock(tmp_path, "alone")
    environment = {**QUICK, **clock.environment}
    async with httpx.AsyncClient(timeout=20.0) as http:
        with serving.serving(tmp_path / "alone", environment=environment, is_forked=False) as node:
            made = await http.put(f"{node.url}/v1/topics{TOPIC}", json={"policy": {**POLICY, "ack": "local"}})
            assert made.status_code < 300, made.text
            await publish(http, node.url)
            await outlives_rounds(http, node.url)
        clock.move(2 * DAY)
        with serving.serving(tmp_path / "alone", environment=environment, is_forked=False) as node:
            await outlives_rounds(http, node.url)
            assert await metric(http, node.url, "sulina_clock_ahead_seconds") > DAY
