"""Messages that come by themselves: credits, acks, reconnects, seeks."""

import asyncio

import pytest

from sulina.client import Client, ClientOptions, Consumer, Message
from sulina.client.consumer_attachment import ranges_of
from sulina.core.records.record import StoredRecord, encode
from sulina.core.topic import TopicSettings
from sulina.errors import (
    ConsumerNotFound,
    CorruptBatch,
    CursorMoved,
    Disconnected,
    InvalidName,
    InvalidSettings,
    NotServing,
    SubscriptionBusy,
    SubscriptionNotFound,
    SulinaError,
    TopicNotFound,
)
from sulina.wire.frames import AckRecords, AddCredit, Deliver, Detach, FromClient, NackRecords, Subscribe
from tests.client.fake_node import TOPIC, URL, FakeConnection, FakeNode, passing

BUSY = SubscriptionBusy(topic=TOPIC, subscription="s", reason="another is attached")
MOVED = CursorMoved(topic=TOPIC, subscription="s")


@pytest.fixture
def node(node: FakeNode) -> FakeNode:
    node.attach_consumers()
    node.settle_records()
    node.scripts[AddCredit] = lambda *_: None
    return node


def handle(node: FakeNode) -> int:
    """Of the newest attachment."""
    return node.sent(Subscribe)[-1].consumer


async def taken(subscription: Consumer, count: int) -> list[Message]:
    return [await anext(subscription) for _ in range(count)]


def offsets(messages: list[Message]) -> list[int]:
    return [message.offset for message in messages]


