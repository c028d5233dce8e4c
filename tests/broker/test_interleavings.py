"""What happens between two awaits: clients that leave, policies that change, logs that open, in the worst moment."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from sulina.broker.broker import Broker
from sulina.broker.topic import CHECK_BYTES_MAX
from sulina.core.cluster import keys
from sulina.core.delivery.members import SubscriptionKind
from sulina.core.log.position import Position
from sulina.core.log.publish_request import PublishRequest
from sulina.core.records.record import StoredRecord, encode
from sulina.core.topic import Ack, DeliveryGuarantee, Policy, Schema, SchemaKind, TopicSettings
from sulina.errors import (
    CorruptCommit,
    LimitReached,
    LogStopped,
    MetadataFailed,
    NotReliable,
    SchemaConflict,
    SulinaError,
    TopicNotFound,
    VersionConflict,
)
from sulina.listeners.session import ServerSession
from sulina.metadata.sqlite import SqliteMetadata
from sulina.ports import Put
from sulina.storage.partition_log import PartitionLog
from sulina.types import TopicName
from sulina.wire.frames import AckRecords, AddCredit, Answer, Call, Deliver, Failed, Fetch, NackRecords, Subscribe
from sulina.wire.messages import SubscriptionSettings
from tests.broker.test_broker import ORDERS, a_broker, values
from tests.broker.test_sessions import ATTACHED, connected, publish, received, records, subscribe
from tests.support.brokers import until

JSON = Schema(kind=SchemaKind.JSON, definition={"type": "object"})


async def cancelled_at_every_step(work: Any, steps: int = 40) -> None:
    """Start the work, let it take so many steps of the loop, then leave."""
    for count in range(steps):
        task = asyncio.ensure_future(work())
        for _ in range(count):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])


async def settled(broker: Broker) -> None:
    """Every change that was begun is finished."""
    while broker.changes:
        await asyncio.wait(set(broker.changes))


async def test_a_topic_is_made_or_deleted_whole_whenever_its_client_leaves(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        for _ in range(3):
            await cancelled_at_every_step(lambda: broker.put_topic(ORDERS, TopicSettings(partitions=3)), 12)
            await settled(broker)
            await broker.put_topic(ORDERS, TopicSettings(partitions=3))
            await publish(broker, b"1", b"2", b"3")
            await cancelled_at_every_step(lambda: broker.delete_topic(ORDERS), 12)
            await settled(broker)
            with pytest.raises(TopicNotFound):
                await broker.topic(ORDERS)
            assert not [name for name in os.listdir(tmp_path) if name.startswith("topic=")]


async def test_a_seek_is_whole_whenever_its_client_leaves(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(partitions=4))
        async with connected(broker) as connection:
            await subscribe(connection)
            for number in range(8):
                await broker.publish_records(ORDERS, [StoredRecord(value=b"x")], partition=number % 4)
            await received(connection, 8)
            await connection.send(AckRecords(0, 1, 0, [(0, 2)]))
            await cancelled_at_every_step(lambda: broker.seek(ORDERS, "s", Position.parse("earliest")))
            await settled(broker)
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in names if name.startswith("dispatch")], "a dispatcher without a subscription"
    async with a_broker(tmp_path) as broker:
        assert (await broker.subscription(ORDERS, "s")).lag == 8


async def test_a_memory_ack_is_given_only_for_what_the_log_cannot_refuse_any_more(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(policy=Policy(ack=Ack.MEMORY)))
        with pytest.raises(VersionConflict):
            await broker.publish_records(ORDERS, [StoredRecord(value=b"1")], expected_version=999)
        assert (await broker.publish_records(ORDERS, [StoredRecord(value=b"1")], txn_id="a")).ack == Ack.LOCAL
        assert (
            await broker.publish(ORDERS, PublishRequest(encode([StoredRecord(value=b"1")], codec=1)))
        ).ack == Ack.LOCAL
        assert (await broker.publish(ORDERS, PublishRequest(encode([StoredRecord(value=b"1")])))).ack == Ack.MEMORY
        await broker.fetch(ORDERS, 0, 2, wait_seconds=10)
        assert await values(broker) == [b"1", b"1", b"1"]
        log = broker.registry.topics[ORDERS].partitions[0].log_if_open
        assert isinstance(log, PartitionLog)
        log.stop(OSError("the disk has gone"))
        with pytest.raises(LogStopped):
            await broker.publish_records(ORDERS, [StoredRecord(value=b"lost")])


async def test_dead_letters_of_a_topic_created_again_are_not_taken_for_old_ones(tmp_path: Path) -> None:
    policy = Policy(deliveries_max=1)
    dead = TopicName.parse("/default/orders.dead-letter")
    async with a_broker(tmp_path) as broker:
        for value in (b"old", b"new"):
            await broker.put_topic(ORDERS, TopicSettings(policy=policy))
            async with connected(broker) as connection:
                await subscribe(connection)
                await publish(broker, value)
                await received(connection, 1)
                with broker.events.listen() as events:
                    await connection.send(NackRecords(0, 1, 0, [(0, 1)]))
                    while (await anext(events)).type != "records_dead_lettered":
                        pass
            await broker.delete_topic(ORDERS)
        assert await values(broker, dead) == [b"old", b"new"]


async def test_a_schema_does_not_change_under_a_record_in_flight_u11(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        publishing = asyncio.ensure_future(broker.publish_records(ORDERS, [StoredRecord(value=b"not json")]))
        await asyncio.sleep(0)
        with pytest.raises(SchemaConflict):
            await broker.put_topic(ORDERS, TopicSettings(value_schema=JSON))
        await publishing


async def test_a_consumer_that_comes_while_a_record_is_being_written_gets_it(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        for number in range(20):
            async with connected(broker) as connection:
                publishing = asyncio.ensure_future(broker.publish_records(ORDERS, [StoredRecord(value=b"%d" % number)]))
                await subscribe(connection, start="earliest")
                [record] = await received(connection, 1)
                assert record.value == b"%d" % number
                await connection.send(AckRecords(1, 1, 0, [(number, number + 1)]))
                await connection.receive()
                await publishing


async def test_a_publisher_that_leaves_does_not_leave_its_record_unseen(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        async with connected(broker) as connection:
            await subscribe(connection)
            await publish(broker, b"0")
            await received(connection, 1)
            publishing = asyncio.ensure_future(broker.publish_records(ORDERS, [StoredRecord(value=b"1")]))
            for _ in range(3):
                await asyncio.sleep(0)
            publishing.cancel()
            assert [record.value for record in await received(connection, 1)] == [b"1"]


async def test_a_subscription_that_could_not_start_starts_whole_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(partitions=3))
        await broker.put_subscription(ORDERS, "s", SubscriptionSettings(start="earliest"))
        for number in range(3):
            await broker.publish_records(ORDERS, [StoredRecord(value=b"%d" % number)], partition=number)
        async with connected(broker) as connection:
            using = broker.registry.topics[ORDERS].partitions[1].using
            monkeypatch.setattr(broker.registry.topics[ORDERS].partitions[1], "using", lambda: 1 / 0)
            assert isinstance(await subscribe(connection), Failed)
            monkeypatch.setattr(broker.registry.topics[ORDERS].partitions[1], "using", using)
            assert await subscribe(connection) == ATTACHED
            assert {record.value for record in await received(connection, 3)} == {b"0", b"1", b"2"}


async def test_a_cursor_that_cannot_be_written_is_nobody_elses_trouble_p3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        async with connected(broker) as connection:
            await subscribe(connection, consumer=1, subscription="good")
            await subscribe(connection, consumer=2, subscription="bad")
            await publish(broker, b"1")
            await received(connection, 2)
            bad = broker.registry.topics[ORDERS].subscriptions["bad"].cursors[0]
            monkeypatch.setattr(bad, "stored", lambda: b"x" * (2 << 20))
            await connection.send(AckRecords(6, 2, 0, [(0, 1)]))
            await connection.send(AckRecords(7, 1, 0, [(0, 1)]))
            answers = {frame.id: frame for frame in [await connection.receive(), await connection.receive()]}  # type: ignore[union-attr]
            assert isinstance(answers[6], Failed)
            assert answers[7] == Answer(7, 1)
            monkeypatch.undo()


async def test_the_cursor_of_the_largest_batch_fits_the_store(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        with pytest.raises(SulinaError, match="the limit is 65536"):
            await broker.publish(ORDERS, PublishRequest(encode([StoredRecord(value=None)] * 65_537)))
        await broker.publish(ORDERS, PublishRequest(encode([StoredRecord(value=None)] * 65_536)))
        async with connected(broker) as connection:
            await subscribe(connection, start="earliest", credit=100_000)
            await received(connection, 65_536)
            odd = [(number, number + 1) for number in range(1, 65_536, 2)]
            for first in range(0, len(odd), 8000):
                await connection.send(AckRecords(5, 1, 0, odd[first : first + 8000]))
                assert isinstance(await connection.receive(), Answer)
            await connection.send(NackRecords(6, 1, 0, [(0, 65_536)], 60_000))
            assert await connection.receive() == Answer(6, 32_768)
            await connection.send(AckRecords(7, 1, 0, [(0, 1)]))
            assert await connection.receive() == Answer(7, 0), "it is nobody's for a minute, and the cursor is durable"


async def test_acks_that_make_no_sense_do_not_use_up_a_session(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        async with connected(broker) as connection:
            await subscribe(connection)
            for _ in range(5000):
                await connection.send(AckRecords(1, 1, 0, [(5, 3)]))
                assert isinstance(await connection.receive(), Failed)
            await connection.send(Call(2, "info"))
            assert isinstance(await connection.receive(), Answer)


async def test_a_shorter_timeout_holds_for_what_is_out_already(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(policy=Policy(ack_timeout_seconds=3600)))
        async with connected(broker) as connection:
            await subscribe(connection)
            await publish(broker, b"1")
            await received(connection, 1)
            short = Policy(ack_timeout_seconds=0.01, redelivery_delay_seconds=0)
            await broker.put_topic(ORDERS, TopicSettings(policy=short))
            frame = await connection.receive()
            assert isinstance(frame, Deliver)
            assert frame.attempt == 2


async def test_a_consumer_that_comes_while_its_session_closes_is_not_left_behind(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        for steps in range(25):
            async with connected(broker) as connection:
                joining = asyncio.ensure_future(connection.send(Subscribe(1, 1, str(ORDERS), "s")))
                for _ in range(steps):
                    await asyncio.sleep(0)
            await asyncio.wait([joining])
        await settled(broker)
        assert broker.counts.consumers == 0
        async with connected(broker) as connection:
            assert await subscribe(connection) == ATTACHED


async def test_a_nacked_record_keeps_its_place_after_a_reconnect_p12(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        await broker.put_subscription(ORDERS, "s", SubscriptionSettings(start="earliest"))
        await broker.publish_records(ORDERS, [StoredRecord(value=b"x")] * 6)
        async with connected(broker) as connection:
            await subscribe(connection)
            await received(connection, 6)
            await connection.send(NackRecords(1, 1, 0, [(3, 4)], 60_000))
            await connection.receive()
        async with connected(broker) as connection:
            await subscribe(connection)
            assert [record.offset for record in await received(connection, 6)] == list(range(6))


async def test_what_the_active_consumer_gives_back_while_the_log_is_read_goes_first_p12(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        async with connected(broker) as second:
            async with connected(broker) as first:
                await subscribe(first, kind=SubscriptionKind.FAILOVER, name="a", credit=3)
                await subscribe(second, kind=SubscriptionKind.FAILOVER, name="b")
                await publish(broker, *(b"%d" % number for number in range(6)))
                await received(first, 3)
                log = broker.registry.topics[ORDERS].partitions[0].log_if_open
                assert log is not None
                read, reading, go_on = log.read, asyncio.Event(), asyncio.Event()

                async def slow_read(*args: Any, **more: Any) -> Any:
                    found = await read(*args, **more)
                    reading.set()
                    await go_on.wait()
                    return found

                monkeypatch.setattr(log, "read", slow_read)
                await first.send(AddCredit(1, 100))
                await reading.wait()
            go_on.set()
            assert [record.offset for record in await received(second, 6)] == list(range(6))


async def test_what_waits_to_be_sent_is_bounded_however_it_was_asked_for(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        for _ in range(3):
            await broker.publish_records(ORDERS, [StoredRecord(value=b"x" * (4 << 20))])
        session = ServerSession(broker)
        for number in range(1, 101):
            await session.handle(Fetch(number, str(ORDERS), 0, 0, max_bytes=1 << 30))
        await until(lambda: session.outbox.is_full)
        for _ in range(20):  # time in which the others could be read too
            await broker.fetch(ORDERS, 0, 0)
        waiting_bytes = 0
        session.outbox.close()  # or what is taken makes room for others
        while (frame := await session.outbox.take()) is not None:
            assert isinstance(frame, Answer)
            waiting_bytes += len(frame.result.data)
        assert 8 << 20 <= waiting_bytes < 40 << 20
        await session.close()


async def test_a_late_ack_is_told_that_it_was_late(tmp_path: Path) -> None:
    policy = Policy(ack_timeout_seconds=0.01, redelivery_delay_seconds=0)
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(policy=policy))
        async with connected(broker) as first, connected(broker) as second:
            await subscribe(first, kind=SubscriptionKind.SHARED, credit=1)
            await publish(broker, b"1")
            await received(first, 1)
            await subscribe(second, kind=SubscriptionKind.SHARED, credit=1)
            await received(second, 1)
            await first.send(AckRecords(1, 1, 0, [(0, 1)]))
            assert await first.receive() == Answer(1, 0)


async def test_damaged_metadata_closes_its_topic_and_no_other_u7(tmp_path: Path) -> None:
    other = TopicName.parse("/default/other")
    async with a_broker(tmp_path) as broker:
        for name in (ORDERS, other):
            await broker.put_topic(name, TopicSettings())
            await broker.put_subscription(name, "s", SubscriptionSettings())
            await broker.publish_records(name, [StoredRecord(value=b"1")])
    store = await SqliteMetadata.open(str(tmp_path / "metadata.sqlite"))
    await store.txn(puts=[Put(keys.cursor(ORDERS, "s", 0), b'{"offset":-7}')])
    await store.close()
    async with a_broker(tmp_path) as broker:
        assert await values(broker, other) == [b"1"]
        for refused in (
            broker.topic(ORDERS),
            broker.put_topic(ORDERS, TopicSettings()),
            broker.publish_records(ORDERS, [StoredRecord(value=b"2")]),
        ):
            with pytest.raises(CorruptCommit, match="cursor/0"):
                await refused


async def test_a_cursor_beyond_the_end_of_the_log_does_not_swallow_what_comes(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        await broker.put_subscription(ORDERS, "s", SubscriptionSettings())
        broker.registry.topics[ORDERS].subscriptions["s"].cursors[0].ack(0, 50)
        async with connected(broker) as connection:
            await subscribe(connection)
            await publish(broker, b"1")
            assert [record.offset for record in await received(connection, 1)] == [0]


async def test_open_logs_are_bounded_and_idle_ones_rest(tmp_path: Path) -> None:
    async with a_broker(tmp_path, open_logs_max=3) as broker:
        names = [TopicName("default", f"t{number}") for number in range(6)]
        for name in names:
            await broker.put_topic(name, TopicSettings())
            await broker.publish_records(name, [StoredRecord(value=b"1")])
        assert sum(topic.partitions[0].log_if_open is not None for topic in broker.registry.topics) == 3
        await asyncio.gather(*(broker.publish_records(name, [StoredRecord(value=b"2")]) for name in names[:3]))
        assert [await values(broker, name) for name in names] == [[b"1", b"2"]] * 3 + [[b"1"]] * 3
        async with connected(broker) as connection:
            for number in range(3):
                await connection.send(Subscribe(1, number, str(names[number]), "s"))
                assert isinstance(await connection.receive(), Answer)
            with pytest.raises(LimitReached, match="3 open logs"):
                await broker.publish_records(names[5], [StoredRecord(value=b"3")])
        await broker.publish_records(names[5], [StoredRecord(value=b"3")])


async def test_a_best_effort_topic_promises_nothing_it_cannot_keep(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        settings = TopicSettings(delivery=DeliveryGuarantee.BEST_EFFORT, policy=Policy(batch_bytes_max=1024))
        await broker.put_topic(ORDERS, settings)
        async with connected(broker) as connection:
            await subscribe(connection)
            with pytest.raises(NotReliable):
                await broker.publish_records(ORDERS, [StoredRecord(value=b"1")], expected_version=1)
            with pytest.raises(SulinaError, match="over the limit of 1024"):
                await broker.publish_records(ORDERS, [StoredRecord(value=b"x" * 2000)])
            await broker.publish_records(ORDERS, [StoredRecord(value=b"1")])
            assert [record.value for record in records(await connection.receive())] == [b"1"]


async def test_a_namespace_cannot_contradict_its_topics(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_namespace("shop", Policy())
        await broker.put_topic(TopicName("shop", "t"), TopicSettings(policy=Policy(batch_bytes_max=8 << 20)))
        with pytest.raises(SulinaError, match="would not fit"):
            await broker.put_namespace("shop", Policy(segment_bytes=1 << 20, batch_bytes_max=1 << 20))
        with pytest.raises(SulinaError, match="not valid"):
            await broker.put_namespace("shop", Policy(dead_letter="nowhere"))


async def test_a_deletion_or_a_seek_that_cannot_be_stored_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings())
        await publish(broker, b"1", b"2")
        await broker.put_subscription(ORDERS, "s", SubscriptionSettings(start="earliest"))

        async def fails(**_: object) -> None:
            raise MetadataFailed(path="metadata", cause=OSError("disk full"))

        monkeypatch.setattr(broker.metadata, "txn", fails)
        with pytest.raises(MetadataFailed):
            await broker.delete_subscription(ORDERS, "s")
        with pytest.raises(MetadataFailed):
            await broker.seek(ORDERS, "s", Position.parse("latest"))
        monkeypatch.undo()
        async with connected(broker) as connection:
            assert await subscribe(connection) == ATTACHED
            assert [record.offset for record in await received(connection, 2)] == [0, 1]


async def test_a_client_that_knows_a_topic_of_another_life_is_told_so(tmp_path: Path) -> None:
    async with a_broker(tmp_path) as broker:
        info, _ = await broker.put_topic(ORDERS, TopicSettings())
        await broker.delete_topic(ORDERS)
        await broker.put_topic(ORDERS, TopicSettings(partitions=4))
        data = encode([StoredRecord(value=b"1")])
        with pytest.raises(TopicNotFound):
            await broker.accept(str(ORDERS), PublishRequest(data, partition=0, topic_id=info.topic_id))


async def test_values_are_not_stored_under_a_schema_that_they_were_not_checked_by_u11(tmp_path: Path) -> None:
    checking, may_go_on = threading.Event(), threading.Event()

    def check(_value: bytes) -> None:
        checking.set()
        assert may_go_on.wait(20)

    async with a_broker(tmp_path) as broker:
        await broker.put_topic(ORDERS, TopicSettings(value_schema=JSON))
        broker.registry.topics[ORDERS].check_value = check
        large = StoredRecord(value=b'{"text": "' + b"x" * CHECK_BYTES_MAX + b'"}')
        publishing = asyncio.ensure_future(broker.publish_records(ORDERS, [large]))
        await asyncio.to_thread(checking.wait, 20)
        try:
            other = Schema(kind=SchemaKind.JSON, definition={"type": "array"})
            await broker.put_topic(ORDERS, TopicSettings(value_schema=other))
        finally:
            may_go_on.set()
        with pytest.raises(SchemaConflict):
            await publishing
        assert await values(broker) == []
