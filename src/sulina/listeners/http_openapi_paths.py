"""What can be asked of the API: one entry for each method of each path, with all its answers."""

from collections.abc import Sequence
from typing import Any

from sulina.core.delivery.pubsub import DeliveryPolicy, PartitionBehavior
from sulina.listeners.http_admin import COMMITS, COMMITS_MAX, TOPICS_MAX
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_parameters import NUMBER_MAX
from sulina.listeners.http_records import SCHEMA_ID_LENGTH_MAX
from sulina.storage.partition_log import TXN_ID_LENGTH_MAX
from sulina.types import PARTITIONS_MAX

Shape = dict[str, Any]

_NAME = {"type": "string", "pattern": r"^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,199}$", "maxLength": 200}
_NAMESPACE = {"type": "string", "pattern": r"^[a-zA-Z0-9_-]{1,200}$", "maxLength": 200}
_BINARY = {"schema": {"type": "string", "contentMediaType": "application/octet-stream"}}
_COMMON = (400, 404, 408, 429, 431, 500, 503)  # whatever is asked, something is in the way
_SIMPLE = (400, 408, 429, 431, 500)

TOPIC = "/v1/topics/{ns}/{topic}"
RECORDS = f"{TOPIC}/records"
PARTITION = f"{TOPIC}/partitions/{{p}}"
PARTITION_RECORDS = f"{PARTITION}/records"
BATCH = f"{TOPIC}/batch"
PARTITION_BATCH = f"{PARTITION}/batch"
CLUSTER = "/v1/cluster"
BROKERS = f"{CLUSTER}/brokers"
BROKER = f"{BROKERS}/{{broker}}"
READERS = "/v1/readers"
READER = f"{READERS}/{{name}}/{{ns}}/{{topic}}"
READERS_MAX = 1000
PRODUCERS = f"{TOPIC}/producers"
SUBSCRIBERS = f"{TOPIC}/subscribers"
PUBSUB_METRICS = "/v1/pubsub/metrics"
EVENTS = "/v1/events"
EVENT_TYPES_MAX = 100
EVENT_TYPE_LENGTH_MAX = 200


def _ref(name: str) -> Shape:
    return {"$ref": f"#/components/schemas/{name}"}


def _at(name: str, schema: Shape, text: str, example: Any) -> Shape:
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": text, "example": example}


PARAMETERS: dict[str, Shape] = {
    "ns": _at("ns", _NAMESPACE, "The namespace. `default` always exists.", "default"),
    "topic": _at("topic", _NAME, "The topic.", "orders"),
    "p": _at("p", {"type": "integer", "minimum": 0, "maximum": PARTITIONS_MAX - 1}, "The number of the partition.", 0),
    "sub": _at("sub", _NAME, "The subscription.", "billing"),
    "broker": _at("broker", _NAME, "The name of the broker.", "b1"),
    "name": _at("name", _NAME, "The name of the reader.", "nightly"),
    "force": {
        "name": "force",
        "in": "query",
        "schema": {"type": "boolean", "default": False},
        "description": "Let attached consumers go.",
    },
}


_YES_OR_NO: Shape = {"type": "boolean", "default": False}
_STALE = "What this broker has will do, also if another may own the partition by now, and have more."


def _whole(least: int = 0, most: int = NUMBER_MAX) -> Shape:
    return {"type": "integer", "minimum": least, "maximum": most}


def _asked(name: str, schema: Shape, text: str, **more: Any) -> Shape:
    return {"name": name, "in": "query", "schema": schema, "description": text, **more}


def _header(name: str, schema: Shape, text: str) -> Shape:
    return {"name": name, "in": "header", "schema": schema, "description": text}


def _told(text: str) -> Shape:
    return {"description": text, "schema": {"type": "integer"}}


def _json(name: str, text: str, example: Any = None) -> Shape:
    content: Shape = {"schema": _ref(name)}
    if example is not None:
        content["example"] = example
    return {"description": text, "content": {"application/json": content}}


def _body(name: str, example: Any) -> Shape:
    content = {"application/json": {"schema": _ref(name), "example": example}}
    return {"description": "Empty: the defaults.", "required": False, "content": content}


