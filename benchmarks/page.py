"""Writes docs/benchmarks.md and its pictures from the figures in docs/benchmarks/*.json. Missed goals come first."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.chart import Group, bar_chart
from benchmarks.claims import CLAIMS, Claim
from benchmarks.measure import Result, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The figures of one run of one benchmark."""

    script: str
    is_quick: bool
    date: str
    commit: str
    load_average: float | None
    machine: list[str]
    results: list[Result]
    note: str = ""

    @property
    def figures(self) -> str:
        """Return the path of the file with the figures, as the page links to it."""
        return f"benchmarks/{self.script.removesuffix('.py')}.json"

    def described(self) -> str:
        """Return a sentence about the run: script, date, commit, load of the machine."""
        kind = "Quick run" if self.is_quick else "Full run"
        load = "" if self.load_average is None else f", load average before it {self.load_average}"
        note = f"; {self.note}" if self.note else ""
        return f"{kind} of `{self.script}` on {self.date}, commit {self.commit}{load}{note}"


def read_runs(docs: str) -> dict[str, Run]:
    """Return the runs whose figures are stored, by the name of their script."""
    folder = os.path.join(docs, "benchmarks")
    runs = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".json"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                stored = json.load(file)
            run = Run(**{**stored, "results": [Result(**line) for line in stored["results"]]})
            runs[run.script] = run
    return runs


def write_page(docs: str, runs: Mapping[str, Run], claims: Sequence[Claim] = CLAIMS) -> None:
    """Write the page, and a picture for each claim that has figures."""
    for claim in claims:
        path = os.path.join(docs, "benchmarks", f"{claim.slug}.svg")
        if groups := pictured(claim, runs):
            with open(path, "w", encoding="utf-8") as file:
                file.write(bar_chart(heading(claim, runs[claim.script]), claim.unit, groups))
    with open(os.path.join(docs, "benchmarks.md"), "w", encoding="utf-8") as file:
        file.write(page(runs, claims))


def pictured(claim: Claim, runs: Mapping[str, Run]) -> list[Group]:
    """Return the bars of a claim's picture; none if its benchmark was not run."""
    run = runs.get(claim.script)
    return [] if run is None else claim.pictured(run.results)


def page(runs: Mapping[str, Run], claims: Sequence[Claim]) -> str:
    """Lay out the page in Markdown."""
    shown = [claim for claim in claims if pictured(claim, runs)]
    missed = [claim for claim in shown if is_missed(claim, runs[claim.script])]
    met = [claim for claim in shown if claim not in missed]
    lines = [
        "# Benchmarks",
        "",
        "<!-- Written by benchmarks/run.py from the figures in docs/benchmarks/*.json; do not edit. -->",
        "",
        "Each claim has one picture. Sulina is blue; beside it are peers, or a limit: what the same machine does",
        "without Sulina. Both are measured in the same run, in turns; a ratio is the median over the rounds.",
        "Missed goals come first.",
        "",
        *missed_goals(runs),
        "",
        "## Claims with a missed goal",
    ]
    for claim in missed:
        lines += ["", *section(claim, runs[claim.script])]
    lines += ["", "## Claims that hold"]
    for claim in met:
        lines += ["", *section(claim, runs[claim.script])]
    return "\n".join([*lines, "", *figures(runs)]) + "\n"


def missed_goals(runs: Mapping[str, Run]) -> list[str]:
    """List every goal that was missed, also those that no picture shows."""
    found = [one for run in runs.values() for one in run.results if one.met is False]
    if not found:
        return ["Every goal was met."]
    judged = sum(one.met is not None for run in runs.values() for one in run.results)
    lines = [f"{len(found)} of {judged} goals were missed:", "", "| missed | goal | measured |", "|---|---:|---:|"]
    return [*lines, *(f"| {one.name} | {goal(one)} | {measured(one)} |" for one in found)]


def is_missed(claim: Claim, run: Run) -> bool:
    """Tell whether a goal of a claim was missed."""
    return any(not one.met for one in claim.judged(run.results))


def heading(claim: Claim, run: Run) -> str:
    """Return the sentence of a claim; one that the figures refute says so."""
    return f"Missed: {claim.title[:1].lower()}{claim.title[1:]}" if is_missed(claim, run) else claim.title


def section(claim: Claim, run: Run) -> list[str]:
    """Lay out one claim: its sentence, its picture, its goals."""
    title = heading(claim, run)
    lines = [f"### {title}", "", f"![{title}](benchmarks/{claim.slug}.svg)", "", claim.text]
    if judged := claim.judged(run.results):
        lines += ["", "| | goal | measured | met |", "|---|---:|---:|---|"]
        lines += [
            f"| {one.name} | {goal(one)} | {measured(one)} | {'yes' if one.met else '**no**'} |" for one in judged
        ]
    return [*lines, "", f"{run.described()}: [figures]({run.figures})."]


def figures(runs: Mapping[str, Run]) -> list[str]:
    """List the files of figures, the machines, and the commands that measure them again."""
    lines = ["## All figures, and how to reproduce them", ""]
    lines += [f"- [{run.figures}]({run.figures}): {run.described()}" for run in runs.values()]
    machines = dict.fromkeys(" · ".join(run.machine) for run in runs.values())
    lines += ["", *(f"Measured on: {machine}." for machine in machines), ""]
    lines += [
        "- `make bench` runs everything and writes this page.",
        "- `.venv/bin/python benchmarks/log.py [--quick] [--dir DIR]` runs one benchmark.",
        "- `.venv/bin/python benchmarks/run.py --render` makes the page and its pictures again from the figures.",
        "",
        "On a machine that is busy with other work, a ratio can be wrong in either direction.",
    ]
    return lines


def goal(result: Result) -> str:
    """Write a goal for people."""
    sign, _, value = (result.goal or "").partition(" ")
    return f"{ {'>=': 'at least', '<=': 'at most'}.get(sign, sign) } {number(float(value))}"


def measured(result: Result) -> str:
    """Write a value with its unit; a ratio has none."""
    return number(result.value) + ("" if result.unit == "ratio" else f" {result.unit}")
