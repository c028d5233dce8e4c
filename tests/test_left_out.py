"""A run says what it left out; a missing program fails it, unless it is told to do without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import left_out, needs

ROOT = Path(__file__).parent.parent


def report(nodeid: str, seconds: float = 0.0, reason: str | None = None) -> pytest.TestReport:
    longrepr = (nodeid, 1, f"Skipped: {reason}") if reason else None
    outcome = "skipped" if reason else "passed"
    return pytest.TestReport(nodeid, (nodeid, 0, ""), {}, outcome, longrepr, "call", duration=seconds)  # type: ignore[arg-type]


def test_what_was_left_out_is_counted_by_reason() -> None:
    reports = [report("a", reason="slow: make examples"), report("b", reason="slow: make examples"), report("c")]
    assert left_out.left_out(reports) == ["2 tests: slow: make examples"]


def test_a_folder_over_its_budget_is_named() -> None:
    reports = [report("tests/spark/test_a.py::x", 70.0), report("tests/spark/test_b.py::x", 40.0)]
    reports += [report("tests/core/test_c.py::x", 9.0), report("tests/test_d.py::x", 99.0)]
    seconds = left_out.seconds_by_folder(reports)
    assert left_out.overruns(seconds, {"spark": 100, "core": 10}) == [
        "tests/spark took 110 s, over its budget of 100 s"
    ]


def test_every_folder_of_tests_has_a_budget() -> None:
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    assert folders == set(left_out.BUDGETS)


def check(**environment: str) -> subprocess.CompletedProcess[str]:
    """Run the check that `make test` starts with, on a machine that has neither program."""
    bare = {"PATH": "/nonexistent", "SULINA_ETCD": "/nonexistent/etcd", "JAVA_HOME": "/nonexistent"}
    given = {**os.environ, **bare, **environment}
    command = [sys.executable, "-m", "tests.support.needs"]
    return subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)


def test_a_missing_program_fails_the_run_with_how_to_get_it() -> None:
    done = check()
    assert done.returncode == 1
    assert "make test needs etcd" in done.stderr
    assert "SULINA_WITHOUT=etcd" in done.stderr
    assert "make test needs java" in done.stderr


def test_a_run_that_is_told_to_do_without_goes_on() -> None:
    assert check(SULINA_WITHOUT="etcd,java").returncode == 0
    only_etcd = check(SULINA_WITHOUT="etcd")
    assert only_etcd.returncode == 1
    assert "needs java" in only_etcd.stderr
    assert "needs etcd" not in only_etcd.stderr


def test_to_do_without_something_unknown_is_refused() -> None:
    assert "it takes etcd, java" in check(SULINA_WITHOUT="jaava").stderr


def test_a_test_is_left_out_or_fails_without_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "why_missing", lambda name: f"there is no {name}")
    monkeypatch.setenv("SULINA_WITHOUT", "etcd")
    with pytest.raises(pytest.skip.Exception, match="needs etcd"):
        needs.require("etcd")
    monkeypatch.setenv("SULINA_WITHOUT", "java")
    with pytest.raises(pytest.fail.Exception, match="there is no etcd; or SULINA_WITHOUT=etcd"):
        needs.require("etcd")
