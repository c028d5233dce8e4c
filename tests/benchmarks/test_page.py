"""docs/benchmarks.md and its pictures are made of the stored figures, and missed goals stand first."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.chart import Bar, Group, bar_chart
from benchmarks.claims import CLAIMS, Claim, Line
from benchmarks.measure import Result
from benchmarks.page import Run, heading, page, pictured, read_runs

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_page_and_its_pictures_follow_the_figures() -> None:
    runs = read_runs(str(DOCS))
    assert (DOCS / "benchmarks.md").read_text() == page(runs, CLAIMS), "run benchmarks/run.py --render"
    for claim in CLAIMS:
        drawn = bar_chart(heading(claim, runs[claim.script]), claim.unit, pictured(claim, runs))
        assert (DOCS / "benchmarks" / f"{claim.slug}.svg").read_text() == drawn, "run benchmarks/run.py --render"


def test_missed_goals_stand_first() -> None:
    claims = [_claim("fast"), _claim("slow")]
    results = [_result("fast: ours", goal="<= 2"), _result("slow: ours", goal=">= 2")]
    text = page({"log.py": _run(results)}, claims)
    assert "1 of 2 goals were missed" in text
    assert text.index("### Missed: slow") < text.index("## Claims that hold") < text.index("### fast")


def test_a_picture_is_well_formed_and_shows_every_value() -> None:
    drawn = bar_chart("a < b", "MB/s", [Group("one", (Bar("ours", 3.0), Bar("raw", 4.0, "limit")), goal=3.5)])
    texts = [element.text for element in ElementTree.fromstring(drawn).iter() if element.tag.endswith("text")]
    assert "3 MB/s" in texts
    assert "4 MB/s" in texts
    with pytest.raises(ValueError, match="a chart needs values"):
        bar_chart("empty", "MB/s", [])


def _claim(name: str) -> Claim:
    return Claim(name, "log.py", name, "", "MB/s", (Line("Sulina", ": ours"),), {name: name}, (name,))


def _result(name: str, goal: str) -> Result:
    return Result(name=name, value=1.0, unit="MB/s", goal=goal, met=goal.startswith("<="))


def _run(results: list[Result]) -> Run:
    return Run(script="log.py", is_quick=True, date="", commit="", load_average=None, machine=["one"], results=results)
