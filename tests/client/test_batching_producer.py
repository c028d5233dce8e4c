"""What a batching producer does with its batches, in virtual time: P5."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sulina.client import BatchingRules, OnFailure, Producer, PublishAck, Record, RejectReason, SerializationRegistry
from sulina.client.numbering import Attempts
from sulina.client.producer import BatchingOptions, ProducerReport, Rest
from sulina.errors import (
    BatchTooLarge,
    Disconnected,
    InvalidRecord,
    InvalidSettings,
    ProducerStopped,
    SulinaError,
    TopicNotFound,
)

TOPIC = "/default/orders"
ACCEPTED = PublishAck()
AWAY = Disconnected(url="http://somewhere", reason="it is away")


@dataclass
class World:
    """A topic that refuses what is named `bad`, and fails as it is told; a fault that is None is a success."""

    faults: list[Exception | None] = field(default_factory=list)
    seconds: float = 0.0  # that a publish takes
    published: list[list[bytes]] = field(default_factory=list)
    attempts: list[Attempts] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    under_way_most: int = 0
    _under_way: int = 0

    async def publish(
        self, topic: str, records: Sequence[object], *, attempts: Attempts, timeout_seconds: float | None
    ) -> list[PublishAck | SulinaError]:
        assert topic == TOPIC
        assert timeout_seconds is None
        self._under_way += 1
        self.under_way_most = max(self.under_way_most, self._under_way)
        self.at.append(asyncio.get_running_loop().time())
        self.attempts.append(attempts)
        await asyncio.sleep(self.seconds)
        self._under_way -= 1
        values = [record.value for record in records if isinstance(record, Record)]
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            if not isinstance(fault, SulinaError):
                raise fault
            return [fault] * len(values)
        if b"large" in values:
            return [PublishAck.rejected(BatchTooLarge(size_bytes=2, limit_bytes=1))] * len(values)
        if b"bad" in values:
            return [PublishAck.rejected(InvalidRecord(index=values.index(b"bad"), reason="bad"))] * len(values)
        self.published.append(values)
        return [ACCEPTED] * len(values)

    def producer(self, *, on_failure: OnFailure = OnFailure.FAIL, **rules: float) -> Producer:
        made = BatchingRules(**rules)  # type: ignore[arg-type]
        options = BatchingOptions(rules=made, on_failure=on_failure)
        return Producer(self.publish, TOPIC, options, SerializationRegistry())


async def test_p5_messages_leave_together_when_there_are_enough_or_after_a_while() -> None:
    world = World()
    async with world.producer(records_max=3, wait_seconds_max=5) as producer:
        receipts = [producer.produce(str(number)) for number in range(4)]
        assert await receipts[2] == ACCEPTED
        assert not receipts[3].is_done
        assert await receipts[3] == ACCEPTED
        assert world.published == [[b"0", b"1", b"2"], [b"3"]]
        assert world.at == [0.0, 5.0]
    assert producer.report() == ProducerReport(accepted=4, rejected=0, failed=0, cancelled=0, discarded=0)


async def test_p5_past_its_bound_a_queue_is_full_and_one_that_cannot_be_written_is_refused_alone() -> None:
    world = World(seconds=1.0)
    async with world.producer(queue_records_max=2) as producer:
        receipts = [producer.produce(value) for value in (b"a", object(), b"b", b"c")]
        acks = await asyncio.gather(*receipts)
        assert [ack.reason for ack in acks] == [None, RejectReason.NOT_SERIALIZABLE, None, RejectReason.QUEUE_FULL]
        assert producer.produce(b"d").is_done is False
    assert world.published == [[b"a", b"b"], [b"d"]]
    assert producer.report() == ProducerReport(accepted=3, rejected=2, failed=0, cancelled=0, discarded=0)


@pytest.mark.parametrize("bad", [b"bad", b"large"])
async def test_p5_one_bad_message_does_not_spoil_its_batch(bad: bytes) -> None:
    world = World()
    values = [b"0", b"1", bad, b"3", b"4", b"5", bad, b"7"]
    async with world.producer(wait_seconds_max=1) as producer:
        acks = await asyncio.gather(*(producer.produce(value) for value in values))
    assert [ack.reason for ack in acks] == [RejectReason.INVALID_PAYLOAD if v == bad else None for v in values]
    assert [value for batch in world.published for value in batch] == [v for v in values if v != bad], "in order"
    assert len(set(world.attempts)) == len(world.attempts), "another batch has other attempts"


@pytest.mark.parametrize("bad", [b"bad", b"large"])
async def test_p5_a_whole_batch_of_bad_messages_takes_no_good_one_along(bad: bytes) -> None:
    world = World()
    async with world.producer(records_max=1001) as producer:
        acks = await asyncio.gather(*(producer.produce(value) for value in [bad] * 1000 + [b"good"]))
    assert [ack.is_accepted for ack in acks] == [False] * 1000 + [True]
    assert world.published == [[b"good"]]


async def test_p5_a_batch_that_fails_takes_only_its_own_messages_along() -> None:
    world = World(faults=[AWAY])
    async with world.producer(records_max=2) as producer:
        receipts = [producer.produce(str(number)) for number in range(4)]
        for receipt in receipts[:2]:
            with pytest.raises(Disconnected):
                await receipt
        assert [await receipt for receipt in receipts[2:]] == [ACCEPTED] * 2
    assert producer.report() == ProducerReport(accepted=2, rejected=0, failed=2, cancelled=0, discarded=0)


async def test_p5_a_batch_may_be_tried_until_it_is_through_and_later_ones_wait() -> None:
    world = World(faults=[AWAY, AWAY], seconds=0.5)
    async with world.producer(on_failure=OnFailure.RETRY, records_max=2, in_flight_max=9) as producer:
        acks = await asyncio.gather(*(producer.produce(str(number)) for number in range(4)))
    assert acks == [ACCEPTED] * 4
    assert world.published == [[b"0", b"1"], [b"2", b"3"]]
    assert world.at == [0.0, 1.5, 3.0, 3.5]
    assert world.under_way_most == 1
    assert len(set(world.attempts)) == 2, "the same batch has the same numbers, and is taken once"


async def test_p5_a_producer_may_stop_at_the_first_failure() -> None:
    world = World(faults=[AWAY])
    producer = world.producer(on_failure=OnFailure.STOP, records_max=2, wait_seconds_max=99)
    receipts = [producer.produce(str(number)) for number in range(3)]
    with pytest.raises(Disconnected):
        await receipts[0]
    with pytest.raises(ProducerStopped, match="no connection to http://somewhere"):
        await receipts[2]
    with pytest.raises(ProducerStopped, match="no connection"):
        producer.produce(b"more")
    assert await producer.stop() == ProducerReport(accepted=0, rejected=0, failed=3, cancelled=0, discarded=0)


async def test_p5_a_message_that_waits_can_be_cancelled_and_one_on_its_way_cannot() -> None:
    world = World(seconds=1.0)
    async with world.producer(records_max=2, wait_seconds_max=9) as producer:
        receipts = [producer.produce(str(number)) for number in range(4)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [receipt.cancel() for receipt in receipts] == [False, False, True, True]
        assert not receipts[3].cancel(), "once is enough"
        with pytest.raises(asyncio.CancelledError):
            await receipts[3]
    assert world.published == [[b"0", b"1"]]
    assert producer.report().cancelled == 2


@pytest.mark.parametrize("rest", list(Rest))
async def test_p5_when_it_stops_the_rest_is_sent_or_discarded_and_it_says_which(rest: Rest) -> None:
    world = World(seconds=1.0)
    producer = world.producer(records_max=2, wait_seconds_max=99)
    receipts = [producer.produce(str(number)) for number in range(5)]
    await asyncio.sleep(0.5)
    report = await producer.stop(rest)
    sent = 5 if rest == Rest.SEND else 2
    assert report == ProducerReport(accepted=sent, rejected=0, failed=0, cancelled=0, discarded=5 - sent)
    assert sum(len(batch) for batch in world.published) == sent
    assert all(receipt.is_done for receipt in receipts)
    with pytest.raises(ProducerStopped):
        producer.produce(b"late")
    assert await producer.stop() == report, "it can be stopped again"


async def test_p5_an_error_in_the_block_discards_what_waits() -> None:
    world = World()
    producer = world.producer(wait_seconds_max=9)

    async def produce_and_fail() -> None:
        async with producer:
            producer.produce(b"never")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await produce_and_fail()
    assert world.published == []
    assert producer.report().discarded == 1


async def test_a_flush_waits_for_what_was_before_it_and_no_longer() -> None:
    world = World(seconds=1.0)
    async with world.producer(wait_seconds_max=50) as producer:
        first = producer.produce(b"first")
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(0.5)
        later = producer.produce(b"later")
        await flushing
        assert (first.is_done, later.is_done) == (True, False)
        assert asyncio.get_running_loop().time() == 1.0
        await producer.flush()
        await producer.flush()
    assert world.published == [[b"first"], [b"later"]]


async def test_a_stop_that_is_cut_short_leaves_no_task_and_no_receipt_behind() -> None:
    world = World(seconds=99.0)
    producer = world.producer(records_max=1)
    receipts = [producer.produce(b"a"), producer.produce(b"b")]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await producer.stop()
    assert all(receipt.is_done for receipt in receipts)
    with pytest.raises(ProducerStopped):
        await receipts[0]
    assert producer.report() == ProducerReport(accepted=0, rejected=0, failed=1, cancelled=0, discarded=1)
    assert len(asyncio.all_tasks()) == 1


async def test_a_stop_that_is_cut_short_at_once_settles_everything_too() -> None:
    world = World(seconds=99.0)
    producer = world.producer(records_max=1)
    receipt = producer.produce(b"a")
    stopping = asyncio.create_task(producer.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait([stopping])
    assert receipt.is_done
    await producer.flush()


async def test_an_error_that_nobody_expected_is_told_and_the_producer_goes_on() -> None:
    world = World(faults=[OverflowError("what?")])
    async with world.producer(records_max=1) as producer:
        receipts = [producer.produce(b"a"), producer.produce(b"b")]
        with pytest.raises(OverflowError):
            await receipts[0]
        assert await receipts[1] == ACCEPTED


@pytest.mark.parametrize("moment", [0.5, 1.5])  # while it is published, and between two tries
async def test_p5_what_is_tried_again_and_again_can_be_given_up(moment: float) -> None:
    world = World(faults=[AWAY] * 99, seconds=1.0)
    producer = world.producer(on_failure=OnFailure.RETRY, records_max=1)
    receipts = [producer.produce(b"a"), producer.produce(b"b")]
    await asyncio.sleep(moment)
    report = await producer.stop(Rest.DISCARD)
    assert report == ProducerReport(accepted=0, rejected=0, failed=1, cancelled=0, discarded=1)
    with pytest.raises(Disconnected):
        await receipts[0]
    with pytest.raises(ProducerStopped, match="discarded"):
        await receipts[1]


async def test_p5_what_will_never_be_better_is_not_tried_again() -> None:
    world = World(faults=[TopicNotFound(topic=TOPIC)])
    async with world.producer(on_failure=OnFailure.RETRY) as producer:
        with pytest.raises(TopicNotFound):
            await producer.produce(b"a")


async def test_p5_only_what_failed_is_tried_again() -> None:
    calls: list[tuple[Attempts, list[object]]] = []

    async def publish(
        topic: str, records: Sequence[object], *, attempts: Attempts, timeout_seconds: float | None
    ) -> list[PublishAck | SulinaError]:
        values = [record.value for record in records if isinstance(record, Record)]
        calls.append((attempts, values))
        return [AWAY if value == b"odd" and len(calls) < 3 else ACCEPTED for value in values]

    producer = Producer(publish, TOPIC, BatchingOptions(on_failure=OnFailure.RETRY), SerializationRegistry())
    async with producer:
        receipts = [producer.produce(value) for value in (b"even", b"odd", b"even", b"odd")]
    assert [values for _, values in calls] == [[b"even", b"odd"] * 2, [b"odd", b"odd"], [b"odd", b"odd"]]
    assert len({attempts for attempts, _ in calls}) == 1
    assert all(receipt.result() == ACCEPTED for receipt in receipts)


async def test_p5_a_producer_that_stopped_for_a_failure_sends_nothing_of_what_was_refused_before() -> None:
    world = World(faults=[None, AWAY])  # the second attempt fails
    producer = world.producer(on_failure=OnFailure.STOP)
    receipts = [producer.produce(value) for value in (b"0", b"large", b"2", b"3")]
    await producer.stop()
    assert world.published == []
    for receipt in receipts:
        with pytest.raises((Disconnected, ProducerStopped)):
            receipt.result()


async def test_p5_a_batch_leaves_when_its_bytes_are_enough() -> None:
    world = World()
    async with world.producer(bytes_max=200, wait_seconds_max=50) as producer:
        producer.produce(b"x" * 60)
        await asyncio.sleep(1)
        receipts = [producer.produce(b"x" * 60) for _ in range(3)]
        await receipts[0]
        assert asyncio.get_running_loop().time() == 1.0


async def test_those_who_wait_for_room_find_it() -> None:
    world = World(seconds=1.0)
    async with world.producer(queue_records_max=2) as producer:
        for number in range(6):
            await producer.wait_room()
            assert not producer.produce(str(number)).is_done
        waiting = asyncio.create_task(producer.wait_room())
        await asyncio.sleep(0)
        await producer.stop()
        with pytest.raises(ProducerStopped):
            await waiting
    assert sum(len(batch) for batch in world.published) == 6


async def test_a_bad_timestamp_is_refused_alone() -> None:
    world = World()
    async with world.producer() as producer:
        acks = [await producer.produce(b"a", timestamp_ms=stamp) for stamp in (1, "yesterday")]  # type: ignore[arg-type]
    assert [ack.reason for ack in acks] == [None, RejectReason.NOT_SERIALIZABLE]


@pytest.mark.parametrize(
    "options", [{"retry_seconds": 0}, {"retry_seconds": float("nan")}, {"publish_timeout_seconds": "5"}]
)
def test_times_that_are_none_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings):
        BatchingOptions(**options)
