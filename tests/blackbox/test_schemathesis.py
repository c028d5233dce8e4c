"""The OpenAPI document against the server that publishes it: what it does not promise must not come.

schemathesis makes requests out of the document, right and wrong ones, and holds every answer to it: no 500, no
undocumented status, content type or shape, wrong data refused, right data accepted. A 503 is an answer that the
document explains ("not yet"); 409, 416 and 422 are the rules that JSON Schema cannot say.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.support.serving import Serving, serving

RUN = "from schemathesis.cli import schemathesis; schemathesis()"
SECONDS_MAX = 200  # it takes a tenth of it; other tests may run at the same time
RSS_BYTES_MAX = 600 << 20
CHECKS = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503]

[checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 409, 416, 422, 429, 503]
"""
# Requests to things that exist, so that they get past the first door.
EXISTING = """
[parameters]
namespace = "default"
topic = "orders"
partition = 0
subscription = "billing"
reader = "nightly"
wait_ms = 20
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("schemathesis") / "data") as node:
        put(node, "/v1/topics/default/orders")
        put(node, "/v1/topics/default/orders/subscriptions/billing")
        yield node


def put(node: Serving, path: str) -> None:
    with urlopen(Request(node.url + path, method="PUT")) as response:
        assert response.status == 201


def run_schemathesis(node: Serving, directory: Path, config: str, *options: str) -> None:
    file = directory / "schemathesis.toml"
    file.write_text(config)
    command = [sys.executable, "-c", RUN, "--config-file", str(file), "run", f"{node.url}/openapi.json"]
    # Events have no end; they have tests of their own.
    always = ["--checks", "all", "--exclude-path", "/v1/events", "--warnings", "off", "--seed", "3", "--no-color"]
    run = subprocess.run(
        [*command, *always, *options],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env={"PATH": "/usr/bin:/bin", "HOME": str(directory), "PYTHONIOENCODING": "utf-8"},
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-4000:]
    assert "No issues found" in run.stdout
    assert node.process.poll() is None, "the node has died"
    assert node.errors() == []
    assert node.rss_bytes_max() < RSS_BYTES_MAX


@pytest.mark.timeout(SECONDS_MAX + 60)
def test_anything_that_can_be_asked_is_answered_as_documented(node: Serving, tmp_path: Path) -> None:
    run_schemathesis(node, tmp_path, CHECKS, "--max-examples", "4")


@pytest.mark.timeout(SECONDS_MAX + 60)
def test_what_exists_answers_as_documented(node: Serving, tmp_path: Path) -> None:
    # The run before this one may have deleted it.
    with urlopen(Request(node.url + "/v1/topics/default/orders", method="PUT")):
        pass
    with urlopen(Request(node.url + "/v1/topics/default/orders/subscriptions/billing", method="PUT")):
        pass
    options = ["--phases", "fuzzing", "--max-examples", "8", "--exclude-method", "DELETE"]
    run_schemathesis(node, tmp_path, EXISTING + CHECKS, *options)
    with urlopen(node.url + "/v1/topics/default/orders/partitions/0") as response:
        assert json.load(response)["end_offset"] > 0, "nothing was published"
