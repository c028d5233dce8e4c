"""Publishing by HTTP. This is the hot path: nothing is done here that a record does not need."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sulina.core.delivery.pubsub import DeliveryPolicy, PartitionBehavior
from sulina.core.records.routing import partitions_of
from sulina.core.records.rows import encode_rows
from sulina.errors import InvalidInput, KeysSpanPartitions, SulinaError
from sulina.listeners.http_exchange import JSON, Exchange, Held, Room
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_parameters import Reader, Target, number, one_of, read_query, text_up_to
from sulina.listeners.http_problem import HttpError, bad_parameter
from sulina.listeners.http_records import SCHEMA_ID_LENGTH_MAX, Choose, Keys, Publish, encoder, read_publish
from sulina.storage.partition_log import TXN_ID_LENGTH_MAX
from sulina.types import TopicName

if TYPE_CHECKING:
    from sulina.broker.broker import Broker

RAW = b"application/octet-stream"
BATCH = b"application/vnd.sulina.batch"
COUNT = "sulina.count"  # in the scope: how many records a request was about, for its trace

_IN_A_THREAD_BYTES_MIN = 256 << 10  # reading so much JSON would hold up everybody else


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Publisher:
    """Answers POST …/records and …/batch."""

    def __init__(self, broker: "Broker", limits: HttpLimits, clock_ms: Callable[[], int] = now_ms) -> None:
        self._broker, self._limits, self._clock_ms = broker, limits, clock_ms
        self._room = Room(limits.in_flight_body_bytes_max)

    async def publish(self, target: Target, exchange: Exchange) -> None:
        """One request."""
        if exchange.scope["query_string"]:
            read_query(exchange.scope["query_string"], {})
        content_type = exchange.headers.get(b"content-type")
        if content_type != JSON:
            content_type = _kind_of(content_type)
        with Held(self._room) as held:
            body = await exchange.read_body(held)
            request = await self._request(content_type, body, target, exchange)
            published = await self._broker.publish(
                target.topic,
                request.data,
                partition=request.partition if target.partition is None else target.partition,
                txn_id=request.txn_id,
                expected_version=request.expected_version,
                schema_id=request.schema_id,
                is_own=content_type != BATCH,
                options=request.options,
            )
        exchange.scope[COUNT] = published.count
        await exchange.answer(encoder.encode(published))

    def _chooser(self, target: Target) -> Choose | None:
        """What finds the partition of keys before they are encoded; None when there is nothing to choose."""
        if target.partition is not None:
            return None
        try:
            count = self._broker.topic_named(str(target.topic)).stored.partitions
        except SulinaError:
            return None  # publishing will say so
        return partial(_partition_of, target.topic, count) if count > 1 else None

    async def _request(self, content_type: bytes, body: bytes, target: Target, exchange: Exchange) -> Publish:
        now, headers, choose = self._clock_ms(), exchange.headers, self._chooser(target)
        if content_type == JSON:
            read = partial(read_publish, body, now, self._limits.records_max, choose, is_array=target.is_batch)
            request = read() if len(body) < _IN_A_THREAD_BYTES_MIN else await asyncio.to_thread(read)
        elif content_type == RAW:
            keys = [headers.get(b"sulina-key")]
            request = Publish(encode_rows([body], keys, now), partition=choose(keys) if choose else None)
        elif body:
            request = Publish(body)
        else:
            raise InvalidInput("the body has no batch in it")
        return _with_headers(request, headers) if _HEADERS.keys() & headers.keys() else request


def _partition_of(topic: TopicName, count: int, keys: Keys) -> int | None:
    """Where records with these keys go; None: wherever the topic likes. KeysSpanPartitions."""
    named = partitions_of(set(keys), count)
    if len(named) > 1:
        raise KeysSpanPartitions(topic=str(topic), partitions=", ".join(map(str, sorted(named))))
    return named.pop() if named else None


def _kind_of(content_type: bytes | None) -> bytes:
    kind = (content_type or b"").partition(b";")[0].strip().lower()
    if kind not in (JSON, RAW, BATCH):
        known = ", ".join(known.decode() for known in (JSON, RAW, BATCH))
        raise HttpError(
            "unsupported_media_type",
            f"Content-Type {kind.decode('latin-1')[:100]!r} is none of {known}",
        )
    return kind


def _with_headers(request: Publish, headers: dict[bytes, bytes]) -> Publish:
    """What the headers say of a publish, where its body does not."""
    for name, (field, read) in _HEADERS.items():
        data = headers.get(name)
        if data is None:
            continue
        shown = name.decode().title()
        try:
            value = read(shown, data.decode())
        except UnicodeDecodeError:
            raise bad_parameter(shown, f"the header {shown} must be UTF-8") from None
        if getattr(request, field) is not None:
            raise InvalidInput(f"{field} is in the body, and {shown} in the head: give one of them")
        request = request._replace(**{field: value})
    return request


# Which field of a publish a header gives.
_HEADERS: dict[bytes, tuple[str, Reader]] = {
    b"sulina-txn-id": ("txn_id", text_up_to(TXN_ID_LENGTH_MAX)),
    b"sulina-expected-version": ("expected_version", number()),
    b"sulina-schema": ("schema_id", text_up_to(SCHEMA_ID_LENGTH_MAX)),
    b"sulina-delivery-policy": ("delivery_policy", one_of(DeliveryPolicy)),
    b"sulina-partition-behavior": ("partition_behavior", one_of(PartitionBehavior)),
}
