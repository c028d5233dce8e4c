"""Publishes of one run: what is on its way back to the client is not overtaken by what was sent behind it."""

import asyncio

from sulina.broker.broker import Broker
from sulina.core.records.record import StoredRecord, encode
from sulina.core.records.rows import decode_rows
from sulina.core.topic import TopicSettings
from sulina.errors import InvalidBatch, QueueFull
from sulina.listeners.session import ServerSession, SessionLimits
from sulina.types import TopicName
from sulina.wire.frames import Answer, Failed, FromNode, Publish

TOPIC = TopicName("default", "orders")


def publish(number: int, run: int) -> Publish:
    return Publish(number, str(TOPIC), memoryview(encode([StoredRecord(b"%d" % number)])), 0, run=run)


async def answers(session: ServerSession, count: int) -> dict[int, FromNode]:
    found: dict[int, FromNode] = {}
    while len(found) < count:
        frame = await session.outbox.take()
        assert isinstance(frame, Answer | Failed)
        found[frame.id] = frame
    return found


async def stored(broker: Broker) -> list[bytes | None]:
    return [record.value for record in decode_rows((await broker.fetch(TOPIC, 0, 0)).data)]


async def test_what_follows_a_refusal_in_its_run_is_refused_too_u13(broker: Broker) -> None:
    await broker.put_topic(TOPIC, TopicSettings())
    session = ServerSession(broker)
    accept, refusals = broker.accept, [QueueFull(waiting_bytes=2, limit_bytes=1)]

    async def full_once(*arguments: object, **named: object) -> object:
        if refusals:
            raise refusals.pop()
        return await accept(*arguments, **named)  # type: ignore[arg-type]

    broker.accept = full_once  # type: ignore[assignment, method-assign]
    for number, run in ((1, 7), (2, 7), (3, 0), (4, 8), (5, 7)):
        await session.handle(publish(number, run))
    found = await answers(session, 5)
    assert {number for number, frame in found.items() if isinstance(frame, Failed)} == {1, 2, 5}
    assert {frame.code for frame in found.values() if isinstance(frame, Failed)} == {"queue_full"}
    for number in (1, 2, 5):
        await session.handle(publish(number + 10, 11))
    await answers(session, 3)
    assert await stored(broker) == [b"3", b"4", b"11", b"12", b"15"]
    await session.close()


async def test_what_is_refused_for_good_does_not_hold_up_its_run(broker: Broker) -> None:
    await broker.put_topic(TOPIC, TopicSettings())
    session = ServerSession(broker)
    await session.handle(Publish(1, str(TOPIC), memoryview(b"nonsense"), 0, run=7))
    await session.handle(publish(2, 7))
    found = await answers(session, 2)
    assert isinstance(found[1], Failed)
    assert isinstance(found[1].error(), InvalidBatch)
    assert isinstance(found[2], Answer)
    await session.close()


async def test_broken_runs_are_forgotten_in_time(broker: Broker) -> None:
    session = ServerSession(broker, SessionLimits(requests_max=10))
    for number in range(1, 100):
        await session.handle(publish(number, number))  # there is no such topic
    await answers(session, 99)
    await broker.put_topic(TOPIC, TopicSettings())
    for run in (1, 89, 90, 99):
        await session.handle(publish(100 + run, run))
    found = await answers(session, 4)
    assert [number for number, frame in sorted(found.items()) if isinstance(frame, Failed)] == [190, 199]
    async with asyncio.timeout(5):
        await session.close()
