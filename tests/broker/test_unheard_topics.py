"""A broker that has not heard of a topic asks the metadata store before it says that there is none."""

from pathlib import Path

import pytest

from sulina.core.cluster import keys
from sulina.core.records.record import StoredRecord
from sulina.core.topic import Ack, Policy, TopicSettings
from sulina.errors import LeaseExpired, TopicNotFound
from sulina.metadata.sqlite import SqliteMetadata
from sulina.storage.archive import Archive
from sulina.storage.tiered_log import TieredLog
from sulina.types import Epoch, TopicName
from tests.broker.test_broker import a_broker
from tests.support.brokers import brokers

ORDERS = TopicName.parse("/default/orders")
ARCHIVED = TopicSettings(policy=Policy(ack=Ack.ARCHIVED))


async def test_f3_a_topic_that_no_watch_has_brought_yet_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        a, b = world.running["a"], world.running["b"]
        monkeypatch.setattr(b.registry.catalogue, "apply", lambda _: (set(), set()))  # its watch brings nothing
        await a.put_topic(ORDERS, TopicSettings())
        with pytest.raises(TopicNotFound):
            b.topic_named(str(ORDERS))
        await b.hear_of(ORDERS)
        assert b.topic_named(str(ORDERS)).stored == a.topic_named(str(ORDERS)).stored


async def test_names_that_nobody_knows_cost_the_metadata_store_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a") as world:
        a, asked, get = world.running["a"], [], world.metadata.get

        async def counted(key: str) -> object:
            asked.append(key)
            return await get(key)

        monkeypatch.setattr(world.metadata, "get", counted)
        for _ in range(50):
            await a.hear_of(ORDERS)
        assert asked.count(keys.delivery(ORDERS)) < 10
        monkeypatch.setattr("sulina.broker.topic_registry.LOOKUPS_MAX", 0)
        asked.clear()
        await a.hear_of(TopicName.parse("/default/other"))
        assert asked == []


async def test_a_broker_without_others_asks_nobody_for_topics_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: SqliteMetadata, key: str) -> object:
        raise AssertionError(f"it asked for {key}")

    async with a_broker(tmp_path) as broker:
        monkeypatch.setattr(SqliteMetadata, "get", refuse)
        await broker.hear_of(ORDERS)
        with pytest.raises(TopicNotFound):
            broker.topic_named(str(ORDERS))


async def test_u14_a_publisher_at_an_owner_that_was_overtaken_may_try_again(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a") as world:
        a = world.running["a"]
        await a.put_topic(ORDERS, ARCHIVED)
        await world.publish(ORDERS, b"0")
        log = a.registry.topics[ORDERS].partitions[0].log_if_open
        assert isinstance(log, TieredLog)
        newer = Archive(world.objects, log.archive.path)
        newer.load()
        newer.claim(Epoch(log.view.epoch + 1), "b", lambda _: "another directory")
        with pytest.raises(LeaseExpired) as refused:
            await a.publish_records(ORDERS, [StoredRecord(value=b"1")])
        assert refused.value.retryable
