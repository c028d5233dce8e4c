"""Reading a partition's log for delivery: shared by dispatchers (subscriptions) and feeds (subscribers)."""

import asyncio
from collections.abc import Callable

from sulina.broker.partition import Log
from sulina.storage.directory_log import Slice
from sulina.types import Offset

READ_BYTES = 256 << 10
FAILURE_PAUSE_SECONDS = 1.0
UNSURE_PAUSE_SECONDS = 0.05


async def read_while_owned(log: Log, offset: Offset, is_owned: Callable[[], bool]) -> Slice | None:
    """Read the batches at an offset; None, after a pause, if the partition may have another owner by now.

    That owner may have delivered the same records, and had them acked, while this read was under way.

    Raises:
        OffsetOutOfRange: retention has removed the offset.
        LogClosed: the log was closed.
    """
    found = await log.read(offset, max_bytes=READ_BYTES)
    if is_owned():
        return found
    await asyncio.sleep(UNSURE_PAUSE_SECONDS)
    return None
