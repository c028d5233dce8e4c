"""Problems in the OpenAPI document: their shape, what each status means, and examples."""

from collections.abc import Mapping
from typing import Any

from sulina.listeners.http_problem import RETRY_AFTER_SECONDS, all_codes

PROBLEM = {
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

# What an error status means, on every path.
ERRORS: Mapping[int, str] = {
    307: "Another broker serves it: the same request goes to the URL in `Location`. Nothing was written.",
    400: "A malformed body, or a parameter outside the rules.",
    404: "It does not exist.",
    406: "Accept names nothing that is offered.",
    408: "The request came too slowly.",
    409: "Somebody else was first, or it exists and differs, or nobody can be reached; nothing was changed.",
    413: "More bytes than the limit; nothing was written.",
    415: "The Content-Type is not supported.",
    416: "The offset or version is outside what the log has.",
    422: "Well-formed, but not valid; nothing was changed.",
    429: "A limit is reached: of requests under way, or of things that exist. Try again later.",
    431: "The head of the request is too large.",
    500: "A fault of the node: a bug, which has an id in its log, or damaged data, which is never served.",
    503: "Not yet there, starting, stopping, moving, or without an owner. Try again.",
}


def _problem(code: str, detail: str, **facts: Any) -> Any:
    known = next(known for known in all_codes() if known["code"] == code)
    return {**known, "type": f"/docs#{code}", "detail": detail, **facts}


# By status.
EXAMPLES: dict[int, list[dict[str, Any]]] = {
    307: [
        _problem(
            "not_owner",
            "partition 0 of /default/orders is served by broker b2 at http://10.0.0.2:8080",
            topic="/default/orders",
            partition=0,
            owner="b2",
            url="http://10.0.0.2:8080",
        )
    ],
    400: [
        _problem("malformed_body", "the body is not JSON: JSON is malformed: expected ':' (byte 9)"),
        _problem(
            "invalid_parameter", "offset must be a whole number from 0 to 9223372036854775807", parameter="offset"
        ),
    ],
    404: [_problem("topic_not_found", "there is no topic /default/orders", topic="/default/orders")],
    409: [
        _problem(
            "version_conflict",
            "expected version 6, but the log is at 7: read it again, then retry",
            expected=6,
            current=7,
        )
    ],
    413: [_problem("body_too_large", "the body is over the limit of 33554432 bytes: send several requests")],
    416: [
        _problem(
            "offset_out_of_range",
            "offset 3 is outside [100, 250): the first that is retained is 100",
            offset=3,
            start=100,
            end=250,
        )
    ],
    422: [_problem("invalid_input", "Object contains unknown field `vlaue` - at `$.records[0]`")],
    429: [_problem("queue_full", "67108864 bytes wait to be committed, the limit is 67108864: retry later")],
    503: [_problem("not_yet", "version 12 is not there after 1.0 s: the log ends at offset 40, version 11")],
}


def responses() -> dict[str, Any]:
    """Return the responses that are problems, by status."""
    return {str(status): _response(status, text) for status, text in ERRORS.items()}


def _response(status: int, text: str) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": "#/components/schemas/Problem"}}
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
