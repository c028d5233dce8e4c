"""Two checkouts are compared by what their benchmarks scatter."""

import json
from pathlib import Path

import pytest

from benchmarks.compare import Figure, change, figures, table

SPEED, TIME = Figure("publishes", "1/s", False), Figure("wait", "ms", True)


@pytest.mark.parametrize(
    ("figure", "after", "verdict"),
    [
        (SPEED, [101, 99, 103, 98, 100], "same"),
        (SPEED, [120, 121, 119, 122, 118], "better"),
        (SPEED, [80, 79, 81, 78, 82], "worse"),
        (TIME, [120, 121, 119, 122, 118], "worse"),
        (TIME, [80, 79, 81, 78, 82], "better"),
        (SPEED, [60, 97, 104, 99, 140], "same"),  # the median is lower, and lies within what others were
    ],
)
def test_a_figure_has_changed_if_it_did_by_more_than_it_scatters(
    figure: Figure, after: list[float], verdict: str
) -> None:
    found = change(figure, [99, 101, 100, 98, 102], after)
    assert found.verdict == verdict
    assert verdict in table([found])


def test_what_is_better_follows_from_the_goal_and_else_from_the_unit(tmp_path: Path) -> None:
    told = [
        {"name": "a", "value": 1.0, "unit": "ratio", "goal": "<= 2", "met": True},
        {"name": "b", "value": 2.0, "unit": "ms", "goal": None, "met": None},
        {"name": "c", "value": 3.0, "unit": "1/s", "goal": None, "met": None},
    ]
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "told.json").write_text(json.dumps(told))
    program = tmp_path / ".venv" / "bin" / "python"
    program.write_text('#!/bin/sh\necho "$@" > asked\ncat told.json\n')
    program.chmod(0o755)
    found = list(figures(tmp_path, "log.py", full=False))
    assert [(figure.name, figure.is_small_better, value) for figure, value in found] == [
        ("log: a", True, 1.0),
        ("log: b", True, 2.0),
        ("log: c", False, 3.0),
    ]
    assert (tmp_path / "asked").read_text().endswith("log.py --json --quick\n")
