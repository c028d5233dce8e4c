"""Ways to a client: awaited, entered, for threads; each place by its URL."""

import pytest

import sulina
from sulina.errors import Disconnected, InvalidSettings, LogLocked


async def test_a_client_is_awaited_or_entered_p1(url: str, topic: str) -> None:
    async with sulina.connect(url) as client:
        await client.admin.create_topic(topic)
        assert (await client.publish(topic, b"x")).is_accepted
        assert client.url == url
        assert client.is_connected
    client = await sulina.connect(url)
    try:
        assert (await client.admin.info()).is_ready
        if url != "memory:":
            assert [record.value async for record in client.read(topic, follow=False)] == [b"x"]
    finally:
        await client.close()


def test_a_client_for_threads_is_entered_or_opened_p1(url: str, topic: str) -> None:
    with sulina.connect_sync(url) as client:
        client.admin.create_topic(topic)
        client.publish(topic, b"x")
    client = sulina.connect_sync(url)
    try:
        assert client.admin.info().is_ready
        if url != "memory:":
            assert [record.value for record in client.read(topic, follow=False)] == [b"x"]
    finally:
        client.close()


async def test_two_nodes_in_memory_know_nothing_of_each_other(topic: str) -> None:
    async with sulina.connect("memory:") as one, sulina.connect("memory:") as other:
        await one.admin.create_topic(topic)
        assert await other.admin.topics() == []


async def test_a_directory_has_one_node(tmp_path: str) -> None:
    async with sulina.connect(f"{tmp_path}/data") as client:
        await client.admin.create_topic("/default/t")
        await client.publish("/default/t", b"x")
        with pytest.raises(LogLocked):
            async with sulina.connect(f"{tmp_path}/data") as other:
                await other.publish("/default/t", b"y")


async def test_what_leads_nowhere_is_said() -> None:
    for url in ("", "ftp://a", "localhost:8080", "kafka:9092"):
        with pytest.raises(InvalidSettings):
            sulina.connect(url)
    with pytest.raises(Disconnected):
        await sulina.connect("http://127.0.0.1:1")
