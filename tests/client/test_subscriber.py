"""Subscribers over a node by script: handlers, acks, failures, reconnects (P1, P2, P3, P7)."""

import asyncio
import itertools
import logging
import threading
from collections.abc import AsyncIterator

import pytest

from sulina.client import Client, ClientOptions, Message
from sulina.client.subscriber import Subscriber
from sulina.client.subscribers import AnySubscriber
from sulina.core.records.record import StoredRecord, encode
from sulina.core.records.serializer import SERIALIZER_HEADER
from sulina.core.topic import TopicSettings
from sulina.errors import (
    CorruptBatch,
    Disconnected,
    DuplicateSubscriber,
    InvalidEnvelope,
    InvalidName,
    InvalidSettings,
    NotServing,
    SubscriberNotFound,
    SubscriberRemoved,
    SulinaError,
    TopicNotFound,
)
from sulina.wire.frames import (
    AckBatch,
    Deliver,
    Detach,
    FailBatch,
    Join,
)
from sulina.wire.messages import JoinedTopic
from tests.client.fake_node import TOPIC, FakeNode, passing
from tests.client.inbox import Inbox, handle

REMOVED = SubscriberRemoved(topic=TOPIC, reason="suspended for 60 seconds", status="Timeout")


@pytest.fixture
def node(node: FakeNode) -> FakeNode:
    node.append_publishes()
    node.join_subscribers()
    return node


@pytest.fixture
async def pubsub(node: FakeNode) -> AsyncIterator[Client]:
    async with node.client(ClientOptions()) as client:
        yield client


def acked(node: FakeNode) -> list[int]:
    return [frame.attempt for frame in node.sent(AckBatch)]


async def settled(subscriber: AnySubscriber) -> None:
    """Return when nothing waits for a handler; in virtual time, everybody has had a turn by then."""
    await asyncio.sleep(1)
    names = [task.get_name() for task in asyncio.all_tasks()]
    assert not [name for name in names if name.startswith(f"sulina-handler {subscriber.name} ")]


async def wait_attached(subscriber: AnySubscriber, node: FakeNode, joins: int) -> None:
    await node.wait_sent(Join, joins)
    await asyncio.sleep(0.01)  # in virtual time: the answer has been read by then
    assert subscriber.is_attached


# Deliveries


async def test_messages_have_their_coordinates_and_contents_and_are_acked_by_attempt(
    client: Client, node: FakeNode
) -> None:
    seen: list[Message] = []

    async def handler(message: Message) -> None:
        seen.append(message)

    subscriber = await client.subscribe(TOPIC, handler, name="me", start="earliest")
    [joined] = node.sent(Join)
    assert (joined.topic, joined.name, joined.positions, joined.start) == (TOPIC, "me", {}, "earliest")
    assert (subscriber.topic, subscriber.name, subscriber.is_attached) == (TOPIC, "me", True)
    data = encode([StoredRecord(b'{"a":1}', b"k", 5, ((SERIALIZER_HEADER, b"2"), ("mine", b"x"))), StoredRecord(None)])
    node.connection.push(Deliver(handle(node), 3, 41, memoryview(data), [(0, 2)]))
    await node.wait_sent(AckBatch, 1)
    [ack] = node.sent(AckBatch)
    assert (ack.consumer, ack.partition, ack.attempt) == (joined.consumer, 3, 41)
    first, tombstone = seen
    assert (first.topic, first.partition, first.offset, first.timestamp_ms) == (TOPIC, 3, 0, 5)
    assert (first.key, first.value, first.payload, dict(first.headers)["mine"]) == (b"k", b'{"a":1}', {"a": 1}, b"x")
    assert first.payload is first.payload  # read once
    assert (tombstone.value, tombstone.payload) == (None, None)
    assert subscriber.delivered == 2


async def test_a_handler_can_take_lists(client: Client, node: FakeNode) -> None:
    seen: list[list[int]] = []

    async def handler(messages: list[Message]) -> None:
        seen.append([message.offset for message in messages])

    subscriber = await client.subscribe(TOPIC, handler, batches=True)
    node.connection.deliver(handle(node), 0, 3, attempt=1)
    node.connection.deliver(handle(node), 3, 10, attempt=2, ranges=[(4, 6), (8, 9)])
    await node.wait_sent(AckBatch, 2)
    assert seen == [[0, 1, 2], [4, 5, 8]]
    assert subscriber.delivered == 6


