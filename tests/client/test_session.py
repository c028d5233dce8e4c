"""Requests, answers, reconnects: what a client does when its node is slow, full or gone."""

import asyncio
import itertools
from typing import Any

import pytest

from sulina.client import Client, ClientOptions
from sulina.errors import (
    Disconnected,
    Draining,
    InvalidSettings,
    NotServing,
    NotStarted,
    ProtocolError,
    QueueFull,
    TopicNotFound,
)
from sulina.wire.frames import Answer, Call, Detach, Failed, Publish
from sulina.wire.messages import NodeInfo
from tests.client.fake_node import TOPIC, URL, FakeNode, origin_of, published

INFO = NodeInfo(broker_id="a", version="1", is_ready=True, topics=0, connections=1, uptime_seconds=1.0)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_answers_find_their_requests_in_any_order(client: Client, node: FakeNode) -> None:
    first = asyncio.create_task(client.admin.locate(TOPIC, "earliest"))
    second = asyncio.create_task(client.admin.locate(TOPIC, "latest"))
    asked = [await node.asked(Call), await node.asked(Call)]
    node.answer(asked[1], 9)
    node.answer(asked[0], 3)
    assert (await first, await second) == (3, 9)


async def test_errors_arrive_as_they_were_raised(client: Client, node: FakeNode) -> None:
    with pytest.raises(TopicNotFound, match="there is no topic /default/none") as caught:
        await client.admin.topic("/default/none")
    assert caught.value.topic == "/default/none"
    assert len(node.frames) == 1, "nothing that is not there is asked for again"


async def test_a_read_that_is_cut_off_is_asked_again(client: Client, node: FakeNode) -> None:
    reading = asyncio.create_task(client.admin.info())
    await node.asked(Call)
    node.connection.cut()
    again = await node.asked(Call)
    assert len(node.connections) == 2
    node.answer(again, INFO)
    assert await reading == INFO
    assert node.connections[0].is_closed


async def test_a_change_that_is_cut_off_has_an_unknown_outcome(client: Client, node: FakeNode) -> None:
    deleting = asyncio.create_task(client.admin.delete_topic(TOPIC))
    await node.asked(Call)
    node.connection.cut()
    with pytest.raises(Disconnected, match="cut"):
        await deleting
    assert len(node.sent(Call)) == 1


async def test_a_change_that_was_never_sent_waits_for_a_connection(client: Client, node: FakeNode) -> None:
    node.connection.cut()
    await asyncio.sleep(0)
    deleting = asyncio.create_task(client.admin.delete_topic(TOPIC))
    node.answer(await node.asked(Call))
    await deleting
    assert len(node.connections) == 2


async def test_reconnects_back_off_and_never_in_step(node: FakeNode) -> None:
    seconds = []
    for seed in range(2):
        node.connected_at.clear()
        async with node.client(ClientOptions(backoff_seconds_max=2.0), seed=seed) as client:
            node.refusals.extend(Disconnected(url=URL, reason="refused") for _ in range(10))
            node.connection.cut()
            reading = asyncio.create_task(client.admin.info())
            node.answer(await node.asked(Call), INFO)
            await reading
        times = node.connected_at[1:]
        assert len(times) == 11
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        for attempt, pause in enumerate(pauses, start=1):
            longest = min(0.05 * 2**attempt, 2.0)
            assert longest / 2 <= pause <= longest + 1e-9
        seconds.append(pauses)
    assert seconds[0] != seconds[1]


async def test_while_there_is_no_connection_requests_end_with_the_reason(client: Client, node: FakeNode) -> None:
    node.refusals.extend(Disconnected(url=URL, reason="nobody listens") for _ in range(1000))
    node.connection.cut()
    await asyncio.sleep(0)
    start = now()
    with pytest.raises(Disconnected, match="nobody listens"):
        await client.admin.info()
    assert now() - start == pytest.approx(30.0, abs=0.1)


async def test_a_node_that_does_not_answer_is_given_up(client: Client, node: FakeNode) -> None:
    start = now()
    with pytest.raises(Disconnected, match="no answer within 30 seconds"):
        await client.admin.info()
    assert now() - start == pytest.approx(30.0)
    node.answer(await node.asked(Call), INFO)  # too late, and nobody minds
    reading = asyncio.create_task(client.admin.info())
    node.answer(await node.asked(Call), INFO)
    assert await reading == INFO


