"""What every release since 0.1.0 has written is opened by the code of today (L20): nothing is missing, nothing differs.

The files are in `tests/golden/{version}`, made by tools/golden.py; a test opens copies. Tables are in
tests/spark/test_golden_tables.py.
"""

import asyncio
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import sulina
from sulina.core.cluster import keys
from sulina.metadata.etcd import EtcdMetadata
from sulina.ports import TXN_OPERATIONS_MAX, Put
from sulina.types import PartitionName, TopicName
from tests.support import serving
from tests.support.cluster_world import World, cluster
from tests.support.etcd import EtcdServer, etcd
from tools.golden import EVENTS, GOLDEN, ORDERS, contents_of

__all__ = ["etcd"]  # a fixture

RELEASES = sorted(path.parent.name for path in GOLDEN.glob("*/index.json"))
KEPT_BYTES_MAX = 1 << 20  # of all files of a release, beside its wheel


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> Path:
    return GOLDEN / str(request.param)


@pytest.fixture
def index(release: Path) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads((release / "index.json").read_text())
    return found


def test_l20_there_are_files_of_a_release_and_they_are_small(release: Path) -> None:
    files = [path for path in release.rglob("*") if path.is_file() and path.suffix != ".whl"]
    assert sum(path.stat().st_size for path in files) < KEPT_BYTES_MAX
    names = {path.name for path in files}
    for ending in (".log", ".index", ".checkpoint.json", ".txns", ".commits", ".state"):
        assert any(name.endswith(ending) for name in names), ending
    for name in (".topic", "cluster-memory.json", "metadata.sqlite"):
        assert name in names


def test_l20_a_data_directory_of_each_release_is_served(
    release: Path, index: Mapping[str, Any], tmp_path: Path
) -> None:
    """Every record, version, commit, cursor and answer to a txn_id is as it was; then both go on."""
    shutil.copytree(release / "node", tmp_path / "data")
    with serving.serving(tmp_path / "data") as node, sulina.connect_sync(node.url) as client:
        before = {name: part for name, part in index["node"].items() if name != "tables"}
        assert contents_of(client, ORDERS, 2) == before
        ack = client.publish(ORDERS, '{"id": 7, "amount": 1}', partition=1)
        ack.raise_for_status()
        assert ack.offset == before["partitions"][1]["next_offset"]
        with client.consumer(ORDERS, "billing") as messages:
            first = next(iter(messages))
        assert [first.partition, first.offset] in before["cursors"]["billing"]
        assert node.errors() == []


@pytest.mark.asyncio(loop_scope="session")
async def test_l20_an_archive_and_the_keys_of_each_release_make_a_cluster(
    release: Path, index: Mapping[str, Any], tmp_path: Path, etcd: EtcdServer
) -> None:
    """With the archive, the keys and one disk; then by a broker with an empty disk, from the archive alone."""
    dump = json.loads((release / "etcd.json").read_text())
    expected = index["cluster"]
    async with cluster(tmp_path, etcd) as world:
        shutil.copytree(release / "objects", tmp_path / "objects", dirs_exist_ok=True)
        await restore(etcd, world.prefix, dump)
        owner = json.loads(dump["entries"][keys.epoch(PartitionName(TopicName("default", "events"), 0))])["broker_id"]
        shutil.copytree(release / "brokers" / owner, tmp_path / owner)
        await world.start(owner)
        await world.wait_served(EVENTS, by=owner)
        assert up_to(expected, await asyncio.to_thread(contents, world)) == expected
        await world.start("new")
        await world.move(EVENTS, "new")
        assert up_to(expected, await asyncio.to_thread(contents, world)) == expected
        for broker in world.brokers.values():
            assert broker.events("cluster_key_damaged") == []


def contents(world: World) -> dict[str, Any]:
    with sulina.connect_sync(",".join(broker.url for broker in world.running)) as client:
        return contents_of(client, EVENTS, 1)


def up_to(expected: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What is found, without the claims that owners have added since."""
    for part, before in zip(found["partitions"], expected["partitions"], strict=True):
        assert part["version"] > before["version"]
        part["version"], part["commits"] = before["version"], part["commits"][: len(before["commits"])]
    return found


async def restore(etcd: EtcdServer, prefix: str, dump: Mapping[str, Any]) -> None:
    """Put the keys back. The store must not look older than what brokers have seen, so its revision rises first."""
    metadata = await EtcdMetadata.open(etcd.endpoints, prefix=prefix)
    try:
        while (await metadata.list("/")).revision < dump["revision"]:
            await metadata.txn(puts=[Put("/test/revision", b"")])
        puts = [Put(key, value.encode()) for key, value in dump["entries"].items()]
        for first in range(0, len(puts), TXN_OPERATIONS_MAX):
            await metadata.txn(puts=puts[first : first + TXN_OPERATIONS_MAX])
        await metadata.txn(deletes=["/test/revision"])
    finally:
        await metadata.close()
