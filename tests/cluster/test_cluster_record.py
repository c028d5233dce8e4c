"""What tests see of a cluster's keys is what was done to them, in order."""

from pathlib import Path

import pytest

from sulina.ports import Compare, Put
from tests.support.cluster_record import recording
from tests.support.cluster_world import cluster
from tests.support.etcd import EtcdServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_every_change_is_recorded_with_its_revision(tmp_path: Path, etcd: EtcdServer) -> None:
    async with cluster(tmp_path, etcd) as world, recording(world) as record:
        await record.store.txn(puts=[Put("/cluster/x", b'{"n":1}'), Put("/topics/y", b"2")])
        await record.store.txn(compares=[Compare("/cluster/x", 1)], puts=[Put("/cluster/never", b"3")])
        await record.store.txn(deletes=["/cluster/x"])
        changes = await record.settle()
        assert [(change.key, change.value) for change in changes] == [
            ("/cluster/x", b'{"n":1}'),
            ("/topics/y", b"2"),
            ("/cluster/x", None),
        ]
        assert changes[0].revision == changes[1].revision < changes[2].revision
        assert await record.of("/topics/") == [changes[1]]
        assert world.keys("/topics/") == {"/topics/y": 2}
        assert world.keys("/cluster/") == {}
        assert "/topics/y" not in world.report()