async def test_one_call_at_a_time_for_each_partition_and_partitions_do_not_wait(client: Client, node: FakeNode) -> None:
    node.topics[TOPIC] = TopicSettings(partitions=2)
    running: dict[int, int] = {0: 0, 1: 0}
    order: dict[int, list[int]] = {0: [], 1: []}
    gates = {0: asyncio.Event(), 1: asyncio.Event()}
    gates[1].set()

    async def handler(message: Message) -> None:
        running[message.partition] += 1
        assert running[message.partition] == 1
        await gates[message.partition].wait()
        await asyncio.sleep(0.01)
        order[message.partition].append(message.offset)
        running[message.partition] -= 1

    await client.subscribe(TOPIC, handler)
    for start in range(0, 6, 2):
        for partition in (0, 1):
            node.connection.deliver(handle(node), start, start + 2, partition=partition, attempt=start * 10 + partition)
    await node.wait_sent(AckBatch, 3)
    assert acked(node) == [1, 21, 41]
    gates[0].set()
    await node.wait_sent(AckBatch, 6)
    assert order == {0: [0, 1, 2, 3, 4, 5], 1: [0, 1, 2, 3, 4, 5]}


async def test_p3_a_slow_handler_holds_up_neither_others_nor_the_session(client: Client, node: FakeNode) -> None:
    slow, quick = Inbox(), Inbox()
    slow.gate.clear()
    await client.subscribe(TOPIC, slow)
    one = handle(node)
    await client.subscribe(TOPIC, quick)
    other = handle(node)
    for start in range(100):
        node.connection.deliver(one, start, start + 1, attempt=start)
        node.connection.deliver(other, start, start + 1, attempt=start)
    await node.wait_sent(AckBatch, 100)
    assert {frame.consumer for frame in node.sent(AckBatch)} == {other}
    assert (await client.publish(TOPIC, b"x")).is_accepted
    assert quick.offsets == list(range(100))
    slow.gate.set()


async def test_deliveries_may_come_before_the_answer_to_the_join(client: Client, node: FakeNode) -> None:
    del node.scripts[Join]
    inbox = Inbox()
    joining = asyncio.create_task(client.subscribe(TOPIC, inbox))
    asked = await node.asked(Join)
    node.connection.deliver(asked.consumer, 3, 8, attempt=1)
    await asyncio.sleep(1)
    assert inbox.started.empty()
    node.answer(asked, JoinedTopic(is_reliable=True, positions={0: 5}))
    await joining
    await node.wait_sent(AckBatch, 1)
    assert inbox.offsets == [5, 6, 7]


# Failures


