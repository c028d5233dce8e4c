"""The OpenAPI entries of the paths that are no operations: records, events, health and metrics."""

from collections.abc import Iterable, Sequence
from typing import Any

from sulina.core.delivery.pubsub import DeliveryPolicy, PartitionBehavior
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_records import SCHEMA_ID_LENGTH_MAX
from sulina.storage.partition_log import TXN_ID_LENGTH_MAX
from sulina.wire.operations import NUMBER_MAX, PARTITION_PATH, TOPIC_PATH

Shape = dict[str, Any]

_TOPIC = ("namespace", "topic")
_PARTITION = (*_TOPIC, "partition")
_BINARY = {"schema": {"type": "string", "contentMediaType": "application/octet-stream"}}
ALWAYS = (400, 408, 429, 431, 500)  # statuses that any request can get
_COMMON = (*ALWAYS, 404, 503)

RECORDS = f"{TOPIC_PATH}/records"
PARTITION_RECORDS = f"{PARTITION_PATH}/records"
BATCH = f"{TOPIC_PATH}/batch"
PARTITION_BATCH = f"{PARTITION_PATH}/batch"
EVENTS = "/v1/events"
EVENT_TYPES_MAX = 100
EVENT_TYPE_LENGTH_MAX = 200


def _ref(name: str) -> Shape:
    return {"$ref": f"#/components/schemas/{name}"}


_YES_OR_NO: Shape = {"type": "boolean", "default": False}
_STALE = "Answer with what this broker has, even if another may own the partition now and have more."


def _whole(least: int = 0, most: int = NUMBER_MAX) -> Shape:
    return {"type": "integer", "minimum": least, "maximum": most}


def _asked(name: str, schema: Shape, text: str, **more: Any) -> Shape:
    return {"name": name, "in": "query", "schema": schema, "description": text, **more}


def _header(name: str, schema: Shape, text: str) -> Shape:
    return {"name": name, "in": "header", "schema": schema, "description": text}


def _told(text: str) -> Shape:
    return {"description": text, "schema": {"type": "integer"}}


def entry(
    tag: str,
    name: str,
    summary: str,
    text: str,
    answers: Shape,
    errors: Iterable[int],
    *,
    at: Sequence[str] = (),
    parameters: Sequence[Shape] = (),
    body: Shape | None = None,
) -> Shape:
    """Return the entry of one method of one path. `at` names parameters of the path."""
    shape: Shape = {
        "tags": [tag],
        "operationId": name,
        "summary": summary,
        "description": text,
        "parameters": [*({"$ref": f"#/components/parameters/{shared}"} for shared in at), *parameters],
        "responses": {
            **answers,
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted({*errors, *ALWAYS})},
        },
    }
    if body is not None:
        shape["requestBody"] = body
    return shape


def paths(limits: HttpLimits) -> Shape:
    """Return the entries, by path and method."""
    return {**_records(limits), **_node()}


def _records(limits: HttpLimits) -> Shape:
    publish = (
        "The records are one atomic commit in one partition: all of them are stored, durable and visible when the "
        "answer comes, or none is. With `txn_id` a repeat is safe; with `expected_version` nobody comes in between."
    )
    return {
        RECORDS: {
            "post": _publish(
                "publish",
                "Publish records",
                f"{publish} The partition is chosen by the key of the records (as Kafka's clients do), or in turn.",
                _TOPIC,
            )
        },
        PARTITION_RECORDS: {
            "post": _publish("publish_to_partition", "Publish to a partition", publish, _PARTITION),
            "get": _fetch(limits),
        },
        BATCH: {
            "post": _publish(
                "publish_batch",
                "Publish an array of records",
                f"The same as `…/records`, for a body that is just the records. {publish} Records whose keys belong to "
                "several partitions are refused.",
                _TOPIC,
                is_array=True,
            )
        },
        PARTITION_BATCH: {
            "post": _publish(
                "publish_batch_to_partition",
                "Publish an array of records to a partition",
                f"The same as `…/records`, for a body that is just the records. {publish}",
                _PARTITION,
                is_array=True,
            )
        },
    }


def _publish(name: str, summary: str, text: str, at: Sequence[str], *, is_array: bool = False) -> Shape:
    record = {"key": "42", "value": "hello", "headers": {"source": "shop"}}
    shape = _ref("PublishIn")
    example: Any = {"records": [record], "txn_id": "order-42-v1"}
    if is_array:
        shape = {"anyOf": [{"type": "array", "items": _ref("RecordIn"), "minItems": 1}, shape]}
        example = [record]
    published = {
        "schema": _ref("Published"),
        "example": {"partition": 0, "base_offset": 17, "count": 1, "version": 9, "ack": "local"},
    }
    body = {
        "description": "JSON; or one raw value; or record batches (Kafka's format, version 2) as they are.",
        "required": True,
        "content": {
            "application/json": {"schema": shape, "example": example},
            "application/octet-stream": _BINARY,
            "application/vnd.sulina.batch": _BINARY,
        },
    }
    instead = "Instead of the field in JSON; the way to say it for raw values and batches."
    headers = [
        _header("Sulina-Key", {"type": "string"}, "The key of one raw value; of no use otherwise."),
        _header("Sulina-Txn-Id", {"type": "string", "minLength": 1, "maxLength": TXN_ID_LENGTH_MAX}, instead),
        _header("Sulina-Expected-Version", _whole(), instead),
        _header("Sulina-Schema", {"type": "string", "maxLength": SCHEMA_ID_LENGTH_MAX}, instead),
        _header("Sulina-Delivery-Policy", {"type": "string", "enum": list(DeliveryPolicy)}, instead),
        _header("Sulina-Partition-Behavior", {"type": "string", "enum": list(PartitionBehavior)}, instead),
    ]
    return entry(
        "records",
        name,
        summary,
        text,
        {"200": {"description": "Where the records went.", "content": {"application/json": published}}},
        (*_COMMON, 307, 409, 413, 415, 422),
        at=at,
        parameters=headers,
        body=body,
    )


