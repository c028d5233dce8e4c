"""docs/reference/http.md: its commands work, its statuses and limits are the real ones."""

import asyncio
import re
import shlex
import shutil
from pathlib import Path

import pytest

from sulina.broker.broker import Broker
from sulina.listeners.http import make_app
from sulina.listeners.http_limits import DEFAULT_HTTP_LIMITS as LIMITS
from sulina.listeners.http_openapi import document
from sulina.listeners.http_problem import all_codes
from sulina.listeners.http_protocol import make_server
from tests.listeners.conftest import no_websocket

TEXT = (Path(__file__).parent.parent.parent / "docs" / "reference" / "http.md").read_text()


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the commands are those of curl")
async def test_every_command_of_the_page_works(broker: Broker) -> None:
    assert len(commands()) > 15
    server = make_server(make_app(broker, websocket=no_websocket), "127.0.0.1", 0, LIMITS)
    await server.start()
    try:
        for line in commands():
            command, _, expected = line.partition("  # ")
            words = shlex.split(command.replace("localhost:8080", f"127.0.0.1:{server.port}"))
            curl = await asyncio.create_subprocess_exec(
                *words, "--silent", "--show-error", "--write-out", "\n%{http_code}", stdout=asyncio.subprocess.PIPE
            )
            said, _ = await curl.communicate()
            status = said.decode().splitlines()[-1]
            assert curl.returncode == 0, line
            assert status == expected if expected else status.startswith("2"), f"{line}\n{said.decode()}"
    finally:
        await server.stop()


def test_every_path_is_in_the_table() -> None:
    for path in document(LIMITS, "1")["paths"]:
        assert path in TEXT, path


def test_codes_stand_beside_their_status() -> None:
    statuses = {entry["code"]: entry["status"] for entry in all_codes()}
    rows = re.findall(r"^\| ([0-9, ]+) \|[^|]*\|([^|]*)\|$", TEXT, re.MULTILINE)
    listed = {code: row for row, codes in rows for code in re.findall(r"`(\w+)`", codes)}
    assert len(listed) > 30
    for code, row in listed.items():
        assert str(statuses[code]) in row.split(", "), code
    named = {status for row, _ in rows for status in row.split(", ")}
    assert named == {str(status) for status in statuses.values()}


def test_the_limits_are_the_real_ones() -> None:
    expected = [
        f"{LIMITS.body_bytes_max >> 20} MiB (`limits.body_bytes_max`)",
        f"{LIMITS.records_max:,}",
        f"{LIMITS.head_bytes_max >> 10} KiB | 431",
        f"{LIMITS.head_timeout_seconds:.0f} s | 408, or closed",
        f"{LIMITS.body_timeout_seconds:.0f} s, and longer while {LIMITS.body_bytes_per_second_min >> 10} KiB",
        f"{LIMITS.connections_max:,} (`limits.connections_max`)",
        f"idle connection | {LIMITS.keep_alive_seconds:.0f} s",
        f"bodies over {LIMITS.small_body_bytes >> 10} KiB",
        f"of all requests together | {LIMITS.in_flight_body_bytes_max >> 20} MiB",
        f"message on a WebSocket | {LIMITS.frame_bytes_max >> 20} MiB",
        f"does not answer a ping | {LIMITS.pong_seconds:.0f} s",
    ]
    for text in expected:
        assert text in TEXT, text
