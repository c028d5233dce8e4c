"""What all tests share: who runs them, and a summary of the kill points."""

import datetime
import os
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from sulina.storage.steps import Step

TOGETHER = ("tests/spark/", "tests/cluster/", "tests/pubsub/")  # what is costly to start is started by one worker
ALONE = "tests/spark/test_exactly_once.py"  # its sessions are in processes of their own
FIRST = (
    *TOGETHER,
    ALONE,
    "tests/crash/test_crash_images.py",
    "tests/blackbox/test_kills.py",
    "tests/blackbox/test_abuse.py",
)

os.environ.setdefault("SULINA_DAY", datetime.datetime.now(datetime.UTC).date().isoformat())  # draws tests/mutants
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the many processes that tests start would each compile everything
# No Java lives long here: what is compiled well comes too late for it.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]
    """A file's tests, or those of a folder that share something, run on one worker in their order."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in TOGETHER if file.startswith(folder) and file != ALONE), file)

    def _assign_work_unit(self, node: Any) -> None:
        for scope in reversed(FIRST):
            if scope in self.workqueue:
                self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst:
    """Whatever `--dist` says."""
    return LongestFirst(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many of the log's steps a process was killed at, in this run, and recovered from."""
    passed = terminalreporter.getreports("passed")
    covered = {value for report in passed for name, value in report.user_properties if name == "kill_point"}
    if covered:
        terminalreporter.write_line(f"kill points covered {len(covered)} / {len(Step)}")
