"""The processes of a benchmark: started, asked, looked at, and ended."""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
END_SECONDS = 60
_COMPILED = tempfile.TemporaryDirectory(prefix="benchmark-")  # removed at the end


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers."""

    process: subprocess.Popen[str]
    port: int
    start_seconds: float = 0.0

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def cpu_seconds(self) -> float:
        """Of all its threads, so far."""
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        """What is resident."""
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            found = [line.split()[1] for line in file if line.startswith("VmRSS:")]
        return int(found[0]) / 1024


class Load:
    """The load's process. It does one thing at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Have something done, and what it measured."""
        self.begin(name, **arguments)
        return self.finish()

    def begin(self, name: str, **arguments: Any) -> None:
        """Without waiting for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, arguments]) + "\n")
        self._process.stdin.flush()

    def finish(self) -> dict[str, Any]:
        """What was begun last."""
        answer: dict[str, Any] = json.loads(_line(self._process))
        return answer


@contextmanager
def sulina_server(data: str) -> Iterator[Server]:
    """A node on a directory, as anybody would start it."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "sulina.cli", "serve", "--data", data, "--http", "127.0.0.1:0", "--json"]
    with _running([*command, "--log-level", "warning"]) as process:
        port = int(json.loads(_line(process))["url"].rpartition(":")[2])
        yield Server(process, port, time.perf_counter() - started)


def put_topic(server: Server, name: str, settings: dict[str, Any] | None = None) -> str:
    """A topic with one partition."""
    body = json.dumps(settings or {}).encode()
    request = urllib.request.Request(f"{server.url}/v1/topics/default/{name}", body, method="PUT")
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request) as answer:
        assert answer.status in (200, 201)
    return f"/default/{name}"


@contextmanager
def bare_server() -> Iterator[Server]:
    """The peer."""
    with _running([sys.executable, "-m", "benchmarks.serving.bare"]) as process:
        yield Server(process, int(_line(process)))


@contextmanager
def load(module: str = "load") -> Iterator[Load]:
    """A load that has nothing to do yet; `module` is of this package."""
    with _running([sys.executable, "-m", f"benchmarks.serving.{module}"]) as process:
        yield Load(process)


@contextmanager
def client(url: str, topic: str, start: str, warm: int, until: str) -> Iterator[IO[str]]:
    """A consumer that is attached, with what it prints."""
    command = [sys.executable, "-m", "benchmarks.serving.consume", url, topic, start, str(warm), until]
    with _running(command) as process:
        assert _line(process) == "attached\n"
        assert process.stdout is not None
        yield process.stdout


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ChildProcessError(f"{process.args!r} ended with {process.wait()}")
    return line


def _environment() -> dict[str, str]:
    """With compiled modules, as an installation has them, also where none may be written beside the source."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return environment | {"PYTHONPYCACHEPREFIX": _COMPILED.name}


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=_environment()
    )
    try:
        yield process
    finally:
        # Ours end with their standard input; a node is asked to stop.
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        if "sulina.cli" in command:
            process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        process.stdout.close()
