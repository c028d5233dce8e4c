"""The examples of publish/subscribe, as their docstrings say, against a node in their process and one in its own."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.support import serving

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_SECONDS_MAX = 60


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[serving.Serving]:
    """One that all of them share."""
    with serving.serving(tmp_path_factory.mktemp("pubsub") / "data") as found:
        yield found


def run(name: str, *arguments: str) -> str:
    """What it says, when it has ended well."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


class Terminal:
    """An example that goes on, as somebody in front of it sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._in: IO[str] = process.stdin
        self._out: IO[str] = process.stdout

    def type(self, line: str) -> None:
        self._in.write(f"{line}\n")
        self._in.flush()

    def sees(self, text: str) -> None:
        """The next line; the test's own time limit ends the wait."""
        assert self._out.readline().strip() == text

    def end_of_input(self) -> int:
        """ctrl-D; its exit code."""
        self._in.close()
        return self._process.wait(RUN_SECONDS_MAX)


@contextlib.contextmanager
def started(name: str, *arguments: str) -> Iterator[Terminal]:
    """It is ended with the `with`, if it has not by itself."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Terminal(process)
        finally:
            process.kill()


@pytest.mark.timeout(RUN_SECONDS_MAX)
def test_people_in_a_chat_hear_each_other_and_not_themselves(node: serving.Serving) -> None:
    with started("chat.py", "ada", "--url", node.url) as ada:
        ada.sees("you are ada in /default/chat; end with ctrl-D")
        with started("chat.py", "bob", "--url", node.url) as bob:
            bob.sees("you are bob in /default/chat; end with ctrl-D")
            ada.sees("bob has come")
            ada.type("hello, bob")
            bob.sees("ada says: hello, bob")
            bob.type("hello, ada")
            ada.sees("bob says: hello, ada")
            with started("chat.py", "cem", "--url", node.url) as cem:
                cem.sees("you are cem in /default/chat; end with ctrl-D")
                for other in (ada, bob):
                    other.sees("cem has come")
                assert cem.end_of_input() == 0
                for other in (ada, bob):
                    other.sees("cem has left")
            assert bob.end_of_input() == 0
        ada.sees("bob has left")
        assert ada.end_of_input() == 0


def test_a_chat_without_a_node_says_what_to_do() -> None:
    command = [sys.executable, str(EXAMPLES / "chat.py"), "ada", "--url", "http://127.0.0.1:9"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
    assert done.returncode == 1
    assert "sulina serve" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("is_remote", [False, True], ids=["memory", "node"])
def test_every_worker_gets_every_message(node: serving.Serving, is_remote: bool) -> None:
    url = ["--url", node.url] if is_remote else []
    said = run("fan_out.py", "--workers", "4", "--messages", "1000", *url)
    assert "1,000 messages were accepted" in said
    assert len(re.findall(r"^(?:slow worker|worker-\d) +1,000 messages", said, re.MULTILINE)) == 4
    assert "in all 4,000 deliveries" in said


@pytest.mark.parametrize("is_remote", [False, True], ids=["memory", "node"])
def test_each_request_gets_its_own_reply(node: serving.Serving, is_remote: bool) -> None:
    said = run("request_reply.py", *(["--url", node.url] if is_remote else []))
    assert re.findall(r"^the sum of 1 to (\d+) is (\d+)$", said, re.MULTILINE) == SUMS


@pytest.mark.timeout(RUN_SECONDS_MAX)
def test_a_server_and_a_client_of_their_own_find_each_other(node: serving.Serving) -> None:
    with started("request_reply.py", "server", "--url", node.url) as server:
        server.sees("the server waits for requests")
        said = run("request_reply.py", "client", "--url", node.url)
        assert re.findall(r"^the sum of 1 to (\d+) is (\d+)$", said, re.MULTILINE) == SUMS


SUMS = [("2", "3"), ("4", "10"), ("10", "55"), ("100", "5050")]
