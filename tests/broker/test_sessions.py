"""Sessions and subscriptions, through the frames that every client speaks, over real logs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sulina.broker.broker import Broker
from sulina.core.delivery.members import SubscriptionKind
from sulina.core.log.position import Position
from sulina.core.log.publish_request import PublishRequest
from sulina.core.log.stored import bounds
from sulina.core.records.record import StoredRecord, decode, encode
from sulina.core.topic import DeliveryGuarantee, Policy, TopicSettings
from sulina.errors import SulinaError
from sulina.listeners.local import LocalConnection
from sulina.types import TopicName
from sulina.wire.frames import (
    AckRecords,
    AddCredit,
    Answer,
    Call,
    Deliver,
    Detach,
    Detached,
    Failed,
    Fetch,
    FromNode,
    NackRecords,
    Publish,
    Subscribe,
)
from sulina.wire.messages import Subscribed
from tests.broker.test_broker import ORDERS, a_broker

ATTACHED = Answer(99, Subscribed(is_reliable=True))
DEAD = TopicName.parse("/default/orders.dead-letter")


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[LocalConnection]:
    connection = LocalConnection(broker)
    try:
        yield connection
    finally:
        await connection.close()


async def publish(broker: Broker, *values: bytes, keys: list[bytes] | None = None) -> None:
    for number, value in enumerate(values):
        await broker.publish_records(ORDERS, [StoredRecord(value=value, key=keys[number] if keys else None)])


async def subscribe(connection: LocalConnection, consumer: int = 1, **more: Any) -> FromNode:
    await connection.send(Subscribe(99, consumer, str(ORDERS), more.pop("subscription", "s"), **more))
    return await connection.receive()


def records(frame: FromNode) -> list[StoredRecord]:
    """The consumer's own records of a delivery."""
    assert isinstance(frame, Deliver), frame
    found = [record for position, *_ in bounds(frame.data) for record in decode(frame.data, position=position)]
    return [record for record in found if any(start <= record.offset < end for start, end in frame.ranges)]


async def received(connection: LocalConnection, count: int) -> list[StoredRecord]:
    found: list[StoredRecord] = []
    while len(found) < count:
        found += records(await connection.receive())
    return found


async def is_quiet(connection: LocalConnection) -> bool:
    try:
        async with asyncio.timeout(0.05):
            await connection.receive()
    except TimeoutError:
        return True
    return False


async def test_a_subscription_gets_what_comes_and_resumes_at_its_cursor_p12(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        async with connected(broker) as connection:
            assert await subscribe(connection) == ATTACHED
            await publish(broker, b"1", b"2", b"3")
            assert [record.value for record in await received(connection, 3)] == [b"1", b"2", b"3"]
            await connection.send(AckRecords(5, 1, 0, [(0, 1), (2, 3)]))
            assert await connection.receive() == Answer(5, 2)
    async with a_broker(tmp_path) as broker, connected(broker) as connection:
        assert await subscribe(connection) == ATTACHED
        assert [record.offset for record in await received(connection, 1)] == [1]
        assert await is_quiet(connection)
        info = await broker.subscription(ORDERS, "s")
        assert (info.cursors[0].offset, info.cursors[0].acked, info.lag) == (1, [(2, 3)], 1)


async def test_acks_without_an_answer_are_kept_by_a_graceful_stop(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        async with connected(broker) as connection:
            await subscribe(connection)
            await publish(broker, b"1")
            await received(connection, 1)
            await connection.send(AckRecords(0, 1, 0, [(0, 1)]))
    async with a_broker(tmp_path) as broker:
        assert (await broker.subscription(ORDERS, "s")).lag == 0


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [0, 1, 2, 3]),
        ("offset:2", [2, 3]),
        ("timestamp:1500", [2, 3]),
        ("version:3", [2, 3]),
        ("latest", []),
    ],
)
async def test_a_subscription_starts_where_it_is_told_p12(tmp_path: Path, start: str, expected: list[int]) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        for number in range(4):
            await broker.publish_records(ORDERS, [StoredRecord(value=b"x", timestamp_ms=1000 * number)])
        assert (await broker.partition(ORDERS, 0)).version == 4
        async with connected(broker) as connection:
            await subscribe(connection, start=start)
            assert [record.offset for record in await received(connection, len(expected))] == expected
            assert await is_quiet(connection)


