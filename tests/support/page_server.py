"""The node or the cluster that a page starts: at free ports, until another page starts another one."""

import json
import selectors
import shlex
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sulina.cli.cluster.local import free_ports
from tests.support.fork_server import ForkServer

START_SECONDS = 150.0  # of a cluster; the first time, kernels are compiled
STOP_SECONDS = 60.0
PORTS = range(8080, 8083)  # which pages name: of a node, or of the brokers of a cluster
HOST = "127.0.0.1"


def words_of(text: str) -> list[str] | None:
    """Return the words of a block that is a node or a cluster in the foreground; None: it is something else."""
    words = shlex.split(text, comments=True)
    starts = words[:2] == ["sulina", "serve"] or words[:3] == ["sulina", "cluster", "start"]
    return words if starts and "--help" not in words else None


def consecutive_ports() -> int:
    """Return a free port that is followed by others."""
    while True:
        first, *others = range(port := free_ports(1)[0], port + len(PORTS))
        if all(map(_is_free, others)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as bound:
        return bound.connect_ex((HOST, port)) != 0


class PageServer:
    """A `sulina serve` or `sulina cluster start` that runs."""

    def __init__(self, words: list[str], folder: Path, environment: Mapping[str, str], port: int, log: Path) -> None:
        self.words = words
        ports = ["--port", str(port)] if words[1] == "cluster" else ["--http", f"{HOST}:{port}"]
        with log.open("ab") as sink, open("/dev/null", "rb") as nothing:
            self._process = ForkServer.shared().start(
                [*words[1:], *ports, "--json"],
                environment=environment,
                cwd=str(folder),
                stderr=sink.fileno(),
                stdin=nothing.fileno(),
            )
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(START_SECONDS) else b""
        if not line:
            self.stop()
            raise AssertionError(f"{shlex.join(words)} is not ready:\n{log.read_text()[-4000:]}")
        self.facts = json.loads(line)

    def stop(self) -> None:
        """Stop it, as Ctrl-C does, and wait for its end."""
        for number in (signal.SIGINT, signal.SIGINT):  # a second one ends it at once
            self._process.send_signal(number)
            try:
                self._process.wait(STOP_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue
        self._process.kill()
        self._process.wait(STOP_SECONDS)
        self._process.stdout.close()
