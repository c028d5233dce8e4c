"""Reading without a subscription: what is fetched, in which order, and what a lost connection does to it."""

import asyncio

import pytest

from sulina.client import Client, ClientOptions, Reader
from sulina.core.log.log_state import NO_EPOCH
from sulina.core.records.record import StoredRecord, encode
from sulina.core.topic import TopicSettings
from sulina.errors import Disconnected, InvalidSettings, OffsetOutOfRange, PositionDiverged
from sulina.wire.frames import Call, Fetch
from sulina.wire.messages import Fetched, PartitionInfo, TopicState
from tests.client.fake_node import TOPIC, URL, FakeConnection, FakeNode


class Log:
    """Partitions of so many records, in batches of ten; a fetch gets one batch, or waits."""

    def __init__(self, node: FakeNode, ends: list[int]) -> None:
        self.ends = ends
        self.waiting: list[tuple[FakeConnection, Fetch]] = []
        node.topics[TOPIC] = TopicSettings(partitions=len(ends))
        self._topic = node.scripts[Call]
        node.scripts[Call] = self.call
        node.scripts[Fetch] = self.fetch

    def call(self, connection: FakeConnection, frame: Call) -> None:
        partition = frame.arguments.get("partition", 0)
        match frame.method:
            case "locate":
                kind, _, number = frame.arguments["position"].partition(":")
                connection.answer(frame, int(number or (0 if kind == "earliest" else self.ends[partition])))
            case "partition":
                connection.answer(frame, self.info(partition))
            case _:
                self._topic(connection, frame)

    def info(self, partition: int) -> PartitionInfo:
        return PartitionInfo(
            topic=TOPIC, partition=partition, state=TopicState.ACTIVE, epoch=0, version=0, start_offset=0,
            end_offset=self.ends[partition], size_bytes=0, segments=[],
        )  # fmt: skip

    def fetch(self, connection: FakeConnection, frame: Fetch) -> None:
        end = self.ends[frame.partition] if frame.version is None else frame.version
        if frame.offset == end and frame.wait_ms:
            self.waiting.append((connection, frame))
            return
        base = frame.offset // 10 * 10
        top = min(base + 10, end)
        data = encode([StoredRecord(b"%d" % n) for n in range(base, top)], base_offset=base) if base < top else b""
        connection.answer(
            frame,
            Fetched(
                data=memoryview(data),
                offset=frame.offset,
                next_offset=max(top, frame.offset),
                version=0,
                end_offset=end,
                epoch=self.epoch(),
            ),
        )

    def epoch(self) -> int:
        return NO_EPOCH  # as a node that does not know of epochs

    def append(self, partition: int, count: int) -> None:
        self.ends[partition] += count
        waiting, self.waiting = self.waiting, []
        for connection, frame in waiting:
            self.fetch(connection, frame)


async def places(reader: Reader) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) async for record in reader]


async def test_all_partitions_are_read_each_in_order_to_the_end_seen_first(client: Client, node: FakeNode) -> None:
    Log(node, [25, 0, 8])
    found = await places(client.read(TOPIC, follow=False))
    assert sorted(found) == [(0, n) for n in range(25)] + [(2, n) for n in range(8)]
    for partition in range(3):
        offsets = [offset for p, offset in found if p == partition]
        assert offsets == sorted(offsets)


async def test_it_begins_in_the_middle_of_a_batch_and_ends_in_one(client: Client, node: FakeNode) -> None:
    log = Log(node, [25])
    async with client.read(TOPIC, start="offset:13", follow=False) as reader:
        log.ends[0] = 100
        assert await places(reader) == [(0, n) for n in range(13, 25)]


async def test_a_version_ends_where_it_ended_l14(client: Client, node: FakeNode) -> None:
    Log(node, [100])
    assert await places(client.read(TOPIC, version=17)) == [(0, n) for n in range(17)]
    assert {frame.version for frame in node.sent(Fetch)} == {17}
    assert {frame.wait_ms for frame in node.sent(Fetch)} == {0}


async def test_following_waits_at_the_node_not_in_circles(client: Client, node: FakeNode) -> None:
    log = Log(node, [3])
    reader = client.read(TOPIC)
    assert [(await anext(reader)).offset for _ in range(3)] == [0, 1, 2]
    waiting = asyncio.create_task(anext(reader))
    await asyncio.sleep(9)
    assert len(node.sent(Fetch)) == 2
    assert node.sent(Fetch)[-1].wait_ms == 10_000
    log.append(0, 2)
    assert (await waiting).offset == 3
    assert (await anext(reader)).offset == 4


