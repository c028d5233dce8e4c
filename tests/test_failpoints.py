"""Failpoints: off unless switched on, and then at one point, about one subject, for the n-th time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sulina.failpoints import FAILPOINTS, MARKS, Failpoint, failpoints_from_environment, no_failpoints, reach

REACH_TWICE = """
from sulina.failpoints import Failpoint, failpoints_from_environment
hook = failpoints_from_environment()
for _ in range(2):
    hook(Failpoint.APPEND_SYNCED)
    print("reached", flush=True)
"""


def run(wanted: str) -> tuple[int, int]:
    """Return how a process ended that reaches one point twice, and how often it went on."""
    environment = {**os.environ, FAILPOINTS: wanted}
    done = subprocess.run([sys.executable, "-c", REACH_TWICE], env=environment, capture_output=True, check=False)
    return done.returncode, done.stdout.count(b"reached")


def test_they_are_off_unless_the_environment_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FAILPOINTS, raising=False)
    assert failpoints_from_environment() is no_failpoints
    monkeypatch.setenv(FAILPOINTS, "append.synced:9")
    assert failpoints_from_environment() is reach


def test_a_process_ends_itself_at_the_point_for_the_nth_time() -> None:
    assert run("append.synced") == (-signal.SIGKILL, 0)
    assert run("append.synced:2") == (-signal.SIGKILL, 1)
    assert run("append.synced:3=kill") == (0, 2)
    assert run("append.written") == (0, 2)


def test_processes_count_together_and_stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _pid, number: sent.append(number))
    monkeypatch.setenv(MARKS, str(tmp_path))
    monkeypatch.setenv(FAILPOINTS, "commit.done@orders:2=stop")
    reach(Failpoint.COMMIT_DONE, "/lake/raw")
    reach(Failpoint.COMMIT_BEGUN, "/lake/orders")
    (tmp_path / "1").touch()  # another process was there
    reach(Failpoint.COMMIT_DONE, "/lake/orders")
    assert sent == [signal.SIGSTOP]
    reach(Failpoint.COMMIT_DONE, "/lake/orders")
    assert sent == [signal.SIGSTOP]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3"]


def test_names_are_used_once() -> None:
    assert len({point.value for point in Failpoint}) == len(Failpoint.__members__)
