"""Errors over HTTP: every error of the tree has a status, and nothing leaks."""

import json
from collections.abc import Iterator

import pytest
import structlog

from sulina import errors
from sulina.errors import SulinaError
from sulina.listeners.http_problem import (
    HTTP_CODES,
    STATUSES,
    HttpError,
    all_codes,
    body_too_large,
    described,
    status_of,
)

SCOPE = {"type": "http", "method": "GET", "path": "/x"}


def tree(kind: type[SulinaError] = SulinaError) -> Iterator[type[SulinaError]]:
    for child in kind.__subclasses__():
        if child.__module__ == "sulina.errors":  # those of Spark's side are raised by no node
            yield child
            yield from tree(child)


@pytest.mark.parametrize("kind", sorted(set(tree()), key=str))
def test_every_error_of_the_tree_has_a_row_in_the_table(kind: type[SulinaError]) -> None:
    assert any(base in STATUSES for base in kind.__mro__ if base is not SulinaError), "an error without a status"


def test_statuses_are_those_of_the_specification() -> None:
    expected = {
        errors.InvalidName: 422, errors.CorruptBatch: 422, errors.KeysSpanPartitions: 422, errors.BatchTooLarge: 413,
        errors.DecompressedTooLarge: 413, errors.VersionConflict: 409, errors.SchemaConflict: 409,
        errors.TopicNotFound: 404, errors.NotYet: 503, errors.OffsetOutOfRange: 416, errors.VersionNotRetained: 416,
        errors.QueueFull: 429, errors.LimitReached: 429, errors.Draining: 503, errors.NotServing: 503,
        errors.LogStopped: 503, errors.CorruptSegment: 500, errors.ProtocolError: 400, errors.NoSubscribers: 409,
        errors.PartitionDropped: 409, errors.DelayQueueFull: 429, errors.NotStarted: 503,
        errors.DuplicateSubscriber: 409, errors.SubscriberNotFound: 404, errors.SubscriberRemoved: 409,
    }  # fmt: skip
    assert {kind: int(status_of(kind)) for kind in expected} == expected


def test_a_problem_has_the_message_the_code_and_the_facts() -> None:
    problem = described(errors.VersionConflict(expected=3, current=5), SCOPE)
    assert problem.status == 409
    assert (b"content-type", b"application/problem+json") in problem.headers
    assert json.loads(problem.body) == {
        "type": "/docs#version_conflict",
        "title": "Another commit took the version",
        "status": 409,
        "detail": "expected version 3, but the log is at 5: read it again, then retry",
        "code": "version_conflict",
        "retryable": True,
        "expected": 3,
        "current": 5,
    }


@pytest.mark.parametrize(
    "error", [errors.QueueFull(waiting_bytes=1, limit_bytes=1), errors.NotServing(reason="x"), errors.NotYet("x")]
)
def test_what_can_succeed_later_says_when(error: SulinaError) -> None:
    assert (b"retry-after", b"1") in described(error, SCOPE).headers


def test_errors_of_the_disk_name_no_files_of_the_node() -> None:
    stopped = errors.LogStopped(path="/srv/secret/place", cause=OSError("disk on fire"))
    corrupt = errors.CorruptSegment(path="/srv/secret/place", position=1, offset=2, reason="bad")
    for error in (stopped, corrupt):
        body = described(error, SCOPE).body
        assert b"secret" not in body
        assert json.loads(body)["code"] == error.code


def test_an_unexpected_exception_is_logged_and_not_shown() -> None:
    with structlog.testing.capture_logs() as logs:
        problem = described(RuntimeError("password is hunter2"), SCOPE)
    body = json.loads(problem.body)
    assert problem.status == 500
    assert b"hunter2" not in problem.body
    [line] = logs
    assert line["event"] == "http_request_failed"
    assert line["id"] == body["id"]
    assert "hunter2" in str(line["exc_info"])


def test_facts_never_replace_the_standard_members() -> None:
    body = json.loads(described(HttpError("busy", "d", status="fine", title="none", more=1), SCOPE).body)
    assert (body["status"], body["title"], body["more"]) == (429, HTTP_CODES["busy"][1], 1)


def test_all_codes_are_listed_once() -> None:
    codes = [entry["code"] for entry in all_codes()]
    assert len(codes) == len(set(codes))
    assert {kind.code for kind in tree()} | set(HTTP_CODES) == set(codes)
    assert body_too_large(5).code in codes
