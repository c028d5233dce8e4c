"""The room that a real etcd has: compaction keeps it from being full; a full one is noticed, and mended."""

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sulina.errors import MetadataFull
from sulina.metadata import etcd_space
from sulina.metadata.etcd import EtcdMetadata
from sulina.ports import Put
from tests.support.etcd import ALONE, EtcdCluster, EtcdServer
from tests.support.metadata_worlds import put

QUOTA_BYTES = 2 << 20
SMALL = f"--quota-backend-bytes={QUOTA_BYTES}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path, arguments=[*ALONE, SMALL]) as server:
        yield server


@pytest.fixture
async def store(server: EtcdServer) -> AsyncIterator[EtcdMetadata]:
    store = await EtcdMetadata.open(server.endpoints, prefix="/t")
    yield store
    await store.close()


async def fill(store: EtcdMetadata) -> int:
    """Write one key again and again until there is no room; the newest revision."""
    revision = 0
    try:
        for _ in range(1000):
            revision = await put(store, "/a", bytes(20_000))
    except MetadataFull:
        return revision
    raise AssertionError("it is never full")


async def test_a_full_etcd_says_so_goes_on_reading_and_keeps_leases(store: EtcdMetadata) -> None:
    lease = await store.lease(5)
    await store.txn(puts=[Put("/leased", b"", lease.lease_id)])
    await fill(store)
    space = await store.space()
    assert space.is_full
    assert space.size_bytes is not None
    assert space.size_bytes > QUOTA_BYTES // 2
    assert await lease.keep_alive() > 0
    assert (await store.get("/leased")) is not None
    assert len((await store.list("/")).entries) == 2


async def test_compacting_a_full_etcd_makes_room(store: EtcdMetadata) -> None:
    revision = await fill(store)
    before = await store.space()
    await store.compact(revision)
    after = await store.space()
    assert not after.is_full
    assert (after.size_bytes or 0) < (before.size_bytes or 0) / 4
    await put(store, "/b")


async def test_a_history_that_is_compacted_in_time_never_fills_etcd(store: EtcdMetadata) -> None:
    """Five times the quota, and no alarm, nor anything defragmented."""
    for number in range(5 * QUOTA_BYTES // 20_000):
        revision = await put(store, "/a", bytes(20_000))
        if number % 10 == 0:
            await store.compact(revision)
    space = await store.space()
    assert not space.is_full
    assert (space.size_bytes or 0) < QUOTA_BYTES


async def test_what_is_too_much_to_copy_is_left_to_an_operator(
    store: EtcdMetadata, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A member that copies for long would cost leases."""
    caplog.set_level(logging.INFO, logger="sulina.metadata")
    revision = await fill(store)
    monkeypatch.setattr(etcd_space, "COPIED_BYTES_MAX", 1000)
    await store.compact(revision)
    assert (await store.space()).is_full
    assert "etcd_not_defragmented" in caplog.text
    assert "etcd_still_full" in caplog.text


async def test_every_member_of_a_full_cluster_is_made_shorter(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path, 3, arguments=[SMALL]) as cluster:
        store = await EtcdMetadata.open(cluster.endpoints, prefix="/t")
        revision = await fill(store)
        await store.compact(revision)
        assert not (await store.space()).is_full
        assert all(int(member.status()["dbSize"]) < QUOTA_BYTES // 2 for member in cluster.members)
        await put(store, "/b")
        await store.close()
