"""Reading by HTTP: as JSON, as record batches the way they are stored, or as Arrow.

Whatever takes long (decoding, encoding) is done in a thread; what is read counts against a byte budget that all readers
share until the client has taken it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from sulina.byte_budget import ByteBudget, ByteReservation
from sulina.core.log.position import EARLIEST
from sulina.core.records.batch import BatchLimits
from sulina.core.records.rows import decode_rows
from sulina.errors import NotServing
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_parameters import ParameterReader, Target, flag, number, read_query
from sulina.listeners.http_problem import ClientGone, HttpError
from sulina.listeners.http_publish import BATCH, COUNT
from sulina.listeners.http_records import RecordsOut, encoder, record_out
from sulina.listeners.http_request import JSON, HttpRequest, grow
from sulina.wire.messages import Fetched

if TYPE_CHECKING:
    from sulina.broker.broker import Broker

ARROW = b"application/vnd.apache.arrow.stream"

_OFFERED = (JSON, BATCH, ARROW)  # the first is the default
_ACCEPTS_MAX = 1000  # remembered
_IN_A_THREAD_BYTES_MIN = 8 << 10
# Whatever a topic was allowed to store can be read.
_LIMITS = BatchLimits(batch_bytes_max=64 << 20, decompressed_bytes_max=256 << 20)

Result = TypeVar("Result")
Render = Callable[[Fetched, int], tuple[bytes | memoryview, int, int]]


class Fetcher:
    """Answers GET …/partitions/{p}/records."""

    def __init__(self, broker: "Broker", limits: HttpLimits) -> None:
        self._broker, self._limits = broker, limits
        self._reads = ByteBudget(limits.in_flight_read_bytes_max)
        self._accepts: dict[bytes, bytes] = {}
        self._waits: set[asyncio.Task[Any]] = set()
        self._is_stopped = False
        self._readers: dict[str, ParameterReader] = {
            "offset": number(),
            "max_bytes": number(1, limits.read_bytes_max),
            "max_records": number(1, limits.records_max),
            "version": number(),
            "min_version": number(),
            "min_offset": number(),
            "wait_ms": number(0, int(limits.wait_seconds_max * 1000)),
            "epoch": number(),
            "stale": flag,
        }

    async def fetch(self, target: Target, partition: int, exchange: HttpRequest) -> None:
        """Answer one request.

        Raises:
            NotServing: the node is stopping.
            HttpError: a parameter is wrong.
        """
        query = read_query(exchange.scope["query_string"], self._readers)
        kind = self._accepted(exchange.headers.get(b"accept", b"*/*"))
        offset = query.get("offset")
        if offset is None:
            offset = await self._broker.locate(target.topic, partition, EARLIEST, stale=query.get("stale", False))
        wait_seconds = query.get("wait_ms", 0) / 1000
        if wait_seconds and self._is_stopped:  # nobody would wake it
            raise NotServing(reason="it is shutting down")
        fetch = self._broker.fetch(
            target.topic,
            partition,
            offset,
            max_bytes=query.get("max_bytes", self._limits.read_bytes),
            version=query.get("version"),
            min_version=query.get("min_version"),
            min_offset=query.get("min_offset"),
            wait_seconds=wait_seconds,
            epoch=query.get("epoch"),
            stale=query.get("stale", False),
        )
        fetched = await (self._waited(fetch, exchange) if wait_seconds else fetch)
        with ByteReservation(self._reads) as reservation:
            grow(reservation, len(fetched.data))
            await self._answer(fetched, kind, query.get("max_records", self._limits.records_max), reservation, exchange)

    def stop(self) -> None:
        """Refuse requests that wait for records: the node is stopping."""
        self._is_stopped = True
        for task in self._waits:
            task.cancel()

    async def _waited(self, fetch: Coroutine[Any, Any, Result], exchange: HttpRequest) -> Result:
        """Wait for work that the client may not stay for.

        Raises:
            ClientGone: the client has closed the connection.
        """
        task = asyncio.ensure_future(fetch)
        gone = asyncio.ensure_future(exchange.wait_gone())
        gone.add_done_callback(lambda _: task.cancel())
        self._waits.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if task.cancelled() and gone.done():
                raise ClientGone from None
            if self._is_stopped and task.cancelled():
                raise NotServing(reason="it is shutting down") from None
            raise
        finally:
            self._waits.discard(task)
            gone.cancel()

    async def _answer(
        self, fetched: Fetched, kind: bytes, max_records: int, reservation: ByteReservation, exchange: HttpRequest
    ) -> None:
        if kind == BATCH:
            await exchange.answer(
                memoryview(fetched.data), content_type=BATCH, headers=_facts(fetched, fetched.next_offset)
            )
            return
        render: Render = _as_json if kind == JSON else _as_arrow
        if kind == ARROW or len(fetched.data) > _IN_A_THREAD_BYTES_MIN:
            body, count, next_offset = await asyncio.to_thread(render, fetched, max_records)
        else:
            body, count, next_offset = render(fetched, max_records)
        grow(reservation, max(reservation.size_bytes, len(body)))
        exchange.scope[COUNT] = count
        facts = _staleness(fetched) if kind == JSON else _facts(fetched, next_offset)
        await exchange.answer(body, content_type=kind, headers=facts)

    def _accepted(self, accept: bytes) -> bytes:
        known = self._accepts.get(accept)
        if known is None:
            known = _best_of(accept)
            if len(self._accepts) >= _ACCEPTS_MAX:
                self._accepts.clear()
            self._accepts[accept] = known
        return known


def _facts(fetched: Fetched, next_offset: int) -> list[tuple[bytes, bytes]]:
    return [
        (b"sulina-offset", b"%d" % fetched.offset),
        (b"sulina-next-offset", b"%d" % next_offset),
        (b"sulina-version", b"%d" % fetched.version),
        (b"sulina-end-offset", b"%d" % fetched.end_offset),
        (b"sulina-epoch", b"%d" % fetched.epoch),
        *_staleness(fetched),
    ]


def _staleness(fetched: Fetched) -> list[tuple[bytes, bytes]]:
    return [(b"sulina-stale", b"true")] if fetched.is_stale else []


def _as_json(fetched: Fetched, max_records: int) -> tuple[bytes, int, int]:
    """Return the body as JSON, how many records it has, and where to read on."""
    records = decode_rows(fetched.data, fetched.offset, max_records, _LIMITS)
    next_offset = records[-1].offset + 1 if len(records) == max_records else fetched.next_offset
    answer = RecordsOut(
        records=[record_out(record) for record in records],
        next_offset=next_offset,
        version=fetched.version,
        end_offset=fetched.end_offset,
        epoch=fetched.epoch,
    )
    return encoder.encode(answer), len(records), next_offset


def _as_arrow(fetched: Fetched, max_records: int) -> tuple[memoryview, int, int]:
    """Return the same as a stream of Arrow's IPC format."""
    import pyarrow as pa

    from sulina.core.records.columns import decode_columns

    rows = decode_columns(fetched.data, limits=_LIMITS)
    offsets = rows.column("offset").to_numpy()
    rows = rows.slice(int(offsets.searchsorted(fetched.offset)), max_records)
    is_cut = len(rows) == max_records
    next_offset = rows.column("offset")[-1].as_py() + 1 if is_cut else fetched.next_offset
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return memoryview(sink.getvalue()), len(rows), next_offset


