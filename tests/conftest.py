"""What all tests share: who runs them, and a summary of the kill points."""

import atexit
import datetime
import gc
import os
import sys
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from sulina.failpoints import STORAGE_FAILPOINTS
from tests.support import left_out, needs, spark_home

TOGETHER = ("tests/spark/", "tests/cluster/", "tests/pubsub/")  # what is costly to start is started by one worker
ALONE = (  # of these folders, but with little or nothing to share
    "tests/spark/test_where_it_runs.py",  # most of its sessions are in processes of their own, as are those of the next
    "tests/spark/test_exactly_once.py",
    "tests/spark/test_delta_table.py",
    "tests/spark/test_decoding.py",
    "tests/cluster/test_races.py",  # most of its tests have a cluster behind proxies
)
FIRST = (
    *TOGETHER,
    *ALONE[:2],
    ALONE[-1],
    "tests/docs/test_pages.py",  # pages after each other, on one worker
    "tests/crash/test_crash_images.py",
    "tests/blackbox/test_kills.py",
    "tests/blackbox/test_abuse.py",
)

gc.disable()  # until all tests are collected: nothing of them is garbage
# Examples may take their time: on a busy machine a deadline tells nothing about the code.
hypothesis.settings.register_profile("sulina", deadline=None)
hypothesis.settings.load_profile("sulina")
os.environ.setdefault("SULINA_DAY", datetime.datetime.now(datetime.UTC).date().isoformat())  # draws tests/mutants
# Every worker, and the many processes that tests start, would each compile everything.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_home.java_options())
if spark_home.ARCHIVE.exists():
    os.environ.setdefault("SPARK_HOME", str(spark_home.HOME))


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]
    """A file's tests, or those of a folder that share something, run on one worker in their order."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if "of_the_day" in nodeid:  # each planted defect runs in processes of its own
            return nodeid
        return next((folder for folder in TOGETHER if file.startswith(folder) and file not in ALONE), file)

    def _assign_work_unit(self, node: Any) -> None:
        mutants = [scope for scope in self.workqueue if "of_the_day" in scope]  # some wait for a minute: not last
        for scope in reversed([*FIRST, *mutants]):
            if scope in self.workqueue:
                self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst:
    """Whatever `--dist` says."""
    return LongestFirst(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark of tests that need a program which no fixture of theirs starts."""
    config.addinivalue_line("markers", "needs(program): the test needs etcd or java")


def pytest_collection_finish() -> None:
    """Keep what was collected from being looked through at every collection of garbage: a tenth of a worker's time."""
    gc.collect()
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # extension modules free it then; some of them print what they could not free


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check that the programs which a test needs are there, before its fixtures start them."""
    for program in sorted(needs.programs_of(item)):
        needs.require(program)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which kill points were covered, which folders took too long, and what this run left out."""
    reports = [
        report
        for category in ("passed", "failed", "skipped", "error", "")
        for report in terminalreporter.stats.get(category, ())
        if isinstance(report, pytest.TestReport)
    ]
    covered = {value for report in reports for name, value in report.user_properties if name == "kill_point"}
    if covered:
        terminalreporter.write_line(f"kill points covered {len(covered)} / {len(STORAGE_FAILPOINTS)}")
    for line in left_out.overruns(left_out.seconds_by_folder(reports)):
        terminalreporter.write_line(line, yellow=True)
    is_whole = not terminalreporter.config.args or terminalreporter.config.args == ["tests"]
    lines = left_out.left_out(reports)
    if is_whole:
        lines += [f"{what}: {word}" for what, word in left_out.LONG_FORMS.items()]
    if lines:
        terminalreporter.write_line("left out of this run:")
    for line in lines:
        terminalreporter.write_line(f"  {line}")
