"""What all tests share: who runs what, and a summary of the kill points."""

from pathlib import Path

import pytest

from sulina.storage.steps import Step

TESTS = Path(__file__).parent
# Their tests share a cluster, which takes long to start; some build on what those before them did.
TOGETHER = ("cluster/", "cli/test_cluster_start.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers: what needs Spark is one's alone, and begins first, as it takes longest."""
    for item in items:
        name = str(item.path.relative_to(TESTS))
        if _needs_spark(item):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif name.startswith(TOGETHER):
            item.add_marker(pytest.mark.xdist_group(name))
    items.sort(key=lambda item: not _needs_spark(item))


def _needs_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many of the log's steps a process was killed at, in this run, and recovered from."""
    passed = terminalreporter.getreports("passed")
    covered = {value for report in passed for name, value in report.user_properties if name == "kill_point"}
    if covered:
        terminalreporter.write_line(f"kill points covered {len(covered)} / {len(Step)}")