def _best_of(accept: bytes) -> bytes:
    """Return the offer that the client likes best.

    Raises:
        HttpError: 406, the client accepts none of them.
    """
    wanted: list[tuple[bytes, float]] = []
    for part in accept.split(b","):
        media, *parameters = (piece.strip().lower() for piece in part.split(b";"))
        quality = next((_quality(piece[2:]) for piece in parameters if piece.startswith(b"q=")), 1.0)
        wanted.append((media, quality))
    best, best_rank = None, (0.0, -1, 0)
    for order, offered in enumerate(_OFFERED):
        precisions = {offered: 2, offered.partition(b"/")[0] + b"/*": 1, b"*/*": 0}
        matches = [(precisions[media], quality) for media, quality in wanted if media in precisions]
        precision, quality = max(matches, default=(-1, 0.0))  # the most precise is what counts
        rank = (quality, precision, -order)
        if quality > 0 and rank > best_rank:
            best, best_rank = offered, rank
    if best is None:
        known = ", ".join(offered.decode() for offered in _OFFERED)
        raise HttpError("not_acceptable", f"Accept {accept.decode('latin-1')[:100]!r}: there is {known}")
    return best


def _quality(text: bytes) -> float:
    try:
        return min(max(float(text), 0.0), 1.0)
    except ValueError:
        return 0.0
