"""Brokers of the release before and of today in one cluster: one after the other is upgraded while clients work (L19).

The release before is the newest wheel in tests/golden. Its processes have it first on their path.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import sulina
from sulina.core.delivery.members import SubscriptionKind
from tests.support import serving
from tests.support.cluster_clients import Application, Load
from tests.support.cluster_world import World, cluster
from tests.support.etcd import EtcdServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

GOLDEN = Path(__file__).parent.parent / "golden"
RECORDS_PER_SECOND = 1000
LOAD = Load(
    partitions=2,
    records_per_second=RECORDS_PER_SECOND,
    producers=2,
    batch_records=20,
    subscriptions=(("billing", SubscriptionKind.EXCLUSIVE, 1), ("mail", SubscriptionKind.SHARED, 2)),
)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder with the release before."""
    wheel = max(GOLDEN.glob("*/*.whl"), key=lambda path: tuple(map(int, path.parent.name.split("."))))
    folder = tmp_path_factory.mktemp("release")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    told = [sys.executable, "-c", "import sulina; print(sulina.__file__)"]
    found = subprocess.check_output(told, env={**os.environ, "PYTHONPATH": str(folder)}, cwd=folder, text=True)
    assert Path(found).is_relative_to(folder), "the release before would not be what runs"
    return str(folder)


@pytest.mark.timeout(240)
async def test_l19_brokers_are_upgraded_one_after_the_other_while_clients_work(
    tmp_path: Path, etcd: EtcdServer, release: str
) -> None:
    """No error, no loss, no offset twice, nothing again after a durable ack; topics move both ways between versions."""
    topic, copied = "/default/orders", "/default/archived"
    async with cluster(tmp_path, etcd) as world:
        for name in ("a", "b"):
            of_release(world, name, release)
        await world.start("a", "b")
        await world.create_topic(topic, LOAD.partitions)
        await world.create_topic(copied, ack="archived")
        application = Application(world, topic, LOAD)
        async with application.running():
            await application.wait_acked(RECORDS_PER_SECOND // 2)
            await upgrade(world, "b", topic, copied, leaving_to="a")
            for to in ("b", "a"):  # from the old one to the new one, and back
                await world.move(topic, to)
                await world.move(copied, to)
                await application.wait_acked(RECORDS_PER_SECOND // 2)
            await upgrade(world, "a", topic, copied, leaving_to="b")
            await world.move(topic, "a")
            await application.wait_acked(RECORDS_PER_SECOND // 2)
            wrong = await application.finish()
        assert not wrong, "\n".join(wrong[:40])
        assert application.errors == []
        for broker in world.brokers.values():
            assert broker.events("cluster_key_damaged") == []
            assert broker.events("topic_damaged") == []


def of_release(world: World, name: str, release: str) -> None:
    broker = world.add(name, PYTHONPATH=release)
    broker.is_forked = False


async def upgrade(world: World, name: str, *topics: str, leaving_to: str) -> None:
    """Move the topics of a broker away, stop it, and start it with the code of today on the same directory."""
    for topic in topics:
        await world.move(topic, leaving_to)
    old = world.brokers[name]
    assert await old.stop() == 0, old.last_words()
    await old.start_as_today()
    await world.wait_brokers(*world.brokers)


@pytest.mark.timeout(120)
async def test_l19_a_node_is_upgraded_on_its_directory(tmp_path: Path, release: str) -> None:
    """Records, answers to txn_ids, versions and cursors go on; what the new one writes, the old one reads as well."""
    before = {"PYTHONPATH": release}
    acks: dict[int, int] = {}
    consumed: list[int] = []
    for environment in (before, None, before, None):
        with serving.serving(tmp_path / "data", environment=environment, is_forked=environment is None) as node:
            with sulina.connect_sync(node.url) as client:
                if not acks:
                    client.admin.create_topic("/default/orders")
                    client.admin.create_subscription("/default/orders", "billing", start="earliest")
                for number, offset in acks.items():
                    again = client.publish("/default/orders", "again", txn_id=f"t{number}")
                    assert again.offset == offset
                for number in range(len(acks), len(acks) + 15):
                    ack = client.publish("/default/orders", f"value {number}", txn_id=f"t{number}")
                    ack.raise_for_status()
                    assert ack.offset is not None
                    acks[number] = ack.offset
                with client.consumer("/default/orders", "billing") as messages:
                    for message in messages:
                        messages.ack(message)
                        consumed.append(message.offset)
                        if len(consumed) % 10 == 0:
                            break
                found = [message.payload for message in client.read("/default/orders", follow=False, start="earliest")]
            assert found == [f"value {number}" for number in acks]
            assert node.errors() == []
    assert consumed == list(range(40))