async def test_messages_have_their_coordinates_and_contents(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s", mode="shared", start="earliest", credit=10, name="me") as messages:
        [asked] = node.sent(Subscribe)
        assert (asked.topic, asked.subscription, asked.kind, asked.start, asked.credit, asked.name) == (
            (TOPIC, "s", "shared", "earliest", 10, "me")
        )  # fmt: skip
        node.connection.deliver(handle(node), 40, 42, partition=3, attempt=2)
        message = await anext(messages)
        assert (message.topic, message.partition, message.offset, message.attempt) == (TOPIC, 3, 40, 2)
        assert (message.value, message.text, message.json(), message.json(int)) == (b"40", "40", 40, 40)
        assert (message.key, message.headers, message.timestamp_ms) == (None, (), -1)
        assert (await anext(messages)).offset == 41
    assert [frame.consumer for frame in node.sent(Detach)] == [asked.consumer]


async def test_only_the_records_in_the_ranges_are_the_consumers(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 0, 10, ranges=[(1, 2), (4, 6), (9, 10)])
        assert offsets(await taken(messages, 4)) == [1, 4, 5, 9]


async def test_credit_goes_back_as_messages_are_taken_half_at_a_time(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s", credit=10) as messages:
        node.connection.deliver(handle(node), 0, 10)
        await taken(messages, 4)
        await asyncio.sleep(1)
        assert not node.sent(AddCredit)
        await taken(messages, 1)
        await asyncio.sleep(1)
        assert [frame.records for frame in node.sent(AddCredit)] == [5]
        await taken(messages, 5)
        await asyncio.sleep(1)
        assert sum(frame.records for frame in node.sent(AddCredit)) == 10


async def test_a_credit_of_one_is_one_message_at_a_time(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s", credit=1) as messages:
        for offset in range(3):
            node.connection.deliver(handle(node), offset, offset + 1)
            await taken(messages, 1)
            await asyncio.sleep(0.1)
            assert len(node.sent(AddCredit)) == offset + 1


async def test_messages_that_are_here_are_taken_without_the_loop(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 0, 100)
        await anext(messages)
        ran: list[bool] = []
        asyncio.get_running_loop().call_soon(ran.append, True)
        await taken(messages, 99)
        assert not ran


async def test_an_ack_returns_when_the_cursor_is_durable_p12(client: Client, node: FakeNode) -> None:
    del node.scripts[AckRecords]
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 5, 8, partition=1)
        first = await anext(messages)
        acking = asyncio.create_task(messages.ack(first))
        frame = await node.asked(AckRecords)
        await asyncio.sleep(1)
        assert not acking.done()
        assert (frame.consumer, frame.partition, frame.ranges) == (handle(node), 1, [(5, 6)])
        node.answer(frame, 1)
        assert await acking


async def test_many_acks_are_one_frame_for_each_partition(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 0, 10)
        node.connection.deliver(handle(node), 100, 103, partition=1)
        some = await taken(messages, 13)
        assert await messages.ack(*(message for message in some if message.offset != 4))
        assert sorted((frame.partition, frame.ranges) for frame in node.sent(AckRecords)) == [
            (0, [(0, 4), (5, 10)]),
            (1, [(100, 103)]),
        ]


async def test_acks_soon_are_gathered_and_sent_soon(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 0, 100)
        for message in await taken(messages, 50):
            messages.ack_soon(message)
        assert not node.sent(AckRecords)
        await asyncio.sleep(0.1)
        for message in await taken(messages, 50):
            messages.ack_soon(message)
            messages.ack_soon(message)
        await asyncio.sleep(0.1)
        assert [(frame.id, frame.ranges) for frame in node.sent(AckRecords)] == [(0, [(0, 50)]), (0, [(50, 100)])]


async def test_leaving_makes_the_acks_durable_first(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 0, 10)
        for message in await taken(messages, 10):
            messages.ack_soon(message)
    last = node.frames[-2:]
    assert isinstance(last[0], AckRecords)
    assert last[0].id, "the answer is waited for"
    assert last[0].ranges == [(0, 10)]
    assert isinstance(last[1], Detach)


async def test_a_nack_may_say_when_p12(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 0, 2)
        first, second = await taken(messages, 2)
        assert await messages.nack(first)
        assert await messages.nack(second, delay_seconds=1.5)
        for wrong in (-1, 10**6):
            with pytest.raises(InvalidSettings):
                await messages.nack(second, delay_seconds=wrong)
        assert [(f.ranges, f.delay_ms) for f in node.sent(NackRecords)] == [([(0, 1)], None), ([(1, 2)], 1500)]


async def test_after_a_reconnect_it_goes_on_and_forgets_what_comes_again_p1(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s", name="me", credit=8) as messages:
        node.connection.deliver(handle(node), 0, 8)
        old = await taken(messages, 3)
        node.connection.cut()
        await node.wait_sent(Subscribe, 2)
        first, second = node.sent(Subscribe)
        assert (first.name, first.credit) == (second.name, second.credit) == ("me", 8)
        assert first.consumer != second.consumer, "an ack of one can never be for the other"
        node.connection.deliver(handle(node), 0, 8)
        new = await taken(messages, 8)
        assert offsets(new) == list(range(8)), "what was not taken is not there twice"
        assert not await messages.ack(old[0])
        messages.ack_soon(old[1])
        assert not await messages.nack(old[2])
        assert await messages.ack(new[0])
        await asyncio.sleep(1)
        assert [frame.consumer for frame in node.sent(AckRecords)] == [second.consumer]
        assert not node.sent(NackRecords)


async def test_an_ack_that_is_cut_off_is_not_known_to_be_durable(client: Client, node: FakeNode) -> None:
    del node.scripts[AckRecords]
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 0, 1)
        [message] = await taken(messages, 1)
        acking = asyncio.create_task(messages.ack(message))
        await node.asked(AckRecords)
        node.connection.cut()
        assert not await acking


async def test_an_ack_that_the_node_no_longer_knows_does_not_count(client: Client, node: FakeNode) -> None:
    node.scripts[AckRecords] = lambda connection, frame: connection.refuse(frame, ConsumerNotFound(consumer=1))
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 0, 1)
        [message] = await taken(messages, 1)
        assert not await messages.ack(message)


async def test_a_late_ack_credits_only_its_own_attempt_p7(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 0, 2)
        late, other = await taken(messages, 2)
        node.connection.deliver(handle(node), 0, 1, attempt=2)
        [again] = await taken(messages, 1)
        assert not await messages.ack(late)
        messages.ack_soon(late)
        assert not await messages.nack(late)
        assert await messages.ack(other)
        assert await messages.ack(again)
        await asyncio.sleep(1)
        assert [frame.ranges for frame in node.sent(AckRecords)] == [[(1, 2)], [(0, 1)]]
        assert not node.sent(NackRecords)


async def test_an_ack_counts_only_if_the_consumer_still_held_it_all_p7(client: Client, node: FakeNode) -> None:
    node.scripts[AckRecords] = lambda connection, frame: connection.answer(frame, 1)
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 0, 3)
        first, *others = await taken(messages, 3)
        assert await messages.ack(first)
        assert not await messages.ack(*others), "one of them was taken back"


