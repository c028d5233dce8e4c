"""Records as JSON, in and out: the shapes, and their way to and from record batches.

A value is text (`value`), or bytes in base64 (`value_b64`), or null, which deletes its key; a key likewise, but a null
key is no key. Headers are an object; a name that repeats has an array of values. What comes out is text wherever it
is UTF-8, otherwise base64 under the name with `_b64`.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from sulina.core.delivery.pubsub import DeliveryPolicy, PartitionBehavior, PublishOptions
from sulina.core.records.record import Headers, Record
from sulina.core.records.rows import encode_rows
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

    value: str | UnsetType | None = UNSET
    value_b64: bytes | UnsetType = UNSET
    key: str | None = None
    key_b64: bytes | None = None
    headers: dict[str, HeaderValue] | None = None
    headers_b64: dict[str, HeaderBytes] | None = None
    timestamp: Timestamp | None = None


class PublishIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Records that are appended together, or not at all.

    `txn_id` makes a repeat safe: it gets the answer of the first. With `expected_version` the records are appended
    only if the partition is still at that version.
    """

    records: Annotated[list[RecordIn], Meta(min_length=1)]
    txn_id: TxnId | None = None
    expected_version: Expected | None = None
    schema_id: SchemaId | None = None
    delivery_policy: DeliveryPolicy | None = None
    partition_behavior: PartitionBehavior | None = None


class RecordOut(Struct, frozen=True, kw_only=True, gc=False):
    """A stored record. What is not UTF-8 is under the name with `_b64`, in base64."""

    offset: int
    timestamp: int
    key: str | UnsetType | None = UNSET
    key_b64: bytes | UnsetType = UNSET
    value: str | UnsetType | None = UNSET
    value_b64: bytes | UnsetType = UNSET
    headers: dict[str, HeaderValue] | UnsetType = UNSET
    headers_b64: dict[str, HeaderBytes] | UnsetType = UNSET


class RecordsOut(Struct, frozen=True, kw_only=True):
    """Some records of a partition; read on at `next_offset`. `end_offset` is where the log ends at `version`."""

    records: list[RecordOut]
    next_offset: int
    version: int
    end_offset: int
    epoch: int  # who reads on says it


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
_NO_OPTIONS = PublishOptions()


class Publish(NamedTuple):
    """A publish with its records as one batch."""

    data: bytes | bytearray
    txn_id: str | None = None
    expected_version: int | None = None
    schema_id: str | None = None
    partition: int | None = None  # that the keys belong to; None: nobody has looked, or there are none
    delivery_policy: DeliveryPolicy | None = None
    partition_behavior: PartitionBehavior | None = None

    @property
    def options(self) -> PublishOptions:
        """What it says of deliveries, where the topic is not to say it."""
        if self.delivery_policy is None and self.partition_behavior is None:
            return _NO_OPTIONS
        return PublishOptions(delivery_policy=self.delivery_policy, partition_behavior=self.partition_behavior)


Keys = Sequence[bytes | None]
Choose = Callable[[Keys], int | None]  # the partition of some keys


def read_publish(
    body: bytes, now_ms: int, records_max: int, choose: Choose | None = None, *, is_array: bool = False
) -> Publish:
    """Make one batch of the records, those without a timestamp at `now_ms`. `is_array`: the body may be just them.

    HttpError 400 for what is not JSON, InvalidInput for JSON of another shape.
    """
    request: _PlainPublish | PublishIn
    try:
        request = _plain_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if is_array and body.lstrip().startswith(b"["):
            request = PublishIn(records=read_json(body, _array_decoder))
        else:
            request = read_json(body, _decoder)
    if len(request.records) > records_max:
        raise InvalidInput(f"{len(request.records)} records are over the limit of {records_max} in one request")
    data, keys = (
        _plain_batch(request, now_ms) if isinstance(request, _PlainPublish) else _batch(request.records, now_ms)
    )
    partition = None if choose is None or keys is None else choose(keys)
    return Publish(
        data,
        request.txn_id,
        request.expected_version,
        request.schema_id,
        partition,
        request.delivery_policy,
        request.partition_behavior,
    )


def read_json(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """HttpError 400 for what is not JSON, InvalidInput for JSON of another shape."""
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


def _plain_batch(request: _PlainPublish, now_ms: int) -> tuple[bytearray, Keys | None]:
    values = [record.value.encode() for record in request.records]
    texts = [record.key for record in request.records]
    keys = None
    if texts.count(None) < len(texts):
        keys = [None if text is None else text.encode() for text in texts]
    return encode_rows(values, keys, now_ms), keys


def _batch(records: Sequence[RecordIn], now_ms: int) -> tuple[bytearray, Keys]:
    values = [_value(record, index) for index, record in enumerate(records)]
    keys = [_key(record, index) for index, record in enumerate(records)]
    stamps = [now_ms if record.timestamp is None else record.timestamp for record in records]
    with_headers = any(record.headers or record.headers_b64 for record in records)
    headers = [_headers_in(record) for record in records] if with_headers else None
    return encode_rows(values, keys, stamps, headers), keys


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
    pairs: list[tuple[str, bytes | None]] = []
    for name, value in (record.headers or {}).items():
        texts = value if isinstance(value, list) else (value,)
        pairs += [(name, None if text is None else text.encode()) for text in texts]
    for name, data in (record.headers_b64 or {}).items():
        pairs += [(name, item) for item in (data if isinstance(data, list) else (data,))]
    return tuple(pairs)


def record_out(record: Record) -> RecordOut:
    """A record as JSON shows it."""
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
    """An object of the pairs; a name that repeats gets an array."""
    groups: dict[str, list[Any]] = {}
    for name, value in pairs:
        groups.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in groups.items()}
