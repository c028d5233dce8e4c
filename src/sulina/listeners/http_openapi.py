"""The API as an OpenAPI 3.1 document, made from the table of operations and the types of requests and answers."""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct

from sulina.listeners.calls import AnyOperation
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_openapi_paths import Shape, entry, paths
from sulina.listeners.http_openapi_problems import PROBLEM, responses
from sulina.listeners.http_problem import all_codes, status_of
from sulina.listeners.http_records import PublishIn, RecordsOut
from sulina.types import NAME_PATTERN
from sulina.wire.messages import Published
from sulina.wire.operations import OPERATIONS, Namespace, Server, body_type, field_types

_REF = "#/components/schemas/{name}"
_BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

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

The examples of requests below are in the namespace `examples`, which no node has until you create it: trying one of
them changes nothing of yours. Start with `PUT /v1/namespaces/examples`.

**Errors** are `application/problem+json` with a stable `code`; `retryable` says whether the same request can succeed
later. Answers 429 and 503 say in `Retry-After` when to try again. [All codes](#errors) are at the end of `/docs`.

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


def document(limits: HttpLimits, version: str) -> dict[str, Any]:
    """Return the whole document."""
    _, schemas = msgspec.json.schema_components(_types(), ref_template=_REF)
    for name, schema in schemas.items():
        _refine(name, schema)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sulina",
            "version": version,
            "summary": "Topics that are ACID logs, over HTTP.",
            "description": _ABOUT.strip(),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": {**paths(limits), **_operation_paths()},
        "components": {
            "schemas": {**schemas, "Problem": PROBLEM},
            "parameters": _path_parameters(),
            "responses": responses(),
        },
        "x-codes": all_codes(),
    }


def undescribed(schemas: Mapping[str, Any]) -> list[str]:
    """Return the fields that have no description."""
    return [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, shape in schema.get("properties", {}).items()
        if "description" not in shape
    ]


def _types() -> list[type]:
    """Return the types of all bodies and answers."""
    found: dict[type, None] = dict.fromkeys((PublishIn, Published, RecordsOut))
    for operation in OPERATIONS:
        if operation.route is not None:
            for kind in (operation.result, body_type(operation)):
                if kind is not None and issubclass(kind, Struct):
                    found[kind] = None
    return list(found)


# Operations


def _operation_paths() -> Shape:
    found: Shape = {}
    for operation in OPERATIONS:
        if operation.route is not None:
            found.setdefault(operation.route.path, {})[operation.route.method.lower()] = _entry(operation)
    return found


def _entry(operation: AnyOperation) -> Shape:
    route = operation.route
    assert route is not None
    in_path = re.findall(r"{(\w+)}", route.path)
    in_query = []
    if route.method in ("GET", "DELETE"):
        for field in msgspec.structs.fields(operation.shape):
            if field.name not in in_path:
                default = None if field.default is NODEFAULT else field.default
                in_query.append(_parameter(operation, field.name, "query", default))
    return entry(
        route.tag,
        operation.name,
        operation.summary,
        operation.description,
        _answers(operation),
        _statuses(operation),
        at=in_path,
        parameters=in_query,
        body=_body(operation),
    )


def _answers(operation: AnyOperation) -> Shape:
    route = operation.route
    assert route is not None
    if operation.result is type(None):
        return {str(route.status): {"description": route.answer}}
    content: Shape = {"schema": {"$ref": _REF.format(name=operation.result.__name__)}}
    if route.example is not None:
        content["example"] = route.example
    answers = {201: route.created} if route.created is not None else {}
    answers[route.status] = route.answer
    return {
        str(status): {"description": text, "content": {"application/json": content}} for status, text in answers.items()
    }


def _statuses(operation: AnyOperation) -> Iterable[int]:
    """Return the statuses of the errors that an operation can have, besides those of any request."""
    found = {int(status_of(kind)) for kind in operation.errors}
    if operation.shape.__struct_fields__:
        found |= {HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.SERVICE_UNAVAILABLE}
    if body_type(operation) is not None:
        found |= {HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE}
    if operation.server is not Server.ANY_BROKER:
        found.add(HTTPStatus.TEMPORARY_REDIRECT)
    return {int(status) for status in found}


def _body(operation: AnyOperation) -> Shape | None:
    kind, route = body_type(operation), operation.route
    if kind is None or route is None:
        return None
    is_required = any(field.required for field in msgspec.structs.fields(kind))
    return {
        "description": "The arguments." if is_required else "Empty: the defaults.",
        "required": is_required,
        "content": {
            "application/json": {"schema": {"$ref": _REF.format(name=kind.__name__)}, "example": route.body_example}
        },
    }


# Parameters


def _path_parameters() -> Shape:
    """Return the parameters that are parts of paths, by name."""
    topic = {"type": "string", "pattern": f"^{NAME_PATTERN}$", "maxLength": 200}
    found: Shape = {
        "namespace": _shown("namespace", "path", msgspec.json.schema(Namespace)),
        "topic": _shown("topic", "path", {**topic, "description": "The topic.", "examples": ["orders"]}),
    }
    for operation in OPERATIONS:
        for name in re.findall(r"{(\w+)}", operation.route.path if operation.route else ""):
            if name not in found:
                found[name] = _parameter(operation, name, "path")
    return found


def _parameter(operation: AnyOperation, name: str, place: str, default: Any = None) -> Shape:
    schema = msgspec.json.schema(field_types(operation.shape)[name])
    if "anyOf" in schema:  # or null, which no parameter can be
        schema = {**next(one for one in schema.pop("anyOf") if one != {"type": "null"}), **schema}
    if default is not None:
        schema["default"] = default
    return _shown(name, place, schema)


def _shown(name: str, place: str, schema: Shape) -> Shape:
    shown: Shape = {"name": name, "in": place, "description": schema.pop("description")}
    examples = schema.pop("examples", None)
    if place == "path":
        shown |= {"required": True, "example": examples[0]}
    return {**shown, "schema": schema}


# Schemas


def _refine(name: str, schema: Shape) -> None:
    """Add to a schema, in place, what the types do not say."""
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    for field, shape in schema.get("properties", {}).items():
        if field == "type" and "description" not in shape:  # the tag of a union
            shape["description"] = schema["description"]
    _add_patterns(schema)
    if name == "RecordIn":
        schema["oneOf"] = [{"required": ["value"]}, {"required": ["value_b64"]}]
        both = {"key": {"type": "string"}, "key_b64": {"type": "string"}}
        schema["not"] = {"required": ["key", "key_b64"], "properties": both}


def _add_patterns(shape: Any) -> None:
    if isinstance(shape, dict):
        if shape.get("contentEncoding") == "base64":
            shape["pattern"] = _BASE64
        for child in shape.values():
            _add_patterns(child)
    elif isinstance(shape, list):
        for child in shape:
            _add_patterns(child)
