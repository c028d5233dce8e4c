"""R10: a topic that is not in the metadata store is deleted only if its delete mark says so."""

import asyncio
from pathlib import Path

import msgspec

from sulina.core.cluster import keys
from sulina.core.cluster.entries import Current
from sulina.core.topic import TopicSettings
from sulina.ports import Put
from sulina.storage.partition_directory import STAMP_FILE
from sulina.types import PartitionName, TopicName
from tests.support.brokers import brokers, member_of, until

ORDERS = TopicName.parse("/default/orders")
FIRST = PartitionName(ORDERS, 0)


async def test_r10_a_topic_that_vanished_is_kept_and_served_again_when_it_returns(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a") as world:
        broker = world.running["a"]
        await broker.put_topic(ORDERS, TopicSettings())
        await world.publish(ORDERS, b"0", b"1")
        entries = (await world.metadata.list(keys.topic_prefix(ORDERS))).entries
        await world.metadata.txn(deletes=[entry.key for entry in entries])
        await until(lambda: ORDERS not in broker.registry.topics)
        await until(lambda: bool(list((tmp_path / "a").glob("topic=*.orphan-*"))))
        (trouble,) = (await broker.inspect()).troubles
        assert (trouble.kind, trouble.what.startswith(f"{FIRST.directory}.orphan-")) == ("directory_orphaned", True)

        await world.metadata.txn(puts=[Put(entry.key, entry.value) for entry in entries])
        await until(lambda: ORDERS in broker.registry.topics)
        assert await world.values(ORDERS) == [b"0", b"1"]
        assert await world.publish(ORDERS, b"2") == 2
        assert not list((tmp_path / "a").glob("topic=*.orphan-*"))


async def test_r10_a_topic_of_the_same_name_begins_with_nothing_and_takes_nothing_away(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a") as world:
        broker = world.running["a"]
        await broker.put_topic(ORDERS, TopicSettings())
        await world.publish(ORDERS, b"0", b"1")
        entries = (await world.metadata.list(keys.topic_prefix(ORDERS))).entries
        await world.metadata.txn(deletes=[entry.key for entry in entries])
        await until(lambda: ORDERS not in broker.registry.topics)
        await broker.put_topic(ORDERS, TopicSettings())
        assert await world.publish(ORDERS, b"other") == 0
        await broker.delete_topic(ORDERS)
        (kept,) = (tmp_path / "a").glob("topic=*.orphan-*")
        assert list(kept.glob("*.log"))


async def test_r10_a_directory_without_a_stamp_is_kept_and_never_opened_by_another_topic(
    tmp_path: Path,
) -> None:
    async with brokers(tmp_path, "a") as world:
        broker = world.running["a"]
        await broker.put_topic(ORDERS, TopicSettings())
        await world.publish(ORDERS, b"0", b"1")
        (tmp_path / "a" / FIRST.directory / STAMP_FILE).unlink()
        await broker.delete_topic(ORDERS)
        (kept,) = (tmp_path / "a").glob("topic=*.set-aside-*")
        assert list(kept.glob("*.log"))
        assert [each.what for each in (await broker.inspect()).troubles] == [kept.name]
        await broker.put_topic(ORDERS, TopicSettings())
        assert await world.publish(ORDERS, b"other") == 0


async def test_u7_a_late_report_of_a_former_topic_says_nothing_about_the_next_of_its_name(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a") as world:
        late = Current(archived_offset=100, end_offset=100, epoch=9, at_ms=0, topic_id="former")
        await world.metadata.txn(puts=[Put(keys.archive_current(FIRST), msgspec.json.encode(late))])
        await world.running["a"].put_topic(ORDERS, TopicSettings())
        async with asyncio.timeout(5):
            assert await world.publish(ORDERS, b"0") == 0


async def test_r10_a_broker_that_was_away_removes_what_was_deleted_meanwhile(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["b"].put_topic(ORDERS, TopicSettings())
        await world.publish(ORDERS, b"0")
        kept = tmp_path / "kept"
        owner = await world.owner(ORDERS)
        directory = tmp_path / owner.options.broker_id / FIRST.directory
        await until(directory.is_dir)
        directory.rename(kept)
        await world.running["b"].delete_topic(ORDERS)
        kept.rename(tmp_path / "a" / FIRST.directory)
        await member_of(world.running["a"]).release_leftovers()
        assert not (tmp_path / "a" / FIRST.directory).exists()
