"""Logs are events with fields, whoever speaks."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from sulina.node import logs


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_an_event_is_one_line_of_json() -> None:
    stream = io.StringIO()
    logs.configure("json", "info", stream=stream)
    structlog.get_logger().info("topic_unloaded", topic="/default/orders", offset=41)
    line = json.loads(stream.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {"level": "info", "event": "topic_unloaded", "topic": "/default/orders", "offset": 41}


def test_what_libraries_say_comes_out_the_same_way() -> None:
    stream = io.StringIO()
    logs.configure("json", "info", stream=stream)
    logging.getLogger("library.part").warning("lost %d", 3)
    logging.getLogger("uvicorn.access").info("GET / 200")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "lost 3"
    assert json.loads(line)["logger"] == "library.part"


def test_an_exception_is_told_within_its_line() -> None:
    stream = io.StringIO()
    logs.configure("json", "info", stream=stream)
    try:
        raise ValueError("bad")
    except ValueError:
        structlog.get_logger().exception("request_failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: bad" in json.loads(line)["exception"]


def test_less_than_the_level_is_not_told() -> None:
    stream = io.StringIO()
    logs.configure("console", "warning", stream=stream)
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud", topic="/default/orders")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()
    assert "topic=/default/orders" in stream.getvalue()


def test_a_log_that_nobody_reads_stops_nothing() -> None:
    stream = io.StringIO()
    logs.configure("json", "info", stream=stream)
    stream.close()
    structlog.get_logger().info("into_the_void")
