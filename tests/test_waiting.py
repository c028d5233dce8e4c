"""Waiting for an event, with an end."""

import asyncio

from sulina.waiting import wait_or_timeout


async def test_it_returns_whether_the_event_was_set() -> None:
    event = asyncio.Event()
    assert not await wait_or_timeout(event, 0.001)
    asyncio.get_running_loop().call_later(0.001, event.set)
    assert await wait_or_timeout(event, None)
    assert await wait_or_timeout(event, 0), "what is set needs no time"