@pytest.mark.parametrize(
    "error",
    [
        QueueFull(waiting_bytes=2, limit_bytes=1),
        NotServing(reason="it is starting"),
        Draining(topic=TOPIC, owner="b"),
    ],
    ids=lambda error: error.code,
)
async def test_what_is_refused_for_the_moment_is_tried_again_u1(
    client: Client, node: FakeNode, error: NotServing
) -> None:
    publishing = asyncio.create_task(client.publish(TOPIC, b"x"))
    for _ in range(3):
        node.refuse(await node.asked(Publish), error)
    node.answer(await node.asked(Publish), published())
    assert (await publishing).is_accepted
    assert len({origin_of(frame) for frame in node.sent(Publish)}) == 1
    assert now() > 0.05 / 2 + 0.1 / 2 + 0.2 / 2


async def test_a_drain_that_does_not_end_is_raised_u1(client: Client, node: FakeNode) -> None:
    node.scripts[Publish] = lambda connection, frame: connection.refuse(frame, Draining(topic=TOPIC, owner="b"))
    with pytest.raises(Draining) as caught:
        await client.publish(TOPIC, b"x", timeout_seconds=3)
    assert caught.value.owner == "b"
    assert 2 < now() <= 3


async def test_requests_in_flight_are_bounded(node: FakeNode) -> None:
    async with node.client(ClientOptions(requests_in_flight_max=2)) as client:
        reading = [asyncio.create_task(client.admin.locate(TOPIC, f"offset:{n}")) for n in range(5)]
        first, second = await node.asked(Call), await node.asked(Call)
        await asyncio.sleep(1)
        assert node.called() == {"placement": 1, "locate": 2}
        node.answer(second, 1)
        node.answer(await node.asked(Call), 2)
        node.answer(first, 0)
        for number in (3, 4):
            node.answer(await node.asked(Call), number)
        assert sorted(await asyncio.gather(*reading)) == [0, 1, 2, 3, 4]
        asked = [call.arguments["position"] for call in node.sent(Call) if call.method == "locate"]
        assert asked == [f"offset:{n}" for n in range(5)], "first come, first served"


async def test_bytes_in_flight_are_bounded_but_one_large_batch_passes(node: FakeNode) -> None:
    async with node.client(ClientOptions(bytes_in_flight_max=1000)) as client:
        large = asyncio.create_task(client.publish(TOPIC, bytes(5000)))
        small = asyncio.create_task(client.publish(TOPIC, b"x"))
        node_has = await node.asked(Publish)
        await asyncio.sleep(1)
        assert len(node.sent(Publish)) == 1
        node.answer(node_has, published())
        node.answer(await node.asked(Publish), published())
        assert (await large).is_accepted
        assert (await small).is_accepted


async def test_a_request_that_is_cancelled_gives_its_room_back(node: FakeNode) -> None:
    async with node.client(ClientOptions(requests_in_flight_max=1)) as client:
        first = asyncio.create_task(client.admin.info())
        await node.asked(Call)
        second = asyncio.create_task(client.admin.info())
        third = asyncio.create_task(client.admin.info())
        await asyncio.sleep(1)
        second.cancel()
        first.cancel()
        node.answer(await node.asked(Call), INFO)
        assert await third == INFO


async def test_back_pressure_of_the_connection_reaches_the_caller(client: Client, node: FakeNode) -> None:
    node.open_gate.clear()
    reading = asyncio.create_task(client.admin.info())
    await asyncio.sleep(1)
    assert not node.frames
    node.open_gate.set()
    node.answer(await node.asked(Call), INFO)
    assert await reading == INFO


async def test_pipelined_publishes_keep_their_order_through_a_reconnect(client: Client, node: FakeNode) -> None:
    await client.admin.topic(TOPIC)
    publishing = [asyncio.create_task(client.publish(TOPIC, str(n))) for n in range(20)]
    for _ in range(20):
        await node.asked(Publish)
    node.append_publishes()
    node.connection.cut()
    acks = await asyncio.gather(*publishing)
    assert [ack.offset for ack in acks] == list(range(20))


async def test_a_connection_that_fails_while_sending_is_replaced(client: Client, node: FakeNode) -> None:
    """`send` may notice first; nobody must turn in circles until the reader does."""
    node.connection.is_cut = True
    reading = asyncio.create_task(client.admin.info())
    await asyncio.sleep(5)
    assert not reading.done()
    node.connection.cut()
    node.answer(await node.asked(Call), INFO)
    assert await reading == INFO


