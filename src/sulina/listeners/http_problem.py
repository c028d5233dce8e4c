"""Errors as the HTTP surface shows them: problem+json (RFC 9457) with a stable `code`.

One table says which status an error of the tree has; an error without a row of its own has that of its parent.
What an unexpected exception says is logged and never sent: the client gets an id to ask with.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from starlette.types import Scope

import sulina.errors as errors
from sulina.errors import NotOwner, SulinaError

PROBLEM_JSON = b"application/problem+json"
RETRY_AFTER_SECONDS = 1
AT_OWNER = "sulina.at_owner"  # in the scope: the path to ask for at the owner, where it is not the path of the request
RETRY_AFTER_STATUSES = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)

# From the tree of errors to statuses. 416 is also for versions: what was asked for is a range that is not there.
STATUSES: dict[type[SulinaError], HTTPStatus] = {
    errors.InvalidInput: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.BatchTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.DecompressedTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.Conflict: HTTPStatus.CONFLICT,
    errors.NotFound: HTTPStatus.NOT_FOUND,
    errors.NotAvailable: HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    errors.NotYet: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.QueueFull: HTTPStatus.TOO_MANY_REQUESTS,
    errors.DelayQueueFull: HTTPStatus.TOO_MANY_REQUESTS,
    errors.LimitReached: HTTPStatus.TOO_MANY_REQUESTS,
    errors.NoSubscribers: HTTPStatus.CONFLICT,
    errors.PartitionDropped: HTTPStatus.CONFLICT,
    errors.NotServing: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.NotOwner: HTTPStatus.TEMPORARY_REDIRECT,  # but 503 while the owner is not known
    errors.PubSubError: HTTPStatus.CONFLICT,
    errors.NotStarted: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.SubscriberNotFound: HTTPStatus.NOT_FOUND,
    errors.ProducerStopped: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.Disconnected: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ProtocolError: HTTPStatus.BAD_REQUEST,
    errors.Compacted: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.CursorMoved: HTTPStatus.CONFLICT,
    errors.LeaseLost: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.MetadataFailed: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ArchiveFailed: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.LogClosed: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.LogLocked: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.LogStopped: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.Corrupt: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.NewerFormat: HTTPStatus.INTERNAL_SERVER_ERROR,
}
# What HTTP itself refuses, before the broker hears of it.
HTTP_CODES: dict[str, tuple[HTTPStatus, str]] = {
    "malformed_body": (HTTPStatus.BAD_REQUEST, "The body is not what its Content-Type says"),
    "malformed_request": (HTTPStatus.BAD_REQUEST, "Not a request of HTTP/1.1"),
    "invalid_parameter": (HTTPStatus.BAD_REQUEST, "A parameter or header outside the rules"),
    "no_such_path": (HTTPStatus.NOT_FOUND, "Nothing is served there"),
    "method_not_allowed": (HTTPStatus.METHOD_NOT_ALLOWED, "The path is not for this method"),
    "not_acceptable": (HTTPStatus.NOT_ACCEPTABLE, "Accept names nothing that is offered"),
    "request_timeout": (HTTPStatus.REQUEST_TIMEOUT, "The request came too slowly"),
    "body_too_large": (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "More than one request may hold"),
    "unsupported_media_type": (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The Content-Type is not understood"),
    "busy": (HTTPStatus.TOO_MANY_REQUESTS, "Requests under way hold as much as they may"),
    "head_too_large": (HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The head of the request is too large"),
    "internal": (HTTPStatus.INTERNAL_SERVER_ERROR, "A fault of the node"),
    "too_many_connections": (HTTPStatus.SERVICE_UNAVAILABLE, "There are as many connections as there may be"),
}
# Their messages name files of the node: those are for its log.
_OF_THE_NODE = (
    errors.LogClosed, errors.LogLocked, errors.LogStopped, errors.Corrupt, errors.LeaseLost, errors.MetadataFailed,
    errors.ArchiveFailed, errors.NewerFormat,
)  # fmt: skip
_RETRYABLE = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_OURS = frozenset(("type", "title", "status", "detail", "code", "retryable"))

_logger: structlog.stdlib.BoundLogger = structlog.get_logger("sulina.http")
_encoder = msgspec.json.Encoder(enc_hook=str)


class HttpError(Exception):
    """A request that HTTP itself has an answer for; it never reached the broker. `code` is one of HTTP_CODES."""

    def __init__(self, code: str, detail: str, *, headers: Sequence[tuple[bytes, bytes]] = (), **facts: Any) -> None:
        super().__init__(detail)
        self.code, self.detail, self.headers, self.facts = code, detail, headers, facts


class ClientGone(Exception):
    """There is nobody left to answer."""


def malformed(detail: str) -> HttpError:
    """Return the error for a body that is not what its content type says."""
    return HttpError("malformed_body", detail)


def bad_parameter(name: str, detail: str) -> HttpError:
    """Return the error for a parameter of the URL, or a header, that is not allowed."""
    return HttpError("invalid_parameter", detail, parameter=name)


def method_not_allowed(method: str, allowed: Iterable[str]) -> HttpError:
    """Return the error for a path that exists, but not for this method."""
    allow = ", ".join(sorted(allowed))
    return HttpError(
        "method_not_allowed", f"{method} is not for this path, only {allow}", headers=((b"allow", allow.encode()),)
    )


def no_such_path(path: str) -> HttpError:
    """Return the error for a path where nothing is served."""
    shown = path if len(path) <= 200 else path[:197] + "..."
    return HttpError("no_such_path", f"nothing is at {shown}: see /docs")


def busy(used_bytes: int, limit_bytes: int) -> HttpError:
    """Return the error for a request that finds no room beside the bodies of others."""
    return HttpError(
        "busy",
        f"requests under way hold {used_bytes} bytes of {limit_bytes}: try again",
        used_bytes=used_bytes,
        limit_bytes=limit_bytes,
    )


def body_too_large(limit_bytes: int) -> HttpError:
    """Return the error for a body that is too large; the connection is closed, and the rest is not read."""
    detail = f"the body is over the limit of {limit_bytes} bytes: send several requests"
    return HttpError("body_too_large", detail, limit_bytes=limit_bytes)


def status_of(kind: type[SulinaError]) -> HTTPStatus:
    """Return the status of an error: its own, or that of its nearest parent with a row."""
    for base in kind.__mro__:
        if (status := STATUSES.get(base)) is not None:
            return status
    return HTTPStatus.INTERNAL_SERVER_ERROR


def title_of(kind: type[SulinaError]) -> str:
    """Return the first sentence of an error's docstring."""
    return (kind.__doc__ or kind.__name__).split("\n")[0].split(". ")[0].rstrip(".")


