"""Reading without a subscription: from anywhere, to the end or on and on."""

import asyncio

import pytest

from sulina.client import Client, Message, Reader, Record
from sulina.core.records.record import decode
from sulina.errors import (
    InvalidName,
    InvalidSettings,
    NotYet,
    PartitionNotFound,
    TopicNotFound,
    VersionNotRetained,
)


async def filled(client: Client, topic: str, count: int = 10, partitions: int = 1) -> list[int]:
    """Records 0 to `count`, a second apart from 1000 s on, each in a commit of its own; their versions."""
    await client.admin.create_topic(topic, partitions=partitions)
    versions = []
    for number in range(count):
        ack = await client.publish(topic, str(number), timestamp_ms=(1000 + number) * 1000)
        assert ack.version is not None
        versions.append(ack.version)
    return versions


async def texts(reader: Reader) -> list[str | None]:
    return [record.text async for record in reader]


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        ("latest", 10),
        ("offset:7", 7),
        ("offset:0", 0),
        ("timestamp:1004000", 4),
        ("timestamp:1003001", 4),
        ("timestamp:1970-01-01T00:16:45", 5),
        ("timestamp:9999999", 10),
    ],
)
async def test_it_begins_where_it_is_told_p12(client: Client, topic: str, start: str, first: int) -> None:
    await filled(client, topic)
    found = await texts(client.read(topic, start=start, follow=False))
    assert found == [str(number) for number in range(first, 10)]


async def test_it_begins_at_what_a_version_added_p12(client: Client, topic: str) -> None:
    versions = await filled(client, topic)
    assert await texts(client.read(topic, start=f"version:{versions[6]}", follow=False)) == list("6789")
    with pytest.raises(VersionNotRetained):
        await texts(client.read(topic, start=f"version:{versions[-1] + 100}", follow=False))


async def test_it_reads_the_log_as_of_a_version_l14(client: Client, topic: str) -> None:
    versions = await filled(client, topic)
    assert await texts(client.read(topic, version=versions[4])) == list("01234")
    assert await texts(client.read(topic, version=versions[4], start="offset:3")) == list("34")
    await client.admin.create_topic(topic + "-2", partitions=2)
    with pytest.raises(InvalidSettings, match="name the partition"):
        await texts(client.read(topic + "-2", version=1))


async def test_it_follows_what_comes(client: Client, topic: str) -> None:
    await filled(client, topic, 3)
    async with client.read(topic, start="offset:2") as records:
        assert (await anext(records)).text == "2"
        waiting = asyncio.create_task(anext(records))
        await client.publish_batch(topic, ["3", "4"])
        assert (await waiting).text == "3"
        assert (await anext(records)).text == "4"


async def test_latest_means_when_the_reading_begins(client: Client, topic: str) -> None:
    await filled(client, topic, 3)
    async with client.read(topic, start="latest") as records:
        await client.publish(topic, b"new")
        assert (await anext(records)).text == "new"


async def test_without_following_it_ends_where_the_topic_ended(client: Client, topic: str) -> None:
    await filled(client, topic, 5)
    found = []
    async with client.read(topic, follow=False) as records:
        await client.publish(topic, b"too late")
        async for record in records:
            found.append(record.text)  # noqa: PERF401
    assert found == list("01234")


async def test_partitions_are_merged_each_in_its_order(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=5)
    await client.publish_batch(topic, [Record(str(n), key=f"{n % 50}") for n in range(1000)], split=True)
    records = [record async for record in client.read(topic, follow=False, max_bytes=1)]
    assert len(records) == 1000
    for partition in range(5):
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(len(offsets)))
    some = [record async for record in client.read(topic, follow=False, partitions=[1, 3])]
    assert some
    assert {record.partition for record in some} == {1, 3}


async def test_an_offset_in_the_middle_of_a_batch_begins_there(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    await client.publish_batch(topic, [str(n) for n in range(100)])
    records: list[Message] = []
    async for batch in client.read(topic, start="offset:37", follow=False).batches(10):
        assert len(batch) <= 10
        records += batch
    assert [record.offset for record in records] == list(range(37, 100))


async def test_a_reader_may_be_dropped_at_any_time(client: Client, topic: str) -> None:
    await filled(client, topic, 5)
    async for record in client.read(topic):
        if record.offset == 2:
            break
    reader = client.read(topic, start="latest")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await anext(reader)
    await client.publish(topic, b"still here")
    assert (await anext(reader)).text == "still here"


async def test_what_is_not_there_is_said_p2(client: Client, topic: str) -> None:
    with pytest.raises(InvalidName):
        client.read("no orders")
    with pytest.raises(InvalidSettings):
        client.read(topic, start="sometime")
    with pytest.raises(TopicNotFound):
        await anext(client.read(topic))
    await client.admin.create_topic(topic)
    with pytest.raises(PartitionNotFound):
        await anext(client.read(topic, partitions=[1]))


async def test_batches_can_be_fetched_as_they_are_stored_l14(client: Client, topic: str) -> None:
    versions = await filled(client, topic, 3)
    fetched = await client.admin.fetch(topic, 0, 1)
    assert (fetched.next_offset, fetched.end_offset, fetched.version) == (3, 3, versions[-1])
    values = []
    position = 0
    while position < len(fetched.data):
        records = decode(fetched.data, position=position)
        values += [record.value for record in records if record.offset >= 1]
        position += int.from_bytes(fetched.data[position + 8 : position + 12]) + 12
    assert values == [b"1", b"2"]
    with pytest.raises(NotYet):
        await client.admin.fetch(topic, 0, 0, min_version=versions[-1] + 1)
    with pytest.raises(NotYet):
        await client.admin.fetch(topic, 0, 0, min_offset=3, wait_seconds=0.01)
    assert (await client.admin.fetch(topic, 0, 0, min_offset=2)).end_offset == 3
    waiting = asyncio.create_task(client.admin.fetch(topic, 0, 3, wait_seconds=20))
    await client.publish(topic, b"3")
    assert (await waiting).next_offset == 4