async def test_a_best_effort_topic_has_nothing_to_ack(client: Client, node: FakeNode) -> None:
    node.topics[TOPIC] = passing()
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 0, 1)
        [message] = await taken(messages, 1)
        assert await messages.ack(message)
        messages.ack_soon(message)
        assert not await messages.nack(message)
    assert not node.sent(AckRecords)
    assert not node.sent(NackRecords)


@pytest.mark.parametrize("error", [MOVED, NotServing(reason="it stops"), ConsumerNotFound(consumer=1)])
async def test_a_consumer_that_is_detached_for_the_moment_comes_back_p12(
    client: Client, node: FakeNode, error: SulinaError
) -> None:
    async with client.consumer(TOPIC, "s", name="me") as messages:
        node.connection.deliver(handle(node), 50, 60)
        await taken(messages, 3)
        node.connection.detach(handle(node), error)
        await node.wait_sent(Subscribe, 2)
        node.connection.deliver(handle(node), 0, 2)
        assert offsets(await taken(messages, 2)) == [0, 1]
        assert len(node.connections) == 1
        assert node.sent(Subscribe)[1].name == "me"


async def test_what_comes_for_a_consumer_that_was_detached_is_ignored(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        former = handle(node)
        node.connection.detach(former, MOVED)
        await node.wait_sent(Subscribe, 2)
        node.connection.deliver(former, 50, 60)
        node.connection.deliver(handle(node), 0, 1)
        assert offsets(await taken(messages, 1)) == [0]
        assert await messages.get(timeout_seconds=5) is None


@pytest.mark.parametrize(
    "error", [BUSY, TopicNotFound(topic=TOPIC), SubscriptionNotFound(topic=TOPIC, subscription="s")]
)
async def test_a_consumer_that_is_detached_for_good_hears_why(
    client: Client, node: FakeNode, error: SulinaError
) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 0, 10)
        await taken(messages, 1)
        node.connection.detach(handle(node), error)
        await asyncio.sleep(0.1)
        with pytest.raises(type(error)):
            await anext(messages)
        await asyncio.sleep(60)
        assert len(node.sent(Subscribe)) == 1


async def test_a_subscription_that_others_hold_is_busy_at_once_p2(client: Client, node: FakeNode) -> None:
    node.scripts[Subscribe] = lambda connection, frame: connection.refuse(frame, BUSY)
    with pytest.raises(SubscriptionBusy):
        async with client.consumer(TOPIC, "s"):
            pass
    with pytest.raises(SubscriptionBusy):
        async for _ in client.consumer(TOPIC, "s"):
            pass
    assert not node.sent(Detach)


