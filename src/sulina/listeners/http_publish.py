"""Publishes what comes by HTTP. This is the hot path: nothing is done here that a record does not need."""

import asyncio
import dataclasses
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from sulina.byte_budget import ByteBudget
from sulina.core.delivery.pubsub import DeliveryPolicy, PartitionBehavior
from sulina.core.log.publish_request import PublishRequest
from sulina.core.records.rows import encode_rows
from sulina.errors import InvalidInput, NotOwner
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_openapi_paths import PARTITION_BATCH, PARTITION_RECORDS
from sulina.listeners.http_parameters import ParameterReader, Target, number, one_of, read_query, text_up_to
from sulina.listeners.http_problem import AT_OWNER, HttpError, bad_parameter
from sulina.listeners.http_records import SCHEMA_ID_LENGTH_MAX, encoder, read_publish
from sulina.listeners.http_request import JSON, HttpRequest
from sulina.storage.partition_log import TXN_ID_LENGTH_MAX

if TYPE_CHECKING:
    from sulina.broker.broker import Broker

RAW = b"application/octet-stream"
BATCH = b"application/vnd.sulina.batch"
COUNT = "sulina.count"  # in the scope: how many records a request was about, for its trace

_IN_A_THREAD_BYTES_MIN = 256 << 10  # reading this much JSON on the loop would hold up all other requests


class HttpPublisher:
    """Answers POST …/records and …/batch."""

    def __init__(self, broker: "Broker", limits: HttpLimits) -> None:
        self._broker, self._limits = broker, limits
        self._bodies = ByteBudget(limits.in_flight_body_bytes_max)

    async def publish(self, target: Target, http: HttpRequest) -> None:
        """Publish what a request says, and answer it."""
        if http.scope["query_string"]:
            read_query(http.scope["query_string"], {})
        content_type = http.headers.get(b"content-type")
        if content_type != JSON:
            content_type = _kind_of(content_type)
        body = await http.read_body(self._bodies)
        request = await self._read(content_type, body, target, http.headers)
        try:
            accepted = await self._broker.accept(target.text, request)
            published = await accepted.wait()
        except NotOwner as error:
            # The client must not choose a partition again at the owner: a repeat would find another one.
            path = PARTITION_BATCH if target.is_batch else PARTITION_RECORDS
            namespace, topic = target.topic.namespace, target.topic.topic
            http.scope[AT_OWNER] = path.format(namespace=namespace, topic=topic, partition=error.partition).encode()
            raise
        http.scope[COUNT] = published.count
        await http.answer(encoder.encode(published))

    async def _read(
        self, content_type: bytes, body: bytes, target: Target, headers: dict[bytes, bytes]
    ) -> PublishRequest:
        now, partition = time.time_ns() // 1_000_000, target.partition
        if content_type == JSON:
            read = partial(
                read_publish, body, now, self._limits.records_max, partition=partition, is_array=target.is_batch
            )
            request = read() if len(body) < _IN_A_THREAD_BYTES_MIN else await asyncio.to_thread(read)
        elif content_type == RAW:
            keys = [headers.get(b"sulina-key")]
            request = PublishRequest(encode_rows([body], keys, now), partition=partition, keys=keys, is_trusted=True)
        elif body:
            request = PublishRequest(body, partition=partition)
        else:
            raise InvalidInput("the body has no batch in it")
        return _with_headers(request, headers) if _HEADERS.keys() & headers.keys() else request


def _kind_of(content_type: bytes | None) -> bytes:
    kind = (content_type or b"").partition(b";")[0].strip().lower()
    if kind not in (JSON, RAW, BATCH):
        known = ", ".join(known.decode() for known in (JSON, RAW, BATCH))
        raise HttpError(
            "unsupported_media_type",
            f"Content-Type {kind.decode('latin-1')[:100]!r} is not one of {known}",
        )
    return kind


def _with_headers(request: PublishRequest, headers: dict[bytes, bytes]) -> PublishRequest:
    """Add what the head says of a publish.

    Raises:
        InvalidInput: the body says it too.
        HttpError: 400, a header cannot be read.
    """
    found: dict[str, Any] = {}
    for name, (field, read) in _HEADERS.items():
        data = headers.get(name)
        if data is None:
            continue
        shown = name.decode().title()
        try:
            found[field] = read(shown, data.decode())
        except UnicodeDecodeError:
            raise bad_parameter(shown, f"the header {shown} must be UTF-8") from None
        in_body = getattr(request.options if field in _OPTIONS else request, field)
        if in_body is not None:
            raise InvalidInput(f"{field} is in the body, and {shown} in the head: give one of them")
    options = dataclasses.replace(request.options, **{field: found.pop(field) for field in _OPTIONS & found.keys()})
    return msgspec.structs.replace(request, options=options, **found)


# The field of a publish that a header gives.
_HEADERS: dict[bytes, tuple[str, ParameterReader]] = {
    b"sulina-txn-id": ("txn_id", text_up_to(TXN_ID_LENGTH_MAX)),
    b"sulina-expected-version": ("expected_version", number()),
    b"sulina-schema": ("schema_id", text_up_to(SCHEMA_ID_LENGTH_MAX)),
    b"sulina-delivery-policy": ("delivery_policy", one_of(DeliveryPolicy)),
    b"sulina-partition-behavior": ("partition_behavior", one_of(PartitionBehavior)),
}
_OPTIONS = {"delivery_policy", "partition_behavior"}  # of these fields, those that are options
