"""The API as an OpenAPI 3.1 document, made of the very types that requests and answers are read and written with."""

from collections.abc import Mapping
from typing import Any

import msgspec

from sulina.core.delivery.pubsub import SubscriberInfo
from sulina.core.topic import Policy, TopicSettings
from sulina.listeners.http_admin import CommitsOut, NamespacesOut, SubscriptionIn, SubscriptionsOut
from sulina.listeners.http_cluster import BrokersOut, UnloadIn, UnloadsOut
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_openapi_fields import EXAMPLES, FIELDS, refine
from sulina.listeners.http_openapi_paths import PARAMETERS, paths
from sulina.listeners.http_problem import RETRY_AFTER_SECONDS, all_codes
from sulina.listeners.http_pubsub import ProducersOut, SubscribersOut
from sulina.listeners.http_records import PublishIn, RecordsOut
from sulina.wire.messages import (
    BrokerInfo,
    ClusterInfo,
    NamespaceInfo,
    NodeInfo,
    PartitionInfo,
    Placement,
    Published,
    PubSubMetrics,
    ReaderInfo,
    ReaderPage,
    ReaderSettings,
    Rebalanced,
    SubscriptionInfo,
    TopicInfo,
    TopicPage,
)

_REF = "#/components/schemas/{name}"
_TYPES = (
    BrokerInfo, BrokersOut, ClusterInfo, CommitsOut, NamespaceInfo, NamespacesOut, NodeInfo, PartitionInfo, Placement,
    Policy, ProducersOut, PublishIn, Published, PubSubMetrics, ReaderInfo, ReaderPage, ReaderSettings, Rebalanced,
    RecordsOut, SubscriberInfo, SubscribersOut, SubscriptionIn, SubscriptionInfo, SubscriptionsOut, TopicInfo,
    TopicPage, TopicSettings, UnloadIn, UnloadsOut,
)  # fmt: skip

_ABOUT = """
Sulina is publish/subscribe where **every topic is an ACID log, and every log is a table**.

A topic `/namespace/topic` has 1..n partitions. Records are appended in batches: a batch is one atomic commit, with a
version and offsets that have no gaps. Readers see whole commits only.

Try it:

```
curl -X PUT localhost:8080/v1/topics/default/orders
curl --json '{"records": [{"key": "42", "value": "hello"}]}' localhost:8080/v1/topics/default/orders/records
curl localhost:8080/v1/topics/default/orders/partitions/0/records
```

**Errors** are `application/problem+json` with a stable `code`; `retryable` says whether the same request can succeed
later. Answers 429 and 503 say in `Retry-After` when to try again.

**In a cluster** a partition is served by one broker, its owner. Any other answers 307 with the owner's URL in
`Location`: `curl --location` and most clients follow by themselves. While a partition moves, or waits for an owner, the
answer is 503.

**Sessions** with pipelined publishes, subscriptions, credit and acks are on the WebSocket `/v1/ws`, in binary msgpack
frames; the Python client `sulina.connect(url)` speaks them.
"""

_TAGS = {
    "records": "Publish and read.",
    "topics": "Named logs, their partitions and commits.",
    "subscriptions": "Where groups of consumers are, durably.",
    "pubsub": "Who is sent everything that is published, and what became of it.",
    "readers": "Queries that read at their own pace: where they are, and what must be kept for them.",
    "namespaces": "Groups of topics with common policies.",
    "cluster": "Brokers, and which of them serves what. A node that is alone is a cluster of one, which moves nothing.",
    "node": "The node itself.",
}

_PROBLEM = {
    "title": "Problem",
    "description": "What went wrong (RFC 9457), with the facts of the error as further members.",
    "type": "object",
    "properties": {
        "type": {"type": "string", "description": "Where to read about this kind of problem."},
        "title": {"type": "string", "description": "The kind of problem, in words."},
        "status": {"type": "integer", "description": "The status of the answer."},
        "detail": {"type": "string", "description": "What happened, to what, and what to do."},
        "code": {"type": "string", "description": "The kind of problem, as a stable name for programs."},
        "retryable": {"type": "boolean", "description": "Whether the same request can succeed later."},
    },
    "required": ["type", "title", "status", "detail", "code", "retryable"],
    "additionalProperties": True,
}

# What an error status means wherever it comes up.
ERRORS: Mapping[int, str] = {
    307: "Another broker serves it: the same request goes to the URL in `Location`. Nothing was written.",
    400: "A malformed body, or a parameter outside the rules.",
    404: "There is no such thing.",
    406: "Accept names nothing that is offered.",
    408: "The request came too slowly.",
    409: "Somebody else was first, or it exists and differs, or nobody can be reached; nothing was changed.",
    413: "More bytes than the limit; nothing was written.",
    415: "The Content-Type is not one of those that are understood.",
    416: "The offset or version is outside what the log has.",
    422: "Well-formed, but not valid; nothing was changed.",
    429: "Too much is under way, or there are as many as there may be. Try again.",
    431: "The head of the request is too large.",
    500: "A fault of the node: a bug, which has an id in its log, or damaged data, which is never served.",
    503: "Not yet there, starting, stopping, moving, or without an owner. Try again.",
}


def document(limits: HttpLimits, version: str) -> dict[str, Any]:
    """The whole document."""
    _, schemas = msgspec.json.schema_components(_TYPES, ref_template=_REF)
    for name, schema in schemas.items():
        refine(name, schema)
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "Sulina",
            "version": version,
            "summary": "Topics that are ACID logs, over HTTP.",
            "description": _ABOUT.strip(),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths(limits),
        "components": {
            "schemas": {**schemas, "Problem": _PROBLEM},
            "parameters": PARAMETERS,
            "responses": {str(status): _error(status, text) for status, text in ERRORS.items()},
        },
        "x-codes": all_codes(),
    }


def _error(status: int, text: str) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": _REF.format(name="Problem")}}
    if status in EXAMPLES:
        content["examples"] = {example["code"]: {"value": example} for example in EXAMPLES[status]}
    response: dict[str, Any] = {"description": text, "content": {"application/problem+json": content}}
    if status == 307:
        response["headers"] = {
            "Location": {"description": "The same path and query at the owner.", "schema": {"type": "string"}}
        }
    if status in (429, 503):
        response["headers"] = {
            "Retry-After": {
                "description": "Seconds to wait.",
                "schema": {"type": "integer"},
                "example": RETRY_AFTER_SECONDS,
            }
        }
    return response


def undescribed(schemas: Mapping[str, Any]) -> list[str]:
    """The fields that nobody has described yet."""
    return [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, shape in schema.get("properties", {}).items()
        if "description" not in shape and (name, field) not in FIELDS
    ]