async def test_p7_a_handler_that_raises_fails_the_delivery_and_what_came_after_it(
    client: Client, node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox()
    inbox.failing = {4}
    inbox.gate.clear()
    subscriber = await client.subscribe(TOPIC, inbox)
    deliver = node.connection.deliver
    for attempt in range(4):
        deliver(handle(node), 3 * attempt, 3 * attempt + 3, attempt=attempt)
    with caplog.at_level(logging.ERROR, "sulina.client"):
        inbox.gate.set()
        await node.wait_sent(FailBatch, 1)
    assert "ValueError: not 4" in caplog.text
    deliver(handle(node), 12, 15, attempt=4)  # it was on its way
    await settled(subscriber)
    [failed] = node.sent(FailBatch)
    assert (failed.attempt, failed.reason) == (1, "ValueError: not 4")
    assert (acked(node), inbox.offsets) == ([0], [0, 1, 2, 3])
    inbox.failing.clear()
    deliver(handle(node), 3, 9, attempt=5)
    deliver(handle(node), 9, 15, attempt=6)
    await node.wait_sent(AckBatch, 3)
    assert (acked(node), inbox.offsets) == ([0, 5, 6], list(range(15)))  # 3 is not done twice


async def test_after_a_failure_a_log_may_begin_later(client: Client, node: FakeNode) -> None:
    inbox = Inbox()
    inbox.failing = {0}
    await client.subscribe(TOPIC, inbox)
    node.connection.deliver(handle(node), 0, 3, attempt=1)
    await node.wait_sent(FailBatch, 1)
    node.connection.deliver(handle(node), 100, 102, attempt=2)  # retention has removed the rest
    await node.wait_sent(AckBatch, 1)
    assert inbox.offsets == [100, 101]


async def test_a_best_effort_topic_goes_on_with_what_comes_next(client: Client, node: FakeNode) -> None:
    node.topics[TOPIC] = passing()
    inbox = Inbox()
    inbox.failing = {0}
    subscriber = await client.subscribe(TOPIC, inbox)
    node.connection.deliver(handle(node), 0, 1, attempt=1)
    await node.wait_sent(FailBatch, 1)
    node.connection.deliver(handle(node), 1, 2, attempt=2)
    await node.wait_sent(AckBatch, 1)
    node.connection.deliver(handle(node), 0, 2, attempt=3)  # its offsets may begin anew
    inbox.failing = set()
    await node.wait_sent(AckBatch, 2)
    assert isinstance(subscriber, Subscriber)
    assert (inbox.offsets, subscriber.positions()) == ([1, 0, 1], {})


async def test_what_timed_out_at_the_node_and_comes_again_is_passed_over(client: Client, node: FakeNode) -> None:
    inbox = Inbox()
    inbox.gate.clear()
    await client.subscribe(TOPIC, inbox)
    for attempt in range(3):
        node.connection.deliver(handle(node), 2 * attempt, 2 * attempt + 2, attempt=attempt)
    assert await inbox.started.get() == 0
    node.connection.deliver(handle(node), 0, 4, attempt=7)
    node.connection.deliver(handle(node), 4, 6, attempt=8)
    await asyncio.sleep(1)
    inbox.gate.set()
    await node.wait_sent(AckBatch, 3)
    assert (acked(node), inbox.offsets) == ([0, 7, 8], [0, 1, 2, 3, 4, 5])


async def test_a_batch_that_is_damaged_fails(client: Client, node: FakeNode) -> None:
    await client.subscribe(TOPIC, Inbox())
    data = encode([StoredRecord(b"x")])
    data[-1] ^= 1
    node.connection.push(Deliver(handle(node), 0, 1, memoryview(data), [(0, 1)]))
    await node.wait_sent(FailBatch, 1)
    assert node.sent(FailBatch)[0].reason.startswith(CorruptBatch.__name__)


async def test_a_payload_that_nobody_can_read_is_the_handlers_to_see(client: Client, node: FakeNode) -> None:
    async def handler(message: Message) -> object:
        return message.payload

    await client.subscribe(TOPIC, handler)
    data = encode([StoredRecord(b"x", None, 0, ((SERIALIZER_HEADER, b"777"),))])
    node.connection.push(Deliver(handle(node), 0, 1, memoryview(data), [(0, 1)]))
    await node.wait_sent(FailBatch, 1)
    assert node.sent(FailBatch)[0].reason.startswith(InvalidEnvelope.__name__)


async def test_a_handler_that_is_cancelled_by_itself_fails(client: Client, node: FakeNode) -> None:
    async def handler(_message: Message) -> None:
        raise asyncio.CancelledError

    await client.subscribe(TOPIC, handler)
    for attempt in (1, 2):
        node.connection.deliver(handle(node), 0, 1, attempt=attempt)
        await node.wait_sent(FailBatch, attempt)
    assert {frame.reason for frame in node.sent(FailBatch)} == {"CancelledError"}


# Reconnects


async def test_after_a_lost_connection_it_joins_again_where_it_was(client: Client, node: FakeNode) -> None:
    node.topics[TOPIC] = TopicSettings(partitions=2)
    node.join_subscribers(end=7)
    inbox = Inbox()
    subscriber = await client.subscribe(TOPIC, inbox)
    node.connection.deliver(handle(node), 7, 9, partition=1, attempt=1)
    await node.wait_sent(AckBatch, 1)
    inbox.gate.clear()
    node.connection.deliver(handle(node), 9, 11, partition=1, attempt=2)
    node.connection.deliver(handle(node), 11, 12, partition=1, attempt=3)
    while await inbox.started.get() != 9:
        pass
    node.connection.cut()
    await wait_attached(subscriber, node, 2)
    assert node.sent(Join)[-1].positions == {0: 7, 1: 9}
    node.connection.deliver(handle(node), 9, 12, partition=1, attempt=4)
    inbox.gate.set()
    await node.wait_sent(AckBatch, 2)
    # 9 and 10 were finished by the call that was under way.
    assert (acked(node), inbox.offsets) == ([1, 4], [7, 8, 9, 10, 11])


async def test_when_its_home_dies_it_joins_at_another_where_it_was(node: FakeNode) -> None:
    other = FakeNode()
    other.join_subscribers()
    homes = {"http://a": node, "http://b": other}
    client = Client(url="http://a,http://b", reach=lambda url: homes[url].connect)
    inbox = Inbox()
    async with client:
        subscriber = await client.subscribe(TOPIC, inbox, name="me")
        node.connection.deliver(handle(node), 0, 5, attempt=1)
        await node.wait_sent(AckBatch, 1)
        node.refusals.extend([Disconnected(url="http://a", reason="it died")] * 100)
        node.connection.cut()
        await wait_attached(subscriber, other, 1)
        [joined] = other.sent(Join)
        assert (joined.name, joined.positions) == ("me", {0: 5})
        other.connection.deliver(handle(other), 5, 7, attempt=1)
        await other.wait_sent(AckBatch, 1)
    assert inbox.offsets == list(range(7))


@pytest.mark.parametrize("error", [NotServing(reason="stopping"), Disconnected(url="x", reason="y")])
async def test_a_subscriber_that_the_node_detaches_for_the_moment_joins_again(
    client: Client, node: FakeNode, error: SulinaError
) -> None:
    subscriber = await client.subscribe(TOPIC, Inbox())
    for joins in (2, 3, 4):
        node.connection.detach(handle(node), error)
        await wait_attached(subscriber, node, joins)
    assert not subscriber.removed.done()


async def test_a_subscriber_that_is_detached_at_once_each_time_comes_back_less_and_less_often(
    client: Client, node: FakeNode
) -> None:
    await client.subscribe(TOPIC, Inbox())
    joined_at = []
    for joins in range(2, 8):
        node.connection.detach(handle(node), NotServing(reason="x"))
        await node.wait_sent(Join, joins)
        joined_at.append(asyncio.get_running_loop().time())
    pauses = [later - earlier for earlier, later in itertools.pairwise(joined_at)]
    assert pauses[-1] > 4 * pauses[0] > 0


async def test_a_log_that_is_shorter_than_it_was_is_read_from_its_end(client: Client, node: FakeNode) -> None:
    inbox = Inbox()
    subscriber = await client.subscribe(TOPIC, inbox)
    node.connection.deliver(handle(node), 0, 10, attempt=1)
    await node.wait_sent(AckBatch, 1)
    node.scripts[Join] = lambda connection, frame: connection.answer(
        frame, JoinedTopic(is_reliable=True, positions={0: 2})
    )
    node.connection.cut()
    await wait_attached(subscriber, node, 2)
    node.connection.deliver(handle(node), 2, 4, attempt=1)
    await node.wait_sent(AckBatch, 2)
    assert inbox.offsets == [*range(10), 2, 3]


def joined_in(node: FakeNode, epoch: int, offset: int | None = None) -> None:
    """Who joins is sent to in this epoch, from where it was, or from `offset` on."""
    node.scripts[Join] = lambda connection, frame: connection.answer(
        frame,
        JoinedTopic(
            is_reliable=True,
            positions={0: frame.positions.get(0, 0) if offset is None else offset},
            epochs={0: epoch},
        ),
    )


async def test_u10_who_joins_again_says_in_which_epoch_it_was(client: Client, node: FakeNode) -> None:
    joined_in(node, 3)
    subscriber = await client.subscribe(TOPIC, Inbox())
    node.connection.cut()
    await wait_attached(subscriber, node, 2)
    assert (node.sent(Join)[-1].positions, node.sent(Join)[-1].epochs) == ({0: 0}, {0: 3})
    node.connection.deliver(handle(node), 0, 10, attempt=1, epochs={0: 3, 6: 5})
    await node.wait_sent(AckBatch, 1)
    node.connection.cut()
    await wait_attached(subscriber, node, 3)
    assert (node.sent(Join)[-1].positions, node.sent(Join)[-1].epochs) == ({0: 10}, {0: 5})


async def test_u10_who_had_what_was_given_up_is_told_and_goes_on_where_the_log_does(
    client: Client, node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    joined_in(node, 3)
    inbox = Inbox()
    subscriber = await client.subscribe(TOPIC, inbox)
    node.connection.deliver(handle(node), 0, 10, attempt=1, epochs={0: 3})
    await node.wait_sent(AckBatch, 1)
    joined_in(node, 5, offset=4)
    node.connection.cut()
    await wait_attached(subscriber, node, 2)
    node.connection.deliver(handle(node), 4, 12, attempt=1, epochs={4: 5})
    await node.wait_sent(AckBatch, 2)
    assert inbox.offsets == [*range(10), *range(4, 12)]
    assert "offsets 4 to 9" in caplog.text


async def test_u10_a_call_that_was_under_way_counts_for_no_record_of_a_later_epoch(
    client: Client, node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner is lost while the handler works on what is given up then; the node joins it at the next one."""
    joined_in(node, 3)
    inbox = Inbox()
    await client.subscribe(TOPIC, inbox)
    inbox.gate.clear()
    node.connection.deliver(handle(node), 0, 10, attempt=1, epochs={0: 3})
    assert await inbox.started.get() == 0
    node.connection.deliver(handle(node), 0, 12, attempt=2, epochs={0: 3, 4: 5})
    inbox.gate.set()
    await node.wait_sent(AckBatch, 2)
    assert inbox.offsets == [*range(10), *range(4, 12)], "0 to 3 come again, and the others do not"
    assert "offsets 4 to 9" in caplog.text


async def test_a_subscriber_that_is_removed_is_told_and_may_subscribe_again(client: Client, node: FakeNode) -> None:
    told: list[SulinaError] = []
    inbox = Inbox()
    subscriber = await client.subscribe(TOPIC, inbox, name="me", on_removed=told.append)
    node.connection.detach(handle(node), REMOVED)
    assert str(await subscriber.wait_removed()) == str(REMOVED)
    await asyncio.sleep(0)
    assert [type(error) for error in told] == [SubscriberRemoved]
    assert not subscriber.is_attached
    assert client.subscribers == []
    assert await client.subscribe(TOPIC, inbox, name="me") is not subscriber


async def test_who_may_not_join_again_is_removed(client: Client, node: FakeNode) -> None:
    subscriber = await client.subscribe(TOPIC, Inbox())
    del node.topics[TOPIC]
    node.connection.cut()
    assert isinstance(await subscriber.wait_removed(), TopicNotFound)


async def test_a_client_that_is_closed_removes_its_subscribers(node: FakeNode) -> None:
    async with node.client(ClientOptions()) as client:
        subscriber = await client.subscribe(TOPIC, Inbox())
    assert await subscriber.wait_removed() is None
    assert client.subscribers == []


# Subscribing and unsubscribing


async def test_unsubscribing_acks_what_is_done_detaches_and_calls_no_more(client: Client, node: FakeNode) -> None:
    inbox = Inbox()
    inbox.gate.clear()
    subscriber = await client.subscribe(TOPIC, inbox, name="me")
    node.connection.deliver(handle(node), 0, 1, attempt=1)
    node.connection.deliver(handle(node), 1, 2, attempt=2)
    await inbox.started.get()
    leaving = asyncio.create_task(client.unsubscribe(TOPIC, "me"))
    await asyncio.sleep(1)
    assert not leaving.done()  # a call is under way
    inbox.gate.set()
    await leaving
    node.connection.deliver(handle(node), 2, 3, attempt=3)
    await asyncio.sleep(1)
    assert (inbox.offsets, acked(node), len(node.sent(Detach))) == ([0], [1], 1)
    kinds = [type(frame) for frame in node.frames]
    assert kinds.index(AckBatch) < kinds.index(Detach)
    assert await subscriber.wait_removed() is None
    await subscriber.unsubscribe()  # again: nothing


async def test_a_handler_may_unsubscribe_itself(client: Client, node: FakeNode) -> None:
    seen: list[int] = []

    async def handler(message: Message) -> None:
        seen.append(message.offset)
        await subscriber.unsubscribe()
        await subscriber.unsubscribe()

    subscriber = await client.subscribe(TOPIC, handler)
    node.connection.deliver(handle(node), 0, 5, attempt=1)
    assert await subscriber.wait_removed() is None
    await settled(subscriber)
    assert (seen, acked(node), node.sent(FailBatch)) == ([0], [], [])


async def test_unsubscribing_while_it_joins_again(client: Client, node: FakeNode) -> None:
    subscriber = await client.subscribe(TOPIC, Inbox())
    del node.scripts[Join]
    node.connection.cut()
    asked = await node.asked(Join)
    await subscriber.unsubscribe()
    node.answer(asked, JoinedTopic(is_reliable=True, positions={}))
    await node.wait_sent(Detach, 1)
    assert node.sent(Detach)[0].consumer == asked.consumer


async def test_p2_the_same_name_or_the_same_handler_twice_is_a_duplicate(client: Client, node: FakeNode) -> None:
    node.topics["/default/other"] = TopicSettings()
    seen: list[object] = []
    await client.subscribe(TOPIC, seen.append, name="me")
    with pytest.raises(DuplicateSubscriber, match="me is subscribed"):
        await client.subscribe(TOPIC, Inbox(), name="me")
    with pytest.raises(DuplicateSubscriber, match="this handler"):
        await client.subscribe(TOPIC, seen.append)
    await client.subscribe("/default/other", seen.append, name="me")
    assert len(node.sent(Join)) == 2


async def test_p2_who_is_not_subscribed_is_not_found(client: Client, node: FakeNode) -> None:
    subscriber = await client.subscribe(TOPIC, Inbox(), name="me")
    with pytest.raises(SubscriberNotFound):
        await client.unsubscribe(TOPIC, "you")
    with pytest.raises(SubscriberNotFound):
        await client.unsubscribe("/default/other", "me")
    await client.unsubscribe(TOPIC, subscriber)
    with pytest.raises(SubscriberNotFound):
        await client.unsubscribe(TOPIC, subscriber)
    again = await client.subscribe(TOPIC, Inbox(), name="me")
    with pytest.raises(SubscriberNotFound):  # it has another's name
        await client.unsubscribe(TOPIC, subscriber)
    assert again.is_attached


async def test_a_join_that_is_refused_leaves_nothing_behind(client: Client, node: FakeNode) -> None:
    inbox = Inbox()
    with pytest.raises(TopicNotFound):
        await client.subscribe("/default/nothing", inbox, name="me")
    node.topics["/default/nothing"] = TopicSettings()
    await client.subscribe("/default/nothing", inbox, name="me")
    with pytest.raises(InvalidName):
        await client.subscribe("no thing", inbox)
    with pytest.raises(InvalidSettings):
        await client.subscribe(TOPIC, inbox, start="somewhere")
    with pytest.raises(InvalidSettings):
        await client.subscribe(TOPIC, None)  # type: ignore[arg-type]


async def test_a_join_is_tried_until_its_time_is_over(client: Client, node: FakeNode) -> None:
    node.scripts[Join] = lambda connection, frame: connection.refuse(frame, NotServing(reason="no owner yet"))
    began_at = asyncio.get_running_loop().time()
    with pytest.raises(NotServing, match="no owner yet"):
        await client.subscribe(TOPIC, Inbox())
    assert asyncio.get_running_loop().time() - began_at == pytest.approx(30, abs=1)
    assert len(node.sent(Join)) > 3
    assert client.subscribers == []


# Handlers that are plain functions


@pytest.mark.real_time
async def test_a_plain_function_runs_in_a_thread_of_its_own_and_holds_up_nobody(client: Client, node: FakeNode) -> None:
    release, threads, quick = threading.Event(), set(), Inbox()
    seen: list[int] = []

    def slow(message: Message) -> None:
        threads.add(threading.current_thread())
        assert release.wait(10)
        seen.append(message.offset)

    await client.subscribe(TOPIC, slow)
    one = handle(node)
    await client.subscribe(TOPIC, quick)
    other = handle(node)
    node.connection.deliver(one, 0, 2, attempt=1)
    node.connection.deliver(other, 0, 5, attempt=2)
    await node.wait_sent(AckBatch, 1)
    assert (acked(node), seen) == ([2], [])
    release.set()
    await node.wait_sent(AckBatch, 2)
    assert seen == [0, 1]
    assert len(threads) == 1
    assert threading.current_thread() not in threads


@pytest.mark.real_time
async def test_plain_functions_may_return_what_is_to_be_awaited_and_may_raise(client: Client, node: FakeNode) -> None:
    inbox = Inbox()
    inbox.failing = {2}
    await client.subscribe(TOPIC, lambda message: inbox(message))
    node.connection.deliver(handle(node), 0, 4, attempt=1)
    await node.wait_sent(FailBatch, 1)
    assert inbox.offsets == [0, 1]

    def stop(_message: Message) -> None:
        raise StopIteration

    await client.subscribe(TOPIC, stop)
    node.connection.deliver(handle(node), 0, 1, attempt=2)
    await node.wait_sent(FailBatch, 2)
    assert "StopIteration" in node.sent(FailBatch)[1].reason
