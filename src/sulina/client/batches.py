"""Record batches on the client's side: few records in Python, many by the kernels.

Importing the kernels takes a second, which an application must not wait for, and most never need: they are imported
in a thread, once enough records have come to make it worth while. Until then Python does the same, more slowly.
"""

import asyncio
import itertools
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TypeVar

from sulina.client.message import Message
from sulina.client.serialization import SerializationRegistry
from sulina.core.records.batch import BatchLimits, split
from sulina.core.records.compression import Bytes
from sulina.core.records.kernel_choice import are_loaded, warm_up
from sulina.core.records.record import Headers, StoredRecord, decode, encode
from sulina.core.records.rows import decode_rows, encode_rows
from sulina.errors import BatchTooLarge
from sulina.wire.frames import FRAME_BYTES_MAX

RECORDS_BEFORE_KERNELS = 100_000
DATA_BYTES_MAX = FRAME_BYTES_MAX - (1 << 16)  # of batches in one request: names and ids go around them
LIMITS = BatchLimits(batch_bytes_max=FRAME_BYTES_MAX)  # the node has its own; this is what fits a frame

T = TypeVar("T")

kernels_ready = threading.Event()  # the kernels of this process have been used
_offset = attrgetter("offset")


class BatchCodec:
    """Encodes and decodes for one client."""

    def __init__(self) -> None:
        self._records = 0  # that Python has done
        self._warming: asyncio.Task[None] | None = None

    def encode(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        timestamps_ms: Sequence[int] | int,
        headers: Sequence[Headers] | None,
    ) -> bytearray:
        """Return one batch of these records.

        Raises:
            InvalidBatch: there is no record, or a timestamp does not fit.
            BatchTooLarge: it does not fit in one request.
        """
        if len(values) < 32 or self._has_kernels(len(values)):  # so few are done in Python there too
            batch = encode_rows(values, keys, timestamps_ms, headers)
        else:
            stamps = itertools.repeat(timestamps_ms) if isinstance(timestamps_ms, int) else timestamps_ms
            records = map(StoredRecord, values, keys or itertools.repeat(None), stamps, headers or itertools.repeat(()))
            batch = encode(list(records))
        if len(batch) > DATA_BYTES_MAX:
            raise BatchTooLarge(size_bytes=len(batch), limit_bytes=DATA_BYTES_MAX)
        return batch

    def decode(self, data: Bytes) -> list[StoredRecord]:
        """Return the records of the batches that lie end to end in `data`; their checksums are checked.

        Raises:
            InvalidBatch: a batch is damaged, or not what its header says.
        """
        headers = split(data, LIMITS)
        if self._has_kernels(sum(header.record_count for header in headers)):
            return decode_rows(data, limits=LIMITS)
        records: list[StoredRecord] = []
        position = 0
        for header in headers:
            records += decode(data, header, position, LIMITS)
            position += header.size_bytes
        return records

    def messages(
        self,
        data: Bytes,
        ranges: Iterable[tuple[int, int]],
        *,
        topic: str,
        partition: int,
        registry: SerializationRegistry,
        attempt: int = 1,
        delivery_id: int = 0,
    ) -> list[Message]:
        """Return the records of the batches in `data` whose offsets are in the ranges, as messages.

        Raises:
            InvalidBatch: a batch is damaged, or not what its header says.
        """
        records = self.decode(data)
        return [
            Message(
                topic, partition, record.offset, record.value, record.key, record.headers, record.timestamp_ms,
                attempt, registry, delivery_id,
            )
            for start, end in ranges
            for record in within(records, start, end)
        ]  # fmt: skip

    def _has_kernels(self, records: int) -> bool:
        if kernels_ready.is_set():
            return True
        self._records += records
        if self._warming is None and (self._records >= RECORDS_BEFORE_KERNELS or are_loaded()):
            self._warming = asyncio.get_running_loop().create_task(
                asyncio.to_thread(warm_up, _use_kernels), name="sulina-kernels"
            )
        return False

    async def close(self) -> None:
        """Wait for the thread that imports the kernels: it cannot be stopped."""
        if self._warming is not None:
            await self._warming


def _use_kernels() -> None:
    """Import them, and use each once: the first use compiles, or reads what was compiled before."""
    decode_rows(encode_rows([b"value"] * 1000, [b"key"] * 1000, list(range(1000))), limits=LIMITS)
    encode_rows([b"value"] * 1000, None, 0)
    kernels_ready.set()


def within(records: list[StoredRecord], start: int, end: int) -> list[StoredRecord]:
    """Return the records whose offsets are in [start, end); they come sorted."""
    if not records or (records[0].offset >= start and records[-1].offset < end):
        return records
    first = bisect_left(records, start, key=_offset)
    return records[first : bisect_left(records, end, first, key=_offset)]


def take_from(buffer: deque[T], count_max: int | None) -> list[T]:
    """Take the first `count_max` items from a buffer; None: all."""
    if count_max is None or count_max >= len(buffer):
        taken = list(buffer)
        buffer.clear()
        return taken
    return [buffer.popleft() for _ in range(count_max)]