def all_codes() -> list[dict[str, Any]]:
    """Return every code that a node can answer with, for the documentation."""
    kinds, waiting = [], [SulinaError]
    while waiting:
        # Errors of Spark's side are elsewhere: they are no node's, even where a process has loaded both.
        found = [kind for kind in waiting.pop().__subclasses__() if kind.__module__ == errors.__name__]
        kinds += found
        waiting += found
    codes = {kind.code: (status_of(kind), title_of(kind), kind.retryable) for kind in kinds}
    codes |= {code: (status, title, status in _RETRYABLE) for code, (status, title) in HTTP_CODES.items()}
    return [
        {"code": code, "status": int(status), "title": title, "retryable": retryable}
        for code, (status, title, retryable) in sorted(codes.items(), key=lambda item: (item[1][0], item[0]))
    ]


def problem_body(
    *, status: int, code: str, title: str, detail: str, retryable: bool = False, facts: dict[str, Any] | None = None
) -> bytes:
    """Return the body of a problem; facts are members beside the standard ones."""
    members = {
        "type": f"/docs#{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        "retryable": retryable,
    }
    members.update((name, value) for name, value in (facts or {}).items() if name not in _OURS)
    return _encoder.encode(members)


def http_problem(code: str, detail: str, **facts: Any) -> bytes:
    """Return the body for one of HTTP_CODES."""
    status, title = HTTP_CODES[code]
    return problem_body(
        status=int(status), code=code, title=title, detail=detail, retryable=status in _RETRYABLE, facts=facts
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """An answer that says what went wrong."""

    status: int
    code: str
    headers: list[tuple[bytes, bytes]]
    body: bytes


def described(error: BaseException, scope: Scope) -> Problem:
    """Return the answer to a request that raised `error`."""
    headers: list[tuple[bytes, bytes]] = []
    if isinstance(error, SulinaError):
        status, code = int(status_of(type(error))), error.code
        if isinstance(error, NotOwner):
            if error.url:
                headers.append((b"location", _at_owner(error.url, scope)))
            else:
                status = int(HTTPStatus.SERVICE_UNAVAILABLE)
        body = _body_of(error, status)
    elif isinstance(error, HttpError):
        status, code = int(HTTP_CODES[error.code][0]), error.code
        body = http_problem(code, error.detail, **error.facts)
        headers += error.headers
    else:
        status, code = 500, "internal"
        body = _unexpected(error, scope)
    if status in RETRY_AFTER_STATUSES:
        headers.append((b"retry-after", b"%d" % RETRY_AFTER_SECONDS))
    headers += ((b"content-type", PROBLEM_JSON), (b"content-length", b"%d" % len(body)))
    return Problem(status, code, headers, body)


def _at_owner(url: str, scope: Scope) -> bytes:
    """Return the same request as the owner is to be asked."""
    path: bytes = scope.get(AT_OWNER) or scope["raw_path"]
    query: bytes = scope["query_string"]
    return url.rstrip("/").encode() + path + (b"?" + query if query else b"")


def _body_of(error: SulinaError, status: int) -> bytes:
    title, detail, facts = title_of(type(error)), str(error), error.details()
    if isinstance(error, _OF_THE_NODE):
        _logger.warning("http_refused", code=error.code, error=detail)
        detail, facts = f"{title}; the log of the node says more", {}
    return problem_body(
        status=status, code=error.code, title=title, detail=detail, retryable=error.retryable, facts=facts
    )


def _unexpected(error: BaseException, scope: Scope) -> bytes:
    error_id = secrets.token_hex(8)
    _logger.error(
        "http_request_failed", id=error_id, method=scope.get("method"), path=scope.get("path"), exc_info=error
    )
    detail = f"the node failed on this request; its log has the reason under {error_id}"
    return http_problem("internal", detail, id=error_id)
