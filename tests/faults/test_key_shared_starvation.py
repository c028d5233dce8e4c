"""Finding 17: a consumer that never acks does not starve the others of a key_shared subscription."""

import asyncio
from pathlib import Path

import pytest

from sulina.client import Client
from sulina.client.message import Record
from tests.support.cluster_world import cluster
from tests.support.doctor import wait_diagnosed
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd"]  # a fixture

TOPIC = "/default/starved"
RECORDS = 24_000  # more than twice what may be unacked
SECONDS = 60.0


@pytest.mark.parametrize("takes", [True, False], ids=["takes", "takes_nothing"])
async def test_p3_a_consumer_that_never_acks_does_not_starve_the_others(
    tmp_path: Path, etcd: EtcdServer, takes: bool
) -> None:
    async with cluster(tmp_path, etcd, "a") as world, world.client() as client, world.client() as idle:
        await world.create_topic(TOPIC, ack_timeout_seconds=1, redelivery_delay_seconds=0)
        await client.admin.create_subscription(TOPIC, "s", mode="key_shared", start="earliest")
        never = asyncio.create_task(never_ack(idle, takes))
        try:
            await publish(client)
            found: set[bytes] = set()
            async with client.consumer(TOPIC, "s", mode="key_shared", name="good") as messages:
                try:
                    async with asyncio.timeout(SECONDS):
                        while len(found) < RECORDS:
                            batch = await messages.take()
                            await messages.ack(*batch)
                            found.update(message.value or b"" for message in batch)
                except TimeoutError:
                    pass
            assert len(found) == RECORDS, f"the other got {len(found)} of {RECORDS}"
            if takes:
                await wait_diagnosed(
                    world, "warn consumers", TOPIC, "consumer bad of subscription s", is_etcd_asked=False
                )
        finally:
            never.cancel()
            await asyncio.gather(never, return_exceptions=True)


async def never_ack(client: Client, takes: bool) -> None:
    async with client.consumer(TOPIC, "s", mode="key_shared", name="bad") as messages:
        while takes:
            await messages.take()
        await asyncio.Event().wait()


async def publish(client: Client) -> None:
    size = 1000
    for start in range(0, RECORDS, size):
        batch = [Record(b"%d" % number, b"key-%d" % (number % 97)) for number in range(start, start + size)]
        await client.publish_batch(TOPIC, batch)
