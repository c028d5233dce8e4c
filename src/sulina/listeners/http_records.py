"""Records as JSON, in and out: the shapes, and their way to and from record batches.

A value is text (`value`), or bytes in base64 (`value_b64`), or null, which deletes its key; a key likewise, but a null
key is no key. Headers are an object; a name that repeats has an array of values. What comes out is text wherever it
is UTF-8, otherwise base64 under the name with `_b64`.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from sulina.core.delivery.pubsub import DeliveryPolicy, PartitionBehavior, PublishOptions
from sulina.core.log.publish_request import NO_OPTIONS, PublishRequest
from sulina.core.records.record import Headers, StoredRecord
from sulina.core.records.rows import encode_rows
from sulina.core.records.serializer import SERIALIZER_HEADER, TEXT_HEADERS
from sulina.errors import InvalidInput
from sulina.listeners.http_problem import malformed
from sulina.storage.partition_log import TXN_ID_LENGTH_MAX

SCHEMA_ID_LENGTH_MAX = 200

Timestamp = Annotated[int, Meta(ge=0, le=253402300799999, description="Milliseconds since 1970, UTC.")]
TxnId = Annotated[str, Meta(min_length=1, max_length=TXN_ID_LENGTH_MAX)]
Expected = Annotated[int, Meta(ge=0, le=2**63 - 1)]
SchemaId = Annotated[str, Meta(max_length=SCHEMA_ID_LENGTH_MAX)]
HeaderValue = str | list[str | None] | None
HeaderBytes = bytes | list[bytes | None] | None


class RecordIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A record to publish. Give `value` or `value_b64`; a null value deletes its key in tables made from the topic."""

    value: Annotated[
        str | UnsetType | None, Meta(description="Text; null deletes the key in tables made from the topic.")
    ] = UNSET
    value_b64: Annotated[bytes | UnsetType, Meta(description="Bytes, in base64, instead of `value`.")] = UNSET
    key: Annotated[str | None, Meta(description="Text. Records with the same key go to the same partition.")] = None
    key_b64: Annotated[bytes | None, Meta(description="Bytes, in base64, instead of `key`.")] = None
    headers: Annotated[
        dict[str, HeaderValue] | None, Meta(description="By name; an array of values for a name that repeats.")
    ] = None
    headers_b64: Annotated[
        dict[str, HeaderBytes] | None,
        Meta(description="Headers whose values are bytes, in base64; they come after `headers`."),
    ] = None
    timestamp: Annotated[Timestamp | None, Meta(description="Milliseconds since 1970, UTC; absent: now.")] = None


class PublishIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Records that are appended together, or not at all.

    `txn_id` makes a repeat safe: it gets the answer of the first. With `expected_version` the records are appended
    only if the partition is still at that version.
    """

    records: Annotated[
        Annotated[list[RecordIn], Meta(min_length=1)],
        Meta(description="Appended in this order, together or not at all."),
    ]
    txn_id: Annotated[
        TxnId | None,
        Meta(description="Your name for this publish. Sent again, it gets the first answer and adds nothing."),
    ] = None
    expected_version: Annotated[
        Expected | None, Meta(description="Append only if the partition they go to is still at this version.")
    ] = None
    schema_id: Annotated[
        SchemaId | None, Meta(description="The id of the records' schema; refused if the topic has another.")
    ] = None
    delivery_policy: Annotated[
        DeliveryPolicy | None,
        Meta(description="Best-effort topics only: the delivery policy of this publish. Absent: that of the topic."),
    ] = None
    partition_behavior: Annotated[
        PartitionBehavior | None,
        Meta(description="Best-effort topics only: the partition behavior of this publish. Absent: that of the topic."),
    ] = None


class RecordOut(Struct, frozen=True, kw_only=True, gc=False):
    """A stored record. What is not UTF-8 is under the name with `_b64`, in base64."""

    offset: Annotated[int, Meta(description="The record's offset in the partition.")]
    timestamp: Annotated[int, Meta(description="Milliseconds since 1970, UTC.")]
    key: Annotated[str | UnsetType | None, Meta(description="Text; null when the record has no key.")] = UNSET
    key_b64: Annotated[bytes | UnsetType, Meta(description="Base64, instead of `key`, when the key is not UTF-8.")] = (
        UNSET
    )
    value: Annotated[str | UnsetType | None, Meta(description="Text; null when the record deletes its key.")] = UNSET
    value_b64: Annotated[
        bytes | UnsetType, Meta(description="Base64, instead of `value`, when the value is not UTF-8.")
    ] = UNSET
    headers: Annotated[
        dict[str, HeaderValue] | UnsetType, Meta(description="By name; an array of values for a name that repeats.")
    ] = UNSET
    headers_b64: Annotated[
        dict[str, HeaderBytes] | UnsetType,
        Meta(description="Base64, instead of `headers`, when a header is not UTF-8."),
    ] = UNSET


class RecordsOut(Struct, frozen=True, kw_only=True):
    """Some records of a partition; read on at `next_offset`. `end_offset` is where the log ends at `version`."""

    records: Annotated[list[RecordOut], Meta(description="In the order of their offsets.")]
    next_offset: Annotated[int, Meta(description="Read on from here.")]
    version: Annotated[int, Meta(description="The version of the log that was read.")]
    end_offset: Annotated[int, Meta(description="Where the log ends at that version: one past the last record.")]
    epoch: Annotated[int, Meta(description="The epoch of the log that was read: pass it as `epoch` to read on.")]


class _PlainRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The record that most publishes are made of."""

    value: str
    key: str | None = None


