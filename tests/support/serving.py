"""Real `sulina serve` processes for black-box tests: started, watched, stopped or killed."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.fork_server import Forked, ForkServer

START_SECONDS = 60.0
STOP_SECONDS = 30.0

Process = subprocess.Popen[bytes] | Forked


@dataclass(slots=True)
class Serving:
    """A node in a process of its own."""

    process: Process
    url: str
    data: Path
    log: Path  # what it says on standard error

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def websocket_url(self) -> str:
        return f"ws://{self.host}:{self.port}/v1/ws"

    def rss_bytes(self) -> int:
        """What the process holds in memory now."""
        return self._status("VmRSS") * 1024

    def rss_bytes_max(self) -> int:
        """The most it has held since it started."""
        return self._status("VmHWM") * 1024

    def _status(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
        raise AssertionError(f"the process has no {name}")

    def log_lines(self) -> list[str]:
        """Its log so far."""
        return self.log.read_text().splitlines()

    def errors(self) -> list[str]:
        """The lines of its log that tell of a fault."""
        return [line for line in self.log_lines() if '"level":"error"' in line or '"level":"critical"' in line]

    def stop(self) -> int:
        """Gracefully, by SIGTERM; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """By SIGKILL."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)


def start(
    data: Path,
    *,
    environment: Mapping[str, str] | None = None,
    http: str = "127.0.0.1:0",
    arguments: Sequence[str] = (),
    is_forked: bool = False,
) -> Serving:
    """Start a node on a free port, and return when it serves.

    `is_forked`: it is forked from a process that has imported everything, and spares a second of the processor.
    """
    data.mkdir(parents=True, exist_ok=True)
    log = data.parent / f"{data.name}.log"
    words = ["serve", "--json", "--data", str(data), "--http", http, "--log-format", "json", *arguments]
    variables, folder = {**os.environ, **(environment or {})}, str(data.parent)
    process: Process
    with log.open("ab") as sink:
        if is_forked:
            server = ForkServer.shared()
            process = server.start(words, environment=variables, cwd=folder, stderr=sink.fileno())
        else:
            process = subprocess.Popen(
                [sys.executable, "-m", "sulina.cli", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=sink,
                env=variables,
                cwd=folder,
            )
    try:
        line = _first_line(process)
        assert line, f"the node did not start:\n{log.read_text()[-4000:]}"
        return Serving(process, json.loads(line)["url"], data, log)
    except BaseException:
        end(process)
        raise


@contextlib.contextmanager
def serving(
    data: Path,
    *,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    is_forked: bool = True,
) -> Iterator[Serving]:
    """A node for the time of a `with`; whatever happens, its process is gone afterwards.

    `is_forked` is False where its memory, its start or a preloaded library matters.
    """
    node = start(data, environment=environment, arguments=arguments, is_forked=is_forked)
    try:
        yield node
    finally:
        if node.process.poll() is None:
            node.process.send_signal(signal.SIGTERM)
        end(node.process, STOP_SECONDS)


def end(process: Process, seconds: float = 0) -> None:
    """Wait for the end of a process, or make one; let go of its pipe."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS)
    if process.stdout is not None:
        process.stdout.close()


def _first_line(process: Process) -> bytes:
    """What the node says when it is ready; nothing if it ended."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline() if selector.select(START_SECONDS) else b""
