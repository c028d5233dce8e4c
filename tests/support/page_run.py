"""A reader who types the blocks of pages into terminals, in one folder that is empty at first.

Blocks are run in their order, and the first that does not do what its page says ends the run with `PageFault`. A node
or a cluster that a block starts goes on, through other pages too, until a block starts another: one at a time, as both
listen on port 8080. The ports that pages name are free ones here, and `.venv/bin/` is where the tests' Python is.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.forked_python import asking, forks
from tests.support.page_blocks import Block, PageFault
from tests.support.page_python import Typing
from tests.support.page_server import HOST, PORTS, PageServer, consecutive_ports, words_of
from tests.support.shown_output import missing

BLOCK_SECONDS_MAX = 240.0
UNTIL_SECONDS_MAX = 60.0
KEPT, DROPPED = ("SULINA_ETCD",), ("SULINA_", "PYTEST_")  # of the variables of the tests
PAUSE_SECONDS = 0.2  # between two runs of a block that waits for something outside
OUTPUT_CHARACTERS = 4000  # of a block that failed
SHELL = """. "$PAGE_STATE"
trap 'export -p > "$PAGE_STATE"' EXIT
set -eo pipefail
"""
# What the reader of a page has in .venv/bin, without a second of imports for each use.
PROGRAMS = {"sulina": "-m sulina.cli", "python": "-m"}
_NAMED_ADDRESS = re.compile(rf"(localhost|127\.0\.0\.1):({'|'.join(map(str, PORTS))})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A block that was run, and for how long."""

    block: Block
    seconds: float