def _operation(
    tag: str,
    name: str,
    summary: str,
    text: str,
    answers: Shape,
    errors: Sequence[int] = (),
    *,
    common: Sequence[int] = _COMMON,
    at: Sequence[str] = (),
    parameters: Sequence[Shape] = (),
    body: Shape | None = None,
) -> Shape:
    """One method of one path. `at` names parameters that others have too."""
    shape: Shape = {
        "tags": [tag],
        "operationId": name,
        "summary": summary,
        "description": text,
        "parameters": [*({"$ref": f"#/components/parameters/{shared}"} for shared in at), *parameters],
        "responses": {
            **answers,
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted({*errors, *common})},
        },
    }
    if body is not None:
        shape["requestBody"] = body
    return shape


def paths(limits: HttpLimits) -> Shape:
    """All of them."""
    return {
        **_records(limits), **_topics(), **_subscriptions(), **_pubsub(), **_readers(), **_namespaces(), **_cluster(),
        **_node(),
    }  # fmt: skip


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
                ("ns", "topic"),
            )
        },
        PARTITION_RECORDS: {
            "post": _publish("publishToPartition", "Publish to a partition", publish, ("ns", "topic", "p")),
            "get": _fetch(limits),
        },
        BATCH: {
            "post": _publish(
                "publishBatch",
                "Publish an array of records",
                f"The same as `…/records`, for a body that is just the records. {publish} Records whose keys belong to "
                "several partitions are refused.",
                ("ns", "topic"),
                is_array=True,
            )
        },
        PARTITION_BATCH: {
            "post": _publish(
                "publishBatchToPartition",
                "Publish an array of records to a partition",
                f"The same as `…/records`, for a body that is just the records. {publish}",
                ("ns", "topic", "p"),
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
    answer = {"partition": 0, "base_offset": 17, "count": 1, "version": 9, "ack": "local"}
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
    return _operation(
        "records",
        name,
        summary,
        text,
        {"200": _json("Published", "Where the records went.", answer)},
        (307, 409, 413, 415, 422),
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
        _asked("max_records", _whole(1, limits.records_max), "At most so many, in JSON and Arrow."),
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
    return _operation(
        "records",
        "readRecords",
        "Read records",
        "From an offset on, as `Accept` says: JSON; `application/vnd.sulina.batch`, whole record batches as they are "
        "stored (the first may begin before the offset); `application/vnd.apache.arrow.stream`, columns. "
        "A read is a snapshot: of a commit all records are there, or none.",
        {"200": {"description": "Records, possibly none.", "headers": told, "content": content}},
        (307, 406, 416, 422),
        at=("ns", "topic", "p"),
        parameters=parameters,
    )


def _topics() -> Shape:
    example = {"partitions": 3, "policy": {"retention_seconds": 604800}, "schema": {"kind": "json", "definition": True}}
    listing = [
        _asked("namespace", _NAMESPACE, "Only of this namespace."),
        _asked("after", {"type": "string", "maxLength": 500}, "Begin after this one: `next` of the page before."),
        _asked("limit", {**_whole(1, TOPICS_MAX), "default": 100}, "How many at most."),
    ]
    versions = [
        _asked("from", _whole(), f"The first version. Absent: the newest {COMMITS} up to `to`."),
        _asked("to", _whole(), f"One past the last version; at most {COMMITS_MAX} come. Absent: to the newest."),
    ]
    at, of = ("ns", "topic"), ("ns", "topic", "p")
    return {
        "/v1/topics": {
            "get": _operation(
                "topics", "listTopics", "List topics", "In the order of their names, a page at a time.",
                {"200": _json("TopicPage", "Some topics.")}, (422,), parameters=listing,
            )
        },
        TOPIC: {
            "put": _operation(
                "topics", "putTopic", "Create or change a topic",
                "Partitions and delivery are for ever; the policy can change at any time, the schema while there is "
                "no data. The namespace must exist.",
                {"201": _json("TopicInfo", "It is new."), "200": _json("TopicInfo", "It existed.")},
                (409, 413, 415, 422), at=at, body=_body("TopicSettings", example),
            ),
            "get": _operation(
                "topics", "getTopic", "Show a topic", "Its settings, and its policy as it works.",
                {"200": _json("TopicInfo", "The topic.")}, (422,), at=at,
            ),
            "delete": _operation(
                "topics", "deleteTopic", "Delete a topic", "With all its records and subscriptions.",
                {"204": {"description": "It is gone."}}, (307, 409, 422), at=(*at, "force"),
            ),
        },
        PARTITION: {
            "get": _operation(
                "topics", "getPartition", "Show a partition", "Its offsets, its version and its segments.",
                {"200": _json("PartitionInfo", "The partition.")}, (307, 422, 503), at=of,
                parameters=[_asked("stale", _YES_OR_NO, _STALE)],
            )
        },
        f"{PARTITION}/commits": {
            "get": _operation(
                "topics", "listCommits", "Read the commit feed", "What happened to the partition, commit by commit.",
                {"200": _json("CommitsOut", "Commits, possibly none.")}, (307, 416, 422), at=of, parameters=versions,
            )
        },
    }  # fmt: skip


def _subscriptions() -> Shape:
    at = ("ns", "topic", "sub")
    body = _body("SubscriptionIn", None)
    body["content"]["application/json"] = {
        "schema": _ref("SubscriptionIn"),
        "examples": {
            "create": {"value": {"kind": "shared", "start": "earliest"}},
            "seek": {"value": {"seek": "offset:0", "partition": 0}},
        },
    }
    return {
        f"{TOPIC}/subscriptions": {
            "get": _operation(
                "subscriptions", "listSubscriptions", "List the subscriptions of a topic", "By name, with their lag.",
                {"200": _json("SubscriptionsOut", "The subscriptions.")}, (307, 422), at=("ns", "topic"),
            )
        },
        f"{TOPIC}/subscriptions/{{sub}}": {
            "put": _operation(
                "subscriptions", "putSubscription", "Create a subscription, or move it",
                "With `kind` and `start` (both have defaults) it is created where there is none. With `seek` one that "
                "exists goes on from there; its consumers are let go and come back.",
                {
                    "201": _json("SubscriptionInfo", "It is new."),
                    "200": _json("SubscriptionInfo", "It existed, or was moved."),
                },
                (307, 409, 413, 415, 416, 422), at=at, body=body,
            ),
            "get": _operation(
                "subscriptions", "getSubscription", "Show a subscription", "Its kind, its consumers, cursors and lag.",
                {"200": _json("SubscriptionInfo", "The subscription.")}, (307, 422), at=at,
            ),
            "delete": _operation(
                "subscriptions", "deleteSubscription", "Delete a subscription", "With its cursors.",
                {"204": {"description": "It is gone."}}, (307, 409, 422), at=(*at, "force"),
            ),
        },
    }  # fmt: skip


def _pubsub() -> Shape:
    subscriber = {"node": "b1", "handle": 7, "name": "screen-3", "status": "active", "reason": "", "offset": 18}
    metrics = {
        "topic": "/default/orders", "accepted": 18, "rejected": {"InvalidPayload": 1}, "delivered": 36,
        "failed": {"Timeout": 2}, "redelivered": 2, "queued": 0, "dropped": 0, "missed": 0, "active": 2, "suspended": 0,
    }  # fmt: skip
    topic = _asked("topic", {"type": "string", "maxLength": 500}, "Only of this topic, `/namespace/topic`.")
    producer = {"producer": "shop-1", "broker_id": "b1", "since_ms": 1767225600000, "is_connected": True}
    return {
        PRODUCERS: {
            "get": _operation(
                "pubsub", "listProducers", "List the producers of a topic",
                "Those that publish over a session, by name, with the broker that each is connected to. One that "
                "publishes to several brokers is there for each. Any broker answers.",
                {"200": _json("ProducersOut", "The producers.", {"producers": [producer]})}, (422,), at=("ns", "topic"),
            )
        },
        SUBSCRIBERS: {
            "get": _operation(
                "pubsub", "listSubscribers", "List the subscribers of a topic",
                "Of the partitions that the broker serves, each with its node and whether it is sent anything. Who is "
                "subscribed to several partitions is there for each.",
                {"200": _json("SubscribersOut", "The subscribers.", {"subscribers": [subscriber]})}, (307, 422),
                at=("ns", "topic"),
            )
        },
        PUBSUB_METRICS: {
            "get": _operation(
                "pubsub", "getPubSubMetrics", "What became of messages",
                "Of one topic or of all, as the broker that answers has seen it since its start.",
                {"200": _json("PubSubMetrics", "The counts.", metrics)}, (422,), parameters=[topic],
            )
        },
    }  # fmt: skip


def _readers() -> Shape:
    at = ("name", "ns", "topic")
    example = {"positions": {"0": 17, "1": 4}, "expires_seconds": 86400, "description": "orders by day"}
    body = {**_body("ReaderSettings", example), "description": "Where it is now.", "required": True}
    listing = [
        _asked("topic", {"type": "string", "maxLength": 500}, "Only of this topic, `/namespace/topic`."),
        _asked("after", {"type": "string", "maxLength": 500}, "Begin after this one: `next` of the page before."),
        _asked("limit", {**_whole(1, READERS_MAX), "default": 100}, "How many at most."),
    ]
    return {
        READERS: {
            "get": _operation(
                "readers", "listReaders", "List registered readers",
                "In the order of their names, a page at a time, with their lag as far as it is known.",
                {"200": _json("ReaderPage", "Some readers.")}, (422,), parameters=listing,
            )
        },
        READER: {
            "put": _operation(
                "readers", "putReader", "Register a reader, or say where it is now",
                "Retention keeps what lies at its positions and after them, until it has not been heard of for "
                "`expires_seconds`. Partitions that are not named stay where they are. It goes back only with `force`.",
                {"201": _json("ReaderInfo", "It is new."), "200": _json("ReaderInfo", "It was registered already.")},
                (409, 413, 415, 422), at=at, body=body,
            ),
            "get": _operation(
                "readers", "getReader", "Show a registered reader", "Its positions, and how far behind it is.",
                {"200": _json("ReaderInfo", "The reader.")}, (422,), at=at,
            ),
            "delete": _operation(
                "readers", "deleteReader", "Delete a registered reader", "It holds nothing back any more.",
                {"204": {"description": "It is gone."}}, (422,), at=at,
            ),
        },
    }  # fmt: skip


def _namespaces() -> Shape:
    at = ("ns",)
    return {
        "/v1/namespaces": {
            "get": _operation(
                "namespaces", "listNamespaces", "List namespaces", "In the order of their names.",
                {"200": _json("NamespacesOut", "All namespaces.")}, common=_SIMPLE,
            )
        },
        "/v1/namespaces/{ns}": {
            "put": _operation(
                "namespaces", "putNamespace", "Create or change a namespace",
                "The body is its policy. Its topics follow at once, except in what they say themselves.",
                {"201": _json("NamespaceInfo", "It is new."), "200": _json("NamespaceInfo", "It existed.")},
                (413, 415, 422), at=at, body=_body("Policy", {"retention_seconds": 86400}),
            ),
            "get": _operation(
                "namespaces", "getNamespace", "Show a namespace", "Its policy, and how many topics it has.",
                {"200": _json("NamespaceInfo", "The namespace.")}, (422,), at=at,
            ),
            "delete": _operation(
                "namespaces", "deleteNamespace", "Delete a namespace", "It must have no topics.",
                {"204": {"description": "It is gone."}}, (409, 422), at=at,
            ),
        },
    }  # fmt: skip


def _cluster() -> Shape:
    at = ("ns", "topic")
    later = "Any broker can be asked; the answer says what has begun, and `unloads` how it goes on."
    return {
        f"{TOPIC}/placement": {
            "get": _operation(
                "cluster", "getPlacement", "Look up who serves a topic",
                "The owner of each partition, with the URL to ask. A node that is alone has no URL but the one asked.",
                {"200": _json("Placement", "Where the topic is served.")}, (422,), at=at,
            )
        },
        f"{TOPIC}/unload": {
            "post": _operation(
                "cluster", "unloadTopic", "Unload a topic, or move it",
                "Its partitions, or one of them, leave their owners in good order and get new ones: `to`, or whoever "
                f"has the least to do. Clients follow by themselves. {later} With consumers attached it is refused "
                "(409) unless `force` is set. Forced for a partition that is `recovering`, with `to`, it gives up what "
                "only the lost broker has: `given_up` says which offsets.",
                {"202": _json("UnloadsOut", "It has begun.")}, (409, 413, 415, 422), at=at,
                body=_body("UnloadIn", {"to": "b2", "force": True}),
            )
        },
        f"{TOPIC}/unloads": {
            "get": _operation(
                "cluster", "listUnloads", "Show how unloads go on", "Those under way; none when all are done.",
                {"200": _json("UnloadsOut", "What is under way.")}, (422,), at=at,
            ),
            "delete": _operation(
                "cluster", "cancelUnloads", "Cancel unloads", "Those not carried out yet; their owners stay.",
                {"200": _json("UnloadsOut", "What was taken back.")}, (422, 503), at=at,
                parameters=[_asked("partition", _whole(0, PARTITIONS_MAX - 1), "Only this one.")],
            ),
        },
        CLUSTER: {
            "get": _operation(
                "cluster", "getCluster", "Show the cluster", "As the broker that answers sees it.",
                {"200": _json("ClusterInfo", "The cluster.")}, (503,), common=_SIMPLE,
            )
        },
        BROKERS: {
            "get": _operation(
                "cluster", "listBrokers", "List the brokers", "In the order of their names.",
                {"200": _json("BrokersOut", "All brokers.")}, (503,), common=_SIMPLE,
            )
        },
        f"{BROKER}/drain": {
            "post": _operation(
                "cluster", "drainBroker", "Drain a broker",
                "It gets no more partitions, and those that it has move away, a few at a time. It stays so, also after "
                "a restart, until it is activated.",
                {"202": _json("BrokerInfo", "It drains.")}, (409, 422), at=("broker",),
            )
        },
        f"{BROKER}/activate": {
            "post": _operation(
                "cluster", "activateBroker", "Activate a broker", "It gets partitions again.",
                {"200": _json("BrokerInfo", "It is active.")}, (409, 422), at=("broker",),
            )
        },
        f"{CLUSTER}/rebalance": {
            "post": _operation(
                "cluster", "rebalance", "Rebalance", "Move partitions from brokers with much to do to those with less.",
                {"202": _json("Rebalanced", "What is being moved, possibly nothing.")}, (409, 422),
            )
        },
    }  # fmt: skip


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
        _asked("types", types, "Only these, with commas between them.", style="form", explode=False),
        _asked("topic", {"type": "string", "maxLength": 500}, "Only of this topic, `/namespace/topic`."),
    ]
    return {
        "/v1/node": {
            "get": _operation(
                "node", "getNode", "Show the node", "Who answers.",
                {"200": _json("NodeInfo", "The node.")}, common=_SIMPLE,
            )
        },
        EVENTS: {
            "get": _operation(
                "node", "getEvents", "Watch events",
                "What happens on the node, as server-sent events, each one JSON object with `at`, `type`, `topic` and "
                "`fields`. A client that is too slow is told in `events_missed` how many it missed.",
                plain("text/event-stream", "A stream without end."), (422, 503), common=_SIMPLE, parameters=chosen,
            )
        },
        "/health": {
            "get": _operation("node", "getHealth", "Is it alive?", "Whether the process answers.", fine, common=_SIMPLE)
        },
        "/ready": {
            "get": _operation(
                "node", "getReady", "Is it ready?", "Whether it serves; 503 with the reason while it cannot.",
                fine, (503,), common=_SIMPLE,
            )
        },
        "/metrics": {
            "get": _operation(
                "node", "getMetrics", "Metrics", "In the text format of Prometheus.",
                plain("text/plain", "All metrics."), common=_SIMPLE,
            )
        },
    }  # fmt: skip
