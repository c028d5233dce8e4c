"""S7 in Python: queries say where they are, and everybody sees how far behind they are."""

import pytest

from sulina.client import Client, SyncClient
from sulina.errors import (
    InvalidName,
    InvalidSettings,
    PartitionNotFound,
    ReaderAhead,
    ReaderNotFound,
    TopicNotFound,
)


async def test_s7_a_reader_registers_moves_on_and_is_deleted(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=2)
    await client.publish_batch(topic, ["a", "b", "c"], partition=1)
    made = await client.admin.register_reader(
        "nightly", topic, {0: 0, 1: 1}, expires_seconds=60, kind="spark", description="by day"
    )
    assert (made.reader, made.topic, made.kind, made.description) == ("nightly", topic, "spark", "by day")
    assert (made.expires_seconds, made.is_expired, made.lag) == (60, False, 2)
    assert [(at.partition, at.offset, at.end_offset, at.lag) for at in made.positions] == [(0, 0, 0, 0), (1, 1, 3, 2)]
    assert await client.admin.reader("nightly", topic) == made
    moved = await client.admin.register_reader("nightly", topic, {1: 3})
    assert (moved.lag, moved.description) == (0, "by day")
    await client.admin.register_reader("other", topic, {0: 0})
    assert [info.reader for info in await client.admin.readers(topic)] == ["nightly", "other"]
    assert {"nightly", "other"} <= {info.reader for info in await client.admin.readers()}
    await client.admin.delete_reader("nightly", topic)
    with pytest.raises(ReaderNotFound):
        await client.admin.reader("nightly", topic)
    with pytest.raises(ReaderNotFound):
        await client.admin.delete_reader("nightly", topic)
    await client.admin.delete_topic(topic)
    with pytest.raises(TopicNotFound):
        await client.admin.readers(topic)
    assert topic not in {info.topic for info in await client.admin.readers()}


async def test_s7_a_reader_goes_back_only_by_force(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    await client.admin.register_reader("nightly", topic, {0: 7})
    with pytest.raises(ReaderAhead, match="force moves it back") as refused:
        await client.admin.register_reader("nightly", topic, {0: 6})
    assert refused.value.current == 7
    back = await client.admin.register_reader("nightly", topic, {0: 6}, force=True)
    assert back.positions[0].offset == 6


async def test_s7_what_is_wrong_is_said_before_anything_is_written(client: Client, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        await client.admin.register_reader("nightly", topic, {0: 0})
    await client.admin.create_topic(topic)
    with pytest.raises(PartitionNotFound):
        await client.admin.register_reader("nightly", topic, {0: 0, 1: 0})
    for name in ("..", "a/b", ""):
        with pytest.raises(InvalidName):
            await client.admin.register_reader(name, topic, {0: 0})
        with pytest.raises(InvalidName):
            await client.admin.reader(name, topic)
    for positions in ({}, {0: -1}, {-1: 0}, {0: 1 << 63}, {0: 1.5}, {"0": 1}, [1], None, {5000: 1}):
        with pytest.raises(InvalidSettings):
            await client.admin.register_reader("nightly", topic, positions)  # type: ignore[arg-type]
    for settings in (
        {"expires_seconds": 0}, {"expires_seconds": 366 * 24 * 3600}, {"expires_seconds": float("nan")},
        {"description": "x" * 201}, {"kind": "x" * 201}, {"description": "\ud800"}, {"description": 5},
    ):  # fmt: skip
        with pytest.raises(InvalidSettings):
            await client.admin.register_reader("nightly", topic, {0: 0}, **settings)
    assert await client.admin.readers(topic) == []


async def test_s7_readers_are_there_for_the_next_client(client: Client, open_client: object, topic: str) -> None:
    await client.admin.create_topic(topic)
    made = await client.admin.register_reader("nightly", topic, {0: 3})
    again = await open_client()  # type: ignore[operator]
    assert await again.admin.readers(topic) == [made]


def test_s7_the_same_for_threads(sync_client: SyncClient, topic: str) -> None:
    sync_client.admin.create_topic(topic)
    sync_client.publish_batch(topic, ["a", "b"])
    made = sync_client.admin.register_reader("nightly", topic, {0: 1}, expires_seconds=60, kind="k", description="d")
    assert (made.lag, made.kind, made.description, made.expires_seconds) == (1, "k", "d", 60)
    assert sync_client.admin.reader("nightly", topic) == made
    assert sync_client.admin.readers(topic) == [made]
    assert made in sync_client.admin.readers()
    with pytest.raises(ReaderAhead):
        sync_client.admin.register_reader("nightly", topic, {0: 0})
    sync_client.admin.register_reader("nightly", topic, {0: 0}, force=True)
    sync_client.admin.delete_reader("nightly", topic)
    assert sync_client.admin.readers(topic) == []
