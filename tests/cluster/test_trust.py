"""What brokers trust goes back, lies or fills up, at random, among kills, stops and moves: nothing is served wrongly.

`SULINA_TRUST_FAULTS=100 pytest tests/cluster/test_trust.py` is the long form; `SULINA_SEED` gives the faults.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from sulina.core.delivery.members import SubscriptionKind
from tests.support.cluster_clients import Application, Load
from tests.support.cluster_world import World, cluster
from tests.support.etcd import ALONE, EtcdServer
from tests.support.nemesis import Nemesis
from tests.support.skewed_clock import SkewedClock
from tests.support.trust_faults import DAY, TrustFaults

pytestmark = pytest.mark.asyncio(loop_scope="session")

FAULTS = int(os.environ.get("SULINA_TRUST_FAULTS", "6"))
# Drawn by the day; a failure prints it.
SEED = int(os.environ.get("SULINA_SEED") or date.fromisoformat(os.environ["SULINA_DAY"]).toordinal())
PAUSE_SECONDS_MAX = 1.0
LOAD = Load(
    partitions=2,
    producers=2,
    records_per_second=int(os.environ.get("SULINA_TRUST_RATE", "300")),
    batch_records=10,
    subscriptions=(("billing", SubscriptionKind.EXCLUSIVE, 1), ("mail", SubscriptionKind.SHARED, 2)),
    tolerates_errors=True,
    every_nth_has_txn_id=2,
    looks_per_second=4.0,
)
QUICK = {"SULINA_RETENTION_INTERVAL_SECONDS": "0.5"}
KEPT_FOR_A_DAY: dict[str, Any] = {
    "retention_seconds": DAY,
    "segment_bytes": 1 << 16,
    "batch_bytes_max": 1 << 16,
    "archive_bytes": 1 << 16,
}
POLICIES: dict[str, dict[str, Any]] = {"archived": {}, "local": KEPT_FOR_A_DAY}  # by ack


@contextlib.asynccontextmanager
async def trusting(folder: Path) -> AsyncIterator[tuple[World, dict[str, SkewedClock]]]:
    """Three brokers with an etcd of their own, behind proxies; the clock of `c` can be moved."""
    clock = SkewedClock(folder, "c")
    with EtcdServer(folder / "etcd", arguments=ALONE) as etcd:
        async with cluster(folder, etcd, is_proxied=True) as world:
            for name in ("a", "b"):
                world.add(name, **QUICK)
            world.add("c", **QUICK, **clock.environment).is_forked = False
            await world.start("a", "b", "c")
            yield world, {"c": clock}


@pytest.mark.timeout(180 + 20 * FAULTS)
async def test_r10_whatever_is_trusted_goes_back_nothing_is_lost_in_silence_or_served_wrongly(tmp_path: Path) -> None:
    """R10, U7, U14, L15: a history without fault, or a partition that is closed with its cause, and opens again."""
    print(f"SULINA_SEED={SEED} SULINA_TRUST_FAULTS={FAULTS} {LOAD}")
    async with trusting(tmp_path) as (world, clocks), contextlib.AsyncExitStack() as running:
        applications = {}
        for ack, policy in POLICIES.items():
            topic = f"/default/trust-{ack}"
            await world.create_topic(topic, LOAD.partitions, ack=ack, **policy)
            applications[topic] = Application(world, topic, LOAD, ack)
        nemesis = Nemesis(world, list(applications), SEED)
        faults = TrustFaults(world, applications, nemesis, clocks, tmp_path)
        for application in applications.values():
            await running.enter_async_context(application.running())
            await application.wait_acked(100)
        began = time.monotonic()
        kinds = [*faults.kinds, nemesis.move, nemesis.kill, nemesis.sleep, nemesis.drain, nemesis.restart_etcd]
        try:
            await nemesis.run(FAULTS, kinds, PAUSE_SECONDS_MAX)
            await world.restore("a", "b", "c")
            for application in applications.values():
                await application.wait_acked(100)
            found = await asyncio.gather(*(each.finish() for each in applications.values()))
            wrong = [f"{topic}: {each}" for topic, lines in zip(applications, found, strict=True) for each in lines]
        finally:
            print(f"{time.monotonic() - began:.1f} s; faults: {dict(nemesis.counts)}")
            print(f"partitions: {dict(faults.closed)}; {faults.given_up_records} records were given up")
            for application in applications.values():
                print(application.topic, application.counts(), dict(application.looks))
    assert not wrong, "\n".join([f"SULINA_SEED={SEED} SULINA_TRUST_FAULTS={FAULTS}", *wrong[:40]])
