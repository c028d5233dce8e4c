"""What all tests share: a summary of the kill points."""

import pytest

from sulina.storage.steps import Step


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many of the log's steps a process was killed at, in this run, and recovered from."""
    passed = terminalreporter.getreports("passed")
    covered = {value for report in passed for name, value in report.user_properties if name == "kill_point"}
    if covered:
        terminalreporter.write_line(f"kill points covered {len(covered)} / {len(Step)}")
