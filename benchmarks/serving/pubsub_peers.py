"""The servers that publish/subscribe is compared with, as their users would start them, on ports that are free.

`tools/install_peers.sh` gets them. One that is not there is no error: `Missing` says so, and the benchmark goes on.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.support.etcd import free_ports

END_SECONDS = 30
START_ATTEMPTS_MAX = 3  # a port that was free may be taken before the server has it
LINES_KEPT = 20
HOST = "127.0.0.1"


class Missing(Exception):
    """A peer is not on this machine."""


@contextmanager
def nats_servers(count: int = 1) -> Iterator[list[str]]:
    """Where they are: one, or several that know each other."""
    program = _program("nats-server", "nats")
    with ExitStack() as stack:
        urls: list[str] = []
        routes = ""
        for number in range(count):
            command = [program, "--addr", HOST, "--port", "-1"]
            if count > 1:
                command += ["--name", f"n{number}", "--cluster_name", "fan-out", "--cluster", f"nats://{HOST}:-1"]
                command += ["--routes", routes] if routes else []
            process = stack.enter_context(_running(command))
            urls.append(f"nats://{HOST}:{_said(process, r'client connections on [^ ]*:([0-9]+)')}")
            if count > 1:  # the others come to the first, and hear of each other
                port = _said(process, r"route connections on [^ ]*:([0-9]+)")
                routes = routes or f"nats://{HOST}:{port}"
            _drain(process)
        yield urls


@contextmanager
def redis_server() -> Iterator[str]:
    """Where it is. It saves nothing: what is published passes through."""
    program = _program("redis-server", "redis")
    for attempt in range(START_ATTEMPTS_MAX):
        (port,) = free_ports(1)
        command = [program, "--bind", HOST, "--port", str(port), "--save", "", "--appendonly", "no"]
        with _running(command) as process:
            try:
                _said(process, "Ready to accept connections")
            except ChildProcessError:
                if attempt == START_ATTEMPTS_MAX - 1:
                    raise
                continue
            _drain(process)
            yield f"redis://{HOST}:{port}"
            return


def _program(name: str, package: str) -> str:
    """That of the virtual environment, or of the PATH, or where Debian has servers. Missing."""
    folders = [os.path.dirname(sys.executable), os.environ.get("PATH", ""), "/usr/sbin"]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise Missing(f"there is no {name}: run `tools/install_peers.sh .venv`")
    if importlib.util.find_spec(package) is None:
        raise Missing(f"there is no Python client for {name}: run `make setup`")
    return found


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def _said(process: subprocess.Popen[str], pattern: str) -> str:
    """The part of its next line like this that the pattern asks for, or the line."""
    assert process.stdout is not None
    heard: deque[str] = deque(maxlen=LINES_KEPT)
    for line in process.stdout:
        heard.append(line)
        if found := re.search(pattern, line):
            return found.group(found.lastindex or 0)
    raise ChildProcessError(f"{process.args!r} ended with {process.wait()}:\n{''.join(heard)}")


def _drain(process: subprocess.Popen[str]) -> None:
    """Nobody reads what it says from now on, and it must not wait for that."""
    assert process.stdout is not None
    threading.Thread(target=deque, args=(process.stdout, 0), daemon=True).start()
