"""Subscriptions: who gets what, what an ack does, and what happens without one."""

import asyncio

import pytest

from sulina.client import Client, Consumer, Message, Record
from sulina.errors import (
    AlreadyExists,
    InvalidName,
    SubscriptionBusy,
    SubscriptionNotFound,
    TopicNotFound,
)
from tests.api.conftest import OpenClient

SOON = {"redelivery_delay_seconds": 0.01}
WAIT_SECONDS = 20.0


async def received(messages: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while len(found) < count:
            found.append(await anext(messages))
    return found


def texts(messages: list[Message]) -> list[str | None]:
    return [message.text for message in messages]


async def test_messages_come_with_everything_that_was_published_p1(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=2)
    async with client.consumer(topic, "s") as messages:
        ack = await client.publish(topic, {"n": 1}, key="k", headers={"h": "v"}, timestamp_ms=5)
        [message] = await received(messages, 1)
        assert (message.topic, message.partition, message.offset) == (topic, ack.partition, ack.offset)
        assert (message.payload, message.json(), message.value) == ({"n": 1}, {"n": 1}, b'{"n":1}')
        assert (message.key, message.headers[1:], message.timestamp_ms, message.attempt) == (b"k", (("h", b"v"),), 5, 1)
        assert await messages.ack(message)
        info = await client.admin.subscription(topic, "s")
        assert (info.lag, info.cursors[ack.partition].offset) == (0, 1)


async def test_a_subscription_resumes_at_its_cursor_p12(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    await client.publish_batch(topic, [str(n) for n in range(10)])
    async with client.consumer(topic, "s", start="earliest") as messages:
        some = await received(messages, 10)
        assert await messages.ack(*some[:4])
        messages.ack_soon(some[6])
    info = await client.admin.subscription(topic, "s")
    assert (info.cursors[0].offset, info.cursors[0].acked, info.lag) == (4, [(6, 7)], 5)
    async with client.consumer(topic, "s") as messages:
        again = await received(messages, 5)
        assert texts(again) == ["4", "5", "7", "8", "9"]
        assert await messages.get(0.05) is None


@pytest.mark.parametrize(
    ("start", "first"), [("earliest", 0), ("latest", 5), ("offset:3", 3), ("timestamp:1002000", 2)]
)
async def test_it_begins_where_it_is_told_p12(client: Client, topic: str, start: str, first: int) -> None:
    await client.admin.create_topic(topic)
    for number in range(5):
        await client.publish(topic, str(number), timestamp_ms=(1000 + number) * 1000)
    async with client.consumer(topic, "s", start=start) as messages:
        await client.publish(topic, "5")
        found = await received(messages, 6 - first)
        assert texts(found) == [str(number) for number in range(first, 6)]


async def test_it_begins_at_a_version_p12(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    acks = [await client.publish(topic, str(number)) for number in range(5)]
    async with client.consumer(topic, "s", start=f"version:{acks[3].version}") as messages:
        assert texts(await received(messages, 2)) == ["3", "4"]


async def test_exclusive_has_one_consumer_p12(client: Client, open_client: OpenClient, topic: str) -> None:
    await client.admin.create_topic(topic)
    other = await open_client()
    async with client.consumer(topic, "s"):
        with pytest.raises(SubscriptionBusy):
            await anext(other.consumer(topic, "s"))
        with pytest.raises(AlreadyExists):
            await anext(other.consumer(topic, "s", mode="shared"))
    async with other.consumer(topic, "s"):
        info = await client.admin.subscription(topic, "s")
        assert len(info.consumers) == 1


async def test_the_same_consumer_takes_its_former_selfs_place(
    client: Client, open_client: OpenClient, topic: str
) -> None:
    await client.admin.create_topic(topic)
    await client.publish(topic, b"1")
    other = await open_client()
    async with client.consumer(topic, "s", start="earliest", name="me") as former:
        await received(former, 1)
        async with other.consumer(topic, "s", name="me") as latter:
            [message] = await received(latter, 1)
            assert message.value == b"1"
            with pytest.raises(SubscriptionBusy, match="has replaced it"):
                await received(former, 1)


async def test_shared_spreads_messages_and_gives_back_what_is_not_acked_p12(
    client: Client, open_client: OpenClient, topic: str
) -> None:
    await client.admin.create_topic(topic)
    other = await open_client()
    async with client.consumer(topic, "s", mode="shared", credit=10) as first:
        async with other.consumer(topic, "s", mode="shared", credit=10) as second:
            for number in range(20):
                await client.publish(topic, str(number))
            left, right = await received(first, 10), await received(second, 10)
            assert sorted(int(text or "") for text in texts(left + right)) == list(range(20))
            assert await first.ack(*left)
            assert await second.ack(*right[:5])
        given_back = await received(first, 5)
        assert texts(given_back) == texts(right[5:])
        assert not await second.ack(right[5]), "it is another's now"


async def test_failover_goes_to_the_next_when_the_first_leaves_p12(
    client: Client, open_client: OpenClient, topic: str
) -> None:
    await client.admin.create_topic(topic)
    other = await open_client()
    first = client.consumer(topic, "s", mode="failover")
    await first.open()
    async with other.consumer(topic, "s", mode="failover") as second:
        await client.publish_batch(topic, [str(n) for n in range(4)])
        some = await received(first, 4)
        assert await first.ack(*some[:2])
        assert await second.get(0.05) is None
        await first.close()
        assert texts(await received(second, 2)) == ["2", "3"]


async def test_key_shared_keeps_a_key_with_one_consumer_in_order_p12(
    client: Client, open_client: OpenClient, topic: str
) -> None:
    await client.admin.create_topic(topic)
    other = await open_client()
    found: dict[str, list[Message]] = {"first": [], "second": []}

    async def work(name: str, messages: Consumer) -> None:
        async for message in messages:
            found[name].append(message)
            assert await messages.ack(message)
            if sum(map(len, found.values())) == 100:
                return

    async with (
        client.consumer(topic, "s", mode="key_shared") as first,
        other.consumer(topic, "s", mode="key_shared") as second,
    ):
        tasks = [asyncio.create_task(work("first", first)), asyncio.create_task(work("second", second))]
        for number in range(10):
            await client.publish_batch(topic, [Record(f"{number}", key=f"key-{k}") for k in range(10)], split=True)
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
    keys = {name: {message.key for message in messages} for name, messages in found.items()}
    assert not keys["first"] & keys["second"]
    assert keys["first"]
    assert keys["second"]
    for messages in found.values():
        for key in {message.key for message in messages}:
            numbers = [int(message.text or "") for message in messages if message.key == key]
            assert numbers == list(range(10))


async def test_a_nack_delivers_again_with_the_next_attempt_p12(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, policy=SOON)
    await client.publish_batch(topic, ["0", "1", "2"])
    async with client.consumer(topic, "s", start="earliest") as messages:
        first, second, third = await received(messages, 3)
        assert await messages.ack(*[first, third])
        assert await messages.nack(second)
        [again] = await received(messages, 1)
        assert (again.text, again.attempt) == ("1", 2)
        assert not await messages.ack(second), "that attempt is over"
        assert (await client.admin.subscription(topic, "s")).lag == 1
        assert await messages.nack(again, delay_seconds=0)
        [third_time] = await received(messages, 1)
        assert third_time.attempt == 3
        assert await messages.ack(third_time)
        assert (await client.admin.subscription(topic, "s")).lag == 0


async def test_a_nack_with_a_delay_waits_that_long_p12(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, policy=SOON)
    await client.publish(topic, "0")
    async with client.consumer(topic, "s", start="earliest") as messages:
        [message] = await received(messages, 1)
        start = asyncio.get_running_loop().time()
        await messages.nack(message, delay_seconds=0.3)
        await received(messages, 1)
        assert asyncio.get_running_loop().time() - start >= 0.29


async def test_what_is_not_acked_in_time_is_delivered_again_p7(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, policy=SOON | {"ack_timeout_seconds": 0.2})
    await client.publish_batch(topic, ["0", "1"])
    async with client.consumer(topic, "s", start="earliest") as messages:
        first, late = await received(messages, 2)
        assert await messages.ack(first)
        [again] = await received(messages, 1)
        assert (again.text, again.attempt) == ("1", 2)
        assert not await messages.ack(late), "a late ack credits only its own attempt"
        assert await messages.ack(again)


async def test_what_fails_too_often_becomes_a_dead_letter_with_its_coordinates_p12(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=3, policy=SOON | {"deliveries_max": 2})
    ack = await client.publish(topic, b"poison", key="k", headers={"own": "1"}, timestamp_ms=7)
    async with client.consumer(topic, "s", start="earliest") as messages:
        for attempt in (1, 2):
            [message] = await received(messages, 1)
            assert message.attempt == attempt
            assert await messages.nack(message)
        letters = topic + ".dead-letter"
        [letter] = await _first(client, letters)
        headers = dict(letter.headers)
        assert (letter.value, letter.key, letter.timestamp_ms, headers["own"]) == (b"poison", b"k", 7, b"1")
        assert headers["sulina-topic"] == topic.encode()
        assert headers["sulina-partition"] == str(ack.partition).encode()
        assert headers["sulina-offset"] == str(ack.offset).encode()
        assert headers["sulina-subscription"] == b"s"
        assert headers["sulina-deliveries"] == b"2"
        await client.publish(topic, b"fine")
        assert texts(await received(messages, 1)) == ["fine"]


async def _first(client: Client, topic: str) -> list[Message]:
    """The first record of a topic that will be made."""
    async with asyncio.timeout(WAIT_SECONDS):
        while topic not in {info.topic for info in await client.admin.topics(namespace="default")}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with client.consumer(topic, "letters", start="earliest") as messages:
            return await received(messages, 1)


async def test_a_seek_moves_a_consumer_that_is_attached_p12(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    await client.publish_batch(topic, [str(n) for n in range(10)])
    async with client.consumer(topic, "s", start="earliest") as messages:
        before = await received(messages, 6)
        assert await messages.ack(*before)
        info = await client.admin.seek(topic, "s", "offset:2")
        assert info.cursors[0].offset == 2
        after = await received(messages, 8)
        assert texts(after) == [str(n) for n in range(2, 10)]
        assert not await messages.ack(before[-1])
        await client.admin.seek(topic, "s", "latest")
        await client.publish(topic, "new")
        assert texts(await received(messages, 1)) == ["new"]


async def test_a_seek_may_be_of_one_partition_p12(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=2)
    for partition in (0, 1):
        await client.publish_batch(topic, ["a", "b"], partition=partition)
    await client.admin.create_subscription(topic, "s", start="latest")
    await client.admin.seek(topic, "s", "earliest", partition=1)
    async with client.consumer(topic, "s") as messages:
        found = await received(messages, 2)
        assert {message.partition for message in found} == {1}
        assert await messages.get(0.05) is None


async def test_no_more_is_sent_than_there_is_credit_for_p3(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    for number in range(30):
        await client.publish(topic, str(number))
    async with client.consumer(topic, "s", start="earliest", credit=5) as slow:
        await received(slow, 1)
        assert (await client.admin.subscription(topic, "s")).cursors[0].in_flight <= 6
        async with client.consumer(topic, "other", start="earliest") as quick:
            assert len(await received(quick, 30)) == 30, "a slow consumer holds up nobody else"
        rest = await received(slow, 29)
        assert texts(rest) == [str(n) for n in range(1, 30)]
        assert await slow.ack(*rest)


async def test_many_messages_pass_acked_soon(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic, partitions=2)
    count = 20_000
    async with client.consumer(topic, "s", credit=2000) as messages:
        publishing = [
            asyncio.create_task(client.publish_batch(topic, [f"{n}" for n in range(start, start + 100)]))
            for start in range(0, count, 100)
        ]
        seen: set[str | None] = set()
        async with asyncio.timeout(60):
            while len(seen) < count:
                message = await anext(messages)
                seen.add(message.text)
                messages.ack_soon(message)
        await asyncio.gather(*publishing)
    assert (await client.admin.subscription(topic, "s")).lag == 0


async def test_a_subscription_that_is_deleted_tells_its_consumers(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    async with client.consumer(topic, "s") as messages:
        with pytest.raises(SubscriptionBusy):
            await client.admin.delete_subscription(topic, "s")
        await client.admin.delete_subscription(topic, "s", force=True)
        with pytest.raises(SubscriptionNotFound):
            await received(messages, 1)


async def test_a_topic_that_is_deleted_tells_its_consumers(client: Client, topic: str) -> None:
    await client.admin.create_topic(topic)
    async with client.consumer(topic, "s") as messages:
        with pytest.raises(SubscriptionBusy):
            await client.admin.delete_topic(topic)
        await client.admin.delete_topic(topic, force=True)
        with pytest.raises(TopicNotFound):
            await received(messages, 1)


async def test_what_cannot_be_subscribed_to_is_said(client: Client, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        await client.consumer(topic, "s").open()
    await client.admin.create_topic(topic)
    with pytest.raises(InvalidName):
        await client.consumer(topic, "../s").open()


async def test_a_topic_that_others_create_again_is_known_at_once(
    client: Client, open_client: OpenClient, topic: str
) -> None:
    other = await open_client()
    await other.admin.create_topic(topic, delivery="non_reliable")
    assert not (await client.publish(topic, "nobody hears it")).is_accepted
    await other.admin.delete_topic(topic)
    await other.admin.create_topic(topic, 8)
    keys = [str(n) for n in range(20)]
    there = [(await other.publish(topic, key, key=key)).partition for key in keys]
    assert [(await client.publish(topic, key, key=key)).partition for key in keys] == there
    assert len([record async for record in client.read(topic, follow=False)]) == 40
    async with client.consumer(topic, "s", start="earliest") as messages:
        for _ in range(40):
            assert await messages.ack(await anext(messages))
    assert (await other.admin.subscription(topic, "s")).lag == 0
