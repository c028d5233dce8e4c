"""One encoding: `message.payload` is what was published, however it is read and whoever published it."""

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from sulina import Client, Message, Record, SerializationRegistry, connect
from sulina.core.records.serializer import SERIALIZER_HEADER
from sulina.errors import InvalidEnvelope

PAYLOADS = [b"\x00\xff", "grüße", {"order": 1}, [1, 2.5, None], 7, True, None]


async def read_every_way(client: Client, topic: str, count: int) -> list[list[Message]]:
    """What `read`, `consumer` and `subscribe` give."""
    found: list[Message] = []
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        found.append(message)
        if len(found) == count:
            done.set()

    subscriber = await client.subscribe(topic, handle, start="earliest")
    read = [message async for message in client.read(topic, follow=False)]
    async with client.consumer(topic, "s", start="earliest") as messages:
        consumed = [await anext(messages) for _ in range(count)]
        assert await messages.ack(*consumed)
    async with asyncio.timeout(30):
        await done.wait()
    await subscriber.unsubscribe()
    return [read, consumed, found]


async def test_p11_a_payload_is_what_was_published_every_way_it_is_read(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    for payload in PAYLOADS:
        (await client.publish(topic, payload, key="k")).raise_for_status()
    (await client.publish_batch(topic, [Record(payload) for payload in PAYLOADS])).raise_for_status()
    async with client.producer(topic) as producer:
        for payload in PAYLOADS:
            producer.produce(payload)
    ways = await read_every_way(client, topic, 3 * len(PAYLOADS))
    for messages in ways:
        assert [message.payload for message in messages] == PAYLOADS * 3
        assert messages[1].payload is messages[1].payload
        assert {type(message) for message in messages} == {Message}
    assert ways[0] == ways[1] == ways[2]


async def test_p11_a_message_is_passed_on_by_its_value_and_headers(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    (await client.publish(topic, {"order": 1}, headers={"h": "v"})).raise_for_status()
    [message] = [message async for message in client.read(topic, follow=False)]
    for again in (
        Record(message.value, message.key, message.headers),
        Record(message.payload, headers=message.headers),
    ):
        (await client.publish(topic, again)).raise_for_status()
    messages = [message async for message in client.read(topic, follow=False)]
    assert [message.payload for message in messages] == [{"order": 1}] * 3
    assert {message.headers for message in messages} == {((SERIALIZER_HEADER, b"2"), ("h", b"v"))}


@dataclass
class Order:
    number: int


async def test_p11_a_registry_is_the_clients(url: str, topic: str) -> None:
    registry = SerializationRegistry()
    registry.register_json(Order)
    async with connect(url, registry=registry) as client:
        assert client.registry is registry
        await client.admin.create_topic(topic)
        (await client.publish(topic, Order(1))).raise_for_status()
        for messages in await read_every_way(client, topic, 1):
            assert messages[0].payload == Order(1)


async def test_p11_what_is_not_what_its_headers_say_is_told(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    (await client.publish(topic, b"{", headers={SERIALIZER_HEADER: "2"})).raise_for_status()
    [message] = [message async for message in client.read(topic, follow=False)]
    assert message.value == b"{"
    with pytest.raises(InvalidEnvelope):
        assert message.payload


async def test_p11_text_from_http_is_text_and_base64_is_bytes(served: str, topic: str) -> None:
    records: list[dict[str, Any]] = [
        {"value": "text"}, {"value": None, "key": "k"}, {"value_b64": "AP8="}, {"value": "x", "headers": {"h": "v"}},
    ]  # fmt: skip
    async with connect(served) as client, httpx.AsyncClient(base_url=served) as http:
        await client.admin.create_topic(topic)
        for bodies in ([records[0]], records):
            answer = await http.post(f"/v1/topics{topic}/records", json={"records": bodies})
            assert answer.status_code == 200, answer.text
        messages = [message async for message in client.read(topic, follow=False)]
    assert [message.payload for message in messages] == ["text", "text", None, b"\x00\xff", "x"]
