"""`sulina serve`: how it begins, how it ends, and what it says when it cannot."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import SECONDS_MAX, Served, ended, environment, started
from tests.support.otlp import attributes, collecting
from tests.support.serving import serving

ANY_PORT = "127.0.0.1:0"


def test_it_says_that_it_is_ready_in_one_line(tmp_path: Path) -> None:
    with started("serve", "--http", ANY_PORT, "--data", "data", "--log-level", "error", cwd=tmp_path) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert re.fullmatch(r"sulina is ready: http://127\.0\.0\.1:\d+  data data\n", line)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, rest, errors) == (0, b"", b"")


def test_environment_and_file_are_heard(tmp_path: Path) -> None:
    (tmp_path / "sulina.toml").write_text('data = "from-file"\nhttp = "127.0.0.1:0"\nbroker_id = "from-file"\n')
    with started("serve", "--json", cwd=tmp_path, SULINA_BROKER_ID="from-environment") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0
    assert (ready["data"], ready["broker_id"], ready["pid"]) == ("from-file", "from-environment", process.pid)
    assert (tmp_path / "from-file").is_dir()
    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert "node_ready" in events


def test_sigterm_ends_it_gracefully_and_the_data_is_there_again(tmp_path: Path) -> None:
    with serving(tmp_path / "data", is_forked=False) as first:
        node = Served(first)
        node.ok("topic", "create", "kept", "--partitions", "2")
        node.ok("produce", "kept", "--count", "1000", "--key", "k")
        node.ok("consume", "kept", "--subscription", "s", "--count", "400", "--format", "raw")
        with node.started("consume", "kept", "--start", "latest"):
            assert first.stop() == 0
    with serving(tmp_path / "data", is_forked=False) as second:
        node = Served(second)
        values = node.ok("consume", "kept", "--no-follow", "--json").lines
        assert sorted(int(record["value"][:15]) for record in values) == list(range(1000))
        assert node.ok("subscription", "show", "kept", "s", "--json").json["lag"] == 600
    assert second.process.returncode == 0


def test_requests_are_traced_where_an_endpoint_is_set_and_spans_leave_before_the_end(tmp_path: Path) -> None:
    with collecting() as collector:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        with serving(tmp_path / "data", environment=variables, is_forked=False) as node:
            httpx.put(f"{node.url}/v1/topics/default/traced", json={}).raise_for_status()
            records = {"records": [{"value": "a"}, {"value": "b"}]}
            httpx.post(f"{node.url}/v1/topics/default/traced/records", json=records).raise_for_status()
            assert node.stop() == 0
    put, post = collector.spans
    assert put.name == "PUT /v1/topics/{namespace}/{topic}"
    assert post.name == "POST /v1/topics/{namespace}/{topic}/records"
    told = attributes(post)
    assert (told["topic"], told["count"], told["http.response.status_code"]) == ("/default/traced", 2, 200)


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    program = """
import asyncio, sys
import sulina.node

class Slow:
    url = "http://127.0.0.1:1"

    @classmethod
    async def start(cls, settings):
        slow = cls()
        slow.failed = asyncio.get_running_loop().create_future()
        slow.warming = asyncio.get_running_loop().create_future()
        return slow

    async def stop(self):
        print("stopping", flush=True)
        await asyncio.sleep(3600)

sulina.node.Node = Slow
from sulina.cli import run
sys.exit(run(["serve", "--http", "127.0.0.1:0"]))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment(), cwd=tmp_path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"sulina is ready")
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == b"stopping\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 128 + signal.SIGINT
    finally:
        process.kill()
        process.communicate()


def test_a_port_in_use_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = ended("serve", "--http", address, "--data", str(tmp_path / "data"), "--log-level", "error")
    assert (done.code, done.out) == (1, "")
    assert f"{address} is in use" in done.err
    assert "--http" in done.err
    assert done.err.count("\n") == 1


def test_data_of_another_node_is_left_alone(tmp_path: Path) -> None:
    with serving(tmp_path / "data", is_forked=False) as node:
        done = ended("serve", "--http", ANY_PORT, "--data", str(tmp_path / "data"), "--json")
        assert done.code == 1
        assert done.error["code"] == "log_locked"
        assert "another node" in done.error["hint"]
        Served(node).ok("topic", "list")


def test_a_data_directory_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for data in (tmp_path / "file", tmp_path / "file" / "below"):
        done = ended("serve", "--http", ANY_PORT, "--data", str(data), "--log-level", "error")
        assert done.code == 1
        assert str(data) in done.err
        assert "--data" in done.err
        assert done.err.count("\n") == 1, done.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere: make test as another user")
def test_a_directory_of_somebody_else_is_said_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = ended("serve", "--http", ANY_PORT, "--data", str(tmp_path / "data"))
    assert done.code == 1
    assert "cannot write the data directory" in done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--http", "0.0.0.0:0"], "--insecure"),
        (["--http", "nonsense"], "HOST:PORT"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["--http", "192.0.2.1:0", "--insecure"], "cannot listen"),
    ],
)
def test_settings_that_cannot_be_are_said_in_one_line(tmp_path: Path, words: list[str], says: str) -> None:
    done = ended("serve", *words, "--log-level", "error", cwd=tmp_path)
    assert (done.code, done.out) == (1, "")
    assert says in done.err
    assert done.err.count("\n") == 1, done.err
