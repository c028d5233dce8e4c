"""Tests how many bytes may be held at once."""

import asyncio

import pytest

from sulina.byte_budget import ByteBudget, ByteReservation, FillLevel
from sulina.errors import QueueFull


def test_bytes_are_acquired_here_and_in_the_parent_or_not_at_all() -> None:
    node = ByteBudget(100)
    first, second = ByteBudget(80, node), ByteBudget(80, node)
    assert first.try_acquire(80)
    assert not first.try_acquire(1)
    assert not second.try_acquire(21)
    assert (first.used_bytes, second.used_bytes, node.used_bytes) == (80, 0, 80)
    assert second.try_acquire(20)
    first.release(80)
    second.release(20)
    assert (first.used_bytes, second.used_bytes, node.used_bytes) == (0, 0, 0)


@pytest.mark.parametrize(("size_bytes", "limit_bytes"), [(81, 80), (30, 100)])
def test_a_refusal_names_the_budget_that_has_no_room(size_bytes: int, limit_bytes: int) -> None:
    node = ByteBudget(100)
    mine, other = ByteBudget(80, node), ByteBudget(80, node)
    assert other.try_acquire(75)
    assert not mine.try_acquire(size_bytes)
    refusal = mine.refusal(size_bytes)
    assert isinstance(refusal, QueueFull)
    assert refusal.limit_bytes == limit_bytes


def test_a_reservation_that_cannot_grow_stays_as_it_was_and_is_released_at_the_end() -> None:
    budget = ByteBudget(100)
    with ByteReservation(budget) as first, ByteReservation(budget) as second:
        assert first.try_grow_to(60)
        assert first.try_grow_to(70)
        assert not second.try_grow_to(31)
        assert (first.size_bytes, second.size_bytes, budget.used_bytes) == (70, 0, 70)
    assert budget.used_bytes == 0


async def test_bytes_that_are_waited_for_are_acquired_in_the_order_of_arrival_and_never_past_the_limit() -> None:
    budget = ByteBudget(100)
    held: list[int] = []
    order: list[int] = []
    go = {name: asyncio.Event() for name in range(5)}

    async def hold(name: int, size: int) -> None:
        async with budget.holding(size):
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
    async with asyncio.timeout(5), budget.holding(100):
        pass


async def test_bytes_that_come_to_a_waiter_which_was_cancelled_go_to_the_next() -> None:
    budget = ByteBudget(10)
    async with budget.holding(10):
        entering = asyncio.create_task(budget.holding(10).__aenter__())
        behind = asyncio.create_task(budget.holding(4).__aenter__())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    entering.cancel()
    await asyncio.gather(entering, return_exceptions=True)
    async with asyncio.timeout(5):
        await behind


def test_a_queue_is_full_from_past_its_bound_until_half_of_it_is_free() -> None:
    level = FillLevel(100)
    told = [(level.grown(size), level.is_full) for size in (100, 101, 102)]
    assert told == [(False, False), (True, True), (False, True)]
    told = [(level.shrunk(size), level.is_full) for size in (51, 50, 0)]
    assert told == [(False, True), (True, False), (False, False)]
