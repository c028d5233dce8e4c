"""U7, R10: an archive that lost commits, a disk that is an older copy. No offset is used twice."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sulina.core.cluster import keys
from sulina.types import PartitionName, TopicName
from tests.support.cluster_world import World, cluster, until
from tests.support.doctor import diagnosis, wait_diagnosed
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd"]
pytestmark = pytest.mark.asyncio(loop_scope="session")

TOPIC = "/default/reported"
PARTITION = PartitionName(TopicName.parse(TOPIC), 0)
NAME = PARTITION.directory


@pytest_asyncio.fixture(loop_scope="session")
async def world(tmp_path: Path, etcd: EtcdServer) -> AsyncIterator[World]:
    async with cluster(tmp_path, etcd, "a", "b") as made:
        yield made


async def publish(world: World, first: int, count: int) -> None:
    async with world.client() as client:
        ack = await client.publish_batch(TOPIC, [f"v{number}" for number in range(first, first + count)])
        assert ack.offset == first


async def wait_reported(world: World, *, archived: int = 0, end: int = 0) -> None:
    key = keys.archive_current(PARTITION)

    async def is_reported() -> bool:
        found = world.keys(key).get(key, {})
        return bool(found.get("archived_offset", -1) >= archived and found.get("end_offset", -1) >= end)

    await until("the owner has reported how far it is", is_reported)


async def wait_closed(world: World, broker: str) -> str:
    """Return why the partition is not served by the broker that has it."""

    async def refusal() -> str | None:
        body = {"records": [{"value": "never"}]}
        url = f"{world.brokers[broker].url}/v1/topics{TOPIC}/records"
        answer = await world.http.post(url, json=body, follow_redirects=False)
        assert answer.status_code >= 300, answer.text
        return answer.json()["detail"] if answer.json()["code"] == "log_incomplete" else None

    return await until(f"{broker} keeps it closed", refusal)


async def values(world: World) -> list[str | None]:
    async with world.client() as client:
        return [record.text async for record in client.read(TOPIC, start="earliest", follow=False)]


@pytest.mark.parametrize("lost", ["all", "all for a while", "newest"])
async def test_u7_an_archive_that_lost_commits_keeps_the_partition_closed(world: World, lost: str) -> None:
    """U7, R10: the next owner starts neither at 0 nor in the middle. An operator brings the objects back and nothing is
    lost; or gives up what is missing."""
    await world.create_topic(TOPIC, ack="archived")
    for first in range(0, 30, 5):
        await publish(world, first, 5)
    await wait_reported(world, archived=30)
    owner = await world.owner_of(TOPIC)
    other = world.other(owner)
    await world.brokers[owner].kill()
    commits = [Path(f"{world.objects.removeprefix('file://')}/{path}") for path in world.stored("_delta_log/")]
    ours = sorted(path for path in commits if NAME in str(path))
    kept = ours[: len(ours) // 2] if lost == "newest" else []
    gone = {path: path.read_bytes() for path in ours if path not in kept}
    for path in gone:
        path.unlink()
    shutil.rmtree(world.brokers[owner].data / NAME)  # the disk is lost too

    reason = await wait_closed(world, other)
    assert ", 30) are missing" in reason
    assert "--give-up" in reason
    found = await diagnosis(world)
    for check in ("fail archive", "fail partitions"):  # by looking itself, and by the word of the broker
        assert any(check in each and ", 30) are missing" in each and "--give-up" in each for each in found), found
    if lost == "all for a while":
        for path, data in gone.items():
            path.write_bytes(data)
        await world.wait_served(TOPIC)
        await publish(world, 30, 5)
        assert await values(world) == [f"v{number}" for number in range(35)]
        return
    start = int(reason.split("records [")[1].split(",")[0])
    await world.give_up(TOPIC, 0, via=other)
    await world.wait_served(TOPIC)
    assert await values(world) == [f"v{number}" for number in range(start)]
    await publish(world, start, 5)
    (told,) = world.keys(f"/storage/topics{TOPIC}/0/given_up/").values()
    assert (told["start"], told["end"]) == (start, 30)
    await wait_diagnosed(world, "warn given up", f"[{start}, 30) were given up")


async def test_u7_an_older_copy_of_a_disk_is_not_accepted(world: World, tmp_path: Path) -> None:
    """U7, R10: a disk must have what its broker reported; the newer copy is brought back, and nothing is lost."""
    await world.create_topic(TOPIC, ack="local", archive_bytes=1 << 30, archive_seconds=3600)
    owner = await world.owner_of(TOPIC)
    broker = world.brokers[owner]
    await publish(world, 0, 50)
    await wait_reported(world, end=50)
    await broker.kill()
    shutil.copytree(broker.data, tmp_path / "older")
    await broker.start()
    await world.wait_served(TOPIC, by=owner)
    await publish(world, 50, 50)
    await wait_reported(world, end=100)
    await broker.kill()
    broker.data.rename(tmp_path / "newer")
    shutil.copytree(tmp_path / "older", broker.data)
    await broker.start()

    reason = await wait_closed(world, owner)
    assert "records [50, 100) are missing" in reason
    found = await diagnosis(world, "--data", str(broker.data))
    for check in ("fail disk logs", "fail partitions"):
        assert any(check in each and "records [50, 100) are missing" in each for each in found), found
    await broker.kill()
    shutil.rmtree(broker.data)
    (tmp_path / "newer").rename(broker.data)
    await broker.start()
    await world.wait_served(TOPIC, by=owner)
    assert await values(world) == [f"v{number}" for number in range(100)]
    await publish(world, 100, 5)
    assert [each for each in await diagnosis(world, "--data", str(broker.data)) if each.startswith("fail")] == []
    await asyncio.to_thread(world.delete_keys, keys.topic_prefix(PARTITION.topic))  # it vanishes without a delete mark
    await wait_diagnosed(world, "fail directories", f"{NAME}.orphan-", f"at {owner}", "sulina cluster recover")


async def test_u14_what_is_given_up_with_a_lost_broker_is_said_to_be_at_least_that(world: World) -> None:
    """U14: records that were acknowledged after the last report are not hidden behind a count of 0."""
    await world.create_topic(TOPIC, ack="local", archive_bytes=1 << 30, archive_seconds=3600)
    owner = await world.owner_of(TOPIC)
    await publish(world, 0, 50)
    await world.brokers[owner].kill()  # before it reports again
    other = world.other(owner)

    async def is_recovering() -> bool:
        placed = await world.partition(TOPIC)
        return placed is not None and placed.waits_for == owner

    await until("it waits for its broker", is_recovering)
    await wait_diagnosed(
        world, "fail owners", f"only the disk of {owner}", f"sulina topic move {TOPIC} --partition 0 --to", "--force"
    )
    await wait_diagnosed(world, "warn brokers", f"({owner}) unreachable", is_etcd_asked=False)
    arguments = ["--to", other, "--force", "--url", world.brokers[other].url]
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "sulina.cli", "topic", "move", TOPIC, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode != 0
    told = " ".join(done.stderr.split())
    assert "only its disk has the records from offset 0 on" in told
    assert "it may have acknowledged more until its lease ended" in told