def _fetch(limits: HttpLimits) -> Shape:
    told = {
        "Sulina-Offset": _told("The offset that was asked for: records before it are to be passed over."),
        "Sulina-Next-Offset": _told("Read on from here."),
        "Sulina-Version": _told("The version of the log that was read."),
        "Sulina-End-Offset": _told("Where the log ends at that version."),
        "Sulina-Epoch": _told("The epoch of the log that was read: pass it as `epoch` to read on."),
    }
    stored = {"offset": 17, "timestamp": 1767225600000, "key": "42", "value": "hello", "headers": {}}
    answer = {"records": [stored], "next_offset": 18, "version": 9, "end_offset": 18, "epoch": 3}
    wait_ms = int(limits.wait_seconds_max * 1000)
    parameters = [
        _asked("offset", _whole(), "The first record. Absent: the oldest that is kept.", example=0),
        _asked(
            "max_bytes",
            {**_whole(1, limits.read_bytes_max), "default": limits.read_bytes},
            "About how much to read of what is stored; at least one batch comes.",
        ),
        _asked("max_records", _whole(1, limits.records_max), "The largest number of records, in JSON and Arrow."),
        _asked("version", _whole(), "Read the log as it was at this version."),
        _asked("min_version", _whole(), "Wait until the log has this version, up to `wait_ms`; then 503."),
        _asked("min_offset", _whole(), "Wait until a record at this offset can be read, up to `wait_ms`; then 503."),
        _asked(
            "wait_ms",
            {**_whole(0, wait_ms), "default": 0},
            "How long to wait if there is no record yet; the answer may then still have none.",
        ),
        _asked(
            "epoch",
            _whole(),
            "The epoch in which everything before `offset` was read, as the answer before said it. If something of it "
            "was given up since: 416 `position_diverged`, and `continues_at` says where the log goes on.",
        ),
        _asked("stale", _YES_OR_NO, _STALE),
    ]
    content = {
        "application/json": {"schema": _ref("RecordsOut"), "example": answer},
        "application/vnd.sulina.batch": _BINARY,
        "application/vnd.apache.arrow.stream": _BINARY,
    }
    return entry(
        "records",
        "fetch",
        "Read records",
        "From an offset on, as `Accept` says: JSON; `application/vnd.sulina.batch`, whole record batches as they are "
        "stored (the first may begin before the offset); `application/vnd.apache.arrow.stream`, columns. "
        "A read is a snapshot: of a commit all records are there, or none.",
        {"200": {"description": "Records, possibly none.", "headers": told, "content": content}},
        (*_COMMON, 307, 406, 416, 422),
        at=_PARTITION,
        parameters=parameters,
    )


def _node() -> Shape:
    def plain(kind: str, text: str) -> Shape:
        return {"200": {"description": text, "content": {kind: {"schema": {"type": "string"}}}}}

    status = {"type": "object", "properties": {"status": {"const": "ok", "description": "Always `ok`."}}}
    fine = {"200": {"description": "It is.", "content": {"application/json": {"schema": status}}}}
    types = {
        "type": "array",
        "items": {"type": "string", "minLength": 1, "maxLength": EVENT_TYPE_LENGTH_MAX},
        "maxItems": EVENT_TYPES_MAX,
    }
    chosen = [
        _asked("types", types, "Only events of these types, separated by commas.", style="form", explode=False),
        _asked("topic", {"type": "string", "maxLength": 500}, "Only events of this topic, `/namespace/topic`."),
    ]
    return {
        EVENTS: {
            "get": entry(
                "node", "events", "Watch events",
                "What happens on the node, as server-sent events, each one JSON object with `at`, `type`, `topic` and "
                "`fields`. A client that is too slow is told in `events_missed` how many it missed.",
                plain("text/event-stream", "A stream without end."), (422, 503), parameters=chosen,
            )
        },
        "/health": {
            "get": entry("node", "health", "Check that the node is alive", "Whether the process answers.", fine, ())
        },
        "/ready": {
            "get": entry(
                "node", "ready", "Check that the node is ready", "Whether it serves; if not, 503 with the reason.",
                fine, (503,),
            )
        },
        "/metrics": {
            "get": entry(
                "node", "metrics", "Metrics", "In the text format of Prometheus.",
                plain("text/plain", "All metrics."), (),
            )
        },
    }  # fmt: skip