async def test_garbage_from_a_node_ends_the_connection_not_the_client(client: Client, node: FakeNode) -> None:
    reading = asyncio.create_task(client.admin.info())
    await node.asked(Call)
    node.connection.push_bytes(b"\xc1garbage")
    node.answer(await node.asked(Call), INFO)
    assert await reading == INFO
    assert len(node.connections) == 2


async def test_answers_to_nobody_are_ignored(client: Client, node: FakeNode) -> None:
    node.connection.push(Answer(0))
    node.connection.push(Answer(4711, "?"))
    reading = asyncio.create_task(client.admin.info())
    node.answer(await node.asked(Call), INFO)
    assert await reading == INFO


async def test_the_first_connection_is_tried_once_unless_told_to_wait(node: FakeNode) -> None:
    node.refusals.extend(Disconnected(url=URL, reason="refused") for _ in range(5))
    with pytest.raises(Disconnected, match="refused"):
        await node.client(ClientOptions())
    assert len(node.connected_at) == 1
    async with node.client(ClientOptions(wait_seconds=60)) as client:
        assert len(node.connected_at) == 6
        await client.admin.topic(TOPIC)


async def test_a_closed_client_says_so_to_those_who_wait_and_those_who_come(node: FakeNode) -> None:
    client = await node.client(ClientOptions())
    reading = asyncio.create_task(client.admin.info())
    await node.asked(Call)
    await client.close()
    await client.close()
    with pytest.raises(Disconnected, match="the client is closed"):
        await reading
    with pytest.raises(NotStarted, match="the client was closed"):
        await client.admin.info()
    assert node.connection.is_closed


async def test_a_client_is_awaited_or_entered_and_closes_what_it_started(node: FakeNode) -> None:
    closed = []

    def connecting() -> Client:
        async def on_close() -> None:
            closed.append(now())

        return Client(node.connect, url=URL, on_close=on_close)

    async with connecting() as client:
        await client.admin.topic(TOPIC)
        assert not closed
    assert len(closed) == 1
    client = await connecting()
    assert await client is client
    await client.admin.topic(TOPIC)
    await client.close()
    await client.close()
    assert len(closed) == 2
    node.refusals.append(Disconnected(url=URL, reason="refused"))
    with pytest.raises(Disconnected):
        await connecting()
    assert len(closed) == 3
    with pytest.raises(NotStarted, match="connect again"):
        await client


async def test_a_frame_that_the_node_does_not_understand_is_not_sent_again(client: Client, node: FakeNode) -> None:
    reading = asyncio.create_task(client.admin.info())
    await node.asked(Call)
    node.connection.push(Failed(0, "protocol_error", "not a frame"))
    with pytest.raises(ProtocolError, match="not a frame"):
        await reading
    reading = asyncio.create_task(client.admin.info())
    node.answer(await node.asked(Call), INFO)
    assert await reading == INFO
    assert (len(node.connections), len(node.sent(Call))) == (2, 2)


async def test_only_an_answer_ends_the_backing_off(client: Client, node: FakeNode) -> None:
    for _ in range(8):
        node.connection.push(Answer(4711))
        node.connection.cut()
        await asyncio.sleep(10)
    assert len(node.connected_at) == 9
    node.connected_at.clear()
    start = now()
    node.connection.cut()
    await asyncio.sleep(10)
    assert node.connected_at[0] - start > 2, "the node has answered nothing"


async def test_a_client_whose_closing_is_cancelled_stops_its_node_all_the_same(node: FakeNode) -> None:
    is_stopped = False

    async def stop() -> None:
        nonlocal is_stopped
        await asyncio.sleep(1)
        is_stopped = True

    node.attach_consumers()
    client = await Client(node.connect, on_close=stop)
    await client.consumer(TOPIC, "s").open()
    del node.scripts[Detach]
    closing = asyncio.create_task(client.close())
    await node.asked(Detach)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert is_stopped
    assert node.connection.is_closed


@pytest.mark.parametrize(
    "wrong",
    [{"version": "x"}, {"version": 2**64}, {"min_version": 1.5}, {"min_offset": "x"}, {"max_bytes": None},
     {"wait_seconds": 1e17}, {"wait_seconds": float("nan")}, {"wait_seconds": -1}],
    ids=str,
)  # fmt: skip
async def test_a_fetch_that_fits_no_frame_is_not_sent(client: Client, node: FakeNode, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings):
        await client.admin.fetch(TOPIC, 0, 0, **wrong)
    assert not node.frames