class PageReader:
    """Runs pages after each other."""

    def __init__(self, folder: Path, state: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._state = folder, state
        self._port = consecutive_ports()
        self._server: PageServer | None = None
        self._log = state / "server.log"
        self._environment: dict[str, str] = {
            **{name: value for name, value in os.environ.items() if name in KEPT or not name.startswith(DROPPED)},
            **environment,
            "PATH": f"{_programs(state)}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(state),
            "SULINA_URL": f"http://{HOST}:{self._port}",
            "TMPDIR": str(state),
            "XDG_RUNTIME_DIR": str(state),
            "PAGE_STATE": str(state / "exports"),
        }

    def read(self, blocks: Sequence[Block], done: Callable[[Ran], None]) -> None:
        """Run the blocks of one page, in order, and tell of each.

        Raises:
            PageFault: one of them does not do what the page says.
        """
        (self._state / "exports").write_text("")
        with contextlib.ExitStack() as terminals:
            page = _Page(self, terminals)
            for number, block in enumerate(blocks):
                if block.why_not is None:
                    started = time.monotonic()
                    page.take(number, block, blocks[number + 1 :])
                    done(Ran(block=block, seconds=time.monotonic() - started))

    def close(self) -> None:
        """Stop the node or the cluster that runs."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def serve(self, words: list[str]) -> None:
        """Start a node or a cluster, unless it runs already; one that is something else is stopped before."""
        if self._server is not None and self._server.words == words:
            return
        self.close()
        self._server = PageServer(words, self._folder, self._environment, self._port, self._log)

    def as_typed(self, text: str) -> str:
        """Return a text of a page as it is run here."""
        text = text.replace(".venv/bin/", "")
        return _NAMED_ADDRESS.sub(lambda found: f"{found[1]}:{self._port + int(found[2]) - PORTS[0]}", text)

    def as_shown(self, text: str) -> str:
        """Return an output with the ports that pages have."""
        for number, named in enumerate(PORTS):
            text = text.replace(str(self._port + number), str(named))
        return text

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def state(self) -> Path:
        return self._state

    @property
    def environment(self) -> Mapping[str, str]:
        return self._environment

    def use(self, environment: Mapping[str, str]) -> None:
        """Add variables to the environment of all later blocks."""
        self._environment |= environment


class _Page:
    """The terminals in which one page is typed."""

    def __init__(self, reader: PageReader, terminals: contextlib.ExitStack) -> None:
        self._reader, self._terminals = reader, terminals
        self._typing: Typing | None = None
        self._typed = reader.state / "typed.txt"
        self._printed = ""

    def take(self, number: int, block: Block, after: Sequence[Block]) -> None:
        """Run a block, write it to its file, or compare it with what was printed last."""
        text = self._reader.as_typed(block.text)
        if "file" in block.notes:
            file = self._reader.folder / block.notes["file"]
            file.write_text(text)
        elif block.language == "text":
            if (line := self._missing(block)) is not None:
                raise PageFault(f"{block.place}: {line!r} was not printed:\n{self._printed[-OUTPUT_CHARACTERS:]}")
        elif block.language == "sh" and (words := words_of(text)) is not None:
            self._reader.serve(words)
        elif "background" in block.notes:
            self._go_on(block, self._command(number, block, text))
        elif "until" in block.notes:
            self._repeat(number, block, text, after[0])
        else:
            self._run(number, block, text)

    def _missing(self, shown: Block) -> str | None:
        return missing(shown.text, self._printed, is_similar="similar" in shown.notes)

    def _run(self, number: int, block: Block, text: str) -> None:
        if "session" in block.notes:
            code, printed = self._type(number, text)
        else:
            code, printed = self._to_its_end(block, self._command(number, block, text))
        self._printed = self._reader.as_shown(printed)
        if code != (wanted := int(block.notes.get("exit", 0))):
            raise PageFault(f"{block.place}: ended with {code}, not {wanted}:\n{self._printed[-OUTPUT_CHARACTERS:]}")

    def _repeat(self, number: int, block: Block, text: str, shown: Block) -> None:
        until = time.monotonic() + UNTIL_SECONDS_MAX
        while True:
            self._run(number, block, text)
            if self._missing(shown) is None or time.monotonic() > until:  # the text block itself says what is missing
                return
            time.sleep(PAUSE_SECONDS)

    def _command(self, number: int, block: Block, text: str) -> list[str]:
        if block.language == "sh":
            return ["bash", "-c", SHELL + text]
        name = f"block_{number}"
        (self._reader.state / f"{name}.py").write_text(text)
        return ["python", name]

    def _to_its_end(self, block: Block, command: list[str]) -> tuple[int, str]:
        with tempfile.TemporaryFile() as output:
            process = self._start(command, output.fileno())
            try:
                code = process.wait(BLOCK_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                raise PageFault(f"{block.place}: it has not ended within {BLOCK_SECONDS_MAX:g} s") from None
            finally:
                _end(process)
            output.seek(0)
            return code, output.read().decode(errors="replace")

    def _go_on(self, block: Block, command: list[str]) -> None:
        """Leave it running until the page ends; one that has ended by then has ended well."""
        output = self._terminals.enter_context((self._reader.state / f"background_{block.line}.txt").open("w+b"))
        process = self._start(command, output.fileno())

        def end() -> None:
            if process.poll() not in (None, 0):
                output.seek(0)
                raise PageFault(f"{block.place}: ended with {process.returncode}:\n{output.read().decode()}")
            _end(process)

        self._terminals.callback(end)

    def _start(self, command: list[str], output: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd=self._reader.folder,
            env=self._reader.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def _type(self, number: int, text: str) -> tuple[int, str]:
        if self._typing is None:
            output = self._terminals.enter_context(self._typed.open("wb"))
            self._typing = Typing(self._reader.folder, self._reader.environment, output)
            self._terminals.callback(self._typing.close)
        file = self._reader.state / f"block_{number}.py"
        file.write_text(text)
        before = self._typed.stat().st_size
        code = self._typing.run(file, BLOCK_SECONDS_MAX)
        return code, self._typed.read_bytes()[before:].decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(BLOCK_SECONDS_MAX)


def _programs(state: Path) -> Path:
    """Write the programs that stand for those of .venv/bin, and return their folder."""
    folder = state / "bin"
    folder.mkdir()
    plain = shlex.quote(sys.executable)
    for name, words in PROGRAMS.items():
        program = folder / name
        forked = f'{shlex.join(asking(forks().address))} {words} "$@"'
        program.write_text(f'#!/bin/sh\n[ "$1" != -c ] || exec {plain} "$@"\nexec {forked}\n')
        program.chmod(0o755)
    return folder


@contextlib.contextmanager
def page_reader(folder: Path, state: Path, python: Mapping[str, str]) -> Iterator[PageReader]:
    """A reader in an empty folder; `python` is the environment of its programs."""
    folder.mkdir()
    state.mkdir()
    reader = PageReader(folder, state, python)
    try:
        yield reader
    finally:
        reader.close()