class _PlainPublish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    records: Annotated[list[_PlainRecord], Meta(min_length=1)]
    txn_id: TxnId | None = None
    expected_version: Expected | None = None
    schema_id: SchemaId | None = None
    delivery_policy: DeliveryPolicy | None = None
    partition_behavior: PartitionBehavior | None = None


_decoder = msgspec.json.Decoder(PublishIn)
_array_decoder = msgspec.json.Decoder(Annotated[list[RecordIn], Meta(min_length=1)])
_plain_decoder = msgspec.json.Decoder(_PlainPublish)
encoder = msgspec.json.Encoder()


def read_publish(
    body: bytes, now_ms: int, records_max: int, *, partition: int | None = None, is_array: bool = False
) -> PublishRequest:
    """Make a request of the records in a body, those without a timestamp at `now_ms`. `is_array`: it may be just them.

    Raises:
        HttpError: 400, it is not JSON.
        InvalidInput: it is JSON of another shape.
    """
    body_in: _PlainPublish | PublishIn
    keys: Sequence[bytes | None] | None
    try:
        body_in = _plain_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if is_array and body.lstrip().startswith(b"["):
            body_in = PublishIn(records=read_json(body, _array_decoder))
        else:
            body_in = read_json(body, _decoder)
    if len(body_in.records) > records_max:
        raise InvalidInput(f"{len(body_in.records)} records are over the limit of {records_max} in one request")
    if isinstance(body_in, _PlainPublish):
        texts = [record.key for record in body_in.records]
        has_keys = texts.count(None) < len(texts)
        keys = [None if text is None else text.encode() for text in texts] if has_keys else None
        texts_headers = [TEXT_HEADERS] * len(texts)
        data = encode_rows([record.value.encode() for record in body_in.records], keys, now_ms, texts_headers)
        keys = keys or ()
    else:
        data, keys = _batch(body_in.records, now_ms)
    options = NO_OPTIONS
    if body_in.delivery_policy is not None or body_in.partition_behavior is not None:
        options = PublishOptions(delivery_policy=body_in.delivery_policy, partition_behavior=body_in.partition_behavior)
    return PublishRequest(
        data,
        partition=partition,
        keys=keys,
        txn_id=body_in.txn_id,
        expected_version=body_in.expected_version,
        schema_id=body_in.schema_id,
        is_trusted=True,
        options=options,
    )


def read_json(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """Decode a body.

    Raises:
        HttpError: 400, it is not JSON.
        InvalidInput: it is JSON of another shape.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error)) from None
    except msgspec.DecodeError as error:
        raise malformed(f"the body is not JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise malformed(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise malformed("the body is nested too deeply") from None


def _batch(records: Sequence[RecordIn], now_ms: int) -> tuple[bytearray, list[bytes | None]]:
    values = [_value(record, index) for index, record in enumerate(records)]
    keys = [_key(record, index) for index, record in enumerate(records)]
    stamps = [now_ms if record.timestamp is None else record.timestamp for record in records]
    return encode_rows(values, keys, stamps, [_headers_in(record) for record in records]), keys


def _value(record: RecordIn, index: int) -> bytes | None:
    text, data = record.value, record.value_b64
    if text is UNSET:
        if data is UNSET:
            raise InvalidInput(f"record {index} has neither value nor value_b64; null deletes its key")
        return data
    if data is not UNSET:
        raise InvalidInput(f"record {index} has both value and value_b64")
    return None if text is None else text.encode()


def _key(record: RecordIn, index: int) -> bytes | None:
    text, data = record.key, record.key_b64
    if text is None:
        return data
    if data is not None:
        raise InvalidInput(f"record {index} has both key and key_b64")
    return text.encode()


def _headers_in(record: RecordIn) -> Headers:
    is_text = isinstance(record.value, str)
    if not record.headers and not record.headers_b64:
        return TEXT_HEADERS if is_text else ()
    pairs: list[tuple[str, bytes | None]] = []
    for name, value in (record.headers or {}).items():
        texts = value if isinstance(value, list) else (value,)
        pairs += [(name, None if text is None else text.encode()) for text in texts]
    for name, data in (record.headers_b64 or {}).items():
        pairs += [(name, item) for item in (data if isinstance(data, list) else (data,))]
    if is_text and all(name != SERIALIZER_HEADER for name, _ in pairs):
        return (*TEXT_HEADERS, *pairs)
    return tuple(pairs)


def record_out(record: StoredRecord) -> RecordOut:
    """Return a record as JSON shows it."""
    key, key_b64 = _text_or_bytes(record.key)
    value, value_b64 = _text_or_bytes(record.value)
    headers, headers_b64 = _headers_out(record.headers) if record.headers else ({}, UNSET)
    return RecordOut(
        offset=record.offset,
        timestamp=record.timestamp_ms,
        key=key,
        key_b64=key_b64,
        value=value,
        value_b64=value_b64,
        headers=headers,
        headers_b64=headers_b64,
    )


def _text_or_bytes(data: bytes | None) -> tuple[str | UnsetType | None, bytes | UnsetType]:
    if data is None:
        return None, UNSET
    try:
        return data.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, data


def _headers_out(
    headers: Headers,
) -> tuple[dict[str, HeaderValue] | UnsetType, dict[str, HeaderBytes] | UnsetType]:
    try:
        texts = [(name, None if value is None else value.decode()) for name, value in headers]
    except UnicodeDecodeError:
        return UNSET, _by_name(headers)
    return _by_name(texts), UNSET


def _by_name(pairs: Any) -> dict[str, Any]:
    """Return an object of the pairs; a name that repeats gets an array."""
    groups: dict[str, list[Any]] = {}
    for name, value in pairs:
        groups.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in groups.items()}
