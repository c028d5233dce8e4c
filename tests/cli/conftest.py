"""A node in a process of its own, and commands against it, each in a process too: what a user has."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from sulina.cli import run, terminal
from tests.support.fork_server import ForkServer
from tests.support.serving import Serving, serving

SECONDS_MAX = 90.0


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "sulina.cli", *words]


def environment(**more: str) -> dict[str, str]:
    """Without anything that a developer may have set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SULINA_", "OTEL_"))}
    return kept | {"NO_COLOR": "1", "COLUMNS": "200"} | more


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on standard output."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """One document a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        """The error document on standard error."""
        assert self.out == "", self.out
        return dict(json.loads(self.err)["error"])


def ended(
    *words: str,
    given: str | bytes = b"",
    cwd: Path | None = None,
    seconds_max: float = SECONDS_MAX,
    **variables: str,
) -> Ended:
    """Run a command to its end, forked from a process that has imported everything."""
    data = given.encode() if isinstance(given, str) else given
    reading, writing = os.pipe()
    with open(reading, "rb") as stdin, open(writing, "wb") as pipe, tempfile.TemporaryFile() as stderr:
        process = ForkServer.shared().start(
            words,
            environment=environment(**variables),
            cwd=str(cwd or Path.cwd()),
            stderr=stderr.fileno(),
            stdin=stdin.fileno(),
        )
        threading.Thread(target=_feed, args=(pipe, data), daemon=True).start()
        with process.stdout:
            out = process.stdout.read()
        code = process.wait(seconds_max)
        stderr.seek(0)
        return Ended(code, out.decode(), stderr.read().decode())


def _feed(pipe: BinaryIO, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), pipe:  # the command may end before it has read everything
        pipe.write(data)


def told(capfd: pytest.CaptureFixture[str], *words: str) -> Ended:
    """Run a command to its end in this process: much quicker, where nothing depends on a process of its own."""
    terminal.console.cache_clear()
    code = run(words)
    return Ended(code, *capfd.readouterr())


@dataclass(slots=True)
class Served:
    """A node, and commands against it."""

    serving: Serving

    @property
    def url(self) -> str:
        return self.serving.url

    def run(self, *words: str, given: str | bytes = b"") -> Ended:
        """A command against it, whatever comes of it."""
        return ended(*words, given=given, SULINA_URL=self.url)

    def ok(self, *words: str, given: str | bytes = b"") -> Ended:
        """A command that must succeed."""
        done = self.run(*words, given=given)
        assert done.code == 0, (words, done)
        return done

    @contextmanager
    def started(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command that goes on; it is ended if it does not end by itself."""
        with started(*words, SULINA_URL=self.url) as process:
            yield process


@contextmanager
def started(*words: str, cwd: Path | None = None, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process that is killed at the end, if it has not ended by itself."""
    process = subprocess.Popen(
        command(*words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**variables),
        cwd=cwd,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for all tests of a module: each uses topics of its own."""
    with serving(tmp_path_factory.mktemp("node") / "data") as served:
        yield Served(served)
