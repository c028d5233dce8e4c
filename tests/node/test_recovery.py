"""R10: a cluster is recovered also where the archive of a partition is damaged."""

from pathlib import Path

import msgspec
import pytest

from sulina.broker.archives import Archives
from sulina.broker.options import BrokerOptions
from sulina.core.cluster import keys
from sulina.core.cluster.entries import EpochEntry
from sulina.core.cluster.recovery import Memory, Seen
from sulina.errors import ArchiveFailed, CorruptCommit
from sulina.metadata.memory import MemoryMetadata
from sulina.node import recovery
from sulina.storage.objects import open_objects
from sulina.types import Epoch, PartitionName, TopicName

ORDERS = TopicName("default", "orders")
PARTITION = PartitionName(ORDERS, 0)
TOPIC_ID = "t1"
HEAD = {"delivery": "reliable", "partitions": 1, "created_ms": 0, "topic_id": TOPIC_ID}


@pytest.fixture
def archives(tmp_path: Path) -> Archives:
    """Make an archive that three brokers have claimed, and whose topic a broker remembers."""
    found = Archives(open_objects(f"file://{tmp_path}"), BrokerOptions(data=str(tmp_path), broker_id="a"))
    for epoch, broker in ((3, "a"), (4, "b"), (7, "c")):
        found.of(PARTITION, TOPIC_ID).claim(Epoch(epoch), broker, lambda _: "holder")
    remember(found, {keys.delivery(ORDERS): msgspec.json.encode(HEAD).decode()})
    return found


def remember(archives: Archives, entries: dict[str, str]) -> None:
    seen = Seen(cluster_id="c", generation=1, revision=9, mark=1, broker_id="a", store_id="disk-a")
    archives.remember(Memory(seen=seen, entries=entries))


async def planned_epoch(archives: Archives) -> EpochEntry:
    planned = await recovery.plan(MemoryMetadata(), archives)
    return msgspec.json.decode(planned.puts[keys.epoch(PARTITION)], type=EpochEntry)


async def test_r10_a_damaged_archive_is_named_and_none_of_its_epochs_is_given_again(
    archives: Archives, tmp_path: Path
) -> None:
    assert (await planned_epoch(archives)).epoch == 7
    [hole] = tmp_path.rglob("_delta_log/00000000000000000001.json")
    hole.unlink()
    planned = await recovery.plan(MemoryMetadata(), archives)
    [(partition, error)] = planned.unreadable
    assert partition == PARTITION
    assert "commit 1 is missing" in error
    raised = await planned_epoch(archives)
    assert (raised.epoch, raised.broker_id) == (7, "c")


async def test_r10_a_claim_that_is_in_a_checkpoint_only_is_found_in_a_damaged_archive(
    archives: Archives, tmp_path: Path
) -> None:
    archive = archives.of(PARTITION, TOPIC_ID)
    for epoch in range(8, 31):  # past two checkpoints
        archive.claim(Epoch(epoch), "d", lambda _: "holder")
        archive.tidy()
    for path in tmp_path.rglob("_delta_log/*"):
        if path.name.endswith(".checkpoint.json") and "20" in path.name:
            continue
        path.write_bytes(b"torn")
    assert archives.of(PARTITION, TOPIC_ID).highest_claim() == (25, "d")  # of version 20


async def test_r10_a_damaged_archive_of_whose_owners_nothing_is_known_is_told(
    archives: Archives, tmp_path: Path
) -> None:
    for path in tmp_path.rglob("_delta_log/*.json"):
        path.write_bytes(b"torn")
    with pytest.raises(CorruptCommit):
        await recovery.plan(MemoryMetadata(), archives)


async def test_r10_an_object_store_that_does_not_answer_keeps_a_cluster_from_being_recovered(
    archives: Archives, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ArchiveFailed(path="objects", cause=ConnectionError("it is away"))

    # An older owner is known: an archive that is damaged would not stop the plan.
    owned = EpochEntry(epoch=3, broker_id="a", store_id="disk-a", is_archived=True, topic_id=TOPIC_ID)
    entries = {keys.delivery(ORDERS): HEAD, keys.epoch(PARTITION): owned}
    remember(archives, {key: msgspec.json.encode(value).decode() for key, value in entries.items()})
    monkeypatch.setattr("sulina.storage.archive.Archive.load", fail)
    with pytest.raises(ArchiveFailed):
        await recovery.plan(MemoryMetadata(), archives)