async def test_an_exclusive_subscription_has_one_consumer_p12(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        async with connected(broker) as first, connected(broker) as second:
            await subscribe(first, name="a")
            refused = await subscribe(second, name="b")
            assert isinstance(refused, Failed)
            assert refused.code == "subscription_busy"
            # The same consumer, come back while its old connection hangs, takes its own place.
            assert await subscribe(second, name="a") == ATTACHED
            gone = await first.receive()
            assert isinstance(gone, Detached)
            assert gone.code == "subscription_busy"


async def test_another_kind_is_refused(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        async with connected(broker) as connection:
            await subscribe(connection)
            refused = await subscribe(connection, consumer=2, kind=SubscriptionKind.SHARED)
            assert isinstance(refused, Failed)
            assert refused.code == "already_exists"


async def test_failover_hands_over_what_is_not_acked_p12(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        async with connected(broker) as second:
            async with connected(broker) as first:
                await subscribe(first, kind=SubscriptionKind.FAILOVER, name="a")
                await subscribe(second, kind=SubscriptionKind.FAILOVER, name="b")
                await publish(broker, b"1", b"2", b"3")
                await received(first, 3)
                await first.send(AckRecords(1, 1, 0, [(1, 2)]))
                await first.receive()
                assert await is_quiet(second)
            assert [record.offset for record in await received(second, 2)] == [0, 2]


async def test_shared_consumers_share_p12(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        async with connected(broker) as first, connected(broker) as second:
            await subscribe(first, kind=SubscriptionKind.SHARED)
            await subscribe(second, kind=SubscriptionKind.SHARED)
            await publish(broker, *(b"%d" % number for number in range(10)))
            got = [*await received(first, 5), *await received(second, 5)]
            assert sorted(record.offset for record in got) == list(range(10))


async def test_a_key_has_one_consumer_p12(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        async with connected(broker) as first, connected(broker) as second:
            for connection, name in ((first, "a"), (second, "b")):
                await subscribe(connection, kind=SubscriptionKind.KEY_SHARED, name=name)
            keys = [b"key-%d" % (number % 8) for number in range(64)]
            batch = encode([StoredRecord(value=b"x", key=key, timestamp_ms=1) for key in keys])
            await broker.publish(ORDERS, PublishRequest(batch))
            mine, theirs = records(await first.receive()), records(await second.receive())
            assert {record.key for record in mine}.isdisjoint({record.key for record in theirs})
            assert sorted(record.offset for record in [*mine, *theirs]) == list(range(64))
            assert [record.offset for record in mine] == sorted(record.offset for record in mine)


async def test_nack_redelivers_and_the_dead_letter_topic_ends_it_p12(tmp_path: Path) -> None:
    policy = Policy(deliveries_max=2, redelivery_delay_seconds=0)
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(policy=policy))
        async with connected(broker) as connection:
            await subscribe(connection)
            await broker.publish_records(ORDERS, [StoredRecord(value=b"bad", key=b"k", headers=(("h", b"1"),))])
            for attempt in (1, 2):
                frame = await connection.receive()
                assert isinstance(frame, Deliver)
                assert frame.attempt == attempt
                await connection.send(NackRecords(0, 1, 0, [(0, 1)]))
            with broker.events.listen() as events:
                while (await anext(events)).type != "records_dead_lettered":
                    pass
            [letter] = decode((await broker.fetch(DEAD, 0, 0)).data)
            assert (letter.value, letter.key) == (b"bad", b"k")
            assert dict(letter.headers) == {
                "h": b"1",
                "sulina-topic": b"/default/orders",
                "sulina-partition": b"0",
                "sulina-offset": b"0",
                "sulina-subscription": b"s",
                "sulina-deliveries": b"2",
                "sulina-hops": b"1",
            }
            assert await is_quiet(connection)
            assert (await broker.subscription(ORDERS, "s")).lag == 0


async def test_what_is_not_acked_in_time_comes_again_p12(tmp_path: Path) -> None:
    policy = Policy(ack_timeout_seconds=0.05, redelivery_delay_seconds=0)
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(policy=policy))
        async with connected(broker) as connection:
            await subscribe(connection)
            await publish(broker, b"1")
            attempts = []
            for _ in range(3):
                frame = await connection.receive()
                assert isinstance(frame, Deliver)
                attempts.append(frame.attempt)
            assert attempts == [1, 2, 3]


async def test_credit_holds_deliveries_back_and_releases_them_p3(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        async with connected(broker) as connection:
            await subscribe(connection, credit=2)
            await publish(broker, b"1", b"2", b"3")
            await received(connection, 2)
            assert await is_quiet(connection)
            await connection.send(AddCredit(1, 1))
            await received(connection, 1)


async def test_a_seek_detaches_consumers_and_they_find_what_lies_there_p12(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        async with connected(broker) as connection:
            await subscribe(connection)
            await publish(broker, b"1", b"2")
            await received(connection, 2)
            await connection.send(AckRecords(1, 1, 0, [(0, 2)]))
            await connection.receive()
            await broker.seek(ORDERS, "s", Position.parse("offset:1"))
            gone = await connection.receive()
            assert isinstance(gone, Detached)
            assert gone.error().retryable
            await connection.send(AckRecords(7, 1, 0, [(0, 2)]))
            refused = await connection.receive()
            assert isinstance(refused, Failed)
            assert refused.code == "consumer_not_found"
            await subscribe(connection)
            assert [record.offset for record in await received(connection, 1)] == [1]
    async with a_broker(tmp_path) as broker:
        assert (await broker.subscription(ORDERS, "s")).cursors[0].offset == 1


async def test_retention_that_overtakes_a_subscription_is_counted_not_fatal(tmp_path: Path) -> None:
    policy = Policy(segment_bytes=1 << 16, batch_bytes_max=1 << 16, retention_bytes=1)
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(policy=policy))
        async with connected(broker) as connection:
            await subscribe(connection, credit=0)
            await publish(broker, *(b"x" * 30_000 for _ in range(10)))
            assert await broker.retain() > 0
            start = (await broker.partition(ORDERS, 0)).start_offset
            await connection.send(AddCredit(1, 100))
            await publish(broker, b"more")
            assert [record.offset for record in await received(connection, 11 - start)] == list(range(start, 11))
            assert f'sulina_skipped_records_total{{topic="/default/orders"}} {float(start)}' in (
                broker.metrics.render().decode()
            )


async def test_a_best_effort_topic_delivers_or_drops_p2(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(delivery=DeliveryGuarantee.BEST_EFFORT))
        with pytest.raises(SulinaError, match="nobody is subscribed"):
            await publish(broker, b"0")
        async with connected(broker) as first, connected(broker) as second:
            await subscribe(first, subscription="a", credit=1)
            await subscribe(second, subscription="b", credit=10)
            await publish(broker, b"1", b"2")
            assert [record.value for record in await received(second, 2)] == [b"1", b"2"]
            assert [record.value for record in await received(first, 1)] == [b"1"]
            assert await is_quiet(first)
            assert 'sulina_dropped_records_total{topic="/default/orders"} 1.0' in broker.metrics.render().decode()
        assert (await broker.topic(ORDERS)).subscriptions == []


async def test_publishes_of_a_session_keep_their_order(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        async with connected(broker) as connection:
            for number in range(200):
                data = memoryview(encode([StoredRecord(value=b"%d" % number, timestamp_ms=1)]))
                await connection.send(Publish(number + 1, str(ORDERS), data))
            answers = [await connection.receive() for _ in range(200)]
            offsets = {answer.id: answer.result.base_offset for answer in answers if isinstance(answer, Answer)}
            assert [offsets[number + 1] for number in range(200)] == list(range(200))


async def test_calls_fetches_and_mistakes_are_answered(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        async with connected(broker) as connection:

            async def ask(frame: Any) -> Any:
                await connection.send(frame)
                answer = await connection.receive()
                return answer.code if isinstance(answer, Failed) else answer

            assert await ask(Call(1, "nothing")) == "invalid_input"
            assert await ask(Call(1, "topic", {"topc": "x"})) == "invalid_settings"
            assert await ask(Call(1, "topic", {"topic": "/default/none"})) == "topic_not_found"
            assert await ask(Call(1, "topic", {"topic": "../etc"})) == "invalid_name"
            made = await ask(Call(1, "create_topic", {"topic": str(ORDERS), "settings": {"partitions": 1}}))
            assert made.result.topic == str(ORDERS)
            assert await ask(Publish(2, str(ORDERS), memoryview(b"junk"))) == "invalid_batch"
            assert await ask(Publish(2, "/default/none", memoryview(b""))) == "topic_not_found"
            assert await ask(Publish(2, str(ORDERS), memoryview(b""), partition=-1)) == "partition_not_found"
            assert await ask(Fetch(3, str(ORDERS), 0, -5)) == "offset_out_of_range"
            assert await ask(Fetch(3, str(ORDERS), 7, 0)) == "partition_not_found"
            assert (await ask(Fetch(3, str(ORDERS), 0, 0))).result.next_offset == 0
            assert await ask(Detach(4, 1)) == "consumer_not_found"
            assert await ask(AckRecords(5, 1, 0, [(0, 1)])) == "consumer_not_found"
            await subscribe(connection)
            assert isinstance(await subscribe(connection), Failed), "the handle is taken"
            assert await ask(AckRecords(6, 1, 9, [(0, 1)])) == "partition_not_found"
            assert await ask(AckRecords(6, 1, 0, [(5, 3)])) == "invalid_input"
            assert await ask(AckRecords(6, 1, 0, [(-5, 3)])) == "invalid_input"
            assert await ask(AckRecords(6, 1, 0, [(0, 2**62)])) == Answer(6, 0), "nothing of it is its own"
            assert await ask(NackRecords(7, 1, 0, [(0, 1)])) == Answer(7, 0)
            assert await ask(Detach(8, 1)) == Answer(8)
        assert broker.counts.connections == 0
        assert broker.counts.consumers == 0


async def test_deleting_a_topic_detaches_its_consumers_when_forced(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        async with connected(broker) as connection:
            await subscribe(connection)
            with pytest.raises(SulinaError, match="1 consumers are attached"):
                await broker.delete_topic(ORDERS)
            await broker.delete_topic(ORDERS, force=True)
            gone = await connection.receive()
            assert isinstance(gone, Detached)
            assert gone.code == "topic_not_found"
