"""When an append is answered, and what passes through the gate to the archives."""

import asyncio

import pytest

from sulina.core.log.log_state import Appended
from sulina.errors import ArchiveFailed, LeaseExpired, LogStopped
from sulina.storage.acks import ACK_SECONDS_MAX, Acks, always
from sulina.storage.gate import ByteGate
from sulina.testing.clock import VirtualClock
from sulina.types import Offset, Version


def appended(version: int) -> Appended:
    return Appended(Offset(version), Offset(version + 1), Version(version))


def asked() -> asyncio.Future[Appended]:
    return asyncio.get_running_loop().create_future()


async def test_appends_are_answered_as_the_archive_reaches_their_versions() -> None:
    acks = Acks("a", always, VirtualClock(), waits=True)
    acks.archived(Version(2))
    futures = {version: asked() for version in (5, 1, 3, 4)}
    for version, future in futures.items():
        acks.answer(future, appended(version))
    assert [version for version, future in futures.items() if future.done()] == [1], "a repeat of what is archived"
    acks.archived(Version(4))
    assert sorted(version for version, future in futures.items() if future.done()) == [1, 3, 4]
    assert futures[3].result() == appended(3)
    acks.waits = False
    at_once = asked()
    acks.answer(at_once, appended(9))
    assert at_once.done()
    assert len(acks) == 1
    acks.archived(Version(5))


async def test_u14_whether_it_may_answer_is_asked_at_the_last_moment() -> None:
    is_leased = True
    acks = Acks("a", lambda: is_leased, VirtualClock(), waits=True)
    future = asked()
    acks.answer(future, appended(1))
    is_leased = False
    acks.archived(Version(1))
    with pytest.raises(LeaseExpired):
        await future


async def test_u14_after_a_newer_owner_is_known_nothing_more_is_answered() -> None:
    acks = Acks("a", always, VirtualClock(), waits=True)
    before, cancelled, after = asked(), asked(), asked()
    acks.answer(before, appended(1))
    acks.answer(cancelled, appended(1))
    cancelled.cancel()
    acks.fail(lambda: LogStopped(path="p", cause=OSError("fenced")))
    acks.answer(after, appended(2))  # it was being written when that happened
    for future in (before, after):
        with pytest.raises(LogStopped):
            await future


async def test_only_those_who_have_waited_long_are_told_that_the_archive_fails() -> None:
    clock = VirtualClock()
    acks = Acks("a", always, clock, waits=True)
    early, late = asked(), asked()
    acks.answer(early, appended(1))
    clock.advance(ACK_SECONDS_MAX - 1)
    acks.answer(late, appended(2))
    acks.give_up("p", OSError("away"))
    assert not early.done()
    clock.advance(1)
    acks.give_up("p", ArchiveFailed(path="q", cause=OSError("away")))
    assert not late.done()
    with pytest.raises(ArchiveFailed, match="away"):
        await early
    acks.archived(Version(2))
    assert late.result() == appended(2)


async def test_no_more_bytes_pass_the_gate_than_it_has_room_for_in_the_order_of_arrival() -> None:
    gate = ByteGate(100)
    held: list[int] = []
    order: list[int] = []
    go = {name: asyncio.Event() for name in range(5)}

    async def hold(name: int, size: int) -> None:
        async with gate.holding(size):
            order.append(name)
            held.append(min(size, 100))
            assert sum(held) <= 100
            await go[name].wait()
            held.remove(min(size, 100))

    async def turns() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    sizes = [60, 30, 1000, 40, 5]
    tasks = [asyncio.create_task(hold(name, size)) for name, size in enumerate(sizes)]
    await turns()
    assert order == [0, 1]
    tasks[3].cancel()
    go[0].set()
    await turns()
    assert order == [0, 1], "the large one needs all of it"
    go[1].set()
    await turns()
    assert order == [0, 1, 2]
    go[2].set()
    go[4].set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 1, 2, 4]
    async with asyncio.timeout(5), gate.holding(100):
        pass


async def test_whoever_is_cancelled_when_its_turn_has_come_gives_it_back() -> None:
    gate = ByteGate(10)
    async with gate.holding(10):
        entering = asyncio.create_task(gate.holding(10).__aenter__())
        behind = asyncio.create_task(gate.holding(4).__aenter__())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    entering.cancel()
    await asyncio.gather(entering, return_exceptions=True)
    async with asyncio.timeout(5):
        await behind