async def test_after_a_reconnect_our_former_self_may_be_busy_for_a_while(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        refused = 0

        def subscribe(connection: FakeConnection, frame: Subscribe) -> None:
            nonlocal refused
            refused += 1
            connection.refuse(frame, BUSY) if refused < 6 else connection.answer(frame)

        node.scripts[Subscribe] = subscribe
        node.connection.cut()
        await node.wait_sent(Subscribe, 7)
        node.connection.deliver(handle(node), 0, 1)
        assert offsets(await taken(messages, 1)) == [0]


async def test_after_a_reconnect_others_that_stay_make_it_fail(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        node.scripts[Subscribe] = lambda connection, frame: connection.refuse(frame, BUSY)
        start = asyncio.get_running_loop().time()
        node.connection.cut()
        with pytest.raises(SubscriptionBusy):
            await anext(messages)
        assert 30 <= asyncio.get_running_loop().time() - start < 40


async def test_an_outage_of_hours_is_waited_for(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        node.refusals.extend(Disconnected(url=URL, reason="down") for _ in range(2000))
        node.connection.cut()
        next_message = asyncio.create_task(anext(messages))
        await node.wait_sent(Subscribe, 2)
        assert asyncio.get_running_loop().time() > 3600
        node.connection.deliver(handle(node), 0, 1)
        assert (await next_message).offset == 0


async def test_a_subscribe_that_is_cut_off_is_tried_again(client: Client, node: FakeNode) -> None:
    del node.scripts[Subscribe]
    opening = asyncio.create_task(client.consumer(TOPIC, "s").open())
    await node.asked(Subscribe)
    node.connection.cut()
    node.answer(await node.asked(Subscribe))
    await opening


async def test_a_subscribe_that_is_given_up_leaves_nobody_attached(client: Client, node: FakeNode) -> None:
    del node.scripts[Subscribe]
    opening = asyncio.create_task(client.consumer(TOPIC, "s").open())
    late = await node.asked(Subscribe)
    opening.cancel()
    await asyncio.sleep(1)
    assert [(frame.id, frame.consumer) for frame in node.sent(Detach)] == [(0, late.consumer)]


async def test_a_delivery_right_behind_the_answer_is_not_lost(client: Client, node: FakeNode) -> None:
    def subscribe(connection: FakeConnection, frame: Subscribe) -> None:
        connection.answer(frame)
        connection.deliver(frame.consumer, 0, 3)

    node.scripts[Subscribe] = subscribe
    async with client.consumer(TOPIC, "s") as messages:
        assert offsets(await taken(messages, 3)) == [0, 1, 2]


async def test_waiting_for_a_message_may_be_given_up_without_losing_one(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        assert await messages.get(timeout_seconds=2) is None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await anext(messages)
        node.connection.deliver(handle(node), 0, 2)
        async for message in messages:
            assert message.offset == 0
            break
        async for message in messages:
            assert message.offset == 1
            break


async def test_several_tasks_share_what_comes(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        workers = [asyncio.create_task(taken(messages, 5)) for _ in range(3)]
        for start in (0, 5, 10):
            node.connection.deliver(handle(node), start, start + 5)
            await asyncio.sleep(0.1)
        found = [offset for worker in workers for offset in offsets(await worker)]
        assert sorted(found) == list(range(15))


async def test_batches_are_lists_of_what_is_here(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s", credit=100) as messages:
        node.connection.deliver(handle(node), 0, 100)
        batches = messages.batches()
        assert offsets(await anext(batches)) == list(range(100))
        node.connection.deliver(handle(node), 100, 130)
        assert offsets(await messages.take(20)) == list(range(100, 120))
        assert offsets(await messages.take(20)) == list(range(120, 130))
        await asyncio.sleep(1)
        assert sum(frame.records for frame in node.sent(AddCredit)) == 100
        await messages.close()
        assert await messages.take() == []
        with pytest.raises(StopAsyncIteration):
            await anext(batches)


async def test_closing_ends_the_iteration_and_so_does_closing_the_client(node: FakeNode) -> None:
    async with node.client(ClientOptions()) as client:
        first, second = client.consumer(TOPIC, "a"), client.consumer(TOPIC, "b")
        await first.open()
        await second.open()
        waiting = [asyncio.create_task(each.take()) for each in (first, second)]
        await asyncio.sleep(1)
        await first.close()
        await first.close()
        assert await waiting[0] == []
    assert await waiting[1] == []
    assert len(node.sent(Detach)) == 2


async def test_leaving_a_node_that_is_gone_takes_no_time(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 0, 2)
        for message in await taken(messages, 2):
            messages.ack_soon(message)
        node.refusals.extend(Disconnected(url=URL, reason="down") for _ in range(1000))
        node.connection.cut()
        start = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - start < 1


async def test_leaving_a_node_that_does_not_answer_takes_a_moment(client: Client, node: FakeNode) -> None:
    del node.scripts[Detach]
    async with client.consumer(TOPIC, "s"):
        start = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - start == pytest.approx(5)


async def test_damaged_records_are_never_shown_l8(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        damaged = bytearray(encode([StoredRecord(b"%d" % number) for number in range(3)]))
        damaged[damaged.index(b"\x021\x00") + 1] ^= 1
        node.connection.push(Deliver(handle(node), 0, 1, memoryview(damaged), [(0, 3)]))
        with pytest.raises(CorruptBatch):
            await anext(messages)


async def test_what_cannot_be_subscribed_to_is_said_at_once(client: Client) -> None:
    for wrong in [{"mode": "everybody"}, {"start": "sometime"}, {"credit": 0}, {"credit": 10**7}, {"name": "x" * 501}]:
        with pytest.raises(InvalidSettings):
            client.consumer(TOPIC, "s", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettings):
        client.consumer(TOPIC, 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidName):
        client.consumer("no orders", "s")


async def test_back_pressure_gathers_acks_and_credit_instead_of_frames(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s", credit=10) as messages:
        node.open_gate.clear()
        for start in range(0, 1000, 10):
            node.connection.deliver(handle(node), start, start + 10)
            for message in await taken(messages, 10):
                messages.ack_soon(message)
            await asyncio.sleep(0.02)
        node.open_gate.set()
        await asyncio.sleep(1)
        said: list[FromClient] = [f for f in node.frames if isinstance(f, AckRecords | AddCredit)]
        assert len(said) <= 6
        assert sum(f.records for f in node.sent(AddCredit)) == 1000
        assert ranges_of([o for f in node.sent(AckRecords) for r in f.ranges for o in range(*r)]) == [(0, 1000)]


def test_ranges_are_few_and_half_open() -> None:
    assert ranges_of([]) == []
    assert ranges_of([3]) == [(3, 4)]
    assert ranges_of([0, 1, 2, 2, 1]) == [(0, 3)]
    assert ranges_of([0, 2, 2]) == [(0, 1), (2, 3)]
    assert ranges_of([9, 1, 2, 0, 5]) == [(0, 3), (5, 6), (9, 10)]


def test_a_delivery_is_what_its_frame_says() -> None:
    assert Deliver(1, 0, 1, memoryview(b""), []).ranges == []


async def test_closed_while_it_opens_it_is_not_attached(client: Client, node: FakeNode) -> None:
    del node.scripts[Subscribe]
    subscription = client.consumer(TOPIC, "s")
    opening = asyncio.create_task(subscription.open())
    asked = await node.asked(Subscribe)
    await subscription.close()
    await opening
    node.answer(asked)
    await node.wait_sent(Detach, 1)
    assert [frame.consumer for frame in node.sent(Detach)] == [asked.consumer]
    assert await subscription.take() == []


async def test_closed_when_it_has_just_opened_it_is_not_attached(client: Client, node: FakeNode) -> None:
    for turns in range(12):
        subscription = client.consumer(TOPIC, "s")
        opening = asyncio.create_task(subscription.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        await subscription.close()
        await opening
        await asyncio.sleep(1)
        assert [f.consumer for f in node.sent(Subscribe)] == [f.consumer for f in node.sent(Detach)]
        assert not subscription.is_attached


async def test_what_cannot_be_decoded_ends_the_subscription(client: Client, node: FakeNode) -> None:
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 0, 1)
        messages.ack_soon(await anext(messages))
        node.connection.push(Deliver(handle(node), 0, 1, memoryview(bytes(70)), [(1, 2)]))
        node.connection.deliver(handle(node), 2, 3)
        with pytest.raises(SulinaError) as caught:
            await anext(messages)
        await node.wait_sent(Detach, 1)
        node.connection.deliver(handle(node), 3, 4)
        await asyncio.sleep(1)
        with pytest.raises(type(caught.value)):
            await anext(messages)
        assert [frame.ranges for frame in node.sent(AckRecords)] == [[(0, 1)]]
        node.connection.cut()
        await asyncio.sleep(100)
        assert len(node.sent(Subscribe)) == 1


async def test_the_node_says_whether_there_is_anything_to_ack(client: Client, node: FakeNode) -> None:
    node.append_publishes()
    node.topics[TOPIC] = passing()
    await client.publish(TOPIC, b"")
    node.topics[TOPIC] = TopicSettings()
    async with client.consumer(TOPIC, "s") as messages:
        node.connection.deliver(handle(node), 0, 1)
        assert await messages.ack(await anext(messages))
    assert len(node.sent(AckRecords)) == 1
