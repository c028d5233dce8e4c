"""Wait for an event, but not for ever."""

import asyncio


async def wait_or_timeout(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until an event is set, for at most `seconds` (None: without end). Return whether it was set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