async def test_an_outage_is_waited_for_when_following(client: Client, node: FakeNode) -> None:
    log = Log(node, [3])
    reader = client.read(TOPIC, start="latest")
    waiting = asyncio.create_task(anext(reader))
    await node.wait_sent(Fetch, 1)
    node.refusals.extend(Disconnected(url=URL, reason="down") for _ in range(50))
    log.waiting.clear()
    node.connection.cut()
    await node.wait_sent(Fetch, 2)
    assert asyncio.get_running_loop().time() > 60
    log.append(0, 1)
    assert (await waiting).offset == 3


async def test_an_outage_is_an_error_when_not(client: Client, node: FakeNode) -> None:
    Log(node, [30])
    async with client.read(TOPIC, follow=False) as reader:
        await anext(reader)
        node.scripts[Fetch] = lambda *_: None
        node.refusals.extend(Disconnected(url=URL, reason="down") for _ in range(1000))
        node.connection.cut()
        with pytest.raises(Disconnected):
            await places(reader)


async def test_one_fetch_is_ahead_and_no_more(client: Client, node: FakeNode) -> None:
    Log(node, [1000])
    reader = client.read(TOPIC, follow=False)
    await anext(reader)
    await asyncio.sleep(10)
    assert len(node.sent(Fetch)) == 2


