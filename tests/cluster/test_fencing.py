"""An owner that sleeps past its lease and wakes up: others own its topics now, and it must not say yes to anybody."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from sulina.core.delivery.members import SubscriptionKind
from tests.support.cluster_clients import Application, Load
from tests.support.cluster_world import World, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

LATE_REQUESTS = 8
ASK_SECONDS = 2.0
LOAD = Load(records_per_second=500, subscriptions=(("billing", SubscriptionKind.EXCLUSIVE, 1),))


async def publish(client: httpx.AsyncClient, url: str, topic: str, value: str) -> int:
    """Its status; 0 for no answer."""
    try:
        response = await client.post(f"{url}/v1/topics{topic}/records", json={"records": [{"value": value}]})
        return response.status_code
    except httpx.TransportError:
        return 0


async def test_u14_an_owner_paused_past_its_lease_acks_nothing_after_the_new_claim(world: World) -> None:
    """F1 too: requests that it got before, while and after it slept are refused or led away; its directory is aside."""
    topic = "/default/fencing"
    await world.create_topic(topic, ack="archived")
    stale = world.brokers[await world.owner_of(topic)]
    application = Application(world, topic, LOAD)
    async with application.running(), httpx.AsyncClient(timeout=60.0) as direct:
        await application.wait_acked(200)
        stale.pause()
        late = [asyncio.create_task(publish(direct, stale.url, topic, f"late-{n}")) for n in range(LATE_REQUESTS)]
        await world.wait_served(topic, not_by=stale.broker_id)
        await application.wait_acked(200)
        stale.resume()
        statuses: list[int] = []
        until_time = time.monotonic() + ASK_SECONDS
        while time.monotonic() < until_time:
            statuses.append(await publish(direct, stale.url, topic, f"after-{len(statuses)}"))
        statuses += await asyncio.gather(*late)
        print(f"{len(statuses)} requests to the stale owner: {sorted(set(statuses))}")
        assert statuses
        assert 200 not in statuses
        await world.wait_brokers("a", "b", "c")
        await application.wait_acked(200)
        wrong = await application.finish()
    assert not wrong, "\n".join(wrong[:40])
    assert application.errors == []
    await until("its directory is set aside", lambda: is_set_aside(stale.data))


async def is_set_aside(data: Path) -> bool:
    """Nothing is at the place of the partition any more."""
    return not list(data.rglob("topic=default.fencing-part=0"))
