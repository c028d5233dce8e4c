"""The last lines of a run: what it left out and which word runs it, and which folder took longer than it should.

A skip's reason ends with that word: `"takes a minute or two: make examples"`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import pytest

# What `make test` runs in a short form or not at all.
LONG_FORMS = {
    "long forms of kills, power cuts, moves, faults and partitions": "make chaos",
    "nine of ten planted defects": "make mutants",
    "benchmarks": "make bench",
}

# Seconds that the tests of a folder may take together, in a whole run on two cores that are otherwise idle.
BUDGETS = {
    "spark": 530,
    "cluster": 360,
    "faults": 210,
    "cli": 110,
    "crash": 120,
    "blackbox": 100,
    "mutants": 280,
    "pubsub": 100,
    "contract": 60,
    "metadata": 50,
    "broker": 60,
    "listeners": 55,
    "core": 55,
    "storage": 50,
    "api": 50,
    "client": 20,
    "benchmarks": 15,
    "docs": 120,
    "examples": 15,
    "interop": 5,
    "golden": 15,
    "node": 5,
    "testing": 5,
    "tools": 5,
    "wire": 5,
}


def left_out(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Return a line for each reason for which tests were skipped."""
    reasons = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports if isinstance(report.longrepr, tuple)
    )
    return [f"{count} test{'s' if count > 1 else ''}: {reason}" for reason, count in sorted(reasons.items())]


def seconds_by_folder(reports: Iterable[pytest.TestReport]) -> Mapping[str, float]:
    """Return how long the tests of each folder took, set-up and tear-down included."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        folder, slash, _ = report.nodeid.removeprefix("tests/").partition("/")
        seconds[folder if slash else ""] += report.duration
    return seconds


def overruns(seconds: Mapping[str, float], budgets: Mapping[str, int] = BUDGETS) -> list[str]:
    """Return a line for each folder that is over its budget."""
    return [
        f"tests/{folder} took {seconds[folder]:.0f} s, over its budget of {budget} s"
        for folder, budget in budgets.items()
        if seconds.get(folder, 0) > budget
    ]