async def test_many_partitions_share_the_room_of_a_reader(node: FakeNode) -> None:
    async with node.client(ClientOptions(fetches_in_flight_max=8)) as client:
        Log(node, [5] * 64)
        assert len(await places(client.read(TOPIC, follow=False, max_bytes=1 << 30))) == 320
        assert {frame.max_bytes for frame in node.sent(Fetch)} == {(32 << 20) // 64}
        log = Log(node, [0] * 64)
        reader = client.read(TOPIC, start="latest")
        waiting = asyncio.create_task(anext(reader))
        await asyncio.sleep(0.1)
        assert len(log.waiting) == 8
        assert {frame.wait_ms for _, frame in log.waiting} == {500}
        waiting.cancel()


async def test_what_was_removed_meanwhile_is_said(client: Client, node: FakeNode) -> None:
    Log(node, [30])
    error = OffsetOutOfRange(offset=0, start=20, end=30)
    node.scripts[Fetch] = lambda connection, frame: connection.refuse(frame, error)
    with pytest.raises(OffsetOutOfRange) as caught:
        await places(client.read(TOPIC, follow=False))
    assert caught.value.start == 20


class GivenUp(Log):
    """A log that says its epoch, and knows where each began. `give_up` takes back the newest records."""

    def __init__(self, node: FakeNode, end: int) -> None:
        super().__init__(node, [end])
        self.starts = [(1, 0)]

    def give_up(self, start: int, epoch: int, count: int) -> None:
        self.starts.append((epoch, start))
        self.ends = [start]
        self.append(0, count)

    def fetch(self, connection: FakeConnection, frame: Fetch) -> None:
        later = [start for epoch, start in self.starts if frame.epoch is not None and epoch > frame.epoch]
        continues_at = min([*later, self.ends[0]])
        if frame.epoch is not None and frame.offset > continues_at:
            told = PositionDiverged(
                topic=TOPIC, partition=0, offset=frame.offset, epoch=frame.epoch, continues_at=continues_at
            )
            connection.refuse(frame, told)
        else:
            super().fetch(connection, frame)

    def epoch(self) -> int:
        return self.starts[-1][0]


@pytest.mark.parametrize("count", [0, 5, 40])
async def test_u10_a_reader_of_what_was_given_up_is_told_and_goes_on_where_the_log_does(
    client: Client, node: FakeNode, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    log = GivenUp(node, 25)
    async with client.read(TOPIC) as reader:
        assert [(await anext(reader)).offset for _ in range(25)] == list(range(25))
        waiting = asyncio.create_task(anext(reader))
        await asyncio.sleep(1)
        assert (node.sent(Fetch)[-1].offset, node.sent(Fetch)[-1].epoch) == (25, 1)
        log.waiting.clear()
        log.give_up(12, epoch=4, count=count)
        node.connection.cut()
        await asyncio.sleep(10)
        log.append(0, 3)
        found = [(await waiting).offset] + [(await anext(reader)).offset for _ in range(count + 2)]
        assert found == list(range(12, 15 + count))
        (told,) = reader.divergences
        assert (told.partition, told.offset, told.epoch, told.continues_at) == (0, 25, 1, 12)
        assert "read on at offset 12" in caplog.text
        await asyncio.sleep(1)
        assert node.sent(Fetch)[-1].epoch == 4


async def test_u10_a_reader_that_begins_at_the_end_knows_the_epoch_before_it_waits(
    client: Client, node: FakeNode
) -> None:
    GivenUp(node, 25)
    async with client.read(TOPIC, start="latest") as reader:
        waiting = asyncio.create_task(anext(reader))
        await asyncio.sleep(1)
        assert [(frame.epoch, frame.wait_ms) for frame in node.sent(Fetch)] == [(None, 0), (1, 10_000)]
        waiting.cancel()


async def test_u10_a_read_to_the_end_ends_with_a_log_that_is_shorter_by_now(client: Client, node: FakeNode) -> None:
    log = GivenUp(node, 25)
    async with client.read(TOPIC, follow=False) as reader:
        assert (await anext(reader)).offset == 0
        log.give_up(5, epoch=2, count=3)
        assert [record.offset async for record in reader] == [*range(1, 10), 5, 6, 7]
    assert [told.continues_at for told in reader.divergences] == [5]


async def test_u10_a_stored_position_says_its_epoch(client: Client, node: FakeNode) -> None:
    log = GivenUp(node, 25)
    log.give_up(12, epoch=4, count=20)
    reader = client.read(TOPIC, start="offset:25@1", follow=False)
    assert [record.offset async for record in reader] == list(range(12, 32))
    assert [told.offset for told in reader.divergences] == [25]
    assert node.sent(Fetch)[0].epoch == 1


async def test_a_reader_that_is_closed_or_dropped_fetches_no_more(client: Client, node: FakeNode) -> None:
    log = Log(node, [1])
    async with client.read(TOPIC) as reader:
        await anext(reader)
        await node.wait_sent(Fetch, 2)
    assert await reader.take() == []
    async for _ in client.read(TOPIC):
        break
    log.append(0, 10)
    await asyncio.sleep(100)
    sent = len(node.sent(Fetch))
    log.append(0, 10)
    await asyncio.sleep(100)
    assert len(node.sent(Fetch)) == sent


async def test_a_reader_that_is_closed_by_another_task_ends(client: Client, node: FakeNode) -> None:
    Log(node, [3])
    reader = client.read(TOPIC)
    reading = asyncio.create_task(places(reader))
    await node.wait_sent(Fetch, 2)
    await reader.close()
    assert await reading == [(0, 0), (0, 1), (0, 2)]


async def test_a_reader_that_is_closed_while_it_opens_reads_nothing(client: Client, node: FakeNode) -> None:
    Log(node, [3])
    reader = client.read(TOPIC)
    reading = asyncio.create_task(places(reader))
    await node.wait_sent(Call, 1)
    await reader.close()
    assert await reading == []
    assert not node.sent(Fetch)


async def test_a_client_that_is_closed_disconnects_its_readers(client: Client, node: FakeNode) -> None:
    Log(node, [3])
    reading = asyncio.create_task(places(client.read(TOPIC)))
    await node.wait_sent(Fetch, 2)
    await client.close()
    with pytest.raises(Disconnected, match="the client is closed"):
        await reading


async def test_a_topic_is_asked_for_again_by_every_reader(client: Client, node: FakeNode) -> None:
    Log(node, [3])
    assert len(await places(client.read(TOPIC, follow=False))) == 3
    Log(node, [3, 3])
    assert len(await places(client.read(TOPIC, follow=False))) == 6


async def test_what_fits_no_frame_is_not_consumed(client: Client, node: FakeNode) -> None:
    for wrong in ({"version": "x"}, {"version": 2**64}, {"max_bytes": "x"}, {"partitions": ["x"]}):
        with pytest.raises(InvalidSettings):
            client.read(TOPIC, **wrong)
    assert not node.frames
